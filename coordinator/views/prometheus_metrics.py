"""Prometheus metrics about the current state and the newest run.

Dashboards and alerts depend on the names, which /docs/metrics.html of the coordinator lists.
Units are the base units of Prometheus, which are seconds, bytes, and ratios from 0 to 1. An unknown
value has no sample, so it never appears as zero. Label values are limited to states, roles, layers,
and one run at a time.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broadside.coordinator.backups import BackupKind, BackupRecord, read_backup_records
from broadside.coordinator.core.formatting import MetricUnit
from broadside.coordinator.core.live.progress import Progress, complete_seconds
from broadside.coordinator.core.live.status import BurstPhase, BurstStatus, RunState, RunStatus
from broadside.coordinator.core.metrics import ALL_METRICS, MetricDefinition
from broadside.coordinator.core.plan.budget import PriceMeter
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.coordinator.loop_lag import LoopLag
from broadside.coordinator.notices.announcer import Announcer, ReceiverState
from broadside.coordinator.runs.budgets import Budgets
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views.metric_rows import layer_of
from broadside.exchange.messages import AgentState, Outcome, Presence, Role, plain_text
from broadside.exchange.ports import QueueCounts
from broadside.exchange.records import RunHeader
from broadside.exchange.version import UNKNOWN, commit, version_number

# An agent is stale after this time without a heartbeat.
STALE_AFTER: Final = timedelta(seconds=30)
_RUNS_MAX_COUNT: Final = 50
_OPEN_MAX_COUNT: Final = 5
_PHASES: Final = ("unclaimed", "claimed", "armed", "reported")
_STALE: Final = "stale"
# Maximum label length.
_ERROR_MAX_CHARS: Final = 100


def name_of(metric: MetricDefinition) -> str:
    """Return the Prometheus name for a run metric, in base units."""
    stem = re.sub(r"_s(?=$|_per_)", "_seconds", metric.metric or metric.name)
    stem = stem.replace("_bits_per_second", "_bytes_per_second").removesuffix("_count")
    return f"broadside_run_{stem}"


METRICS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "broadside_build_info": ("Version and commit of this coordinator.", ("version", "revision")),
    "broadside_tick_age_seconds": ("Time since the last pass over all runs.", ()),
    "broadside_loop_lag_seconds": ("Largest event loop lag in the last minute.", ()),
    "broadside_notices_waiting": ("Finished runs that a place has not yet received.", ("place",)),
    "broadside_notices_failures": ("Failed attempts since the last sent notice.", ("place",)),
    "broadside_notices_error": ("1 if the last attempt failed.", ("place", "error")),
    "broadside_notices_error_timestamp_seconds": ("Time of the last failed attempt.", ("place",)),
    "broadside_backup_age_seconds": ("Time since the last successful backup.", ()),
    "broadside_backup_failed": ("1 if the last backup failed, else 0.", ()),
    "broadside_backup_interval_seconds": ("Time between scheduled backups.", ()),
    "broadside_restore_drill_age_seconds": ("Time since the last successful restore drill.", ()),
    "broadside_restore_drill_failed": ("1 if the last restore drill failed, else 0.", ()),
    "broadside_agents": (
        "Agents by role and state. Stale: no heartbeat for 30 s.",
        ("role", "state"),
    ),
    "broadside_clock_bound_max_seconds": ("Largest clock uncertainty of all live agents.", ()),
    "broadside_queue_messages": ("Messages on the job queue.", ("state",)),
    "broadside_runs_open": ("Runs without a verdict, of the latest 50.", ()),
    "broadside_run_info": (
        "Run of the run metrics: the run in progress, or the latest run.",
        ("run_id", "scenario", "state"),
    ),
    "broadside_run_target_bytes_per_second": ("Target rate divided by the scale.", ("layer",)),
    "broadside_run_scale": ("Factor from measured to real rates.", ()),
    "broadside_run_bursts": ("Bursts by phase.", ("phase",)),
    "broadside_burst_pairs": ("Pairs of the current burst by phase.", ("phase",)),
    "broadside_burst_outcomes": ("Reported pairs of the current burst.", ("outcome",)),
    "broadside_burst_seconds_to_start": ("Time to the planned start. Negative after it.", ()),
    "broadside_fleet_bytes_per_second": (
        "Rate that the fleet sent in the latest complete second.",
        ("layer",),
    ),
    "broadside_part_bytes_per_second": (
        "Rate that a part of a mixed run sent in its latest complete second.",
        ("part",),
    ),
    "broadside_fleet_coverage_ratio": ("Share of the planned pairs in that rate.", ()),
    "broadside_firewall_bytes_per_second": ("Latest rate of the device counter.", ("layer",)),
    "broadside_run_verdict": ("1 for the verdict of a finished run, else 0.", ("verdict",)),
    "broadside_run_spent_usd": ("Cost of the run until now, at real scale.", ()),
    "broadside_run_projected_usd": ("Projected cost of the complete run, at real scale.", ()),
    **{
        name_of(metric): (f"Finished run: {metric.label}.", ("layer",) if metric.layer else ())
        for metric in ALL_METRICS
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Values of one scrape.

    Attributes:
        now: Scrape time.
        ticked_at: End of the last pass over all runs. None if there was none.
        presences: All known agents.
        counts: Messages on the queue.
        open_count: How many of the newest 50 runs have no verdict yet.
        header: Run that the metrics show. None if there is no run.
        status: This run's status.
        progress: This run's progress. None if it is not running.
        summary: This run's summary. None if it has no verdict.
        scale: This run's scale.
        target: Target in bit/s at this scale, and its layer.
        firewall: Latest rate of the device counter in bit/s, and its layer.
        meter: This run's cost.
        backups: Backup records. Empty if the store is not embedded.
    """

    now: datetime
    ticked_at: datetime | None
    presences: Sequence[Presence] = ()
    counts: QueueCounts | None = None
    open_count: int = 0
    header: RunHeader | None = None
    status: RunStatus | None = None
    progress: Progress | None = None
    summary: RunSummary | None = None
    scale: float | None = None
    target: tuple[float, str] | None = None
    firewall: tuple[float, str] | None = None
    meter: PriceMeter | None = None
    backups: Mapping[BackupKind, BackupRecord] = field(default_factory=dict)


async def take_snapshot(coordinator: Coordinator, budgets: Budgets) -> Snapshot:
    """Read the values of one scrape.

    Args:
        coordinator: The coordinator to use.
        budgets: Source for the run cost.

    Returns:
        Values of the fleet, the queue, and the runs in progress.

    Raises:
        ExchangeError: The queue or a table cannot be read.
    """
    records = coordinator.fabric.records
    headers = [header async for header in records.private.list_runs(limit=_RUNS_MAX_COUNT)]
    unfinished = [header for header in headers if header.outcome is None]
    header, status = await _shown(coordinator, unfinished, headers)
    progress = summary = scale = target = firewall = meter = None
    if header is not None and status is not None:
        plan = await coordinator.stored.read_plan(header.run_id)
        scale = plan.spec.scale
        aim = plan.spec.scaled_target_bits_per_second
        target = None if aim is None else (aim, plan.spec.objective.layer.value)
        summary = await coordinator.stored.summary(header.run_id)
        meter = await budgets.read(header.run_id)
        if status.state is RunState.RUNNING:
            progress = await coordinator.stored.progress(header.run_id)
            try:
                device_counter, _ = await coordinator.counter_so_far(plan)
            except TelemetryError:
                device_counter = None
            if (
                device_counter is not None
                and len(device_counter)
                and device_counter.bytes[-1] == device_counter.bytes[-1]
            ):
                span_s = float(device_counter.end_s[-1] - device_counter.start_s[-1])
                firewall = (float(device_counter.bytes[-1]) * 8 / span_s, str(device_counter.layer))
    return Snapshot(
        now=coordinator.now(),
        ticked_at=coordinator.ticked_at,
        presences=await coordinator.fabric.records.fleet.read_presences(),
        counts=await coordinator.fabric.queue.counts(),
        open_count=len(unfinished),
        header=header,
        status=status,
        progress=progress,
        summary=summary,
        scale=scale,
        target=target,
        firewall=firewall,
        meter=meter,
        backups=await read_backup_records(coordinator.fabric.private)
        if coordinator.fabric.in_files
        else {},
    )


async def _shown(
    coordinator: Coordinator, unfinished: Sequence[RunHeader], headers: Sequence[RunHeader]
) -> tuple[RunHeader | None, RunStatus | None]:
    """Return the running run, else the newest open run, else the newest run."""
    candidates = [
        (header, await coordinator.stored.status(header.run_id))
        for header in (list(unfinished[:_OPEN_MAX_COUNT]) or list(headers[:1]))
    ]
    running = [pair for pair in candidates if pair[1].state is RunState.RUNNING]
    chosen = running or candidates
    return chosen[0] if chosen else (None, None)


class MetricsCollector(Collector):
    """Prometheus collector for the newest snapshot, with its own registry."""

    def __init__(
        self, loop_lag: LoopLag, announcer: Announcer, backup_interval: timedelta | None = None
    ) -> None:
        self._loop_lag = loop_lag
        self._announcer = announcer
        # None if no backups are scheduled.
        self._backup_interval = backup_interval
        self._snapshot: Snapshot | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterator[Metric]:
        return iter([_family(name) for name in METRICS])

    def collect(self) -> Iterator[Metric]:
        if self._snapshot is None:
            return
        families: dict[str, GaugeMetricFamily] = {}
        process = _process(self._loop_lag.longest_s, self._announcer.states)
        backups = _backups(self._snapshot, self._backup_interval)
        for name, labels, value in (*_samples(self._snapshot), *process, *backups):
            if value is not None:
                families.setdefault(name, _family(name)).add_metric(labels, value)
        yield from families.values()


def _family(name: str) -> GaugeMetricFamily:
    text, labels = METRICS[name]
    return GaugeMetricFamily(name, text, labels=labels)


Sample = tuple[str, tuple[str, ...], float | None]


def _samples(shown: Snapshot) -> Iterator[Sample]:
    yield "broadside_build_info", (version_number(), commit() or UNKNOWN), 1.0
    if shown.ticked_at is not None:
        age_s = (shown.now - shown.ticked_at).total_seconds()
        yield "broadside_tick_age_seconds", (), max(0.0, age_s)
    yield from _agents(shown)
    if shown.counts is not None:
        for state in ("active", "scheduled", "dead"):
            count = getattr(shown.counts, f"{state}_count")
            yield "broadside_queue_messages", (state,), count
    yield "broadside_runs_open", (), float(shown.open_count)
    if shown.header is None or shown.status is None:
        return
    header, status = shown.header, shown.status
    yield "broadside_run_info", (header.run_id, header.scenario, status.state.value), 1.0
    if shown.target is not None:
        yield "broadside_run_target_bytes_per_second", (shown.target[1],), shown.target[0] / 8
    yield "broadside_run_scale", (), shown.scale
    phases = Counter(burst.phase for burst in status.bursts)
    for phase in BurstPhase:
        yield "broadside_run_bursts", (phase.value,), float(phases[phase])
    yield from _burst(shown, status)
    if shown.meter is not None:
        yield "broadside_run_spent_usd", (), shown.meter.spent.total_usd
        yield "broadside_run_projected_usd", (), shown.meter.projected.total_usd
    if shown.summary is not None:
        yield from _ended(shown.summary)


def _process(lag_s: float | None, places: Sequence[ReceiverState]) -> Iterator[Sample]:
    """Yield the metrics of this process."""
    yield "broadside_loop_lag_seconds", (), lag_s
    for place in places:
        yield "broadside_notices_waiting", (place.name,), float(place.waiting_count)
        yield "broadside_notices_failures", (place.name,), float(place.failures_count)
        if place.last_error is not None:
            error = plain_text(place.last_error)[:_ERROR_MAX_CHARS]
            yield "broadside_notices_error", (place.name, error), 1.0
        if place.last_error_at is not None:
            failed_s = place.last_error_at.timestamp()
            yield "broadside_notices_error_timestamp_seconds", (place.name,), failed_s


def _backups(shown: Snapshot, interval: timedelta | None) -> Iterator[Sample]:
    """Yield the metrics of backups and restore drills. Without any attempt there is no sample."""
    if interval is not None:
        yield "broadside_backup_interval_seconds", (), interval.total_seconds()
    names = {BackupKind.BACKUP: "broadside_backup", BackupKind.DRILL: "broadside_restore_drill"}
    for kind, record in shown.backups.items():
        if record.succeeded_at is not None:
            age_s = (shown.now - record.succeeded_at).total_seconds()
            yield f"{names[kind]}_age_seconds", (), max(0.0, age_s)
        yield f"{names[kind]}_failed", (), float(record.error is not None)


def _agents(shown: Snapshot) -> Iterator[Sample]:
    live = [p for p in shown.presences if shown.now - p.beat_at <= STALE_AFTER]
    counts = Counter((p.role.value, p.state.value) for p in live)
    counts |= Counter(
        (p.role.value, _STALE) for p in shown.presences if shown.now - p.beat_at > STALE_AFTER
    )
    for role in Role:
        for state in (*(state.value for state in AgentState), _STALE):
            yield "broadside_agents", (role.value, state), float(counts[role.value, state])
    bounds = [p.clock.bound_s for p in live if p.clock is not None and p.clock.bound_s is not None]
    yield "broadside_clock_bound_max_seconds", (), max(bounds, default=None)


def _burst(shown: Snapshot, status: RunStatus) -> Iterator[Sample]:
    burst = _current_burst(status)
    steps = (
        burst.pairs_planned,
        burst.claimed_count,
        max(burst.armed_count, burst.reported_count),
        burst.reported_count,
        0,
    )
    for place, phase in enumerate(_PHASES):
        yield "broadside_burst_pairs", (phase,), float(max(0, steps[place] - steps[place + 1]))
    for outcome in Outcome:
        yield "broadside_burst_outcomes", (outcome.value,), float(burst.outcomes.get(outcome, 0))
    left_s = (burst.planned_start_at - shown.now).total_seconds()
    yield "broadside_burst_seconds_to_start", (), left_s
    if shown.progress is not None and shown.progress.complete_seconds:
        newest = shown.progress.complete_seconds[-1]
        layer = "link" if newest.from_host_count else "payload"
        yield "broadside_fleet_bytes_per_second", (layer,), newest.fleet_bits_per_second / 8
        parts = shown.progress.parts
        planned = parts[0].pairs_planned if parts else burst.pairs_planned
        yield "broadside_fleet_coverage_ratio", (), newest.pairs_count / planned
        for part in parts:
            if seconds := complete_seconds(part.seconds):
                rate = seconds[-1].fleet_bits_per_second / 8
                yield "broadside_part_bytes_per_second", (part.name,), rate
    if shown.firewall is not None:
        yield "broadside_firewall_bytes_per_second", (shown.firewall[1],), shown.firewall[0] / 8


def _current_burst(status: RunStatus) -> BurstStatus:
    """Return the first burst that is not over, else the last."""
    return next((b for b in status.bursts if b.phase is not BurstPhase.OVER), status.bursts[-1])


def _ended(summary: RunSummary) -> Iterator[Sample]:
    for verdict in Verdict:
        yield "broadside_run_verdict", (verdict.value,), float(summary.verdict is verdict)
    for metric in ALL_METRICS:
        labels = (layer_of(metric.layer, summary),) if metric.layer else ()
        value = metric.of_run(summary)
        if value is not None:
            yield name_of(metric), labels, value / 8 if metric.unit is MetricUnit.RATE else value
