"""Reference pages of the site that are generated from the code.

``PAGES`` maps each file name to the function that returns its Markdown. ``make docs`` adds these
pages to the ones in ``docs/``.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from broadside.agent.agent_settings import AgentSettings
from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.problems import KINDS, type_of
from broadside.coordinator.auth.permissions import required_permission
from broadside.coordinator.auth.signin_settings import SignInSettings
from broadside.coordinator.cli import load
from broadside.coordinator.cli.command_list import GROUPS, SERVICE_COMMANDS
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.judge.bottleneck import CAUSES, NEXT_RUNS
from broadside.coordinator.core.metrics import ALL_METRICS
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views.prometheus_metrics import METRICS, name_of
from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.docs_build import agent_records_page, azure_limits_page, constants_page
from tests.docs_build.checks_page import checks_page, statement
from tests.docs_build.findings_page import findings_page
from tests.docs_build.glossary_page import glossary_page

SETTINGS: Final = """\
# Settings

Settings are environment variables. Agents and coordinator must have the same settings of the
fabric, which is the connection between them."""
COMMANDS: Final = """\
# Commands

`broadside COMMAND --help` lists all options of a command.

- `-o json`, `yaml`, `csv`, `arrow` and `parquet` print the data, and nothing else, on standard
  output. `-o table` is the default, and omits columns that do not fit into the terminal; `-o wide`
  prints all columns. `-o md` prints a verdict or a comparison as Markdown.
- `--watch` prints a list or a run again when it changes, until Ctrl-C (exit code 130).
- Colours are printed only on a terminal, and not with `NO_COLOR` or `TERM=dumb`. Progress of long
  commands is printed on standard error, and only on a terminal.
- `last` is the newest run, `previous` the run before it of the same scenario.
- `--set` changes a field of a scenario. A short name is enough if it is unique, and values may have
  units: `--set burst=30s`, `--set target=180Gbit`, `--set tolerance=5%`.
- `broadside --install-completion` installs completion for bash, zsh and fish: of commands, names,
  labels, and the fields and values of `--set`.
- Exit codes: 0 pass, measured or done; 1 fail; 2 inconclusive; 3 wrong usage, or an unknown name
  of a run, study, schedule, scenario, agent, label or other object; 4 could not run; 130
  interrupted."""
PROBLEMS: Final = """\
# Error responses

The API returns an error as an RFC 9457 problem document. `type` is one of the addresses below, and
the coordinator has a page at each of them. `detail` is one line of text. If a part of the request
is wrong, `errors` names it by `pointer` (RFC 6901, in the body) or by `parameter`.

| type | status | title | meaning |
| --- | --- | --- | --- |"""
API: Final = """\
# API operations

The complete OpenAPI 3.1 document is at `/openapi.json` of each coordinator. For tokens, examples
and formats, see [REST API](api.md). *Access* is the role that an operation requires if sign-in is
on.

| method | path | access | operation |
| --- | --- | --- | --- |"""
METRICS_HEAD: Final = """\
# Metrics

## Metrics of runs and bursts

*Name* is the field in the summary of a run and in exports. *Run value* is how the run's value is
computed from its bursts. `compare` and `--fail-if` accept the name and the label. The last column
is the Prometheus name after `broadside_run_`. Prometheus has base units: rates are in bytes per
second, as measured. In a scaled lab, multiply them by `broadside_run_scale`.

| name | label | layer | run value | Prometheus |
| --- | --- | --- | --- | --- |"""
PROMETHEUS: Final = """\

## Other Prometheus metrics

`GET /metrics` requires a viewer's token if sign-in is on. If a value is unknown, the metric is
absent; it is never zero.

| name | labels | meaning |
| --- | --- | --- |"""
BOTTLENECK: Final = """\
# Bottleneck

The bottleneck is what limited the rate of a burst. A cause is reported only if its own evidence is
complete. For bulk traffic, the causes below are considered in their order, and the first one with
complete evidence is reported. The bottleneck of a run is the one of most of its bursts. If no cause
has complete evidence, the bottleneck is *unknown*: the finding lists the evidence, what is missing,
and the next run that would decide. Three causes are reported as `firewall`; the finding states the
evidence.

If one pair gains when another one loses (the pairs *trade shares*), they have a limit in common.
It can be any link or host of their common path. A NIC or host *has room* below 90 % of its cap.

A queue is a round trip that is longer under load than on the idle path. Each agent measures the
idle round trip (`rtt_idle_s`) before the burst: from `TCP_INFO` of the connections that the start
gate holds, or else from three handshakes with the engine's port. If this fails, no cause that needs
it is reported. The shortest round trip during the burst is not used instead, because it includes
the time in a queue that never becomes empty.

## Causes
"""
CLASSES: tuple[tuple[str, type[BaseSettings]], ...] = (
    ("Fabric (agents and coordinator)", FabricSettings),
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
    called = "For containers, systemd units and install scripts"
    for title, commands in {**GROUPS, called: SERVICE_COMMANDS}.items():
        parts.append(f"\n## {title}\n\n| command | what it does | example |\n| --- | --- | --- |")
        for name in commands:
            parts += [
                f"| `{path}` | {command.get_short_help_str(1000)} | `{example_of(command)}` |"
                for path, command in _leaves(load(name), name)
            ]
    return "\n".join(parts) + "\n"


def example_of(command: Any) -> str:
    """Return the example at the end of a command's help."""
    return str(command.epilog or "").removeprefix("Example: ")


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


def api_page() -> str:
    """Return a table of all API operations as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        fabric = open_fabric(FabricSettings(data_dir=Path(folder)))
        paths = create_app(Coordinator(fabric), tick_s=None).openapi()["paths"]
    rows = [
        f"| {method.upper()} | `{path}` | {required_permission(method.upper(), path).access} | "
        f"{operation['summary']} |"
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]
    return "\n".join([API, *rows]) + "\n"


def metrics_page() -> str:
    """Return tables of the run metrics and of the Prometheus metrics as Markdown."""
    parts = [METRICS_HEAD]
    names = [name_of(metric) for metric in ALL_METRICS]
    for metric, name in zip(ALL_METRICS, names, strict=True):
        parts.append(
            f"| `{metric.name}` | {metric.label} | {metric.layer or '-'} | {metric.aggregation} | "
            f"`{name.removeprefix('broadside_run_')}` |"
        )
    parts.append(PROMETHEUS)
    parts += [
        f"| `{name}` | {', '.join(f'`{label}`' for label in labels) or '-'} | {meaning} |"
        for name, (meaning, labels) in METRICS.items()
        if name not in names
    ]
    return "\n".join(parts) + "\n"


def bottleneck_page() -> str:
    """Return the causes of a bottleneck, and the next run if it is unknown, as Markdown."""
    parts = [BOTTLENECK]
    for number, cause in enumerate(CAUSES, 1):
        question, evidence, reads, absent = statement(cause)
        parts += [
            f"### {number}. {cause.id}\n\n{question}\n",
            f"- Named: `{cause.name}`.",
            f"- Evidence: {evidence}",
            f"- Reads: {reads}",
            f"- If absent: {absent}",
            f"- Ruled out by: {cause.refuted_by}.\n",
        ]
    parts.append(
        "## Unknown: the next run\n\nThe first row that applies is recommended.\n\n"
        "| situation | next run |\n| --- | --- |"
    )
    parts += [f"| {row.situation} | {row.advice} |" for row in NEXT_RUNS]
    return "\n".join(parts) + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "api-operations.md": api_page,
    "problems.md": problems_page,
    "metrics.md": metrics_page,
    "checks.md": checks_page,
    "findings.md": findings_page,
    "bottleneck.md": bottleneck_page,
    "constants.md": constants_page.page,
    "agent-records.md": agent_records_page.page,
    "azure-limits.md": azure_limits_page.page,
    "glossary.md": glossary_page,
}
