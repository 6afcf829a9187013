"""What a burst and a run showed and were judged to be, as values that recompute to the byte.

Rates are as measured. In a scaled lab ``real_*`` fields carry the same times the scale.
"""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Final, Literal

from broadside.coordinator.core.figures import Layer
from broadside.exchange.messages import Flow, Message, RunId, Side, TroubleKind, UtcDatetime


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105  # a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    MEASURED = "measured"  # whole, and nothing was to be passed: no target


Severity = Literal["problem", "warning", "note"]


class Finding(Message):
    """One thing a reader must know, with its numbers and what to do."""

    id: str
    kind: Literal["verdict", "cause", "context"]  # concluded, why, and to bear in mind
    severity: Severity
    weight: float  # findings are ordered by it, heaviest first
    sentence: str
    next_step: str | None = None


def problem(id: str, weight: float, sentence: str, next_step: str) -> Finding:
    """What keeps a verdict from being a pass, with what to do about it."""
    return Finding(
        id=id,
        kind="verdict",
        severity="problem",
        weight=weight,
        sentence=sentence,
        next_step=next_step,
    )


warning = partial(Finding, kind="cause", severity="warning")  # what may have made it so
caution = partial(Finding, kind="context", severity="warning")  # what else was not as it should be
note = partial(Finding, kind="context", severity="note")  # what a reader should bear in mind


def order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Heaviest first; equal weights by id, so that the order is always the same."""
    return tuple(sorted(findings, key=lambda finding: (-finding.weight, finding.id)))


def worse(verdicts: Iterable[Verdict]) -> Verdict:
    """All must pass; one failure fails; nothing at all is inconclusive.

    What was only measured is no pass, and takes none away but in name.
    """
    said = set(verdicts)
    if Verdict.FAIL in said:
        return Verdict.FAIL
    if not said or Verdict.INCONCLUSIVE in said:
        return Verdict.INCONCLUSIVE
    return Verdict.MEASURED if Verdict.MEASURED in said else Verdict.PASS


class PhaseLatency(Message):
    """Round trips of one phase."""

    sent_count: int
    answered_count: int
    loss_ratio: float | None = None  # of those sent; None: none was
    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


class PathLatency(Message):
    """One pair's, or the fleet's, round trips over a burst."""

    before: PhaseLatency
    during: PhaseLatency
    after: PhaseLatency
    buffer_delay_ratio: float | None = None


class Joined(StrEnum):
    """How a server-side test was recognised as a pair's."""

    COOKIE = "cookie"
    ENDPOINT = "endpoint"  # same address and port, near the instant: one test at a time a port


class Basis(StrEnum):
    """What a pair's received bytes rest on."""

    RECEIVER = "receiver"  # the receiving end's own seconds
    MIXED = "mixed"  # the receiver's seconds, some filled from the sender's
    SENDER_SCALED = "sender-scaled"  # sender seconds times the pair's received/sent totals
    SENDER = "sender"  # sender seconds, no totals to scale them by
    TOTALS = "totals"  # the engine's received total, spread evenly
    NONE = "none"


class State(StrEnum):
    """What became of a planned pair-second."""

    MEASURED = "measured"
    LATE = "late"  # ran, but off the instant by more than the tolerance
    NULL = "null"  # the engine failed, or ended without a byte
    MISSED = "missed"  # nobody ran it: not taken, or released too late
    REFUSED = "refused"  # the agent stood down on purpose
    ABANDONED = "abandoned"  # begun, then cut: agent gone, cancelled, lease lapsed
    LOST = "lost"  # taken, and not told of: no word at all, or a gap in what was reported
    PENDING = "pending"  # not over yet


class Completeness(Message):
    """Planned pair-seconds by state. The states sum to ``planned_s``."""

    planned_s: int = 0
    measured_s: int = 0
    late_s: int = 0
    null_s: int = 0
    missed_s: int = 0
    refused_s: int = 0
    abandoned_s: int = 0
    lost_s: int = 0
    pending_s: int = 0
    completeness_ratio: float = 0.0  # measured / planned; 0 when nothing was planned

    @classmethod
    def of(cls, seconds: dict[State, int]) -> "Completeness":
        """From seconds by state."""
        planned = sum(seconds.values())
        measured = seconds.get(State.MEASURED, 0)
        return cls(
            planned_s=planned,
            completeness_ratio=measured / planned if planned else 0.0,
            **{f"{state}_s": seconds.get(state, 0) for state in State},
        )

    def seconds(self, state: State) -> int:
        """Pair-seconds in one state."""
        return int(getattr(self, f"{state}_s"))


def figure(value: float | None) -> float | None:
    """A number as summaries keep it: nine significant digits, unknown as None.

    Nine digits hide what differs between two machines' summation orders, so that a recomputed
    summary is the same text.
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.9g}")


def instant(epoch_s: float) -> datetime:
    """An instant as summaries keep it: UTC, to the millisecond."""
    return datetime.fromtimestamp(round(epoch_s, 3), UTC)


class Window(Message):
    """The seconds that the headline is over.

    A measured pair's gap in them counts at the pair's mean over the seconds that are on record.
    """

    start_at: UtcDatetime
    end_at: UtcDatetime
    window_s: int
    common_s: int  # seconds that all measured pairs share
    ramp_s: int  # of those, cut at the head as ramp (MSER)
    ramp_bits_per_second: float | None = None  # payload over what was cut
    slowest_bits_per_second: float | None = None  # payload over the slowest part that lasts
    slowest_noise_bits_per_second: float | None = None  # standard deviation of such a mean
    slowest_from_s: int | None = None  # where it begins, s into the window
    slowest_s: int | None = None  # how long that is; None: the window is too short for parts
    slowest_proven_bits_per_second: float | None = None  # by receivers' own seconds alone, where
    # some are missing
    covered_ratio: float = 1.0  # of the measured pairs' seconds in it, that are on record
    outside_s: int = 0  # of any one measured pair, the most recorded seconds outside `common_s`
    outside_pair: str | None = None  # which pair that is
    # Length of the receivers' readings; None: seconds.
    reading_s: float | None = None
    short: bool  # under the 300 s that RFC 9411 recommends


class FlowSummary(Message):
    """One flow of the fleet over the window. Rates are payload at the receiver unless named."""

    flow: Flow
    received_bits_per_second: float | None = None
    received_half_width_bits_per_second: float | None = None  # 95 % CI: correlation, clock bounds
    ip_bits_per_second: float | None = None  # received payload x header overhead: what RFC 9411
    # calls inspected throughput, at the IP layer
    sent_bits_per_second: float | None = None  # payload, at the senders that were heard
    sent_pairs_count: int = 0  # pairs whose sender's seconds are in sent_bits_per_second
    late_bits_per_second: float | None = None  # the part of received that late pairs carried
    proven_ratio: float | None = None  # the part of received that receivers' own seconds say
    second_median_bits_per_second: float | None = None  # over seconds of the fleet's sum
    second_p5_bits_per_second: float | None = None
    second_p95_bits_per_second: float | None = None
    second_cov_ratio: float | None = None  # standard deviation / mean
    pair_mean_bits_per_second: float | None = None  # over pairs' window means
    pair_median_bits_per_second: float | None = None
    pair_p5_bits_per_second: float | None = None
    pair_p95_bits_per_second: float | None = None
    pair_cov_ratio: float | None = None
    jain_ratio: float | None = None  # fairness over pairs
    share_movement_ratio: float | None = None  # variance of the sum / sum of pairs' variances
    retransmits_count: int | None = None  # in the window, senders that were heard
    retransmit_ratio: float | None = None  # of segments sent
    mss_bytes: int | None = None  # TCP payload of a full packet, by the overhead's reckoning
    tcp_efficiency_ratio: float | None = None
    rtt_mean_s: float | None = None
    rtt_p50_s: float | None = None
    rtt_p95_s: float | None = None
    rtt_max_s: float | None = None
    rtt_baseline_s: float | None = None  # of the idle path, mean over pairs; else the smallest that
    # any pair saw under load
    # Where the baseline is from; None: the smallest under load, which holds a standing queue.
    rtt_baseline_how: Literal["idle"] | None = None
    rtt_pairs_count: int = 0
    buffer_delay_ratio: float | None = None
    transfer_time_ratio: float | None = None
    loss_ratio: float | None = None  # UDP datagrams
    loss_pairs_count: int = 0


class HostSummary(Message):
    """One side's hosts over the window."""

    cpu_mean_ratio: float | None = None  # of all cores, mean over hosts
    cpu_max_ratio: float | None = None  # of all cores, the busiest host's mean
    core_max_ratio: float | None = None  # the busiest core of any host, its mean
    nic_max_ratio: float | None = None  # egress / cap, the fullest host
    drops_count: int | None = None  # NIC drops over the burst
    hosts_count: int = 0  # hosts with counters


class PairSummary(Message):
    """One pair of one burst. Rates are payload over the fleet's window, all flows."""

    pair: str
    pair_index: int
    client_agent_id: str | None = None
    server_agent_id: str | None = None
    state: State
    reason: str | None = None
    completeness_ratio: float
    start_error_s: float | None = None
    clock_bound_s: float | None = None
    basis: Basis
    joined_by: Joined | None = None
    # Of an import: the server's clock minus the client's, from the test itself, and half of its
    # 95 % interval.
    ends_offset_s: float | None = None
    ends_offset_bound_s: float | None = None
    # Of the pair's recorded seconds, those outside the window that all measured pairs share.
    outside_ratio: float | None = None
    received_bits_per_second: float | None = None
    sent_bits_per_second: float | None = None
    share_ratio: float | None = None  # of the fleet's received
    cov_ratio: float | None = None  # over the window's seconds
    retransmits_count: int | None = None
    rtt_mean_s: float | None = None
    rtt_min_s: float | None = None
    rtt_idle_s: float | None = None  # before the burst, over the path that it took
    cwnd_bytes: float | None = None
    client_cpu_ratio: float | None = None
    client_core_ratio: float | None = None
    client_nic_ratio: float | None = None  # egress at the link layer / cap
    # Share of looks that found the host's egress queue (qdisc) filled.
    client_egress_queued_ratio: float | None = None
    client_vm_size: str | None = None
    server_cpu_ratio: float | None = None
    server_core_ratio: float | None = None
    server_nic_ratio: float | None = None
    server_egress_queued_ratio: float | None = None
    server_vm_size: str | None = None
    latency: PathLatency | None = None  # of probes


class CliffSummary(Message):
    """A fall of the fleet's sum that lasted to the end of the window."""

    at: UtcDatetime
    before_bits_per_second: float
    after_bits_per_second: float


class DisruptionKind(StrEnum):
    STALL = "stall"  # not a byte for at least a second
    DROP = "drop"  # low, and not empty
    RESET = "reset"  # the engine's connections broke, and the rest was not sent
    CUT = "cut"  # ended on purpose or with its agent: killed, lease lapsed, cancelled
    RECONNECT = "reconnect"  # armed again, as the first connections failed
    ABSENT = "absent"  # never sent: not taken, refused
    GAP = "gap"  # nobody recorded these seconds: unknown, neither traffic nor none


Scope = Literal["one", "some", "all"]  # of the planned pairs


class Disruption(Message):
    """Something that broke at one time for one pair or many; an absence may last many bursts."""

    kind: DisruptionKind
    burst_index: int
    bursts_count: int = 1  # in a row, from that one on
    start_at: UtcDatetime  # of its first event
    end_at: UtcDatetime  # of its last one
    duration_s: float  # of planned seconds, where it is several bursts'
    scope: Scope
    pairs_count: int
    pairs: tuple[str, ...]  # at most ten of them
    short_bytes: float | None = None  # payload below the running medians; None: unknown
    causes: tuple[str, ...] = ()  # what the records say, at most three
    # Length of the readings that show it, where these are longer than a second: it began and ended
    # within the first and the last of them.
    resolution_s: float | None = None


class SilentStream(Message):
    """One of a pair's streams that carried nothing for seconds in which its others did."""

    pair: str
    flow: Flow
    client_port: int | None  # names it in a device's table of sessions; None: not told
    streams_count: int | None  # of the flow
    from_at: UtcDatetime
    duration_s: float


class Availability(Message):
    """Planned pair-seconds by whether the load was carried. They sum to ``planned_s``."""

    planned_s: int = 0
    up_s: int = 0  # at or above the floor
    down_s: int = 0  # below it, or the engine's connections were broken
    unknown_s: int = 0  # not recorded, or nobody tried to send
    up_ratio: float = 0.0  # of the planned
    known_ratio: float | None = None  # up / (up + down); None: nothing is known
    # Length of the longest readings that it rests on, where these are longer than a second: a
    # shorter outage may be hidden in the mean of one.
    resolution_s: float | None = None

    @classmethod
    def of(
        cls, planned_s: int, up_s: int, down_s: int, resolution_s: float | None = None
    ) -> "Availability":
        known_s = up_s + down_s
        return cls(
            planned_s=planned_s,
            up_s=up_s,
            down_s=down_s,
            unknown_s=planned_s - known_s,
            up_ratio=up_s / planned_s if planned_s else 0.0,
            known_ratio=up_s / known_s if known_s else None,
            resolution_s=resolution_s,
        )


class Stray(Message):
    """Somebody else's test on an endpoint of the run while a burst ran there."""

    pair_index: int  # whose endpoint it was
    address: str
    port: int
    started_at: UtcDatetime
    client_address: str | None = None
    cookie: str | None = None
    received_bytes: int | None = None  # as its seconds say


class ForeignRow(Message):
    """A row of an agent that names another agent, endpoint, run, pair or burst than it may."""

    row: str  # partition and row key
    field: str  # that breaks its rule
    said: str  # what it names, with what is planned


class Rule(StrEnum):
    """What was broken."""

    ROWS = "rows"  # negative, not a number, reversed, one over another
    RECEIVED_OVER_SENT = "received-over-sent"
    TOTALS = "totals"  # an engine's own end total against its own or the other end's seconds
    SENT_OVER_OFFERED = "sent-over-offered"
    OVER_NIC = "over-nic"
    OVER_WINDOW = "over-window"
    HOST_COUNTERS = "host-counters"  # a NIC's counters hold less than the engine's payload
    STAMPS = "stamps"  # the two ends of a pair saw it begin at two instants
    COPIED = "copied"  # two pairs tell one and the same account


class Contradiction(Message):
    """Two sources that cannot both be right."""

    rule: Rule
    pair: str | None = None  # None: the fleet's sums
    flow: Flow | None = None
    side: Side | None = None  # whose word it is, where it is one end's
    said: float  # rows; bytes; s for stamps
    bound: float  # what it cannot be over: the same unit, without tolerance


class Difference(Message):
    """One field that engines did otherwise than asked."""

    field: str
    asked: str
    did: str  # as most pairs say
    pairs_count: int
    pairs: tuple[str, ...]  # the first few

    def __str__(self) -> str:
        more = ", ..." if self.pairs_count > len(self.pairs) else ""
        return (
            f"{self.field}: {self.asked} asked, {self.did} done by {self.pairs_count} pairs "
            f"({', '.join(self.pairs)}{more})"
        )


class CpuCost(Message):
    """One end's CPU time over its payload, over the pairs that told both."""

    cpu_s_per_gigabyte: float  # of the engine's own processes: user and system, no interrupts
    host_cpu_s_per_gigabyte: float | None = None  # of the whole hosts, where each is one agent's
    pairs_count: int


class TakenCpu(Message):
    """Of hosts' CPU time while they tested, what their hypervisors gave to others."""

    hosts_count: int  # that told
    mean_ratio: float  # of all cores' time, 0..1
    worst_ratio: float
    worst_host: str


class UnsteadyClocks(Message):
    """Pairs with seconds on record of which an end's clock did not hold."""

    pairs_count: int
    measured_s: int  # their measured pair-seconds
    said: tuple[str, ...]  # of the first few: the pair, and what its clocks did


class Outage(Message):
    """One spell of one kind of trouble, over all the agents that lived through it."""

    kind: TroubleKind
    from_at: UtcDatetime
    to_at: UtcDatetime | None = None  # None: none of them had seen its end
    agents_count: int  # that lived through it
    asked_count: int  # that have a record of this burst at all
    count: int  # failed attempts, writes that waited, duplicates


class MeasureSummary(Message):
    """One further measure of a burst, over the pairs that told it."""

    name: str  # as the engine calls it; a quantile as ``latency_p99``
    value: float
    unit: str  # s, ratio, count, /s, bytes
    pairs_count: int  # that told it


ALL_DEVICES: Final = ""  # all devices of a run together


class DevicePlacement(Message):
    """The least, or the most, that a figure can be while the placement of its readings is unsure.

    Of all placements within the bound.
    """

    mean: float
    p95: float
    min: float
    max: float


class DeviceFigure(Message):
    """One quantity of a device over the window, as its witnesses told it, second by second."""

    mean: float
    p95: float
    min: float
    max: float
    idle: float | None = None  # mean of the 30 s before the burst
    busiest: float | None = None  # mean of the highest instance (a core), where there are several
    instances_count: int = 1
    covered_ratio: float  # of the window's seconds, known
    bound_s: float = 0.0  # by which its readings may be misplaced, where that matters
    at_least: DevicePlacement | None = None  # None: the same for every placement
    at_most: DevicePlacement | None = None


class DeviceSummary(Message):
    """One device over a burst's window; or all of them: the sum, the mean or the worst, by quantity
    (:data:`broadside.coordinator.core.measure.testimony.KINDS`). None: nobody told."""

    device: str  # ALL_DEVICES: all of them
    share_ratio: float | None = None  # of what all devices carried; None: one, or not told
    cores_count: int | None = None
    cpu_s: float | None = None  # CPU time over the window
    cpu_s_per_gigabyte: float | None = None  # of the payload that it carried
    cpu_ratio: DeviceFigure | None = None
    memory_ratio: DeviceFigure | None = None
    sessions_count: DeviceFigure | None = None
    connections_per_second: DeviceFigure | None = None
    packets_per_second: DeviceFigure | None = None
    drops_per_second: DeviceFigure | None = None
    in_bits_per_second: DeviceFigure | None = None
    out_bits_per_second: DeviceFigure | None = None
    health_ratio: DeviceFigure | None = None
    snat_ports_ratio: DeviceFigure | None = None
    latency_s: DeviceFigure | None = None
    units_count: DeviceFigure | None = None
    ping_icmp_s: DeviceFigure | None = None  # to the device itself
    ping_tcp_s: DeviceFigure | None = None
    ping_loss_ratio: DeviceFigure | None = None


class Spike(Message):
    """A second or more in which pairs had no answer, or only slow ones."""

    from_at: UtcDatetime
    to_at: UtcDatetime
    pairs_count: int
    pairs: tuple[str, ...]  # the first few
    rtt_max_s: float | None = None  # None: nothing was answered
    lost_count: int = 0


class Latency(Message):
    """What probes said of a burst, over the pairs that have them."""

    fleet: PathLatency
    pairs_count: int  # whose probes are on record
    whole_pairs_count: int  # of those, with at least 95 % of the burst's probes sent
    worst_pair: str | None = None  # by 99th percentile during the burst
    worst_p99_s: float | None = None
    spikes: tuple[Spike, ...] = ()  # in time order
    spikes_count: int = 0


class LimiterName(StrEnum):
    FIREWALL = "firewall"
    CLIENT_NIC = "client-nic"
    SERVER_NIC = "server-nic"
    CLIENT_CPU = "client-cpu"
    SERVER_CPU = "server-cpu"
    WINDOW = "window"
    SINGLE_FLOW = "single-flow"
    OFFERED_LOAD = "offered-load"
    SNAT_PORTS = "snat-ports"
    UNKNOWN = "unknown"


class Limiter(Message):
    """What limited a burst, and why it is taken for that; or that it is unknown, and why."""

    name: LimiterName
    evidence: tuple[str, ...] = ()
    refuted_by: str | None = None  # what would show that it is another
    not_known: tuple[str, ...] = ()  # where it is unknown: what is missing, and how to tell
    advice: str | None = None

    def finding(self) -> Finding:
        """The same in a sentence."""
        if self.name is LimiterName.UNKNOWN:
            return note(
                id="limiter-unknown",
                weight=12,
                sentence="what the limit was is unknown: "
                + ("; ".join((*self.evidence, *self.not_known)) or "nothing was carried"),
                next_step=self.advice,
            )
        refuted = f"; to rule this out, show {self.refuted_by}" if self.refuted_by else ""
        return Finding(
            id=f"limiter-{self.name}",
            kind="cause",
            severity="note",
            weight=58,
            sentence=f"the limit was the {self.name}: {'; '.join(self.evidence)}{refuted}",
            next_step=self.advice,
        )


UNKNOWN: Final = Limiter(name=LimiterName.UNKNOWN)


CauseId = Literal[
    "lost-reports",
    "foreign-traffic",
    "bypass",
    "duplicate-counting",
    "metric-declaration",
    "unknown-bins",
    "unknown",
]


class Cause(Message):
    """One named reason for a residual."""

    id: CauseId
    share_ratio: float  # of the expected bytes that it would explain; signed like the residual
    sentence: str


class Reconciliation(Message):
    """Two ledgers held together, over one burst or a whole run."""

    source: str
    layer: str
    grain_s: float
    basis: Literal["rate", "bytes"]  # over full bins of the steady window; over all bins touched
    lag_s: float | None = None  # None: the data does not tell, and there is no residual
    lag_uncertainty_s: float | None = None
    lag_drift_s: float = 0.0  # growth from the first burst to the last; over 500 ppm of the time
    # between them it is no clock but a delay that changes
    # Counted / expected bytes, at every lag that fits; only where these lags differ
    lags_scale_ratio: float | None = None
    overhead_ratio: float  # ledger's layer / payload
    overhead_how: Literal["recorded", "assumed", "fitted"]  # from segment sizes, from 1500-byte
    # packets, or, where the ledger's layer is not known, from the run's own median burst
    firewall_bits_per_second: float | None = None  # as it counted, others' idle level included
    crossed_bits_per_second: float | None = None  # the same without the idle level
    firewall_bytes: float | None = None  # over the bins of `basis`, without the idle level
    expected_bytes: float | None = None  # fleet payload x overhead over the same bins
    residual_ratio: float | None = None  # firewall / expected - 1, the idle level taken off;
    # bypassed: firewall / what would be expected of a run that crosses it
    residual_uncertainty_ratio: float | None = None  # from it to the farther end of its interval
    residual_low_ratio: float | None = None  # 95 % interval
    residual_high_ratio: float | None = None
    layer_ratio: float = 0.0  # of it, at either end: what a ledger of unknown layer may count
    layer_low_ratio: float | None = None  # the same at the low end; None: as `layer_ratio`
    # Of it, at the low end: acknowledgements and bytes sent again or lost that the ledger may count
    extra_ratio: float = 0.0
    unknown_ratio: float = 0.0  # part of the fleet's bytes in bins that the ledger does not know
    baseline_bits_per_second: float | None = None  # ledger's level where no plan sends
    baseline_uncertainty_bits_per_second: float | None = None  # to the farther end of its 95 %
    # interval, for a burst's mean
    baseline_how: Literal["quiet", "fitted", "bounded"] | None = None  # from bins that no plan
    # covers; beside the fleet's bytes; only known to be no more than any bin holds
    # Over that level, in one burst that no plan knows; it is not in the level
    unplanned_bytes: float | None = None
    full_bins_count: int = 0
    ledger_cov_ratio: float | None = None  # over full bins
    rejected_bins_count: int = 0  # that no device can have counted
    # The most payload that the bins of the slowest part of the window may hold, its length and the
    # standard deviation of such a mean; None: not asked for, or the bins are too long to show one.
    slowest_bits_per_second: float | None = None
    slowest_noise_bits_per_second: float | None = None
    slowest_s: int | None = None
    # Goodness of fit: largest distance of the cumulative curves, counted and predicted, as a share
    # of the burst's bytes, and its limit for bursts that fit; None: not assessed
    fit_distance_ratio: float | None = None
    fit_limit_ratio: float | None = None
    bypassed: bool = False  # the run was not to cross the device
    counted_flows: tuple[Flow, ...] = ()  # that the counter is declared to count; none: all
    neighbours: tuple[str, ...] = ()  # other runs whose traffic this ledger counts too
    causes: tuple[Cause, ...] = ()

    @property
    def residual_ends(self) -> tuple[float, float]:
        """Ends of the residual's 95 % interval; of a stored one that only had a half width, its."""
        middle, half = self.residual_ratio or 0.0, self.residual_uncertainty_ratio or 0.0
        low, high = self.residual_low_ratio, self.residual_high_ratio
        return middle - half if low is None else low, middle + half if high is None else high


class Trend(Message):
    """A figure's slope over the run, as a share of its median, with its 95 % interval."""

    name: str  # of the figure
    bursts_count: int
    median: float
    percent_per_hour: float
    low_percent_per_hour: float
    high_percent_per_hour: float

    @property
    def moved(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low_percent_per_hour > 0 or self.high_percent_per_hour < 0


class Course(Message):
    """What a run's bursts say together."""

    bursts_count: int = 0  # bursts that are in it
    availability: Availability | None = None  # None: no burst says
    trends: tuple[Trend, ...] = ()  # rate, RTT, retransmits, where there are bursts enough
    disruptions: tuple[Disruption, ...] = ()  # in time order, the gravest of them
    disruptions_count: int = 0  # how many there were


class BurstCourse(Message):
    """What of one burst the run's course needs: the small part of its summary."""

    index: int
    planned_start_at: UtcDatetime
    received_bits_per_second: float | None = None
    rtt_mean_s: float | None = None
    retransmit_ratio: float | None = None
    availability: Availability | None = None
    disruptions: tuple[Disruption, ...] = ()
    disruptions_count: int = 0


class BurstSummary(Message):
    """One burst. Rates are as measured, payload at the receiver unless named otherwise."""

    index: int
    planned_start_at: UtcDatetime
    planned_end_at: UtcDatetime
    duration_s: int
    pairs_planned: int
    pairs_measured: int
    completeness_ratio: float
    completeness: Completeness
    proven_ratio: float  # of planned pair-seconds, covered by receivers' own seconds
    null_pairs: tuple[str, ...] = ()
    late_pairs: tuple[str, ...] = ()
    missing_pairs: tuple[str, ...] = ()  # missed, refused, abandoned or lost
    window: Window | None = None
    fleet_received_bits_per_second: float | None = None
    fleet_received_half_width_bits_per_second: float | None = None  # 95 % CI
    fleet_sent_bits_per_second: float | None = None
    fleet_ip_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    header_ratio: float  # IP bytes / payload bytes
    header_how: str
    wire_ratio: float
    headers_assumed: bool
    # Bytes of TCP acknowledgements for a byte of payload, at most, by the receivers' interfaces
    acknowledged_ratio: float | None = None
    start_spread_s: float | None = None  # largest minus smallest first data, pairs on time
    start_error_max_s: float | None = None  # first data minus planned start
    start_error_p99_s: float | None = None
    clock_bound_max_s: float | None = None
    worst_bits_per_second: float | None = None  # see judge: the pass that missing rows allow
    peak_pair_bits_per_second: float | None = None  # busiest pair-second
    flows: tuple[FlowSummary, ...] = ()
    client: HostSummary = HostSummary()
    server: HostSummary = HostSummary()
    cliff: CliffSummary | None = None
    reconciliation: Reconciliation | None = None
    limiter: LimiterName = LimiterName.UNKNOWN
    limiter_details: Limiter = UNKNOWN  # its evidence, what would refute it, advice
    verdict: Verdict = Verdict.INCONCLUSIVE
    findings: tuple[Finding, ...] = ()
    availability: Availability | None = None  # None: without seconds
    disruptions: tuple[Disruption, ...] = ()  # in time order, the gravest of them
    disruptions_count: int = 0  # how many there were
    silent_streams: tuple[SilentStream, ...] = ()  # the longest
    silent_controls_count: int = 0  # pairs whose control connection was idle for over 4 minutes
    outages: tuple[Outage, ...] = ()  # what its agents lived through with queue, table and disk
    late_reports_count: int = 0  # that waited on an agent's disk
    measures: tuple[MeasureSummary, ...] = ()  # what the engine tells beside bytes, all pairs
    differences: tuple[Difference, ...] = ()  # what engines did otherwise than asked
    unsteady_clocks: UnsteadyClocks | None = None  # None: every clock held, as far as is known
    clocks_read_ratio: float | None = None  # of measured pair-seconds: read before and after at
    # both ends; None: nothing was measured
    clocks_unread_s: int = 0  # measured pair-seconds without, of clocks not known to have moved
    contradictions: tuple[Contradiction, ...] = ()  # what cannot be true, source against source
    strays: tuple[Stray, ...] = ()  # others' tests on the run's endpoints meanwhile
    foreign_rows: tuple[ForeignRow, ...] = ()  # rows that are left out, the first of them
    foreign_rows_count: int = 0  # how many there were
    device: DeviceSummary | None = None  # all devices together; None: no witness
    devices: tuple[DeviceSummary, ...] = ()  # each
    client_cpu: CpuCost | None = None  # None: not told
    server_cpu: CpuCost | None = None
    taken_cpu: TakenCpu | None = None  # None: no host told
    latency: Latency | None = None  # of probes; None: there were none
    pairs: tuple[PairSummary, ...] = ()  # see RunSummary.pairs_omitted


class Spread(Message):
    """One figure over a run's bursts."""

    bursts_count: int
    mean: float
    median: float
    p5: float
    p95: float
    cov_ratio: float | None = None  # standard deviation / mean; None: under two bursts


class RunSummary(Message):
    """A run. Rates are as measured; ``real_*`` are the same times ``scale``."""

    run_id: RunId
    scenario: str
    computed_at: UtcDatetime  # the `now` it was computed with
    scale: float
    target_bits_per_second: float | None  # divided by scale, at target_layer
    target_layer: Layer
    plan_sha256: str | None = None  # the plan's seal: what was to be proven, fixed at launch
    decision_rule: str = "guarded-acceptance"  # docs/verdict.md
    limit_bits_per_second: float | None = None  # the target less its tolerance, as measured
    pairs_planned: int
    pairs_measured: int  # in every burst
    bursts_planned: int
    verdict: Verdict
    completeness_ratio: float
    completeness: Completeness
    fleet_received_bits_per_second: float | None = None
    fleet_received_half_width_bits_per_second: float | None = None  # 95 % CI
    fleet_sent_bits_per_second: float | None = None
    fleet_ip_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    real_target_bits_per_second: float | None = None
    real_fleet_received_bits_per_second: float | None = None
    real_fleet_sent_bits_per_second: float | None = None
    real_fleet_ip_bits_per_second: float | None = None
    real_firewall_bits_per_second: float | None = None
    received_over_bursts: Spread | None = None  # of fleet_received_bits_per_second
    rtt_mean_s: float | None = None  # mean over bursts and flows
    retransmits_count: int | None = None  # in the bursts' windows
    retransmit_ratio: float | None = None  # of segments sent; mean over bursts and flows
    client_cpu_mean_ratio: float | None = None
    server_cpu_mean_ratio: float | None = None
    client_cpu_s_per_gigabyte: float | None = None  # of the engines' processes, mean over bursts
    server_cpu_s_per_gigabyte: float | None = None
    probe_p50_s: float | None = None  # of all pairs' probes while loaded: mean over bursts
    probe_p99_s: float | None = None  # worst burst
    probe_loss_ratio: float | None = None  # worst burst
    start_spread_s: float | None = None  # worst burst
    start_error_max_s: float | None = None
    start_error_p99_s: float | None = None
    reconciliation: Reconciliation | None = None
    limiter: LimiterName = LimiterName.UNKNOWN
    limiter_details: Limiter = UNKNOWN  # its evidence, what would refute it, advice
    findings: tuple[Finding, ...] = ()
    course: Course | None = None  # set by summarise_run
    pairs_omitted: bool = False  # bursts' pairs are in their own documents only: there are many
    bursts: tuple[BurstSummary, ...] = ()


def canonical(summary: BurstSummary | RunSummary) -> bytes:
    """The one text of a summary: equal values give equal bytes."""
    return summary.to_json().encode()


def parse_run(stored: bytes) -> RunSummary:
    """A stored run's summary, also one whose fields were more: it is computed again from rows."""
    return RunSummary.model_validate_json(stored, extra="ignore")


def parse_burst(stored: bytes) -> BurstSummary:
    """A stored burst's summary; for fields that are no more see :func:`parse_run`."""
    return BurstSummary.model_validate_json(stored, extra="ignore")


def combined(parts: Iterable[Availability]) -> Availability:
    """Add up parts; exact, so any grouping and order gives the same."""
    listed = list(parts)
    return Availability.of(
        sum(part.planned_s for part in listed),
        sum(part.up_s for part in listed),
        sum(part.down_s for part in listed),
        max((part.resolution_s for part in listed if part.resolution_s is not None), default=None),
    )


def gravity(disruption: Disruption) -> tuple[float, ...]:
    """Sorts the gravest first: by pair-seconds, which are known of every kind, then by bytes."""
    seconds = disruption.pairs_count * max(disruption.duration_s, 1.0)
    return -seconds, -(disruption.short_bytes or 0.0), disruption.start_at.timestamp()
