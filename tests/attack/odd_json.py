"""Attacks by JSON that RFC 8259 forbids or leaves undefined, on every reader."""

import json
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from broadside.agent.decide import InvalidJob, read_job
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_requests import RecordingState
from broadside.coordinator.imports.iperf3_files import read_files
from broadside.exchange.messages import Claim, Job, JobReport, Message, Presence, Role, ServerTest
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.rows import make_row, parse_row
from tests.attack import Attack
from tests.attack.fuzzed import planned_job
from tests.attack.on_requests import site
from tests.unit.coordinator.presences import presence

JSON: Final = "JSON to every reader"

_STRINGS: Final = (
    *(rb'"\ud800"', rb'"\udc00\ud800"', rb'"\ud83d\u0041"', rb'"\u0000"', rb'"\u202e"', b'"\x00"'),
    *(b'"\x1f"', b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', rb'"\x41"'),
    *(rb'"\u12"', rb'"\uD83D\u"', b'"', b"'x'", b'"\xe2\x80\xa8"', rb'"\uFFFE\uFDD0"', b'"\\'),
)
_NUMBERS: Final = (
    *(b"-0", b"-0.0", b"0.4e006699999999999999999999999999", b"1e9999", b"-1e+9999", b"1e-9999"),
    *(b"9" * 4_300, b"9" * 4_301, b"1" + b"0" * 5_000, b"0." + b"0" * 5_000 + b"1", b"1E400"),
    *(b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"1e400000000"),
    *(b".5", b"1.", b"01", b"-01", b"+1", b"0x1", b"1_000", b"1e", b"--1", b"NaN", b"-Infinity"),
    *(b"Infinity", b"\xef\xbc\x91", b"1 000", b"1,5"),
)
_FORMS: Final = (
    *(
        b"",
        b" ",
        b"\0",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"[[]]",
        b"[,1]",
        b"[1,]",
        b"{,}",
        b"]",
        b"}",
    ),
    *(b'{"a":1,"a":2}', b'{"":1}', b"{1:1}", b'{"a" 1}', b"{a:1}", b'{"a":1}//', b"/**/1", b"1 2"),
    *(
        b"[" * 500,
        b"[" * 100_000,
        b"[" * 500 + b"]" * 500,
        b'{"a":' * 2_000,
        b"[1,2",
        b"nul",
        b"True",
    ),
    *(b"\xef\xbb\xbf{}", "{}".encode("utf-16"), "{}".encode("utf-16-le"), "{}".encode("utf-32")),
    *(
        b"\x0c{}",
        b"\xc2\xa0{}",
        b"{}\0",
        b'{"__proto__":1}',
        b'{"$ref":"#"}',
        b"[" + b"0," * 50_000,
    ),
)
TEXTS: Final = (*_STRINGS, *_NUMBERS, *_FORMS)


def _in_place(good: str) -> Iterator[bytes]:
    """Yield each text alone, and as each value in the first two levels of a valid document."""
    yield from TEXTS
    fields: dict[str, Any] = json.loads(good)
    mark = "bs-mark"
    inner = [
        (name, item)
        for name, stored in fields.items()
        if isinstance(stored, dict)
        for item in stored
    ]
    places: list[tuple[str, ...]] = [*((name,) for name in fields), *inner]
    for place in places:
        marked = json.loads(good)
        stored = marked
        for name in place[:-1]:
            stored = stored[name]
        stored[place[-1]] = mark
        before, _, after = json.dumps(marked).encode().partition(f'"{mark}"'.encode())
        for text in TEXTS:
            yield before + text + after


def _jobs() -> str:
    reported = [read_job(body) for body in _in_place(planned_job().to_json())]
    taken = [item for item in reported if isinstance(item, Job)]
    assert all(item.reason for item in reported if isinstance(item, InvalidJob))
    return f"{len(reported) - len(taken)} set aside with a reason, {len(taken)} jobs"


_NOW: Final = datetime(2026, 11, 23, tzinfo=UTC)


def _rows() -> str:
    count, read_count = 0, 0
    good = presence(Role.CLIENT, 1, beat_at=_NOW).model_dump_json()
    tried: list[tuple[type[Message], bytes]] = [(Presence, text) for text in _in_place(good)]
    tried += [(model, text) for model in (Claim, JobReport, ServerTest) for text in TEXTS]
    for model, text in tried:
        # A table stores text, so invalid UTF-8 was replaced before.
        row = make_row("p", "r", {"json": text.decode(errors="replace")})
        count += 1
        try:
            parse_row(model, row)
            read_count += 1
        except RecordUnreadable as error:
            assert "\n" not in str(error)
    return f"{count - read_count} left out by name, {read_count} read"


def _imports() -> str:
    good = json.dumps(
        {
            "start": {"timestamp": {"timesecs": 1_700_000_000}, "version": "iperf 3.18"},
            "intervals": [],
            "end": {"sum_sent": {"bytes": 1}},
        }
    )
    states = []
    with tempfile.TemporaryDirectory() as base:
        path = Path(base) / "given.json"
        for text in _in_place(good):
            path.write_bytes(text)
            try:
                recordings = read_files([path])[0]
            except BadFile:
                continue
            states += [one.state for one in recordings]
    assert RecordingState.MEASURED not in states
    return f"{len(states)} named for what they are, none is measured"


def _bodies() -> str:
    """Send each text as a whole body. Nested values are tested with the models."""
    statuses = []
    for text in TEXTS:
        answer = site().local.post(
            "/v1/runs", content=text, headers={"Content-Type": "application/json"}
        )
        assert 400 <= answer.status_code < 500, (text[:40], answer.status_code, answer.text[:200])
        statuses.append(answer.status_code)
    return f"{len(statuses)} refused: {sorted(set(statuses))}"


_READERS: Final[dict[str, Callable[[], str]]] = {
    "an agent's jobs": _jobs,
    "rows": _rows,
    "imported recordings": _imports,
    "the API's bodies": _bodies,
}
ATTACKS: Final[tuple[Attack, ...]] = tuple(
    Attack(f"invalid JSON to {reader}", JSON, f"{len(TEXTS)} texts, each alone and inside", read)
    for reader, read in _READERS.items()
)
