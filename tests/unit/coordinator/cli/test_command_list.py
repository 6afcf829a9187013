"""Tests for the command list, which must be consistent with the commands."""

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
    for name, subcommand in (inner or {}).items():
        yield from leaves(subcommand, f"{path} {name}")


LEAVES = dict(leaf for name in COMMANDS for leaf in leaves(load(name), name))


@pytest.mark.parametrize("name", COMMANDS)
def test_command_list_shows_first_sentence_of_help(name: str) -> None:
    assert load(name).get_short_help_str(1000) == COMMANDS[name].help


def example(path: str) -> str:
    """Return the example for a command, without `broadside`."""
    return str(LEAVES[path].epilog).removeprefix("Example: broadside ")


@pytest.mark.parametrize("path", LEAVES)
def test_all_commands_have_an_example(path: str) -> None:
    assert f"{example(path)} ".startswith(f"{path} ")


@pytest.mark.parametrize("path", LEAVES)
def test_option_help_is_a_sentence(path: str) -> None:
    for option in LEAVES[path].params:
        if option.name != "help" and not getattr(option, "hidden", False):
            assert option.help and option.help[0].isupper(), option.name
            assert option.help.endswith(".") or option.help.endswith("]"), option.name


@pytest.mark.parametrize("name", [name for name in COMMANDS if hasattr(load(name), "commands")])
def test_group_help_has_example_and_complete_sentences(name: str) -> None:
    group: Any = load(name)
    assert group.epilog.startswith(f"Example: broadside {name} ")
    for inner in group.commands.values():
        assert inner.get_short_help_str(45)[-1] in ".:", inner.name
        assert not inner.get_short_help_str(45).endswith("..."), inner.name


LISTS = [
    path
    for path, command in LEAVES.items()
    if str(command.help).startswith("List ")
    and not any(option.required for option in command.params)
    and path not in ("scenarios", "prune")
]


@pytest.mark.parametrize("path", LISTS)
def test_empty_list_prints_a_message(
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


# Commands that print no list and no object, and those that print the bytes of an engine.
NO_RESULT = """
    serve agent mcp healthy emulators-ready raw baseline backup restore token.revoke enroll.revoke
    enroll.new-authority up scale park unpark down capacity.set capacity.restore policy-switch
"""


@pytest.mark.parametrize("path", LEAVES)
def test_commands_have_one_output_option(path: str) -> None:
    """``-o`` selects the format in all commands, and no other option does."""
    options = {name: option for option in LEAVES[path].params for name in option.opts}
    assert not {"--json", "--format"} & options.keys()
    if path.replace(" ", ".") in NO_RESULT.split():
        assert "-o" not in options
        return
    assert options["-o"] is options["--output"]
    formats = set(options["-o"].type.choices)
    # These commands write a file.
    if path not in ("report", "export", "study report"):
        assert formats >= {"json", "yaml", "table", "csv", "wide"}


@pytest.mark.parametrize("path", LEAVES)
def test_examples_are_valid(path: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = shlex.split(example(path))
    for part in parts:
        # The command needs these files to exist.
        if part.endswith((".csv", ".json", ".tfvars")):
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / part).touch()
    command: Any = LEAVES[path]
    given = parts[len(path.split()) :]
    try:
        # This will parse the arguments but not call the command.
        command.make_context(path, given)
    except typer.TyperException as error:
        pytest.fail(f"{path}: {error.format_message()}")


@pytest.mark.parametrize("name", [name for name in COMMANDS if hasattr(load(name), "commands")])
def test_group_without_command_is_an_error(name: str) -> None:
    group: Any = load(name)
    with pytest.raises(typer.TyperException) as refused:
        group.invoke(group.make_context(name, []))
    assert refused.value.format_message() == "Missing command."


def test_errors_with_exit_codes_exist() -> None:
    folders = (ROOT / name for name in ("coordinator", "exchange", "lab"))
    texts = [path.read_text("utf-8") for folder in folders for path in folder.rglob("*.py")]
    assert EXIT_BY_ERROR.keys() <= set(re.findall(r"^class (\w+)", "\n".join(texts), re.M))
