"""Guards: limits on live values that stop all traffic of a run. Pure.

A guard protects a production network while it is tested. It is not a threshold: it does not decide
whether the device passes. A run that a guard stopped is inconclusive.

The coordinator reads the values several times a second while a burst is armed or running. A guard
stops the run when a value has been beyond the limit for ``abort_after_s``, and also when there was
no new value for too long, because a guard that does not see the network cannot protect it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, model_validator

from broadside.coordinator.core import formatting
from broadside.coordinator.core.formatting import MetricUnit, quantity_text
from broadside.coordinator.core.quantities import parse_ratio, parse_time
from broadside.exchange.messages import BurstIndex, Control, Message, UtcDatetime

GUARDS_MAX_COUNT: Final = 16
# Values from the probes of the agents, which cross the device.
PROBE_RTT: Final = "probe_rtt_s"
PROBE_LOSS: Final = "probe_loss_ratio"
PROBE_QUANTITIES: Final = (PROBE_RTT, PROBE_LOSS)
# Time after which a probe is lost.
PROBE_WAIT_S: Final = 1.0
# Time before the start of a burst when all guards must have a value.
ARMED_BEFORE_S: Final = 1.9
# Time before the start of a burst when reading begins.
READ_BEFORE_S: Final = 8.0
# Time to read on after a stop or the end of a burst.
READ_AFTER_S: Final = 10.0
# Time between two decisions.
LOOK_S: Final = 0.1
# Time between two polls of a device or a URL while guards are armed.
ARMED_POLL_S: Final = 0.4
# Time between two reads of the control row by each agent of a guarded run.
CONTROL_POLL_S: Final = 0.25
# Time between two live values of the probes of a pair.
LIVE_PROBES_S: Final = 0.3
# Pairs with live probes. More would only add load to the table.
PROBE_PAIRS_MAX_COUNT: Final = 8
# Pairs above which the agents read the control row at their own interval.
FAST_PAIRS_MAX_COUNT: Final = 250
# Limit for the time from a breach to the last byte.
STOP_WITHIN_S: Final = 2.0
# Time from a decision to the last byte: one read interval of the agents, and the ends of the
# engines.
STOP_PATH_S: Final = CONTROL_POLL_S + 0.6
# Time without a new value after which a guard stops the run.
BLIND_MIN_S: Final = 5.0
# Longest time of a poll while guards are armed. After it, there is time for another one.
ARMED_ROUND_S: Final = BLIND_MIN_S / 2
BLIND_INTERVALS_COUNT: Final = 3.0
# Values of pairs that are older than this, before the newest one, are left out.
_TOGETHER_S: Final = 1.5
# Part of the reason of a stop because a value did not arrive any more.
NO_NEW_VALUE: Final = "had no new value"
# Value of ``cancelled_by`` when a guard or a dry run stops a run.
STOPPED_BY: Final = "broadside's guard"
DRY_RUN: Final = "dry run"

_NAME: Final = r"[a-z][a-z0-9_]{1,40}"
_TEXT: Final = re.compile(
    rf"\s*(?P<quantity>{_NAME})\s*(?P<sign>[<>])\s*(?P<limit>[^\s]+)"
    r"(?:\s+for\s+(?P<after>[^\s]+))?(?:\s+on\s+(?P<device>[^\s]+))?\s*"
)


class Guard(Message):
    """Limit on one live value.

    As text: ``cpu_ratio > 80% for 1s on fw``. The parts ``for`` and ``on`` are optional.

    Attributes:
        quantity: ``probe_rtt_s``, ``probe_loss_ratio``, or a quantity of the telemetry sources.
        limit: Largest allowed value, in the unit at the end of the quantity's name.
        is_floor: True if the limit is the smallest allowed value.
        abort_after_s: Time beyond the limit after which the run is stopped. 0 stops at the first
            value.
        device: Device name. None uses the worst value of all devices.
    """

    quantity: Annotated[str, StringConstraints(pattern=rf"^{_NAME}$")]
    limit: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    is_floor: bool = False
    abort_after_s: Annotated[float, Field(ge=0, le=600)] = 0.0
    device: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, value: Any) -> Any:
        """Accept the text form."""
        return parse_guard(value) if isinstance(value, str) else value

    @property
    def is_probe(self) -> bool:
        """True if the value comes from the probes of the agents."""
        return self.quantity in PROBE_QUANTITIES

    def broken_by(self, value: float) -> bool:
        """Return True if a value is beyond the limit."""
        return value < self.limit if self.is_floor else value > self.limit

    def format(self, value: float | None) -> str:
        """Return a value with its unit, or ``unknown``."""
        if value is None:
            return formatting.UNKNOWN
        return quantity_text(MetricUnit.of(self.quantity), value, 1)

    def __str__(self) -> str:
        sign = "<" if self.is_floor else ">"
        after = f" for {formatting.time(self.abort_after_s)}" if self.abort_after_s else ""
        device = "" if self.device is None else f" on {self.device}"
        return f"{self.quantity} {sign} {self.format(self.limit)}{after}{device}"


def parse_guard(text: str) -> dict[str, Any]:
    """Return the fields of a guard in text form.

    Args:
        text: For example ``probe_rtt_s > 50ms for 1s`` or ``health_ratio < 100% on fw``.

    Raises:
        ValueError: The text is not a guard.
    """
    parts = _TEXT.fullmatch(text)
    if parts is None:
        raise ValueError(
            f"{text!r} is not a guard; write it like 'cpu_ratio > 80% for 1s on fw' "
            "or 'probe_rtt_s > 50ms'"
        )
    fields: dict[str, Any] = {
        "quantity": parts["quantity"],
        "limit": _number(parts["limit"], parts["quantity"]),
        "is_floor": parts["sign"] == "<",
    }
    if parts["after"] is not None:
        fields["abort_after_s"] = _number(parts["after"], "abort_after_s")
    if parts["device"] is not None:
        fields["device"] = parts["device"]
    return fields


def _number(text: str, name: str) -> float:
    """Parse a number with the unit that fits a name, or without a unit."""
    try:
        return float(text)
    except ValueError:
        pass
    if name.endswith("_ratio"):
        return parse_ratio(text)
    if name.endswith("_s"):
        return parse_time(text)
    raise ValueError(f"{text!r} is not a number for {name}")


@dataclass(frozen=True, slots=True)
class LiveValue:
    """Newest value of a guard.

    Attributes:
        at_s: Time when the value was measured, in epoch seconds.
        value: The worst value of all devices or pairs.
        source: Device or pair with this value.
    """

    at_s: float
    value: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """Reason why a guard stops a run.

    Attributes:
        index: Index of the guard.
        reason: Sentence with the value and the limit.
        value: The last value, or None if there is none.
        source: Device or pair with this value, or None.
        breached_at_s: Time of the first value beyond the limit, in epoch seconds. If values are
            missing, this is the time of the last one, or of the decision if there was none.
    """

    index: int
    reason: str
    value: float | None
    source: str | None
    breached_at_s: float


@dataclass(slots=True)
class GuardState:
    """Values of one guard so far, and the decision to stop.

    Attributes:
        guard: The guard.
        index: Index of the guard in the specification.
        interval_s: Time between two values.
        since_s: Time when reading began, in epoch seconds.
    """

    guard: Guard
    index: int
    interval_s: float
    since_s: float
    last: LiveValue | None = None
    worst: float | None = None
    readings_count: int = 0
    _beyond: LiveValue | None = field(default=None, repr=False)
    # Time of the newest value of each device, or of all pairs together.
    _seen_s: dict[str, float] = field(default_factory=dict, repr=False)

    def add(self, values: Sequence[LiveValue]) -> LiveValue | None:
        """Store the newest values of all devices or pairs.

        Args:
            values: One value for each device or pair that has one.

        Returns:
            The worst value, or None if there is no new one.
        """
        if not values:
            return None
        newest_s = max(value.at_s for value in values)
        if self.guard.is_probe:
            values = [value for value in values if value.at_s >= newest_s - _TOGETHER_S]
            self._seen_s[""] = newest_s
        else:
            self._seen_s |= {value.source: value.at_s for value in values}
        if self.last is not None and newest_s <= self.last.at_s:
            return None
        worst = worst_of(self.guard, values)
        self.last = LiveValue(newest_s, worst.value, worst.source)
        self.readings_count += 1
        if self.worst is None or self._is_worse(worst.value, self.worst):
            self.worst = worst.value
        if not self.guard.broken_by(worst.value):
            self._beyond = None
        elif self._beyond is None:
            self._beyond = worst
        return self.last

    def _is_worse(self, value: float, other: float) -> bool:
        return value < other if self.guard.is_floor else value > other

    @property
    def blind_s(self) -> float:
        """Time without a new value after which the run is stopped, in seconds."""
        return blind_after_s(self.interval_s)

    @property
    def stop_within_s(self) -> float:
        """Longest time from a breach to the last byte, in seconds."""
        return stop_within_s(self.guard, self.interval_s)

    def judge(self, now_s: float) -> Breach | None:
        """Return the reason to stop the run now, or None.

        Args:
            now_s: Current time in epoch seconds.
        """
        guard, beyond, last = self.guard, self._beyond, self.last
        if beyond is not None and last is not None:
            if max(now_s, last.at_s) - beyond.at_s < guard.abort_after_s:
                return None
            side = "below" if guard.is_floor else "above"
            return self._breach(
                f"{guard.quantity} of {last.source} was {guard.format(last.value)}, {side} the "
                f"limit {guard.format(guard.limit)}",
                beyond.at_s,
            )
        seen_s = min(self._seen_s.values(), default=self.since_s)
        if now_s - seen_s > self.blind_s:
            return self._breach(f"{guard.quantity} {NO_NEW_VALUE} for {self.blind_s:g} s", seen_s)
        return None

    def judge_start(self, now_s: float) -> Breach | None:
        """Return the reason why a burst must not start, or None.

        Args:
            now_s: Current time in epoch seconds.
        """
        if self.last is None:
            text = f"{self.guard.quantity} has no value, so the guard cannot be armed"
            return self._breach(text, now_s)
        return self.judge(now_s)

    def _breach(self, reason: str, at_s: float) -> Breach:
        return Breach(
            index=self.index,
            reason=reason,
            value=None if self.last is None else self.last.value,
            source=None if self.last is None else self.last.source,
            breached_at_s=at_s,
        )


def blind_after_s(interval_s: float) -> float:
    """Return the age from which a value is too old to protect the network, in seconds.

    Args:
        interval_s: Time between two values in seconds.
    """
    return max(BLIND_MIN_S, BLIND_INTERVALS_COUNT * interval_s)


def stop_within_s(guard: Guard, interval_s: float) -> float:
    """Return the longest time from a breach to the last byte, in seconds.

    Args:
        guard: The guard.
        interval_s: Time between two values in seconds.
    """
    return guard.abort_after_s + interval_s + LOOK_S + STOP_PATH_S


def interval_of(guard: Guard, intervals_s: Mapping[str, float]) -> float:
    """Return the time between two values of a guard, in seconds.

    Args:
        guard: The guard.
        intervals_s: Time between two values by telemetry quantity, in seconds.
    """
    return LIVE_PROBES_S if guard.is_probe else intervals_s.get(guard.quantity, 0.0)


def worst_of(guard: Guard, values: Sequence[LiveValue]) -> LiveValue:
    """Return the worst value of several devices or pairs, of which there is at least one.

    Args:
        guard: Guard that limits the values. With a floor, the lowest value is the worst.
        values: Values in the unit of the guard, at least one.
    """
    pick = min if guard.is_floor else max
    return pick(values, key=lambda value: value.value)


def stopped_by_guard(control: Control | None) -> bool:
    """Return True if a guard or a dry run stopped the run."""
    return control is not None and control.cancelled_by == STOPPED_BY


def slow_guard_warnings(guards: Sequence[Guard], intervals_s: Mapping[str, float]) -> list[str]:
    """Return a warning for each guard that cannot stop the traffic within two seconds.

    Args:
        guards: The guards of the run.
        intervals_s: Time between two values by quantity, in seconds.
    """
    return [
        f"guard {guard}: the value is read every {interval_s:g} s, so the traffic can continue for "
        f"{stop_within_s(guard, interval_s):.1f} s after a breach; use a source that is polled to "
        f"stop within {STOP_WITHIN_S:g} s"
        for guard in guards
        if (interval_s := interval_of(guard, intervals_s)) + LOOK_S + STOP_PATH_S > STOP_WITHIN_S
    ]


# Stored records and the part of the verdict ------------------------------------------------------


class GuardRecord(Message):
    """Values of one guard in a run.

    Attributes:
        guard: The guard as text.
        quantity: Name of the live value.
        limit: Limit, in the unit of the quantity.
        last: Newest value before the start, or before the stop. None if there was no value.
        worst: Worst value while the guard was armed.
        readings_count: Number of values.
        stop_within_s: Longest expected time from a breach to the last byte, in seconds.
    """

    guard: str
    quantity: str
    limit: float
    last: float | None = None
    worst: float | None = None
    readings_count: int = 0
    stop_within_s: float


class GuardStop(Message):
    """Stop of a run by a guard, or by a dry run.

    Attributes:
        burst_index: The burst that was stopped.
        guard_index: Index of the guard. None for a dry run.
        reason: Sentence with the value and the limit.
        is_before_start: True if the burst was stopped before the first byte.
        breached_at: Time of the first value beyond the limit.
        stop_requested_at: Time of the order to stop.
        stopped_at: Time when the last engine had ended. None if no agent reported it.
        stopped_pairs_count: Pairs that reported that they stopped.
        took_s: Time from the breach to the end of the last engine, in seconds.
    """

    burst_index: BurstIndex
    guard_index: int | None = None
    reason: str
    is_before_start: bool = False
    breached_at: UtcDatetime
    stop_requested_at: UtcDatetime
    stopped_at: UtcDatetime | None = None
    stopped_pairs_count: int | None = None
    took_s: float | None = None


class GuardSecond(Message):
    """Worst values of all guards in one second.

    Attributes:
        second: Second from the planned start of the burst. It is negative before the start.
        received_bits_per_second: Received payload of the fleet, as measured.
        values: One value for each guard. None is unknown.
    """

    second: int
    received_bits_per_second: float | None = None
    values: tuple[float | None, ...]


class GuardLog(Message):
    """Record of the guards in one burst, as the coordinator stores it."""

    burst_index: int
    guards: tuple[GuardRecord, ...]
    stop: GuardStop | None = None
    seconds: tuple[GuardSecond, ...] = ()


class GuardReport(Message):
    """Guards of a run, and the impact second by second if one of them stopped the run.

    Attributes:
        guards: Guards with their values.
        stop: The stop. None if no guard stopped the run.
        seconds: Impact second by second, from ten seconds before the breach to ten seconds after
            the stop.
    """

    guards: tuple[GuardRecord, ...] = ()
    stop: GuardStop | None = None
    seconds: tuple[GuardSecond, ...] = ()
