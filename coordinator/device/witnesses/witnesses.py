"""All telemetry sources of a coordinator, polled during runs and read after each run."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.measure.testimony import (
    Quantity,
    Remark,
    RemarkKind,
    Witnessed,
    together,
)
from broadside.coordinator.device.ledgers.settle import Span
from broadside.coordinator.device.ledgers.source import LedgerBusy, LedgerError
from broadside.coordinator.device.witnesses.polled import PolledWitness
from broadside.coordinator.device.witnesses.witness_file import WitnessSource
from broadside.exchange.background import keep_going

log = logging.getLogger(__name__)

# Time limit to read a source.
READ_MAX_S: Final = 60.0
# Minimum time to wait before another attempt.
AGAIN_S: Final = 5.0
TRIES_MAX_COUNT: Final = 3
# Maximum time to block the caller, because it also has to renew leases.
_GLANCE_S: Final = 0.5


class Witnesses:
    """Telemetry sources of a coordinator, read together."""

    def __init__(self, sources: Sequence[WitnessSource], now: Callable[[], datetime]) -> None:
        self._sources = sources
        self._now = now
        self._hearings: dict[str, asyncio.Task[Witnessed]] = {}

    @property
    def quantities(self) -> Mapping[str, frozenset[Quantity]]:
        """Return the requested quantities by device, in the order of the file."""
        found: dict[str, frozenset[Quantity]] = {}
        for source in self._sources:
            for device in source.devices:
                found[device] = found.get(device, frozenset()) | source.quantities
        return found

    async def watch(self) -> None:
        """Poll all sources without history until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(keep_going(source.watch))

    async def hear(self, span: Span) -> Witnessed | None:
        """Return the telemetry for a run when it is complete, or ``None`` to try again later.

        This method returns within half a second, because background tasks read the sources. If a
        source cannot be read, the result has a remark about it.
        """
        settled_at = span.ended_at + timedelta(
            seconds=max(source.settle_s for source in self._sources)
        )
        if self._now() < settled_at:
            return None
        task = self._hearings.get(span.run_id)
        if task is None:
            task = asyncio.create_task(self.read(span.from_at, min(span.before_at, self._now())))
            self._hearings[span.run_id] = task
        done, _ = await asyncio.wait([task], timeout=_GLANCE_S)
        if not done:
            return None
        del self._hearings[span.run_id]
        return task.result()

    async def read(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """Return the telemetry in this time span as it is available now.

        Args:
            from_at: Start time.
            before_at: End time.
        """
        parts = await asyncio.gather(
            *(self._read(source, from_at, before_at) for source in self._sources)
        )
        return together(parts, self._now())

    async def so_far(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """Return the telemetry of polled sources, which is lost when this process ends.

        Args:
            from_at: Start time.
            before_at: End time.
        """
        asked = [each for each in self._sources if isinstance(each, PolledWitness)]
        parts = [await each.read(from_at, before_at) for each in asked]
        return together(parts, self._now())

    async def close(self) -> None:
        """Cancel reads in progress."""
        hearings, self._hearings = self._hearings, {}
        for task in hearings.values():
            task.cancel()
        await asyncio.gather(*hearings.values(), return_exceptions=True)

    async def _read(
        self, source: WitnessSource, from_at: datetime, before_at: datetime
    ) -> Witnessed:
        why = ""
        for attempt in range(TRIES_MAX_COUNT):
            try:
                async with asyncio.timeout(READ_MAX_S):
                    return await source.read(from_at, before_at)
            except TimeoutError:
                why = f"no answer within {READ_MAX_S:g} s"
            except LedgerError as error:
                why = str(error)
                pause_s = error.retry_after_s if isinstance(error, LedgerBusy) else 0.0
                if attempt + 1 < TRIES_MAX_COUNT:
                    await asyncio.sleep(max(pause_s, AGAIN_S))
            # An error in a source must not stop the service for all.
            except Exception as error:
                log.exception("witness %s", source.name, extra={"action": "witness"})
                why = f"its answer makes no sense: {type(error).__name__}"
                break
        log.warning("witness %s: %s", source.name, why, extra={"action": "witness"})
        return Witnessed(
            devices=source.devices,
            remarks=tuple(
                Remark(
                    kind=RemarkKind.UNREAD,
                    device=device,
                    source=source.name,
                    from_s=from_at.timestamp(),
                    to_s=before_at.timestamp(),
                    said=why,
                )
                for device in source.devices
            ),
            read_at=self._now(),
        )
