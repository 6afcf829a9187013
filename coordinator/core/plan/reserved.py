"""What open runs have reserved of the fleet, and the fleet without it. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broadside.exchange.messages import Message, Presence, RunId, UtcDatetime


class Reservation(Message):
    """One port of a server agent, for every burst of one run."""

    run_id: RunId
    agent_id: str
    port: int
    pair_index: int  # of the run; a pair of several processes has several ports
    until_at: UtcDatetime  # when it lapses, whoever forgot to give it back


def keep_ports(server: Presence, is_kept: Callable[[int], bool]) -> Presence:
    """Return a server that offers only the ports that are kept, for every engine."""

    def kept(ports: Sequence[int]) -> tuple[int, ...]:
        return tuple(filter(is_kept, ports))

    engines = tuple(
        engine.model_copy(update={"ports": kept(engine.ports)}) for engine in server.engines
    )
    return server.model_copy(update={"ports": kept(server.ports), "engines": engines})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The reservations in force: one run's server test is never counted by another run."""

    ports: Mapping[tuple[str, int], str] = field(default_factory=dict)  # agent, port: run id
    clients_count: int = 0  # as many as the runs have pairs: any client may take any job

    @classmethod
    def of(cls, reservations: Iterable[Reservation]) -> "Reserved":
        """Of one run's own to be left out, leave them out before."""
        held = list(reservations)
        return cls(
            ports={(each.agent_id, each.port): each.run_id for each in held},
            clients_count=len({(each.run_id, each.pair_index) for each in held}),
        )

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.ports.values())))

    def without(self, servers: Sequence[Presence]) -> list[Presence]:
        """The servers, each with those ports alone that no run has."""
        return [self._without(server) for server in servers]

    def _without(self, server: Presence) -> Presence:
        return keep_ports(server, lambda port: (server.agent_id, port) not in self.ports)


NOTHING: Final = Reserved()
