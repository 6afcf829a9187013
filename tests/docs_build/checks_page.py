"""Reference page of all checks.

The constants of a check are determined by following its functions through the sources.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broadside.coordinator.core.judge.checks.decision import BURST_CHECKS, PRECEDENCE, RUN_CHECKS
from tests.docs_build import constants_page
from tests.docs_build.constants_page import CORE

VALUE_MAX_LENGTH: Final = 12
# Functions, in any module, that compute the measured values of a check in addition to its own
# function.
COMPUTED_BY: Final[Mapping[str, Sequence[str]]] = {
    "rate": ("ramp_s", "correlated_mean"),
    "shape": ("slowest_stretch",),
    "residual": ("compare_bytes", "scatter_of_bursts"),
    "device-fit": ("fit_burst", "relative_noise"),
    "consistency": ("CrossExamination", "ConsistencyChecker"),
}
METHODS: Final[Mapping[str, str]] = {
    "rate": "rate-of-a-burst",
    "clocks": "clocks",
    "shape": "shape",
    "device-rate": "residual",
    "residual": "residual",
    "device-fit": "fit-over-time",
    "window": "clocks",
    "burst-scatter": "rate-of-a-run",
}
CHECKS: Final = """\
# Checks

A verdict combines the results of these checks in the
[order of precedence](verdict.md#order-of-precedence). Symbols: *R* is the rate that the fleet
received, *S* the rate that all its senders recorded, *h* half of a 95 % interval, *limit* the
target minus its tolerance ([statistics](statistics.md#symbols))."""
PREFIX: Final = "broadside.coordinator.core."
FOLDERS: Final = ("judge", "measure")


@dataclass(frozen=True)
class Source:
    """One module with its top-level definitions and the module for each imported name."""

    definitions: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


def load_sources() -> dict[str, Source]:
    """Return the modules of ``judge`` and ``measure`` by their dotted name below the core."""
    by_name = {}
    for folder in FOLDERS:
        for path in sorted((CORE / folder).rglob("*.py")):
            place = path.parent if path.name == "__init__.py" else path.with_suffix("")
            name = ".".join(place.relative_to(CORE).parts)
            by_name[name] = _load(path)
    return by_name


def _load(path: Path) -> Source:
    source = Source()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            source.definitions[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            source.definitions[node.target.id] = node.value
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PREFIX):
            module = (node.module or "").removeprefix(PREFIX)
            source.imports.update((alias.asname or alias.name, module) for alias in node.names)
    return source


def used_by(starts: Sequence[tuple[str, str]], sources: Mapping[str, Source]) -> set[str]:
    """Return the names, as ``module.NAME``, that functions use.

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
    return {f"{location.rpartition('.')[2]}.{name}" for location, name in reached}


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


def precedence_rows() -> list[tuple[str, str, str]]:
    """Return the order of precedence with situation, verdict and checks for each row."""
    checks: list[Any] = [*BURST_CHECKS, *RUN_CHECKS]
    return [
        (
            row.situation,
            str(row.verdict),
            "all"
            if row.stage is None
            else ", ".join(check.id for check in checks if check.stage is row.stage),
        )
        for row in PRECEDENCE
    ]


def checks_page() -> str:
    """Return the reference of all checks as Markdown."""
    parts = [CHECKS]
    shown = _values(constants_page.numbers(), constants_page.supports())
    sources = load_sources()
    for title, group in (("Checks of a burst", BURST_CHECKS), ("Checks of a run", RUN_CHECKS)):
        parts.append(f"\n## {title}")
        for check in group:
            parts += _check(check, shown, sources)
    return "\n".join(parts) + "\n"


def _values(numbers: Mapping[str, str], supports: Mapping[str, Any]) -> dict[str, str]:
    """Return the single public numbers that affect a result, without header
    sizes.
    """
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


def statement(check: Any) -> list[str]:
    """Return question, formula or evidence, sources and result without them.

    They are fields of a check or a cause, or sections in the docstring of its function.
    """
    if hasattr(check, "question"):
        evidence = getattr(check, "formula", None) or check.evidence
        return [
            check.question,
            *(f"{text}." for text in (evidence, check.reads, check.when_absent)),
        ]
    function = getattr(check.evaluate, "func", check.evaluate)
    parts = re.split(r"\n *(?:Formula|Evidence|Reads|If absent): ", function.__doc__)
    return [" ".join(part.split("\n\n")[0].split()) for part in parts]


def finding_ids(check: Any) -> Sequence[str]:
    """Return the ids of the findings that a check can return."""
    ids: Sequence[str] = check.findings
    return ids.split() if isinstance(ids, str) else ids


def _check(check: Any, shown: Mapping[str, str], sources: Mapping[str, Source]) -> Iterator[str]:
    module, function = check.evaluate.__module__.removeprefix(PREFIX), check.evaluate.__name__
    starts = [(module, function)] + [
        (place, name)
        for name in COMPUTED_BY.get(check.id, ())
        for place, source in sources.items()
        if name in source.definitions
    ]
    used = [f"`{name}` {shown[name]}" for name in sorted(used_by(starts, sources) & shown.keys())]
    method = METHODS.get(check.id)
    link = f"; method: [statistics](statistics.md#{method})" if method else ""
    question, formula, reads, absent = statement(check)
    yield f"\n### {check.id}\n\n{question}\n"
    yield f"- Formula: {formula}"
    yield f"- Reads: {reads}"
    yield f"- If absent: {absent}"
    yield f"- Source: `core/{module.replace('.', '/')}.py`, `{function}`{link}."
    if used:
        yield f"- [Constants](constants.md): {', '.join(used)}."
    yield "- [Findings](findings.md): " + ", ".join(f"`{id}`" for id in finding_ids(check)) + "."
