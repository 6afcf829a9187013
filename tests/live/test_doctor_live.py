"""Test that the doctor names real dependencies, their faults and the fixes."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from broadside.exchange.fabric import open_fabric
from broadside.exchange.ports import QueueCounts
from broadside.lab import azure_services
from broadside.lab.telemetry_file import lab_entry, write_telemetry_file
from tests.live.live_site import Site, wait_for_fleet

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run a coordinator and one pair."""
    with Site(tmp_path_factory.mktemp("fleet")) as standing:
        _, url = standing.start_coordinator()
        standing.start_fleet(1)
        wait_for_fleet(url, 2)
        yield standing


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Yield the environment for a process to use the Azure stubs."""
    with azure_services.standing(tmp_path_factory.mktemp("azure")) as standing:
        yield standing.fabric()


def checks(site: Site) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and the checks of the doctor by name."""
    done = site.run("doctor", "-o", "json")
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)}


def counts(site: Site) -> QueueCounts:
    """Return the counts of the queue, using the site's environment to select it."""

    async def counted() -> QueueCounts:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in site.environment.items():
                patch.setenv(name, value)
            fabric = open_fabric()
        try:
            return await fabric.queue.counts()
        finally:
            await fabric.close()

    return asyncio.run(counted())


def test_doctor_leaves_healthy_fleet_unchanged(fleet: Site) -> None:
    code, result = checks(fleet)
    assert code == 0
    for name in (
        "iperf3",
        "allowed networks",
        "queue send",
        "queue receive",
        "table",
        "raw output",
    ):
        assert result[name]["ok"], result[name]
    assert "0 of them dead" in result["queue receive"]["detail"]
    assert counts(fleet) == QueueCounts(active_count=0, scheduled_count=0, dead_count=0)
    assert "they contain all servers of the fleet" in result["allowed networks"]["detail"]


def test_doctor_reports_a_fix_for_every_fault(fleet: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = fleet.folder / "readings.csv"
    wrong = {
        "BROADSIDE_AGENT_ALLOWED_NETWORKS": "10.9.0.0/16",
        "BROADSIDE_AGENT_IPERF3": "/nowhere/iperf3",
        **write_telemetry_file(fleet.folder / "telemetry.toml", lab_entry(readings)),
    }
    for name, value in wrong.items():
        monkeypatch.setitem(fleet.environment, name, value)
    code, result = checks(fleet)
    assert code == 4
    assert "would refuse 127.0.0.1" in result["allowed networks"]["detail"]
    assert "BROADSIDE_AGENT_ALLOWED_NETWORKS" in result["allowed networks"]["fix"]
    assert "/nowhere/iperf3" in result["iperf3"]["detail"]
    assert str(readings) in result["telemetry lab (lab)"]["detail"]
    assert result["telemetry lab (lab)"]["fix"] == "is the lab up?"

    now_s = datetime.now(UTC).timestamp()
    rows = [f"{now_s - back_s},{1000 - back_s},0" for back_s in (30, 20, 10)]
    readings.write_text("\n".join(["at_s,up_bytes,down_bytes", *rows, ""]))
    _, result = checks(fleet)
    assert result["telemetry lab (lab)"]["ok"], result["telemetry lab (lab)"]
    assert "2 byte counts of the last 15 minutes" in result["telemetry lab (lab)"]["detail"]


def test_doctor_names_invalid_settings(site: Site) -> None:
    site.environment |= {
        "BROADSIDE_AGENT_ALLOWED_NETWORKS": "everywhere",
        "BROADSIDE_QUEUE_LOCK_S": "0",
        "BROADSIDE_LEDGER": "csv",
    }
    code, result = checks(site)
    assert code == 4
    for name, variable in (
        ("agent settings", "BROADSIDE_AGENT_ALLOWED_NETWORKS='everywhere'"),
        ("fabric", "BROADSIDE_QUEUE_LOCK_S='0'"),
        ("telemetry", "BROADSIDE_LEDGER: replaced by BROADSIDE_TELEMETRY_FILE"),
    ):
        assert not result[name]["ok"]
        assert variable in result[name]["detail"]


def test_doctor_names_missing_roles(site: Site, azure: Mapping[str, str]) -> None:
    """Test the checks using valid keys and wrong keys.

    If the keys are valid, the test data should be removed again. If they are wrong, the missing
    role should be named.
    """
    site.environment |= azure
    code, result = checks(site)
    # A host for tests may have no time service.
    failed = {name for name, check in result.items() if check["required"] and not check["ok"]}
    assert failed <= {"clock"}, [result[name] for name in failed]
    assert code == (4 if failed else 0), result
    for name in ("queue send", "queue receive", "table", "raw output"):
        assert result[name]["ok"], result[name]
    assert result["raw output"]["detail"] == "a blob was written, read and deleted"
    # The jobs in Service Bus will not be counted, because it would be necessary to peek them.
    assert counts(site) == QueueCounts(active_count=None, scheduled_count=None, dead_count=0)

    key = re.compile(r"(SharedAccessKey|AccountKey)=[^;]*")
    site.environment |= {name: key.sub(r"\1=d3Jvbmc=", value) for name, value in azure.items()}
    code, result = checks(site)
    assert code == 4
    for name, role in (
        ("queue send", "Azure Service Bus Data Sender"),
        ("queue receive", "Azure Service Bus Data Receiver"),
        ("table", "Storage Table Data Contributor"),
        ("raw output", "Storage Blob Data Contributor"),
    ):
        assert f"role '{role}'" in result[name]["fix"], result[name]


def test_doctor_names_missing_container(site: Site, azure: Mapping[str, str]) -> None:
    account = "BROADSIDE_BLOBS_CONNECTION_STRING"
    site.environment |= {account: azure[account], "BROADSIDE_BLOBS_CONTAINER": "elsewhere"}
    _, result = checks(site)
    assert "'elsewhere' does not exist" in result["raw output"]["detail"]
    assert "BROADSIDE_BLOBS_CONTAINER" in result["raw output"]["fix"]
