"""Forgets runs that are older than an operator wants to keep, after showing which."""

from datetime import datetime, timedelta
from typing import Final

from pydantic import Field, StrictBool

from broadside.coordinator.core.live.status import due_at
from broadside.coordinator.core.measure.evidence import HOLD_MAX_S
from broadside.coordinator.core.plan.spec import Plan
from broadside.coordinator.runs.stored_runs import parse_plan
from broadside.exchange.messages import Message, Number, RunId, UtcDatetime
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.records import Records, RunHeader

_RUNS_MAX_COUNT: Final = 1_000_000


class PruneRequest(Message):
    """What to forget."""

    older_than_days: Number = Field(
        ge=0, le=18_250, description="runs are forgotten whose last report was due so long ago"
    )
    dry_run: StrictBool = Field(default=True, description="only say what would go")


class OldRun(Message):
    """A run that goes."""

    run_id: RunId
    scenario: str
    created_at: UtcDatetime


class Pruned(Message):
    """What went, or would go."""

    dry_run: bool
    before_at: UtcDatetime
    runs: tuple[OldRun, ...]  # oldest first
    tests_hours: tuple[UtcDatetime, ...]  # hours whose server-side tests go
    unreadable: tuple[RunId, ...]  # old runs that stay: another version's plan
    rows_count: int  # rows removed


async def prune(records: Records, request: PruneRequest, now: datetime) -> Pruned:
    """Remove runs that were over before ``now - older_than_days``, with the server ends' tests.

    Tests are stored by the hour, for all runs alike, so those of an hour go when no run that stays
    may need them. What is stored is looked for, not every hour of a year.
    """
    before_at = now - timedelta(days=request.older_than_days)
    old: list[tuple[RunHeader, int]] = []
    unreadable: list[str] = []
    tests_until_at = before_at
    newest_first = [header async for header in records.private.list_runs(limit=_RUNS_MAX_COUNT)]
    for header in reversed(newest_first):
        if header.created_at >= before_at:
            break
        try:
            plan = await _plan(records, header.run_id)
        except RecordUnreadable:
            unreadable.append(header.run_id)
            tests_until_at = min(tests_until_at, header.created_at)
            continue
        if plan is None:  # an earlier removal died midway: only what follows the bursts is left
            old.append((header, 0))
        elif due_at(plan.bursts[-1]) < before_at:
            old.append((header, len(plan.bursts)))
        else:
            begun_at = plan.bursts[0].planned_start_at - timedelta(seconds=HOLD_MAX_S)
            tests_until_at = min(tests_until_at, max(begun_at, header.created_at))
    hours = [hour_at async for hour_at in records.bursts.tests_hours(tests_until_at)]
    rows_count = 0
    if not request.dry_run:
        for hour_at in hours:
            rows_count += await records.bursts.delete_tests(hour_at)
        for header, bursts_count in old:
            rows_count += await records.delete_run(header, bursts_count)
    return Pruned(
        dry_run=request.dry_run,
        before_at=before_at,
        runs=tuple(
            OldRun(run_id=h.run_id, scenario=h.scenario, created_at=h.created_at) for h, _ in old
        ),
        tests_hours=tuple(hours),
        unreadable=tuple(unreadable),
        rows_count=rows_count,
    )


async def _plan(records: Records, run_id: str) -> Plan | None:
    stored = await records.read_run(run_id)
    return None if stored is None else parse_plan(run_id, stored[1])
