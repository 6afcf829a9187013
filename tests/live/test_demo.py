"""The whole product in one command: what `make demo` promises, held for real."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import list_namespaces, list_owned
from tests.live.site import BROADSIDE, Site, wait_for

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs_root,
    pytest.mark.alone,
    pytest.mark.timeout(400),
]

LABS = [f"bs{number or ''}" for number in range(10)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    before = left_over()
    with Site(tmp_path) as standing:
        yield standing
    assert left_over() <= before


def left_over() -> set[object]:
    """Namespaces and processes of demos' labs."""
    return {
        *(name for prefix in LABS for name in list_namespaces(prefix)),
        *(process.pid for prefix in LABS for process in list_owned(prefix)),
    }


def demo(site: Site, *options: str) -> tuple[dict[str, Any], int]:
    done = site.run("demo", "--json", *options, timeout_s=240)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def test_thirty_pairs_pass_and_the_two_ledgers_agree(site: Site) -> None:
    summary, code = demo(site)
    assert (summary["verdict"], code) == ("pass", 0), summary["findings"]
    assert summary["pairs_measured"] == summary["pairs_planned"] == 30
    assert summary["completeness_ratio"] == 1.0
    assert summary["scale"] == 100
    assert summary["target_bits_per_second"] == 1.8e9
    assert summary["real_target_bits_per_second"] == 180e9
    held = summary["reconciliation"]
    assert abs(held["residual_ratio"]) <= 0.01
    expected = summary["fleet_received_bits_per_second"] * held["overhead_ratio"]
    assert summary["firewall_bits_per_second"] == pytest.approx(expected, rel=0.01)
    assert summary["limiter"] == "firewall"
    assert len(summary["bursts"]) == 2
    clocks = [pair["clock_bound_s"] for burst in summary["bursts"] for pair in burst["pairs"]]
    assert all(bound is not None and bound < 0.05 for bound in clocks)


def test_the_real_azure_sdks_carry_the_same_demo(site: Site) -> None:
    summary, code = demo(site, "--fabric", "azure-local", "--bursts", "1")
    assert (summary["verdict"], code) == ("pass", 0), summary["findings"]
    assert summary["pairs_measured"] == 30
    held = summary["reconciliation"]
    assert held["source"].startswith("azure-monitor")
    assert held["lag_s"] == pytest.approx(2.0, abs=0.5)  # as planted in the metrics endpoint
    assert abs(held["residual_ratio"]) <= 0.01


def test_a_killed_client_is_named_and_never_passes(site: Site) -> None:
    summary, code = demo(site, "--pairs", "8", "--bursts", "1", "--kill-one")
    assert summary["verdict"] in ("fail", "inconclusive")
    assert code in (1, 2)
    assert 0.5 < summary["completeness_ratio"] < 1
    assert summary["pairs_measured"] < 8
    first = summary["bursts"][0]
    (cut,) = first["missing_pairs"]
    assert any(cut in finding["sentence"] for finding in summary["findings"])
    (pair,) = (pair for pair in first["pairs"] if pair["pair"] == cut)
    assert pair["state"] == "abandoned"
    assert 0 < pair["completeness_ratio"] < 1  # the server's record kept what it sent before


def test_a_firewall_half_as_fast_fails_and_is_named(site: Site) -> None:
    options = ["--pairs", "8", "--bursts", "1", "--firewall-rate-ratio", "0.5"]
    summary, code = demo(site, *options)
    assert (summary["verdict"], code) == ("fail", 1)
    assert summary["limiter"] == "firewall"
    assert summary["completeness_ratio"] == 1.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_is_stopped_leaves_nothing(site: Site, number: signal.Signals) -> None:
    """On SIGTERM and Ctrl-C it takes all down; after SIGKILL `lab down` does."""
    process = subprocess.Popen(
        [*BROADSIDE, "demo", "--pairs", "2", "--seconds", "30"],
        env=site.environment | {"TMPDIR": str(site.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A background job of a shell ignores Ctrl-C and hands that down to us.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        seen = ""
        while "launched" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    if number is signal.SIGKILL:
        # Agents and coordinator end with their starter; the lab itself stands, and counts.
        lab_own = ("chronyd", "lab.ledger")
        wait_for(
            "the fleet to end",
            lambda: all(any(name in line for name in lab_own) for line in running(site)),
        )
        done = site.run("lab", "down")
        assert done.returncode == 0, done.stderr
    assert not running(site)
    assert not list(Path("/run/broadside").glob("lab/*/demo"))


def running(site: Site) -> list[str]:
    """Command lines of processes that work in the demo's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={site.folder}".encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
