"""Extension of snmpd that returns the planted values of a device (CPU, sessions, counters).

snmpd runs this file and sends requests to its standard input, as ``pass_persist`` in snmpd.conf(5)
defines. The values are in a JSON file, by OID. The file is read again for every request::

    {"1.3.6.1.4.1.12356.101.4.1.3.0": {"type": "gauge", "points": [[0, 20], [1795000000.0, 80]]},
     "1.3.6.1.2.1.2.2.1.10.1": {"type": "counter", "rate": 1e6, "from_s": 1795000000.0,
                                "start": 4294960000, "turn": 4294967296},
     "1.3.6.1.2.1.2.2.1.2.1": {"type": "string", "text": "eth0"}}

For a gauge, the last point in the past (epoch seconds) is used. A counter grows at its rate and
wraps at its turn. Some values are live. ``lines`` is the number of lines in a file that contain a
word, added to ``first``. ``busy`` is the load since the last request. For interfaces in this
network namespace it is the sent traffic in % of the capacity. For a program it is its CPU time in
1/10,000 of a core. Only the standard library is used, because snmpd starts this file outside any
virtual environment.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

# Columns in /proc/net/dev.
SENT = {"bytes": 8, "packets": 9}
# If there is another request within this time, we will return the same response again.
AGAIN_S = 0.3
# Nanoseconds of CPU time per second that a full core has, and the value to report for it.
CORE_NS, CORE_WHOLE = 1e9, 10_000
# Time of the last request, count and reported value, by key.
_seen: dict[str, tuple[float, float, float]] = {}
# Process ids by program.
_pids: dict[str, str] = {}


def value_of(figure: dict[str, Any], now_s: float) -> int | str:
    """Return the value to report for an entry of the file."""
    if "text" in figure:
        return str(figure["text"])
    if "lines" in figure:
        return _count(figure["lines"])
    if "busy" in figure:
        return _busy(figure["busy"], now_s)
    if "points" in figure:
        past = [value for at_s, value in figure["points"] if at_s <= now_s]
        return int(past[-1] if past else figure["points"][0][1])
    counted = figure["start"] + figure["rate"] * max(0.0, now_s - figure["from_s"])
    return int(counted % figure["turn"])


def _busy(busy: dict[str, Any], now_s: float) -> int:
    """Return the load since the last request, relative to a capacity that can grow."""
    what = json.dumps(busy)
    at_s, before, text = _seen.get(what, (0.0, 0.0, 0.0))
    if now_s - at_s >= AGAIN_S:
        if "program" in busy:
            count, most, complete = _ran_ns(busy["program"]), CORE_NS, CORE_WHOLE
        else:
            count, most, complete = _sent(busy), busy["per_second"], 100
            most += busy["more_per_second"] * _count(busy["growths"])
        text = complete * (count - before) / (now_s - at_s) / most if at_s else 0.0
        text = max(0.0, min(float(complete), text))
        _seen[what] = (now_s, count, text)
    return round(text)


def _sent(busy: dict[str, Any]) -> float:
    lines = [line.partition(":") for line in _read("/proc/net/dev").splitlines()]
    sent = {name.strip(): rest.split() for name, colon, rest in lines if colon}
    column = SENT[busy["column"]]
    return float(max(int(sent[name][column]) for name in busy["interfaces"]))


def _ran_ns(program: str) -> float:
    """Return the CPU time of a program in nanoseconds. Raises KeyError if it is not running."""
    for pid in _tried(program):
        try:
            if pid.isdigit() and _read(f"/proc/{pid}/cmdline").split("\0")[0] == program:
                _pids[program] = pid
                return float(_read(f"/proc/{pid}/schedstat").split()[0])
        # The process has ended.
        except OSError:
            continue
    raise KeyError(program)


def _tried(program: str) -> Iterator[str]:
    """Yield the last known process id, then all process ids."""
    yield _pids.get(program, "")
    yield from os.listdir("/proc")  # noqa: PTH208  # as plain as can be


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123  # as plain as can be
        return file.read()


def _count(lines: dict[str, Any]) -> int:
    part, first = lines.get("holding", ""), int(lines.get("first", 0))
    try:
        return first + sum(part in line for line in _read(lines["file"]).splitlines())
    except FileNotFoundError:
        return first


def key_of(oid: str) -> tuple[int, ...]:
    """Return an OID as a tuple of numbers, to sort it."""
    return tuple(int(part) for part in oid.strip(".").split("."))


def answer(verb: str, oid: str, path: str) -> list[str]:
    """Return the lines to send for ``get`` or ``getnext``.

    Args:
        verb: The request.
        oid: The requested OID.
        path: Path to the JSON file.
    """
    try:
        figures = {key_of(name): figure for name, figure in json.loads(_read(path)).items()}
        requested = key_of(oid)
        if verb == "getnext":
            requested = min((item for item in figures if item > requested), default=())
        figure = figures[requested]
        text = value_of(figure, time.time())
    except (OSError, ValueError, KeyError):
        return ["NONE"]
    return ["." + ".".join(map(str, requested)), figure["type"], str(text)]


def main(path: str) -> None:
    """Answer the requests of snmpd on standard input."""
    while line := sys.stdin.readline().strip():
        if line == "PING":
            lines = ["PONG"]
        elif line in ("get", "getnext"):
            lines = answer(line, sys.stdin.readline().strip(), path)
        # A set request has two more lines (an OID and a value).
        else:
            sys.stdin.readline(), sys.stdin.readline()
            lines = ["not-writable"]
        sys.stdout.write("\n".join([*lines, ""]))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
