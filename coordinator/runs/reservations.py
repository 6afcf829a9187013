"""Endpoints reserved for open runs: one create-only row a port, so of two launches one has it.

A launch plans around what is reserved, then takes its own ports row by row. Where another launch
was faster it gives back what it took and plans again. A row names its run and lapses by itself
after the run's last burst, so that a coordinator which dies on any line blocks nobody for longer.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from broadside.coordinator.core.live.status import due_at
from broadside.coordinator.core.plan.reserved import Reservation, Reserved
from broadside.coordinator.core.plan.spec import Pair, Plan
from broadside.exchange.ports import EntityExists, EntityNotFound, Table
from broadside.exchange.records.keys import RESERVATIONS
from broadside.exchange.records.shelf import Shelf


class EndpointTaken(Exception):
    """Another run reserved an endpoint meanwhile: plan again."""


class Reservations:
    """The ports that open runs have."""

    def __init__(self, table: Table, now: Callable[[], datetime]) -> None:
        self._shelf = Shelf(table, RESERVATIONS, Reservation)
        self._now = now

    async def in_force(self, *, but_of: str | None = None) -> Reserved:
        """What runs have now, those of the run ``but_of`` left out."""
        now = self._now()
        return Reserved.of(
            [
                each
                async for _, each in self._shelf.scan()
                if each.until_at > now and each.run_id != but_of
            ]
        )

    async def take(self, plan: Plan, pairs: Iterable[Pair] | None = None) -> None:
        """Reserve a plan's endpoints, or those of some ``pairs``, until the run must be over.

        Raises :class:`EndpointTaken`; then nothing more is reserved than before.
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
        for each in wanted:
            if not await self._take(each):
                await self._give_back(taken)
                raise EndpointTaken(f"{each.agent_id}:{each.port}")
            taken.append(each)

    async def release(self, run_id: str) -> None:
        """The run needs its endpoints no more; again is harmless."""
        await self._give_back(
            [each async for _, each in self._shelf.scan() if each.run_id == run_id]
        )

    async def _take(self, wanted: Reservation) -> bool:
        """Whether the port is this run's now."""
        key = _key(wanted)
        try:
            await self._shelf.create(key, wanted)
        except EntityExists:
            now = self._now()

            def over(found: Reservation) -> Reservation:
                mine = found.run_id == wanted.run_id or found.until_at <= now
                return wanted if mine else found

            try:
                return await self._shelf.change(key, over) == wanted
            except EntityNotFound:  # given back this moment
                return await self._take(wanted)
        return True

    async def _give_back(self, taken: Iterable[Reservation]) -> None:
        for each in taken:
            found = await self._shelf.read(_key(each))
            if found is not None and found.run_id == each.run_id:
                await self._shelf.delete(_key(each))


def _key(reservation: Reservation) -> str:
    return f"{reservation.agent_id}:{reservation.port}"
