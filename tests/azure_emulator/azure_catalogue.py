"""Built-in data of Azure: roles, sizes and regions, with their API representation."""

import re
from collections.abc import Mapping
from typing import Final

from tests.azure_emulator.azure_refusals import ZONED, Resource

SUBSCRIPTION: Final = "00000000-0000-0000-0000-000000000000"
DEPLOYER: Final = "22222222-2222-2222-2222-222222222222"
BASE: Final = f"/subscriptions/{SUBSCRIPTION}"
ROLES: Final[
    Mapping[str, str]
    # Built-in roles from learn.microsoft.com/azure/role-based-access-control.
] = {
    "Storage Blob Data Contributor": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "Storage Blob Data Reader": "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1",
    "Storage Table Data Contributor": "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3",
    "Storage Table Data Reader": "76199698-9eea-4c19-bc75-cec21354c6b6",
    "Azure Service Bus Data Receiver": "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0",
    "Azure Service Bus Data Sender": "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39",
    "Monitoring Reader": "43d0d8ad-25c7-4714-9337-8ba259a9fe05",
    "Desktop Virtualization Power On Contributor": "489581de-a3bd-480d-9518-53dea7416b33",
}
NAMESPACES: Final = (
    "Microsoft.Compute", "Microsoft.DevTestLab", "Microsoft.Insights", "Microsoft.Logic",
    "Microsoft.ManagedIdentity", "Microsoft.Network", "Microsoft.OperationalInsights",
    "Microsoft.ServiceBus", "Microsoft.Storage", "Microsoft.KeyVault", "Microsoft.Consumption",
    "Microsoft.MarketplaceOrdering",
)  # fmt: skip
# Namespaces that are registered in every new subscription.
ALWAYS: Final = frozenset(
    {"microsoft.authorization", "microsoft.resources", "microsoft.consumption",
     "microsoft.marketplaceordering", "microsoft.billing", "microsoft.features"}
)  # fmt: skip
# Maps each size to its family and vCPUs.
SIZES: Final[Mapping[str, tuple[str, int]]] = {
    **{f"Standard_D{vcpus}_{series}": (f"standardD{series}Family", vcpus)
       for series in ("v4", "v5") for vcpus in (4, 8, 16, 32)},
    **{f"Standard_D{vcpus}s_v6": ("standardDSv6Family", vcpus) for vcpus in (4, 8, 16)},
    "Standard_B2als_v2": ("standardBalsv2Family", 2),
}  # fmt: skip


def vcpus_of(machine: Resource) -> int:
    sku = machine.get("sku") or {}
    size = SIZES.get(sku.get("name", ""))
    return size[1] * int(sku.get("capacity") or 0) if size else 0


def usage_shown(name: str, label: str, used: int, limit: int) -> Resource:
    return {
        "name": {"value": name, "localizedValue": label}, "currentValue": used, "limit": limit,
        "unit": "Count",
    }  # fmt: skip


def region_shown(name: str) -> Resource:
    zones = [{"logicalZone": str(i), "physicalZone": f"{name}-az{i}"} for i in (1, 2, 3)]
    return {
        "id": f"{BASE}/locations/{name}", "name": name, "displayName": name.title(),
        "type": "Region", "regionalDisplayName": name, "metadata": {"regionType": "Physical"},
        **({"availabilityZoneMappings": zones} if name in ZONED else {}),
    }  # fmt: skip


def sizes_for_sale(query: Mapping[str, list[str]]) -> list[Resource]:
    match = re.search(r"location eq '([^']+)'", (query.get("$filter") or [""])[0])
    region = match[1] if match else "eastus"
    zones = ["1", "2", "3"] if region in ZONED else []
    return [
        {
            "name": size, "resourceType": "virtualMachines", "family": family, "size": size[9:],
            "tier": "Standard", "locations": [region], "restrictions": [],
            "locationInfo": [{"location": region, "zones": zones}],
            "capabilities": [{"name": "vCPUs", "value": str(count)}],
        }
        for size, (family, count) in SIZES.items()
    ]  # fmt: skip


def built_in_role(role: str) -> Resource:
    path = f"{BASE}/providers/Microsoft.Authorization/roleDefinitions/{ROLES[role]}"
    return {
        "id": path, "name": ROLES[role], "type": "Microsoft.Authorization/roleDefinitions",
        "properties": {"roleName": role, "type": "BuiltInRole"},
    }  # fmt: skip


def start_of_authority(path: str) -> Resource:
    record = {
        "email": "azureprivatedns-host.microsoft.com", "expireTime": 2419200, "minimumTtl": 10,
        "host": "azureprivatedns.net", "refreshTime": 3600, "retryTime": 300, "serialNumber": 1,
    }  # fmt: skip
    fields = {"ttl": 3600, "fqdn": "x.", "metadata": {}, "soaRecord": record}
    return {"id": path, "name": "@", "type": "Microsoft.Network/privateDnsZones/SOA",
            "properties": fields}  # fmt: skip


def offer_terms(path: str) -> Resource:
    fields = {"accepted": False, "signature": "x", "licenseTextLink": "x", "plan": "x",
            "privacyPolicyLink": "x"}  # fmt: skip
    return {"id": path, "name": "current", "type": "Microsoft.MarketplaceOrdering/offertypes",
            "properties": fields}  # fmt: skip
