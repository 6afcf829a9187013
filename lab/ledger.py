"""The firewall's own ledger: once a second, on the second, what it delivered each way.

``python -m broadside.lab.ledger --csv FILE`` runs inside the firewall's namespace and appends to a
CSV::

    at_s,up_bytes,down_bytes,up_packets_count,down_packets_count,up_drops_count,\
down_drops_count,offered_up_bytes,offered_down_bytes

- ``at_s``: epoch seconds at which the counters were read (about the whole second, never before).
- ``up_bytes``, ``down_bytes``: IP-layer bytes that *left* the firewall towards the servers (up)
  and the clients (down). Cumulative, from the kernel: a reader that restarts loses nothing, and a
  value that falls means that the firewall itself was rebuilt.
- ``.._packets_count``: packets that left, each segment of a super-frame by itself.
- ``.._drops_count``: what its shaper dropped; a super-frame counts once.
- ``offered_.._bytes``: IP-layer bytes that arrived to be forwarded, from nftables; empty when
  unknown. Read some milliseconds after ``at_s``, and without the headers that segmentation will
  add: compare totals, not seconds.

The first line names the columns; a line is written with one ``write`` and may be cut short by a
crash: readers leave out a line that does not parse.

The bytes are those of the root qdisc of ``s0`` (up) and ``c0`` (down). A qdisc counts for a GSO
super-frame what its segments will be, headers included, and counts the segments as packets
(``qdisc_pkt_len_init``, ``bstats_update`` in the kernel), so the IP layer is exactly
``bytes - 14 * packets``; the interface's own counters see super-frames and would be some percent
short. A qdisc counts when it hands a packet to the wire, so this is what was delivered.
"""

import argparse
import contextlib
import csv
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from broadside.lab.lab_programs import find_tool

ETHERNET_HEADER_BYTES: Final = 14
# linux/rtnetlink.h, linux/pkt_sched.h, linux/gen_stats.h
RTM_NEWQDISC: Final = 36
RTM_GETQDISC: Final = 38
NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
NLM_F_DUMP_REQUEST: Final = 0x301
NETLINK_ROUTE: Final = 0
TC_H_ROOT: Final = 0xFFFF_FFFF
TCA_STATS2: Final = 7
TCA_STATS_BASIC: Final = 1
TCA_STATS_QUEUE: Final = 3
TCA_STATS_PKT64: Final = 8
NLA_TYPE_MASK: Final = 0x3FFF
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_TCMSG = struct.Struct("=BxxxiIII")  # family, ifindex, handle, parent, info
_ATTRIBUTE = struct.Struct("=HH")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReading:
    """One line of the ledger: cumulative counts at one instant."""

    at_s: float  # epoch s
    up_bytes: int  # IP layer, delivered
    down_bytes: int
    up_packets_count: int
    down_packets_count: int
    up_drops_count: int
    down_drops_count: int
    offered_up_bytes: int | None  # IP layer, arrived to be forwarded
    offered_down_bytes: int | None


COLUMNS: Final = tuple(each.name for each in fields(LedgerReading))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCount:
    """What one root qdisc has counted since it was made."""

    frame_bytes: int  # headers of every segment included
    packets_count: int  # segments
    drops_count: int

    @property
    def ip_bytes(self) -> int:
        return self.frame_bytes - ETHERNET_HEADER_BYTES * self.packets_count


# Reading the file -------------------------------------------------------------------------------


def read_ledger(path: Path, from_s: float, before_s: float) -> tuple[LedgerReading, ...]:
    """The readings with ``from_s <= at_s < before_s``, in the order written.

    Raises ``OSError`` when there is no such file.
    """
    readings = parse_ledger(path.read_text(encoding="utf-8"))
    return tuple(reading for reading in readings if from_s <= reading.at_s < before_s)


def parse_ledger(text: str) -> tuple[LedgerReading, ...]:
    """Every whole line of a ledger's text; lines that do not parse are left out."""
    whole = text[: text.rfind("\n") + 1]
    return tuple(
        reading
        for row in csv.reader(whole.splitlines())
        if (reading := _parse_row(row)) is not None
    )


def _parse_row(row: list[str]) -> LedgerReading | None:
    if len(row) != len(COLUMNS):
        return None
    at_s, *counts = row
    known, offered = counts[:-2], counts[-2:]
    try:
        values: list[int | None] = [int(count) for count in known]
        values += [int(count) if count else None for count in offered]
        return LedgerReading(**dict(zip(COLUMNS, [float(at_s), *values], strict=True)))  # type: ignore[arg-type]  # COLUMNS are its fields, in order
    except ValueError:
        return None


def format_reading(reading: LedgerReading) -> str:
    """One line, newline included."""
    cells = [f"{reading.at_s:.6f}"]
    for column in COLUMNS[1:]:
        value = getattr(reading, column)
        cells.append("" if value is None else str(value))
    return ",".join(cells) + "\n"


# Reading the kernel -----------------------------------------------------------------------------


def parse_qdiscs(message: bytes) -> tuple[dict[int, QueueCount], bool]:
    """Root qdiscs by interface index in one datagram of a dump, and whether the dump has ended.

    Raises ``OSError`` when the kernel answers with an error.
    """
    found: dict[int, QueueCount] = {}
    offset = 0
    while offset + _HEADER.size <= len(message):
        length, kind, *_ = _HEADER.unpack_from(message, offset)
        body = offset + _HEADER.size
        if kind == NLMSG_DONE:
            return found, True
        if kind == NLMSG_ERROR:
            number = -struct.unpack_from("=i", message, body)[0]
            raise OSError(number, os.strerror(number))
        if kind == RTM_NEWQDISC:
            _, index, _, parent, _ = _TCMSG.unpack_from(message, body)
            if parent == TC_H_ROOT:
                count = _parse_count(message[body + _TCMSG.size : offset + length])
                if count is not None:
                    found[index] = count
        offset += (length + 3) & ~3
    return found, False


def _attributes(data: bytes) -> dict[int, bytes]:
    """Netlink attributes by type."""
    found = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        found[kind & NLA_TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += max((length + 3) & ~3, _ATTRIBUTE.size)
    return found


def _parse_count(attributes: bytes) -> QueueCount | None:
    stats = _attributes(_attributes(attributes).get(TCA_STATS2, b""))
    if TCA_STATS_BASIC not in stats or TCA_STATS_QUEUE not in stats:
        return None
    frame_bytes, packets_count = struct.unpack_from("=QI", stats[TCA_STATS_BASIC])
    if TCA_STATS_PKT64 in stats:  # sent once the count no longer fits 32 bits
        (packets_count,) = struct.unpack_from("=Q", stats[TCA_STATS_PKT64])
    _, _, drops_count, *_ = struct.unpack_from("=5I", stats[TCA_STATS_QUEUE])
    return QueueCount(frame_bytes=frame_bytes, packets_count=packets_count, drops_count=drops_count)


class QueueReader:
    """Asks the kernel for the root qdiscs of the namespace it was made in, by rtnetlink."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE)
        self._socket.settimeout(5.0)

    def read(self) -> dict[str, QueueCount]:
        """By interface name. Raises ``OSError``."""
        length = _HEADER.size + _TCMSG.size
        request = _HEADER.pack(length, RTM_GETQDISC, NLM_F_DUMP_REQUEST, 1, 0)
        self._socket.send(request + _TCMSG.pack(0, 0, 0, 0, 0))
        found: dict[int, QueueCount] = {}
        done = False
        while not done:
            part, done = parse_qdiscs(self._socket.recv(65_536))
            found |= part
        names = dict(socket.if_nameindex())
        return {names[index]: count for index, count in found.items() if index in names}

    def close(self) -> None:
        self._socket.close()


def read_offered(nft: str) -> Mapping[str, int]:
    """The forward counters by name; empty when nftables does not answer."""
    try:
        answer = subprocess.run(
            [nft, "-j", "list", "counters", "table", "ip", "broadside"],
            capture_output=True,
            check=True,
            timeout=2.0,
        )
        items = json.loads(answer.stdout)["nftables"]
        counters = [item["counter"] for item in items if "counter" in item]
        return {counter["name"]: int(counter["bytes"]) for counter in counters}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return {}


# The process ------------------------------------------------------------------------------------


def keep(path: Path, reader: QueueReader) -> None:
    """Append a reading each second until killed."""
    nft = find_tool("nft")
    with path.open("a", encoding="utf-8", buffering=1) as file:
        while True:
            time.sleep(1.0 - time.time() % 1.0)
            with contextlib.suppress(OSError, KeyError):  # a second without a line says the rest
                before_s = time.time()
                queues = reader.read()
                at_s = (before_s + time.time()) / 2
                up, down, offered = queues["s0"], queues["c0"], read_offered(nft)
                file.write(
                    format_reading(
                        LedgerReading(
                            at_s=at_s,
                            up_bytes=up.ip_bytes,
                            down_bytes=down.ip_bytes,
                            up_packets_count=up.packets_count,
                            down_packets_count=down.packets_count,
                            up_drops_count=up.drops_count,
                            down_drops_count=down.drops_count,
                            offered_up_bytes=offered.get("offered_up"),
                            offered_down_bytes=offered.get("offered_down"),
                        )
                    )
                )


def begin(path: Path) -> None:
    """Give a new file its first line; end a line that a killed predecessor left half written."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    with path.open("a", encoding="utf-8") as file:
        if not text:
            file.write(",".join(COLUMNS) + "\n")
        elif not text.endswith("\n"):
            file.write("\n")


def main() -> None:
    """Check that counting works, then go on in the background; errors come before that."""
    parser = argparse.ArgumentParser(prog="python -m broadside.lab.ledger")
    parser.add_argument("--csv", type=Path, required=True, help="file to append to")
    parser.add_argument(
        "--broadside-lab", required=True, help="prefix of the lab, by which it is found"
    )
    arguments = parser.parse_args()
    reader = QueueReader()
    try:
        missing = {"c0", "s0"} - reader.read().keys()
        if missing:
            sys.exit(f"ledger: no qdisc on {', '.join(sorted(missing))}; run lab up again")
        begin(arguments.csv)
    except OSError as error:
        sys.exit(f"ledger: {error}")
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    keep(arguments.csv, reader)


if __name__ == "__main__":
    main()
