"""Test that live values shown as known are the final ones, for a few cases of all.

``python -m tests.scenarios --live`` compares all of them.
"""

from collections.abc import Iterator

import pytest

from broadside.lab.site import in_use
from tests.live.labs import new_prefix
from tests.scenarios.live_values import CASES, TESTBED, LiveCase, compare_case
from tests.scenarios.scenario_range import Range, standing

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.timeout(400)]

FEW = ("iperf3 TCP both", "iperf3 UDP down", "http")


@pytest.fixture(scope="module")
def range_() -> Iterator[Range]:
    prefix = new_prefix()
    with in_use(prefix), standing(TESTBED, prefix) as range_:
        yield range_


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in FEW], ids=lambda case: case.name
)
def test_known_values_are_final(range_: Range, case: LiveCase) -> None:
    _, comparisons = compare_case(range_.coordinator, case)
    assert {item.figure.rpartition(" ")[2] for item in comparisons} >= {"received", "residual"}
    assert [item for item in comparisons if not item.is_within] == []
