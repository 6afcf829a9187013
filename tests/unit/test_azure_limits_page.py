"""The computed load on Azure's services is below their limits."""

import pytest

from broadside.exchange.pacing import CONTROL_PAIRS_COUNT
from tests.docs_build import azure_limits_page

SCRIPT = vars(azure_limits_page)


@pytest.mark.parametrize(("pairs", "most"), [(30, 0.5), (300, 0.5), (1_000, 0.5), (3_000, 1.0)])
def test_a_fleet_takes_no_more_than_this_part_of_any_limit_in_its_worst_second(
    pairs: int, most: float
) -> None:
    for place, (requested, limit) in SCRIPT["loads"](pairs).items():
        assert requested <= most * limit, place


@pytest.mark.parametrize("kind", ["control: run", "results: burst", "results: tests"])
def test_what_falls_on_one_partition_together_takes_half_of_it_at_a_thousand_pairs(
    kind: str,
) -> None:
    assert SCRIPT["most_of"](1_000, kind) <= SCRIPT["PARTITION_PER_S"] / 2


def test_a_copy_of_the_control_row_has_its_readers_only() -> None:
    assert SCRIPT["loads"](3_000)["control: one copy of the control row"][0] <= CONTROL_PAIRS_COUNT
