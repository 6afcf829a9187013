"""Tests for charts over bursts."""

import pytest

from broadside.coordinator.views.charts import (
    draw_run,
)
from tests.unit.coordinator.views.charts.views import FAULTY, run_view


def test_burst_axis_has_integer_ticks() -> None:
    for name in ("bursts", "completeness", "residuals"):
        assert draw_run(name, run_view()).figure.x.is_integer


def test_states_of_a_burst_add_up_to_100_percent() -> None:
    chart = draw_run("completeness", run_view())
    for burst in range(FAULTY.bursts):
        total = sum(state.y[burst] or 0 for state in chart.figure.series)
        assert total == pytest.approx(100, abs=0.01)
