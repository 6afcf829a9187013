"""Bounds that Azure takes, and the record of what was set before."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.device.capacity import Capacity, Record
from broadside.coordinator.device.resource_manager import ResourceRefused

FIREWALL = "/subscriptions/0/resourceGroups/broadside/providers/Microsoft.Network/azureFirewalls/fw"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@given(least=st.integers(-5, 60), most=st.integers(-5, 60))
def test_bounds_are_equal_or_two_apart_and_2_to_50(least: int, most: int) -> None:
    """As Azure documents pre-scaling."""
    right = 2 <= least <= most <= 50 and most - least != 1
    capacity = Capacity(min_count=least, max_count=most)
    if right:
        assert capacity.checked() is capacity
    else:
        with pytest.raises(ResourceRefused, match="must"):
            capacity.checked()


def test_a_bound_that_is_not_given_is_refused() -> None:
    with pytest.raises(ResourceRefused, match="max not given"):
        Capacity(min_count=2, max_count=None).checked()


def test_the_oldest_record_stands(tmp_path: Path) -> None:
    """A second `set` finds raised bounds; those are not what is to be restored."""
    record = Record.of(FIREWALL, tmp_path)
    before = Capacity(min_count=2, max_count=20)
    assert record.read() is None
    assert record.keep(before, FIREWALL, NOW) == before
    assert record.keep(Capacity(min_count=20, max_count=20), FIREWALL, NOW) == before
    assert record.read() == before
    record.forget()
    record.forget()
    assert record.read() is None


def test_the_services_own_choice_is_a_record_too(tmp_path: Path) -> None:
    record = Record.of(FIREWALL, tmp_path)
    none = Capacity(min_count=None, max_count=None)
    record.keep(none, FIREWALL, NOW)
    assert record.read() == none
    assert str(none) == "the service's own choice"


def test_a_record_is_found_by_the_firewall_whatever_its_case(tmp_path: Path) -> None:
    lower = Record.of(FIREWALL.replace("resourceGroups", "resourcegroups"), tmp_path)
    assert lower == Record.of(FIREWALL, tmp_path)
    other = Record.of(FIREWALL.replace("/0/", "/1/"), tmp_path)
    assert other != lower


def test_a_spoilt_record_is_not_taken_for_none(tmp_path: Path) -> None:
    record = Record.of(FIREWALL, tmp_path)
    record.path.parent.mkdir(parents=True, exist_ok=True)
    record.path.write_text("{")
    with pytest.raises(ResourceRefused, match="not readable"):
        record.read()


def test_what_cannot_be_written_down_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    record = Record.of(FIREWALL, tmp_path / "file")
    with pytest.raises(ResourceRefused, match="nothing was changed"):
        record.keep(Capacity(min_count=2, max_count=4), FIREWALL, NOW)
