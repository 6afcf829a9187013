"""Tells of every run that ended, once to each place that is set; what was told is on record.

Places are served side by side: one that drips or is off delays nobody else's notices. A place that
does not answer is asked again, ever more seldom, for a day, also by the next
coordinator. Two coordinators may both tell: receivers know a notice by its id, the run's. Of what
ended before a place was first set it is told nothing; since when it is set is on record, too.
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
from broadside.coordinator.runs.stored import read_run_summary
from broadside.exchange.background import keep_going
from broadside.exchange.messages import Message, UtcDatetime
from broadside.exchange.ports import EntityExists, ExchangeError
from broadside.exchange.records import Document, Records, RunHeader
from broadside.exchange.records.keys import PLACES

LOOK_S: Final = 5.0  # s between two looks at the list of runs
GIVE_UP_AFTER: Final = timedelta(days=1)  # since the run's end
LAUNCHED_WITHIN: Final = timedelta(days=8)  # no run is longer: a week unattended
PAUSE_FIRST_S: Final = 5.0  # s, doubled after each vain try
PAUSE_MOST_S: Final = 600.0

log = logging.getLogger(__name__)


class NotTold(Exception):
    """A place did not take a notice; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A run that ended."""

    header: RunHeader
    summary: RunSummary


class PlaceSet(Message):
    """Since when a place is told."""

    since_at: UtcDatetime


class Place(Protocol):
    """Where notices go."""

    name: str  # on record, so that a restart knows what was told

    async def tell(self, notice: Notice) -> None:
        """Raises :class:`NotTold`."""


@dataclass(slots=True)
class _Vain:
    tries_count: int = 0
    again_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class PlaceState:
    """How telling one place goes."""

    name: str
    waiting_count: int = 0  # runs that it was not told of yet, by its last look
    failures_count: int = 0  # vain tries since the last notice that it took
    last_error: str | None = None  # None: it took the last notice, or there was none
    last_error_at: datetime | None = None
    told_at: datetime | None = None  # the last notice that it took


class Announcer:
    """A companion of the coordinator: places are served side by side, each by its own look."""

    def __init__(
        self, records: Records, places: Sequence[Place], now: Callable[[], datetime]
    ) -> None:
        told = asyncio.Lock()
        self._served = [_Served(records, place, now, told) for place in places]

    @property
    def states(self) -> Sequence[PlaceState]:
        return [each.state for each in self._served]

    async def run_forever(self, tick_s: float) -> None:
        """Look until cancelled; an outage is waited out, and no place waits for another."""
        async with asyncio.TaskGroup() as group:
            for each in self._served:
                group.create_task(keep_going(partial(each.run_forever, tick_s)))

    async def look(self) -> None:
        """Tell of every run that ended within a day, as far as it was not told."""
        await asyncio.gather(*(each.look() for each in self._served))


class _Served:
    """One place: what waits for it, and how it goes."""

    def __init__(
        self, records: Records, place: Place, now: Callable[[], datetime], told: asyncio.Lock
    ) -> None:
        self._records = records
        self._place = place
        self._now = now
        self._told = told  # the places that were told of a run are one document
        self._began_at = now()
        self._shelf = records.private.shelf(PLACES, PlaceSet)
        self._since_at: datetime | None = None
        self._over: set[str] = set()  # runs of which there is nothing left to tell
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
        """Tell the place of every run that ended within a day, as far as it was not told."""
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
        """When a coordinator first had this place; from now on if none had."""
        name = self._place.name
        kept = await self._shelf.read(name)
        if kept is None:
            kept = PlaceSet(since_at=self._began_at)
            with contextlib.suppress(EntityExists):  # another one began with us
                await self._shelf.create(name, kept)
        return kept.since_at

    async def _is_told(self, header: RunHeader) -> bool:
        """Tell of one run, unless that was done, or is not due again."""
        private, run_id = self._records.private, header.run_id
        if await private.read_document(run_id, Document.IMPORT) is not None:
            return True  # nothing ended: a file was read
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
