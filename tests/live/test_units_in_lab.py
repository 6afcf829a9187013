"""Test runs through a device of several units that translate the source address per unit."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pytest

from broadside.exchange.messages import Presence
from broadside.lab.device_units import DeviceUnit, set_units, units
from broadside.lab.site import built, staged
from broadside.lab.topology import Lab, LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import call, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.quiet, pytest.mark.needs_root, pytest.mark.timeout(300)]

AGENT = {"BROADSIDE_AGENT_SERVICES": "http=8080", "BROADSIDE_AGENT_HEARTBEAT_S": "1"}
LEAD_S = 8
STREAM_BITS_PER_SECOND = 250_000
UNIT_BITS_PER_SECOND = 8_000_000
SPEC: Mapping[str, object] = {
    "pairs_count": 2,
    "bursts_count": 1,
    "burst_s": 10,
    "period_s": 60,
    "lead_s": LEAD_S,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "objective.start_spread_max_s": 5,
    "traffic.streams_count": 32,
    "traffic.block_bytes": 1448,
    "traffic.stream_bits_per_second": STREAM_BITS_PER_SECOND,
}
HTTP: Mapping[str, object] = {
    **{name: value for name, value in SPEC.items() if not name.startswith("traffic.")},
    "burst_s": 24,
    "traffic.engine": "http",
    "traffic.options.requests_per_second": 40,
    "traffic.options.body_bytes": 10_000,
    "traffic.options.keepalive": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Lab with its agents and a coordinator."""

    lab: Lab
    url: str

    def carry_out(
        self, spec: Mapping[str, object], *events: tuple[float, Callable[[], None]]
    ) -> tuple[dict[str, Any], list[float]]:
        """Run one burst, with events at seconds after its planned start.

        Returns the burst and the times of the events in epoch seconds.
        """
        body = {"scenario": "smoke", "overrides": spec}
        run_id = call(self.url, "POST", "/v1/runs", json=body)["run_id"]
        plan = call(self.url, "GET", f"/v1/runs/{run_id}")
        start_s = datetime.fromisoformat(plan["bursts"][0]["planned_start_at"]).timestamp()
        times: list[float] = []

        def act(event: Callable[[], None]) -> None:
            event()
            times.append(time.time())

        timers = [
            threading.Timer(start_s + after_s - time.time(), act, (event,))
            for after_s, event in events
        ]
        for timer in timers:
            timer.start()
        summary = wait_for_summary(self.url, run_id, timeout_s=120)
        for timer in timers:
            timer.join()
        (burst,) = summary["bursts"]
        return burst, times

    def are_free(self) -> bool:
        presences = [Presence.model_validate(p) for p in call(self.url, "GET", "/v1/agents")]
        states = [p.engine("http") for p in presences]
        return sum(bool(state and state.ports) for state in states) == 2


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    folder = tmp_path_factory.mktemp("units")
    spec = LabSpec(pairs_count=2, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    with (
        built(spec, folder) as lab,
        staged(lab, folder, device_counter={}, agents=AGENT) as staged_site,
    ):
        standing = Range(lab=lab, url=staged_site.coordinator.url)
        wait_for("free services", standing.are_free)
        yield standing


def changed(chosen: tuple[DeviceUnit, ...], number: int, **fields: Any) -> tuple[DeviceUnit, ...]:
    return tuple(replace(unit, **fields) if unit.number == number else unit for unit in chosen)


def test_units_are_counted_and_the_slow_one_is_named(site: Range) -> None:
    plain, _ = site.carry_out(SPEC)
    assert (plain["units"]["translation"], plain["units"]["count"]) == ("none", None)
    four = units(4, UNIT_BITS_PER_SECOND)
    set_units(site.lab, changed(four, 2, bits_per_second=UNIT_BITS_PER_SECOND // 4))
    try:
        burst, _ = site.carry_out(SPEC)
    finally:
        set_units(site.lab, ())
    result = burst["units"]
    assert (result["translation"], result["count"]) == ("units", 4)
    slow = str(four[1].address)
    assert (result["slow"], burst["bottleneck"]) == (slow, "one-unit")
    for unit in result["units"]:
        if unit["address"] != slow:
            planted = unit["flows_mean_count"] * STREAM_BITS_PER_SECOND
            assert unit["received_bits_per_second"] == pytest.approx(planted, rel=0.05)


def test_units_that_join_and_leave_are_dated(site: Range) -> None:
    three = units(3)
    set_units(site.lab, units(2))
    try:
        burst, times = site.carry_out(
            HTTP,
            (8, lambda: set_units(site.lab, three)),
            (16, lambda: set_units(site.lab, changed(three, 1, carries=False))),
        )
        results = {one["change"]: one for one in burst["units"]["changes"]}
        assert {name: one["address"] for name, one in results.items()} == {
            "joined": str(three[2].address),
            "left": str(three[0].address),
        }
        for name, planted_s in zip(("joined", "left"), times, strict=True):
            measured_s = datetime.fromisoformat(results[name]["at"]).timestamp()
            assert measured_s == pytest.approx(planted_s, abs=2.0), name
        # Streams that exist stay on their unit, so they are cut when it leaves.
        set_units(site.lab, three)
        burst, times = site.carry_out(
            {**SPEC, "burst_s": 15},
            (8, lambda: set_units(site.lab, changed(three, 3, carries=False))),
        )
    finally:
        set_units(site.lab, ())
    [left] = burst["units"]["changes"]
    assert (left["change"], left["address"]) == ("left", str(three[2].address))
    assert left["flows_cut"] is True
    assert left["flows_count"] > 0
    measured_s = datetime.fromisoformat(left["at"]).timestamp()
    assert measured_s == pytest.approx(times[0], abs=2.0)
