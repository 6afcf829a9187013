"""An Azure Firewall's own metrics, by a call of the Resource Manager that names one resource.

So *Monitoring Reader* on the firewall alone is enough (``DECISIONS.md``). Unit, grain and
aggregation are read from the answer. What Azure Monitor does with its newest points, and what we
make of it:

- They come as 0 or null and change for some minutes: inside ``settle_s`` a 0 is unknown, and a
  null is unknown at any age. A bin that is still being filled is unknown too.
- A point labelled ``T`` counts what passed somewhat before: the lag is fitted later on, and
  :data:`LAG_HINT_S` is what was seen of a real firewall.
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
from broadside.exchange.rows import read_json

ROLE: Final = "Monitoring Reader"
SPLIT_MAX_COUNT: Final = 1000  # series of a metric that is split; unasked the service gives ten
LAG_HINT_S: Final = 75.0  # a one-minute point labelled T covered about [T - 75 s, T - 15 s]

_ID: Final = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/[^/]+/[^/]+/[^/]+", re.IGNORECASE
)
_GRAIN: Final = re.compile(r"P(?:(\d{1,5})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,5})M)?(?:(\d{1,5})S)?)?")
_GRAIN_MAX_S: Final = 86_400.0  # Azure Monitor's longest
_UNIT_BYTES: Final = {"BitsPerSecond": 1 / 8, "BytesPerSecond": 1.0, "Bytes": 1.0}
_AGGREGATION: Final[Mapping[str, str]] = {
    "Throughput": "Average",
    "DataProcessed": "Total",
    "SNATPortUtilization": "Maximum",
    "FirewallHealth": "Average",
    "ObservedCapacity": "Minimum,Maximum",
    "FirewallLatencyPng": "Average",
}
_ATTEMPT_S: Final = 10.0  # to connect, and without a byte of the answer
_ANSWER_MAX_BYTES: Final = 16 * 1_048_576  # a week of minutes is one
_RETRY_AFTER_S: Final = 30.0  # when a throttling service does not say


# An answer, as far as it is read -----------------------------------------------------------------

_Listed = BeforeValidator(lambda told: told or ())  # null, too: there are none


class Point(BaseModel):
    """What is known from one instant on, for a grain; None is unknown."""

    at: AwareDatetime = Field(alias="timeStamp")
    average: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    total: float | None = None
    count: float | None = None


class _Dimension(BaseModel):
    value: str = ""


class Series(BaseModel):
    """One of a metric: of all, or of one value of the dimension that it is split by."""

    metadatavalues: Annotated[tuple[_Dimension, ...], _Listed] = ()
    data: Annotated[tuple[Point, ...], _Listed] = ()


class MetricTold(BaseModel):
    """One metric of a resource; without a unit: it was not told."""

    unit: str = ""
    timeseries: Annotated[tuple[Series, ...], _Listed] = ()
    error_code: str | None = Field(None, alias="errorCode")
    error_message: str | None = Field(None, alias="errorMessage")
    interval: str | None = None  # its grain
    partial: str | None = None  # why the answer is known to be incomplete

    @property
    def points(self) -> list[Point]:
        return [point for series in self.timeseries for point in series.data]

    def known(self, aggregation: str) -> list[float]:
        """What is known of one aggregation."""
        found = [getattr(point, aggregation) for point in self.points]
        return [value for value in found if value is not None]


class _Answer(BaseModel):
    interval: str | None = None
    value: Annotated[tuple[MetricTold, ...], _Listed] = ()


def _read_answer(document: Any) -> tuple[Any, _Answer]:
    return document, _Answer.model_validate(document)


class MetricAsked(BaseModel):
    """One metric that is asked for."""

    name: str
    aggregation: str
    split_by: str | None = None  # a dimension


class AzureMonitorLedger:
    """One firewall's ``Throughput`` or ``DataProcessed``, and beside it what else it says.

    Each request goes out once: when to come back is the caller's to know, and a throttling service
    (429) says it, as :class:`LedgerBusy`. ``token`` stands in for ``DefaultAzureCredential``.
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
        """Raises LedgerError for a resource id, grain or endpoint that is none."""
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
        """Each metric over the span, whole grains of it, or why it failed.

        Raises :class:`LedgerError` where there is no token.
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
            document, answer = await read_json(body, _ANSWER_MAX_BYTES, _read_answer)
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
        """The byte metric as bins: start, end, bytes, and their grain."""
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
        """One line that names the fix, where we know it."""
        told = object_of(body)
        error = told.get("error", told)  # the Resource Manager's own has an envelope
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
        LedgerError: The text is no such duration.
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
    """What the other metrics say of the span, as a reader of a report needs it."""

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
