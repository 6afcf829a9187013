"""Free server ports of the fleet, without reservations and double announcements. Pure."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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


def filter_ports(server: Presence, is_offered: Callable[[int], bool]) -> Presence:
    """Return a server that only offers some ports, for every engine.

    Args:
        server: The server agent.
        is_offered: Function to get True for a port to offer.
    """

    def offered(ports: Sequence[int]) -> tuple[int, ...]:
        return tuple(filter(is_offered, ports))

    engines = tuple(
        engine.model_copy(update={"ports": offered(engine.ports)}) for engine in server.engines
    )
    return server.model_copy(update={"ports": offered(server.ports), "engines": engines})


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
        stored = list(reservations)
        return cls(
            ports={(item.agent_id, item.port): item.run_id for item in stored},
            clients_count=len({(item.run_id, item.pair_index) for item in stored}),
        )

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.ports.values())))

    def without(self, servers: Sequence[Presence]) -> list[Presence]:
        """Return the servers with only those ports that are not reserved."""
        return [self._without(server) for server in servers]

    def _without(self, server: Presence) -> Presence:
        return filter_ports(server, lambda port: (server.agent_id, port) not in self.ports)


NOTHING: Final = Reserved()


def first_announcements(servers: Sequence[Presence]) -> tuple[list[Presence], list[str]]:
    """Assign each endpoint to the agent that was started first.

    Only one process can listen on an address and port. A second announcement comes from a copied
    setting or is false. Its records would replace the records of the first agent.

    Args:
        servers: Live server agents to check.

    Returns:
        The servers in the same order, except for ports that are already used by an earlier agent.
        The second value is a list with a warning for each agent that lost ports.
    """
    holders: dict[tuple[str, int], str] = {}
    stored: dict[str, Presence] = {}
    warnings = []
    for server in sorted(servers, key=lambda item: (item.started_at, item.agent_id)):
        local = {*server.ports, *server.busy_ports}.union(*(item.ports for item in server.engines))
        lost = {
            port: holder
            for port in local
            if (holder := holders.setdefault((server.address, port), server.agent_id))
            != server.agent_id
        }
        stored[server.agent_id] = _without(server, lost)
        if lost:
            port = min(lost)
            warnings.append(
                f"endpoint.port: {server.agent_id} announces {server.address}:{port}"
                f"{f' and {len(lost) - 1} more' if len(lost) > 1 else ''}, but {lost[port]} "
                "announced it before, so this port is not used for it; give each agent its own "
                "address or ports (BROADSIDE_AGENT_ADDRESS, --ports)"
            )
    return [stored[server.agent_id] for server in servers], warnings


def _without(server: Presence, lost: Container[int]) -> Presence:
    return filter_ports(server, lambda port: port not in lost)
