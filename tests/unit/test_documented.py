"""What the README and the docs say of settings and commands is what there is."""

import argparse
import runpy
import shlex
from pathlib import Path

import pytest
import typer.main

from coordinator import prices, scenarios
from coordinator.cli import app
from coordinator.core.plan.cost_estimate import estimate
from tests.unit.coordinator.fleet import fleet

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BUDGETED = [
    (page.name, line)
    for page in PAGES
    for line in page.read_text(encoding="utf-8").splitlines()
    if line.startswith("broadside launch") and "--budget" in line
]
DOCS = runpy.run_path(str(ROOT / "docs" / "settings.py"))


def test_every_setting_is_described() -> None:
    for title, settings in DOCS["CLASSES"]:
        for name, field in settings.model_fields.items():
            assert field.description, f"{title}: {name} has no description"


def test_the_settings_table_is_up_to_date() -> None:
    assert DOCS["renewed"](README) == README, "run: .venv/bin/python docs/settings.py"


def test_every_command_is_named() -> None:
    group = typer.main.get_command(app)
    for name in getattr(group, "commands"):  # noqa: B009 - typed as a plain command
        assert f"`{name}`" in README or f"broadside {name}" in README, name


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
    assert {page for page, _ in BUDGETED} == {"README.md", "soak.md"}
