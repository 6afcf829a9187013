"""An Azure Firewall's capacity units: raised for a test, and put back whatever happens.

The Resource Manager has no call for the capacity alone, so the firewall is read, its
``autoscaleConfiguration`` changed, and the whole put back under its ETag. What was set before is on
disk before anything is changed (:class:`Record`), so that a later process can restore it.

Errors::

    CapacityError
    ├── CapacityRefused      a value, a right, or the firewall's tier: trying again will not help
    ├── CapacityBusy         somebody else has changed the firewall meanwhile; we changed nothing
    └── CapacityUnavailable  the Resource Manager did not answer, or did not finish, in time
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from coordinator.settings import CoordinatorSettings

API_VERSION: Final = "2025-05-01"  # the first with autoscaleConfiguration
METRICS_VERSION: Final = "2023-10-01"
LEAST, MOST = 2, 50  # capacity units, by Azure's documentation of pre-scaling (2026-11)
PATIENCE_S: Final = 1800.0  # a scale-out takes 5 to 7 minutes
POLL_S: Final = 10.0  # when the service does not say
ROLE: Final = "Network Contributor"

_ID: Final = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Network/azureFirewalls/[^/]+",
    re.I,
)
_RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})


class CapacityError(Exception):
    """The capacity could not be read or changed."""


class CapacityRefused(CapacityError):
    """A value, a right or the firewall's tier stands against it."""


class CapacityBusy(CapacityError):
    """Somebody else has changed the firewall meanwhile; we changed nothing."""


class CapacityUnavailable(CapacityError):
    """No answer, or no end, in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Bounds of autoscaling in capacity units; None: the service's own choice."""

    min_count: int | None
    max_count: int | None

    def __str__(self) -> str:
        if self.min_count is None and self.max_count is None:
            return "the service's own choice"
        return f"{_said(self.min_count)} to {_said(self.max_count)} units"

    def checked(self) -> "Capacity":
        """Itself; raises :class:`CapacityRefused` for bounds that Azure would refuse."""
        for name, value in (("min", self.min_count), ("max", self.max_count)):
            if value is None or not LEAST <= value <= MOST:
                raise CapacityRefused(f"{name} {_said(value)}: must be {LEAST} to {MOST} units")
        apart = (self.max_count or 0) - (self.min_count or 0)
        if apart < 0 or apart == 1:
            raise CapacityRefused(
                f"max {self.max_count}: must equal min {self.min_count}, or be 2 or more above it"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Firewall:
    """What the Resource Manager says of a firewall."""

    tier: str
    capacity: Capacity
    provisioning_state: str  # Succeeded when nothing is being changed
    etag: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The newest known point of the metric ``ObservedCapacity``."""

    units_count: float
    at: datetime


class FirewallCapacity:
    """One firewall at the Resource Manager; ``token`` gives a bearer token when asked."""

    def __init__(
        self,
        resource_id: str,
        *,
        token: Callable[[], str],
        endpoint: str = "https://management.azure.com",
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Raises :class:`CapacityRefused` for what is no firewall's id, or no safe endpoint."""
        if _ID.fullmatch(resource_id) is None:
            raise CapacityRefused(
                f"firewall {resource_id!r}: not an Azure Firewall's resource id; "
                "see: terraform output -raw firewall_id"
            )
        parts = urlsplit(endpoint)
        if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise CapacityRefused(f"endpoint {endpoint!r}: a token travels over https only")
        self.resource_id = resource_id
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._patience_s = patience_s
        self._sleep = sleep
        self._say = say
        self._client = httpx.Client(timeout=60)

    def close(self) -> None:
        self._client.close()

    def read(self) -> Firewall:
        """The firewall as it is now."""
        answer = self._ask("GET", self._url(self.resource_id, API_VERSION))
        body = answer.json()
        properties = body.get("properties", {})
        bounds = properties.get("autoscaleConfiguration") or {}
        return Firewall(
            tier=properties.get("sku", {}).get("tier", "unknown"),
            capacity=Capacity(
                min_count=bounds.get("minCapacity"), max_count=bounds.get("maxCapacity")
            ),
            provisioning_state=properties.get("provisioningState", "unknown"),
            etag=answer.headers.get("ETag") or body.get("etag", ""),
            body=body,
        )

    def write(self, capacity: Capacity, *, over: Capacity | None = None) -> None:
        """Set the bounds and wait until they hold.

        ``over`` is what they must be now, when that matters: else :class:`CapacityBusy`.
        """
        for _ in range(5):  # somebody else changed something between our reading and writing
            now = self._read_at_rest()
            if over is not None and now.capacity != over:
                raise CapacityBusy(
                    f"the capacity became {now.capacity} meanwhile, by somebody else; look, and "
                    "set it again"
                )
            if now.capacity == capacity:
                return
            answer = self._put(now, capacity)
            if answer is not None:
                self._wait(answer)
                break
        else:
            raise CapacityBusy("the firewall is changed all the time by somebody else; try later")
        if (found := self._read_at_rest().capacity) != capacity:
            raise CapacityUnavailable(
                f"the Resource Manager took {capacity} and keeps {found}; look at the firewall's "
                "activity log"
            )

    def observed(self, now: datetime) -> Observed | None:
        """How many units there are, by a metric that can lag half an hour; None when unknown."""
        span = f"{_utc(now - timedelta(hours=1))}/{_utc(now)}"
        url = self._url(
            f"{self.resource_id}/providers/Microsoft.Insights/metrics", METRICS_VERSION
        ).copy_merge_params(
            {
                "metricnames": "ObservedCapacity",
                "aggregation": "Minimum",
                "interval": "PT1M",
                "timespan": span,
            }
        )
        try:
            told = self._ask("GET", url).json()
        except CapacityError:
            return None
        points = [
            (datetime.fromisoformat(point["timeStamp"]), point["minimum"])
            for metric in told.get("value", ())
            for series in metric.get("timeseries", ())
            for point in series.get("data", ())
            if point.get("minimum")  # 0 and null are unknown
        ]
        return Observed(units_count=max(points)[1], at=max(points)[0]) if points else None

    # Requests ---------------------------------------------------------------------------------

    def _read_at_rest(self) -> Firewall:
        """The firewall once nobody is changing it."""
        end_s = time.monotonic() + self._patience_s
        while (found := self.read()).provisioning_state in ("Updating", "Deleting", "Creating"):
            if time.monotonic() > end_s:
                state = found.provisioning_state.lower()
                raise CapacityUnavailable(f"the firewall is still {state}")
            self._sleep(POLL_S)
        return found

    def _put(self, now: Firewall, capacity: Capacity) -> httpx.Response | None:
        """Put the firewall with other bounds; None when its ETag no longer matches."""
        body = dict(now.body)
        body["properties"] = {
            **now.body["properties"],
            "autoscaleConfiguration": {
                "minCapacity": capacity.min_count,
                "maxCapacity": capacity.max_count,
            },
        }
        headers = {"If-Match": now.etag} if now.etag else {}
        answer = self._ask(
            "PUT", self._url(self.resource_id, API_VERSION), headers, body, refused=(412,)
        )
        return None if answer.status_code == 412 else answer

    def _wait(self, accepted: httpx.Response) -> None:
        """Poll a long operation to its end."""
        end_s = time.monotonic() + self._patience_s
        url = accepted.headers.get("Azure-AsyncOperation") or accepted.headers.get("Location")
        pause_s = _retry_after_s(accepted)
        while url is not None:
            if urlsplit(url)[:2] != urlsplit(self._endpoint)[:2]:
                raise CapacityRefused(f"the operation is at {url}: not at {self._endpoint}")
            if time.monotonic() > end_s:
                raise CapacityUnavailable(f"the change is not through after {self._patience_s:g} s")
            self._sleep(pause_s)
            answer = self._ask("GET", httpx.URL(url))
            pause_s = _retry_after_s(answer)
            if answer.status_code == 202:
                continue
            told = answer.json() if answer.content else {}
            state = told.get("status", "Succeeded")
            if state in ("Failed", "Canceled"):
                raise CapacityRefused(f"the change {state.lower()}: {_message(told)}")
            if state == "Succeeded":
                return
            self._say(f"{state.lower()}...")

    def _ask(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        refused: tuple[int, ...] = (),
    ) -> httpx.Response:
        """One request, again while the service is throttling, busy or away. A PUT may come twice.

        ``refused`` are statuses that the caller understands.
        """
        end_s = time.monotonic() + self._patience_s
        last = "no answer"
        while True:
            try:
                answer = self._client.request(
                    method,
                    url,
                    headers={"Authorization": f"Bearer {self._token()}", **(headers or {})},
                    json=body,
                )
            except httpx.TransportError as error:
                last, pause_s = str(error) or type(error).__name__, POLL_S
            else:
                if answer.is_success or answer.status_code in refused:
                    return answer
                last = f"{answer.status_code} {_message(_json(answer))}"
                if answer.status_code in (401, 403):
                    raise CapacityRefused(f"{last}; the identity needs '{ROLE}' on the firewall")
                if answer.status_code not in _RETRIED:
                    raise CapacityRefused(f"{method} {url.path}: {last}")
                pause_s = _retry_after_s(answer)
            if time.monotonic() + pause_s > end_s:
                raise CapacityUnavailable(f"{method} {url.path}: {last}")
            self._sleep(pause_s)

    def _url(self, path: str, version: str) -> httpx.URL:
        return httpx.URL(f"{self._endpoint}{path}", params={"api-version": version})


def open_capacity(
    settings: CoordinatorSettings, resource_id: str | None, say: Callable[[str], None]
) -> FirewallCapacity:
    """The firewall that the settings name, entered with an Azure identity or the given token.

    Raises :class:`CapacityRefused` when neither names one, or the SDK is missing.
    """
    chosen = resource_id or settings.azure_monitor_resource_id
    if not chosen:
        raise CapacityRefused(
            "no firewall named; give --firewall ID or BROADSIDE_AZURE_MONITOR_RESOURCE_ID"
        )
    endpoint = settings.azure_monitor_endpoint
    return FirewallCapacity(
        chosen, token=_token_source(settings, endpoint), endpoint=endpoint, say=say
    )


def _token_source(settings: CoordinatorSettings, endpoint: str) -> Callable[[], str]:
    if (given := settings.azure_monitor_token) is not None:
        return given.get_secret_value
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import DefaultAzureCredential
    except ModuleNotFoundError as error:
        raise CapacityRefused(f"{error.name} is missing; pip install 'broadside[azure]'") from error
    credential = DefaultAzureCredential(
        managed_identity_client_id=settings.managed_identity_client_id
    )

    def token() -> str:
        try:
            return credential.get_token(f"{endpoint.rstrip('/')}/.default").token
        except ClientAuthenticationError as error:
            said = " ".join(str(error).split())[:200]
            raise CapacityRefused(f"no Azure identity; run: az login ({said})") from error

    return token


# What was set before ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Where a firewall's bounds from before are kept until they are restored."""

    path: Path

    @classmethod
    def of(cls, resource_id: str, folder: Path | None = None) -> "Record":
        """One file a firewall, under ``$XDG_STATE_HOME`` unless told."""
        base = (
            folder
            or Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
            / "broadside"
            / "capacity"
        )
        name = resource_id.rpartition("/")[2]
        digest = sha256(resource_id.lower().encode()).hexdigest()[:12]
        return cls(path=base / f"{name}-{digest}.json")

    def read(self) -> Capacity | None:
        """The bounds from before; None when nothing is to be restored."""
        try:
            told = json.loads(self.path.read_text("utf-8"))
            return Capacity(min_count=told["min_count"], max_count=told["max_count"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, OSError) as error:
            raise CapacityRefused(f"{self.path}: not readable: {error}") from error

    def keep(self, before: Capacity, resource_id: str, at: datetime) -> Capacity:
        """Write the bounds down, durably, and return what is kept.

        An older record stands: its bounds are the true ones, ours were raised already.
        """
        told = {
            "resource_id": resource_id,
            "min_count": before.min_count,
            "max_count": before.max_count,
            "at": at.isoformat(),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.path.open("x", encoding="utf-8") as file:
                json.dump(told, file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if (older := self.read()) is not None:
                return older
            raise CapacityRefused(
                f"{self.path}: {error.strerror}; nothing was changed, for it could not be put back"
            ) from error
        return before

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def raise_capacity(
    firewall: FirewallCapacity, capacity: Capacity, record: Record, now: datetime
) -> Capacity:
    """Write down what is set, set ``capacity``, and return what :func:`restore` would bring back.

    What goes wrong once anything may have changed, an interrupt too, ends with the old bounds.
    """
    capacity.checked()
    found = firewall.read()
    if found.tier == "Basic":
        raise CapacityRefused("a Basic firewall has a fixed capacity; take another tier")
    kept_already = record.read() is not None
    before = record.keep(found.capacity, firewall.resource_id, now)
    try:
        firewall.write(capacity, over=found.capacity)
    except CapacityBusy:
        if not kept_already:
            record.forget()
        raise
    except BaseException:
        restore(firewall, record)
        raise
    return before


def restore(firewall: FirewallCapacity, record: Record) -> Capacity | None:
    """Put back the bounds from before; None when there were none to put back.

    The record goes only once they hold, so a failed restore can be tried again.
    """
    before = record.read()
    if before is not None:
        firewall.write(before)
        record.forget()
    return before


# Answers ------------------------------------------------------------------------------------------


def _said(value: int | None) -> str:
    return "not given" if value is None else str(value)


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return max(0.0, float(answer.headers.get("Retry-After", POLL_S)))
    except ValueError:
        return POLL_S


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return {}


def _message(told: Any) -> str:
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict):
        return "no reason given"
    return " ".join(str(error.get("message") or error.get("code")).split())
