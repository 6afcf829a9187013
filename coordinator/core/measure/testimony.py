"""Telemetry of a device as named quantities over time, and problems with it.

A reading has a time, a time span to which it applies, and an error bound for the time. Readings can
be used as evidence, but they do not decide a verdict. A missing value is unknown and should not be
used as zero.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.words import Unit


class Quantity(StrEnum):
    """Quantity to report for a device or its instances (cores, units)."""

    CPU = "cpu_ratio"
    MEMORY = "memory_ratio"
    SESSIONS = "sessions_count"
    CONNECTIONS = "connections_per_second"
    PACKETS = "packets_per_second"
    DROPS = "drops_per_second"
    RECEIVED = "in_bits_per_second"
    SENT = "out_bits_per_second"
    HEALTH = "health_ratio"
    SNAT = "snat_ports_ratio"
    LATENCY = "latency_s"
    UNITS = "units_count"
    PING_ICMP = "ping_icmp_s"
    PING_TCP = "ping_tcp_s"
    PING_LOSS = "ping_loss_ratio"

    @property
    def unit(self) -> Unit:
        return Unit.of(self)


# Maximum for a ratio, to allow for rounding.
RATIO_MAX: Final = 1.01


class Across(StrEnum):
    """Rule to combine instances into a device value, and devices into a total."""

    MEAN = "mean"
    SUM = "sum"
    LARGEST = "largest"
    SMALLEST = "smallest"


@dataclass(frozen=True, slots=True)
class Kind:
    """Name to display for a quantity, and the rule to combine its instances."""

    words: str
    across: Across


KINDS: Final = {
    Quantity.CPU: Kind("CPU", Across.MEAN),
    Quantity.MEMORY: Kind("memory", Across.LARGEST),
    Quantity.SESSIONS: Kind("sessions", Across.SUM),
    Quantity.CONNECTIONS: Kind("new connections a second", Across.SUM),
    Quantity.PACKETS: Kind("packets a second", Across.SUM),
    Quantity.DROPS: Kind("drops a second", Across.SUM),
    Quantity.RECEIVED: Kind("bits received", Across.SUM),
    Quantity.SENT: Kind("bits sent", Across.SUM),
    Quantity.HEALTH: Kind("health", Across.SMALLEST),
    Quantity.SNAT: Kind("SNAT ports used", Across.LARGEST),
    Quantity.LATENCY: Kind("its own latency", Across.LARGEST),
    Quantity.UNITS: Kind("units", Across.SUM),
    Quantity.PING_ICMP: Kind("ping to the device, ICMP", Across.LARGEST),
    Quantity.PING_TCP: Kind("ping to the device, TCP", Across.LARGEST),
    Quantity.PING_LOSS: Kind("pings to the device, lost", Across.MEAN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessSeries:
    """One quantity of one device in time order, with columns of the same length.

    A value applies to the ``over_s`` seconds before ``at_s``, or just to this time if ``over_s`` is
    0. NaN means that a value is not known.

    Attributes:
        device: Device name.
        source: Telemetry source, for example ``snmp fortinet``.
        quantity: Reported quantity.
        instance: Core, interface or unit in the device. Empty for the device itself.
        at_s: Time in epoch seconds, by the coordinator's clock.
        over_s: Seconds covered by each value.
        bound_s: Error bound of ``at_s`` in both directions, in seconds. NaN if unknown.
        values: Reported values.
        is_archive: True if it was read after the run, and not when the values were new.
    """

    device: str
    source: str
    quantity: Quantity
    instance: str = ""
    at_s: Floats
    over_s: Floats
    bound_s: Floats
    values: Floats
    is_archive: bool = False

    def within(self, from_s: float, before_s: float) -> "WitnessSeries":
        """Return the values that cover any part of a span.

        Args:
            from_s: Start of the span in epoch seconds.
            before_s: End of the span in epoch seconds.
        """
        inside = (self.at_s >= from_s) & (self.at_s - self.over_s < before_s)
        return replace(self, **{name: getattr(self, name)[inside] for name in _COLUMNS})


_COLUMNS: Final = ("at_s", "over_s", "bound_s", "values")


class RemarkKind(StrEnum):
    """Reason why a device's telemetry is missing or unreliable."""

    # The device did not answer.
    SILENT = "silent"
    # The uptime of the device decreased.
    RESTARTED = "restarted"
    # A counter wrapped, and this was corrected.
    WRAPPED = "wrapped"
    # A counter decreased, and a wrap cannot explain it.
    WENT_BACK = "went-back"
    # A counter may have wrapped more than once between two readings.
    TOO_SLOW = "too-slow"
    # The device does not support this value, or it reports an impossible one.
    UNTOLD = "untold"
    # A source that should be read after the run could not be read.
    UNREAD = "unread"
    # The time stamps had a known offset and were corrected.
    CLOCK = "clock"
    # The time stamps contradict each other, so they were not used.
    STAMPS = "stamps"
    # The error of the time stamps is unknown.
    UNPLACED = "unplaced"
    # The answer was cut or is marked as incomplete.
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One telemetry problem with its time span.

    Attributes:
        kind: Type of problem.
        device: Device name.
        source: Telemetry source.
        from_s: Start in epoch seconds.
        to_s: End in epoch seconds.
        said: The counter name or the error. It must not contain a secret.
        count: How often it happened.
    """

    kind: RemarkKind
    device: str
    source: str
    from_s: float
    to_s: float
    said: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """All telemetry of a run.

    Attributes:
        devices: Devices that should have telemetry, with or without readings.
        series: Series of all devices.
        remarks: Problems with the telemetry.
        read_at: Time when it was read.
        cores_count: Number of cores by device, when it is known.
    """

    devices: tuple[str, ...]
    series: tuple[WitnessSeries, ...] = ()
    remarks: tuple[Remark, ...] = ()
    read_at: datetime
    cores_count: dict[str, int] | None = None

    def of(self, quantity: Quantity) -> Sequence[WitnessSeries]:
        return [each for each in self.series if each.quantity is quantity]


def together(parts: Iterable[Witnessed], read_at: datetime) -> Witnessed:
    """Merge telemetry from several sources.

    Args:
        parts: Telemetry to merge.
        read_at: Time to set in the result.
    """
    listed = list(parts)
    cores: dict[str, int] = {}
    for part in listed:
        cores |= part.cores_count or {}
    return Witnessed(
        devices=tuple(dict.fromkeys(name for part in listed for name in part.devices)),
        series=tuple(each for part in listed for each in part.series),
        remarks=tuple(
            sorted(
                (each for part in listed for each in part.remarks),
                key=lambda each: (each.from_s, each.device, each.kind, each.said),
            )
        ),
        read_at=read_at,
        cores_count=cores or None,
    )


def believed(told: Witnessed) -> Witnessed:
    """Remove impossible values, for example a percentage that is read as a ratio."""
    series, remarks = [], list(told.remarks)
    for each in told.series:
        most = RATIO_MAX if each.quantity.unit is Unit.RATIO else np.inf
        wrong = (each.values < 0) | (each.values > most)
        if not wrong.any():
            series.append(each)
            continue
        series.append(replace(each, values=np.where(wrong, np.nan, each.values)))
        value = float(each.values[wrong][-1])
        why = "a percentage needs scale = 0.01" if value > most else "it is under zero"
        remarks.append(
            Remark(
                kind=RemarkKind.UNTOLD,
                device=each.device,
                source=each.source,
                from_s=float(each.at_s[wrong][0]),
                to_s=float(each.at_s[wrong][-1]),
                said=f"{each.quantity} {each.instance}".strip()
                + f": {value:g}, which none can be: {why}",
                count=int(wrong.sum()),
            )
        )
    return replace(told, series=tuple(series), remarks=tuple(remarks))


def joined(earlier: Witnessed, later: Witnessed) -> Witnessed:
    """Merge telemetry stored before a coordinator restart with telemetry from after it.

    Each reading is used only once.

    Args:
        earlier: Stored telemetry.
        later: New telemetry.
    """
    series: dict[tuple[str, ...], WitnessSeries] = {}
    for each in (*earlier.series, *later.series):
        key = (each.device, each.source, each.quantity, each.instance)
        was = series.get(key)
        series[key] = each if was is None else _appended(was, each)
    return Witnessed(
        devices=tuple(dict.fromkeys((*earlier.devices, *later.devices))),
        series=tuple(series.values()),
        remarks=tuple({_spell(each): each for each in (*earlier.remarks, *later.remarks)}.values()),
        read_at=later.read_at,
        cores_count={**(earlier.cores_count or {}), **(later.cores_count or {})} or None,
    )


_ESTIMATES: Final = (RemarkKind.CLOCK, RemarkKind.STAMPS, RemarkKind.UNPLACED)


def _spell(remark: Remark) -> tuple[object, ...]:
    """Return the key of a remark, under which a later remark replaces an earlier one.

    If a problem continues, it will be reported again with a longer span. When an answer is missing,
    the text can change too. A new clock estimate should replace the previous one.
    """
    if remark.kind in _ESTIMATES:
        return remark.device, remark.source
    said = "" if remark.kind is RemarkKind.SILENT else remark.said
    return remark.kind, remark.device, remark.source, remark.from_s, said


def _appended(first: WitnessSeries, second: WitnessSeries) -> WitnessSeries:
    """Merge two series in time order, with one row for each millisecond.

    A better clock estimate can change the time for a reading, but it is still the same reading.
    """
    again = _placed_again(first, second)
    second = replace(second, **{name: getattr(second, name)[~again] for name in _COLUMNS})
    at_s = np.concatenate([first.at_s, second.at_s])
    _, rows = np.unique(np.round(at_s, 3), return_index=True)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])[rows]
        for name in _COLUMNS
    }
    return replace(first, **columns)


def _placed_again(first: WitnessSeries, second: WitnessSeries) -> "np.ndarray[Any, Any]":
    """Return a mask for rows in the second series that the first one already contains.

    Their times can differ by up to the sum of both bounds.
    """
    if not len(first.at_s):
        return np.zeros(len(second.at_s), dtype=bool)
    after = np.clip(np.searchsorted(first.at_s, second.at_s), 0, len(first.at_s) - 1)
    found = np.zeros(len(second.at_s), dtype=bool)
    for row in (after, np.maximum(after - 1, 0)):
        off_s = np.abs(first.at_s[row] - second.at_s)
        same = np.isclose(first.values[row], second.values, rtol=1e-6, equal_nan=True)
        found |= (off_s <= first.bound_s[row] + second.bound_s) & same
    return found


def column(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=float)
