"""Failover to spare servers, for bursts with jobs that are still hidden.

A move is a create-only row, to be written before any message is sent. If there are several
coordinators, only one can decide a move. The new message is queued before the old one is removed.
If a coordinator fails between the two steps, both messages exist, but only one can be claimed. No
job will be lost, and no job can run twice. The burst row lists the moves that are in the messages,
so that a later look can send those that are missing.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.live.status import VISIBLE_S
from broadside.coordinator.core.plan.planner import PRESENCE_STALE_S
from broadside.coordinator.core.plan.server_failover import Failover, choose_failovers, free_servers
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.runs.dispatch import Dispatch
from broadside.coordinator.runs.reservations import EndpointTaken, Reservations
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.records import Records

# Time before the jobs for a burst become visible in which the servers need to be checked.
LOOK_BEFORE_S: Final = 30.0
LOOK_EVERY_S: Final = 3.0
# Length of a table outage, in seconds, that can make live agents look silent.
AWAY_S: Final = 5.0
# Seconds after which any coordinator may send the messages of an unfinished move.
RESUME_S: Final = 5.0
# Seconds before the jobs become visible in which no move is made.
MARGIN_S: Final = 3.0

log = logging.getLogger(__name__)


class FailoverController:
    """Failover of the servers of open runs."""

    def __init__(
        self,
        records: Records,
        dispatch: Dispatch,
        reservations: Reservations,
        troubles: OutageLog,
        now: Callable[[], datetime],
    ) -> None:
        self._records = records
        self._dispatch = dispatch
        self._reservations = reservations
        self._troubles = troubles
        self._now = now
        self._looked_at: dict[str, datetime] = {}

    async def replace_silent(self, plan: Plan) -> Sequence[Failover]:
        """Make the moves that are needed before the next burst becomes visible.

        Unfinished moves of earlier attempts, also of other coordinators, are sent too.

        Returns:
            Moves that were made now.
        """
        now = self._now()
        looked_at = self._looked_at.get(plan.run_id)
        if looked_at is not None and now - looked_at < timedelta(seconds=LOOK_EVERY_S):
            return []
        self._looked_at[plan.run_id] = now
        moves = await self._records.runs.read_moves(plan.run_id, Failover)
        made = await self._choose(plan, moves)
        resumed = [move for move in moves if now - move.moved_at >= timedelta(seconds=RESUME_S)]
        if made or resumed:
            await self._dispatch.move(plan, [*resumed, *made])
        return made

    async def _choose(self, plan: Plan, moves: Sequence[Failover]) -> list[Failover]:
        """Decide and store the moves that are needed now."""
        burst = self._next_hidden(plan)
        if burst is None or self._is_just_back():
            return []
        made = []
        presences = await self._records.fleet.read_presences()
        reserved = await self._reservations.in_force(but_of=plan.run_id)
        now = self._now()
        servers = free_servers(presences, now, reserved)
        for move in choose_failovers(plan, moves, servers, burst.index, now):
            pair = plan.pairs[move.pair_index].model_copy(update={"endpoint": move.endpoint})
            try:
                await self._reservations.take(plan, [pair])
            # A concurrent launch took the endpoint. The next look will choose another one.
            except EndpointTaken:
                continue
            row = await self._records.runs.save_move(
                plan.run_id, move.from_burst_index, move.pair_index, move
            )
            if row:
                made.append(move)
                log.warning("%s", move, extra={"action": "move", "run_id": plan.run_id})
        return made

    def forget(self, run_id: str) -> None:
        """Drop the state for a run that is over."""
        self._looked_at.pop(run_id, None)

    def _is_just_back(self) -> bool:
        """Return True if a recent table outage may have made live agents look silent."""
        now = self._now()
        return any(
            spell.kind is OutageKind.TABLE_AWAY
            and (spell.to_at or now) - spell.from_at >= timedelta(seconds=AWAY_S)
            for spell in self._troubles.between(now - timedelta(seconds=PRESENCE_STALE_S), now)
        )

    def _next_hidden(self, plan: Plan) -> Burst | None:
        """Return the first burst with hidden jobs if they become visible soon, else None."""
        now = self._now()
        hidden_until = timedelta(seconds=VISIBLE_S + MARGIN_S)
        for burst in plan.bursts:
            if burst.planned_start_at - hidden_until > now:
                soon = burst.planned_start_at - timedelta(seconds=VISIBLE_S + LOOK_BEFORE_S) <= now
                return burst if soon else None
        return None
