"""A device of which Prometheus knows: one query a quantity."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
from pydantic import Field

from broadside.coordinator.core.measure.testimony import Remark, RemarkKind, WitnessSeries
from broadside.coordinator.device.prometheus_api import PrometheusApi
from broadside.coordinator.device.witnesses.witness_file import (
    ArchiveEntry,
    ArchiveWitness,
    Read,
    parsed,
    partial_of,
    secret_if_any,
    series_of,
)

CLOCK_MAX_S: Final = 2.0  # s, as for stamps of polled devices (stamp_offset.OFFSET_MAX_S)
_SETTLE_STEPS_COUNT: Final = 2  # as the ledger of that name


class Query(Read):
    query: Annotated[str, Field(min_length=1, max_length=4096)]
    instance_label: str | None = None  # whose values name instances; None: one series


class PrometheusEntry(ArchiveEntry):
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

    async def ask(
        from_at: datetime, before_at: datetime
    ) -> tuple[list[WitnessSeries], list[Remark]]:
        found: list[WitnessSeries] = []
        clock = await api.clock_offset()
        off_s, bound_s = clock or (0.0, named.stated_bound_s)
        from_s, before_s = from_at.timestamp(), before_at.timestamp()
        remarks = _clock_remarks(named, name, clock, from_s, before_s)
        for query in named.read:
            told = await api.series(query.query, from_s + off_s, before_s + off_s, named.step_s)
            series = [
                series_of(
                    named.device,
                    name,
                    query,
                    each.at_s - off_s,
                    each.values,
                    instance=each.labels.get(query.instance_label or "", "")
                    or (str(number) if len(told.series) > 1 else ""),
                    bound_s=bound_s,
                )
                for number, each in enumerate(told.series)
            ]
            if told.partial is not None:
                why = f"{query.quantity}: {told.partial}"
                series, partial = partial_of(named.device, name, series, why, from_s, before_s)
                remarks.append(partial)
            found += series
        return found, remarks

    settle_s = _SETTLE_STEPS_COUNT * named.step_s
    return ArchiveWitness(ask, name=name, entry=named, reads=named.read, settle_s=settle_s)


def _clock_remarks(
    named: PrometheusEntry,
    name: str,
    clock: tuple[float, float] | None,
    from_s: float,
    before_s: float,
) -> list[Remark]:
    """Return what is to be said of the server's own clock."""
    if clock is None or abs(clock[0]) - clock[1] <= CLOCK_MAX_S:
        return []
    side = "ahead of" if clock[0] > 0 else "behind"
    said = (
        f"the clock of Prometheus is {abs(clock[0]):.1f} s {side} the coordinator's "
        f"(+- {clock[1]:.2f} s; {CLOCK_MAX_S:g} s is the limit): corrected"
    )
    return [
        Remark(
            kind=RemarkKind.CLOCK,
            device=named.device,
            source=name,
            from_s=from_s,
            to_s=before_s,
            said=said,
        )
    ]
