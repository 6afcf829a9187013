"""Tests for tables of wide and narrow terminals, for other formats and for styles."""

import json
import string
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from broadside.coordinator.cli import command_group
from broadside.coordinator.cli.command_group import Output
from broadside.coordinator.cli.document_output import OutputFormat
from broadside.coordinator.cli.terminal_text import is_unwrapped, open_console
from broadside.coordinator.cli.text_tables import ListTable, print_list, print_table
from broadside.exchange.messages import Message

RUN = "20261120-143028-accelerated-networking-cc93"
COLUMNS = ["run", "scenario", "created", "by", "why", "verdict"]
WHY = "the sum's variance is 3 % of the pairs' own"
ROW = [RUN, "accelerated-networking", "2026-11-20 14:30:28Z", "operator", WHY, "inconclusive"]


def shown(columns: list[str], rows: list[list[str]], width: int, *low_priority: str) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as taken:
        print_table("", columns, rows, low_priority=low_priority, console=console)
    return taken.get()


def test_narrow_table_prints_complete_ids_and_names_hidden_columns() -> None:
    text = shown(COLUMNS, [ROW], 80, "scenario")
    assert RUN in text and "inconclusive" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "not shown: scenario, why;" in text


def test_piped_table_prints_a_row_on_one_line() -> None:
    [_, line] = shown(COLUMNS, [ROW], 1000).splitlines()
    assert all(cell in line for cell in ROW)


@pytest.mark.parametrize("width", [10, 40])
def test_id_wider_than_the_terminal_is_wrapped(width: int) -> None:
    assert RUN in "".join(shown(["run", "why"], [[RUN, ""]], width).split())


tokens = st.text(string.ascii_letters + string.digits + "-", min_size=1, max_size=20)
cells = st.lists(tokens, max_size=6).map(" ".join)


@given(st.data(), st.integers(1, 6))
def test_printed_cells_are_not_truncated(data: st.DataObject, count: int) -> None:
    columns = [f"c{number}" for number in range(count)]
    rows = data.draw(st.lists(st.lists(cells, min_size=count, max_size=count), max_size=4))
    text = shown(columns, rows, 60)
    assert all(len(line) <= 60 for line in text.splitlines())
    head = next(line for line in text.splitlines() if line.strip())
    printed = set(text.split())
    for place, name in enumerate(columns):
        if name in head.split():
            assert {part for row in rows for part in row[place].split()} <= printed


def test_essential_columns_are_wrapped_instead_of_omitted() -> None:
    columns = ["run", "scenario", "created", "verdict", "received"]
    row = [RUN, *ROW[1:3], "inconclusive (cancelled)", "1.963 Gbit/s ip, lab at 1:100"]
    text = shown(columns, [row], 80, "scenario", "created")
    [head, first, *_] = text.splitlines()
    assert head.split() == ["run", "verdict", "received"]
    assert first.startswith(f"{RUN}  inconclusive")
    assert {"inconclusive", "(cancelled)", "1.963", "Gbit/s", "ip,", "lab", "at", "1:100"} <= set(
        text.split()
    )
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("is_terminal", "variables", "has_styles"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, False),
    ],
)
@pytest.mark.parametrize("stderr", [True, False])
def test_styles_need_a_terminal_that_has_them(
    is_terminal: bool,
    variables: dict[str, str],
    has_styles: bool,
    stderr: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **variables}.items():
        monkeypatch.setenv(name, value)
    stream = sys.stderr if stderr else sys.stdout
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    console = open_console(stderr=stderr)
    with console.capture() as taken:
        console.print("verdict: [bold red]fail[/bold red]")
    assert ("\x1b" in taken.get()) == has_styles
    assert "fail" in taken.get()


def test_only_one_function_opens_consoles() -> None:
    """Another console could print styles into a file."""
    folder = Path(command_group.__file__).parent
    texts = {path.name: path.read_text("utf-8") for path in folder.glob("*.py")}
    assert {name for name, text in texts.items() if " Console(" in text} == {"terminal_text.py"}


def test_wide_output_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    before = is_unwrapped.set(True)
    try:
        assert open_console().width > 1000
    finally:
        is_unwrapped.reset(before)


class Inner(Message):
    """Part of a row."""

    verdict: str


class Row(Message):
    """Row of a list."""

    name: str
    rate: float | None = None
    inner: Inner | None = None


ROWS = [Row(name="a: b", rate=1.5, inner=Inner(verdict="pass")), Row(name="=SUM(1)")]
LIST = ListTable(
    columns={"name": "name", "verdict": "inner.verdict", "rate": "rate"},
    model=f"{__name__}:Row",
    empty="no row",
    wide=["rate"],
)
DUMPED = (
    '[{"name": "a: b", "rate": 1.5, "inner": {"verdict": "pass"}}, '
    '{"name": "=SUM(1)", "rate": null, "inner": null}]'
)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("table", ["name     verdict", "a: b     pass", "=SUM(1)"]),
        ("wide", ["name     verdict  rate", "a: b     pass     1.5", "=SUM(1)"]),
        ("csv", ["name,rate,inner_verdict", "a: b,1.5,pass", "'=SUM(1),,"]),
        (
            "yaml",
            [
                *("- name: 'a: b'", "  rate: 1.5", "  inner:", "    verdict: pass"),
                *("- name: =SUM(1)", "  rate: null", "  inner: null"),
            ],
        ),
    ],
)
def test_list_has_the_same_rows_in_every_format(
    form: str, expected: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    print_list(Output(output=OutputFormat(form)), ROWS, LIST)
    assert [line.rstrip() for line in capfd.readouterr().out.splitlines()] == expected
    print_list(Output(output=OutputFormat.JSON), ROWS, LIST)
    assert json.loads(capfd.readouterr().out) == json.loads(DUMPED)


def test_object_without_a_model_is_one_row_of_text(capfd: pytest.CaptureFixture[str]) -> None:
    value = {"lab": "bs", "limits": ["no cc"], "host": {"name": "c001"}, "left": None}
    Output(output=OutputFormat.CSV).show(value, lambda _: None)
    assert capfd.readouterr().out.splitlines() == [
        "lab,limits,host_name,left",
        "bs,no cc,c001,",
    ]
