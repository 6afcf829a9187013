"""Telemetry from the metrics of any Azure resource (firewall, load balancer or VM)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field

from broadside.coordinator.core.measure.testimony import Quantity, Remark, WitnessSeries
from broadside.coordinator.device.ledgers.azure_monitor_source import (
    LAG_HINT_S,
    AzureMonitorLedger,
    MetricAsked,
    Series,
    parse_grain,
)
from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.coordinator.device.witnesses.witness_file import (
    ArchiveWitness,
    Read,
    WitnessEntry,
    parsed,
    partial_of,
    secret_if_any,
    series_of,
)

# Uncertainty of a point's time span. The lag of its label was measured and is not documented.
BOUND_S: Final = 30.0


class Metric(Read):
    metric: Annotated[str, Field(min_length=1, max_length=200)]
    aggregation: Literal["Average", "Maximum", "Minimum", "Total", "Count"] = "Average"
    # Each value of this dimension is an instance.
    split_by: Annotated[str, Field(pattern=r"^[A-Za-z0-9 _-]{1,80}$")] | None = None


class AzureEntry(WitnessEntry):
    resource_id: str
    grain: str = "PT1M"
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 300.0
    endpoint: str = "https://management.azure.com"
    client_id: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    # If empty, the metrics in ``KNOWN`` for the resource type are read.
    read: Annotated[tuple[Metric, ...], Field(max_length=64)] = ()


# Default metrics by resource type, with the quantity of each.
KNOWN: Final[Mapping[str, Sequence[Metric]]] = {
    "microsoft.network/azurefirewalls": (
        Metric(metric="Throughput", quantity=Quantity.RECEIVED),
        Metric(metric="FirewallHealth", quantity=Quantity.HEALTH, scale=0.01),
        Metric(
            metric="SNATPortUtilization",
            quantity=Quantity.SNAT,
            scale=0.01,
            aggregation="Maximum",
        ),
        Metric(metric="FirewallLatencyPng", quantity=Quantity.LATENCY, scale=0.001),
        Metric(metric="ObservedCapacity", quantity=Quantity.UNITS, aggregation="Maximum"),
    ),
    "microsoft.network/loadbalancers": (
        Metric(
            metric="DipAvailability",
            quantity=Quantity.HEALTH,
            scale=0.01,
            split_by="BackendIPAddress",
        ),
    ),
    "microsoft.compute/virtualmachinescalesets": (
        Metric(metric="Percentage CPU", quantity=Quantity.CPU, scale=0.01, split_by="VMName"),
    ),
    "microsoft.compute/virtualmachines": (
        Metric(metric="Percentage CPU", quantity=Quantity.CPU, scale=0.01),
    ),
}


def open_source(entry: Mapping[str, Any]) -> ArchiveWitness:
    """Return a witness with one value per grain, complete ``settle_s`` after its end.

    A null point is unknown.

    Raises:
        LedgerError: The entry is invalid, or it names no metrics and the resource type has none.
    """
    named = parsed(AzureEntry, entry)
    reader = AzureMonitorLedger(
        named.resource_id,
        grain=named.grain,
        settle_s=named.settle_s,
        endpoint=named.endpoint,
        client_id=named.client_id,
        token=secret_if_any(named.device, "token_file", named.token_file),
        ca_file=named.ca_file,
    )
    kind = "/".join(named.resource_id.strip("/").split("/")[5:7]).lower()
    reads = named.read or KNOWN.get(kind, ())
    if not reads:
        raise LedgerError(
            f"witness {named.device}: read: not set, and nothing is known of {kind}; name its "
            "metrics"
        )
    grain_s = parse_grain(named.grain)
    name = f"azure-monitor {named.resource_id.rpartition('/')[2]}"
    asked = [
        MetricAsked(name=read.metric, aggregation=read.aggregation, split_by=read.split_by)
        for read in reads
    ]

    async def ask(
        from_at: datetime, before_at: datetime
    ) -> tuple[list[WitnessSeries], list[Remark]]:
        found: list[WitnessSeries] = []
        remarks: list[Remark] = []
        from_s, before_s = from_at.timestamp(), before_at.timestamp()
        answers = await reader.ask(asked, from_at, before_at)
        for read, told in zip(reads, answers, strict=True):
            if isinstance(told, LedgerError):
                raise told
            series = [_series(named.device, name, read, each, grain_s) for each in told.timeseries]
            if told.partial is not None:
                why = f"{read.metric}: {told.partial}"
                series, partial = partial_of(named.device, name, series, why, from_s, before_s)
                remarks.append(partial)
            found += series
        return found, remarks

    return ArchiveWitness(ask, name=name, entry=named, reads=reads, settle_s=named.settle_s)


def _series(device: str, name: str, read: Metric, told: Series, grain_s: float) -> WitnessSeries:
    points = [
        (point.at.timestamp(), getattr(point, read.aggregation.lower())) for point in told.data
    ]
    known = sorted((at_s, value) for at_s, value in points if value is not None)
    columns = np.array(known, dtype=float).reshape(-1, 2)
    # With a grain of one minute, a point with label T covers about [T - 75 s, T - 15 s].
    lag_s = LAG_HINT_S if grain_s == 60 else 0.0
    instance = " ".join(each.value for each in told.metadatavalues)
    return series_of(
        device,
        name,
        read.model_copy(update={"over_s": grain_s}),
        columns[:, 0] + grain_s - lag_s,
        columns[:, 1],
        instance=instance if read.split_by else "",
        bound_s=BOUND_S,
    )
