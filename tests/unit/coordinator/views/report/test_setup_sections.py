"""Tests for the report text with any engine, direction and verdict."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from broadside.coordinator.core.formatting import instant, rate, time
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import Verdict
from broadside.coordinator.runs.import_storage import store_table
from broadside.coordinator.views.report.build import build
from broadside.coordinator.views.report.document import Report
from broadside.coordinator.views.report.render import html
from broadside.coordinator.views.report.stored_source import gather
from broadside.exchange.engines import engines, traffic_of
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Direction, Protocol, Traffic
from tests.synthetic import Plant
from tests.unit.coordinator.imports import small_tables
from tests.unit.coordinator.stored_run import store_run

NOW = small_tables.NOW
PLANT = Plant(pairs=8, bursts=2, burst_s=20, period_s=40, late=1, missing=1)
TRAFFICS = [
    *(
        Traffic(direction=direction, protocol=protocol, stream_bits_per_second=rate_of)
        for direction in Direction
        for protocol, rate_of in ((Protocol.TCP, None), (Protocol.UDP, 1_000_000))
    ),
    *(traffic_of(engine=name) for name in engines() if name != "iperf3"),
    traffic_of(engine="http", options={"requests_per_second": 50}),
    traffic_of(engine="https", options={"requests_per_second": 50}),
]


def section_text(report: Report, *names: str) -> str:
    """Return the text for these sections, or for all sections if no name is given."""
    return " ".join(
        part.model_dump_json() for part in report.sections if not names or part.id in names
    )


@pytest.mark.parametrize("traffic", TRAFFICS, ids=lambda t: f"{t.engine}-{t.direction}")
def test_engine_statement_names_protocol_tls_and_loop(traffic: Traffic) -> None:
    text = engines()[traffic.engine].statement(traffic)
    assert text.endswith(".")
    assert len(re.findall(r"\.(?=\s|$)", text)) == 1
    assert ("UDP" in text) == (traffic.protocol is Protocol.UDP)
    assert ("TCP" in text) != ("UDP" in text)
    assert ("without TLS" in text) != ("in TLS" in text)
    assert ("open loop" in text) != ("closed loop" in text)
    paced = "requests_per_second" in traffic.options or traffic.protocol is Protocol.UDP
    assert ("open loop" in text) == (paced or traffic.engine == "connections")


@pytest.mark.parametrize(
    ("plant", "verdict"),
    [
        (Plant(bursts=1), Verdict.PASS),
        (replace(PLANT, slow_firewall=0.5), Verdict.FAIL),
        (PLANT, Verdict.FAIL),
        (Plant(bursts=1, missing=2, late=1, device_counter=False), Verdict.INCONCLUSIVE),
    ],
    ids=["clean", "slow", "late", "missing"],
)
async def test_sections_are_consistent(fabric: Fabric, plant: Plant, verdict: Verdict) -> None:
    source = await gather(fabric.records, await store_run(fabric, plant), NOW)
    report, summary = build(source), source.summary
    assert summary.verdict is verdict
    assert f'<div class="verdict {summary.verdict.value}">' in html(report, source)
    figures = section_text(report, "figures")
    assert rate(RECEIVED.of_run(summary)) in figures
    assert not re.search(r"confidence \d+ ?%", section_text(report, "figures") + report.headline)
    starts = [b.start_error_max_s for b in summary.bursts if b.start_error_max_s is not None]
    late = sum(len(burst.late_pairs) for burst in summary.bursts)
    planned = section_text(report, "planned")
    assert f"largest error of pairs on time {time(max(starts, default=None))}" in planned
    assert (f"NO: {late} pairs late" in planned) == bool(late)
    no_counter = summary.reconciliation is None
    assert ("No device counter was read" in section_text(report, "reconciliation")) == no_counter
    assert ("none read" in figures) == no_counter
    charts = {place.name for part in report.sections for place in part.charts}
    assert ("reconciliation" not in charts) == no_counter
    completeness = section_text(report, "completeness")
    for burst in summary.bursts:
        assert instant(burst.planned_start_at) in section_text(report, "bursts")
        for pair in burst.pairs:
            if pair.pair in (*burst.late_pairs, *burst.missing_pairs, *burst.null_pairs):
                assert f'"{burst.index + 1}","{pair.pair}","{pair.state.value}"' in completeness


async def test_unmeasured_pairs_are_listed_with_the_metrics(fabric: Fabric) -> None:
    source = await gather(fabric.records, await store_run(fabric, PLANT), NOW)
    facts = next(p.facts for p in build(source).sections if p.id == "figures")
    first = source.summary.bursts[0]
    for name in first.late_pairs:
        assert f"{name} in burst 1 (late: " in facts["pairs not measured, in the received rate"]
    for name in first.missing_pairs:
        assert f"{name} in burst 1" in facts["pairs not measured, not in the received rate"]
    carried = {p.pair for p in first.pairs if p.received_bits_per_second}
    assert set(first.late_pairs) <= carried
    assert not carried & set(first.missing_pairs)


@pytest.mark.parametrize(
    ("changes", "rule", "basis"),
    [
        ({}, "Verdict: a pass needs", "and of the device counter's rate"),
        (
            {"target_bits_per_second": None},
            "a pass is not possible",
            "the completeness; consistent records",
        ),
        (
            {"target_bits_per_second": None, "retransmit_max_ratio": 0.01},
            "Verdict: a pass needs the completeness; share of retransmitted segments",
            "consistent records",
        ),
    ],
)
async def test_verdict_rule_matches_the_objective(
    fabric: Fabric, changes: dict[str, object], rule: str, basis: str
) -> None:
    source = await gather(fabric.records, await store_run(fabric, Plant(bursts=1)), NOW)
    objective = source.plan.spec.objective.model_copy(update=changes)
    spec = source.plan.spec.model_copy(update={"objective": objective})
    plan = source.plan.model_copy(update={"spec": spec})
    text = section_text(build(replace(source, plan=plan)), "method")
    assert rule in text
    assert basis in text
    assert "batch means" not in text
    assert ("no target was set" in text) == (changes != {})


async def test_report_has_dates_of_launch_and_traffic(fabric: Fabric) -> None:
    source = await gather(fabric.records, await store_run(fabric, PLANT), NOW)
    report = build(source)
    text = html(report, source)
    assert f"Launched {instant(source.header.created_at)}" in text
    assert instant(source.plan.bursts[0].planned_start_at) in text
    assert "Imported" not in text


async def test_import_report_has_no_claims_beyond_the_files(fabric: Fabric) -> None:
    late = small_tables.row(1, 5, second=36)
    lines = [*small_tables.fleet(3, 2)[:4], late, small_tables.row(2, 5), small_tables.row(3, 5)]
    imported = await store_table(fabric.records, small_tables.parse(lines), NOW)
    source = await gather(fabric.records, imported.run_id, NOW + timedelta(days=1))
    report = build(source)
    text = html(report, source)
    assert f"Imported {instant(NOW)}" in " ".join(text.split())
    assert f"Traffic from {instant(report.traffic_from_at)}" in text
    assert report.traffic_from_at.year == 2022
    assert "Launched" not in text
    assert "launched by" not in section_text(report)
    method = section_text(report, "method", "deviations", "planned")
    assert "The generation of the traffic is unknown." in method
    assert "no target was set" in method
    for claim in (
        *("iperf3", "start gate", "bulk streams", "TLS and", "start at one instant"),
        *("are resampled", "without the ramp", "start error shows", "a pass needs"),
        *("clock uncertainty added", "autocorrelation"),
    ):
        assert claim not in method, claim
    pairs = next(part for part in report.sections if part.id == "pairs").tables
    for table in pairs:
        if "start error" in table.columns:
            at = table.columns.index("start error")
            for row in table.rows:
                assert (row[at] == "unknown") != row[3].startswith("late"), row
    facts = next(part.facts for part in report.sections if part.id == "figures")
    assert "in burst 2 (late: " in " ".join(facts.values())
