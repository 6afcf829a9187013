"""The list of commands, which is read without loading any, says what the commands say."""

import pytest

from coordinator.cli import COMMANDS, load


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_its_own_first_sentence(name: str) -> None:
    assert load(name).get_short_help_str(1000) == COMMANDS[name][1]
