"""Tests that secrets are only written to private files and not used as arguments."""

from broadside.coordinator.cli.command_list import COMMANDS, PRIVATE_COMMANDS


def test_private_commands_exist() -> None:
    assert set(COMMANDS) >= PRIVATE_COMMANDS
