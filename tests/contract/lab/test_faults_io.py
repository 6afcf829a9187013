"""Tests for faults that need processes, sockets or real time."""

import socket
import struct

from tests.faults.fired_tests import PORT, Wire


def packet(
    sender: str, from_port: int, receiver: str, to_port: int, payload_bytes: int, *, protocol: int
) -> bytes:
    """Return the IPv4 and TCP headers. Each header has four bytes of options."""
    ip = struct.pack(
        "!BBHHHBBH4s4s4x",
        0x46,
        0,
        24 + 24 + payload_bytes,
        0,
        0,
        64,
        protocol,
        0,
        socket.inet_aton(sender),
        socket.inet_aton(receiver),
    )
    return ip + struct.pack("!HHIIBBHHH4x", from_port, to_port, 0, 0, 0x60, 0, 0, 0, 0)


def test_payload_is_counted_per_connection_in_both_directions() -> None:
    client, server = ("10.1.1.1", 40_000), ("10.2.1.1", PORT)
    with socket.socket() as tap:
        wire = Wire(tap)
        # This packet has no payload.
        wire.see(packet(*client, *server, 0, protocol=6), 0.5)
        wire.see(packet(*client, *server, 1000, protocol=6), 1.0)
        wire.see(packet(*server, *client, 50, protocol=6), 2.0)
        wire.see(packet(*client, *server, 70, protocol=17), 3.0)
        wire.see(packet(*client, "10.2.1.1", 80, 70, protocol=6), 3.0)
    [result] = wire.connections(0.0)
    assert (result.client, result.server, result.client_port) == ("10.1.1.1", "10.2.1.1", 40_000)
    assert (result.payload_bytes, result.first_at_s) == (1050, 1.0)
    assert wire.connections(1.5) == ()
