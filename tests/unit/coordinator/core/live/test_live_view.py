import base64
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadside.coordinator.core.live.live_view import (
    COLUMNS,
    REPORT_LAG_S,
    UNKNOWN_CELL,
    LiveSnapshot,
    PlannedCells,
    changed_seconds,
    counter_message,
    empty_snapshot,
    final_snapshot,
    full_snapshot,
    live_status,
    make_snapshot,
    seconds_message,
)
from broadside.coordinator.core.live.status import derive
from broadside.coordinator.core.measure.formulas.phases import TrafficPhase
from broadside.coordinator.core.measure.records.columns import NO_HOST, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import Plan
from broadside.exchange.messages import Flow, Traffic
from tests.planted import measure, summarise
from tests.seconds_as_columns import host_columns
from tests.synthetic import Fleet, Plant, fleet
from tests.unit.coordinator.core.records import host_second

BURST_S = 30
FLEET = COLUMNS.index("fleet_bits_per_second")
CLEAN = fleet(Plant(pairs=6, bursts=1, burst_s=BURST_S))
HURT = fleet(Plant(pairs=8, bursts=1, burst_s=BURST_S, killed=1, late=1, null=1, missing=1))


def until(made: Fleet, second: float, *, silent: frozenset[int] = frozenset()) -> BurstEvidence:
    """Return the evidence at this second. Silent pairs stop at second 5."""
    evidence = made.evidence[0]
    planned_s = evidence.burst.planned_start_at.timestamp()

    def cut(pair: PairEvidence) -> PairEvidence:
        last_s = planned_s + (5 if pair.pair_index in silent else second)

        def short(track: IntervalColumns) -> IntervalColumns:
            return track.rows(track.first_data_at_s + track.end_s <= last_s)

        return replace(
            pair,
            report=None,
            client_tracks=tuple(map(short, pair.client_tracks)),
            server_tracks=tuple(map(short, pair.server_tracks)),
            client_host=NO_HOST,
            server_host=NO_HOST,
        )

    return replace(evidence, pairs=tuple(map(cut, evidence.pairs)))


def so_far(made: Fleet, second: float, **how: frozenset[int]) -> LiveSnapshot:
    now = made.plan.bursts[0].planned_start_at + timedelta(seconds=second + 3)
    return full_snapshot(made.plan, until(made, second, **how), made.device_counter, now)


def final(made: Fleet) -> LiveSnapshot:
    return final_snapshot(summarise(made), 0, measure(made)[0].series)


def test_running_burst_is_measured_up_to_current_second() -> None:
    shown = so_far(CLEAN, 20)
    assert shown.figures is not None
    assert not shown.figures.final
    assert 19 <= shown.known_s <= 20
    of = shown.figures.summary
    assert of.completeness_ratio == pytest.approx(1, abs=0.06)
    assert of.completeness.planned_s == shown.known_s * 6
    rate = CLEAN.truth.rates[0]
    assert of.fleet_received_bits_per_second == pytest.approx(rate, rel=0.05)
    assert of.reconciliation is not None
    assert shown.figures.unmeasured_pairs == ()


def test_hides_residual_until_burst_and_counter_are_complete() -> None:
    reported = final(CLEAN).figures
    assert reported is not None and reported.summary.reconciliation is not None
    assert reported.summary.reconciliation.residual_ratio is not None
    for second in range(2, BURST_S):
        shown = so_far(CLEAN, second)
        figures = shown.figures
        current = figures.summary.reconciliation if figures else None
        assert current is None or (current.residual_ratio, current.causes) == (None, ())
        assert not {f.id for f in shown.findings} & {"reconciled", "bypass"}


VARIED = [
    Plant(
        seed=seed,
        pairs=2 + 5 * (seed % 4),
        bursts=1,
        burst_s=BURST_S,
        grain_s=(1.0, 2.0, 5.0)[seed % 3],
        lag_s=0.7 * (seed % 5),
        counter_jitter_s=0.1 * (seed % 2),
        foreign_ratio=0.04 * (seed % 2),
        killed=int(seed % 7 == 3),
        late=int(seed % 7 == 5),
        bypass=int(seed % 10 == 8),
    )
    # Each of the values above occurs.
    for seed in range(10)
]


@pytest.mark.parametrize("plant", VARIED, ids=lambda plant: f"feed-{plant.seed}")
def test_live_residual_interval_contains_final_residual(plant: Plant) -> None:
    """Replay a recorded feed for each second until there is a verdict."""
    made = fleet(plant)
    reported = final(made).figures
    assert reported is not None and reported.summary.reconciliation is not None
    last = reported.summary.reconciliation.residual_ratio
    assert last is not None and made.device_counter is not None
    shown = 0
    for second in (5, 14, 20, 26, *range(28, BURST_S + 16)):
        now = made.plan.bursts[0].planned_start_at + timedelta(seconds=second + REPORT_LAG_S)
        known = made.device_counter.end_s <= now.timestamp()
        bins = {
            name: getattr(made.device_counter, name)[known]
            for name in ("start_s", "end_s", "bytes")
        }
        device_counter = replace(made.device_counter, **bins)
        figures = full_snapshot(made.plan, until(made, second), device_counter, now).figures
        current = figures.summary.reconciliation if figures else None
        if current is None or current.residual_ratio is None:
            continue
        low, high = current.residual_ends
        assert low is not None and high is not None
        assert low <= last <= high, (
            f"second {second}: {current.residual_ratio:.4f}, then {last:.4f}"
        )
        shown += 1
    assert shown


def test_incomplete_seconds_have_cells_but_no_total() -> None:
    shown = so_far(CLEAN, 20, silent=frozenset({1}))
    # The other pairs do not wait for the silent pair.
    assert shown.known_s >= 19
    late = shown.columns[FLEET, shown.known_s :]
    assert np.isnan(late).all()
    assert (shown.cells[10:19, 1] == UNKNOWN_CELL).all()
    assert (shown.cells[10:19, 0] != UNKNOWN_CELL).all()


@pytest.mark.parametrize("second", [5.0, 11.4, 20.0])
def test_second_that_is_reported_in_part_is_not_shown(second: float) -> None:
    """Test that no cell is low only because the pair has reported a few milliseconds of it."""
    shown = so_far(CLEAN, second)
    cells = shown.cells.astype(float)
    cells[shown.cells == UNKNOWN_CELL] = np.nan
    assert np.nanmin(cells[1:]) > np.nanmedian(cells) / 2
    later = shown.columns[:, shown.known_s :]
    assert np.isnan(np.delete(later, COLUMNS.index("coverage_ratio"), axis=0)).all()


@pytest.mark.parametrize(("second", "state"), [(10, "provisional"), (31, "known")])
def test_seconds_are_provisional_until_all_pairs_have_reported(second: float, state: str) -> None:
    figures = so_far(CLEAN, second).figures
    assert figures is not None
    assert figures.states["seconds"].state == state
    assert figures.states["received"].state == state


def test_seconds_wait_for_the_other_end_and_for_all_pairs() -> None:
    """Test that a second is not final while a record can follow that changes it."""
    now = CLEAN.plan.bursts[0].planned_start_at + timedelta(seconds=7)
    evidence = until(CLEAN, 5)
    whole = full_snapshot(CLEAN.plan, evidence, None, now)
    first, *others = evidence.pairs
    for pairs in (
        (replace(first, server_tracks=()), *others),
        (replace(first, client_tracks=(), server_tracks=()), *others),
    ):
        shown = full_snapshot(CLEAN.plan, replace(evidence, pairs=pairs), None, now)
        assert (whole.known_s, shown.known_s) == (4, 0)
        later = now + timedelta(seconds=5)
        shown = full_snapshot(CLEAN.plan, replace(evidence, pairs=pairs), None, later)
        assert shown.known_s == 4
        assert shown.figures is not None
        assert shown.figures.states["seconds"].state == "provisional"


def test_silent_fleet_counts_as_missing_after_report_lag() -> None:
    everybody = frozenset(range(6))
    now = CLEAN.plan.bursts[0].planned_start_at + timedelta(seconds=25)
    shown = full_snapshot(CLEAN.plan, until(CLEAN, 25, silent=everybody), None, now)
    assert shown.known_s == 25 - REPORT_LAG_S
    assert shown.figures is not None
    assert shown.figures.summary.completeness_ratio < 0.4


def test_names_failing_pairs_with_reason() -> None:
    shown = final(HURT)
    assert shown.figures is not None
    fields = {item.state.value: item.reason for item in shown.figures.unmeasured_pairs}
    assert {"late", "null", "missed"} <= fields.keys()
    assert all(fields.values())
    # Only failing pairs are listed.
    assert shown.figures.summary.pairs == ()


def test_burst_without_reports_is_unknown_and_not_zero() -> None:
    plan = CLEAN.plan
    shown = full_snapshot(plan, until(CLEAN, -10), None, plan.bursts[0].planned_start_at)
    assert len(shown) == 0
    assert shown.figures is None
    assert changed_seconds(None, empty_snapshot(plan, plan.bursts[0])) == ()


def test_shows_host_counters_if_engine_has_no_intervals() -> None:
    burst = CLEAN.plan.bursts[0]
    start_s = burst.planned_start_at.timestamp()
    host = [host_second(start_s + second, 1_000_000) for second in range(10)]
    pairs = tuple(
        PairEvidence(pair_index=index, client_host=host_columns(host)) for index in range(6)
    )
    evidence = BurstEvidence(burst=burst, pairs=pairs)
    shown = full_snapshot(CLEAN.plan, evidence, None, burst.planned_start_at)
    assert shown.layer == "link"
    assert shown.columns[FLEET].tolist() == [48e6] * 10
    assert (shown.cells == 8000).all()


def test_status_names_the_phase_of_a_load_with_ramps() -> None:
    ramps = {"ramp_up_s": 4, "ramp_down_s": 2}
    made = fleet(Plant(pairs=1, bursts=1, burst_s=20))
    ramped = made.asked(traffic=Traffic(engine="connections", options=ramps)).plan
    start_at = ramped.bursts[0].planned_start_at

    def phase_at(plan: Plan, after_s: float) -> TrafficPhase | None:
        now = start_at + timedelta(seconds=after_s)
        status = derive(plan, None, {}, now)
        return live_status(plan, status, 0, now).load_phase

    phases = [phase_at(ramped, after_s) for after_s in (-1, 3.9, 4, 17.9, 18, 20)]
    assert phases == ["init", "ramp-up", "sustain", "sustain", "ramp-down", "collect"]
    assert phase_at(made.plan, 5) is None


def test_sends_only_changed_seconds() -> None:
    before, now = so_far(CLEAN, 12), so_far(CLEAN, 15)
    changed = changed_seconds(before, now)
    assert changed_seconds(now, now) == ()
    assert set(changed) >= set(range(before.known_s, now.known_s))
    assert len(changed) < now.known_s


@settings(max_examples=25, deadline=None)
@given(times_s=st.lists(st.floats(1, BURST_S), min_size=1, max_size=4).map(sorted))
def test_incremental_updates_equal_full_snapshot(times_s: list[float]) -> None:
    current: dict[int, bytes] = {}
    sums: dict[int, float | None] = {}
    before = None
    for time_s in times_s:
        now = so_far(CLEAN, time_s)
        message = seconds_message(now, changed_seconds(before, now))
        cells = base64.b64decode(message.pairs)
        width = 4 * message.pairs_count
        for place, second in enumerate(message.second):
            current[second] = cells[place * width : (place + 1) * width]
            sums[second] = message.fleet_bits_per_second[place]
        before = now
    assert before is not None
    complete = seconds_message(before, changed_seconds(None, before))
    assert b"".join(current[second] for second in complete.second) == base64.b64decode(
        complete.pairs
    )
    for second, rate in zip(complete.second, complete.fleet_bits_per_second, strict=True):
        assert (sums[second] is None) == (rate is None)
        assert (sums[second] or 0) == pytest.approx(rate or 0, rel=1e-5)


def test_counter_message_uses_burst_seconds_and_keeps_unknown_bins() -> None:
    assert CLEAN.device_counter is not None
    counted = CLEAN.device_counter.bytes.copy()
    counted[:] = np.nan
    burst = CLEAN.plan.bursts[0]
    message = counter_message(replace(CLEAN.device_counter, bytes=counted), burst)
    assert message.bins
    assert all(item.bits_per_second is None for item in message.bins)
    bins = counter_message(CLEAN.device_counter, burst).bins
    inside = [item for item in bins if item.from_s >= 5 and item.before_s <= BURST_S - 1]
    mean = sum(item.bits_per_second or 0 for item in inside) / len(inside)
    assert mean == pytest.approx(CLEAN.truth.rates[0] * 1500 / 1448, rel=0.05)


@pytest.mark.parametrize("lacking", [{Flow.DOWN}, {Flow.UP}, {Flow.UP, Flow.DOWN}, set()])
def test_snapshot_has_one_cell_per_pair_if_a_flow_has_no_seconds(lacking: set[Flow]) -> None:
    """If only mean values are known for a flow, it has no seconds for each pair."""
    (burst,) = measure(CLEAN)
    (one,) = burst.series.flows
    flows = tuple(
        replace(
            one,
            flow=flow,
            pairs_bits_per_second=one.pairs_bits_per_second[: 0 if flow in lacking else None],
        )
        for flow in (Flow.UP, Flow.DOWN)
    )
    series = replace(burst.series, flows=flows)
    shown = final_snapshot(summarise(CLEAN), 0, series)
    complete = final(CLEAN)
    rates = series.pair_rates(6)
    assert [np.isnan(rate).all() for rate in rates] == [flow.flow in lacking for flow in flows]
    if len(lacking) == len(flows):
        # Without cells, the page does not draw a heat map.
        assert shown.cells.shape == (len(complete.cells), 0)
        burst_s = series.duration_s + series.omit_s
        runs_on = make_snapshot(
            summarise(CLEAN).bursts[0],
            series,
            PlannedCells(pairs_count=6, seconds=burst_s),
            known_s=burst_s,
            final=False,
        )
        # Other pairs can still report during the burst.
        assert runs_on.cells.shape == complete.cells.shape
        assert (runs_on.cells == UNKNOWN_CELL).all()
        return
    assert shown.cells.shape == complete.cells.shape
    if lacking:
        assert (shown.cells == complete.cells).all()
    else:
        assert (shown.cells != UNKNOWN_CELL).all()
