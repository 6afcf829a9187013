"""Reservations of endpoints for open runs, one create-only row per port.

A launch plans around the reserved ports and then takes the ports that it needs, row by row. If
another launch was faster, it will release these ports and plan again. A row contains the run id and
will expire after the last burst, so that a failed coordinator cannot block a port any longer.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from broadside.coordinator.core.plan.reserved import Reservation, Reserved
from broadside.coordinator.core.run_spec import Pair, Plan, due_at
from broadside.exchange.ports import EntityExists, EntityNotFound, Table
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import RESERVATIONS


class EndpointTaken(Exception):
    """Another run has just reserved an endpoint, so the run needs to be planned again."""


class Reservations:
    """Ports of open runs."""

    def __init__(self, table: Table, now: Callable[[], datetime]) -> None:
        self._shelf = Collection(table, RESERVATIONS, Reservation)
        self._now = now

    async def in_force(self, *, but_of: str | None = None) -> Reserved:
        """Return the current reservations, except for those of the run ``but_of``."""
        now = self._now()
        return Reserved.of(
            [
                reservation
                async for _, reservation in self._shelf.scan()
                if reservation.until_at > now and reservation.run_id != but_of
            ]
        )

    async def take(self, plan: Plan, pairs: Iterable[Pair] | None = None) -> None:
        """Reserve endpoints until the run has ended.

        Args:
            plan: The plan to use.
            pairs: Pairs to reserve endpoints for. None means all pairs in the plan.

        Raises:
            EndpointTaken: Another run has one of the ports. The ports of this call are released
                again.
        """
        wanted = [
            Reservation(
                run_id=plan.run_id,
                agent_id=pair.endpoint.agent_id,
                port=port,
                pair_index=pair.index,
                until_at=due_at(plan.bursts[-1]),
            )
            for pair in (plan.pairs if pairs is None else pairs)
            for port in pair.endpoint.ports
        ]
        taken: list[Reservation] = []
        for reservation in wanted:
            if not await self._take(reservation):
                await self._give_back(taken)
                raise EndpointTaken(f"{reservation.agent_id}:{reservation.port}")
            taken.append(reservation)

    async def release(self, run_id: str) -> None:
        """Release all endpoints of a run. A second call has no effect."""
        await self._give_back(
            [taken async for _, taken in self._shelf.scan() if taken.run_id == run_id]
        )

    async def _take(self, wanted: Reservation) -> bool:
        """Reserve a port, and return True if this run has it now."""
        key = _key(wanted)
        try:
            await self._shelf.create(key, wanted)
        except EntityExists:
            now = self._now()

            def over(stored: Reservation) -> Reservation:
                mine = stored.run_id == wanted.run_id or stored.until_at <= now
                return wanted if mine else stored

            try:
                return await self._shelf.change(key, over) == wanted
            # It was released at this moment.
            except EntityNotFound:
                return await self._take(wanted)
        return True

    async def _give_back(self, taken: Iterable[Reservation]) -> None:
        for reservation in taken:
            stored = await self._shelf.read(_key(reservation))
            if stored is not None and stored.run_id == reservation.run_id:
                await self._shelf.delete(_key(reservation))


def _key(reservation: Reservation) -> str:
    return f"{reservation.agent_id}:{reservation.port}"
