import ast
import json
from pathlib import Path

from typer.testing import CliRunner

from broadside.coordinator import scenarios
from broadside.coordinator.cli import app
from broadside.coordinator.core.plain_fields import plain_fields
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS, Objective
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
    raw = json.loads(CliRunner().invoke(app, ["scenarios", "smoke", "-o", "json"]).stdout)
    assert set(raw["smoke"]) == set(RunSpec.model_fields)


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
