"""Test that the README and the documentation agree with the code."""

import argparse
import ast
import csv
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from broadside.coordinator import prices, scenarios
from broadside.coordinator.core.judge.checks.decision import BURST_CHECKS, RUN_CHECKS
from broadside.coordinator.core.measure.outages import _TEMPLATES as OUTAGE_TEMPLATES
from broadside.coordinator.core.measure.telemetry import IssueKind
from broadside.coordinator.core.plan.cost_estimate import estimate
from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.core.summary import CauseId, SecondState
from broadside.coordinator.core.verdict_reason import FAIL_IDS
from tests.docs_build.checks_page import checks_page, findings_page, precedence_rows
from tests.docs_build.drawings import DRAWINGS
from tests.docs_build.reference_pages import CLASSES
from tests.docs_build.reference_pages import PAGES as GENERATED
from tests.unit.coordinator.presences import fleet

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BUDGETED = [
    (page.name, line)
    for page in PAGES
    for line in page.read_text(encoding="utf-8").splitlines()
    if line.startswith("broadside launch") and "--budget" in line
]
# Folders to search for the files named on a page.
FOLDERS = (
    *("", "coordinator", "coordinator/core", "coordinator/core/judge", "coordinator/core/measure"),
    *("coordinator/core/judge/reconciliation", "coordinator/core/judge/checks"),
    *("exchange", "exchange/engines", "coordinator/device/telemetry"),
)
FINDING_MAKERS = {
    "Finding",
    "Note",
    "caution",
    "inconclusive",
    "note",
    "problem",
    "warning",
    "_note",
}


def test_all_settings_have_a_description() -> None:
    for title, settings in CLASSES:
        for name, field in settings.model_fields.items():
            assert field.description, f"{title}: {name} has no description"


@pytest.mark.parametrize("name", [*GENERATED, *DRAWINGS])
def test_generated_page_is_not_in_the_repository(name: str) -> None:
    assert not (ROOT / "docs" / name).exists(), "tests/docs_build generates it"


def test_verdict_page_has_the_order_of_precedence_of_the_code() -> None:
    page = (ROOT / "docs" / "verdict.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert [row[1:] for row in rows] == precedence_rows(), "run: python -m tests.docs_build"


def findings_made(folder: Path) -> dict[str, set[str]]:
    """Return the constant finding ids in the sources, with the functions used to make them."""
    by_name: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            ids = [key.value for key in node.keywords if key.arg == "id"] + node.args[:1]
            if node.func.id in FINDING_MAKERS and ids and isinstance(ids[0], ast.Constant):
                by_name.setdefault(str(ids[0].value), set()).add(node.func.id)
    return by_name


def effects_documented() -> dict[str, str]:
    lines = findings_page().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| `")]
    return {row[0].strip("| `"): row[2] for row in rows}


def test_findings_of_checks_are_documented() -> None:
    listed = {id for check in BURST_CHECKS for id in check.findings.split()}
    listed |= {id for check in RUN_CHECKS for id in check.findings.split()}
    assert listed
    assert listed - effects_documented().keys() == set()


@pytest.mark.parametrize("folder", ["coordinator/core", "coordinator/imports"])
def test_findings_in_the_sources_are_documented(folder: str) -> None:
    finding_functions = findings_made(ROOT / folder)
    assert finding_functions
    assert finding_functions.keys() - effects_documented().keys() == set()


def test_findings_with_computed_ids_are_documented() -> None:
    stopped = (
        SecondState.MISSED,
        SecondState.LOST,
        SecondState.NULL,
        SecondState.ABANDONED,
        SecondState.REFUSED,
        SecondState.LATE,
    )
    references = {f"telemetry-{kind}" for kind in IssueKind}
    references |= {f"{state}-pairs" for state in stopped}
    references |= set(get_args(CauseId))
    references |= {parts.id for parts in OUTAGE_TEMPLATES.values()}
    assert references - effects_documented().keys() == set()


def test_documented_effect_matches_the_code() -> None:
    effects = effects_documented()
    finding_functions_with_effect = {
        id: makers
        for id, makers in findings_made(ROOT / "coordinator" / "core").items()
        if makers & {"inconclusive", "note", "warning", "caution"}
    }
    wrong = {
        id: effects[id]
        for id, makers in finding_functions_with_effect.items()
        if (effects[id] == "inconclusive") != bool(makers & {"inconclusive", "problem"})
    }
    assert wrong == {}


def test_every_finding_has_one_line() -> None:
    with (ROOT / "docs" / "findings.csv").open(encoding="utf-8", newline="") as file:
        ids = [line["id"] for line in csv.DictReader(file)]
    assert len(set(ids)) == len(ids) > 0


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.csv")), ids=lambda path: path.name)
def test_lines_of_tables_have_a_value_in_each_required_column(path: Path) -> None:
    """A comma without quotes would move the rest of a line to the next column."""
    optional = {"next_step", "unit", "checks"}
    with path.open(encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    for line in lines:
        assert len(line) == len(head), line
        empty = {name for name, cell in zip(head, line, strict=True) if not cell.strip()}
        assert empty <= optional, line


def test_documentation_is_short() -> None:
    pages = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "DECISIONS")]
    pages += (ROOT / "docs").glob("*.md")
    assert sum(len(page.read_text("utf-8").split()) for page in pages) <= 30_000


def test_constants_of_called_functions_are_listed() -> None:
    shape = checks_page().partition("\n### shape\n")[2].partition("\n### ")[0]
    # The first constant is used directly, the second in a function to compute the input.
    assert "`shape_check.SLOW_RATIO` 0.015" in shape
    assert "`steady.STRETCH_RATIO` 0.2" in shape


def test_readme_is_short() -> None:
    assert len(README.splitlines()) < 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_files_exist(page: Path) -> None:
    """Check the files. ``make docs`` can be used to check the sections too."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        generated = target.removeprefix("docs/") in {*GENERATED, *DRAWINGS}
        assert generated or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_named_for_newcomers_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    references = {name for name in re.findall(r"[\w/]+\.py\b", text) if "<" not in name}
    assert references
    absent = {
        name for name in references if not any((ROOT / space / name).exists() for space in FOLDERS)
    }
    assert absent == set()


def test_all_pages_are_in_the_contents() -> None:
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in PAGES[1:]} | {*GENERATED}
    assert {name for name in pages if f"({name}" not in contents} == {"index.md"}


def test_readme_has_all_exit_codes() -> None:
    assert "0 pass, 1 fail, 2 inconclusive, 3 wrong usage, 4 could not run" in README


@pytest.mark.parametrize("sku", ["", "standard", "premium"])
@pytest.mark.parametrize(("page", "line"), BUDGETED)
def test_documented_budget_is_sufficient_for_its_run(page: str, line: str, sku: str) -> None:
    launch = argparse.ArgumentParser()
    launch.add_argument("scenario")
    launch.add_argument("--set", action="append", default=[])
    launch.add_argument("--budget", type=float)
    launch.add_argument("--detach", action="store_true")
    arguments = launch.parse_args(shlex.split(line, comments=True)[2:])
    overrides = scenarios.parse_overrides(arguments.set) | {"budget_usd": arguments.budget}
    spec = scenarios.load(arguments.scenario, overrides | {"device.sku": sku})
    sized = [agent.model_copy(update={"vm_size": "Standard_D4_v4"}) for agent in fleet(30)]
    cost = estimate(spec, expect_usage(spec, sized), prices.load())
    assert cost.over_budget is None, page


def test_documentation_has_a_launch_with_a_budget() -> None:
    assert {page for page, _ in BUDGETED} == {"long-runs.md"}


def test_decisions_are_few_short_and_indexed() -> None:
    page = (ROOT / "DECISIONS.md").read_text(encoding="utf-8")
    index, *decisions = re.split(r"^## ", page, flags=re.MULTILINE)
    titles = [decision.partition("\n")[0] for decision in decisions]
    numbers = [title.partition(".")[0] for title in titles]
    assert re.findall(r"^- \[(\d+)\]", index, re.MULTILINE) == numbers
    assert 0 < len(decisions) <= 50
    for title, decision in zip(titles, decisions, strict=True):
        assert len(decision.strip().splitlines()) - 2 <= 8, title
        for part in ("Status", "Context", "Decision", "Consequences"):
            assert f"- **{part}:**" in decision, title
        assert title.partition(". ")[2] in index, title


def test_findings_that_fail_a_run_can_be_the_reason() -> None:
    failing = {id for id, effect in effects_documented().items() if effect == "fail"}
    assert "target-missed" in failing
    assert {id for id in failing if "*" not in id} - FAIL_IDS == set()
