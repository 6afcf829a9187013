"""Test ``broadside capacity`` against a Resource Manager stub with ETags and throttling."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.device.capacity import FIREWALL as KIND
from broadside.coordinator.device.capacity import (
    Capacity,
    CapacityFile,
    FirewallCapacity,
    raise_capacity,
    restore,
)
from broadside.coordinator.device.resource_manager import (
    AzureResource,
    ResourceBusy,
    ResourceManagerAccess,
    ResourceRefused,
    ResourceUnavailable,
    Waits,
)
from tests.live.azure_resource import TOKEN, ResourceManager
from tests.live.commands import Done, run_command
from tests.live.http_service import serving
from tests.live.live_site import BROADSIDE, ROOT
from tests.live.waiting import wait_for
from tests.unit.coordinator.device.test_capacity import FIREWALL, NOW

pytestmark = pytest.mark.live


BEFORE, RAISED = ({"minCapacity": least, "maxCapacity": 20} for least in (2, 20))


@pytest.fixture
def arm() -> Iterator[ResourceManager]:
    """Yield a Resource Manager with a firewall."""
    arm = ResourceManager(
        sku={"name": "AZFW_VNet", "tier": "Premium"},
        ipConfigurations=[{"name": "data"}],
        autoscaleConfiguration=BEFORE,
    )
    arm.observed = [0, 20, None]
    with serving(arm.answer) as arm.url:
        yield arm


def capacity(arm: ResourceManager) -> Any:
    return arm.properties["autoscaleConfiguration"]


def nap(_: float) -> None:
    time.sleep(0.002)


def firewall(
    arm: ResourceManager, *, sleep: Callable[[float], None] = nap, patience_s: float = 60.0
) -> FirewallCapacity:
    resource = AzureResource(
        FIREWALL,
        KIND,
        ResourceManagerAccess(token=lambda: TOKEN, endpoint=arm.url),
        waits=Waits(sleep=sleep, patience_s=patience_s),
    )
    return FirewallCapacity(resource)


OLD = Capacity(min_count=2, max_count=20)
NEW = Capacity(min_count=20, max_count=20)


def test_raises_and_restores_capacity(arm: ResourceManager, tmp_path: Path) -> None:
    """Test full PUTs with ETags, throttling and errors, and wait for the operations."""
    arm.throttled, arm.broken = 2, 1
    opened, record = firewall(arm), CapacityFile.of(FIREWALL, tmp_path)
    assert raise_capacity(opened, NEW, record, NOW) == OLD
    assert opened.read().capacity == NEW
    assert record.read() == OLD
    assert restore(opened, record) == OLD
    assert opened.read().capacity == OLD
    assert record.read() is None
    assert restore(opened, record) is None
    assert [put["properties"]["ipConfigurations"] for put in arm.puts] == [[{"name": "data"}]] * 2
    assert all(put["zones"] == ["1"] for put in arm.puts)


def test_restores_firewall_without_limits(arm: ResourceManager, tmp_path: Path) -> None:
    arm.properties["autoscaleConfiguration"] = None
    opened, record = firewall(arm), CapacityFile.of(FIREWALL, tmp_path)
    raise_capacity(opened, NEW, record, NOW)
    restore(opened, record)
    left = {"minCapacity": None, "maxCapacity": None}
    assert [put["properties"]["autoscaleConfiguration"] for put in arm.puts] == [RAISED, left]


def test_failed_change_restores_old_limits(arm: ResourceManager, tmp_path: Path) -> None:
    arm.fails = True
    opened, record = firewall(arm), CapacityFile.of(FIREWALL, tmp_path)
    with pytest.raises(ResourceRefused, match="failed: no room"):
        raise_capacity(opened, NEW, record, NOW)
    assert capacity(arm) == BEFORE
    assert record.read() is None


def test_interrupt_restores_old_limits(arm: ResourceManager, tmp_path: Path) -> None:
    arm.polls_per_change = 3
    interrupts = iter([KeyboardInterrupt()])

    def interrupted(_: float) -> None:
        time.sleep(0.002)
        # The operation should continue meanwhile.
        arm.poll()
        for interrupt in interrupts:
            raise interrupt

    opened, record = firewall(arm, sleep=interrupted), CapacityFile.of(FIREWALL, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        raise_capacity(opened, NEW, record, NOW)
    assert capacity(arm) == BEFORE
    assert record.read() is None


def test_keeps_concurrent_change_of_another_client(arm: ResourceManager, tmp_path: Path) -> None:
    theirs = {"minCapacity": 5, "maxCapacity": 9}
    arm.rivals = [{"autoscaleConfiguration": theirs}]
    opened, record = firewall(arm), CapacityFile.of(FIREWALL, tmp_path)
    with pytest.raises(ResourceBusy, match="to 5 to 9 units"):
        raise_capacity(opened, NEW, record, NOW)
    assert capacity(arm) == theirs
    assert arm.puts == []
    assert record.read() is None


def test_failed_restore_can_be_repeated(arm: ResourceManager, tmp_path: Path) -> None:
    opened, record = firewall(arm), CapacityFile.of(FIREWALL, tmp_path)
    raise_capacity(opened, NEW, record, NOW)
    arm.refuses_puts = 1
    with pytest.raises(ResourceRefused, match="Network Contributor"):
        restore(opened, record)
    assert record.read() == OLD
    assert restore(opened, record) == OLD


def test_reports_ignored_put(arm: ResourceManager, tmp_path: Path) -> None:
    arm.keeps_old = True
    with pytest.raises(ResourceUnavailable, match="the capacity is 2 to 20 units"):
        raise_capacity(firewall(arm), NEW, CapacityFile.of(FIREWALL, tmp_path), NOW)


def test_rejects_basic_firewall_before_any_write(arm: ResourceManager, tmp_path: Path) -> None:
    arm.properties["sku"] = {"tier": "Basic"}
    record = CapacityFile.of(FIREWALL, tmp_path)
    with pytest.raises(ResourceRefused, match="fixed capacity"):
        raise_capacity(firewall(arm), NEW, record, NOW)
    assert (arm.puts, record.read()) == ([], None)


def test_reports_unavailable_service_in_time(arm: ResourceManager) -> None:
    arm.broken = 10_000
    with pytest.raises(ResourceUnavailable, match="503"):
        firewall(arm, patience_s=0.1).read()


def test_observed_capacity_is_the_newest_known_value(arm: ResourceManager) -> None:
    result = firewall(arm).observed(NOW)
    assert result is not None
    assert (result.units_count, result.at.minute) == (20, 1)


# The command --------------------------------------------------------------------------------------


def environment(arm: ResourceManager) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "BROADSIDE_AZURE_MONITOR_ENDPOINT": arm.url,
        "BROADSIDE_AZURE_MONITOR_TOKEN": TOKEN,
        "BROADSIDE_AZURE_MONITOR_RESOURCE_ID": FIREWALL,
    }


Command = Callable[..., Done]


@pytest.fixture
def command(
    arm: ResourceManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Command:
    """Return a function to run `broadside capacity`, using the Resource Manager stub."""

    def run(verb: str, *options: str, bearer: str = TOKEN) -> Done:
        with monkeypatch.context() as patch:
            for name, value in (
                environment(arm) | {"BROADSIDE_AZURE_MONITOR_TOKEN": bearer}
            ).items():
                patch.setenv(name, value)
            argv = ["capacity", verb, "--records", str(tmp_path / "records"), *options]
            return run_command(argv, patch, capfd)

    return run


def test_runs_command_with_raised_capacity(arm: ResourceManager, command: Command) -> None:
    done = command("set", "--min", "20", "--max", "20", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr
    assert "restored: 2 to 20 units" in done.stderr
    wanted = [put["properties"]["autoscaleConfiguration"]["minCapacity"] for put in arm.puts]
    assert wanted == [20, 2]


def test_terminated_command_restores_capacity(arm: ResourceManager, tmp_path: Path) -> None:
    parts = ["set", "--min", "20", "--max", "20", "--records", str(tmp_path), "--", "sleep", "60"]
    process = subprocess.Popen(
        [*BROADSIDE, "capacity", *parts],
        env=environment(arm), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(
            "the raised capacity",
            lambda: capacity(arm) == RAISED,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    assert capacity(arm) == BEFORE


def test_set_show_and_restore_commands(command: Command) -> None:
    done = command("set", "--min", "6", "--max", "10")
    assert done.returncode == 0, done.stderr
    assert "restore the previous limits with: broadside capacity restore" in done.stdout
    shown = json.loads(command("show", "-o", "json").stdout)
    assert (shown["min_count"], shown["max_count"]) == (6, 10)
    assert shown["to_restore"] == {"min_count": 2, "max_count": 20}
    assert shown["observed_count"] == 20
    assert "restored: 2 to 20" in command("restore").stdout
    assert "nothing to restore" in command("restore").stdout


def test_reports_wrong_usage_and_missing_role(command: Command) -> None:
    wrong = command("set", "--min", "5", "--max", "6")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (3, 1)
    assert "2 or more above it" in wrong.stderr
    refused = command("show", bearer="other")
    assert refused.returncode == 4
    assert "Network Contributor" in refused.stderr


def test_unknown_command_keeps_old_limits(arm: ResourceManager, command: Command) -> None:
    done = command("set", "--min", "20", "--max", "20", "--", "/no/such/command")
    assert done.returncode == 4
    assert "no such command" in done.stderr
    assert capacity(arm) == BEFORE
