"""Spool for the raw output of engines, which is written to disk first and uploaded later.

The output is always written to disk, so that no report has to wait for a store that is slow or not
available. It shares its size limit with the rows, which are more important. See
:class:`~broadside.agent.spool.Spool`.
"""

import asyncio
import logging

from broadside.agent.spool import AWAY, RETRY_FIRST_S, RETRY_MAX_S, Spool
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import ExchangeError, ExchangeUnavailable, RawName, RawStore

log = logging.getLogger(__name__)


class SpooledRaw:
    """A :class:`~broadside.exchange.ports.RawStore` with a spool on disk.

    :meth:`save` does not wait for the store and does not fail.
    """

    def __init__(self, raw: RawStore, spool: Spool, troubles: OutageLog | None = None) -> None:
        self._raw = raw
        self._spool = spool
        self._troubles = troubles or OutageLog()
        self._kept = asyncio.Event()
        if spool.oldest_raw() is not None:
            self._kept.set()

    async def save(self, name: RawName, text: bytes) -> None:
        """Write output to the spool. If it cannot be written, the loss is logged and counted.

        Args:
            name: Name of the output.
            text: Output to save.
        """
        try:
            stored = await asyncio.to_thread(self._spool.put_raw, name, text)
            problem = "the spool is full; raise BROADSIDE_AGENT_SPOOL_MAX_BYTES"
        except OSError as error:
            stored, problem = False, f"the spool cannot be written: {error}"
        if not stored:
            self._lose(name, problem)
        self._kept.set()

    def _lose(self, name: RawName, why: str) -> None:
        self._troubles.happened(OutageKind.LOST)
        log.error("LOST %s: %s", name, why, extra={"action": "spool_lost"})

    async def drain(self) -> None:
        """Upload all output in the spool, using the oldest one first.

        Raises:
            ExchangeUnavailable: The store is not available.
        """
        while (oldest := self._spool.oldest_raw()) is not None:
            name, path = oldest
            try:
                text = await asyncio.to_thread(self._spool.read_raw, path)
                await self._raw.save(name, text)
            except AWAY as error:
                raise ExchangeUnavailable(str(error)) from error
            except (ExchangeError, ValueError, OSError) as error:
                if self._spool.quarantine_raw(name):
                    self._lose(name, str(error))
            else:
                self._spool.drop_raw(name)

    async def drain_forever(self) -> None:
        """Upload new output when it is added, with longer pauses while the store is away."""
        while True:
            await self._kept.wait()
            self._kept.clear()
            pause_s = RETRY_FIRST_S
            while self._spool.oldest_raw() is not None:
                try:
                    await self.drain()
                except ExchangeUnavailable as error:
                    log.warning("raw output waits: %s", error, extra={"action": "spool"})
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, RETRY_MAX_S)

    # Methods of the store --------------------------------------------------------------------

    async def read(self, name: RawName) -> bytes | None:
        return await self._raw.read(name)

    async def delete_folder(self, folder: str) -> int:
        return await self._raw.delete_folder(folder)

    async def close(self) -> None:
        await self._raw.close()
