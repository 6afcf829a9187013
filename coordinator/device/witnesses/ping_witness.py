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

from broadside.coordinator.core.measure.testimony import Quantity
from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.coordinator.device.witnesses.polled import Answer, PolledWitness, Reading
from broadside.coordinator.device.witnesses.witness_file import PolledEntry, parsed
from broadside.exchange.messages import Address
from broadside.exchange.ping import Way, echo, handshake, may_echo, timed


class PingEntry(PolledEntry):
    # Address of the device itself, not of a host behind it.
    address: Address
    icmp: bool = True
    tcp_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    poll_s: Annotated[float, Field(ge=0.2, le=3600)] = 1.0


def open_source(entry: Mapping[str, Any]) -> PolledWitness:
    """Return a witness that measures round-trip times to the device.

    Raises:
        LedgerError: The entry is invalid, or this host has no permission to send ICMP echoes.
    """
    named = parsed(PingEntry, entry)
    if not named.icmp and named.tcp_port is None:
        raise LedgerError(f"witness {named.device}: icmp, tcp_port: neither; set one")
    if named.icmp and not may_echo(named.address):
        raise LedgerError(
            f"witness {named.device}: icmp: this host may not send an echo; widen "
            "net.ipv4.ping_group_range, or set icmp = false and a tcp_port"
        )
    ways: dict[Quantity, Way] = {}
    if named.icmp:
        ways[Quantity.PING_ICMP] = partial(echo, named.address)
    if named.tcp_port is not None:
        ways[Quantity.PING_TCP] = partial(handshake, named.address, named.tcp_port)

    async def ask() -> Answer:
        told = await asyncio.gather(*(_timed(quantity, way) for quantity, way in ways.items()))
        return Answer(readings=[reading for one in told for reading in one])

    quantities = [Quantity.PING_LOSS, *ways]
    return PolledWitness(ask, name=f"ping {named.address}", entry=named, quantities=quantities)


async def _timed(quantity: Quantity, way: Way) -> list[Reading]:
    """Return a reading of the loss and, if there was a reply, one of the round trip."""
    sent_s = time.time()
    took_s = await timed(way)
    loss = Reading(
        quantity=Quantity.PING_LOSS,
        instance=quantity.removeprefix("ping_").removesuffix("_s"),
        value=float(took_s is None),
        at_s=sent_s,
    )
    if took_s is None:
        return [loss]
    return [loss, Reading(quantity=quantity, value=took_s, at_s=sent_s, bound_s=took_s)]
