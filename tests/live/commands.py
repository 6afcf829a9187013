"""Run ``broadside`` commands inside the test process, to save the start of a new process."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from broadside.coordinator.cli import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Exit code and output of a command and its child processes."""

    returncode: int
    stdout: str
    stderr: str


def run_command(
    arguments: Sequence[str], patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Done:
    """Run a command in the environment prepared by ``patch``."""
    capfd.readouterr()
    patch.setattr(sys, "argv", ["broadside", *arguments])
    # Commands that write private files change it for the process.
    umask = os.umask(0o022)
    os.umask(umask)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        os.umask(umask)
    code = ended.value.code
    out, err = capfd.readouterr()
    return Done(returncode=code if isinstance(code, int) else 0, stdout=out, stderr=err)
