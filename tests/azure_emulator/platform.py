"""Resources of a platform team before the range: hub, firewall, subnets and locks."""

from typing import Any, Final

from tests.azure_emulator.azure_catalogue import BASE
from tests.azure_emulator.stage import Stage

HUB: Final = f"{BASE}/resourceGroups/rg-hub"
NETWORK: Final = f"{HUB}/providers/Microsoft.Network"
FIREWALL: Final = f"{NETWORK}/azureFirewalls/afw-hub"
POLICY: Final = f"{NETWORK}/firewallPolicies/afwp-hub"
VNET: Final = f"{NETWORK}/virtualNetworks/vnet-hub"
VWAN: Final = f"{NETWORK}/virtualWans/vwan"
VHUB: Final = f"{NETWORK}/virtualHubs/vhub"
# Subnet variables of a range that uses subnets of another owner.
SUBNETS: Final = {
    what: f"{NETWORK}/virtualNetworks/vnet-{network}/subnets/{name}"
    for what, network, name in (
        ("clients", "load-clients", "agents"),
        ("servers", "load-servers", "agents"),
        ("coordinator", "control", "coordinator"),
        ("bastion", "control", "AzureBastionSubnet"),
        ("endpoints", "control", "endpoints"),
    )
}


def plant_hub(stage: Stage) -> None:
    """Create a hub with a Premium firewall and a policy with its own rule group."""
    plant = stage.subscription.plant
    plant(HUB, {"properties": {}})
    _network(stage, "hub", "10.0.0.0/16", {"AzureFirewallSubnet": "10.0.0.0/26"})
    address = f"{NETWORK}/publicIPAddresses/pip-hub"
    plant(address, {"sku": {"name": "Standard"}, "properties": {}})
    plant(
        POLICY,
        {"properties": {"sku": {"tier": "Premium"}, "threatIntelMode": "Alert"}},
    )
    plant(
        f"{POLICY}/ruleCollectionGroups/production",
        {"properties": {"priority": 200, "ruleCollections": []}},
    )
    data = {
        "subnet": {"id": f"{VNET}/subnets/AzureFirewallSubnet"},
        "publicIPAddress": {"id": address},
    }
    plant(
        FIREWALL,
        {
            "properties": {
                "sku": {"name": "AZFW_VNet", "tier": "Premium"},
                "firewallPolicy": {"id": POLICY},
                "threatIntelMode": "Alert",
                "ipConfigurations": [{"name": "data", "properties": data}],
            }
        },
    )


def plant_locked_hub(stage: Stage) -> None:
    """Create the hub with a lock on each part, which only affects changes."""
    plant_hub(stage)
    _lock(stage, FIREWALL, POLICY, VNET)


def _lock(stage: Stage, *ids: str) -> None:
    for item in ids:
        stage.subscription.plant(
            f"{item}/providers/Microsoft.Authorization/locks/keep",
            {"properties": {"level": "CanNotDelete"}},
        )


def plant_virtual_hub(stage: Stage) -> None:
    """Create a secured virtual WAN hub with a Premium firewall and routing intent."""
    plant = stage.subscription.plant
    plant(HUB, {"properties": {}})
    plant(VWAN, {"properties": {"type": "Standard"}})
    plant(POLICY, {"properties": {"sku": {"tier": "Premium"}, "threatIntelMode": "Alert"}})
    group = {"properties": {"priority": 200, "ruleCollections": []}}
    plant(f"{POLICY}/ruleCollectionGroups/production", group)
    space = {"addressPrefix": "10.1.0.0/23", "routingState": "Provisioned", "sku": "Standard"}
    plant(VHUB, {"properties": {**space, "virtualWan": {"id": VWAN}}})
    addresses = {"privateIPAddress": "10.1.0.132", "publicIPs": {"count": 1, "addresses": []}}
    fields = {
        "sku": {"name": "AZFW_Hub", "tier": "Premium"}, "firewallPolicy": {"id": POLICY},
        "virtualHub": {"id": VHUB}, "hubIPAddresses": addresses, "threatIntelMode": "Alert",
    }  # fmt: skip
    plant(FIREWALL, {"properties": fields})
    intent = {"name": "private", "destinations": ["PrivateTraffic"], "nextHop": FIREWALL}
    plant(f"{VHUB}/routingIntent/intent", {"properties": {"routingPolicies": [intent]}})
    # Azure derives this route from the routing intent.
    route = {
        "name": "_policy_PrivateTraffic", "destinationType": "CIDR", "nextHop": FIREWALL,
        "destinations": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"],
        "nextHopType": "ResourceId",
    }  # fmt: skip
    table = {"routes": [route], "labels": ["default"]}
    plant(f"{VHUB}/hubRouteTables/defaultRouteTable", {"properties": table})


def plant_locked_virtual_hub(stage: Stage) -> None:
    """Create the virtual hub with a lock on each part. It also protects the hub's connections."""
    plant_virtual_hub(stage)
    _lock(stage, FIREWALL, POLICY, VHUB)


def plant_offer_without_budgets(stage: Stage) -> None:
    """Make the subscription a sponsored one, whose budgets Azure rejects."""
    offer = {"properties": {"offerId": "MS-AZR-0036P"}}
    stage.subscription.plant(f"{BASE}/providers/Rehearsal/offers/sponsored", offer)


def plant_landing_zone(stage: Stage) -> None:
    """Create the hub, the providers, and the group and subnets that its owners give to a range."""
    plant_locked_hub(stage)
    stage.subscription.register()
    stage.subscription.plant(f"{BASE}/resourceGroups/rg-load", {"properties": {}})
    _network(stage, "load-clients", "10.10.0.0/16", {"agents": "10.10.0.0/21"})
    _network(stage, "load-servers", "10.11.0.0/16", {"agents": "10.11.0.0/21"})
    subnets = {
        "coordinator": "10.12.0.0/26",
        "AzureBastionSubnet": "10.12.0.64/26",
        "endpoints": "10.12.0.128/26",
    }
    _network(stage, "control", "10.12.0.0/16", subnets)


def _network(stage: Stage, name: str, space: str, subnets: dict[str, str]) -> None:
    path = f"{NETWORK}/virtualNetworks/vnet-{name}"
    space_of = {"addressSpace": {"addressPrefixes": [space]}}
    stage.subscription.plant(path, {"properties": space_of})
    for subnet, prefix in subnets.items():
        fields: dict[str, Any] = {"addressPrefix": prefix}
        if subnet in ("agents", "coordinator"):
            # The network rules of the storage account need it (docs: existing_subnet_ids).
            fields["serviceEndpoints"] = [{"service": "Microsoft.Storage"}]
        stage.subscription.plant(f"{path}/subnets/{subnet}", {"properties": fields})
