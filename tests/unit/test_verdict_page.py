"""docs/verdict.md gives every number of the measuring and judging core with where it is from."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verdict.md").read_text("utf-8")
CONSTANT = re.compile(
    r"^([A-Z][A-Z0-9_]*): Final(?:\[\w+\])? = (-?[\d_.]+(?:e-?\d+)?)\s*(?:#|$)", re.M
)
ROWS = dict(re.findall(r"^\| `(\w+\.[A-Z0-9_]+)` \| ([^|]+?) \|", PAGE, re.M))
CONSTANTS = {
    f"{path.stem}.{name}": value
    for room in ("measure", "judge")
    for path in sorted((ROOT / "coordinator" / "core" / room).rglob("*.py"))
    for name, value in CONSTANT.findall(path.read_text("utf-8"))
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_constant_is_explained(name: str) -> None:
    assert name in ROWS, f"docs/verdict.md: a row for {name}"
    assert float(ROWS[name].replace(",", "")) == float(CONSTANTS[name].replace("_", ""))


def test_no_constant_is_explained_that_is_not_there() -> None:
    assert set(ROWS) - set(CONSTANTS) == set()
