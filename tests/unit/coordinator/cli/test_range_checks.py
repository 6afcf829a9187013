"""Tests for sizes that are not available, and for the boot status on the serial console."""

from typing import Any

import pytest

from broadside.coordinator.cli.range_checks import last_status, shortages

READY = '{"host": "c0", "stage": "ready", "at": "2026-11-26T12:00:00Z", "error": ""}'


@pytest.mark.parametrize(
    ("console", "stage"),
    [
        ("", None),
        ("Debian GNU/Linux 13 c0 ttyS0\n\nc0 login: ", None),
        (f"[  42.1] fetch.py[511]: broadside-boot: {READY}\r\nc0 login: ", "ready"),
        ('broadside-boot: {"stage": "fetch"}\nbroadside-boot: {"stage": "install"}\n', "install"),
        # The kernel can write to the same line, and the last line can be incomplete.
        (f'broadside-boot: {READY}\nbroadside-boot: {{"sta[ 43.0] veth: up\n', "ready"),
        (f"broadside-boot: {READY}[   43.000] eth0: up\nbroadside-boot: ", "ready"),
        ("broadside-boot: []\nbroadside-boot: 7\n", None),
    ],
)
def test_returns_the_newest_complete_status(console: str, stage: str | None) -> None:
    result = last_status(console)
    assert (result and result["stage"]) == stage


def restriction(kind: str, zones: list[str]) -> dict[str, Any]:
    """Return a restriction as ``az vm list-skus`` shows it."""
    info = {"locations": ["eastus"], "zones": zones}
    return {
        "type": kind, "values": ["eastus"], "restrictionInfo": info,
        "reasonCode": "NotAvailableForSubscription",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "closed", "fleet_zones", "expected"),
    [
        ("Location", [], [], "Standard_D4_v4 in eastus is not available"),
        ("Zone", ["1", "2"], [], None),
        ("Zone", ["1", "2"], ["3"], None),
        ("Zone", ["1", "2"], ["2", "3"], "Standard_D4_v4 in zone 2 of eastus is not available"),
    ],
)
def test_only_restrictions_of_the_range_count(
    kind: str, closed: list[str], fleet_zones: list[str], expected: str | None
) -> None:
    sizes = [
        {
            "name": name, "family": "f", "capabilities": [{"name": "vCPUs", "value": "4"}],
            "locationInfo": [{"zones": ["1", "2", "3"]}],
            "restrictions": [restriction(kind, closed)] if name == "Standard_D4_v4" else [],
        }
        for name in ("Standard_D4_v4", "Standard_B2als_v2")
    ]  # fmt: skip
    needs = {
        "location": "eastus", "vm_size": "Standard_D4_v4", "instances": 1, "nva_count": 0,
        "coordinator_size": "Standard_B2als_v2", "fleet_zones": fleet_zones,
        "public_addresses_count": 0,
    }  # fmt: skip
    matches = list(
        shortages(needs, compute=[], network=[], sizes=sizes, locations=[{"name": "eastus"}])
    )
    assert [line.partition(" to this")[0] for line in matches] == ([expected] if expected else [])


def test_a_restricted_zone_does_not_concern_the_coordinator() -> None:
    sizes = [
        {
            "name": name, "family": "f", "capabilities": [{"name": "vCPUs", "value": "4"}],
            "locationInfo": [{"zones": ["1"]}], "restrictions": [restriction("Zone", ["1"])],
        }
        for name in ("Standard_B2als_v2",)
    ]  # fmt: skip
    needs = {
        "location": "eastus", "vm_size": "Standard_D4_v4", "instances": 1, "nva_count": 0,
        "coordinator_size": "Standard_B2als_v2", "fleet_zones": [], "public_addresses_count": 0,
    }  # fmt: skip
    matches = shortages(needs, compute=[], network=[], sizes=sizes, locations=[{"name": "eastus"}])
    assert list(matches) == [
        "Standard_D4_v4 is not offered in eastus; use another vm_size or location"
    ]


@pytest.mark.parametrize(
    ("numbers", "zones", "expected"),
    [
        ("123", ["1", "3"], None),
        # This subscription has the closed physical zone 2 as its zone 1.
        ("213", ["1", "3"], 'zone 1 of this subscription; set firewall_zones=["2", "3"]'),
        ("213", ["2", "3"], None),
        ("123", ["1", "2", "3"], 'zone 2 of this subscription; set firewall_zones=["1", "3"]'),
        ("", ["2"], "zone 2 of this subscription; set firewall_zones=[]"),
    ],
)
def test_closed_zones_have_the_numbers_of_the_subscription(
    numbers: str, zones: list[str], expected: str | None
) -> None:
    mapping = [
        {"logicalZone": str(index), "physicalZone": f"northeurope-az{physical}"}
        for index, physical in enumerate(numbers, 1)
    ]
    needs = {
        "location": "northeurope", "vm_size": "x", "instances": 1, "nva_count": 0,
        "coordinator_size": "x", "fleet_zones": [], "public_addresses_count": 0,
        "firewall_zones": zones, "firewall_zones_closed": ["2"],
    }  # fmt: skip
    locations = [{"name": "northeurope", "availabilityZoneMappings": mapping}]
    lines = list(shortages(needs, compute=[], network=[], sizes=[], locations=locations))
    closed = [line for line in lines if "firewall" in line]
    assert [line.partition("which is ")[2] for line in closed] == ([expected] if expected else [])
