"""Description of the network path from the plan, with clients, device and servers."""

import ipaddress
from collections import Counter
from typing import Final

from broadside.coordinator.core.run_spec import Plan
from broadside.exchange.messages import Endpoint, Flow

# Maximum number of named servers. The others are only counted.
_SERVERS_MAX_COUNT: Final = 6
_DEVICE_FIELDS_MAX_COUNT: Final = 5
_ARROWS: Final = {(True, False): "→", (False, True): "←", (True, True): "↔"}


def network_path(plan: Plan) -> tuple[str, list[list[str]]]:
    """Return the direction of the traffic as an arrow, and the lines of the three boxes."""
    flows = plan.spec.traffic.direction.flows
    arrow = _ARROWS[Flow.UP in flows, Flow.DOWN in flows]
    return arrow, [_clients(plan), _device(plan), _servers(plan)]


def _clients(plan: Plan) -> list[str]:
    traffic = plan.spec.traffic
    return [
        f"Clients: {len(plan.pairs)}",
        "one for each pair and burst",
        f"{traffic.engine}, {traffic.streams_count} streams per pair",
        *([] if traffic.encapsulation is None else ["inside VXLAN"]),
    ]


def _device(plan: Plan) -> list[str]:
    fields = [f"{name} {value}"[:60] for name, value in plan.spec.device.items()]
    counter = "none" if plan.ledger is None else plan.ledger.source
    return [
        "Device under test",
        *(fields[:_DEVICE_FIELDS_MAX_COUNT] or ["not described"]),
        f"device counter: {counter}",
    ]


def _servers(plan: Plan) -> list[str]:
    counts = Counter(_server(pair.endpoint) for pair in plan.pairs)
    named = [
        f"{name} ({count})" if count > 1 else name
        for name, count in list(counts.items())[:_SERVERS_MAX_COUNT]
    ]
    more = len(counts) - len(named)
    return [
        f"Servers: {len(counts)}, pairs: {len(plan.pairs)}",
        *named,
        *([f"and {more} more"] if more > 0 else []),
    ]


def _server(endpoint: Endpoint) -> str:
    name, address = endpoint.agent_id, endpoint.address
    if ipaddress.ip_address(address).is_unspecified:
        return f"{name}, address unknown" if name != "unknown" else name
    return address if name == address else f"{name}, {address}"
