"""All telemetry sources of a coordinator, polled during runs and queried after each run."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetryIssue,
    merge_sources,
)
from broadside.coordinator.device.telemetry.polling import PolledSource
from broadside.coordinator.device.telemetry.run_span import RunSpan
from broadside.coordinator.device.telemetry.source import (
    TelemetryBusy,
    TelemetryError,
    TelemetrySource,
)
from broadside.exchange.background import restart_on_error

log = logging.getLogger(__name__)

# Time limit to query a source.
QUERY_MAX_S: Final = 60.0
# Minimum time to wait before another attempt.
AGAIN_S: Final = 5.0
TRIES_MAX_COUNT: Final = 3
# How long we are allowed to block the caller, because it also has to renew leases.
_WAIT_MAX_S: Final = 0.5


class TelemetryCollector:
    """Telemetry sources of a coordinator, queried together."""

    def __init__(self, sources: Sequence[TelemetrySource], now: Callable[[], datetime]) -> None:
        self._all = sources
        # A source without quantities has only a byte counter.
        self._sources = [source for source in sources if source.quantities]
        self._now = now
        self._tasks: dict[str, asyncio.Task[DeviceTelemetry]] = {}

    @property
    def quantities(self) -> Mapping[str, frozenset[Quantity]]:
        """Return the configured quantities by device, in the order of the file."""
        by_name: dict[str, frozenset[Quantity]] = {}
        for source in self._sources:
            device = source.entry.device
            by_name[device] = by_name.get(device, frozenset()) | source.quantities
        return by_name

    async def poll_forever(self) -> None:
        """Poll all sources without history until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._all:
                group.create_task(restart_on_error(source.poll_forever))

    async def collect(self, span: RunSpan) -> DeviceTelemetry | None:
        """Return the telemetry for a run when it is complete, or ``None`` to try again later.

        This method returns within half a second, because background tasks query the sources. If a
        source cannot be read, the result has an issue about it.
        """
        settle_s = max((source.latency.settle_s for source in self._sources), default=0.0)
        if self._now() < span.ended_at + timedelta(seconds=settle_s):
            return None
        task = self._tasks.get(span.run_id)
        if task is None:
            task = asyncio.create_task(self.query(span.from_at, min(span.before_at, self._now())))
            self._tasks[span.run_id] = task
        done, _ = await asyncio.wait([task], timeout=_WAIT_MAX_S)
        if not done:
            return None
        del self._tasks[span.run_id]
        return task.result()

    async def query(self, from_at: datetime, before_at: datetime) -> DeviceTelemetry:
        """Return the telemetry in this time span as it is available now.

        Args:
            from_at: Start time.
            before_at: End time.
        """
        parts = await asyncio.gather(
            *(self._query(source, from_at, before_at) for source in self._sources)
        )
        return merge_sources(parts, self._now())

    async def polled_readings(self, from_at: datetime, before_at: datetime) -> DeviceTelemetry:
        """Return the telemetry of polled sources, which is lost when this process ends.

        Args:
            from_at: Start time.
            before_at: End time.
        """
        polled = [item for item in self._sources if isinstance(item, PolledSource)]
        parts = [await source.query(from_at, before_at) for source in polled]
        return merge_sources(parts, self._now())

    async def close(self) -> None:
        """Cancel queries in progress."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _query(
        self, source: TelemetrySource, from_at: datetime, before_at: datetime
    ) -> DeviceTelemetry:
        reason = ""
        for attempt in range(TRIES_MAX_COUNT):
            try:
                async with asyncio.timeout(QUERY_MAX_S):
                    return await source.query(from_at, before_at)
            except TimeoutError:
                reason = f"no answer within {QUERY_MAX_S:g} s"
            except TelemetryError as error:
                reason = str(error)
                pause_s = error.retry_after_s if isinstance(error, TelemetryBusy) else 0.0
                if attempt + 1 < TRIES_MAX_COUNT:
                    await asyncio.sleep(max(pause_s, AGAIN_S))
            # If there is an error in a source, we should not stop the service.
            except Exception as error:
                log.exception("telemetry %s", source.name, extra={"action": "telemetry"})
                reason = f"its answer cannot be used: {type(error).__name__}"
                break
        log.warning("telemetry %s: %s", source.name, reason, extra={"action": "telemetry"})
        device = source.entry.device
        issue = TelemetryIssue(
            kind=IssueKind.UNREADABLE,
            device=device,
            source=source.name,
            from_s=from_at.timestamp(),
            to_s=before_at.timestamp(),
            text=reason,
        )
        return DeviceTelemetry(devices=(device,), issues=(issue,), read_at=self._now())
