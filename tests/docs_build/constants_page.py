"""Reference page of all constants of the measuring and judging core.

``docs/constants.csv`` has one line per constant with its name (``module.NAME``), unit, kind of
support, and the support. New constants need a line there. ``python -m tests.constants_effect``
writes ``docs/constants_effect.csv``.
"""

import ast
import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
CORE: Final = ROOT / "coordinator" / "core"
KINDS: Final = {
    "citation": "a standard, a paper or a vendor's document",
    "derivation": "derived from another quantity",
    "measured": "measured on data that this project did not generate",
    "definition": "defines a term or an error rate; the table shows its effect",
    "simulation": "from the simulation of a textbook process (AR(1), fractional noise)",
    "work": "limits work or the length of a list; no metric or verdict depends on it",
    "beside": "used only for findings that do not affect the verdict",
}


@dataclass(frozen=True)
class Row:
    """One line of ``constants.csv``."""

    unit: str
    kind: str
    support: str


@cache
def numbers() -> Mapping[str, str]:
    """Return all module-level constants that are a number or a tuple of numbers, by name.

    Computed constants are included, because the numbers in an expression were chosen too.
    """
    by_name = {}
    for pattern in ("measure/**/*.py", "judge/**/*.py", "comparison/*.py", "run_trends.py"):
        for path in sorted(CORE.glob(pattern)):
            parts = path.relative_to(CORE.parents[1]).with_suffix("").parts
            values = vars(import_module(".".join(("broadside", *parts))))
            for name, expression in _declared(path):
                if _is_numeric(values[name]):
                    by_name[f"{path.stem}.{name}"] = _shown(values[name], expression)
    return by_name


def _declared(path: Path) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if "Final" in ast.unparse(node.annotation) and node.value:
            yield node.target.id, node.value


def _is_numeric(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_numeric, value))
    return isinstance(value, int | float | timedelta) and not isinstance(value, bool)


def _shown(value: object, expression: ast.expr) -> str:
    """Return a constant as in the source, or its value if it is computed from other names."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}"
    names = any(isinstance(node, ast.Name) for node in ast.walk(expression))
    return f"{value:.4g}" if names and isinstance(value, int | float) else ast.unparse(expression)


def supports() -> Mapping[str, Row]:
    """Return the lines of ``constants.csv`` by name."""
    with (DOCS / "constants.csv").open(encoding="utf-8", newline="") as file:
        return {
            line["name"]: Row(line["unit"], line["kind"], line["support"])
            for line in csv.DictReader(file)
        }


def effects() -> Mapping[str, Mapping[str, str]]:
    """Return the lines of ``constants_effect.csv`` by name."""
    path = DOCS / "constants_effect.csv"
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {line["name"]: line for line in csv.DictReader(file)}


def page() -> str:
    """Return ``constants.md``."""
    rows, moved = supports(), effects()
    number = Counter(rows[name].kind for name in numbers())
    parts = [
        HEAD,
        *(
            f"- *{kind}* ({number[kind]}): {meaning}."
            for kind, meaning in KINDS.items()
            if kind != "work"
        ),
        "",
        TABLE,
    ]
    for name, value in numbers().items():
        row, line = rows[name], moved.get(name, {})
        if row.kind == "work":
            continue
        shown = value if len(value) <= VALUE_MAX_LENGTH else f"{value[:VALUE_MAX_LENGTH]} ...)"
        both = [
            "-" if not line else f"{line[f'{change}_real']}, {line[f'{change}_worlds']}"
            for change in ("halved", "doubled")
        ]
        cells = (
            f"`{name}`",
            f"{shown} {row.unit}".strip(),
            row.kind,
            row.support,
            *both,
            line.get("checks", "") or "-",
        )
        parts.append(f"| {' | '.join(cells)} |")
    return "\n".join(parts) + "\n"


VALUE_MAX_LENGTH: Final = 40
HEAD: Final = """\
# Constants

All numbers in `coordinator/core` that affect a verdict or a finding, with their support. Constants
that only limit work or the length of lists are left out.

- *Support* is the reason for the value. No value was fitted to data that this project generated.
- *Halved* and *doubled* are the numbers of cases in which the verdict of the run or of a burst
  changes: first for real recordings, then for generated fleets. `0/33, 0/3` means no change. A
  dash means that it was not computed.
- *Checks* are the checks whose findings change in at least one case. *observation* is a finding
  that does not affect the verdict.

No change does not mean that a constant has no effect. It means that no recording is close to it.
The real recordings are tables of the original test and runs of earlier versions
(`tests/data/original`, `stored` and `compat`). `python -m tests.constants_effect` computes all
cases again.

## Kinds of support
"""
TABLE: Final = """\
| constant | value | kind | support | halved | doubled | checks |
| --- | --- | --- | --- | --- | --- | --- |"""
