"""Registry of all run metrics, with unit, layer, source, aggregation and label.

Summaries, reports, tables, the web page, the Prometheus metrics, exports, comparisons, studies and
lists all use this registry. If a run summary has no field for a metric, it will be computed from
the bursts. To add a metric for values that bursts already have, it is therefore enough to add one
entry.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from typing import Final

from broadside.coordinator.core.formatting import MetricUnit, quantity_text
from broadside.exchange.messages import Aggregation


class Layer(StrEnum):
    """Layer at which a rate is counted.

    Attributes:
        PAYLOAD: Data from the application.
        IP: Payload with TCP/UDP and IP headers. The limits of Azure Firewall are given at this
            layer.
    """

    PAYLOAD = "payload"
    IP = "ip"


# Names of layers for people. The link layer is that of the counters of the senders' NICs.
LAYER_LABELS: Final = {
    "payload": "payload",
    "ip": "IP layer",
    "wire": "Ethernet frames",
    "link": "link layer",
    "unknown": "layer unknown",
}
# The layer of the device counter, as given in the reconciliation.
COUNTER_LAYER: Final = "layer of the counter"
MEAN, SUM, MAX, MIN = Aggregation.MEAN, Aggregation.SUM, Aggregation.MAX, Aggregation.MIN


def layer_label(layer: str) -> str:
    """Return the name of a layer for people. Other texts are returned as they are."""
    return LAYER_LABELS.get(layer, layer)


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric.

    Attributes:
        name: Name in a run summary, which ends with the unit.
        label: Label for people.
        read: Dotted name in a burst summary, if it is different from ``name``, or a function. In a
            list, the values of all items are used.
        aggregation: Aggregation over bursts, in which unknown values are left out. For flows, each
            flow of each burst has the same weight. If it is None, the run has its own value.
        layer: Layer of a rate.
        stored: Dotted name in a run summary, if it is different from ``name``.
        short: Name in comparisons and trials, if it is different from ``name``.
        metric: Name in Prometheus, if it is different from ``name``.
        decimals: Decimals of a percentage.
        optional: True if most runs cannot have it. It is then shown only if it is known.
        headline: True if it is one of the main metrics of a run.
    """

    name: str
    label: str
    read: str | Callable[[object], Iterable[float]] = ""
    aggregation: Aggregation | None = MEAN
    _: KW_ONLY
    layer: str = ""
    stored: str = ""
    short: str = ""
    metric: str = ""
    decimals: int = 2
    optional: bool = False
    headline: bool = True

    @property
    def unit(self) -> MetricUnit:
        return MetricUnit.of(self.name)

    @property
    def short_name(self) -> str:
        return self.short or self.name

    @property
    def path(self) -> str | None:
        """Dotted name in a burst summary, or None if the value is computed."""
        return None if callable(self.read) else self.read or self.name

    def values(self, burst: object) -> Iterator[float]:
        """Yield all values from a burst summary."""
        return iter(self.read(burst) if callable(self.read) else values_at(burst, self.path or ""))

    def of_bursts(self, bursts: Sequence[object]) -> float | None:
        """Return the run value, aggregated from all bursts, or None if it is not known."""
        known = [value for burst in bursts for value in self.values(burst)]
        if not known:
            return None
        if self.aggregation is None:
            return known[0] if len(bursts) == 1 else None
        return self.aggregation.of(known)

    def of_burst(self, burst: object) -> float | None:
        return self.of_bursts([burst])

    def of_part(self, part: str) -> "MetricDefinition":
        """Return the metric of one part of a mixed run, for comparisons."""
        return replace(
            self,
            name=f"{part}/{self.name}",
            short=f"{part}/{self.short_name}",
            label=f"{part}: {self.label}",
        )

    def of_run(self, summary: object) -> float | None:
        """Return the value that is stored for a run, or else aggregate it from the bursts.

        Returns:
            The value in the unit of the metric. None if the run does not have it.
        """
        path = self.stored or self.name
        if hasattr(summary, path.partition(".")[0]):
            return next(values_at(summary, path), None)
        return self.of_bursts(getattr(summary, "bursts", ()))

    def format(self, value: float | None) -> str:
        return quantity_text(self.unit, value, self.decimals)


def values_at(value: object, path: str) -> Iterator[float]:
    """Yield the values at a dotted name.

    Args:
        value: The object to read. None has no values.
        path: Dotted name. For a list, the values of all items are used.
    """
    name, _, rest = path.partition(".")
    inner = getattr(value, name)
    for item in inner if isinstance(inner, tuple) else (inner,):
        if item is not None:
            yield from values_at(item, rest) if rest else (item,)


def _measured(name: str) -> Callable[[object], Iterable[float]]:
    """Return a function that reads an additional engine metric by its name."""

    def read(burst: object) -> Iterable[float]:
        return (item.value for item in getattr(burst, "measures", ()) if item.name == name)

    return read


def _unit_changes(change: str) -> Callable[[object], Iterable[float]]:
    """Return a function that counts the units that joined or left, if units are known."""

    def read(burst: object) -> Iterable[float]:
        units = getattr(burst, "units", None)
        if units is not None and units.units:
            yield sum(one.change == change for one in units.changes)

    return read


def _unit_flows_cut(burst: object) -> Iterator[float]:
    units = getattr(burst, "units", None)
    if units is not None and units.units:
        yield sum(one.flows_count or 0 for one in units.changes if one.flows_cut)


def _busy_per_gigabit(burst: object) -> Iterator[float]:
    names = ("client.cpu_mean_ratio", RECEIVED.name, "pairs_measured")
    for busy, received, pairs_count in zip(
        *(values_at(burst, name) for name in names), strict=False
    ):
        if received and pairs_count:
            yield busy / (received / pairs_count / 1e9)


RECEIVED: Final = MetricDefinition(
    "fleet_received_bits_per_second",
    "fleet received",
    layer=Layer.PAYLOAD,
    short="received_bits_per_second",
    metric="received_bits_per_second",
)
RECEIVED_HALF_WIDTH: Final = MetricDefinition(
    "fleet_received_half_width_bits_per_second",
    "fleet received, half of its 95 % interval",
    aggregation=None,
    layer=Layer.PAYLOAD,
    short="received_half_width_bits_per_second",
    metric="received_half_width_bits_per_second",
)
RECEIVED_IP: Final = MetricDefinition(
    "fleet_ip_bits_per_second", "fleet received", layer=Layer.IP, metric="received_bits_per_second"
)
SENT: Final = MetricDefinition(
    "fleet_sent_bits_per_second",
    "fleet sent",
    layer=Layer.PAYLOAD,
    short="sent_bits_per_second",
    metric="sent_bits_per_second",
)
FIREWALL: Final = MetricDefinition(
    "firewall_bits_per_second", "device counter", layer=COUNTER_LAYER
)
COMPLETENESS: Final = MetricDefinition("completeness_ratio", "completeness", aggregation=None)
RESIDUAL: Final = MetricDefinition(
    "residual_ratio",
    "residual, device counter / expected - 1",
    "reconciliation.residual_ratio",
    aggregation=None,
    stored="reconciliation.residual_ratio",
    headline=False,
)
START_SPREAD: Final = MetricDefinition(
    "start_spread_s", "start spread, worst burst", aggregation=MAX
)
RTT: Final = MetricDefinition(
    "rtt_mean_s", "round-trip time, mean", "flows.rtt_mean_s", short="rtt_s"
)
RETRANSMITS: Final = MetricDefinition(
    "retransmit_ratio",
    "retransmits / sent segments",
    "flows.retransmit_ratio",
    decimals=4,
)


def _engine_metric(
    name: str, label: str, measure: str, aggregation: Aggregation = MAX
) -> MetricDefinition:
    """Return the entry for an additional engine metric."""
    return MetricDefinition(name, label, _measured(measure), aggregation, optional=True)


_OF_STATISTIC: Final = {"mean": MEAN, "p95": MAX, "max": MAX, "min": MIN}


def _of_device(
    name: str, label: str, read: str, *, short: str = "", decimals: int = 2
) -> MetricDefinition:
    """Return the entry for device telemetry, with the aggregation for its statistic."""
    how = _OF_STATISTIC[read.rpartition(".")[2]]
    return MetricDefinition(name, label, read, how, short=short, decimals=decimals, optional=True)


ALL_METRICS: Final = (
    RECEIVED,
    RECEIVED_HALF_WIDTH,
    RECEIVED_IP,
    SENT,
    FIREWALL,
    COMPLETENESS,
    RESIDUAL,
    START_SPREAD,
    MetricDefinition("start_error_p99_s", "start error, p99, worst burst", aggregation=MAX),
    MetricDefinition("start_error_max_s", "start error, largest", aggregation=MAX),
    RTT,
    _engine_metric(
        "stream_rtt_p50_s",
        "round-trip time of single streams, second by second: p50",
        "stream_rtt_p50",
        MEAN,
    ),
    _engine_metric("stream_rtt_p95_s", "the same, p95, worst burst", "stream_rtt_p95"),
    _engine_metric("stream_rtt_max_s", "the same, slowest", "stream_rtt_max"),
    *(
        _engine_metric(
            f"client_ping_{protocol}_{phase}_{quantile}_s",
            f"ping from clients to the device by {protocol.upper()}, {phase}, {quantile}",
            f"device_ping_{protocol}_{phase}_{quantile}",
        )
        for protocol in ("icmp", "tcp")
        for phase, quantile in (("idle", "p50"), ("loaded", "p50"), ("loaded", "p99"))
    ),
    *(
        _engine_metric(
            f"client_ping_{protocol}_loss_ratio",
            f"pings from clients to the device by {protocol.upper()}, lost under load",
            f"device_ping_{protocol}_loss",
        )
        for protocol in ("icmp", "tcp")
    ),
    RETRANSMITS,
    MetricDefinition("retransmits_count", "segments sent again", "flows.retransmits_count", SUM),
    MetricDefinition("loss_ratio", "datagrams lost", "flows.loss_ratio", decimals=4, optional=True),
    MetricDefinition(
        "client_cpu_mean_ratio",
        "CPU of clients, mean",
        "client.cpu_mean_ratio",
        short="client_cpu_ratio",
        decimals=0,
    ),
    MetricDefinition(
        "server_cpu_mean_ratio",
        "CPU of servers, mean",
        "server.cpu_mean_ratio",
        short="server_cpu_ratio",
        decimals=0,
    ),
    MetricDefinition(
        "cpu_per_gigabit",
        "busy share of a client's cores for each Gbit/s",
        _busy_per_gigabit,
        headline=False,
    ),
    MetricDefinition(
        "client_cpu_s_per_gigabyte",
        "CPU of client engines",
        "client_cpu.cpu_s_per_gigabyte",
        layer=Layer.PAYLOAD,
        optional=True,
    ),
    MetricDefinition(
        "server_cpu_s_per_gigabyte",
        "CPU of server engines",
        "server_cpu.cpu_s_per_gigabyte",
        layer=Layer.PAYLOAD,
        optional=True,
    ),
    MetricDefinition(
        "host_taken_max_ratio",
        "CPU taken by hypervisors, worst host",
        "taken_cpu.worst_ratio",
        MAX,
        optional=True,
    ),
    _engine_metric(
        "connections_per_second", "connections established", "established_per_second", MEAN
    ),
    *(
        _engine_metric(f"connections_{outcome}_count", label, measure, SUM)
        for outcome, label, measure in (
            ("attempted", "connections, attempted", "attempted_count"),
            ("established", "connections, established", "established_count"),
            ("secured", "connections, secured", "secured_count"),
            ("resumed", "connections, secured by a resumed session", "tls_resumed_count"),
            ("accepted", "connections, accepted by servers", "server_established_count"),
            ("refused", "connections, refused", "refused_count"),
            ("reset", "connections, reset", "reset_count"),
            ("denied", "connections, denied", "denied_count"),
            ("timed_out", "connections, timed out", "timed_out_count"),
            ("failed", "connections, failed on the client", "failed_count"),
            ("dropped", "held connections, dropped", "dropped_count"),
        )
    ),
    _engine_metric("success_ratio", "share of complete attempts", "success_ratio", MIN),
    _engine_metric("connections_held_count", "connections held, most of each pair", "held_count"),
    _engine_metric(
        "connections_attempted_ratio",
        "connections attempted, of those scheduled",
        "attempted_ratio",
        MIN,
    ),
    *(
        _engine_metric(f"{name}_{quantile}_s", f"{label}, {quantile}", f"{name}_{quantile}")
        for name, label in (
            ("handshake", "handshake"),
            ("tls_handshake", "TLS handshake"),
            ("first_byte", "time to the first byte"),
        )
        for quantile in ("p50", "p99", "max")
    ),
    _engine_metric(
        "attempt_delay_max_s", "delay of attempts on the client, at most", "attempt_delay_max"
    ),
    *(
        MetricDefinition(
            f"device_{name}_residual_ratio",
            f"sessions {label} by the device / connections of the fleet - 1",
            f"sessions.{name}_residual_ratio",
            aggregation=MEAN,
            optional=True,
        )
        for name, label in (("set_up", "set up"), ("ended", "ended"))
    ),
    MetricDefinition(
        "probe_p50_s", "probes under load, p50", "latency.fleet.during.p50_s", optional=True
    ),
    MetricDefinition(
        "probe_p99_s",
        "probes under load, p99, worst burst",
        "latency.fleet.during.p99_s",
        MAX,
        optional=True,
    ),
    MetricDefinition(
        "probe_loss_ratio",
        "probes under load, lost, worst burst",
        "latency.fleet.during.loss_ratio",
        MAX,
        optional=True,
    ),
    *(
        MetricDefinition(name, label, f"canary.during.{read}", MAX, optional=True)
        for name, label, read in (
            ("leak_ratio", "leaked share of the canary, worst burst", "leak_ratio"),
            ("leak_low_ratio", "the same, least of its interval", "leak_low_ratio"),
            ("leak_high_ratio", "the same, most of its interval", "leak_high_ratio"),
            (
                "allowed_blocked_ratio",
                "allowed share of the canary, blocked, worst burst",
                "allowed_blocked_ratio",
            ),
            ("block_p50_s", "canary, time until blocked, p50, worst burst", "decision_p50_s"),
        )
    ),
    _of_device(
        "device_cpu_mean_ratio",
        "CPU of the device, mean",
        "device.cpu_ratio.mean",
        short="device_cpu_ratio",
        decimals=1,
    ),
    _of_device(
        "device_cpu_p95_ratio",
        "CPU of the device, p95, busiest device, worst burst",
        "devices.cpu_ratio.p95",
        decimals=1,
    ),
    MetricDefinition(
        "device_cpu_s_per_gigabyte",
        "CPU of the device",
        "device.cpu_s_per_gigabyte",
        layer=Layer.PAYLOAD,
        optional=True,
    ),
    _of_device(
        "device_memory_max_ratio",
        "memory of the device, at most",
        "device.memory_ratio.max",
        decimals=1,
    ),
    _of_device(
        "device_sessions_max_count", "sessions of the device, at most", "device.sessions_count.max"
    ),
    _of_device(
        "device_packets_per_second",
        "packets a second at the device",
        "device.packets_per_second.mean",
    ),
    _of_device(
        "device_drops_per_second", "drops a second at the device", "device.drops_per_second.mean"
    ),
    _of_device(
        "device_health_min_ratio", "health of the device, at least", "device.health_ratio.min"
    ),
    _of_device(
        "device_snat_ports_max_ratio",
        "SNAT ports of the device in use, at most",
        "device.snat_ports_ratio.max",
    ),
    _of_device("device_units_count", "units of the device, at most", "device.units_count.max"),
    MetricDefinition(
        "seen_units_count",
        "units of the device by translated addresses, at most",
        "units.count",
        MAX,
        optional=True,
    ),
    MetricDefinition(
        "unit_imbalance_ratio",
        "busiest unit to mean of units, worst burst",
        "units.imbalance_ratio",
        MAX,
        optional=True,
    ),
    MetricDefinition(
        "unit_jain_ratio",
        "Jain's index of the units, worst burst",
        "units.jain_ratio",
        MIN,
        optional=True,
    ),
    *(
        MetricDefinition(
            f"unit_{name}bits_per_second",
            f"payload of a unit, {label}",
            f"units.units.received_{read}bits_per_second",
            aggregation,
            layer=Layer.PAYLOAD,
            optional=True,
            headline=name != "half_width_",
        )
        for name, read, label, aggregation in (
            ("", "", "mean", MEAN),
            ("min_", "", "slowest unit, worst burst", MIN),
            ("max_", "", "busiest unit, worst burst", MAX),
            ("half_width_", "half_width_", "half of its 95 % interval, worst burst", MAX),
        )
    ),
    *(
        MetricDefinition(
            f"unit_{name}", label, read, aggregation, optional=True, headline=callable(read)
        )
        for name, label, read, aggregation in (
            ("flows_count", "streams on a unit, mean", "units.units.flows_mean_count", MEAN),
            (
                "starts_per_second",
                "requests, connections on a unit, mean",
                "units.units.starts_per_second",
                MEAN,
            ),
            ("joined_count", "units, joined", _unit_changes("joined"), SUM),
            ("left_count", "units, left", _unit_changes("left"), SUM),
            ("flows_cut_count", "streams of units, cut", _unit_flows_cut, SUM),
        )
    ),
    _of_device(
        "device_ping_icmp_p95_s",
        "ping to the device by ICMP, p95, worst burst",
        "device.ping_icmp_s.p95",
    ),
    _of_device(
        "device_ping_tcp_p95_s",
        "ping to the device by TCP, p95, worst burst",
        "device.ping_tcp_s.p95",
    ),
    MetricDefinition(
        "device_ping_loss_ratio",
        "pings to the device, lost, worst burst",
        "device.ping_loss_ratio.mean",
        MAX,
        optional=True,
    ),
)
METRIC_BY_NAME: Final = {metric.name: metric for metric in ALL_METRICS}


def metric_by_short_name(name: str) -> MetricDefinition:
    """Return the metric with this name in comparisons and trials.

    The name of a metric of another part of a mixed run is ``PART/NAME``.
    """
    part, _, short_name = name.rpartition("/")
    metric = next(metric for metric in ALL_METRICS if metric.short_name == short_name)
    return metric.of_part(part) if part else metric


def received_at(layer: Layer | str | None) -> MetricDefinition:
    """Return the metric of the received rate at a layer, to be shown beside the target."""
    return RECEIVED_IP if layer == Layer.IP else RECEIVED
