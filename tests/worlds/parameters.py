"""Parameters of a world. A kind draws them; the physics and the recordings follow from them."""

from dataclasses import dataclass, field

from tests.worlds.noise import Family

# Bytes of the headers: RFC 791, RFC 8200, RFC 9293 (without options), RFC 768 and IEEE 802.3
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
        family: Distribution of a pair's seconds.
        pair_cov: Coefficient of variation of one pair's seconds.
        fleet_cov: Coefficient of variation that all pairs share.
        rho: Correlation of neighbouring seconds.
        fine_cov: Independent variation of single steps within a second.
    """

    family: Family = "lognormal"
    pair_cov: float = 0.05
    fleet_cov: float = 0.005
    rho: float = 0.3
    fine_cov: float = 0.05


@dataclass(kw_only=True, slots=True)
class Stall:
    """Reduced traffic for a time.

    Attributes:
        at_s: Start, after the burst's planned instant.
        for_s: Length.
        floor_ratio: What is left of the rate.
        pairs: Pairs that are affected; `None` is all.
        burst: Burst that is affected; `None` is every one.
    """

    at_s: float
    for_s: float
    floor_ratio: float = 0.0
    pairs: tuple[int, ...] | None = None
    burst: int | None = None


@dataclass(kw_only=True, slots=True)
class Event:
    """Something that happens to one pair.

    Attributes:
        pair: Index of the pair.
        what: `late` (starts `at_s` late), `dies` (at `at_s`), `unheard` (runs, no end on record),
            `receiver-unheard`, `sender-unheard`, `missed` (never runs) or `failed` (never runs,
            the engine reports an error).
        at_s: Seconds after the planned instant; unused by some events.
        burst: Burst; `None` is every one.
    """

    pair: int
    what: str
    at_s: float = 0.0
    burst: int | None = None


@dataclass(kw_only=True, slots=True)
class Background:
    """Traffic of others through a device.

    Attributes:
        shape: `constant`, `diurnal`, `in-bursts` (only while bursts run), `outlasting` (starts
            with each burst and ends `tail_s` after it), `own-bursts`, `random`, or `as-bypass`
            (equal to what bypasses the device, second by second).
        level_ratio: Mean while it is on, as a share of the fleet's nominal IP rate.
        tail_s: Time that `outlasting` lasts beyond the burst.
        on_s: Mean length of the bursts of `own-bursts`.
        off_s: Mean gap of `own-bursts`.
    """

    shape: str
    level_ratio: float
    tail_s: float = 0.0
    on_s: float = 20.0
    off_s: float = 60.0


@dataclass(kw_only=True, slots=True)
class Counter:
    """Byte counter of one device.

    Attributes:
        device: Name of the device.
        share: Share of the pairs whose traffic crosses this device.
        bin_s: Length of a bin.
        bin_jitter_s: Standard deviation of the instants at which bins end.
        lag_s: Label minus truth of a bin's start.
        stamp_offset_s: Error of the device's own stamps; the questions' instants do not have it.
        lag_drift_s: Growth of the lag from the first to the last instant of the run.
        layer: `ip` or `wire`.
        directions: Ways of packets that are counted: `both`, `forward` or `reverse`.
        before_drop: The counter counts packets that the path drops afterwards.
        bin_noise_ratio: Independent relative error of a bin.
        bin_trade_ratio: Share of a bin that is counted in its neighbour instead.
        missing_ratio: Share of bins that are unknown.
        zero_ratio: Share of bins that read 0 although traffic ran.
        partial_ratio: Share of bins that hold a part only and are marked as partial.
        partial_unmarked: The marks of partial bins are missing.
        tail_zero_bins: Newest bins that read 0 because they are not filled yet.
        average: The source gives a mean rate per second in place of an amount per bin.
        bits: The source's numbers are bits.
        labelled_bits: The source labels its numbers as bits.
        polled: The coordinator asked on a clock of its own (instants of questions exist).
        declared: The operator stated layer, unit, aggregation and directions.
        declared_lag: The operator stated the lag.
        preset: Known system whose defaults apply.
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
        """Label minus truth of a bin's start, with the error of the device's stamps."""
        return self.lag_s + self.stamp_offset_s


@dataclass(kw_only=True, slots=True)
class Telemetry:
    """CPU of the device as its own source reports it.

    Attributes:
        cpu_ratio: CPU at the device's nominal load.
        idle_ratio: CPU without load.
        every_s: Time between readings.
        stamp_offset_s: Device clock minus UTC; its stamps carry it.
        own_stamps: Readings carry the device's own stamps.
        asked: Readings carry the instants of question and answer.
        partial_ratio: Share of readings that show a part of the planes and are marked partial.
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
        scatter_s: Standard deviation of a host's true offset.
        common_offset_s: True offset of every host.
        group_offset_s: Further true offset of the hosts of one group.
        group: `none`, `clients`, `servers`, `pairs` (both hosts of some pairs) or `some-clients`.
        group_share: Share of the pairs in the group of `pairs` or `some-clients`.
        drift_ppm: Standard deviation of the frequency error.
        admits: The time daemon of a host in the group reports the group's offset.
        bound_s: Error bound that daemons state.
        slewing_s: Offset of the group that the kernel says it still removes.
        synchronised: What daemons of the group say.
        reference_id: Reference of the group's daemons.
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
    """Counters of the hosts.

    Attributes:
        recorded: Host counters exist.
        every_s: Time between readings.
        other_bits_per_second: Unrelated traffic of each host's counted interface.
        wrong_interface: The counted interface is not the one that carries the test.
        routed_known: The record names the interface that the kernel routes through.
        cpu_ratio: CPU of the busiest core under nominal load.
    """

    recorded: bool = True
    every_s: float = 1.0
    other_bits_per_second: float = 2e5
    wrong_interface: bool = False
    routed_known: bool = True
    cpu_ratio: float = 0.35


@dataclass(kw_only=True, slots=True)
class Spec:
    """All parameters of a world. Times are seconds, rates are bit/s at the layer named.

    Attributes:
        giant_ratio: Size of pair 0 over the largest other pair; 0 leaves it as drawn.
        level_ratio: Mean fleet rate over the limit, at the target's layer, before the profile.
        bottleneck: What truly limits: `device`, `policer`, `nic`, `cpu`, `window`, `shared-link`
            or `none`.
        headroom_ratio: Demand over capacity of a shared bottleneck.
        bypass_ratio: Share of a pair's bytes that do not cross a device.
        bypass_pairs: Pairs with a bypass; `None` is all.
        bypass_bursts: Bursts with a bypass; `None` is all.
        bypass_trend_ratio: Growth of the bypass from the first to the last burst.
        resend_ratio: TCP bytes sent again over payload.
        loss_ratio: UDP datagrams lost over sent.
        loss_before_counter: Datagrams or segments are lost before they reach the device.
        short_packet_ratio: Extra header bytes from segments that are not full, over payload.
        ack_every: Segments that one acknowledgement covers; 0 for UDP.
        sender_early_s: Time by which the sender's engine starts its clock before its data.
        receiver_early_s: The same of the receiver.
        ramp_s: Time constant of the ramp at the start.
        slow_ramp_s: Length of a linear ramp from `slow_ramp_from` to 1; 0 is none.
        drift_ratio: Relative change of the rate over a burst.
        steps: Instants after the start and the factor of the rate from there on.
        burst_cov: Variation of the bursts' levels.
        burst_rho: Correlation of the levels of neighbouring bursts.
        unrecorded: Planned bursts without any record of a host.
        extra_bursts: Start and length of unplanned bursts of the same fleet.
        flags: Facts that a test or a judgement looks for.
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
    expect_pass: bool = False
    flags: tuple[str, ...] = ()

    @property
    def limit_bits_per_second(self) -> float:
        """Smallest rate that meets the target, at the target's layer."""
        return self.target_bits_per_second * (1.0 - self.tolerance_ratio)

    @property
    def segment_bytes(self) -> int:
        """Payload of a full packet."""
        if self.protocol == "udp":
            return self.datagram_bytes
        return self.mtu_bytes - self.ip_header_bytes - TCP_BYTES - self.tcp_options_bytes

    @property
    def ip_header_bytes(self) -> int:
        """Bytes of the IP header."""
        return IPV4_BYTES if self.ip_version == 4 else IPV6_BYTES

    @property
    def header_bytes(self) -> int:
        """Bytes of the headers of a packet at the IP layer."""
        if self.protocol == "udp":
            return self.ip_header_bytes + UDP_BYTES
        return self.ip_header_bytes + TCP_BYTES + self.tcp_options_bytes

    def layer_factor(self, layer: str) -> float:
        """Return bytes at `layer` (`payload`, `ip` or `wire`) per byte of payload."""
        if layer == "payload":
            return 1.0
        per_packet = self.header_bytes + (ETHERNET_BYTES if layer == "wire" else 0)
        return (1.0 + per_packet / self.segment_bytes) + self.short_packet_ratio

    def ack_ratio(self, layer: str) -> float:
        """Return acknowledgement bytes at `layer` per byte of payload."""
        if self.protocol == "udp" or self.ack_every == 0.0:
            return 0.0
        per_packet = self.header_bytes + (ETHERNET_BYTES if layer == "wire" else 0)
        return per_packet / (self.segment_bytes * self.ack_every)

    @property
    def payload_bytes_per_second(self) -> float:
        """Nominal payload rate of the fleet, both directions together."""
        factor = self.layer_factor(self.target_layer)
        return self.limit_bits_per_second * self.level_ratio / 8.0 / factor
