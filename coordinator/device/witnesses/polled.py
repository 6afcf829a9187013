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

from broadside.coordinator.core.measure.testimony import (
    Quantity,
    Remark,
    RemarkKind,
    Witnessed,
    WitnessSeries,
    column,
)
from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.coordinator.device.witnesses.witness_file import PolledEntry

log = logging.getLogger(__name__)

KEPT_MAX_COUNT: Final = 100_000  # readings of one series: a day at one a second
SERIES_MAX_COUNT: Final = 512  # of one device: cores, interfaces
REMARKS_MAX_COUNT: Final = 1_000
JITTER_RATIO: Final = 0.1  # of the clock: two coordinators, and the device's own tick, drift apart
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
    at_s: float | None = None  # epoch s, where its own question's instant is known ...
    bound_s: float = 0.0  # ... to so many seconds; None: its round's


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One round of questions."""

    readings: Sequence[Reading]
    up_s: float | None = None  # the device's own count of time since it started
    untold: Sequence[str] = ()  # what was asked, and it does not have
    at_s: float | None = None  # epoch s, where the answer carries its own instant


@dataclass(slots=True)
class _Kept:
    """One series on its way: at_s, over_s, bound_s, value of each reading."""

    rows: deque[tuple[float, float, float, float]] = field(
        default_factory=lambda: deque(maxlen=KEPT_MAX_COUNT)
    )
    total: float | None = None  # of a counter, at ...
    total_at_s: float = 0.0


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
        self._kept: dict[tuple[Quantity, str], _Kept] = {}
        self._remarks: deque[Remark] = deque(maxlen=REMARKS_MAX_COUNT)
        self._up: tuple[float, float, float] | None = None  # its count, when, and when steadily
        self._silent_from_s: float | None = None

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
            answer = await self._ask()
        except LedgerError as error:
            self._silent(asked_s, str(error))
            return False
        took_s = self._steady_s() - began_s
        at_s = answer.at_s if answer.at_s is not None else asked_s + took_s / 2
        bound_s = took_s / 2
        self._silent_from_s = None
        restarted = self._restarted(answer.up_s, at_s, began_s + took_s / 2)
        for said in answer.untold:
            self._remark(RemarkKind.UNTOLD, at_s, at_s, said)
        held = not restarted and self._are_held(answer.readings)
        for reading in answer.readings[:SERIES_MAX_COUNT]:
            if held and reading.counts_to is not None:
                continue
            if reading.at_s is None:
                self._keep(reading, at_s, bound_s, restarted=restarted)
            else:
                self._keep(reading, reading.at_s, reading.bound_s, restarted=restarted)
        return True

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        from_s, before_s = from_at.timestamp(), before_at.timestamp()
        series = (self._series(key) for key in self._kept)
        within = (each.within(from_s, before_s) for each in series)
        return Witnessed(
            devices=self.devices,
            series=tuple(each for each in within if len(each.at_s)),
            remarks=tuple(
                each for each in self._remarks if each.to_s >= from_s and each.from_s < before_s
            ),
            read_at=datetime.now(UTC),
            cores_count=None if self._cores_count is None else {self._device: self._cores_count},
        )

    def _series(self, key: tuple[Quantity, str]) -> WitnessSeries:
        rows = self._kept[key].rows
        at_s, over_s, bound_s, values = (column(row[n] for row in rows) for n in range(4))
        return WitnessSeries(
            device=self._device,
            source=self.name,
            quantity=key[0],
            instance=key[1],
            at_s=at_s,
            over_s=over_s,
            bound_s=bound_s,
            values=values,
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

    def _keep(self, reading: Reading, at_s: float, bound_s: float, *, restarted: bool) -> None:
        key = (reading.quantity, reading.instance)
        if key not in self._kept and len(self._kept) >= SERIES_MAX_COUNT:
            return
        kept = self._kept.setdefault(key, _Kept())
        if kept.rows and at_s <= kept.rows[-1][0]:  # told before: the answer has its own clock
            return
        if reading.counts_to is None:
            kept.rows.append((at_s, reading.over_s, bound_s, reading.value))
            return
        before, before_s = kept.total, kept.total_at_s
        kept.total, kept.total_at_s = reading.value, at_s
        if before is None or at_s <= before_s:
            return
        elapsed_s = at_s - before_s
        passed = math.nan
        if not restarted:
            passed = self._passed(reading, reading.counts_to, before, before_s, at_s)
        kept.rows.append((at_s, elapsed_s, bound_s, passed / elapsed_s))

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
