"""Tests for attacks that need processes, sockets or real time."""

import pytest

from tests.attack import Attack
from tests.attack.on_agents import ATTACKS


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_is_stopped_by_a_named_defence(attack: Attack) -> None:
    assert attack.run()
