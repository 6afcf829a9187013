"""Test that texts in the code do not use wording that was replaced by plain English."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("agent", "exchange", "lab", "deploy", "coordinator/agent_gateway", "coordinator/auth")
# Pages and programs of others, and data, are not our texts.
SKIPPED_PARTS = {"node_modules", ".terraform"}
FORMER_WORDING = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bmend\b",
        r"\banew\b",
        r"\bunasked\b",
        r"\bis no (port|range|service|time|figure|hash|request|plain|version|text)\b",
        r"\b(is|are|was) no (gzip|pairs|coordinator's)\b",
        r"\b(stands?|stood) (already|after|\{)|\bconnections stood\b",
        r"\btells? (its|nothing|it by)\b|\bno telling\b|\bcannot be told\b",
        r"\btake hold\b",
        r"\bmade none\b",
        r"\b(comes|named) twice\b|\btwice in it\b",
        r"\bbehind its end\b",
        r"\bhalf a character\b",
        r"\bsomebody (has|in between|else)\b|\banybody on the way\b",
        r"\bnot believed\b",
        r"\brest on it\b",
        r"\bis wanted\b",
        r"\b(held|hold the fleet's bytes) against\b",
        r"\bthere is (none$|none;|one already)",
        r"\b(says|say whose it is) ?\(",
        r"\bmake no sense\b",
        r"\block (ran|has run) out\b",
        r"\bno such (engine|option|pair|agent|stream)\b",
        r"\bis not one(;| that)",
        r"\blies? (outside|in them)\b",
        r"\bWho is told\b|\bsecond ledger\b",
    )
)
# Descriptions of Terraform variables and outputs, and names of Ansible tasks.
TEXT_LINE = re.compile(r"^\s*(?:description *=|- name:|error_message *=)(.*)$", re.MULTILINE)


def docstrings(tree: ast.AST) -> set[int]:
    """Return the ids of the nodes of all docstrings and other bare strings."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string literal; ``{}`` replaces values of f-strings."""
    tree = ast.parse(source)
    inside = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(value) for value in node.values}
            pieces = (
                str(value.value) if isinstance(value, ast.Constant) else "{}"
                for value in node.values
            )
            yield node.lineno, "".join(pieces)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.lineno, node.value


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the location and text of literals in Python, descriptions and names of tasks."""
    for path in sorted(folder.rglob("*")):
        if SKIPPED_PARTS & set(path.parts):
            continue
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py":
            for line, text in literals(path.read_text("utf-8")):
                yield f"{name}:{line}", text
        elif path.suffix in {".tf", ".yml"}:
            for match in TEXT_LINE.finditer(path.read_text("utf-8")):
                yield name, match[1]


@pytest.mark.parametrize("folder", FOLDERS)
def test_texts_have_no_former_wording(folder: str) -> None:
    found = [
        f"{location}: {former.pattern}: {text[:120]}"
        for location, text in texts(ROOT / folder)
        for former in FORMER_WORDING
        if former.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""mend it"""\nx = "plain"', ["plain"]),
        ('x = f"{part} is no port"', ["{} is no port"]),
        ('def f():\n    """anew"""\n    raise ValueError("a" "b")', ["ab"]),
    ],
)
def test_docstrings_are_excluded(source: str, expected: list[str]) -> None:
    assert [text for _, text in literals(source)] == expected
