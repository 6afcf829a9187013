from datetime import date

import pytest

from broadside.coordinator.core.documented_limits import (
    DOCUMENTED,
    _firewalls,
    _sizes,
)


def test_converts_gbit_and_mbit_to_bits_per_second() -> None:
    (basic,) = _firewalls({"basic": 0.25}).values()
    assert (basic.bits_per_second, basic.as_of) == (0.25e9, date(2026, 3, 1))
    assert basic.source == "learn.microsoft.com/azure/firewall/firewall-performance"
    ((name, size),) = _sizes("Standard_D{}s_v5", {2: 12500}).items()
    assert (name, size.bits_per_second) == ("standard_d2s_v5", 12.5e9)
    assert size.as_of == date(2026, 3, 4)
    assert size.source == "learn.microsoft.com/azure/virtual-machines/sizes"


@pytest.mark.parametrize(
    ("size", "cap"),
    [("Standard_D4s_v5", 12.5e9), ("STANDARD_F48S_V2", 21e9), ("Standard_X1", None), (None, None)],
)
def test_finds_rate_limit_of_vm_size(size: str | None, cap: float | None) -> None:
    assert DOCUMENTED.of_vm(size) == cap


def test_reports_newest_date_of_tables() -> None:
    assert DOCUMENTED.as_of == date(2026, 3, 4)
