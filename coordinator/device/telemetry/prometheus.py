"""Byte counter and other quantities from Prometheus, with one query each."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import httpx
import numpy as np
from pydantic import Field

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import IssueKind, TelemetryIssue, TelemetrySeries
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.prometheus_api import (
    PrometheusApi,
    PrometheusResult,
    PrometheusSeries,
)
from broadside.coordinator.device.telemetry.source import (
    ArchiveEntry,
    ArchiveSource,
    ByteCounter,
    ClockBound,
    DataLatency,
    Read,
    Secret,
    TelemetryError,
    without_values,
)
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now

_SELECTOR: Final = re.compile(r"[A-Za-z_:][\w:]*(\{[^{}]*\})?")
# Default of Prometheus for the maximum age of a sample at a step.
_LOOKBACK_S: Final = 300.0
# Limit for the clock offset, the same as for polled devices (clock_offset.OFFSET_MAX_S).
CLOCK_MAX_S: Final = 2.0
_SETTLE_STEPS_COUNT: Final = 2
_BYTES_OF_RATE: Final = {"bits_per_second": 1 / 8, "bytes_per_second": 1.0}

Promql = Annotated[str, Field(min_length=1, max_length=4096)]


class PrometheusQuery(Read):
    """Query to read a quantity."""

    query: Promql
    # Label with the name of the instance. ``None`` means a single series.
    instance_label: str | None = None


class PrometheusByteCounter(ByteCounter):
    """Query for one series.

    Attributes:
        query: PromQL expression.
        unit: Unit of the result. ``bytes_total`` is a counter.
    """

    query: Promql
    unit: Literal["bits_per_second", "bytes_per_second", "bytes_total"] = "bits_per_second"


class PrometheusEntry(ArchiveEntry):
    """Configuration of a Prometheus source."""

    url: str
    token: Secret | None = None
    ca_file: Path | None = None
    step_s: Annotated[float, Field(gt=0, le=3600)] = 15.0
    clock_bound_s: ClockBound = np.nan
    byte_counter: PrometheusByteCounter | None = None
    read: Annotated[tuple[PrometheusQuery, ...], Field(max_length=64)] = ()


class PrometheusSource(ArchiveSource):
    """Range queries over the span of a run.

    For a rate, the entry needs to set the averaging time in ``over_s``.
    """

    entry: PrometheusEntry

    def __init__(
        self,
        entry: PrometheusEntry,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        now: Callable[[], datetime] = lambda: utc_now(),
    ) -> None:
        """Check the entry, without sending requests.

        Args:
            entry: Configuration of the source.
            transport: Transport for tests.
            now: Clock to use. Tests can replace it.

        Raises:
            TelemetryError: The token cannot be read, or the entry has no query.
        """
        if not entry.read and entry.byte_counter is None:
            raise TelemetryError(f"telemetry {entry.device}: read, byte_counter: set one")
        token = None if entry.token is None else entry.token.read(entry.device)
        self._api = PrometheusApi(entry.url, token, entry.ca_file, transport)
        self._now = now
        settle_s = entry.settle_s
        if settle_s is None:
            settle_s = _SETTLE_STEPS_COUNT * entry.step_s
        counter = entry.byte_counter
        super().__init__(
            entry,
            name=f"prometheus {self._api.where}",
            counter_name=None if counter is None else f"prometheus {counter.query}",
            reads=entry.read,
            latency=DataLatency(
                settle_s=settle_s,
                lag_s=entry.step_s,
                reread_s=max(1.0, entry.step_s),
                timeout_s=settle_s + 300,
            ),
        )

    async def query_bytes(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> CounterRecord:
        """Return the bins of the byte counter (see :meth:`.ArchiveSource.query_bytes`).

        A rate covers the step before its time, like the result of ``rate(x[<step>])``. With the
        unit ``bytes_total``, each pair of adjacent samples makes a bin. If the counter decreases,
        this bin is unknown.

        Args:
            from_at: Start time.
            before_at: End time.
            direction: Direction of the traffic. The query selects what is counted, so it is not
                used.

        Raises:
            TelemetryError: No counter is set, it could not be read, or the query has several
                series.
        """
        counter, step_s = self.entry.byte_counter, self.entry.step_s
        if counter is None:
            raise TelemetryError(f"telemetry {self.entry.device}: byte_counter: not set")
        result = await self._api.series(
            counter.query, from_at.timestamp(), before_at.timestamp(), step_s
        )
        if len(result.series) > 1:
            raise TelemetryError(
                f"query {counter.query!r}: {len(result.series)} series; add them up with sum(...)"
            )
        at_s = values = np.empty(0)
        if result.series:
            at_s, values = result.series[0].at_s, result.series[0].values
        if counter.unit == "bytes_total":
            start_s, end_s, counts = at_s[:-1], at_s[1:], np.diff(values)
            counts = np.where(counts >= 0, counts, np.nan)
        else:
            start_s, end_s = at_s - step_s, at_s
            counts = values * step_s * _BYTES_OF_RATE[counter.unit]
        return CounterRecord(
            source=self.counter_name,
            start_s=start_s,
            end_s=end_s,
            bytes=counts,
            grain_s=step_s,
            read_at=self._now(),
            partial=result.partial,
        )

    async def query_series(
        self, from_at: datetime, before_at: datetime
    ) -> tuple[list[TelemetrySeries], list[TelemetryIssue]]:
        """Return the series of all queries by the coordinator's clock.

        Args:
            from_at: Start time, on the coordinator's clock.
            before_at: End time, on the coordinator's clock.

        Returns:
            Series with corrected times, and issues of the clock and of partial results.

        Raises:
            TelemetryError: Prometheus could not be read.
        """
        if not self.entry.read:
            return [], []
        clock = await self._api.clock_offset()
        offset_s, bound_s = clock or (0.0, self.entry.clock_bound_s)
        issues: list[TelemetryIssue] = []
        if clock is not None and abs(offset_s) - bound_s > CLOCK_MAX_S:
            side = "ahead of" if offset_s > 0 else "behind"
            text = (
                f"the clock of Prometheus is {abs(offset_s):.1f} s {side} the coordinator's "
                f"(+- {bound_s:.2f} s; {CLOCK_MAX_S:g} s is the limit): corrected"
            )
            issues.append(self.issue(IssueKind.CLOCK, text, from_at, before_at))
        results: list[TelemetrySeries] = []
        for query in self.entry.read:
            span = from_at.timestamp() + offset_s, before_at.timestamp() + offset_s
            result = await self._result(query, *span)
            series = [
                self.series(
                    query,
                    item.at_s - offset_s,
                    item.values,
                    instance=item.labels.get(query.instance_label or "", "")
                    or (str(number) if len(result.series) > 1 else ""),
                    bound_s=bound_s,
                )
                for number, item in enumerate(result.series)
            ]
            if result.partial is not None:
                series = without_values(series)
                text = f"{query.quantity}: {result.partial}"
                issues.append(self.issue(IssueKind.PARTIAL, text, from_at, before_at))
            results += series
        return results, issues

    async def _result(
        self, query: PrometheusQuery, from_s: float, before_s: float
    ) -> PrometheusResult:
        """Return the samples of a query, those of a plain selector at their scrape times.

        A step shows the last sample before it, which may be minutes old. The query ``timestamp()``
        returns its scrape time. If the server does not support it, the samples stay at the steps.
        """
        step_s = self.entry.step_s
        result = await self._api.series(query.query, from_s, before_s, step_s)
        selector = query.query.strip()
        if query.over_s or not _SELECTOR.fullmatch(selector):
            return result
        try:
            scrapes = await self._api.series(f"timestamp({selector})", from_s, before_s, step_s)
        except TelemetryError:
            return result
        stamps = {_labels_of(item): item for item in scrapes.series}
        results = []
        for series in result.series:
            scraped = stamps.get(_labels_of(series))
            if scraped is None or not np.array_equal(scraped.at_s, series.at_s):
                return result
            age_s = scraped.at_s - scraped.values
            if not ((age_s > -1.0) & (age_s <= _LOOKBACK_S + 1.0)).all():
                return result
            at_s, first = np.unique(scraped.values, return_index=True)
            results.append(replace(series, at_s=at_s, values=series.values[first]))
        return replace(result, series=results)


def _labels_of(series: PrometheusSeries) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in series.labels.items() if name != "__name__")


def open_source(entry: Mapping[str, Any]) -> PrometheusSource:
    """Return the source for an entry of the telemetry file."""
    return PrometheusSource(parse_entry(PrometheusEntry, entry))
