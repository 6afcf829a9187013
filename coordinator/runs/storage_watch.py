"""Detection of storage that was removed or replaced, or that rejects writes."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from broadside.exchange.fabric import Fabric
from broadside.exchange.fabric.identity_rights import PROBE, try_send
from broadside.exchange.ports import Entity, ExchangeError, StorageGone, Table

# Time between looks, the same as the heartbeat interval.
LOOK_S: Final = 2.0
# How long to use a probe result, in seconds. We need this because any client is allowed to request
# readiness.
PROBE_S: Final = 5.0
# The same for cloud services, where each request has a price.
PROBE_ELSEWHERE_S: Final = 60.0
# Seconds for which a failed write of this process counts, because a probe writes less.
REFUSED_S: Final = 15.0
# Size of a probe row, as large as a chunk of seconds.
PROBE_BYTES: Final = 60_000

_PLACES: Final = {
    **{name: f"table '{name}'" for name in ("private", "control", "results")},
    "queue": "queue",
}

log = logging.getLogger(__name__)


async def storage_gone(fabric: Fabric) -> StorageGone:
    """Wait until a file of the embedded fabric is removed or replaced, and return the error.

    With another fabric, this never returns.
    """
    while True:
        await asyncio.sleep(LOOK_S)
        if not fabric.in_files:
            continue
        try:
            for table in (fabric.private, fabric.control, fabric.results):
                await table.get("doctor", "storage")
            await fabric.queue.ping()
        except StorageGone as error:
            return error
        # The component that uses the storage will report this outage.
        except ExchangeError:
            continue


class WriteProbe:
    """Probe of queue and tables for writes. A full or read-only disk still answers reads."""

    def __init__(self, fabric: Fabric, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._fabric = fabric
        self._clock_s = clock_s
        self._turn = asyncio.Lock()
        self._tried_s: float | None = None
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """Return the storage that rejects writes and the reason, or None if all accept writes.

        The text contains no file names.
        """
        for name, why in self._fabric.refusals.within(REFUSED_S).items():
            return _problem(_PLACES.get(name, name), why)
        async with self._turn:
            max_age_s = PROBE_S if self._fabric.in_files else PROBE_ELSEWHERE_S
            if self._tried_s is None or self._clock_s() - self._tried_s > max_age_s:
                self._problem = await self._try()
                self._tried_s = self._clock_s()
            return self._problem

    async def _try(self) -> str | None:
        for name, work in self._trials():
            try:
                await work()
            except ExchangeError as error:
                log.warning("%s: %s", name, error, extra={"action": "not_writable"})
                return _problem(name, str(error))
        return None

    def _trials(self) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
        fabric = self._fabric
        tables = {"private": fabric.private, "control": fabric.control, "results": fabric.results}
        trials: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            (_PLACES[name], partial(_write, table)) for name, table in tables.items()
        ]
        if fabric.in_files:
            trials.append((_PLACES["queue"], lambda: try_send(fabric.queue)))
        return trials


async def _write(table: Table) -> None:
    """Write a row as large as a chunk of seconds, and remove it."""
    key = f"{os.getpid()}.{secrets.token_hex(4)}"
    # We need to use random bytes, because a file system might not use any space to store zeros.
    blob = os.urandom(PROBE_BYTES)
    await table.insert(Entity(partition_key=PROBE, row_key=key, properties={"blob": blob}))
    await table.delete(PROBE, key)


def _problem(place: str, text: str) -> str:
    """Return the reason for a failure, but no file or account names, which should not be public."""
    if "disk full" in text:
        why = "the disk is full"
    elif "cannot be opened for writing" in text or "read-only" in text or "readonly" in text:
        why = "it is read-only"
    else:
        why = "its storage refuses writes"
    return f"{place} cannot be written: {why}"
