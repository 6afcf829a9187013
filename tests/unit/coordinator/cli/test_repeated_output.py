"""Tests for the repeated output of ``--watch``."""

import sys
from collections.abc import Sequence

import pytest
import typer

from broadside.coordinator.cli.exit_codes import INTERRUPTED
from broadside.coordinator.cli.repeated_output import repeat


def watched(
    texts: Sequence[str], output: str, monkeypatch: pytest.MonkeyPatch
) -> "pytest.ExceptionInfo[typer.Exit]":
    """Repeat a command that prints the texts, with Ctrl-C after the last one."""
    remaining = list(texts)

    def command() -> None:
        if not remaining:
            raise KeyboardInterrupt
        typer.echo(remaining.pop(0))

    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(typer.Exit) as ended:
        repeat(command, output)
    return ended


@pytest.mark.parametrize(
    ("output", "texts", "expected"),
    [
        ("table", ["head\na 1\nb 1", "head\na 1\nb 1", "head\na 1\nb 2"], "head\na 1\nb 1\nb 2\n"),
        ("csv", ["head\na 1", "head\na 1\nb 1"], "head\na 1\nb 1\n"),
        ("json", ["[1]", "[1]", "[1,\n2]"], "[1]\n[1,\n2]\n"),
    ],
)
def test_without_a_terminal_only_changes_are_printed(
    output: str,
    texts: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ended = watched(texts, output, monkeypatch)
    printed = capfd.readouterr()
    assert (ended.value.exit_code, printed.out, printed.err) == (INTERRUPTED, expected, "")


def test_dumb_terminal_only_gets_changes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    watched(["head\na 1", "head\na 2"], "table", monkeypatch)
    assert capfd.readouterr().out == "head\na 1\na 2\n"


def test_terminal_is_drawn_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    ended = watched(["head\na 1", "head\na 2"], "table", monkeypatch)
    printed = capfd.readouterr().out
    assert ended.value.exit_code == INTERRUPTED
    assert printed.index("a 1") < printed.index("a 2")
    # The cursor moves up, and is visible again at the end.
    assert "\x1b[1A" in printed
    assert printed.rstrip().endswith("\x1b[?25h")
