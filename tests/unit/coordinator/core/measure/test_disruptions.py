"""Tests for disruptions, to find all of them (dated to within a second) and no others."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.decide import control_problem
from broadside.coordinator.core.judge import summarise as summarise_module
from broadside.coordinator.core.judge.summarise import PAIR_SUMMARIES_MAX, summarise_run
from broadside.coordinator.core.measure.disruptions import judge_levels
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.run_trends import (
    burst_trend_values,
    compute_run_trends,
    trend_findings,
)
from broadside.coordinator.core.summary import (
    Availability,
    BurstSummary,
    Disruption,
    DisruptionKind,
    RunSummary,
    RunTrends,
    canonical,
    combined,
)
from broadside.exchange.messages import Control, Outcome
from tests.planted import measure, summarise
from tests.synthetic import START, Break, Fleet, Plant, clock, fleet
from tests.unit.coordinator.core.measure.test_resolution import coarse

QUIET = Plant(
    pairs=12,
    bursts=1,
    burst_s=60,
    period_s=90,
    firewall_bits_per_second=None,
    noise=0.05,
    start_spread_s=0.2,
    ramp_s=2.0,
    clock_offset_s=0.01,
)


def planted(*breaks: Break, **changes: object) -> Fleet:
    values = {name: getattr(QUIET, name) for name in Plant.__dataclass_fields__}
    return fleet(Plant(**(values | {"breaks": breaks} | changes)))


def trends_of(made: Fleet) -> RunTrends:
    return compute_run_trends(burst_trend_values(burst.summary) for burst in measure(made))


def find_disruptions(made: Fleet) -> tuple[Disruption, ...]:
    return trends_of(made).disruptions


def off_s(disruption: Disruption, from_s: float) -> float:
    """Return how far a disruption is from the time at which it was planted."""
    return abs((disruption.start_at - START).total_seconds() - from_s)


def test_stall_of_all_pairs_is_one_disruption() -> None:
    made = planted(Break(burst=0, from_s=31, length_s=4, factor=0.0))
    [stall] = find_disruptions(made)
    assert (stall.kind, stall.scope, stall.pairs_count) == (DisruptionKind.STALL, "all", 12)
    assert off_s(stall, 31) <= 1
    assert stall.duration_s == pytest.approx(4, abs=1)
    assert stall.short_bytes == pytest.approx(12 * 4 * 6e9 / 8, rel=0.1)
    availability = trends_of(made).availability
    assert availability == Availability.of(720, 720 - 48, 48)


@given(
    seed=st.integers(0, 10_000),
    from_s=st.integers(6, 50),
    length_s=st.integers(2, 8),
    factor=st.sampled_from([0.0, 0.1, 0.4]),
    pairs=st.sets(st.integers(0, 11), min_size=1, max_size=5),
)
def test_break_of_some_pairs_lists_and_dates_them(
    seed: int, from_s: int, length_s: int, factor: float, pairs: set[int]
) -> None:
    broken = Break(
        burst=0, from_s=from_s, length_s=length_s, factor=factor, pairs=tuple(sorted(pairs))
    )
    [one] = find_disruptions(planted(broken, seed=seed))
    assert one.kind is (DisruptionKind.DROP if factor else DisruptionKind.STALL)
    assert one.pairs == tuple(f"pair-{index + 1:03d}" for index in sorted(pairs))
    assert one.scope == ("one" if len(pairs) == 1 else "some")
    assert off_s(one, from_s) <= 1
    assert abs((one.end_at - one.start_at).total_seconds() - length_s) <= 1.2


def test_drop_above_the_configurable_floor_is_no_disruption() -> None:
    made = planted(Break(burst=0, from_s=20, length_s=5, factor=0.7))
    assert find_disruptions(made) == ()
    assert measure(made.asked(disruption_drop_ratio=0.2))[0].summary.disruptions_count == 1


def test_level_of_a_minute_becomes_the_median() -> None:
    seconds = np.full((1, 400), 100.0)
    seconds[0, 200:] = 30.0
    levels = judge_levels(seconds, np.ones_like(seconds), 0.5)
    assert levels.low[0].nonzero()[0].tolist() == list(range(200, 260))
    assert levels.median[0, -1] == 30.0


def test_unknown_seconds_are_a_gap_and_not_a_stall() -> None:
    rates = np.full((2, 30), 100.0)
    coverage = np.ones_like(rates)
    coverage[0, 10:14] = 0.0
    rates[0, 10:14] = 0.0
    levels = judge_levels(rates, coverage, 0.5)
    assert not levels.low.any()
    assert np.isnan(levels.rates[0, 10:14]).all()


def test_killed_client_is_a_cut_with_unknown_rest() -> None:
    made = planted(killed=1)
    [cut] = find_disruptions(made)
    assert (cut.kind, cut.scope) == (DisruptionKind.CUT, "one")
    assert off_s(cut, 30) <= 1
    assert "stopped reporting: it was killed or lost its network" in cut.causes[0]
    availability = trends_of(made).availability
    assert availability is not None
    assert (availability.down_s, availability.unknown_s) == (0, 30)


def ended(made: Fleet, outcome: Outcome, reason: str) -> BurstSummary:
    """Return the burst if the missing report is replaced by this one."""
    complete = next(pair.report for pair in made.evidence[0].pairs if pair.report is not None)
    report = complete.model_copy(update={"outcome": outcome, "reason": reason})
    changed = made.told(lambda pair: pair if pair.report else replace(pair, report=report))
    return measure(changed)[0].summary


def test_failed_engine_is_a_reset_and_its_rest_is_down() -> None:
    summary = ended(planted(killed=1), Outcome.FAILED, "Connection reset by peer")
    [reset] = summary.disruptions
    assert reset.kind is DisruptionKind.RESET
    assert "Connection reset by peer" in reset.causes[0]
    assert summary.availability is not None
    assert summary.availability.down_s == 30


def test_expired_lease_has_the_reason_of_the_agent() -> None:
    now = datetime(2026, 11, 20, tzinfo=UTC)
    parts = control_problem(Control(run_id="r", lease_until_at=now), now)
    [cut] = ended(planted(killed=1), Outcome.ABANDONED, str(parts)).disruptions
    assert cut.kind is DisruptionKind.CUT
    assert cut.end_at - cut.start_at == timedelta(seconds=cut.duration_s)
    assert "lease lapsed" in cut.causes[0]


def reported(made: Fleet, pair_index: int, **changes: object) -> BurstSummary:
    """Return the burst if the report from one client is changed."""

    def change(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None
        return replace(pair, report=pair.report.model_copy(update=changes))

    return measure(made.told(change, [pair_index]))[0].summary


def test_reports_a_moved_clock() -> None:
    made = planted(Break(burst=0, from_s=20, length_s=3, factor=0.0, pairs=(0,)))
    summary = reported(made, 0, clock_after=clock(0.4, 0.41, START))
    assert any(
        "the clock of the client, client-0, moved by" in cause
        for cause in summary.disruptions[0].causes
    )


def test_reports_reconnections_without_loss() -> None:
    summary = reported(planted(), 3, retries_count=1, reason="unable to connect to server")
    [reconnect] = summary.disruptions
    assert (reconnect.kind, reconnect.pairs) == (DisruptionKind.RECONNECT, ("pair-004",))
    assert "unable to connect to server" in reconnect.causes[0]
    assert abs((reconnect.start_at - summary.planned_start_at).total_seconds()) < 30
    assert summary.availability == Availability.of(720, 720, 0)


def test_unclaimed_job_is_absent_and_unknown() -> None:
    made = planted(missing=2)
    [absent] = find_disruptions(made)
    assert (absent.kind, absent.pairs_count) == (DisruptionKind.ABSENT, 2)
    assert absent.causes == ("no agent claimed the job",)
    availability = trends_of(made).availability
    assert availability is not None
    assert (availability.down_s, availability.unknown_s) == (0, 120)


def test_estimates_drift_with_an_interval_that_covers_it() -> None:
    made = planted(bursts=12, burst_s=10, period_s=600, drift_per_hour=-0.05)
    [rate] = [trend for trend in trends_of(made).trends if trend.name == "received"]
    assert rate.moved
    assert rate.low_percent_per_hour <= rate.percent_per_hour <= rate.high_percent_per_hour
    assert rate.percent_per_hour == pytest.approx(-5, abs=1.0)


def test_steady_run_has_no_drift() -> None:
    moved = 0
    for seed in range(20):
        trends = trends_of(planted(pairs=4, bursts=10, burst_s=10, period_s=600, seed=seed))
        moved += any(trend.moved for trend in trends.trends if trend.name == "received")
    assert moved <= 3, "a 95 % interval leaves zero out in about one of twenty"


def test_run_lists_disruptions_and_recomputes_identically() -> None:
    breaks = (
        Break(burst=1, from_s=31, length_s=4, factor=0.0),
        Break(burst=2, from_s=10, length_s=2, factor=0.3, pairs=(3,)),
    )
    made = planted(*breaks, bursts=5)
    summary = summarise(made)
    again = summarise_run(made.plan, measure(made)[::-1], made.device_counter, made.now)
    assert canonical(summary) == canonical(again)
    assert summary.run_trends is not None
    assert [disruption.burst_index for disruption in summary.run_trends.disruptions] == [1, 2]
    [item] = [finding for finding in summary.findings if finding.id == "disruptions"]
    assert "12:02:01 UTC, all 12 pairs: no traffic for 4" in item.sentence


def test_reads_a_summary_of_an_older_version() -> None:
    summary = summarise(planted())
    older = summary.model_dump(
        mode="json",
        exclude={
            "run_trends": True,
            "pairs_omitted": True,
            "bursts": {"__all__": {"availability", "disruptions", "disruptions_count"}},
        },
    )
    read = RunSummary.model_validate(older)
    assert read.run_trends is None
    assert read.bursts[0].availability is None


def test_summary_of_many_pairs_omits_them_and_bursts_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert PAIR_SUMMARIES_MAX < 400 * 8
    monkeypatch.setattr(summarise_module, "PAIR_SUMMARIES_MAX", PAIR_SUMMARIES_MAX // 10)
    made = fleet(Plant(pairs=40, bursts=8, burst_s=3, period_s=10, device_counter=False))
    bursts = measure(made)
    summary = summarise_run(made.plan, bursts, None, made.now)
    assert summary.pairs_omitted
    assert all(burst.pairs == () for burst in summary.bursts)
    assert summary.pairs_measured == 40
    assert len(bursts[0].summary.pairs) == 40


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), max_size=6))
def test_availability_adds_up_in_any_grouping(parts: list[tuple[int, int, int]]) -> None:
    listed = [Availability.of(up + down + unknown, up, down) for up, down, unknown in parts]
    complete = combined(listed)
    assert complete == combined([combined(listed[:2]), combined(listed[2:])])
    assert complete.up_s + complete.down_s + complete.unknown_s == complete.planned_s


def _in_readings(made: Fleet, reading_s: int) -> Fleet:
    """Return the fleet if the receivers only write a row every ``reading_s``."""
    return made.told(
        lambda pair: replace(
            pair, server_tracks=tuple(coarse(track, reading_s) for track in pair.server_tracks)
        )
    )


@pytest.mark.parametrize("reading_s", [2, 10, 20])
@pytest.mark.parametrize("from_s", [23, 30, 38])
def test_outage_dates_are_not_finer_than_readings(reading_s: int, from_s: int) -> None:
    """If a reading is ten seconds long, an outage is not dated more exactly than this."""
    made = _in_readings(
        planted(Break(burst=0, from_s=from_s, length_s=reading_s + 3, factor=0.0)), reading_s
    )
    trends = trends_of(made)
    assert trends.availability is not None
    assert trends.availability.resolution_s == pytest.approx(reading_s, rel=0.05)
    for disruption in trends.disruptions:
        assert disruption.resolution_s == pytest.approx(reading_s, rel=0.05)
        assert disruption.duration_s >= reading_s * 0.95
        begin_s = (disruption.start_at - START).total_seconds()
        assert begin_s - 1 <= from_s + reading_s
        assert from_s - reading_s <= begin_s + 1
    notes = [f for f in trend_findings(trends) if f.id == "disruptions-resolution"]
    assert len(notes) == 1
    assert f"Readings cover up to {trends.availability.resolution_s:g} s" in notes[0].sentence


def test_reports_that_readings_are_too_long_for_a_short_outage() -> None:
    made = _in_readings(planted(Break(burst=0, from_s=31, length_s=3, factor=0.0)), 20)
    trends = trends_of(made)
    assert trends.disruptions == ()
    assert any(f.id == "disruptions-resolution" for f in trend_findings(trends))


def test_readings_of_one_second_need_no_note() -> None:
    trends = trends_of(planted(Break(burst=0, from_s=31, length_s=3, factor=0.0)))
    assert [disruption.resolution_s for disruption in trends.disruptions] == [None]
    assert not any(f.id == "disruptions-resolution" for f in trend_findings(trends))
