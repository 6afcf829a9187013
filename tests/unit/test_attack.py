"""Test a part of the attacks, and that the threat model refers to existing tests and measures."""

import re
from pathlib import Path

import pytest

from tests.attack.__main__ import attacks

_ATTACKS = attacks()
_ROOT = Path(__file__).parents[2]


def test_all_boundaries_have_attacks() -> None:
    assert len(_ATTACKS) >= 120
    assert len({attack.boundary for attack in _ATTACKS}) >= 6
    names = [(attack.boundary, attack.name) for attack in _ATTACKS]
    assert len(set(names)) == len(names)


_PAGE = (_ROOT / "docs" / "threats.md").read_text()
_REVIEW = (_ROOT / "tests" / "review" / "README.md").read_text()


def _rows(page: str, title: str) -> list[list[str]]:
    """Return the cells for all rows in the table of a section."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return cells[2:]


_REVIEWED = [_rows(_REVIEW, title) for title in ("Security and reliability", "Earlier review")]
_CLAIMS = [*_rows(_PAGE, "Boundaries"), *(row for rows in _REVIEWED for row in rows)]


def test_all_claims_are_read() -> None:
    assert len(_CLAIMS) > 60
    numbers = [[row[0] for row in rows] for rows in _REVIEWED]
    assert numbers == [[f"S{n}" for n in range(1, 10)], [*(f"S{n}" for n in range(1, 13)), "T12"]]


@pytest.mark.parametrize("row", _CLAIMS, ids=lambda row: f"{row[0]} {row[1]}"[:60])
def test_every_claim_has_an_existing_test_or_attack(row: list[str]) -> None:
    """Check the last cell in the row. It should have files with tests or attacks, and can have a
    name in them."""
    references = re.findall(r"`([^`]+)`", row[-1])
    assert references, "the claim has no test"
    assert all(row[1:]), "an empty cell"
    for reference in references:
        file, _, function = reference.partition("::")
        path = _ROOT / file
        assert file.startswith("tests/") and path.is_file(), reference
        text = path.read_text()
        if function:
            assert re.search(rf"def {function}\(", text), reference
        else:
            assert "ATTACKS" in text or "def test_" in text or "def fuzz" in text, reference
