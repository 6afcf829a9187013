"""Byte counter and metrics of an Azure resource (firewall, load balancer or VM) from Azure Monitor.

The role *Monitoring Reader* on this resource is enough, because the request to the Resource Manager
names this resource. One that names the subscription needs the role there. Unit, grain and
aggregation are read from the response. The newest data points need care:

- Azure Monitor first returns them as 0 or null and can change them for some minutes. If a 0 is
  newer than ``settle_s``, it is unknown. A null is always unknown. A bin that has not ended is also
  unknown.
- A point with label ``T`` counts traffic from some time before ``T``. This lag is estimated
  later. :data:`LAG_HINT_S` was measured on a real firewall.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import httpx
import numpy as np
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import (
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
)
from broadside.coordinator.device.resource_manager import METRICS_VERSION, identity_token, object_of
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.http_client import (
    bounded_client,
    get_bounded,
    partial_answer,
)
from broadside.coordinator.device.telemetry.source import (
    ArchiveEntry,
    ArchiveSource,
    ByteCounter,
    DataLatency,
    Read,
    Secret,
    TelemetryBusy,
    TelemetryError,
    without_values,
)
from broadside.exchange.azure.identity import NoToken
from broadside.exchange.http.bounded import may_carry_secret, retry_after_s
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now
from broadside.exchange.strict_json import read_json_as

ROLE: Final = "Monitoring Reader"
# Maximum number of series of a split metric. Without ``top`` the service returns ten.
SPLIT_MAX_COUNT: Final = 1000
# A one-minute point with label T covered about [T - 75 s, T - 15 s].
LAG_HINT_S: Final = 75.0
# Uncertainty of a point's time span. The lag of its label was measured and is not documented.
BOUND_S: Final = 30.0

_ID: Final = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/[^/]+/[^/]+/[^/]+", re.IGNORECASE
)
_GRAIN: Final = re.compile(r"P(?:(\d{1,5})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,5})M)?(?:(\d{1,5})S)?)?")
# Longest grain of Azure Monitor.
_GRAIN_MAX_S: Final = 86_400.0
_UNIT_BYTES: Final = {"BitsPerSecond": 1 / 8, "BytesPerSecond": 1.0, "Bytes": 1.0}
_DEFAULT_SETTLE_S: Final = 300.0
# Time limit to connect, and between two reads of the response.
_ATTEMPT_S: Final = 10.0
# One week of one-minute points takes about 1 MiB.
_ANSWER_MAX_BYTES: Final = 16 * 1_048_576
# Used if a 429 response has no ``Retry-After``.
_RETRY_AFTER_S: Final = 30.0

AzureAggregation = Literal["Average", "Maximum", "Minimum", "Total", "Count"]


class AzureMetric(Read):
    """Metric to read from Azure Monitor."""

    metric: Annotated[str, Field(min_length=1, max_length=200)]
    aggregation: AzureAggregation = "Average"
    # Each value of this dimension is an instance.
    split_by: Annotated[str, Field(pattern=r"^[A-Za-z0-9 _-]{1,80}$")] | None = None


class AzureByteCounter(ByteCounter):
    """Metric to use as the byte counter."""

    metric: Literal["Throughput", "DataProcessed"] = "Throughput"


class AzureEntry(ArchiveEntry):
    """Configuration of an Azure Monitor source."""

    resource_id: str
    grain: str = "PT1M"
    endpoint: str = "https://management.azure.com"
    client_id: str | None = None
    token: Secret | None = None
    ca_file: Path | None = None
    byte_counter: AzureByteCounter | None = None
    # If unset, the metrics in ``KNOWN`` for the resource type are read.
    read: Annotated[tuple[AzureMetric, ...], Field(max_length=64)] | None = None


# Default metrics by resource type, with the quantity of each.
KNOWN: Final[Mapping[str, Sequence[AzureMetric]]] = {
    "microsoft.network/azurefirewalls": (
        AzureMetric(metric="Throughput", quantity=Quantity.RECEIVED),
        AzureMetric(metric="FirewallHealth", quantity=Quantity.HEALTH, scale=0.01),
        AzureMetric(
            metric="SNATPortUtilization",
            quantity=Quantity.SNAT,
            scale=0.01,
            aggregation="Maximum",
        ),
        AzureMetric(metric="FirewallLatencyPng", quantity=Quantity.LATENCY, scale=0.001),
        AzureMetric(metric="ObservedCapacity", quantity=Quantity.UNITS, aggregation="Maximum"),
    ),
    "microsoft.network/loadbalancers": (
        AzureMetric(
            metric="DipAvailability",
            quantity=Quantity.HEALTH,
            scale=0.01,
            split_by="BackendIPAddress",
        ),
    ),
    "microsoft.compute/virtualmachinescalesets": (
        AzureMetric(metric="Percentage CPU", quantity=Quantity.CPU, scale=0.01, split_by="VMName"),
    ),
    "microsoft.compute/virtualmachines": (
        AzureMetric(metric="Percentage CPU", quantity=Quantity.CPU, scale=0.01),
    ),
}


# Models of the response ---------------------------------------------------------------------------

# Azure sends null for an empty list.
_Listed = BeforeValidator(lambda value: value or ())


class _Point(BaseModel):
    at: AwareDatetime = Field(alias="timeStamp")
    average: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    total: float | None = None
    count: float | None = None


class _Dimension(BaseModel):
    value: str = ""


class _Series(BaseModel):
    """One series of a metric, for all data or for one value of the split dimension."""

    metadatavalues: Annotated[tuple[_Dimension, ...], _Listed] = ()
    data: Annotated[tuple[_Point, ...], _Listed] = ()


class MetricResult(BaseModel):
    """Response for a metric of a resource.

    Attributes:
        unit: Unit of the values, empty if the response has none.
        timeseries: Series of the metric.
        error_code: Error of this metric, or ``None``.
        error_message: Text of the error.
        interval: Grain as an ISO 8601 duration.
        partial: Reason to report when this response is known to be incomplete, or ``None``.
    """

    unit: str = ""
    timeseries: Annotated[tuple[_Series, ...], _Listed] = ()
    error_code: str | None = Field(None, alias="errorCode")
    error_message: str | None = Field(None, alias="errorMessage")
    interval: str | None = None
    partial: str | None = None

    def columns(self, aggregation: str) -> Floats:
        """Return times and values of an aggregation as columns in time order, NaN if unknown."""
        rows = [
            (point.at.timestamp(), getattr(point, aggregation.lower()))
            for series in self.timeseries
            for point in series.data
        ]
        return np.array(sorted(rows, key=lambda row: row[0]), dtype=float).reshape(-1, 2)


class _MetricsResponse(BaseModel):
    interval: str | None = None
    value: Annotated[tuple[MetricResult, ...], _Listed] = ()


def _read_answer(document: Any) -> tuple[Any, _MetricsResponse]:
    return document, _MetricsResponse.model_validate(document)


# Source -------------------------------------------------------------------------------------------


class AzureMonitorSource(ArchiveSource):
    """Metrics of one resource.

    Each request is sent once, because the caller controls retries. A throttled request (429) raises
    :class:`TelemetryBusy`.
    """

    entry: AzureEntry

    def __init__(self, entry: AzureEntry, now: Callable[[], datetime] = lambda: utc_now()) -> None:
        """Check the entry, without sending requests.

        Args:
            entry: Configuration of the source.
            now: Clock to use. Tests can replace it.

        Raises:
            TelemetryError: The resource id, the grain, the endpoint or the token is invalid, or
                the entry names no metrics and the resource type has none.
        """
        if _ID.fullmatch(entry.resource_id) is None:
            raise TelemetryError(
                f"telemetry {entry.device}: resource_id {entry.resource_id!r}: not a resource id; "
                "copy the firewall's from its JSON view: /subscriptions/.../azureFirewalls/<name>"
            )
        if not may_carry_secret(entry.endpoint):
            raise TelemetryError(
                f"telemetry {entry.device}: endpoint {entry.endpoint!r}: a token is sent over "
                "https only; give https://management.azure.com"
            )
        self._grain_s = parse_grain(entry.grain)
        kind = "/".join(entry.resource_id.strip("/").split("/")[5:7]).lower()
        self._metrics = KNOWN.get(kind, ()) if entry.read is None else entry.read
        if not self._metrics and entry.byte_counter is None:
            raise TelemetryError(
                f"telemetry {entry.device}: read: not set, and there are no default metrics for "
                f"{kind}; name its metrics"
            )
        settle_s = _DEFAULT_SETTLE_S if entry.settle_s is None else entry.settle_s
        self._resource = entry.resource_id.rpartition("/")[2]
        super().__init__(
            entry,
            name=f"azure-monitor {self._resource}",
            counter_name=f"azure-monitor {(entry.byte_counter or AzureByteCounter()).metric}",
            reads=self._metrics,
            latency=DataLatency(
                settle_s=settle_s,
                lag_s=1.5 * self._grain_s,
                reread_s=max(1.0, self._grain_s),
                timeout_s=3 * settle_s,
            ),
        )
        self._endpoint = entry.endpoint.rstrip("/")
        self._token = None if entry.token is None else entry.token.read(entry.device)
        self._now = now

    def __str__(self) -> str:
        return f"Azure Monitor ({self._resource})"

    async def query_bytes(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> CounterRecord:
        """Return the bins of the byte metric, and the highest use of SNAT ports.

        Args:
            from_at: Start time, rounded down to a whole grain.
            before_at: End time, rounded up to a whole grain.
            direction: Direction of the traffic. The metric counts both, so it is not used.

        Raises:
            TelemetryError: The byte metric could not be read. An error of the SNAT metric is
                ignored.
        """
        name = (self.entry.byte_counter or AzureByteCounter()).metric
        total: AzureAggregation = "Total" if name == "DataProcessed" else "Average"
        snat_metric = AzureMetric(
            metric="SNATPortUtilization", quantity=Quantity.SNAT, aggregation="Maximum"
        )
        bytes_metric = AzureMetric(metric=name, quantity=Quantity.RECEIVED, aggregation=total)
        result, snat = await self.query_metrics([bytes_metric, snat_metric], from_at, before_at)
        read_at = self._now()
        if isinstance(result, TelemetryError):
            raise result
        used = np.empty(0) if isinstance(snat, TelemetryError) else snat.columns("maximum")[:, 1]
        start_s, end_s, counts, grain_s = self._bins(name, result, read_at)
        return CounterRecord(
            source=self.counter_name,
            start_s=start_s,
            end_s=end_s,
            bytes=counts,
            grain_s=grain_s,
            read_at=read_at,
            lag_hint_s=LAG_HINT_S if grain_s == 60 else None,
            snat_utilization_ratio=float(np.nanmax(used)) / 100
            if np.isfinite(used).any()
            else None,
            partial=result.partial,
        )

    async def query_series(
        self, from_at: datetime, before_at: datetime
    ) -> tuple[list[TelemetrySeries], list[TelemetryIssue]]:
        """Return one value per grain for each metric. A null point is unknown.

        A metric that cannot be read is reported, and the others are used.

        Args:
            from_at: Start time, rounded down to a whole grain.
            before_at: End time, rounded up to a whole grain.

        Returns:
            Series, and an issue for each metric that failed or is partial.

        Raises:
            TelemetryError: No token is available, all metrics failed, or one was throttled.
        """
        if not self._metrics:
            return [], []
        matched: list[TelemetrySeries] = []
        issues: list[TelemetryIssue] = []
        results = await self.query_metrics(self._metrics, from_at, before_at)
        errors = [result for result in results if isinstance(result, TelemetryError)]
        if len(errors) == len(results) or any(isinstance(e, TelemetryBusy) for e in errors):
            raise errors[0]
        for metric, result in zip(self._metrics, results, strict=True):
            if isinstance(result, TelemetryError):
                issues.append(self.issue(IssueKind.UNREADABLE, str(result), from_at, before_at))
                continue
            series = [self._series(metric, item) for item in result.timeseries]
            if result.partial is not None:
                series = without_values(series)
                text = f"{metric.metric}: {result.partial}"
                issues.append(self.issue(IssueKind.PARTIAL, text, from_at, before_at))
            matched += series
        return matched, issues

    def _series(self, metric: AzureMetric, item: _Series) -> TelemetrySeries:
        columns = MetricResult(timeseries=(item,)).columns(metric.aggregation)
        columns = columns[~np.isnan(columns[:, 1])]
        # With a grain of one minute, a point with label T covers about [T - 75 s, T - 15 s].
        lag_s = LAG_HINT_S if self._grain_s == 60 else 0.0
        return self.series(
            metric.model_copy(update={"over_s": self._grain_s}),
            columns[:, 0] + self._grain_s - lag_s,
            columns[:, 1],
            bound_s=BOUND_S,
            instance=" ".join(d.value for d in item.metadatavalues) if metric.split_by else "",
        )

    async def query_metrics(
        self, metrics: Sequence[AzureMetric], from_at: datetime, before_at: datetime
    ) -> list[MetricResult | TelemetryError]:
        """Query several metrics at the same time.

        Args:
            metrics: Metrics to query.
            from_at: Start time, rounded down to a whole grain.
            before_at: End time, rounded up to a whole grain.

        Returns:
            The result or the error of each metric, in the same order.

        Raises:
            TelemetryError: No token is available.
        """
        grain = timedelta(seconds=self._grain_s)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        start = from_at - (from_at - epoch) % grain
        end = max(before_at + (epoch - before_at) % grain, start + grain)
        span = f"{start:%Y-%m-%dT%H:%M:%SZ}/{end:%Y-%m-%dT%H:%M:%SZ}"
        headers = {"Authorization": f"Bearer {await self._bearer()}"}
        async with bounded_client(headers, self.entry.ca_file, _ATTEMPT_S) as client:
            return await asyncio.gather(*(self._query(client, item, span) for item in metrics))

    async def _query(
        self, client: httpx.AsyncClient, metric: AzureMetric, span: str
    ) -> MetricResult | TelemetryError:
        parameters = {
            "api-version": METRICS_VERSION,
            "timespan": span,
            "interval": self.entry.grain,
            "metricnames": metric.metric,
            "aggregation": metric.aggregation,
        }
        if metric.split_by is not None:
            parameters |= {"$filter": f"{metric.split_by} eq '*'", "top": str(SPLIT_MAX_COUNT)}
        url = f"{self._endpoint}{self.entry.resource_id}/providers/Microsoft.Insights/metrics"
        try:
            response, body = await get_bounded(
                client,
                httpx.URL(url).copy_merge_params(parameters),
                _ANSWER_MAX_BYTES,
                f"{self} cannot be read",
            )
            if not response.is_success:
                return self._refusal(response, body)
            document, answer = await read_json_as(body, _ANSWER_MAX_BYTES, _read_answer)
        except TelemetryError as error:
            return error
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            return TelemetryError(f"{self}: its answer is invalid: {reason}")
        if not answer.value:
            return MetricResult()
        result = answer.value[0]
        if result.error_code not in (None, "Success"):
            reason = " ".join((result.error_message or "no reason given").split())
            return TelemetryError(f"{self}: {metric.metric}: {result.error_code}: {reason}")
        partial = partial_answer(response, document)
        if len(result.timeseries) >= SPLIT_MAX_COUNT:
            partial = f"{SPLIT_MAX_COUNT} series, and there may be more"
        return result.model_copy(update={"interval": answer.interval, "partial": partial})

    def _bins(
        self, name: str, result: MetricResult, read_at: datetime
    ) -> tuple[Floats, Floats, Floats, float]:
        """Return start, end and bytes of each bin, and the grain in seconds."""
        if result.unit not in _UNIT_BYTES:
            unit = f"unit {result.unit!r}" if result.unit else "no answer"
            raise TelemetryError(f"{self}: {name}: {unit}; its bytes need {', '.join(_UNIT_BYTES)}")
        grain_s = parse_grain(result.interval or self.entry.grain)
        amount = result.unit == "Bytes"
        columns = result.columns("total" if amount else "average")
        start_s, values = columns[:, 0], columns[:, 1]
        counts = values * _UNIT_BYTES[result.unit] * (1.0 if amount else grain_s)
        end_s = start_s + grain_s
        now_s = read_at.timestamp()
        young = end_s > now_s - self.latency.settle_s
        unknown = (end_s > now_s) | (young & (counts == 0))
        return start_s, end_s, np.where(unknown, np.nan, counts), grain_s

    async def _bearer(self) -> str:
        if self._token is not None:
            return self._token
        try:
            return (await identity_token(self.entry.client_id, self._endpoint)).token
        except NoToken as error:
            reason = " ".join(str(error).split())
            raise TelemetryError(f"{self}: no token for {self._identity}: {reason}") from error

    @property
    def _identity(self) -> str:
        return "the given token" if self._token else f"identity {self.entry.client_id or 'default'}"

    def _refusal(self, response: httpx.Response, body: bytes) -> TelemetryError:
        """Return a one-line error, with the fix if it is known."""
        document = object_of(body)
        # The errors of the Resource Manager are inside an ``error`` member.
        error = document.get("error", document)
        parts = [error.get(name) for name in ("code", "message")] if isinstance(error, dict) else []
        reason = " ".join(": ".join(str(part) for part in parts if part).split())
        reason = reason or f"HTTP {response.status_code}"
        match response.status_code:
            case 429:
                after_s = retry_after_s(response, _RETRY_AFTER_S)
                return TelemetryBusy(
                    f"{self} throttles requests; try again in {after_s:g} s", after_s
                )
            case 401 | 403:
                return TelemetryError(
                    f"{self} rejects {self._identity}: {reason}; give it the role '{ROLE}' on the "
                    "firewall"
                )
            case 404:
                return TelemetryError(f"{self}: resource not found; check resource_id")
        return TelemetryError(f"{self} cannot be read: {reason}")


def parse_grain(text: str) -> float:
    """Return the seconds of an ISO 8601 duration such as ``PT1M``, at most a day.

    Raises:
        TelemetryError: The text is not such a duration.
    """
    match = _GRAIN.fullmatch(text)
    sizes_s = (86_400, 3600, 60, 1)
    counts = map(int, match.groups("0")) if match else ()
    seconds = float(sum(count * size_s for count, size_s in zip(counts, sizes_s, strict=False)))
    if not 0 < seconds <= _GRAIN_MAX_S:
        raise TelemetryError(
            f"grain {text[:40]!r}: not a duration of at most a day; give one such as PT1M"
        )
    return seconds


def open_source(entry: Mapping[str, Any]) -> AzureMonitorSource:
    """Return the source for an entry of the telemetry file."""
    return AzureMonitorSource(parse_entry(AzureEntry, entry))
