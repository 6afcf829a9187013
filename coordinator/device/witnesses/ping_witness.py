"""The device's own answer to a ping, by ICMP and TCP, from where the coordinator stands.

What goes through a device is its data plane's; what it answers itself is its control plane's, and
may starve first. One echo and one handshake a round; a refused connection is an answer too.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from coordinator.core.measure.testimony import Quantity
from coordinator.device.ledgers.source import LedgerError
from coordinator.device.witnesses.polled import Answer, PolledWitness, Reading
from coordinator.device.witnesses.witness_file import PolledEntry, parsed
from exchange.messages import Address
from exchange.ping import Way, echo, handshake, may_echo, timed


class PingEntry(PolledEntry):
    address: Address  # the device's own, not one behind it
    icmp: bool = True
    tcp_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    poll_s: Annotated[float, Field(ge=0.2, le=3600)] = 1.0


class PingWitness:
    """Raises LedgerError where this host may not send an echo."""

    def __init__(self, entry: PingEntry) -> None:
        if not entry.icmp and entry.tcp_port is None:
            raise LedgerError(f"witness {entry.device}: icmp, tcp_port: neither; set one")
        self._entry = entry
        if entry.icmp and not may_echo(entry.address):
            raise LedgerError(
                f"witness {entry.device}: icmp: this host may not send an echo; widen "
                "net.ipv4.ping_group_range, or set icmp = false and a tcp_port"
            )

    async def ask(self) -> Answer:
        entry = self._entry
        ways: list[tuple[Quantity, Way]] = []
        if entry.icmp:
            ways.append((Quantity.PING_ICMP, lambda: echo(entry.address)))
        if (port := entry.tcp_port) is not None:
            ways.append((Quantity.PING_TCP, lambda: handshake(entry.address, port)))
        told = await asyncio.gather(*(self._timed(quantity, way) for quantity, way in ways))
        return Answer(readings=[reading for one in told for reading in one])

    async def _timed(self, quantity: Quantity, way: Way) -> list[Reading]:
        """The round trip at its own instant, and whether it was lost."""
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


def open_source(entry: Mapping[str, Any]) -> PolledWitness:
    named = parsed(PingEntry, entry)
    ways = {Quantity.PING_ICMP: named.icmp, Quantity.PING_TCP: named.tcp_port is not None}
    return PolledWitness(
        PingWitness(named).ask,
        name=f"ping {named.address}",
        entry=named,
        quantities=[Quantity.PING_LOSS, *(way for way, asked in ways.items() if asked)],
    )
