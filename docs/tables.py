"""Generator of the pages in docs/ from the code. Usage: ``python docs/tables.py``."""

import re
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
from broadside.coordinator.cli.command_list import GROUPS, SERVICE_COMMANDS
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.judge.bottleneck import CAUSES, NEXT_RUNS
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
BOTTLENECK = """\
# Bottleneck

What limited a burst is named only where the cause's own evidence is complete. The first cause of
the table whose evidence holds is named; a run is limited by what most of its bursts name. Where no
evidence holds, the bottleneck is *unknown*: the finding lists what was seen, what is missing, and
the next run that would decide. The rates of pairs over time do not show where the limit is. If one
pair gains when another loses (they *trade shares*), they have one limit in common, but it can be
any link or host on their common path. Three causes have the name `firewall`; the finding says which
evidence was used. A NIC or host *has room* if it is under 90 % of its cap. This page is written by
`python docs/tables.py`; the numbers are in [constants.md](constants.md).

## Idle RTT

A queue is a round trip that is longer under load than on the idle path. Each agent measures the
idle round trip between arming and the planned instant: from the kernel's own figures (`TCP_INFO`)
of the connections that the start gate holds, which costs no packet; for engines without a start
gate from three handshakes with the engine's own port. Neither needs ICMP, a further port or a path
without address translation. It is in the job's report (`idle_rtt`), in the pair (`rtt_idle_s`) and
the flow (`rtt_baseline_s`, with `rtt_baseline_how`). A failed measurement leaves it unknown, and
nothing is named that needs it. The shortest round trip during the burst cannot be used as a
baseline, because it includes a queue that never becomes empty.

## Causes, in the order in which they are considered
"""
CLASSES: tuple[tuple[str, type[BaseSettings]], ...] = (
    ("Fabric: where coordinator and agents meet (set on both)", FabricSettings),
    ("Coordinator", CoordinatorSettings),
    ("Coordinator: sign-in and limits", SignInSettings),
    ("Agent", AgentSettings),
)


def settings_page() -> str:
    """Return a table of all settings as Markdown: environment variable, default and meaning."""
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
    """Return a table of all commands as Markdown: purpose and a working example."""
    parts = [COMMANDS]
    called = "Called by containers, units and install scripts"
    for title, commands in {**GROUPS, called: SERVICE_COMMANDS}.items():
        parts.append(f"\n## {title}\n\n| command | what it does | example |\n| --- | --- | --- |")
        for name in commands:
            parts += [
                f"| `{path}` | {command.get_short_help_str(1000)} "
                f"| `{command.epilog.removeprefix('Example: ')}` |"
                for path, command in _leaves(load(name), name)
            ]
    return "\n".join(parts) + "\n"


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, one in (inner or {}).items():
        yield from _leaves(one, f"{path} {name}")


def problems_page() -> str:
    """Return a table of all problem types of the API as Markdown."""
    rows = sorted((status, title, meaning) for title, (status, meaning) in KINDS.items())
    parts = [PROBLEMS, *(f"| `{type_of(t)}` | {s} | {t} | {m} |" for s, t, m in rows)]
    return "\n".join(parts) + "\n"


def _constants_page() -> str:
    """Return a table of all constants of the judging and measuring core as Markdown."""
    return str(runpy.run_path(str(DOCS / "constants.py"))["page"]())


def statement(function: Any) -> list[str]:
    """Return the first line of a check's docstring, then formula or evidence, sources, absence."""
    function = getattr(function, "func", function)
    parts = re.split(r"\n *(?:Formula|Evidence|Reads|If absent): ", function.__doc__)
    return [" ".join(part.split("\n\n")[0].split()) for part in parts]


def _verdict_page(name: str) -> str:
    """Return one of the pages of ``docs/verdict_page.py``."""
    return str(runpy.run_path(str(DOCS / "verdict_page.py"))[name]())


def bottleneck_page() -> str:
    """Return the causes of a bottleneck, and the next run where it is unknown, as Markdown."""
    parts = [BOTTLENECK]
    for number, cause in enumerate(CAUSES, 1):
        question, evidence, reads, absent = statement(cause.evaluate)
        parts += [
            f"### {number}. {cause.id}\n\n{question}\n",
            f"- Named: `{cause.name}`.",
            f"- Evidence: {evidence}",
            f"- Reads: {reads}",
            f"- If absent: {absent}",
            f"- Ruled out by: {cause.refuted_by}.\n",
        ]
    parts.append(
        "## Unknown: the next run\n\nThe first row that applies is advised.\n\n"
        "| situation | next run |\n| --- | --- |"
    )
    parts += [f"| {row.situation} | {row.advice} |" for row in NEXT_RUNS]
    return "\n".join(parts) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "problems.md": problems_page,
    "verdict.md": lambda: _verdict_page("verdict_page"),
    "findings.md": lambda: _verdict_page("findings_page"),
    "constants.md": _constants_page,
    "bottleneck.md": bottleneck_page,
    "agent-records.md": lambda: str(runpy.run_path(str(DOCS / "agent_records.py"))["page"]()),
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
