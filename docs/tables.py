"""Writes the generated pages of docs/ from the code: ``python docs/tables.py``."""

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from broadside.agent.agent_settings import AgentSettings
from broadside.coordinator.api.problems import KINDS, type_of
from broadside.coordinator.auth.signin_settings import SignInSettings
from broadside.coordinator.cli import load
from broadside.coordinator.cli.command_list import EXAMPLES, GROUPS, SERVICE_COMMANDS
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.judge.checks import BURST_CHECKS, PRECEDENCE, RUN_CHECKS
from broadside.exchange.fabric import FabricSettings

DOCS = Path(__file__).parent
SETTINGS = """\
# Settings

Environment variables; agents and coordinators need only those of the fabric to find each other.
This page is written by `python docs/tables.py`."""
COMMANDS = """\
# Commands

`broadside COMMAND --help` has every option. What prints data takes `--json`: standard output is
then the JSON and nothing else. `broadside --install-completion` teaches the shell commands, runs,
scenarios, fields and charts; `last` is the newest run. The exit code says the end: 0 pass, measured
or done, 1 fail, 2 inconclusive, 3 wrong usage, 4 could not run. `--set` takes any field of a
scenario, by its short name where only one field has it, and values with units: `--set burst=30s`,
`--set target=180Gbit`, `--set tolerance=5%`. This page is written by `python docs/tables.py`."""
PROBLEMS = """\
# Problems

A refusal is an RFC 9457 problem document: `type` is one of these addresses, which any coordinator
answers; `detail` is one line for a person; `errors`, where something in particular is wrong, names
each place by `pointer` (RFC 6901, into the body) or `parameter`. This page is written by
`python docs/tables.py`.

| type | status | title | meaning |
| --- | --- | --- | --- |"""
CHECKS = """\
# Checks of a verdict

A verdict is decided by checks. Each check asks one question of the recorded evidence and returns
*pass*, *fail*, *inconclusive* or *measured*, with findings that say why. The symbols are those of
[verdict.md](verdict.md). This page is written by `python docs/tables.py`.

## Order of precedence

The first row that applies decides: first for each burst, from the checks of that burst; then for
the run, from the checks of the run and the bursts' verdicts. A burst that fails counts in row 2.

| row | situation | verdict | checks |
| --- | --- | --- | --- |"""
CLASSES: tuple[tuple[str, type[BaseSettings]], ...] = (
    ("Fabric: where coordinator and agents meet (set on both)", FabricSettings),
    ("Coordinator", CoordinatorSettings),
    ("Coordinator: sign-in and limits", SignInSettings),
    ("Agent", AgentSettings),
)


def settings_page() -> str:
    """Every setting as Markdown: environment variable, default, meaning."""
    parts = [SETTINGS]
    for title, settings in CLASSES:
        prefix = settings.model_config.get("env_prefix", "")
        parts.append(f"\n## {title}\n\n| variable | default | meaning |\n| --- | --- | --- |")
        for name, field in settings.model_fields.items():
            default = field.default
            shown = (
                ("see meaning" if field.default_factory else "required")
                if default is PydanticUndefined
                else "unset"
                if default is None
                else f"`{_plain(default)}`"
            )
            parts.append(f"| `{(prefix + name).upper()}` | {shown} | {field.description} |")
    return "\n".join(parts) + "\n"


def _plain(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(str(part) for part in default)
    return str(getattr(default, "value", default))


def commands_page() -> str:
    """Every command by group as Markdown: what it does, and a line that works as written."""
    parts = [COMMANDS]
    called = "Called by containers, units and install scripts"
    for title, commands in {**GROUPS, called: SERVICE_COMMANDS}.items():
        parts.append(f"\n## {title}\n\n| command | what it does | example |\n| --- | --- | --- |")
        for name in commands:
            parts += [
                f"| `{path}` | {command.get_short_help_str(1000)} | `broadside {EXAMPLES[path]}` |"
                for path, command in _leaves(load(name), name)
            ]
    return "\n".join(parts) + "\n"


def checks_page() -> str:
    """Return the order of precedence and all checks as Markdown."""
    checks = [*BURST_CHECKS, *RUN_CHECKS]
    parts = [CHECKS]
    for number, row in enumerate(PRECEDENCE, 1):
        stage = row.stage
        named = "all" if stage is None else ", ".join(c.id for c in checks if c.stage is stage)
        parts.append(f"| {number} | {row.situation} | {row.verdict} | {named} |")
    for title, group in (("Checks of a burst", BURST_CHECKS), ("Checks of a run", RUN_CHECKS)):
        parts.append(f"\n## {title}")
        for check in group:
            parts += [
                f"\n### {check.id}\n\n{check.question}\n",
                f"- Formula: {check.formula}.",
                f"- Reads: {check.reads}.",
                f"- Without that: {check.when_absent}.",
                "- Findings: " + ", ".join(f"`{each}`" for each in check.findings) + ".",
            ]
    return "\n".join(parts) + "\n"


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, one in (inner or {}).items():
        yield from _leaves(one, f"{path} {name}")


def problems_page() -> str:
    """Every kind of refusal of the API as Markdown."""
    rows = sorted((status, title, meaning) for title, (status, meaning) in KINDS.items())
    parts = [PROBLEMS, *(f"| `{type_of(t)}` | {s} | {t} | {m} |" for s, t, m in rows)]
    return "\n".join(parts) + "\n"


def _constants_page() -> str:
    """Every constant of the judging and measuring core as Markdown."""
    return str(runpy.run_path(str(DOCS / "constants.py"))["page"]())


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "problems.md": problems_page,
    "checks.md": checks_page,
    "constants.md": _constants_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
