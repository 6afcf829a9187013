"""Notifications for finished runs, sent once to each configured receiver and recorded.

Receivers are served concurrently, so that a slow one does not delay the others. If a receiver does
not answer, the notification is sent again for one day with increasing delays, also by the next
coordinator. Two coordinators may send the same notification. A receiver can detect this, because
the id is always the run id. Runs that ended before a receiver was first configured are not sent.
The time when it was configured is stored too.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.runs.run_documents import read_run_summary
from broadside.exchange.background import restart_on_error
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


class NotTold(Exception):
    """A receiver did not accept a notification. The message contains the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Notification for a run that has ended.

    Attributes:
        header: Run header.
        summary: Run summary.
    """

    header: RunHeader
    summary: RunSummary


class PlaceSet(Message):
    """Time from which notifications are sent to a receiver."""

    since_at: UtcDatetime


class Place(Protocol):
    """Receiver of notifications.

    Attributes:
        name: Name that is stored, to know after a restart what was sent.
    """

    name: str

    async def tell(self, notice: Notice) -> None:
        """Send a notification.

        Raises:
            NotTold: The receiver did not accept it.
        """


@dataclass(slots=True)
class _Vain:
    tries_count: int = 0
    again_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class PlaceState:
    """State of one receiver.

    Attributes:
        name: Name of the receiver.
        waiting_count: Number of runs to send, as of the last check.
        failures_count: Number of failures since the last success.
        last_error: Text of the last error, or None after a success.
        last_error_at: Time of the last error.
        told_at: Time of the last success.
    """

    name: str
    waiting_count: int = 0
    failures_count: int = 0
    last_error: str | None = None
    last_error_at: datetime | None = None
    told_at: datetime | None = None


class Announcer:
    """Background service to send notifications, with one task for each receiver."""

    def __init__(
        self, records: Records, places: Sequence[Place], now: Callable[[], datetime]
    ) -> None:
        told = asyncio.Lock()
        self._served = [_Served(records, place, now, told) for place in places]

    @property
    def states(self) -> Sequence[PlaceState]:
        return [each.state for each in self._served]

    async def run_forever(self, tick_s: float) -> None:
        """Send notifications until cancelled, and retry after outages.

        Args:
            tick_s: Time between two checks in seconds.
        """
        async with asyncio.TaskGroup() as group:
            for each in self._served:
                group.create_task(restart_on_error(partial(each.run_forever, tick_s)))

    async def look(self) -> None:
        """Send all notifications that are due for runs that ended within one day."""
        await asyncio.gather(*(each.look() for each in self._served))


class _Served:
    """One receiver with its pending notifications."""

    def __init__(
        self, records: Records, place: Place, now: Callable[[], datetime], told: asyncio.Lock
    ) -> None:
        self._records = records
        self._place = place
        self._now = now
        # Shared lock, because all receivers of a run are in one document.
        self._told = told
        self._began_at = now()
        self._shelf = records.private.shelf(PLACES, PlaceSet)
        self._since_at: datetime | None = None
        # Runs that have nothing left to send.
        self._over: set[str] = set()
        self._vain: dict[str, _Vain] = {}
        self.state = PlaceState(name=place.name)

    async def run_forever(self, tick_s: float) -> None:
        while True:
            try:
                await self.look()
            except ExchangeError as error:
                log.warning("%s", error, extra={"action": "announce"})
            await asyncio.sleep(max(tick_s, LOOK_S))

    async def look(self) -> None:
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
            if await self._is_told(header):
                self._end(header.run_id)
                self.state.waiting_count -= 1

    def _end(self, run_id: str) -> None:
        self._over.add(run_id)
        self._vain.pop(run_id, None)

    async def _since_when(self) -> datetime:
        """Return the time when this receiver was first configured."""
        name = self._place.name
        kept = await self._shelf.read(name)
        if kept is None:
            kept = PlaceSet(since_at=self._began_at)
            # Another coordinator has created it at the same time.
            with contextlib.suppress(EntityExists):
                await self._shelf.create(name, kept)
        return kept.since_at

    async def _is_told(self, header: RunHeader) -> bool:
        """Send one notification if it is due, and return True if it has been sent now or before."""
        private, run_id = self._records.private, header.run_id
        if await private.read_document(run_id, Document.IMPORT) is not None:
            # An import is not the end of a run.
            return True
        if self._place.name in await self._told_of(run_id):
            return True
        summary = await read_run_summary(self._records, run_id)
        if summary is None or not await self._tell(Notice(header=header, summary=summary)):
            return False
        async with self._told:
            names = {*await self._told_of(run_id), self._place.name}
            content = json.dumps(sorted(names)).encode()
            await private.save_document(run_id, Document.ANNOUNCED, content)
        return True

    async def _told_of(self, run_id: str) -> set[str]:
        kept = await self._records.private.read_document(run_id, Document.ANNOUNCED)
        return set(json.loads(kept)) if kept else set()

    async def _tell(self, notice: Notice) -> bool:
        run_id, state = notice.header.run_id, self.state
        vain = self._vain.setdefault(run_id, _Vain())
        if vain.again_at is not None and self._now() < vain.again_at:
            return False
        try:
            await self._place.tell(notice)
        except NotTold as error:
            pause_s = min(PAUSE_FIRST_S * 2**vain.tries_count, PAUSE_MOST_S)
            vain.tries_count += 1
            vain.again_at = self._now() + timedelta(seconds=pause_s)
            state.failures_count += 1
            state.last_error, state.last_error_at = str(error), self._now()
            log.warning(
                "%s was not told that %s ended: %s; again in %g s",
                self._place.name,
                run_id,
                error,
                pause_s,
                extra={"action": "announce", "run_id": run_id},
            )
            return False
        state.failures_count, state.last_error, state.told_at = 0, None, self._now()
        return True
