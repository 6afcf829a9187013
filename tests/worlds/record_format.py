"""Neutral recording format of a run: what hosts, devices and engines left behind.

All instants are float seconds since `Plan.epoch_unix_s`. An instant in a record is the reading of
the clock that the field names, so it may be wrong. A value that nobody recorded is `None`, a
missing row, or `nan` in an array. It is never zero. `README.md` gives every unit.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedBurst:
    """One planned burst.

    Attributes:
        index: Number of the burst, from 0.
        start_s: Planned instant, in UTC.
        duration_s: Planned length of the traffic of each pair.
        reference: The burst ran beside the device on purpose (a reference run).
    """

    index: int
    start_s: float
    duration_s: float
    reference: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPair:
    """One planned pair with its addresses as the plan names them.

    Attributes:
        index: Number of the pair, from 0.
        client_host: Name of the client's host.
        server_host: Name of the server's host.
        client_address: Address of the client.
        server_address: Address of the server's endpoint.
        server_port: Port of the server's endpoint.
        token: Identity of the pair's test, which survives translation.
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
    """What the operator stated about a device counter, true or not.

    Attributes:
        device: Name of the device.
        layer: Layer of the bytes: `ip`, `wire`, or `None` if nothing was stated.
        unit: `bytes` or `bits`, or `None`.
        aggregation: `total` (amount per bin), `average` (rate per second), or `None`.
        directions: `both`, `forward`, `reverse` (as seen from client to server), or `None`.
        counts: `before-drop` or `after-drop`, or `None`.
        lag_s: Documented lag, or `None`.
        preset: Name of a known system's defaults, such as `azure-monitor`, or `None`.
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
    """What was planned and stated before the run. Nothing here is measured.

    Attributes:
        epoch_unix_s: Unix time of instant 0 of every record.
        origin: `launched`, `recordings` (import of engine files) or `table` (import of means).
        engine: `iperf3`, `http`, `https` or `ftp`.
        protocol: `tcp` or `udp`.
        direction: `forward` (client to server), `reverse` or `both`.
        streams_count: Streams of a pair and direction.
        offered_bits_per_second: Paced payload rate of one pair and direction; `None` if unpaced.
        mtu_bytes: MTU of the hosts' interfaces, or `None` if not recorded.
        tcp_options_bytes: TCP option bytes of each segment, or `None` if not recorded.
        datagram_bytes: Payload of a UDP datagram, or `None`.
        ip_version: 4 or 6.
        target_bits_per_second: Rate that every burst must reach.
        tolerance_ratio: The limit is `target * (1 - tolerance_ratio)`.
        target_layer: Layer of the target: `payload` or `ip`.
        completeness_min_ratio: Share of planned pair-seconds that must be on record.
        residual_max_ratio: Largest unexplained share of the device's bytes.
        start_spread_max_s: Largest allowed distance of the pairs' starts.
        clock_gate_s: Largest allowed error bound of a host clock.
        device_cpu_max_ratio: Limit on the 95th percentile of device CPU, or `None`.
        loss_max_ratio: Limit on lost of sent (searches for a loss-free rate), or `None`.
        clocks_promised: Host clocks must be known.
        device_promised: A device counter must cover the bursts.
        nic_cap_bits_per_second: Egress cap of a host, or `None` if unknown.
        device_known_rate_bits_per_second: Documented limit of the device at the IP layer, or
            `None`.
        bursts: Planned bursts.
        pairs: Planned pairs.
        counters: Declarations of device counters.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Interval rows of one end, as arrays of one length.

    Attributes:
        start_s: Start of each row in elapsed seconds since `EndRecord.began_at_s`.
        end_s: End of each row, likewise.
        bytes: Payload bytes: written to the socket (sender) or read from it (receiver).
        packets: Datagrams sent (sender) or sent and accounted for (receiver); `None` for TCP.
        lost: Datagrams that the receiver found missing; `None` for TCP and at a sender.
        retransmits: TCP segments sent again; `None` at a receiver and for UDP.
        rtt_s: Mean smoothed round-trip time of the streams; `None` where not recorded.
        cwnd_bytes: Congestion windows of all streams together; `None` where not recorded.
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
    """Record of one end of one flow.

    Attributes:
        host: Host that recorded.
        side: `sender` or `receiver` of payload.
        direction: `forward` or `reverse`, the way of the payload.
        began_at_s: Instant of elapsed time 0, by the clock of `host`; `None` if not recorded.
        reading_s: Nominal length of a row.
        rows: Interval rows, in the order of the file.
        total_bytes: The engine's own total, or `None` if it wrote none.
        total_s: Elapsed seconds of that total, or `None`.
        total_retransmits: TCP segments sent again, or `None`.
        total_packets: UDP datagrams, or `None`.
        total_lost: UDP datagrams lost, or `None`.
        complete: The engine ended by itself and wrote its end.
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
    """What is on record about one pair in one burst.

    Attributes:
        pair: Index of the pair.
        burst: Index of the burst.
        outcome: `measured`, `late`, `abandoned` (died in the burst), `failed` (the engine reported
            an error), `lost` (claimed, then silent) or `missed` (nobody claimed the job).
        reason: The engine's error, or an empty string.
        ends: Records of the ends, up to four for both directions.
        token: Token in the client's record.
        server_token: Token in the server's record, or `None` if it has none.
        client_address: Address that the client reports for itself.
        client_port: Source port that the client reports.
        seen_address: Source address in the server's record, or `None`.
        seen_port: Source port in the server's record, or `None`.
        idle_rtt_s: Round-trip time of the idle path before the burst, or `None` if not measured.
        loaded_rtt_s: Median round-trip time of probes through the device during the burst.
        device_ping_idle_s: Ping to the device itself while idle, or `None`.
        device_ping_loaded_s: Ping to the device itself during the burst, or `None`.
        window_bytes: Socket buffer limit of one stream, or `None` if not recorded.
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
    """A test on one of the run's endpoints that belongs to nobody in the run.

    Attributes:
        burst: Index of the burst in which (or before which) it ran.
        server_host: Host whose daemon or engine recorded it.
        server_port: Port of the endpoint.
        source_address: Source address.
        token: Its token, or `None`.
        began_at_s: Instant of its first byte, by the clock of `server_host`.
        ended_at_s: Instant of its last byte, likewise.
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
    """Byte counter of one device.

    Attributes:
        device: Name of the device.
        start_s: Label of the start of each bin, by the device's own stamps.
        end_s: Label of the end of each bin.
        value: Reading of each bin in the declared or undeclared unit; `nan` is unknown.
        asked_at_s: Instant of the question by the coordinator's clock (UTC), one a bin, or `None`
            where the counter was read after the run.
        answered_at_s: Instant of the answer, likewise.
        unit: Unit of `value` as the source labels it: `bytes` or `bits`.
        aggregation: `total` (amount per bin) or `average` (rate per second).
        layer: Layer as the source labels it: `ip`, `wire`, or `None`.
        directions: Directions as the source labels them: `both`, `forward`, `reverse` or `None`.
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
    """Readings of one quantity of one device.

    Attributes:
        device: Name of the device.
        quantity: `cpu_ratio`, `drops_per_second`, `sessions_count` or `units_count`.
        own_stamp_s: The device's own stamp of each reading, or `None`.
        asked_at_s: Instant of each question by the coordinator's clock (UTC); `None` if the
            source was read after the run.
        answered_at_s: Instant of each answer, likewise.
        value: Readings; `nan` is unknown.
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
    """Cumulative counters of one host during one burst.

    Attributes:
        host: Name of the host.
        burst: Index of the burst.
        interface: Interface whose counters were read.
        routed_interface: Interface that the kernel routes this test through, or `None` if unknown.
        at_s: Instants of the readings, by the clock of `host`.
        rx_bytes: Received frame bytes so far (Ethernet header included).
        tx_bytes: Sent frame bytes so far.
        cpu_ratio: Busy share of the busiest core since the reading before; `nan` in the first.
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
    """One reading of a host's clock status.

    Attributes:
        host: Name of the host.
        burst: Index of the burst.
        when: `before` or `after` the burst.
        at_s: Instant of the reading, by the clock of `host`.
        offset_s: Clock minus UTC as the host's time daemon estimates it.
        bound_s: Error bound that the daemon states.
        slewing_s: Part of the offset that the kernel is still removing.
        synchronised: The daemon says that the clock is synchronised.
        reference_id: Reference of the daemon in hexadecimal; `7F7F0101` is its own local clock.
        boot_id: Identity of the kernel's boot.
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
    """All records of one run."""

    plan: Plan
    pairs: tuple[PairRecord, ...]
    foreign: tuple[ForeignTest, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()
    telemetry: tuple[TelemetryRecord, ...] = ()
    hosts: tuple[HostCounters, ...] = ()
    clocks: tuple[ClockReading, ...] = ()
    notes: tuple[str, ...] = field(default=())
