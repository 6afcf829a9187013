"""Read access to the plan, status, summary and trends of stored runs."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from broadside.coordinator.core.live.status import BurstStatus, RunStatus
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import Verdict
from broadside.coordinator.request_errors import UnknownRun
from broadside.coordinator.runs.run_states import RunStates
from broadside.exchange.messages import plain_text
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.records import Document, Records

if TYPE_CHECKING:
    from broadside.coordinator.core.live.progress import Progress
    from broadside.coordinator.core.summary import RunSummary, RunTrends
    from broadside.coordinator.imports.import_requests import Imported

# The same pattern as in broadside.exchange.messages.
_RUN_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def parse_plan(run_id: str, document: bytes) -> Plan:
    """Return a run's stored plan.

    Args:
        run_id: The run, for the error message.
        document: The stored document.

    Raises:
        RecordUnreadable: The document is damaged, or a later version wrote it.
    """
    try:
        return Plan.read(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "plan"
        raise RecordUnreadable(
            plain_text(
                f"run {run_id}: its plan cannot be read ({place}: {first['msg']}); if a later "
                "version of Broadside has written it, use that version"
            )
        ) from error


class StoredRuns:
    """Stored runs. Every read raises :class:`UnknownRun` if there is no such run."""

    def __init__(self, records: Records, now: Callable[[], datetime] = utc_now) -> None:
        self._records = records
        self.states = RunStates(records, now)
        # Stored plans never change.
        self._plans: dict[str, Plan] = {}
        # Plans with bursts that were ended early, and the number of these bursts.
        self._ended: dict[str, tuple[int, Plan]] = {}
        # Runs that are known not to be imports.
        self._own: set[str] = set()

    def keep(self, plan: Plan) -> None:
        """Cache a plan that was just stored."""
        self._plans[plan.run_id] = plan

    def forget(self, run_id: str) -> None:
        """Drop the cached state of a run that was removed."""
        self._plans.pop(run_id, None)
        self._ended.pop(run_id, None)
        self.states.forget(run_id)

    async def read_plan(self, run_id: str) -> Plan:
        """Return a run plan. Bursts that were ended early have their shorter duration.

        Raises:
            UnknownRun: The id is malformed, or the run does not exist.
        """
        if not _RUN_ID.fullmatch(run_id):
            raise UnknownRun(run_id)
        if run_id not in self._plans:
            stored = await self._records.read_run(run_id)
            if stored is None:
                raise UnknownRun(run_id)
            self._plans[run_id] = parse_plan(run_id, stored[1])
        plan = self._plans[run_id]
        return await self._with_ends(plan) if plan.spec.may_end_early else plan

    async def _with_ends(self, plan: Plan) -> Plan:
        ends = await self._records.runs.read_ends(plan.run_id)
        known = self._ended.get(plan.run_id)
        if known is None or known[0] != len(ends):
            known = self._ended[plan.run_id] = (len(ends), plan.with_ends(ends))
        return known[1]

    async def imported(self, run_id: str) -> "Imported | None":
        """Return the values from which a run was imported, or None if it was not imported."""
        if run_id in self._own:
            return None
        document = await self._records.private.read_document(run_id, Document.IMPORT)
        if document is None:
            self._own.add(run_id)
            return None
        from broadside.coordinator.imports.stored_imports import parse_import

        return parse_import(document)

    async def status(self, run_id: str) -> RunStatus:
        """Return the current status of a run, with its entry in the list."""
        plan = await self.read_plan(run_id)
        listed = await self._records.private.read_listed(run_id)
        imported = await self.imported(run_id)
        if imported is None:
            status = await self.states.status(plan)
        else:
            from broadside.coordinator.imports.stored_imports import import_status

            status = await import_status(plan, imported)
        if listed is None:
            return status
        outcome = listed.outcome
        return status.model_copy(
            update={
                "created_by": listed.created_by,
                "labels": listed.labels,
                "outcome": outcome,
                "verdict": outcome and outcome.verdict and Verdict(outcome.verdict),
                "reason": outcome and outcome.reason,
                "next_step": outcome and outcome.next_step,
            }
        )

    async def change_labels(self, run_id: str, change: Mapping[str, str | None]) -> RunStatus:
        """Change the labels of a run, also of a finished one.

        Args:
            run_id: The id to look up.
            change: New values by name. None removes a label.

        Returns:
            The status of the run with all its labels.

        Raises:
            UnknownRun: The run does not exist.
        """
        await self.read_plan(run_id)
        await self._records.private.change_labels(run_id, change)
        return await self.status(run_id)

    async def burst_statuses(self, run_id: str, indices: range) -> Sequence[BurstStatus]:
        """Return the status for some bursts.

        Args:
            run_id: The id to look up.
            indices: Burst indices.
        """
        plan = await self.read_plan(run_id)
        if await self.imported(run_id) is not None:
            return (await self.status(run_id)).bursts[indices.start : indices.stop]
        return await self.states.bursts(plan, indices)

    async def summary(self, run_id: str) -> "RunSummary | None":
        """Return the stored summary, or None while the run continues."""
        await self.read_plan(run_id)
        document = await self._records.private.read_document(run_id, Document.RUN)
        if document is None:
            return None
        from broadside.coordinator.core.summary import parse_run

        return parse_run(document)

    async def progress(self, run_id: str) -> "Progress":
        """Return the seconds of the newest burst that has begun."""
        return await self.states.progress(await self.read_plan(run_id))

    async def trends(self, run_id: str) -> "RunTrends":
        """Return the trends over the closed bursts."""
        from broadside.coordinator.core.summary import RunTrends

        plan = await self.read_plan(run_id)
        document = await self._records.private.read_document(run_id, Document.RUN)
        if document is not None:
            # We should only parse this part, because it would take much longer to parse the
            # summary.
            stored = json.loads(document)
            stored_trend = stored.get("run_trends", stored.get("course"))
            if stored_trend is not None:
                return RunTrends.model_validate(stored_trend)
        return await self.states.trends(plan)
