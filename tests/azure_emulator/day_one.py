"""Test of docs/day-one.md: runs its `sh` blocks and compares the output with its `text` blocks."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.azure_emulator.range_cases import Fault, Report, bodies_must_be_sound, must, nothing_left
from tests.azure_emulator.stage import KEY, Stage
from tests.deploy_check.tools import ROOT

PAGE: Final = ROOT / "docs" / "day-one.md"
_MARK: Final = "@@ step"
_FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The `broadside` commands of the page that use the range's files use the copy on the stage.
_BROADSIDE: Final = """#!/bin/sh
verb=$1; shift
cd "{root}" && exec "{python}" -m broadside.coordinator "$verb" --directory "{directory}" "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Block of commands with its required output lines."""

    commands: str
    prints: tuple[str, ...]


def steps_of(page: str, heading: str) -> list[Step]:
    """Return the `sh` blocks below a second-level heading, each with the next `text` block."""
    _, _, below = page.partition(f"\n## {heading}\n")
    section = below.partition("\n## ")[0]
    results: list[Step] = []
    for kind, body in _FENCE.findall(section):
        if kind == "sh":
            results.append(Step(commands=body, prints=()))
        elif kind == "text" and results:
            lines = tuple(line for line in body.splitlines() if line.strip())
            results[-1] = Step(commands=results[-1].commands, prints=lines)
    return results


def missing_line(printed: str, wanted: Sequence[str]) -> str | None:
    """Return the first missing line in order, or None. ``...`` matches any text."""
    lines = iter(printed.splitlines())
    for line in wanted:
        if line.strip() == "...":
            continue
        parts = (re.escape(part.strip()) for part in line.split("..."))
        pattern = re.compile(r".*".join(parts))
        if not any(pattern.search(item) for item in lines):
            return line
    return None


def follow(stage: Stage, heading: str) -> Report:
    """Run a section of the page, and raise :class:`Fault` if it fails."""
    report = Report(name=f"day one, {heading.lower()}")
    before = stage.subscription.snapshot()
    _dress(stage)
    steps = steps_of(PAGE.read_text("utf-8"), heading)
    script = "set -eu\n" + "".join(f"echo '{_MARK}'\n{step.commands}" for step in steps)
    checkout = stage.folder / "checkout"
    done = must(stage.run(["sh", "-c", script], cwd=checkout), heading)
    report.steps_s[f"{len(steps)} steps"] = done.took_s
    printed = done.output.split(f"{_MARK}\n")[1:]
    for step, reported in zip(steps, printed, strict=True):
        if (line := missing_line(reported, step.prints)) is not None:
            raise Fault(f"{step.commands}does not print {line!r} but\n{reported[-3000:]}")
    nothing_left(stage, before)
    bodies_must_be_sound(stage, report)
    return report


def _dress(stage: Stage) -> None:
    """Create the checkout, SSH key, package and `broadside` command that the page requires."""
    checkout, home = stage.folder / "checkout", stage.folder / "home"
    (checkout / "deploy").mkdir(parents=True)
    (checkout / "dist").mkdir()
    (home / ".ssh").mkdir(parents=True)
    (stage.directory / "terraform.tfvars").unlink()
    stage.directory.rename(checkout / "deploy" / "azure")
    (checkout / "dist" / "broadside-bundle.tar.gz").write_bytes(os.urandom(200_000))
    (home / ".ssh" / "id_ed25519.pub").write_text(f"{KEY}\n")
    (home / "bin").mkdir()
    program = home / "bin" / "broadside"
    program.write_text(
        _BROADSIDE.format(
            root=ROOT, python=Path(sys.executable), directory=checkout / "deploy" / "azure"
        )
    )
    program.chmod(0o755)
    stage.environment |= {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{stage.environment['PATH']}",
        # The real delay of Azure is two minutes.
        "TF_VAR_role_settle_s": "3",
    }
