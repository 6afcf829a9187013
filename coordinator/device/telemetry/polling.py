"""Telemetry of devices without history, polled at an interval and stored in memory.

This module converts counters to rates. If a counter wraps, it will be corrected. If it decreases
for another reason, or the device was restarted, the value between the two readings is unknown.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field

from broadside.coordinator.core.guards import ARMED_ROUND_S
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
    column,
)
from broadside.coordinator.device.telemetry.clock_offset import (
    ClockOffset,
    Response,
    describe_offset,
    estimate_offset,
)
from broadside.coordinator.device.telemetry.source import DataLatency, SourceEntry, TelemetryError
from broadside.exchange.outage_log import utc_now

log = logging.getLogger(__name__)

# Readings per series, one day at one per second.
READINGS_MAX_COUNT: Final = 100_000
# Series per device, for example one per core and interface.
SERIES_MAX_COUNT: Final = 512
ISSUES_MAX_COUNT: Final = 1_000
# We add a random time to the interval, so that two coordinators and the timer of the device will
# not run in step.
JITTER_RATIO: Final = 0.1
# Time limit in seconds of a round of requests, the same as for a read of a source with history.
# A source with many requests per round (SNMP tables) limits only each of them.
ROUND_MAX_S: Final = 60.0
# ``sysUpTime`` wraps after 497 days (RFC 3418).
TICKS_WRAP_S: Final = 2**32 / 100
# Time for which unchanged counters may be cached values.
CACHED_MAX_S: Final = 15.0
# Tolerance between the uptime of the device and the time that passed here.
UP_SLACK_S: Final = 2.0


class PolledEntry(SourceEntry):
    """Entry of a source that is polled.

    Attributes:
        poll_s: Time between polls in seconds.
    """

    poll_s: Annotated[float, Field(ge=0.2, le=3600)] = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledValue:
    """Value as it was read from a device.

    Attributes:
        quantity: Quantity to which the value belongs.
        value: Current value for a gauge, or total for a counter. The totals of
            ``Quantity.RECEIVED`` and ``Quantity.SENT`` are in bits: multiply a byte counter by 8.
        instance: Interface, core or other part of the device.
        over_s: Averaging time of a gauge before this reading, in seconds.
        counts_to: Total at which a counter will wrap, in the unit of ``value``, ``inf`` if it never
            does, ``None`` for a gauge.
        most_per_second: Maximum rate of a counter, if the device reports it. Without it, a counter
            that wraps more than once between two polls is not noticed.
        at_s: Epoch seconds of the coordinator clock, if the value had its own request. Such a value
            is complete even if the answer is partial. ``None`` means the time of the round.
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
class PollResult:
    """Result of a round of requests.

    Attributes:
        readings: The values.
        up_s: Uptime of the device in seconds, if known. Without it, a restart is not noticed.
        missing: Requested values that the device does not have.
        at_s: Epoch seconds of the device clock, if the response has a timestamp.
        partial: Reason to report when this response is known to be incomplete, or ``None``.
    """

    readings: Sequence[PolledValue]
    up_s: float | None = None
    missing: Sequence[str] = ()
    at_s: float | None = None
    partial: str | None = None


@dataclass(slots=True)
class _History:
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
        default_factory=lambda: deque(maxlen=READINGS_MAX_COUNT)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledDevice:
    """How to read a device.

    Attributes:
        request: Function that reads the device once. It raises TelemetryError without a response;
            another exception is only logged, and is no finding.
        name: Name in reports.
        quantities: All quantities to query. A source without any has only a byte counter.
        counter_name: Name of its byte counter. The default is ``name``.
        counter_instances: Instances of the byte counter. ``None`` means all.
        close: Function that releases the connection, also after a timeout. The next request must
            open it again.
    """

    request: Callable[[], Coroutine[Any, Any, PollResult]]
    name: str
    quantities: Iterable[Quantity] = ()
    counter_name: str | None = None
    counter_instances: frozenset[str] | None = None
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Clock in epoch seconds, and a monotonic clock in seconds."""

    wall_s: Callable[[], float] = time.time
    steady_s: Callable[[], float] = time.monotonic


class PolledSource:
    """Telemetry source that polls a device every ``poll_s``.

    It implements :class:`.source.TelemetrySource`.

    Attributes:
        name: Name in reports.
        counter_name: Name of its byte counter in plans and reports.
        counter_instances: Instances of the byte counter. ``None`` means all.
        entry: Configuration of the source.
        quantities: Quantities to query.
        latency: Time to wait until values are stable.
        close: Function that releases the connection. The next poll opens it again.
    """

    def __init__(
        self,
        entry: PolledEntry,
        device: PolledDevice,
        *,
        clocks: Clocks | None = None,
        round_max_s: float = ROUND_MAX_S,
    ) -> None:
        """Prepare the source, without sending requests.

        Args:
            entry: Configuration of the source.
            device: How to read the device.
            clocks: Clocks to use. None uses the clocks of the host.
            round_max_s: Time limit of a round in seconds.
        """
        clocks = clocks or Clocks()
        self.name = device.name
        self.counter_name = device.counter_name or device.name
        self.counter_instances = device.counter_instances
        self.entry: PolledEntry = entry
        self.quantities = frozenset(device.quantities)
        settle_s = 1.5 * entry.poll_s
        self.latency = DataLatency(
            settle_s=settle_s, reread_s=max(1.0, entry.poll_s), timeout_s=settle_s + 60
        )
        self.close = device.close
        self._request = device.request
        self._wall_s = clocks.wall_s
        self._steady_s = clocks.steady_s
        self._round_max_s = round_max_s
        self._armed_count = 0
        self._history: dict[tuple[Quantity, str], _History] = {}
        self._issues: deque[TelemetryIssue] = deque(maxlen=ISSUES_MAX_COUNT)
        # Uptime, time of its reading (epoch seconds) and the same by the monotonic clock.
        self._up: tuple[float, float, float] | None = None
        self._silent_from_s: float | None = None
        self._responses: deque[Response] = deque(maxlen=READINGS_MAX_COUNT)
        self._last_values: Sequence[float] = ()
        self._polling = asyncio.Lock()

    async def poll_forever(self) -> None:
        """Poll every ``poll_s`` with a variation of ten percent, until cancelled.

        A slow response delays the next request.
        """
        loop = asyncio.get_running_loop()
        poll_s = self.entry.poll_s
        next_s = loop.time() + random.uniform(0, poll_s / 2)  # noqa: S311  # no secret
        try:
            while True:
                await asyncio.sleep(max(0.0, next_s - loop.time()))
                await self.poll()
                jitter = random.uniform(-JITTER_RATIO, JITTER_RATIO)  # noqa: S311  # no secret
                next_s = max(next_s + poll_s * (1 + jitter), loop.time())
        finally:
            self.close()

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Limit the time of each round, so that one lost answer does not make a guard blind."""
        self._armed_count += 1
        try:
            yield
        finally:
            self._armed_count -= 1

    async def poll(self) -> bool:
        """Poll once and store the readings.

        Only one poll runs at a time. Others wait, because they share the connection.

        Returns:
            False if there was no response. This is also recorded.
        """
        async with self._polling:
            return await self._poll()

    async def _poll(self) -> bool:
        sent_s, began_s = self._wall_s(), self._steady_s()
        limit_s = min(self._round_max_s, ARMED_ROUND_S if self._armed_count else math.inf)
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._request()
        except TelemetryError as error:
            self._record_silence(sent_s, str(error))
            return False
        except TimeoutError:
            # A late response could be mistaken for the response to the next request.
            self.close()
            self._record_silence(sent_s, f"no complete answer within {limit_s:g} s")
            return False
        took_s = self._steady_s() - began_s
        middle = _Instant(sent_s + took_s / 2, took_s / 2)
        self._silent_from_s = None
        restarted = self._is_restarted(answer.up_s, middle.at_s, began_s + took_s / 2)
        for text in answer.missing:
            self._record(IssueKind.MISSING, middle.at_s, middle.at_s, text)
        partial = answer.partial
        if len(answer.readings) > SERIES_MAX_COUNT:
            partial = f"{len(answer.readings)} values, of which {SERIES_MAX_COUNT} are read"
        if partial is not None:
            self._record(IssueKind.PARTIAL, middle.at_s, middle.at_s, partial)
        if answer.at_s is not None:
            if self._is_repeated(answer, answer.at_s, sent_s, sent_s + took_s):
                return True
            middle = replace(middle, stamp_s=answer.at_s)
        self._store_all(answer.readings, middle, restarted=restarted, partial=partial is not None)
        return True

    def _store_all(
        self, readings: Sequence[PolledValue], middle: _Instant, *, restarted: bool, partial: bool
    ) -> None:
        """Store the readings of a round, but no cached counters and no incomplete values."""
        requests = {reading.at_s for reading in readings}
        cached = {
            at_s
            for at_s in requests
            if not restarted and self._is_cached([r for r in readings if r.at_s == at_s])
        }
        for reading in readings[:SERIES_MAX_COUNT]:
            counts = reading.counts_to is not None
            incomplete = partial and reading.at_s is None
            if counts and (incomplete or reading.at_s in cached):
                continue
            if incomplete:
                reading = replace(reading, value=math.nan)
            instant = middle
            if reading.at_s is not None:
                instant = _Instant(reading.at_s, reading.bound_s)
            self._store(reading, instant, restarted=restarted)

    def _is_repeated(
        self, answer: PollResult, stamp_s: float, sent_s: float, answered_s: float
    ) -> bool:
        """Record a device timestamp and return whether the response repeats the last one."""
        last = self._responses[-1] if self._responses else None
        values = [reading.value for reading in answer.readings]
        same = last is not None and last.stamp_s == stamp_s
        repeated = same and values == self._last_values
        self._last_values = values
        other_at_s = None if last is None or same else last.sent_s
        self._responses.append(Response(stamp_s, sent_s, answered_s, other_at_s, repeated))
        return repeated

    async def query(self, from_at: datetime, before_at: datetime) -> DeviceTelemetry:
        """Return all quantities in a time span (see :meth:`.TelemetrySource.query`).

        Args:
            from_at: Start time, on the coordinator's clock.
            before_at: End time, on the coordinator's clock.

        Returns:
            The polled readings. A failed poll is an issue, not an error.
        """
        from_s, before_s = from_at.timestamp(), before_at.timestamp()
        offset = estimate_offset(
            [item for item in self._responses if from_s <= item.sent_s < before_s]
        )
        series = (self._series(key, offset) for key in self._history)
        within = (item.within(from_s, before_s) for item in series)
        return DeviceTelemetry(
            devices=(self.entry.device,),
            series=tuple(item for item in within if len(item.at_s)),
            issues=tuple(
                item
                for item in (*self._issues, *self._clock_issues(offset, from_s, before_s))
                if item.to_s >= from_s and item.from_s < before_s
            ),
            read_at=utc_now(),
            cores_count=self.entry.cores_by_device,
        )

    def newest(self, quantity: Quantity, since_s: float) -> Iterator[tuple[str, float, float]]:
        """Yield instance, time and value of the newest reading of each instance.

        The times are those of the coordinator clock, and unknown values are left out.

        Args:
            quantity: Quantity to read.
            since_s: Oldest time to use, in epoch seconds.
        """
        for (stored, instance), history in self._history.items():
            if stored is not quantity or not history.rows:
                continue
            at_s, over_s, _, _, _, value = history.rows[-1]
            if at_s >= since_s and not math.isnan(value):
                yield instance, at_s, value / over_s if history.counts else value

    def _series(self, key: tuple[Quantity, str], offset: ClockOffset | None) -> TelemetrySeries:
        """Return the readings, at the device's timestamps if their offset is known."""
        history = self._history[key]
        at_s, over_s, bound_s, stamp_s, stamp_over_s, values = (
            column(row[n] for row in history.rows) for n in range(6)
        )
        if offset is not None:
            stamped = ~np.isnan(stamp_s)
            if offset.usable:
                at_s = np.where(stamped, stamp_s - offset.offset_s, at_s)
                over_s = np.where(stamped & ~np.isnan(stamp_over_s), stamp_over_s, over_s)
                bound_s = np.where(stamped, offset.bound_s, bound_s)
            else:
                bound_s = np.where(stamped, bound_s + offset.spread_s, bound_s)
        if history.counts:
            values = values / over_s
        order = np.argsort(at_s, kind="stable")
        return TelemetrySeries(
            device=self.entry.device,
            source=self.name,
            quantity=key[0],
            instance=key[1],
            at_s=at_s[order],
            over_s=over_s[order],
            bound_s=bound_s[order],
            values=values[order],
        )

    # Problems of the telemetry ------------------------------------------------------------------

    def _clock_issues(
        self, offset: ClockOffset | None, from_s: float, before_s: float
    ) -> Iterator[TelemetryIssue]:
        """Yield the issue with the device's timestamps within a span, if any."""
        text = None if offset is None else describe_offset(offset)
        if offset is not None and text is not None:
            yield self._issue(
                IssueKind.CLOCK if offset.usable else IssueKind.STAMPS,
                max(from_s, self._responses[0].sent_s),
                min(before_s, self._responses[-1].answered_s),
                text,
            )

    def _issue(self, kind: IssueKind, from_s: float, to_s: float, text: str) -> TelemetryIssue:
        return TelemetryIssue(
            kind=kind,
            device=self.entry.device,
            source=self.name,
            from_s=from_s,
            to_s=to_s,
            text=text,
        )

    def _record(self, kind: IssueKind, from_s: float, to_s: float, text: str) -> None:
        """Store an issue, or extend an equal one to the current time."""
        for index, last in enumerate(self._issues):
            same = last.kind is kind and last.text == text
            if kind is IssueKind.SILENT:
                same = last.kind is kind and last.from_s == from_s
            if same:
                self._issues[index] = replace(last, to_s=to_s, count=last.count + 1)
                return
        self._issues.append(self._issue(kind, from_s, to_s, text))

    def _record_silence(self, at_s: float, reason: str) -> None:
        if self._silent_from_s is None:
            self._silent_from_s = at_s
            log.warning("telemetry %s: %s", self.name, reason, extra={"action": "telemetry"})
        self._record(IssueKind.SILENT, self._silent_from_s, at_s, reason)

    def _is_restarted(self, up_s: float | None, at_s: float, steady_s: float) -> bool:
        """Return True if the device restarted since its last response.

        This is the case if its uptime decreased without a wrap, or is less than the time since that
        response.
        """
        last, self._up = self._up, None if up_s is None else (up_s, at_s, steady_s)
        if last is None or up_s is None:
            return False
        since_s = steady_s - last[2]
        due_s = last[0] + since_s
        young = up_s <= since_s and up_s < due_s - UP_SLACK_S
        if not young and up_s >= last[0] - UP_SLACK_S:
            return False
        if abs(due_s % TICKS_WRAP_S - up_s) <= UP_SLACK_S:
            return False
        self._record(
            IssueKind.RESTARTED,
            max(last[1], at_s - up_s - UP_SLACK_S),
            at_s,
            f"its uptime was {last[0]:.0f} s, and {since_s:.0f} s later {up_s:.0f} s",
        )
        return True

    # Readings ---------------------------------------------------------------------------------

    def _is_cached(self, readings: Sequence[PolledValue]) -> bool:
        """Return True if the device repeated its cached counters.

        Some agents refresh counters less often than they are polled (net-snmp every 3 s). The next
        change then covers the whole time since the last refresh.
        """
        known = [
            (history, reading.value)
            for reading in readings
            if reading.counts_to is not None
            and (history := self._history.get((reading.quantity, reading.instance))) is not None
            and history.total is not None
        ]
        if not known or any(history.total != value for history, value in known):
            return False
        return self._wall_s() - max(history.total_at_s for history, _ in known) < CACHED_MAX_S

    def _store(self, reading: PolledValue, instant: _Instant, *, restarted: bool) -> None:
        key = (reading.quantity, reading.instance)
        if key not in self._history and len(self._history) >= SERIES_MAX_COUNT:
            return
        history = self._history.setdefault(key, _History(counts=reading.counts_to is not None))
        at_s, bound_s, stamp_s = instant.at_s, instant.bound_s, instant.stamp_s
        # Skip the reading if the coordinator clock was set back.
        if history.rows and at_s <= history.rows[-1][0]:
            return
        if reading.counts_to is None:
            history.rows.append((at_s, reading.over_s, bound_s, stamp_s, math.nan, reading.value))
            return
        before, before_s, before_stamp_s = history.total, history.total_at_s, history.total_stamp_s
        history.total, history.total_at_s, history.total_stamp_s = reading.value, at_s, stamp_s
        if before is None or at_s <= before_s:
            return
        increase = math.nan
        if not restarted:
            increase = self._increase(reading, reading.counts_to, before, (before_s, at_s))
        stamp_over_s = stamp_s - before_stamp_s if stamp_s > before_stamp_s else math.nan
        history.rows.append((at_s, at_s - before_s, bound_s, stamp_s, stamp_over_s, increase))

    def _increase(
        self, reading: PolledValue, counts_to: float, before: float, span_s: tuple[float, float]
    ) -> float:
        """Return the increase of a counter, or NaN if it is unknown."""
        counter = f"{reading.quantity} {reading.instance}".strip()
        most = reading.most_per_second
        elapsed_s = span_s[1] - span_s[0]
        if most is not None and most * elapsed_s >= counts_to:
            self._record(
                IssueKind.TOO_SLOW,
                *span_s,
                f"{counter}: its counter can wrap in {counts_to / most:.1f} s, and is read every "
                f"{self.entry.poll_s:g} s",
            )
            return math.nan
        increase = reading.value - before
        if increase >= 0:
            return increase
        wrapped = increase + counts_to
        # Largest plausible increase. If the speed is unknown, an increase below half of the range
        # counts as a wrap.
        possible = counts_to / 2 if most is None else most * elapsed_s * 1.05
        if 0 <= wrapped <= possible and math.isfinite(wrapped):
            self._record(IssueKind.WRAPPED, *span_s, counter)
            return wrapped
        self._record(IssueKind.WENT_BACK, *span_s, counter)
        return math.nan
