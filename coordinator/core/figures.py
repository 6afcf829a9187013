"""Every figure of a run once: its unit and layer, where a burst has it, how bursts fold, its words.

Summaries, report, tables, page, metrics, exports, comparisons, studies and lists take from here. A
figure that a run's summary has no field for is folded from its bursts' when it is asked for, so a
figure over what bursts measure already is one entry, and is shown everywhere.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coordinator.core.words import Unit, say


class Layer(StrEnum):
    """Where in the stack a rate is counted."""

    PAYLOAD = "payload"  # what the application handed over
    IP = "ip"  # payload plus TCP/UDP and IP headers: what Azure Firewall's limits are stated in


LEDGER: Final = "the ledger's"  # its own layer, as the reconciliation says


class Fold(StrEnum):
    """How a figure of bursts becomes one of the run. What is unknown is left out, never zero."""

    MEAN = "mean"  # each burst alike; of flows, each flow of each burst
    TOTAL = "total"
    LARGEST = "largest"
    SMALLEST = "smallest"
    NONE = "none"  # the run has its own, which no fold of bursts gives


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. ``read`` is its dotted name in a burst's summary; of a list, every member's."""

    name: str  # in a run's summary, where that has it
    words: str
    unit: Unit
    read: str | Callable[[object], Iterable[float]]
    fold: Fold = Fold.MEAN
    layer: str = ""
    stored: str = ""  # dotted name in a run's summary, where it is not the name
    short: str = ""  # what comparisons and trials call it, where it is not the name
    metric: str = ""  # what Prometheus calls it, where it is not the name
    decimals: int = 2  # of a percentage
    optional: bool = False  # most runs cannot have it: shown where it is known
    headline: bool = True  # shown among a run's headline figures

    @property
    def called(self) -> str:
        return self.short or self.name

    def values(self, burst: object) -> Iterator[float]:
        """All that a burst's summary says of it."""
        return iter(self.read(burst) if callable(self.read) else found(burst, self.read))

    def of_bursts(self, bursts: Sequence[object]) -> float | None:
        """The run's figure, folded; None where no burst knows it."""
        known = [value for burst in bursts for value in self.values(burst)]
        if not known:
            return None
        match self.fold:
            case Fold.MEAN:
                return sum(known) / len(known)
            case Fold.TOTAL:
                return sum(known)
            case Fold.LARGEST:
                return max(known)
            case Fold.SMALLEST:
                return min(known)
            case Fold.NONE:
                return known[0] if len(bursts) == 1 else None

    def of_burst(self, burst: object) -> float | None:
        return self.of_bursts([burst])

    def of_run(self, summary: object) -> float | None:
        """As a run's summary or outcome keeps it, else folded from its bursts."""
        path = self.stored or self.name
        if hasattr(summary, path.partition(".")[0]):
            return next(found(summary, path), None)
        return self.of_bursts(getattr(summary, "bursts", ()))

    def say(self, value: float | None) -> str:
        return say(self.unit, value, self.decimals)


def found(value: object, path: str) -> Iterator[float]:
    """What a value has at a dotted name; of a list every member's, of None nothing."""
    name, _, rest = path.partition(".")
    inner = getattr(value, name)
    for each in inner if isinstance(inner, tuple) else (inner,):
        if each is not None:
            yield from found(each, rest) if rest else (each,)


def _measured(name: str) -> Callable[[object], Iterable[float]]:
    """What engines tell beside bytes, by its name."""

    def read(burst: object) -> Iterable[float]:
        return (each.value for each in getattr(burst, "measures", ()) if each.name == name)

    return read


def _busy_per_gigabit(burst: object) -> Iterator[float]:
    names = ("client.cpu_mean_ratio", RECEIVED.name, "pairs_measured")
    for busy, received, pairs_count in zip(*(found(burst, name) for name in names), strict=False):
        if received and pairs_count:
            yield busy / (received / pairs_count / 1e9)


RECEIVED: Final = Figure(
    name="fleet_received_bits_per_second",
    words="fleet received",
    unit=Unit.RATE,
    layer=Layer.PAYLOAD,
    read="fleet_received_bits_per_second",
    short="received_bits_per_second",
    metric="received_bits_per_second",
)
RECEIVED_HALF_WIDTH: Final = Figure(
    name="fleet_received_half_width_bits_per_second",
    words="fleet received, half of its 95 % interval",
    unit=Unit.RATE,
    layer=Layer.PAYLOAD,
    read="fleet_received_half_width_bits_per_second",
    fold=Fold.NONE,
    short="received_half_width_bits_per_second",
    metric="received_half_width_bits_per_second",
)
RECEIVED_IP: Final = Figure(
    name="fleet_ip_bits_per_second",
    words="fleet received",
    unit=Unit.RATE,
    layer=Layer.IP,
    read="fleet_ip_bits_per_second",
    metric="received_bits_per_second",
)
SENT: Final = Figure(
    name="fleet_sent_bits_per_second",
    words="fleet sent",
    unit=Unit.RATE,
    layer=Layer.PAYLOAD,
    read="fleet_sent_bits_per_second",
    short="sent_bits_per_second",
    metric="sent_bits_per_second",
)
FIREWALL: Final = Figure(
    name="firewall_bits_per_second",
    words="firewall's ledger",
    unit=Unit.RATE,
    layer=LEDGER,
    read="firewall_bits_per_second",
)
COMPLETENESS: Final = Figure(
    name="completeness_ratio",
    words="completeness",
    unit=Unit.RATIO,
    read="completeness_ratio",
    fold=Fold.NONE,
)
RESIDUAL: Final = Figure(
    name="residual_ratio",
    words="residual, firewall over expected, less one",
    unit=Unit.RATIO,
    read="reconciliation.residual_ratio",
    stored="reconciliation.residual_ratio",
    fold=Fold.NONE,
    headline=False,
)
START_SPREAD: Final = Figure(
    name="start_spread_s",
    words="start spread, worst burst",
    unit=Unit.TIME,
    read="start_spread_s",
    fold=Fold.LARGEST,
)
RTT: Final = Figure(
    name="rtt_mean_s",
    words="round-trip time, mean",
    unit=Unit.TIME,
    read="flows.rtt_mean_s",
    short="rtt_s",
)
RETRANSMITS: Final = Figure(
    name="retransmit_ratio",
    words="segments sent again, of those sent",
    unit=Unit.RATIO,
    read="flows.retransmit_ratio",
    decimals=4,
)
FIGURES: Final = (
    RECEIVED,
    RECEIVED_HALF_WIDTH,
    RECEIVED_IP,
    SENT,
    FIREWALL,
    COMPLETENESS,
    RESIDUAL,
    START_SPREAD,
    Figure(
        name="start_error_p99_s",
        words="start error, p99, worst burst",
        unit=Unit.TIME,
        read="start_error_p99_s",
        fold=Fold.LARGEST,
    ),
    Figure(
        name="start_error_max_s",
        words="start error, largest",
        unit=Unit.TIME,
        read="start_error_max_s",
        fold=Fold.LARGEST,
    ),
    RTT,
    Figure(
        name="stream_rtt_p50_s",
        words="round-trip time of single streams, second by second: p50",
        unit=Unit.TIME,
        read=_measured("stream_rtt_p50"),
        optional=True,
    ),
    Figure(
        name="stream_rtt_p95_s",
        words="the same, p95, worst burst",
        unit=Unit.TIME,
        read=_measured("stream_rtt_p95"),
        fold=Fold.LARGEST,
        optional=True,
    ),
    Figure(
        name="stream_rtt_max_s",
        words="the same, slowest",
        unit=Unit.TIME,
        read=_measured("stream_rtt_max"),
        fold=Fold.LARGEST,
        optional=True,
    ),
    *(
        Figure(
            name=f"client_ping_{way}_{phase}_{quantile}_s",
            words=f"ping from clients to the device by {way.upper()}, {phase}, {quantile}",
            unit=Unit.TIME,
            read=_measured(f"device_ping_{way}_{phase}_{quantile}"),
            fold=Fold.LARGEST,
            optional=True,
        )
        for way in ("icmp", "tcp")
        for phase, quantile in (("idle", "p50"), ("loaded", "p50"), ("loaded", "p99"))
    ),
    *(
        Figure(
            name=f"client_ping_{way}_loss_ratio",
            words=f"pings from clients to the device by {way.upper()}, lost under load",
            unit=Unit.RATIO,
            read=_measured(f"device_ping_{way}_loss"),
            fold=Fold.LARGEST,
            optional=True,
        )
        for way in ("icmp", "tcp")
    ),
    RETRANSMITS,
    Figure(
        name="retransmits_count",
        words="segments sent again",
        unit=Unit.COUNT,
        read="flows.retransmits_count",
        fold=Fold.TOTAL,
    ),
    Figure(
        name="loss_ratio",
        words="datagrams lost",
        unit=Unit.RATIO,
        read="flows.loss_ratio",
        decimals=4,
        optional=True,
    ),
    Figure(
        name="client_cpu_mean_ratio",
        words="CPU of clients, mean",
        unit=Unit.RATIO,
        read="client.cpu_mean_ratio",
        short="client_cpu_ratio",
        decimals=0,
    ),
    Figure(
        name="server_cpu_mean_ratio",
        words="CPU of servers, mean",
        unit=Unit.RATIO,
        read="server.cpu_mean_ratio",
        short="server_cpu_ratio",
        decimals=0,
    ),
    Figure(
        name="cpu_per_gigabit",
        words="busy share of a client's cores for each Gbit/s",
        unit=Unit.NUMBER,
        read=_busy_per_gigabit,
        headline=False,
    ),
    Figure(
        name="client_cpu_s_per_gigabyte",
        words="CPU of client engines",
        unit=Unit.CPU,
        layer=Layer.PAYLOAD,
        read="client_cpu.cpu_s_per_gigabyte",
        optional=True,
    ),
    Figure(
        name="server_cpu_s_per_gigabyte",
        words="CPU of server engines",
        unit=Unit.CPU,
        layer=Layer.PAYLOAD,
        read="server_cpu.cpu_s_per_gigabyte",
        optional=True,
    ),
    Figure(
        name="host_taken_max_ratio",
        words="CPU taken by hypervisors, worst host",
        unit=Unit.RATIO,
        read="taken_cpu.worst_ratio",
        fold=Fold.LARGEST,
        optional=True,
    ),
    Figure(
        name="probe_p50_s",
        words="probes under load, p50",
        unit=Unit.TIME,
        read="latency.fleet.during.p50_s",
        optional=True,
    ),
    Figure(
        name="probe_p99_s",
        words="probes under load, p99, worst burst",
        unit=Unit.TIME,
        read="latency.fleet.during.p99_s",
        fold=Fold.LARGEST,
        optional=True,
    ),
    Figure(
        name="probe_loss_ratio",
        words="probes under load, lost, worst burst",
        unit=Unit.RATIO,
        read="latency.fleet.during.loss_ratio",
        fold=Fold.LARGEST,
        optional=True,
    ),
    Figure(
        name="device_cpu_mean_ratio",
        words="CPU of the device, mean",
        unit=Unit.RATIO,
        read="device.cpu_ratio.mean",
        short="device_cpu_ratio",
        decimals=1,
        optional=True,
    ),
    Figure(
        name="device_cpu_p95_ratio",
        words="CPU of the device, p95, busiest device, worst burst",
        unit=Unit.RATIO,
        read="devices.cpu_ratio.p95",
        fold=Fold.LARGEST,
        decimals=1,
        optional=True,
    ),
    Figure(
        name="device_cpu_s_per_gigabyte",
        words="CPU of the device",
        unit=Unit.CPU,
        layer=Layer.PAYLOAD,
        read="device.cpu_s_per_gigabyte",
        optional=True,
    ),
    Figure(
        name="device_memory_max_ratio",
        words="memory of the device, at most",
        unit=Unit.RATIO,
        read="device.memory_ratio.max",
        fold=Fold.LARGEST,
        decimals=1,
        optional=True,
    ),
    Figure(
        name="device_sessions_max_count",
        words="sessions of the device, at most",
        unit=Unit.COUNT,
        read="device.sessions_count.max",
        fold=Fold.LARGEST,
        optional=True,
    ),
    Figure(
        name="device_packets_per_second",
        words="packets a second at the device",
        unit=Unit.NUMBER,
        read="device.packets_per_second.mean",
        optional=True,
    ),
    Figure(
        name="device_drops_per_second",
        words="drops a second at the device",
        unit=Unit.NUMBER,
        read="device.drops_per_second.mean",
        optional=True,
    ),
    Figure(
        name="device_health_min_ratio",
        words="health of the device, at least",
        unit=Unit.RATIO,
        read="device.health_ratio.min",
        fold=Fold.SMALLEST,
        optional=True,
    ),
    Figure(
        name="device_snat_ports_max_ratio",
        words="SNAT ports of the device in use, at most",
        unit=Unit.RATIO,
        read="device.snat_ports_ratio.max",
        fold=Fold.LARGEST,
        optional=True,
    ),
    Figure(
        name="device_units_count",
        words="units of the device, at most",
        unit=Unit.COUNT,
        read="device.units_count.max",
        fold=Fold.LARGEST,
        optional=True,
    ),
    Figure(
        name="device_ping_icmp_p95_s",
        words="ping to the device by ICMP, p95, worst burst",
        unit=Unit.TIME,
        read="device.ping_icmp_s.p95",
        fold=Fold.LARGEST,
        optional=True,
    ),
    Figure(
        name="device_ping_tcp_p95_s",
        words="ping to the device by TCP, p95, worst burst",
        unit=Unit.TIME,
        read="device.ping_tcp_s.p95",
        fold=Fold.LARGEST,
        optional=True,
    ),
    Figure(
        name="device_ping_loss_ratio",
        words="pings to the device, lost, worst burst",
        unit=Unit.RATIO,
        read="device.ping_loss_ratio.mean",
        fold=Fold.LARGEST,
        optional=True,
    ),
)
FIGURE: Final = {each.name: each for each in FIGURES}


def figure_called(name: str) -> Figure:
    """The figure that a comparison or a trial calls so."""
    return next(each for each in FIGURES if each.called == name)
