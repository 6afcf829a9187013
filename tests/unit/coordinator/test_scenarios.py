"""Tests for scenario files, overrides and error messages."""

import json
from pathlib import Path

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.studies.study import Axis


def test_shipped_scenarios_are_valid_and_described() -> None:
    assert {"scale-180g", "burst-30s", "burst-280s", "jumbo-1740s", "soak", "smoke"} <= set(
        scenarios.names()
    )
    for name in scenarios.names():
        spec = scenarios.load(name)
        assert spec.scenario == name
        assert spec.description


def test_scale_180g_matches_the_original_test() -> None:
    spec = scenarios.load("scale-180g")
    assert (spec.pairs_count, spec.traffic.streams_count) == (30, 64)
    assert (spec.burst_s, spec.period_s, spec.align_to_period) == (280, 300, True)
    assert spec.objective.target_bits_per_second == 180e9


def test_all_fields_can_be_overridden() -> None:
    spec = scenarios.load("smoke")
    for field in scenarios.fields():
        value: object = spec
        for part in field.split("."):
            value = getattr(value, part)
        if value is None:
            continue
        plain = spec.model_dump(mode="json")
        for part in field.split("."):
            plain = plain[part]
        assert scenarios.load("smoke", {field: plain}) == spec


# All pairs of a mixed run need the same tunnel, so it cannot be set for one part.
@pytest.mark.parametrize(
    "name", [name for name in scenarios.names() if not scenarios.load(name).mix]
)
@pytest.mark.parametrize(
    ("field", "value"),
    [("traffic.encapsulation.port", 8472), ("traffic.probe.every_s", 0.05)],
)
def test_probe_and_tunnel_accept_shorthand_or_fields(name: str, field: str, value: object) -> None:
    """The scenario file may set a short name, a table or none of them."""
    _, parent, leaf = field.split(".")
    given = getattr(scenarios.load(name, {field: value}).traffic, parent)
    part = {"probe": "udp", "encapsulation": "vxlan"}[parent]
    # The order does not matter.
    both = {field: value, f"traffic.{parent}": part}
    assert getattr(scenarios.load(name, both).traffic, parent) == given
    defaults = getattr(scenarios.load(name, {f"traffic.{parent}": part}).traffic, parent)
    assert given == defaults.model_copy(update={leaf: value})


def test_override_values_are_toml_or_plain_text() -> None:
    assert scenarios.parse_overrides(
        ["traffic.streams_count=8", "traffic.protocol=udp", "scale=1e2", "align_to_period=true"]
    ) == {
        "traffic.streams_count": 8,
        "traffic.protocol": "udp",
        "scale": 100.0,
        "align_to_period": True,
    }


@pytest.mark.parametrize(
    ("assignment", "field", "value"),
    [
        ("burst=30s", "burst_s", 30),
        ("bursts=5", "bursts_count", 5),
        ("pairs=30", "pairs_count", 30),
        ("streams=8", "traffic.streams_count", 8),
        ("burst_s=5m", "burst_s", 300),
        ("target=180Gbit", "objective.target_bits_per_second", 180e9),
        ("traffic.window=128K", "traffic.window_bytes", 131_072),
        ("tolerance=5%", "objective.tolerance_ratio", 0.05),
        ("streams_count=8", "traffic.streams_count", 8),
        ("device.capacity_units=20", "device.capacity_units", "20"),
        ('device.sku="premium"', "device.sku", "premium"),
        ("labels.build=1.10", "labels.build", "1.10"),
        ("traffic.probe=off", "traffic.probe", "off"),
        ("no_such_field=1", "no_such_field", 1),
    ],
)
def test_overrides_accept_short_names_and_units(assignment: str, field: str, value: object) -> None:
    assert scenarios.parse_overrides([assignment]) == {field: value}


@pytest.mark.parametrize("name", scenarios.fields())
def test_full_field_name_is_unchanged(name: str) -> None:
    assert scenarios.field_of(name) == name


def test_rejects_unit_of_another_quantity() -> None:
    with pytest.raises(scenarios.BadScenario, match="burst_s: '30G' is not a time"):
        scenarios.parse_overrides(["burst=30G"])


@pytest.mark.parametrize(
    ("name", "overrides", "parts"),
    [
        ("scale-180", {}, ["scale-180", "did you mean 'scale-180g'"]),
        ("nothing-like-it", {}, ["no such scenario", "smoke"]),
        ("smoke", {"pairs_cont": 3}, ["pairs_cont", "did you mean pairs_count"]),
        ("smoke", {"pairs_count": 0}, ["pairs_count", "0"]),
        ("smoke", {"pairs_count": "many"}, ["pairs_count", "many"]),
        ("smoke", {"objective.target_bits_per_second": -1}, ["objective.target_bits_per_second"]),
        ("smoke", {"bursts_count": 2, "period_s": 3}, ["period_s", "3 s", "at least 10 s"]),
        ("smoke", {"traffic.protocol": "udp"}, ["stream_bits_per_second", "UDP"]),
        ("smoke", {"scenario.name": "x"}, ["scenario.name", "no fields of its own"]),
        (
            "smoke",
            {"traffic.protocol": "udp", "traffic.protocol.x": 1},
            ["traffic.protocol.x", "'udp'", "no fields of its own; drop it"],
        ),
        (
            "smoke",
            {"traffic.encapsulation": "none", "traffic.encapsulation.port": 8472},
            ["traffic.encapsulation.port", "'none'", "set traffic.encapsulation=vxlan"],
        ),
        ("smoke", {"traffic.encapsulation.prt": 1}, ["traffic.encapsulation.prt", "no such field"]),
        ("smoke", {"traffic.probe": "icmp"}, ["traffic.probe", "'icmp'", "udp or off"]),
        ("smoke", {"traffic.encapsulation": "gre"}, ["'gre'", "vxlan or none"]),
    ],
)
def test_scenario_error_names_field_value_and_fix(
    name: str, overrides: dict[str, object], parts: list[str]
) -> None:
    with pytest.raises(scenarios.ScenarioError) as caught:
        scenarios.load(name, overrides)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("assignment", ["pairs_count", "=3"])
def test_rejects_incomplete_assignment(assignment: str) -> None:
    with pytest.raises(scenarios.BadScenario, match="FIELD=VALUE"):
        scenarios.parse_overrides([assignment])


def test_loads_scenario_from_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("pairs_count = 3\n")
    assert scenarios.load(str(path)).pairs_count == 3
    path.write_text("pairs_count = \n")
    with pytest.raises(scenarios.BadScenario, match="not valid TOML"):
        scenarios.load(str(path))
    with pytest.raises(scenarios.ScenarioNotFound, match="no such file"):
        scenarios.load(str(tmp_path / "other.toml"))


READINGS = [
    ("burst", "30s", "burst_s", 30),
    ("burst_s", "30", "burst_s", 30),
    ("target", "180Gbit", "objective.target_bits_per_second", 180e9),
    ("objective.tolerance_ratio", "5%", "objective.tolerance_ratio", 0.05),
    ("window", "128K", "traffic.window_bytes", 131_072),
    ("budget", "12.5", "budget_usd", 12.5),
    ("device.capacity_units", 20, "device.capacity_units", "20"),
    ("labels.build", 1.5, "labels.build", "1.5"),
    ("labels.canary", True, "labels.canary", "true"),
]


@pytest.mark.parametrize(("name", "value", "field", "read"), READINGS)
def test_value_is_parsed_equally_from_all_sources(
    name: str, value: object, field: str, read: object
) -> None:
    """The same value can be set with ``--set``, in a request, in a study or in a table."""
    spec = scenarios.load("smoke", {name: value})
    assert scenarios.load("smoke", {field: read}) == spec
    assert scenarios.load("smoke", scenarios.parse_overrides([f"{name}={json.dumps(value)}"])) == (
        spec
    )
    assert Axis(field=name, values=(value,)) == Axis(field=field, values=(read,))
    *parents, leaf = field.split(".")
    if parents:
        table = scenarios.load("smoke", {parents[0]: {leaf: value}}).model_dump()[parents[0]]
        assert table[leaf] == spec.model_dump()[parents[0]][leaf]


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("target", "-5G", ["objective.target_bits_per_second: '-5G' is not a rate", "180Gbit/s"]),
        ("target", "fast", ["objective.target_bits_per_second: 'fast' is not a rate"]),
        ("target", float("inf"), ["objective.target_bits_per_second: inf is not a number"]),
        ("target", "nan", ["objective.target_bits_per_second: 'nan' is not a rate"]),
        ("burst", "-3s", ["burst_s: '-3s' is not a time", "5m"]),
        ("window", "x", ["traffic.window_bytes: 'x' is not a size"]),
        ("tolerance", "much", ["objective.tolerance_ratio: 'much' is not a share"]),
        ("pairs", True, ["pairs_count: true is not a number"]),
        ("unattended_until_at", "soon", ["unattended_until_at: use a time such as"]),
    ],
)
def test_invalid_value_error_names_field_value_and_format(
    name: str, value: object, parts: list[str]
) -> None:
    with pytest.raises(scenarios.BadScenario) as caught:
        scenarios.load("smoke", {name: value})
    assert all(part in str(caught.value) for part in parts)


def test_rejects_two_names_of_the_same_field() -> None:
    with pytest.raises(scenarios.BadScenario, match="burst, burst_s: both are burst_s"):
        scenarios.load("smoke", {"burst": 1, "burst_s": 2})
