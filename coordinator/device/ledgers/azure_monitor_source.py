"""Byte counters of an Azure Firewall from Azure Monitor, read for a single resource.

The role *Monitoring Reader* on this firewall is enough, because the request to the Resource Manager
names a resource (``DECISIONS.md``). Unit, grain and aggregation are read from the response. The
newest data points need care:

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
from typing import Annotated, Any, Final

import httpx
import numpy as np
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field

from broadside.coordinator.coordinator_settings import ByteMetric, CoordinatorSettings
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger, LedgerLayer
from broadside.coordinator.device.http_answers import (
    bounded_client,
    get_bounded,
    may_carry_secret,
    partial_answer,
    retry_after_s,
)
from broadside.coordinator.device.ledgers.source import (
    Freshness,
    LedgerBusy,
    LedgerError,
    needed,
    plain,
)
from broadside.coordinator.device.resource_manager import METRICS_VERSION, identity_token, object_of
from broadside.exchange.azure.identity import NoToken
from broadside.exchange.messages import Direction
from broadside.exchange.rows import read_json_as

ROLE: Final = "Monitoring Reader"
# Maximum number of series of a split metric. Without ``top`` the service returns ten.
SPLIT_MAX_COUNT: Final = 1000
# A one-minute point with label T covered about [T - 75 s, T - 15 s].
LAG_HINT_S: Final = 75.0

_ID: Final = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/[^/]+/[^/]+/[^/]+", re.IGNORECASE
)
_GRAIN: Final = re.compile(r"P(?:(\d{1,5})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,5})M)?(?:(\d{1,5})S)?)?")
# Longest grain of Azure Monitor.
_GRAIN_MAX_S: Final = 86_400.0
_UNIT_BYTES: Final = {"BitsPerSecond": 1 / 8, "BytesPerSecond": 1.0, "Bytes": 1.0}
_AGGREGATION: Final[Mapping[str, str]] = {
    "Throughput": "Average",
    "DataProcessed": "Total",
    "SNATPortUtilization": "Maximum",
    "FirewallHealth": "Average",
    "ObservedCapacity": "Minimum,Maximum",
    "FirewallLatencyPng": "Average",
}
# Time limit to connect, and between two reads of the response.
_ATTEMPT_S: Final = 10.0
# One week of one-minute points takes about 1 MiB.
_ANSWER_MAX_BYTES: Final = 16 * 1_048_576
# Used if a 429 response has no ``Retry-After``.
_RETRY_AFTER_S: Final = 30.0


# Models of the response ---------------------------------------------------------------------------

# Azure sends null for an empty list.
_Listed = BeforeValidator(lambda told: told or ())


class Point(BaseModel):
    """Values of a metric for a grain.

    Attributes:
        at: Start of the grain.
        average: Average. This and the other values are ``None`` if unknown.
        minimum: Minimum.
        maximum: Maximum.
        total: Sum.
        count: Number of samples.
    """

    at: AwareDatetime = Field(alias="timeStamp")
    average: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    total: float | None = None
    count: float | None = None


class _Dimension(BaseModel):
    value: str = ""


class Series(BaseModel):
    """One series of a metric, for all data or for one value of the split dimension."""

    metadatavalues: Annotated[tuple[_Dimension, ...], _Listed] = ()
    data: Annotated[tuple[Point, ...], _Listed] = ()


class MetricTold(BaseModel):
    """Response for a metric of a resource.

    Attributes:
        unit: Unit for ``value``s, empty if the response has none.
        timeseries: Series of the metric.
        error_code: Error of this metric, or ``None``.
        error_message: Text of the error.
        interval: Grain as an ISO 8601 duration.
        partial: Reason to report when this response is known to be incomplete, or ``None``.
    """

    unit: str = ""
    timeseries: Annotated[tuple[Series, ...], _Listed] = ()
    error_code: str | None = Field(None, alias="errorCode")
    error_message: str | None = Field(None, alias="errorMessage")
    interval: str | None = None
    partial: str | None = None

    @property
    def points(self) -> list[Point]:
        return [point for series in self.timeseries for point in series.data]

    def known(self, aggregation: str) -> list[float]:
        """Return the known values of an aggregation."""
        found = [getattr(point, aggregation) for point in self.points]
        return [value for value in found if value is not None]


class _Answer(BaseModel):
    interval: str | None = None
    value: Annotated[tuple[MetricTold, ...], _Listed] = ()


def _read_answer(document: Any) -> tuple[Any, _Answer]:
    return document, _Answer.model_validate(document)


class MetricAsked(BaseModel):
    """Query for a metric.

    Attributes:
        name: Metric name.
        aggregation: Azure aggregations, separated by commas.
        split_by: Dimension to split by, or ``None``.
    """

    name: str
    aggregation: str
    split_by: str | None = None


class AzureMonitorLedger:
    """Ledger from a firewall's byte metric (``Throughput`` or ``DataProcessed``).

    Other metrics of the firewall become notes of the ledger. Each request is sent once, because the
    caller controls retries. A throttled request (429) raises :class:`LedgerBusy`.

    Attributes:
        name: Name in reports, with the metric.
        freshness: Time to wait until the newest values are stable.
    """

    def __init__(
        self,
        resource_id: str,
        *,
        metric: ByteMetric = "Throughput",
        grain: str = "PT1M",
        layer: LedgerLayer = "unknown",
        settle_s: float = 300.0,
        endpoint: str = "https://management.azure.com",
        client_id: str | None = None,
        token: str | None = None,
        ca_file: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Check the arguments, without sending requests.

        Args:
            resource_id: The firewall's Azure resource id.
            metric: Metric of the byte counter.
            grain: Grain as an ISO 8601 duration.
            layer: Network layer at which the firewall counts bytes.
            settle_s: Time in seconds after which a value no longer changes.
            endpoint: The Resource Manager's base URL.
            client_id: Client id of a managed identity.
            token: Bearer token that replaces ``DefaultAzureCredential``.
            ca_file: Path to the CA certificates (PEM).
            now: Clock. Tests can replace it.

        Raises:
            LedgerError: The resource id, the grain or the endpoint is invalid.
        """
        if _ID.fullmatch(resource_id) is None:
            raise LedgerError(
                f"azure_monitor_resource_id {resource_id!r}: not a resource id; copy the "
                "firewall's from its JSON view: /subscriptions/.../azureFirewalls/<name>"
            )
        if not may_carry_secret(endpoint):
            raise LedgerError(
                f"azure_monitor_endpoint {endpoint!r}: a token travels over https only; "
                "give https://management.azure.com"
            )
        grain_s = parse_grain(grain)
        self.name = f"azure-monitor {metric}"
        self.freshness = Freshness(
            settle_s=settle_s,
            lag_s=1.5 * grain_s,
            poll_s=max(1.0, grain_s),
            patience_s=3 * settle_s,
        )
        self._resource_id = resource_id
        self._metric = metric
        self._grain, self._grain_s = grain, grain_s
        self._layer = layer
        self._endpoint = endpoint.rstrip("/")
        self._client_id = client_id
        self._token = token
        self._ca_file = ca_file
        self._now = now

    def __str__(self) -> str:
        return f"Azure Monitor ({self._resource_id.rpartition('/')[2]})"

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        """Return the bins in this time span (see :meth:`LedgerSource.read`)."""
        names = [self._metric, *(name for name in _AGGREGATION if name != self._metric)]
        asked = [MetricAsked(name=name, aggregation=_AGGREGATION[name]) for name in names]
        first, *rest = await self.ask(asked, from_at, before_at)
        read_at = self._now()
        if isinstance(first, LedgerError):
            raise first
        told = {
            name: metric
            for name, metric in zip(names[1:], rest, strict=True)
            if not isinstance(metric, LedgerError)
        }
        unread = sorted({*names[1:]} - told.keys())
        snat = told.get("SNATPortUtilization", MetricTold()).known("maximum")
        start_s, end_s, counts, grain_s = self._bins(first, read_at)
        return FirewallLedger(
            source=self.name,
            layer=self._layer,
            start_s=start_s,
            end_s=end_s,
            bytes=counts,
            grain_s=grain_s,
            read_at=read_at,
            lag_hint_s=LAG_HINT_S if grain_s == 60 else None,
            snat_utilization_ratio=max(snat) / 100 if snat else None,
            notes=(*_said_beside(told), *(f"{name} could not be read" for name in unread)),
            partial=first.partial,
        )

    async def ask(
        self, asked: Sequence[MetricAsked], from_at: datetime, before_at: datetime
    ) -> list[MetricTold | LedgerError]:
        """Query several metrics at the same time.

        Args:
            asked: Queries, one for each metric.
            from_at: Start time, rounded down to a whole grain.
            before_at: End time, rounded up to a whole grain.

        Returns:
            The result or the error of each query, in the same order.

        Raises:
            LedgerError: No token is available.
        """
        grain = timedelta(seconds=self._grain_s)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        start = from_at - (from_at - epoch) % grain
        end = max(before_at + (epoch - before_at) % grain, start + grain)
        span = f"{start:%Y-%m-%dT%H:%M:%SZ}/{end:%Y-%m-%dT%H:%M:%SZ}"
        headers = {"Authorization": f"Bearer {await self._bearer()}"}
        async with bounded_client(headers, self._ca_file, _ATTEMPT_S) as client:
            return await asyncio.gather(*(self._ask(client, each, span) for each in asked))

    async def _ask(
        self, client: httpx.AsyncClient, asked: MetricAsked, span: str
    ) -> MetricTold | LedgerError:
        parameters = {
            "api-version": METRICS_VERSION,
            "timespan": span,
            "interval": self._grain,
            "metricnames": asked.name,
            "aggregation": asked.aggregation,
        }
        if asked.split_by is not None:
            parameters |= {"$filter": f"{asked.split_by} eq '*'", "top": str(SPLIT_MAX_COUNT)}
        url = f"{self._endpoint}{self._resource_id}/providers/Microsoft.Insights/metrics"
        try:
            response, body = await get_bounded(
                client, url, _ANSWER_MAX_BYTES, f"{self} cannot be read", params=parameters
            )
            if not response.is_success:
                return self._refusal(response, body)
            document, answer = await read_json_as(body, _ANSWER_MAX_BYTES, _read_answer)
        except LedgerError as error:
            return error
        except ValueError as error:
            said = " ".join(str(error).split())[:200]
            return LedgerError(f"{self}: its answer cannot be understood: {said}")
        if not answer.value:
            return MetricTold()
        partial = partial_answer(response, document)
        if len(answer.value[0].timeseries) >= SPLIT_MAX_COUNT:
            partial = f"{SPLIT_MAX_COUNT} series, and there may be more"
        metric = answer.value[0].model_copy(
            update={"interval": answer.interval, "partial": partial}
        )
        if metric.error_code not in (None, "Success"):
            said = " ".join((metric.error_message or "it does not say why").split())
            return LedgerError(f"{self}: {asked.name}: {metric.error_code}: {said}")
        return metric

    def _bins(self, metric: MetricTold, read_at: datetime) -> tuple[Floats, Floats, Floats, float]:
        """Return start, end and bytes of each bin, and the grain in seconds."""
        if metric.unit not in _UNIT_BYTES:
            unit = f"unit {metric.unit!r}" if metric.unit else "no answer"
            raise LedgerError(
                f"{self}: {self._metric}: {unit}; its bytes need {', '.join(_UNIT_BYTES)}"
            )
        grain_s = parse_grain(metric.interval or self._grain)
        amount = metric.unit == "Bytes"
        points = sorted(metric.points, key=lambda point: point.at)
        start_s = np.array([point.at.timestamp() for point in points])
        said = [point.total if amount else point.average for point in points]
        values = np.array([np.nan if value is None else value for value in said])
        counts = values * _UNIT_BYTES[metric.unit] * (1.0 if amount else grain_s)
        end_s = start_s + grain_s
        now_s = read_at.timestamp()
        young = end_s > now_s - self.freshness.settle_s
        unknown = (end_s > now_s) | (young & (counts == 0))
        return start_s, end_s, np.where(unknown, np.nan, counts), grain_s

    async def _bearer(self) -> str:
        if self._token is not None:
            return self._token
        try:
            return (await identity_token(self._client_id, self._endpoint)).token
        except NoToken as error:
            said = " ".join(str(error).split())
            raise LedgerError(f"{self}: no token for {self._who}: {said}") from error

    @property
    def _who(self) -> str:
        return "the given token" if self._token else f"identity {self._client_id or 'default'}"

    def _refusal(self, response: httpx.Response, body: bytes) -> LedgerError:
        """Return a one-line error, with the fix if it is known."""
        told = object_of(body)
        # The errors of the Resource Manager are inside an ``error`` member.
        error = told.get("error", told)
        known = [error.get(name) for name in ("code", "message")] if isinstance(error, dict) else []
        said = " ".join(": ".join(str(each) for each in known if each).split())
        said = said or f"HTTP {response.status_code}"
        match response.status_code:
            case 429:
                after_s = retry_after_s(response, _RETRY_AFTER_S)
                return LedgerBusy(f"{self} throttles us: come back in {after_s:g} s", after_s)
            case 401 | 403:
                return LedgerError(
                    f"{self} refuses {self._who}: {said}; give it the role '{ROLE}' on the firewall"
                )
            case 404:
                return LedgerError(
                    f"{self}: there is no such resource; check azure_monitor_resource_id"
                )
        return LedgerError(f"{self} cannot be read: {said}")


def parse_grain(text: str) -> float:
    """Return the seconds of an ISO 8601 duration such as ``PT1M``, at most a day.

    Raises:
        LedgerError: The text is not such a duration.
    """
    found = _GRAIN.fullmatch(text)
    sizes_s = (86_400, 3600, 60, 1)
    counts = map(int, found.groups("0")) if found else ()
    seconds = float(sum(count * size_s for count, size_s in zip(counts, sizes_s, strict=False)))
    if not 0 < seconds <= _GRAIN_MAX_S:
        raise LedgerError(
            f"azure_monitor_grain {text[:40]!r}: not a duration of at most a day; "
            "give one such as PT1M"
        )
    return seconds


def _said_beside(told: Mapping[str, MetricTold]) -> list[str]:
    """Return notes for the report from the other metrics."""

    def known(name: str, aggregation: str) -> list[float]:
        return told.get(name, MetricTold()).known(aggregation)

    said = []
    if health := known("FirewallHealth", "average"):
        said.append(f"FirewallHealth was {min(health):.4g} % at its lowest")
    least = known("ObservedCapacity", "minimum")
    if least and (most := known("ObservedCapacity", "maximum")):
        said.append(
            f"ObservedCapacity was {min(least):.4g} to {max(most):.4g} instances; it can lag half "
            "an hour"
        )
    if latency := known("FirewallLatencyPng", "average"):
        said.append(
            f"FirewallLatencyPng was {min(latency):.4g} to {max(latency):.4g} ms: the platform's "
            "own ping mesh, not the latency that the firewall adds"
        )
    if snat := known("SNATPortUtilization", "maximum"):
        said.append(f"SNATPortUtilization was {max(snat):.4g} % at its highest")
    return said


def open_source(settings: CoordinatorSettings) -> AzureMonitorLedger:
    return AzureMonitorLedger(
        needed(settings, "azure_monitor_resource_id", settings.azure_monitor_resource_id),
        metric=settings.azure_monitor_metric,
        grain=settings.azure_monitor_grain,
        layer=settings.ledger_layer,
        settle_s=300.0 if settings.ledger_settle_s is None else settings.ledger_settle_s,
        endpoint=settings.azure_monitor_endpoint,
        client_id=settings.managed_identity_client_id,
        token=plain(settings.azure_monitor_token),
        ca_file=settings.azure_monitor_ca_file,
    )
