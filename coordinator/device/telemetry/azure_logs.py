"""Flow logs of an Azure Firewall from Log Analytics, with queries on the firewall itself.

The role *Monitoring Reader* on the firewall is enough, because the request names this resource
(learn.microsoft.com/rest/api/logsquery). Its diagnostic settings must enable the tables:
``AZFWFatFlow`` has flows above 1 Mbit/s every three minutes, and ``AZFWFlowTrace`` the TCP flags of
flows (learn.microsoft.com/azure/firewall/monitor-firewall-reference).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import numpy as np
from pydantic import AwareDatetime, Field, TypeAdapter

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import (
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
)
from broadside.coordinator.device.resource_manager import identity_token, object_of
from broadside.coordinator.device.telemetry.azure_monitor import ROLE
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.http_client import bounded_client, get_bounded
from broadside.coordinator.device.telemetry.source import (
    ArchiveEntry,
    ArchiveSource,
    DataLatency,
    Read,
    Secret,
    TelemetryBusy,
    TelemetryError,
)
from broadside.exchange.azure.identity import NoToken
from broadside.exchange.http.bounded import may_carry_secret, retry_after_s
from broadside.exchange.messages import Direction
from broadside.exchange.strict_json import read_json_as

# Log Analytics shows most rows within five minutes (learn.microsoft.com/azure/azure-monitor/logs/
# data-ingestion-time).
_SETTLE_S: Final = 300.0
# The time at which a unit of the firewall writes its row is not documented.
_BOUND_S: Final = 60.0
_ATTEMPT_S: Final = 30.0
_ANSWER_MAX_BYTES: Final = 16 * 1_048_576
_RETRY_AFTER_S: Final = 30.0
_NO_FLOW: Final = (
    'AZFWFlowTrace | where Flag == "INVALID" '
    "| summarize value = count() / 60.0 by at = bin(TimeGenerated, 1m)"
)


class LogsQuery(Read):
    """Query that returns the columns ``at`` and ``value``."""

    query: Annotated[str, Field(min_length=1, max_length=4000)]


DEFAULT: Final = (LogsQuery(quantity=Quantity.DROPS, query=_NO_FLOW, over_s=60),)
_ROWS: Final = TypeAdapter(list[tuple[AwareDatetime, float]])


class AzureLogsEntry(ArchiveEntry):
    """Configuration of a source of flow logs."""

    resource_id: Annotated[str, Field(pattern=r"(?i)^/subscriptions/[^/]+/resourceGroups/.+")]
    endpoint: str = "https://api.loganalytics.azure.com"
    client_id: str | None = None
    token: Secret | None = None
    ca_file: Path | None = None
    read: Annotated[tuple[LogsQuery, ...], Field(min_length=1, max_length=16)] = DEFAULT


class AzureLogsSource(ArchiveSource):
    """Flow logs of one resource. Each request is sent once, because the caller retries."""

    entry: AzureLogsEntry

    def __init__(
        self, entry: AzureLogsEntry, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Check the entry, without sending requests.

        Args:
            entry: Configuration of the source.
            transport: Transport of the requests. Tests can replace it.

        Raises:
            TelemetryError: The endpoint or the token is invalid, or the entry has a byte counter.
        """
        if not may_carry_secret(entry.endpoint):
            raise TelemetryError(
                f"telemetry {entry.device}: endpoint {entry.endpoint!r}: a token is sent over "
                "https only"
            )
        if entry.byte_counter is not None:
            raise TelemetryError(
                f"telemetry {entry.device}: byte_counter: flow logs have no bytes; use "
                "azure-monitor"
            )
        settle_s = _SETTLE_S if entry.settle_s is None else entry.settle_s
        super().__init__(
            entry,
            name=f"azure-logs {entry.resource_id.rpartition('/')[2]}",
            reads=entry.read,
            latency=DataLatency(settle_s=settle_s, reread_s=60.0, timeout_s=3 * settle_s),
        )
        self._transport = transport
        self._token = None if entry.token is None else entry.token.read(entry.device)

    async def query_bytes(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> CounterRecord:
        raise TelemetryError(f"{self.name}: flow logs have no byte counter")

    async def query_series(
        self, from_at: datetime, before_at: datetime
    ) -> tuple[Sequence[TelemetrySeries], Sequence[TelemetryIssue]]:
        """Return one series per query. A query that fails is reported, and the others are used.

        Args:
            from_at: Start time.
            before_at: End time.

        Returns:
            Series, and an issue for each query that failed.

        Raises:
            TelemetryBusy: A query was throttled.
            TelemetryError: No token is available, or all queries failed.
        """
        headers = {"Authorization": f"Bearer {await self._bearer()}"}
        matched: list[TelemetrySeries] = []
        issues: list[TelemetryIssue] = []
        errors: list[TelemetryError] = []
        async with bounded_client(
            headers, self.entry.ca_file, _ATTEMPT_S, self._transport
        ) as client:
            for read in self.entry.read:
                try:
                    rows = await self._query(client, read.query, from_at, before_at)
                except TelemetryBusy:
                    raise
                except TelemetryError as error:
                    errors.append(error)
                    text = str(error)
                    issues.append(self.issue(IssueKind.UNREADABLE, text, from_at, before_at))
                    continue
                end_s = rows[:, 0] + read.over_s
                matched.append(self.series(read, end_s, rows[:, 1], bound_s=_BOUND_S))
        if len(errors) == len(self.entry.read):
            raise errors[0]
        return matched, issues

    async def _query(
        self, client: httpx.AsyncClient, query: str, from_at: datetime, before_at: datetime
    ) -> Floats:
        """Return the times and values of a query in time order."""
        start, end = (
            f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
            for at in (from_at, before_at + timedelta(seconds=1))
        )
        url = httpx.URL(f"{self.entry.endpoint.rstrip('/')}/v1{self.entry.resource_id}/query")
        parameters = {"query": query, "timespan": f"{start}/{end}"}
        response, body = await get_bounded(
            client, url.copy_merge_params(parameters), _ANSWER_MAX_BYTES, f"{self.name}"
        )
        if not response.is_success:
            raise self._refusal(response, body)
        try:
            rows = await read_json_as(body, _ANSWER_MAX_BYTES, _columns)
        except (ValueError, LookupError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise TelemetryError(
                f"{self.name}: its answer needs the columns at and value: {reason}"
            ) from error
        columns = sorted((at.timestamp(), value) for at, value in rows)
        return np.array(columns, dtype=float).reshape(-1, 2)

    async def _bearer(self) -> str:
        if self._token is not None:
            return self._token
        try:
            return (await identity_token(self.entry.client_id, self.entry.endpoint)).token
        except NoToken as error:
            reason = " ".join(str(error).split())
            raise TelemetryError(f"{self.name}: no token: {reason}") from error

    def _refusal(self, response: httpx.Response, body: bytes) -> TelemetryError:
        error = object_of(body).get("error")
        while isinstance(error, dict) and isinstance(error.get("innererror"), dict):
            error = error["innererror"]
        parts = [error.get(name) for name in ("code", "message")] if isinstance(error, dict) else []
        reason = " ".join(": ".join(str(part) for part in parts if part).split())
        reason = reason or f"HTTP {response.status_code}"
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            after_s = retry_after_s(response, _RETRY_AFTER_S)
            return TelemetryBusy(
                f"{self.name} throttles requests; try again in {after_s:g} s", after_s
            )
        if response.status_code in (401, 403):
            return TelemetryError(
                f"{self.name} rejects the request: {reason}; give it the role '{ROLE}' on the "
                "firewall"
            )
        if "resolve table" in reason:
            reason += (
                "; set firewall_flow_logs, and switch the logs on "
                "(/docs/azure.html of the coordinator)"
            )
        return TelemetryError(f"{self.name} cannot be read: {reason}")


def _columns(document: Any) -> list[tuple[datetime, float]]:
    table = document["tables"][0]
    names = [column["name"] for column in table["columns"]]
    at, value = names.index("at"), names.index("value")
    # A sum over no rows is null.
    return _ROWS.validate_python(
        [(row[at], row[value]) for row in table["rows"] if row[value] is not None]
    )


def open_source(entry: Mapping[str, Any]) -> AzureLogsSource:
    """Return the source for an entry of the telemetry file."""
    return AzureLogsSource(parse_entry(AzureLogsEntry, entry))
