"""Neutral recording format for a run, with the records of hosts, devices and engines.

All times are float seconds since `Plan.epoch_unix_s`. A time in a record is the reading of the
given clock and may be wrong. An unrecorded value is `None`, a missing row, or `nan` in an array,
and never zero. `README.md` has all units.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedBurst:
    """Planned burst.

    Attributes:
        index: Burst number, from 0.
        start_s: Planned instant, in UTC.
        duration_s: Planned traffic duration of all pairs.
        reference: True for a reference run, which does not use the device.
        stopped_s: Time after the start at which all pairs stopped by order, or `None`.
    """

    index: int
    start_s: float
    duration_s: float
    reference: bool = False
    stopped_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPair:
    """Planned pair with its planned addresses.

    Attributes:
        index: Pair number, from 0.
        client_host: Name of the client host.
        server_host: Name of the server host.
        client_address: Client address.
        server_address: Address of the server endpoint.
        server_port: Port of the server endpoint.
        token: Test identity, which survives address translation.
    """

    index: int
    client_host: str
    server_host: str
    client_address: str
    server_address: str
    server_port: int
    token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterDeclaration:
    """Operator's declaration of a device counter, which may be wrong.

    Attributes:
        device: Device name.
        layer: Layer of the bytes, `ip`, `wire`, or `None` if not declared.
        unit: `bytes` or `bits`, or `None`.
        aggregation: `total` (per bin), `average` (rate per second), or `None`.
        directions: `both`, `forward`, `reverse` (from client to server), or `None`.
        counts: `before-drop` or `after-drop`, or `None`.
        lag_s: Documented lag, or `None`.
        preset: Name of a known system with default values, such as `azure-monitor`, or `None`.
    """

    device: str
    layer: str | None = None
    unit: str | None = None
    aggregation: str | None = None
    directions: str | None = None
    counts: str | None = None
    lag_s: float | None = None
    preset: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Plan and declarations before the run. It has no measured values.

    Attributes:
        epoch_unix_s: Unix time of instant 0 in all records.
        origin: `launched`, `recordings` (imported engine files) or `table` (imported means).
        engine: `iperf3`, `http`, `https` or `ftp`.
        protocol: `tcp` or `udp`.
        direction: `forward` (client to server), `reverse` or `both`.
        streams_count: Streams per pair and direction.
        offered_bits_per_second: Paced payload rate per pair and direction, or `None` if unpaced.
        mtu_bytes: MTU of the host interfaces, or `None` if not recorded.
        tcp_options_bytes: TCP option bytes per segment, or `None` if not recorded.
        datagram_bytes: Payload bytes of a UDP datagram, or `None`.
        ip_version: 4 or 6.
        target_bits_per_second: Required rate for all bursts.
        tolerance_ratio: The limit is `target * (1 - tolerance_ratio)`.
        target_layer: Layer of the target, `payload` or `ip`.
        completeness_min_ratio: Required share of recorded pair-seconds.
        residual_max_ratio: Maximum unexplained share of the device bytes.
        start_spread_max_s: Maximum time between the starts of the pairs.
        clock_gate_s: Maximum error bound of a host clock.
        device_cpu_max_ratio: Limit for the 95th percentile of the device CPU, or `None`.
        loss_max_ratio: Limit for the loss ratio in searches for a loss-free rate, or `None`.
        clocks_promised: True if host clocks must be known.
        device_promised: True if a device counter must cover the bursts.
        nic_cap_bits_per_second: Egress limit of a host, or `None` if unknown.
        device_known_rate_bits_per_second: Documented limit of the device at the IP layer, or
            `None`.
        bursts: Planned bursts.
        pairs: Planned pairs.
        counters: Declarations of the device counters.
        ends_when_certain: True if a burst should be stopped when its rate is certain.
    """

    epoch_unix_s: float
    origin: str
    engine: str
    protocol: str
    direction: str
    streams_count: int
    offered_bits_per_second: float | None
    mtu_bytes: int | None
    tcp_options_bytes: int | None
    datagram_bytes: int | None
    ip_version: int
    target_bits_per_second: float
    tolerance_ratio: float
    target_layer: str
    completeness_min_ratio: float
    residual_max_ratio: float
    start_spread_max_s: float
    clock_gate_s: float
    device_cpu_max_ratio: float | None
    loss_max_ratio: float | None
    clocks_promised: bool
    device_promised: bool
    nic_cap_bits_per_second: float | None
    device_known_rate_bits_per_second: float | None
    bursts: tuple[PlannedBurst, ...]
    pairs: tuple[PlannedPair, ...]
    counters: tuple[CounterDeclaration, ...]
    ends_when_certain: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Interval rows of one end, as arrays of equal length.

    Attributes:
        start_s: Start of the rows in elapsed seconds since `EndRecord.began_at_s`.
        end_s: End of the rows in the same unit.
        bytes: Payload bytes written to the socket (sender) or read from it (receiver).
        packets: Datagrams sent (sender) or sent and accounted for (receiver), or `None` for TCP.
        lost: Datagrams missing at the receiver, or `None` for TCP and at a sender.
        retransmits: Retransmitted TCP segments, or `None` at a receiver and for UDP.
        rtt_s: Mean smoothed round-trip time of the streams, or `None` if not recorded.
        cwnd_bytes: Sum of the congestion windows of all streams, or `None` if not recorded.
    """

    start_s: Floats
    end_s: Floats
    bytes: Floats
    packets: Floats | None = None
    lost: Floats | None = None
    retransmits: Floats | None = None
    rtt_s: Floats | None = None
    cwnd_bytes: Floats | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EndRecord:
    """Record from one end of a flow.

    Attributes:
        host: Recording host.
        side: `sender` or `receiver` of the payload.
        direction: Payload direction, `forward` or `reverse`.
        began_at_s: Time of elapsed second 0, by the clock of `host`, or `None` if not recorded.
        reading_s: Nominal length of a row.
        rows: Interval rows in file order.
        total_bytes: Total that the engine wrote, or `None`.
        total_s: Elapsed seconds of this total, or `None`.
        total_retransmits: Retransmitted TCP segments, or `None`.
        total_packets: UDP datagrams, or `None`.
        total_lost: Lost UDP datagrams, or `None`.
        complete: True if the engine ended normally and wrote its end.
    """

    host: str
    side: str
    direction: str
    began_at_s: float | None
    reading_s: float
    rows: Rows
    total_bytes: float | None
    total_s: float | None
    total_retransmits: float | None = None
    total_packets: float | None = None
    total_lost: float | None = None
    complete: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRecord:
    """Record of a pair in a burst.

    Attributes:
        pair: Pair index.
        burst: Burst index.
        outcome: `measured`, `late`, `abandoned` (died during the burst), `failed` (engine error),
            `lost` (claimed, without further records) or `missed` (never claimed).
        reason: Error of the engine, or an empty string.
        ends: Records of the ends, up to four with both directions.
        token: Token in the client's record.
        server_token: Token in the server's record, or `None`.
        client_address: Client address in the client's record.
        client_port: Source port in the client's record.
        seen_address: Source address in the server's record, or `None`.
        seen_port: Source port in the server's record, or `None`.
        idle_rtt_s: Round-trip time on the idle path before the burst, or `None` if not measured.
        loaded_rtt_s: Median round-trip time of probes through the device during the burst.
        device_ping_idle_s: Ping to the idle device, or `None`.
        device_ping_loaded_s: Ping to the device during the burst, or `None`.
        window_bytes: Socket buffer limit per stream, or `None` if not recorded.
    """

    pair: int
    burst: int
    outcome: str
    reason: str
    ends: tuple[EndRecord, ...]
    token: str
    server_token: str | None
    client_address: str
    client_port: int
    seen_address: str | None
    seen_port: int | None
    idle_rtt_s: float | None
    loaded_rtt_s: float | None
    device_ping_idle_s: float | None
    device_ping_loaded_s: float | None
    window_bytes: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignTest:
    """Foreign test on an endpoint of the run.

    Attributes:
        burst: Burst index. The test ran during this burst or before it.
        server_host: Host that recorded the test.
        server_port: Endpoint port.
        source_address: Source address.
        token: Token, or `None`.
        began_at_s: Time of the first byte, by the clock of `server_host`.
        ended_at_s: Time of the last byte, by the clock of `server_host`.
        bytes: Payload bytes.
    """

    burst: int
    server_host: str
    server_port: int
    source_address: str
    token: str | None
    began_at_s: float
    ended_at_s: float
    bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRecord:
    """Byte counter of a device.

    Attributes:
        device: Device name.
        start_s: Start labels of the bins, from the device's timestamps.
        end_s: End labels of the bins.
        value: Readings of the bins in the declared or undeclared unit. `nan` is unknown.
        asked_at_s: Request times by the coordinator's clock (UTC), one per bin, or `None`
            if the counter was read after the run.
        answered_at_s: Answer times by the coordinator's clock, or `None`.
        unit: Unit of `value` as labelled by the source, `bytes` or `bits`.
        aggregation: `total` (per bin) or `average` (rate per second).
        layer: Layer as labelled by the source, `ip`, `wire`, or `None`.
        directions: Directions as labelled by the source, `both`, `forward`, `reverse` or `None`.
        partial: Bins that the source marked as incomplete (Prometheus warnings, `isPartial`).
    """

    device: str
    start_s: Floats
    end_s: Floats
    value: Floats
    asked_at_s: Floats | None
    answered_at_s: Floats | None
    unit: str
    aggregation: str
    layer: str | None
    directions: str | None
    partial: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryRecord:
    """Readings of one quantity of a device.

    Attributes:
        device: Device name.
        quantity: `cpu_ratio`, `drops_per_second`, `sessions_count` or `units_count`.
        own_stamp_s: Timestamps of the device, or `None`.
        asked_at_s: Request times by the coordinator's clock (UTC), or `None` if the
            source was read after the run.
        answered_at_s: Answer times by the coordinator's clock, or `None`.
        value: Readings. `nan` is unknown.
        partial: Readings that the source marked as incomplete.
    """

    device: str
    quantity: str
    own_stamp_s: Floats | None
    asked_at_s: Floats | None
    answered_at_s: Floats | None
    value: Floats
    partial: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCounters:
    """Cumulative counters of a host during a burst.

    Attributes:
        host: Host name.
        burst: Burst index.
        interface: Counted interface.
        routed_interface: Interface that the kernel uses for this test, or `None` if unknown.
        at_s: Reading times, by the clock of `host`.
        rx_bytes: Received frame bytes, including the Ethernet header.
        tx_bytes: Sent frame bytes.
        cpu_ratio: Busy ratio of the busiest core since the previous reading. The first is `nan`.
    """

    host: str
    burst: int
    interface: str
    routed_interface: str | None
    at_s: Floats
    rx_bytes: Floats
    tx_bytes: Floats
    cpu_ratio: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockReading:
    """Reading of a host's clock status.

    Attributes:
        host: Host name.
        burst: Burst index.
        when: `before` or `after` the burst.
        at_s: Reading time, by the clock of `host`.
        offset_s: Clock minus UTC, as estimated by the time daemon of the host.
        bound_s: Error bound that the daemon reports.
        slewing_s: Remaining offset that the kernel corrects.
        synchronised: True if the daemon reports a synchronised clock.
        reference_id: Hexadecimal reference of the daemon. `7F7F0101` is its local clock.
        boot_id: Boot identity of the kernel.
    """

    host: str
    burst: int
    when: str
    at_s: float
    offset_s: float
    bound_s: float
    slewing_s: float
    synchronised: bool
    reference_id: str
    boot_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """All records of a run."""

    plan: Plan
    pairs: tuple[PairRecord, ...]
    foreign: tuple[ForeignTest, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()
    telemetry: tuple[TelemetryRecord, ...] = ()
    hosts: tuple[HostCounters, ...] = ()
    clocks: tuple[ClockReading, ...] = ()
    notes: tuple[str, ...] = field(default=())
