"""Reservations in the fleet, and the fleet that is left for other runs. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broadside.exchange.messages import Message, Presence, RunId, UtcDatetime


class Reservation(Message):
    """Reservation of one server port for all bursts of a run.

    Attributes:
        run_id: The run that uses the port.
        agent_id: The server agent.
        port: The port.
        pair_index: Pair index. A pair with several processes has several ports.
        until_at: Time when the reservation expires, even if it is not released.
    """

    run_id: RunId
    agent_id: str
    port: int
    pair_index: int
    until_at: UtcDatetime


def keep_ports(server: Presence, is_kept: Callable[[int], bool]) -> Presence:
    """Return a server that only offers some ports, for every engine.

    Args:
        server: The server agent.
        is_kept: Function to get True for a port to offer.
    """

    def kept(ports: Sequence[int]) -> tuple[int, ...]:
        return tuple(filter(is_kept, ports))

    engines = tuple(
        engine.model_copy(update={"ports": kept(engine.ports)}) for engine in server.engines
    )
    return server.model_copy(update={"ports": kept(server.ports), "engines": engines})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Current reservations, so that no server test is counted for two runs.

    Attributes:
        ports: Run ids by agent id and port.
        clients_count: Number of clients to leave free, one for each reserved pair. Any client can
            take any job.
    """

    ports: Mapping[tuple[str, int], str] = field(default_factory=dict)
    clients_count: int = 0

    @classmethod
    def of(cls, reservations: Iterable[Reservation]) -> "Reserved":
        """Build this from single reservations.

        The caller should first remove the reservations for the run that is planned.
        """
        held = list(reservations)
        return cls(
            ports={(each.agent_id, each.port): each.run_id for each in held},
            clients_count=len({(each.run_id, each.pair_index) for each in held}),
        )

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.ports.values())))

    def without(self, servers: Sequence[Presence]) -> list[Presence]:
        """Return the servers with only those ports that are not reserved."""
        return [self._without(server) for server in servers]

    def _without(self, server: Presence) -> Presence:
        return keep_ports(server, lambda port: (server.agent_id, port) not in self.ports)


NOTHING: Final = Reserved()
