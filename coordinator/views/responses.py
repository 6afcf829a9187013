"""API response types in addition to the core types."""

import json
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from pydantic import ValidationError

from broadside.coordinator.core.live.status import BurstStatus
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.plan.schedule import Firing, Schedule
from broadside.coordinator.core.summary import (
    BottleneckName,
    BurstSummary,
    Finding,
    PairSummary,
    Reconciliation,
    RunSummary,
    Verdict,
    canonical,
)
from broadside.exchange.messages import (
    BurstIndex,
    Endpoint,
    JobPhase,
    Message,
    Outcome,
    RunId,
    UtcDatetime,
)

DIFFERENCES_MAX_COUNT: Final = 20


class Recomputed(Message):
    """Comparison of a verdict that was computed again with the stored verdict.

    Attributes:
        equal: True if the two documents are equal byte for byte.
        differences: The first differences, each with field name, stored value and computed value.
        differences_count: Number of differences.
        summary: The computed summary, which is not stored.
    """

    equal: bool
    differences: tuple[str, ...] = ()
    differences_count: int = 0
    summary: RunSummary


def compare_stored_summary(stored: bytes, computed: RunSummary) -> Recomputed:
    """Compare a stored summary with a newly computed one.

    Args:
        stored: Stored document.
        computed: Summary that was computed from the stored rows.

    Returns:
        Comparison with at most ``DIFFERENCES_MAX_COUNT`` differences.
    """
    now = canonical(computed)
    differences = (
        []
        if now == stored
        else list(_differences("", json.loads(_with_current_names(stored)), json.loads(now)))
    )
    if now != stored and not differences:
        differences = [
            (
                "only the format differs: the stored summary was written by another version of "
                "Broadside"
            )
        ]
    return Recomputed(
        equal=now == stored,
        differences=tuple(differences[:DIFFERENCES_MAX_COUNT]),
        differences_count=len(differences),
        summary=computed,
    )


def _with_current_names(stored: bytes) -> bytes:
    """Return a stored summary with the current names of renamed fields, if it can be read."""
    try:
        return canonical(RunSummary.model_validate_json(stored))
    except ValidationError:
        return stored


def _differences(path: str, stored: object, now: object) -> Iterator[str]:
    """Yield each value that differs, with its dotted name."""
    if isinstance(stored, dict) and isinstance(now, dict):
        for name in sorted(stored.keys() | now.keys()):
            inner = f"{path}.{name}" if path else name
            yield from _differences(inner, stored.get(name), now.get(name))
    elif isinstance(stored, list) and isinstance(now, list) and len(stored) == len(now):
        for index, (one, other) in enumerate(zip(stored, now, strict=True)):
            yield from _differences(f"{path}[{index}]", one, other)
    elif stored != now:
        yield f"{path}: {_short_json(stored)} stored, {_short_json(now)} now"


def _short_json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


class BurstEntry(Message):
    """Status of a burst, and its summary after its end.

    Attributes:
        status: Status of the burst.
        summary: Result of the burst without its pairs. None before its end.
    """

    status: BurstStatus
    summary: BurstSummary | None = None


class PairEntry(Message):
    """Plan, client and results of a pair in a burst.

    Attributes:
        pair_index: Index of the pair, from 0.
        endpoint: Address and ports of the server.
        client_agent_id: Id of the client's agent. None if no agent has received the job.
        phase: Progress of the job. None if no agent has claimed it.
        outcome: Result that the client reported. None if it has not reported.
        reason: Reason for the result. None if there is none.
        summary: Result of the pair. None if the burst is not over.
    """

    pair_index: int
    pair: str
    endpoint: Endpoint
    client_agent_id: str | None = None
    phase: JobPhase | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    summary: PairSummary | None = None


class RunVerdict(Message):
    """Verdict of a run with its main metrics and findings, without the bursts.

    Attributes:
        verdict: Verdict of the run.
        reason: Why this verdict, from the finding that decided it.
        computed_at: Time when it was computed.
        target_bits_per_second: Target rate as measured, in bit/s at `target_layer`. None if there
            is no target.
        fleet_received_bits_per_second: Payload rate that the fleet received as measured, in bit/s.
        fleet_ip_bits_per_second: Rate that the fleet received at the IP layer as measured, in
            bit/s.
        firewall_bits_per_second: Rate of the device counter as measured, at its layer, in bit/s.
        bursts: Number of bursts by verdict.
        findings: Findings: the deciding one first, then other problems and warnings, then notes.
    """

    run_id: RunId
    verdict: Verdict
    reason: str
    next_step: str
    computed_at: UtcDatetime
    scale: float
    target_bits_per_second: float | None
    target_layer: Layer
    fleet_received_bits_per_second: float | None
    fleet_ip_bits_per_second: float | None
    firewall_bits_per_second: float | None
    completeness_ratio: float
    bottleneck: BottleneckName
    bursts: Mapping[Verdict, int]
    findings: tuple[Finding, ...]


class ExplainedSummary(RunSummary):
    """Event ``summary`` with the verdict, its reason, and the findings in the order to show."""

    reason: str
    next_step: str


class BurstReconciliation(Message):
    """Reconciliation of one burst.

    Attributes:
        reconciliation: Comparison with the device counter. None if no sample of the counter
            overlaps the burst.
    """

    burst_index: BurstIndex
    planned_start_at: UtcDatetime
    reconciliation: Reconciliation | None


class RunReconciliation(Message):
    """Reconciliation of a run and of its bursts.

    Attributes:
        reconciliation: Comparison over the whole run.
        bursts: Comparison for each burst.
    """

    run_id: RunId
    reconciliation: Reconciliation
    bursts: tuple[BurstReconciliation, ...]


class ScheduleView(Message):
    """Schedule with its state and its next launches.

    Attributes:
        schedule: The schedule.
        state: State of the schedule.
        next_at: The next five launch times, or fewer if fewer runs remain.
        history: The last 50 launches, oldest first. Only in the response for a single schedule.
    """

    schedule: Schedule
    state: Literal["active", "paused", "ended"]
    next_at: tuple[UtcDatetime, ...]
    history: tuple[Firing, ...] = ()
