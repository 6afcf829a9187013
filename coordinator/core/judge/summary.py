"""What a burst and a run showed and were judged to be, as values that recompute to the byte.

Rates are as measured. In a scaled lab ``real_*`` fields carry the same times the scale.
"""

from coordinator.core.judge.course import Course
from coordinator.core.judge.finding import (
    Finding,
    Verdict,
)
from coordinator.core.judge.limiter import UNKNOWN, Limiter, LimiterName
from coordinator.core.judge.reconcile import Reconciliation
from coordinator.core.measure.aggregate import (
    CliffSummary,
    FlowSummary,
    HostSummary,
    PairSummary,
    Window,
)
from coordinator.core.measure.asked import Difference
from coordinator.core.measure.completeness import (
    Completeness,
)
from coordinator.core.measure.cpu_cost import CpuCost
from coordinator.core.measure.cross_examination import Contradiction
from coordinator.core.measure.disruptions import Availability, Disruption
from coordinator.core.measure.evidence import Stray
from coordinator.core.measure.latency import Latency
from coordinator.core.measure.measures import MeasureSummary
from coordinator.core.measure.outages import (
    Outage,
)
from coordinator.core.measure.unsteady_clocks import UnsteadyClocks
from coordinator.core.plan.spec import Layer
from exchange.messages import Message, RunId, UtcDatetime


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
    client_cpu: CpuCost | None = None  # None: not told
    server_cpu: CpuCost | None = None
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
    return summary.model_dump_json().encode()


def parse_run(stored: bytes) -> RunSummary:
    """A stored run's summary, also one whose fields were more: it is computed again from rows."""
    return RunSummary.model_validate_json(stored, extra="ignore")


def parse_burst(stored: bytes) -> BurstSummary:
    """A stored burst's summary; for fields that are no more see :func:`parse_run`."""
    return BurstSummary.model_validate_json(stored, extra="ignore")
