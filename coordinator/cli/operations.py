"""Coordinator operations for commands, each with its API route and its result type.

:class:`Operations` executes them on the local store, with the functions that the API routes call,
and without a web framework. :class:`~broadside.coordinator.cli.api_client.ApiClient` sends them to
the routes. Each operation imports only the modules that it needs. Writes are recorded in the audit
log, as in the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.cli.terminal_text import cleaned, printable
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Message
from broadside.exchange.outage_log import utc_now
from broadside.exchange.strict_json import parse_strict_json

if TYPE_CHECKING:
    from pydantic import ValidationError

    from broadside.coordinator.auth.audit import Audit, AuditRow
    from broadside.coordinator.core.comparison.group_comparison import Comparison
    from broadside.coordinator.core.live.status import RunStatus
    from broadside.coordinator.core.plan.budget import PriceMeter
    from broadside.coordinator.core.plan.cost_estimate import LaunchEstimate
    from broadside.coordinator.core.summary import RunSummary, RunTrends
    from broadside.coordinator.imports.import_answers import ImportedRecordings, ImportedTable
    from broadside.coordinator.imports.import_requests import OriginalTable, Recordings
    from broadside.coordinator.runs.budgets import Budgets
    from broadside.coordinator.runs.coordinator import Coordinator
    from broadside.coordinator.runs.dead_letters import DeadJob
    from broadside.coordinator.runs.listing import RunFilter, RunGroups
    from broadside.coordinator.runs.requests import (
        CancelRequest,
        CompareRequest,
        EstimateRequest,
        LaunchRequest,
        RunChange,
        ScheduleRequest,
    )
    from broadside.coordinator.runs.retention import Pruned, PruneRequest
    from broadside.coordinator.runs.stored_runs import StoredRuns
    from broadside.coordinator.schedules.firing import Schedules
    from broadside.coordinator.studies.runner import Studies
    from broadside.coordinator.studies.study import Study, StudyRequest
    from broadside.coordinator.views.charts import Chart
    from broadside.coordinator.views.charts.study_charts import StudyChart
    from broadside.coordinator.views.feeds import Feeds
    from broadside.coordinator.views.responses import (
        BurstEntry,
        PairEntry,
        Recomputed,
        RunReconciliation,
        ScheduleView,
    )
    from broadside.exchange.messages import Presence, Side
    from broadside.exchange.records import RunHeader

# Number of items to get in one request.
_PAGE: Final = 500
# Number of dead letters to get in one request. Their list has only one page.
_ONLY_PAGE: Final = 1000

# Result types of several operations.
_STATUS: Final = "coordinator.core.live.status:RunStatus"
_STUDY: Final = "coordinator.studies.study:Study"
_SCHEDULE: Final = "coordinator.views.responses:ScheduleView"
_DEAD_JOB: Final = "coordinator.runs.dead_letters:DeadJob"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class StreamEvent(NamedTuple):
    """One event.

    Attributes:
        name: Event type.
        data: The data lines, joined with newlines.
        id: Last id of the stream so far. None if there was none.
    """

    name: str
    data: str
    id: str | None


def clean_json(text: str) -> str:
    """Return the JSON document with printable strings. Invalid JSON is only made printable."""
    try:
        return json.dumps(cleaned(parse_strict_json(text, len(text))), ensure_ascii=False)
    except ValueError:
        return printable(text)


@dataclass(frozen=True, slots=True)
class OperationRoute:
    """Decorator that makes a method of ``Operations`` an operation with a route.

    A parameter that is a message is sent as the body. `accept` is a header. Other parameters that
    are not in the path are in the query, or in the POST body.

    Attributes:
        request: Method and path. ``{parts}`` of the path are parameter names.
        result: Result type: bytes, dict, or a message as ``module:name`` below ``broadside``.
        page_count: Maximum number of items in one list request. None if the result is not a list.
        is_slow: The request reads or sends many rows.
        status: HTTP status code of success, for the audit log.
        absent_at: HTTP status code that means None.
    """

    request: str
    result: type | str
    page_count: int | None = None
    is_slow: bool = False
    status: int = 200
    absent_at: int | None = None

    def __call__(self, work: F) -> F:
        signature = inspect.signature(work)

        @functools.wraps(work)
        async def operation(operations: Operations, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(operations, *args, **kwargs)
            bound.apply_defaults()
            values = {name: value for name, value in bound.arguments.items() if name != "self"}
            values |= values.pop("filters", {})
            method, path = self.request.format(**values).split(" ", 1)
            return await operations._execute(
                self, method, path, values, lambda: work(operations, *args, **kwargs)
            )

        return cast("F", operation)


@contextlib.asynccontextmanager
async def local_operations(name: str, *, drive: bool) -> AsyncIterator[Operations]:
    """Open the operations on the local store.

    Args:
        name: User name for the audit log.
        drive: Process unfinished runs meanwhile.

    Yields:
        The operations. They are closed at the end.
    """
    fabric = open_fabric(FabricSettings())
    try:
        local = Operations(fabric, name)
        async with local.driving() if drive else contextlib.nullcontext():
            yield local
    finally:
        await fabric.close()


def open_coordinator(fabric: Fabric) -> Coordinator:
    """Open a coordinator with the telemetry sources and prices of the settings."""
    from broadside.coordinator.coordinator_settings import CoordinatorSettings
    from broadside.coordinator.device.telemetry.config import open_telemetry
    from broadside.coordinator.prices import load as load_prices
    from broadside.coordinator.runs.coordinator import Coordinator

    settings = CoordinatorSettings()
    prices = load_prices(settings.prices)
    return Coordinator(
        fabric,
        open_telemetry(settings.telemetry_file),
        prices=prices,
        nightly_stop=settings.nightly_stop,
    )


def _to_api_error(error: Exception) -> Exception:
    """Convert an expected error to ``ApiError``. Other errors are returned unchanged."""
    from broadside.coordinator.api.expected_errors import describe_error
    from broadside.exchange.ports import ExchangeError

    expected = None if isinstance(error, ApiError | ExchangeError) else describe_error(error)
    return error if expected is None else ApiError(cleaned(expected.detail), expected.status)


def _printable(value: T) -> T:
    """Return the value with printable strings, because they can come from other users."""
    if isinstance(value, list):
        value[:] = [_printable(one) for one in value]
    if not isinstance(value, Message):
        return value
    dumped = value.model_dump(mode="json")
    clean = cleaned(dumped)
    return value if clean == dumped else type(value).model_validate(clean)


def _validation_error(field: str, error: ValidationError) -> ApiError:
    """Convert a pydantic error to the error that the API returns."""
    problem = error.errors()[0]
    path = ".".join(map(str, (field, *problem["loc"])))
    return ApiError(f"{path}: {problem['msg']} (got {problem['input']!r:.200})", 422)


class Operations:
    """Operations on the local store. Every operation can raise ``ApiError``.

    Attributes:
        drill_command: Command of a drill. It is executed by this process only.
    """

    drill_command: Sequence[str] | None = None

    def __init__(self, fabric: Fabric, name: str = "local") -> None:
        self._fabric = fabric
        # A user with the fabric credential needs no token.
        self._name = name

    # Services, created on first use ---------------------------------------------

    @cached_property
    def _stored(self) -> StoredRuns:
        from broadside.coordinator.runs.stored_runs import StoredRuns

        return StoredRuns(self._fabric.records)

    @cached_property
    def _coordinator(self) -> Coordinator:
        return open_coordinator(self._fabric)

    @cached_property
    def _studies(self) -> Studies:
        from broadside.coordinator.coordinator_settings import CoordinatorSettings
        from broadside.coordinator.studies.runner import Studies
        from broadside.coordinator.studies.switch import read_switches

        switches = read_switches(CoordinatorSettings().switches_file)
        return Studies(self._coordinator, self._feeds, self._fabric.private, switches)

    @cached_property
    def _budgets(self) -> Budgets:
        from broadside.coordinator.runs.budgets import Budgets

        return Budgets(self._coordinator)

    @cached_property
    def _schedules(self) -> Schedules:
        from broadside.coordinator.schedules.firing import Schedules

        coordinator = self._coordinator
        return Schedules(self._fabric.private, coordinator, now=coordinator.now)

    @cached_property
    def _feeds(self) -> Feeds:
        from broadside.coordinator.views.feeds import Feeds

        return Feeds(self._coordinator)

    @cached_property
    def _audit(self) -> Audit:
        from broadside.coordinator.auth.audit import Audit

        return Audit(self._fabric.private)

    @contextlib.asynccontextmanager
    async def driving(self) -> AsyncIterator[None]:
        """Process unfinished runs while the context is active. Schedules are not fired.

        Raises:
            StorageGone: The store files were removed. The current task is interrupted.
        """
        from broadside.coordinator.coordinator_settings import CoordinatorSettings
        from broadside.coordinator.runs.early_stops import EarlyStops
        from broadside.coordinator.runs.guard_service import Guards
        from broadside.coordinator.runs.storage_watch import storage_gone

        coordinator = self._coordinator
        early_stops, guards = EarlyStops(coordinator), Guards(coordinator)
        coordinator.companions += [self._studies, self._budgets, early_stops, guards]
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

    async def _execute(
        self,
        route: OperationRoute,
        method: str,
        path: str,
        values: Mapping[str, Any],
        work: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Run ``work``. Errors become ``ApiError``, and strings of the result are printable."""
        try:
            done = work() if method == "GET" else self._recorded(route, method, path, work)
            return _printable(await done)
        except Exception as error:
            raise _to_api_error(error) from error

    async def _recorded(
        self, route: OperationRoute, method: str, path: str, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Execute a write between its start and end entries in the audit log.

        If the start entry cannot be stored, the write will not be executed.
        """
        from broadside.coordinator.auth.audit import AuditRow
        from broadside.coordinator.auth.permissions import required_permission

        right = required_permission(method, path)
        if not right.writes:
            return await work()
        row = AuditRow(
            at=utc_now(),
            by=self._name,
            role="unsigned",
            # This should be None, because the request comes from this process.
            from_address=None,
            method=method,
            path=path,
            route=right.route,
            run_id=right.parameters.get("run_id", "")[:63] or None,
        )
        key = await self._audit.begin(row)
        try:
            result = await work()
        except Exception as error:
            expected = _to_api_error(error)
            status = expected.status if isinstance(expected, ApiError) else 500
            await self._audit.end(key, row.model_copy(update={"status": status}))
            raise
        created = getattr(result, "run_id", None) if route.status != 200 else None
        update = {"status": route.status, "run_id": row.run_id or created}
        await self._audit.end(key, row.model_copy(update=update))
        return result

    # Runs -------------------------------------------------------------------------------------

    @OperationRoute("POST /v1/runs", _STATUS, status=202)
    async def launch(self, request: LaunchRequest) -> RunStatus:
        plan = await self._coordinator.launch(request.resolve(), by=request.by)
        return await self._coordinator.stored.status(plan.run_id)

    @OperationRoute("GET /v1/runs/{run_id}", _STATUS)
    async def status(self, run_id: str) -> RunStatus:
        return await self._stored.status(run_id)

    @OperationRoute("GET /v1/runs/{run_id}/trends", "coordinator.core.summary:RunTrends")
    async def trends(self, run_id: str) -> RunTrends:
        return await self._stored.trends(run_id)

    async def events(self, run_id: str, last_id: str | None = None) -> AsyncIterator[StreamEvent]:
        """Yield the run events.

        Args:
            run_id: The run to use.
            last_id: Last received event id. If None, start from the beginning.

        Raises:
            ApiError: The run is unknown.
        """
        try:
            feed = await self._feeds.open(run_id, None)
            async with contextlib.aclosing(feed.follow(last_id)) as events:
                async for event in events:
                    if event.name is not None:
                        last_id = event.id or last_id
                        yield StreamEvent(event.name, clean_json(event.data), last_id)
        except Exception as error:
            raise _to_api_error(error) from error

    @OperationRoute(
        "GET /v1/runs/{run_id}/summary",
        "coordinator.core.summary:RunSummary",
        absent_at=409,
    )
    async def summary(self, run_id: str) -> RunSummary | None:
        """Return the summary, or None if the run is not over."""
        return await self._stored.summary(run_id)

    @OperationRoute("GET /v1/runs/{run_id}/raw/{pair}", bytes, is_slow=True)
    async def raw(self, run_id: str, pair: str, burst: int, side: Side) -> bytes:
        """Return raw engine output."""
        from broadside.coordinator.runs.raw_output import find_raw_output

        plan = await self._stored.read_plan(run_id)
        return await find_raw_output(self._fabric.records, plan, pair, burst - 1, side)

    @OperationRoute("POST /v1/prune", "coordinator.runs.retention:Pruned", is_slow=True)
    async def prune(self, request: PruneRequest) -> Pruned:
        from broadside.coordinator.runs.retention import prune_runs

        return await prune_runs(self._coordinator, request)

    @OperationRoute(
        "GET /v1/runs/{run_id}/recomputed",
        "coordinator.views.responses:Recomputed",
        is_slow=True,
    )
    async def recomputed(self, run_id: str) -> Recomputed:
        from broadside.coordinator.views.burst_responses import recomputed

        return await recomputed(self._coordinator, run_id)

    @OperationRoute("PATCH /v1/runs/{run_id}", _STATUS)
    async def change_run(self, run_id: str, change: RunChange) -> RunStatus:
        return await self._coordinator.stored.change_labels(run_id, change.labels)

    @OperationRoute("POST /v1/runs/{run_id}/abort", _STATUS, status=202)
    async def cancel(self, run_id: str, *, by: str, reason: str) -> RunStatus:
        request = _cancel_request(by, reason)
        await self._coordinator.cancel(run_id, by=request.by, reason=request.reason)
        return await self._coordinator.stored.status(run_id)

    @OperationRoute("GET /v1/runs", "exchange.records:RunHeader", page_count=_PAGE)
    async def runs(self, limit: int, **filters: object) -> list[RunHeader]:
        """Return runs, newest first. ``filters`` use the same names as the API."""
        from broadside.coordinator.runs.listing import list_runs

        runs: list[RunHeader] = []
        run_filter, cursor = _run_filter(filters), None
        while True:
            page, cursor = await list_runs(
                self._fabric.records, run_filter, limit=limit - len(runs), cursor=cursor
            )
            runs += page
            if cursor is None or len(runs) == limit:
                return runs

    @OperationRoute("GET /v1/aggregate", "coordinator.runs.listing:RunGroups")
    async def aggregate(self, group_by: str, timezone: str = "UTC", **filters: object) -> RunGroups:
        """Return aggregates of the runs that match the filters."""
        from broadside.coordinator.runs.listing import aggregate_runs

        return await aggregate_runs(self._fabric.records, _run_filter(filters), group_by, timezone)

    # Run results ------------------------------------------------------------------------------

    @OperationRoute(
        "GET /v1/runs/{run_id}/bursts",
        "coordinator.views.responses:BurstEntry",
        page_count=_PAGE,
    )
    async def bursts(self, run_id: str, limit: int) -> list[BurstEntry]:
        from broadside.coordinator.views.burst_responses import list_bursts

        entries, _ = await list_bursts(self._coordinator, run_id, limit=limit, cursor=0)
        return list(entries)

    @OperationRoute(
        "GET /v1/runs/{run_id}/pairs",
        "coordinator.views.responses:PairEntry",
        page_count=_PAGE,
    )
    async def pairs(self, run_id: str, burst: int, limit: int) -> list[PairEntry]:
        from broadside.coordinator.views.burst_responses import list_pairs

        entries, _ = await list_pairs(self._coordinator, run_id, burst - 1, limit=limit, cursor=0)
        return list(entries)

    @OperationRoute("GET /v1/runs/{run_id}/series", bytes)
    async def series(  # noqa: PLR0913 - query parameters
        self,
        run_id: str,
        burst: int,
        *,
        resolution_s: int = 1,
        of: str | None = None,
        pair: str | None = None,
        accept: str = "application/json",
    ) -> bytes:
        """Return the burst seconds in the format ``accept``."""
        from broadside.coordinator.views.tables.stored_tables import (
            SecondsOf,
            SeriesQuery,
            series_body,
        )

        return await series_body(
            self._coordinator,
            run_id,
            SeriesQuery(
                burst_index=burst - 1,
                resolution_s=resolution_s,
                of=None if of is None else SecondsOf(of),
                pair=pair,
            ),
            accept,
        )

    @OperationRoute(
        "GET /v1/runs/{run_id}/reconciliation",
        "coordinator.views.responses:RunReconciliation",
    )
    async def reconciliation(self, run_id: str, limit: int = _PAGE) -> RunReconciliation:
        """Return the reconciliation of a run and of its first ``limit`` bursts."""
        from broadside.coordinator.views.burst_responses import read_reconciliation

        result, _ = await read_reconciliation(self._coordinator, run_id, limit=limit, cursor=0)
        return result

    @OperationRoute("GET /v1/runs/{run_id}/report", bytes, is_slow=True)
    async def report(self, run_id: str, format: str) -> bytes:
        """Return the report of a finished run as html or json."""
        from broadside.coordinator.views.report.build import build
        from broadside.coordinator.views.report.render import html
        from broadside.coordinator.views.report.stored_source import gather

        coordinator = self._coordinator
        source = await gather(
            coordinator.fabric.records,
            run_id,
            coordinator.now(),
            lambda: self._budgets.read(run_id),
        )
        report = await asyncio.to_thread(build, source)
        if format == "json":
            return report.answer_json().encode()
        return (await asyncio.to_thread(html, report, source)).encode()

    @OperationRoute("GET /v1/runs/{run_id}/export", bytes, is_slow=True)
    async def export(self, run_id: str, format: str, table: str) -> bytes:
        """Return the results of a finished run as a file."""
        from broadside.coordinator.views.tables import Format
        from broadside.coordinator.views.tables.stored_tables import export_run

        return await export_run(self._coordinator, run_id, Format(format), table)

    @OperationRoute("GET /v1/runs/{run_id}/charts/{name}", "coordinator.views.charts:Chart")
    async def chart(self, run_id: str, name: str, burst: int | None) -> Chart:
        """Return a chart with its data."""
        from broadside.coordinator.views.charts.stored_charts import draw_stored

        plan = await self._stored.read_plan(run_id)
        return await draw_stored(
            self._fabric.records, plan, name, None if burst is None else burst - 1
        )

    @OperationRoute(
        "POST /v1/comparisons",
        "coordinator.core.comparison.group_comparison:Comparison",
        is_slow=True,
    )
    async def compare(self, request: CompareRequest) -> Comparison:
        from broadside.coordinator.runs.comparison_groups import compare_stored

        return await compare_stored(self._coordinator, request)

    @OperationRoute("GET /v1/agents", "exchange.messages:Presence", page_count=_PAGE)
    async def presences(self) -> list[Presence]:
        known = await self._fabric.records.fleet.read_presences()
        return sorted(known, key=lambda p: (p.role.value, p.agent_id))

    # Prices, schedules, studies, imports ------------------------------------------------------

    @OperationRoute(
        "POST /v1/estimate", "coordinator.core.plan.cost_estimate:LaunchEstimate", is_slow=True
    )
    async def estimate(self, request: EstimateRequest) -> LaunchEstimate:
        table = request.table(self._coordinator.prices)
        return await self._coordinator.launcher.appraise(request.resolve(), table)

    @OperationRoute("GET /v1/runs/{run_id}/price", "coordinator.core.plan.budget:PriceMeter")
    async def price(self, run_id: str) -> PriceMeter:
        return await self._budgets.read(run_id)

    @OperationRoute("POST /v1/schedules", _SCHEDULE, is_slow=True, status=201)
    async def add_schedule(self, request: ScheduleRequest) -> ScheduleView:
        schedule = request.schedule(by=request.by, now=self._coordinator.now())
        return await self._schedules.add(schedule)

    @OperationRoute("GET /v1/schedules", _SCHEDULE, page_count=_PAGE)
    async def schedules(self) -> list[ScheduleView]:
        return await self._schedules.list()

    @OperationRoute("GET /v1/schedules/{name}", _SCHEDULE, is_slow=True)
    async def schedule(self, name: str) -> ScheduleView:
        return await self._schedules.read(name)

    @OperationRoute("POST /v1/schedules/{name}/pause", _SCHEDULE)
    async def pause_schedule(self, name: str) -> ScheduleView:
        return await self._schedules.pause(name)

    @OperationRoute("POST /v1/schedules/{name}/resume", _SCHEDULE)
    async def resume_schedule(self, name: str) -> ScheduleView:
        return await self._schedules.resume(name)

    @OperationRoute("DELETE /v1/schedules/{name}", _SCHEDULE, is_slow=True)
    async def remove_schedule(self, name: str) -> ScheduleView:
        return await self._schedules.remove(name)

    @OperationRoute("POST /v1/studies", _STUDY, is_slow=True, status=202)
    async def create_study(self, request: StudyRequest) -> Study:
        return await self._studies.create(
            request.study(), by=request.by, command=self.drill_command
        )

    @OperationRoute("GET /v1/studies", _STUDY, page_count=_PAGE)
    async def studies(self, limit: int) -> list[Study]:
        studies, _ = await self._studies.newest(limit=limit)
        return list(studies)

    @OperationRoute("GET /v1/studies/{study_id}", _STUDY)
    async def study(self, study_id: str) -> Study:
        return await self._studies.read(study_id)

    @OperationRoute(
        "GET /v1/studies/{study_id}/charts/{name}",
        "coordinator.views.charts.study_charts:StudyChart",
    )
    async def study_chart(self, study_id: str, name: str) -> StudyChart:
        """Return a study chart with its data."""
        from broadside.coordinator.views.charts.study_charts import draw_study

        return await asyncio.to_thread(draw_study, name, await self._studies.read(study_id))

    @OperationRoute("GET /v1/studies/{study_id}/report", bytes, is_slow=True)
    async def study_report(self, study_id: str, format: str) -> bytes:
        """Return a study report as html or json."""
        from broadside.coordinator.views.report.study_report import build_study, study_html

        report = build_study(await self._studies.read(study_id), self._coordinator.now())
        if format == "json":
            return report.answer_json().encode()
        return (await asyncio.to_thread(study_html, report)).encode()

    @OperationRoute("POST /v1/studies/{study_id}/abort", _STUDY, status=202)
    async def cancel_study(self, study_id: str, *, by: str, reason: str) -> Study:
        request = _cancel_request(by, reason)
        return await self._studies.cancel(study_id, by=request.by, reason=request.reason)

    @OperationRoute(
        "POST /v1/imports/original",
        "coordinator.imports.import_answers:ImportedTable",
        is_slow=True,
        status=201,
    )
    async def import_table(self, table: OriginalTable) -> ImportedTable:
        from broadside.coordinator.runs.import_storage import store_table

        return await store_table(self._fabric.records, table, utc_now())

    @OperationRoute(
        "POST /v1/imports/iperf3",
        "coordinator.imports.import_answers:ImportedRecordings",
        is_slow=True,
        status=201,
    )
    async def import_recordings(self, recordings: Recordings) -> ImportedRecordings:
        from broadside.coordinator.runs.import_storage import store_recordings

        return await store_recordings(self._fabric.records, recordings, utc_now())

    # Dead letters and audit log ---------------------------------------------------------------

    @OperationRoute("GET /v1/deadletters", _DEAD_JOB, page_count=_ONLY_PAGE)
    async def dead_letters(self, limit: int) -> list[DeadJob]:
        return list(await self._coordinator.dead_letters.oldest(limit))

    @OperationRoute("GET /v1/deadletters/{sequence_number}", _DEAD_JOB, is_slow=True)
    async def dead_letter(self, sequence_number: int) -> DeadJob:
        return await self._coordinator.dead_letters.read(sequence_number)

    @OperationRoute("POST /v1/deadletters/{sequence_number}/resend", _DEAD_JOB, is_slow=True)
    async def resend(self, sequence_number: int) -> DeadJob:
        return await self._coordinator.dead_letters.resend(sequence_number)

    @OperationRoute("DELETE /v1/deadletters/{sequence_number}", _DEAD_JOB, is_slow=True)
    async def purge(self, sequence_number: int) -> DeadJob:
        return await self._coordinator.dead_letters.purge(sequence_number)

    @OperationRoute("DELETE /v1/deadletters", dict, is_slow=True)
    async def purge_oldest(self, limit: int) -> dict[str, int]:
        """Purge dead letters that are not locked, and return their number as `purged_count`."""
        return {"purged_count": await self._coordinator.dead_letters.purge_oldest(limit)}

    @OperationRoute("GET /v1/audit", "coordinator.auth.audit:AuditRow", page_count=_PAGE)
    async def audit(self, limit: int) -> list[AuditRow]:
        """Return audit rows, newest first."""
        rows, _ = await self._audit.read(utc_now(), limit=limit)
        return list(rows)


def _run_filter(filters: Mapping[str, Any]) -> RunFilter:
    """Convert filters with API names. Raise ``ApiError`` for invalid values."""
    from pydantic import TypeAdapter, ValidationError

    from broadside.coordinator.runs.listing import RunFilter, labels_of
    from broadside.exchange.messages import UtcDatetime

    values = dict(filters)
    values["labels"] = labels_of(values.pop("label", ()))
    for field in ("from_at", "before_at"):
        if field in values:
            try:
                values[field] = TypeAdapter(UtcDatetime).validate_python(values[field])
            except ValidationError as error:
                raise _validation_error(f"query.{field}", error) from error
    return RunFilter(**values)


def _cancel_request(by: str, reason: str) -> CancelRequest:
    from pydantic import ValidationError

    from broadside.coordinator.runs.requests import CancelRequest

    try:
        return CancelRequest(by=by, reason=reason)
    except ValidationError as error:
        raise _validation_error("body", error) from error
