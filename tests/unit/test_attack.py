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


def test_every_file_that_the_threat_model_names_is_there() -> None:
    text = (_ROOT / "docs" / "threats.md").read_text()
    named = re.findall(r"`((?:tests|coordinator|exchange|agent|deploy)/[\w/.-]+)`", text)
    assert len(named) > 20
    assert [name for name in named if not (_ROOT / name).exists()] == []
    found = re.findall(r"^\| ([ST]\d+) \|.*::", text, re.MULTILINE)
    assert found == [*(f"S{number}" for number in range(1, 13)), "T12"]
    functions = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    for file, function in functions:
        assert f"def {function}(" in (_ROOT / file).read_text(), (file, function)
