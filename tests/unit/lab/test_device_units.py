"""Tests for the commands of a device of units, without executing them."""

from dataclasses import replace

import pytest

from broadside.lab.device_units import UNITS_MAX, rules_batch, units
from broadside.lab.errors import LabMisconfigured
from broadside.lab.profiles import PROFILES


def test_new_flows_get_a_unit_that_takes_them() -> None:
    four = units(4, 1_000_000)
    draining = replace(four[1], takes_flows=False)
    gone = replace(four[2], carries=False)
    rules = "\n".join(rules_batch("fw", (four[0], draining, gone, four[3])).lines)
    assert "mod 2 map { 0 : 1, 1 : 4 }" in rules
    # Flows on a unit that drains keep their address. Those on a unit that left are dropped.
    assert "2 : 10.2.255.2" in rules
    assert "ct mark { 3 } drop" in rules


def test_rules_of_intact_units_drop_nothing() -> None:
    assert not any("drop" in line for line in rules_batch("fw", units(16)).lines)
    assert rules_batch("fw", ()).lines == ("add table ip units", "delete table ip units")


@pytest.mark.parametrize("count", [0, UNITS_MAX + 1])
def test_number_of_units_is_limited(count: int) -> None:
    with pytest.raises(LabMisconfigured, match="use 1 to 16"):
        units(count)


def test_profiles_have_the_units_of_their_name() -> None:
    for name, profile in PROFILES.items():
        if name.startswith("units-"):
            assert len(profile.units) == int(name.split("-")[1])
