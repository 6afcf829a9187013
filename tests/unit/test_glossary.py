"""Test that names for users consist of terms from docs/glossary.csv and plain words.

A name is split into the longest terms. Every other word needs to be in ``plain_words.txt``. Two
terms that follow each other are a compound, which the first term lists in the glossary, so that a
name for something new needs an entry.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
import typer.main
from pydantic import BaseModel

from broadside.coordinator.api.app import create_app
from broadside.coordinator.cli import app, load
from broadside.coordinator.cli.command_list import GROUPS, SERVICE_COMMANDS
from broadside.coordinator.core.live import live_view
from broadside.coordinator.core.metrics import ALL_METRICS
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views import feeds
from broadside.coordinator.views.prometheus_metrics import METRICS
from broadside.coordinator.views.responses import ExplainedSummary
from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.docs_build.findings_page import all_findings
from tests.docs_build.glossary_page import compounds_of, read_terms

ROOT: Final = Path(__file__).parents[2]
WEB: Final = ROOT / "dashboards" / "web"
WORD: Final = re.compile(r"[a-z]+")
# A capital letter inside a name begins a word: RunSpec.
CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Punctuation ends a compound, such as in "probes under load, p99".
PAUSE: Final = re.compile(r"[,;:/()=]| - ")
# Beginnings that stand for a group of names.
FAMILY: Final = re.compile(
    r"^(broadside_(run_)?|(bottleneck|contradiction|coordinator|drift|telemetry)-)"
)
# Every value can have one, so these terms make no compounds.
GENERIC: Final = frozenset({"limit", "report", "summary"})
ENDINGS: Final = (
    *(("s", ""), ("es", ""), ("d", ""), ("ed", ""), ("ing", ""), ("ing", "e")),
    *(("ies", "y"), ("ied", "y"), ("est", ""), ("est", "e"), ("iest", "y")),
)
TERM_MAX_WORDS: Final = 4
ALL_MAX_COUNT: Final = 270
EVENT_MODELS: Final[Sequence[type[BaseModel]]] = (
    *(
        model
        for name, model in vars(live_view).items()
        if name.startswith("Live") and issubclass(model, BaseModel)
    ),
    ExplainedSummary,
)


def read_sections() -> Mapping[str, frozenset[str]]:
    """Return the plain words by section. Those of *all* may be part of each name."""
    text = Path(__file__).with_name("plain_words.txt").read_text("utf-8")
    by_section = (section.partition("\n") for section in text.removeprefix("# ").split("# "))
    return {name: frozenset(tokens.split()) for name, _, tokens in by_section}


SECTIONS: Final = read_sections()


def bases_of(token: str) -> Iterator[str]:
    """Yield a word, and the words from which it can be formed by an ending."""
    yield token
    for ending, rest in ENDINGS:
        if token.endswith(ending) and len(token) > len(ending) + 1:
            base = token.removesuffix(ending) + rest
            yield base
            if ending in ("ed", "ing") and base[-1:] == base[-2:-1]:
                # A doubled consonant: stopped.
                yield base[:-1]


@cache
def terms_by_tokens() -> Mapping[tuple[str, ...], str]:
    """Return the terms by their words, with the last one as listed and without an ending."""
    by_tokens = {}
    for line in reversed(read_terms()):
        *tokens, last = WORD.findall(line["term"].lower())
        for base in reversed([last, last.removesuffix("s")]):
            by_tokens[*tokens, base] = line["term"]
    return {**by_tokens, **{tuple(tokens_of(line["term"])): line["term"] for line in read_terms()}}


def tokens_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


@cache
def known_compounds() -> frozenset[tuple[str, str]]:
    return frozenset((line["term"], after) for line in read_terms() for after in compounds_of(line))


def term_at(tokens: list[str]) -> tuple[str, int] | None:
    """Return the longest term at the beginning of words, with the number of its words."""
    for count in range(min(TERM_MAX_WORDS, len(tokens)), 0, -1):
        for base in bases_of(tokens[count - 1]):
            match = terms_by_tokens().get((*tokens[: count - 1], base))
            if match is not None:
                return match, count
    return None


def parts_of(name: str) -> Iterator[list[str]]:
    """Yield the words of a name, in parts between punctuation."""
    spaced = CAPITAL.sub(" ", FAMILY.sub("", name))
    for part in PAUSE.split(spaced):
        yield WORD.findall(part.lower())


@dataclass
class Reading:
    """Parts of a name.

    Attributes:
        unknown: Words that are neither terms nor plain words.
        compounds: Terms that follow each other.
        plain: Plain words.
    """

    unknown: list[str] = field(default_factory=list)
    compounds: set[tuple[str, str]] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)


def read_name(name: str, section: str = "fields") -> Reading:
    """Split a name into the longest terms and the plain words of its section."""
    reading = Reading()
    plain = SECTIONS["all"] | SECTIONS["grammar"] | SECTIONS.get(section, frozenset())
    for tokens in parts_of(name):
        before = None
        while tokens:
            match = term_at(tokens)
            if match is not None:
                term, count = match
                if before not in (None, term) and term not in GENERIC:
                    reading.compounds.add((str(before), term))
                before = None if term in GENERIC else term
                tokens = tokens[count:]
                continue
            token = next((base for base in bases_of(tokens[0]) if base in plain), None)
            if token is None:
                reading.unknown.append(tokens[0])
            else:
                reading.plain.add(token)
            # In a sentence, such a word separates: "streams of a unit".
            if " " in name and token in SECTIONS["grammar"]:
                before = None
            tokens = tokens[1:]
    return reading


@cache
def api_document() -> Any:
    with TemporaryDirectory() as folder:
        fabric = open_fabric(FabricSettings(data_dir=Path(folder)))
        return create_app(Coordinator(fabric), tick_s=None).openapi()


def api_names() -> Iterator[str]:
    """Yield the names of fields, parameters and parts of paths."""
    document = api_document()
    for schema in document["components"]["schemas"].values():
        yield from schema.get("properties", {})
    for path, methods in document["paths"].items():
        yield from re.findall(r"[a-z_-]+", re.sub(r"/v\d+/", "/", path))
        for operation in methods.values():
            yield from (parameter["name"] for parameter in operation.get("parameters", ()))


def values_of(schema: Any) -> Iterator[str]:
    """Yield the values of the enumerations in a schema."""
    if isinstance(schema, dict):
        listed = [*schema.get("enum", ()), schema.get("const")]
        yield from (value for value in listed if isinstance(value, str))
    inner = schema.values() if isinstance(schema, dict) else schema
    for one in inner if isinstance(schema, dict | list) else ():
        yield from values_of(one)


def event_names() -> Iterator[str]:
    """Yield the names of the events of a run, and of their fields."""
    source = Path(feeds.__file__).read_text("utf-8")
    yield from re.findall(r'\(\(?"([a-z_]+)", ', source)
    for model in EVENT_MODELS:
        schema = model.model_json_schema()
        for one in (schema, *schema.get("$defs", {}).values()):
            yield from one.get("properties", {})
        yield from values_of(schema)


def command_names() -> Iterator[str]:
    """Yield the names of commands, and of options with more than one letter."""
    waiting: list[Any] = [
        load(name) for names in (*GROUPS.values(), SERVICE_COMMANDS) for name in names
    ]
    root = typer.main.get_command(app)
    for parameter in root.params:
        yield from parameter.opts
    while waiting:
        command = waiting.pop()
        yield command.name
        waiting += getattr(command, "commands", {}).values()
        for parameter in command.params:
            names = (*parameter.opts, *parameter.secondary_opts)
            yield from (name for name in names if not re.fullmatch("-[a-z]", name))


def page_labels() -> Iterator[str]:
    """Yield the headings, buttons, table columns and names of values on the page."""
    elements = "h[1-6]|th|button|caption|dt|label|legend|summary"
    patterns = (
        rf'h\(\s*[`"](?:{elements})\b[^"`]*[`"],\s*(?:\{{[^{{}}]*\}},\s*)?"([^"]+)"',
        r'^\s*\["([A-Z][^"]*)",\s',
        r'\b(?:words|title|label): "([A-Z][^"]*)"',
    )
    for path in sorted(WEB.glob("*.js")):
        text = path.read_text("utf-8")
        for pattern in patterns:
            yield from re.findall(pattern, text, re.MULTILINE)
        # Helper functions whose first argument is a label, or a choice of labels.
        for label in re.findall(r"\b(?:fact|field|card)\(\s*([^,()]*)", text):
            yield from re.findall(r'"([^"]+)"', label)
    for path in sorted(WEB.glob("*.html")):
        text = path.read_text("utf-8")
        yield from re.findall(rf"<(?:{elements}|a|title)\b[^>]*>([^<>]+)<", text)


# Names by kind, with the section of the plain words that they may use.
NAMES: Final[Mapping[str, tuple[str, Callable[[], Iterable[str]]]]] = {
    "API": ("fields", api_names),
    "schemas": ("schemas", lambda: api_document()["components"]["schemas"]),
    "values": ("values", lambda: values_of(api_document()["components"])),
    "events": ("fields", event_names),
    "commands": ("commands", command_names),
    "findings": ("values", all_findings),
    "metrics": ("fields", lambda: (*METRICS, *(metric.name for metric in ALL_METRICS))),
    "labels": ("labels", lambda: (metric.label for metric in ALL_METRICS)),
    "page": ("labels", page_labels),
}


@cache
def readings(kind: str) -> Mapping[str, Reading]:
    section, names = NAMES[kind]
    return {name: read_name(name, section) for name in names()}


def test_page_labels_are_read() -> None:
    labels = set(page_labels())
    assert {"Role", "Report (HTML)", "Try again", "Latest run"} <= labels
    assert {"Target", "Run A", "Time zone", "Cost", "Imported", "Launched"} <= labels
    assert len(labels) > 120


def test_events_and_root_options_are_read() -> None:
    events = {"begin", "status", "seconds", "figures", "counter", "finding", "summary"}
    assert events <= set(event_names())
    assert {"--version", "--debug"} <= set(command_names())


@pytest.mark.parametrize("kind", NAMES)
def test_names_consist_of_terms_and_listed_parts(kind: str) -> None:
    unknown = {name: one.unknown for name, one in readings(kind).items() if one.unknown}
    assert unknown == {}, "use a term, or add one to docs/glossary.csv"


@pytest.mark.parametrize("kind", NAMES)
def test_compounds_of_terms_are_in_the_glossary(kind: str) -> None:
    unknown = {
        name: missing
        for name, one in readings(kind).items()
        if (missing := one.compounds - known_compounds())
    }
    assert unknown == {}, "use a known name, or add the compound to docs/glossary.csv"


@pytest.mark.parametrize(
    "name",
    [
        *("queue_burst_ratio", "queue_of_burst_ratio", "pair_stratum_max_s", "cookie_drift_count"),
        *("StratumLease", "--guard-cookie", "Hypervisor budget", "witness-canary", "Goal"),
    ],
)
def test_an_invented_name_is_detected(name: str) -> None:
    reading = read_name(name, "labels")
    assert reading.unknown or reading.compounds - known_compounds()


def test_terms_are_unique_and_explained() -> None:
    lines = read_terms()
    assert len({line["term"].lower() for line in lines}) == len(lines) > 100
    assert all(len(line["meaning"].split()) >= 2 and line["used"] for line in lines)


def test_glossary_has_no_unused_compound() -> None:
    used = {pair for kind in NAMES for one in readings(kind).values() for pair in one.compounds}
    assert known_compounds() - used == set()


def test_plain_list_has_no_unused_entry() -> None:
    used: dict[str, set[str]] = {name: set() for name in SECTIONS}
    for kind, (section, _) in NAMES.items():
        tokens = {token for one in readings(kind).values() for token in one.plain}
        for name in ("all", "grammar", section):
            used.setdefault(name, set()).update(tokens)
    unused = {name: tokens - used[name] for name, tokens in SECTIONS.items()}
    assert not any(unused.values()), unused


def test_plain_list_is_short_and_has_no_terms() -> None:
    tokens = frozenset().union(*SECTIONS.values())
    assert len(SECTIONS["all"]) <= ALL_MAX_COUNT
    assert [token for token in tokens if (token,) in terms_by_tokens()] == []
    for name in SECTIONS.keys() - {"all", "grammar"}:
        assert SECTIONS[name] & (SECTIONS["all"] | SECTIONS["grammar"]) == set()
