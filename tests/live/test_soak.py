"""Test long runs in the lab, with killed processes and an abort of thirty pairs."""

import asyncio
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views.burst_responses import recomputed
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.lab import clocks
from broadside.lab.byte_counter import parse_counter
from broadside.lab.serving import ServeProcess
from broadside.lab.site import RunningLab, built, staged
from broadside.lab.topology import Lab, LabSpec
from tests.invariants import broken, left_behind, read_stored
from tests.live.labs import new_prefix
from tests.live.waiting import wait_for
from tests.soak import SoakOptions, soak

pytestmark = [pytest.mark.live, pytest.mark.needs_root]


@pytest.mark.alone
def test_soak_continues_after_killed_coordinators_and_client(tmp_path: Path) -> None:
    """Kill the coordinator twice and a client once.

    A spare should be used instead from the next burst on.
    """
    options = SoakOptions(
        pairs_count=4,
        bursts_count=5,
        spares_count=1,
        kill_agent_in=2,
        kill_coordinator_at=(0.3, 0.8),
        # Allow for delays, because other tests will be using the CPU cores.
        late_after_s=4.0,
    )
    prefix = new_prefix()
    with built(LabSpec(pairs_count=5, prefix=prefix), tmp_path / "lab") as lab:
        soaked = soak(options, lab, tmp_path)
    assert soaked.faults(options) == []
    assert asyncio.run(check(tmp_path / "data", soaked.summary)) == []
    assert left_behind(prefix) == []
    measured = [burst.pairs_measured for burst in soaked.summary.bursts]
    killed_in = 2
    assert measured[:killed_in] == [4] * killed_in, soaked.summary.findings
    assert measured[killed_in + 1 :] == [4] * 2, "a spare must replace the killed client"
    assert measured[killed_in] >= 3
    trend = soaked.summary.run_trends
    assert trend is not None
    assert trend.availability is not None
    assert trend.availability.planned_s == 5 * 4 * 5


async def check(data_path: Path, summary: RunSummary) -> list[str]:
    """Check the invariants of a run and use the rows to recompute the verdict."""
    fabric = open_fabric(FabricSettings(data_dir=data_path))
    try:
        coordinator = Coordinator(fabric)
        plan = await coordinator.stored.read_plan(summary.run_id)
        result = broken(await read_stored(fabric.records, plan, summary))
        again = await recomputed(coordinator, summary.run_id)
        return [*result, *again.differences]
    finally:
        await fabric.close()


# Thirty pairs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Run thirty clients, thirty servers and a coordinator without a device counter."""
    folder = tmp_path_factory.mktemp("thirty")
    with (
        built(LabSpec(pairs_count=30, prefix=new_prefix()), folder / "lab") as lab,
        staged(lab, folder, device_counter={}) as site,
    ):
        yield site


def launch(serving: ServeProcess, **overrides: object) -> str:
    requested = {
        "pairs_count": 30,
        "burst_s": 60,
        "bursts_count": 1,
        "period_s": 70,
        "lead_s": 9,
        # Allow for delays, because other tests will be using the CPU cores.
        "late_after_s": 5,
        "align_to_period": False,
        "traffic.streams_count": 1,
        "traffic.stream_bits_per_second": 2_000_000,
        "objective.target_bits_per_second": None,
    } | overrides
    answer = serving.launch({"scenario": "soak", "overrides": requested})
    run_id = str(answer["run_id"])
    wait_for(
        "all pairs to run",
        lambda: status(serving, run_id)["state"] == "running",
        timeout_s=40,
        pause_s=0.3,
    )
    # The device counter needs to show this traffic.
    time.sleep(2)
    return run_id


def status(serving: ServeProcess, run_id: str) -> dict[str, Any]:
    answer = serving.get(f"/v1/runs/{run_id}")
    return dict(answer or {"state": "unknown"})


def messages_count(data_path: Path) -> int:
    """Return the number of messages that it is possible to receive now or later."""

    async def counted() -> int:
        fabric = open_fabric(FabricSettings(data_dir=data_path))
        try:
            counts = await fabric.queue.counts()
        finally:
            await fabric.close()
        return (counts.active_count or 0) + (counts.scheduled_count or 0)

    return asyncio.run(counted())


def wait_for_counter(lab: Lab, past_s: float) -> None:
    """Wait for the device counter to cover a second after ``past_s`` (epoch s)."""
    assert lab.counter_path is not None
    path = lab.counter_path
    wait_for("the byte counter", lambda: parse_counter(path.read_text())[-1].at_s > past_s + 1)


def last_byte_at_s(lab: Lab, since_s: float) -> float:
    """Return the last epoch second in which the firewall forwarded more than a keepalive."""
    assert lab.counter_path is not None
    readings = [r for r in parse_counter(lab.counter_path.read_text()) if r.at_s >= since_s]
    loud = [
        # The bytes of a late reading may have passed directly after the reading before.
        earlier.at_s
        for earlier, later in pairwise(readings)
        # Eight pairs send 2 MB per second, all pairs 7.5 MB.
        if later.up_bytes - earlier.up_bytes > 20_000
    ]
    assert loud, "no traffic was recorded"
    return loud[-1]


def test_traffic_stops_within_five_seconds_after_abort(
    thirty: RunningLab,
) -> None:
    lab, serving = thirty.lab, thirty.coordinator
    run_id = launch(serving, bursts_count=3)
    begun_s = time.time() - 2
    aborted_s = time.time()
    serving.post(f"/v1/runs/{run_id}/abort", {"by": "tester", "reason": "seen enough"})
    wait_for_counter(lab, aborted_s + 5)
    assert begun_s < last_byte_at_s(lab, begun_s) <= aborted_s + 5
    summary = wait_for("a verdict", lambda: serving.get(f"/v1/runs/{run_id}/summary"), pause_s=0.5)
    is_up = status(serving, run_id)
    assert (is_up["cancelled_by"], is_up["cancel_reason"]) == ("tester", "seen enough")
    assert is_up["state"] == "cancelled"
    assert is_up["bursts"][0]["outcomes"] == {"abandoned": 30}
    assert summary["verdict"] != "pass"
    assert 0 < summary["completeness_ratio"] < 0.5
    assert summary["bursts"][0]["completeness"]["measured_s"] > 30, "measured seconds must be kept"
    assert messages_count(Path(serving.environment["BROADSIDE_DATA_DIR"])) == 0, (
        "the queue must not contain the remaining bursts"
    )


def test_burst_names_agent_with_clock_error_above_the_limit(
    thirty: RunningLab,
) -> None:
    lab, serving = thirty.lab, thirty.coordinator
    clocks.plant_offset(lab, "c030", 0.4)
    try:
        wait_for("the planted clock", lambda: _bound_s(serving, "c030") > 0.3)
        run_id = launch(serving, burst_s=3)
        summary = wait_for(
            "a verdict", lambda: serving.get(f"/v1/runs/{run_id}/summary"), pause_s=0.5
        )
    finally:
        clocks.plant_offset(lab, "c030", 0.0)
    [burst] = summary["bursts"]
    assert burst["completeness"]["refused_s"] == 3
    assert burst["pairs_measured"] == 29
    [absent] = [item for item in burst["disruptions"] if item["kind"] == "absent"]
    assert any("c030: clock bound" in cause for cause in absent["causes"])


def _bound_s(serving: ServeProcess, agent_id: str) -> float:
    [there] = [item for item in serving.get("/v1/agents") if item["agent_id"] == agent_id]
    return float((there["clock"] or {}).get("bound_s") or 0.0)


def test_agents_stop_after_the_lease_of_a_stopped_coordinator(
    thirty: RunningLab,
) -> None:
    lab, serving = thirty.lab, thirty.coordinator
    # Only some pairs are needed, because agents have separate leases.
    launch(serving, lease_s=5, pairs_count=8)
    begun_s = time.time() - 2
    serving.signal(signal.SIGSTOP)
    stopped_s = time.time()
    try:
        wait_for_counter(lab, stopped_s + 5 + 5)
        assert last_byte_at_s(lab, begun_s) <= stopped_s + 5 + 5
        assert last_byte_at_s(lab, begun_s) > stopped_s, (
            "traffic must continue while the lease is valid"
        )
    finally:
        serving.signal(signal.SIGCONT)
