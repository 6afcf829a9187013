"""An Azure Firewall's own metrics, by ``azure-mgmt-monitor``: one call names one resource.

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
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import urlsplit

import aiohttp
import numpy as np
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ClientAuthenticationError, ServiceResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.mgmt.monitor.aio import MonitorManagementClient

from coordinator.coordinator_settings import CoordinatorSettings
from coordinator.core.measure.columns import Floats
from coordinator.core.measure.evidence import FirewallLedger, LedgerLayer
from coordinator.device.ledgers.source import Freshness, LedgerBusy, LedgerError, needed, plain
from coordinator.device.resource_manager import authority_of
from exchange.azure.identity import Credential, NoToken
from exchange.messages import Direction
from exchange.rows import bounded_json

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.mgmt.monitor.models import Metric, MetricValue, Response

ROLE: Final = "Monitoring Reader"
SPLIT_MAX_COUNT: Final = 1000  # series of a metric that is split; unasked the service gives ten
LAG_HINT_S: Final = 75.0  # a one-minute point labelled T covered about [T - 75 s, T - 15 s]
ByteMetric = Literal["Throughput", "DataProcessed"]

_ID: Final = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/[^/]+/providers/[^/]+/[^/]+/[^/]+", re.I
)
_GRAIN: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
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
_REFUSED_FROM: Final = 400
_RETRY_AFTER_S: Final = 30.0  # when a throttling service does not say


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
        found = _ID.fullmatch(resource_id)
        if found is None:
            raise LedgerError(
                f"azure_monitor_resource_id {resource_id!r}: not a resource id; copy the "
                "firewall's from its JSON view: /subscriptions/.../azureFirewalls/<name>"
            )
        parts = urlsplit(endpoint)
        if parts.scheme != "https" and not _is_loopback(parts.hostname):
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
        self._subscription_id = found["subscription"]
        self._metric = metric
        self._grain, self._grain_s = grain, grain_s
        self._layer = layer
        self._endpoint = endpoint.rstrip("/")
        self._https = parts.scheme == "https"
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
        async with self.credential() as credential, self.client(credential) as client:
            first, *rest = await asyncio.gather(
                *(self.ask(client, name, from_at, before_at) for name in names),
                return_exceptions=True,
            )
        read_at = self._now()
        if isinstance(first, BaseException):
            raise self.explain(first) from first
        answers = {
            name: answer
            for name, answer in zip(names[1:], rest, strict=True)
            if not isinstance(answer, BaseException)
        }
        unread = sorted({*names[1:]} - answers.keys())
        try:
            snat = _values(answers.get("SNATPortUtilization"), "maximum")
            beside = _said_beside(answers)
            start_s, end_s, counts, grain_s = self._bins(first, read_at)
        except LedgerError:
            raise
        except Exception as error:
            raise self.explain(error) from error
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
            notes=(*beside, *(f"{name} could not be read" for name in unread)),
        )

    async def ask(
        self,
        client: MonitorManagementClient,
        name: str,
        from_at: datetime,
        before_at: datetime,
        *,
        aggregation: str | None = None,
        split_by: str | None = None,
    ) -> "Response":
        """One metric over the span, whole grains of it; ``split_by`` names a dimension.

        Raises the SDK's errors; LedgerError for a metric that failed in an answer that is good.
        """
        grain = timedelta(seconds=self._grain_s)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        start = from_at - (from_at - epoch) % grain
        end = max(before_at + (epoch - before_at) % grain, start + grain)
        answer: Response = await client.metrics.list(
            self._resource_id.lstrip("/"),
            timespan=f"{start:%Y-%m-%dT%H:%M:%SZ}/{end:%Y-%m-%dT%H:%M:%SZ}",
            interval=self._grain,
            metricnames=name,
            aggregation=aggregation or _AGGREGATION[name],
            filter=None if split_by is None else f"{split_by} eq '*'",
            top=None if split_by is None else SPLIT_MAX_COUNT,
            enforce_https=self._https,
        )
        metric = metric_of(answer)
        if metric is not None and metric.error_code not in (None, "Success"):
            said = " ".join(str(metric.error_message or "it does not say why").split())
            raise LedgerError(f"{self}: {name}: {metric.error_code}: {said}")
        return answer

    def _bins(self, answer: "Response", read_at: datetime) -> tuple[Floats, Floats, Floats, float]:
        """The byte metric as bins: start, end, bytes, and their grain."""
        metric = metric_of(answer)
        if metric is None or metric.unit not in _UNIT_BYTES:
            unit = "no answer" if metric is None else f"unit {metric.unit!r}"
            raise LedgerError(
                f"{self}: {self._metric}: {unit}; its bytes need {', '.join(_UNIT_BYTES)}"
            )
        grain_s = parse_grain(answer.interval or self._grain)
        amount = metric.unit == "Bytes"
        points = sorted(points_of(metric), key=lambda point: point.time_stamp)
        start_s = np.array([point.time_stamp.timestamp() for point in points])
        said = [point.total if amount else point.average for point in points]
        values = np.array([np.nan if value is None else value for value in said])
        counts = values * _UNIT_BYTES[metric.unit] * (1.0 if amount else grain_s)
        end_s = start_s + grain_s
        now_s = read_at.timestamp()
        young = end_s > now_s - self.freshness.settle_s
        unknown = (end_s > now_s) | (young & (counts == 0))
        return start_s, end_s, np.where(unknown, np.nan, counts), grain_s

    # Connections ----------------------------------------------------------------------------

    def credential(self) -> "AsyncTokenCredential":
        if self._token is not None:
            return _GivenToken(self._token)
        return Credential(self._client_id, **authority_of(self._endpoint))

    def client(self, credential: "AsyncTokenCredential") -> MonitorManagementClient:
        verify: dict[str, Any] = {"connection_verify": str(self._ca_file)} if self._ca_file else {}
        return MonitorManagementClient(
            credential,
            self._subscription_id,
            self._endpoint,
            credential_scopes=[f"{self._endpoint}/.default"],
            retry_total=0,
            transport=_Bounded(connection_timeout=_ATTEMPT_S, read_timeout=_ATTEMPT_S, **verify),
        )

    @property
    def _who(self) -> str:
        return "the given token" if self._token else f"identity {self._client_id or 'default'}"

    def explain(self, error: BaseException) -> LedgerError:
        """The SDK's error as one line that names the fix, where we know it."""
        status = getattr(error, "status_code", None)
        told = getattr(getattr(error, "error", None), "message", None)  # by the Resource Manager
        said = " ".join(str(told or error).split()) or repr(error)
        if isinstance(error, LedgerError):
            return error
        if status == 429:
            headers = getattr(getattr(error, "response", None), "headers", {})
            after_s = _seconds(headers.get("Retry-After"))
            return LedgerBusy(f"{self} throttles us: come back in {after_s:g} s", after_s)
        if isinstance(error, NoToken):
            return LedgerError(f"{self}: no token for {self._who}: {said}")
        if status in (401, 403) or isinstance(error, ClientAuthenticationError):
            return LedgerError(
                f"{self} refuses {self._who}: {said}; give it the role '{ROLE}' on the firewall"
            )
        if status == 404:
            return LedgerError(
                f"{self}: there is no such resource; check azure_monitor_resource_id"
            )
        if isinstance(error, AzureError | OSError):
            return LedgerError(f"{self} cannot be read: {said}")
        if not isinstance(error, Exception):  # we are told to stop
            raise error
        return LedgerError(f"{self}: its answer cannot be understood: {said}")


class _Bounded(AioHttpTransport):  # type: ignore[misc]  # the SDK offers it untyped, lazily
    """The SDK's own, for answers of bounded size and depth that nobody has packed: its parser
    takes whatever comes, and a kilobyte unpacks to a gigabyte."""

    async def send(self, request: Any, **options: Any) -> Any:
        request.headers["Accept-Encoding"] = "identity"
        response = await super().send(request, **{**options, "stream": True})
        wire = response.internal_response
        try:
            if wire.headers.get("Content-Encoding", "identity") != "identity":
                raise ServiceResponseError("an answer that is packed, unasked")
            body = bytearray()
            async for piece in wire.content.iter_any():
                body += piece
                if len(body) > _ANSWER_MAX_BYTES:
                    raise ServiceResponseError(f"an answer of over {_ANSWER_MAX_BYTES} bytes")
            if wire.status < _REFUSED_FROM:  # refusals are read for their code alone
                bounded_json(bytes(body), _ANSWER_MAX_BYTES)
        except (ValueError, aiohttp.ClientError, TimeoutError) as error:
            wire.close()
            raise ServiceResponseError(f"no answer of Azure Monitor's: {error}") from error
        except ServiceResponseError:
            wire.close()
            raise
        wire._body = bytes(body)  # read: what the SDK reads next is this
        if hasattr(response, "load_body"):
            await response.load_body()
        else:
            await response.read()
        return response


class _GivenToken:
    """A bearer token that somebody else got, such as ``az account get-access-token``."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken(self._token, int(datetime.now(UTC).timestamp()) + 3600)

    async def close(self) -> None:
        """Nothing is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None: ...


# Reading an answer --------------------------------------------------------------------------------


def parse_grain(text: str) -> float:
    """Seconds of an ISO 8601 duration such as ``PT1M``. Raises LedgerError."""
    found = _GRAIN.fullmatch(text)
    sizes_s = (86_400, 3600, 60, 1)
    seconds = (
        sum(int(n) * s for n, s in zip(found.groups("0"), sizes_s, strict=True)) if found else 0
    )
    if not seconds:
        raise LedgerError(f"azure_monitor_grain {text!r}: not a duration; give one such as PT1M")
    return float(seconds)


def metric_of(answer: "Response | None") -> "Metric | None":
    return answer.value[0] if answer is not None and answer.value else None


def points_of(metric: "Metric") -> "Sequence[MetricValue]":
    return [point for series in metric.timeseries or () for point in series.data or ()]


def _values(answer: "Response | None", name: str) -> list[float]:
    """What is known of one aggregation of a metric."""
    metric = metric_of(answer)
    found = [getattr(point, name) for point in points_of(metric)] if metric else []
    return [value for value in found if value is not None]


def _said_beside(answers: "Mapping[str, Response]") -> list[str]:
    """What the other metrics say of the span, as a reader of a report needs it."""
    said = []
    if health := _values(answers.get("FirewallHealth"), "average"):
        said.append(f"FirewallHealth was {min(health):.4g} % at its lowest")
    capacity = answers.get("ObservedCapacity")
    if (least := _values(capacity, "minimum")) and (most := _values(capacity, "maximum")):
        said.append(
            f"ObservedCapacity was {min(least):.4g} to {max(most):.4g} instances; it can lag half "
            "an hour"
        )
    if latency := _values(answers.get("FirewallLatencyPng"), "average"):
        said.append(
            f"FirewallLatencyPng was {min(latency):.4g} to {max(latency):.4g} ms: the platform's "
            "own ping mesh, not the latency that the firewall adds"
        )
    if snat := _values(answers.get("SNATPortUtilization"), "maximum"):
        said.append(f"SNATPortUtilization was {max(snat):.4g} % at its highest")
    return said


def _seconds(retry_after: str | None) -> float:
    """A ``Retry-After`` in seconds; Azure's is never a date."""
    try:
        return float(retry_after or _RETRY_AFTER_S)
    except ValueError:
        return _RETRY_AFTER_S


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


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
