"""What the README and the docs say of settings and commands is what there is."""

import argparse
import re
import runpy
import shlex
from pathlib import Path

import pytest

from broadside.coordinator import prices, scenarios
from broadside.coordinator.core.plan.cost_estimate import estimate
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
ROOMS = (  # in which a page names files by their place there
    *("", "coordinator", "coordinator/core", "coordinator/core/judge", "coordinator/core/measure"),
    *("exchange", "exchange/engines", "coordinator/device/ledgers"),
)
DOCS = runpy.run_path(str(ROOT / "docs" / "tables.py"))


def test_every_setting_is_described() -> None:
    for title, settings in DOCS["CLASSES"]:
        for name, field in settings.model_fields.items():
            assert field.description, f"{title}: {name} has no description"


@pytest.mark.parametrize("name", DOCS["PAGES"])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    told = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert told == DOCS["PAGES"][name](), "run: .venv/bin/python docs/tables.py"


def test_the_readme_is_a_page_that_one_reads() -> None:
    assert len(README.splitlines()) < 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_points_at_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_a_newcomers_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {name for name in re.findall(r"[\w/]+\.py\b", text) if "<" not in name}
    assert named
    absent = {name for name in named if not any((ROOT / room / name).exists() for room in ROOMS)}
    assert absent == set()


def test_every_page_is_named_in_the_readme() -> None:
    assert [page.name for page in PAGES[1:] if f"(docs/{page.name})" not in README] == []


def test_the_readme_names_every_exit_code() -> None:
    assert "0 pass, 1 fail, 2 inconclusive, 3 wrong usage, 4 could not run" in README


@pytest.mark.parametrize("sku", ["", "standard", "premium"])
@pytest.mark.parametrize(("page", "line"), BUDGETED)
def test_a_budget_in_the_docs_carries_the_run_beside_it(page: str, line: str, sku: str) -> None:
    launch = argparse.ArgumentParser()
    launch.add_argument("scenario")
    launch.add_argument("--set", action="append", default=[])
    launch.add_argument("--budget", type=float)
    launch.add_argument("--detach", action="store_true")
    asked = launch.parse_args(shlex.split(line, comments=True)[2:])
    overrides = scenarios.parse_overrides(asked.set) | {"budget_usd": asked.budget}
    spec = scenarios.load(asked.scenario, overrides | {"device.sku": sku})
    sized = [agent.model_copy(update={"vm_size": "Standard_D4_v4"}) for agent in fleet(30)]
    assert estimate(spec, sized, prices.load()).over_budget is None, page


def test_the_docs_launch_with_a_budget() -> None:
    assert {page for page, _ in BUDGETED} == {"price.md", "soak.md"}
