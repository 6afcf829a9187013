"""Attacks by a device over SNMP, and on the tools of an assistant."""

import asyncio
import io
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from socket import AF_INET, SOCK_DGRAM, socket
from typing import Any, Final
from unittest import mock

from pydantic import ValidationError

from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.cli.mcp_command import make_server
from broadside.coordinator.cli.session import Session
from broadside.coordinator.device.telemetry.snmp import SnmpPoller
from broadside.coordinator.device.telemetry.snmp_client import SnmpClient, SnmpEntry
from broadside.coordinator.device.telemetry.source import Secret, TelemetryError
from tests.attack import Attack, attack_variants, lasting
from tests.attack.injections import INJECTIONS

DEVICE: Final = "telemetry of the device"
ASSISTANT: Final = "assistant"
_COMMUNITY: Final = b"c0mmunity"


def _tlv(tag: int, *parts: bytes) -> bytes:
    """Encode a BER element (X.690, 8.1): tag, length, content."""
    body = b"".join(parts)
    size = len(body)
    if size < 128:
        return bytes([tag, size]) + body
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(octets)]) + octets + body


def _split(data: bytes) -> list[tuple[int, bytes]]:
    """Split one level of a short request into its elements."""
    result, at = [], 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        result.append((tag, data[at : at + size]))
        at += size
    return result


# Arguments are the request id and the names of the objects.
_Made = Callable[[bytes, list[bytes]], bytes]


def _bound(name: bytes, value: bytes) -> bytes:
    return _tlv(0x30, _tlv(0x06, name), value)


def _answer(*values: bytes, **head: Any) -> _Made:
    """Return a function that makes answers by RFC 3416, using invalid values in turn."""

    def make(request_id: bytes, names: list[bytes]) -> bytes:
        bound = [_bound(name, values[n % len(values)]) for n, name in enumerate(names)]
        return _message(request_id, bound, **head)

    return make


def _message(
    request_id: bytes,
    bound: list[bytes],
    *,
    pdu: int = 0xA2,
    status: int = 0,
    index: bytes = b"\0",
    community: bytes = _COMMUNITY,
) -> bytes:
    fields = (request_id, bytes([status]), index)
    reported = _tlv(pdu, *(_tlv(0x02, number) for number in fields), _tlv(0x30, *bound))
    return _tlv(0x30, _tlv(0x02, b"\x01"), _tlv(0x04, community), reported)


def _raw(data: bytes) -> _Made:
    return lambda _id, _names: data


def _nested(depth: int) -> bytes:
    made = b""
    for _ in range(depth):
        made = _tlv(0x30, made)
    return made


_INTEGER, _STRING, _COUNTER_32, _COUNTER_64, _TICKS = 0x02, 0x04, 0x41, 0x46, 0x43
_ANSWERS: Final[dict[str, _Made]] = {
    "nothing": _raw(b""),
    "noise": _raw(bytes(range(256)) * 4),
    "half an answer": lambda i, n: _answer(_tlv(_INTEGER, b"\1"))(i, n)[:-3],
    "a length of four gigabytes": _raw(b"\x30\x84\xff\xff\xff\xff\x02\x01\x01"),
    "a length of 126 octets": _raw(b"\x30\xfe" + b"\xff" * 126),
    "no length": _raw(b"\x30\x80" * 500),
    "levels without end": _raw(_nested(10_000)),
    "levels without an end each": _raw(b"\x30\x80" * 30_000),
    "a tag of many octets": _raw(b"\x3f" + b"\xff" * 60_000),
    "a value of levels": _answer(_nested(5_000)),
    "an integer of 50,000 octets": _answer(_tlv(_INTEGER, b"\x7f" * 50_000)),
    "a counter of 1,000 octets": _answer(_tlv(_COUNTER_64, b"\x7f" * 1_000)),
    "a counter below zero": _answer(_tlv(_COUNTER_64, b"\xff")),
    "an empty counter": _answer(_tlv(_COUNTER_64)),
    "ticks beyond theirs": _answer(_tlv(_TICKS, b"\x7f" * 9)),
    "text of 5,000 digits": _answer(_tlv(_STRING, b"9" * 5_000)),
    "text that is infinite": _answer(_tlv(_STRING, b"inf")),
    "text that is no number": _answer(_tlv(_STRING, b"nan")),
    "text of an escape": _answer(_tlv(_STRING, b"\x1b[2J\x1b]0;owned\x07")),
    "text that is no UTF-8": _answer(_tlv(_STRING, b"\xff\xfe")),
    "an unknown kind": _answer(_tlv(0x4F, b"\1")),
    "a name in place of a value": _answer(_tlv(0x06, b"\x2b\x06")),
    "a name without end": lambda i, n: _message(
        i, [_bound(b"\xff" * 5_000, _tlv(_INTEGER, b"\1"))]
    ),
    "names that were not requested": lambda i, n: _message(
        i, [_bound(b"\x2b\x06\x01\x7f", _tlv(_INTEGER, b"\1"))] * 300
    ),
    "no name": lambda i, n: _message(i, []),
    "an unknown error": _answer(_tlv(_INTEGER, b"\1"), status=127),
    "an error at no name": _answer(_tlv(_INTEGER, b"\1"), status=5, index=b"\x7f\xff\xff\xff"),
    "an error below zero": _answer(_tlv(_INTEGER, b"\1"), status=5, index=b"\xff"),
    "a report": _answer(_tlv(_INTEGER, b"\1"), pdu=0xA8),
    "a question": _answer(_tlv(_INTEGER, b"\1"), pdu=0xA0),
    "a trap": _answer(_tlv(_INTEGER, b"\1"), pdu=0xA7),
    "another's community": _answer(_tlv(_INTEGER, b"\1"), community=b"public"),
    "another's request": lambda i, n: _answer(_tlv(_INTEGER, b"\1"))(b"\x7f\1\2\3", n),
    "a table with decreasing names": lambda i, n: _message(
        i, [_bound(n[0] + b"\1", _tlv(_STRING, b"eth0"))] * 25
    ),
}


@contextmanager
def _answering(make: _Made) -> Iterator[int]:
    """Serve a device on loopback that sends this answer to every request."""
    with socket(AF_INET, SOCK_DGRAM) as device:
        device.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                data, asker = device.recvfrom(65_535)
                if not data:
                    return
                [(_, message)] = _split(data)
                (_, pdu) = _split(message)[2]
                fields = _split(pdu)
                names = [_split(binding)[0][1] for _, binding in _split(fields[3][1])]
                device.sendto(make(fields[0][1], names), asker)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield device.getsockname()[1]
        finally:
            with socket(AF_INET, SOCK_DGRAM) as last:
                last.sendto(b"", device.getsockname())
            thread.join()


async def _read_device(port: int, folder: Path) -> str:
    """Read the device once and return its figures or its ``TelemetryError``."""
    (folder / "community").write_bytes(_COMMUNITY)
    (folder / "community").chmod(0o600)
    entry = SnmpEntry(
        type="snmp",
        device="fw",
        address=f"127.0.0.1:{port}",
        community=Secret(file=folder / "community"),
        interfaces=("eth0",),
    )
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, reported: failed.append(reported))
    device = SnmpClient(entry)
    try:
        answer = await SnmpPoller(device, None, entry).poll()
    except TelemetryError as error:
        text = str(error)
        assert _COMMUNITY.decode() not in text
    else:
        text = f"up {answer.up_s}, {len(answer.readings)} readings"
    finally:
        device.close()
    return f"{text}{', and a line in the log' * bool(failed)}"


async def _telemetry(make: _Made) -> str:
    with (
        tempfile.TemporaryDirectory() as base,
        _answering(make) as port,
        mock.patch("broadside.coordinator.device.telemetry.snmp_client.ATTEMPT_S", 0.2),
        mock.patch("broadside.coordinator.device.telemetry.snmp_client.RETRIES_COUNT", 0),
        mock.patch("broadside.coordinator.device.telemetry.snmp_client.ROWS_MAX_COUNT", 20),
    ):
        return await _read_device(port, Path(base))


# An assistant's tools ----------------------------------------------------------------------------

_ODD: Final[tuple[Any, ...]] = (
    *INJECTIONS,
    *(None, True, -1, 2**63, 1e308, float("nan"), [], {}, [[]] * 1_000, {"a": {"b": 1}}),
    *("", "last", "../../../etc/passwd", "%2e%2e%2f", "0001-01-01T00:00:00Z", "9" * 5_000),
)
_TOOLS: Final = {
    "list_runs": ("limit", "scenario", "verdict", "from_at", "before_at"),
    "sum_runs": ("group_by", "timezone", "scenario", "label", "from_at", "before_at"),
    "read_verdict": ("run",),
    "compare_runs": ("a", "b"),
}


@cache
def _nowhere() -> str:
    """Return the folder of an empty store."""
    return lasting(
        tempfile.TemporaryDirectory(prefix="broadside-attack-", ignore_cleanup_errors=True)
    )


async def _tool(name: str, argument: str) -> str:
    """Call a tool with all invalid values of one argument.

    It should answer or return an error text.
    """
    # This import takes a second.
    from mcp.server.mcpserver.exceptions import ToolError

    good = {"a": "x", "b": "y"} if name == "compare_runs" else {}
    refused_count = 0
    settings = {"BROADSIDE_DATA_DIR": _nowhere()}
    with mock.patch.dict("os.environ", settings), redirect_stderr(io.StringIO()):
        server = make_server(Session(), None)
        for invalid in _ODD:
            try:
                await server.call_tool(name, {**good, argument: invalid})
            except ToolError as error:
                refused_count += 1
                assert isinstance(error.__cause__, ToolError | ValidationError | ApiError | None)
    return f"{refused_count} of {len(_ODD)} refused in words, the others answered"


ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants("SNMP: {}", DEVICE, "memory, a crash, a figure", _telemetry, _ANSWERS),
    *attack_variants(
        "{}",
        ASSISTANT,
        f"{len(_ODD)} invalid values",
        _tool,
        {
            f"{tool}: {argument}": (tool, argument)
            for tool, arguments in _TOOLS.items()
            for argument in arguments
        },
    ),
)
