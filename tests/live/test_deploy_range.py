"""Test the commands that ``broadside up``, ``scale`` and ``down`` run, and their output."""

import json
import os
import shutil
import subprocess
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.cli.terraform import RESUME, Orphan, import_blocks
from tests.azure_emulator.applied import read_fixture
from tests.live.commands import Done, run_command

pytestmark = pytest.mark.live

OUTPUTS = {
    "name": "night",
    "resource_group": "night",
    "subscription_id": "00000000-0000-0000-0000-000000000001",
    "scale_sets": ["night-clients", "night-servers"],
    "own_group": True,
    "package": None,
    "firewall_id": "/subscriptions/0/x",
}
NEEDS = {
    "name": "night",
    "resource_group": "night",
    "own_group": True,
    "subscription_id": OUTPUTS["subscription_id"],
    "location": "eastus",
    "vm_size": "Standard_D4_v4",
    "instances": 30,
    "fleet_zones": [],
    "coordinator_size": "Standard_B2als_v2",
    "appliance": "azure-firewall",
    "firewall_tier": "Premium",
    "bastion": True,
    "image_plan": [],
    "public_addresses_count": 5,
    "nva_size": None,
    "nva_count": 0,
    "nat_gateways_count": 3,
    "private_endpoints": False,
}
PLACE = f"--resource-group night --subscription {OUTPUTS['subscription_id']}"

# Use this instead of terraform and az, to log the arguments and print the prepared answer.
STUB = """#!/bin/sh
# This must be a single write, because some commands run concurrently.
printf '%s\\n' "$(basename "$0") $*" >> "$STUB/calls"
[ ! -f "$STUB/throttled" ] || case "$*" in
rest*) rm "$STUB/throttled"; echo 'Too Many Requests({"error": {}})' >&2; exit 1 ;;
esac
case "$(basename "$0") $*" in
*" output "*) cat "$STUB/outputs" ;;
*" show -json"*) cat "$STUB/state" ;;
*" console"*)
    [ ! -f "$STUB/refused" ] || cat "$STUB/refused" >&2
    cat "$STUB/needs"
    ;;
"az resource list"*)
    cat "$STUB/resources"
    [ ! -f "$STUB/later" ] || mv "$STUB/later" "$STUB/resources"
    ;;
"az group list"*) cat "$STUB/groups" ;;
"az group delete"*)
    [ -f "$STUB/stays" ] || echo '[]' >"$STUB/groups"
    [ -f "$STUB/stays" ] || echo '[]' >"$STUB/resources"
    ;;
"az resource delete"*) [ -f "$STUB/stays" ] || echo '[]' >"$STUB/resources" ;;
"az account list-locations"*) echo '[{"name": "eastus"}]' ;;
"az vm list-usage"*) cat "$STUB/compute" ;;
"az network list-usages"*) echo '[]' ;;
"az rest --method get"*) cat "$STUB/firewall" ;;
"az rest --method put"*)
    for word; do case $word in @*) cp "${word#@}" "$STUB/firewall" ;; esac; done
    ;;
"az vmss list-instances --name night-clients"*) cat "$STUB/clients" ;;
"az vmss list-instances --name night-servers"*) cat "$STUB/servers" ;;
"az storage entity query"*)
    [ ! -f "$STUB/rows_refused" ] || { echo "ERROR: AuthorizationFailure" >&2; exit 3; }
    cat "$STUB/rows"
    [ ! -f "$STUB/next_rows" ] || cp "$STUB/next_rows" "$STUB/rows"
    ;;
"az rest --method post"*retrieveBootDiagnosticsData*) echo '{"serialConsoleLogBlobUri": null}' ;;
"az vm image terms show"*) echo '{"accepted": false}' ;;
"az vm list-skus"*) cat "$STUB/sizes" ;;
*" destroy "*) [ ! -f "$STUB/destroy_fails" ] || { rm -f "$STUB/destroy_fails"; exit 9; } ;;
*" apply "*)
    if [ -f "$STUB/apply_fails" ]; then
        cat "$STUB/apply_fails" >&2
        mv "$STUB/apply_fails" "$STUB/apply_failed"
        exit 1
    fi
    [ ! -f "$STUB/azure/resume_imports.tf" ] || cp "$STUB/azure/resume_imports.tf" "$STUB/resumed"
    ;;
esac
"""


class Stubs:
    """Stubs for terraform and az that only log the calls."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capfd = capfd
        (folder / "bin").mkdir()
        for name in ("terraform", "az"):
            path = folder / "bin" / name
            path.write_text(STUB)
            path.chmod(0o755)
        self.directory = folder / "azure"
        self.directory.mkdir()
        (self.directory / "main.tf").write_text("")
        (self.directory / "examples").mkdir()
        (self.directory / "examples" / "soak.tfvars").write_text("")
        self.has()
        self.answer(resources=[], groups=[], needs=json.dumps(NEEDS))

    def answer(self, **answers: Any) -> None:
        for name, value in answers.items():
            (self.folder / name).write_text(json.dumps(value))

    def has(self, **outputs: Any) -> None:
        """Set the Terraform outputs for the existing range."""
        reported = OUTPUTS | outputs
        self.answer(outputs={name: {"value": value} for name, value in reported.items()})

    def run(self, *arguments: str, path: str | None = None) -> Done:
        with self._monkeypatch.context() as patch:
            patch.setenv("STUB", str(self.folder))
            patch.setenv("PATH", path or f"{self.folder / 'bin'}:{os.environ['PATH']}")
            verb, *rest = arguments
            argv = [verb, "--directory", str(self.directory), *rest]
            return run_command(argv, patch, self._capfd)

    def calls(self) -> list[str]:
        """Return the executed commands in order, without those that only read the outputs."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        chdir = f"-chdir={self.directory} "
        checks = (" output ", " console")
        stored = [line.replace(chdir, "") for line in lines if not any(it in line for it in checks)]
        # Concurrent calls of az are logged in any order.
        return [
            line
            for beside, run in groupby(stored, lambda line: line.split()[2] in ("list", "scale"))
            for line in (sorted(run) if beside else run)
        ]


@pytest.fixture
def stubs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Stubs:
    return Stubs(tmp_path, monkeypatch, capfd)


TAGGED = f"--tag broadside=night --subscription {OUTPUTS['subscription_id']} --output json"
LISTING, GROUPS = f"az resource list {TAGGED}", f"az group list {TAGGED}"
LOCK = "-lock-timeout=10m"
DESTROY = f"terraform destroy {LOCK} -input=false -auto-approve"


def test_up_runs_init_and_apply(stubs: Stubs) -> None:
    done = stubs.run("up", "--vars", "examples/soak.tfvars", "--set", "instances=3", "--yes")
    assert done.returncode == 0, done.stderr
    file = stubs.directory / "examples" / "soak.tfvars"
    assert stubs.calls() == [
        "terraform init -input=false",
        f"terraform apply -var-file={file} -var=instances=3 {LOCK} -input=false -auto-approve",
    ]
    assert "broadside down" in done.stdout


BOOT = {"coordinator_id": "/vm/coordinator", "table": {"account": "night", "name": "results"}}


def instance(name: str, *, latest: bool = True) -> dict[str, Any]:
    return {"id": f"/vm/{name}", "osProfile": {"computerName": name}, "latestModelApplied": latest}


def boot_row(host: str, stage: str, error: str = "") -> dict[str, str]:
    fields = {"stage": stage, "at": "2026-11-26T12:00:00Z", "error": error}
    return {"PartitionKey": "boot", "RowKey": host, "json": json.dumps(fields)}


def beat_row(host: str, second: int, **other: Any) -> dict[str, str]:
    fields = {"agent_id": host, "state": "idle", "problem": None, **other}
    fields["beat_at"] = f"2026-11-26T12:00:{second:02d}Z"
    return {"PartitionKey": "presence", "RowKey": f"client.{host}", "json": json.dumps(fields)}


@pytest.fixture
def booted(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    """Prepare a range of two clients, a server and a coordinator, with short pauses."""
    monkeypatch.setattr("broadside.coordinator.cli.range_checks.POLL_INTERVAL_S", 0.05)
    stubs.has(boot=BOOT)
    stubs.answer(clients=[instance("c0"), instance("c1", latest=False)], servers=[instance("s0")])
    return stubs


OLDER = "some VMs wait for an earlier package; replace them: broadside scale 0; broadside scale N"
COORDINATOR_READY = boot_row("coordinator", "ready")
AGENTS = ("c0", "c1", "s0")


def test_up_ends_when_all_heartbeats_advance(booted: Stubs) -> None:
    beats = [[beat_row(name, second) for name in AGENTS] for second in (1, 6)]
    booted.answer(rows={"items": [COORDINATOR_READY, *beats[0]]})
    booted.answer(next_rows={"items": [COORDINATOR_READY, *beats[1]]})
    done = booted.run("up", "--yes", "--timeout-s", "30")
    assert done.returncode == 0, done.stderr
    assert "3 of 3 agents and the coordinator ready\n" in done.stdout
    assert "0 of 3 agents and the coordinator ready; waiting" in done.stderr


def test_up_lists_vms_that_are_not_ready(booted: Stubs) -> None:
    """Test that an old heartbeat or a heartbeat with a problem should not count as ready."""
    booted.answer(
        rows={
            "items": [
                boot_row("coordinator", "fetch", "HTTP Error 403"),
                boot_row("c0", "ready"),
                beat_row("c0", 1),
                boot_row("c1", "install", "no space left"),
                boot_row("s0", "ready"),
                beat_row("s0", 1, problem="no iperf3"),
                {"PartitionKey": "presence", "RowKey": "client.x", "json": "[]"},
            ]
        }
    )
    done = booted.run("up", "--yes", "--timeout-s", "1")
    assert done.returncode == 4
    assert done.stdout.splitlines()[-5:] == [
        "not ready: c0: it was ready at 2026-11-26T12:00:00Z, and has no heartbeat now",
        "not ready: c1: install at 2026-11-26T12:00:00Z: no space left",
        "not ready: s0: its agent reports: no iperf3",
        "not ready: coordinator: fetch at 2026-11-26T12:00:00Z: HTTP Error 403",
        OLDER,
    ]
    assert "0 of 3 agents and no coordinator ready within 1 s" in done.stderr


def test_up_reports_unreadable_table(booted: Stubs) -> None:
    booted.answer(rows_refused=True)
    done = booted.run("up", "--yes", "--timeout-s", "1")
    assert done.returncode == 4
    assert done.stdout.count("no boot status in the table or on its serial console") == 4
    assert "cannot be read: ERROR: AuthorizationFailure" in done.stdout


def test_up_does_not_wait_with_zero_timeout(booted: Stubs) -> None:
    done = booted.run("up", "--yes", "--timeout-s", "0")
    assert done.returncode == 0, done.stderr
    assert not [call for call in booted.calls() if "list-instances" in call]


def test_without_yes_terraform_confirms(stubs: Stubs) -> None:
    assert stubs.run("up").returncode == 0
    assert stubs.calls()[-1] == f"terraform apply {LOCK}"


def test_dry_run_prints_commands_and_runs_none(stubs: Stubs) -> None:
    """Test that the printed commands are exactly the commands to be executed."""
    for parts in (("up", "--yes"), ("scale", "7"), ("down", "--yes")):
        shown = stubs.run(*parts, "--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert stubs.calls() == []
        stubs.run(*parts)
        chdir = f"-chdir={stubs.directory} "
        assert sorted(line.replace(chdir, "") for line in shown.stdout.splitlines()) == sorted(
            stubs.calls()
        )
        (stubs.folder / "calls").unlink()


def test_scale_sets_both_scale_sets(stubs: Stubs) -> None:
    done = stubs.run("scale", "30")
    assert done.returncode == 0, done.stderr
    assert stubs.calls() == [
        f"az vmss scale --name night-{fleet} {PLACE} --new-capacity 30 --output none"
        for fleet in ("clients", "servers")
    ]


def test_down_verifies_that_no_resource_remains(stubs: Stubs) -> None:
    done = stubs.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert stubs.calls() == [DESTROY, GROUPS, LISTING]
    assert "no resource has the tag broadside=night" in done.stdout


TAGS = {"broadside": "night"}
LEFT = [{"id": "/subscriptions/0/x/disk", "type": "Microsoft.Compute/disks", "tags": TAGS}]
LEFT_GROUP = {"id": "/subscriptions/0/resourceGroups/night", "name": "night", "tags": TAGS}


def test_down_exits_with_1_and_lists_remaining_resources(stubs: Stubs) -> None:
    stubs.answer(resources=LEFT, groups=[LEFT_GROUP], stays=True)
    done = stubs.run("down", "--yes", "--timeout-s", "0")
    assert done.returncode == 1
    assert "remaining: /subscriptions/0/x/disk\n" in done.stdout
    assert "remaining: resource group night" in done.stdout
    assert "2 resources of range night remain; they still cost money" in done.stderr


def test_down_waits_for_the_resource_list_to_update(stubs: Stubs) -> None:
    """Test that a resource list is read again if it is not up to date."""
    stubs.answer(resources=LEFT, later=[])
    done = stubs.run("down", "--yes", "--timeout-s", "0.5")
    assert done.returncode == 0, done.stderr
    assert "1 resources are still listed; checking again" in done.stderr


def test_failed_destroy_is_reported(stubs: Stubs) -> None:
    (stubs.folder / "destroy_fails").write_text("")
    done = stubs.run("down", "--yes")
    assert done.returncode == 4
    assert "terraform ended with 9" in done.stderr
    assert stubs.calls() == [DESTROY, GROUPS, LISTING]


def test_down_deletes_tagged_resources_that_block_destroy(stubs: Stubs) -> None:
    """Test resources of a killed `up` that are in no state and block Terraform's destroy."""
    (stubs.folder / "destroy_fails").write_text("")
    stubs.answer(resources=LEFT, groups=[LEFT_GROUP])
    done = stubs.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    delete = f"az group delete --name night --subscription {OUTPUTS['subscription_id']} --yes"
    assert stubs.calls() == [DESTROY, GROUPS, LISTING, delete, DESTROY, GROUPS, LISTING]
    assert f"remaining: {LEFT[0]['id']}" in done.stderr


def test_down_keeps_resources_with_another_tag(stubs: Stubs) -> None:
    """Test that the tag is checked again, even if az did not filter."""
    stubs.answer(resources=[LEFT[0] | {"tags": {"broadside": "theirs"}}])
    done = stubs.run("down", "--yes")
    assert done.returncode == 4
    assert "is not tagged broadside=night" in done.stderr
    assert stubs.calls() == [DESTROY, GROUPS, LISTING]


def test_down_deletes_only_tagged_resources_in_existing_group(stubs: Stubs) -> None:
    stubs.has(own_group=False)
    stubs.answer(resources=LEFT)
    done = stubs.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"az resource delete --ids {LEFT[0]['id']}" in stubs.calls()
    assert not any("group delete" in line for line in stubs.calls())


def test_down_without_outputs_reads_the_variables(stubs: Stubs) -> None:
    (stubs.directory / ".terraform").mkdir()
    stubs.answer(outputs={"name": {"value": "night"}})
    done = stubs.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert stubs.calls() == [DESTROY, GROUPS, LISTING]


GROUP = f"/subscriptions/{OUTPUTS['subscription_id']}/resourceGroups/night"
NETWORK = f"{GROUP}/providers/Microsoft.Network"
ALREADY_EXISTS = f"""
\x1b[31m╷\x1b[0m
\x1b[31m│\x1b[0m \x1b[1mError: \x1b[0mA resource with the ID
\x1b[31m│\x1b[0m "{NETWORK}/virtualNetworks/night-hub" already exists - to be managed via Terraform
\x1b[31m│\x1b[0m this resource needs to be imported.
\x1b[31m│\x1b[0m
\x1b[31m│\x1b[0m   with module.network.azurerm_virtual_network.hub[0],
\x1b[31m│\x1b[0m   on modules/network/main.tf line 4
\x1b[31m╵\x1b[0m
Error: an association between "{NETWORK}/natGateways/a" and
"{NETWORK}/publicIPAddresses/b" already exists

  with module.network.azurerm_nat_gateway_public_ip_association.this["hub"],
"""


def test_up_imports_resources_of_a_killed_up(stubs: Stubs) -> None:
    (stubs.folder / "apply_fails").write_text(ALREADY_EXISTS)
    stubs.answer(groups=[{"id": GROUP, "name": "night"}])
    done = stubs.run("up", "--yes")
    assert done.returncode == 0, done.stderr
    assert "importing 2 resources of an interrupted `up`" in done.stderr
    blocks = (stubs.folder / "resumed").read_text()
    assert "to = module.network.azurerm_virtual_network.hub[0]" in blocks
    assert f'id = "{NETWORK}/virtualNetworks/night-hub"' in blocks
    assert f'id = "{NETWORK}/natGateways/a|{NETWORK}/publicIPAddresses/b"' in blocks
    assert not (stubs.directory / "resume_imports.tf").exists()


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is missing")
def test_terraform_accepts_import_blocks(tmp_path: Path) -> None:
    """Test using Terraform, because an override file cannot contain import blocks."""
    (tmp_path / "main.tf").write_text('resource "terraform_data" "x" {}\n')
    results = [Orphan(address="terraform_data.x", id="1")]
    (tmp_path / RESUME).write_text(import_blocks(results))
    for parts in (["init", "-input=false"], ["apply", "-auto-approve", "-input=false"]):
        argv = ["terraform", f"-chdir={tmp_path}", *parts]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "1 imported, 0 added" in done.stdout


def test_up_recreates_machines_of_a_killed_up(stubs: Stubs) -> None:
    """Test that such machines are deleted and created again.

    Azure does not return custom data, so Terraform would replace imported machines.
    """
    path = f"{GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets/night-clients"
    text = f'Error: A resource with the ID "{path}" already exists'
    address = 'module.fleet["client"].azurerm_linux_virtual_machine_scale_set.this'
    (stubs.folder / "apply_fails").write_text(f"{text}\n\n  with {address},\n")
    stubs.answer(groups=[{"id": GROUP, "name": "night"}])
    done = stubs.run("up", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"az resource delete --ids {path}" in stubs.calls()
    assert (stubs.folder / "resumed").read_text() == ""


def test_up_imports_no_resource_of_another_range(stubs: Stubs) -> None:
    (stubs.folder / "apply_fails").write_text(ALREADY_EXISTS.replace("night-hub", "theirs"))
    done = stubs.run("up", "--yes")
    assert done.returncode == 4
    assert "does not belong to this range" in done.stderr
    assert not (stubs.folder / "resumed").exists()


def test_up_stops_at_other_errors(stubs: Stubs) -> None:
    (stubs.folder / "apply_fails").write_text("Error: quota\n\n  with module.fleet.azurerm_x.y,\n")
    done = stubs.run("up", "--yes")
    assert done.returncode == 4
    assert "again to continue, or `broadside down` to remove" in done.stderr


def test_set_null_is_not_a_string(stubs: Stubs) -> None:
    done = stubs.run("up", "--set", "auto_shutdown_time=null", "--set", "instances=3", "--yes")
    assert done.returncode == 0, done.stderr
    file = stubs.directory / ".terraform" / "null.tfvars.json"
    assert f"-var=instances=3 -var-file={file}" in stubs.calls()[-1]
    assert json.loads(file.read_text()) == {"auto_shutdown_time": None}


# Parked and checked -------------------------------------------------------------------------------


def test_park_and_unpark_use_the_options_of_up(stubs: Stubs) -> None:
    stubs.run("up", "--vars", "examples/soak.tfvars", "--yes")
    (stubs.folder / "calls").unlink()
    file = stubs.directory / "examples" / "soak.tfvars"
    parked = stubs.run("park", "--yes")
    assert parked.returncode == 0, parked.stderr
    applied = f"terraform apply -var-file={file} -var=parked=true {LOCK} -input=false -auto-approve"
    assert stubs.calls()[-1] == applied
    assert stubs.calls()[0].startswith("az vmss scale --name night-clients")
    assert "the range is parked" in parked.stdout
    assert "parked, it costs $5.27 a day" in parked.stdout
    assert stubs.run("unpark", "--yes").returncode == 0
    assert stubs.calls()[-1] == applied.replace("true", "false")


def test_park_deallocates_and_unpark_restores_the_firewall(stubs: Stubs) -> None:
    """Test that the Resource Manager will be called only if the firewall's state differs."""
    addresses = {
        "ipConfigurations": [{"name": "data", "properties": {"subnet": {"id": "s"}}}],
        "managementIpConfiguration": None,
    }
    stubs.has(firewall_addresses=addresses, parked=True)
    stored = {"provisioningState": "Succeeded", "autoscaleConfiguration": {"minCapacity": 2}}
    stubs.answer(firewall={"etag": "1", "location": "eastus", "properties": stored | addresses})
    put = "az rest --method put --url /subscriptions/0/x?api-version=2025-05-01"

    def firewall() -> Any:
        return json.loads((stubs.folder / "firewall").read_text())

    assert stubs.run("park", "--yes").returncode == 0
    assert firewall()["properties"] == stored | {
        "ipConfigurations": [],
        "managementIpConfiguration": None,
    }
    assert "etag" not in firewall()
    assert stubs.run("unpark", "--yes").returncode == 0
    assert firewall()["properties"] == stored | addresses
    assert sum(put in line for line in stubs.calls()) == 2
    # `up` alone also restores a parked range.
    assert stubs.run("up", "--yes").returncode == 0
    assert sum(put in line for line in stubs.calls()) == 2


def test_retries_throttled_request(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test plain requests, because az does not repeat them itself."""
    monkeypatch.setattr("broadside.coordinator.cli.terraform.REST_PAUSE_S", 0.0)
    stubs.has(firewall_addresses={"ipConfigurations": [{"name": "data"}]})
    given = {"ipConfigurations": [{"name": "data"}], "provisioningState": "Succeeded"}
    stubs.answer(firewall={"properties": given}, throttled=True)
    done = stubs.run("park", "--yes")
    assert done.returncode == 0, done.stderr
    assert "Too Many Requests" in done.stderr
    assert (
        json.loads((stubs.folder / "firewall").read_text())["properties"]["ipConfigurations"] == []
    )


def test_park_reports_failed_change(stubs: Stubs) -> None:
    stubs.has(firewall_addresses={"ipConfigurations": [{"name": "data"}]})
    failed = {"ipConfigurations": [{"name": "data"}], "provisioningState": "Failed"}
    stubs.answer(firewall={"properties": failed})
    done = stubs.run("park", "--yes")
    assert done.returncode == 4
    assert "run the same command again" in done.stderr


def usage(name: str, used: int, limit: int) -> dict[str, Any]:
    return {
        "name": {"value": name, "localizedValue": name},
        "currentValue": used,
        "limit": limit,
    }


SIZES = [
    {
        "name": name,
        "family": family,
        "restrictions": [],
        "locationInfo": [{"zones": ["1"]}],
        "capabilities": [{"name": "vCPUs", "value": vcpus}],
    }
    for name, family, vcpus in (
        ("Standard_D4_v4", "standardDv4Family", "4"),
        ("Standard_B2als_v2", "standardBalsv2Family", "2"),
    )
]


def test_check_reports_required_quota_and_creates_nothing(stubs: Stubs) -> None:
    stubs.answer(compute=[usage("standardDv4Family", 10, 100), usage("cores", 0, 999)], sizes=SIZES)
    done = stubs.run("up", "--check")
    assert done.returncode == 4
    assert (
        "missing: vCPUs of the family standardDv4Family in eastus: 240 needed, 90 free (limit 100, "
        "in use 10); request a limit of 250: portal, Quotas, 'standardDv4Family'"
    ) in done.stdout
    assert not any(" apply" in line for line in stubs.calls())
    stubs.answer(compute=[usage("standardDv4Family", 10, 250)])
    checked = stubs.run("up", "--check")
    assert checked.returncode == 0
    assert "the range will cost $13.98 an hour with 60 agents, $2.26 without" in checked.stdout


def test_explain_prints_the_needs_of_all_vms_and_changes_nothing(stubs: Stubs) -> None:
    state = read_fixture("other-appliance")["state"]
    stubs.answer(state=state)
    done = stubs.run("up", "--explain")
    assert done.returncode == 0, done.stderr
    assert "client       iperf3 tcp 5201" in done.stdout
    assert done.stdout.endswith("0 BROKEN\n")
    closed = json.loads(json.dumps(state).replace('"5201"', '"5301"'))
    stubs.answer(state=closed)
    done = stubs.run("up", "--explain")
    assert done.returncode == 4
    assert "BROKEN   group out: broadside-clients: rule NothingOutbound denies tcp" in done.stdout
    assert not any(" apply" in line for line in stubs.calls())


def test_check_includes_the_other_appliance(stubs: Stubs) -> None:
    with_nva = {"appliance": "nva", "nva_size": "Standard_D4_v4", "nva_count": 2}
    stubs.answer(compute=[usage("standardDv4Family", 0, 240)], sizes=SIZES)
    stubs.answer(needs=json.dumps(NEEDS | with_nva))
    done = stubs.run("up", "--check")
    assert "vCPUs of the family standardDv4Family in eastus: 248 needed, 240 free" in done.stdout


def test_check_reports_unavailable_vm_sizes(stubs: Stubs) -> None:
    closed = [SIZES[0] | {"restrictions": [{"reasonCode": "NotAvailableForSubscription"}]}]
    stubs.answer(compute=[], sizes=closed, needs=json.dumps(NEEDS | {"fleet_zones": ["2"]}))
    done = stubs.run("up", "--check")
    assert done.returncode == 4
    for parts in (
        "Standard_D4_v4 in eastus is not available to this subscription (NotAvailable",
        "Standard_B2als_v2 is not offered in eastus",
        "Standard_D4_v4 is not offered in zone 2 of eastus",
        "3 requirements are missing",
    ):
        assert parts in done.stdout + done.stderr
    plan = ["--publisher", "cisco", "--offer", "c8000v", "--plan", "byol"]
    stubs.answer(sizes=SIZES, needs=json.dumps(NEEDS | {"image_plan": plan}))
    stdout = stubs.run("up", "--check").stdout
    assert "az vm image terms accept --publisher cisco --offer c8000v --plan byol" in stdout
    stubs.answer(needs=json.dumps(NEEDS | {"location": "westmars"}))
    assert "not a region of this subscription" in stubs.run("up", "--check").stdout


def test_check_shows_terraform_error_for_invalid_variables(stubs: Stubs) -> None:
    """Test an invalid variable without a quota, and no output of the console's crash (1.11)."""
    crash = (
        "Error: Invalid value for variable\n\nlocation: no region\n\n!!!! CRASH !!!!\npanic: x\n"
    )
    (stubs.folder / "refused").write_text(crash)
    done = stubs.run("up", "--check")
    assert done.returncode == 4
    assert "location: no region" in done.stderr
    assert "the variables are invalid" in done.stderr
    assert "panic" not in done.stderr


def test_down_fails_if_az_cannot_list_resources(stubs: Stubs) -> None:
    (stubs.folder / "resources").write_text("Please run 'az login'")
    done = stubs.run("down", "--yes")
    assert done.returncode == 4
    assert "nothing is verified" in done.stderr


def test_without_state_down_needs_a_name(stubs: Stubs) -> None:
    stubs.answer(outputs={})
    assert stubs.run("scale", "3").returncode == 4
    assert stubs.run("down", "--yes").returncode == 4
    done = stubs.run("down", "--yes", "--name", "night")
    assert done.returncode == 0, done.stderr
    assert stubs.calls() == [
        "az group list --tag broadside=night --output json",
        "az resource list --tag broadside=night --output json",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("up", "--vars", "nowhere.tfvars"), 3, "no such file"),
        (("up", "--set", "instances"), 3, "expected NAME=VALUE"),
        (("scale", "1001"), 3, "1000"),
        (("up", "--directory", "/nowhere"), 3, "it has no Terraform files"),
    ],
)
def test_rejects_wrong_usage(
    stubs: Stubs, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    done = stubs.run(*arguments)
    assert (done.returncode, stubs.calls()) == (code, [])
    assert expected in done.stderr


def test_reports_missing_terraform(stubs: Stubs) -> None:
    done = stubs.run("up", path="/nowhere")
    assert done.returncode == 4
    assert "terraform is not installed" in done.stderr
