"""Tests for telemetry from a clock that cannot be verified.

Its readings are aligned using the bursts. If this is not possible, they are not used as evidence.
"""

from dataclasses import replace

import numpy as np
import pytest

from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import Neighbour
from broadside.coordinator.core.measure.device.device_metrics import certain
from broadside.coordinator.core.measure.device.placement import estimate_offset, place
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetrySeries,
)
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.exchange.outage_log import utc_now
from tests.planted import ids, summarise
from tests.synthetic import Fleet, Plant, fleet

BURSTS = [(1000.0, 1060.0), (1120.0, 1180.0)]
NOW_AT = utc_now()


def export_series(
    off_s: float,
    *,
    busy: float = 0.97,
    idle: float = 0.04,
    noise: float = 0.0,
    every_s: float = 5.0,
    over_s: float = 0.0,
    bound_s: float = np.nan,
    bursts: list[tuple[float, float]] = BURSTS,
    quantity: Quantity = Quantity.CPU,
    archive: bool = True,
) -> TelemetrySeries:
    """Return an export that is busy during the bursts, using a clock that is ``off_s`` off."""
    at_s = np.arange(bursts[0][0] - 300, bursts[-1][1] + 300, every_s)
    fine_s = np.arange(bursts[0][0] - 400, bursts[-1][1] + 400, 0.25)
    ran = np.zeros(len(fine_s))
    for begin_s, end_s in bursts:
        ran[(fine_s >= begin_s) & (fine_s < end_s)] = 1
    total = np.concatenate([[0], np.cumsum(ran) * 0.25])[:-1]
    span_s = max(over_s, 0.5)
    share = (np.interp(at_s, fine_s, total) - np.interp(at_s - span_s, fine_s, total)) / span_s
    values = idle + (busy - idle) * share
    values = values + noise * np.random.default_rng(7).standard_normal(len(values))
    return TelemetrySeries(
        device="fw",
        source="csv cpu.csv",
        quantity=quantity,
        at_s=at_s + off_s,
        over_s=np.full(len(at_s), over_s),
        bound_s=np.full(len(at_s), bound_s),
        values=np.clip(values, 0, 1),
        is_archive=archive,
    )


@pytest.mark.parametrize("off_s", [-200.0, -45.0, 0.0, 7.0, 45.0])
@pytest.mark.parametrize(("every_s", "over_s"), [(1.0, 0.0), (5.0, 0.0), (15.0, 15.0), (5.0, 60.0)])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_estimates_the_offset_from_rising_and_falling_values(
    off_s: float, every_s: float, over_s: float, noise: float
) -> None:
    series = export_series(off_s, every_s=every_s, over_s=over_s, noise=noise)
    result = estimate_offset([series], BURSTS)
    assert result is not None
    assert abs(result[0] - off_s) <= result[1] <= 0.7 * max(every_s, 5.0)


@pytest.mark.parametrize(
    "series",
    [
        export_series(45.0, busy=0.5, idle=0.5),
        export_series(45.0, busy=0.5, idle=0.5, noise=0.2),
        # The device is busy when nothing runs, so there has to be another cause.
        export_series(0.0, busy=0.04, idle=0.97),
        replace(export_series(0.0), values=np.full(len(export_series(0.0).at_s), np.nan)),
        export_series(0.0, quantity=Quantity.HEALTH),
        export_series(0.0, every_s=200.0),
    ],
)
def test_series_without_visible_bursts_is_not_placed(series: TelemetrySeries) -> None:
    assert estimate_offset([series], BURSTS[:1]) is None
    placed = place(DeviceTelemetry(devices=("fw",), series=(series,), read_at=NOW_AT), BURSTS[:1])
    assert np.isnan(placed.series[0].bound_s).all()
    assert [issue.kind for issue in placed.issues] == [IssueKind.UNPLACED]


def test_repeating_bursts_cannot_be_distinguished() -> None:
    """If the export shows many bursts, any of them can be the burst of the run."""
    many = [(1000.0 + 120 * n, 1060.0 + 120 * n) for n in range(-5, 6)]
    series = export_series(0.0, bursts=many)
    assert estimate_offset([series], [many[5]]) is None


def test_uses_a_stated_clock_unless_the_values_contradict_it() -> None:
    read = DeviceTelemetry(
        devices=("fw",), series=(export_series(0.0, bound_s=1.0),), read_at=NOW_AT
    )
    assert place(read, BURSTS) is read
    off = replace(read, series=(export_series(45.0, bound_s=1.0),))
    placed = place(off, BURSTS)
    assert abs(placed.series[0].at_s[0] - export_series(0.0).at_s[0]) < 3
    [issue] = placed.issues
    assert (issue.kind, " s late against the bursts" in issue.text) == (IssueKind.CLOCK, True)
    # This is how versions before 0.10 stored it.
    stored = replace(read, series=(export_series(45.0, bound_s=0.0, archive=False),))
    assert [issue.kind for issue in place(stored, BURSTS).issues] == [IssueKind.CLOCK]
    live = replace(read, series=(export_series(45.0, bound_s=0.1, archive=False),))
    assert place(live, BURSTS) is live


def run(series: TelemetrySeries | None, made: Fleet) -> RunSummary:
    read = None
    if series is not None:
        read = DeviceTelemetry(devices=("fw",), series=(series,), read_at=NOW_AT)
    return summarise(made.aiming(device_cpu_p95_max_ratio=0.8), telemetry=read)


def spans(made: Fleet) -> list[tuple[float, float]]:
    return [
        (burst.planned_start_at.timestamp(), burst.planned_end_at.timestamp())
        for burst in made.plan.bursts
    ]


@pytest.mark.parametrize("bound_s", [np.nan, 0.1])
@pytest.mark.parametrize("off_s", [-45.0, 45.0, -246.0, 0.0])
def test_busy_device_fails_its_threshold_despite_a_wrong_clock(
    off_s: float, bound_s: float
) -> None:
    """97 % CPU should fail the limit of 80 % even if the clock is 45 seconds off (M13)."""
    made = fleet(Plant(pairs=2, bursts=1, burst_s=60))
    result = run(export_series(off_s, bursts=spans(made), bound_s=bound_s), made)
    assert result.verdict is Verdict.FAIL
    assert "device-cpu-limit" in ids(result)
    assert ("telemetry-clock" in ids(result)) is bool(off_s)
    calm = run(export_series(off_s, bursts=spans(made), busy=0.6, bound_s=bound_s), made)
    assert calm.verdict is Verdict.PASS


def test_constant_export_without_a_stated_clock_is_inconclusive() -> None:
    """The clock is an hour off, so the export should only show the idle hour."""
    made = fleet(Plant(pairs=2, bursts=1, burst_s=60))
    flat = export_series(0.0, bursts=spans(made), busy=0.04)
    result = run(flat, made)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert {"device-cpu-unproven", "telemetry-unplaced"} <= set(ids(result))
    stated = replace(flat, bound_s=np.full(len(flat.at_s), 1.0))
    assert run(stated, made).verdict is Verdict.PASS


def test_source_with_a_clock_is_used_beside_one_without() -> None:
    made = fleet(Plant(pairs=2, bursts=1, burst_s=60))
    flat = export_series(0.0, bursts=spans(made), busy=0.04)
    polled = replace(
        export_series(0.0, bursts=spans(made), bound_s=0.1), source="snmp", is_archive=False
    )
    read = DeviceTelemetry(devices=("fw",), series=(flat, polled), read_at=NOW_AT)
    result = summarise(made.aiming(device_cpu_p95_max_ratio=0.8), telemetry=read)
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("bound_s", "busy", "verdict"),
    [
        (0.2, 0.97, Verdict.FAIL),
        # The limit is met whether the device is idle or busy.
        (10.0, 0.6, Verdict.PASS),
        # The device has to be busy for at least a third of the window.
        (40.0, 0.97, Verdict.FAIL),
        # The device can be idle for the complete window.
        (70.0, 0.97, Verdict.INCONCLUSIVE),
        # The window can be a time for which we have no reading.
        (400.0, 0.6, Verdict.INCONCLUSIVE),
    ],
)
def test_threshold_applies_to_all_placements_within_the_bound(
    bound_s: float, busy: float, verdict: Verdict
) -> None:
    made = fleet(Plant(pairs=2, bursts=1, burst_s=60))
    series = export_series(0.0, bursts=spans(made), busy=busy, bound_s=bound_s, archive=False)
    assert run(series, made).verdict is verdict


def test_device_possibly_busy_at_another_time_is_not_the_bottleneck() -> None:
    made = fleet(Plant(pairs=2, bursts=1, burst_s=60))
    for bound_s, busy in ((0.2, 0.97), (40.0, None), (np.nan, None)):
        series = export_series(0.0, bursts=spans(made), idle=0.1, bound_s=bound_s, archive=False)
        series = replace(series, quantity=Quantity.CPU)
        if np.isnan(bound_s):
            series = replace(series, values=np.full(len(series.at_s), 0.97))
        [burst] = run(series, made).bursts
        seen = certain(burst.devices[0]).cpu_ratio
        if busy is None:
            assert seen is None or seen.mean < 0.95
        else:
            assert seen is not None
            assert seen.mean > 0.95


def test_incomplete_counter_is_inconclusive_and_not_a_bypass() -> None:
    """If only one store in two answers, half of the bytes will be missing (M15)."""
    made = fleet(Plant(pairs=4, bursts=1, burst_s=60, firewall_bits_per_second=None))
    made = made.aiming(target_bits_per_second=1e8)
    assert made.device_counter is not None
    half = replace(made.device_counter, bytes=made.device_counter.bytes / 2)
    accused = summarise(replace(made, device_counter=half))
    partial = replace(half, partial="warning '1 store of 2 did not answer'")
    result = summarise(replace(made, device_counter=partial))
    assert accused.verdict is not Verdict.PASS
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "device-counter-partial" in ids(result)
    assert not {"bypass", "residual"} & {item.partition("-")[0] for item in ids(result)}


def test_reports_size_and_direction_of_a_clock_correction() -> None:
    for off_s, side in ((45.0, "late"), (-45.0, "early")):
        run = DeviceTelemetry(devices=("fw",), series=(export_series(off_s),), read_at=NOW_AT)
        (issue,) = place(run, BURSTS).issues
        assert (issue.kind, issue.device, issue.source) == (
            IssueKind.CLOCK, "fw", "csv cpu.csv",
        )  # fmt: skip
        assert (issue.from_s, issue.to_s) == (1000.0, 1180.0)
        assert f" s {side} against the bursts" in issue.text


def test_reports_stamps_that_cannot_be_placed() -> None:
    run = DeviceTelemetry(
        devices=("fw",), series=(export_series(0.0, busy=0.5, idle=0.5),), read_at=NOW_AT
    )
    (issue,) = place(run, BURSTS).issues
    assert issue.kind is IssueKind.UNPLACED
    assert issue.text.startswith("no value shows where the bursts start and end")


def _search_series(
    off_s: float, gap_s: float, levels: tuple[float, ...], bound_s: float
) -> tuple[TelemetrySeries, list[tuple[float, float]]]:
    """Return the readings of trials with different loads, and the times of the trials."""
    trials = [(1000.0 + n * (20 + gap_s), 1020.0 + n * (20 + gap_s)) for n in range(len(levels))]
    begin_s, end_s = trials[-1]
    at_s = np.arange(begin_s - 360, end_s + 360)
    values = np.full(len(at_s), 0.04)
    for (from_s, to_s), level in zip(trials, levels, strict=True):
        values[(at_s - off_s > from_s) & (at_s - off_s <= to_s)] = level
    one_s = np.ones(len(at_s))
    series = replace(export_series(0.0, bound_s=bound_s), over_s=one_s, bound_s=bound_s * one_s)
    # Later trials had not begun when the last one was judged.
    return replace(series, at_s=at_s, values=values), trials


@pytest.mark.parametrize("gap_s", [60.0, 120.0, 300.0])
@pytest.mark.parametrize("levels", [(0.3, 0.9), (0.9, 0.3), (0.1, 0.9, 0.2)])
@pytest.mark.parametrize("bound_s", [0.1, np.nan])
def test_trial_keeps_its_readings_beside_a_trial_with_a_higher_load(
    gap_s: float, levels: tuple[float, ...], bound_s: float
) -> None:
    series, (*others, trial) = _search_series(0.0, gap_s, levels, bound_s)
    read = DeviceTelemetry(devices=("fw",), series=(series,), read_at=NOW_AT)
    placed = place(read, [trial], others)
    assert np.abs(placed.series[0].at_s - series.at_s).max() <= 1
    assert placed.issues == ()


@pytest.mark.parametrize("gap_s", [20.0, 120.0, 300.0])
@pytest.mark.parametrize("own", [0.04, 0.03])
def test_trial_without_a_rise_does_not_get_that_of_another_trial(gap_s: float, own: float) -> None:
    series, trials = _search_series(0.0, gap_s, (0.9, own), 0.1)
    read = DeviceTelemetry(devices=("fw",), series=(series,), read_at=NOW_AT)
    assert place(read, trials[1:], trials[:1]) is read
    # Without a known clock, it can be either trial, so the bound contains both.
    result = estimate_offset([series], trials[1:], trials[:1])
    assert result is None or abs(result[0]) <= result[1]


@pytest.mark.parametrize("gap_s", [60.0, 120.0, 300.0])
@pytest.mark.parametrize("levels", [(0.3, 0.9), (0.9, 0.3)])
def test_lag_of_an_unknown_clock_is_detected_beside_other_trials(
    gap_s: float, levels: tuple[float, ...]
) -> None:
    """Labels of a system can be 75 s late, as in the seed record."""
    series, (*others, trial) = _search_series(75.0, gap_s, levels, np.nan)
    read = DeviceTelemetry(devices=("fw",), series=(series,), read_at=NOW_AT)
    placed = place(read, [trial], others)
    assert np.abs(series.at_s - placed.series[0].at_s - 75).max() <= placed.series[0].bound_s.max()
    assert placed.series[0].bound_s.max() < 3


@pytest.mark.parametrize(("gap_s", "is_known"), [(60.0, False), (120.0, False), (300.0, True)])
def test_stated_clock_is_corrected_by_half_the_gap_at_most(gap_s: float, is_known: bool) -> None:
    series, (*others, trial) = _search_series(75.0, gap_s, (0.9, 0.9), 1.0)
    read = DeviceTelemetry(devices=("fw",), series=(series,), read_at=NOW_AT)
    placed = place(read, [trial], others)
    (issue,) = placed.issues
    assert issue.kind is (IssueKind.CLOCK if is_known else IssueKind.UNPLACED)
    assert ("nearer to a burst of another run" in issue.text) is not is_known
    assert np.isnan(placed.series[0].bound_s).all() != is_known
    moved_s = float(np.abs(series.at_s - placed.series[0].at_s).max())
    assert moved_s == pytest.approx(75 if is_known else 0, abs=2)


def test_run_does_not_use_the_readings_of_another_run() -> None:
    """The device has 97 % CPU in the run before, and 60 % in this one, with a limit of 80 %."""
    made = fleet(Plant(pairs=2, bursts=1, burst_s=60))
    ((begin_s, end_s),) = spans(made)
    busy = export_series(0.0, bursts=[(begin_s - 120, end_s - 120)], bound_s=0.1)
    at_s = np.arange(begin_s - 400, end_s + 60, 5.0)
    values = np.interp(at_s, busy.at_s, busy.values, right=0.04)
    values[(at_s > begin_s) & (at_s <= end_s)] = 0.6
    series = replace(busy, at_s=at_s, values=values, over_s=0 * at_s, bound_s=0 * at_s + 0.1)
    before = Neighbour(
        run_id="before", burst_index=0, start_s=int(begin_s) - 120, received_bytes=np.zeros(60)
    )
    read = DeviceTelemetry(devices=("fw",), series=(series,), read_at=NOW_AT)
    made = replace(made, device_counter=None).aiming(device_cpu_p95_max_ratio=0.8)
    result = summarise(made, telemetry=read, neighbours=[before])
    assert "device-cpu-limit" not in ids(result)
    [burst] = result.bursts
    assert burst.devices[0].cpu_ratio is not None
    assert burst.devices[0].cpu_ratio.mean == pytest.approx(0.6, abs=0.01)
    # A run that is not known can only be seen in the values.
    assert "device-cpu-limit" in ids(summarise(made, telemetry=read))
