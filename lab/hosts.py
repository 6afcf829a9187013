"""Runs the lab's agents as remote agents that use only HTTPS to reach the coordinator."""

import asyncio
import socket
from collections.abc import Mapping, Set
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.agent_gateway.enrolment import Enrolments, JoinTerms
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.http.joining import new_code
from broadside.exchange.messages import Role
from broadside.exchange.outage_log import utc_now
from broadside.lab.fleet import AgentPlan
from broadside.lab.topology import Lab


def free_address(lab: Lab) -> str:
    """Return a free ``address:port`` where the lab's agents can reach a coordinator."""
    host = lab.management_address or "127.0.0.1"
    six = ":" in host
    with socket.create_server((host, 0), family=socket.AF_INET6 if six else socket.AF_INET) as free:
        return f"{f'[{host}]' if six else host}:{free.getsockname()[1]}"


def enrolled(plans: Mapping[str, AgentPlan], data_dir: Path, at: str) -> dict[str, AgentPlan]:
    """Return the plans with a join code for each role and without the coordinator's data folder.

    Agents from an earlier lab on the same data are revoked, because their credentials were deleted.

    Args:
        plans: Plans by agent id.
        data_dir: Data folder of the coordinator.
        at: Address of the coordinator, as ``address:port``.

    Returns:
        New plans by agent id.
    """
    names = {f"{plan.environment['BROADSIDE_AGENT_ROLE']}.{name}" for name, plan in plans.items()}
    codes = asyncio.run(_codes(data_dir, names))
    return {
        name: replace(
            plan,
            environment={
                **{
                    variable: value
                    for variable, value in plan.environment.items()
                    if variable != "BROADSIDE_DATA_DIR"
                },
                "BROADSIDE_FABRIC": "http",
                "BROADSIDE_COORDINATOR": f"https://{at}",
                "BROADSIDE_AGENT_JOIN": codes[plan.environment["BROADSIDE_AGENT_ROLE"]],
            },
        )
        for name, plan in plans.items()
    }


async def _codes(data_dir: Path, names: Set[str]) -> dict[str, str]:
    now = utc_now()
    authority = load_authority(data_dir, now).authority
    fabric = open_fabric(FabricSettings(data_dir=data_dir))
    try:
        known = Enrolments(fabric.private)
        for agent in await known.agents():
            if agent.key in names and agent.revoked_at is None:
                await known.revoke(agent.key, now)
        codes = {}
        for role in Role:
            codes[role.value], secret = new_code(authority)
            await known.add_code(
                secret, JoinTerms(role, len(names), now + timedelta(hours=1)), by="lab", now=now
            )
        return codes
    finally:
        await fabric.close()
