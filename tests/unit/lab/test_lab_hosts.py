"""Tests for lab agents connecting over HTTPS."""

import asyncio
from pathlib import Path

from broadside.coordinator.agent_gateway.enrolment import Enrolled, Enrolments
from broadside.coordinator.auth.static_tokens import digest
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import Role
from broadside.exchange.outage_log import utc_now
from broadside.lab import hosts
from broadside.lab.fleet import plan_agents
from broadside.lab.topology import LabSpec, build_lab

NOW = utc_now()


def test_second_lab_on_the_same_data_enrols_its_agents(tmp_path: Path) -> None:
    lab = build_lab(LabSpec(pairs_count=1, prefix="bs"), tmp_path / "lab")
    plans = {plan.agent_id: plan for plan in plan_agents(lab, {})}

    async def join(codes: dict[str, str]) -> None:
        fabric = open_fabric(FabricSettings(data_dir=tmp_path / "data"))
        try:
            known = Enrolments(fabric.private)
            for role, code in codes.items():
                requested = Enrolled(
                    agent_id=f"{role[0]}001",
                    role=Role(role),
                    sha256=digest(code),
                    join="",
                    enrolled_at=NOW,
                )
                await known.enrol(code.rpartition(".")[2], requested, NOW)
        finally:
            await fabric.close()

    for _ in range(2):
        enrolled = hosts.enrolled(plans, tmp_path / "data", "127.0.0.1:8443")
        codes = {
            plan.environment["BROADSIDE_AGENT_ROLE"]: plan.environment["BROADSIDE_AGENT_JOIN"]
            for plan in enrolled.values()
        }
        asyncio.run(join(codes))
