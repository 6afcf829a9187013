"""A witness that keeps no history: it is asked on a clock, and this remembers what it said.

Counters become rates here, and only where both readings can be believed: one that wrapped is read
through its wrap, one that fell for another reason, or whose device restarted in between, leaves
the time between unknown.
"""

import asyncio
import logging
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.testimony import (
    Quantity,
    Remark,
    RemarkKind,
    Witnessed,
    WitnessSeries,
    column,
)
from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.coordinator.device.witnesses.stamp_offset import (
    Sighting,
    StampOffset,
    describe_offset,
    estimate_offset,
)
from broadside.coordinator.device.witnesses.witness_file import PolledEntry

log = logging.getLogger(__name__)

KEPT_MAX_COUNT: Final = 100_000  # readings of one series: a day at one a second
SERIES_MAX_COUNT: Final = 512  # of one device: cores, interfaces
REMARKS_MAX_COUNT: Final = 1_000
JITTER_RATIO: Final = 0.1  # of the clock: two coordinators, and the device's own tick, drift apart
# Seconds of one round of questions, as of one read of a source that keeps a history.
# A source with many requests a round (SNMP tables) has bounds for each of them only.
ROUND_MAX_S: Final = 60.0
TICKS_WRAP_S: Final = 2**32 / 100  # sysUpTime comes round after 497 days (RFC 3418)
HELD_MAX_S: Final = 15.0  # s for which counters that stand still may be those of before
UP_SLACK_S: Final = 2.0  # s by which a device's own count of time up may run off ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One figure as it was read."""

    quantity: Quantity
    value: float  # of a counter the total, in the quantity's own unit (bits, packets)
    instance: str = ""
    over_s: float = 0.0  # of a gauge: the mean of so many seconds before
    counts_to: float | None = None  # a counter that wraps there; inf: one that never does; None: a
    # gauge
    most_per_second: float | None = None  # a counter's fastest rate, where the device tells it
    at_s: float | None = None  # epoch s of the coordinator's clock, of a question of its own ...
    bound_s: float = 0.0  # ... to so many seconds; None: its round's


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One round of questions."""

    readings: Sequence[Reading]
    up_s: float | None = None  # the device's own count of time since it started
    untold: Sequence[str] = ()  # what was asked, and it does not have
    at_s: float | None = None  # epoch s by the device's own clock, where the answer carries it
    partial: str | None = None  # why it is known to be incomplete


@dataclass(slots=True)
class _Kept:
    """One series on its way.

    A row holds at_s, over_s and bound_s by question and answer; at_s and over_s by the device's
    own stamps (NaN: it gives none); and the value, or of a counter what passed in between.
    """

    counts: bool
    rows: deque[tuple[float, float, float, float, float, float]] = field(
        default_factory=lambda: deque(maxlen=KEPT_MAX_COUNT)
    )
    total: float | None = None  # of a counter, at ...
    total_at_s: float = 0.0
    total_stamp_s: float = math.nan  # ... and by its own stamp


@dataclass(frozen=True, slots=True)
class _Instant:
    """When a reading was taken: by question and answer, and by the device's own stamp."""

    at_s: float
    bound_s: float
    stamp_s: float = math.nan


class PolledWitness:
    """One device that is asked every ``poll_s``; see :class:`.witness_file.WitnessSource`."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[Answer]],
        *,
        name: str,
        entry: PolledEntry,
        quantities: Iterable[Quantity] = (),
        close: Callable[[], None] = lambda: None,
        wall_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
        round_max_s: float = ROUND_MAX_S,
    ) -> None:
        """``ask`` raises LedgerError where there is no answer."""
        self.name = name
        self.devices = (entry.device,)
        self.quantities = frozenset(quantities)
        self.settle_s = 1.5 * entry.poll_s
        self._ask = ask
        self.close = close  # lets go of what asking holds; it may be asked again after that
        self._device = entry.device
        self.poll_s = entry.poll_s
        self._cores_count = entry.cores_count
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._round_max_s = round_max_s
        self._kept: dict[tuple[Quantity, str], _Kept] = {}
        self._remarks: deque[Remark] = deque(maxlen=REMARKS_MAX_COUNT)
        self._up: tuple[float, float, float] | None = None  # its count, when, and when steadily
        self._silent_from_s: float | None = None
        self._sightings: deque[Sighting] = deque(maxlen=KEPT_MAX_COUNT)
        self._last_values: Sequence[float] = ()

    async def watch(self) -> None:
        """Ask every ``poll_s``, give or take a tenth; a slow answer delays the next question."""
        loop = asyncio.get_running_loop()
        next_s = loop.time() + random.uniform(0, self.poll_s / 2)  # noqa: S311  # no secret
        try:
            while True:
                await asyncio.sleep(max(0.0, next_s - loop.time()))
                await self.poll()
                jitter = random.uniform(-JITTER_RATIO, JITTER_RATIO)  # noqa: S311  # no secret
                next_s = max(next_s + self.poll_s * (1 + jitter), loop.time())
        finally:
            self.close()

    async def poll(self) -> bool:
        """Ask once, and remember what was said; no answer is remembered too, and False."""
        asked_s, began_s = self._wall_s(), self._steady_s()
        try:
            async with asyncio.timeout(self._round_max_s):
                answer = await self._ask()
        except LedgerError as error:
            self._silent(asked_s, str(error))
            return False
        except TimeoutError:
            self.close()  # an answer that still comes would be taken for the next question's
            self._silent(asked_s, f"no whole answer within {self._round_max_s:g} s")
            return False
        took_s = self._steady_s() - began_s
        middle = _Instant(asked_s + took_s / 2, took_s / 2)
        self._silent_from_s = None
        restarted = self._restarted(answer.up_s, middle.at_s, began_s + took_s / 2)
        for said in answer.untold:
            self._remark(RemarkKind.UNTOLD, middle.at_s, middle.at_s, said)
        partial = answer.partial
        if len(answer.readings) > SERIES_MAX_COUNT:
            partial = f"{len(answer.readings)} figures; {SERIES_MAX_COUNT} of a device are read"
        if partial is not None:
            self._remark(RemarkKind.PARTIAL, middle.at_s, middle.at_s, partial)
        if answer.at_s is not None:
            if self._is_repeated(answer, answer.at_s, asked_s, asked_s + took_s):
                return True
            middle = replace(middle, stamp_s=answer.at_s)
        held = not restarted and self._are_held(answer.readings)
        for reading in answer.readings[:SERIES_MAX_COUNT]:
            counts = reading.counts_to is not None
            if counts and (held or partial is not None):
                continue
            if partial is not None:
                reading = replace(reading, value=math.nan)
            own = reading.at_s is not None
            instant = _Instant(reading.at_s or 0.0, reading.bound_s) if own else middle
            self._keep(reading, instant, restarted=restarted)
        return True

    def _is_repeated(
        self, answer: Answer, stamp_s: float, asked_s: float, answered_s: float
    ) -> bool:
        """Note a stamp of the device's clock; return whether the answer is the last one again."""
        last = self._sightings[-1] if self._sightings else None
        values = [reading.value for reading in answer.readings]
        same = last is not None and last.stamp_s == stamp_s
        repeated = same and values == self._last_values
        self._last_values = values
        other_at_s = None if last is None or same else last.asked_s
        self._sightings.append(Sighting(stamp_s, asked_s, answered_s, other_at_s, repeated))
        return repeated

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        from_s, before_s = from_at.timestamp(), before_at.timestamp()
        offset = estimate_offset(
            [each for each in self._sightings if from_s <= each.asked_s < before_s]
        )
        series = (self._series(key, offset) for key in self._kept)
        within = (each.within(from_s, before_s) for each in series)
        return Witnessed(
            devices=self.devices,
            series=tuple(each for each in within if len(each.at_s)),
            remarks=tuple(
                each
                for each in (*self._remarks, *self._of_clock(offset, from_s, before_s))
                if each.to_s >= from_s and each.from_s < before_s
            ),
            read_at=datetime.now(UTC),
            cores_count=None if self._cores_count is None else {self._device: self._cores_count},
        )

    def _series(self, key: tuple[Quantity, str], offset: StampOffset | None) -> WitnessSeries:
        """The readings, by their own stamps where the offset of these is known."""
        kept = self._kept[key]
        at_s, over_s, bound_s, stamp_s, stamp_over_s, values = (
            column(row[n] for row in kept.rows) for n in range(6)
        )
        if offset is not None:
            own = ~np.isnan(stamp_s)
            if offset.usable:
                at_s = np.where(own, stamp_s - offset.offset_s, at_s)
                over_s = np.where(own & ~np.isnan(stamp_over_s), stamp_over_s, over_s)
                bound_s = np.where(own, offset.bound_s, bound_s)
            else:
                bound_s = np.where(own, bound_s + offset.spread_s, bound_s)
        if kept.counts:
            values = values / over_s
        order = np.argsort(at_s, kind="stable")
        return WitnessSeries(
            device=self._device,
            source=self.name,
            quantity=key[0],
            instance=key[1],
            at_s=at_s[order],
            over_s=over_s[order],
            bound_s=bound_s[order],
            values=values[order],
        )

    def _of_clock(
        self, offset: StampOffset | None, from_s: float, before_s: float
    ) -> Iterable[Remark]:
        """What is to be said of the device's own stamps within a span."""
        said = None if offset is None else describe_offset(offset)
        if offset is not None and said is not None:
            yield Remark(
                kind=RemarkKind.CLOCK if offset.usable else RemarkKind.STAMPS,
                device=self._device,
                source=self.name,
                from_s=max(from_s, self._sightings[0].asked_s),
                to_s=min(before_s, self._sightings[-1].answered_s),
                said=said,
            )

    # What befalls the telling ---------------------------------------------------------------

    def _silent(self, at_s: float, why: str) -> None:
        if self._silent_from_s is None:
            self._silent_from_s = at_s
            log.warning("witness %s: %s", self.name, why, extra={"action": "witness"})
        self._remark(RemarkKind.SILENT, self._silent_from_s, at_s, why)

    def _restarted(self, up_s: float | None, at_s: float, steady_s: float) -> bool:
        """Whether it started after its last answer: its count of time up went back, other than by
        coming round, or is less than the time since."""
        was, self._up = self._up, None if up_s is None else (up_s, at_s, steady_s)
        if was is None or up_s is None:
            return False
        since_s = steady_s - was[2]
        due_s = was[0] + since_s
        young = up_s <= since_s and up_s < due_s - UP_SLACK_S
        if not young and up_s >= was[0] - UP_SLACK_S:
            return False
        if abs(due_s % TICKS_WRAP_S - up_s) <= UP_SLACK_S:
            return False
        from_s = max(was[1], at_s - up_s - UP_SLACK_S)
        self._remark(
            RemarkKind.RESTARTED,
            from_s,
            at_s,
            f"its time up was {was[0]:.0f} s, and {since_s:.0f} s later {up_s:.0f} s",
        )
        return True

    def _remark(self, kind: RemarkKind, from_s: float, to_s: float, said: str) -> None:
        """Note it; what went on since the last reading is the same spell."""
        for index, last in enumerate(self._remarks):
            same = last.kind is kind and last.said == said
            if kind is RemarkKind.SILENT:
                same = last.kind is kind and last.from_s == from_s
            if same:
                self._remarks[index] = replace(last, to_s=to_s, count=last.count + 1)
                return
        self._remarks.append(
            Remark(
                kind=kind,
                device=self._device,
                source=self.name,
                from_s=from_s,
                to_s=to_s,
                said=said,
            )
        )

    # Readings ---------------------------------------------------------------------------------

    def _are_held(self, readings: Sequence[Reading]) -> bool:
        """Whether it told the counters of before once more, as one does that refreshes them more
        rarely than it is asked (net-snmp: every 3 s). What moves then moved since before."""
        known = [
            (kept, reading.value)
            for reading in readings
            if reading.counts_to is not None
            and (kept := self._kept.get((reading.quantity, reading.instance))) is not None
            and kept.total is not None
        ]
        if not known or any(kept.total != value for kept, value in known):
            return False
        return self._wall_s() - max(kept.total_at_s for kept, _ in known) < HELD_MAX_S

    def _keep(self, reading: Reading, instant: _Instant, *, restarted: bool) -> None:
        key = (reading.quantity, reading.instance)
        if key not in self._kept and len(self._kept) >= SERIES_MAX_COUNT:
            return
        kept = self._kept.setdefault(key, _Kept(counts=reading.counts_to is not None))
        at_s, bound_s, stamp_s = instant.at_s, instant.bound_s, instant.stamp_s
        if kept.rows and at_s <= kept.rows[-1][0]:  # the coordinator's clock was set back
            return
        if reading.counts_to is None:
            kept.rows.append((at_s, reading.over_s, bound_s, stamp_s, math.nan, reading.value))
            return
        before, before_s, before_stamp_s = kept.total, kept.total_at_s, kept.total_stamp_s
        kept.total, kept.total_at_s, kept.total_stamp_s = reading.value, at_s, stamp_s
        if before is None or at_s <= before_s:
            return
        passed = math.nan
        if not restarted:
            passed = self._passed(reading, reading.counts_to, before, before_s, at_s)
        stamp_over_s = stamp_s - before_stamp_s if stamp_s > before_stamp_s else math.nan
        kept.rows.append((at_s, at_s - before_s, bound_s, stamp_s, stamp_over_s, passed))

    def _passed(
        self, reading: Reading, counts_to: float, before: float, before_s: float, at_s: float
    ) -> float:
        """How far a counter went on; NaN where that cannot be known."""
        what = f"{reading.quantity} {reading.instance}".strip()
        most = reading.most_per_second
        elapsed_s = at_s - before_s
        if most is not None and most * elapsed_s >= counts_to:
            self._remark(
                RemarkKind.TOO_SLOW,
                before_s,
                at_s,
                f"{what}: its counter can come round in {counts_to / most:.1f} s, and is "
                f"asked every {self.poll_s:g} s",
            )
            return math.nan
        passed = reading.value - before
        if passed >= 0:
            return passed
        through = passed + counts_to
        # What can have been counted at all; unknown: half a turn tells a wrap from a fall.
        possible = counts_to / 2 if most is None else most * elapsed_s * 1.05
        if 0 <= through <= possible and math.isfinite(through):
            self._remark(RemarkKind.WRAPPED, before_s, at_s, what)
            return through
        self._remark(RemarkKind.WENT_BACK, before_s, at_s, what)
        return math.nan
