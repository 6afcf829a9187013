"""Writes the session counts of the lab's firewall to a file, once per second.

``python session_counter.py --csv FILE --broadside-lab PREFIX`` runs inside the firewall's
namespace. It reads the events of the kernel's connection tracking (ctnetlink) and
appends to a CSV file, which the telemetry source ``csv`` can read:

- ``time``: end of the second, in epoch seconds.
- ``sessions_count``: TCP sessions that are open.
- ``connections_per_second``: sessions that were set up in this second.
- ``ended_per_second``: sessions that were torn down in this second.

A session is set up when its first packet has passed all rules. It is torn down when the state
becomes CLOSE (RST) or TIME_WAIT (FIN), or when it expires. The entry itself stays in the table for
longer, so ``nf_conntrack_count`` is higher. When events were lost, the cells of the second are
empty.
"""

import argparse
import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broadside.lab.errors import LabMisconfigured
from broadside.lab.namespaces import detach, inside, run_batch
from broadside.lab.telemetry_file import source_entry
from broadside.lab.topology import Batch, Lab

COLUMNS: Final = ("sessions_count", "connections_per_second", "ended_per_second")
# linux/netlink.h, linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h
NETLINK_NETFILTER: Final = 12
SOL_NETLINK: Final = 270
NETLINK_ADD_MEMBERSHIP: Final = 1
# NFNLGRP_CONNTRACK_NEW, UPDATE and DESTROY
GROUPS: Final = (1, 2, 3)
NLM_F_CREATE: Final = 0x400
IPCTNL_MSG_CT_DELETE: Final = 2
CTA_PROTOINFO: Final = 4
CTA_ID: Final = 12
# States of nf_conntrack_tcp in which a session is over.
ENDED: Final = (7, 8)
# Nested CTA_PROTOINFO_TCP with CTA_PROTOINFO_TCP_STATE first, after both headers.
STATE_AT: Final = 8
NLA_TYPE_MASK: Final = 0x3FFF
BUFFER_BYTES: Final = 64 << 20
PRIORITY: Final = -15
# struct sock_filter, and linux/filter.h: the offset of a netlink attribute.
_FILTER = struct.Struct("=HBBI")
NLATTR_AT: Final = 0xFFFF_F000 + 12
SO_ATTACH_FILTER: Final = 26
# Instructions of a filter that accepts a session's first event and the event that ends it. The
# kernel reports three other ones for each session, which a process could not read in time.
WANTED: Final = (
    # A = offset of CTA_PROTOINFO, or 0 if it is not TCP.
    (0x00, 0, 0, 20),
    (0x01, 0, 0, CTA_PROTOINFO),
    (0x20, 0, 0, NLATTR_AT),
    (0x15, 10, 0, 0),
    # A = state: SYN_SENT is new.
    (0x07, 0, 0, 0),
    (0x50, 0, 0, 4 + STATE_AT),
    (0x15, 6, 0, 1),
    (0x15, 3, 0, ENDED[0]),
    (0x15, 2, 0, ENDED[1]),
    # Other states: accepted if the session was deleted.
    (0x30, 0, 0, 4),
    (0x15, 2, 3, IPCTNL_MSG_CT_DELETE),
    # Ended: accepted if it was not deleted, because then it had ended before.
    (0x30, 0, 0, 4),
    (0x15, 1, 0, IPCTNL_MSG_CT_DELETE),
    (0x06, 0, 0, 0xFFFF_FFFF),
    (0x06, 0, 0, 0),
)
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_MESSAGE_BYTES: Final = _HEADER.size + 4


class SessionTable:
    """Counts of TCP sessions from conntrack events."""

    def __init__(self) -> None:
        self._open: set[bytes] = set()
        self.set_up_count = self.torn_down_count = 0
        self.is_lost = False

    def feed(self, message: bytes) -> None:
        """Count the events in one datagram."""
        for is_new, is_deleted, session, state in parse_events(message):
            if is_new:
                self._open.add(session)
                self.set_up_count += 1
            elif session in self._open and (is_deleted or state in ENDED):
                self._open.remove(session)
                self.torn_down_count += 1

    def next_second(self) -> str:
        """Return the values of the second as cells, and start the next one."""
        values = (len(self._open), self.set_up_count, self.torn_down_count)
        text = "," * (len(COLUMNS) - 1) if self.is_lost else ",".join(map(str, values))
        self.set_up_count = self.torn_down_count = 0
        self.is_lost = False
        return text


def parse_events(message: bytes) -> Iterator[tuple[bool, bool, bytes, int]]:
    """Yield the events of TCP sessions in a datagram.

    Returns:
        For each event: whether the session is new, whether it was deleted, its id and its state.
    """
    offset = 0
    while offset + _MESSAGE_BYTES <= len(message):
        length, kind, flags, *_ = _HEADER.unpack_from(message, offset)
        end, place = min(offset + length, len(message)), offset + _MESSAGE_BYTES
        session, state = b"", 0
        while place + _ATTRIBUTE.size <= end:
            size, name = _ATTRIBUTE.unpack_from(message, place)
            name &= NLA_TYPE_MASK
            if name == CTA_ID:
                session = message[place + 4 : place + 8]
            elif name == CTA_PROTOINFO and size > 4 + STATE_AT:
                state = message[place + 4 + STATE_AT]
            place += max((size + 3) & ~3, _ATTRIBUTE.size)
        if session and state:
            is_deleted = kind & 0xFF == IPCTNL_MSG_CT_DELETE
            yield bool(flags & NLM_F_CREATE) and not is_deleted, is_deleted, session, state
        offset += max((length + 3) & ~3, _HEADER.size)


def open_events() -> socket.socket:
    """Return a socket that receives the conntrack events of this namespace. Raises ``OSError``."""
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    events.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), BUFFER_BYTES)
    program = ctypes.create_string_buffer(b"".join(_FILTER.pack(*line) for line in WANTED))
    attached = struct.pack("=HxxxxxxQ", len(WANTED), ctypes.addressof(program))
    events.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, attached)
    events.bind((0, 0))
    for group in GROUPS:
        events.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
    return events


def record_sessions(path: Path, events: socket.socket) -> None:
    """Append a row every second until killed.

    Args:
        path: File to append to.
        events: Socket from :func:`open_events`.
    """
    table = SessionTable()
    second = int(time.time()) + 1
    with path.open("a", encoding="utf-8", buffering=1) as file:
        while True:
            now_s = time.time()
            if now_s >= second:
                # After a delay of seconds, the events that were read late belong to this row.
                file.write(f"{second},{table.next_second()}\n")
                second = max(second + 1, int(now_s))
                continue
            events.settimeout(second - now_s)
            try:
                table.feed(events.recv(65_536))
            except TimeoutError:
                continue
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                table.is_lost = True


def sessions_path(lab: Lab) -> Path:
    """Return the path to the file with the session counts."""
    return lab.path / "sessions.csv"


def tracking_batch(namespace: str) -> Batch:
    """Return the rule with a state, which makes the kernel track the sessions of a firewall.

    Args:
        namespace: Namespace of the firewall.
    """
    return Batch(
        namespace=namespace,
        tool="nft",
        lines=(
            "add table ip sessions",
            "delete table ip sessions",
            "table ip sessions {",
            "  chain forward {",
            "    type filter hook forward priority 10; policy accept;",
            "    ct state new counter",
            "  }",
            "}",
        ),
    )


def start_sessions(lab: Lab) -> str:
    """Start to count the sessions of the lab's firewall, and return its telemetry entry.

    ``lab down`` ends the process.

    Args:
        lab: The lab.

    Raises:
        LabMisconfigured: The lab is on plain loopback.
        LabBroken: The process cannot be started.
    """
    if lab.firewall_namespace is None:
        raise LabMisconfigured("this is plain loopback: it has no session table; build a lab")
    path = sessions_path(lab)
    run_batch(tracking_batch(lab.firewall_namespace))
    argv = [
        sys.executable,
        "-P",
        __file__,
        f"--broadside-lab={lab.spec.prefix}",
        "--csv",
        str(path),
    ]
    with inside(lab.firewall_namespace):
        detach(argv)
    reads = [
        {"quantity": name, "column": name, "over_s": 0 if name == COLUMNS[0] else 1}
        for name in COLUMNS
    ]
    fields = {"device": "fw", "type": "csv", "file": str(path.absolute()), "clock_bound_s": 0.1}
    return source_entry({**fields, "settle_s": 6, "read": reads})


def main() -> None:
    """Check that the events can be read, then write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv", type=Path, required=True, help="file to append to")
    parser.add_argument(
        "--broadside-lab", required=True, help="prefix of the lab, by which it is found"
    )
    arguments = parser.parse_args()
    try:
        events = open_events()
        if not arguments.csv.exists():
            arguments.csv.write_text(f"time,{','.join(COLUMNS)}\n")
    except OSError as error:
        sys.exit(f"sessions: {error}; the kernel needs nf_conntrack_netlink")
    # A late reader would count events in a later second. Only root can set this.
    with contextlib.suppress(PermissionError):
        os.nice(PRIORITY)
    record_sessions(arguments.csv, events)


if __name__ == "__main__":
    main()
