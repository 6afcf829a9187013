"""Test an upgrade during a run, first for the coordinator and then for the agents by pair.

The source in ``tests/data/compat`` is used to run the earlier version.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.messages import Role
from tests.compat.read import PREVIOUS, unpack_source
from tests.live.free_ports import free_port
from tests.live.live_agents import find_any_engine
from tests.live.live_site import GENTLE, HTTP, Site, call, end, wait_for_fleet, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PAIRS = 2
BURST_S = 4
# Agents receive the jobs of a burst 20 s before the burst, so they need to be replaced before
# that time.
PERIOD_S = 30
SPEC = GENTLE | {"pairs_count": PAIRS, "burst_s": BURST_S, "period_s": PERIOD_S, "lead_s": 8}


class Fleet:
    """Two pairs, each of the earlier or of the current version."""

    def __init__(self, site: Site, previous: Path) -> None:
        self.site, self.previous = site, previous
        self.ports = [free_port() for _ in range(PAIRS)]

    def start(self, pair: int, *, previous: bool) -> None:
        """Start both agents for a pair, to replace existing ones."""
        for role in (Role.SERVER, Role.CLIENT):
            name = f"{role}-{pair + 1}"
            if name in self.site.agents:
                end(self.site.agents[name])
            more = {"ports": self.ports[pair]} if role is Role.SERVER else {}
            self.site.tree = self.previous if previous else None
            engine = find_any_engine().binary[0]
            self.site.start_agent(role, name, iperf3=engine, use_gate=False, **more)

    def coordinator(self, *, previous: bool) -> tuple[Any, str]:
        self.site.tree = self.previous if previous else None
        return self.site.start_coordinator()


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_source(PREVIOUS, tmp_path_factory.mktemp("previous"))


@pytest.fixture
def fleet(site: Site, previous: Path) -> Iterator[Fleet]:
    yield Fleet(site, previous)


def outcomes(summary: dict[str, Any]) -> list[tuple[int, str]]:
    return [(burst["pairs_measured"], burst["verdict"]) for burst in summary["bursts"]]


def reported(url: str, run_id: str, index: int) -> bool:
    """Return whether all ends of a burst have reported, so that the agents are idle."""
    burst = call(url, "GET", f"/v1/runs/{run_id}")["bursts"][index]
    return bool(burst["reported_count"] == PAIRS)


def queued_count(data_dir: Path) -> int:
    """Return how many bursts the coordinator has recorded as queued."""
    with closing(sqlite3.connect(data_dir / "private.sqlite3")) as database:
        noted = "SELECT COUNT(*) FROM entity WHERE row_key LIKE 'queued.%'"
        return int(database.execute(noted).fetchone()[0])


def test_run_continues_while_coordinator_and_agents_are_upgraded(fleet: Fleet) -> None:
    """Use old agents for burst 1, a new pair for burst 2 and two new pairs for burst 3."""
    old, url = fleet.coordinator(previous=True)
    for pair in range(PAIRS):
        fleet.start(pair, previous=True)
    wait_for_fleet(url, 2 * PAIRS, path="/v1/presences")
    body = {"scenario": "smoke", "overrides": SPEC | {"bursts_count": 3}, "by": "test"}
    run_id = call(url, "POST", "/v1/runs", json=body)["run_id"]
    data_dir = Path(fleet.site.environment["BROADSIDE_DATA_DIR"])
    wait_for("the jobs to be queued", lambda: queued_count(data_dir) == 3)
    end(old)
    _, url = fleet.coordinator(previous=False)
    for pair in range(PAIRS):
        wait_for(f"burst {pair + 1}", partial(reported, url, run_id, pair))
        fleet.start(pair, previous=False)
    summary = wait_for_summary(url, run_id, 120)
    assert outcomes(summary) == [(PAIRS, "measured")] * 3, json.dumps(summary["findings"])
    assert (summary["verdict"], summary["completeness_ratio"]) == ("measured", 1.0)
    assert "plan-altered" not in {finding["id"] for finding in summary["findings"]}


def test_new_agents_work_with_the_previous_coordinator(fleet: Fleet) -> None:
    _, url = fleet.coordinator(previous=True)
    for pair in range(PAIRS):
        fleet.start(pair, previous=False)
    wait_for_fleet(url, 2 * PAIRS, path="/v1/presences")
    body = {"scenario": "smoke", "overrides": SPEC | {"lead_s": 7}, "by": "test"}
    run = call(url, "POST", "/v1/runs", json=body)
    summary = wait_for_summary(url, run["run_id"])
    assert outcomes(summary) == [(PAIRS, "measured")], json.dumps(summary["findings"])
    assert summary["verdict"] == "measured"


def test_part_that_an_earlier_agent_cannot_run_is_refused(fleet: Fleet) -> None:
    _, url = fleet.coordinator(previous=False)
    for pair in range(PAIRS):
        fleet.start(pair, previous=pair == 0)
    wait_for_fleet(url, 2 * PAIRS)
    overrides = SPEC | {"mix": [{"pairs_count": 1, "traffic": {"engine": "connections"}}]}
    body = {"scenario": "storm", "overrides": overrides, "by": "test"}
    refusal = HTTP.post(f"{url}/v1/runs", json=body)
    assert refusal.status_code == 409, refusal.text
    detail = refusal.json()["detail"]
    assert "1 of 2 client agents cannot run connections, and any client can take a job" in detail
    assert "(client-1: it does not report connections (Broadside " in detail
    assert "install the coordinator's Broadside" in detail
