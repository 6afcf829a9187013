"""A device of which Prometheus knows: one query a quantity."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
from pydantic import Field

from coordinator.core.measure.testimony import Witnessed
from coordinator.device.prometheus_api import PrometheusApi
from coordinator.device.witnesses.witness_file import (
    Read,
    WitnessEntry,
    parsed,
    quantities_of,
    said_by,
    secret_if_any,
    series_of,
)

_SETTLE_STEPS_COUNT: Final = 2  # as the ledger of that name


class Query(Read):
    query: Annotated[str, Field(min_length=1, max_length=4096)]
    instance_label: str | None = None  # whose values name instances; None: one series


class PrometheusEntry(WitnessEntry):
    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    step_s: Annotated[float, Field(gt=0, le=3600)] = 15.0
    read: Annotated[tuple[Query, ...], Field(min_length=1, max_length=64)]


class PrometheusWitness:
    """Range queries over the span of a run; a rate over a minute says so with ``over_s``."""

    def __init__(
        self, entry: PrometheusEntry, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.devices = (entry.device,)
        self.quantities = quantities_of(entry.read)
        self.settle_s = _SETTLE_STEPS_COUNT * entry.step_s
        self._entry = entry
        token = secret_if_any(entry.device, "token_file", entry.token_file)
        self._api = PrometheusApi(
            entry.url, token=token, ca_file=entry.ca_file, transport=transport
        )
        self.name = f"prometheus {self._api.where}"

    async def watch(self) -> None:
        """It keeps its own history."""

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        entry = self._entry
        found = []
        for query in entry.read:
            told = await self._api.series(
                query.query, from_at.timestamp(), before_at.timestamp(), entry.step_s
            )
            found += [
                series_of(
                    entry.device,
                    self.name,
                    query,
                    each.at_s,
                    each.values,
                    instance=each.labels.get(query.instance_label or "", "")
                    or (str(number) if len(told) > 1 else ""),
                )
                for number, each in enumerate(told)
            ]
        return said_by(entry, found)


def open_source(entry: Mapping[str, Any]) -> PrometheusWitness:
    return PrometheusWitness(parsed(PrometheusEntry, entry))
