"""Models for the results of a burst and a run, which can be recomputed byte for byte.

Rates are as measured. In a lab with a scale, the ``real_*`` fields are these rates times the scale.
"""

import math
from collections.abc import Iterable
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
    """Verdict of a run or of a check."""

    PASS = "pass"  # noqa: S105  # a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    # The run is complete, but no target was set.
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
        """Return a ratio that is shown with one decimal."""
        return cls(value=ratio, text=formatting.ratio(ratio, 1), worst=worst)

    @classmethod
    def residual(cls, ratio: float) -> "FindingValue":
        """Return a residual. The one farthest from zero is the worst."""
        return cls(value=ratio, text=formatting.signed_ratio(ratio), worst="magnitude")

    @classmethod
    def time(cls, seconds: float, worst: Literal["low", "high"] = "high") -> "FindingValue":
        """Return a time in s."""
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
    """A statement about the result, with its values and the next step."""

    id: Annotated[str, renamed_values(FORMER_FINDING_IDS)]
    # The conclusion, its cause, or additional information.
    kind: Literal["verdict", "cause", "context"]
    severity: Severity
    # Findings are sorted by weight, with the highest first.
    weight: float
    sentence: str
    next_step: str | None = None


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
    """
    update = {"kind": "context", "severity": "note"}
    return warning(id, weight, sentence, next_step, value).model_copy(update=update)


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
    """Round trips in one phase of a burst."""

    sent_count: int
    answered_count: int
    # Lost / sent probes, or None if none were sent.
    loss_ratio: float | None = None
    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


class PathLatency(Message):
    """Round trips of a pair or of the fleet in a burst."""

    before: PhaseLatency
    during: PhaseLatency
    after: PhaseLatency
    buffer_delay_ratio: float | None = None


class MatchMethod(StrEnum):
    """Method that was used to match a server-side test to a pair."""

    COOKIE = "cookie"
    # The same address and port near the start time. A port can have only one test at a time.
    ENDPOINT = "endpoint"


class Basis(StrEnum):
    """Source of the received bytes of a pair."""

    # Seconds from the receiving end.
    RECEIVER = "receiver"
    # Seconds from the receiving end, some filled from the sender.
    MIXED = "mixed"
    # Seconds from the sender, scaled by the received and sent totals of the pair.
    SENDER_SCALED = "sender-scaled"
    # Seconds from the sender, if there are no totals to scale them.
    SENDER = "sender"
    # Received total from the engine, distributed evenly.
    TOTALS = "totals"
    NONE = "none"


class State(StrEnum):
    """State of a planned pair-second."""

    MEASURED = "measured"
    # It ran, but the difference to the start time was above the limit.
    LATE = "late"
    # The engine failed, or did not transfer any bytes.
    NULL = "null"
    # It did not run, because it was not taken or was released too late.
    MISSED = "missed"
    # The agent refused it on purpose.
    REFUSED = "refused"
    # It was started and then stopped: agent lost, run cancelled, or lease expired.
    ABANDONED = "abandoned"
    # It was taken, but there is no report or a gap in the report.
    LOST = "lost"
    # It is still in progress.
    PENDING = "pending"


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
    # Measured / planned, or 0 if nothing was planned.
    completeness_ratio: float = 0.0

    @classmethod
    def of(cls, seconds: dict[State, int]) -> "Completeness":
        """Create this from seconds by state."""
        planned = sum(seconds.values())
        measured = seconds.get(State.MEASURED, 0)
        return cls(
            planned_s=planned,
            completeness_ratio=measured / planned if planned else 0.0,
            **{f"{state}_s": seconds.get(state, 0) for state in State},
        )

    def seconds(self, state: State) -> int:
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
    """

    start_at: UtcDatetime
    end_at: UtcDatetime
    window_s: int
    # Seconds that are common to all measured pairs.
    common_s: int
    # Seconds that were cut from the start as ramp (MSER).
    ramp_s: int
    # Payload rate in the seconds that were cut.
    ramp_bits_per_second: float | None = None
    # Payload rate in the slowest sustained part.
    slowest_bits_per_second: float | None = None
    # Standard deviation of such a mean.
    slowest_noise_bits_per_second: float | None = None
    # Start of this part, in seconds from the start of the window.
    slowest_from_s: int | None = None
    # Length of this part, or None if the window is too short for parts.
    slowest_s: int | None = None
    # The same based only on seconds from receivers, if some are missing.
    slowest_proven_bits_per_second: float | None = None
    # Recorded part of the measured pairs' seconds in the window.
    covered_ratio: float = 1.0
    # Maximum number of recorded seconds of one measured pair outside `common_s`.
    outside_s: int = 0
    # Name of this pair.
    outside_pair: str | None = None
    # Length of the receivers' readings, or None for one second.
    reading_s: float | None = None
    # True if it is shorter than the 300 s that are recommended by RFC 9411.
    short: bool


class FlowSummary(Message):
    """One flow of the fleet over the window. Rates are received payload unless noted otherwise."""

    flow: Flow
    received_bits_per_second: float | None = None
    # Half width for the 95 % interval, with correlation and clock error.
    received_half_width_bits_per_second: float | None = None
    # Received payload with headers at the IP layer, the inspected throughput in RFC 9411.
    ip_bits_per_second: float | None = None
    # Payload from all senders with data.
    sent_bits_per_second: float | None = None
    # Pairs with sender data in sent_bits_per_second.
    sent_pairs_count: int = 0
    # Part that was received by late pairs.
    late_bits_per_second: float | None = None
    # Part that is based on seconds from receivers.
    proven_ratio: float | None = None
    # Over the seconds of the fleet's sum.
    second_median_bits_per_second: float | None = None
    second_p5_bits_per_second: float | None = None
    second_p95_bits_per_second: float | None = None
    # Standard deviation / mean.
    second_cov_ratio: float | None = None
    # Over the means of the pairs in the window.
    pair_mean_bits_per_second: float | None = None
    pair_median_bits_per_second: float | None = None
    pair_p5_bits_per_second: float | None = None
    pair_p95_bits_per_second: float | None = None
    pair_cov_ratio: float | None = None
    # Jain's fairness index over pairs.
    jain_ratio: float | None = None
    # Variance of the sum / sum of the variances of the pairs.
    share_movement_ratio: float | None = None
    # In the window, from senders with data.
    retransmits_count: int | None = None
    # Ratio to all segments that were sent.
    retransmit_ratio: float | None = None
    # TCP payload of a full packet, as used for the overhead.
    mss_bytes: int | None = None
    tcp_efficiency_ratio: float | None = None
    rtt_mean_s: float | None = None
    rtt_p50_s: float | None = None
    rtt_p95_s: float | None = None
    rtt_max_s: float | None = None
    # Mean over pairs on the idle path, or else the smallest value of any pair under load.
    rtt_baseline_s: float | None = None
    # Source of the baseline. None is the smallest value under load, which includes a standing
    # queue.
    rtt_baseline_how: Literal["idle"] | None = None
    rtt_pairs_count: int = 0
    buffer_delay_ratio: float | None = None
    transfer_time_ratio: float | None = None
    # For UDP datagrams.
    loss_ratio: float | None = None
    loss_pairs_count: int = 0


class HostSummary(Message):
    """Hosts of one side over the window."""

    # All cores, mean over hosts.
    cpu_mean_ratio: float | None = None
    # All cores, mean of the busiest host.
    cpu_max_ratio: float | None = None
    # Mean of the busiest core on any host.
    core_max_ratio: float | None = None
    # Sent rate / NIC limit on the host where this is highest.
    nic_max_ratio: float | None = None
    # NIC drops in the burst.
    drops_count: int | None = None
    # Number of hosts with counters.
    hosts_count: int = 0


class PairSummary(Message):
    """One pair in one burst. Rates are payload over the window of the fleet, for all flows."""

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
    joined_by: MatchMethod | None = None
    # Only for imports: clock of the server minus clock of the client, computed from the test, and
    # half of its 95 % interval.
    ends_offset_s: float | None = None
    ends_offset_bound_s: float | None = None
    # Part of the pair's recorded seconds outside the window that is common to all measured pairs.
    outside_ratio: float | None = None
    received_bits_per_second: float | None = None
    sent_bits_per_second: float | None = None
    # Part of the rate received by the fleet.
    share_ratio: float | None = None
    # Over the seconds of the window.
    cov_ratio: float | None = None
    retransmits_count: int | None = None
    rtt_mean_s: float | None = None
    rtt_min_s: float | None = None
    # Before the burst, on the same path.
    rtt_idle_s: float | None = None
    cwnd_bytes: float | None = None
    client_cpu_ratio: float | None = None
    client_core_ratio: float | None = None
    # Sent rate at the link layer / NIC limit.
    client_nic_ratio: float | None = None
    # Part of the samples in which the egress queue (qdisc) of the host was not empty.
    client_egress_queued_ratio: float | None = None
    client_vm_size: str | None = None
    server_cpu_ratio: float | None = None
    server_core_ratio: float | None = None
    server_nic_ratio: float | None = None
    server_egress_queued_ratio: float | None = None
    server_vm_size: str | None = None
    # Round trips of probes.
    latency: PathLatency | None = None


class CliffSummary(Message):
    """Fall of the total rate that lasts until the end of the window."""

    at: UtcDatetime
    before_bits_per_second: float
    after_bits_per_second: float


class DisruptionKind(StrEnum):
    """Kind of a disruption."""

    # No bytes for at least one second.
    STALL = "stall"
    # A low rate, but not zero.
    DROP = "drop"
    # Connections of the engine failed, and the rest was not sent.
    RESET = "reset"
    # Stopped on purpose or with the agent: killed, lease expired or cancelled.
    CUT = "cut"
    # Started again because the first connections failed.
    RECONNECT = "reconnect"
    # Never sent, because it was not taken or was refused.
    ABSENT = "absent"
    # Seconds that were not recorded, so that the traffic is unknown.
    GAP = "gap"


# Part of the planned pairs.
Scope = Literal["one", "some", "all"]


class Disruption(Message):
    """Disruption of one or more pairs at one time. An absence can last for many bursts."""

    kind: DisruptionKind
    burst_index: BurstIndex
    # Number of consecutive bursts, starting with that one.
    bursts_count: int = 1
    # Start of the first event.
    start_at: UtcDatetime
    # End of the last event.
    end_at: UtcDatetime
    # In planned seconds, if it is in several bursts.
    duration_s: float
    scope: Scope
    pairs_count: int
    # At most ten of them.
    pairs: tuple[str, ...]
    # Payload below the running median, or None if unknown.
    short_bytes: float | None = None
    # Causes from the records, at most three.
    causes: tuple[str, ...] = ()
    # Length of the readings, if it is more than a second. The start is in the first reading, and
    # the end is in the last one.
    resolution_s: float | None = None


class SilentStream(Message):
    """Stream that had no traffic for some seconds, but other streams in the pair had."""

    pair: str
    flow: Flow
    # Port to find it in the session table of a device, or None if unknown.
    client_port: int | None
    # Number of streams in the flow.
    streams_count: int | None
    from_at: UtcDatetime
    duration_s: float


class Availability(Message):
    """Planned pair-seconds by whether the required load was carried. They sum to ``planned_s``."""

    planned_s: int = 0
    # At or above the minimum.
    up_s: int = 0
    # Below the minimum, or the engine's connections failed.
    down_s: int = 0
    # Not recorded, or no agent tried to send.
    unknown_s: int = 0
    # Part of the planned seconds.
    up_ratio: float = 0.0
    # Up / (up + down), or None if nothing is known.
    known_ratio: float | None = None
    # Length of the longest readings, if it is more than a second. The mean of such a reading can
    # hide a shorter outage.
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
    """Test by another client on an endpoint of the run during a burst."""

    # Index of the pair with this endpoint.
    pair_index: int
    address: str
    port: int
    started_at: UtcDatetime
    client_address: str | None = None
    cookie: str | None = None
    # Sum of its seconds.
    received_bytes: int | None = None


class ForeignRow(Message):
    """Row of an agent with the id of another agent, endpoint, run, pair or burst."""

    # Partition key and row key.
    row: str
    # Name of the invalid field.
    field: str
    # Value of the field, and the planned value.
    problem: Annotated[str, renamed("problem", "said")]


class Rule(StrEnum):
    """Rule for a consistency check."""

    # Values that are negative, not a number, reversed or overlapping.
    ROWS = "rows"
    RECEIVED_OVER_SENT = "received-over-sent"
    # The total of an engine and the sum of the seconds from either end.
    TOTALS = "totals"
    SENT_OVER_OFFERED = "sent-over-offered"
    OVER_NIC = "over-nic"
    OVER_WINDOW = "over-window"
    # The NIC counters are lower than the payload of the engine.
    HOST_COUNTERS = "host-counters"
    # The two ends of a pair have different start times.
    STAMPS = "stamps"
    # Two pairs have the same data.
    COPIED = "copied"


class Contradiction(Message):
    """Two sources that cannot both be correct."""

    rule: Rule
    # None for the sums of the fleet.
    pair: str | None = None
    flow: Flow | None = None
    # Side with this value, if it is from one end.
    side: Side | None = None
    # Number of rows, bytes, or seconds for start times.
    observed: Annotated[float, renamed("observed", "said")]
    # Limit in the same unit, without tolerance.
    limit: Annotated[float, renamed("limit", "bound")]


class Difference(Message):
    """Field with an effective value that is different from the requested one."""

    field: str
    requested: Annotated[str, renamed("requested", "asked")]
    # Value in most pairs.
    effective: Annotated[str, renamed("effective", "did")]
    pairs_count: int
    # The first of these pairs.
    pairs: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if self.pairs_count > len(self.pairs) else ""
        return (
            f"{self.field}: {self.requested} requested, {self.effective} used by "
            f"{self.pairs_count} pairs ({', '.join(self.pairs)}{more})"
        )


class CpuCost(Message):
    """CPU time per payload at one end, over the pairs with both values."""

    # User and system time of the engine processes, without interrupts.
    cpu_s_per_gigabyte: float
    # Time of the whole hosts, if each host has only one agent.
    host_cpu_s_per_gigabyte: float | None = None
    pairs_count: int


class TakenCpu(Message):
    """Part of the hosts' CPU time that was used by other guests of the hypervisor (steal time)."""

    # Number of hosts with this value.
    hosts_count: int
    # Part of the time of all cores, 0 to 1.
    mean_ratio: float
    worst_ratio: float
    worst_host: str


class UnsteadyClocks(Message):
    """Pairs with recorded seconds in which the clock of an end was not stable."""

    pairs_count: int
    # Measured pair-seconds of these pairs.
    measured_s: int
    # Name and clock problem of the first few pairs.
    examples: Annotated[tuple[str, ...], renamed("examples", "said")]


class Outage(Message):
    """Outage of one kind, for all agents that were affected by it."""

    kind: OutageKind
    from_at: UtcDatetime
    # None if it had not ended.
    to_at: UtcDatetime | None = None
    # Number of agents that were affected.
    affected_agents_count: Annotated[int, renamed("affected_agents_count", "agents_count")]
    # Number of agents with any record for this burst.
    reporting_agents_count: Annotated[int, renamed("reporting_agents_count", "asked_count")]
    # Number of failed attempts, delayed writes or duplicates.
    count: int


class MeasureSummary(Message):
    """Additional engine metric over the pairs that have reported it."""

    # Name used by the engine, with a quantile as in ``latency_p99``.
    name: str
    value: float
    # One of: s, ratio, count, /s, bytes.
    unit: str
    # Number of pairs that have reported it.
    pairs_count: int


# All devices of a run together.
ALL_DEVICES: Final = ""


class DevicePlacement(Message):
    """Smallest or largest values of a metric if the time of its readings is uncertain.

    All times within the error bound are included.
    """

    mean: float
    p95: float
    min: float
    max: float


class DeviceFigure(Message):
    """One metric of a device over the window, based on telemetry for each second."""

    mean: float
    p95: float
    min: float
    max: float
    # Mean of the 30 s before the burst.
    idle: float | None = None
    # Mean of the highest instance (such as a core), if there are several.
    busiest: float | None = None
    instances_count: int = 1
    # Part of the window with known values.
    covered_ratio: float
    # Error bound for the time of the readings in seconds, if it matters.
    bound_s: float = 0.0
    # None if all possible times give the same value.
    at_least: DevicePlacement | None = None
    at_most: DevicePlacement | None = None


class DeviceSummary(Message):
    """One device in the window, or the sum, mean or worst value for all devices.

    The aggregation for each metric is in
    :data:`broadside.coordinator.core.measure.telemetry.KINDS`. None means that there is no
    telemetry.
    """

    # Device name, or ALL_DEVICES.
    device: str
    # Part of the traffic of all devices. None if unknown, or if there is only one device.
    share_ratio: float | None = None
    cores_count: int | None = None
    # CPU time in the window.
    cpu_s: float | None = None
    # CPU time per payload that the device carried.
    cpu_s_per_gigabyte: float | None = None
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
    # Pings to the device itself.
    ping_icmp_s: DeviceFigure | None = None
    ping_tcp_s: DeviceFigure | None = None
    ping_loss_ratio: DeviceFigure | None = None
    # Checks of a URL behind the device.
    url_s: DeviceFigure | None = None
    url_failed_ratio: DeviceFigure | None = None


class Spike(Message):
    """Time of at least one second in which probes were lost or slow."""

    from_at: UtcDatetime
    to_at: UtcDatetime
    pairs_count: int
    # The first of these pairs.
    pairs: tuple[str, ...]
    # None if no probe was answered.
    rtt_max_s: float | None = None
    lost_count: int = 0


class Latency(Message):
    """Results of the probes in a burst, over the pairs with probes."""

    fleet: PathLatency
    # Number of pairs that have recorded probes.
    pairs_count: int
    # Number of these pairs that have sent at least 95 % of the probes.
    complete_pairs_count: Annotated[int, renamed("complete_pairs_count", "whole_pairs_count")]
    # Pair with the highest 99th percentile in the burst.
    worst_pair: str | None = None
    worst_p99_s: float | None = None
    # Sorted by time.
    spikes: tuple[Spike, ...] = ()
    spikes_count: int = 0


class BottleneckName(StrEnum):
    """Name of a possible bottleneck."""

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
}


class Bottleneck(Message):
    """Bottleneck of a burst with its evidence, or the reason why it is unknown."""

    name: BottleneckName
    evidence: tuple[str, ...] = ()
    # Evidence that would show a different bottleneck.
    refuted_by: str | None = None
    # If it is unknown: the missing data, and how to get it.
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


class Cause(Message):
    """Possible cause of a residual."""

    id: CauseId
    # Part of the expected bytes that this cause would explain, with the sign of the residual.
    share_ratio: float
    sentence: str


class Reconciliation(Message):
    """Comparison of a device counter with the fleet, over one burst or a whole run."""

    source: str
    layer: str
    grain_s: float
    # Full bins in the steady window, or all bins that overlap the burst.
    basis: Literal["rate", "bytes"]
    # None if we cannot estimate the lag. There will be no residual in this case.
    lag_s: float | None = None
    lag_uncertainty_s: float | None = None
    # Change of the lag from the first to the last burst. If it is above 500 ppm of the time between
    # them, it is not a clock error but a delay that changes.
    lag_drift_s: float = 0.0
    # Counted / expected bytes for all lags that match, only if these lags are different.
    lags_scale_ratio: float | None = None
    # Bytes at the layer of the ledger / payload.
    overhead_ratio: float
    # From recorded segment sizes, from 1500-byte packets, or from the median burst of this run if
    # the layer of the ledger is unknown.
    overhead_how: Literal["recorded", "assumed", "fitted"]
    # As counted, including the idle level from other traffic.
    firewall_bits_per_second: float | None = None
    # The same, not including the idle level.
    crossed_bits_per_second: float | None = None
    # For the bins in `basis`, not including the idle level.
    firewall_bytes: float | None = None
    # Payload of the fleet with overhead, in the same bins.
    expected_bytes: float | None = None
    # Firewall / expected - 1, not including the idle level. If the run should bypass the device:
    # firewall / bytes that would be expected if it did not.
    residual_ratio: float | None = None
    # Distance to the farther end of the interval.
    residual_uncertainty_ratio: float | None = None
    # 95 % interval.
    residual_low_ratio: float | None = None
    residual_high_ratio: float | None = None
    # Part of the interval, at both ends, because the layer of the ledger is unknown.
    layer_ratio: float = 0.0
    # The same at the low end, or None if it is equal to `layer_ratio`.
    layer_low_ratio: float | None = None
    # Part of the interval at the low end, for acknowledgements and for lost or repeated bytes that
    # a ledger can include.
    extra_ratio: float = 0.0
    # Fleet bytes in unknown bins / all fleet bytes.
    unknown_ratio: float = 0.0
    # Level of the ledger when there is no planned traffic.
    baseline_bits_per_second: float | None = None
    # Distance to the farther end of the 95 % interval, for the mean of a burst.
    baseline_uncertainty_bits_per_second: float | None = None
    # Based on bins that have no planned traffic, fitted together with the fleet's bytes, or only
    # limited by the lowest bin.
    baseline_how: Literal["quiet", "fitted", "bounded"] | None = None
    # Bytes above that level in one burst of unplanned traffic, which is not included in the level.
    unplanned_bytes: float | None = None
    full_bins_count: int = 0
    # Over full bins.
    ledger_cov_ratio: float | None = None
    # Bins with values that are not possible for any device.
    rejected_bins_count: int = 0
    # Largest payload that the bins of the slowest part of the window can contain, the length of
    # this part and the standard deviation of such a mean. None if it is not needed, or if the bins
    # are too long.
    slowest_bits_per_second: float | None = None
    slowest_noise_bits_per_second: float | None = None
    slowest_s: int | None = None
    # Goodness of fit: largest distance between the cumulative curves for counted and predicted
    # bytes, relative to all bytes in the burst, and the limit for it. None if it was not computed.
    fit_distance_ratio: float | None = None
    fit_limit_ratio: float | None = None
    # True if the run should not cross the device.
    bypassed: bool = False
    # Flows that the counter is configured to count. If empty, it will count all flows.
    counted_flows: tuple[Flow, ...] = ()
    # Other runs with traffic in this ledger.
    overlapping_run_ids: Annotated[
        tuple[str, ...], renamed("overlapping_run_ids", "neighbours")
    ] = ()
    causes: tuple[Cause, ...] = ()

    @property
    def residual_ends(self) -> tuple[float, float]:
        """Ends of the 95 % interval of the residual, from the half width in older summaries."""
        middle, half = self.residual_ratio or 0.0, self.residual_uncertainty_ratio or 0.0
        low, high = self.residual_low_ratio, self.residual_high_ratio
        return middle - half if low is None else low, middle + half if high is None else high


class Trend(Message):
    """Slope of a metric over the run in relation to its median, with a 95 % interval."""

    # Metric name.
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
    """Trends, availability and disruptions over all bursts in a run."""

    # Number of bursts that are included.
    bursts_count: int = 0
    # None if no burst has this value.
    availability: Availability | None = None
    # Rate, RTT and retransmits, if there are enough bursts.
    trends: tuple[Trend, ...] = ()
    # The most severe disruptions, sorted by time.
    disruptions: tuple[Disruption, ...] = ()
    # Total number of disruptions.
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
    """End of a burst before its planned end, and what its verdict rests on."""

    cause: EndCause
    reason: str
    decided_at: UtcDatetime
    # Seconds of measured traffic that were planned. `duration_s` has the measured ones.
    planned_s: int
    # Time between the stops of the first and the last pair, or None if unknown.
    stop_spread_s: float | None = None
    # Probability that the decision is wrong, or None if the burst was not stopped for certainty.
    error_ratio: float | None = None
    # Ends of the confidence sequence for the received payload.
    low_bits_per_second: float | None = None
    high_bits_per_second: float | None = None
    # Estimated cost of the rest of the burst at real scale, or None if unknown.
    saved_usd: float | None = None


class Translation(StrEnum):
    """Relation between the addresses that clients use and those that servers receive."""

    # Servers receive the clients' own addresses.
    NONE = "none"
    # Each of several clients has one address of its own. This shows no units.
    ONE_TO_ONE = "one-to-one"
    # Clients share the addresses of units.
    UNITS = "units"


class UnitChange(Message):
    """Unit that joined or left during a burst, while its clients had traffic on other units."""

    address: str
    change: Literal["joined", "left"]
    # First or last traffic of the unit.
    at: UtcDatetime
    resolution_s: float
    # Streams on the unit after it joined or before it left. None if streams are not recorded.
    flows_count: int | None = None
    # Rate of the unit after it joined or before it left.
    bits_per_second: float | None = None
    # True if the streams on a unit that left carried nothing more. False if they had ended before.
    # None if streams are not recorded.
    flows_cut: bool | None = None


class UnitSummary(Message):
    """One unit in a burst, with payload rates as measured."""

    address: str
    # Number of clients with traffic on the unit.
    clients_count: int
    # Streams that were opened through the unit. None if not recorded.
    flows_count: int | None = None
    # Streams with payload, as the mean over the seconds with traffic. None if not recorded.
    flows_mean_count: float | None = None
    # Mean over the seconds of the window between its first and last traffic.
    received_bits_per_second: float | None = None
    # Half the 95 % interval.
    received_half_width_bits_per_second: float | None = None
    first_at: UtcDatetime
    last_at: UtcDatetime
    # Rate and streams (or requests that started) for each step of `Units.every_s`.
    bits_per_second: tuple[float, ...]
    flows: tuple[float, ...]


class Units(Message):
    """Units that carried a burst, from the source addresses that servers received."""

    translation: Translation
    # Number of pairs with both the own address and the received addresses.
    pairs_count: int
    # Number of addresses. None unless clients share them.
    count: int | None = None
    # Probability that one more unit with an equal share had no stream.
    missed_ratio: float | None = None
    # Largest rate of a unit / mean rate.
    imbalance_ratio: float | None = None
    # Jain's fairness index: 1 if all units have the same rate, 1 / count if one has all.
    jain_ratio: float | None = None
    # Median number of units with traffic in a second of the window, the least and the most.
    median_count: float | None = None
    min_count: int | None = None
    max_count: int | None = None
    # Unit that carries less than the others and whose streams are slower.
    slow: str | None = None
    # Evidence that one unit is at its limit and the others are not.
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
        return "Unknown: the records do not contain the source addresses that servers received."
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


def unit_notes(units: Units, address: str) -> tuple[str, ...]:
    """Return texts about one unit: that it is slow, joined or left.

    Args:
        units: Units of a burst.
        address: Address of the unit.
    """
    slow = ("slow",) if units.slow == address else ()
    changes = [change for change in units.changes if change.address == address]
    return slow + tuple(describe_change(change).removeprefix(address).strip() for change in changes)


def describe_change(change: UnitChange) -> str:
    """Return a text about a unit that joined or left, and the traffic that it had."""
    text = f"{change.address} {change.change} at {change.at:%H:%M:%S} UTC"
    if change.flows_count is not None:
        streams = f"{change.flows_count} stream{'' if change.flows_count == 1 else 's'}"
        text += f" with {streams}{' that were cut' if change.flows_cut else ''}"
    return text


class CanaryPhase(Message):
    """Canaries in one phase of a burst. The intervals are exact and have 95 % (Clopper-Pearson)."""

    # Forbidden requests whose allowed twin arrived, and those that arrived themselves.
    tested_count: int
    leaked_count: int
    # Leaked / tested. None if none was tested.
    leak_ratio: float | None = None
    leak_low_ratio: float | None = None
    leak_high_ratio: float | None = None
    # Leaked ones whose connection the device ended afterwards.
    late_count: int = 0
    # Blocked ones of which the client saw nothing.
    silent_count: int = 0
    # Forbidden requests for which the server could not be asked.
    unknown_count: int = 0
    # Allowed requests with a known result, and those that did not arrive.
    allowed_count: int = 0
    allowed_blocked_count: int = 0
    allowed_blocked_ratio: float | None = None
    # Time from the request to the reset, the refusal, the device's own answer or the cut.
    decision_p50_s: float | None = None
    decision_max_s: float | None = None


class SignatureSummary(Message):
    """Canaries of one signature during a burst."""

    name: str
    rule: str
    during: CanaryPhase


class CanaryStep(Message):
    """Canaries in a part of a burst, with rate and CPU at that time."""

    at: UtcDatetime
    tested_count: int
    leaked_count: int
    allowed_blocked_count: int
    # Payload of the fleet. None if not every second is known.
    received_bits_per_second: float | None = None
    # Mean of all devices with this telemetry.
    device_cpu_ratio: float | None = None


class CanarySummary(Message):
    """Results of the canaries: whether the device still blocked what its policy forbids."""

    # Person who agreed.
    consent: str
    # Pairs with a tested request during the burst.
    pairs_count: int
    before: CanaryPhase
    during: CanaryPhase
    after: CanaryPhase
    signatures: tuple[SignatureSummary, ...] = ()
    # First leak during the burst.
    first_leak_at: UtcDatetime | None = None
    # Length of a step.
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
        f"{phase.tested_count}, 95 % interval {low} to {high})"
    )


class BurstSummary(Message):
    """Result of one burst. Rates are received payload as measured, unless noted otherwise."""

    index: OwnBurstIndex
    planned_start_at: UtcDatetime
    planned_end_at: UtcDatetime
    duration_s: int
    pairs_planned: int
    pairs_measured: int
    completeness_ratio: float
    completeness: Completeness
    # Part of the planned pair-seconds that is covered by seconds from receivers.
    proven_ratio: float
    null_pairs: tuple[str, ...] = ()
    late_pairs: tuple[str, ...] = ()
    # Missed, refused, abandoned or lost.
    missing_pairs: tuple[str, ...] = ()
    window: Window | None = None
    fleet_received_bits_per_second: float | None = None
    # Half width for the 95 % interval.
    fleet_received_half_width_bits_per_second: float | None = None
    fleet_sent_bits_per_second: float | None = None
    fleet_ip_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    # IP bytes / payload bytes.
    header_ratio: float
    header_how: str
    wire_ratio: float
    headers_assumed: bool
    # Maximum number of bytes in TCP acknowledgements per byte of payload, from the receivers' NICs.
    acknowledged_ratio: float | None = None
    # Largest minus smallest time of first data, for pairs that were on time.
    start_spread_s: float | None = None
    # Time of first data minus planned start.
    start_error_max_s: float | None = None
    start_error_p99_s: float | None = None
    clock_bound_max_s: float | None = None
    # Lowest rate that the missing rows allow, see judge.
    worst_bits_per_second: float | None = None
    # Busiest pair-second.
    peak_pair_bits_per_second: float | None = None
    flows: tuple[FlowSummary, ...] = ()
    client: HostSummary = HostSummary()
    server: HostSummary = HostSummary()
    cliff: CliffSummary | None = None
    reconciliation: Reconciliation | None = None
    bottleneck: Annotated[BottleneckName, renamed("bottleneck", "limiter")] = BottleneckName.UNKNOWN
    # Evidence, counter-evidence and advice.
    bottleneck_details: Annotated[Bottleneck, renamed("bottleneck_details", "limiter_details")] = (
        UNKNOWN
    )
    verdict: Verdict = Verdict.INCONCLUSIVE
    findings: tuple[Finding, ...] = ()
    # None if there are no seconds.
    availability: Availability | None = None
    # The most severe disruptions, sorted by time.
    disruptions: tuple[Disruption, ...] = ()
    # Total number of disruptions.
    disruptions_count: int = 0
    # The longest ones.
    silent_streams: tuple[SilentStream, ...] = ()
    # Pairs with a control connection that was idle for more than 4 minutes.
    silent_controls_count: int = 0
    # Outages of queue, table and disk that agents have recorded.
    outages: tuple[Outage, ...] = ()
    # Reports that were delayed on the disk of an agent.
    late_reports_count: int = 0
    # Additional engine metrics over all pairs.
    measures: tuple[MeasureSummary, ...] = ()
    # Fields with an effective value that is different from the requested one.
    differences: tuple[Difference, ...] = ()
    # None if all clocks were stable, as far as known.
    unsteady_clocks: UnsteadyClocks | None = None
    # Part of the measured pair-seconds with clock readings before and after at both ends. None if
    # nothing was measured.
    clocks_read_ratio: float | None = None
    # Measured pair-seconds without such readings, if the clocks are not known to have moved.
    clocks_unread_s: int = 0
    # Results of the consistency checks between sources.
    contradictions: tuple[Contradiction, ...] = ()
    # Tests by other clients on the endpoints of the run.
    foreign_tests: Annotated[tuple[ForeignTest, ...], renamed("foreign_tests", "strays")] = ()
    # The first of the invalid rows, which are not used.
    foreign_rows: tuple[ForeignRow, ...] = ()
    # Total number of these rows.
    foreign_rows_count: int = 0
    # All devices together, or None if there is no telemetry.
    device: DeviceSummary | None = None
    # Each device.
    devices: tuple[DeviceSummary, ...] = ()
    # None if it was not reported.
    client_cpu: CpuCost | None = None
    server_cpu: CpuCost | None = None
    # None if no host has reported it.
    taken_cpu: TakenCpu | None = None
    # Results from the probes, or None if there were no probes.
    latency: Latency | None = None
    # None if the burst had its planned duration.
    early_end: EarlyEnd | None = None
    # Units of the device. None if the records do not have the addresses that servers received.
    units: Units | None = None
    # None if the run has no canaries.
    canary: CanarySummary | None = None
    # See RunSummary.pairs_omitted.
    pairs: tuple[PairSummary, ...] = ()


class BurstDistribution(Message):
    """Distribution of one metric over all bursts in a run."""

    bursts_count: int
    mean: float
    median: float
    p5: float
    p95: float
    # Standard deviation / mean. None with fewer than two bursts.
    cov_ratio: float | None = None


class RunSummary(Message):
    """Result of a run. Rates are as measured, and ``real_*`` fields are these times ``scale``."""

    run_id: RunId
    scenario: str
    # The value of `now` that was used to compute it.
    computed_at: UtcDatetime
    scale: float
    # Divided by scale, at target_layer.
    target_bits_per_second: float | None
    target_layer: Layer
    # Seal of the plan, which shows the requirements at launch.
    plan_sha256: str | None = None
    # See docs/verdict.md.
    decision_rule: str = "guarded-acceptance"
    # Target minus tolerance, as measured.
    limit_bits_per_second: float | None = None
    pairs_planned: int
    # Pairs that were measured in every burst.
    pairs_measured: int
    bursts_planned: int
    verdict: Verdict
    completeness_ratio: float
    completeness: Completeness
    fleet_received_bits_per_second: float | None = None
    # Half width for the 95 % interval.
    fleet_received_half_width_bits_per_second: float | None = None
    fleet_sent_bits_per_second: float | None = None
    fleet_ip_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    real_target_bits_per_second: float | None = None
    real_fleet_received_bits_per_second: float | None = None
    real_fleet_sent_bits_per_second: float | None = None
    real_fleet_ip_bits_per_second: float | None = None
    real_firewall_bits_per_second: float | None = None
    # Distribution of fleet_received_bits_per_second.
    received_over_bursts: BurstDistribution | None = None
    # Mean over bursts and flows.
    rtt_mean_s: float | None = None
    # In the windows of the bursts.
    retransmits_count: int | None = None
    # Ratio to all segments that were sent, as the mean over bursts and flows.
    retransmit_ratio: float | None = None
    client_cpu_mean_ratio: float | None = None
    server_cpu_mean_ratio: float | None = None
    # For the engine processes, mean over bursts.
    client_cpu_s_per_gigabyte: float | None = None
    server_cpu_s_per_gigabyte: float | None = None
    # For the probes of all pairs under load, mean over bursts.
    probe_p50_s: float | None = None
    # Worst burst.
    probe_p99_s: float | None = None
    # Worst burst.
    probe_loss_ratio: float | None = None
    # Worst burst.
    start_spread_s: float | None = None
    start_error_max_s: float | None = None
    start_error_p99_s: float | None = None
    reconciliation: Reconciliation | None = None
    bottleneck: Annotated[BottleneckName, renamed("bottleneck", "limiter")] = BottleneckName.UNKNOWN
    # Evidence, counter-evidence and advice.
    bottleneck_details: Annotated[Bottleneck, renamed("bottleneck_details", "limiter_details")] = (
        UNKNOWN
    )
    findings: tuple[Finding, ...] = ()
    # Set by summarise_run.
    run_trends: Annotated[RunTrends | None, renamed("run_trends", "course")] = None
    # Values of the guards, and the impact second by second if one of them stopped the run.
    guards: GuardReport | None = None
    # True if the pairs are only in the documents of the bursts, because there are many.
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
