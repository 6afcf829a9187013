"""The device counter, from the telemetry sources that count bytes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetrySeries,
    column,
    merge_sources,
)
from broadside.coordinator.device.telemetry.polling import PolledSource
from broadside.coordinator.device.telemetry.source import (
    ArchiveSource,
    ByteCounter,
    TelemetryError,
    TelemetrySource,
)
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now

_BITS: Final = 8
# Tolerance for adjacent bins, because stored times have millisecond resolution.
STORED_TO_S: Final = 0.01
_NOTES_MAX_COUNT: Final = 5
_UNKNOWN_BYTES: Final = (
    IssueKind.SILENT,
    IssueKind.RESTARTED,
    IssueKind.WENT_BACK,
    IssueKind.TOO_SLOW,
    IssueKind.PARTIAL,
)


class DeviceCounter:
    """Byte counter of the devices under test, as bins.

    The bytes of several polled devices are added for each bin of the first device. This assumes
    that each counter grows evenly within its own bin.

    Attributes:
        name: Name in plans and reports, for example ``lab`` or ``azure-monitor Throughput``.
        latency: Time to wait until values are stable.
        is_polled: Whether the readings are lost when the process ends, except for those that are
            stored with each burst.
    """

    def __init__(self, sources: Sequence[TelemetrySource]) -> None:
        """Check the sources, without sending requests.

        Args:
            sources: Sources with a byte counter, at least one.

        Raises:
            TelemetryError: The counters cannot be added.
        """
        self._polled = [item for item in sources if isinstance(item, PolledSource)]
        first = sources[0]
        if len(sources) > 1 and len(self._polled) < len(sources):
            raise TelemetryError(
                f"byte_counter: set for {', '.join(item.name for item in sources)}; the counters "
                "of several sources are added for polled sources only"
            )
        if len({item.entry.byte_counter for item in sources}) > 1:
            raise TelemetryError("byte_counter: must be equal in all sources that are added")
        self._archive = first if isinstance(first, ArchiveSource) else None
        self._configured = first.entry.byte_counter or ByteCounter()
        self.is_polled = self._archive is None
        self.name = first.counter_name
        self.latency = max((item.latency for item in sources), key=lambda item: item.settle_s)

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> CounterRecord:
        """Return the bins in a time span (see :meth:`.ArchiveSource.query_bytes`).

        Args:
            from_at: Start time.
            before_at: End time.
            direction: Direction of the traffic.

        Raises:
            TelemetryError: A source could not be read.
        """
        if self._archive is None:
            return self.bins_of(await self.readings(from_at, before_at))
        device_counter = await self._archive.query_bytes(from_at, before_at, direction)
        return self._configured.declare(device_counter)

    async def readings(self, from_at: datetime, before_at: datetime) -> DeviceTelemetry:
        """Return the readings of polled counters in a time span.

        Args:
            from_at: Start time.
            before_at: End time.
        """
        parts = [await item.query(from_at, before_at) for item in self._polled]
        return merge_sources(parts, utc_now())

    def bins_of(self, telemetry: DeviceTelemetry) -> CounterRecord:
        """Return the bins from readings of polled counters, of this or another process.

        Args:
            telemetry: Readings of these and other sources.

        Raises:
            TelemetryError: There are no readings.
        """
        instances = {(s.entry.device, s.name): s.counter_instances for s in self._polled}
        series = [
            without_overlaps(item)
            for item in telemetry.of(Quantity.RECEIVED)
            if (key := (item.device, item.source)) in instances
            and item.instance in (instances[key] or {item.instance})
        ]
        issues = [
            f"{issue.device}: {issue.text}"
            for issue in telemetry.issues
            if issue.kind in _UNKNOWN_BYTES and (issue.device, issue.source) in instances
        ]
        if not series:
            raise TelemetryError(f"{self.name}: no reading yet; {'; '.join(issues[:2]) or 'wait'}")
        start_s, end_s, counts = _sum(series)
        device_counter = CounterRecord(
            source=self.name,
            start_s=start_s,
            end_s=end_s,
            bytes=counts,
            grain_s=max(item.entry.poll_s for item in self._polled),
            read_at=utc_now(),
            notes=tuple(dict.fromkeys(issues))[:_NOTES_MAX_COUNT],
        )
        return self._configured.declare(device_counter)


def open_counter(sources: Sequence[TelemetrySource]) -> DeviceCounter | None:
    """Return the device counter of some sources, or ``None`` if none of them counts bytes.

    Raises:
        TelemetryError: The counters of several sources cannot be added.
    """
    counting = [item for item in sources if item.entry.byte_counter is not None]
    return DeviceCounter(counting) if counting else None


def without_overlaps(series: TelemetrySeries) -> TelemetrySeries:
    """Return the series with bins that follow each other without overlap or gap.

    Bins overlap if several coordinators polled. The first of them is used. A gap becomes an unknown
    bin.
    """
    from_s = series.at_s - series.over_s
    # If only one process polled, the bins are already contiguous.
    if (np.abs(from_s[1:] - series.at_s[:-1]) <= 1e-6).all():
        return series
    # Each row has time, length and value.
    rows: list[tuple[float, float, float]] = []
    ended_s = from_s[0] if len(from_s) else 0.0
    for begun_s, at_s, value in zip(from_s, series.at_s, series.values, strict=True):
        if begun_s < ended_s - STORED_TO_S:
            continue
        if begun_s > ended_s + STORED_TO_S:
            rows.append((begun_s, begun_s - ended_s, math.nan))
            ended_s = begun_s
        rows.append((at_s, at_s - ended_s, value * (at_s - begun_s) / (at_s - ended_s)))
        ended_s = at_s
    at, over, values = (column(row[place] for row in rows) for place in range(3))
    return replace(series, at_s=at, over_s=over, bound_s=np.zeros(len(at)), values=values)


def _sum(series: Sequence[TelemetrySeries]) -> tuple[Floats, Floats, Floats]:
    """Return the sum of all series in the bins of the first one, NaN if one is unknown."""
    first = series[0]
    start_s, end_s = first.at_s - first.over_s, first.at_s
    total = np.zeros(len(end_s))
    for item in series:
        from_s, to_s = item.at_s - item.over_s, item.at_s
        if not len(to_s):
            total[:] = np.nan
            continue
        counts = item.values / _BITS * item.over_s
        edges = np.concatenate([from_s[:1], to_s])
        known = np.concatenate([[0.0], np.cumsum(np.nan_to_num(counts))])
        unknown = np.concatenate([[0.0], np.cumsum(np.isnan(counts) * item.over_s)])
        total += np.interp(end_s, edges, known) - np.interp(start_s, edges, known)
        missing_s = np.interp(end_s, edges, unknown) - np.interp(start_s, edges, unknown)
        outside = (start_s < edges[0] - 1e-6) | (end_s > edges[-1] + 1e-6)
        total[(missing_s > 1e-6) | outside] = np.nan
    return start_s, end_s, total
