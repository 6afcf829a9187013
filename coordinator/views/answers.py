"""What the API answers beside the core's own values."""

import json
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from broadside.coordinator.core.figures import Layer
from broadside.coordinator.core.live.status import BurstStatus
from broadside.coordinator.core.plan.schedule import Firing, Schedule
from broadside.coordinator.core.summary import (
    BurstSummary,
    Finding,
    LimiterName,
    PairSummary,
    Reconciliation,
    RunSummary,
    Verdict,
    canonical,
)
from broadside.exchange.messages import Endpoint, Message, Outcome, Phase, RunId, UtcDatetime

DIFFERENCES_MAX_COUNT: Final = 20


class Recomputed(Message):
    """A verdict computed again from the stored rows, held against the stored one."""

    equal: bool  # byte for byte
    differences: tuple[str, ...] = ()  # the first of them: field, stored value, value now
    differences_count: int = 0
    summary: RunSummary  # as computed now; nothing was stored


def hold_against(stored: bytes, computed: RunSummary) -> Recomputed:
    """Compare a stored summary's text with what was computed again."""
    now = canonical(computed)
    found = [] if now == stored else list(_differences("", json.loads(stored), json.loads(now)))
    if now != stored and not found:
        found = ["the two texts differ in form only: another version of Broadside wrote the stored"]
    return Recomputed(
        equal=now == stored,
        differences=tuple(found[:DIFFERENCES_MAX_COUNT]),
        differences_count=len(found),
        summary=computed,
    )


def _differences(where: str, stored: object, now: object) -> Iterator[str]:
    """Every leaf that differs, by its dotted name."""
    if isinstance(stored, dict) and isinstance(now, dict):
        for name in sorted(stored.keys() | now.keys()):
            inner = f"{where}.{name}" if where else name
            yield from _differences(inner, stored.get(name), now.get(name))
    elif isinstance(stored, list) and isinstance(now, list) and len(stored) == len(now):
        for index, (one, other) in enumerate(zip(stored, now, strict=True)):
            yield from _differences(f"{where}[{index}]", one, other)
    elif stored != now:
        yield f"{where}: {_said(stored)} stored, {_said(now)} now"


def _said(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class BurstEntry(Message):
    """One burst: where it stands and, once it is over, what it showed."""

    status: BurstStatus
    summary: BurstSummary | None = None  # without its pairs: they have a list of their own


class PairEntry(Message):
    """One pair of one burst: what was planned, who took it, and what it showed."""

    pair_index: int
    pair: str
    endpoint: Endpoint
    client_agent_id: str | None = None  # None: nobody took the job
    phase: Phase | None = None
    outcome: Outcome | None = None  # as the client said; None: it has not reported
    reason: str | None = None
    summary: PairSummary | None = None  # None: the burst is not over


class RunVerdict(Message):
    """A verdict with what it rests on, without the figures of single bursts."""

    run_id: RunId
    verdict: Verdict
    computed_at: UtcDatetime
    scale: float
    target_bits_per_second: float | None  # as measured (at scale), at target_layer
    target_layer: Layer
    fleet_received_bits_per_second: float | None  # payload
    fleet_ip_bits_per_second: float | None  # IP
    firewall_bits_per_second: float | None  # at the ledger's layer
    completeness_ratio: float
    limiter: LimiterName
    bursts: Mapping[Verdict, int]  # how many bursts ended with each verdict
    findings: tuple[Finding, ...]


class BurstReconciliation(Message):
    """One burst's ledgers held together."""

    burst_index: int
    planned_start_at: UtcDatetime
    reconciliation: Reconciliation | None  # None: no bin of the ledger touches it


class RunReconciliation(Message):
    """A run's ledgers held together: as a whole, and burst by burst."""

    run_id: RunId
    reconciliation: Reconciliation
    bursts: tuple[BurstReconciliation, ...]


class ScheduleView(Message):
    """A schedule as it stands."""

    schedule: Schedule
    state: Literal["active", "paused", "ended"]
    next_at: tuple[UtcDatetime, ...]  # the next five instants, or as many as it has runs left
    history: tuple[Firing, ...] = ()  # the newest fifty, oldest first; only of one that is read
