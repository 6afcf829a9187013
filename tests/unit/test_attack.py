"""Some of the attacks, and that the threat model names tests and measures that are there."""

import re
from pathlib import Path

import pytest

from tests.attack import Attack
from tests.attack.__main__ import attacks, fight

_EVERY = 9  # one of so many: all of them are `make attack`
_ALL = attacks()
_ROOT = Path(__file__).parents[2]


def test_there_are_attacks_on_every_boundary() -> None:
    assert len(_ALL) >= 120
    assert len({attack.boundary for attack in _ALL}) >= 6
    names = [(attack.boundary, attack.name) for attack in _ALL]
    assert len(set(names)) == len(names)


@pytest.mark.filterwarnings("ignore")  # servers and clients of one attack end with the process
@pytest.mark.parametrize("attack", _ALL[::_EVERY], ids=lambda attack: attack.name)
def test_nothing_gets_through(attack: Attack) -> None:
    stopped, by = fight(attack)
    assert stopped, f"{attack.boundary}: {attack.name} ({attack.tried}): {by}"


_PAGE = (_ROOT / "docs" / "threats.md").read_text()
_REVIEW = (_ROOT / "tests" / "review" / "README.md").read_text()


def _rows(page: str, title: str) -> list[list[str]]:
    """The cells of each row of a section's table."""
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
def test_every_claim_names_a_test_or_attack_that_exists(row: list[str]) -> None:
    """The last cell of each row: files of tests or attacks, with or without a name in them."""
    shown_by = re.findall(r"`([^`]+)`", row[-1])
    assert shown_by, "a claim that nothing shows"
    assert all(row[1:]), "an empty cell"
    for named in shown_by:
        file, _, function = named.partition("::")
        path = _ROOT / file
        assert file.startswith("tests/") and path.is_file(), named
        text = path.read_text()
        if function:
            assert re.search(rf"def {function}\(", text), named
        else:
            assert "ATTACKS" in text or "def test_" in text or "def fuzz" in text, named
