"""Puts an Azure Firewall's policy into a mode: ``python -m
broadside.coordinator.device.policy_switch``.

What a switch of docs/studies.md runs on Azure, where the coordinator's machine has no ``az``::

    python -m broadside.coordinator.device.policy_switch --policy ID --idps Deny
    python -m broadside.coordinator.device.policy_switch --policy ID --threat-intelligence Alert

The command ends when the policy has come to rest in that mode: exit code 0, else 1 and one line.
Its identity needs to read and write this one policy.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.resource_manager import (
    Body,
    Kind,
    Resource,
    ResourceError,
    ResourceUnavailable,
    token_source,
)

MODES: Final = ("Off", "Alert", "Deny")
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


def arguments(argv: Sequence[str] | None = None) -> tuple[str, dict[str, str]]:
    """The policy's id and the modes, of the command line."""
    parser = argparse.ArgumentParser(prog="firewall_policy", description=__doc__)
    parser.add_argument("--policy", required=True, metavar="ID", help="its resource id")
    parser.add_argument("--idps", choices=MODES, help="intrusion detection: a Premium policy's")
    parser.add_argument("--threat-intelligence", choices=MODES)
    given = vars(parser.parse_args(argv))
    resource_id = given.pop("policy")
    modes = {name: mode for name, mode in given.items() if mode is not None}
    if not modes:
        parser.error("give --idps or --threat-intelligence")
    return resource_id, modes


def main(argv: Sequence[str] | None = None) -> int:
    resource_id, modes = arguments(argv)
    settings = CoordinatorSettings()
    try:
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
    except ResourceError as error:
        sys.stderr.write(f"firewall_policy: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
