"""Talks to a coordinator's API over the network.

Each verb imports its own answer: `runs` needs none of what a study is.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx

from coordinator.cli.event_stream import EventTooLong, StreamEvent, clean_json, events_of, lines_of
from coordinator.cli.refused import ApiError
from coordinator.cli.screen_text import cleaned
from exchange.http.bounded import ask

if TYPE_CHECKING:
    from pydantic import BaseModel

    from coordinator.auth.audit import AuditRow
    from coordinator.core.judge.comparison import Comparison
    from coordinator.core.live.status import RunStatus
    from coordinator.core.plan.cost_estimate import Appraisal
    from coordinator.core.plan.meter import PriceMeter
    from coordinator.core.summary import Course, RunSummary
    from coordinator.imports.import_answers import ImportedRecordings, ImportedTable
    from coordinator.imports.import_requests import OriginalTable, Recordings
    from coordinator.runs.dead_letters import DeadJob
    from coordinator.runs.listing import RunGroups
    from coordinator.runs.retention import Pruned, PruneRequest
    from coordinator.studies.study import Study, StudyRequest
    from coordinator.views.answers import (
        BurstEntry,
        PairEntry,
        Recomputed,
        RunReconciliation,
        RunVerdict,
        ScheduleView,
    )
    from coordinator.views.requests import (
        CompareRequest,
        EstimateRequest,
        LaunchRequest,
        ScheduleRequest,
    )
    from exchange.messages import Message, Presence, Side
    from exchange.records import RunHeader

_M = TypeVar("_M", bound="BaseModel")

PAGE_COUNT: Final = 500  # items that are asked for at once
PRESENCES_MAX_COUNT: Final = 100_000
SCHEDULES_MAX_COUNT: Final = 100_000
LONG_S: Final = 600.0  # s to wait for answers that take many rows
ANSWER_MAX_BYTES: Final = 512 * 1_048_576  # unpacked: of files, twice the largest that is stored
REFUSAL_MAX_BYTES: Final = 65_536


class Client:
    """One coordinator's API as typed verbs. Every verb raises :class:`ApiError`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def launch(self, request: LaunchRequest) -> RunStatus:
        from coordinator.core.live.status import RunStatus

        body = request.model_dump(mode="json")
        return self._as(RunStatus, await self._call("POST", "/v1/runs", json=body))

    async def status(self, run_id: str) -> RunStatus:
        from coordinator.core.live.status import RunStatus

        return self._as(RunStatus, await self._call("GET", f"/v1/runs/{run_id}"))

    async def course(self, run_id: str) -> Course:
        from coordinator.core.summary import Course

        return self._as(Course, await self._call("GET", f"/v1/runs/{run_id}/course"))

    async def events(self, run_id: str, last_id: str | None = None) -> AsyncIterator[StreamEvent]:
        """What is new of a run, as it comes; after ``last_id`` where that is given."""

        headers = {"Accept-Encoding": "identity"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        path, quiet = f"/v1/runs/{run_id}/events", httpx.Timeout(30.0)
        try:
            async with self._http.stream("GET", path, headers=headers, timeout=quiet) as response:
                if not response.is_success:
                    told = b""
                    async for piece in response.aiter_raw():
                        told = (told + piece)[:REFUSAL_MAX_BYTES]
                        if len(told) == REFUSAL_MAX_BYTES:
                            break
                    raise self._refusal(httpx.Response(response.status_code, content=told))
                async for event in events_of(lines_of(response.aiter_raw())):
                    yield event._replace(data=clean_json(event.data))
        except (httpx.HTTPError, EventTooLong) as error:
            raise self._silence(error) from error

    async def summary(self, run_id: str) -> RunSummary | None:
        """None while the run goes on."""
        from coordinator.core.summary import RunSummary

        try:
            answer = await self._call("GET", f"/v1/runs/{run_id}/summary")
        except ApiError as error:
            if error.status == httpx.codes.CONFLICT:
                return None
            raise
        return self._as(RunSummary, answer)

    async def raw(self, run_id: str, pair: str, burst_index: int, side: Side) -> bytes:
        """An engine's own output."""
        asked = {"burst_index": burst_index, "side": side.value}
        path = f"/v1/runs/{run_id}/raw/{pair}"
        return (await self._ask("GET", path, params=asked, timeout=LONG_S)).content

    async def prune(self, request: PruneRequest) -> Pruned:
        from coordinator.runs.retention import Pruned

        return self._as(Pruned, await self._send("/v1/prune", request))

    async def recomputed(self, run_id: str) -> Recomputed:
        from coordinator.views.answers import Recomputed

        path = f"/v1/runs/{run_id}/recomputed"
        return self._as(Recomputed, await self._call("GET", path, timeout=LONG_S))

    async def create_study(self, request: StudyRequest) -> Study:
        from coordinator.studies.study import Study

        return self._as(Study, await self._send("/v1/studies", request))

    async def studies(self, limit: int) -> list[Study]:
        from coordinator.studies.study import Study

        return [self._as(Study, one) for one in await self._pages("/v1/studies", limit)]

    async def study(self, study_id: str) -> Study:
        from coordinator.studies.study import Study

        return self._as(Study, await self._call("GET", f"/v1/studies/{study_id}"))

    async def study_chart(self, study_id: str, name: str, theme: str) -> dict[str, Any]:
        """One of a study's charts with its plotly figure."""
        path = f"/v1/studies/{study_id}/charts/{name}"
        return dict(await self._call("GET", path, params={"theme": theme}))

    async def study_report(self, study_id: str, format: str) -> bytes:
        """A study's report, html or json."""
        path, asked = f"/v1/studies/{study_id}/report", {"format": format}
        return (await self._ask("GET", path, params=asked, timeout=LONG_S)).content

    async def cancel_study(self, study_id: str, *, by: str, reason: str) -> Study:
        from coordinator.studies.study import Study
        from coordinator.views.requests import CancelRequest

        body = CancelRequest(by=by, reason=reason).model_dump(mode="json")
        path = f"/v1/studies/{study_id}/abort"
        return self._as(Study, await self._call("POST", path, json=body))

    async def estimate(self, request: EstimateRequest) -> Appraisal:
        from coordinator.core.plan.cost_estimate import Appraisal

        return self._as(Appraisal, await self._send("/v1/estimate", request))

    async def price(self, run_id: str) -> PriceMeter:
        from coordinator.core.plan.meter import PriceMeter

        return self._as(PriceMeter, await self._call("GET", f"/v1/runs/{run_id}/price"))

    async def add_schedule(self, request: ScheduleRequest) -> ScheduleView:
        from coordinator.views.answers import ScheduleView

        return self._as(ScheduleView, await self._send("/v1/schedules", request))

    async def schedules(self) -> list[ScheduleView]:
        from coordinator.views.answers import ScheduleView

        items = await self._pages("/v1/schedules", SCHEDULES_MAX_COUNT)
        return [self._as(ScheduleView, one) for one in items]

    async def schedule(self, name: str) -> ScheduleView:
        from coordinator.views.answers import ScheduleView

        path = f"/v1/schedules/{name}"
        return self._as(ScheduleView, await self._call("GET", path, timeout=LONG_S))

    async def pause_schedule(self, name: str) -> ScheduleView:
        from coordinator.views.answers import ScheduleView

        answer = await self._call("POST", f"/v1/schedules/{name}/pause")
        return self._as(ScheduleView, answer)

    async def resume_schedule(self, name: str) -> ScheduleView:
        from coordinator.views.answers import ScheduleView

        answer = await self._call("POST", f"/v1/schedules/{name}/resume")
        return self._as(ScheduleView, answer)

    async def remove_schedule(self, name: str) -> ScheduleView:
        from coordinator.views.answers import ScheduleView

        answer = await self._call("DELETE", f"/v1/schedules/{name}", timeout=LONG_S)
        return self._as(ScheduleView, answer)

    async def compare(self, request: CompareRequest) -> Comparison:
        from coordinator.core.judge.comparison import Comparison

        answer = await self._send("/v1/comparisons", request)
        return self._as(Comparison, answer)

    async def import_table(self, table: OriginalTable) -> ImportedTable:
        from coordinator.imports.import_answers import ImportedTable

        return self._as(ImportedTable, await self._send("/v1/imports/original", table))

    async def import_recordings(self, recordings: Recordings) -> ImportedRecordings:
        from coordinator.imports.import_answers import ImportedRecordings

        answer = await self._send("/v1/imports/iperf3", recordings)
        return self._as(ImportedRecordings, answer)

    async def is_operator(self) -> bool:
        """Whether the token that this sends is one, and an operator's."""
        me = await self._call("GET", "/v1/me")
        return bool(me["signed_in"]) and me["role"] == "operator"

    async def _send(self, path: str, message: Message) -> Any:
        """Post a value that may be large, or take a while."""
        return await self._call(
            "POST",
            path,
            content=message.model_dump_json(),
            headers={"Content-Type": "application/json"},
            timeout=LONG_S,
        )

    async def cancel(self, run_id: str, *, by: str, reason: str) -> RunStatus:
        from coordinator.core.live.status import RunStatus
        from coordinator.views.requests import CancelRequest

        body = CancelRequest(by=by, reason=reason).model_dump(mode="json")
        path = f"/v1/runs/{run_id}/abort"
        return self._as(RunStatus, await self._call("POST", path, json=body))

    async def report(self, run_id: str, format: str) -> bytes:
        """A finished run's report, html or json."""
        path, asked = f"/v1/runs/{run_id}/report", {"format": format}
        return (await self._ask("GET", path, params=asked, timeout=LONG_S)).content

    async def export(self, run_id: str, format: str, table: str) -> bytes:
        """A finished run's figures as a file."""
        path, asked = f"/v1/runs/{run_id}/export", {"format": format, "table": table}
        return (await self._ask("GET", path, params=asked, timeout=LONG_S)).content

    async def chart(
        self, run_id: str, name: str, burst_index: int | None, theme: str
    ) -> dict[str, Any]:
        """One chart with its plotly figure."""
        asked: dict[str, str | int] = {"theme": theme}
        if burst_index is not None:
            asked["burst"] = burst_index
        chart = await self._call("GET", f"/v1/runs/{run_id}/charts/{name}", params=asked)
        return dict(chart)

    async def runs(self, limit: int, **asked: object) -> list[RunHeader]:
        """Newest first; ``asked`` are the list's filters by name."""
        from exchange.records import RunHeader

        items = await self._pages("/v1/runs", limit, **asked)
        return [self._as(RunHeader, item) for item in items]

    async def aggregate(self, group_by: str, timezone: str = "UTC", **asked: object) -> RunGroups:
        """Sums over the runs that fit the filters."""
        from coordinator.runs.listing import RunGroups

        params: Any = {"group_by": group_by, "timezone": timezone, **asked}
        return self._as(RunGroups, await self._call("GET", "/v1/aggregate", params=params))

    async def bursts(self, run_id: str, limit: int) -> list[BurstEntry]:
        from coordinator.views.answers import BurstEntry

        items = await self._pages(f"/v1/runs/{run_id}/bursts", limit)
        return [self._as(BurstEntry, item) for item in items]

    async def pairs(self, run_id: str, burst_index: int, limit: int) -> list[PairEntry]:
        from coordinator.views.answers import PairEntry

        items = await self._pages(f"/v1/runs/{run_id}/pairs", limit, burst=burst_index)
        return [self._as(PairEntry, item) for item in items]

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
        asked: dict[str, str | int] = {
            "burst": burst_index,
            "resolution_s": resolution_s,
            **({} if of is None else {"of": of}),
            **({} if pair is None else {"pair": pair}),
        }
        path = f"/v1/runs/{run_id}/series"
        return (await self._ask("GET", path, params=asked, headers={"Accept": accept})).content

    async def verdict(self, run_id: str) -> RunVerdict:
        """The verdict with its findings, without single bursts."""
        from coordinator.views.answers import RunVerdict

        return self._as(RunVerdict, await self._call("GET", f"/v1/runs/{run_id}/verdict"))

    async def reconciliation(self, run_id: str) -> RunReconciliation:
        """The two ledgers held together; of more than 500 bursts the first."""
        from coordinator.views.answers import RunReconciliation

        path, asked = f"/v1/runs/{run_id}/reconciliation", {"limit": 500}
        return self._as(RunReconciliation, await self._call("GET", path, params=asked))

    async def presences(self) -> list[Presence]:
        from exchange.messages import Presence

        items = await self._pages("/v1/presences", PRESENCES_MAX_COUNT)
        return [self._as(Presence, item) for item in items]

    async def dead_letters(self, limit: int) -> list[DeadJob]:
        from coordinator.runs.dead_letters import DeadJob

        answer = await self._call("GET", "/v1/deadletters", params={"limit": limit})
        return [self._as(DeadJob, item) for item in answer]

    async def dead_letter(self, sequence_number: int) -> DeadJob:
        from coordinator.runs.dead_letters import DeadJob

        path = f"/v1/deadletters/{sequence_number}"
        return self._as(DeadJob, await self._call("GET", path, timeout=LONG_S))

    async def resend(self, sequence_number: int) -> DeadJob:
        from coordinator.runs.dead_letters import DeadJob

        path = f"/v1/deadletters/{sequence_number}/resend"
        return self._as(DeadJob, await self._call("POST", path, timeout=LONG_S))

    async def purge(self, sequence_number: int) -> DeadJob:
        from coordinator.runs.dead_letters import DeadJob

        path = f"/v1/deadletters/{sequence_number}"
        return self._as(DeadJob, await self._call("DELETE", path, timeout=LONG_S))

    async def purge_all(self) -> int:
        """Every dead letter that nobody has locked; how many went."""
        purged_count, asked_count = 0, 1000
        while True:
            asked = {"limit": asked_count}
            answer = await self._call("DELETE", "/v1/deadletters", params=asked, timeout=LONG_S)
            purged_count += int(answer["purged_count"])
            if answer["purged_count"] < asked_count:
                return purged_count

    async def audit(self, limit: int) -> list[AuditRow]:
        """Writes, newest first."""
        from coordinator.auth.audit import AuditRow

        items = await self._pages("/v1/audit", limit)
        return [self._as(AuditRow, item) for item in items]

    async def _pages(self, path: str, limit: int, **asked: Any) -> list[Any]:
        """At most ``limit`` items of a list, page by page."""

        items: list[Any] = []
        cursor: str | None = None
        while len(items) < limit:
            params: dict[str, Any] = {**asked, "limit": min(limit - len(items), PAGE_COUNT)}
            if cursor is not None:
                params["cursor"] = cursor
            response = await self._ask("GET", path, params=params)
            found = self._read(response)
            if not isinstance(found, list):
                raise self._strange(response)
            items += found
            cursor = response.headers.get("Next-Cursor")
            if cursor is None:
                break
        return items

    async def _call(self, method: str, path: str, **arguments: Any) -> Any:
        return self._read(await self._ask(method, path, **arguments))

    def _read(self, response: httpx.Response) -> Any:
        try:
            return cleaned(response.json())
        except (ValueError, RecursionError) as error:
            raise self._strange(response) from error

    def _as(self, kind: type[_M], answer: Any) -> _M:
        """Raises :class:`ApiError`, also for an answer that is of another kind."""
        try:
            return kind.model_validate(answer)
        except (ValueError, RecursionError) as error:
            raise ApiError(
                f"coordinator at {self._http.base_url}: it answered no {kind.__name__}; is "
                "`broadside serve` there, of this version?"
            ) from error

    def _strange(self, response: httpx.Response) -> ApiError:
        return ApiError(
            f"coordinator at {self._http.base_url}: no answer that can be read at "
            f"{response.url.path}; is `broadside serve` there, of this version?"
        )

    async def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = await ask(
                self._http, method, path, ANSWER_MAX_BYTES, body_s=LONG_S, unpacks=True, **arguments
            )
        except httpx.HTTPError as error:
            raise self._silence(error) from error
        if response.is_success:
            return response
        raise self._refusal(response)

    def _silence(self, error: Exception) -> ApiError:
        where = self._http.base_url
        return ApiError(
            f"coordinator at {where}: no answer ({type(error).__name__}: {error}); "
            "is `broadside serve` running there?"
        )

    def _refusal(self, response: httpx.Response) -> ApiError:
        try:
            detail = cleaned(response.json()["detail"])
        except (ValueError, KeyError, TypeError, RecursionError):
            detail = response.text[:200]
        match response.status_code:
            case httpx.codes.UNAUTHORIZED:
                detail = (
                    f"{self._http.base_url}: {detail}; set BROADSIDE_TOKEN, or give --token-file"
                )
            case httpx.codes.FORBIDDEN:
                detail = f"{self._http.base_url}: {detail}"
        return ApiError(str(detail), response.status_code)


@contextlib.asynccontextmanager
async def connect(url: str, token: str | None = None) -> AsyncIterator[Client]:
    """A client of the coordinator that listens at ``url``."""
    headers = {"Accept-Encoding": "gzip"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with httpx.AsyncClient(base_url=url, timeout=30, headers=headers) as http:
        yield Client(http)
