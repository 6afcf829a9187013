"""Test that names for users consist of terms from docs/glossary.csv and common words."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from broadside.coordinator.api.app import create_app
from broadside.coordinator.cli import load
from broadside.coordinator.cli.command_list import GROUPS, SERVICE_COMMANDS
from broadside.coordinator.core.metrics import ALL_METRICS
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views.prometheus_metrics import METRICS
from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.docs_build.glossary_page import read_terms

WORD: Final = re.compile(r"[a-z]+")
COMMON: Final = frozenset(Path(__file__).with_name("common_words.txt").read_text("utf-8").split())
WEB: Final = Path(__file__).parents[2] / "dashboards" / "web"
ENDINGS: Final = ("", "s", "es", "ed", "d", "ing")


@pytest.fixture(scope="module")
def terms() -> frozenset[str]:
    """Return all words used in terms, with their usual endings."""
    parts = {part for line in read_terms() for part in WORD.findall(line["term"].lower())}
    return frozenset(part + ending for part in parts for ending in ENDINGS)


def api_names(folder: Path) -> Iterator[str]:
    fabric = open_fabric(FabricSettings(data_dir=folder))
    document: Any = create_app(Coordinator(fabric), tick_s=None).openapi()
    for schema in document["components"]["schemas"].values():
        yield from schema.get("properties", {})
    for methods in document["paths"].values():
        for operation in methods.values():
            yield from (parameter["name"] for parameter in operation.get("parameters", ()))


def command_names() -> Iterator[str]:
    waiting: list[Any] = [
        load(name) for names in (*GROUPS.values(), SERVICE_COMMANDS) for name in names
    ]
    while waiting:
        command = waiting.pop()
        yield command.name
        waiting += getattr(command, "commands", {}).values()
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)


def page_labels() -> Iterator[str]:
    """Yield the headings, buttons, table columns and names of values on the page."""
    elements = "h[1-6]|th|button|caption|dt|label|legend|summary"
    patterns = (
        rf'h\(\s*[`"](?:{elements})\b[^"`]*[`"],\s*(?:\{{[^{{}}]*\}},\s*)?"([^"]+)"',
        r'^\s*\["([A-Z][^"]*)",\s',
    )
    for path in sorted(WEB.glob("*.js")):
        text = path.read_text("utf-8")
        for pattern in patterns:
            yield from re.findall(pattern, text, re.MULTILINE)
    for path in sorted(WEB.glob("*.html")):
        text = path.read_text("utf-8")
        yield from re.findall(rf"<(?:{elements}|a|title)\b[^>]*>([^<>]+)<", text)


def test_page_labels_are_read() -> None:
    assert {"Role", "Report (HTML)", "Try again", "Latest run"} <= set(page_labels())
    assert len(set(page_labels())) > 90


@pytest.mark.parametrize("kind", ["API", "commands", "metrics", "labels", "page"])
def test_name_parts_are_terms_or_common_words(
    kind: str, terms: frozenset[str], tmp_path: Path
) -> None:
    names: Mapping[str, Callable[[], Iterable[str]]] = {
        "API": lambda: api_names(tmp_path),
        "commands": command_names,
        "metrics": lambda: (*METRICS, *(metric.name for metric in ALL_METRICS)),
        "labels": lambda: (metric.label for metric in ALL_METRICS),
        "page": page_labels,
    }
    known = terms | COMMON
    unknown = {
        name: sorted(parts - known)
        for name in names[kind]()
        if (parts := set(WORD.findall(name.lower()))) - known
    }
    assert unknown == {}, "use a term, or add one to docs/glossary.csv"


def test_terms_are_unique_and_explained() -> None:
    lines = read_terms()
    assert len({line["term"].lower() for line in lines}) == len(lines) > 100
    assert all(len(line["meaning"].split()) >= 2 and line["used"] for line in lines)


def test_common_words_are_sorted_and_no_terms(terms: frozenset[str]) -> None:
    parts = Path(__file__).with_name("common_words.txt").read_text("utf-8").split()
    assert parts == sorted(COMMON)
    assert not COMMON & terms
