"""Thirteen verdicts of different reasons as the text of each output, with reason and next step.

``python -m tests.unit.coordinator.views.test_verdict_faces FILE`` writes these texts side by side.
"""

import html
import io
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from junitparser import JUnitXml
from rich.console import Console

from broadside.coordinator.cli import summary_tables
from broadside.coordinator.cli.output_files import junit_of_run
from broadside.coordinator.core.guards import (
    STOPPED_BY,
    Guard,
    GuardLog,
    GuardRecord,
    GuardStop,
)
from broadside.coordinator.core.judge.checks.decision import BURST_CHECKS, RUN_CHECKS, Stage
from broadside.coordinator.core.judge.guard_report import GuardEvidence
from broadside.coordinator.core.judge.summarise import judge_run, summarise_run
from broadside.coordinator.core.judge.verdict_inputs import RunContext, VerdictInputs
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import CounterRequirement
from broadside.coordinator.core.summary import Finding, RunSummary, Verdict
from broadside.coordinator.core.verdict_reason import FIRST_IDS, explain_findings, explain_verdict
from broadside.coordinator.notices.announcer import Notice
from broadside.coordinator.notices.webhook import body_of
from broadside.coordinator.runs.listing import outcome_of
from broadside.coordinator.views.burst_responses import run_verdict
from broadside.coordinator.views.feeds import explained_summary
from broadside.coordinator.views.markdown import verdict_markdown, with_code
from broadside.coordinator.views.report.render import page
from broadside.exchange.messages import Control
from broadside.exchange.records import RunHeader
from tests.synthetic import Fleet, Plant, fleet

BASE = Plant(pairs=8, bursts=3, burst_s=20, period_s=40)
TARGET = 40e9
SOURCE = "panorama"
CASES: Mapping[str, tuple[Verdict, str]] = {
    "pass": (Verdict.PASS, "target-reached"),
    "below target": (Verdict.FAIL, "target-missed"),
    "threshold": (Verdict.FAIL, "rtt-limit"),
    "missing pairs": (Verdict.INCONCLUSIVE, "below-floor"),
    "late start": (Verdict.INCONCLUSIVE, "start-spread"),
    "device disagrees": (Verdict.INCONCLUSIVE, "residual"),
    "clock": (Verdict.INCONCLUSIVE, "clocks-unproven"),
    "aborted": (Verdict.INCONCLUSIVE, "run-aborted"),
    "device counter lost": (Verdict.INCONCLUSIVE, "device-counter-missing"),
    "generator bottleneck": (Verdict.FAIL, "target-missed"),
    "no target": (Verdict.MEASURED, "no-target"),
    "device counter unreadable": (Verdict.INCONCLUSIVE, "device-counter-missing"),
    "stopped by guard": (Verdict.INCONCLUSIVE, "stopped-by-guard"),
}


def judge(made: Fleet, **plan: Any) -> RunSummary:
    requested = made.plan.model_copy(update=plan)
    bursts = [measure_burst(requested.spec, part, made.now) for part in made.evidence]
    return summarise_run(requested, bursts, made.device_counter, made.now)


def with_objective(made: Fleet, **limits: Any) -> Fleet:
    objective = made.plan.spec.objective.model_copy(update=limits)
    spec = made.plan.spec.model_copy(update={"objective": objective})
    return replace(made, plan=made.plan.model_copy(update={"spec": spec}))


def with_bad_clock(made: Fleet) -> Fleet:
    """Return the fleet with a clock error of 2 s on every host."""

    def uncertain(pair: PairEvidence) -> PairEvidence:
        def later(reading: Any) -> Any:
            return reading and reading.model_copy(update={"bound_s": 2.0})

        report = pair.report and pair.report.model_copy(
            update={
                name: later(getattr(pair.report, name))
                for name in ("clock", "clock_after")
                if hasattr(pair.report, name)
            }
        )
        claim = pair.claim and pair.claim.model_copy(
            update={"clock": later(pair.claim.clock)} if hasattr(pair.claim, "clock") else {}
        )
        return replace(pair, report=report, claim=claim)

    return made.told(uncertain)


def until(evidence: BurstEvidence, end_s: float) -> BurstEvidence:
    """Return the evidence of a burst that was stopped at this time, in epoch seconds."""

    def cut(track: IntervalColumns) -> IntervalColumns:
        return track.rows(track.first_data_at_s + track.end_s <= end_s)

    return replace(
        evidence,
        pairs=tuple(
            replace(
                pair,
                client_tracks=tuple(map(cut, pair.client_tracks)),
                server_tracks=tuple(map(cut, pair.server_tracks)),
            )
            for pair in evidence.pairs
        ),
    )


def stopped_by_guard(made: Fleet) -> RunSummary:
    """Return the judged run, which a guard stopped after 10 s of its second burst."""
    guard = Guard.model_validate("cpu_ratio > 80%")
    spec = made.plan.spec.model_copy(update={"guards": (guard,)})
    plan = made.plan.model_copy(update={"spec": spec})
    at = plan.bursts[1].planned_start_at + timedelta(seconds=10)
    reason = "cpu_ratio of fw was 97.0 %, above the limit 80.0 %"
    stop = GuardStop(
        burst_index=1,
        reason=reason,
        is_before_start=False,
        breached_at=at,
        stop_requested_at=at,
    )
    record = GuardRecord(
        guard=str(guard),
        quantity="cpu_ratio",
        limit=0.8,
        last=0.97,
        worst=0.97,
        readings_count=40,
        stop_within_s=1.5,
    )
    control = Control(
        run_id=plan.run_id,
        lease_until_at=at,
        cancelled_at=at,
        cancelled_by=STOPPED_BY,
        cancel_reason=reason,
    )
    first, second = made.evidence[0], until(made.evidence[1], at.timestamp())
    bursts = [measure_burst(spec, one, made.now) for one in (first, second)]
    assert made.device_counter is not None
    counted = np.where(
        made.device_counter.start_s < at.timestamp(),
        made.device_counter.bytes,
        made.device_counter.bytes[0],
    )
    device_counter = replace(made.device_counter, bytes=counted)
    log = GuardLog(burst_index=1, guards=(record,), stop=stop)
    evidence = GuardEvidence(logs=(log,), ended_at=(at + timedelta(seconds=1.2),) * 8)
    inputs = VerdictInputs(
        control=control, device_counter=device_counter, context=RunContext(), guards=evidence
    )
    return judge_run(plan, bursts, inputs, made.now)


@cache
def summary_of(case: str) -> RunSummary:
    """Return the judged run of one case."""
    plant, target = BASE, TARGET
    if case == "below target":
        plant = replace(BASE, firewall_bits_per_second=30e9)
    if case == "missing pairs":
        plant = replace(BASE, missing=2)
    if case == "late start":
        plant = replace(BASE, start_spread_s=0.3)
    if case == "device disagrees":
        plant = replace(BASE, foreign_ratio=0.3, bypass=3)
    if case == "generator bottleneck":
        plant = replace(BASE, busy_cpu="client", pair_bits_per_second=3e9)
    made = fleet(plant, target_bits_per_second=None if case == "no target" else target)
    if case == "threshold":
        made = with_objective(made, rtt_mean_max_s=0.0005)
    if case == "clock":
        made = with_bad_clock(made)
    if case == "stopped by guard":
        return stopped_by_guard(fleet(replace(plant, bursts=2), target_bits_per_second=target))
    if case == "device counter unreadable":
        promise = CounterRequirement(source=SOURCE, coverage_min_ratio=0.95)
        reason = "it could not be read completely: GET /api/?type=op: 401 Unauthorized"
        assert made.device_counter is not None
        none = np.empty(0)
        device_counter = replace(
            made.device_counter,
            source=SOURCE,
            start_s=none,
            end_s=none,
            bytes=none,
            notes=(reason,),
            drops_count=None,
        )
        return judge(replace(made, device_counter=device_counter), ledger=promise)
    if case == "device counter lost":
        promise = CounterRequirement(source=SOURCE, coverage_min_ratio=0.95)
        return judge(replace(made, device_counter=None), ledger=promise)
    summary = judge(made)
    if case == "aborted":
        begun = made.plan.bursts[0].planned_start_at
        control = Control(
            run_id=made.plan.run_id,
            lease_until_at=begun,
            cancelled_at=begun + timedelta(seconds=41),
            cancelled_by="alice",
            cancel_reason="wrong device",
        )
        first = [measure_burst(made.plan.spec, made.evidence[0], made.now)]
        inputs = VerdictInputs(
            control=control,
            device_counter=made.device_counter,
            context=RunContext(),
            guards=GuardEvidence(),
        )
        return judge_run(made.plan, first, inputs, made.now)
    return summary


# The outputs: each returns the text that a reader sees first


def on_cli(summary: RunSummary) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=100)
    summary_tables.print_verdict(summary, console, notes=False)
    return " ".join(stream.getvalue().split())


def in_report(summary: RunSummary) -> str:
    """Return the first block of the report as text. The PDF is printed from the same HTML."""
    explained = explain_verdict(summary)
    shown = SimpleNamespace(
        verdict=summary.verdict, reason=explained.reason, next_step=explained.next_step, headline=""
    )
    text = re.sub(r"<[^>]+>", " ", page("reason.html.j2", report=shown))
    return " ".join(html.unescape(text).split())


def in_junit(summary: RunSummary) -> str:
    xml = JUnitXml()
    xml.add_testsuite(junit_of_run(summary))
    (suite,) = JUnitXml.fromroot(xml._elem)
    case = next(iter(suite))
    if not case.result:
        return str(case.system_out)
    assert case.result[0].message == explain_verdict(summary).reason
    return f"{case.result[0].message}\n{case.result[0].text}"


def as_text(value: object) -> str:
    """Return JSON as a person reads it, with all characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def in_webhook(summary: RunSummary) -> str:
    header = RunHeader(
        run_id=summary.run_id,
        scenario=summary.scenario,
        created_at=summary.computed_at,
        created_by="tests",
        outcome=outcome_of(summary, cancelled=False),
    )
    data = json.loads(body_of(Notice(header=header, summary=summary)))["data"]
    return as_text({key: data[key] for key in ("verdict", "reason", "next_step")})


def in_api_verdict(summary: RunSummary) -> str:
    fields = ("verdict", "reason", "next_step")
    return as_text(json.loads(run_verdict(summary).model_dump_json(include=set(fields))))


def in_run_list(summary: RunSummary) -> str:
    outcome = outcome_of(summary, cancelled=False)
    fields = {"verdict", "reason", "next_step"}
    return as_text(json.loads(outcome.model_dump_json(include=fields)))


def on_page(summary: RunSummary) -> str:
    """Return the fields that the page shows above the figures."""
    event = json.loads(explained_summary(summary).model_dump_json())
    assert event["findings"][0]["sentence"] == event["reason"] or event["verdict"] == "pass"
    return f"{event['verdict']}. {event['reason']} Next: {event['next_step']}."


def in_mcp(summary: RunSummary) -> str:
    """Return the first blocks of Markdown, of an assistant and of a CI summary page."""
    return "\n".join(verdict_markdown(summary).split("\n\n")[:3])


FACES: Mapping[str, Callable[[RunSummary], str]] = {
    "CLI": on_cli,
    "page": on_page,
    "report": in_report,
    "JUnit": in_junit,
    "webhook": in_webhook,
    "MCP": in_mcp,
    "API verdict": in_api_verdict,
    "API run list": in_run_list,
}


@pytest.mark.parametrize("case", CASES)
def test_cases_have_different_reasons(case: str) -> None:
    verdict, finding_id = CASES[case]
    summary = summary_of(case)
    explained = explain_verdict(summary)
    assert (summary.verdict, explained.deciding and explained.deciding.id) == (verdict, finding_id)
    assert explained.findings[0] is explained.deciding
    assert sorted(f.id for f in explained.findings) == sorted(f.id for f in summary.findings)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("case", CASES)
def test_every_output_begins_with_reason_and_next_step(case: str, face: str) -> None:
    summary = summary_of(case)
    explained = explain_verdict(summary)
    text = FACES[face](summary)
    reason, next_step = explained.reason, explained.next_step
    if face == "MCP":
        reason, next_step = with_code(reason), with_code(next_step)
    if face in ("webhook", "API verdict", "API run list"):
        reason, next_step = as_text(reason)[1:-1], as_text(next_step)[1:-1]
    assert " ".join(reason.split()) in text
    assert " ".join(next_step.split()) in text
    assert text.index(reason) < text.index(next_step)
    assert summary.verdict.value in text
    notes = [note.sentence for note in explained.notes]
    assert not any(note in text[: text.index(next_step)] for note in notes)


def test_markdown_keeps_code_and_escapes_the_rest() -> None:
    """Names of a run can contain any text, also one backtick."""
    assert with_code("run `broadside agents` on [a]_b") == r"run `broadside agents` on \[a\]\_b"
    assert with_code("one ` and <b>") == r"one \` and \<b\>"
    step = explain_verdict(summary_of("threshold")).next_step
    assert "`rtt_idle_s`" in step
    assert "`rtt_idle_s`" in in_mcp(summary_of("threshold"))


def test_aborted_run_has_one_next_step() -> None:
    findings = explain_verdict(summary_of("aborted")).findings
    assert [f.next_step for f in findings if f.severity == "problem"] == [
        "Ask alice for the reason and remove it. Then launch the run again and let it end"
    ]
    assert "2 of 3 bursts have no result" in findings[0].sentence


def test_cli_folds_notes_and_prints_them_on_request() -> None:
    summary = summary_of("pass")
    note = explain_verdict(summary).notes[0]
    stream = io.StringIO()
    summary_tables.print_verdict(summary, Console(file=stream, width=500), notes=True)
    assert note.sentence in stream.getvalue()
    assert note.sentence not in on_cli(summary)
    assert "notes: `broadside verdict synthetic --notes` prints them" in on_cli(summary)


def test_first_ids_are_those_of_the_decision_table() -> None:
    stages = {Stage.SEAL: FIRST_IDS[1], Stage.COVERAGE: FIRST_IDS[2]}
    of_checks = [(check.stage, check.findings) for check in RUN_CHECKS]
    of_checks += [(check.stage, check.findings) for check in BURST_CHECKS]
    notes = {"clocks-shared", "clocks-self-reported"}
    for stage, ids in stages.items():
        matches = {name for of, names in of_checks if of is stage for name in names.split()}
        assert set(ids.split()) == matches - notes


def test_repeated_findings_have_the_number_of_bursts_the_range_and_the_worst() -> None:
    summary = summary_of("below target")
    reason = explain_verdict(summary).reason
    match = re.search(
        r" 3 of 3 bursts have this finding: (\S+) Gbit/s to (\S+) Gbit/s, worst in burst (\d)\.$",
        reason,
    )
    assert match is not None, reason
    low, high, worst = float(match[1]), float(match[2]), int(match[3])
    rates = [burst.fleet_ip_bits_per_second or np.nan for burst in summary.bursts]
    assert low < high
    assert low == pytest.approx(min(rates) / 1e9, rel=2e-3)
    assert high == pytest.approx(max(rates) / 1e9, rel=2e-3)
    assert worst == 1 + int(np.argmin(rates))
    # The rate in the text is that of the worst burst.
    assert reason.startswith(f"Burst {worst}: Received rate {match[1]} Gbit/s ")


@pytest.mark.parametrize("case", CASES)
def test_every_repeated_finding_has_its_number_of_bursts(case: str) -> None:
    """A finding with different values in its bursts also has their range and the worst burst."""
    summary = summary_of(case)
    total = summary.bursts_planned
    for finding in summary.findings:
        same = [f for burst in summary.bursts for f in burst.findings if f.id == finding.id]
        if len(same) < 2:
            continue
        assert f" {len(same)} of {total} bursts have this finding" in finding.sentence
        assert re.match(r"Burst \d+: ", finding.sentence)
        numbers = {re.sub(r"pair-\d+", "", f.sentence) for f in same}
        if len(numbers) > 1 and not finding.id.startswith("bottleneck-"):
            assert re.search(
                r" bursts have this finding: (each .+|.+ to .+, \w+ in burst \d+)\.$",
                finding.sentence,
            ), finding.sentence


def test_verdict_without_findings_has_a_reason_and_a_next_step() -> None:
    for verdict in Verdict:
        explained = explain_findings(verdict, ())
        assert explained.reason and explained.next_step and explained.deciding is None


def test_note_does_not_decide_an_inconclusive_verdict() -> None:
    def finding(id: str, severity: Any, weight: float) -> Finding:
        kind: Any = "verdict" if severity == "problem" else "context"
        return Finding(id=id, kind=kind, severity=severity, weight=weight, sentence=f"{id}.")

    listed = (
        finding("fleet-alone", "note", 104),
        finding("device-counter-missing", "problem", 105),
        finding("below-floor", "problem", 95),
    )
    explained = explain_findings(Verdict.INCONCLUSIVE, listed)
    # Coverage is decided before all other evidence, see the decision table.
    assert [f.id for f in explained.findings] == [
        "below-floor",
        "device-counter-missing",
        "fleet-alone",
    ]


def table_of_faces() -> str:
    """Return all texts as Markdown, one section for each case."""
    parts = ["# Verdicts, as each output shows them", ""]
    for case in CASES:
        parts += [f"## {case}", ""]
        for face, render in FACES.items():
            parts += [f"**{face}**", "", "```text", render(summary_of(case)).strip(), "```", ""]
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table_of_faces(), encoding="utf-8")
