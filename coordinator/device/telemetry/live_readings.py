"""Newest values of the telemetry sources, which are polled faster while guards are armed."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

import numpy as np

from broadside.coordinator.core.guards import ARMED_POLL_S, Guard, LiveValue
from broadside.coordinator.core.measure.telemetry import KINDS, Quantity
from broadside.coordinator.device.telemetry.polling import PolledSource
from broadside.coordinator.device.telemetry.source import TelemetryError, TelemetrySource
from broadside.exchange.outage_log import utc_now

log = logging.getLogger(__name__)

# Time between two queries of a source with history, at least.
ARCHIVE_POLL_S: Final = 5.0
# Age up to which an archived value is used.
ARCHIVE_SPAN_S: Final = 300.0
# Instances of a device with an older value than this, before the newest one, are left out.
_TOGETHER_S: Final = 2.0


class LiveReadings:
    """Newest values by quantity and device.

    Sources that are polled are read directly. Sources with history are queried, and their values
    are as old as the system makes them.
    """

    def __init__(self, sources: Sequence[TelemetrySource]) -> None:
        self._sources = sources
        # Values of sources with history, by source, quantity and instance.
        self._archived: dict[tuple[int, Quantity, str], tuple[float, float]] = {}

    def _of(self, quantities: Collection[str]) -> list[TelemetrySource]:
        return [source for source in self._sources if not source.quantities.isdisjoint(quantities)]

    async def poll_forever(self, quantities: Collection[str]) -> None:
        """Poll all sources of some quantities at the rate of armed guards, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._of(quantities):
                group.create_task(self._poll_source(source))

    async def poll_once(self, quantities: Collection[str]) -> None:
        """Poll all sources of some quantities once, or twice if a counter has no rate yet."""
        await asyncio.gather(
            *(self._read_first(source, quantities) for source in self._of(quantities))
        )

    async def _read_first(self, source: TelemetrySource, quantities: Collection[str]) -> None:
        for _ in range(2):
            await self._read(source)
            if all(
                any(True for _ in self._newest_of(source, quantity, time.time() - ARCHIVE_SPAN_S))
                for quantity in source.quantities
                if quantity in quantities
            ):
                return
            await asyncio.sleep(ARMED_POLL_S)

    async def _poll_source(self, source: TelemetrySource) -> None:
        loop = asyncio.get_running_loop()
        with source.armed() if isinstance(source, PolledSource) else contextlib.nullcontext():
            while True:
                began_s = loop.time()
                await self._read(source)
                await asyncio.sleep(max(0.05, began_s + _poll_s(source) - loop.time()))

    async def _read(self, source: TelemetrySource) -> None:
        try:
            if isinstance(source, PolledSource):
                await source.poll()
                return
            now = utc_now()
            telemetry = await source.query(now - timedelta(seconds=ARCHIVE_SPAN_S), now)
        except TelemetryError as error:
            log.warning("telemetry %s: %s", source.name, error, extra={"action": "telemetry"})
            return
        for series in telemetry.series:
            known = np.flatnonzero(~np.isnan(series.values))
            if len(known):
                at = int(known[-1])
                key = (id(source), series.quantity, series.instance)
                self._archived[key] = (float(series.at_s[at]), float(series.values[at]))

    def values_of(self, guard: Guard) -> list[LiveValue]:
        """Return the newest values of a guard, one per device. A probe guard has none here."""
        values = self._newest(Quantity(guard.quantity))
        return [value for value in values if guard.device in (None, value.source)]

    def _newest(self, quantity: Quantity) -> Iterator[LiveValue]:
        """Yield the newest value of each device that has one.

        Args:
            quantity: Quantity to read. The values of the parts of a device are aggregated by the
                rule in :data:`broadside.coordinator.core.measure.telemetry.KINDS`.
        """
        by_device: dict[str, list[tuple[float, float]]] = {}
        for source in self._of([quantity]):
            for _, at_s, value in self._newest_of(source, quantity, time.time() - ARCHIVE_SPAN_S):
                by_device.setdefault(source.entry.device, []).append((at_s, value))
        for device, parts in by_device.items():
            newest_s = max(at_s for at_s, _ in parts)
            values = [value for at_s, value in parts if at_s >= newest_s - _TOGETHER_S]
            yield LiveValue(newest_s, KINDS[quantity].across.of(values), device)

    def _newest_of(
        self, source: TelemetrySource, quantity: str, since_s: float
    ) -> Iterator[tuple[str, float, float]]:
        if isinstance(source, PolledSource):
            yield from source.newest(Quantity(quantity), since_s)
            return
        for (owner, stored, instance), (at_s, value) in self._archived.items():
            if owner == id(source) and stored == quantity and at_s >= since_s:
                yield instance, at_s, value

    @property
    def intervals_s(self) -> Mapping[str, float]:
        """Return the longest time until a new value is known, by quantity, in seconds."""
        intervals_s: dict[str, float] = {}
        for source in self._sources:
            for quantity in source.quantities:
                interval_s = _poll_s(source)
                if not isinstance(source, PolledSource):
                    interval_s += source.latency.settle_s
                intervals_s[quantity] = max(interval_s, intervals_s.get(quantity, 0.0))
        return intervals_s


def _poll_s(source: TelemetrySource) -> float:
    """Return the time between two reads while guards are armed, in seconds."""
    if isinstance(source, PolledSource):
        return min(ARMED_POLL_S, source.entry.poll_s)
    return max(ARCHIVE_POLL_S, source.latency.reread_s or 0.0)
