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


@pytest.mark.parametrize(
    ("size", "connections", "per_second"),
    [
        ("Standard_D4s_v5", 500_000, None),
        (None, 500_000, None),
        ("Standard_D2ns_v6", 500_000, 62_500),
        ("standard_d16nls_v6", 700_000, 87_500),
        ("Standard_E128ns_v6", 2_000_000, 250_000),
        ("Standard_E192ns_v6", 4_000_000, 420_000),
        ("Standard_N4s_v6", 500_000, None),
    ],
)
def test_connections_of_a_vm_depend_on_the_series(
    size: str | None, connections: int, per_second: int | None
) -> None:
    assert DOCUMENTED.connections_of_vm(size).count == connections
    limit = DOCUMENTED.per_second_of_vm(size)
    assert (limit.count if limit else None) == per_second
