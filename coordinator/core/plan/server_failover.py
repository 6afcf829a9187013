"""Failover to spare servers for pairs with a server that is no longer live. Pure."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from broadside.coordinator.core.plan.planner import answers_canary, endpoint_of, live, port_groups
from broadside.coordinator.core.plan.reserved import NOTHING, Reserved, first_announcements
from broadside.coordinator.core.run_spec import Burst, Pair, Plan
from broadside.exchange.messages import Endpoint, Job, Message, Presence, Role, Traffic, UtcDatetime


class Failover(Message):
    """Change of a pair to another server endpoint, from one burst on.

    Attributes:
        pair_index: Pair index.
        from_burst_index: First burst with the new endpoint.
        endpoint: The new endpoint.
        server_nic_bits_per_second: NIC limit of the new server, or None if unknown.
        left_agent_id: The server that is no longer live.
        moved_at: Time of the decision.
    """

    pair_index: int
    from_burst_index: int
    endpoint: Endpoint
    server_nic_bits_per_second: int | None = None
    left_agent_id: str
    moved_at: UtcDatetime

    def __str__(self) -> str:
        return (
            f"pair-{self.pair_index + 1:03d}: server {self.left_agent_id} is not live; from burst "
            f"{self.from_burst_index + 1} on it is replaced by {self.endpoint.agent_id}"
        )


def servers_since(moves: Iterable[Failover], burst_index: int) -> dict[int, int]:
    """Return the first burst with the present server, by index of each pair that was moved.

    Args:
        moves: All moves of the run.
        burst_index: The last burst to include.

    Returns:
        Move by pair index. Pairs that were not moved have no entry.
    """
    return {move.pair_index: move.from_burst_index for move in _until(moves, burst_index)}


def pairs_in(plan: Plan, moves: Iterable[Failover], burst_index: int) -> tuple[Pair, ...]:
    """Return the pairs in one burst, with all moves up to this burst applied.

    Args:
        plan: The plan.
        moves: All moves of the run.
        burst_index: Burst index.

    Returns:
        All pairs of the plan, in their order.
    """
    pairs, _ = _move_pairs(plan, moves, burst_index)
    return pairs


def jobs_in(plan: Plan, moves: Iterable[Failover], burst: Burst) -> tuple[list[Job], list[Job]]:
    """Return the jobs for one burst, with all moves up to this burst applied.

    Args:
        plan: The plan.
        moves: All moves of the run.
        burst: The burst.

    Returns:
        The jobs in pair order, and the jobs that the moves replaced, the oldest first.
    """
    pairs, superseded = _move_pairs(plan, moves, burst.index)
    return list(plan.jobs(burst, pairs)), list(plan.jobs(burst, superseded))


def _move_pairs(
    plan: Plan, moves: Iterable[Failover], burst_index: int
) -> tuple[tuple[Pair, ...], list[Pair]]:
    """Return all pairs after the moves up to a burst, and the moved pairs before each move."""
    pairs, superseded = {pair.index: pair for pair in plan.pairs}, []
    for move in _until(moves, burst_index):
        before = pairs[move.pair_index]
        superseded.append(before)
        nic_bits_per_second = move.server_nic_bits_per_second
        update = {"endpoint": move.endpoint, "server_nic_bits_per_second": nic_bits_per_second}
        pairs[move.pair_index] = before.model_copy(update=update)
    return tuple(pairs.values()), superseded


def _until(moves: Iterable[Failover], burst_index: int) -> list[Failover]:
    """Return the moves up to a burst, the oldest first."""
    made = [move for move in moves if move.from_burst_index <= burst_index]
    return sorted(made, key=lambda move: move.from_burst_index)


def free_servers(
    presences: Sequence[Presence], now: datetime, reserved: Reserved = NOTHING
) -> list[Presence]:
    """Return the live servers, without the ports that other runs use.

    Args:
        presences: Heartbeats of all agents.
        now: Current time to use.
        reserved: Ports that are used by other runs.
    """
    holders, _ = first_announcements(
        [item for item in live(presences, now) if item.role is Role.SERVER]
    )
    return reserved.without(holders)


def choose_failovers(
    plan: Plan,
    moves: Sequence[Failover],
    servers: Sequence[Presence],
    burst_index: int,
    now: datetime,
) -> list[Failover]:
    """Select spare endpoints for pairs with a server that is no longer live.

    If there are not enough spares, the other pairs keep their endpoint and will be missing.

    Args:
        plan: The plan.
        moves: Moves that were made before.
        servers: Live servers with their free ports, from :func:`free_servers`.
        burst_index: The next burst.
        now: Current time to use.

    Returns:
        One move for each pair that gets a spare, in the order of the pairs.
    """
    pairs = pairs_in(plan, moves, burst_index)
    there = {server.agent_id for server in servers}
    taken = {(pair.endpoint.agent_id, port) for pair in pairs for port in pair.endpoint.ports}
    failovers: list[Failover] = []
    for number, spec in enumerate(plan.spec.parts):
        traffic = spec.traffic
        part_pairs = [pair for pair in pairs if pair.part_index == number]
        lost = [pair for pair in part_pairs if pair.endpoint.agent_id not in there]
        spares = _spares(servers, traffic, len(part_pairs[0].endpoint.ports), taken) if lost else []
        new = [
            Failover(
                pair_index=pair.index,
                from_burst_index=burst_index,
                endpoint=endpoint_of(server, ports, traffic),
                server_nic_bits_per_second=server.nic_bits_per_second,
                left_agent_id=pair.endpoint.agent_id,
                moved_at=now,
            )
            for pair, (server, ports) in zip(lost, spares, strict=False)
        ]
        taken |= {(one.endpoint.agent_id, port) for one in new for port in one.endpoint.ports}
        failovers += new
    return failovers


def _spares(
    servers: Sequence[Presence],
    traffic: Traffic,
    ports_count: int,
    taken: Collection[tuple[str, int]],
) -> list[tuple[Presence, Sequence[int]]]:
    """Return the endpoints that are free for a kind of traffic."""
    return [
        (server, ports)
        for server in servers
        if traffic.probe is None or server.echo_port is not None
        if answers_canary(server, traffic)
        if traffic.encapsulation is None or server.tunnels
        for ports in port_groups(server, traffic, ports_count)
        if not any((server.agent_id, port) in taken for port in ports)
    ]
