"""Test that four kinds of traffic share a burst in a lab, with results and one verdict for each."""

import statistics
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import httpx
import pytest

from broadside.coordinator.core.live.live_view import LiveMetrics
from broadside.coordinator.core.summary import BurstPart, RunSummary, SecondState
from broadside.lab.site import in_use
from tests.live.labs import new_prefix
from tests.scenarios.cases import LabTestbed
from tests.scenarios.live_values import read_events
from tests.scenarios.scenario_range import Range, standing

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs_root,
    pytest.mark.alone,
    pytest.mark.usefixtures("both_cores"),
    pytest.mark.timeout(400),
]

TESTBED: Final = LabTestbed(
    pairs_count=8,
    scale=1,
    nic_bits_per_second=40_000_000,
    firewall_bits_per_second=300_000_000,
    services="connections=9000 https=8443",
)
REQUESTS_PER_SECOND: Final = 20
ATTEMPTS_PER_SECOND: Final = 40
BODY_BYTES: Final = 10_000
STREAM_BITS_PER_SECOND: Final = 5_000_000
MIX: Final = [
    {
        "pairs_count": 2,
        "traffic": {
            "engine": "connections",
            "options": {"attempts_per_second": ATTEMPTS_PER_SECOND},
        },
        "objective": {"connections_min_per_second": 60},
    },
    {
        "pairs_count": 2,
        "traffic": {
            "engine": "https",
            "streams_count": 4,
            "options": {"requests_per_second": REQUESTS_PER_SECOND, "body_bytes": BODY_BYTES},
        },
        "objective": {"success_min_ratio": 0.99},
    },
    {
        "name": "echo",
        "pairs_count": 1,
        "traffic": {
            "engine": "connections",
            "options": {"mode": "hold", "held_count": 1, "heartbeat_s": 1},
            "probe": {"every_s": 0.1},
        },
        "objective": {"probe_p99_max_s": 0.9},
    },
]
OVERRIDES: Final = {
    "pairs_count": 8,
    "bursts_count": 1,
    "burst_s": 15,
    "period_s": 40,
    "lead_s": 8,
    "late_after_s": 5,
    "traffic.streams_count": 2,
    "traffic.stream_bits_per_second": STREAM_BITS_PER_SECOND,
    "objective.start_spread_max_s": 5,
    "mix": MIX,
}


@pytest.fixture(scope="module")
def range_() -> Iterator[Range]:
    prefix = new_prefix()
    with in_use(prefix), standing(TESTBED, prefix) as range_:
        yield range_


def run(range_: Range, **changes: Any) -> tuple[str, RunSummary, list[LiveMetrics]]:
    """Run a mixed burst, and return its id, its result and the figures that a viewer received."""
    body = {"scenario": "storm", "overrides": OVERRIDES | changes}
    run_id = range_.coordinator.launch(body)["run_id"]
    figures = [
        LiveMetrics.parse_answer(data)
        for name, data in read_events(f"{range_.coordinator.url}/v1/runs/{run_id}/events")
        if name == "figures"
    ]
    return run_id, range_.coordinator.summary(run_id, 90.0), figures


def mean(values: tuple[float | None, ...]) -> float:
    return statistics.fmean(value for value in values if value is not None)


def assert_parts(summary: RunSummary) -> dict[str, BurstPart]:
    """Check the rates and the completeness of each part, and return the other parts by name."""
    (burst,) = summary.bursts
    parts = {part.name: part for part in burst.parts}
    assert list(parts) == ["connections", "https", "echo"]
    planned = [burst.pairs_planned, *(part.summary.pairs_planned for part in burst.parts)]
    assert planned == [3, 2, 2, 1]
    for part in (burst, *(part.summary for part in burst.parts)):
        assert part.completeness_ratio > 0.95, part.completeness
        assert {pair.state for pair in part.pairs} == {SecondState.MEASURED}
    received = burst.fleet_received_bits_per_second
    assert received == pytest.approx(6 * STREAM_BITS_PER_SECOND, rel=0.05)
    downloads = parts["https"].summary.fleet_received_bits_per_second
    requested = 2 * REQUESTS_PER_SECOND * BODY_BYTES * 8
    assert downloads == pytest.approx(requested, rel=0.1)
    return parts


def test_four_kinds_of_traffic_have_separate_results(range_: Range) -> None:
    run_id, summary, figures = run(range_)
    parts = assert_parts(summary)
    measures = {one.name: one.value for one in parts["connections"].summary.measures}
    assert measures["established_per_second"] == pytest.approx(2 * ATTEMPTS_PER_SECOND, rel=0.1)
    assert parts["https"].summary.measures
    latency = parts["echo"].summary.latency
    assert latency is not None and latency.fleet.during.answered_count > 100
    assert summary.bursts[0].latency is None
    assert summary.verdict == "measured", summary.findings
    # Each part was shown while it ran.
    live = [one for one in figures if not one.final and len(one.summary.parts) == 3]
    assert live
    for before, after in pairwise(live):
        for old, new in zip(before.summary.parts, after.summary.parts, strict=True):
            assert len(new.received_bits_per_second) >= len(old.received_bits_per_second)
    shown = {part.name: mean(part.received_bits_per_second) for part in live[-1].summary.parts}
    final = {name: mean(part.received_bits_per_second) for name, part in parts.items()}
    assert shown["https"] == pytest.approx(final["https"], rel=0.2)
    progress = range_.coordinator.get(f"/v1/runs/{run_id}/progress")
    assert [part["name"] for part in progress["parts"]] == ["iperf3", *parts]
    rows = [mean_progress(part) for part in progress["parts"]]
    assert rows[0] == pytest.approx(6 * STREAM_BITS_PER_SECOND, rel=0.1)
    assert mean_progress(progress) == rows[0]
    assert_exported(range_.coordinator.url, run_id, summary)


def mean_progress(progress: Any) -> float:
    return statistics.fmean(one["fleet_bits_per_second"] for one in progress["seconds"])


def assert_exported(url: str, run_id: str, summary: RunSummary) -> None:
    """Check the tables of the parts in two formats, and the comparison of the run with itself."""
    tables = httpx.get(f"{url}/v1/runs/{run_id}/export", params={"format": "json"}).json()["tables"]
    exported = {one["name"]: one["values"] for one in tables["parts"]}
    (burst,) = summary.bursts
    counts = {part.name: len(part.received_bits_per_second) for part in burst.parts}
    assert Counter(exported["part"]) == counts
    table = {"format": "csv", "table": "parts"}
    lines = httpx.get(f"{url}/v1/runs/{run_id}/export", params=table).text.splitlines()
    rows = [line for line in lines if line and not line.startswith("#")]
    assert len(rows) == 1 + sum(counts.values())
    assert rows[0].startswith("burst,part,at,received_bits_per_second")
    both = {side: {"run_ids": [run_id]} for side in ("a", "b")}
    metrics = httpx.post(f"{url}/v1/comparisons", json=both).json()["metrics"]
    assert {"https/success_ratio", "echo/probe_p99_s"} <= {metric["name"] for metric in metrics}


def test_threshold_of_a_part_fails_the_run_and_is_named(range_: Range) -> None:
    mix = [dict(share) for share in MIX]
    mix[0]["objective"] = {"connections_min_per_second": 200}
    _, summary, _ = run(range_, mix=mix)
    parts = assert_parts(summary)
    verdicts = {name: part.summary.verdict.value for name, part in parts.items()}
    assert verdicts["connections"] == "fail"
    assert "fail" not in (verdicts["https"], verdicts["echo"])
    assert summary.verdict == "fail"
    (worst,) = [one for one in summary.findings if one.id == "connections-rate-limit"]
    assert worst.part == "connections"
    assert worst.sentence.startswith("connections: ")
