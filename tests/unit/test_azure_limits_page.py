"""Test that the computed load for the Azure services is below their limits."""

import pytest

from broadside.exchange.pacing import CONTROL_PAIRS_COUNT
from tests.docs_build import azure_limits_page

SCRIPT = vars(azure_limits_page)


@pytest.mark.parametrize(("pairs", "maximum"), [(30, 0.5), (300, 0.5), (1_000, 0.5), (3_000, 1.0)])
def test_peak_load_is_below_this_share_of_all_limits(pairs: int, maximum: float) -> None:
    for limit_name, (load, limit) in SCRIPT["loads"](pairs).items():
        assert load <= maximum * limit, limit_name


@pytest.mark.parametrize("kind", ["control: run", "results: burst", "results: tests"])
def test_thousand_pairs_use_at_most_half_of_a_partition(
    kind: str,
) -> None:
    assert SCRIPT["most_of"](1_000, kind) <= SCRIPT["PARTITION_PER_S"] / 2


def test_control_row_copy_has_a_limited_number_of_readers() -> None:
    assert SCRIPT["loads"](3_000)["control: one copy of the control row"][0] <= CONTROL_PAIRS_COUNT
