"""Test the command to set firewall modes against a Resource Manager stub."""

import sys
from collections.abc import Iterator

import pytest

from broadside.coordinator.device.policy_switch import POLICY as KIND
from broadside.coordinator.device.policy_switch import set_modes
from broadside.coordinator.device.resource_manager import (
    AzureResource,
    ResourceError,
    ResourceManagerAccess,
    Waits,
)
from broadside.coordinator.studies.switch import Switch
from tests.live.azure_resource import TOKEN, ResourceManager
from tests.live.commands import run_command
from tests.live.http_service import serving

pytestmark = pytest.mark.live

POLICY = (
    "/subscriptions/0/resourceGroups/broadside/providers/Microsoft.Network"
    "/firewallPolicies/broadside-firewall"
)


@pytest.fixture
def arm() -> Iterator[ResourceManager]:
    """Yield a Resource Manager with a firewall policy."""
    arm = ResourceManager(
        sku={"tier": "Premium"},
        threatIntelMode="Off",
        intrusionDetection={"mode": "Off", "configuration": {"kept": True}},
    )
    with serving(arm.answer) as arm.url:
        yield arm


def modes(arm: ResourceManager) -> tuple[str, str]:
    """Return the modes of intrusion detection and threat intelligence."""
    return arm.properties["intrusionDetection"]["mode"], arm.properties["threatIntelMode"]


def put(arm: ResourceManager, token: str = TOKEN, patience_s: float = 60, **modes: str) -> None:
    policy = AzureResource(
        POLICY,
        KIND,
        ResourceManagerAccess(token=lambda: token, endpoint=arm.url),
        waits=Waits(patience_s=patience_s, sleep=lambda _: None),
    )
    try:
        set_modes(policy, modes)
    finally:
        policy.close()


@pytest.mark.parametrize("put_status", [200, 201, 202])
@pytest.mark.parametrize("hides_operations", [False, True])
def test_sets_mode_and_keeps_other_settings(
    arm: ResourceManager, put_status: int, hides_operations: bool
) -> None:
    """Test that other settings stay, even if the identity cannot read operations."""
    arm.put_status, arm.hides_operations, arm.throttled = put_status, hides_operations, 2
    before = arm.body()["properties"]
    put(arm, idps="Deny")
    assert arm.state == "Succeeded"
    (reported,) = arm.puts
    assert reported["properties"] == before | {
        "intrusionDetection": {"mode": "Deny", "configuration": {"kept": True}}
    }


def test_sets_threat_intelligence(arm: ResourceManager) -> None:
    put(arm, threat_intelligence="Alert")
    assert modes(arm) == ("Off", "Alert")


def test_sets_translation_for_all_destinations(arm: ResourceManager) -> None:
    put(arm, snat="On")
    assert arm.properties["snat"] == {"privateRanges": ["255.255.255.255/32"]}
    put(arm, snat="Off")
    assert arm.properties["snat"] == {"privateRanges": []}
    arm.properties["snat"] = None
    put(arm, snat="Off")
    assert len(arm.puts) == 2
    arm.properties["snat"] = {"privateRanges": ["10.0.0.0/8"]}
    with pytest.raises(ResourceError, match="its own private ranges"):
        put(arm, snat="On")


def test_sends_no_put_if_mode_is_already_set(arm: ResourceManager) -> None:
    put(arm, idps="Off")
    assert arm.puts == []


def test_waits_for_a_change_in_progress(arm: ResourceManager) -> None:
    arm.state, arm.polls_left = "Updating", 3
    put(arm, idps="Alert")
    assert modes(arm)[0] == "Alert"


def test_retries_after_concurrent_change(arm: ResourceManager) -> None:
    arm.rivals = [{}] * 2
    put(arm, idps="Deny")
    assert len(arm.puts) == 1
    arm.rivals = [{}] * 99
    with pytest.raises(ResourceError, match="changed by another client"):
        put(arm, idps="Off")


def test_errors_have_one_line(arm: ResourceManager) -> None:
    with pytest.raises(ResourceError, match="401 no token"):
        put(arm, token="another", idps="Deny")  # noqa: S106
    arm.keeps_old = True
    with pytest.raises(ResourceError, match="did not accept the mode"):
        put(arm, idps="Deny")
    arm.fails = True
    with pytest.raises(ResourceError, match="failed: no room"):
        put(arm, idps="Deny")
    arm.throttled = 99
    with pytest.raises(ResourceError, match="not finished in time: GET: 429"):
        put(arm, patience_s=-1, idps="Deny")


async def test_study_switch_runs_the_command(
    arm: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROADSIDE_AZURE_MONITOR_ENDPOINT", arm.url)
    monkeypatch.setenv("BROADSIDE_AZURE_MONITOR_TOKEN", TOKEN)
    argv = (
        sys.executable,
        "-P",
        "-m",
        "broadside.coordinator",
        "policy-switch",
        "--policy",
        POLICY,
        "--idps",
    )
    switch = Switch(rest="off", states={"off": (*argv, "Off"), "deny": (*argv, "Deny")})
    await switch.set("deny")
    assert modes(arm)[0] == "Deny"
    await switch.set("off")
    assert modes(arm)[0] == "Off"


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--policy", "x", "--idps", "Deny"], 4, "firewall policy 'x'"),
        (["--policy", POLICY], 3, "use --idps, --threat-intelligence or --snat"),
        (["--policy", POLICY, "--idps", "deny"], 3, "Deny"),
        (["--idps", "Deny"], 3, "--policy"),
    ],
)
def test_command_reports_wrong_usage(
    arguments: list[str],
    code: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    done = run_command(["policy-switch", *arguments], monkeypatch, capfd)
    assert (done.returncode, done.stdout) == (code, "")
    assert expected in done.stderr
