"""Any Azure resource's own metrics: a firewall, a load balancer, the VMs of an appliance."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field

from coordinator.core.measure.testimony import Quantity, Witnessed, WitnessSeries
from coordinator.device.ledgers.azure_monitor_source import (
    LAG_HINT_S,
    AzureMonitorLedger,
    metric_of,
    parse_grain,
)
from coordinator.device.ledgers.source import LedgerError
from coordinator.device.witnesses.witness_file import (
    Read,
    WitnessEntry,
    parsed,
    quantities_of,
    said_by,
    secret_if_any,
    series_of,
)

BOUND_S: Final = 30.0  # by which a point's span is unsure: the label's lag was measured, not told


class Metric(Read):
    metric: Annotated[str, Field(min_length=1, max_length=200)]
    aggregation: Literal["Average", "Maximum", "Minimum", "Total", "Count"] = "Average"
    split_by: Annotated[str, Field(pattern=r"^[A-Za-z0-9 _-]{1,80}$")] | None = None  # instances


class AzureEntry(WitnessEntry):
    resource_id: str
    grain: str = "PT1M"
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 300.0
    endpoint: str = "https://management.azure.com"
    client_id: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    read: Annotated[tuple[Metric, ...], Field(max_length=64)] = ()  # empty: what its type has


# By the type of a resource, what of its metrics is a quantity of ours.
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


class AzureMonitorWitness:
    """Points of a grain each, at rest ``settle_s`` after it; a point that is null is unknown."""

    def __init__(self, entry: AzureEntry) -> None:
        token = secret_if_any(entry.device, "token_file", entry.token_file)
        self._reader = AzureMonitorLedger(
            entry.resource_id,
            grain=entry.grain,
            settle_s=entry.settle_s,
            endpoint=entry.endpoint,
            client_id=entry.client_id,
            token=token,
            ca_file=entry.ca_file,
        )
        kind = "/".join(entry.resource_id.strip("/").split("/")[5:7]).lower()
        self._reads = entry.read or KNOWN.get(kind, ())
        if not self._reads:
            raise LedgerError(
                f"witness {entry.device}: read: not set, and nothing is known of {kind}; name its "
                "metrics"
            )
        self.name = f"azure-monitor {entry.resource_id.rpartition('/')[2]}"
        self.devices = (entry.device,)
        self.quantities = quantities_of(self._reads)
        self.settle_s = entry.settle_s
        self._grain_s = parse_grain(entry.grain)
        self._entry = entry

    async def watch(self) -> None:
        """It keeps its own history."""

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        async with self._reader.credential() as token, self._reader.client(token) as client:
            answers = await asyncio.gather(
                *(
                    self._reader.ask(
                        client,
                        read.metric,
                        from_at,
                        before_at,
                        aggregation=read.aggregation,
                        split_by=read.split_by,
                    )
                    for read in self._reads
                ),
                return_exceptions=True,
            )
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if failed:
            raise self._reader.explain(failed[0]) from failed[0]
        entry = self._entry
        series = [
            each
            for read, answer in zip(self._reads, answers, strict=True)
            for each in self._series(read, answer)
        ]
        return said_by(entry, series)

    def _series(self, read: Metric, answer: Any) -> list[WitnessSeries]:
        metric = metric_of(answer)
        found = []
        for told in (metric.timeseries or ()) if metric is not None else ():
            named = [str(value.value) for value in told.metadatavalues or ()]
            points = [
                (point.time_stamp.timestamp(), getattr(point, read.aggregation.lower()))
                for point in told.data or ()
            ]
            known = sorted((at_s, value) for at_s, value in points if value is not None)
            columns = np.array(known, dtype=float).reshape(-1, 2)
            # A point labelled T covers about [T - 75 s, T - 15 s] of a minute's grain.
            lag_s = LAG_HINT_S if self._grain_s == 60 else 0.0
            found.append(
                series_of(
                    self._entry.device,
                    self.name,
                    read.model_copy(update={"over_s": self._grain_s}),
                    columns[:, 0] + self._grain_s - lag_s,
                    columns[:, 1],
                    instance=" ".join(named) if read.split_by else "",
                    bound_s=BOUND_S,
                )
            )
        return found


def open_source(entry: Mapping[str, Any]) -> AzureMonitorWitness:
    return AzureMonitorWitness(parsed(AzureEntry, entry))
