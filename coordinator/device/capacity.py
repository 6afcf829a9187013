"""Raise the capacity of an Azure Firewall for a test, and restore it afterwards.

The previous bounds are written to disk before any change (:class:`CapacityFile`), so a later
process can restore them. Errors are those of :mod:`broadside.coordinator.device.resource_manager`.
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
    AzureResource,
    Body,
    ResourceBusy,
    ResourceError,
    ResourceManagerAccess,
    ResourceRefused,
    ResourceType,
    ResourceUnavailable,
    token_source,
)

# Capacity units, from Azure's documentation of pre-scaling (November 2026).
LEAST, MOST = 2, 50

FIREWALL: Final = ResourceType(
    name="firewall",
    type="azureFirewalls",
    # A PUT writes the whole firewall. Azure also checks the rights to join its subnet, address and
    # policy.
    rights="'Network Contributor' on the firewall's resource group",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Bounds of autoscaling in capacity units.

    Attributes:
        min_count: Lower bound, or ``None`` if the service chooses it.
        max_count: Upper bound, or ``None`` if the service chooses it.
    """

    min_count: int | None
    max_count: int | None

    def __str__(self) -> str:
        if self.min_count is None and self.max_count is None:
            return "chosen by the service"
        return f"{_count_text(self.min_count)} to {_count_text(self.max_count)} units"

    def checked(self) -> "Capacity":
        """Return this object if Azure accepts its bounds.

        Raises:
            ResourceRefused: A bound is missing or out of range, or the difference is 1 or negative.
        """
        for name, value in (("min", self.min_count), ("max", self.max_count)):
            if value is None or not LEAST <= value <= MOST:
                raise ResourceRefused(
                    f"{name} {_count_text(value)}: must be {LEAST} to {MOST} units"
                )
        gap = (self.max_count or 0) - (self.min_count or 0)
        if gap < 0 or gap == 1:
            raise ResourceRefused(
                f"max {self.max_count}: must equal min {self.min_count}, or be 2 or more above it"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Firewall:
    """State of a firewall as returned by the Resource Manager.

    Attributes:
        tier: SKU tier, for example ``Premium``, or ``unknown``.
        capacity: Current bounds of autoscaling.
        provisioning_state: ``Succeeded`` when no change is in progress.
    """

    tier: str
    capacity: Capacity
    provisioning_state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCapacity:
    """Newest known data point of the metric ``ObservedCapacity``.

    Attributes:
        units_count: Number of capacity units in use.
        at: Time of the data point.
    """

    units_count: float
    at: datetime


class FirewallCapacity:
    """Reads and changes the capacity of a firewall."""

    def __init__(self, firewall: AzureResource) -> None:
        self._firewall = firewall

    @property
    def resource_id(self) -> str:
        return self._firewall.resource_id

    def close(self) -> None:
        self._firewall.close()

    def read(self) -> Firewall:
        """Return the current state of the firewall."""
        body = self._firewall.read()
        properties = body.get("properties", {})
        return Firewall(
            tier=properties.get("sku", {}).get("tier", "unknown"),
            capacity=_capacity(body),
            provisioning_state=properties.get("provisioningState", "unknown"),
        )

    def write(self, capacity: Capacity, *, over: Capacity | None = None) -> None:
        """Set the bounds and wait until they are in effect.

        Args:
            capacity: Bounds to set.
            over: Expected current bounds. ``None`` skips this check.

        Raises:
            ResourceBusy: The current bounds differ from ``over``.
            ResourceUnavailable: The Resource Manager accepted the request but shows other bounds.
        """

        def changed(body: Body) -> Body:
            now = _capacity(body)
            if over is not None and now != over:
                raise ResourceBusy(
                    f"another user changed the capacity to {now}; check it, then set it again"
                )
            if now == capacity:
                return body
            bounds = {"minCapacity": capacity.min_count, "maxCapacity": capacity.max_count}
            return {**body, "properties": {**body["properties"], "autoscaleConfiguration": bounds}}

        if (result := _capacity(self._firewall.change(changed))) != capacity:
            raise ResourceUnavailable(
                f"the capacity is {result} after setting {capacity}; see its activity log"
            )

    def observed(self, now: datetime) -> ObservedCapacity | None:
        """Return the number of capacity units in use, or ``None`` if it is unknown.

        The metric can lag by half an hour. The query covers the hour before ``now``.
        """
        parameters = {
            "api-version": METRICS_VERSION,
            "metricnames": "ObservedCapacity",
            "aggregation": "Minimum",
            "interval": "PT1M",
            "timespan": f"{_utc(now - timedelta(hours=1))}/{_utc(now)}",
        }
        try:
            under = self._firewall.read_under("/providers/Microsoft.Insights/metrics", **parameters)
        except ResourceError:
            return None
        points = [
            (datetime.fromisoformat(point["timeStamp"]), point["minimum"])
            for metric in under.get("value", ())
            for series in metric.get("timeseries", ())
            for point in series.get("data", ())
            # Azure writes 0 or null for an unknown value.
            if point.get("minimum")
        ]
        return ObservedCapacity(units_count=max(points)[1], at=max(points)[0]) if points else None


def open_capacity(
    settings: CoordinatorSettings, resource_id: str | None, say: Callable[[str], None]
) -> FirewallCapacity:
    """Return access to the firewall in the arguments or the settings.

    Args:
        settings: Settings with the endpoint and the token or Azure identity.
        resource_id: Azure resource id. ``None`` selects the one in the settings.
        say: Function that receives progress messages.

    Raises:
        ResourceRefused: There is no resource id, or the Azure SDK is not installed.
    """
    chosen = resource_id or settings.azure_monitor_resource_id
    if not chosen:
        raise ResourceRefused(
            "no firewall named; give --firewall ID or BROADSIDE_AZURE_MONITOR_RESOURCE_ID"
        )
    endpoint = settings.azure_monitor_endpoint
    token = token_source(settings)
    return FirewallCapacity(
        AzureResource(
            chosen, FIREWALL, ResourceManagerAccess(token=token, endpoint=endpoint), say=say
        )
    )


# What was set before ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFile:
    """File that stores the previous bounds of a firewall until they are restored.

    Attributes:
        path: Path to the JSON file.
    """

    path: Path

    @classmethod
    def of(cls, resource_id: str, folder: Path | None = None) -> "CapacityFile":
        """Return the record of a firewall, one file per firewall.

        Args:
            resource_id: The firewall's Azure resource id.
            folder: Folder of the file. ``None`` selects ``$XDG_STATE_HOME/broadside/capacity``.
        """
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
        """Return the previous bounds, or ``None`` if there is no record.

        Raises:
            ResourceRefused: The file cannot be read or parsed.
        """
        try:
            document = json.loads(self.path.read_text("utf-8"))
            return Capacity(min_count=document["min_count"], max_count=document["max_count"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, OSError) as error:
            raise ResourceRefused(f"{self.path}: not readable: {error}") from error

    def save_original(self, before: Capacity, resource_id: str, at: datetime) -> Capacity:
        """Write the bounds durably, unless a file exists.

        An existing file is not overwritten. It has the original bounds, and the current ones were
        already raised.

        Args:
            before: Bounds before the change.
            resource_id: The firewall's Azure resource id.
            at: Time of the record.

        Returns:
            Bounds in capacity units, as the file contains them.

        Raises:
            ResourceRefused: The file cannot be written or read.
        """
        fields = {
            "resource_id": resource_id,
            "min_count": before.min_count,
            "max_count": before.max_count,
            "at": at.isoformat(),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.path.open("x", encoding="utf-8") as file:
                json.dump(fields, file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if (older := self.read()) is not None:
                return older
            raise ResourceRefused(
                f"{self.path}: {error.strerror}; nothing changed: no copy could be saved"
            ) from error
        return before

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def raise_capacity(
    firewall: FirewallCapacity, capacity: Capacity, record: CapacityFile, now: datetime
) -> Capacity:
    """Record the current bounds, set ``capacity``, and return the bounds to restore.

    If an error or an interrupt occurs after the firewall may have changed, the previous bounds will
    be restored.

    Args:
        firewall: Firewall to change.
        capacity: Bounds to set.
        record: File for the previous bounds.
        now: Time of the record.

    Returns:
        The bounds that :func:`restore` will set.

    Raises:
        ResourceError: The bounds are invalid, the tier is Basic, or the change failed.
    """
    capacity.checked()
    result = firewall.read()
    if result.tier == "Basic":
        raise ResourceRefused("a Basic firewall has a fixed capacity; use another tier")
    stored_already = record.read() is not None
    before = record.save_original(result.capacity, firewall.resource_id, now)
    try:
        firewall.write(capacity, over=result.capacity)
    except ResourceBusy:
        if not stored_already:
            record.forget()
        raise
    except BaseException:
        restore(firewall, record)
        raise
    return before


def restore(firewall: FirewallCapacity, record: CapacityFile) -> Capacity | None:
    """Restore the previous bounds.

    The record is deleted only after the firewall has the bounds. If a restore fails, you can run it
    again.

    Args:
        firewall: Firewall to change.
        record: Stored bounds from before the change.

    Returns:
        The bounds in capacity units. None if no record exists.
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


def _count_text(value: int | None) -> str:
    return "not given" if value is None else str(value)


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
