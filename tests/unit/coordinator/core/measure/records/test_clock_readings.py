"""Tests for clocks that move during a burst. If too many do, it has no verdict."""

from dataclasses import replace

import pytest

from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import BurstSummary, Finding, Verdict
from broadside.exchange.messages import ClockReading, ClockSource, Outcome, Side
from tests.judged import judged_first
from tests.synthetic import START, Plant, clock, fleet

GATE_S = 0.05


def after(pairs_count: int, changed: int, reading: ClockReading | None, side: Side) -> BurstSummary:
    """Return a burst in which some clocks on one side have this reading when it ends."""
    made = fleet(Plant(pairs=pairs_count, bursts=1, burst_s=10, period_s=25))
    update = {"clock_after": reading}

    def change(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None
        assert pair.server_test is not None
        if side is Side.CLIENT:
            return replace(pair, report=pair.report.model_copy(update=update))
        return replace(pair, server_test=pair.server_test.model_copy(update=update))

    return judged_first(made.told(change, range(changed)))


def named(summary: BurstSummary) -> dict[str, Finding]:
    return {f.id: f for f in summary.findings if f.id in ("clock-moved", "clocks-unproven")}


UNSYNCHRONISED = ClockReading(source=ClockSource.CHRONY, read_at=START, synchronised=False)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(
    ("reading", "text"),
    [
        (clock(0.4, 0.401, START), "clock moved by +400 ms"),
        (clock(-0.4, 0.401, START), "clock moved by -400 ms"),
        (clock(0.001, 0.3, START), "clock was up to 300 ms off after the burst"),
        (UNSYNCHRONISED, "clock was not synchronised after the burst"),
    ],
)
def test_moved_clock_is_inconclusive_below_the_completeness_floor(
    reading: ClockReading, text: str, side: Side
) -> None:
    result = after(4, 1, reading, side)
    assert result.verdict is Verdict.INCONCLUSIVE
    reason = f"pair-001 (the clock of the {side}, {side}-0, {text.removeprefix('clock ')})"
    assert reason in named(result)["clock-moved"].sentence
    assert "75.0 % of the planned" in named(result)["clocks-unproven"].sentence
    assert result.completeness_ratio == 1.0


def test_reports_one_moved_clock_of_many_without_effect() -> None:
    result = after(30, 1, clock(0.4, 0.401, START), Side.CLIENT)
    assert result.verdict is Verdict.MEASURED
    assert list(named(result)) == ["clock-moved"]
    assert "1 of 30 pairs" in named(result)["clock-moved"].sentence


@pytest.mark.parametrize(
    "reading",
    [
        None,
        ClockReading(source=ClockSource.UNKNOWN, read_at=START, synchronised=False),
        clock(0.9 * GATE_S, 0.95 * GATE_S, START),
    ],
    ids=["dead agent", "no answer", "slew"],
)
@pytest.mark.parametrize("side", Side)
def test_slewed_clock_or_missing_reading_is_not_a_moved_clock(
    reading: ClockReading | None, side: Side
) -> None:
    result = after(4, 4, reading, side)
    # No clock moved. If a reading is missing, this is not used as proof.
    is_read = reading is not None and reading.synchronised
    assert result.verdict is (Verdict.MEASURED if is_read else Verdict.INCONCLUSIVE)
    assert {f.id for f in result.findings} & {"clock-readings-missing"} == (
        set() if is_read else {"clock-readings-missing"}
    )
    assert not named(result)
    assert result.unsteady_clocks is None


def test_pair_refused_for_its_clock_is_reported_once() -> None:
    made = fleet(Plant(pairs=4, bursts=1, burst_s=10, period_s=25))
    fields = {"outcome": Outcome.REFUSED, "engine": None, "first_data_at": None}

    def refuse(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None
        report = pair.report.model_copy(update=fields | {"clock_after": clock(0.4, 0.401, START)})
        return PairEvidence(pair_index=0, claim=pair.claim, report=report)

    result = judged_first(made.told(refuse, [0]))
    assert result.completeness.refused_s == 10
    assert not named(result)
