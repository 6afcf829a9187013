"""Processes of the reviewed version and today's version that run `common_functions`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.compat.read import FIXTURES, unpack_source
from tests.compat.write import ROOT

REVIEWED: Final = "6cca7b45"


class Answers(NamedTuple):
    """Results of both versions."""

    reviewed: Any
    today: Any


class Version:
    """Process of one version."""

    def __init__(self, packages: Path, data: Path) -> None:
        self.packages = packages
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("common_functions.py"))],
            env=os.environ
            | {"PYTHONPATH": str(packages), "BROADSIDE_DATA_DIR": str(data), "TZ": "UTC"},
            cwd=data.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, function: str, *arguments: object) -> Any:
        """Return the result of a function."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([function, *arguments]), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["answer"]

    def close(self) -> None:
        self._process.communicate()


@dataclass(frozen=True, slots=True)
class Versions:
    """Both versions."""

    reviewed: Version
    today: Version

    def ask(self, function: str, *arguments: object) -> Answers:
        """Return the results of a function in both versions."""
        # The reviewed version has no `--output json`.
        before = ["--json" if one == "--output=json" else one for one in arguments]
        return Answers(self.reviewed.ask(function, *before), self.today.ask(function, *arguments))


@contextmanager
def both(folder: Path) -> Iterator[Versions]:
    """Start both versions with data folders below a folder."""
    packages = unpack_source(FIXTURES / REVIEWED / "source.tar.xz", folder / "packages")
    reviewed = Version(packages, folder / "reviewed")
    today = Version(ROOT / "src", folder / "today")
    try:
        yield Versions(reviewed, today)
    finally:
        reviewed.close()
        today.close()


def build_gate(versions: Versions) -> None:
    """Build the start gate of the reviewed version. Today's gate is already built."""
    folder = versions.reviewed.packages / "agent"
    target = folder / "libgate.abi3.so"
    build = ["cc", "-shared", "-fPIC", "-o", str(target), str(folder / "gate.c"), "-ldl"]
    subprocess.run(build, check=True)
