"""Test that texts in the code do not use wording that was replaced by plain English."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("agent", "exchange", "lab", "deploy", "coordinator", "dashboards")
# Pages and programs of others, and data, are not our texts.
SKIPPED_PARTS = {"node_modules", ".terraform", "answers.json", "docs_site"}
# Files without a parser here: each line is a text.
LINE_SUFFIXES = {".js", ".html", ".css", ".toml", ".json", ".tf", ".yml", ".sh", ".service", ".md"}
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
        r"\bWho is told\b|\bsecond ledger\b|\bcannot be told\b|\bwas told to\b",
        r"\bfell silent\b|\btook the job\b|\bstood down\b",
        r"\b(somebody|whoever)\b|\bwho deploys\b|\bwhatever (its|the|earlier)\b",
        r"\b(limits|refuses) (our|us)\b|\blets? (us )?in\b|\bhas let in\b",
        r"\b(says?|said) (why|nothing|so)\b|\bcannot say\b|\bnone of \{",
        r"\b(run|burst|it) goes on\b|\bused all the same\b|\bno end (in|of) (time|the)\b",
        r"\bkeeps? (it|port \d+).* to itself\b|\bis not through\b|\bwait already\b",
    )
)


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string; ``{}`` replaces values of f-strings."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(source)):
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
            yield node.lineno, " ".join(node.value.split())


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment; lines of one block are one text."""
    first, last = 0, -1
    words: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if words and token.start[0] != last + 1:
            yield first, " ".join(words)
            words = []
        if not words:
            first = token.start[0]
        last = token.start[0]
        words += token.string.lstrip("# ").split()
    if words:
        yield first, " ".join(words)


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the location and text of strings, docstrings, comments and lines of other files."""
    for path in sorted(folder.rglob("*")):
        if SKIPPED_PARTS & set(path.parts):
            continue
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py":
            source = path.read_text("utf-8")
            for line, text in (*literals(source), *comments(source)):
                yield f"{name}:{line}", text
        elif path.suffix in LINE_SUFFIXES:
            for line, text in enumerate(path.read_text("utf-8").splitlines(), 1):
                yield f"{name}:{line}", text


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
        ('"""mend\n    it"""\nx = "plain"', ["mend it", "plain"]),
        ('x = f"{part} is no port"', ["{} is no port"]),
        ('def f():\n    """anew"""\n    raise ValueError("a" "b")', ["anew", "ab"]),
        ("# one\n# block\nx = 1\ny = 2  # end", ["one block", "end"]),
    ],
)
def test_strings_and_comments_are_texts(source: str, expected: list[str]) -> None:
    assert [text for _, text in (*literals(source), *comments(source))] == expected
