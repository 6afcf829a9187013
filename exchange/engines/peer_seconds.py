"""Payload per second and address from which the server received its streams.

A device that translates source addresses shows its own address to the server. If several units
share the load, each of them usually shows a different address.
"""

import base64
import binascii
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broadside.exchange.chunks import count_rows, pack, unpack
from broadside.exchange.messages import PEERS_MAX_COUNT, PeerSeconds, peer_address
from broadside.exchange.ports import RecordUnreadable

# Number of steps for all addresses of a test. They need about 18 kB in a row. If there are more
# seconds, a step has several of them.
STEPS_MAX_COUNT: Final = 4096
# An interval up to this length belongs to one second, as in all other modules.
_ONE_SECOND_S: Final = 1.5
_COLUMNS: Final = ("bytes", "active")


@dataclass(slots=True)
class _Peer:
    """Cells of one address by second.

    Attributes:
        bytes: Payload.
        active: Streams with payload, or requests that started.
    """

    bytes: Counter[int] = field(default_factory=Counter)
    active: Counter[int] = field(default_factory=Counter)


class PeerRates:
    """Collector for the payload of each address per second."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    def take(
        self, start_s: float, end_s: float, moved: Mapping[int, int], addresses: Mapping[int, str]
    ) -> None:
        """Add an interval of one flow.

        Args:
            start_s: Start of the interval, engine time in seconds.
            end_s: End of the interval, engine time in seconds.
            moved: Bytes of each stream by socket number.
            addresses: Address of the other end by socket number.
        """
        cells = _cells(start_s, end_s)
        for socket, amount in moved.items():
            peer = self._peer(addresses.get(socket))
            if peer is None or not amount:
                continue
            reached = 0
            for index, cell in enumerate(cells, 1):
                part = amount * index // len(cells) - reached
                reached += part
                peer.bytes[cell] += part
                peer.active[cell] += 1

    def add(self, address: str | None, start_s: float, end_s: float, amount_bytes: int) -> None:
        """Add a transfer, with its bytes spread evenly over its duration.

        Args:
            address: Address of the other end. None if unknown.
            start_s: Time of the first byte, in epoch seconds.
            end_s: Time of the last byte, in epoch seconds.
            amount_bytes: Bytes of the transfer.
        """
        peer = self._peer(address)
        if peer is None:
            return
        first, last, reached = math.floor(start_s), math.floor(end_s), 0
        peer.active[first] += 1
        for cell in range(first, last + 1):
            through = 1.0 if cell == last else (cell + 1 - start_s) / (end_s - start_s)
            peer.bytes[cell] += round(amount_bytes * through) - reached
            reached = round(amount_bytes * through)

    def count(self, address: str | None, cell: int, amount_bytes: int, started_count: int) -> None:
        """Add the counts of one second.

        Args:
            address: Address of the other end. None if unknown.
            cell: The second.
            amount_bytes: Payload.
            started_count: Number of connections that started.
        """
        peer = self._peer(address)
        if peer is not None:
            peer.bytes[cell] += amount_bytes
            peer.active[cell] += started_count

    def peers(
        self, streams: Iterable[str] | None = None, *, zero_s: float = 0.0
    ) -> tuple[PeerSeconds, ...]:
        """Return the seconds of each address, in the order of their first payload.

        If all streams have one address, its seconds are those of the test and are left out.

        Args:
            streams: Address of each open stream. None if the engine does not count streams.
            zero_s: Zero of engine time in the time of the cells, in seconds.

        Returns:
            Seconds by address, on the time axis of the engine. With one address only the number of
            its streams.
        """
        opened = None if streams is None else Counter(streams)
        for address in opened or ():
            self._peer(address)
        known = self._peers
        if len(known) == 1 and opened is not None:
            [address] = known
            return (PeerSeconds(address=address, streams_count=opened[address]),)
        spans = [1 + max(p.bytes) - min(p.bytes) for p in known.values() if p.bytes]
        step_s = math.ceil(sum(spans) / STEPS_MAX_COUNT) or 1
        return tuple(
            PeerSeconds(
                address=address,
                streams_count=None if opened is None else opened[address],
                from_s=(min(peer.bytes, default=0) // step_s) * step_s - zero_s,
                step_s=step_s,
                packed=_packed(peer, step_s),
            )
            for address, peer in known.items()
        )

    def steps_of(self, peer: PeerSeconds) -> PeerSeconds:
        """Return an address with its collected seconds. Its streams count as active in each."""
        cells = self._peers.get(peer.address)
        if cells is None:
            return peer
        cells.active = Counter(dict.fromkeys(cells.bytes, peer.streams_count or 1))
        step_s = max(1, math.ceil((1 + max(cells.bytes) - min(cells.bytes)) / STEPS_MAX_COUNT))
        return peer.model_copy(
            update={
                "from_s": min(cells.bytes) // step_s * step_s,
                "step_s": step_s,
                "packed": _packed(cells, step_s),
            }
        )

    def _peer(self, address: str | None) -> _Peer | None:
        """Return the cells of an address, or None if it is unknown or there are too many."""
        if address is None:
            return None
        if address not in self._peers and len(self._peers) >= PEERS_MAX_COUNT:
            return None
        return self._peers.setdefault(address, _Peer())


def read_steps(peer: PeerSeconds) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the payload in bytes and the active streams or requests of each step.

    Args:
        peer: Seconds of an address, with steps.

    Returns:
        Two columns, or None if the steps are not valid.
    """
    try:
        data = base64.b64decode(peer.packed, validate=True)
        if count_rows(data) > STEPS_MAX_COUNT + PEERS_MAX_COUNT:
            return None
        columns = unpack(data, _COLUMNS)
    except (binascii.Error, RecordUnreadable):
        return None
    if set(columns) != set(_COLUMNS) or any(None in column for column in columns.values()):
        return None
    amounts, active = ([value or 0 for value in columns[name]] for name in _COLUMNS)
    return amounts, active


def addresses_of(hosts: Mapping[int, str | None]) -> dict[int, str]:
    """Return the valid addresses by socket number, without scope and IPv4-mapped prefix."""
    known = {socket: peer_address(host) for socket, host in hosts.items()}
    return {socket: address for socket, address in known.items() if address is not None}


def _cells(start_s: float, end_s: float) -> range:
    """Return the seconds of engine time to which an interval belongs."""
    if end_s - start_s <= _ONE_SECOND_S:
        cell = math.floor((start_s + end_s) / 2)
        return range(cell, cell + 1)
    return range(math.floor(start_s + 0.5), math.floor(end_s + 0.5))


def _packed(peer: _Peer, step_s: int) -> str:
    """Return the steps of an address from its first to its last second with payload.

    If a step has several seconds, its active streams are the most in one of them.
    """
    if not peer.bytes:
        return base64.b64encode(pack({name: [] for name in _COLUMNS})).decode()
    first, last = min(peer.bytes) // step_s, max(peer.bytes) // step_s
    amounts, active = [0] * (last - first + 1), [0] * (last - first + 1)
    for cell, amount in peer.bytes.items():
        amounts[cell // step_s - first] += amount
    for cell, count in peer.active.items():
        step = cell // step_s - first
        if 0 <= step < len(active):
            active[step] = max(active[step], count)
    return base64.b64encode(pack({"bytes": amounts, "active": active})).decode()
