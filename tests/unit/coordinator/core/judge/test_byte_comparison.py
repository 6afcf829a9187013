import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.judge.reconciliation.counter_bins import (
    BinSums,
    CounterFactor,
    ExtraBytes,
)
from broadside.coordinator.core.judge.reconciliation.device_prediction import (
    BurstShare,
    MovedShare,
)
from broadside.coordinator.core.judge.reconciliation.idle_level import IdleLevel
from broadside.coordinator.core.judge.reconciliation.lag import Lag
from broadside.coordinator.core.judge.reconciliation.reconcile import (
    NOISE_ASSUMED_RATIO,
    ByteComparison,
    RunComparison,
    compare_bytes,
    scatter_of_bursts,
)
from broadside.coordinator.core.measure.formulas.headers import (
    OVERHEAD_LESS_RATIO,
    OVERHEAD_MORE_RATIO,
)
from broadside.coordinator.core.measure.formulas.steady import t95
from broadside.coordinator.core.measure.records.evidence import CounterRecord

NONE = np.empty(0)
COUNTER = CounterRecord(
    source="counter",
    start_s=NONE,
    end_s=NONE,
    bytes=NONE,
    grain_s=1.0,
    read_at=datetime(2026, 3, 1, tzinfo=UTC),
)
FACTOR = CounterFactor(
    ratio=1.05, less_ratio=0.0, more_ratio=0.0, how="recorded", between_ratio=0.0
)
IDLE = IdleLevel(
    bytes_per_s=50.0, below=0.0, above=0.0, mean_below=0.0, mean_above=0.0, how="quiet"
)


def _run_comparison(**fields: Any) -> RunComparison:
    known: dict[str, Any] = {
        "device_counter": COUNTER,
        "lag": Lag(lag_s=0.0, uncertainty_s=0.0, known=True),
        "overhead": FACTOR,
        "idle": None,
        "rejected_count": 0,
        "clock_bound_s": 0.0,
        "neighbours": (),
        "bypassed": False,
        "datagrams": False,
        "busy_bytes": 0.0,
        "sent_bytes": 0.0,
    }
    return RunComparison(**(known | fields))


def _sums(device_counter: list[float], fleet: list[float]) -> BinSums:
    of = np.array(fleet)
    return BinSums(
        device_counter=np.array(device_counter),
        fleet=of,
        width=np.ones(len(of)),
        placed=of[:, None],
        earlier=of,
        later=of,
    )


EMPTY = _sums([], [])


def _share(parts: BinSums, full: BinSums = EMPTY, **fields: Any) -> BurstShare:
    counted, fleet = float(parts.device_counter.sum()), float(parts.fleet.sum())
    same = MovedShare(counter_bytes=counted, fleet_bytes=fleet, width_s=float(parts.width.sum()))
    known: dict[str, Any] = {
        "total_bytes": fleet,
        "fleet_bytes": fleet,
        "counter_bytes": counted,
        "beside_bytes": 0.0,
        "width_s": same.width_s,
        "bins_count": len(parts.fleet),
        "moved": (same, same),
        "unseen_bytes": 0.0,
        "tail_bytes": 0.0,
        "near_bytes_per_s": 0.0,
        "parts": parts,
        "full": full,
        "fleet_bytes_per_s": 100.0,
    }
    return BurstShare(**(known | fields))


TEN = _share(_sums([110.0] * 10, [100.0] * 10))


def _compared(
    run: RunComparison,
    share: BurstShare = TEN,
    extra: ExtraBytes = ExtraBytes(),  # noqa: B008 - frozen
    ends: tuple[float, float] = (0.0, 0.0),
    scatter: float = 0.01,
) -> ByteComparison:
    return compare_bytes(run, share, extra, ends, scatter)[0]


def test_residual_is_counted_over_predicted_minus_one() -> None:
    result = _compared(_run_comparison())
    assert result.basis == "bytes"
    assert (result.counter_bytes, result.expected_bytes) == (1100.0, 1050.0)
    assert result.residual_ratio == pytest.approx(1100 / 1050 - 1)
    assert result.below_ratio == result.above_ratio == pytest.approx(0.01)
    assert result.between_ratio == pytest.approx(0.01)
    assert (result.extra_ratio, result.unrecorded_ratio) == (0.0, 0.0)
    assert result.noise_ratio == result.uncertainty_ratio == pytest.approx(0.01)


def test_subtracts_idle_level_with_its_error() -> None:
    """The result is 1100 - 10 x 50 = 600. The errors are 50 / 1050 and 70 / 1050."""
    result = _compared(_run_comparison(idle=IDLE), ends=(5.0, 7.0))
    assert result.residual_ratio == pytest.approx(600 / 1050 - 1)
    assert result.below_ratio == pytest.approx(math.hypot(0.01, 70 / 1050))
    assert result.above_ratio == pytest.approx(math.hypot(0.01, 50 / 1050))
    assert result.uncertainty_ratio == result.below_ratio
    assert result.between_ratio == pytest.approx(math.hypot(0.01, 70 / 1050))
    fitted = _compared(_run_comparison(idle=replace(IDLE, how="fitted")), ends=(5.0, 7.0))
    # All bursts have the same error.
    assert fitted.between_ratio == pytest.approx(0.01)


def test_adds_header_clock_and_other_run_errors_in_quadrature() -> None:
    """The clock may be wrong by 0.2 seconds in 10 seconds, and 10 % is from other runs."""
    factor = replace(FACTOR, less_ratio=0.03, more_ratio=0.04, between_ratio=0.05)
    result = _compared(
        _run_comparison(overhead=factor, clock_bound_s=0.2), replace(TEN, beside_bytes=100.0)
    )
    unsure = math.hypot(0.01, 0.02)
    assert result.below_ratio == pytest.approx(math.hypot(unsure, 0.04, 0.1 * OVERHEAD_MORE_RATIO))
    assert result.above_ratio == pytest.approx(math.hypot(unsure, 0.03, 0.1 * OVERHEAD_LESS_RATIO))
    assert result.between_ratio == pytest.approx(
        math.hypot(unsure, 0.05, 0.1 * OVERHEAD_MORE_RATIO)
    )


def test_layer_error_is_added_linearly() -> None:
    factor = replace(FACTOR, layer_ratio=0.02, layer_low_ratio=0.03)
    result = _compared(_run_comparison(overhead=factor))
    assert result.below_ratio == pytest.approx(0.01 + 0.03)
    assert result.above_ratio == pytest.approx(0.01 + 0.02)


def test_predicts_half_of_the_bytes_in_flight() -> None:
    """The senders have 40 bytes more than the receivers, so 20 +- 20 bytes are added."""
    share = replace(TEN, tail_bytes=40.0, unseen_bytes=30.0)
    result = _compared(_run_comparison(), share)
    assert result.expected_bytes == pytest.approx(1050 * 1.02)
    assert result.unrecorded_ratio == pytest.approx(math.hypot(0.03, 0.02))
    assert result.below_ratio == pytest.approx(math.hypot(0.01, 0.03, 0.02))
    datagrams = _compared(_run_comparison(datagrams=True), share)
    # Lost UDP datagrams will not be sent again.
    assert datagrams.expected_bytes == 1050
    assert datagrams.unrecorded_ratio == pytest.approx(0.03)


def test_extra_bytes_are_no_residual() -> None:
    """The counter includes 2 to 5 % retransmitted bytes, so 1071 to 1102.5 bytes are expected."""
    extra = ExtraBytes(low_ratio=0.02, resent_ratio=0.05)
    assert extra.high_ratio == pytest.approx(0.05)
    within = _compared(_run_comparison(), extra=extra)
    assert within.expected_bytes == pytest.approx(1071)
    assert within.residual_ratio == pytest.approx(0.0)
    most = 1.05 / 1.02
    assert within.extra_ratio == pytest.approx(1 - 1100 / 1071 / most)
    assert within.below_ratio == pytest.approx(0.01 + within.extra_ratio)
    assert within.above_ratio == pytest.approx(0.01)
    assert within.noise_ratio == pytest.approx(0.01)
    over = _compared(_run_comparison(), _share(_sums([120.0] * 10, [100.0] * 10)), extra)
    assert over.residual_ratio == pytest.approx(1200 / 1071 - most)
    under = _compared(_run_comparison(), _share(_sums([100.0] * 10, [100.0] * 10)), extra)
    assert under.residual_ratio == pytest.approx(1000 / 1071 - 1)
    assert under.extra_ratio == pytest.approx(1000 / 1071 * (1 - 1 / most))


def test_errors_of_bypassing_run_scale_with_crossed_bytes() -> None:
    """Only 10 % crossed, so header and layer errors are 10 %. The idle error does not change."""
    factor = replace(FACTOR, less_ratio=0.03, more_ratio=0.04, layer_ratio=0.02)
    factor = replace(factor, layer_low_ratio=0.05)
    share = _share(_sums([10.5] * 10, [100.0] * 10), near_bytes_per_s=999.0)
    run = _run_comparison(overhead=factor, bypassed=True, idle=replace(IDLE, bytes_per_s=0.0))
    result = _compared(run, share, ends=(5.0, 7.0))
    assert result.residual_ratio == pytest.approx(0.1)
    assert result.below_ratio == pytest.approx(
        math.hypot(0.1 * math.hypot(0.01, 0.04), 70 / 1050) + 0.005
    )
    assert result.above_ratio == pytest.approx(
        math.hypot(0.1 * math.hypot(0.01, 0.03), 50 / 1050) + 0.002
    )
    more = _compared(run, _share(_sums([210.0] * 10, [100.0] * 10)), ends=(0.0, 0.0))
    # The errors should not be larger than for a normal run.
    assert more.above_ratio == pytest.approx(math.hypot(0.01, 0.03) + 0.02)
    extra = _compared(_run_comparison(bypassed=True), share, ExtraBytes(resent_ratio=0.25))
    assert extra.residual_ratio == pytest.approx(0.1)
    assert extra.extra_ratio == pytest.approx(0.1 - 0.1 / 1.25)


@pytest.mark.parametrize("near", [31.0, 7.0, 0.0])
def test_adjacent_traffic_may_have_run_during_the_burst(near: float) -> None:
    """The interval already includes 7 bytes/s, because the idle level may be higher."""
    result = _compared(_run_comparison(), replace(TEN, near_bytes_per_s=near), ends=(5.0, 7.0))
    lasting = max(0.0, near - 7) * 10 / 1050
    assert result.below_ratio == pytest.approx(math.hypot(0.01, 70 / 1050) + lasting)


FULL = _sums([108.0, 112.0, 110.0, 109.0, 111.0], [100.0] * 5)


def test_compares_full_bins_if_there_are_five() -> None:
    """The offsets are -2, 2, 0, -1 and 1 %, so the sum of squares is 10 x 5 / 4."""
    both = compare_bytes(
        _run_comparison(), replace(TEN, full=FULL, tail_bytes=40.0), ExtraBytes(), (0.0, 0.0), 0.01
    )
    assert [item.basis for item in both] == ["bytes", "rate"]
    rate = both[1]
    # There are no bytes in flight.
    assert (rate.counter_bytes, rate.expected_bytes) == (550.0, 525.0)
    error = math.sqrt(10e-4 * 5 / 4) / 5
    assert rate.above_ratio == pytest.approx(error * t95(4) / 1.1)
    assert rate.unrecorded_ratio == 0.0
    four = _sums([110.0] * 4, [100.0] * 4)
    assert (
        len(compare_bytes(_run_comparison(), replace(TEN, full=four), ExtraBytes(), (0, 0), 0.01))
        == 1
    )


def test_bytes_shifted_between_bins_cancel_in_the_sum() -> None:
    """If the burst scatter is not known, the error is estimated from the bins.

    For bins at an edge, only the remaining difference (10 / 1000) is used. The other eight bins
    alternate by 1 %, so that their errors cancel.
    """
    device_counter = [105.0, *([109.0, 111.0] * 4), 105.0]
    result = _compared(
        _run_comparison(), _share(_sums(device_counter, [100.0] * 10)), scatter=math.nan
    )
    alone = 8e-4 * 8 / 7
    error = math.sqrt(alone / 8) / 8
    run = -10.0 / 1000
    assert result.above_ratio == pytest.approx(math.hypot(error * t95(7), run) / 1.1)


def test_correlated_bins_do_not_cancel() -> None:
    """The offsets are 1, 1, 1, -1, -1 and -1 %, so that 2 x 3 products remain."""
    device_counter = [110.0, *([111.0] * 3), *([109.0] * 3), 110.0]
    result = _compared(
        _run_comparison(), _share(_sums(device_counter, [100.0] * 8)), scatter=math.nan
    )
    alone, traded = 6e-4 * 6 / 5, 2 * 3e-4
    error = math.sqrt(alone + traded) / 6
    assert result.above_ratio == pytest.approx(error * t95(5) / 1.1)


def test_assumes_scatter_for_few_busy_bins() -> None:
    """Only three bins are busy. The assumed scatter is lower if there are more bins."""
    share = _share(_sums([110.0] * 3 + [40.0] * 3, [100.0] * 3 + [50.0] * 3))
    result = _compared(_run_comparison(), share, scatter=math.nan)
    assert result.above_ratio == pytest.approx(NOISE_ASSUMED_RATIO / math.sqrt(6))


def test_no_scatter_for_fewer_than_three_bursts() -> None:
    assert all(math.isnan(scatter_of_burst) for scatter_of_burst in scatter_of_bursts([1.0, 1.1]))


def test_burst_scatter_uses_median_deviation_from_four_bursts() -> None:
    """For 1.0, 1.1 and 1.2 the deviation is 0.1, t is 4.303 and the mean is 1.1.

    If there is an outlier, the median absolute deviation (0.05) is used for one burst.
    """
    mean, one = scatter_of_bursts([1.0, 1.1, 1.2])
    assert one == pytest.approx(0.1 * t95(2) / 1.1)
    assert mean == pytest.approx(one / math.sqrt(3))
    ratios = [1.0, 1.1, 1.1, 1.2, 9.0]
    mean, one = scatter_of_bursts(ratios)
    size = np.mean(ratios) / t95(4)
    assert one == pytest.approx(1.4826 * 0.1 / size)
    assert mean == pytest.approx(np.std(ratios, ddof=1) / math.sqrt(5) / size)


def test_scatter_of_bypassed_device_is_absolute() -> None:
    _, one = scatter_of_bursts([0.0, 0.1, 0.2])
    assert one == pytest.approx(0.1 * t95(2))
