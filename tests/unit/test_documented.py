"""What the README says of settings and commands is what there is."""

import runpy
from pathlib import Path

import typer.main

from coordinator.cli import app

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
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
