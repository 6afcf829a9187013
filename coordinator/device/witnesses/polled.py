"""Telemetry of devices without history, polled at an interval and stored in memory.

This module converts counters to rates. If a counter wraps, it is corrected. If it decreases
for another reason, or the device was restarted, the value between the two readings is unknown.
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

# Readings per series, one day at one per second.
KEPT_MAX_COUNT: Final = 100_000
# Series per device, for example one per core and interface.
SERIES_MAX_COUNT: Final = 512
REMARKS_MAX_COUNT: Final = 1_000
# Random variation of the interval, so that two coordinators and the device's own timer do not run
# in step.
JITTER_RATIO: Final = 0.1
# Time limit in seconds of a round of requests, the same as for a read of a source with history.
# A source with many requests per round (SNMP tables) limits only each of them.
ROUND_MAX_S: Final = 60.0
# ``sysUpTime`` wraps after 497 days (RFC 3418).
TICKS_WRAP_S: Final = 2**32 / 100
# Time for which unchanged counters may be cached values.
HELD_MAX_S: Final = 15.0
# Tolerance between the uptime of the device and the time that passed here.
UP_SLACK_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Value as it was read from a device.

    Attributes:
        quantity: Quantity to which the value belongs.
        value: Current value for a gauge, or total for a counter (in bits or packets, for example).
        instance: Interface, core or other part of the device.
        over_s: Averaging time of a gauge before this reading, in seconds.
        counts_to: Total at which a counter will wrap, ``inf`` if it never does, ``None`` for a
            gauge.
        most_per_second: Maximum rate of a counter, if the device reports it.
        at_s: Epoch seconds of the coordinator clock, if the value had its own request. ``None``
            means the time of the round.
        bound_s: Uncertainty of ``at_s`` in seconds.
    """

    quantity: Quantity
    value: float
    instance: str = ""
    over_s: float = 0.0
    counts_to: float | None = None
    most_per_second: float | None = None
    at_s: float | None = None
    bound_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of a round of requests.

    Attributes:
        readings: The values.
        up_s: Uptime of the device in seconds, if known.
        untold: Requested values that the device does not have.
        at_s: Epoch seconds of the device clock, if the response has a timestamp.
        partial: Reason to report when this response is known to be incomplete, or ``None``.
    """

    readings: Sequence[Reading]
    up_s: float | None = None
    untold: Sequence[str] = ()
    at_s: float | None = None
    partial: str | None = None


@dataclass(slots=True)
class _Kept:
    """Stored readings of a series.

    Attributes:
        counts: Whether the series is a counter.
        rows: Tuples of at_s, over_s, bound_s, stamp_s, stamp_over_s and value. The first three use
            the coordinator clock. The stamps use the device clock (NaN if it sends none). The
            value of a counter is the increase since the reading before.
        total: Last total of a counter.
        total_at_s: Time of that total in epoch seconds of the coordinator clock.
        total_stamp_s: Time of that total by the device clock.
    """

    counts: bool
    rows: deque[tuple[float, float, float, float, float, float]] = field(
        default_factory=lambda: deque(maxlen=KEPT_MAX_COUNT)
    )
    total: float | None = None
    total_at_s: float = 0.0
    total_stamp_s: float = math.nan


@dataclass(frozen=True, slots=True)
class _Instant:
    """Time of a reading.

    Attributes:
        at_s: Middle between request and response in epoch seconds.
        bound_s: Half the time between them.
        stamp_s: Timestamp of the device, NaN if there is none.
    """

    at_s: float
    bound_s: float
    stamp_s: float = math.nan


class PolledWitness:
    """Telemetry source that polls a device every ``poll_s``.

    It implements :class:`.witness_file.WitnessSource`.

    Attributes:
        name: Name in reports.
        devices: The device.
        quantities: Quantities to request.
        settle_s: Time in seconds until readings are complete.
        poll_s: Interval between polls in seconds.
        close: Function that releases the connection. The next poll opens it again.
    """

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
        """Prepare the witness, without sending requests.

        Args:
            ask: Function that reads the device once. It raises LedgerError without a response.
            name: Name in reports.
            entry: Entry from the witnesses file.
            quantities: Quantities to request.
            close: Function that releases the connection.
            wall_s: Clock in epoch seconds.
            steady_s: Monotonic clock in seconds.
            round_max_s: Time limit of a round in seconds.
        """
        self.name = name
        self.devices = (entry.device,)
        self.quantities = frozenset(quantities)
        self.settle_s = 1.5 * entry.poll_s
        self._ask = ask
        self.close = close
        self._device = entry.device
        self.poll_s = entry.poll_s
        self._cores_count = entry.cores_count
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._round_max_s = round_max_s
        self._kept: dict[tuple[Quantity, str], _Kept] = {}
        self._remarks: deque[Remark] = deque(maxlen=REMARKS_MAX_COUNT)
        # Uptime, time of its reading (epoch seconds) and the same by the monotonic clock.
        self._up: tuple[float, float, float] | None = None
        self._silent_from_s: float | None = None
        self._sightings: deque[Sighting] = deque(maxlen=KEPT_MAX_COUNT)
        self._last_values: Sequence[float] = ()

    async def watch(self) -> None:
        """Poll every ``poll_s`` with a variation of ten percent, until cancelled.

        A slow response delays the next request.
        """
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
        """Poll once and store the readings.

        Returns:
            False if there was no response. This is also recorded.
        """
        asked_s, began_s = self._wall_s(), self._steady_s()
        try:
            async with asyncio.timeout(self._round_max_s):
                answer = await self._ask()
        except LedgerError as error:
            self._silent(asked_s, str(error))
            return False
        except TimeoutError:
            # A late response could be mistaken for the response to the next request.
            self.close()
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
        """Record a device timestamp and return whether the response repeats the last one."""
        last = self._sightings[-1] if self._sightings else None
        values = [reading.value for reading in answer.readings]
        same = last is not None and last.stamp_s == stamp_s
        repeated = same and values == self._last_values
        self._last_values = values
        other_at_s = None if last is None or same else last.asked_s
        self._sightings.append(Sighting(stamp_s, asked_s, answered_s, other_at_s, repeated))
        return repeated

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """Return the telemetry in this time span (see :meth:`.witness_file.WitnessSource.read`)."""
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
        """Return the readings, at the device's timestamps if their offset is known."""
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
        """Yield the remark about the device's timestamps within a span, if any."""
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

    # Problems of the telemetry ------------------------------------------------------------------

    def _silent(self, at_s: float, why: str) -> None:
        if self._silent_from_s is None:
            self._silent_from_s = at_s
            log.warning("witness %s: %s", self.name, why, extra={"action": "witness"})
        self._remark(RemarkKind.SILENT, self._silent_from_s, at_s, why)

    def _restarted(self, up_s: float | None, at_s: float, steady_s: float) -> bool:
        """Return True if the device restarted since its last response.

        This is the case if its uptime decreased without a wrap, or is less than the time since that
        response.
        """
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
        """Store a remark, or extend an equal one to the current time."""
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
        """Return True if the device repeated its cached counters.

        Some agents refresh counters less often than they are polled (net-snmp every 3 s). The next
        change then covers the whole time since the last refresh.
        """
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
        # Skip the reading if the coordinator clock was set back.
        if kept.rows and at_s <= kept.rows[-1][0]:
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
        """Return the increase of a counter, or NaN if it is unknown."""
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
        # Largest plausible increase. If the speed is unknown, an increase below half of the range
        # counts as a wrap.
        possible = counts_to / 2 if most is None else most * elapsed_s * 1.05
        if 0 <= through <= possible and math.isfinite(through):
            self._remark(RemarkKind.WRAPPED, before_s, at_s, what)
            return through
        self._remark(RemarkKind.WENT_BACK, before_s, at_s, what)
        return math.nan
