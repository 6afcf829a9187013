"""The ``broadside policy-switch`` command, which the switches of an Azure range call."""

from enum import StrEnum
from typing import Annotated

import typer

from broadside.coordinator.cli.exits import Exit, stop


class Mode(StrEnum):
    """Azure Firewall policy mode, with the same spelling as Azure."""

    OFF = "Off"
    ALERT = "Alert"
    DENY = "Deny"


def policy_switch(
    policy: Annotated[str, typer.Option("--policy", metavar="ID", help="the policy's resource id")],
    idps: Annotated[
        Mode | None, typer.Option("--idps", help="intrusion detection, of a Premium policy")
    ] = None,
    threat_intelligence: Annotated[
        Mode | None, typer.Option("--threat-intelligence", help="threat intelligence")
    ] = None,
) -> None:
    """Set an Azure Firewall policy's mode of intrusion detection or threat intelligence.

    Ends when the policy has come to rest in that mode, which takes some ten minutes while a
    firewall uses it. The identity needs to read and write this one policy.
    """
    from broadside.coordinator.coordinator_settings import CoordinatorSettings
    from broadside.coordinator.device.policy_switch import switch_policy
    from broadside.coordinator.device.resource_manager import ResourceError

    chosen = {"idps": idps, "threat_intelligence": threat_intelligence}
    modes = {name: mode.value for name, mode in chosen.items() if mode is not None}
    if not modes:
        stop("give --idps or --threat-intelligence", Exit.USAGE)
    try:
        switch_policy(policy, modes, CoordinatorSettings())
    except ResourceError as error:
        stop(str(error), Exit.CANNOT_RUN)
