"""ICMP and TCP round-trip times from the coordinator to the device itself.

Traffic through a device uses its data plane. A device responds to a ping with its control plane,
which can be overloaded first. Each round sends an ICMP echo and a TCP handshake. A refused
connection is also a response.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.polling import (
    PolledDevice,
    PolledEntry,
    PolledSource,
    PolledValue,
    PollResult,
)
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.exchange.messages import Address
from broadside.exchange.ping import PingMethod, echo, handshake, may_echo, timed


class PingEntry(PolledEntry):
    """Configuration of a source that pings the device."""

    # Address of the device itself, not of a host behind it.
    address: Address
    icmp: bool = True
    tcp_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    poll_s: Annotated[float, Field(ge=0.2, le=3600)] = 1.0
    byte_counter: None = None


def open_source(entry: Mapping[str, Any]) -> PolledSource:
    """Return a source that measures round-trip times to the device.

    Raises:
        TelemetryError: The entry is invalid, or this host has no permission to send ICMP echoes.
    """
    parsed = parse_entry(PingEntry, entry)
    if not parsed.icmp and parsed.tcp_port is None:
        raise TelemetryError(f"telemetry {parsed.device}: icmp, tcp_port: neither is set; set one")
    if parsed.icmp and not may_echo(parsed.address):
        raise TelemetryError(
            f"telemetry {parsed.device}: icmp: this host has no permission to send echoes; widen "
            "net.ipv4.ping_group_range, or set icmp = false and a tcp_port"
        )
    probes: dict[Quantity, PingMethod] = {}
    if parsed.icmp:
        probes[Quantity.PING_ICMP] = partial(echo, parsed.address)
    if parsed.tcp_port is not None:
        probes[Quantity.PING_TCP] = partial(handshake, parsed.address, parsed.tcp_port)

    async def poll() -> PollResult:
        results = await asyncio.gather(*(_measure(*item) for item in probes.items()))
        return PollResult(readings=[reading for result in results for reading in result])

    return PolledSource(
        parsed,
        PolledDevice(
            request=poll,
            name=f"ping {parsed.address}",
            quantities=[Quantity.PING_LOSS, *probes],
        ),
    )


async def _measure(quantity: Quantity, probe: PingMethod) -> list[PolledValue]:
    """Return a reading of the loss and, if there was a reply, one of the round trip."""
    sent_s = time.time()
    took_s = await timed(probe)
    loss = PolledValue(
        quantity=Quantity.PING_LOSS,
        instance=quantity.removeprefix("ping_").removesuffix("_s"),
        value=float(took_s is None),
        at_s=sent_s,
    )
    if took_s is None:
        return [loss]
    return [loss, PolledValue(quantity=quantity, value=took_s, at_s=sent_s, bound_s=took_s)]
