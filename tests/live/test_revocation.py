"""Test that a revoked agent stops while idle, armed or sending, and cannot return."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from broadside.agent.run import EXIT_CANNOT_RUN, EXIT_USAGE
from broadside.coordinator.core.run_spec import Plan
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Claim, JobPhase
from broadside.lab.namespaces import list_namespaces, list_processes
from broadside.lab.site import RunningLab, built, sqlite_fabric, staged
from broadside.lab.topology import LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import GENTLE, wait_for_summary
from tests.live.test_hosts import broadside
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.timeout(300)]

PAIRS, HOSTS = 3, 4
BURST_S = 45
SPEC = {**GENTLE, "pairs_count": PAIRS, "burst_s": BURST_S, "lead_s": 25, "lease_s": 300}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RunningLab]:
    spec = LabSpec(pairs_count=HOSTS, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    with (
        built(spec, tmp_path / "lab") as lab,
        staged(lab, tmp_path, other_hosts=True, agents={"BROADSIDE_AGENT_UPLOAD_S": "1"}) as is_up,
    ):
        yield is_up


def data_dir(site: RunningLab) -> Path:
    return Path(site.coordinator.environment["BROADSIDE_DATA_DIR"])


def engines(site: RunningLab, agent_id: str) -> list[int]:
    """Return the process ids of the engines on an agent's host."""
    prefix = site.lab.spec.prefix
    inode = list_namespaces(prefix)[prefix + agent_id]
    return [
        process.pid
        for process in list_processes()
        if process.namespace_inode == inode
        and any(Path(argument).name == "iperf3" for argument in process.arguments)
    ]


def claims(site: RunningLab, run_id: str) -> dict[int, Claim]:
    """Return the claims of the first burst by pair."""

    async def read(fabric: Fabric) -> dict[int, Claim]:
        try:
            return dict(await fabric.records.bursts.read_claims(run_id, 0))
        finally:
            await fabric.close()

    return asyncio.run(read(open_fabric(FabricSettings(data_dir=data_dir(site)))))


def plan_of(site: RunningLab, run_id: str) -> Plan:
    async def read(fabric: Fabric) -> Plan:
        try:
            stored = await fabric.records.read_run(run_id)
            assert stored is not None
            return Plan.model_validate_json(stored[1])
        finally:
            await fabric.close()

    return asyncio.run(read(open_fabric(FabricSettings(data_dir=data_dir(site)))))


def revoke(site: RunningLab, *agent_ids: str) -> None:
    for agent_id in agent_ids:
        broadside(sqlite_fabric(data_dir(site)), "enroll", "revoke", agent_id)


def is_gone(site: RunningLab, *agent_ids: str) -> Callable[[], bool]:
    """Return a check that these hosts run no engine and that their agents ended by revocation."""

    def check() -> bool:
        states = site.agents.states()
        return all(
            states[name].exit_code == EXIT_CANNOT_RUN and not engines(site, name)
            for name in agent_ids
        )

    return check


def exit_code(site: RunningLab, agent_id: str) -> int | None:
    return site.agents.states()[agent_id].exit_code


def test_revoked_agent_stops_its_engines_and_cannot_return(site: RunningLab) -> None:
    run = site.coordinator.launch({"scenario": "smoke", "overrides": SPEC, "by": "test"})
    run_id = run["run_id"]
    plan = plan_of(site, run_id)
    [burst] = plan.bursts
    end_s = burst.planned_end_at.timestamp()
    servers = {pair.index: pair.endpoint.agent_id for pair in plan.pairs}

    # Idle: a server without a pair, with a listening engine. Later a client without a job.
    [idle_server] = {host.name for host in site.lab.servers} - set(servers.values())
    assert engines(site, idle_server)
    revoke(site, idle_server)
    wait_for("the idle server is gone", is_gone(site, idle_server))
    assert "it was revoked" in site.agents.agent_log_path(idle_server).read_text()

    # Armed: the engine is connected and waits for the planned start.
    def armed() -> dict[int, Claim] | None:
        result = claims(site, run_id)
        everybody = len(result) == PAIRS and all(c.armed_at is not None for c in result.values())
        return result if everybody else None

    stored = {index: claim.agent_id for index, claim in wait_for("all are armed", armed).items()}
    assert engines(site, stored[0])
    revoke(site, stored[0])
    wait_for("the armed client is gone", is_gone(site, stored[0]))
    assert time.time() < end_s, "the agent ended with the burst and not by revocation"

    # During a burst: a client, and the server of another pair.
    def running() -> bool:
        result = claims(site, run_id)
        return all(result[index].phase is JobPhase.RUNNING for index in (1, 2))

    wait_for("two pairs are sending", running)
    [idle_client] = {host.name for host in site.lab.clients} - set(stored.values())
    assert engines(site, stored[1])
    assert engines(site, servers[2])
    revoke(site, stored[1], servers[2], idle_client)
    wait_for("the revoked agents are gone", is_gone(site, stored[1], servers[2], idle_client))
    assert time.time() < end_s, "the agents ended with the burst and not by revocation"

    # Agents should continue if they are not revoked.
    left = {stored[2], servers[0], servers[1]}
    assert all(site.agents.states()[name].exit_code is None for name in left)
    assert engines(site, servers[0])
    assert wait_for_summary(site.coordinator.url, run_id, 240)["verdict"] == "inconclusive"

    # Restart as a service manager would, with the old join code or only the credential.
    for agent_id in (idle_server, stored[1]):
        again = site.plans[agent_id]
        by_credential = {n: v for n, v in again.environment.items() if "JOIN" not in n}
        for environment in (again.environment, by_credential):
            site.agents.add([replace(again, environment=environment)])
            assert (
                wait_for("the end of the agent", partial(exit_code, site, agent_id)) == EXIT_USAGE
            )
            assert engines(site, agent_id) == []
