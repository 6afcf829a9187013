"""Talks to a coordinator's API, over the network or inside this process."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from coordinator.core.progress import Progress
from coordinator.core.status import RunStatus
from coordinator.core.summary import RunSummary
from coordinator.requests import CancelRequest, LaunchRequest
from exchange.messages import Presence
from exchange.records import RunHeader


class ApiError(Exception):
    """The coordinator refused, or did not answer; the message is one line for a person."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status  # HTTP status; None: no answer


class Client:
    """One coordinator's API as typed verbs. Every verb raises :class:`ApiError`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def launch(self, request: LaunchRequest) -> RunStatus:
        body = request.model_dump(mode="json")
        return RunStatus.model_validate(await self._call("POST", "/v1/runs", json=body))

    async def status(self, run_id: str) -> RunStatus:
        return RunStatus.model_validate(await self._call("GET", f"/v1/runs/{run_id}"))

    async def progress(self, run_id: str) -> Progress:
        return Progress.model_validate(await self._call("GET", f"/v1/runs/{run_id}/progress"))

    async def summary(self, run_id: str) -> RunSummary | None:
        """None while the run goes on."""
        try:
            answer = await self._call("GET", f"/v1/runs/{run_id}/summary")
        except ApiError as error:
            if error.status == httpx.codes.CONFLICT:
                return None
            raise
        return RunSummary.model_validate(answer)

    async def cancel(self, run_id: str, *, by: str, reason: str) -> RunStatus:
        body = CancelRequest(by=by, reason=reason).model_dump(mode="json")
        return RunStatus.model_validate(await self._call("DELETE", f"/v1/runs/{run_id}", json=body))

    async def runs(self, limit: int) -> list[RunHeader]:
        answer = await self._call("GET", "/v1/runs", params={"limit": limit})
        return [RunHeader.model_validate(item) for item in answer]

    async def presences(self) -> list[Presence]:
        return [Presence.model_validate(i) for i in await self._call("GET", "/v1/presences")]

    async def _call(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            response = await self._http.request(method, path, **arguments)
        except httpx.HTTPError as error:
            where = self._http.base_url
            raise ApiError(
                f"coordinator at {where}: no answer ({type(error).__name__}: {error}); "
                "is `broadside serve` running there?"
            ) from error
        if response.is_success:
            return response.json()
        try:
            detail = response.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = response.text[:200]
        raise ApiError(str(detail), response.status_code)


@contextlib.asynccontextmanager
async def connect(url: str) -> AsyncIterator[Client]:
    """A client of the coordinator that listens at ``url``."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        yield Client(http)
