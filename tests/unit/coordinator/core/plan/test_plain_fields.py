"""A field of a specification is shown wherever specifications are, because it is there."""

import json

from typer.testing import CliRunner

from coordinator import scenarios
from coordinator.cli import app
from coordinator.core.plan.plain_fields import plain_fields
from coordinator.core.plan.spec import RunSpec
from exchange.messages import Probe, Traffic


def test_nested_values_are_opened_and_what_is_not_set_says_so() -> None:
    spec = RunSpec(scenario="x", traffic=Traffic(probe=Probe()), device={"sku": "premium"})
    said = plain_fields(spec)
    assert said["traffic.probe"] == "set"
    assert said["traffic.encapsulation"] == said["labels"] == "not set"
    assert said["device.sku"] == "premium"
    assert {name.split(".")[0] for name in said} == set(RunSpec.model_fields)


def test_the_command_line_shows_every_field_of_a_scenario() -> None:
    spec = scenarios.load("smoke")
    shown = CliRunner().invoke(app, ["scenarios", "smoke"])
    fields = {line.split()[0] for line in shown.stdout.splitlines() if line.strip()}
    assert plain_fields(spec).keys() <= fields
    raw = json.loads(CliRunner().invoke(app, ["scenarios", "smoke", "--json"]).stdout)
    assert set(raw["smoke"]) == set(RunSpec.model_fields)
