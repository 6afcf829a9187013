"""A ``broadside`` command inside this process: what a test of many commands can afford."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from broadside.coordinator.cli import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended, and what it and its children wrote."""

    returncode: int
    stdout: str
    stderr: str


def run_command(
    words: Sequence[str], patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Done:
    """Run a command to its end, with the environment as ``patch`` has made it."""
    capfd.readouterr()
    patch.setattr(sys, "argv", ["broadside", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    out, err = capfd.readouterr()
    return Done(returncode=code if isinstance(code, int) else 0, stdout=out, stderr=err)
