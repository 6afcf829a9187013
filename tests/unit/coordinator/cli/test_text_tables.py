"""Tests for text tables when the terminal is wide or narrow."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from broadside.coordinator.cli.text_tables import print_table

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
    assert "not shown: scenario, by, why;" in text


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
