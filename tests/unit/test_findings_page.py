"""Test that the reference of findings has the ids, effects and texts of the code."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from broadside.coordinator.core.judge.checks.decision import BURST_CHECKS, RUN_CHECKS
from broadside.coordinator.core.measure.outages import _TEMPLATES as OUTAGE_TEMPLATES
from broadside.coordinator.core.measure.telemetry import IssueKind
from broadside.coordinator.core.summary import BottleneckName, CauseId, Finding, SecondState
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS
from broadside.coordinator.core.verdict_reason import FAIL_IDS
from tests.docs_build.code_texts import KNOWN_VALUES, load
from tests.docs_build.findings_page import (
    FOLDERS,
    IMPORTED,
    MAKERS,
    TABLES,
    Entry,
    all_findings,
    findings_page,
)
from tests.hunt.adapter import conclude
from tests.worlds import generate
from tests.worlds.kinds import KINDS

ROOT = Path(__file__).parents[2]
# Parts of a template: a value, alternatives, the ends of optional text, and other text.
PART = re.compile(r"\*[^*]+\*|\([^()]* / [^()]*\)|[\[\]]|[^*\[\]()]+|[()]")
REFERRED = re.compile(r"\*Next step of [^*]+\*( \([^)]+\))?")
# Findings whose text is that of the source.
VALUES = ("import-open", "metric-declaration")
OPTIONAL = "(?:(?:, |; )?"
PREFIX = re.compile(r"^Burst \d+: ")


@cache
def reference() -> dict[str, Entry]:
    return all_findings()


def pattern(template: str) -> re.Pattern[str]:
    """Return an expression for the texts of a template."""
    parts = []
    for part in PART.findall(template):
        if part.startswith("*"):
            parts.append(".*?")
        elif part in "[]":
            # Without the text before, a list begins without a separator.
            parts.append(OPTIONAL if part == "[" else ")?")
        elif part.startswith("(") and part.endswith(")"):
            parts.append(f"(?:{'|'.join(map(re.escape, part[1:-1].split(' / ')))})")
        else:
            parts.append(re.escape(part.removeprefix(", ") if parts[-1:] == [OPTIONAL] else part))
    return re.compile("".join(parts), re.DOTALL | re.IGNORECASE)


def steps_of(entry: Entry) -> Iterator[str]:
    """Yield the next steps of a finding, also those of the findings that it refers to."""
    for step in entry.steps:
        found = REFERRED.search(step)
        if found is None:
            yield step.removeprefix(IMPORTED)
            continue
        for id in re.findall("`([a-z.-]+)`", found[0]):
            named = [one for one in reference() if fnmatch(one, id.replace("...", "*"))]
            assert named, id
            for other in (step for one in named for step in steps_of(reference()[one])):
                yield step.replace(found[0], other)


def problem_with(finding: Finding) -> str | None:
    """Return how a finding differs from the reference, or None if it does not."""
    entry = reference().get(finding.id)
    if entry is None:
        return "no such id"
    effect = "none"
    if finding.kind == "verdict" and finding.severity == "problem":
        effect = "fail" if finding.id in FAIL_IDS else "inconclusive"
    if effect not in entry.effects:
        return f"effect {effect}"
    texts = (finding.sentence, PREFIX.sub("", finding.sentence))
    if not any(pattern(one).match(text) for one in entry.sentences for text in texts):
        return f"sentence: {finding.sentence}"
    steps = map(pattern, steps_of(entry))
    if finding.next_step and not any(one.fullmatch(finding.next_step) for one in steps):
        return f"next step: {finding.next_step}"
    return None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_findings_of_a_judged_run_are_those_of_the_reference(kind: str) -> None:
    summary = conclude(generate(kind, 0).recording)
    findings = [*summary.findings, *(one for burst in summary.bursts for one in burst.findings)]
    assert findings
    assert [problem for one in findings if (problem := problem_with(one))] == []


def test_a_finding_that_differs_is_detected() -> None:
    finding = Finding(
        id="bursts-pending",
        kind="verdict",
        severity="problem",
        weight=99,
        sentence="1 of 2 bursts have not ended or have no result.",
        next_step="Wait until the run ends (`broadside watch`). If it has ended, launch it again",
    )
    assert problem_with(finding) is None
    for update in (
        {"id": "bursts-absent"},
        {"severity": "note"},
        {"sentence": "Some bursts are missing."},
        {"next_step": "Launch it again"},
    ):
        assert problem_with(finding.model_copy(update=update)) is not None


def constant_ids() -> Iterator[str]:
    """Yield the constant ids of the findings that the sources create."""
    for folder in ("core", "imports", "runs", "device"):
        for path in (ROOT / "coordinator" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                ids = [key.value for key in node.keywords if key.arg == "id"] + node.args[:1]
                is_maker = node.func.id in MAKERS or node.func.id.endswith(("_note", "_finding"))
                if is_maker and ids and isinstance(ids[0], ast.Constant):
                    yield str(ids[0].value)


def test_findings_in_the_sources_are_listed() -> None:
    ids = set(constant_ids())
    assert len(ids) > 90
    assert ids - reference().keys() == set()


def test_findings_of_checks_are_listed_with_an_effect() -> None:
    texts = [*(check.findings for check in BURST_CHECKS), *(check.findings for check in RUN_CHECKS)]
    ids = set(" ".join(texts).split())
    assert ids - reference().keys() == set()
    # Other findings that prevent a pass are about the run as a whole.
    beside = {"run-aborted", "guard-not-armed", "stopped-by-guard", "dry-run-failed", "import-open"}
    deciding = {id for id, entry in reference().items() if set(entry.effects) - {"none", ""}}
    assert deciding - ids == beside


def test_findings_with_computed_ids_are_listed() -> None:
    stopped = (
        SecondState.MISSED,
        SecondState.LOST,
        SecondState.NULL,
        SecondState.ABANDONED,
        SecondState.REFUSED,
        SecondState.LATE,
    )
    ids = {f"telemetry-{kind}" for kind in IssueKind}
    ids |= {f"{state}-pairs" for state in stopped}
    ids |= set(get_args(CauseId))
    ids |= {template.id for template in OUTAGE_TEMPLATES.values()}
    ids |= {f"coordinator-{template.id}" for template in OUTAGE_TEMPLATES.values()}
    ids |= {f"bottleneck-{name}" for name in BottleneckName}
    ids |= {f"{one.id}-{end}" for one in ALL_THRESHOLDS for end in ("limit", "unproven")}
    assert ids - reference().keys() == set()


def test_functions_of_tables_exist() -> None:
    modules = [load(path) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    functions = {f"{module.name}.{name}" for module in modules for name in module.functions}
    assert TABLES.keys() | KNOWN_VALUES.keys() <= functions


def test_all_ids_and_texts_are_known() -> None:
    for id, entry in reference().items():
        assert re.fullmatch(r"[a-z][a-z0-9-]+", id)
        assert entry.effects
        # A text of nothing but one value would say nothing.
        texts = (*entry.sentences, *steps_of(entry))
        assert id in VALUES or not any(re.fullmatch(r"(\*[^*]+\*\W*)+", text) for text in texts)


def test_findings_that_prevent_a_pass_have_a_next_step() -> None:
    for id, entry in reference().items():
        assert entry.steps or set(entry.effects) <= {"none"}, id


def test_findings_that_fail_a_run_can_be_the_reason() -> None:
    failing = {id for id, entry in reference().items() if "fail" in entry.effects}
    assert failing == FAIL_IDS


def test_values_of_constants_are_shown() -> None:
    page = findings_page()
    assert "(7 s or more are required)" in page
    assert "Burst *worst*: the device counter *source* covers *known* of the fleet's bytes" in page
