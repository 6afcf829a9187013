import ast
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broadside.coordinator import scenarios
from broadside.coordinator.cli import app
from broadside.coordinator.core.plain_fields import plain_fields
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS, Objective
from broadside.coordinator.views.page_labels import page_labels
from broadside.exchange.messages import Probe, Traffic

ROOT = Path(__file__).parents[4]


def test_flattens_nested_values_and_shows_unset_fields() -> None:
    spec = RunSpec(scenario="x", traffic=Traffic(probe=Probe()), device={"sku": "premium"})
    shown = plain_fields(spec)
    assert shown["traffic.probe"] == "set"
    assert shown["traffic.encapsulation"] == shown["labels"] == "not set"
    assert shown["device.sku"] == "premium"
    assert {name.split(".")[0] for name in shown} == set(RunSpec.model_fields)


def test_cli_shows_every_field_of_a_scenario() -> None:
    spec = scenarios.load("smoke")
    shown = CliRunner().invoke(app, ["scenarios", "smoke"])
    fields = {line.split()[0] for line in shown.stdout.splitlines() if line.strip()}
    assert plain_fields(spec).keys() <= fields
    raw = json.loads(CliRunner().invoke(app, ["scenarios", "smoke", "--json"]).stdout)
    assert set(raw["smoke"]) == set(RunSpec.model_fields)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_page_shows_every_field_of_a_scenario(tmp_path: Path) -> None:
    spec = scenarios.load("smoke")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "words.js").write_text(page_labels())
    (tmp_path / "format.js").write_text((ROOT / "dashboards" / "web" / "format.js").read_text())
    (tmp_path / "ask.js").write_text(
        'import { fieldsOf } from "./format.js";'
        f"console.log(JSON.stringify(fieldsOf({spec.model_dump_json()})));"
    )
    done = subprocess.run(
        ["node", "ask.js"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    assert {name for name, _ in json.loads(done.stdout)} == plain_fields(spec).keys()


def test_code_reads_every_field_of_a_scenario() -> None:
    """A field should not be shown if no code uses it."""
    read = {threshold.bound for threshold in ALL_THRESHOLDS}
    for package in ("agent", "coordinator", "exchange"):
        for path in (ROOT / package).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text()))
            read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    fields = (
        RunSpec.model_fields.keys() | Traffic.model_fields.keys() | Objective.model_fields.keys()
    )
    assert fields - read == set()
