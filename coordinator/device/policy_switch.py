"""Puts an Azure Firewall's policy into a mode, for ``broadside policy-switch``.

That command is what a switch of docs/studies.md runs on Azure, where the coordinator's machine has
no ``az``.
"""

from collections.abc import Mapping
from typing import Any, Final

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.resource_manager import (
    Body,
    Kind,
    Resource,
    ResourceUnavailable,
    token_source,
)

PATIENCE_S: Final = 1500.0  # a policy with a firewall on it takes some ten minutes

POLICY: Final = Kind(
    name="firewall policy", type="firewallPolicies", rights="a role that reads and writes it"
)


def set_modes(policy: Resource, modes: Mapping[str, str]) -> None:
    """Have ``idps`` or ``threat_intelligence`` in a mode.

    Raises :class:`broadside.coordinator.device.resource_manager.ResourceError`.
    """
    found = policy.change(lambda body: with_modes(body, modes))
    if with_modes(found, modes) != found:
        state = found["properties"].get("provisioningState", "unknown")
        raise ResourceUnavailable(
            f"the policy did not take the mode ({state}); see its activity log"
        )


def with_modes(body: Body, modes: Mapping[str, str]) -> dict[str, Any]:
    """A policy in other modes, all else as it was."""
    properties = dict(body["properties"])
    if (mode := modes.get("idps")) is not None:
        properties["intrusionDetection"] = {
            **(properties.get("intrusionDetection") or {}),
            "mode": mode,
        }
    if (mode := modes.get("threat_intelligence")) is not None:
        properties["threatIntelMode"] = mode
    return {**body, "properties": properties}


def switch_policy(
    resource_id: str, modes: Mapping[str, str], settings: CoordinatorSettings
) -> None:
    """Set modes of the policy with that id, by the coordinator's own identity.

    Raises :class:`broadside.coordinator.device.resource_manager.ResourceError`.
    """
    policy = Resource(
        resource_id,
        POLICY,
        token=token_source(settings),
        endpoint=settings.azure_monitor_endpoint,
        patience_s=PATIENCE_S,
    )
    try:
        set_modes(policy, modes)
    finally:
        policy.close()
