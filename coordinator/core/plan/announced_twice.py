"""Check for endpoints that are announced by two server agents."""

from collections.abc import Container, Sequence

from broadside.coordinator.core.plan.reserved import keep_ports
from broadside.exchange.messages import Presence


def held_once(servers: Sequence[Presence]) -> tuple[list[Presence], list[str]]:
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
    kept: dict[str, Presence] = {}
    warnings = []
    for server in sorted(servers, key=lambda each: (each.started_at, each.agent_id)):
        own = {*server.ports, *server.busy_ports}.union(*(each.ports for each in server.engines))
        lost = {
            port: holder
            for port in own
            if (holder := holders.setdefault((server.address, port), server.agent_id))
            != server.agent_id
        }
        kept[server.agent_id] = _without(server, lost)
        if lost:
            port = min(lost)
            warnings.append(
                f"endpoint.port: {server.agent_id} announces {server.address}:{port}"
                f"{f' and {len(lost) - 1} more' if len(lost) > 1 else ''}, which {lost[port]} "
                "announced before, so it is not used as a server there; give each agent an "
                "address or ports of its own (BROADSIDE_AGENT_ADDRESS, --ports)"
            )
    return [kept[server.agent_id] for server in servers], warnings


def _without(server: Presence, lost: Container[int]) -> Presence:
    return keep_ports(server, lambda port: port not in lost)
