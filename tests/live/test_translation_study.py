"""Test the study of what translation costs, with the switch of Azure and units in the lab.

The switch is the one that the range gets, and its command sends requests to a stub of the Resource
Manager. The lab's device follows the policy in the stub.
"""

import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broadside.lab.device_units import set_units, units
from broadside.lab.site import built, staged
from broadside.lab.topology import Lab, LabSpec
from tests.live.azure_resource import TOKEN, ResourceManager
from tests.live.http_service import serving
from tests.live.labs import new_prefix
from tests.live.live_site import call
from tests.live.test_deploy_policy import POLICY
from tests.live.test_units_in_lab import AGENT, SPEC
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.quiet, pytest.mark.needs_root, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "deploy/azure/modules/coordinator/switches.toml"
PROGRAM = '"/opt/broadside/venv/bin/broadside"'
QUESTION = {
    "kind": "ab",
    "switch": "snat",
    "a": {"name": "off"},
    "b": {"name": "on"},
    "rounds_count": 1,
}


def write_switches(folder: Path) -> Path:
    """Write the switches of the range, with this installation and without waiting times."""
    text = TEMPLATE.read_text()
    for name, value in {"policy_id": POLICY, "idps": "off", "threat": "off"}.items():
        text = text.replace(f"${{{name}}}", value)
    local = ", ".join(f'"{part}"' for part in (sys.executable, "-m", "broadside.coordinator"))
    text = text.replace(PROGRAM, local).replace("settle_s  = 60", "settle_s  = 1")
    path = folder / "switches.toml"
    path.write_text(text)
    assert tomllib.loads(text)["snat"]["rest"] == "off"
    return path


@contextmanager
def following(lab: Lab, arm: ResourceManager) -> Iterator[list[bool]]:
    """Let the device translate while the policy has a private range. Yield its states."""
    states, over = [False], threading.Event()

    def follow() -> None:
        while not over.wait(0.1):
            on = bool((arm.properties.get("snat") or {}).get("privateRanges"))
            if on != states[-1]:
                set_units(lab, units(4, 4_000_000) if on else ())
                states.append(on)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield states
    finally:
        over.set()
        thread.join()
        set_units(lab, ())


def test_ab_study_of_the_policy_shows_the_cost_and_warns(tmp_path: Path) -> None:
    arm = ResourceManager(sku={"tier": "Premium"}, threatIntelMode="Off")
    lab_spec = LabSpec(pairs_count=2, prefix=new_prefix(), firewall_bits_per_second=64_000_000)
    with serving(arm.answer) as arm.url, built(lab_spec, tmp_path) as lab:
        settings = {
            "BROADSIDE_SWITCHES_FILE": str(write_switches(tmp_path)),
            "BROADSIDE_AZURE_MONITOR_ENDPOINT": arm.url,
            "BROADSIDE_AZURE_MONITOR_TOKEN": TOKEN,
        }
        with (
            staged(lab, tmp_path, device_counter={}, coordinator=settings, agents=AGENT) as site,
            following(lab, arm) as states,
        ):
            study = ab_study(site.coordinator.url)
    counts = [result["seen_units_count"] for result in study["results"]]
    assert counts == [None, 4.0, 4.0, None], study
    # The study changes the policy only when the state changes, and leaves it at rest.
    assert states == [False, True, False]
    assert [put["properties"]["snat"]["privateRanges"] for put in arm.puts] == [
        ["255.255.255.255/32"],
        [],
    ]
    conclusion = study["conclusion"]
    assert "on costs " in conclusion["sentence"]
    assert any("in on (4 units) only: this changes the test" in n for n in conclusion["notes"])


def ab_study(url: str) -> dict[str, Any]:
    """Run the study and return it."""
    overrides = {**SPEC, "traffic.stream_bits_per_second": None, "burst_s": 8}
    body = {"scenario": "smoke", "overrides": overrides, "question": QUESTION}
    study_id = call(url, "POST", "/v1/studies", json=body)["study_id"]

    def ended() -> dict[str, Any] | None:
        study = call(url, "GET", f"/v1/studies/{study_id}")
        return study if study.get("conclusion") or study.get("problem") else None

    study: dict[str, Any] = wait_for("the end of the study", ended, timeout_s=300)
    return study
