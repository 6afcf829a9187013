"""VMs of a range, with all that they are given: custom data, identities and network interface."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any, Final

from broadside.coordinator.azure_range.resources import (
    Resource,
    Resources,
    prefixes,
    properties,
    reference,
)

ENVIRONMENT: Final = "/etc/broadside/environment"
BUNDLE: Final = "/etc/broadside/bundle.json"
_FILE: Final = re.compile(
    r"^  - path: (\S+)\n    permissions: \S+\n    content: \|\n((?:      .*\n|\s*\n)*)",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A VM, or the VMs of a scale set.

    Attributes:
        role: ``client``, ``server`` or ``coordinator``.
        id: Id of the VM or scale set.
        subnet_id: Id of the subnet.
        group_id: Id of the interface's own security group, or an empty string.
        places: Addresses: the subnet of a scale set, or the address of a VM.
        identity_ids: Ids of the assigned identities.
        files: Content of the files of the first boot, by path.
        created_at: Time of creation in seconds, or None if it is unknown.
    """

    role: str
    id: str
    subnet_id: str
    group_id: str
    places: tuple[IPv4Network, ...]
    identity_ids: tuple[str, ...]
    files: Mapping[str, str]
    created_at: float | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of the service."""
        lines = self.files[ENVIRONMENT].split("\n")
        return dict(line.split("=", 1) for line in lines if "=" in line)

    @property
    def bundle(self) -> Mapping[str, str]:
        """Package of the first boot: url, sha256, service and client_id."""
        values: Mapping[str, str] = json.loads(self.files[BUNDLE])
        return values


def written_files(custom_data: str) -> dict[str, str]:
    """Return the files in a cloud-config of ``modules/boot``, by path.

    Args:
        custom_data: Custom data in base64.
    """
    text = base64.b64decode(custom_data).decode()
    return {
        match[1]: re.sub(r"^ {6}", "", match[2], flags=re.MULTILINE).rstrip("\n")
        for match in _FILE.finditer(text + "\n")
    }


def machines(resources: Resources) -> Iterator[Machine]:
    """Yield the agents and the coordinator of a range. VMs of an appliance are not included."""
    for item in resources.of_kind("virtualMachineScaleSets"):
        profile = properties(item)["virtualMachineProfile"]
        nic = profile["networkProfile"]["networkInterfaceConfigurations"][0]["properties"]
        yield from _machine(resources, item, profile, nic)
    for item in resources.of_kind("virtualMachines"):
        fields = properties(item)
        interfaces = (fields.get("networkProfile") or {}).get("networkInterfaces") or ()
        nic = resources.get(interfaces[0]["id"]) if interfaces else None
        yield from _machine(resources, item, fields, properties(nic))


def _machine(
    resources: Resources, item: Resource, profile: Mapping[str, Any], nic: Mapping[str, Any]
) -> Iterator[Machine]:
    custom_data = (profile.get("osProfile") or {}).get("customData")
    files = written_files(custom_data) if custom_data else {}
    if ENVIRONMENT not in files:
        return
    configuration = ((nic.get("ipConfigurations") or [{}])[0]).get("properties") or {}
    subnet_id = reference(configuration, "subnet")
    subnet = resources.get(subnet_id)
    address = configuration.get("privateIPAddress")
    places = [IPv4Network(address)] if address else (prefixes(subnet) if subnet else [])
    made = Machine(
        role="", id=item["id"], subnet_id=subnet_id, places=tuple(places), files=files,
        group_id=reference(nic, "networkSecurityGroup"),
        identity_ids=tuple((item.get("identity") or {}).get("userAssignedIdentities") or ()),
        created_at=item.get("_at"),
    )  # fmt: skip
    role = made.environment.get("BROADSIDE_AGENT_ROLE", "coordinator")
    yield Machine(**{**vars(made), "role": role})
