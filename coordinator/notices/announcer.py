"""Notifications for finished runs, sent once to each configured receiver and recorded.

Receivers are served concurrently, so that a slow one does not delay the others. If a receiver does
not answer, the notification will be sent again for one day with increasing delays, also by the next
coordinator. Two coordinators may send the same notification. A receiver can detect this, because
the id is always the run id. Runs that ended before a receiver was first configured are not sent.
The time when it was configured is stored too.
"""

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

import httpx

from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.runs.run_documents import read_run_summary
from broadside.exchange.background import restart_on_error
from broadside.exchange.http.bounded import ask
from broadside.exchange.messages import Message, UtcDatetime
from broadside.exchange.ports import EntityExists, ExchangeError
from broadside.exchange.records import Document, Records, RunHeader
from broadside.exchange.records.keys import PLACES

# Time between two checks of the run list.
LOOK_S: Final = 5.0
# Time after a run has ended in which a notification is sent.
GIVE_UP_AFTER: Final = timedelta(days=1)
# Longest time from launch to end: a run can be unattended for a week.
LAUNCHED_WITHIN: Final = timedelta(days=8)
# First delay in seconds, which is doubled after each failure.
PAUSE_FIRST_S: Final = 5.0
PAUSE_MOST_S: Final = 600.0

log = logging.getLogger(__name__)


class NotDelivered(Exception):
    """A receiver did not accept a notification. The message contains the reason."""


async def post(
    url: str,
    content: bytes,
    headers: Mapping[str, str],
    total_s: float,
    certificate: str | None = None,
) -> None:
    """Send a POST request without redirects. Only the status of the response is read.

    Args:
        url: The URL.
        content: Body of the request.
        headers: Headers of the request.
        total_s: Time limit in seconds, from the connection to the end of the response headers.
        certificate: File with certificates of the authorities to trust, or None for the usual ones.

    Raises:
        NotDelivered: There is no response, or its status is not a success.
    """
    try:
        trust = True if certificate is None else ssl.create_default_context(cafile=certificate)
        async with httpx.AsyncClient(timeout=total_s, verify=trust) as http:
            response = await ask(
                http, "POST", url, None, total_s=total_s, content=content, headers=dict(headers)
            )
    except httpx.TimeoutException as error:
        raise NotDelivered(f"no answer within {total_s:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise NotDelivered(f"no answer ({type(error).__name__})") from error
    if not response.is_success:
        raise NotDelivered(f"it answered {response.status_code}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Notification for a run that has ended.

    Attributes:
        header: Run header.
        summary: Run summary.
    """

    header: RunHeader
    summary: RunSummary


class ReceiverStart(Message):
    """Time from which notifications are sent to a receiver."""

    since_at: UtcDatetime


class Receiver(Protocol):
    """Receiver of notifications.

    Attributes:
        name: Name that is stored, to know after a restart what was sent.
    """

    name: str

    async def deliver(self, notice: Notice) -> None:
        """Send a notification.

        Raises:
            NotDelivered: The receiver did not accept it.
        """


@dataclass(slots=True)
class _Vain:
    tries_count: int = 0
    again_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class ReceiverState:
    """State of one receiver.

    Attributes:
        name: Name of the receiver.
        waiting_count: Number of runs to send, as of the last check.
        failures_count: Number of failures since the last success.
        last_error: Text of the last error, or None after a success.
        last_error_at: Time of the last error.
        last_delivered_at: Time of the last success.
    """

    name: str
    waiting_count: int = 0
    failures_count: int = 0
    last_error: str | None = None
    last_error_at: datetime | None = None
    last_delivered_at: datetime | None = None


class Announcer:
    """Background service to send notifications, with one task for each receiver."""

    def __init__(
        self, records: Records, places: Sequence[Receiver], now: Callable[[], datetime]
    ) -> None:
        lock = asyncio.Lock()
        self._deliveries = [_Delivery(records, place, now, lock) for place in places]

    @property
    def states(self) -> Sequence[ReceiverState]:
        return [delivery.state for delivery in self._deliveries]

    async def run_forever(self, tick_s: float) -> None:
        """Send notifications until cancelled, and retry after outages.

        Args:
            tick_s: Time between two checks in seconds.
        """
        async with asyncio.TaskGroup() as group:
            for delivery in self._deliveries:
                group.create_task(restart_on_error(partial(delivery.run_forever, tick_s)))

    async def deliver_due(self) -> None:
        """Send all notifications that are due for runs that ended within one day."""
        await asyncio.gather(*(delivery.deliver_due() for delivery in self._deliveries))


class _Delivery:
    """One receiver with its pending notifications."""

    def __init__(
        self, records: Records, place: Receiver, now: Callable[[], datetime], lock: asyncio.Lock
    ) -> None:
        self._records = records
        self._receiver = place
        self._now = now
        # Shared lock, because all receivers of a run are in one document.
        self._lock = lock
        self._began_at = now()
        self._shelf = records.private.shelf(PLACES, ReceiverStart)
        self._since_at: datetime | None = None
        # Runs that have nothing left to send.
        self._over: set[str] = set()
        self._vain: dict[str, _Vain] = {}
        self.state = ReceiverState(name=place.name)

    async def run_forever(self, tick_s: float) -> None:
        while True:
            try:
                await self.deliver_due()
            except ExchangeError as error:
                log.warning("%s", error, extra={"action": "announce"})
            await asyncio.sleep(max(tick_s, LOOK_S))

    async def deliver_due(self) -> None:
        """Send all notifications that are due to this receiver."""
        now = self._now()
        if self._since_at is None:
            self._since_at = await self._since_when()
        waiting: list[RunHeader] = []
        async for _, header in self._records.private.scan_runs():
            if header.created_at < now - LAUNCHED_WITHIN:
                break
            if header.outcome is None or header.run_id in self._over:
                continue
            ended_at = header.outcome.ended_at
            if ended_at < max(self._since_at, now - GIVE_UP_AFTER):
                self._end(header.run_id)
            else:
                waiting.append(header)
        self.state.waiting_count = len(waiting)
        for header in waiting:
            if await self._is_delivered(header):
                self._end(header.run_id)
                self.state.waiting_count -= 1

    def _end(self, run_id: str) -> None:
        self._over.add(run_id)
        self._vain.pop(run_id, None)

    async def _since_when(self) -> datetime:
        """Return the time when this receiver was first configured."""
        name = self._receiver.name
        stored = await self._shelf.read(name)
        if stored is None:
            stored = ReceiverStart(since_at=self._began_at)
            # Another coordinator has created it at the same time.
            with contextlib.suppress(EntityExists):
                await self._shelf.create(name, stored)
        return stored.since_at

    async def _is_delivered(self, header: RunHeader) -> bool:
        """Send one notification if it is due, and return True if it has been sent now or before."""
        private, run_id = self._records.private, header.run_id
        if await private.read_document(run_id, Document.IMPORT) is not None:
            # An import is not the end of a run.
            return True
        if self._receiver.name in await self._delivered_to(run_id):
            return True
        summary = await read_run_summary(self._records, run_id)
        if summary is None or not await self._deliver(Notice(header=header, summary=summary)):
            return False
        async with self._lock:
            names = {*await self._delivered_to(run_id), self._receiver.name}
            content = json.dumps(sorted(names)).encode()
            await private.save_document(run_id, Document.ANNOUNCED, content)
        return True

    async def _delivered_to(self, run_id: str) -> set[str]:
        stored = await self._records.private.read_document(run_id, Document.ANNOUNCED)
        return set(json.loads(stored)) if stored else set()

    async def _deliver(self, notice: Notice) -> bool:
        run_id, state = notice.header.run_id, self.state
        vain = self._vain.setdefault(run_id, _Vain())
        if vain.again_at is not None and self._now() < vain.again_at:
            return False
        try:
            await self._receiver.deliver(notice)
        except NotDelivered as error:
            pause_s = min(PAUSE_FIRST_S * 2**vain.tries_count, PAUSE_MOST_S)
            vain.tries_count += 1
            vain.again_at = self._now() + timedelta(seconds=pause_s)
            state.failures_count += 1
            state.last_error, state.last_error_at = str(error), self._now()
            log.warning(
                "%s: notification of %s not delivered: %s; next try in %g s",
                self._receiver.name,
                run_id,
                error,
                pause_s,
                extra={"action": "announce", "run_id": run_id},
            )
            return False
        state.failures_count, state.last_error, state.last_delivered_at = 0, None, self._now()
        return True
