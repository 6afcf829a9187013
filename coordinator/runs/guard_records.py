"""Stored records of guards, as inputs of a verdict."""

from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.guards import READ_AFTER_S, READ_BEFORE_S, GuardLog
from broadside.coordinator.core.judge.guard_report import GuardEvidence, stopped_burst
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.exchange.messages import Control
from broadside.exchange.records import Document, Records

# Time after the end of a burst, or after a stop, when the record should be stored. After that, the
# run is judged without it, because the coordinator that guarded the run may have failed.
STORED_WITHIN_S: Final = READ_AFTER_S + 15.0


async def read_log(records: Records, run_id: str, burst_index: int) -> GuardLog | None:
    """Return the stored record of the guards of a burst.

    Args:
        records: Records to use for access to the tables.
        run_id: The id to look up.
        burst_index: The index to look up.

    Returns:
        The record. None if it is not stored.
    """
    document = await records.private.read_document(run_id, Document.GUARDS, burst_index)
    return None if document is None else GuardLog.model_validate_json(document)


def _watched(plan: Plan, control: Control | None) -> list[Burst]:
    """Return the bursts that were guarded, including one that was stopped before its start."""
    cancelled_at = None if control is None else control.cancelled_at
    if cancelled_at is None:
        return list(plan.bursts)
    until_at = cancelled_at + timedelta(seconds=READ_BEFORE_S)
    return [burst for burst in plan.bursts if burst.planned_start_at <= until_at]


async def guards_pending(
    records: Records, plan: Plan, control: Control | None, now: datetime
) -> bool:
    """Return True if the record of a burst that ran may still be stored.

    Args:
        records: Records to use for access to the tables.
        plan: The whole plan.
        control: Control row of the run, or None.
        now: The current time to use.
    """
    watched = _watched(plan, control)
    if not plan.spec.is_guarded or not watched:
        return False
    last = watched[-1]
    cancelled_at = None if control is None else control.cancelled_at
    ended_at = min(filter(None, (last.planned_end_at, cancelled_at)))
    if now > ended_at + timedelta(seconds=STORED_WITHIN_S):
        return False
    return await read_log(records, plan.run_id, last.index) is None


async def read_guards(records: Records, plan: Plan, control: Control | None) -> GuardEvidence:
    """Return what is stored about the guards of a run, without the seconds of its bursts.

    Args:
        records: Records to use for access to the tables.
        plan: The whole plan.
        control: Control row of the run, or None.
    """
    if not plan.spec.is_guarded:
        return GuardEvidence()
    stored = [await read_log(records, plan.run_id, b.index) for b in _watched(plan, control)]
    logs = [log for log in stored if log is not None]
    index = stopped_burst(control, plan, logs)
    ended_at: list[datetime] = []
    if index is not None:
        reports = await records.bursts.read_reports(plan.run_id, index)
        ended_at = [report.ended_at or report.reported_at for report in reports.values()]
    return GuardEvidence(logs=logs, ended_at=ended_at)
