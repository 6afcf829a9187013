"""Attacks by charts, output and imports, and between callers of one coordinator."""

import asyncio
import base64
import io
import json
import os
import resource
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import UTC, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from unittest import mock
from xml.etree import ElementTree

import httpx

from broadside.agent.worker import Worker
from broadside.coordinator.cli import main
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_requests import RecordingState
from broadside.coordinator.imports.iperf3_files import read_files
from broadside.coordinator.imports.result_tables import TableOptions, read_original
from broadside.coordinator.views.browser import BrowserError, render_png
from broadside.coordinator.views.charts import Theme, catalogue, draw_burst, draw_run
from broadside.coordinator.views.charts.figure import Figure
from broadside.coordinator.views.charts.svg import standalone
from broadside.exchange.chunks import pack
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Outgoing
from tests.attack import Attack, attack_variants
from tests.attack.fuzzed import planned_job
from tests.attack.on_requests import bearer, site
from tests.attack.unfolding_rows import forged
from tests.loopback_server import Quiet, served
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryTable, make_tools
from tests.unit.coordinator.presences import fleet
from tests.unit.coordinator.views.charts.views import burst_view, run_view

TERMINAL: Final = "output to terminal, sheet"
BROWSER: Final = "browser"
IMPORT: Final = "imported file"
BETWEEN: Final = "caller to caller"
AGENTS: Final = "agent to agent"

# Drawings ----------------------------------------------------------------------------------------

_LABELS: Final = {
    "a script": "<script>alert(1)</script>",
    "an end and a script": '"></text></svg><script>alert(1)</script>',
    "a handler": '" onload="alert(1)" x=\'',
    "a link": '<a href="javascript:alert(1)" xlink:href="javascript:alert(1)">x</a>',
    "a foreign page": "<foreignObject><iframe src='https://evil.example'/></foreignObject>",
    "CDATA": "]]><script>alert(1)</script><![CDATA[",
    "an entity": "&xxe;<!DOCTYPE x [<!ENTITY xxe SYSTEM 'file:///etc/passwd'>]>",
    "a style": "</style><style>@import url(https://evil.example)</style>",
}
_TAGS: Final = set(
    "svg style defs pattern rect g path line polyline text circle image title clipPath".split()  # noqa: SIM905
)
# Attributes with an address that is fetched or run.
_ADDRESSES: Final = ("href", "src", "style")


def _relabelled(figure: Figure, label: str) -> Figure:
    """Replace every visible text of a figure with the label."""
    heat = figure.heat_map
    return replace(
        figure,
        title=label,
        x=replace(figure.x, title=label, labels=[[label]]),
        y=replace(figure.y, title=label),
        series=[replace(series, name=label) for series in figure.series],
        heat_map=None if heat is None else replace(heat, unit=label),
    )


# Charts of runs with connections, with mixed traffic or with telemetry.
OTHER_RUNS: Final = ("connections", "connection-times", "parts", "device")


@cache
def _figures() -> dict[str, Figure]:
    """Return the charts of a run with bulk traffic."""
    burst, run = burst_view(), run_view()
    return {
        entry.name: (
            draw_burst(entry.name, burst) if entry.kind == "burst" else draw_run(entry.name, run)
        ).figure
        for entry in catalogue()
        if entry.name not in OTHER_RUNS
    }


def _file(figure: Figure) -> str:
    return standalone(figure, width=900, height=400, theme=Theme.LIGHT)


def _drawn(label: str) -> str:
    for name, figure in _figures().items():
        drawing = _file(_relabelled(figure, label))
        assert label in "".join(ElementTree.fromstring(drawing).itertext()), name  # noqa: S314
        for element in ElementTree.fromstring(drawing).iter():  # noqa: S314 - our own
            assert element.tag.rpartition("}")[2] in _TAGS, (name, element.tag)
            for attribute in element.attrib:
                plain = attribute.rpartition("}")[2]
                assert not plain.startswith("on"), (name, attribute)
                assert plain not in _ADDRESSES or label not in element.attrib[attribute]
    return f"only text in {len(_figures())} drawings"


def _painted() -> str:
    """Check that the browser that is used to render a PNG will not fetch an address in a label."""
    requested: list[str] = []

    class Canary(Quiet):
        def do_GET(self) -> None:
            requested.append(self.path)

    with served(Canary) as url:
        label = (
            f"<img src={url}/img onerror=\"fetch('{url}/script')\">"
            f'<a href="{url}/a">x</a><script src="{url}/js"></script>'
            f'<span style="background:url({url}/css)">y</span>'
        )
        figure = _relabelled(next(iter(_figures().values())), label)
        try:
            painted = render_png(_file(figure), 900, 400)
        except BrowserError as error:
            return f"not painted: {error}"
    assert requested == [], requested
    return f"a picture of {len(painted)} bytes, and no request"


# Dead letters ------------------------------------------------------------------------------------

_ESCAPES: Final = "\x1b[2J\x1b]0;owned\x07\x9b31m\rpass\x08\u202e"


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


async def _die(folder: Path) -> None:
    queue = EmbeddedQueue(folder)
    expires_at = utc_now() + timedelta(minutes=1)
    body = f'{{"run_id": "{_ESCAPES}"}}'.encode()
    await queue.send([Outgoing(body=body, message_id=_ESCAPES, expires_at=expires_at)])
    delivery = await queue.receive(1)
    assert delivery is not None
    await queue.dead_letter(delivery, _ESCAPES, _ESCAPES)
    await queue.close()


def _dead_letter(command: str) -> str:
    """Show a dead letter full of escapes by the command line on a terminal."""
    with tempfile.TemporaryDirectory() as base:
        asyncio.run(_die(Path(base)))
        screen = _Screen()
        given = {"BROADSIDE_DATA_DIR": base, "COLUMNS": "200", "TERM": "xterm-256color"}
        with (
            mock.patch.dict(os.environ, given),
            mock.patch.object(sys, "argv", ["broadside", "deadletters", *command.split()]),
            redirect_stdout(screen),
            redirect_stderr(screen),
        ):
            try:
                main()
            except SystemExit as ended:
                assert ended.code in (0, None), screen.getvalue()
    seen = screen.getvalue()
    for bad in ("\x1b[2J", "\x1b]", "\x9b", "\r", "\x08", "\x07", "\u202e"):
        assert bad not in seen, ascii(seen)
    assert "x1b" in seen or not command.startswith("explain"), ascii(seen)
    return "escapes are spelled out"


# Imports -----------------------------------------------------------------------------------------

_ZONE: Final = TableOptions(zone=UTC, now=utc_now())
# Limit on the memory for inputs of at most 64 MB.
_MEMORY_MAX_BYTES: Final = 900_000_000
_HUGE: Final[dict[str, Callable[[], bytes]]] = {
    "a workbook (zip)": lambda: b"PK\3\4" + bytes(100_000),
    "a gzip of 1 GB": lambda: zlib.compress(bytes(10**9), 9, 31),
    "33 MB of one cell": lambda: b'RowKey,"' + b"a" * 33_000_000 + b'"\n',
    "31 MB of one cell": lambda: b'RowKey,"' + b"a" * 31_000_000 + b'"\n',
    "15 million columns": lambda: b"RowKey" + b"," * 15_000_000 + b"\n",
    "15 million rows": lambda: b"RowKey,a\n" + b"1\n" * 15_000_000,
    "a quote that never ends": lambda: b'RowKey,a\n"' + b"1\n" * 1_000_000,
    "100,000 brackets": lambda: b"[" * 100_000,
    "16 million brackets": lambda: b"[" * 16_000_000,
    "deep objects": lambda: b'{"start":' * 1_000_000,
    "deep intervals": lambda: b'{"start":{},"intervals":' + b"[" * 900_000 + b"]" * 900_000 + b"}",
    "a million tests": lambda: b'{"start":{},"intervals":[],"end":{}}\n' * 1_000_000,
    "a number of 5,000 digits": lambda: (
        b'{"start":{"timestamp":{"timesecs":' + b"9" * 5_000 + b'}},"intervals":[],"end":{}}'
    ),
    "not a number": lambda: (
        b'{"start":{"timestamp":{"timesecs":NaN}},"intervals":[{"sum":{"start":NaN,"end":Infinity,'
        b'"bytes":1e999,"seconds":-1}}],"end":{}}'
    ),
    "nothing": lambda: b"",
    "zero bytes": lambda: bytes(10_000),
}


def _peak_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _imported(read: Callable[[Path], str], made: Callable[[], bytes]) -> str:
    with tempfile.TemporaryDirectory() as base:
        path = Path(base) / "given"
        path.write_bytes(made())
        began_s = time.monotonic()
        before_bytes = _peak_bytes()
        try:
            text = read(path)
        except BadFile as error:
            text = str(error).replace(base, "")
        grown_bytes = _peak_bytes() - before_bytes
        assert grown_bytes < _MEMORY_MAX_BYTES, f"{grown_bytes / 1e6:.0f} MB were taken"
        return f"{text[:120]}; {time.monotonic() - began_s:.1f} s"


def _table(path: Path) -> str:
    read_original(path, _ZONE)
    raise AssertionError("it was taken for a table")


def _recordings(path: Path) -> str:
    recordings = read_files([path])[0]
    assert not [one for one in recordings if one.state is RecordingState.MEASURED], "measured"
    return f"{recordings[0].state.value}: {recordings[0].reason}"


_SECONDS: Final[dict[str, Callable[[], bytes]]] = {
    "a billion rows": lambda: forged([10**9, [["start_us"]]]),
    "100,000 brackets": lambda: forged(b"[" * 100_000),
    "noise": lambda: b"BSC" + bytes(range(256)) * 40,
    "a million empty seconds": lambda: pack({"other": [1] * 10**6}),
}


def _packed(seconds: Callable[[], bytes]) -> str:
    """Import packed seconds with a large unpacked size over the API."""
    recording = {
        "file": "x", "state": "measured", "side": "client", "report": {"engine": "iperf3"},
        "started_at": "2026-11-22T00:00:00Z",
        "packed": {"up": base64.b64encode(seconds()).decode()},
    }  # fmt: skip
    answer = site().signed.post(
        "/v1/imports/iperf3",
        headers=bearer("operator"),
        json={"kind": "iperf3", "recordings": [recording]},
    )
    assert answer.status_code in (409, 413, 422), answer.text[:300]
    return f"{answer.status_code} {json.loads(answer.text)['detail']}"[:120]


# Between callers ---------------------------------------------------------------------------------


def _launch(caller: str, key: str, **body: Any) -> httpx.Response:
    return site().signed.post(
        "/v1/runs",
        headers={**bearer(caller), "Idempotency-Key": key},
        json={"scenario": "smoke", **body},
    )


def _launched(caller: str, key: str, **body: Any) -> tuple[int, str]:
    _operators()
    answer = _launch(caller, key, **body)
    response = answer.json()
    return answer.status_code, str(response.get("run_id") or response.get("detail"))


def _operators() -> tuple[str, str]:
    """Return two operators, and create live agents for a few runs."""
    made = site()

    async def prepare() -> None:
        for here in fleet(12, beat_at=utc_now()):
            await made.fabric.records.fleet.beat(here)

    asyncio.run(prepare())
    return "operator", "second"


def _same_key() -> str:
    """Use one idempotency key for two callers. They must only get their own run."""
    (mine, theirs), key = _operators(), "nightly"
    first, second = _launched(mine, key), _launched(theirs, key)
    assert (first[0], second[0]) == (202, 202), (first, second)
    assert first[1] != second[1]
    assert _launched(mine, key) == first
    assert _launched(theirs, key) == second
    return f"{first[1]} and {second[1]}"


def _reused_key() -> str:
    mine, theirs = _operators()
    body = {"overrides": {"labels": {"x": "y"}}}
    assert _launched(mine, "replayed")[0] == 202
    status, text = _launched(mine, "replayed", **body)
    assert status == 409, text
    assert _launched(theirs, "replayed", **body)[0] == 202, "another's key was in the way"
    return text


def _keys(key: str) -> str:
    user, _ = _operators()
    try:
        answer = _launch(user, key, scenario="no-such")
    except (ValueError, UnicodeError) as error:
        return f"no header: {error}"[:80]
    assert answer.status_code in (404, 409, 422), answer.text[:200]
    return f"{answer.status_code} {answer.json()['detail']}"[:100]


def _reports(table: MemoryTable) -> int:
    return sum(key.startswith("report") for key in table.written)


async def _delivered_twice(number: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        table = MemoryTable()
        records, true = records_in(table), planned_job(pair_index=number)
        await records.runs.save_jobs(true.run_id, true.burst_index, [true])
        queue = EmbeddedQueue(Path(base))
        soon = utc_now() + timedelta(minutes=1)
        await queue.send(
            [
                Outgoing(body=true.body, message_id=f"{true.job_id}.{n}", expires_at=soon)
                # If a queue has no duplicate detection, it will deliver both.
                for n in range(2)
            ]
        )
        workers = [Worker(queue=queue, tools=make_tools(records, agent_id=name)) for name in "ab"]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        async with asyncio.timeout(30):
            while (await queue.counts()).active_count or not _reports(table):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for worker in workers:
            worker.tools.stopping.set()
        await asyncio.gather(*tasks)
        await queue.close()
        claims = [row for (_, key), row in table.rows.items() if key.startswith("claim")]
        assert len(claims) == 1, claims
        assert _reports(table) == 1, table.written


async def _two_agents() -> str:
    """Deliver one job to two agents, twenty times. It should be executed by one of them."""
    for number in range(20):
        await _delivered_twice(number)
    return "20 jobs delivered twice, 20 claims, 20 reports"


_KEYS: Final = {
    "of another's hash": "0" * 64,
    "with a zero byte": "a\0nightly",
    "with a path": "../tokens/operator",
    "of 300 letters": "a" * 300,
    "of nothing": "",
}
ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants("SVG: {}", BROWSER, str, _drawn, _LABELS),
    Attack("PNG: a label that fetches", BROWSER, "the host that paints it", _painted),
    *attack_variants(
        "dead letters: {}",
        TERMINAL,
        repr(_ESCAPES),
        _dead_letter,
        ("list", "explain 1", "purge 1", "list -o json"),
    ),
    *attack_variants(
        "table: {}", IMPORT, "memory, time, a crash", partial(_imported, _table), _HUGE
    ),
    *attack_variants(
        "iperf3: {}", IMPORT, "memory, time, a crash", partial(_imported, _recordings), _HUGE
    ),
    *attack_variants("seconds over the API: {}", IMPORT, "memory, a crash", _packed, _SECONDS),
    Attack("another's Idempotency-Key", BETWEEN, "another's run", _same_key),
    Attack("a key with another body", BETWEEN, "a launch in place of another", _reused_key),
    *attack_variants("Idempotency-Key {}", BETWEEN, "another's row", _keys, _KEYS),
    Attack("two agents, one job", AGENTS, "a pair measured twice", _two_agents),
)
