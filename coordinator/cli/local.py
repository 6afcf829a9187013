"""The verbs of :class:`~coordinator.cli.client.Client` on this host's own fabric.

Both call what the API's routes call; here no web framework stands between. Each verb imports what
it needs: a list of runs needs nothing that measures. Writes are recorded as the API's are.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from coordinator.cli.event_stream import StreamEvent, clean_json
from coordinator.cli.refused import ApiError
from coordinator.cli.screen_text import cleaned
from exchange.fabric import Fabric, FabricSettings, open_fabric
from exchange.messages import Message

if TYPE_CHECKING:
    from coordinator.auth.audit import Audit, AuditRow
    from coordinator.core.judge.comparison import Comparison
    from coordinator.core.live.status import RunStatus
    from coordinator.core.plan.cost_estimate import Appraisal
    from coordinator.core.plan.meter import PriceMeter
    from coordinator.core.summary import Course, RunSummary
    from coordinator.imports.import_answers import ImportedRecordings, ImportedTable
    from coordinator.imports.import_requests import OriginalTable, Recordings
    from coordinator.runs.coordinator import Coordinator
    from coordinator.runs.dead_letters import DeadJob
    from coordinator.runs.listing import RunFilter, RunGroups
    from coordinator.runs.retention import Pruned, PruneRequest
    from coordinator.runs.spending import Budgets
    from coordinator.runs.stored_runs import StoredRuns
    from coordinator.schedules.firing import Schedules
    from coordinator.studies.runner import Studies
    from coordinator.studies.study import Study, StudyRequest
    from coordinator.views.answers import (
        BurstEntry,
        PairEntry,
        Recomputed,
        RunReconciliation,
        RunVerdict,
        ScheduleView,
    )
    from coordinator.views.feeds import Feeds
    from coordinator.views.requests import (
        CancelRequest,
        CompareRequest,
        EstimateRequest,
        LaunchRequest,
        ScheduleRequest,
    )
    from exchange.messages import Presence, Side
    from exchange.records import RunHeader

_PAGE_COUNT: Final = 500  # items that are read at once

T = TypeVar("T")
C = TypeVar("C", int, str)  # where a list goes on
F = TypeVar("F", bound=Callable[..., Any])


@contextlib.asynccontextmanager
async def local_verbs(name: str, *, drive: bool) -> AsyncIterator[Local]:
    """The verbs on the settings' fabric; with ``drive`` unfinished runs are looked after."""
    fabric = open_fabric(FabricSettings())
    try:
        local = Local(fabric, name)
        async with local.driving() if drive else contextlib.nullcontext():
            yield local
    finally:
        await fabric.close()


def _verb(method: F) -> F:
    """The method with its refusals as :class:`ApiError`, and answers fit for a terminal."""
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            try:
                async with contextlib.aclosing(method(*args, **kwargs)) as items:
                    async for item in items:
                        yield item
            except Exception as error:
                raise _refusal(error) from error

        return cast("F", stream)

    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return _clean(await method(*args, **kwargs))
        except Exception as error:
            raise _refusal(error) from error

    return cast("F", call)


def _refusal(error: Exception) -> Exception:
    """The error as a command tells it; what the fabric says, and what nobody expected, as it is."""
    from coordinator.expected_errors import told
    from exchange.ports import ExchangeError

    said = None if isinstance(error, ApiError | ExchangeError) else told(error)
    return error if said is None else ApiError(cleaned(said.detail), said.status)


def _clean(value: T) -> T:
    """The same with its strings printable: others wrote them."""
    if isinstance(value, list):
        value[:] = [_clean(one) for one in value]
    if not isinstance(value, Message):
        return value
    told = value.model_dump(mode="json")
    fit = cleaned(told)
    return value if fit == told else type(value).model_validate(fit)


def _told(field: str, error: Any) -> ApiError:
    """A value that pydantic refused, as the API says it."""
    fault = error.errors()[0]
    where = ".".join(map(str, (field, *fault["loc"])))
    return ApiError(f"{where}: {fault['msg']} (got {fault['input']!r:.200})", 422)


class Local:
    """The verbs, each as the API's client has it. Every verb raises :class:`ApiError`."""

    def __init__(self, fabric: Fabric, name: str = "local") -> None:
        self._fabric = fabric
        self.event: Sequence[str] | None = None  # a drill's own command, run by this process only
        self._name = name  # who asks: whoever holds the fabric's credential needs no token

    # What verbs need, each made when the first one does ---------------------------------------

    @cached_property
    def _stored(self) -> StoredRuns:
        from coordinator.runs.stored_runs import StoredRuns

        return StoredRuns(self._fabric.records)

    @cached_property
    def _coordinator(self) -> Coordinator:
        from coordinator.coordinator_settings import CoordinatorSettings
        from coordinator.device.ledgers.source import open_ledger
        from coordinator.device.witnesses.witness_file import open_witnesses
        from coordinator.prices import load as load_prices
        from coordinator.runs.coordinator import Coordinator

        settings = CoordinatorSettings()
        prices = load_prices(settings.prices)
        return Coordinator(
            self._fabric,
            open_ledger(settings),
            witnesses=open_witnesses(settings.witnesses_file),
            prices=prices,
        )

    @cached_property
    def _studies(self) -> Studies:
        from coordinator.coordinator_settings import CoordinatorSettings
        from coordinator.studies.runner import Studies
        from coordinator.studies.switch import read_switches

        switches = read_switches(CoordinatorSettings().switches_file)
        return Studies(self._coordinator, self._fabric.private, switches)

    @cached_property
    def _budgets(self) -> Budgets:
        from coordinator.runs.spending import Budgets

        return Budgets(self._coordinator)

    @cached_property
    def _schedules(self) -> Schedules:
        from coordinator.schedules.firing import Schedules

        coordinator = self._coordinator
        return Schedules(self._fabric.private, coordinator, now=coordinator.now)

    @cached_property
    def _feeds(self) -> Feeds:
        from coordinator.views.feeds import Feeds

        return Feeds(self._coordinator)

    @cached_property
    def _audit(self) -> Audit:
        from coordinator.auth.audit import Audit

        return Audit(self._fabric.private)

    @contextlib.asynccontextmanager
    async def driving(self) -> AsyncIterator[None]:
        """Look after unfinished runs meanwhile; schedules are a service's to fire.

        Raises ``StorageGone`` in place of whatever is waited for when the rows' files are removed.
        """
        from coordinator.coordinator_settings import CoordinatorSettings
        from coordinator.runs.storage_watch import storage_gone

        coordinator = self._coordinator
        coordinator.companions += [self._studies, self._budgets]
        tick_s = CoordinatorSettings().tick_s
        waiting, gone = asyncio.current_task(), asyncio.create_task(storage_gone(self._fabric))
        gone.add_done_callback(lambda task: task.cancelled() or (waiting and waiting.cancel()))
        loop = asyncio.create_task(coordinator.run_forever(tick_s))
        try:
            yield
        except asyncio.CancelledError:
            if gone.done():
                raise gone.result() from None
            raise
        finally:
            for task in (loop, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _recorded(
        self,
        method: str,
        path: str,
        work: Callable[[], Awaitable[T]],
        *,
        status: int = 200,
        run_of: Callable[[T], str | None] | None = None,
    ) -> T:
        """Do a write between the two halves of its audit row; without the first it is not done."""
        from coordinator.auth.audit import AuditRow
        from coordinator.auth.rights import right_of

        right = right_of(method, path)
        row = AuditRow(
            at=datetime.now(UTC),
            by=self._name,
            role="unsigned",
            from_address=None,  # this process
            method=method,
            path=path,
            route=right.route,
            run_id=right.parameters.get("run_id", "")[:63] or None,
        )
        key = await self._audit.begin(row)
        try:
            done = await work()
        except Exception as error:
            from coordinator.expected_errors import told

            said = told(error)
            ended = {"status": 500 if said is None else said.status}
            await self._audit.end(key, row.model_copy(update=ended))
            raise
        run_id = row.run_id if run_of is None else run_of(done)
        ended_well = {"status": status, "run_id": run_id}
        await self._audit.end(key, row.model_copy(update=ended_well))
        return done

    # Runs -------------------------------------------------------------------------------------

    @_verb
    async def launch(self, request: LaunchRequest) -> RunStatus:
        async def work() -> RunStatus:
            plan = await self._coordinator.launch(request.resolve(), by=request.by)
            return await self._coordinator.stored.status(plan.run_id)

        return await self._recorded(
            "POST", "/v1/runs", work, status=202, run_of=lambda status: status.run_id
        )

    @_verb
    async def status(self, run_id: str) -> RunStatus:
        return await self._stored.status(run_id)

    @_verb
    async def course(self, run_id: str) -> Course:
        return await self._stored.course(run_id)

    @_verb
    async def events(self, run_id: str, last_id: str | None = None) -> AsyncIterator[StreamEvent]:
        """What is new of a run, as it comes; after ``last_id`` where that is given."""
        feed = await self._feeds.open(run_id, None)
        async with contextlib.aclosing(feed.follow(last_id)) as events:
            async for event in events:
                if event.name is not None:
                    last_id = event.id or last_id
                    yield StreamEvent(event.name, clean_json(event.data), last_id)

    @_verb
    async def summary(self, run_id: str) -> RunSummary | None:
        """None while the run goes on."""
        return await self._stored.summary(run_id)

    @_verb
    async def raw(self, run_id: str, pair: str, burst_index: int, side: Side) -> bytes:
        """An engine's own output."""
        from coordinator.runs.raw_output import find_raw

        plan = await self._stored.read_plan(run_id)
        return await find_raw(self._fabric.records, plan, pair, burst_index, side)

    @_verb
    async def prune(self, request: PruneRequest) -> Pruned:
        from coordinator.runs.launches import prune_runs

        return await self._recorded(
            "POST", "/v1/prune", lambda: prune_runs(self._coordinator, request)
        )

    @_verb
    async def recomputed(self, run_id: str) -> Recomputed:
        from coordinator.views.burst_answers import recomputed

        return await recomputed(self._coordinator, run_id)

    @_verb
    async def cancel(self, run_id: str, *, by: str, reason: str) -> RunStatus:
        asked = _cancelled(by, reason)

        async def work() -> RunStatus:
            await self._coordinator.cancel(run_id, by=asked.by, reason=asked.reason)
            return await self._coordinator.stored.status(run_id)

        return await self._recorded("POST", f"/v1/runs/{run_id}/abort", work, status=202)

    @_verb
    async def runs(self, limit: int, **asked: object) -> list[RunHeader]:
        """Newest first; ``asked`` are the list's filters by name."""
        from coordinator.runs.listing import list_runs

        wanted = _filter(asked)

        async def page(count: int, cursor: str | None) -> tuple[Sequence[RunHeader], str | None]:
            return await list_runs(self._fabric.records, wanted, limit=count, cursor=cursor)

        return await _pages(limit, page)

    @_verb
    async def aggregate(self, group_by: str, timezone: str = "UTC", **asked: object) -> RunGroups:
        """Sums over the runs that fit the filters."""
        from coordinator.runs.listing import aggregate_runs

        return await aggregate_runs(self._fabric.records, _filter(asked), group_by, timezone)

    # What runs showed -------------------------------------------------------------------------

    @_verb
    async def bursts(self, run_id: str, limit: int) -> list[BurstEntry]:
        from coordinator.views.burst_answers import list_bursts

        return await _pages(
            limit,
            lambda count, cursor: list_bursts(
                self._coordinator, run_id, limit=count, cursor=cursor or 0
            ),
        )

    @_verb
    async def pairs(self, run_id: str, burst_index: int, limit: int) -> list[PairEntry]:
        from coordinator.views.burst_answers import list_pairs

        return await _pages(
            limit,
            lambda count, cursor: list_pairs(
                self._coordinator, run_id, burst_index, limit=count, cursor=cursor or 0
            ),
        )

    @_verb
    async def series(
        self,
        run_id: str,
        burst_index: int,
        *,
        resolution_s: int = 1,
        of: str | None = None,
        pair: str | None = None,
        accept: str = "application/json",
    ) -> bytes:
        """A burst's seconds in the form that ``accept`` names."""
        from coordinator.views.series_answers import Whose, series_body

        return await series_body(
            self._coordinator,
            run_id,
            burst_index,
            accept,
            resolution_s=resolution_s,
            of=None if of is None else Whose(of),
            pair=pair,
        )

    @_verb
    async def verdict(self, run_id: str) -> RunVerdict:
        """The verdict with its findings, without single bursts."""
        from coordinator.views.burst_answers import read_verdict

        return await read_verdict(self._coordinator, run_id)

    @_verb
    async def reconciliation(self, run_id: str) -> RunReconciliation:
        """The two ledgers held together; of more than 500 bursts the first."""
        from coordinator.views.burst_answers import read_reconciliation

        held, _ = await read_reconciliation(self._coordinator, run_id, limit=500, cursor=0)
        return held

    @_verb
    async def report(self, run_id: str, format: str) -> bytes:
        """A finished run's report, html or json."""
        from coordinator.views.report.build import build
        from coordinator.views.report.render import html
        from coordinator.views.report.stored_source import gather

        coordinator = self._coordinator
        source = await gather(
            coordinator.fabric.records,
            run_id,
            coordinator.now(),
            lambda: self._budgets.read(run_id),
        )
        report = await asyncio.to_thread(build, source)
        if format == "json":
            return report.model_dump_json().encode()
        return (await asyncio.to_thread(html, report, source)).encode()

    @_verb
    async def export(self, run_id: str, format: str, table: str) -> bytes:
        """A finished run's figures as a file."""
        from coordinator.views.exports import Format
        from coordinator.views.exports.stored_tables import export_run

        return await export_run(self._coordinator, run_id, Format(format), table)

    @_verb
    async def chart(
        self, run_id: str, name: str, burst_index: int | None, theme: str
    ) -> dict[str, Any]:
        """One chart with its plotly figure."""
        from coordinator.views.charts import Theme
        from coordinator.views.charts.stored_views import draw_stored

        plan = await self._stored.read_plan(run_id)
        drawn = await draw_stored(self._fabric.records, plan, name, burst_index, Theme(theme))
        return dict(cleaned(drawn.model_dump(mode="json")))

    @_verb
    async def compare(self, request: CompareRequest) -> Comparison:
        from coordinator.views.groups import compare_stored

        return await compare_stored(self._coordinator, request)

    @_verb
    async def presences(self) -> list[Presence]:
        known = await self._fabric.records.fleet.read_presences()
        return sorted(known, key=lambda p: (p.role.value, p.agent_id))

    # Prices, schedules, studies, imports ------------------------------------------------------

    @_verb
    async def estimate(self, request: EstimateRequest) -> Appraisal:
        table = request.table(self._coordinator.prices)
        return await self._budgets.appraise(request.resolve(), table)

    @_verb
    async def price(self, run_id: str) -> PriceMeter:
        return await self._budgets.read(run_id)

    @_verb
    async def add_schedule(self, request: ScheduleRequest) -> ScheduleView:
        schedule = request.schedule(by=request.by, now=self._coordinator.now())
        return await self._recorded(
            "POST", "/v1/schedules", lambda: self._schedules.add(schedule), status=201
        )

    @_verb
    async def schedules(self) -> list[ScheduleView]:
        return await self._schedules.list()

    @_verb
    async def schedule(self, name: str) -> ScheduleView:
        return await self._schedules.read(name)

    @_verb
    async def pause_schedule(self, name: str) -> ScheduleView:
        path = f"/v1/schedules/{name}/pause"
        return await self._recorded("POST", path, lambda: self._schedules.pause(name))

    @_verb
    async def resume_schedule(self, name: str) -> ScheduleView:
        path = f"/v1/schedules/{name}/resume"
        return await self._recorded("POST", path, lambda: self._schedules.resume(name))

    @_verb
    async def remove_schedule(self, name: str) -> ScheduleView:
        path = f"/v1/schedules/{name}"
        return await self._recorded("DELETE", path, lambda: self._schedules.remove(name))

    @_verb
    async def create_study(self, request: StudyRequest) -> Study:
        return await self._recorded(
            "POST",
            "/v1/studies",
            lambda: self._studies.create(request.study(), by=request.by, command=self.event),
            status=202,
        )

    @_verb
    async def studies(self, limit: int) -> list[Study]:
        return await _pages(
            limit, lambda count, cursor: self._studies.newest(limit=count, cursor=cursor)
        )

    @_verb
    async def study(self, study_id: str) -> Study:
        return await self._studies.read(study_id)

    @_verb
    async def study_chart(self, study_id: str, name: str, theme: str) -> dict[str, Any]:
        """One of a study's charts with its plotly figure."""
        from coordinator.views.charts import Theme
        from coordinator.views.charts.study_charts import draw_study

        study = await self._studies.read(study_id)
        drawn = await asyncio.to_thread(draw_study, name, study, Theme(theme))
        return dict(cleaned(drawn.model_dump(mode="json")))

    @_verb
    async def study_report(self, study_id: str, format: str) -> bytes:
        """A study's report, html or json."""
        from coordinator.views.report.study_report import build_study, study_html

        report = build_study(await self._studies.read(study_id), self._coordinator.now())
        if format == "json":
            return report.model_dump_json().encode()
        return (await asyncio.to_thread(study_html, report)).encode()

    @_verb
    async def cancel_study(self, study_id: str, *, by: str, reason: str) -> Study:
        asked = _cancelled(by, reason)
        return await self._recorded(
            "POST",
            f"/v1/studies/{study_id}/abort",
            lambda: self._studies.cancel(study_id, by=asked.by, reason=asked.reason),
            status=202,
        )

    @_verb
    async def import_table(self, table: OriginalTable) -> ImportedTable:
        from coordinator.imports.stored_imports import keep_table

        return await self._recorded(
            "POST",
            "/v1/imports/original",
            lambda: keep_table(self._fabric.records, table, datetime.now(UTC)),
            status=201,
            run_of=lambda imported: imported.run_id,
        )

    @_verb
    async def import_recordings(self, recordings: Recordings) -> ImportedRecordings:
        from coordinator.imports.stored_imports import keep_recordings

        return await self._recorded(
            "POST",
            "/v1/imports/iperf3",
            lambda: keep_recordings(self._fabric.records, recordings, datetime.now(UTC)),
            status=201,
            run_of=lambda imported: imported.run_id,
        )

    # What was set aside, and what was changed -------------------------------------------------

    @_verb
    async def dead_letters(self, limit: int) -> list[DeadJob]:
        return list(await self._coordinator.dead_letters.oldest(limit))

    @_verb
    async def dead_letter(self, sequence_number: int) -> DeadJob:
        return await self._coordinator.dead_letters.read(sequence_number)

    @_verb
    async def resend(self, sequence_number: int) -> DeadJob:
        path = f"/v1/deadletters/{sequence_number}/resend"
        letters = self._coordinator.dead_letters
        return await self._recorded("POST", path, lambda: letters.resend(sequence_number))

    @_verb
    async def purge(self, sequence_number: int) -> DeadJob:
        path = f"/v1/deadletters/{sequence_number}"
        letters = self._coordinator.dead_letters
        return await self._recorded("DELETE", path, lambda: letters.purge(sequence_number))

    @_verb
    async def purge_all(self) -> int:
        """How many went."""
        letters, count = self._coordinator.dead_letters, 1000
        total = 0
        while True:
            gone = await self._recorded(
                "DELETE", "/v1/deadletters", lambda: letters.purge_oldest(count)
            )
            total += gone
            if gone < count:
                return total

    @_verb
    async def audit(self, limit: int) -> list[AuditRow]:
        """Writes, newest first."""
        now = datetime.now(UTC)
        return await _pages(
            limit, lambda count, cursor: self._audit.read(now, limit=count, cursor=cursor)
        )


async def _pages(
    limit: int, page: Callable[[int, C | None], Awaitable[tuple[Sequence[T], C | None]]]
) -> list[T]:
    """At most ``limit`` items of a list, page by page."""
    items: list[T] = []
    cursor: C | None = None
    while len(items) < limit:
        found, cursor = await page(min(limit - len(items), _PAGE_COUNT), cursor)
        items += found
        if cursor is None:
            break
    return items


def _filter(asked: Mapping[str, Any]) -> RunFilter:
    """The list's filters from their names in the API. Raises :class:`ApiError`."""
    from pydantic import TypeAdapter, ValidationError

    from coordinator.runs.listing import RunFilter, labels_of
    from exchange.messages import UtcDatetime

    named = dict(asked)
    named["labels"] = labels_of(named.pop("label", ()))
    for field in ("from_at", "before_at"):
        if field in named:
            try:
                named[field] = TypeAdapter(UtcDatetime).validate_python(named[field])
            except ValidationError as error:
                raise _told(f"query.{field}", error) from error
    return RunFilter(**named)


def _cancelled(by: str, reason: str) -> CancelRequest:
    from pydantic import ValidationError

    from coordinator.views.requests import CancelRequest

    try:
        return CancelRequest(by=by, reason=reason)
    except ValidationError as error:
        raise _told("body", error) from error
