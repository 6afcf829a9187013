"""What witnesses said of the device: named quantities over time, and what befell the telling.

A witness is no judge: its readings carry their own instant, the span that each stands for, and by
how much the instant may be off. What it did not say is unknown, never zero.
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
    """What a witness may say of a device, or of an instance within it (a core, a unit)."""

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


RATIO_MAX: Final = 1.01  # a figure of a whole, and the slack of its rounding


class Across(StrEnum):
    """How instances make a device's figure, and devices the figure of all of them."""

    MEAN = "mean"
    SUM = "sum"
    LARGEST = "largest"
    SMALLEST = "smallest"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a quantity reads."""

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
    """One quantity of one device, in time order. All columns have one length.

    A value stands for the ``over_s`` seconds before ``at_s``; 0: for that instant. NaN values are
    known to be unknown.
    """

    device: str
    source: str  # which witness says so: ``snmp fortinet``
    quantity: Quantity
    instance: str = ""  # of the device: a core, an interface, a unit; empty: the device as such
    at_s: Floats  # epoch s, by the coordinator's clock
    over_s: Floats
    bound_s: Floats  # by which at_s may be off, either way; NaN: not known
    values: Floats
    is_archive: bool = False  # read after the run: nobody asked when the values were new

    def within(self, from_s: float, before_s: float) -> "WitnessSeries":
        """What of it stands for any part of a span."""
        inside = (self.at_s >= from_s) & (self.at_s - self.over_s < before_s)
        return replace(self, **{name: getattr(self, name)[inside] for name in _COLUMNS})


_COLUMNS: Final = ("at_s", "over_s", "bound_s", "values")


class RemarkKind(StrEnum):
    """What befell the telling."""

    SILENT = "silent"  # asked, and no answer
    RESTARTED = "restarted"  # its own count of time up went back
    WRAPPED = "wrapped"  # a counter came round, and was read through it
    WENT_BACK = "went-back"  # a counter fell, and its wrap cannot explain it
    TOO_SLOW = "too-slow"  # a counter may have come round more than once between two readings
    UNTOLD = "untold"  # the device has no such figure, or none that can be one
    UNREAD = "unread"  # a source that is read afterwards could not be
    CLOCK = "clock"  # its time stamps are off by a known offset, and were corrected
    STAMPS = "stamps"  # its time stamps contradict each other, and were not used
    UNPLACED = "unplaced"  # nothing shows how far its time stamps are off
    PARTIAL = "partial"  # an answer that says that it is incomplete, or was cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One spell of it."""

    kind: RemarkKind
    device: str
    source: str
    from_s: float  # epoch s
    to_s: float
    said: str  # which counter, which error; never a secret
    count: int = 1  # how often, where it was several times


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """All that witnesses said of a run."""

    devices: tuple[str, ...]  # that were to be told of, whether they were or not
    series: tuple[WitnessSeries, ...] = ()
    remarks: tuple[Remark, ...] = ()
    read_at: datetime
    cores_count: dict[str, int] | None = None  # by device, where it is known

    def of(self, quantity: Quantity) -> Sequence[WitnessSeries]:
        return [each for each in self.series if each.quantity is quantity]


def together(parts: Iterable[Witnessed], read_at: datetime) -> Witnessed:
    """What several witnesses said, as one."""
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
    """Without figures that none can be, such as a percentage that is taken for a ratio."""
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
    """One that was kept before a coordinator restarted, and what is known since: each reading
    once."""
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
    """What goes on is told again, longer: a silence also in other words. An estimate of a clock is
    replaced by the later one."""
    if remark.kind in _ESTIMATES:
        return remark.device, remark.source
    said = "" if remark.kind is RemarkKind.SILENT else remark.said
    return remark.kind, remark.device, remark.source, remark.from_s, said


def _appended(first: WitnessSeries, second: WitnessSeries) -> WitnessSeries:
    """Both, in time order; of one instant one row. Milliseconds are as fine as they are kept.

    A reading that was placed again by a better estimate of its device's clock is one reading.
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
    """Return which rows of the second are a row of the first at another instant within bounds."""
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
