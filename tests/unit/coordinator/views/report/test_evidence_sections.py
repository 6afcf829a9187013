"""Tests for the sections with measurements."""

from broadside.coordinator.views.report.build import build
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.views.charts.views import FAULTY
from tests.unit.coordinator.views.report.test_build import sourced


async def test_latency_section_has_values_before_during_and_after_load(fabric: Fabric) -> None:
    report = build(await sourced(fabric))
    part = next(item for item in report.sections if item.id == "latency")
    bursts, *phases, spikes = part.tables
    assert len(bursts.rows) == FAULTY.bursts
    assert phases[0].rows[0][:4] == ("before load", "560", "0.00 %", "1 ms")
    assert phases[0].rows[2][0] == "after load"
    (_, from_, lasted, pairs, slowest, lost) = spikes.rows[0]
    assert from_.endswith("12:00:05 UTC")
    assert (lasted, pairs, slowest, lost) == ("2 s", "1 (pair-002)", "none", "20")
