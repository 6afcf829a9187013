from dataclasses import replace

import numpy as np
import pytest

from broadside.coordinator.core.judge.reconciliation.counter_bins import BinSums
from broadside.coordinator.core.judge.reconciliation.device_prediction import (
    BurstShare,
    MovedShare,
    sum_shares,
)


def _sums(*fleet: float) -> BinSums:
    of = np.array(fleet)
    return BinSums(
        device_counter=1.1 * of,
        fleet=of,
        width=np.ones(len(of)),
        placed=np.stack((of, of), axis=1),
        earlier=of,
        later=of,
    )


def _share(*moved: tuple[float, float, float], **fields: float) -> BurstShare:
    """Build a share with 1000 payload bytes and 1200 counted bytes in 10 seconds.

    The idle level of 10 bytes/s is included in the counted bytes.
    """
    ends = [MovedShare(counter_bytes=a, fleet_bytes=b, width_s=c) for a, b, c in moved]
    known = {
        "total_bytes": 1000.0,
        "fleet_bytes": 1000.0,
        "counter_bytes": 1200.0,
        "beside_bytes": 5.0,
        "width_s": 10.0,
        "bins_count": 10,
        "unseen_bytes": 1.0,
        "tail_bytes": 2.0,
        "near_bytes_per_s": 30.0,
        "fleet_bytes_per_s": 100.0,
    }
    return BurstShare(
        moved=(ends[0], ends[1]),
        parts=_sums(1, 2),
        full=_sums(3),
        **(known | fields),  # type: ignore[arg-type]
    )


SAME = (1200.0, 1000.0, 10.0)


def test_uses_lag_bound_with_larger_change() -> None:
    """The two bounds are 910 / 900 / 1.1 = 0.9192 and 1190 / 1000 / 1.1 = 1.0818."""
    share = _share((1000.0, 900.0, 9.0), (1300.0, 1000.0, 11.0))
    assert share.unsure_ratio(10.0) == pytest.approx(1190 / 1100 - 1)
    other = _share((900.0, 900.0, 9.0), (1300.0, 1000.0, 11.0))
    assert other.unsure_ratio(10.0) == pytest.approx(1 - 810 / 900 / 1.1)
    assert _share(SAME, SAME).unsure_ratio(10.0) == pytest.approx(0.0)


def test_ignores_lag_bound_without_burst_bytes() -> None:
    assert _share((500.0, 0.0, 5.0), SAME).unsure_ratio(10.0) == pytest.approx(0.0)
    assert _share((500.0, 0.0, 5.0), (500.0, 0.0, 5.0)).unsure_ratio(10.0) == 0.0


@pytest.mark.parametrize("fields", [{"counter_bytes": 100.0}, {"fleet_bytes": 0.0}])
def test_no_lag_uncertainty_without_bytes(fields: dict[str, float]) -> None:
    assert _share((500.0, 900.0, 5.0), SAME, **fields).unsure_ratio(10.0) == 0.0


def test_sums_shares_by_field_and_averages_rates() -> None:
    one, other = _share(SAME, SAME), _share(SAME, (1.0, 2.0, 3.0), width_s=30.0)
    other = replace(other, near_bytes_per_s=10.0, fleet_bytes_per_s=200.0)
    both = sum_shares([one, other])
    assert (both.total_bytes, both.bins_count, both.width_s) == (2000.0, 20, 40.0)
    assert both.moved[0] == MovedShare(counter_bytes=2400, fleet_bytes=2000, width_s=20)
    assert both.moved[1] == MovedShare(counter_bytes=1201, fleet_bytes=1002, width_s=13)
    assert list(both.parts.fleet) == [1, 2, 1, 2]
    assert list(both.full.device_counter) == pytest.approx([3.3, 3.3])
    assert both.fleet_bytes_per_s == 150.0
    assert both.near_bytes_per_s == (30 * 10 + 10 * 30) / 40
