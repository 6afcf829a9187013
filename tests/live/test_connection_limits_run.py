"""Test that a run warns of a limit of its hosts, and names it afterwards."""

import resource

import pytest

from broadside.exchange.messages import Role
from tests.live.free_ports import free_port
from tests.live.live_site import Site, call, wait_for_fleet, wait_for_summary
from tests.live.test_connections_run import SHORT
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live


def test_few_descriptors_are_warned_of_before_and_named_after(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Site(tmp_path_factory.mktemp("few")) as site:
        _, address = site.start_coordinator()
        services = f"connections={free_port()}"
        site.start_agent(Role.SERVER, "s1", services=services, echo_port=free_port())
        client = site.start_agent(Role.CLIENT, "c1", arm_lead_s=4)
        resource.prlimit(client.pid, resource.RLIMIT_NOFILE, (256, 256))
        wait_for_fleet(address, 2)

        def is_known() -> bool:
            presences = call(address, "GET", "/v1/agents")
            limits = {one["agent_id"]: one["passport"]["files_max_count"] for one in presences}
            return limits["c1"] == 256 and all(
                state["ports"]
                for one in presences
                for state in one["engines"]
                if (state["name"], one["agent_id"]) == ("connections", "s1")
            )

        wait_for("the new limit in the passport", is_known, 90)
        wanted = {
            **SHORT,
            "pairs_count": 1,
            "traffic.options.mode": "hold",
            "traffic.options.held_count": 400,
        }
        warned = "traffic.options.held_count: c1 needs up to 432 file descriptors and has 256"
        fields = [f"--set={name}={value}" for name, value in wanted.items()]
        checked = site.run("estimate", "connections-new", *fields, "--api", address)
        assert warned in checked.stdout, checked.stdout + checked.stderr
        body = {"scenario": "connections-new", "overrides": wanted}
        launched = call(address, "POST", "/v1/runs", json=body)
        assert any(warning.startswith(warned) for warning in launched["warnings"])
        summary = wait_for_summary(address, launched["run_id"])
    (burst,) = summary["bursts"]
    assert burst["bottleneck"] == "generator"
    evidence = burst["bottleneck_details"]["evidence"][0]
    assert "because no file descriptor was left (limit 256)" in evidence
    assert "LimitNOFILE of the client agents" in burst["bottleneck_details"]["advice"]
