"""Drawing of the network path from the plan, with clients, device and servers."""

import ipaddress
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from broadside.coordinator.core.run_spec import Plan
from broadside.exchange.messages import Endpoint, Flow

_WIDTH: Final = 920
# Top, width and line height of a box.
_BOX: Final = (4, 250, 24)
# Maximum number of named servers. The others are only counted.
_SERVERS_MAX_COUNT: Final = 6
# Maximum characters in a line of a box.
_LINE_CHARS: Final = 30
# Left edges of the three boxes.
_LEFT: Final = (10, 335, 660)


def topology_svg(plan: Plan) -> str:
    """Return the drawing as SVG, with all texts escaped."""
    boxes = [
        [part for line in lines for part in textwrap.wrap(line, _LINE_CHARS)]
        for lines in (_clients(plan), _device(plan), _servers(plan))
    ]
    top, width, line = _BOX
    height = top + line * (max(map(len, boxes)) + 1)
    said = escape("; ".join(" ".join(lines) for lines in boxes))
    box = f'viewBox="0 0 {_WIDTH} {height + 10}"'
    parts = [f'<svg class="topology" {box} role="img" aria-label="{said}">']
    for left, lines in zip(_LEFT, boxes, strict=True):
        parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{height - top}" rx="6"/>')
        for place, text in enumerate(lines):
            weight = ' class="title"' if place == 0 else ""
            y = top + line * (place + 1)
            parts.append(f'<text x="{left + 14}" y="{y}"{weight}>{escape(text)}</text>')
    flows = set(plan.spec.traffic.direction.flows)
    middle = top + (height - top) / 2
    for left in (_LEFT[0] + width, _LEFT[1] + width):
        parts += _arrows(left + 6, left + 69, middle, flows)
    return "".join([*parts, "</svg>"])


def _arrows(left: float, right: float, y: float, flows: set[Flow]) -> Iterator[str]:
    yield f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
    if Flow.UP in flows:
        yield f'<path d="M{right} {y}l-10 -5v10z"/>'
    if Flow.DOWN in flows:
        yield f'<path d="M{left} {y}l10 -5v10z"/>'


def _clients(plan: Plan) -> Sequence[str]:
    traffic = plan.spec.traffic
    inside = [] if traffic.encapsulation is None else ["inside VXLAN"]
    return (
        f"clients: {len(plan.pairs)}",
        "one a pair and burst",
        f"{traffic.engine}, {traffic.streams_count} streams a pair",
        *inside,
    )


def _device(plan: Plan) -> Sequence[str]:
    said = [f"{name} {value}"[:60] for name, value in plan.spec.device.items()]
    counted = "counted by nobody" if plan.ledger is None else f"counted by {plan.ledger.source}"
    return ("the device under test", *(said[:5] or ["not described"]), counted)


def _servers(plan: Plan) -> Sequence[str]:
    ports = Counter(_server(pair.endpoint) for pair in plan.pairs)
    named = [
        f"{name} ({count})" if count > 1 else name
        for name, count in list(ports.items())[:_SERVERS_MAX_COUNT]
    ]
    more = len(ports) - len(named)
    rest = [f"and {more} more"] if more > 0 else []
    return (f"servers: {len(ports)}, pairs: {len(plan.pairs)}", *named, *rest)


def _server(endpoint: Endpoint) -> str:
    name, address = endpoint.agent_id, endpoint.address
    if ipaddress.ip_address(address).is_unspecified:
        return f"{name}, address unknown" if name != "unknown" else name
    return address if name == address else f"{name}, {address}"
