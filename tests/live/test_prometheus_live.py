"""A real Prometheus scrapes a real coordinator, with a token, and answers the dashboards' query."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.live.ports import free_port
from tests.live.site import Site, call, wait_for

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
BURST = {"pairs_count": 2, "burst_s": 30, "bursts_count": 1, "lead_s": 5}
PACED = {"traffic.streams_count": 1, "traffic.stream_bits_per_second": 20_000_000}


def query(url: str, expression: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": expression}, timeout=10)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


def serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=10).is_success
    except httpx.TransportError:
        return False


def configure(folder: Path, url: str, token: str) -> None:
    """The committed configuration, with this coordinator and a second's grain."""
    committed = ROOT / "dashboards" / "prometheus"
    shutil.copy(committed / "broadside.rules.yml", folder)
    settings = yaml.safe_load((committed / "prometheus.yml").read_text("utf-8"))
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    (folder / "broadside.token").write_text(token)


def token_of(site: Site, role: str) -> str:
    added = site.run("token", "add", role, "--role", role, "--json")
    token: str = json.loads(added.stdout)["token"]
    return token


def well(presence: dict[str, Any]) -> bool:
    """Whether an agent can work."""
    listens = presence["role"] == "client" or bool(presence["ports"])
    return presence["problem"] is None and listens


def test_prometheus_reads_the_fleets_rate_with_a_token(tmp_path: Path) -> None:
    tool = shutil.which("prometheus")
    assert tool, "apt-get install prometheus (make tools)"
    with Site(tmp_path) as site:
        added = site.run("token", "add", "prometheus", "--role", "viewer", "--json")
        token = str(json.loads(added.stdout)["token"])
        launcher = str(
            json.loads(site.run("token", "add", "me", "--role", "operator", "--json").stdout)[
                "token"
            ]
        )
        _, url = site.start_coordinator(BROADSIDE_SIGN_IN="on")
        site.start_fleet(2)
        assert httpx.get(f"{url}/metrics", timeout=10).status_code == 401
        configure(tmp_path, url, token)
        prometheus = f"http://127.0.0.1:{(port := free_port())}"
        with (tmp_path / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    tool,
                    f"--config.file={tmp_path / 'prometheus.yml'}",
                    f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        site.processes.append(process)
        signed = {"headers": {"Authorization": f"Bearer {launcher}"}}
        wait_for(
            "two clients and two servers that listen",
            lambda: len([p for p in call(url, "GET", "/v1/presences", **signed) if well(p)]) == 4,
        )
        wait_for("Prometheus", lambda: serves(prometheus))
        body = {"scenario": "smoke", "overrides": BURST | PACED}
        call(url, "POST", "/v1/runs", json=body, **signed)

        def rate() -> float | None:
            found = query(prometheus, "max(broadside_fleet_bits_per_second)")
            return float(found[0]["value"][1]) if found else None

        first = wait_for("the fleet's rate in Prometheus", rate)
        # Two pairs at 20 Mbit/s a stream; the first uploads may hold a part of the fleet.
        assert 1e6 < first < 100e6
        wait_for("a scrape", lambda: query(prometheus, 'up{job="broadside"} == 1'))
        rules = httpx.get(f"{prometheus}/api/v1/rules", timeout=10).json()["data"]["groups"]
        assert all(rule["health"] != "err" for group in rules for rule in group["rules"])
        assert sum(len(group["rules"]) for group in rules) == 10
