"""A device of which Prometheus knows: one query a quantity."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
from pydantic import Field

from broadside.coordinator.core.measure.testimony import WitnessSeries
from broadside.coordinator.device.prometheus_api import PrometheusApi
from broadside.coordinator.device.witnesses.witness_file import (
    ArchiveWitness,
    Read,
    WitnessEntry,
    parsed,
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


def open_source(
    entry: Mapping[str, Any], transport: httpx.AsyncBaseTransport | None = None
) -> ArchiveWitness:
    """Range queries over the span of a run; a rate over a minute says so with ``over_s``."""
    named = parsed(PrometheusEntry, entry)
    token = secret_if_any(named.device, "token_file", named.token_file)
    api = PrometheusApi(named.url, token=token, ca_file=named.ca_file, transport=transport)
    name = f"prometheus {api.where}"

    async def ask(from_at: datetime, before_at: datetime) -> list[WitnessSeries]:
        found = []
        for query in named.read:
            told = await api.series(
                query.query, from_at.timestamp(), before_at.timestamp(), named.step_s
            )
            found += [
                series_of(
                    named.device,
                    name,
                    query,
                    each.at_s,
                    each.values,
                    instance=each.labels.get(query.instance_label or "", "")
                    or (str(number) if len(told) > 1 else ""),
                )
                for number, each in enumerate(told)
            ]
        return found

    settle_s = _SETTLE_STEPS_COUNT * named.step_s
    return ArchiveWitness(ask, name=name, entry=named, reads=named.read, settle_s=settle_s)
