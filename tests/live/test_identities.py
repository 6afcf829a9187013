"""Test the identities of the range on the Azure stubs, with the roles from the range."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from broadside.exchange.messages import Role
from tests.live.identities import Identities, range_roles, standing
from tests.live.live_site import Site, call, wait_for_fleet, wait_for_summary

pytestmark = pytest.mark.live

CANNOT = {
    "client": {"write a plan", "read a token", "write a token", "send a job"},
    "server": {"write a plan", "read a token", "write a token", "send a job", "take a job"},
    "coordinator": set(),
}
VMS = {"client": "clients", "server": "servers", "coordinator": "coordinator"}


@pytest.fixture(scope="module")
def shared_azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Identities]:
    with standing(tmp_path_factory.mktemp("azure")) as identities:
        yield identities


@pytest.fixture
def azure(shared_azure: Identities) -> Identities:
    """Restore the roles of the range, because the previous test may have changed them."""
    shared_azure.roles = range_roles()
    shared_azure.refused.clear()
    return shared_azure


def doctor(
    site: Site, azure: Identities, vm: str, identity: str, **settings: str
) -> tuple[int, dict[str, Any]]:
    site.environment |= azure.of(vm) | settings
    done = site.run("doctor", "--as", identity, "-o", "json")
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)}


def test_doctor_verifies_missing_permissions(site: Site, azure: Identities) -> None:
    for user, vm in VMS.items():
        code, result = doctor(site, azure, vm, user)
        assert code == 0, result
        assert len(result) == 7
        refused = {name.removeprefix(f"{user} cannot ") for name in result if " cannot " in name}
        assert refused == CANNOT[user]
        assert all("refuses" in result[f"{user} cannot {what}"]["detail"] for what in refused)

    _, result = doctor(site, azure, "clients", "coordinator")
    lacking = result["coordinator can read a token"]
    assert not lacking["ok"]
    assert "Storage Table Data Contributor" in lacking["fix"]


def test_doctor_reports_excess_permissions(site: Site, azure: Identities) -> None:
    azure.roles["clients"] |= {
        ("Storage Table Data Reader", "private"),
        ("Storage Table Data Contributor", "control"),
        ("Azure Service Bus Data Sender", "jobs"),
    }
    code, result = doctor(site, azure, "clients", "client")
    assert code == 4
    wrong = {name: check for name, check in result.items() if not check["ok"]}
    assert wrong.keys() == {f"client cannot {what}" for what in CANNOT["client"]} - {
        "client cannot write a token"
    }
    assert all("remove the role" in check["fix"] for check in wrong.values())


def test_doctor_does_not_pass_without_response(site: Site, azure: Identities) -> None:
    no_user = {"BROADSIDE_TABLES_CA_FILE": "/dev/null"}
    code, result = doctor(site, azure, "clients", "client", **no_user)
    assert code == 4
    assert not result["client cannot read a token"]["ok"]
    assert "could not be tested" in result["client cannot read a token"]["detail"]


@pytest.mark.parametrize("role", ["client", "server"])
def test_agent_check_verifies_permissions_without_coordinator(
    site: Site, azure: Identities, role: str
) -> None:
    agent = {"BROADSIDE_AGENT_ROLE": role, "BROADSIDE_AGENT_AGENT_ID": "a1"}
    done = subprocess.run(
        [sys.executable, "-m", "broadside.agent.check", "--check-permissions"],
        env={**site.environment, **azure.of(VMS[role]), **agent},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    document = json.loads(done.stdout)
    assert done.returncode == 0, document
    assert {check["name"] for check in document} >= {
        f"{role} cannot {what}" for what in CANNOT[role]
    }
    assert all(check["ok"] for check in document)


def test_agents_work_with_minimal_roles(site: Site, azure: Identities) -> None:
    """Test with roles for two tables and roles to receive from the queue.

    No request should be rejected when agents write presence, claim, lease, seconds, report and
    the record of the server.
    """
    site.environment |= azure.of("coordinator")
    _, url = site.start_coordinator()
    for role, name, vm in ((Role.SERVER, "s1", "servers"), (Role.CLIENT, "c1", "clients")):
        site.environment |= azure.of(vm)
        site.start_agent(role, name)
    wait_for_fleet(url, 2)
    overrides = {
        "pairs_count": 1,
        "bursts_count": 2,
        "burst_s": 3,
        "period_s": 14,
        "align_to_period": False,
        "lead_s": 15,
        # Use a lease that is shorter than the run, so that the coordinator has to renew it and the
        # agents have to read the renewal.
        "lease_s": 20,
        "traffic.streams_count": 1,
        "traffic.stream_bits_per_second": 5_000_000,
    }
    run = call(url, "POST", "/v1/runs", json={"scenario": "smoke", "overrides": overrides})
    summary = wait_for_summary(url, run["run_id"])
    states = [pair["state"] for burst in summary["bursts"] for pair in burst["pairs"]]
    assert states == ["measured", "measured"], summary["findings"]
    assert all(
        pair["received_bits_per_second"] for burst in summary["bursts"] for pair in burst["pairs"]
    )
    assert azure.refused == [], "an agent sent a forbidden request"
