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
    Message,
    Outcome,
    Phase,
    RunId,
    UtcDatetime,
)

DIFFERENCES_MAX_COUNT: Final = 20


class Recomputed(Message):
    """Comparison of a verdict that was computed again with the stored verdict."""

    # True if the two documents are equal byte for byte.
    equal: bool
    # The first differences, each with field name, stored value and computed value.
    differences: tuple[str, ...] = ()
    differences_count: int = 0
    # The computed summary, which is not stored.
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
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class BurstEntry(Message):
    """Status of a burst, and its summary after its end."""

    status: BurstStatus
    # Without the pairs, which have their own route.
    summary: BurstSummary | None = None


class PairEntry(Message):
    """Plan, client and results of a pair in a burst."""

    pair_index: int
    pair: str
    endpoint: Endpoint
    # None if no agent has received the job.
    client_agent_id: str | None = None
    phase: Phase | None = None
    # Outcome reported by the client. None if it has not reported.
    outcome: Outcome | None = None
    reason: str | None = None
    # None if the burst is not over.
    summary: PairSummary | None = None


class RunVerdict(Message):
    """Verdict of a run with its main metrics and findings, without the bursts."""

    run_id: RunId
    verdict: Verdict
    # Why this verdict, from the finding that decided it.
    reason: str
    # What to do next.
    next_step: str
    computed_at: UtcDatetime
    scale: float
    # The target divided by the scale, in bit/s at ``target_layer``.
    target_bits_per_second: float | None
    target_layer: Layer
    # At the payload layer.
    fleet_received_bits_per_second: float | None
    # At the IP layer.
    fleet_ip_bits_per_second: float | None
    # At the firewall counter layer.
    firewall_bits_per_second: float | None
    completeness_ratio: float
    bottleneck: BottleneckName
    # Number of bursts by verdict.
    bursts: Mapping[Verdict, int]
    # The deciding finding first, then other problems and warnings, then notes.
    findings: tuple[Finding, ...]


class ExplainedSummary(RunSummary):
    """Event ``summary`` with the verdict, its reason, and the findings in the order to show."""

    reason: str
    next_step: str


class BurstReconciliation(Message):
    """Reconciliation of one burst."""

    burst_index: BurstIndex
    planned_start_at: UtcDatetime
    # None if no firewall counter sample overlaps the burst.
    reconciliation: Reconciliation | None


class RunReconciliation(Message):
    """Reconciliation of a run and of its bursts."""

    run_id: RunId
    reconciliation: Reconciliation
    bursts: tuple[BurstReconciliation, ...]


class ScheduleView(Message):
    """Schedule with its state and its next launches."""

    schedule: Schedule
    state: Literal["active", "paused", "ended"]
    # The next five launch times, or fewer if fewer runs remain.
    next_at: tuple[UtcDatetime, ...]
    # The last 50 launches, oldest first. Only in the response for a single schedule.
    history: tuple[Firing, ...] = ()
