"""A client that openapi-python-client made of the document launches a run and reads the sums."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.live.live_site import Site
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


def generate(document: Path, into: Path) -> None:
    """Without a warning: nothing of the document is left out."""
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [
            bin_folder / "openapi-python-client",
            *("generate", "--path", document, "--output-path", into),
            *("--meta", "none", "--fail-on-warning"),
        ],
        env=os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_generated_client_launches_a_run_and_reads_its_aggregate(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    site.start_fleet(1)
    _, url = site.start_coordinator()
    document = tmp_path / "openapi.json"
    document.write_text(httpx.get(f"{url}/openapi.json", timeout=60).text)
    operations = [
        operation["operationId"]
        for methods in json.loads(document.read_text())["paths"].values()
        for operation in methods.values()
    ]
    generate(document, tmp_path / "made_client")
    made = {path.stem for path in (tmp_path / "made_client" / "api").glob("*/*.py")}
    assert set(operations) <= made
    monkeypatch.syspath_prepend(tmp_path)
    made_client = importlib.import_module("made_client")
    client = made_client.Client(base_url=url, timeout=httpx.Timeout(60))
    request.addfinalizer(client.get_httpx_client().close)
    models = importlib.import_module("made_client.models")
    runs = {
        name: importlib.import_module(f"made_client.api.runs.{name}").sync
        for name in ("create_run", "read_summary", "aggregate")
    }
    wait_for("the agents", lambda: site.run("agents").stdout.count("idle") == 2)
    short = {"bursts_count": 1, "burst_s": 3, "period_s": 10, "labels.device": "fw1"}
    body = models.LaunchRequest.from_dict({"scenario": "loopback", "overrides": short})
    status = runs["create_run"](client=client, body=body, idempotency_key="once")
    assert isinstance(status, models.RunStatus)
    again = runs["create_run"](client=client, body=body, idempotency_key="once")
    assert again.run_id == status.run_id
    assert site.run("watch", status.run_id, "--json").returncode in (0, 1, 2)
    summary = runs["read_summary"](client=client, run_id=status.run_id)
    assert isinstance(summary, models.RunSummary)
    sums = runs["aggregate"](client=client, group_by="week", label=["device:fw1"])
    [group] = sums.groups
    assert group.runs_count == 1
    assert group.verdicts.to_dict() == {summary.verdict: 1}
