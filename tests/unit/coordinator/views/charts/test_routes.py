"""Tests for the chart endpoints in the API."""

import re

import httpx

from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.stored_run import store_run
from tests.unit.coordinator.views.charts.views import FAULTY


async def test_listed_charts_are_available_in_both_themes(
    fabric: Fabric, api: httpx.AsyncClient
) -> None:
    run_id = await store_run(fabric)
    listed = (await api.get(f"/v1/runs/{run_id}/charts")).json()
    assert listed["bursts_count"] == FAULTY.bursts
    grounds = set()
    for entry in listed["charts"]:
        path = f"/v1/runs/{run_id}/charts/{entry['name']}"
        params = {"burst": "4"} if entry["kind"] == "burst" else {}
        answer = await api.get(path, params=params)
        if entry["name"] in ("connections", "connection-times", "parts", "device"):
            # The run has another engine, one part, and no telemetry.
            assert answer.status_code == 404
            continue
        assert answer.status_code == 200, answer.text
        chart = answer.json()
        assert chart["burst"] == (4 if entry["kind"] == "burst" else None)
        assert chart["figure"]["series"] or chart["figure"]["heat_map"]
        for theme in ("light", "dark"):
            drawn = await api.get(
                path, params={**params, "theme": theme}, headers={"Accept": "image/svg+xml"}
            )
            assert drawn.headers["content-type"] == "image/svg+xml"
            assert drawn.text.startswith("<svg ")
            grounds |= set(re.findall(r"\.f-ground\{fill:(#\w+)\}", drawn.text))
    assert len(grounds) == 2


async def test_ended_burst_of_a_running_run_has_charts(
    fabric: Fabric, api: httpx.AsyncClient
) -> None:
    run_id = await store_run(fabric, bursts_over=1)
    codes = {
        chart: (await api.get(f"/v1/runs/{run_id}/charts/{chart}")).status_code
        for chart in (
            "throughput",
            "throughput?burst=2",
            "throughput?burst=99",
            "bursts",
            "nothing",
            "throughput?theme=pink",
        )
    }
    assert list(codes.values()) == [200, 409, 404, 409, 404, 422]
    missing = await api.get(f"/v1/runs/{run_id}/charts/troughput")
    assert "did you mean 'throughput'" in missing.json()["detail"]
    assert (await api.get("/v1/runs/none/charts/throughput")).status_code == 404
