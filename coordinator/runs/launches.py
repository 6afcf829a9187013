"""Launches that may be asked for twice and happen once: a key decides the run's id.

The key's row is created before anything is planned, so of many requests with one key one decides
the id, and every other one finds it. It is kept with a digest of what was asked: the same key with
another request is a mistake. A launch that was refused gives its key back; one that died leaves the
row, and is tried again under the same id.
"""

import asyncio
import contextlib
import hashlib
import logging
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.plan.planner import Infeasible
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.refusals import KeyReused, LaunchUnderWay, UnknownRun
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.retention import Pruned, PruneRequest, prune
from broadside.coordinator.runs.run_ids import new_run_id
from broadside.exchange.messages import Message, RunId, UtcDatetime
from broadside.exchange.ports import EntityExists, Table
from broadside.exchange.records.keys import LAUNCHES
from broadside.exchange.records.shelf import Shelf

log = logging.getLogger(__name__)

KEY_MAX_CHARS: Final = 255
_APPEARS_S: Final = 10.0  # s within which a run that another request is storing shows
_LOOK_S: Final = 0.1
_DIED_AFTER: Final = timedelta(seconds=60)  # an attempt so old that stored no run is dead


class Launched(Message):
    """What one key decided."""

    run_id: RunId
    request_sha256: str
    decided_at: UtcDatetime


async def launch_once(
    coordinator: Coordinator,
    spec: RunSpec,
    *,
    by: str,
    key: str,
    caller: str,
    request: bytes,
    now: datetime,
) -> str:
    """Launch, unless a request with this key did; the run's id either way.

    ``request`` is what has to be equal, ``caller`` whose key it is: two callers' keys never meet.
    Raises what :meth:`~broadside.coordinator.runs.coordinator.Coordinator.launch` raises,
    :class:`KeyReused`, :class:`LaunchUnderWay`.
    """
    shelf = _shelf(coordinator.fabric.private)
    row = hashlib.sha256(f"{caller}\0{key}".encode()).hexdigest()
    mine = Launched(
        run_id=new_run_id(spec.scenario, now),
        request_sha256=hashlib.sha256(request).hexdigest(),
        decided_at=now,
    )
    decided = mine
    try:
        await shelf.create(row, mine)
    except EntityExists:
        decided = await shelf.read(row) or mine
        if decided.request_sha256 != mine.request_sha256:
            raise KeyReused(
                f"Idempotency-Key: it launched {decided.run_id} with another request; "
                "take a new key for a new run"
            ) from None
        if await _there(coordinator, decided.run_id):
            return decided.run_id
    try:
        await coordinator.launch(spec, by=by, run_id=decided.run_id)
    except Infeasible:
        await shelf.delete(row)
        raise
    except EntityExists:
        await _appears(coordinator, shelf, row, decided, now)
    with contextlib.suppress(EntityExists):  # another request with it may have been refused
        await shelf.create(row, decided)
    return decided.run_id


async def _appears(
    coordinator: Coordinator, shelf: Shelf[Launched], row: str, decided: Launched, now: datetime
) -> None:
    """Wait for the run that another request is storing under the same id.

    When that one died between its first row and its last, its id stays taken: the key is given a
    new one for the next attempt.
    """
    for _ in range(round(_APPEARS_S / _LOOK_S)):
        if await _there(coordinator, decided.run_id):
            return
        await asyncio.sleep(_LOOK_S)
    if now - decided.decided_at > _DIED_AFTER:
        scenario = decided.run_id.split("-", 2)[-1].rpartition("-")[0]
        fresh = decided.model_copy(update={"run_id": new_run_id(scenario, now), "decided_at": now})
        await shelf.change(row, lambda found: fresh if found == decided else found)
    raise LaunchUnderWay(
        f"Idempotency-Key: a request with it is storing {decided.run_id}; ask again in a minute"
    )


async def _there(coordinator: Coordinator, run_id: str) -> bool:
    try:
        await coordinator.stored.read_plan(run_id)
    except UnknownRun:
        return False
    return True


async def prune_runs(coordinator: Coordinator, request: PruneRequest) -> Pruned:
    """Forget old runs and the keys they were launched by, or only say which runs would go."""
    pruned = await prune(coordinator.fabric.records, request, coordinator.now())
    if not pruned.dry_run:
        for run in pruned.runs:
            coordinator.stored.forget(run.run_id)
        log.info("%d runs pruned", len(pruned.runs), extra={"action": "prune"})
        await _forget_launches(coordinator.fabric.private, pruned.before_at)
    return pruned


async def _forget_launches(table: Table, before_at: datetime) -> None:
    """Remove keys that were decided before ``before_at``."""
    shelf = _shelf(table)
    for row in [row async for row, told in shelf.scan() if told.decided_at < before_at]:
        await shelf.delete(row)


def _shelf(table: Table) -> Shelf[Launched]:
    return Shelf(table, LAUNCHES, Launched)
