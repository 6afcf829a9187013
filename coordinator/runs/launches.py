"""Idempotent launches, with a key that selects the run id.

The key row is created before the run is planned. When several requests use the same key, only one
can select the id, and the others will read it. The row contains a digest of the request, so that
the same key with a different request can be rejected. If a launch is rejected, the key is released.
If a launch is interrupted, the row stays, and a retry will use the same id.
"""

import asyncio
import contextlib
import hashlib
import logging
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.plan.planner import Infeasible
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.refusals import KeyReused, LaunchUnderWay, UnknownRun
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.retention import Pruned, PruneRequest, prune
from broadside.coordinator.runs.run_ids import new_run_id
from broadside.exchange.messages import Message, RunId, UtcDatetime
from broadside.exchange.ports import EntityExists, Table
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import LAUNCHES

log = logging.getLogger(__name__)

KEY_MAX_CHARS: Final = 255
# Time to wait for a run that another request is storing.
_APPEARS_S: Final = 10.0
_LOOK_S: Final = 0.1
# An attempt that stored no run in this time has failed.
_DIED_AFTER: Final = timedelta(seconds=60)


class Launched(Message):
    """Stored decision for one key."""

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
    """Launch a run, unless an earlier request with this key did.

    Args:
        coordinator: The coordinator to use.
        spec: The run to launch.
        by: User who launches it.
        key: The idempotency key.
        caller: Owner of the key. Keys of different callers are independent.
        request: Body of the request, which must be equal for an equal key.
        now: The current time to use.

    Returns:
        Run id, launched now or earlier.

    Raises:
        KeyReused: The key was used with another request.
        LaunchUnderWay: Another request with this key is storing the run.
        Infeasible, OverBudget: As in
            :meth:`~broadside.coordinator.runs.coordinator.Coordinator.launch`.
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
    # Another request may have released the key because it was rejected.
    with contextlib.suppress(EntityExists):
        await shelf.create(row, decided)
    return decided.run_id


async def _appears(
    coordinator: Coordinator,
    shelf: Collection[Launched],
    row: str,
    decided: Launched,
    now: datetime,
) -> None:
    """Wait for the run that another request is storing under the same id.

    If that request failed before it stored the whole run, this id cannot be used again. The key
    will then get a new id for the next attempt.
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
    """Remove old runs and their idempotency keys, or only list the runs in a dry run.

    Args:
        coordinator: The coordinator to use.
        request: Age of the runs, and whether it is a dry run.
    """
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


def _shelf(table: Table) -> Collection[Launched]:
    return Collection(table, LAUNCHES, Launched)
