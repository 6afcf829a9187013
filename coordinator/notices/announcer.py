"""Tells of every run that ended, once to each place that is set; what was told is on record.

A place that does not answer is asked again, ever more seldom, for a day, also by the next
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
from typing import Final, Protocol

from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.runs.stored import read_run_summary
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


class Announcer:
    """A companion of the coordinator."""

    def __init__(
        self, records: Records, places: Sequence[Place], now: Callable[[], datetime]
    ) -> None:
        self._records = records
        self._places = places
        self._now = now
        self._began_at = now()
        self._shelf = records.private.shelf(PLACES, PlaceSet)
        self._since: dict[str, datetime] = {}  # by a place's name
        self._over: set[str] = set()  # runs of which there is nothing left to tell
        self._vain: dict[tuple[str, str], _Vain] = {}

    async def run_forever(self, tick_s: float) -> None:
        """Look until cancelled; an outage is waited out."""
        while True:
            try:
                await self.look()
            except ExchangeError as error:
                log.warning("%s", error, extra={"action": "announce"})
            await asyncio.sleep(max(tick_s, LOOK_S))

    async def look(self) -> None:
        """Tell of every run that ended within a day, as far as it was not told."""
        now = self._now()
        for place in self._places:
            if place.name not in self._since:
                self._since[place.name] = await self._since_when(place)
        async for _, header in self._records.private.scan_runs():
            if header.created_at < now - LAUNCHED_WITHIN:
                return
            if header.outcome is None or header.run_id in self._over:
                continue
            ended_at = header.outcome.ended_at
            places = [each for each in self._places if self._since[each.name] <= ended_at]
            if ended_at < now - GIVE_UP_AFTER or await self._told_all(header, places):
                self._over.add(header.run_id)

    async def _since_when(self, place: Place) -> datetime:
        """When a coordinator first had this place; from now on if none had."""
        kept = await self._shelf.read(place.name)
        if kept is None:
            kept = PlaceSet(since_at=self._began_at)
            with contextlib.suppress(EntityExists):  # another one began with us
                await self._shelf.create(place.name, kept)
        return kept.since_at

    async def _told_all(self, header: RunHeader, places: Sequence[Place]) -> bool:
        private, run_id = self._records.private, header.run_id
        if await private.read_document(run_id, Document.IMPORT) is not None:
            return True  # nothing ended: a file was read
        kept = await private.read_document(run_id, Document.ANNOUNCED)
        told = set(json.loads(kept)) if kept else set()
        left = [place for place in places if place.name not in told]
        summary = await read_run_summary(self._records, run_id) if left else None
        if summary is None:
            return not left
        notice = Notice(header=header, summary=summary)
        for place in left:
            if await self._tell(place, notice):
                told.add(place.name)
                content = json.dumps(sorted(told)).encode()
                await private.save_document(run_id, Document.ANNOUNCED, content)
        return all(place.name in told for place in left)

    async def _tell(self, place: Place, notice: Notice) -> bool:
        run_id = notice.header.run_id
        vain = self._vain.setdefault((run_id, place.name), _Vain())
        if vain.again_at is not None and self._now() < vain.again_at:
            return False
        try:
            await place.tell(notice)
        except NotTold as error:
            pause_s = min(PAUSE_FIRST_S * 2**vain.tries_count, PAUSE_MOST_S)
            vain.tries_count += 1
            vain.again_at = self._now() + timedelta(seconds=pause_s)
            log.warning(
                "%s was not told that %s ended: %s; again in %g s",
                place.name,
                run_id,
                error,
                pause_s,
                extra={"action": "announce", "run_id": run_id},
            )
            return False
        del self._vain[run_id, place.name]
        return True
