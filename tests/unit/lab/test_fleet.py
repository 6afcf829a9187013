"""Tests for the environment of the agents in a lab."""

import dataclasses
from pathlib import Path

from broadside.lab.fleet import plan_agents
from broadside.lab.topology import LabSpec, build_lab

LAB = build_lab(LabSpec(pairs_count=2, prefix="bs"), Path("data/lab/bs"))


def test_plans_an_agent_per_host_with_servers_first() -> None:
    plans = plan_agents(LAB, {"BROADSIDE_DATA_DIR": "data"})
    assert [plan.agent_id for plan in plans] == ["s001", "s002", "c001", "c002"]
    assert [plan.namespace for plan in plans] == ["bss001", "bss002", "bsc001", "bsc002"]
    assert all(plan.environment["BROADSIDE_DATA_DIR"] == "data" for plan in plans)


def test_agent_environment_describes_its_host() -> None:
    client = plan_agents(LAB, {})[2].environment
    assert client["BROADSIDE_AGENT_ROLE"] == "client"
    assert client["BROADSIDE_AGENT_ADDRESS"] == "10.1.1.1"
    assert client["BROADSIDE_AGENT_CHRONYC_SOCKET"] == "127.0.0.1"
    assert client["BROADSIDE_AGENT_NIC_BITS_PER_SECOND"] == "100000000"


def test_unknown_values_are_not_in_the_environment() -> None:
    host = dataclasses.replace(LAB.clients[0], chrony=None, namespace=None)
    plans = plan_agents(dataclasses.replace(LAB, clients=(host,)), {})
    environment = plans[-1].environment
    assert "BROADSIDE_AGENT_CHRONYC_SOCKET" not in environment
    assert "BROADSIDE_AGENT_NIC_BITS_PER_SECOND" not in environment


def test_agent_files_are_in_the_folder_of_the_lab() -> None:
    folders = [plan.environment["BROADSIDE_AGENT_SPOOL_DIR"] for plan in plan_agents(LAB, {})]
    assert len(set(folders)) == len(folders)
    assert all(folder.startswith("data/lab/bs/") for folder in folders)
