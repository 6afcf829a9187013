"""Tests for attack that need processes, sockets or real time."""

import pytest

from tests.attack import Attack
from tests.attack.__main__ import fight
from tests.unit.test_attack import _ATTACKS

# Use every ninth attack. To run all of them, use `make attack`.
_STEP = 9


# Servers and clients used in an attack end with the process.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attack", _ATTACKS[::_STEP], ids=lambda attack: attack.name)
def test_attack_is_stopped(attack: Attack) -> None:
    stopped, defence = fight(attack)
    assert stopped, f"{attack.boundary}: {attack.name} ({attack.tried}): {defence}"
