"""Parameters for a world. They are drawn by a kind and used to compute the physics."""

from dataclasses import dataclass, field

from tests.worlds.noise import Family

# Header bytes from RFC 791, RFC 8200, RFC 9293 (without options), RFC 768 and IEEE 802.3
# (destination, source and type, without the check sequence).
IPV4_BYTES = 20
IPV6_BYTES = 40
TCP_BYTES = 20
UDP_BYTES = 8
ETHERNET_BYTES = 14


@dataclass(kw_only=True, slots=True)
class Noise:
    """Variation of the traffic around its profile.

    Attributes:
        family: Distribution of the seconds of a pair.
        pair_cov: Coefficient of variation of the seconds of a pair.
        fleet_cov: Coefficient of variation common to all pairs.
        rho: Correlation between neighbouring seconds.
        fine_cov: Independent variation of the steps within a second.
        loud_factor: Factor for the variation of the fleet in loud periods of 5 to 20 s, with about
            one period per minute. 1 disables them.
    """

    family: Family = "lognormal"
    pair_cov: float = 0.05
    fleet_cov: float = 0.005
    rho: float = 0.3
    fine_cov: float = 0.05
    loud_factor: float = 1.0


@dataclass(kw_only=True, slots=True)
class Stall:
    """Reduced traffic for a limited time.

    Attributes:
        at_s: Start after the planned instant of the burst.
        for_s: Duration.
        floor_ratio: Remaining share of the rate.
        pairs: Affected pairs, or `None` for all.
        burst: Affected burst, or `None` for all.
    """

    at_s: float
    for_s: float
    floor_ratio: float = 0.0
    pairs: tuple[int, ...] | None = None
    burst: int | None = None


@dataclass(kw_only=True, slots=True)
class Event:
    """Event that affects one pair.

    Attributes:
        pair: Pair index.
        what: `late` (starts `at_s` late), `dies` (at `at_s`), `unheard` (runs without any record),
            `receiver-unheard`, `sender-unheard`, `missed` (never runs) or `failed` (never runs,
            the engine reports an error).
        at_s: Seconds after the planned instant. Some events do not use it.
        burst: Affected burst, or `None` for all.
    """

    pair: int
    what: str
    at_s: float = 0.0
    burst: int | None = None


@dataclass(kw_only=True, slots=True)
class Background:
    """Background traffic through a device.

    Attributes:
        shape: `constant`, `diurnal`, `in-bursts` (only while bursts run), `outlasting` (from the
            start of a burst to `tail_s` after its end), `own-bursts`, `random`, or `as-bypass`
            (equal to the bypassed bytes in every second).
        level_ratio: Mean during activity, as a share of the fleet's nominal IP rate.
        tail_s: Time after the end of the burst for `outlasting`.
        on_s: Mean burst length for `own-bursts`.
        off_s: Mean gap for `own-bursts`.
    """

    shape: str
    level_ratio: float
    tail_s: float = 0.0
    on_s: float = 20.0
    off_s: float = 60.0


@dataclass(kw_only=True, slots=True)
class Counter:
    """Byte counter of a device.

    Attributes:
        device: Device name.
        share: Share of the pairs with traffic through this device.
        bin_s: Bin length.
        bin_jitter_s: Standard deviation of the bin ends.
        lag_s: Label minus true start of a bin.
        stamp_offset_s: Error of the device's timestamps. It is not to be used for request times.
        lag_drift_s: Increase of the lag from the start to the end of the run.
        layer: `ip` or `wire`.
        directions: Packet directions to count, `both`, `forward` or `reverse`.
        before_drop: Set to True if packets will be counted before they can be dropped.
        bin_noise_ratio: Independent relative error of a bin.
        bin_trade_ratio: Share of a bin to be counted in the next bin instead.
        missing_ratio: Share of bins without a value.
        zero_ratio: Share of bins to be set to 0 in spite of traffic.
        partial_ratio: Share of bins to be incomplete and marked as partial.
        partial_unmarked: Set to True to remove the marks of partial bins.
        tail_zero_bins: Number of newest bins to be set to 0, because they are not filled yet.
        average: Set to True if the source reports a mean rate per second.
        bits: Set to True if the values are in bits.
        labelled_bits: Set to True if the source labels the values as bits.
        polled: Set to True if the coordinator polls the counter, using its own clock.
        declared: Set to True if the operator declares layer, unit, aggregation and directions.
        declared_lag: Set to True if the operator declares the lag.
        preset: Known system to take default values from.
    """

    device: str = "fw-a"
    share: float = 1.0
    bin_s: float = 1.0
    bin_jitter_s: float = 0.0
    lag_s: float = 0.0
    stamp_offset_s: float = 0.0
    lag_drift_s: float = 0.0
    layer: str = "ip"
    directions: str = "both"
    before_drop: bool = True
    bin_noise_ratio: float = 0.0
    bin_trade_ratio: float = 0.0
    missing_ratio: float = 0.0
    zero_ratio: float = 0.0
    partial_ratio: float = 0.0
    partial_unmarked: bool = False
    tail_zero_bins: int = 0
    average: bool = False
    bits: bool = False
    labelled_bits: bool = False
    polled: bool = False
    declared: bool = True
    declared_lag: bool = False
    preset: str | None = None

    @property
    def label_lag_s(self) -> float:
        """Label minus true start of a bin, including the error of the device's timestamps."""
        return self.lag_s + self.stamp_offset_s


@dataclass(kw_only=True, slots=True)
class Telemetry:
    """CPU of the device as reported by its telemetry source.

    Attributes:
        cpu_ratio: CPU ratio at nominal load.
        idle_ratio: CPU ratio without load.
        every_s: Time between readings.
        stamp_offset_s: Device clock minus UTC, which is included in its timestamps.
        own_stamps: Set to True if readings have timestamps of the device.
        asked: Set to True if readings have request and answer times.
        partial_ratio: Share of readings with only a part of the planes, marked as partial.
    """

    cpu_ratio: float = 0.6
    idle_ratio: float = 0.04
    every_s: float = 3.0
    stamp_offset_s: float = 0.0
    own_stamps: bool = False
    asked: bool = True
    partial_ratio: float = 0.0


@dataclass(kw_only=True, slots=True)
class Clocks:
    """Clocks of the hosts.

    Attributes:
        scatter_s: Standard deviation of the true offset of a host.
        common_offset_s: True offset common to all hosts.
        group_offset_s: Additional true offset of the hosts in the group.
        group: `none`, `clients`, `servers`, `pairs` (both hosts in some pairs) or `some-clients`.
        group_share: Share of the pairs in the group for `pairs` or `some-clients`.
        drift_ppm: Standard deviation of the frequency error.
        admits: Set to True if the time daemons in the group report the offset of the group.
        bound_s: Error bound that the daemons report.
        slewing_s: Remaining offset that the kernel reports for the group.
        synchronised: Synchronisation state that the daemons in the group report.
        reference_id: Reference of the daemons in the group.
        unread_ratio: Share of hosts without a reading.
    """

    scatter_s: float = 0.0002
    common_offset_s: float = 0.0
    group_offset_s: float = 0.0
    group: str = "none"
    group_share: float = 0.5
    drift_ppm: float = 0.5
    admits: bool = False
    bound_s: float = 0.002
    slewing_s: float = 0.0
    synchronised: bool = True
    reference_id: str = "0A000001"
    unread_ratio: float = 0.0


@dataclass(kw_only=True, slots=True)
class Hosts:
    """Host counters.

    Attributes:
        recorded: Set to True if host counters exist.
        every_s: Time between readings.
        other_bits_per_second: Unrelated traffic on the counted interface of a host.
        wrong_interface: Set to True if the counted interface does not carry the test.
        routed_known: Set to True if the record has the interface that the kernel routes through.
        cpu_ratio: CPU ratio of the busiest core at nominal load.
    """

    recorded: bool = True
    every_s: float = 1.0
    other_bits_per_second: float = 2e5
    wrong_interface: bool = False
    routed_known: bool = True
    cpu_ratio: float = 0.35


@dataclass(kw_only=True, slots=True)
class Spec:
    """All parameters of a world. Times are in seconds, and rates in bit/s at the given layer.

    Attributes:
        giant_ratio: Size of pair 0 relative to the largest other pair. 0 does not change it.
        level_ratio: Mean fleet rate relative to the limit at the target layer, before the profile.
        bottleneck: True bottleneck, `device`, `policer`, `nic`, `cpu`, `window`, `shared-link`
            or `none`.
        headroom_ratio: Demand relative to the capacity of a shared bottleneck.
        bypass_ratio: Share of a pair's bytes that do not cross a device.
        bypass_pairs: Pairs with a bypass, or `None` for all.
        bypass_bursts: Bursts with a bypass, or `None` for all.
        bypass_trend_ratio: Increase of the bypass from the first to the last burst.
        resend_ratio: Retransmitted TCP bytes relative to the payload.
        loss_ratio: Lost UDP datagrams relative to the sent ones.
        loss_before_counter: Set to True if losses occur before the device.
        short_packet_ratio: Additional header bytes for short segments, relative to payload.
        ack_every: Segments per acknowledgement. 0 for UDP.
        sender_early_s: Time from the start of the sender's engine clock to its first data.
        receiver_early_s: The same for the receiver.
        ramp_s: Time constant of the ramp at the start.
        slow_ramp_s: Length of a linear ramp from `slow_ramp_from` to 1. 0 disables it.
        drift_ratio: Relative change of the rate over a burst.
        steps: Times after the start, and the rate factor from this time.
        burst_cov: Variation of the burst levels.
        burst_rho: Correlation between the levels of neighbouring bursts.
        unrecorded: Planned bursts without any host record.
        extra_bursts: Start and length of unplanned bursts of the fleet.
        ends_when_certain: Set to True if a burst will be stopped when its rate is certain.
        planned_s: Planned length of bursts that were stopped. 0 if no burst was stopped.
        flags: Facts for a test or a judgement.
    """

    pairs_count: int = 10
    weights: str = "lognormal"
    largest_ratio: float = 3.0
    giant_ratio: float = 0.0
    streams_count: int = 8
    engine: str = "iperf3"
    origin: str = "launched"
    protocol: str = "tcp"
    direction: str = "forward"
    forward_share: float = 0.5
    directions_trade: float = 0.0
    mtu_bytes: int = 1500
    mtu_recorded: bool = True
    tcp_options_bytes: int = 12
    datagram_bytes: int = 1400
    ip_version: int = 4
    target_bits_per_second: float = 10e9
    tolerance_ratio: float = 0.05
    target_layer: str = "ip"
    level_ratio: float = 1.05
    bottleneck: str = "device"
    headroom_ratio: float = 1.3
    noise: Noise = field(default_factory=Noise)
    bursts_count: int = 3
    duration_s: float = 60.0
    period_s: float = 120.0
    lead_s: float = 60.0
    after_s: float = 60.0
    step_s: float = 0.1
    ramp_s: float = 0.15
    slow_ramp_s: float = 0.0
    slow_ramp_from: float = 0.3
    drift_ratio: float = 0.0
    steps: tuple[tuple[float, float], ...] = ()
    burst_cov: float = 0.0
    burst_rho: float = 0.0
    stalls: tuple[Stall, ...] = ()
    events: tuple[Event, ...] = ()
    start_scatter_s: float = 0.004
    rtt_s: float = 0.002
    queue_s: float = 0.012
    rtt_baseline: bool = True
    bypass_ratio: float = 0.0
    bypass_pairs: tuple[int, ...] | None = None
    bypass_bursts: tuple[int, ...] | None = None
    bypass_trend_ratio: float = 0.0
    resend_ratio: float = 0.0002
    loss_ratio: float = 0.0
    loss_before_counter: bool = False
    short_packet_ratio: float = 0.0005
    ack_every: float = 20.0
    backgrounds: tuple[Background, ...] = ()
    counters: tuple[Counter, ...] = field(default_factory=lambda: (Counter(),))
    telemetry: Telemetry | None = field(default_factory=Telemetry)
    device_cpu_max_ratio: float | None = None
    loss_max_ratio: float | None = None
    pace_error_ratio: float = 0.0
    clocks: Clocks = field(default_factory=Clocks)
    hosts: Hosts = field(default_factory=Hosts)
    clocks_promised: bool = True
    device_promised: bool = True
    sender_reading_s: float = 1.0
    receiver_reading_s: float = 1.0
    sender_recorded: bool = True
    receiver_recorded: bool = True
    sender_early_s: float = 0.0
    receiver_early_s: float = 0.0
    translation: str = "none"
    hidden_units_count: int = 1
    foreign_tests_count: int = 0
    unrecorded: tuple[int, ...] = ()
    extra_bursts: tuple[tuple[float, float], ...] = ()
    ends_when_certain: bool = False
    planned_s: float = 0.0
    expect_pass: bool = False
    flags: tuple[str, ...] = ()

    @property
    def limit_bits_per_second(self) -> float:
        """Smallest rate that meets the target, at the target layer."""
        return self.target_bits_per_second * (1.0 - self.tolerance_ratio)

    @property
    def segment_bytes(self) -> int:
        """Payload of a full packet."""
        if self.protocol == "udp":
            return self.datagram_bytes
        return self.mtu_bytes - self.ip_header_bytes - TCP_BYTES - self.tcp_options_bytes

    @property
    def ip_header_bytes(self) -> int:
        """IP header bytes."""
        return IPV4_BYTES if self.ip_version == 4 else IPV6_BYTES

    @property
    def header_bytes(self) -> int:
        """Header bytes of a packet at the IP layer."""
        if self.protocol == "udp":
            return self.ip_header_bytes + UDP_BYTES
        return self.ip_header_bytes + TCP_BYTES + self.tcp_options_bytes

    def layer_factor(self, layer: str) -> float:
        """Return the bytes at `layer` (`payload`, `ip` or `wire`) per payload byte."""
        if layer == "payload":
            return 1.0
        per_packet = self.header_bytes + (ETHERNET_BYTES if layer == "wire" else 0)
        return (1.0 + per_packet / self.segment_bytes) + self.short_packet_ratio

    def ack_ratio(self, layer: str) -> float:
        """Return the acknowledgement bytes at `layer` per payload byte."""
        if self.protocol == "udp" or self.ack_every == 0.0:
            return 0.0
        per_packet = self.header_bytes + (ETHERNET_BYTES if layer == "wire" else 0)
        return per_packet / (self.segment_bytes * self.ack_every)

    @property
    def payload_bytes_per_second(self) -> float:
        """Nominal payload rate of the fleet, including both directions."""
        factor = self.layer_factor(self.target_layer)
        return self.limit_bits_per_second * self.level_ratio / 8.0 / factor
