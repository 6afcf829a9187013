"""Wrong declarations of a device counter are recognised by their factor."""

import pytest

from broadside.coordinator.core.judge.declaration_error import misreading
from broadside.coordinator.core.summary import Reconciliation, RunSummary, Verdict
from broadside.exchange.messages import Flow
from tests.hunt.adapter import conclude
from tests.worlds import generate

FORWARD = {Flow.UP: 1e9}
BOTH = {Flow.UP: 7e8, Flow.DOWN: 3e8}


def held(ratio: float, **fields: object) -> Reconciliation:
    """A reconciliation of a counter that shows ``ratio`` of the fleet's bytes."""
    return Reconciliation.model_validate(
        {
            "source": "counter",
            "layer": "ip",
            "grain_s": 60.0,
            "basis": "bytes",
            "lag_s": 0.0,
            "overhead_ratio": 1.036,
            "overhead_how": "recorded",
            "residual_ratio": ratio - 1,
            "residual_uncertainty_ratio": 0.01 * max(1.0, ratio),
            "crossed_bits_per_second": 1e9 * ratio,
            "baseline_uncertainty_bits_per_second": 0.0,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("ratio", "fix"),
    [
        (8, "unit=bits"),
        (1 / 8, "unit=bytes"),
        (8.1, "unit=bits"),
        (60, "aggregation=total"),
        (1 / 60, "aggregation=average"),
        (7.5, "unit=bytes and aggregation=total"),
        (480, "unit=bits and aggregation=total"),
        (8 / 60, "unit=bits and aggregation=average"),
        (1000, "the prefix"),
        (1e-6, "the prefix"),
        (8000, "unit=bits and the prefix"),
        (2, "one of the two"),
        (0.5, "adds them up"),
        (1.024**2, "the prefix"),
        (1 / 1.024**3, "the prefix"),
    ],
)
def test_a_factor_names_what_to_declare(ratio: float, fix: str) -> None:
    found = misreading(held(ratio), FORWARD)
    assert found is not None
    assert fix in found.fix


@pytest.mark.parametrize("ratio", [1.0, 0.995, 1.009, 0.9, 0.8, 0.3, 1.3, 3.0, 20.0, 0.02])
def test_other_factors_are_no_declaration(ratio: float) -> None:
    assert misreading(held(ratio), FORWARD) is None


@pytest.mark.parametrize(
    ("ratio", "counted", "fix"),
    [
        (0.7, (), "direction=in"),
        (0.3, (), "direction=out"),
        (1 / 0.7, (Flow.UP,), "direction=both"),
        (1 / 0.3, (Flow.DOWN,), "direction=both"),
    ],
)
def test_one_direction_of_two_is_told_by_its_share(
    ratio: float, counted: tuple[Flow, ...], fix: str
) -> None:
    found = misreading(held(ratio, counted_flows=counted), BOTH)
    assert found is not None
    assert found.is_sure
    assert found.fix == fix


def test_a_direction_without_traffic_cannot_be_compared() -> None:
    found = misreading(held(0.02, counted_flows=(Flow.DOWN,)), FORWARD)
    assert found is not None
    assert found.fix == "direction=both"


def test_a_counter_that_shows_nothing_above_its_idle_level_has_no_factor() -> None:
    assert misreading(held(1 / 60, baseline_uncertainty_bits_per_second=1e7), FORWARD) is None
    assert misreading(held(1 / 8, lag_s=None), FORWARD) is None
    assert misreading(held(8, bypassed=True), FORWARD) is None
    assert misreading(None, FORWARD) is None


def ids(summary: RunSummary) -> set[str]:
    return {finding.id for finding in summary.findings}


ACCUSATIONS = {"bypass", "duplicate-counting", "device-unproven", "slow-stretch-device"}


@pytest.mark.parametrize("seed", range(8))
def test_bits_read_as_bytes_are_a_factor_of_8(seed: int) -> None:
    summary = conclude(generate("wrong-units", seed).recording)
    assert summary.verdict is not Verdict.PASS
    assert not ids(summary) & ACCUSATIONS
    (finding,) = [f for f in summary.findings if f.id == "metric-declaration"]
    assert "bits are read as bytes" in finding.sentence


@pytest.mark.parametrize("seed", range(8))
def test_a_one_way_counter_of_a_run_of_two_is_no_bypass(seed: int) -> None:
    """Where its direction is declared, the counter is compared with that direction alone."""
    world = generate("one-way", seed)
    summary = conclude(world.recording)
    assert not ids(summary) & ACCUSATIONS
    declared = world.recording.devices[0].directions is not None
    assert ("metric-declaration" in ids(summary)) != declared
    if not declared:
        assert summary.verdict is not Verdict.PASS
