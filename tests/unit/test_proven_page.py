"""tests/azure_emulator/README.md: its files exist, and its counts are those of the tables."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.azure_emulator.range_cases import examples, variants
from tests.deploy_check.__main__ import SCHEMA, range_faults
from tests.deploy_check.schema import Schema
from tests.planted_mistakes import MISTAKES, Mistake, broken

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "tests" / "azure_emulator" / "README.md").read_text("utf-8")
WITNESSES: Final = ("types", "provider", "CLI", "recordings", "SDK", "documentation")


def table(heading: str) -> list[list[str]]:
    """The rows of a heading's first table, without its own heading."""
    lines = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def test_every_file_and_command_that_it_names_is_there() -> None:
    named = re.findall(r"`([\w.-]+/[\w./-]+)`", PAGE)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make ([\w-]+)", PAGE):
        assert f"\n{target}:" in makefile
    for module in re.findall(r"python -m ([\w.]+)", PAGE):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()


def test_every_claim_says_what_it_is_held_against() -> None:
    claims = table("Claims")
    assert len(claims) > 20
    for claim, *stored in claims:
        assert stored, claim
        assert any(witness in stored[0] for witness in (*WITNESSES, "`", "code")), claim


def test_counts_of_recordings_are_the_table_s() -> None:
    rows = tomllib.loads((ROOT / "tests/contract/azure_answers.toml").read_text("utf-8"))["answers"]
    recorded = [row for row in rows if {s.split(" | ")[0] for s in row["seen"]} - {"docs", "types"}]
    assert f"recordings: {len(recorded)} of {len(rows)} rows" in PAGE


def test_every_case_of_the_rehearsal_has_its_figures() -> None:
    cases = " ".join(row[0] for row in table("Figures"))
    for case in (*examples(), *variants()):
        assert case.name in cases


@pytest.fixture(scope="module")
def schema() -> Schema:
    return Schema.read(SCHEMA)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.name)
def test_every_planted_mistake_is_caught_as_its_table_says(
    mistake: Mistake, schema: Schema
) -> None:
    """By a rule or not; what passes the rules is the rehearsal's, in half an hour."""
    by = {row[0]: row[1] for row in table("Planted mistakes")}[mistake.name]
    assert by in ("deploy-check", "up", "after up", "plan after scale")
    assert any(range_faults(broken(mistake), schema)) == (by == "deploy-check")
