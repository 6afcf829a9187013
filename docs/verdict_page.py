"""Generated parts of ``docs/verdict.md``, and ``docs/findings.md``.

``docs/findings.csv`` has a line a finding: id, effect on the verdict, meaning, next step. A new
finding needs a line there; those of thresholds come from the table of thresholds. The constants of
a check are found by following its functions through the sources.
"""

import ast
import csv
import runpy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broadside.coordinator.core.judge.checks import BURST_CHECKS, PRECEDENCE, RUN_CHECKS
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS

DOCS: Final = Path(__file__).parent
CORE: Final = DOCS.parent / "coordinator" / "core"
BEGIN: Final = "<!-- generated from coordinator/core/judge/checks: python docs/tables.py -->\n"
END: Final = "<!-- end of the generated part -->\n"
VALUE_MAX_LENGTH: Final = 12
# Where the measured values of a check are computed, beside its own module.
COMPUTED_BY: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "rate": (("measure.steady", "ramp_s"), ("measure.steady", "correlated_mean")),
    "shape": (("measure.steady", "slowest_stretch"),),
    "residual": (
        ("judge.reconciliation.reconcile", "compare_bytes"),
        ("judge.reconciliation.reconcile", "scatter_of_bursts"),
    ),
    "device-fit": (
        ("judge.reconciliation.device_fit", "fit_burst"),
        ("judge.reconciliation.device_fit", "relative_noise"),
    ),
    "consistency": (
        ("measure.cross_examination", "_of_pair"),
        ("measure.cross_examination", "_Fleet"),
    ),
}
METHODS: Final[Mapping[str, str]] = {
    "rate": "rate-of-a-burst",
    "clocks": "clocks",
    "shape": "shape",
    "device-rate": "interval-of-the-residual",
    "residual": "interval-of-the-residual",
    "device-fit": "fit-over-time",
    "window": "two-ends-of-one-test",
    "burst-scatter": "rate-of-a-run",
}
FINDINGS: Final = """\
# Findings

A finding is one statement of a report, with a next step where there is one. This page lists all of
them. *Effect* is the effect on the verdict: *fail* or *inconclusive* as in the
[order of precedence](verdict.md#order-of-precedence), *none* for a remark that decides nothing.
`*` stands for a name. This page is written by `python docs/tables.py` from the checks, the
thresholds and `docs/findings.csv`.

| finding | check | effect | meaning | what to do |
| --- | --- | --- | --- | --- |"""
PREFIX: Final = "broadside.coordinator.core."
FOLDERS: Final = ("judge", "measure")


@dataclass(frozen=True)
class Source:
    """One module: its top-level definitions, and the module of each imported name."""

    definitions: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


def load_sources() -> dict[str, Source]:
    """Return the modules of ``judge`` and ``measure`` by their dotted name below the core."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((CORE / folder).rglob("*.py")):
            place = path.parent if path.name == "__init__.py" else path.with_suffix("")
            name = ".".join(place.relative_to(CORE).parts)
            found[name] = _load(path)
    return found


def _load(path: Path) -> Source:
    source = Source()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            source.definitions[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            source.definitions[node.target.id] = node.value
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PREFIX):
            module = (node.module or "").removeprefix(PREFIX)
            source.imports.update((each.asname or each.name, module) for each in node.names)
    return source


def used_by(starts: Sequence[tuple[str, str]], sources: Mapping[str, Source]) -> set[str]:
    """Return the names, as ``module.NAME``, that functions reach.

    Args:
        starts: Module below the core, such as ``judge.checks.rate_checks``, and function.
        sources: All modules.
    """
    reached: set[tuple[str, str]] = set()
    waiting = list(starts)
    while waiting:
        place = waiting.pop()
        if place not in reached:
            reached.add(place)
            waiting += _references(*place, sources)
    return {f"{where.rpartition('.')[2]}.{name}" for where, name in reached}


def _references(module: str, name: str, sources: Mapping[str, Source]) -> Iterator[tuple[str, str]]:
    source = sources.get(module)
    definition = source.definitions.get(name) if source else None
    if source is not None and definition is None and name in source.imports:
        # A name that a package exports.
        yield source.imports[name], name
    if source is None or definition is None:
        return
    for node in ast.walk(definition):
        if not isinstance(node, ast.Name):
            continue
        if node.id in source.definitions:
            yield module, node.id
        elif node.id in source.imports:
            yield source.imports[node.id], node.id


def verdict_page() -> str:
    """Return ``verdict.md`` with its generated part renewed.

    Raises:
        ValueError: The page lacks a marker.
    """
    head, rest = (DOCS / "verdict.md").read_text("utf-8").split(BEGIN)
    _, tail = rest.split(END)
    return head + BEGIN + _decision() + END + tail


def _decision() -> str:
    """Return the order of precedence and all checks as Markdown."""
    checks: list[Any] = [*BURST_CHECKS, *RUN_CHECKS]
    parts = [
        "## Order of precedence\n",
        "The first row that applies decides.\n",
        "| row | situation | verdict | checks |\n| --- | --- | --- | --- |",
    ]
    for number, row in enumerate(PRECEDENCE, 1):
        stage = row.stage
        named = "all" if stage is None else ", ".join(c.id for c in checks if c.stage is stage)
        parts.append(f"| {number} | {row.situation} | {row.verdict} | {named} |")
    constants = runpy.run_path(str(DOCS / "constants.py"))
    shown = _values(constants["numbers"](), constants["supports"]())
    sources = load_sources()
    for title, group in (("Checks of a burst", BURST_CHECKS), ("Checks of a run", RUN_CHECKS)):
        parts.append(f"\n## {title}")
        for check in group:
            parts += _check(check, shown, sources)
    return "\n".join(parts) + "\n\n"


def _values(numbers: Mapping[str, str], supports: Mapping[str, Any]) -> dict[str, str]:
    """Return the constants that checks list: single public numbers that decide something, without
    sizes of headers."""
    return {
        name: f"{value} {_unit(supports, name)}".strip()
        for name, value in numbers.items()
        if "._" not in name
        and not name.endswith("_BYTES")
        and len(value) <= VALUE_MAX_LENGTH
        and not (name in supports and supports[name].kind == "work")
    }


def _unit(supports: Mapping[str, Any], name: str) -> str:
    unit = supports[name].unit if name in supports else ""
    return "" if unit in ("count", "ratio") else str(unit)


def _check(check: Any, shown: Mapping[str, str], sources: Mapping[str, Source]) -> Iterator[str]:
    module = check.evaluate.__module__.removeprefix(PREFIX)
    function = check.evaluate.__name__
    names = used_by([(module, function), *COMPUTED_BY.get(check.id, ())], sources)
    used = [f"`{name}` {shown[name]}" for name in sorted(names & shown.keys())]
    method = METHODS.get(check.id)
    link = f"; method: [statistics](statistics.md#{method})" if method else ""
    question, formula, reads, absent = runpy.run_path(str(DOCS / "tables.py"))["statement"](
        check.evaluate
    )
    yield f"\n### {check.id}\n\n{question}\n"
    yield f"- Formula: {formula}"
    yield f"- Reads: {reads}"
    yield f"- If absent: {absent}"
    yield f"- Source: `core/{module.replace('.', '/')}.py`, `{function}`{link}."
    if used:
        yield f"- [Constants](constants.md): {', '.join(used)}."
    ids = ", ".join(f"`{id}`" for id in check.findings.split())
    yield f"- [Findings](findings.md): {ids}."


def findings_page() -> str:
    """Return the reference of all findings as Markdown."""
    by_check: dict[str, list[str]] = {}
    for check in (*BURST_CHECKS, *RUN_CHECKS):
        for id in check.findings.split():
            by_check.setdefault(id, []).append(check.id)
    return "\n".join(
        [
            FINDINGS,
            *(
                f"| `{id}` | {', '.join(by_check.get(id, ['-']))} | {effect} | {meaning} | "
                f"{step or '-'} |"
                for id, effect, meaning, step in sorted(_findings())
            ),
            "",
        ]
    )


def _findings() -> Iterator[tuple[str, str, str, str]]:
    """Yield each finding's id, effect, meaning and next step."""
    with (DOCS / "findings.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            yield line["id"], line["effect"], line["meaning"], line["next_step"]
    for threshold in ALL_THRESHOLDS:
        limit = f"`objective.{threshold.bound}`"
        step = f"{threshold.next_step[:1].upper()}{threshold.next_step[1:]}."
        way = "below" if threshold.is_floor else "above"
        yield f"{threshold.id}-limit", "fail", f"The {threshold.label} is {way} {limit}.", step
        yield (
            f"{threshold.id}-unproven",
            "inconclusive",
            (
                f"The {threshold.label} has missing values, or the times of its values are "
                f"unknown, so {limit} is undecided."
            ),
            "Make the source of the metric complete, then run again.",
        )
