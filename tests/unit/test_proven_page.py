"""Test the files and counts given in tests/azure_emulator/README.md."""

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
CLAIM_SOURCES: Final = ("types", "provider", "CLI", "recordings", "SDK", "documentation")


def table(heading: str) -> list[list[str]]:
    """Return the rows in the first table under a heading, without the table heading."""
    lines = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def test_named_files_and_commands_exist() -> None:
    references = re.findall(r"`([\w.-]+/[\w./-]+)`", PAGE)
    assert references
    assert [path for path in references if not (ROOT / path).exists()] == []
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make ([\w-]+)", PAGE):
        assert f"\n{target}:" in makefile
    for module in re.findall(r"python -m ([\w.]+)", PAGE):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()


def test_every_claim_has_its_source() -> None:
    claims = table("Claims")
    assert len(claims) > 20
    for claim, *sources in claims:
        assert sources, claim
        assert any(source in sources[0] for source in (*CLAIM_SOURCES, "`", "code")), claim


def test_recording_counts_match_the_table() -> None:
    rows = tomllib.loads((ROOT / "tests/contract/azure_answers.toml").read_text("utf-8"))["answers"]
    recorded = [row for row in rows if {s.split(" | ")[0] for s in row["seen"]} - {"docs", "types"}]
    assert f"recordings: {len(recorded)} of {len(rows)} rows" in PAGE


def test_all_rehearsal_cases_have_figures() -> None:
    cases = " ".join(row[0] for row in table("Figures"))
    for case in (*examples(), *variants()):
        assert case.name in cases


@pytest.fixture(scope="module")
def schema() -> Schema:
    return Schema.read(SCHEMA)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda item: item.name)
def test_mistakes_are_detected_as_documented(mistake: Mistake, schema: Schema) -> None:
    """Check mistakes that can be found by a rule. The others need a long rehearsal."""
    detected_by = {row[0]: row[1] for row in table("Planted mistakes")}[mistake.name]
    assert detected_by in ("deploy-check", "up", "after up", "plan after scale")
    assert any(range_faults(broken(mistake), schema)) == (detected_by == "deploy-check")
