"""Constants of the judging and measuring core: where they are, their support, and what they move.

``docs/constants.csv`` has a line a constant: name (``module.NAME``), unit, kind of its support, the
support. A new constant needs a line there; ``python docs/tables.py`` then writes
``docs/constants.md``. ``docs/constants_effect.csv`` is written by ``python -m
tests.constants_effect``.
"""

import ast
import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent
CORE: Final = DOCS.parent / "coordinator" / "core"
KINDS: Final = {
    "citation": "a standard, a paper or a vendor's document",
    "derivation": "follows from another quantity, as said",
    "measured": "measured on data that nobody here generated",
    "simulation": "simulation of a textbook process (AR(1), fractional noise), not of fleets",
    "work": "bounds the work or the length of a list; no figure or verdict rests on it",
    "beside": "of a finding beside the verdict (a step, a drill, a name); no verdict rests on it",
    "unsupported": "chosen on this project's own generated data, or not supported",
}


@dataclass(frozen=True)
class Row:
    """One line of ``constants.csv``."""

    unit: str
    kind: str
    support: str


def numbers() -> dict[str, str]:
    """Return every module-level constant that is a number or a tuple of numbers, by its name."""
    found = {}
    for folder in ("measure", "judge"):
        for path in sorted((CORE / folder).rglob("*.py")):
            for name, value in _declared(path):
                found[f"{path.stem}.{name}"] = value
    return found


def _declared(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if "Final" in ast.unparse(node.annotation) and node.value and _is_numeric(node.value):
            yield node.target.id, ast.unparse(node.value)


def _is_numeric(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return _is_numeric(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_numeric(node.left) and _is_numeric(node.right)
    return isinstance(node, ast.Tuple) and bool(node.elts) and all(map(_is_numeric, node.elts))


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
    parts = [HEAD, *(f"- *{kind}*: {meaning}." for kind, meaning in KINDS.items()), "", TABLE]
    rows, moved = supports(), effects()
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

Every number in `coordinator/core/measure` and `coordinator/core/judge`, with its support. This
page is written by `python docs/tables.py` from `docs/constants.csv` (a line a constant: add one
with each new constant) and `docs/constants_effect.csv`.

The columns *halved* and *doubled* state how many verdicts change: first of imports of data that
nobody here generated (`tests/data/original`, with several targets), then of generated worlds
(`tests/worlds`, fixed seed). *Moves* names the checks whose findings change in any of these cases;
*observation* is a finding beside the verdict, and `-` no change, or not computed.
`python -m tests.constants_effect` computes them again; with names, those only.

Kinds of support:
"""
TABLE: Final = """\
| constant | value | kind | support | halved | doubled | moves |
| --- | --- | --- | --- | --- | --- | --- |"""
