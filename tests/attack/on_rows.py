"""Attacks on the coordinator by its inputs: rows, answers of the metric source, and output."""

import asyncio
import csv
import io
import json
import logging
import os
import re
import sqlite3
import tempfile
import zlib
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import typer
from rich.console import Console

from broadside.agent.run import JsonLines, TextLines
from broadside.coordinator.cli import text_tables
from broadside.coordinator.cli.exit_codes import print_error, run_with_exit_code
from broadside.coordinator.cli.summary_tables import print_summary
from broadside.coordinator.cli.terminal_text import cleaned, printable
from broadside.coordinator.coordinator_log import LineFormatter
from broadside.coordinator.core.measure.grid.second_table import Column
from broadside.coordinator.core.summary import problem
from broadside.coordinator.device.telemetry.csv_export import CsvEntry, CsvSource
from broadside.coordinator.device.telemetry.prometheus import PrometheusEntry, PrometheusSource
from broadside.coordinator.device.telemetry.source import ArchiveSource, TelemetryError
from broadside.coordinator.views.tables.formats import as_csv
from broadside.exchange.documents import read_document
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.log_sanitizer import redact
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import EntityExists, RecordUnreadable
from broadside.exchange.records.keys import burst_partition
from broadside.exchange.rows import make_row
from tests.attack import Attack, attack_variants, refusal, unfolding
from tests.attack.disk import touch
from tests.attack.fuzzed_coordinator import fuzz_coordinator
from tests.attack.injections import SHOWN_UNSEEN
from tests.attack.on_requests import RUN, bearer, site
from tests.synthetic_runs import SMALL, measured

ROW: Final = "table to coordinator"
SOURCE: Final = "metric source"
TERMINAL: Final = "output to terminal, sheet"
FUZZED_COUNT: Final = int(os.environ.get("BROADSIDE_FUZZED_ROWS", "1000"))

_SPOILED: Final[dict[str, dict[str, Any]]] = {
    "no property": {},
    "no JSON": {"json": "]"},
    "100,000 brackets": {"json": "[" * 32_000},
    "a field of another version": {"json": '{"hair": "long"}'},
    "bytes in place of text": {"json": b"\xff\xfe"},
    "a number of 5,000 digits": {"json": "9" * 5000},
}
_READ: Final = (
    "/v1/runs",
    "/metrics",
    "/v1/schedules",
    "/v1/studies",
    "/v1/agents",
    "/v1/audit",
    "/v1/aggregate?group_by=scenario",
    f"/v1/runs/{RUN}",
)
# Values are the table, the partition and the key.
_KINDS: Final[dict[str, tuple[str, str, str]]] = {
    "a token": ("private", "tokens", "0-rogue"),
    "a run in the list": ("private", "runs", "0-rogue"),
    "a schedule": ("private", "schedules", "rogue"),
    "a study": ("private", "studies", "rogue"),
    "a launch": ("private", "launches", "rogue"),
    "a reservation": ("private", "reservations", "rogue"),
    "an audit row": ("private", f"audit-{utc_now():%Y-%m}", "0.rogue"),
    "a presence": ("results", "presence", "client.rogue"),
    "a claim": ("results", burst_partition(RUN, 0), "claim.00000"),
    "a report": ("results", burst_partition(RUN, 0), "report.00001"),
    "a claim of no pair": ("results", burst_partition(RUN, 0), "claim.zzzzz"),
    "a report within another's key": ("results", burst_partition(RUN, 0), "report.00001.000"),
    "seconds of no pair": ("results", burst_partition(RUN, 0), "chunk.client.x"),
}


def _spoil(place: tuple[str, str, str], properties: dict[str, Any]) -> str:
    name, partition, key = place
    table = getattr(site().fabric, name)
    before = asyncio.run(table.get(partition, key))
    asyncio.run(table.upsert(make_row(partition, key, properties)))
    try:
        for path in _READ:
            answer = site().signed.get(path, headers=bearer("operator"))
            assert answer.status_code == 200, (path, answer.text[:300])
    finally:
        asyncio.run(table.delete(partition, key))
        if before is not None:
            asyncio.run(table.upsert(before))
    return "that row is left out and named in the log; all else answers 200"


def _document(**properties: Any) -> str:
    """Read a forged document in place of an engine's raw output."""

    async def read() -> None:
        with tempfile.TemporaryDirectory() as folder:
            table = EmbeddedTable(Path(folder), "results")
            await table.insert(make_row("raw", "client.000", properties))
            try:
                await read_document(table, "raw", "client")
            finally:
                await table.close()

    return refusal(RecordUnreadable, lambda: asyncio.run(read()), "it was read")


def _bomb() -> str:
    packed = unfolding(272)
    parts = {
        f"part_{n}": packed[at : at + 65_536] for n, at in enumerate(range(0, len(packed), 65_536))
    }
    return _document(rows_count=1, crc=zlib.crc32(packed), **parts)


def _agents_half() -> str:
    """Check that an agent cannot access the private table or write a plan."""
    records = site().fabric.agent_records
    tables = [
        getattr(part, "_table", None) for part in (records.runs, records.bursts, records.fleet)
    ]
    assert site().fabric.private not in tables
    assert not hasattr(records, "private")
    return "AgentRecords holds no private table"


def _second_token() -> str:
    """Write a forged token row into the results, where agents can write."""
    row = {"name": "rogue", "role": "operator", "sha256": "0" * 64, "created_by": "x"}
    entity = make_row("tokens", "rogue", {"json": json.dumps(row)})
    asyncio.run(site().fabric.results.upsert(entity))
    answer = site().signed.get("/v1/me", headers={"Authorization": "Bearer broadside_" + "0" * 43})
    assert answer.status_code == 401
    return f"{answer.status_code}: tokens are read from the private table"


def _same_run() -> str:
    async def again() -> None:
        stored = await site().fabric.records.read_run(RUN)
        control = await site().fabric.records.runs.read_control(RUN)
        assert stored is not None
        assert control is not None
        await site().fabric.records.create_run(stored[0], b"{}", control)

    return refusal(EntityExists, lambda: asyncio.run(again()), "a run's plan was replaced")


# The metric source -------------------------------------------------------------------------------


def _figures(source: ArchiveSource) -> str:
    now = utc_now()
    requested = source.query_bytes(now - timedelta(minutes=5), now, Direction.FORWARD)
    return refusal(TelemetryError, lambda: asyncio.run(requested), "it was taken for figures")


def _answers(body: bytes) -> str:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    entry = {
        "type": "prometheus",
        "device": "fw",
        "url": "http://p",
        "byte_counter": {"query": "q"},
    }
    return _figures(PrometheusSource(PrometheusEntry.model_validate(entry), transport=transport))


def _file(text: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counter.csv"
        path.write_bytes(text)
        entry = {"type": "csv", "device": "fw", "file": path, "byte_counter": {}}
        return _figures(CsvSource(CsvEntry.model_validate(entry)))


_SERIES: Final = b'{"status":"success","data":{"result":[%s]}}'
_ANSWERS: Final[dict[str, bytes]] = {
    "100,000 brackets": b"[" * 100_000,
    "40 MB": b" " * 40_000_000,
    "a page": b"<html>",
    "a list": b"[]",
    "no values": _SERIES % b"{}",
    "values of text": _SERIES % b'{"values":[["a","b"]]}',
    "values of one": _SERIES % b'{"values":[[1]]}',
    "values of lists": _SERIES % b'{"values":[[[],[]]]}',
    "a number as series": _SERIES % b"1",
    "a thousand series": _SERIES % b",".join([b'{"values":[]}'] * 1000),
    "no UTF-8": b"\xff\xfe\xff",
}
_FILES: Final[dict[str, bytes]] = {
    "a cell of 200 kB": b"time,bytes\n" + b'"' + b"a" * 200_000 + b'",1\n',
    "zero bytes": b"time,bytes\n\0,1\n",
    "no UTF-8": b"\xff\xfe\xff",
    "nothing": b"",
    "a negative": b"time,bytes\n1,-5\n2,1\n",
    "infinity": b"time,bytes\n1,inf\n2,1\n",
    "a time of 5,000 digits": b"time,bytes\n" + b"9" * 5000 + b"x,1\n",
    "40 MB": b"time,bytes\n" + b"1,1\n" * 10_000_000,
}


# Terminals and sheets ----------------------------------------------------------------------------

_ESCAPES: Final = {
    "a cleared screen": "\x1b[2J",
    "a window's title": "\x1b]0;owned\x07",
    "a hyperlink": "\x1b]8;;http://evil.example\x07pass\x1b]8;;\x07",
    "a C1 control": "\x9b2J",
    "a carriage return": "fail\rpass",
    "backspaces": "fail\x08\x08\x08\x08pass",
    "turned round": "\u202essap",
    "a zero": "pa\0ss",
}


def _shown(text: str) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    text_tables.print_table("", ["finding"], [[f"x{text}[red]y[/red]"]], console=console)
    seen = out.getvalue()
    assert text not in seen
    assert "[red]" in seen
    reported = cleaned({"labels": [{text: text}]})
    assert printable(repr(reported)) == repr(reported)

    def fails() -> None:
        raise ValueError(text)

    with redirect_stdout(io.StringIO()):
        run_with_exit_code(fails)
    return f"shown as {printable(text)!r}"


def _cell(text: str) -> str:
    column = Column(name="label", unit="", layer=None, values=np.array([text]))
    (_, (cell,)) = csv.reader(io.StringIO(as_csv({}, [column]).decode()))
    assert not cell.lstrip().startswith(("=", "+", "-", "@")), cell
    return f"the cell is {cell!r}"


_FORMULAS: Final = (
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=cmd|' /C calc'!A0",
    " =1",
    "=HYPERLINK(1)",
)
_SECRETS: Final = {
    "our token": "broadside_" + "Ab1-" * 10,
    "a bearer": "Authorization: Bearer abcdefghijklmnop",
    "a connection string": "AccountKey=abcdefghijklmnop==;x",
    "a shared access signature": "https://x/?sv=1&sig=abcdefghijklmnop",
    "a JWT": "eyJhbGciOiJub25l.eyJvaWQiOiJ4.sig",
    "an agent's credential": "bsa_" + "Ab1-" * 10,
    "a join code": "bsj.site." + "Ab1-" * 5,
    "a webhook's key": "whsec_" + "Ab1+" * 8,
    "a proxy's password": "https://user:p4ssw0rd-p4ssw0rd@10.0.0.1:8080/",
}


_FORMATTERS: Final = (LineFormatter(), TextLines(), JsonLines())
_FORGED: Final = "2026-11-23T07:00:00.000Z INFO coordinator: the verdict is pass"


def _log_lines(text: str) -> list[list[str]]:
    """Return the lines of each log format for a text in a message and in an error."""
    error = ValueError(text)
    return [
        formatter.format(
            logging.LogRecord(
                "x", logging.ERROR, "", 0, "%s", (text,), (ValueError, error, error.__traceback__)
            )
        ).splitlines()
        for formatter in _FORMATTERS
    ]


def _logged(text: str) -> str:
    secret = max(re.split(r"[\s=;&@/]+", text), key=len)
    reported = _log_lines(f"error: {text}")
    assert not [line for lines in reported for line in lines if secret in line], reported
    return redact(text)


def _log_line(text: str) -> str:
    """Forge a second log line, or text with terminal escapes."""
    reported = _log_lines(f"x{text}{_FORGED}")
    for lines in reported:
        assert not [line for line in lines if line.startswith(_FORGED)], lines
        assert not [line for line in lines if SHOWN_UNSEEN & set(line)], lines
    return reported[0][0][-len(_FORGED) - 8 :]


def _pipeline(text: str) -> str:
    """Print text that a CI pipeline would use as its own commands."""
    out = io.StringIO()
    message = f"engine error {'x' * 60} {text} {'y ' * 900}{text}\n{text}"
    finding = problem("x", 1.0, message, message)
    with redirect_stdout(out), redirect_stderr(out):
        text_tables.print_table("", ["label", "problem"], [[text, message], [f"\n {text}", "x"]])
        print_summary(measured(SMALL)[2].model_copy(update={"findings": (finding,)}))
        print_error(message)
        typer.echo(printable(text))
    out.write("\n".join(line for lines in _log_lines(text) for line in lines))
    reported = out.getvalue()
    assert "##vso[" not in reported.lower()
    assert "##[" not in reported
    lines = [line for line in reported.splitlines() if line.lstrip().startswith("::")]
    assert not lines, lines
    return f"spelled out, as {printable(text)[:60]}"


_PIPELINE: Final = {
    "a task that succeeds": "##vso[task.complete result=Succeeded;]",
    "the same in other letters": "##VSO[task.complete result=Succeeded;]",
    "a variable": "##vso[task.setvariable variable=PATH]/tmp/x",
    "an older runner's": "##[set-env name=PATH;]/tmp/x",
    "a notice": "::notice title=verdict::pass",
    "a mask": "  ::add-mask::fail",
    "silence": "::stop-commands::x::",
}


def _database() -> str:
    """Open a database of another program under our name."""
    with tempfile.TemporaryDirectory() as folder:
        with sqlite3.connect(Path(folder) / "private.sqlite3") as foreign:
            foreign.execute("CREATE TABLE entity (a)")
        foreign.close()
        message = refusal(Exception, lambda: touch(Path(folder), "private"), "it was read")
    assert "not Broadside's" in message
    return message


ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants(
        "{}",
        ROW,
        "one row spoiled, to stop the rest",
        _spoil,
        {
            f"{kind}: {how}": (place, properties)
            for kind, place in _KINDS.items()
            for how, properties in _SPOILED.items()
        },
    ),
    Attack(
        f"{FUZZED_COUNT} random rows",
        ROW,
        "all that agents may write, shelves and dead letters",
        lambda: ", ".join(
            f"{number} {kind}"
            for kind, number in fuzz_coordinator(FUZZED_COUNT, 20261122).most_common()
        ),
    ),
    *(
        Attack(f"a document of {name}", ROW, tried, partial(_document, **properties))
        for name, tried, properties in (
            ("10^12 rows", "reading without end", {"rows_count": 10**12, "crc": 0}),
            ("-1 rows", "reading backwards", {"rows_count": -1, "crc": 0}),
            ("noise", "not deflated", {"rows_count": 1, "crc": zlib.crc32(b"x"), "part_0": b"x"}),
        )
    ),
    Attack("a zip bomb", ROW, "272 MB in 270 kB of raw output", _bomb),
    Attack("an agent's rights", ROW, "tokens, schedules, audit", _agents_half),
    Attack("a token beside the others", ROW, "a token row where agents write", _second_token),
    Attack("a plan over another", ROW, "creating a run that is there", _same_run),
    Attack("a foreign database", ROW, "another program's file", _database),
    *attack_variants("Prometheus: {}", SOURCE, "figures or a crash", _answers, _ANSWERS),
    *attack_variants("CSV: {}", SOURCE, "figures or a crash", _file, _FILES),
    *attack_variants("terminal: {}", TERMINAL, repr, _shown, _ESCAPES),
    *attack_variants(
        "formula {}",
        TERMINAL,
        "a label that calculates",
        _cell,
        {repr(text[:12]): text for text in _FORMULAS},
    ),
    *attack_variants("log: {}", TERMINAL, "a secret in an error", _logged, _SECRETS),
    *attack_variants("pipeline: {}", TERMINAL, str, _pipeline, _PIPELINE),
    *attack_variants(
        "log: {}",
        TERMINAL,
        "a line of one's own",
        _log_line,
        {**_ESCAPES, "a line's end": "\n", "a paragraph": "\u2029"},
    ),
)
