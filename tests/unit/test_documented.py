"""Test that the README and the documentation agree with the code."""

import argparse
import csv
import re
import shlex
from pathlib import Path

import pytest

from broadside.coordinator import prices, scenarios
from broadside.coordinator.core.plan.cost_estimate import estimate
from broadside.coordinator.core.plan.expected_usage import expect_usage
from tests.docs_build.checks_page import checks_page, precedence_rows
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


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.csv")), ids=lambda path: path.name)
def test_lines_of_tables_have_a_value_in_each_required_column(path: Path) -> None:
    """A comma without quotes would move the rest of a line to the next column."""
    optional = {"unit", "checks", "before"}
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
    launch.add_argument("--api")
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
