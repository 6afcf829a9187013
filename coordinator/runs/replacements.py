"""Gives pairs whose server has gone a spare one, for bursts that nobody can have received yet.

A move is one create-only row, written before anything is sent, so of several coordinators one
decides. The new message goes onto the queue before the old one is taken off: a coordinator that
dies between the two leaves both, of which one is claimed; no job is lost, and none runs twice. The
burst's row says which moves its messages carry, so the next look sends what one left unsent.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.live.status import VISIBLE_S
from broadside.coordinator.core.plan.moves import Move, choose_moves
from broadside.coordinator.core.plan.planner import PRESENCE_STALE_S
from broadside.coordinator.core.plan.spec import Burst, Plan
from broadside.coordinator.runs.dispatch import Dispatch
from broadside.coordinator.runs.reservations import EndpointTaken, Reservations
from broadside.exchange.messages import TroubleKind
from broadside.exchange.records import Records
from broadside.exchange.troubles import TroubleLog

LOOK_BEFORE_S: Final = 30.0  # s before a burst's jobs show within which its servers are looked at
LOOK_EVERY_S: Final = 3.0
AWAY_S: Final = 5.0  # s for which the table must have been away to make agents look silent
RESUME_S: Final = 5.0  # s after which a move whose messages are not sent is anybody's to send
MARGIN_S: Final = 3.0  # s before they show after which nothing is moved any more

log = logging.getLogger(__name__)


class Replacements:
    """Looks after the servers of runs that go on."""

    def __init__(
        self,
        records: Records,
        dispatch: Dispatch,
        reservations: Reservations,
        troubles: TroubleLog,
        now: Callable[[], datetime],
    ) -> None:
        self._records = records
        self._dispatch = dispatch
        self._reservations = reservations
        self._troubles = troubles
        self._now = now
        self._looked_at: dict[str, datetime] = {}

    async def look(self, plan: Plan) -> Sequence[Move]:
        """Move what must be moved before the next burst shows; what was moved.

        Moves whose messages an earlier attempt left unsent, here or elsewhere, are sent too.
        """
        now = self._now()
        looked_at = self._looked_at.get(plan.run_id)
        if looked_at is not None and now - looked_at < timedelta(seconds=LOOK_EVERY_S):
            return []
        self._looked_at[plan.run_id] = now
        moves = await self._records.runs.read_moves(plan.run_id, Move)
        made = await self._choose(plan, moves)
        resumed = [move for move in moves if now - move.moved_at >= timedelta(seconds=RESUME_S)]
        if made or resumed:
            await self._dispatch.move(plan, [*resumed, *made])
        return made

    async def _choose(self, plan: Plan, moves: Sequence[Move]) -> list[Move]:
        """Decide what is moved now; of several coordinators one does for each pair."""
        burst = self._next_hidden(plan)
        if burst is None or self._is_just_back():
            return []
        made = []
        presences = await self._records.fleet.read_presences()
        reserved = await self._reservations.in_force(but_of=plan.run_id)
        for move in choose_moves(
            plan, moves, presences, burst.index, self._now(), reserved=reserved
        ):
            pair = plan.pairs[move.pair_index].model_copy(update={"endpoint": move.endpoint})
            try:
                await self._reservations.take(plan, [pair])
            except EndpointTaken:  # by a launch of this moment: at the next look another one
                continue
            row = await self._records.runs.save_move(
                plan.run_id, move.from_burst_index, move.pair_index, move
            )
            if row:
                made.append(move)
                log.warning("%s", move, extra={"action": "move", "run_id": plan.run_id})
        return made

    def forget(self, run_id: str) -> None:
        """The run is over."""
        self._looked_at.pop(run_id, None)

    def _is_just_back(self) -> bool:
        """Whether the table was away, and agents may not have said since that they are there."""
        now = self._now()
        return any(
            spell.kind is TroubleKind.TABLE_AWAY
            and (spell.to_at or now) - spell.from_at >= timedelta(seconds=AWAY_S)
            for spell in self._troubles.between(now - timedelta(seconds=PRESENCE_STALE_S), now)
        )

    def _next_hidden(self, plan: Plan) -> Burst | None:
        """The first burst whose jobs are still hidden, when they show soon."""
        now = self._now()
        hidden_until = timedelta(seconds=VISIBLE_S + MARGIN_S)
        for burst in plan.bursts:
            if burst.planned_start_at - hidden_until > now:
                soon = burst.planned_start_at - timedelta(seconds=VISIBLE_S + LOOK_BEFORE_S) <= now
                return burst if soon else None
        return None
