import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from broadside.coordinator.core.judge.reconciliation.counter_bins import fleet_curve, readable
from broadside.coordinator.core.judge.reconciliation.device_prediction import (
    UNSEEN_MARGIN_S,
    Conditions,
    DevicePrediction,
)
from broadside.coordinator.core.judge.reconciliation.lag import Known, estimate_lag
from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import Neighbour
from broadside.coordinator.core.judge.reconciliation.residual_causes import (
    ForeignTraffic,
    Missing,
    Residual,
    causes,
)
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.completeness import combine
from broadside.coordinator.core.measure.formulas.headers import tcp_headers, udp_headers
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import Completeness, Reconciliation, SecondState
from tests.synthetic import IP_RATIO, Plant, fleet
from tests.unit.coordinator.core.judge.reconciliation.counted import reconcile
from tests.unit.coordinator.core.records import burst_series

HEADERS = tcp_headers([1448])
NOBODY = Missing(pairs_count=0, share_ratio=0.0, planned_pairs_count=30)


def made(plant: Plant) -> tuple[list[BurstSeries], CounterRecord]:
    built = fleet(plant)
    assert built.device_counter is not None
    spec = built.plan.spec
    return [measure_burst(spec, e, built.now).series for e in built.evidence], built.device_counter


def reconcile_plant(plant: Plant) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    series, device_counter = made(plant)
    return reconcile(series, device_counter, HEADERS, [NOBODY] * len(series))


def reconcile_counted(
    series: list[BurstSeries],
    device_counter: CounterRecord,
    counted: NDArray[np.float64],
    **known: Any,
) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    """Reconcile the bursts with a counter that has these bytes."""
    reported = replace(device_counter, bytes=counted)
    return reconcile(series, reported, HEADERS, [NOBODY] * len(series), **known)


def ends(part: Reconciliation) -> tuple[float, float]:
    """Return the residual interval."""
    assert part.residual_low_ratio is not None
    assert part.residual_high_ratio is not None
    return part.residual_low_ratio, part.residual_high_ratio


MINUTES = Plant(
    pairs=6, bursts=3, burst_s=280, period_s=300, grain_s=60, counter_jitter_s=1.5, noise=0.01
)


@pytest.mark.parametrize("lag_s", [-45.0, 0.0, 17.0, 75.0, 140.0, 290.0])
def test_estimates_lag_of_minute_bins_within_five_seconds(lag_s: float) -> None:
    complete, bursts = reconcile_plant(replace(MINUTES, lag_s=lag_s))
    assert complete.lag_s is not None
    assert complete.lag_uncertainty_s is not None
    assert abs(complete.lag_s - lag_s) <= 5
    assert complete.residual_ratio == pytest.approx(0, abs=0.003)
    assert {burst.lag_s for burst in bursts} == {complete.lag_s}


def test_residual_of_unaligned_second_bins_is_within_a_permille() -> None:
    complete, bursts = reconcile_plant(Plant(pairs=6, burst_s=10, period_s=25))
    for part in (complete, *bursts):
        assert part.full_bins_count >= 7
        assert part.residual_ratio == pytest.approx(0, abs=1e-3)
        assert part.causes == ()
    assert complete.overhead_ratio == pytest.approx(IP_RATIO)


def test_compares_short_bursts_in_coarse_bins_by_bytes() -> None:
    plant = Plant(pairs=6, bursts=4, burst_s=30, period_s=300, grain_s=60, lag_s=75)
    complete, bursts = reconcile_plant(plant)
    assert {part.basis for part in bursts} == {"bytes"}
    assert complete.residual_ratio == pytest.approx(0, abs=0.01)
    measured = made(plant)[0][0]
    assert measured.window is not None
    rate = measured.received_bytes[slice(*measured.window)].mean() * 8 * IP_RATIO
    assert bursts[0].firewall_bits_per_second == pytest.approx(rate, rel=0.02)


def test_bytes_in_flight_at_the_end_are_no_residual() -> None:
    """When the receivers stop, a 0.1 s queue still has to pass through the firewall."""
    series, device_counter = made(
        Plant(pairs=6, bursts=2, burst_s=10, period_s=25, counter_noise=0.0005)
    )
    drained = device_counter.bytes.copy()
    sent = []
    for burst in series:
        assert burst.window is not None
        last = burst.start_s + burst.window[1]
        queue = 0.1 * burst.received_bytes[slice(*burst.window)].mean()
        drained[np.searchsorted(device_counter.start_s, last)] += queue * IP_RATIO
        (flow,) = burst.flows
        more = flow.sent_bytes.copy()
        more[burst.window[0]] += queue
        sent.append(replace(burst, flows=(replace(flow, sent_bytes=more),)))
    complete, bursts = reconcile_counted(sent, device_counter, drained)
    for part in (complete, *bursts):
        low, high = ends(part)
        assert low < 0 < high < 0.015
        assert part.causes == ()


def test_bytes_shifted_at_bin_edges_are_no_noise() -> None:
    """The first receiver second starts too early, so its bytes are in the next bin."""
    series, device_counter = made(
        Plant(pairs=6, bursts=1, burst_s=14, period_s=40, counter_noise=0.001)
    )
    # Without a window, only the total bytes can be compared.
    burst = replace(series[0], window=None)
    calm, _ = reconcile([burst], device_counter, HEADERS, [NOBODY])
    early = 0.2 * burst.received_bytes.max()
    traded = device_counter.bytes.copy()
    traded[int(np.flatnonzero(traded > traded.max() / 2)[0])] += early * IP_RATIO
    (flow,) = burst.flows
    burst = replace(
        burst,
        start_s=burst.start_s - 1,
        coverage_ratio=np.concatenate(([1.0], burst.coverage_ratio)),
        flows=(replace(flow, received_bytes=np.concatenate(([early], flow.received_bytes))),),
    )
    complete, _ = reconcile_counted([burst], device_counter, traded)
    assert calm.residual_uncertainty_ratio is not None
    assert complete.residual_uncertainty_ratio is not None
    assert complete.residual_uncertainty_ratio < 1.5 * calm.residual_uncertainty_ratio
    assert complete.residual_ratio == pytest.approx(0, abs=0.01)


def test_unknown_bins_are_not_zero() -> None:
    series, device_counter = made(MINUTES)
    hollow = device_counter.bytes.copy()
    hollow[np.flatnonzero(hollow > hollow.max() / 2)[2]] = math.nan
    complete, bursts = reconcile_counted(series, device_counter, hollow)
    assert complete.residual_ratio == pytest.approx(0, abs=0.01)
    assert max(burst.unknown_ratio for burst in bursts) > 0.1


def test_unfilled_bins_are_not_quiet() -> None:
    """If zeros were used, the idle level would be too low and the residual too high."""
    series, device_counter = made(replace(MINUTES, foreign_ratio=0.4))
    empty = device_counter.bytes.copy()
    empty[-2:] = 0.0
    complete, _ = reconcile_counted(series, device_counter, empty)
    assert complete.residual_ratio == pytest.approx(0, abs=0.01)
    low, high = ends(complete)
    assert low <= 0 <= high


def test_lag_drift_within_a_burst_does_not_change_the_residual() -> None:
    """Bins are 10 % longer than declared, so that there are fewer and they contain more."""
    series, device_counter = made(Plant(pairs=6, bursts=1, burst_s=90, period_s=100, grain_s=1))
    edges = np.append(device_counter.start_s, device_counter.end_s[-1])
    stored_bytes = np.concatenate(([0.0], np.cumsum(device_counter.bytes)))
    labels = edges[::10]
    middle = labels.mean()
    counted = np.interp(middle + 1.1 * (labels - middle), edges, stored_bytes)
    stretched = replace(
        device_counter, start_s=labels[:-1], end_s=labels[1:], bytes=np.diff(counted), grain_s=10.0
    )
    complete, _ = reconcile(series, stretched, HEADERS, [NOBODY])
    low, high = ends(complete)
    assert low <= 0 <= high


def test_counter_without_known_bins_has_no_residual() -> None:
    series, device_counter = made(MINUTES)
    empty = replace(device_counter, bytes=np.full(len(device_counter), math.nan))
    complete, _ = reconcile(series, empty, HEADERS, [NOBODY] * len(series))
    assert complete.residual_ratio is None
    assert complete.lag_s is None


def test_ambiguous_lag_is_unknown() -> None:
    """If the rate is constant in all bins, any lag will fit."""
    series, device_counter = made(Plant(pairs=4, bursts=1, burst_s=280, grain_s=60, lag_s=75))
    flat = slice(8, 11)
    inside = replace(
        device_counter,
        start_s=device_counter.start_s[flat],
        end_s=device_counter.end_s[flat],
        bytes=device_counter.bytes[flat],
    )
    spans = [(b.start_s, b.start_s + 280.0, float(b.received_bytes.sum())) for b in series]
    known = Known(fleet=fleet_curve(series), bursts=spans)
    assert not estimate_lag(readable(inside), known, grain_s=60).known
    complete, _ = reconcile(series, inside, HEADERS, [NOBODY])
    assert complete.residual_ratio is None


def test_reconciliation_does_not_depend_on_burst_order() -> None:
    series, device_counter = made(MINUTES)
    forward = reconcile(series, device_counter, HEADERS, [NOBODY] * 3)
    backward = reconcile(series[::-1], device_counter, HEADERS, [NOBODY] * 3)
    assert forward[0].model_dump() == backward[0].model_dump()
    assert forward[1] == backward[1][::-1]


@pytest.mark.parametrize(
    ("residual", "foreign_ratio", "missing_ratio", "named"),
    [
        (0.002, None, 0.0, None),
        # The residual is within its uncertainty.
        (0.003, None, 0.034, None),
        (0.05, 0.05, 0.0, "foreign-traffic"),
        (0.034, None, 0.034, "lost-reports"),
        (0.034, 0.0001, 0.034, "lost-reports"),
        (-0.1, None, 0.0, "bypass"),
        (1.0, None, 0.0, "duplicate-counting"),
        (0.04, None, 0.0, "unknown"),
    ],
)
def test_names_cause_of_residual(
    residual: float, foreign_ratio: float | None, missing_ratio: float, named: str | None
) -> None:
    result = causes(
        Residual(ratio=residual, uncertainty_ratio=0.004),
        Missing(pairs_count=1, share_ratio=missing_ratio, planned_pairs_count=30),
        ForeignTraffic(ratio=foreign_ratio, bits_per_second=1e9),
        0.0,
    )
    assert (result[0].id if result else None) == named
    assert "confidence" not in "".join(cause.model_dump_json() for cause in result)


def test_header_overhead() -> None:
    assert tcp_headers([1448]).ip_ratio == pytest.approx(1500 / 1448)
    assert tcp_headers([1460]).ip_ratio == pytest.approx(1500 / 1460)
    assert tcp_headers([8948]).ip_ratio == pytest.approx(9000 / 8948)
    assert tcp_headers([1428], ipv6=True).ip_ratio == pytest.approx(1500 / 1428)
    assert tcp_headers([1448]).wire_ratio == pytest.approx(1514 / 1448)
    assert tcp_headers([None]).assumed
    reported = tcp_headers([1448], requested_mss_bytes=9000)
    assert reported.ip_ratio == pytest.approx(1500 / 1448)
    assert not reported.assumed
    assert udp_headers(1400).ip_ratio == pytest.approx(1428 / 1400)
    assert udp_headers(8192).ip_ratio == pytest.approx(8320 / 8192)
    jumbo = udp_headers(8192, mtu_bytes=9000)
    assert jumbo.ip_ratio == pytest.approx(8220 / 8192)
    # It is not known if the path supports this MTU.
    assert jumbo.assumed


@pytest.mark.parametrize(
    ("requested", "path", "ratio"),
    [
        (1000, {}, 1040 / 988),
        # A 1500-byte path does not support this size.
        (9000, {}, 1500 / 1448),
        (9000, {"mtu_bytes": 9000}, 9000 / 8948),
        (9000, {"mtu_bytes": 1400}, 1400 / 1348),
        (1460, {"vxlan": True}, 1500 / 1398),
        (1372, {"vxlan": True}, (1372 + 40 + 50) / 1360),
        (1460, {"ipv6": True}, 1500 / 1428),
    ],
)
def test_requested_segment_size_is_limited_by_path_mtu(
    requested: int, path: dict[str, Any], ratio: float
) -> None:
    """The effective size is not known, because iperf3 returns the requested size."""
    result = tcp_headers([None], requested_mss_bytes=requested, **path)
    assert result.ip_ratio == pytest.approx(ratio)
    assert result.assumed
    echoed = tcp_headers([requested], requested_mss_bytes=requested, **path)
    # Older versions recorded the requested size.
    assert echoed == result


@st.composite
def parts(draw: st.DrawFn) -> Completeness:
    return Completeness.of({state: draw(st.integers(0, 10**9)) for state in SecondState})


@given(st.lists(parts(), max_size=8), st.integers(0, 8))
@settings(max_examples=50)
def test_combining_completeness_is_associative(completeness: list[Completeness], cut: int) -> None:
    complete = combine(completeness)
    assert combine([combine(completeness[:cut]), combine(completeness[cut:])]) == complete
    assert combine(reversed(completeness)) == complete
    assert sum(complete.seconds(state) for state in SecondState) == complete.planned_s


def beside(series: list[BurstSeries], by_s: int, factor: float) -> list[Neighbour]:
    """Build another run with the same shape, ``by_s`` later and ``factor`` times as large."""
    return [
        Neighbour(
            run_id="other",
            burst_index=burst.burst_index,
            start_s=burst.start_s + by_s,
            received_bytes=burst.received_bytes * factor,
        )
        for burst in series
    ]


@pytest.mark.parametrize("by_s", [-20, -12, 5])
def test_residual_excludes_bytes_of_larger_overlapping_run(by_s: int) -> None:
    """Another run sends four times as much through the same device."""
    series, device_counter = made(Plant(pairs=6, bursts=1, burst_s=10))
    others = beside(series, by_s, 4.0)
    theirs = fleet_curve(others).between(device_counter.start_s, device_counter.end_s) * IP_RATIO
    both = replace(device_counter, bytes=device_counter.bytes + theirs)
    alone, _ = reconcile(series, both, HEADERS, [NOBODY])
    assert alone.residual_ratio is not None
    # This is the error if the other run is not known.
    assert abs(alone.residual_ratio) > 0.5
    complete, bursts = reconcile(series, both, HEADERS, [NOBODY], neighbours=others)
    for part in (complete, *bursts):
        assert part.lag_s == pytest.approx(0, abs=0.1)
        assert part.residual_ratio == pytest.approx(0, abs=0.01)
        assert part.causes == ()
        assert part.overlapping_run_ids == ("other",)


@pytest.mark.parametrize("seed", range(5))
def test_last_of_equal_runs_is_not_matched_to_previous_run(seed: int) -> None:
    """All runs have the same rate, and the counter stops soon after the last run."""
    series, device_counter = made(Plant(pairs=6, bursts=1, burst_s=20))
    random = np.random.default_rng(seed)
    pauses_s = random.integers(33, 36, 3)
    others = [item for by_s in -np.cumsum(pauses_s) for item in beside(series, int(by_s), 1.0)]
    begun_s = series[0].start_s - 111 + random.uniform()
    edges = begun_s + np.arange(135.0)
    device_rate = np.diff(fleet_curve([*series, *others]).between(edges[0], edges)) * IP_RATIO
    seen = replace(
        device_counter,
        start_s=edges[:-1],
        end_s=edges[1:],
        bytes=device_rate * random.normal(1, 0.03, len(device_rate)),
    )
    complete, _ = reconcile(series, seen, HEADERS, [NOBODY], neighbours=others)
    assert complete.lag_s == pytest.approx(0, abs=0.3)


def test_bypassed_run_is_not_matched_to_bytes_of_other_runs() -> None:
    series, device_counter = made(Plant(pairs=6, bursts=1, burst_s=10))
    others = beside(series, -20, 0.6)
    theirs = fleet_curve(others).between(device_counter.start_s, device_counter.end_s) * IP_RATIO
    complete, _ = reconcile_counted(series, device_counter, theirs, neighbours=others)
    assert complete.residual_ratio == pytest.approx(-1, abs=0.01)
    assert complete.causes[0].id == "bypass"
    planned, _ = reconcile_counted(series, device_counter, theirs, neighbours=others, bypassed=True)
    assert planned.residual_ratio == pytest.approx(0, abs=0.01)
    assert planned.causes == ()


@pytest.mark.parametrize("grain_s", [1.0, 60.0])
def test_planned_bypass_expects_no_bytes_in_the_counter(
    grain_s: float,
) -> None:
    """Constant foreign traffic should be ignored, but fleet bytes that cross should be counted."""
    plant = Plant(pairs=6, bursts=3, burst_s=60, period_s=120, grain_s=grain_s)
    series, device_counter = made(plant)
    idle = np.full(len(device_counter), 1e9 * grain_s)
    for share in (0.0, 0.2, 1.0):
        seen = replace(device_counter, bytes=device_counter.bytes * share + idle)
        complete, _ = reconcile(series, seen, HEADERS, [NOBODY] * 3, bypassed=True)
        assert complete.residual_ratio == pytest.approx(share, abs=0.02)
        assert complete.residual_uncertainty_ratio is not None
        assert complete.residual_uncertainty_ratio < 0.05


def bypassing(share: float, seed: int) -> tuple[list[BurstSeries], CounterRecord]:
    """Build a counter with a bypass that is replaced by the same amount of foreign traffic."""
    series, device_counter = made(
        replace(MINUTES, seed=seed, burst_s=120, period_s=240, lag_s=75.0)
    )
    rate = float(np.mean([burst.received_bytes.mean() for burst in series])) * IP_RATIO
    foreign = share * rate * (device_counter.end_s - device_counter.start_s)
    return series, replace(device_counter, bytes=device_counter.bytes * (1 - share) + foreign)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_detects_bypass_compensated_by_foreign_traffic(share: float, seed: int) -> None:
    series, device_counter = bypassing(share, seed)
    complete, bursts = reconcile(series, device_counter, HEADERS, [NOBODY] * len(series))
    for part in (complete, *bursts):
        assert part.residual_high_ratio is not None
        assert part.residual_high_ratio < -0.05
        assert part.baseline_bits_per_second is not None
        assert part.baseline_how == "quiet"
        assert {cause.id for cause in part.causes} >= {"bypass", "foreign-traffic"}
    assert complete.residual_ratio == pytest.approx(-share, abs=0.02)


@pytest.mark.parametrize("gone", [(0,), (1,), (0, 2), (1, 3)])
def test_unrecorded_bursts_do_not_change_lag_or_idle_level(gone: tuple[int, ...]) -> None:
    """The counter includes bursts that have no record."""
    plant = Plant(pairs=6, bursts=5, burst_s=60, period_s=150, grain_s=10, lag_s=40, noise=0.01)
    series, device_counter = made(plant)
    left = [burst for burst in series if burst.burst_index not in gone]
    spans = [
        (burst.planned_start_s, burst.planned_start_s + burst.duration_s)
        for burst in series
        if burst.burst_index in gone
    ]
    complete, _ = reconcile(left, device_counter, HEADERS, [NOBODY] * len(left), absent=spans)
    assert complete.lag_s == pytest.approx(40, abs=1)
    assert complete.baseline_bits_per_second == pytest.approx(0, abs=1e6)
    assert complete.residual_ratio == pytest.approx(0, abs=0.005)
    silent = [
        burst
        if burst.burst_index not in gone
        else replace(
            burst,
            coverage_ratio=np.zeros(len(burst.coverage_ratio)),
            flows=tuple(
                replace(flow, received_bytes=np.zeros(len(flow.received_bytes)))
                for flow in burst.flows
            ),
        )
        for burst in series
    ]
    again, parts = reconcile(silent, device_counter, HEADERS, [NOBODY] * len(silent))
    assert again.lag_s == pytest.approx(40, abs=1)
    assert again.residual_ratio == pytest.approx(0, abs=0.005)
    assert [part.residual_ratio is None for part in parts] == [i in gone for i in range(5)]


@pytest.mark.parametrize("grain_s", [5, 10, 60])
def test_single_unplanned_burst_does_not_raise_idle_level(grain_s: int) -> None:
    """Two unplanned bursts are different, because such traffic may also run during a burst."""
    plant = Plant(
        pairs=6, bursts=5, burst_s=120, period_s=600, grain_s=grain_s, lag_s=40, noise=0.01
    )
    series, device_counter = made(plant)
    complete, _ = reconcile(series[:3], device_counter, HEADERS, [NOBODY] * 3)
    assert complete.baseline_bits_per_second is not None
    assert complete.baseline_bits_per_second > 1e9
    assert complete.unplanned_bytes is None
    for left in (series[1:], series[:2] + series[3:]):
        (gone,) = (burst for burst in series if all(burst is not item for item in left))
        complete, parts = reconcile(left, device_counter, HEADERS, [NOBODY] * 4)
        assert complete.baseline_bits_per_second == pytest.approx(0, abs=1e6)
        assert complete.unplanned_bytes == pytest.approx(
            gone.received_bytes.sum() * IP_RATIO, rel=0.01
        )
        for part in (complete, *parts):
            low, high = ends(part)
            assert -0.05 < low < 0 < high < 0.05


def test_foreign_bursts_do_not_change_the_lag() -> None:
    plant = Plant(pairs=6, bursts=4, burst_s=60, period_s=180, grain_s=10, lag_s=40, noise=0.01)
    series, device_counter = made(plant)
    strange = device_counter.bytes.copy()
    strange[20:27] += device_counter.bytes.max()
    strange[80:86] += 0.5 * device_counter.bytes.max()
    complete, _ = reconcile_counted(series, device_counter, strange)
    assert complete.lag_s == pytest.approx(40, abs=1)
    assert ends(complete)


@pytest.mark.parametrize("drift_s", [-30.0, 25.0])
def test_follows_drifting_lag(drift_s: float) -> None:
    plant = Plant(pairs=6, bursts=8, burst_s=30, period_s=90, grain_s=1, lag_s=0, noise=0.01)
    series, device_counter = made(plant)
    progress = (device_counter.start_s - device_counter.start_s[0]) / np.ptp(device_counter.start_s)
    by_s = 60 + drift_s * progress
    width = np.diff(np.append(device_counter.start_s + by_s, device_counter.end_s[-1] + by_s[-1]))
    late = replace(
        device_counter,
        start_s=device_counter.start_s + by_s,
        end_s=device_counter.start_s + by_s + width,
    )
    complete, bursts = reconcile(series, late, HEADERS, [NOBODY] * 8)
    assert math.copysign(1, complete.lag_drift_s) == math.copysign(1, drift_s)
    for part in (complete, *bursts):
        assert part.residual_ratio == pytest.approx(0, abs=0.01)


def test_reports_unknown_share_of_partial_counter() -> None:
    series, device_counter = made(Plant(pairs=6, bursts=4, burst_s=30, period_s=60, noise=0.01))
    half = device_counter.start_s < series[2].start_s - 5
    known = replace(device_counter, bytes=np.where(half, device_counter.bytes, np.nan))
    complete, bursts = reconcile(series, known, HEADERS, [NOBODY] * 4)
    assert complete.unknown_ratio == pytest.approx(0.5, abs=0.02)
    assert complete.residual_ratio == pytest.approx(0, abs=0.005)
    assert [part.residual_ratio is None for part in bursts] == [False, False, True, True]


@pytest.mark.parametrize("value", [-1e9, math.inf, -math.inf, 1e30, math.nan])
def test_rejects_impossible_counter_values(value: float) -> None:
    series, device_counter = made(Plant(pairs=6, bursts=2, burst_s=30, period_s=60, noise=0.01))
    reported = device_counter.bytes.copy()
    place = int(np.argmax(reported))
    reported[place] = value
    complete, _ = reconcile_counted(series, device_counter, reported)
    assert complete.rejected_bins_count == (0 if math.isnan(value) else 1)
    assert complete.residual_ratio == pytest.approx(0, abs=0.005)
    assert complete.unknown_ratio == pytest.approx(1 / 60, abs=0.01)


def test_rejects_reversed_and_repeated_bins() -> None:
    series, device_counter = made(Plant(pairs=6, bursts=2, burst_s=30, period_s=60, noise=0.01))
    end = device_counter.end_s.copy()
    end[40] = device_counter.start_s[40] - 1
    start = device_counter.start_s.copy()
    start[50] = start[49]
    bins = readable(replace(device_counter, start_s=start, end_s=end))
    assert bins.rejected_count == 2
    assert (bins.start_s[1:] >= bins.end_s[:-1] - 1e-6).all()
    complete, _ = reconcile(
        series, replace(device_counter, start_s=start, end_s=end), HEADERS, [NOBODY] * 2
    )
    assert complete.rejected_bins_count == 2


def test_idle_level_is_open_upwards_without_quiet_bins() -> None:
    """The counter starts and ends with the bursts, and all bins are full."""
    series, device_counter = made(replace(MINUTES, burst_s=290, lag_s=0.0))
    first, last = series[0].start_s, series[-1].start_s + 290
    inside = (device_counter.start_s >= first - 1) & (device_counter.end_s <= last + 60)
    short = replace(
        device_counter,
        start_s=device_counter.start_s[inside],
        end_s=device_counter.end_s[inside],
        bytes=device_counter.bytes[inside],
    )
    complete, _ = reconcile(series, short, HEADERS, [NOBODY] * len(series))
    assert complete.baseline_how in ("fitted", "bounded")
    if complete.residual_ratio is not None:
        low, high = ends(complete)
        assert low <= 0 <= high


def test_idle_level_stays_open_if_only_zeros_follow() -> None:
    """Zeros at the end may be the end of foreign traffic, or bins that are not filled yet."""
    series, device_counter = made(replace(MINUTES, bursts=1, lag_s=0.0))
    burst_at_s = series[0].start_s
    foreign = 0.09 * device_counter.bytes.max()
    ends = device_counter.end_s[-1] + 60.0 * np.arange(6)
    seen = device_counter.bytes + np.where(device_counter.end_s < burst_at_s, foreign, 0.0)
    stored = device_counter.end_s > burst_at_s - 120
    cut = replace(
        device_counter,
        start_s=np.concatenate((device_counter.start_s[stored], ends[:-1])),
        end_s=np.concatenate((device_counter.end_s[stored], ends[1:])),
        bytes=np.concatenate((seen[stored], np.zeros(5))),
    )
    assert 1 <= (cut.end_s < burst_at_s).sum() <= 2
    complete, _ = reconcile(series, cut, HEADERS, [NOBODY])
    level, half = complete.baseline_bits_per_second, complete.baseline_uncertainty_bits_per_second
    assert level is not None
    assert half is not None
    assert level + half >= 0.999 * foreign * 8 / MINUTES.grain_s


@pytest.mark.parametrize("grain_s", [1.0, 10.0, 60.0])
def test_residual_intervals_contain_the_true_value(grain_s: float) -> None:
    """Simulate 20 fleets. At least 18 must have an interval, and only 3 intervals may be wrong.

    At 95 % confidence, more than 3 will be wrong in 1 out of 60 draws.
    """
    covered_count = stated_count = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, int(grain_s)])
        burst_s = max(20, 3 * int(grain_s))
        plant = Plant(
            seed=seed,
            pairs=3,
            bursts=int(rng.integers(1, 5)),
            burst_s=burst_s,
            period_s=burst_s + int(rng.integers(10, 100)),
            grain_s=grain_s,
            lag_s=float(rng.uniform(0, 2 * grain_s)),
            counter_noise=float(rng.uniform(0, 0.004)),
            counter_jitter_s=float(rng.uniform(0, 0.05)) * grain_s,
        )
        series, device_counter = made(plant)
        share = float(rng.uniform(0, 0.5))
        rate = float(series[0].received_bytes.max()) * IP_RATIO * float(rng.uniform(0, 0.5))
        noise = 1 + 0.01 * rng.standard_normal(len(device_counter))
        seen = device_counter.bytes * (1 - share) + rate * grain_s * noise
        complete, _ = reconcile_counted(series, device_counter, seen)
        if complete.residual_low_ratio is None or complete.residual_high_ratio is None:
            continue
        stated_count += 1
        covered_count += complete.residual_low_ratio <= -share <= complete.residual_high_ratio
    assert stated_count >= 18
    assert covered_count >= stated_count - 3


@pytest.mark.parametrize("omit_s", [0, 10])
def test_burst_end_includes_omitted_seconds(omit_s: int) -> None:
    """Unseen pairs may have sent in the last planned seconds."""
    received = np.full(20, 1e6)
    burst = burst_series(1000, 1000.0, received, np.zeros((1, 20)))
    burst = replace(burst, omit_s=omit_s, coverage_ratio=np.full(20, 0.5))
    device_counter = CounterRecord(
        source="counter",
        start_s=np.arange(900.0, 1100.0),
        end_s=np.arange(901.0, 1101.0),
        bytes=np.zeros(200),
        grain_s=1.0,
        read_at=datetime(2026, 11, 26, tzinfo=UTC),
    )
    device = DevicePrediction([burst], device_counter, HEADERS, Conditions(), 1.0)
    assert device.spans[0][1] == 1000 + omit_s + 20 + UNSEEN_MARGIN_S
    assert device.unrecorded is not None
    assert device.unrecorded.at_s[-1] == 1000 + omit_s + 20


def test_scatter_of_full_bins_is_scatter_of_device_rate() -> None:
    """The bins alternate between 10 % above and 10 % below the fleet."""
    received = np.full(20, 1e6)
    burst = burst_series(1000, 1000.0, received, np.full((1, 20), 8e6))
    counted = np.zeros(100)
    counted[50:70] = 1e6 * HEADERS.ip_ratio * np.tile([1.1, 0.9], 10)
    device_counter = CounterRecord(
        source="counter",
        start_s=np.arange(950.0, 1050.0),
        end_s=np.arange(951.0, 1051.0),
        bytes=counted,
        grain_s=1.0,
        read_at=datetime(2026, 11, 26, tzinfo=UTC),
    )
    _, (part,) = reconcile([replace(burst, window=(1, 19))], device_counter, HEADERS, [NOBODY])
    assert part.full_bins_count >= 16
    assert part.counter_cov_ratio == pytest.approx(0.1, rel=0.1)
