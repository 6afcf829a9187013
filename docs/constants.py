"""Constants of the judging and measuring core: where they are, their support, and what they move.

``docs/constants.csv`` has a line a constant: name (``module.NAME``), unit, kind of its support, the
support. A new constant needs a line there; ``python docs/tables.py`` then writes
``docs/constants.md``. ``docs/constants_effect.csv`` is written by ``python -m
tests.constants_effect``.
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

DOCS: Final = Path(__file__).parent
CORE: Final = DOCS.parent / "coordinator" / "core"
KINDS: Final = {
    "citation": "a standard, a paper or a vendor's document",
    "derivation": "follows from another quantity, as said",
    "measured": "measured on data that nobody here generated",
    "definition": "defines a term or an error rate, which data cannot support; its effect is shown",
    "simulation": "simulation of a textbook process (AR(1), fractional noise), not of fleets",
    "work": "bounds the work or the length of a list; no figure or verdict rests on it",
    "beside": "used only for findings that do not affect the verdict (a step, a drill, a name)",
}


@dataclass(frozen=True)
class Row:
    """One line of ``constants.csv``."""

    unit: str
    kind: str
    support: str


@cache
def numbers() -> Mapping[str, str]:
    """Return every module-level constant that is a number or a tuple of numbers, by its name.

    Computed ones count: what is in an expression was chosen, too.
    """
    found = {}
    for pattern in ("measure/**/*.py", "judge/**/*.py", "comparison/*.py", "run_trends.py"):
        for path in sorted(CORE.glob(pattern)):
            parts = path.relative_to(CORE.parents[1]).with_suffix("").parts
            values = vars(import_module(".".join(("broadside", *parts))))
            for name, expression in _declared(path):
                if _is_numeric(values[name]):
                    found[f"{path.stem}.{name}"] = _shown(values[name], expression)
    return found


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
    """Return a constant as it is written; its value where that is computed from other names."""
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
        *(f"- *{kind}* ({number[kind]}): {meaning}." for kind, meaning in KINDS.items()),
        "",
        TABLE,
    ]
    for name, value in numbers().items():
        row, line = rows[name], moved.get(name, {})
        shown = value if len(value) <= VALUE_MAX_LENGTH else f"{value[:VALUE_MAX_LENGTH]} ...)"
        both = [
            "-" if not line else f"{line[f'{word}_real']}, {line[f'{word}_worlds']}"
            for word in ("halved", "doubled")
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

Every number in `coordinator/core` that measures, judges or compares, with its support. This
page is written by `python docs/tables.py` from `docs/constants.csv` (a line a constant: add one
with each new constant) and `docs/constants_effect.csv`.

## How to read it

- *Support* says why the value is what it is. A value that was fitted to data that this project
  generates is not allowed; no constant is without support.
- *Halved* and *doubled* say in how many cases the verdict of the run or of one of its bursts
  changes: first of real recordings, then of generated worlds. `0/33, 0/3` is no change; a dash
  means that it was not computed, as for constants of the kinds *work* and *beside*.
- *Moves* names the checks whose findings change in any case. *observation* is a finding beside
  the verdict.
- No change does not mean that a constant is without effect. It means that none of these
  recordings is close to it.
- Halving or doubling is a wide step. What moves many verdicts is mostly a size or a bound that is
  known exactly (a header's bytes, a full second).

Real recordings are published tables of the original test, with several targets, and runs of real
engines that earlier versions stored (`tests/data/original`, `stored` and `compat`); passes and
fails of the newest version also have targets 1.5 half widths below and above the received rate.
Worlds are those of `tests/worlds` with a fixed seed. `python -m tests.constants_effect` computes
all of it again; with names, those only.

## Kinds of support
"""
TABLE: Final = """\
| constant | value | kind | support | halved | doubled | moves |
| --- | --- | --- | --- | --- | --- | --- |"""
