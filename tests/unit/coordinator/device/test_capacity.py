"""Tests for capacity limits, and for the record that you can use to restore them."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.device.capacity import Capacity, CapacityFile
from broadside.coordinator.device.resource_manager import ResourceRefused

FIREWALL = "/subscriptions/0/resourceGroups/broadside/providers/Microsoft.Network/azureFirewalls/fw"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@given(least=st.integers(-5, 60), most=st.integers(-5, 60))
def test_limits_are_from_2_to_50_and_do_not_differ_by_1(least: int, most: int) -> None:
    """See the Azure documentation for pre-scaling."""
    valid = 2 <= least <= most <= 50 and most - least != 1
    capacity = Capacity(min_count=least, max_count=most)
    if valid:
        assert capacity.checked() is capacity
    else:
        with pytest.raises(ResourceRefused, match="must"):
            capacity.checked()


def test_rejects_a_missing_limit() -> None:
    with pytest.raises(ResourceRefused, match="max not given"):
        Capacity(min_count=2, max_count=None).checked()


def test_first_record_is_not_overwritten(tmp_path: Path) -> None:
    """If `set` is used again, the limits will be raised already, so do not record them."""
    record = CapacityFile.of(FIREWALL, tmp_path)
    before = Capacity(min_count=2, max_count=20)
    assert record.read() is None
    assert record.save_original(before, FIREWALL, NOW) == before
    assert record.save_original(Capacity(min_count=20, max_count=20), FIREWALL, NOW) == before
    assert record.read() == before
    record.forget()
    record.forget()
    assert record.read() is None


def test_records_the_default_of_the_service(tmp_path: Path) -> None:
    record = CapacityFile.of(FIREWALL, tmp_path)
    none = Capacity(min_count=None, max_count=None)
    record.save_original(none, FIREWALL, NOW)
    assert record.read() == none
    assert str(none) == "chosen by the service"


def test_record_ignores_the_case_of_the_resource_id(tmp_path: Path) -> None:
    lower = CapacityFile.of(FIREWALL.replace("resourceGroups", "resourcegroups"), tmp_path)
    assert lower == CapacityFile.of(FIREWALL, tmp_path)
    other = CapacityFile.of(FIREWALL.replace("/0/", "/1/"), tmp_path)
    assert other != lower


def test_damaged_record_is_an_error(tmp_path: Path) -> None:
    record = CapacityFile.of(FIREWALL, tmp_path)
    record.path.parent.mkdir(parents=True, exist_ok=True)
    record.path.write_text("{")
    with pytest.raises(ResourceRefused, match="not readable"):
        record.read()


def test_changes_nothing_if_the_record_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    record = CapacityFile.of(FIREWALL, tmp_path / "file")
    with pytest.raises(ResourceRefused, match="nothing changed"):
        record.save_original(Capacity(min_count=2, max_count=4), FIREWALL, NOW)
