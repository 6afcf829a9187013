"""An Azure Firewall's capacity units: raised for a test, and put back whatever happens.

What was set before is on disk before anything is changed (:class:`Record`), so that a later process
can restore it. Errors are those of :mod:`broadside.coordinator.device.resource_manager`.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.resource_manager import (
    METRICS_VERSION,
    Body,
    Kind,
    Resource,
    ResourceBusy,
    ResourceError,
    ResourceRefused,
    ResourceUnavailable,
    token_source,
)

LEAST, MOST = 2, 50  # capacity units, by Azure's documentation of pre-scaling (2026-11)

FIREWALL: Final = Kind(
    name="firewall",
    type="azureFirewalls",
    # The firewall is put whole, which joins its subnet, address and policy.
    rights="'Network Contributor' on the firewall's resource group",
)


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
        """Itself; raises :class:`ResourceRefused` for bounds that Azure would refuse."""
        for name, value in (("min", self.min_count), ("max", self.max_count)):
            if value is None or not LEAST <= value <= MOST:
                raise ResourceRefused(f"{name} {_said(value)}: must be {LEAST} to {MOST} units")
        apart = (self.max_count or 0) - (self.min_count or 0)
        if apart < 0 or apart == 1:
            raise ResourceRefused(
                f"max {self.max_count}: must equal min {self.min_count}, or be 2 or more above it"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Firewall:
    """What the Resource Manager says of a firewall."""

    tier: str
    capacity: Capacity
    provisioning_state: str  # Succeeded when nothing is being changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The newest known point of the metric ``ObservedCapacity``."""

    units_count: float
    at: datetime


class FirewallCapacity:
    """The capacity of one firewall."""

    def __init__(self, firewall: Resource) -> None:
        self._firewall = firewall

    @property
    def resource_id(self) -> str:
        return self._firewall.resource_id

    def close(self) -> None:
        self._firewall.close()

    def read(self) -> Firewall:
        """The firewall as it is now."""
        body = self._firewall.read()
        properties = body.get("properties", {})
        return Firewall(
            tier=properties.get("sku", {}).get("tier", "unknown"),
            capacity=_capacity(body),
            provisioning_state=properties.get("provisioningState", "unknown"),
        )

    def write(self, capacity: Capacity, *, over: Capacity | None = None) -> None:
        """Set the bounds and wait until they hold.

        ``over`` is what they must be now, when that matters: else :class:`ResourceBusy`.
        """

        def changed(body: Body) -> Body:
            now = _capacity(body)
            if over is not None and now != over:
                raise ResourceBusy(
                    f"the capacity became {now} meanwhile, by somebody else; look, and set it again"
                )
            if now == capacity:
                return body
            bounds = {"minCapacity": capacity.min_count, "maxCapacity": capacity.max_count}
            return {**body, "properties": {**body["properties"], "autoscaleConfiguration": bounds}}

        if (found := _capacity(self._firewall.change(changed))) != capacity:
            raise ResourceUnavailable(
                f"the Resource Manager took {capacity} and keeps {found}; look at the firewall's "
                "activity log"
            )

    def observed(self, now: datetime) -> Observed | None:
        """How many units there are, by a metric that can lag half an hour; None when unknown."""
        parameters = {
            "api-version": METRICS_VERSION,
            "metricnames": "ObservedCapacity",
            "aggregation": "Minimum",
            "interval": "PT1M",
            "timespan": f"{_utc(now - timedelta(hours=1))}/{_utc(now)}",
        }
        try:
            told = self._firewall.read_under("/providers/Microsoft.Insights/metrics", **parameters)
        except ResourceError:
            return None
        points = [
            (datetime.fromisoformat(point["timeStamp"]), point["minimum"])
            for metric in told.get("value", ())
            for series in metric.get("timeseries", ())
            for point in series.get("data", ())
            if point.get("minimum")  # 0 and null are unknown
        ]
        return Observed(units_count=max(points)[1], at=max(points)[0]) if points else None


def open_capacity(
    settings: CoordinatorSettings, resource_id: str | None, say: Callable[[str], None]
) -> FirewallCapacity:
    """The firewall that the settings name, entered with an Azure identity or the given token.

    Raises :class:`ResourceRefused` when neither names one, or the SDK is missing.
    """
    chosen = resource_id or settings.azure_monitor_resource_id
    if not chosen:
        raise ResourceRefused(
            "no firewall named; give --firewall ID or BROADSIDE_AZURE_MONITOR_RESOURCE_ID"
        )
    endpoint = settings.azure_monitor_endpoint
    token = token_source(settings)
    return FirewallCapacity(Resource(chosen, FIREWALL, token=token, endpoint=endpoint, say=say))


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
            raise ResourceRefused(f"{self.path}: not readable: {error}") from error

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
            raise ResourceRefused(
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
        raise ResourceRefused("a Basic firewall has a fixed capacity; take another tier")
    kept_already = record.read() is not None
    before = record.keep(found.capacity, firewall.resource_id, now)
    try:
        firewall.write(capacity, over=found.capacity)
    except ResourceBusy:
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


def _capacity(body: Body) -> Capacity:
    bounds = body.get("properties", {}).get("autoscaleConfiguration") or {}
    return Capacity(min_count=bounds.get("minCapacity"), max_count=bounds.get("maxCapacity"))


def _said(value: int | None) -> str:
    return "not given" if value is None else str(value)


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
