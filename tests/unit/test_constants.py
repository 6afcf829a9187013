"""Test that all constants used to measure and judge have their support in docs/constants.csv."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.docs_build import constants_page

PAGE = vars(constants_page)
NUMBERS: Mapping[str, str] = PAGE["numbers"]()
ROWS: Mapping[str, Any] = PAGE["supports"]()
DECISIVE = {name for name, row in ROWS.items() if row.kind not in ("work", "beside")}


def test_constants_and_lines_match() -> None:
    assert set(ROWS) - set(NUMBERS) == set(), "docs/constants.csv: remove"
    assert set(NUMBERS) - set(ROWS) == set(), "docs/constants.csv: add a line"


@pytest.mark.parametrize("name", ROWS)
def test_every_line_has_a_support(name: str) -> None:
    assert ROWS[name].kind in PAGE["KINDS"]
    assert len(ROWS[name].support) > 3


def test_computed_constants_and_times_have_lines() -> None:
    assert {"headers.OVERHEAD_MORE_RATIO", "lag.EVIDENCE_COST", "outages._SAME"} <= set(NUMBERS)
    assert NUMBERS["headers.MSS_ASSUMED_BYTES"] == "1448"
    assert NUMBERS["outages._SAME"] == "5"
    assert not {name for name in NUMBERS if name.endswith((".NEXT_RUNS", "._MAGIC"))}


def test_no_constant_is_without_support() -> None:
    assert "unsupported" not in PAGE["KINDS"]


def test_definitions_are_explained() -> None:
    defined = [row for row in ROWS.values() if row.kind == "definition"]
    assert defined
    assert all(len(row.support.split()) >= 4 for row in defined)


def test_decisive_constants_were_halved_and_doubled() -> None:
    missing = DECISIVE - set(PAGE["effects"]())
    assert missing == set(), "python -m tests.constants_effect NAME ..."


def test_all_effects_use_the_same_cases() -> None:
    columns = ("halved_real", "halved_worlds", "doubled_real", "doubled_worlds")
    lines = PAGE["effects"]().values()
    for column in columns:
        assert len({line[column].partition("/")[2] for line in lines}) == 1, column


def test_other_constants_do_not_change_a_verdict() -> None:
    changed = {
        name
        for name, line in PAGE["effects"]().items()
        if name not in DECISIVE
        and any(
            value[0] != "0" for key, value in line.items() if key.endswith(("_real", "_worlds"))
        )
    }
    assert changed == set()
