"""Tests for the phases of a load with ramps. Only the sustain phase is judged."""

from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.disruptions import _without_ramps, judge_levels
from broadside.coordinator.core.measure.formulas.phases import Sustain, sustain_of
from broadside.coordinator.core.measure.grid.second_table import fleet_table
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.engines import traffic_of
from tests.synthetic import Fleet, Plant, fleet


def spec(burst_s: int = 30, **options: Any) -> RunSpec:
    traffic = {"engine": "connections", "options": options}
    return RunSpec.model_validate(
        {"scenario": "t", "pairs_count": 1, "burst_s": burst_s, "traffic": traffic}
    )


def test_sustain_phase_is_between_the_ramps() -> None:
    assert sustain_of(spec().traffic, 30, 30) is None
    assert sustain_of(traffic_of(engine="iperf3"), 30, 30) is None
    ramped = spec(ramp_up_s=5, ramp_down_s=7).traffic
    assert sustain_of(ramped, 30, 30) == Sustain(from_s=5, to_s=23)
    # A burst that was ended early may have no ramp-down, and no sustain phase.
    assert sustain_of(ramped, 30, 12) == Sustain(from_s=5, to_s=12)
    assert sustain_of(ramped, 30, 3) == Sustain(from_s=5, to_s=5)


def test_every_second_has_a_phase() -> None:
    sustain = Sustain(from_s=2, to_s=4)
    phases = [sustain.phase_at(second, 5).value for second in range(-1, 7)]
    assert phases == ["init", *["ramp-up"] * 2, *["sustain"] * 2, "ramp-down", *["collect"] * 2]


@pytest.mark.parametrize("options", [{"ramp_up_s": 30}, {"ramp_up_s": 10, "ramp_down_s": 20}])
def test_ramps_without_a_sustain_phase_are_rejected(options: dict[str, int]) -> None:
    (problem,) = spec(**options).problems()
    assert problem.startswith("burst_s: the ramps of ")
    assert "leave no sustain phase in 30 s; set at least 31 s" in problem
    assert not spec(31, **options).problems()


def ramped(planted: Plant, **options: Any) -> tuple[Fleet, RunSpec]:
    """Return a fleet and its specification with ramps of the load."""
    made = fleet(planted)
    traffic = traffic_of(engine="connections", direction="forward", options=options)
    return made, made.plan.spec.model_copy(update={"traffic": traffic})


def test_window_and_series_have_the_sustain_phase_only() -> None:
    made, changed = ramped(Plant(pairs=3, bursts=1), ramp_up_s=5, ramp_down_s=7)
    (evidence,) = made.evidence
    measured = measure_burst(changed, evidence, made.now)
    window, start_at = measured.summary.window, evidence.burst.planned_start_at
    assert window is not None
    assert (window.start_at - start_at).total_seconds() == 5
    assert (window.window_s, window.ramp_s) == (18, 0)
    # The ramps are no seconds that pairs do not share.
    assert window.outside_s <= 2
    series = BurstSeries.unpack(measured.series.pack())
    assert series.sustain == (5, 23)
    (column,) = [one for one in fleet_table(series, 1) if one.name == "phase"]
    phases = column.values.tolist()
    assert [phases.count(name) for name in ("ramp-up", "sustain", "ramp-down")] == [5, 18, 7]
    plain = measure_burst(made.plan.spec, evidence, made.now).series
    assert BurstSeries.unpack(plain.pack()).sustain is None
    assert "phase" not in [one.name for one in fleet_table(plain, 1)]
    assert plain.phase_at(3) == ""


def test_low_seconds_of_the_ramps_are_no_disruption() -> None:
    rates = np.full((1, 30), 8e6)
    rates[0, [1, 15, 28]] = 0
    levels = judge_levels(rates, np.ones((1, 30)), 0.5)
    assert np.flatnonzero(levels.low[0]).tolist() == [1, 15, 28]
    sustain = _without_ramps(levels, Sustain(from_s=5, to_s=23))
    assert np.flatnonzero(sustain.low[0]).tolist() == [15]
    assert np.flatnonzero(sustain.empty[0]).tolist() == [15]
    assert _without_ramps(levels, None) is levels


def test_values_of_the_ramps_do_not_change_the_rate() -> None:
    made, changed = ramped(Plant(pairs=2, bursts=1), ramp_up_s=10)
    (evidence,) = made.evidence
    measured = measure_burst(changed, evidence, made.now)
    series = measured.series
    first = round(series.planned_start_s) + 10 - series.start_s
    inside = series.received_bytes[first : first + 20]
    summary = measured.summary
    assert summary.fleet_received_bits_per_second == pytest.approx(inside.mean() * 8, rel=0.01)
    assert not np.isnan(inside).any()
