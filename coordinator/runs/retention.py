"""Removal of runs that are older than a given age, with a dry run."""

import logging
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from pydantic import Field, StrictBool

from broadside.coordinator.core.measure.records.evidence import OPENED_BEFORE_MAX_S
from broadside.coordinator.core.run_spec import Plan, due_at
from broadside.coordinator.runs.launch import delete_old_keys
from broadside.coordinator.runs.stored_runs import parse_plan
from broadside.exchange.messages import Message, Number, RunId, UtcDatetime
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.records import Records, RunHeader

if TYPE_CHECKING:
    from broadside.coordinator.runs.coordinator import Coordinator

log = logging.getLogger(__name__)

_RUNS_MAX_COUNT: Final = 1_000_000


class PruneRequest(Message):
    """Age of the runs to delete."""

    older_than_days: Number = Field(
        ge=0, le=18_250, description="age of the last report of the runs to delete"
    )
    dry_run: StrictBool = Field(default=True, description="only list what would be deleted")


class OldRun(Message):
    """A run that is deleted."""

    run_id: RunId
    scenario: str
    created_at: UtcDatetime


class Pruned(Message):
    """Removed data, or the data that would be removed in a dry run.

    Attributes:
        dry_run: True if nothing was removed.
        before_at: Runs that were created before this time are removed.
        runs: Removed runs, the oldest first.
        tests_hours: Hours with removed server-side tests.
        unreadable: Old runs that are not removed, because the plan cannot be read by this version.
        rows_count: Number of removed rows.
    """

    dry_run: bool
    before_at: UtcDatetime
    runs: tuple[OldRun, ...]
    tests_hours: tuple[UtcDatetime, ...]
    unreadable: tuple[RunId, ...]
    rows_count: int


async def prune_runs(coordinator: "Coordinator", request: PruneRequest) -> Pruned:
    """Remove old runs and their idempotency keys, or only list the runs in a dry run.

    Args:
        coordinator: The coordinator to use.
        request: Age of the runs, and whether it is a dry run.

    Returns:
        Removed or listed runs, and the number of rows.
    """
    pruned = await prune(coordinator.fabric.records, request, coordinator.now())
    if not pruned.dry_run:
        for run in pruned.runs:
            coordinator.stored.forget(run.run_id)
        log.info("%d runs pruned", len(pruned.runs), extra={"action": "prune"})
        await delete_old_keys(coordinator.fabric.private, pruned.before_at)
    return pruned


async def prune(records: Records, request: PruneRequest, now: datetime) -> Pruned:
    """Remove runs that ended before ``now - older_than_days``, with their server-side tests.

    Tests are stored by the hour for all runs together. The tests of an hour are removed if no
    remaining run can need them. Only hours with stored tests are searched.

    Args:
        records: Records to use for access to the tables.
        request: Age of the runs, and whether it is a dry run.
        now: The current time to use.

    Returns:
        Removed or listed runs, and the number of rows.
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
        # An earlier removal was interrupted, so only the last documents are left.
        if plan is None:
            old.append((header, 0))
        elif due_at(plan.bursts[-1]) < before_at:
            old.append((header, len(plan.bursts)))
        else:
            begun_at = plan.bursts[0].planned_start_at - timedelta(seconds=OPENED_BEFORE_MAX_S)
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
