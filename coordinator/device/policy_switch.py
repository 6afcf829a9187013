"""Set modes of an Azure Firewall policy, for the command ``broadside policy-switch``.

The switch in docs/studies.md calls this command on Azure, because the coordinator's host does not
have ``az``.
"""

from collections.abc import Mapping
from typing import Any, Final

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.resource_manager import (
    AzureResource,
    Body,
    ResourceManagerAccess,
    ResourceType,
    ResourceUnavailable,
    Waits,
    token_source,
)

# A change of a policy that a firewall uses takes about ten minutes.
PATIENCE_S: Final = 1500.0
# With this range, network rules translate the source for every destination ("Azure Firewall SNAT
# private IP address ranges").
TRANSLATE_ALL: Final = ("255.255.255.255/32",)

POLICY: Final = ResourceType(
    name="firewall policy",
    type="firewallPolicies",
    rights="a role that can read and write the policy",
)


def set_modes(policy: AzureResource, modes: Mapping[str, str]) -> None:
    """Set the policy's ``idps``, ``threat_intelligence`` or ``snat`` mode and wait for the change.

    Args:
        policy: Firewall policy to change.
        modes: Mode to set for each feature. Other keys are ignored.

    Raises:
        ResourceError: The change failed or had no effect.
    """
    result = policy.change(lambda body: with_modes(body, modes))
    if with_modes(result, modes) != result:
        state = result["properties"].get("provisioningState", "unknown")
        raise ResourceUnavailable(
            f"the policy did not accept the mode (state {state}); see its activity log"
        )


def with_modes(body: Body, modes: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of a policy with other modes.

    Args:
        body: The policy as returned by the Resource Manager.
        modes: Mode to set for each feature (``idps``, ``threat_intelligence``, ``snat``). With
            ``snat`` On, network rules translate the source address for private destinations too.

    Returns:
        The copy, in the format of the Resource Manager. Other properties are unchanged.

    Raises:
        ResourceUnavailable: The policy has its own private ranges, which ``snat`` would replace.
    """
    properties = dict(body["properties"])
    if (mode := modes.get("idps")) is not None:
        properties["intrusionDetection"] = {
            **(properties.get("intrusionDetection") or {}),
            "mode": mode,
        }
    if (mode := modes.get("threat_intelligence")) is not None:
        properties["threatIntelMode"] = mode
    if (mode := modes.get("snat")) is not None:
        snat = properties.get("snat") or {}
        if (wanted := _with_translation(snat, mode)) != snat:
            properties["snat"] = wanted
    return {**body, "properties": properties}


def _with_translation(snat: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Return the ``snat`` settings with or without translation for all destinations."""
    ranges = tuple(snat.get("privateRanges") or ())
    if ranges not in ((), TRANSLATE_ALL):
        raise ResourceUnavailable(
            f"the policy has its own private ranges ({', '.join(ranges[:3])}), and the switch snat "
            "would replace them; set snat.privateRanges yourself, and declare a switch for it"
        )
    if mode != "On" and not ranges:
        return dict(snat)
    return {**snat, "privateRanges": list(TRANSLATE_ALL if mode == "On" else ())}


def switch_policy(
    resource_id: str, modes: Mapping[str, str], settings: CoordinatorSettings
) -> None:
    """Set modes of a policy with the Azure identity of the coordinator.

    Args:
        resource_id: The policy's Azure resource id.
        modes: Mode to set for each feature (``idps``, ``threat_intelligence``, ``snat``).
        settings: Settings with the endpoint and the identity or token.

    Raises:
        ResourceError: The policy could not be read or changed.
    """
    policy = AzureResource(
        resource_id,
        POLICY,
        ResourceManagerAccess(
            token=token_source(settings), endpoint=settings.azure_monitor_endpoint
        ),
        waits=Waits(patience_s=PATIENCE_S),
    )
    try:
        set_modes(policy, modes)
    finally:
        policy.close()
