"""Models for the results of a burst and a run, which can be recomputed byte for byte.

Rates are as measured. In a lab with a scale, the ``real_*`` fields are these rates times the scale.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from broadside.coordinator.core import formatting
from broadside.coordinator.core.guards import GuardReport
from broadside.coordinator.core.metrics import Layer
from broadside.exchange.messages import (
    BurstIndex,
    EndCause,
    Flow,
    Message,
    OutageKind,
    OwnBurstIndex,
    RunId,
    Side,
    UtcDatetime,
    renamed,
    renamed_values,
)


class Verdict(StrEnum):
    """Verdict of a run or of a check.

    Attributes:
        PASS: Every check passes.
        FAIL: The rate is below the limit, or a threshold is exceeded.
        INCONCLUSIVE: Evidence is missing, contradictory or too uncertain.
        MEASURED: The run is complete, but no target and no threshold was set.
    """

    PASS = "pass"  # noqa: S105  # a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    MEASURED = "measured"


Severity = Literal["problem", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingValue:
    """Measured value of a finding, to describe its range over several bursts.

    Attributes:
        value: The value in its base unit.
        text: The value as it is shown.
        worst: Which of several values is the worst.
    """

    value: float
    text: str
    worst: Literal["low", "high", "magnitude"]

    @classmethod
    def rate(cls, bits_per_second: float) -> "FindingValue":
        """Return a rate in bit/s. The lowest one is the worst."""
        return cls(value=bits_per_second, text=formatting.rate(bits_per_second), worst="low")

    @classmethod
    def share(cls, ratio: float, worst: Literal["low", "high"] = "low") -> "FindingValue":
        """Return a ratio that is shown with one decimal.

        Args:
            ratio: Ratio, where 1 is 100 %.
            worst: Which of several ratios is the worst.
        """
        return cls(value=ratio, text=formatting.ratio(ratio, 1), worst=worst)

    @classmethod
    def residual(cls, ratio: float) -> "FindingValue":
        """Return a residual. The one farthest from zero is the worst."""
        return cls(value=ratio, text=formatting.signed_ratio(ratio), worst="magnitude")

    @classmethod
    def time(cls, seconds: float, worst: Literal["low", "high"] = "high") -> "FindingValue":
        """Return a time in s.

        Args:
            seconds: Time in s.
            worst: Which of several times is the worst.
        """
        return cls(value=seconds, text=formatting.time(seconds), worst=worst)

    @classmethod
    def count(cls, number: float) -> "FindingValue":
        """Return a number of things. The largest one is the worst."""
        return cls(value=number, text=f"{number:g}", worst="high")

    @property
    def badness(self) -> float:
        """Sort key. The worst value has the largest key."""
        if self.worst == "magnitude":
            return abs(self.value)
        return self.value if self.worst == "high" else -self.value


# Identifiers in summaries that were stored before version 1.0, and the current ones.
FORMER_FINDING_IDS: Final = {
    "ledger-absent": "device-counter-missing",
    "ledger-empty": "device-counter-empty",
    "ledger-late": "device-counter-late",
    "ledger-note": "device-counter-note",
    "ledger-partial": "device-counter-partial",
    "ledger-thin": "device-counter-sparse",
    "ledger-untrue": "device-counter-invalid",
    "witness-clock": "telemetry-clock",
    "witness-partial": "telemetry-partial",
    "witness-restarted": "telemetry-restarted",
    "witness-silent": "telemetry-silent",
    "witness-stamps": "telemetry-timestamps",
    "witness-too-slow": "telemetry-too-slow",
    "witness-unplaced": "telemetry-unplaced",
    "witness-unread": "telemetry-unreadable",
    "witness-untold": "telemetry-unsupported",
    "witness-went-back": "telemetry-decreased",
    "witness-wrapped": "telemetry-wrapped",
    "clocks-own-word": "clocks-self-reported",
    "clocks-unread": "clock-readings-missing",
    "columns-unread": "columns-ignored",
    "metrics-unread": "metrics-ignored",
    "unreadable-set-aside": "unreadable-rows",
    "rows-set-apart": "rows-skipped",
    "stray-tests": "foreign-tests",
} | {
    f"limiter-{name}": f"bottleneck-{name}"
    for name in [
        "client-cpu",
        "client-nic",
        "firewall",
        "offered-load",
        "server-cpu",
        "server-nic",
        "single-flow",
        "snat-ports",
        "unknown",
        "window",
    ]
}


class Finding(Message):
    """A statement about the result, with its values and the next step.

    Attributes:
        id: Id of the finding, which does not change between versions.
        kind: What it is: the conclusion, its cause, or additional information.
        severity: Problem, warning or note. A problem prevents a pass if ``kind`` is verdict.
        weight: Weight, by which findings are sorted with the highest first.
        sentence: What was measured, with the limit, and what it means.
        part: Mixed run: name of the part that the finding is about.
    """

    id: Annotated[str, renamed_values(FORMER_FINDING_IDS)]
    kind: Literal["verdict", "cause", "context"]
    severity: Severity
    weight: float
    sentence: str
    next_step: str | None = None
    part: str | None = None


class MeasuredFinding(Finding):
    """Finding with its measured value. Only used while a run is judged, and never stored."""

    value: FindingValue

    def without_value(self) -> Finding:
        """Return the finding as it is stored."""
        return Finding(**{name: getattr(self, name) for name in Finding.model_fields})


def problem(
    id: str, weight: float, sentence: str, next_step: str, value: FindingValue | None = None
) -> Finding:
    """Create a finding for a reason why the verdict is not a pass.

    Args:
        id: Finding id.
        weight: Sort key, with the highest first.
        sentence: The statement.
        next_step: Advice on the problem.
        value: Measured value, for the range over several bursts. None if there is no single one.

    Returns:
        A finding of kind ``verdict`` and severity ``problem``.
    """
    update = {"kind": "verdict", "severity": "problem"}
    return warning(id, weight, sentence, next_step, value).model_copy(update=update)


def warning(
    id: str,
    weight: float,
    sentence: str,
    next_step: str | None = None,
    value: FindingValue | None = None,
) -> Finding:
    """Create a finding for a possible cause of the result.

    Args:
        id: Id of the finding.
        weight: Weight to sort the findings by, with the highest first.
        sentence: Text of the finding: the measurement and its meaning.
        next_step: Action for the user to take, or None if there is none.
        value: Measured value, for the range over several bursts. None if there is no single one.

    Returns:
        A finding of kind ``cause`` and severity ``warning``.
    """
    finding = Finding(
        id=id,
        kind="cause",
        severity="warning",
        weight=weight,
        sentence=sentence,
        next_step=next_step,
    )
    return finding if value is None else MeasuredFinding(**dict(finding), value=value)


def caution(
    id: str,
    weight: float,
    sentence: str,
    next_step: str | None = None,
    value: FindingValue | None = None,
) -> Finding:
    """Create a finding for a problem that is not related to the verdict.

    See :func:`warning` for the arguments.

    Args:
        id: Id of the finding.
        weight: Weight to sort the findings by, with the highest first.
        sentence: The measurement and its meaning.
        next_step: Action for the user, or None.
        value: Measured value, for the range over several bursts, or None.

    Returns:
        A finding of kind ``context`` and severity ``warning``.
    """
    return warning(id, weight, sentence, next_step, value).model_copy(update={"kind": "context"})


def note(
    id: str,
    weight: float,
    sentence: str,
    next_step: str | None = None,
    value: FindingValue | None = None,
) -> Finding:
    """Create a finding with additional information.

    See :func:`warning` for the arguments.

    Args:
        id: Id of the finding.
        weight: Weight to sort the findings by, with the highest first.
        sentence: The measurement and its meaning.
        next_step: Action for the user, or None.
        value: Measured value, for the range over several bursts, or None.

    Returns:
        A finding of kind ``context`` and severity ``note``.
    """
    update = {"kind": "context", "severity": "note"}
    return warning(id, weight, sentence, next_step, value).model_copy(update=update)


def named_finding(finding: Finding, name: str) -> Finding:
    """Return a finding about other traffic of a mixed run, with the name of the part.

    Args:
        finding: The finding.
        name: Name of the part.
    """
    return finding.model_copy(update={"sentence": f"{name}: {finding.sentence}", "part": name})


def order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by weight, with the highest first, and then by id."""
    return tuple(sorted(findings, key=lambda finding: (-finding.weight, finding.id)))


def worse(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine verdicts. A single fail is a fail, and if there is no verdict it is inconclusive.

    A ``measured`` verdict is not a pass. Together with passes, the result is ``measured``.
    """
    reported = set(verdicts)
    if Verdict.FAIL in reported:
        return Verdict.FAIL
    if not reported or Verdict.INCONCLUSIVE in reported:
        return Verdict.INCONCLUSIVE
    return Verdict.MEASURED if Verdict.MEASURED in reported else Verdict.PASS


class PhaseLatency(Message):
    """Round trips in one phase of a burst.

    Attributes:
        sent_count: Number of probes that were sent.
        answered_count: Number of probes that were answered.
        loss_ratio: Lost probes divided by sent ones (0 to 1). None if none were sent.
        mean_s: Mean round-trip time in seconds.
        p50_s: Median round-trip time in seconds.
        p90_s: 90th percentile of the round-trip time in seconds.
        p95_s: 95th percentile of the round-trip time in seconds.
        p99_s: 99th percentile of the round-trip time in seconds.
        max_s: Largest round-trip time in seconds.
    """

    sent_count: int
    answered_count: int
    loss_ratio: float | None = None
    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


class PathLatency(Message):
    """Round trips of a pair or of the fleet in a burst.

    Attributes:
        before: Before the burst.
        during: During the burst.
        after: After the burst.
        buffer_delay_ratio: Increase of the round-trip time under load, relative to the idle one
            (RFC 6349).
    """

    before: PhaseLatency
    during: PhaseLatency
    after: PhaseLatency
    buffer_delay_ratio: float | None = None


class MatchMethod(StrEnum):
    """Method that was used to match a server-side test to a pair.

    Attributes:
        COOKIE: The id of the test.
        ENDPOINT: The same address and port near the start time. A port can have only one test at a
            time.
    """

    COOKIE = "cookie"
    ENDPOINT = "endpoint"


class ByteSource(StrEnum):
    """Source of the received bytes of a pair.

    Attributes:
        RECEIVER: Seconds from the receiving end.
        MIXED: Seconds from the receiving end, some filled from the sender.
        SENDER_SCALED: Seconds from the sender, scaled by the received and sent totals of the pair.
        SENDER: Seconds from the sender, if there are no totals to scale them.
        TOTALS: Received total from the engine, distributed evenly.
        NONE: There are no bytes.
    """

    RECEIVER = "receiver"
    MIXED = "mixed"
    SENDER_SCALED = "sender-scaled"
    SENDER = "sender"
    TOTALS = "totals"
    NONE = "none"


class SecondState(StrEnum):
    """State of a planned pair-second.

    Attributes:
        MEASURED: It ran and was recorded.
        LATE: It ran, but the difference to the start time was above the limit.
        NULL: The engine failed, or did not transfer any bytes.
        MISSED: It did not run, because it was not taken or was released too late.
        REFUSED: The agent refused it on purpose.
        ABANDONED: It was started and then stopped: agent lost, run cancelled, or lease expired.
        LOST: It was taken, but there is no report or a gap in the report.
        PENDING: It is still in progress.
    """

    MEASURED = "measured"
    LATE = "late"
    NULL = "null"
    MISSED = "missed"
    REFUSED = "refused"
    ABANDONED = "abandoned"
    LOST = "lost"
    PENDING = "pending"


class Completeness(Message):
    """Planned pair-seconds by state. The states sum to ``planned_s``.

    Attributes:
        planned_s: Planned pair-seconds.
        measured_s: Pair-seconds that were measured.
        late_s: Pair-seconds of tests that started late.
        null_s: Pair-seconds of tests without bytes.
        missed_s: Pair-seconds of jobs that did not run.
        refused_s: Pair-seconds of jobs that an agent refused.
        abandoned_s: Pair-seconds of tests that were stopped.
        lost_s: Pair-seconds without a report.
        pending_s: Pair-seconds in progress.
        completeness_ratio: Measured pair-seconds divided by planned ones (0 to 1). 0 if nothing was
            planned.
    """

    planned_s: int = 0
    measured_s: int = 0
    late_s: int = 0
    null_s: int = 0
    missed_s: int = 0
    refused_s: int = 0
    abandoned_s: int = 0
    lost_s: int = 0
    pending_s: int = 0
    completeness_ratio: float = 0.0

    @classmethod
    def of(cls, seconds: dict[SecondState, int]) -> "Completeness":
        """Create this from seconds by state."""
        planned = sum(seconds.values())
        measured = seconds.get(SecondState.MEASURED, 0)
        return cls(
            planned_s=planned,
            completeness_ratio=measured / planned if planned else 0.0,
            **{f"{state}_s": seconds.get(state, 0) for state in SecondState},
        )

    def seconds(self, state: SecondState) -> int:
        """Return the pair-seconds in one state."""
        return int(getattr(self, f"{state}_s"))


def figure(value: float | None) -> float | None:
    """Round a value for a summary to nine digits, or return None if it is not finite.

    Further digits can be different on two machines, because values are added in a different order.
    With nine digits, a recomputed summary has the same text.
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.9g}")


def instant(epoch_s: float) -> datetime:
    """Convert epoch seconds to UTC with a resolution of one millisecond, as in summaries."""
    return datetime.fromtimestamp(round(epoch_s, 3), UTC)


class Window(Message):
    """Seconds that are used for the main metrics.

    If there is a gap for a measured pair in the window, the mean of the recorded seconds is used
    there.

    Attributes:
        start_at: Start of the window.
        end_at: End of the window.
        window_s: Length of the window in seconds.
        common_s: Number of seconds that all measured pairs share.
        ramp_s: Number of seconds that were removed from the start as ramp (MSER).
        ramp_bits_per_second: Payload rate in these seconds, in bit/s.
        slowest_bits_per_second: Payload rate in the slowest part of the window, in bit/s.
        slowest_noise_bits_per_second: Standard deviation of a mean of this length, in bit/s.
        slowest_from_s: Start of this part, in seconds from the start of the window.
        slowest_s: Length of this part in seconds. None if the window is too short for parts.
        slowest_proven_bits_per_second: Rate of the slowest part from receivers' seconds only, in
            bit/s, if some are missing.
        covered_ratio: Recorded part of the measured pairs' seconds in the window (0 to 1).
        outside_s: Maximum number of recorded seconds of one measured pair outside `common_s`.
        outside_pair: Name of this pair.
        reading_s: Length of the receivers' readings in seconds. None for one second.
        short: True if the window is shorter than the 300 s that RFC 9411 recommends.
    """

    start_at: UtcDatetime
    end_at: UtcDatetime
    window_s: int
    common_s: int
    ramp_s: int
    ramp_bits_per_second: float | None = None
    slowest_bits_per_second: float | None = None
    slowest_noise_bits_per_second: float | None = None
    slowest_from_s: int | None = None
    slowest_s: int | None = None
    slowest_proven_bits_per_second: float | None = None
    covered_ratio: float = 1.0
    outside_s: int = 0
    outside_pair: str | None = None
    reading_s: float | None = None
    short: bool


class FlowSummary(Message):
    """One flow of the fleet over the window. Rates are received payload unless noted otherwise.

    Attributes:
        received_half_width_bits_per_second: Half of the 95 % interval in bit/s, with correlation
            and clock error.
        ip_bits_per_second: Received rate at the IP layer in bit/s, the inspected throughput of RFC
            9411.
        sent_bits_per_second: Payload rate of all senders with data, in bit/s.
        sent_pairs_count: Number of pairs with sender data.
        late_bits_per_second: Payload rate that late pairs received, in bit/s.
        proven_ratio: Part of the received bytes from receivers' seconds (0 to 1).
        second_median_bits_per_second: Median of the fleet's seconds, in bit/s.
        second_p5_bits_per_second: 5th percentile of the fleet's seconds, in bit/s.
        second_p95_bits_per_second: 95th percentile of the fleet's seconds, in bit/s.
        second_cov_ratio: Standard deviation of the fleet's seconds divided by their mean.
        pair_mean_bits_per_second: Mean of the pairs' rates in the window, in bit/s.
        pair_median_bits_per_second: Median of the pairs' rates in the window, in bit/s.
        pair_p5_bits_per_second: 5th percentile of the pairs' rates in the window, in bit/s.
        pair_p95_bits_per_second: 95th percentile of the pairs' rates in the window, in bit/s.
        pair_cov_ratio: Standard deviation of the pairs' rates divided by their mean.
        jain_ratio: Jain's fairness index over the pairs (0 to 1).
        share_movement_ratio: Variance of the sum divided by the sum of the pairs' variances.
        retransmits_count: Number of retransmitted segments in the window, from senders with data.
        retransmit_ratio: Retransmitted segments divided by the sent payload in full segments (0 to
            1).
        mss_bytes: TCP payload of a full packet in bytes, as used for the headers.
        tcp_efficiency_ratio: Bytes that were not retransmitted divided by all sent bytes (RFC
            6349).
        rtt_p50_s: Median round-trip time in seconds.
        rtt_p95_s: 95th percentile of the round-trip time in seconds.
        rtt_max_s: Largest round-trip time in seconds.
        rtt_baseline_s: Mean idle round-trip time of the pairs in seconds, or the smallest one under
            load.
        rtt_baseline_how: Source of the baseline. None is the smallest value under load, which
            includes a standing queue.
        rtt_pairs_count: Number of pairs with a round-trip time.
        buffer_delay_ratio: Increase of the round-trip time under load, relative to the baseline
            (RFC 6349).
        transfer_time_ratio: Actual transfer time divided by the ideal one (RFC 6349).
        loss_ratio: Lost UDP datagrams divided by sent ones (0 to 1).
        loss_pairs_count: Number of pairs with this value.
    """

    flow: Flow
    received_bits_per_second: float | None = None
    received_half_width_bits_per_second: float | None = None
    ip_bits_per_second: float | None = None
    sent_bits_per_second: float | None = None
    sent_pairs_count: int = 0
    late_bits_per_second: float | None = None
    proven_ratio: float | None = None
    second_median_bits_per_second: float | None = None
    second_p5_bits_per_second: float | None = None
    second_p95_bits_per_second: float | None = None
    second_cov_ratio: float | None = None
    pair_mean_bits_per_second: float | None = None
    pair_median_bits_per_second: float | None = None
    pair_p5_bits_per_second: float | None = None
    pair_p95_bits_per_second: float | None = None
    pair_cov_ratio: float | None = None
    jain_ratio: float | None = None
    share_movement_ratio: float | None = None
    retransmits_count: int | None = None
    retransmit_ratio: float | None = None
    mss_bytes: int | None = None
    tcp_efficiency_ratio: float | None = None
    rtt_mean_s: float | None = None
    rtt_p50_s: float | None = None
    rtt_p95_s: float | None = None
    rtt_max_s: float | None = None
    rtt_baseline_s: float | None = None
    rtt_baseline_how: Literal["idle"] | None = None
    rtt_pairs_count: int = 0
    buffer_delay_ratio: float | None = None
    transfer_time_ratio: float | None = None
    loss_ratio: float | None = None
    loss_pairs_count: int = 0


class HostSummary(Message):
    """Hosts of one side over the window.

    Attributes:
        cpu_mean_ratio: CPU use of all cores, as the mean over hosts (0 to 1).
        cpu_max_ratio: CPU use of all cores on the busiest host (0 to 1).
        core_max_ratio: CPU use of the busiest core on any host (0 to 1).
        nic_max_ratio: Sent rate divided by the NIC limit on the host where this is highest.
        drops_count: Number of packets that NICs dropped in the burst.
        hosts_count: Number of hosts with counters.
    """

    cpu_mean_ratio: float | None = None
    cpu_max_ratio: float | None = None
    core_max_ratio: float | None = None
    nic_max_ratio: float | None = None
    drops_count: int | None = None
    hosts_count: int = 0


class PairSummary(Message):
    """One pair in one burst. Rates are payload over the window of the fleet, for all flows.

    Attributes:
        pair_index: Index of the pair, from 0.
        client_agent_id: Id of the client's agent. None if no agent has received the job.
        server_agent_id: Id of the server's agent.
        state: State of the pair in the burst.
        reason: Reason for the state. None if it was measured.
        start_error_s: Time from the planned start to the first data, in seconds.
        clock_bound_s: Error bound of the clocks of both ends, in seconds.
        basis: Source of the received bytes.
        joined_by: How the server's record was matched. None if there is none.
        ends_offset_s: Only for imports: clock of the server minus clock of the client, in seconds.
        ends_offset_bound_s: Half of the 95 % interval of this offset, in seconds.
        outside_ratio: Part of the pair's recorded seconds outside the common window (0 to 1).
        share_ratio: Part of the rate that the fleet received (0 to 1).
        cov_ratio: Standard deviation of the seconds in the window divided by their mean.
        rtt_min_s: Smallest round-trip time in seconds.
        rtt_idle_s: Round-trip time on the same path before the burst, in seconds.
        cwnd_bytes: Mean TCP congestion window in bytes.
        client_cpu_ratio: CPU use of all cores of the client's host (0 to 1).
        client_core_ratio: CPU use of the busiest core of the client's host (0 to 1).
        client_nic_ratio: Sent rate of the client's host at the link layer divided by its NIC limit.
        client_egress_queued_ratio: Part of the samples in which the egress queue (qdisc) of the
            client's host was not empty.
        client_vm_size: VM size of the client's host.
        server_cpu_ratio: CPU use of all cores of the server's host (0 to 1).
        server_core_ratio: CPU use of the busiest core of the server's host (0 to 1).
        server_nic_ratio: Sent rate of the server's host at the link layer divided by its NIC limit.
        server_egress_queued_ratio: Part of the samples in which the egress queue (qdisc) of the
            server's host was not empty.
        server_vm_size: VM size of the server's host.
        latency: Round trips of probes.
    """

    pair: str
    pair_index: int
    client_agent_id: str | None = None
    server_agent_id: str | None = None
    state: SecondState
    reason: str | None = None
    completeness_ratio: float
    start_error_s: float | None = None
    clock_bound_s: float | None = None
    basis: ByteSource
    joined_by: MatchMethod | None = None
    ends_offset_s: float | None = None
    ends_offset_bound_s: float | None = None
    outside_ratio: float | None = None
    received_bits_per_second: float | None = None
    sent_bits_per_second: float | None = None
    share_ratio: float | None = None
    cov_ratio: float | None = None
    retransmits_count: int | None = None
    rtt_mean_s: float | None = None
    rtt_min_s: float | None = None
    rtt_idle_s: float | None = None
    cwnd_bytes: float | None = None
    client_cpu_ratio: float | None = None
    client_core_ratio: float | None = None
    client_nic_ratio: float | None = None
    client_egress_queued_ratio: float | None = None
    client_vm_size: str | None = None
    server_cpu_ratio: float | None = None
    server_core_ratio: float | None = None
    server_nic_ratio: float | None = None
    server_egress_queued_ratio: float | None = None
    server_vm_size: str | None = None
    latency: PathLatency | None = None


class CliffSummary(Message):
    """Fall of the total rate that lasts until the end of the window.

    Attributes:
        at: Time of the fall.
        before_bits_per_second: Rate before the fall in bit/s.
        after_bits_per_second: Rate after the fall in bit/s.
    """

    at: UtcDatetime
    before_bits_per_second: float
    after_bits_per_second: float


class DisruptionKind(StrEnum):
    """Kind of a disruption.

    Attributes:
        STALL: No bytes for at least one second.
        DROP: A low rate, but not zero.
        RESET: Connections of the engine failed, and the rest was not sent.
        CUT: Stopped on purpose or with the agent: killed, lease expired or cancelled.
        RECONNECT: Started again because the first connections failed.
        ABSENT: Never sent, because it was not taken or was refused.
        GAP: Seconds that were not recorded, so that the traffic is unknown.
    """

    STALL = "stall"
    DROP = "drop"
    RESET = "reset"
    CUT = "cut"
    RECONNECT = "reconnect"
    ABSENT = "absent"
    GAP = "gap"


# Part of the planned pairs.
Scope = Literal["one", "some", "all"]


class Disruption(Message):
    """Disruption of one or more pairs at one time. An absence can last for many bursts.

    Attributes:
        kind: Kind of the disruption.
        bursts_count: Number of consecutive bursts, starting with that one.
        start_at: Start of the first event.
        end_at: End of the last event.
        duration_s: Duration in seconds, or in planned seconds if it is in several bursts.
        scope: Pairs that were affected: one, some or all.
        pairs: Names of at most ten of these pairs.
        short_bytes: Payload below the running median in bytes. None if unknown.
        causes: Causes from the records, at most three.
        resolution_s: Length of the readings in seconds, if it is more than a second. The start is
            in the first reading, and the end is in the last one.
    """

    kind: DisruptionKind
    burst_index: BurstIndex
    bursts_count: int = 1
    start_at: UtcDatetime
    end_at: UtcDatetime
    duration_s: float
    scope: Scope
    pairs_count: int
    pairs: tuple[str, ...]
    short_bytes: float | None = None
    causes: tuple[str, ...] = ()
    resolution_s: float | None = None


class SilentStream(Message):
    """Stream that had no traffic for some seconds, but other streams in the pair had.

    Attributes:
        client_port: Client port of the stream, to find it in the session table of a device. None if
            unknown.
        streams_count: Number of streams in the flow. None if unknown.
        from_at: Start of the silence.
        duration_s: Duration of the silence in seconds.
    """

    pair: str
    flow: Flow
    client_port: int | None
    streams_count: int | None
    from_at: UtcDatetime
    duration_s: float


class Availability(Message):
    """Planned pair-seconds by whether the required load was carried. They sum to ``planned_s``.

    Attributes:
        planned_s: Planned pair-seconds.
        up_s: Pair-seconds at or above the minimum.
        down_s: Pair-seconds below the minimum, or with failed connections of the engine.
        unknown_s: Pair-seconds that were not recorded, or in which no agent tried to send.
        up_ratio: `up_s` divided by the planned seconds (0 to 1).
        known_ratio: `up_s` divided by the known seconds (0 to 1). None if nothing is known.
        resolution_s: Length of the longest readings in seconds, if it is more than a second. The
            mean of such a reading can hide a shorter outage.
    """

    planned_s: int = 0
    up_s: int = 0
    down_s: int = 0
    unknown_s: int = 0
    up_ratio: float = 0.0
    known_ratio: float | None = None
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


class ForeignTest(Message):
    """Test by another client on an endpoint of the run during a burst.

    Attributes:
        pair_index: Index of the pair with this endpoint.
        address: Address of the endpoint.
        port: Port of the endpoint.
        started_at: Start of the test.
        client_address: Address of the other client.
        cookie: Id of the test.
        received_bytes: Bytes that the server received in this test.
    """

    pair_index: int
    address: str
    port: int
    started_at: UtcDatetime
    client_address: str | None = None
    cookie: str | None = None
    received_bytes: int | None = None


class ForeignRow(Message):
    """Row of an agent with the id of another agent, endpoint, run, pair or burst.

    Attributes:
        row: Partition key and row key.
        field: Name of the invalid field.
        problem: Value of the field, and the planned value.
    """

    row: str
    field: str
    problem: Annotated[str, renamed("problem", "said")]


class Rule(StrEnum):
    """Rule for a consistency check.

    Attributes:
        ROWS: Values that are negative, not a number, reversed or overlapping.
        RECEIVED_OVER_SENT: More bytes were received than sent.
        TOTALS: The total of an engine and the sum of the seconds from either end.
        SENT_OVER_OFFERED: More was sent than requested.
        OVER_NIC: The rate is above the limit of the NIC.
        OVER_WINDOW: The rate is above the window divided by the round-trip time.
        HOST_COUNTERS: The NIC counters are lower than the payload of the engine.
        STAMPS: The two ends of a pair have different start times.
        COPIED: Two pairs have the same data.
    """

    ROWS = "rows"
    RECEIVED_OVER_SENT = "received-over-sent"
    TOTALS = "totals"
    SENT_OVER_OFFERED = "sent-over-offered"
    OVER_NIC = "over-nic"
    OVER_WINDOW = "over-window"
    HOST_COUNTERS = "host-counters"
    STAMPS = "stamps"
    COPIED = "copied"


class Contradiction(Message):
    """Two sources that cannot both be correct.

    Attributes:
        rule: Rule that was broken.
        pair: Name of the pair. None for the sums of the fleet.
        flow: Direction of the payload. None for both.
        side: End with this value. None if it is not from one end.
        observed: Observed number of rows, bytes or seconds.
        limit: Limit in the same unit, without tolerance.
    """

    rule: Rule
    pair: str | None = None
    flow: Flow | None = None
    side: Side | None = None
    observed: Annotated[float, renamed("observed", "said")]
    limit: Annotated[float, renamed("limit", "bound")]


class Difference(Message):
    """Field with an effective value that is different from the requested one.

    Attributes:
        field: Name of the field.
        requested: Requested value.
        effective: Value that most of these pairs used.
        pairs_count: Number of pairs with another value than the requested one.
        pairs: Names of the first of these pairs.
    """

    field: str
    requested: Annotated[str, renamed("requested", "asked")]
    effective: Annotated[str, renamed("effective", "did")]
    pairs_count: int
    pairs: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if self.pairs_count > len(self.pairs) else ""
        return (
            f"{self.field}: {self.requested} requested, {self.effective} used by "
            f"{self.pairs_count} pairs ({', '.join(self.pairs)}{more})"
        )


class CpuCost(Message):
    """CPU time per payload at one end, over the pairs with both values.

    Attributes:
        cpu_s_per_gigabyte: User and system time of the engine processes in seconds per gigabyte,
            without interrupts.
        host_cpu_s_per_gigabyte: CPU time of the whole hosts in seconds per gigabyte, if each host
            has only one agent.
    """

    cpu_s_per_gigabyte: float
    host_cpu_s_per_gigabyte: float | None = None
    pairs_count: int


class TakenCpu(Message):
    """Part of the hosts' CPU time that was used by other guests of the hypervisor (steal time).

    Attributes:
        hosts_count: Number of hosts with this value.
        mean_ratio: Mean part of the time of all cores (0 to 1).
        worst_ratio: Part on the worst host (0 to 1).
        worst_host: Name of the worst host.
    """

    hosts_count: int
    mean_ratio: float
    worst_ratio: float
    worst_host: str


class UnsteadyClocks(Message):
    """Pairs with recorded seconds in which the clock of an end was not stable.

    Attributes:
        measured_s: Measured pair-seconds of these pairs.
        examples: Name and clock problem of the first few pairs.
    """

    pairs_count: int
    measured_s: int
    examples: Annotated[tuple[str, ...], renamed("examples", "said")]


class Outage(Message):
    """Outage of one kind, for all agents that were affected by it.

    Attributes:
        kind: Kind of the outage.
        from_at: Start of the outage.
        to_at: End of the outage. None if it had not ended.
        affected_agents_count: Number of agents that were affected.
        reporting_agents_count: Number of agents with any record for this burst.
        count: Number of failed attempts, delayed writes or duplicates.
    """

    kind: OutageKind
    from_at: UtcDatetime
    to_at: UtcDatetime | None = None
    affected_agents_count: Annotated[int, renamed("affected_agents_count", "agents_count")]
    reporting_agents_count: Annotated[int, renamed("reporting_agents_count", "asked_count")]
    count: int


class MeasureSummary(Message):
    """Additional engine metric over the pairs that have reported it.

    Attributes:
        name: Name used by the engine, with a quantile as in `latency_p99`.
        value: Value over these pairs.
        unit: Unit: s, ratio, count, /s or bytes.
        pairs_count: Number of pairs that have reported it.
    """

    name: str
    value: float
    unit: str
    pairs_count: int


# All devices of a run together.
ALL_DEVICES: Final = ""


class DevicePlacement(Message):
    """Smallest or largest values of a metric if the time of its readings is uncertain.

    All times within the error bound are included.

    Attributes:
        mean: Mean over the window.
        min: Smallest value.
    """

    mean: float
    p95: float
    min: float
    max: float


class DeviceFigure(Message):
    """One metric of a device over the window, based on telemetry for each second.

    Attributes:
        mean: Mean over the window, in the unit of the metric.
        min: Smallest value.
        idle: Mean of the 30 s before the burst. None if unknown.
        busiest: Mean of the highest instance (such as a core), if there are several.
        instances_count: Number of instances.
        covered_ratio: Part of the window with known values (0 to 1).
        bound_s: Error bound for the times of the readings in seconds, if it matters.
        at_least: Smallest possible values. None if all possible times give the same value.
        at_most: Largest possible values. None if all possible times give the same value.
    """

    mean: float
    p95: float
    min: float
    max: float
    idle: float | None = None
    busiest: float | None = None
    instances_count: int = 1
    covered_ratio: float
    bound_s: float = 0.0
    at_least: DevicePlacement | None = None
    at_most: DevicePlacement | None = None


class DeviceSummary(Message):
    """One device in the window, or the sum, mean or worst value for all devices.

    The aggregation for each metric is in
    :data:`broadside.coordinator.core.measure.telemetry.KINDS`. None means that there is no
    telemetry.

    Attributes:
        device: Name of the device, or `all`.
        share_ratio: Part of the traffic of all devices (0 to 1). None if unknown, or if there is
            only one device.
        cores_count: Number of CPU cores. None if unknown.
        cpu_s: CPU time in the window in seconds.
        cpu_s_per_gigabyte: CPU time in seconds per gigabyte of payload that the device carried.
        cpu_ratio: CPU use (0 to 1).
        memory_ratio: Memory use (0 to 1).
        sessions_count: Number of sessions.
        connections_per_second: New connections per second.
        packets_per_second: Packets per second.
        drops_per_second: Dropped packets per second.
        in_bits_per_second: Received rate in bit/s.
        out_bits_per_second: Sent rate in bit/s.
        health_ratio: Health that the device reports (0 to 1).
        snat_ports_ratio: Use of the ports for address translation (0 to 1).
        latency_s: Latency that the device reports, in seconds.
        units_count: Number of units of the device.
        seen_units_count: Number of units with traffic in a second, by translated addresses. The
            fleet records them, so only the summary of all devices has them.
        ping_icmp_s: Round-trip time of ICMP pings to the device, in seconds.
        ping_tcp_s: Round-trip time of TCP connections to the device, in seconds.
        ping_loss_ratio: Lost pings divided by sent ones (0 to 1).
        url_s: Time to get a URL behind the device, in seconds.
        url_failed_ratio: Failed requests to this URL divided by all (0 to 1).
        ended_per_second: Sessions that the device ended per second.
    """

    device: str
    share_ratio: float | None = None
    cores_count: int | None = None
    cpu_s: float | None = None
    cpu_s_per_gigabyte: float | None = None
    cpu_ratio: DeviceFigure | None = None
    memory_ratio: DeviceFigure | None = None
    sessions_count: DeviceFigure | None = None
    connections_per_second: DeviceFigure | None = None
    ended_per_second: DeviceFigure | None = None
    packets_per_second: DeviceFigure | None = None
    drops_per_second: DeviceFigure | None = None
    in_bits_per_second: DeviceFigure | None = None
    out_bits_per_second: DeviceFigure | None = None
    health_ratio: DeviceFigure | None = None
    snat_ports_ratio: DeviceFigure | None = None
    latency_s: DeviceFigure | None = None
    units_count: DeviceFigure | None = None
    seen_units_count: DeviceFigure | None = None
    ping_icmp_s: DeviceFigure | None = None
    ping_tcp_s: DeviceFigure | None = None
    ping_loss_ratio: DeviceFigure | None = None
    url_s: DeviceFigure | None = None
    url_failed_ratio: DeviceFigure | None = None


class Spike(Message):
    """Time of at least one second in which probes were lost or slow.

    Attributes:
        from_at: Start of the spike.
        to_at: End of the spike.
        pairs: Names of the first of these pairs.
        rtt_max_s: Largest round-trip time in seconds. None if no probe was answered.
        lost_count: Number of lost probes.
    """

    from_at: UtcDatetime
    to_at: UtcDatetime
    pairs_count: int
    pairs: tuple[str, ...]
    rtt_max_s: float | None = None
    lost_count: int = 0


class Latency(Message):
    """Results of the probes in a burst, over the pairs with probes.

    Attributes:
        fleet: Round trips of all pairs.
        pairs_count: Number of pairs that have recorded probes.
        complete_pairs_count: Number of these pairs that have sent at least 95 % of the probes.
        worst_pair: Pair with the highest 99th percentile in the burst.
        worst_p99_s: 99th percentile of this pair in seconds.
        spikes: Spikes, sorted by time.
        spikes_count: Number of spikes.
    """

    fleet: PathLatency
    pairs_count: int
    complete_pairs_count: Annotated[int, renamed("complete_pairs_count", "whole_pairs_count")]
    worst_pair: str | None = None
    worst_p99_s: float | None = None
    spikes: tuple[Spike, ...] = ()
    spikes_count: int = 0


class BottleneckName(StrEnum):
    """Name of a possible bottleneck.

    Attributes:
        FIREWALL: The device under test.
        CLIENT_NIC: A network interface of the clients.
        SERVER_NIC: A network interface of the servers.
        CLIENT_CPU: A CPU of the clients.
        SERVER_CPU: A CPU of the servers.
        WINDOW: The TCP window, with the round-trip time.
        SINGLE_FLOW: The limit of the device for one flow.
        OFFERED_LOAD: The requested rate.
        SNAT_PORTS: The ports for address translation.
        ONE_UNIT: One of several units of the device.
        UNKNOWN: The records do not show it.
        GENERATOR: The clients or a limit of the hosts.
        SERVER_BACKLOG: A full listen queue of a server.
    """

    FIREWALL = "firewall"
    CLIENT_NIC = "client-nic"
    SERVER_NIC = "server-nic"
    CLIENT_CPU = "client-cpu"
    SERVER_CPU = "server-cpu"
    WINDOW = "window"
    SINGLE_FLOW = "single-flow"
    OFFERED_LOAD = "offered-load"
    SNAT_PORTS = "snat-ports"
    ONE_UNIT = "one-unit"
    GENERATOR = "generator"
    SERVER_BACKLOG = "server-backlog"
    UNKNOWN = "unknown"

    @property
    def label(self) -> str:
        """Name for people, in a sentence."""
        return _LIMITER_LABELS.get(self.value, self.value)


_LIMITER_LABELS: Final = {
    "firewall": "the firewall",
    "client-nic": "the network interface of the clients",
    "server-nic": "the network interface of the servers",
    "client-cpu": "the CPU of the clients",
    "server-cpu": "the CPU of the servers",
    "window": "the TCP window",
    "single-flow": "the rate of a single stream",
    "offered-load": "the requested rate",
    "snat-ports": "the SNAT ports of the firewall",
    "generator": "the traffic generator",
    "server-backlog": "the listen queue of the servers",
    "one-unit": "one unit of the device",
}


class Bottleneck(Message):
    """Bottleneck of a burst with its evidence, or the reason why it is unknown.

    Attributes:
        name: Name of the bottleneck.
        evidence: Evidence, as sentences.
        refuted_by: Evidence that would show a different bottleneck.
        not_known: If it is unknown: the missing data, and how to get it.
        advice: What to do about it.
    """

    name: BottleneckName
    evidence: tuple[str, ...] = ()
    refuted_by: str | None = None
    not_known: tuple[str, ...] = ()
    advice: str | None = None

    def finding(self) -> Finding:
        """Return the bottleneck as a finding."""
        if self.name is BottleneckName.UNKNOWN:
            return note("bottleneck-unknown", 12, " ".join(self._unknown_texts()), self.advice)
        refuted = f" To rule this out: {self.refuted_by}." if self.refuted_by else ""
        return Finding(
            id=f"bottleneck-{self.name}",
            kind="cause",
            severity="note",
            weight=58,
            sentence=f"Bottleneck: {self.name.label}. Evidence: "
            f"{'; '.join(self.evidence)}.{refuted}",
            next_step=self.advice,
        )

    def _unknown_texts(self) -> Iterable[str]:
        """Yield the sentences of an unknown bottleneck."""
        yield "The bottleneck is unknown."
        if self.evidence:
            yield f"Measured: {'; '.join(self.evidence)}."
        if self.not_known:
            yield f"Missing: {'; '.join(self.not_known)}."
        if not self.evidence and not self.not_known:
            yield "No evidence was recorded."


UNKNOWN: Final = Bottleneck(name=BottleneckName.UNKNOWN)


CauseId = Literal[
    "lost-reports",
    "foreign-traffic",
    "bypass",
    "duplicate-counting",
    "metric-declaration",
    "unknown-bins",
    "unknown",
]


class ResidualCause(Message):
    """Possible cause of a residual.

    Attributes:
        id: Id of the cause.
        share_ratio: Part of the expected bytes that this cause would explain, with the sign of the
            residual.
    """

    id: CauseId
    share_ratio: float
    sentence: str


class Reconciliation(Message):
    """Comparison of a device counter with the fleet, over one burst or a whole run.

    Attributes:
        source: Source of the device counter.
        layer: Layer of the device counter.
        grain_s: Length of a bin of the device counter, in seconds.
        basis: Bins that are used: full bins in the steady window (`rate`), or all bins that overlap
            the burst (`bytes`).
        lag_s: Lag of the counter in seconds. None if it cannot be estimated, in which case there is
            no residual.
        lag_uncertainty_s: Half of the interval of the lag, in seconds.
        lag_drift_s: Change of the lag from the first to the last burst, in seconds. Above 500 ppm
            it is a changing delay and not a clock error.
        lags_scale_ratio: Counted bytes divided by predicted ones for all lags that fit, if these
            lags are different.
        overhead_ratio: Bytes at the layer of the counter divided by payload bytes.
        overhead_how: Source of this ratio: recorded segment sizes, packets of 1500 bytes, or the
            median burst of this run.
        firewall_bits_per_second: Counted rate in bit/s, including the idle level.
        crossed_bits_per_second: Counted rate in bit/s, without the idle level.
        firewall_bytes: Counted bytes in these bins, without the idle level.
        expected_bytes: Predicted bytes in these bins.
        residual_ratio: Counted bytes divided by predicted ones, minus one. For a run that should
            bypass the device: counted bytes divided by the bytes that would be predicted otherwise.
        residual_uncertainty_ratio: Distance from the residual to the farther end of its interval.
        residual_low_ratio: Lower end of the 95 % interval of the residual.
        residual_high_ratio: Upper end of the 95 % interval of the residual.
        layer_ratio: Part of the interval because the layer of the counter is unknown.
        layer_low_ratio: The same part at the lower end. None if it is equal to `layer_ratio`.
        extra_ratio: Part of the interval at the lower end, for acknowledgements and for lost or
            repeated bytes that the counter may include.
        unknown_ratio: Bytes of the fleet in unknown bins divided by all its bytes (0 to 1).
        baseline_bits_per_second: Idle level of the counter in bit/s.
        baseline_uncertainty_bits_per_second: Distance from the idle level to the farther end of its
            95 % interval, in bit/s.
        baseline_how: Source of the idle level: quiet bins, a fit together with the fleet's bytes,
            or the lowest bin as a limit.
        unplanned_bytes: Bytes above the idle level in one burst of unplanned traffic, which the
            level does not include.
        full_bins_count: Number of full bins.
        counter_cov_ratio: Standard deviation of the full bins divided by their mean.
        rejected_bins_count: Bins with values that are not possible for any device.
        slowest_bits_per_second: Largest payload rate that the bins of the slowest part of the
            window can contain, in bit/s. None if it is not needed, or if the bins are too long.
        slowest_noise_bits_per_second: Standard deviation of such a mean in bit/s.
        slowest_s: Length of this part in seconds.
        fit_distance_ratio: Largest distance between the cumulative curves of counted and predicted
            bytes, relative to all bytes of the burst. None if it was not computed.
        fit_limit_ratio: Limit for this distance.
        bypassed: True if the run should not cross the device.
        counted_flows: Flows that the counter counts. If empty, it counts all flows.
        overlapping_run_ids: Ids of other runs with traffic through this device.
        causes: Possible causes of the residual.
    """

    source: str
    layer: str
    grain_s: float
    basis: Literal["rate", "bytes"]
    lag_s: float | None = None
    lag_uncertainty_s: float | None = None
    lag_drift_s: float = 0.0
    lags_scale_ratio: float | None = None
    overhead_ratio: float
    overhead_how: Literal["recorded", "assumed", "fitted"]
    firewall_bits_per_second: float | None = None
    crossed_bits_per_second: float | None = None
    firewall_bytes: float | None = None
    expected_bytes: float | None = None
    residual_ratio: float | None = None
    residual_uncertainty_ratio: float | None = None
    residual_low_ratio: float | None = None
    residual_high_ratio: float | None = None
    layer_ratio: float = 0.0
    layer_low_ratio: float | None = None
    extra_ratio: float = 0.0
    unknown_ratio: float = 0.0
    baseline_bits_per_second: float | None = None
    baseline_uncertainty_bits_per_second: float | None = None
    baseline_how: Literal["quiet", "fitted", "bounded"] | None = None
    unplanned_bytes: float | None = None
    full_bins_count: int = 0
    counter_cov_ratio: Annotated[float | None, renamed("counter_cov_ratio", "ledger_cov_ratio")] = (
        None
    )
    rejected_bins_count: int = 0
    slowest_bits_per_second: float | None = None
    slowest_noise_bits_per_second: float | None = None
    slowest_s: int | None = None
    fit_distance_ratio: float | None = None
    fit_limit_ratio: float | None = None
    bypassed: bool = False
    counted_flows: tuple[Flow, ...] = ()
    overlapping_run_ids: Annotated[
        tuple[str, ...], renamed("overlapping_run_ids", "neighbours")
    ] = ()
    causes: tuple[ResidualCause, ...] = ()

    @property
    def residual_ends(self) -> tuple[float, float]:
        """Ends of the 95 % interval of the residual, from the half width in older summaries."""
        middle, half = self.residual_ratio or 0.0, self.residual_uncertainty_ratio or 0.0
        low, high = self.residual_low_ratio, self.residual_high_ratio
        return middle - half if low is None else low, middle + half if high is None else high


class Trend(Message):
    """Slope of a metric over the run in relation to its median, with a 95 % interval.

    Attributes:
        name: Name of the metric.
        median: Median of the metric, in its unit.
        percent_per_hour: Slope in percent of the median per hour.
        low_percent_per_hour: Lower end of the 95 % interval of the slope.
        high_percent_per_hour: Upper end of the 95 % interval of the slope.
    """

    name: str
    bursts_count: int
    median: float
    percent_per_hour: float
    low_percent_per_hour: float
    high_percent_per_hour: float

    @property
    def moved(self) -> bool:
        """True if zero is not in the interval."""
        return self.low_percent_per_hour > 0 or self.high_percent_per_hour < 0


class RunTrends(Message):
    """Trends, availability and disruptions over all bursts in a run.

    Attributes:
        bursts_count: Number of bursts that are included.
        availability: Availability under load. None if no burst has it.
        trends: Trends of rate, RTT and retransmits, if there are enough bursts.
        disruptions: The most severe disruptions, sorted by time.
        disruptions_count: Total number of disruptions.
    """

    bursts_count: int = 0
    availability: Availability | None = None
    trends: tuple[Trend, ...] = ()
    disruptions: tuple[Disruption, ...] = ()
    disruptions_count: int = 0


class BurstTrendValues(Message):
    """Values of one burst that are needed for the trends of a run."""

    index: OwnBurstIndex
    planned_start_at: UtcDatetime
    received_bits_per_second: float | None = None
    rtt_mean_s: float | None = None
    retransmit_ratio: float | None = None
    availability: Availability | None = None
    disruptions: tuple[Disruption, ...] = ()
    disruptions_count: int = 0


class EarlyEnd(Message):
    """End of a burst before its planned end, and what its verdict rests on.

    Attributes:
        cause: Why the burst ended.
        reason: The reason as a sentence.
        decided_at: Time of the decision.
        planned_s: Seconds of measured traffic that were planned. `duration_s` has the measured
            ones.
        stop_spread_s: Time between the stops of the first and the last pair, or None if unknown.
        error_ratio: Probability that the decision is wrong, or None if the burst was not stopped
            for certainty.
        low_bits_per_second: Lower end of the confidence sequence for the received payload, in
            bit/s.
        high_bits_per_second: Upper end of the confidence sequence for the received payload, in
            bit/s.
        saved_usd: Estimated cost of the rest of the burst at real scale, in US dollars. None if
            unknown.
    """

    cause: EndCause
    reason: str
    decided_at: UtcDatetime
    planned_s: int
    stop_spread_s: float | None = None
    error_ratio: float | None = None
    low_bits_per_second: float | None = None
    high_bits_per_second: float | None = None
    saved_usd: float | None = None


class Translation(StrEnum):
    """Relation between the addresses that clients use and those that servers receive.

    Attributes:
        NONE: Servers receive the clients' own addresses.
        ONE_TO_ONE: Each of several clients has one address of its own. This shows no units.
        UNITS: Clients share the addresses of units.
    """

    NONE = "none"
    ONE_TO_ONE = "one-to-one"
    UNITS = "units"


class UnitChange(Message):
    """Unit that joined or left during a burst, while its clients had traffic on other units.

    Attributes:
        address: Translated address of the unit.
        change: Joined or left.
        at: First or last traffic of the unit.
        resolution_s: Largest error of the time, in seconds.
        flows_count: Number of streams on the unit after it joined or before it left. None if
            streams are not recorded.
        bits_per_second: Rate of the unit after it joined or before it left, in bit/s.
        flows_cut: True if the streams on a unit that left carried nothing more. False if they had
            ended before. None if streams are not recorded.
    """

    address: str
    change: Literal["joined", "left"]
    at: UtcDatetime
    resolution_s: float
    flows_count: int | None = None
    bits_per_second: float | None = None
    flows_cut: bool | None = None


class UnitSummary(Message):
    """One unit in a burst, with payload rates as measured.

    Attributes:
        address: Translated address of the unit.
        clients_count: Number of clients with traffic on the unit.
        flows_count: Number of streams that were opened through the unit. None if not recorded.
        flows_mean_count: Mean number of streams with payload over the seconds with traffic. None if
            not recorded.
        starts_per_second: Mean number of requests or connections that started per second. None if
            the engine records streams.
        received_bits_per_second: Mean payload rate between the first and last traffic in the
            window, in bit/s.
        received_half_width_bits_per_second: Half of the 95 % interval of this rate, in bit/s.
        first_at: First traffic.
        last_at: Last traffic.
        bits_per_second: Payload rate in each step of `Units.every_s`, in bit/s.
        flows: Number of streams (or of requests or connections that started) in each step.
    """

    address: str
    clients_count: int
    flows_count: int | None = None
    flows_mean_count: float | None = None
    starts_per_second: float | None = None
    received_bits_per_second: float | None = None
    received_half_width_bits_per_second: float | None = None
    first_at: UtcDatetime
    last_at: UtcDatetime
    bits_per_second: tuple[float, ...]
    flows: tuple[float, ...]


class Units(Message):
    """Units that carried a burst, from the source addresses that servers received.

    Attributes:
        translation: Relation of the clients' addresses and those that servers received.
        pairs_count: Number of pairs with both the own address and the received addresses.
        count: Number of units. None unless clients share addresses.
        missed_ratio: Probability that one more unit with an equal share had no stream (0 to 1).
        imbalance_ratio: Largest rate of a unit divided by the mean rate.
        jain_ratio: Jain's fairness index: 1 if all units have the same rate, 1 / count if one has
            all.
        median_count: Median number of units with traffic in a second of the window.
        min_count: Smallest number of units with traffic in a second of the window.
        max_count: Largest number of units with traffic in a second of the window.
        slow: Address of a unit that carries less than the others, with slower streams. None if
            there is none.
        limit: Evidence that one unit is at its limit and the others are not. None if there is none.
        start_at: Start of the first step.
        every_s: Length of a step in seconds.
        units: Results of each unit.
        changes: Units that joined or left.
    """

    translation: Translation
    pairs_count: int
    count: int | None = None
    missed_ratio: float | None = None
    imbalance_ratio: float | None = None
    jain_ratio: float | None = None
    median_count: float | None = None
    min_count: int | None = None
    max_count: int | None = None
    slow: str | None = None
    limit: str | None = None
    start_at: UtcDatetime
    every_s: float
    units: tuple[UnitSummary, ...] = ()
    changes: tuple[UnitChange, ...] = ()

    def of_address(self, address: str) -> UnitSummary:
        """Return the unit with this address."""
        return next(unit for unit in self.units if unit.address == address)


def describe_units(units: Units | None) -> str:
    """Return a sentence about the translation and the number of units.

    Args:
        units: Units of a burst. None if the records do not contain the addresses.
    """
    if units is None:
        return "Unknown: the records do not show the own and the received addresses of the clients."
    match units.translation:
        case Translation.NONE:
            return (
                "Not translated: servers received the clients' own addresses, so units cannot be "
                "counted."
            )
        case Translation.ONE_TO_ONE:
            return (
                "Translated one to one: each client has its own address, so units cannot be "
                "counted."
            )
        case Translation.UNITS:
            plural = "" if units.count == 1 else "s"
            return f"{units.count} unit{plural} carried the burst."


def describe_flows(unit: UnitSummary) -> str:
    """Return the mean number of streams on a unit, or the rate at which its requests started."""
    if unit.starts_per_second:
        return f"{formatting.number(unit.starts_per_second)} starts/s"
    return formatting.number(unit.flows_mean_count)


def unit_notes(units: Units, address: str) -> tuple[str, ...]:
    """Return texts about one unit: that it is slow, joined or left.

    Args:
        units: Units of a burst.
        address: Address of the unit.

    Returns:
        Texts without the address, empty if the unit is normal.
    """
    slow = ("slow",) if units.slow == address else ()
    changes = [change for change in units.changes if change.address == address]
    return slow + tuple(describe_change(change).removeprefix(address).strip() for change in changes)


def describe_limit(limit: float | None) -> str:
    """Return the limit of a host in brackets, or an empty text if it is unknown."""
    return "" if limit is None else f" (limit {limit:.0f})"


def describe_failures(measures: Mapping[str, float]) -> list[str]:
    """Return how many attempts failed on the clients for each reason, with the limit.

    Args:
        measures: Additional metrics of the engine by name.
    """
    return [
        f"{measures[f'failed_{name}_count']:.0f} because no {what} was left"
        f"{describe_limit(measures.get(f'{name}_limit_count'))}"
        for name, what in (("ports", "local port"), ("files", "file descriptor"))
        if f"failed_{name}_count" in measures
    ]


def describe_change(change: UnitChange) -> str:
    """Return a text about a unit that joined or left, and the traffic that it had."""
    text = f"{change.address} {change.change} at {change.at:%H:%M:%S} UTC"
    if change.flows_count is not None:
        streams = f"{change.flows_count} stream{'' if change.flows_count == 1 else 's'}"
        text += f" with {streams}{' that were cut' if change.flows_cut else ''}"
    return text


class SessionCount(Message):
    """Sessions that a device counted in a burst, compared with the connections of the fleet.

    Attributes:
        device: Name of the device.
        set_up_count: Sessions that the device set up.
        fleet_count: Connections that the clients established, or that the servers accepted if these
            are more.
        ended_count: Sessions that the device ended. None if it does not count them.
        fleet_ended_count: Connections of the fleet that ended. None if this is unknown.
    """

    device: str
    set_up_count: float
    fleet_count: float
    ended_count: float | None = None
    fleet_ended_count: float | None = None

    @property
    def set_up_residual_ratio(self) -> float | None:
        """Sessions set up / connections - 1. None without connections."""
        return self.set_up_count / self.fleet_count - 1 if self.fleet_count else None

    @property
    def ended_residual_ratio(self) -> float | None:
        """Sessions ended / connections ended - 1. None if a count is unknown."""
        if self.ended_count is None or not self.fleet_ended_count:
            return None
        return self.ended_count / self.fleet_ended_count - 1


class BurstPart(Message):
    """Other traffic of a mixed run, measured and judged as a burst of its own.

    Attributes:
        engine: Engine of this part.
        name: Name of this part.
        part_index: Part of the run, from 1.
        summary: Result of the pairs of this part.
        start_at: Start of the first second in `received_bits_per_second`.
        received_bits_per_second: Received payload rate of each second in bit/s.
        connections_per_second: Established connections of each second. Empty if the engine does not
            count them.
        open_count: Connections that were open at the end of each second, as above.
    """

    engine: str
    name: str
    part_index: int
    summary: "BurstSummary"
    start_at: UtcDatetime | None = None
    received_bits_per_second: tuple[float | None, ...] = ()
    connections_per_second: tuple[float | None, ...] = ()
    open_count: tuple[float | None, ...] = ()


class CanaryPhase(Message):
    """Canaries in one phase of a burst. The interval of the share is exact (Clopper-Pearson).

    Attributes:
        tested_count: Forbidden requests whose allowed twin arrived, or that arrived themselves.
        leaked_count: Forbidden requests that arrived.
        leak_ratio: Leaked requests divided by tested ones (0 to 1). None if none was tested.
        leak_low_ratio: Lower end of its interval (0 to 1).
        leak_high_ratio: Upper end of its interval (0 to 1).
        confidence_ratio: Confidence of the interval: 0.99.
        late_count: Leaked ones whose connection the device ended afterwards.
        silent_count: Blocked ones of which the client saw nothing.
        unknown_count: Forbidden requests for which the server could not be asked.
        allowed_count: Allowed requests with a known result.
        allowed_blocked_count: Allowed requests that did not arrive.
        allowed_blocked_ratio: Blocked allowed requests divided by all allowed ones (0 to 1).
        decision_p50_s: Median time from a request to the reset, the refusal, the device's own
            answer or the cut, in seconds.
        decision_max_s: Largest of these times, in seconds.
    """

    tested_count: int
    leaked_count: int
    leak_ratio: float | None = None
    leak_low_ratio: float | None = None
    leak_high_ratio: float | None = None
    # Summaries without this field have intervals of 95 %.
    confidence_ratio: float = 0.95
    late_count: int = 0
    silent_count: int = 0
    unknown_count: int = 0
    allowed_count: int = 0
    allowed_blocked_count: int = 0
    allowed_blocked_ratio: float | None = None
    decision_p50_s: float | None = None
    decision_max_s: float | None = None


class SignatureSummary(Message):
    """Canaries of one signature during a burst.

    Attributes:
        name: Name of the signature.
        rule: Rule that blocks it, with its id.
        during: Results during the burst.
    """

    name: str
    rule: str
    during: CanaryPhase


class CanaryStep(Message):
    """Canaries in a part of a burst, with rate and CPU at that time.

    Attributes:
        at: Start of the step.
        tested_count: Tested requests in the step.
        leaked_count: Leaked requests in the step.
        allowed_blocked_count: Allowed requests in the step that did not arrive.
        device_cpu_ratio: Mean CPU use of all devices with this telemetry (0 to 1).
    """

    at: UtcDatetime
    tested_count: int
    leaked_count: int
    allowed_blocked_count: int
    # Payload of the fleet. None if not every second is known.
    received_bits_per_second: float | None = None
    device_cpu_ratio: float | None = None


class CanarySummary(Message):
    """Results of the canaries: whether the device still blocked what its policy forbids.

    Attributes:
        consent: Person who agreed.
        before: Results before the burst, when the device was idle.
        during: Results during the burst.
        after: Results after the burst.
        signatures: Results by signature.
        first_leak_at: First leak during the burst.
        every_s: Length of a step in seconds.
        steps: Results over time, with rate and CPU.
    """

    consent: str
    # Pairs with a tested request during the burst.
    pairs_count: int
    before: CanaryPhase
    during: CanaryPhase
    after: CanaryPhase
    signatures: tuple[SignatureSummary, ...] = ()
    first_leak_at: UtcDatetime | None = None
    every_s: float
    steps: tuple[CanaryStep, ...] = ()

    def step_of(self, at: datetime) -> CanaryStep | None:
        """Return the step that contains a time, or None."""
        started = [step for step in self.steps if step.at <= at]
        return started[-1] if started else None


def describe_leaks(phase: CanaryPhase) -> str:
    """Return the leaked share of a phase with its counts and its interval."""
    if not phase.tested_count:
        return "unknown: no canary was tested"
    digits = 2 if (phase.leak_high_ratio or 0.0) < 0.1 else 1
    low, high = (
        formatting.ratio(end, digits) for end in (phase.leak_low_ratio, phase.leak_high_ratio)
    )
    return (
        f"{formatting.ratio(phase.leak_ratio, digits)} ({phase.leaked_count} of "
        f"{phase.tested_count}, {formatting.ratio(phase.confidence_ratio, 0)} interval {low} to "
        f"{high})"
    )


class BurstSummary(Message):
    """Result of one burst. Rates are received payload as measured, unless noted otherwise.

    Attributes:
        planned_end_at: Planned end of the burst.
        duration_s: Duration of the measured traffic in seconds.
        pairs_measured: Number of pairs that were measured.
        proven_ratio: Part of the planned pair-seconds with seconds from receivers (0 to 1).
        null_pairs: Names of the pairs whose tests had no bytes.
        late_pairs: Names of the pairs that started late.
        missing_pairs: Names of the pairs that were missed, refused, abandoned or lost.
        window: Window of the main metrics. None if no pair was measured.
        fleet_received_half_width_bits_per_second: Half of the 95 % interval of the fleet's received
            payload rate, in bit/s.
        header_ratio: Bytes at the IP layer divided by payload bytes.
        header_how: Source of the header ratio.
        wire_ratio: Bytes on the wire divided by payload bytes.
        headers_assumed: True if the segment size was not recorded.
        acknowledged_ratio: Largest possible bytes of TCP acknowledgements divided by payload bytes,
            from the receivers' NICs.
        start_spread_s: Time between the first data of the first and the last pair that were on
            time, in seconds.
        start_error_max_s: Largest time from the planned start to the first data of a pair, in
            seconds.
        start_error_p99_s: 99th percentile of the times from the planned start to the first data, in
            seconds.
        clock_bound_max_s: Largest error bound of a clock, in seconds.
        worst_bits_per_second: Lowest rate that the missing rows allow, in bit/s.
        peak_pair_bits_per_second: Largest rate of a pair in one second, in bit/s.
        flows: Results for each direction.
        client: Hosts of the clients.
        server: Hosts of the servers.
        first_part_verdict: Verdict of the first part of a mixed run. `verdict` is for all parts.
        cliff: Fall of the rate that lasts to the end of the window. None if there is none.
        bottleneck_details: Evidence, counter-evidence and advice.
        verdict: Verdict of the burst.
        availability: Availability under load. None if there are no seconds.
        disruptions: The most severe disruptions, sorted by time.
        disruptions_count: Total number of disruptions.
        silent_streams: Streams that were silent for the longest time.
        silent_controls_count: Pairs with a control connection that was idle for more than 4
            minutes.
        outages: Outages of queue, table and disk that agents have recorded.
        late_reports_count: Reports that were delayed on the disk of an agent.
        measures: Additional engine metrics over all pairs.
        differences: Fields with an effective value that is different from the requested one.
        unsteady_clocks: Pairs with an unstable clock. None if all clocks were stable, as far as
            known.
        clocks_read_ratio: Part of the measured pair-seconds with clock readings before and after at
            both ends (0 to 1). None if nothing was measured.
        clocks_unread_s: Measured pair-seconds without such readings, if the clocks are not known to
            have moved.
        contradictions: Results of the consistency checks between sources.
        foreign_tests: Tests by other clients on the endpoints of the run.
        foreign_rows: The first of the invalid rows, which are not used.
        foreign_rows_count: Total number of these rows.
        device: All devices together. None if there is no telemetry.
        devices: Each device.
        client_cpu: CPU time of the clients per payload. None if it was not reported.
        server_cpu: CPU time of the servers per payload. None if it was not reported.
        taken_cpu: CPU time that the hypervisor took. None if no host has reported it.
        latency: Results from the probes, or None if there were no probes.
        early_end: Early end of the burst. None if it had its planned duration.
        units: Units of the device. None if the records do not have the addresses that servers
            received.
        pairs: Results of each pair. Empty in large runs, see `RunSummary.pairs_omitted`.
        parts: Mixed run: results of the other traffic. All other values are for the pairs of
            `traffic`.
        sessions: Devices that count sessions, compared with the connections of the fleet.
        canary: Results of the canaries. None if the run has none.
    """

    index: OwnBurstIndex
    planned_start_at: UtcDatetime
    planned_end_at: UtcDatetime
    duration_s: int
    pairs_planned: int
    pairs_measured: int
    completeness_ratio: float
    completeness: Completeness
    proven_ratio: float
    null_pairs: tuple[str, ...] = ()
    late_pairs: tuple[str, ...] = ()
    missing_pairs: tuple[str, ...] = ()
    window: Window | None = None
    fleet_received_bits_per_second: float | None = None
    fleet_received_half_width_bits_per_second: float | None = None
    fleet_sent_bits_per_second: float | None = None
    fleet_ip_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    header_ratio: float
    header_how: str
    wire_ratio: float
    headers_assumed: bool
    acknowledged_ratio: float | None = None
    start_spread_s: float | None = None
    start_error_max_s: float | None = None
    start_error_p99_s: float | None = None
    clock_bound_max_s: float | None = None
    worst_bits_per_second: float | None = None
    peak_pair_bits_per_second: float | None = None
    flows: tuple[FlowSummary, ...] = ()
    client: HostSummary = HostSummary()
    server: HostSummary = HostSummary()
    cliff: CliffSummary | None = None
    reconciliation: Reconciliation | None = None
    bottleneck: Annotated[BottleneckName, renamed("bottleneck", "limiter")] = BottleneckName.UNKNOWN
    bottleneck_details: Annotated[Bottleneck, renamed("bottleneck_details", "limiter_details")] = (
        UNKNOWN
    )
    verdict: Verdict = Verdict.INCONCLUSIVE
    first_part_verdict: Verdict | None = None
    findings: tuple[Finding, ...] = ()
    availability: Availability | None = None
    disruptions: tuple[Disruption, ...] = ()
    disruptions_count: int = 0
    silent_streams: tuple[SilentStream, ...] = ()
    silent_controls_count: int = 0
    outages: tuple[Outage, ...] = ()
    late_reports_count: int = 0
    measures: tuple[MeasureSummary, ...] = ()
    differences: tuple[Difference, ...] = ()
    unsteady_clocks: UnsteadyClocks | None = None
    clocks_read_ratio: float | None = None
    clocks_unread_s: int = 0
    contradictions: tuple[Contradiction, ...] = ()
    foreign_tests: Annotated[tuple[ForeignTest, ...], renamed("foreign_tests", "strays")] = ()
    foreign_rows: tuple[ForeignRow, ...] = ()
    foreign_rows_count: int = 0
    device: DeviceSummary | None = None
    devices: tuple[DeviceSummary, ...] = ()
    parts: "tuple[BurstPart, ...]" = ()
    sessions: tuple[SessionCount, ...] = ()
    client_cpu: CpuCost | None = None
    server_cpu: CpuCost | None = None
    taken_cpu: TakenCpu | None = None
    latency: Latency | None = None
    early_end: EarlyEnd | None = None
    units: Units | None = None
    canary: CanarySummary | None = None
    pairs: tuple[PairSummary, ...] = ()


class BurstDistribution(Message):
    """Distribution of one metric over all bursts in a run.

    Attributes:
        mean: Mean.
        median: Median.
        p5: 5th percentile.
        cov_ratio: Standard deviation divided by the mean. None with fewer than two bursts.
    """

    bursts_count: int
    mean: float
    median: float
    p5: float
    p95: float
    cov_ratio: float | None = None


class RunSummary(Message):
    """Result of a run. Rates are as measured, and ``real_*`` fields are these times ``scale``.

    Attributes:
        computed_at: Time that was used to compute the summary.
        target_bits_per_second: Target rate in bit/s at `target_layer`, divided by `scale`. None if
            there is no target.
        plan_sha256: SHA-256 of the plan, which shows the requirements at launch.
        decision_rule: Rule for the verdict, see docs/verdict.md.
        limit_bits_per_second: Target minus tolerance as measured, in bit/s.
        pairs_measured: Number of pairs that were measured in every burst.
        bursts_planned: Number of bursts that were planned.
        verdict: Verdict of the run.
        fleet_received_half_width_bits_per_second: Half of the 95 % interval of the fleet's received
            payload rate, in bit/s.
        real_target_bits_per_second: Target rate at real scale, in bit/s.
        real_fleet_received_bits_per_second: Payload rate that the fleet received at real scale, in
            bit/s.
        real_fleet_sent_bits_per_second: Payload rate that the fleet sent at real scale, in bit/s.
        real_fleet_ip_bits_per_second: Rate that the fleet received at the IP layer and at real
            scale, in bit/s.
        real_firewall_bits_per_second: Rate of the device counter at real scale, in bit/s.
        unit_bits_per_second: Mean payload rate through a unit by translated addresses, in bit/s.
        unit_min_bits_per_second: The same of the slowest unit and burst, in bit/s.
        unit_max_bits_per_second: The same of the busiest unit and burst, in bit/s.
        real_unit_bits_per_second: Mean payload rate through a unit at real scale, in bit/s.
        real_unit_min_bits_per_second: The same of the slowest unit and burst, in bit/s.
        real_unit_max_bits_per_second: The same of the busiest unit and burst, in bit/s.
        received_over_bursts: Distribution of the received payload rate over the bursts.
        rtt_mean_s: Mean round-trip time over bursts and flows, in seconds.
        retransmits_count: Number of retransmitted segments in the windows of the bursts.
        retransmit_ratio: Retransmitted segments divided by all sent ones (0 to 1), as the mean over
            bursts and flows.
        client_cpu_mean_ratio: CPU use of the clients' hosts (0 to 1).
        server_cpu_mean_ratio: CPU use of the servers' hosts (0 to 1).
        client_cpu_s_per_gigabyte: CPU time of the clients' engines in seconds per gigabyte, mean
            over bursts.
        server_cpu_s_per_gigabyte: CPU time of the servers' engines in seconds per gigabyte, mean
            over bursts.
        probe_p50_s: Median round-trip time of the probes under load in seconds, mean over bursts.
        probe_p99_s: 99th percentile of the probes' round-trip time in the worst burst, in seconds.
        probe_loss_ratio: Lost probes divided by sent ones in the worst burst (0 to 1).
        start_spread_s: Time between the first data of the first and the last pair in the worst
            burst, in seconds.
        start_error_max_s: Largest time from the planned start to the first data of a pair, in
            seconds.
        start_error_p99_s: 99th percentile of the times from the planned start to the first data, in
            seconds.
        bottleneck_details: Evidence, counter-evidence and advice.
        run_trends: Trends, availability and disruptions. None if there are too few bursts.
        guards: Values of the guards, and the impact second by second if one of them stopped the
            run.
        part_names: Names of the parts of a mixed run. Fields of the run and of its bursts are of
            the first one, and the others are in `parts` of each burst.
        pairs_omitted: True if the pairs are only in the documents of the bursts, because there are
            many.
        bursts: Result of each burst.
    """

    run_id: RunId
    scenario: str
    computed_at: UtcDatetime
    scale: float
    target_bits_per_second: float | None
    target_layer: Layer
    plan_sha256: str | None = None
    decision_rule: str = "guarded-acceptance"
    limit_bits_per_second: float | None = None
    pairs_planned: int
    pairs_measured: int
    bursts_planned: int
    verdict: Verdict
    completeness_ratio: float
    completeness: Completeness
    fleet_received_bits_per_second: float | None = None
    fleet_received_half_width_bits_per_second: float | None = None
    fleet_sent_bits_per_second: float | None = None
    fleet_ip_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    real_target_bits_per_second: float | None = None
    real_fleet_received_bits_per_second: float | None = None
    real_fleet_sent_bits_per_second: float | None = None
    real_fleet_ip_bits_per_second: float | None = None
    real_firewall_bits_per_second: float | None = None
    unit_bits_per_second: float | None = None
    unit_min_bits_per_second: float | None = None
    unit_max_bits_per_second: float | None = None
    real_unit_bits_per_second: float | None = None
    real_unit_min_bits_per_second: float | None = None
    real_unit_max_bits_per_second: float | None = None
    received_over_bursts: BurstDistribution | None = None
    rtt_mean_s: float | None = None
    retransmits_count: int | None = None
    retransmit_ratio: float | None = None
    client_cpu_mean_ratio: float | None = None
    server_cpu_mean_ratio: float | None = None
    client_cpu_s_per_gigabyte: float | None = None
    server_cpu_s_per_gigabyte: float | None = None
    probe_p50_s: float | None = None
    probe_p99_s: float | None = None
    probe_loss_ratio: float | None = None
    start_spread_s: float | None = None
    start_error_max_s: float | None = None
    start_error_p99_s: float | None = None
    reconciliation: Reconciliation | None = None
    bottleneck: Annotated[BottleneckName, renamed("bottleneck", "limiter")] = BottleneckName.UNKNOWN
    bottleneck_details: Annotated[Bottleneck, renamed("bottleneck_details", "limiter_details")] = (
        UNKNOWN
    )
    findings: tuple[Finding, ...] = ()
    run_trends: Annotated[RunTrends | None, renamed("run_trends", "course")] = None
    guards: GuardReport | None = None
    part_names: tuple[str, ...] = ()
    pairs_omitted: bool = False
    bursts: tuple[BurstSummary, ...] = ()


def canonical(summary: BurstSummary | RunSummary) -> bytes:
    """Return the text of a summary. Equal values always have equal bytes."""
    return summary.to_json().encode()


def parse_run(stored: bytes) -> RunSummary:
    """Parse the stored summary of a run, and ignore fields that no longer exist.

    The summary can be computed again from the stored rows.
    """
    return RunSummary.model_validate_json(stored, extra="ignore")


def parse_burst(stored: bytes) -> BurstSummary:
    """Parse the stored summary of a burst, and ignore fields that no longer exist."""
    return BurstSummary.model_validate_json(stored, extra="ignore")


def combined(parts: Iterable[Availability]) -> Availability:
    """Add up availabilities. The sum is exact, so that order and grouping do not matter."""
    listed = list(parts)
    return Availability.of(
        sum(part.planned_s for part in listed),
        sum(part.up_s for part in listed),
        sum(part.down_s for part in listed),
        max((part.resolution_s for part in listed if part.resolution_s is not None), default=None),
    )


def severity_rank(disruption: Disruption) -> tuple[float, ...]:
    """Return a sort key with the most severe disruption first.

    The first key is the number of pair-seconds, which is known for all kinds, and the next is
    bytes.
    """
    seconds = disruption.pairs_count * max(disruption.duration_s, 1.0)
    return -seconds, -(disruption.short_bytes or 0.0), disruption.start_at.timestamp()
