"""Writes the firewall's byte counters for each direction to a file, once per second.

``python -m broadside.lab.byte_counter --csv FILE`` runs inside the firewall's namespace and appends
to a CSV file::

    at_s,up_bytes,down_bytes,up_packets_count,down_packets_count,up_drops_count,\
down_drops_count,offered_up_bytes,offered_down_bytes

- ``at_s``: epoch seconds when the counters were read (at or shortly after a whole second).
- ``up_bytes``, ``down_bytes``: bytes (IP layer) that *left* the firewall to the servers (up) and to
  the clients (down). These are cumulative counters from the kernel, so a restarted reader loses
  nothing. A lower value means that the firewall was built again.
- ``.._packets_count``: packets that left. Each segment of a super-frame is counted.
- ``.._drops_count``: drops in the shaper. A super-frame is counted once.
- ``offered_.._bytes``: bytes (IP layer) that arrived to be forwarded, from nftables. The cell is
  empty when the value is unknown. It is read some milliseconds after ``at_s`` and does not include
  headers that segmentation will add. Compare totals, not seconds.

The first line has the column names. Each line is written with a single ``write``. A crash can
truncate a line, so readers skip lines that cannot be parsed.

The bytes are from the root qdiscs of ``s0`` (up) and ``c0`` (down). For a GSO super-frame, a qdisc
counts the bytes of all segments with their headers, and counts each segment as a packet
(``qdisc_pkt_len_init``, ``bstats_update`` in the kernel). The IP layer is therefore exactly
``bytes - 14 * packets``. The interface counters see super-frames and would be some percent too low.
A qdisc counts a packet when it passes it to the wire, so these are delivered bytes.
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
# nlmsghdr
_HEADER = struct.Struct("=IHHII")
# tcmsg with family, ifindex, handle, parent and info.
_TCMSG = struct.Struct("=BxxxiIII")
_ATTRIBUTE = struct.Struct("=HH")


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteCounterReading:
    """A line in the byte counter with cumulative counters.

    Attributes:
        at_s: Time in epoch seconds.
        up_bytes: Bytes delivered to the servers (IP layer).
        down_bytes: Bytes delivered to the clients (IP layer).
        up_packets_count: Packets delivered to the servers.
        down_packets_count: Packets delivered to the clients.
        up_drops_count: Drops on the way to the servers.
        down_drops_count: Drops on the way to the clients.
        offered_up_bytes: Bytes that arrived to be forwarded (IP layer), or ``None`` if unknown.
        offered_down_bytes: The same for the other direction.
    """

    at_s: float
    up_bytes: int
    down_bytes: int
    up_packets_count: int
    down_packets_count: int
    up_drops_count: int
    down_drops_count: int
    offered_up_bytes: int | None
    offered_down_bytes: int | None


COLUMNS: Final = tuple(column.name for column in fields(ByteCounterReading))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCount:
    """Counters of a root qdisc since it was created.

    Attributes:
        frame_bytes: Bytes with the headers of every segment.
        packets_count: Number of segments.
        drops_count: Number of drops.
    """

    frame_bytes: int
    packets_count: int
    drops_count: int

    @property
    def ip_bytes(self) -> int:
        return self.frame_bytes - ETHERNET_HEADER_BYTES * self.packets_count


# Reading the file -------------------------------------------------------------------------------


def read_counter(path: Path, from_s: float, before_s: float) -> tuple[ByteCounterReading, ...]:
    """Return the readings with ``from_s <= at_s < before_s``, in file order.

    Args:
        path: Path to the byte counter.
        from_s: Start in epoch seconds.
        before_s: End in epoch seconds.

    Returns:
        Readings with bytes since the ledger was started.

    Raises:
        OSError: The file cannot be read.
    """
    readings = parse_counter(path.read_text(encoding="utf-8"))
    return tuple(reading for reading in readings if from_s <= reading.at_s < before_s)


def parse_counter(text: str) -> tuple[ByteCounterReading, ...]:
    """Return all complete lines of a byte counter. Lines that cannot be parsed are skipped."""
    complete = text[: text.rfind("\n") + 1]
    return tuple(
        reading
        for row in csv.reader(complete.splitlines())
        if (reading := _parse_row(row)) is not None
    )


def _parse_row(row: list[str]) -> ByteCounterReading | None:
    if len(row) != len(COLUMNS):
        return None
    at_s, *counts = row
    known, offered = counts[:-2], counts[-2:]
    try:
        values: list[int | None] = [int(count) for count in known]
        values += [int(count) if count else None for count in offered]
        return ByteCounterReading(**dict(zip(COLUMNS, [float(at_s), *values], strict=True)))  # type: ignore[arg-type]  # COLUMNS are its fields, in order
    except ValueError:
        return None


def format_reading(reading: ByteCounterReading) -> str:
    """Return a reading as a line with a newline."""
    cells = [f"{reading.at_s:.6f}"]
    for column in COLUMNS[1:]:
        value = getattr(reading, column)
        cells.append("" if value is None else str(value))
    return ",".join(cells) + "\n"


# Reading the kernel -----------------------------------------------------------------------------


def parse_qdiscs(message: bytes) -> tuple[dict[int, QueueCount], bool]:
    """Parse one datagram of a qdisc dump.

    Returns:
        The root qdiscs by interface index, and whether the dump is complete.

    Raises:
        OSError: The kernel returned an error.
    """
    by_name: dict[int, QueueCount] = {}
    offset = 0
    while offset + _HEADER.size <= len(message):
        length, kind, *_ = _HEADER.unpack_from(message, offset)
        body = offset + _HEADER.size
        if kind == NLMSG_DONE:
            return by_name, True
        if kind == NLMSG_ERROR:
            number = -struct.unpack_from("=i", message, body)[0]
            raise OSError(number, os.strerror(number))
        if kind == RTM_NEWQDISC:
            _, index, _, parent, _ = _TCMSG.unpack_from(message, body)
            if parent == TC_H_ROOT:
                count = _parse_count(message[body + _TCMSG.size : offset + length])
                if count is not None:
                    by_name[index] = count
        offset += (length + 3) & ~3
    return by_name, False


def _attributes(data: bytes) -> dict[int, bytes]:
    """Return netlink attributes by type."""
    by_name = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        by_name[kind & NLA_TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += max((length + 3) & ~3, _ATTRIBUTE.size)
    return by_name


def _parse_count(attributes: bytes) -> QueueCount | None:
    stats = _attributes(_attributes(attributes).get(TCA_STATS2, b""))
    if TCA_STATS_BASIC not in stats or TCA_STATS_QUEUE not in stats:
        return None
    frame_bytes, packets_count = struct.unpack_from("=QI", stats[TCA_STATS_BASIC])
    # The kernel sends this attribute when the count does not fit in 32 bits.
    if TCA_STATS_PKT64 in stats:
        (packets_count,) = struct.unpack_from("=Q", stats[TCA_STATS_PKT64])
    _, _, drops_count, *_ = struct.unpack_from("=5I", stats[TCA_STATS_QUEUE])
    return QueueCount(frame_bytes=frame_bytes, packets_count=packets_count, drops_count=drops_count)


class QueueReader:
    """Uses rtnetlink to read the root qdiscs in the namespace where it was created."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE)
        self._socket.settimeout(5.0)

    def read(self) -> dict[str, QueueCount]:
        """Return the counters by interface name. Raises ``OSError``."""
        length = _HEADER.size + _TCMSG.size
        request = _HEADER.pack(length, RTM_GETQDISC, NLM_F_DUMP_REQUEST, 1, 0)
        self._socket.send(request + _TCMSG.pack(0, 0, 0, 0, 0))
        by_name: dict[int, QueueCount] = {}
        done = False
        while not done:
            part, done = parse_qdiscs(self._socket.recv(65_536))
            by_name |= part
        names = dict(socket.if_nameindex())
        return {names[index]: count for index, count in by_name.items() if index in names}

    def close(self) -> None:
        self._socket.close()


def read_offered(nft: str) -> Mapping[str, int]:
    """Return the forward counters by name, empty if nftables does not respond."""
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


def record_readings(path: Path, reader: QueueReader) -> None:
    """Append a reading every second until killed.

    Args:
        path: File to append to.
        reader: Reader for the counters.
    """
    nft = find_tool("nft")
    with path.open("a", encoding="utf-8", buffering=1) as file:
        while True:
            time.sleep(1.0 - time.time() % 1.0)
            # We do not need to write anything, because you can see the gap if a line is missing.
            with contextlib.suppress(OSError, KeyError):
                before_s = time.time()
                queues = reader.read()
                at_s = (before_s + time.time()) / 2
                up, down, offered = queues["s0"], queues["c0"], read_offered(nft)
                file.write(
                    format_reading(
                        ByteCounterReading(
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
    """Write the header to a new file, or complete a line that a killed process left truncated."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    with path.open("a", encoding="utf-8") as file:
        if not text:
            file.write(",".join(COLUMNS) + "\n")
        elif not text.endswith("\n"):
            file.write("\n")


def main() -> None:
    """Check that the counters can be read, then continue in the background."""
    parser = argparse.ArgumentParser(prog="python -m broadside.lab.byte_counter")
    parser.add_argument("--csv", type=Path, required=True, help="file to append to")
    parser.add_argument(
        "--broadside-lab", required=True, help="prefix of the lab, by which it is found"
    )
    arguments = parser.parse_args()
    reader = QueueReader()
    try:
        missing = {"c0", "s0"} - reader.read().keys()
        if missing:
            sys.exit(f"device counter: no qdisc on {', '.join(sorted(missing))}; run lab up again")
        begin(arguments.csv)
    except OSError as error:
        sys.exit(f"device counter: {error}")
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    record_readings(arguments.csv, reader)


if __name__ == "__main__":
    main()
