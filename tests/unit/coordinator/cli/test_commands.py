"""The list of commands, which is read without loading any, says what the commands say."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from broadside.coordinator.cli import load
from broadside.coordinator.cli.command_list import COMMANDS
from broadside.coordinator.cli.exit_codes import EXIT_BY_ERROR
from tests.live.commands import run_command

ROOT: Final = Path(__file__).parents[4]


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, one in (inner or {}).items():
        yield from leaves(one, f"{path} {name}")


LEAVES = dict(leaf for name in COMMANDS for leaf in leaves(load(name), name))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_its_own_first_sentence(name: str) -> None:
    assert load(name).get_short_help_str(1000) == COMMANDS[name].help


def example(path: str) -> str:
    """The example of a command, without `broadside`."""
    return str(LEAVES[path].epilog).removeprefix("Example: broadside ")


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_shows_an_example_of_itself(path: str) -> None:
    assert f"{example(path)} ".startswith(f"{path} ")


@pytest.mark.parametrize("path", LEAVES)
def test_every_option_has_a_help_that_is_a_sentence(path: str) -> None:
    for option in LEAVES[path].params:
        if option.name != "help" and not getattr(option, "hidden", False):
            assert option.help and option.help[0].isupper(), option.name
            assert option.help.endswith(".") or option.help.endswith("]"), option.name


@pytest.mark.parametrize("name", [name for name in COMMANDS if hasattr(load(name), "commands")])
def test_a_group_shows_an_example_and_its_commands_whole_sentences(name: str) -> None:
    group: Any = load(name)
    assert group.epilog.startswith(f"Example: broadside {name} ")
    for inner in group.commands.values():
        assert inner.get_short_help_str(45)[-1] in ".:", inner.name
        assert not inner.get_short_help_str(45).endswith("..."), inner.name


LISTS = [
    path
    for path, command in LEAVES.items()
    if any(option.name == "form" for option in command.params)
    and not any(option.required for option in command.params)
    and path not in ("scenarios", "launch", "compare")
]


@pytest.mark.parametrize("path", LISTS)
def test_a_list_of_nothing_says_so(
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path))
    done = run_command(path.split(), monkeypatch, capfd)
    assert done.returncode == 0, done.stderr
    [text] = done.stdout.splitlines()
    assert text.startswith(("no ", "nothing "))


@pytest.mark.parametrize("path", LEAVES)
def test_an_example_is_accepted(path: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = shlex.split(example(path))
    for part in parts:
        if part.endswith((".csv", ".json", ".tfvars")):  # files that the command wants to exist
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / part).touch()
    command: Any = LEAVES[path]
    given = parts[len(path.split()) :]
    try:
        command.make_context(path, given)  # parses and checks; nothing is called
    except typer.TyperException as error:
        pytest.fail(f"{path}: {error.format_message()}")


@pytest.mark.parametrize("name", [name for name in COMMANDS if hasattr(load(name), "commands")])
def test_a_group_without_a_command_says_what_is_missing(name: str) -> None:
    group: Any = load(name)
    with pytest.raises(typer.TyperException) as refused:
        group.invoke(group.make_context(name, []))
    assert refused.value.format_message() == "Missing command."


def test_errors_that_are_told_by_name_have_it() -> None:
    rooms = (ROOT / space for space in ("coordinator", "exchange", "lab"))
    texts = [path.read_text("utf-8") for space in rooms for path in space.rglob("*.py")]
    assert EXIT_BY_ERROR.keys() <= set(re.findall(r"^class (\w+)", "\n".join(texts), re.M))
