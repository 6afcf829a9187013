"""Test that real bursts can reveal planted causes such as a slow NIC or a small window.

Use ``make scenarios`` to run all cases. These few cases decide if the analysis is reliable.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from broadside.lab import profiles
from broadside.lab.site import free_prefix
from tests.live.taken import Taken
from tests.scenarios.cases import CASES, Case, Expected, LabTestbed
from tests.scenarios.scenario_range import Range, standing

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs_root,
    pytest.mark.alone,
    pytest.mark.timeout(200),
]

TESTBED = LabTestbed(
    pairs_count=4, scale=100, nic_bits_per_second=100_000_000, firewall_bits_per_second=320_000_000
)
QUICK = {
    "pairs_count": 4,
    "lead_s": 4,
    "traffic.probe": None,
    # With about twelve bins of 1 s the interval is not narrower.
    "objective.residual_max_ratio": 0.2,
}


@pytest.fixture(scope="module")
def place() -> Iterator[Range]:
    with free_prefix() as prefix, standing(TESTBED, prefix) as place:
        yield place


def quick(name: str, **changes: Any) -> Case:
    """Return a case of ``make scenarios``, to be used with fewer pairs and without probes."""
    (case,) = (case for case in CASES if case.name == name)
    overrides = {**case.overrides, **QUICK, **changes.pop("overrides", {})}
    return dataclasses.replace(case, testbed="small", overrides=overrides, **changes)


@pytest.mark.parametrize(
    "case",
    [
        quick("accelerated networking off", burst_s=12),
        quick(
            "128 KiB window over the path",
            burst_s=4,
            overrides={"pairs_count": 1},
            expected=Expected(bottleneck="window", product_megabytes=100 * 0.02 / 8),
        ),
        quick("collapse above a load", burst_s=10),
    ],
    ids=lambda case: case.profile,
)
def test_finds_the_planted_cause(place: Range, case: Case) -> None:
    row = place.carry_out(case, {})
    # If a machine is shared, the host itself may be the limit or delay packets, so repeat it.
    if row.faults:
        row = place.carry_out(case, {})
    assert row.problem is None
    if row.machine_was_busy:
        assert all(fault.startswith("bottleneck client-cpu") for fault in row.faults)
    else:
        assert row.faults == ()
    assert row.payload_bits_per_second is not None


def test_measures_cost_of_inspection_within_three_points(place: Range) -> None:
    planted = profiles.PROFILES["idps-deny"].firewall_ratio
    # If a machine is shared, the host itself may be the limit.
    for _ in range(2):
        with Taken() as taken:
            plain, deny = (carried(place, profile) for profile in ("plain", "idps-deny"))
        if abs(deny / plain - planted) <= 0.03:
            break
    assert abs(deny / plain - planted) <= 0.03 or taken.much


def carried(place: Range, profile: str) -> float:
    """Return the payload rate that the fleet receives with a profile, in bit/s."""
    once = {"bursts_count": 1}
    case = quick("A/B: IDPS off, deny", burst_s=4, question=None, profile=profile, overrides=once)
    row = place.carry_out(dataclasses.replace(case, expected=Expected()), {})
    assert row.payload_bits_per_second is not None
    return row.payload_bits_per_second
