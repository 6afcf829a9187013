"""Notices that what holds the rows was removed or replaced, or takes no writes."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from broadside.exchange.fabric import Fabric
from broadside.exchange.identity_rights import PROBE, try_send
from broadside.exchange.ports import Entity, ExchangeError, StorageGone, Table

LOOK_S: Final = 2.0  # s between looks, as long as a heartbeat
PROBE_S: Final = 5.0  # s for which the answer of a trial is kept: anybody may ask for readiness
PROBE_ELSEWHERE_S: Final = 60.0  # the same of a service, where each request has its price
REFUSED_S: Final = 15.0  # s for which a refused write of this process counts: a trial is smaller
PROBE_BYTES: Final = 60_000  # as large as a chunk of seconds

_PLACES: Final = {
    **{name: f"table '{name}'" for name in ("private", "control", "results")},
    "queue": "queue",
}

log = logging.getLogger(__name__)


async def storage_gone(fabric: Fabric) -> StorageGone:
    """Returns once a file of the embedded fabric is not the one that was opened; else never."""
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
        except ExchangeError:  # an outage: whoever works with it says so
            continue


class WriteProbe:
    """Whether queue and tables take writes: a full disk and a read-only one still answer reads."""

    def __init__(self, fabric: Fabric, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._fabric = fabric
        self._clock_s = clock_s
        self._turn = asyncio.Lock()
        self._tried_s: float | None = None
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """Return what takes no writes and why, without names of files; None where all do."""
        for name, why in self._fabric.refusals.within(REFUSED_S).items():
            return _problem(_PLACES.get(name, name), why)
        async with self._turn:
            keep_s = PROBE_S if self._fabric.in_files else PROBE_ELSEWHERE_S
            if self._tried_s is None or self._clock_s() - self._tried_s > keep_s:
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
    blob = os.urandom(PROBE_BYTES)  # of zeros a file system may store nothing
    await table.insert(Entity(partition_key=PROBE, row_key=key, properties={"blob": blob}))
    await table.delete(PROBE, key)


def _problem(place: str, text: str) -> str:
    """The kind of a failure, which anybody may be told; its text names files and accounts."""
    if "disk full" in text:
        why = "the disk is full"
    elif "cannot be opened for writing" in text or "read-only" in text or "readonly" in text:
        why = "it is read-only"
    else:
        why = "its storage refuses writes"
    return f"{place} cannot be written: {why}"
