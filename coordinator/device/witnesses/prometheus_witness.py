"""Telemetry of a device from Prometheus, with one query per quantity."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import numpy as np
from pydantic import Field

from broadside.coordinator.core.measure.testimony import Remark, RemarkKind, WitnessSeries
from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.coordinator.device.prometheus_api import (
    PrometheusAnswer,
    PrometheusApi,
    PrometheusSeries,
)
from broadside.coordinator.device.witnesses.witness_file import (
    ArchiveEntry,
    ArchiveWitness,
    Read,
    parsed,
    partial_of,
    secret_if_any,
    series_of,
)

_SELECTOR: Final = re.compile(r"[A-Za-z_:][\w:]*(\{[^{}]*\})?")
# Default of Prometheus for the maximum age of a sample at a step.
_LOOKBACK_S: Final = 300.0
# Limit for the clock offset, the same as for polled devices (stamp_offset.OFFSET_MAX_S).
CLOCK_MAX_S: Final = 2.0
# The same factor as in the Prometheus ledger.
_SETTLE_STEPS_COUNT: Final = 2


class Query(Read):
    query: Annotated[str, Field(min_length=1, max_length=4096)]
    # Label with the name of the instance. ``None`` means a single series.
    instance_label: str | None = None


class PrometheusEntry(ArchiveEntry):
    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    step_s: Annotated[float, Field(gt=0, le=3600)] = 15.0
    read: Annotated[tuple[Query, ...], Field(min_length=1, max_length=64)]


def open_source(
    entry: Mapping[str, Any], transport: httpx.AsyncBaseTransport | None = None
) -> ArchiveWitness:
    """Return a witness with range queries over the span of a run.

    For a rate, the entry must set the averaging time in ``over_s``.

    Args:
        entry: Entry from the witnesses file.
        transport: Transport for tests.

    Raises:
        LedgerError: The entry is not valid.
    """
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
            if query.over_s == 0 and _SELECTOR.fullmatch(query.query.strip()):
                told = await _at_scrapes(
                    api, query.query, told, from_s + off_s, before_s + off_s, named.step_s
                )
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
    """Return a remark if the server clock differs by more than the limit."""
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


async def _at_scrapes(
    api: PrometheusApi,
    query: str,
    told: PrometheusAnswer,
    from_s: float,
    before_s: float,
    step_s: float,
) -> PrometheusAnswer:
    """Return the samples at their scrape times, each sample once.

    A step shows the last sample before it, which may be minutes old. The query ``timestamp()``
    returns its scrape time. If the server does not support it, the answer is returned unchanged.
    """
    try:
        answer = await api.series(f"timestamp({query.strip()})", from_s, before_s, step_s)
    except LedgerError:
        return told
    stamps = {_labels_of(each): each for each in answer.series}
    found = []
    for series in told.series:
        own = stamps.get(_labels_of(series))
        if own is None or not np.array_equal(own.at_s, series.at_s):
            return told
        age_s = own.at_s - own.values
        if not ((age_s > -1.0) & (age_s <= _LOOKBACK_S + 1.0)).all():
            return told
        at_s, first = np.unique(own.values, return_index=True)
        found.append(replace(series, at_s=at_s, values=series.values[first]))
    return replace(told, series=found)


def _labels_of(series: PrometheusSeries) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in series.labels.items() if name != "__name__")
