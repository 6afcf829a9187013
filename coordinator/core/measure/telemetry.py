"""Telemetry of a device as named quantities over time, and problems with it.

A reading has a time, a time span to which it applies, and an error bound for the time. Readings are
evidence, and they decide a verdict only through a threshold. A missing value is unknown and should
not be used as zero.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.formatting import MetricUnit
from broadside.exchange.messages import Aggregation


class Quantity(StrEnum):
    """Quantity to report for a device or its instances (cores, units)."""

    CPU = "cpu_ratio"
    MEMORY = "memory_ratio"
    SESSIONS = "sessions_count"
    CONNECTIONS = "connections_per_second"
    ENDED = "ended_per_second"
    PACKETS = "packets_per_second"
    DROPS = "drops_per_second"
    RECEIVED = "in_bits_per_second"
    SENT = "out_bits_per_second"
    HEALTH = "health_ratio"
    SNAT = "snat_ports_ratio"
    LATENCY = "latency_s"
    UNITS = "units_count"
    SEEN_UNITS = "seen_units_count"
    PING_ICMP = "ping_icmp_s"
    PING_TCP = "ping_tcp_s"
    PING_LOSS = "ping_loss_ratio"
    URL_TIME = "url_s"
    URL_FAILED = "url_failed_ratio"

    @property
    def unit(self) -> MetricUnit:
        return MetricUnit.of(self)


# Maximum for a ratio, to allow for rounding.
RATIO_MAX: Final = 1.01


@dataclass(frozen=True, slots=True)
class QuantityDisplay:
    """Name to display for a quantity, and the rule to combine its instances."""

    label: str
    across: Aggregation


KINDS: Final = {
    Quantity.CPU: QuantityDisplay("CPU", Aggregation.MEAN),
    Quantity.MEMORY: QuantityDisplay("memory", Aggregation.MAX),
    Quantity.SESSIONS: QuantityDisplay("sessions", Aggregation.SUM),
    Quantity.CONNECTIONS: QuantityDisplay("new connections a second", Aggregation.SUM),
    Quantity.ENDED: QuantityDisplay("ended connections a second", Aggregation.SUM),
    Quantity.PACKETS: QuantityDisplay("packets a second", Aggregation.SUM),
    Quantity.DROPS: QuantityDisplay("drops a second", Aggregation.SUM),
    Quantity.RECEIVED: QuantityDisplay("bits received", Aggregation.SUM),
    Quantity.SENT: QuantityDisplay("bits sent", Aggregation.SUM),
    Quantity.HEALTH: QuantityDisplay("health", Aggregation.MIN),
    Quantity.SNAT: QuantityDisplay("SNAT ports used", Aggregation.MAX),
    Quantity.LATENCY: QuantityDisplay("its own latency", Aggregation.MAX),
    Quantity.UNITS: QuantityDisplay("units", Aggregation.SUM),
    Quantity.SEEN_UNITS: QuantityDisplay("units by translated addresses", Aggregation.SUM),
    Quantity.PING_ICMP: QuantityDisplay("ping to the device, ICMP", Aggregation.MAX),
    Quantity.PING_TCP: QuantityDisplay("ping to the device, TCP", Aggregation.MAX),
    Quantity.PING_LOSS: QuantityDisplay("pings to the device, lost", Aggregation.MEAN),
    Quantity.URL_TIME: QuantityDisplay("response time of a URL", Aggregation.MAX),
    Quantity.URL_FAILED: QuantityDisplay("failed requests to a URL", Aggregation.MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySeries:
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

    def within(self, from_s: float, before_s: float) -> "TelemetrySeries":
        """Return the values that cover any part of a span.

        Args:
            from_s: Start of the span in epoch seconds.
            before_s: End of the span in epoch seconds.
        """
        inside = (self.at_s >= from_s) & (self.at_s - self.over_s < before_s)
        return replace(self, **{name: getattr(self, name)[inside] for name in _COLUMNS})


_COLUMNS: Final = ("at_s", "over_s", "bound_s", "values")


# Kinds in stored telemetry of versions before 1.0, and their current names.
_FORMER_KINDS: Final = (
    ("untold", "unsupported"),
    ("unread", "unreadable"),
    ("stamps", "timestamps"),
    ("went-back", "decreased"),
)


class IssueKind(StrEnum):
    """Reason why a device's telemetry is missing or unreliable."""

    # The device did not answer.
    SILENT = "silent"
    # The uptime of the device decreased.
    RESTARTED = "restarted"
    # A counter wrapped, and this was corrected.
    WRAPPED = "wrapped"
    # A counter decreased, and this was not because it wrapped.
    WENT_BACK = "decreased"
    # A counter may have wrapped more than once between two readings.
    TOO_SLOW = "too-slow"
    # The device does not support this value, or it reports an impossible one.
    MISSING = "unsupported"
    # A source that should be read after the run could not be read.
    UNREADABLE = "unreadable"
    # The time stamps had a known offset and were corrected.
    CLOCK = "clock"
    # The timestamps contradict each other, so we do not use them.
    STAMPS = "timestamps"
    # The error of the time stamps is unknown.
    UNPLACED = "unplaced"
    # The answer was cut or is marked as incomplete.
    PARTIAL = "partial"

    @classmethod
    def _missing_(cls, value: object) -> "IssueKind | None":
        return next((cls(new) for old, new in _FORMER_KINDS if old == value), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryIssue:
    """One telemetry problem with its time span.

    Attributes:
        kind: Type of problem.
        device: Device name.
        source: Telemetry source.
        from_s: Start in epoch seconds.
        to_s: End in epoch seconds.
        text: The counter name or the error. It must not contain a secret.
        count: How often it happened.
    """

    kind: IssueKind
    device: str
    source: str
    from_s: float
    to_s: float
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTelemetry:
    """All telemetry of a run.

    Attributes:
        devices: Devices that should have telemetry, with or without readings.
        series: Series of all devices.
        issues: Problems with the telemetry.
        read_at: Time when it was read.
        cores_count: Number of cores by device, when it is known.
    """

    devices: tuple[str, ...]
    series: tuple[TelemetrySeries, ...] = ()
    issues: tuple[TelemetryIssue, ...] = ()
    read_at: datetime
    cores_count: dict[str, int] | None = None

    def of(self, quantity: Quantity) -> Sequence[TelemetrySeries]:
        return [item for item in self.series if item.quantity is quantity]


def merge_sources(parts: Iterable[DeviceTelemetry], read_at: datetime) -> DeviceTelemetry:
    """Merge telemetry from several sources.

    Args:
        parts: Telemetry to merge.
        read_at: Time to set in the result.

    Returns:
        Devices, series and issues of all parts, in their order.
    """
    listed = list(parts)
    cores: dict[str, int] = {}
    for part in listed:
        cores |= part.cores_count or {}
    return DeviceTelemetry(
        devices=tuple(dict.fromkeys(name for part in listed for name in part.devices)),
        series=tuple(item for part in listed for item in part.series),
        issues=tuple(
            sorted(
                (item for part in listed for item in part.issues),
                key=lambda item: (item.from_s, item.device, item.kind, item.text),
            )
        ),
        read_at=read_at,
        cores_count=cores or None,
    )


def drop_invalid(telemetry: DeviceTelemetry) -> DeviceTelemetry:
    """Remove impossible values, for example a percentage that is read as a ratio."""
    series, issues = [], list(telemetry.issues)
    for item in telemetry.series:
        most = RATIO_MAX if item.quantity.unit is MetricUnit.RATIO else np.inf
        wrong = (item.values < 0) | (item.values > most)
        if not wrong.any():
            series.append(item)
            continue
        series.append(replace(item, values=np.where(wrong, np.nan, item.values)))
        value = float(item.values[wrong][-1])
        why = "a percentage needs scale = 0.01" if value > most else "it is below zero"
        issues.append(
            TelemetryIssue(
                kind=IssueKind.MISSING,
                device=item.device,
                source=item.source,
                from_s=float(item.at_s[wrong][0]),
                to_s=float(item.at_s[wrong][-1]),
                text=f"{item.quantity} {item.instance}".strip()
                + f": {value:g} is not possible: {why}",
                count=int(wrong.sum()),
            )
        )
    return replace(telemetry, series=tuple(series), issues=tuple(issues))


def merge_readings(earlier: DeviceTelemetry, later: DeviceTelemetry) -> DeviceTelemetry:
    """Merge telemetry stored before a coordinator restart with telemetry from after it.

    Each reading is used only once.

    Args:
        earlier: Stored telemetry.
        later: New telemetry.

    Returns:
        Telemetry with the read time of ``later``. Series of the same quantity and instance are
        joined.
    """
    series: dict[tuple[str, ...], TelemetrySeries] = {}
    for item in (*earlier.series, *later.series):
        key = (item.device, item.source, item.quantity, item.instance)
        was = series.get(key)
        series[key] = item if was is None else _merge_series(was, item)
    return DeviceTelemetry(
        devices=tuple(dict.fromkeys((*earlier.devices, *later.devices))),
        series=tuple(series.values()),
        issues=tuple(
            {_issue_key(item): item for item in (*earlier.issues, *later.issues)}.values()
        ),
        read_at=later.read_at,
        cores_count={**(earlier.cores_count or {}), **(later.cores_count or {})} or None,
    )


_ESTIMATES: Final = (IssueKind.CLOCK, IssueKind.STAMPS, IssueKind.UNPLACED)


def _issue_key(issue: TelemetryIssue) -> tuple[object, ...]:
    """Return the key of an issue, under which a later issue replaces an earlier one.

    If a problem continues, it will be reported again with a longer span. When an answer is missing,
    the text can change too. A new clock estimate should replace the previous one.
    """
    if issue.kind in _ESTIMATES:
        return issue.device, issue.source
    text = "" if issue.kind is IssueKind.SILENT else issue.text
    return issue.kind, issue.device, issue.source, issue.from_s, text


def _merge_series(first: TelemetrySeries, second: TelemetrySeries) -> TelemetrySeries:
    """Merge two series in time order, with one row for item millisecond.

    A better clock estimate can change the time for a reading, but it is still the same reading.
    """
    again = _repeated_rows(first, second)
    second = replace(second, **{name: getattr(second, name)[~again] for name in _COLUMNS})
    at_s = np.concatenate([first.at_s, second.at_s])
    _, rows = np.unique(np.round(at_s, 3), return_index=True)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])[rows]
        for name in _COLUMNS
    }
    return replace(first, **columns)


def _repeated_rows(first: TelemetrySeries, second: TelemetrySeries) -> "np.ndarray[Any, Any]":
    """Return a mask for rows in the second series that the first one already contains.

    Their times can differ by up to the sum of both bounds.
    """
    if not len(first.at_s):
        return np.zeros(len(second.at_s), dtype=bool)
    after = np.clip(np.searchsorted(first.at_s, second.at_s), 0, len(first.at_s) - 1)
    result = np.zeros(len(second.at_s), dtype=bool)
    for row in (after, np.maximum(after - 1, 0)):
        off_s = np.abs(first.at_s[row] - second.at_s)
        same = np.isclose(first.values[row], second.values, rtol=1e-6, equal_nan=True)
        result |= (off_s <= first.bound_s[row] + second.bound_s) & same
    return result


def column(values: Iterable[float]) -> Floats:
    """Return the values as an array of floats."""
    return np.fromiter(values, dtype=float)
