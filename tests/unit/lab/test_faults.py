"""Tests for the fault matrix, the rules and the result table."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from broadside.coordinator.core.summary import Verdict
from broadside.exchange.messages import (
    Claim,
    Endpoint,
    EngineReport,
    Flow,
    FlowTotals,
    Interval,
    ServerTest,
    Side,
    Track,
)
from broadside.exchange.messages import JobPhase as ClaimPhase
from broadside.exchange.second_rows import TestSeconds
from broadside.lab.byte_counter import parse_counter
from tests.faults import cell
from tests.faults.__main__ import RESULT, chapter, markdown, text
from tests.faults.cell import Result
from tests.faults.fired_tests import Connection
from tests.faults.matrix import (
    CELLS,
    CORE,
    FAULTS,
    LEAD_BEFORE_CLAIM_S,
    SILENT_S,
    STOP_S,
    Cell,
    Fault,
    Phase,
    chosen,
    has_come,
)
from tests.faults.random_rounds import fault_named, moments, rounds
from tests.faults.rules import EARLY_S, Evidence, violations
from tests.synthetic import Plant
from tests.unit.lab.test_invariants import stored

AT = datetime(2026, 11, 21, tzinfo=UTC)
# These rows are required in the matrix.
REQUIRED = {
    "sigkill",
    "sigstop",
    "network-cut",
    "queue-down",
    "table-503",
    "table-down",
    "full-disk",
    "clock-step",
    "delivered-twice",
    "poison",
    "server-stuck",
    "server-dead",
    "client-dead",
    "slow-table",
}


def claim(phase: ClaimPhase, *, armed: bool = False) -> Claim:
    return Claim(
        job_id="j",
        agent_id="c001",
        phase=phase,
        claimed_at=AT,
        armed_at=AT if armed else None,
        running_at=AT if phase is ClaimPhase.RUNNING else None,
    )


def test_matrix_has_all_faults_in_all_phases() -> None:
    assert FAULTS.keys() >= REQUIRED
    assert len(CELLS) == len(set(CELLS)) == len(FAULTS) * 4
    assert set(CORE) <= set(CELLS)


def test_cells_are_selected_by_fault_and_phase() -> None:
    assert chosen(None) == CELLS
    assert chosen("poison/armed") == (("poison", Phase.ARMED),)
    assert chosen("poison") == tuple(("poison", phase) for phase in Phase)
    assert len(chosen("/armed")) == len(FAULTS)
    assert chosen("poison/armed,poison/armed,sigkill/running") == (
        ("poison", Phase.ARMED),
        ("sigkill", Phase.RUNNING),
    )
    with pytest.raises(ValueError, match="write FAULT/PHASE"):
        chosen("flood/armed")
    assert chosen("control-cut/armed", "http") == (("control-cut", Phase.ARMED),)
    # This is not possible because embedded agents share files.
    with pytest.raises(ValueError, match="write FAULT/PHASE"):
        chosen("control-cut/armed", "embedded")


@pytest.mark.parametrize(
    ("phase", "stored_claim", "reached"),
    [
        (Phase.BEFORE_CLAIM, None, True),
        (Phase.BEFORE_CLAIM, claim(ClaimPhase.CLAIMED), False),
        (Phase.ARMED, claim(ClaimPhase.CLAIMED), False),
        (Phase.ARMED, claim(ClaimPhase.ARMED, armed=True), True),
        (Phase.RUNNING, claim(ClaimPhase.ARMED, armed=True), False),
        (Phase.RUNNING, claim(ClaimPhase.RUNNING, armed=True), True),
        (Phase.REPORTING, None, False),
        (Phase.REPORTING, claim(ClaimPhase.RUNNING, armed=True), True),
    ],
)
def test_phase_is_detected_from_the_claim(
    phase: Phase, stored_claim: Claim | None, reached: bool
) -> None:
    now_s = AT.timestamp() + 2.0
    assert has_come(phase, stored_claim, now_s=now_s) is reached


def test_clock_step_before_the_claim_lasts_until_armed() -> None:
    fault = FAULTS["clock-step"]
    assert LEAD_BEFORE_CLAIM_S - 5 < fault.lasting_s(Phase.BEFORE_CLAIM) < LEAD_BEFORE_CLAIM_S
    assert fault.lasting_s(Phase.ARMED) == fault.lasts_s


def test_random_rounds_have_several_victims_and_are_repeatable() -> None:
    agents = ["c001", "c002", "c003", "s001", "s002"]
    cells = rounds(7, 200)
    assert cells == rounds(7, 200)
    assert cells[:5] != rounds(8, 5)
    assert {phase for _, phase in cells} == set(Phase)
    drawn = [moment for name, _ in cells for moment in moments(name, agents)]
    assert all(2 <= len({strike.victim for strike in moment.strikes}) <= 4 for moment in drawn)
    struck = {(strike.victim, strike.how) for moment in drawn for strike in moment.strikes}
    victims = {"coordinator", "broker", *agents, *(f"engines@{agent}" for agent in agents)}
    assert struck == {(victim, how) for victim in victims for how in ("kill", "stop")}
    assert fault_named(cells[0][0]).name == cells[0][0]
    assert fault_named("poison") is FAULTS["poison"]


# Rules ------------------------------------------------------------------------------------------


(NOTHING_COUNTED,) = parse_counter("0,0,0,0,0,0,0,,\n")
# This fault does not use special rules.
SOME = FAULTS["poison"]


def evidence(up_bytes: dict[float, int] | None = None) -> Evidence:
    """Return evidence for a correct run. ``up_bytes`` has the bytes for each second."""
    right = stored(Plant(pairs=3, bursts=1, device_counter=False))
    start_s = right.plan.bursts[0].planned_start_at.timestamp()
    total, readings = 0, []
    for offset_s, moved in sorted((up_bytes or {}).items()):
        total += moved
        readings.append(replace(NOTHING_COUNTED, at_s=start_s + offset_s, up_bytes=total))
    return Evidence(
        stored=right,
        struck_at_s=start_s,
        addresses=frozenset({"198.18.0.1"}),
        tests=(),
        device_counter=tuple(readings),
        recomputed={"equal": True, "differences": []},
        engines_left=0,
    )


def test_correct_run_has_no_violations() -> None:
    assert violations(evidence({0: 0, 1: 500_000, 2: 500_000}), SOME) == []


def test_reports_bytes_outside_of_bursts() -> None:
    right = evidence()
    burst = right.stored.plan.bursts[0]
    after_s = burst.duration_s + 6.0
    [message] = violations(evidence({after_s: 0, after_s + 1: 90_000}), SOME)
    assert message.startswith("90000 bytes crossed the firewall outside any burst")


def with_late_bytes(end_s: float, *, complete: bool) -> Evidence:
    """Return evidence where bytes are sent after a burst has ended."""
    right = evidence()
    [burst] = right.stored.summary.bursts
    after_s = right.stored.plan.bursts[0].duration_s + end_s
    loud = evidence({after_s: 0, after_s + 0.5: 90_000})
    if complete:
        return loud
    seconds = burst.completeness.model_copy(update={"measured_s": 89, "lost_s": 1})
    struck = burst.model_copy(update={"completeness": seconds})
    summary = right.stored.summary.model_copy(update={"bursts": (struck,)})
    return replace(loud, stored=replace(loud.stored, summary=summary))


def outside(messages: list[str]) -> list[str]:
    return [message for message in messages if "outside any burst" in message]


def test_bytes_after_a_complete_burst_are_violations() -> None:
    fault = FAULTS["network-cut"]
    assert fault.stop_s == STOP_S > SILENT_S
    assert outside(violations(with_late_bytes(SILENT_S + 0.1, complete=True), fault))
    assert not outside(violations(with_late_bytes(SILENT_S + 0.1, complete=False), fault))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_reports_bytes_between_bursts_after_incomplete_burst(fault: Fault) -> None:
    assert fault.gap_s - EARLY_S - fault.stop_s >= 1, "no second between bursts"
    assert outside(violations(with_late_bytes(fault.stop_s + 0.1, complete=False), fault))


def test_reports_recompute_difference_and_running_engines() -> None:
    wrong = replace(evidence(), recomputed={"equal": False, "differences": ["x"]}, engines_left=2)
    message = violations(wrong, SOME)
    assert message == [
        "does not recompute: ['x']",
        "2 iperf3 clients still run after the verdict",
    ]


def test_reports_pass_with_low_coverage() -> None:
    right = evidence()
    summary = right.stored.summary.model_copy(
        update={"verdict": Verdict.PASS, "completeness_ratio": 0.5}
    )
    message = violations(replace(right, stored=replace(right.stored, summary=summary)), SOME)
    assert "the run passes at 50.0 % coverage" in message


def test_reports_row_lost_on_a_full_disk() -> None:
    fault, right = FAULTS["full-disk"], evidence()

    def struck(phase: ClaimPhase, *, reported: bool = True) -> Evidence:
        reports = right.stored.reports if reported else {0: {}}
        answer = replace(right.stored, claims={0: {0: claim(phase)}}, reports=reports)
        return replace(right, stored=answer, clients=frozenset({"c001"}))

    assert full_disk(struck(ClaimPhase.REPORTED), fault) == []
    assert full_disk(struck(ClaimPhase.RUNNING), fault) == [
        "burst 1, pair 1: its claim's last word was lost on a full disk"
    ]
    assert full_disk(struck(ClaimPhase.RUNNING, reported=False), fault) == [
        "burst 1, pair 1: its report was lost on a full disk"
    ]
    assert full_disk(struck(ClaimPhase.RUNNING), SOME) == []


def full_disk(observed: Evidence, fault: Fault) -> list[str]:
    return [violation for violation in violations(observed, fault) if "full disk" in violation]


def server_record(
    seconds: int, *, from_s: float, cookie: str | None = None, second_bytes: int = 1000
) -> TestSeconds:
    """Return what the server has recorded for the client with the fault."""
    test = ServerTest(
        agent_id="s001",
        endpoint=Endpoint(agent_id="s001", address="198.19.0.1", port=5201),
        client_address="198.18.0.1",
        started_at=datetime.fromtimestamp(from_s, UTC),
        ended_at=datetime.fromtimestamp(from_s + seconds, UTC),
        engine=EngineReport(engine="iperf3", cookie=cookie),
    )
    intervals = tuple(
        Interval(start_s=float(index), end_s=index + 1.0, transferred_bytes=second_bytes)
        for index in range(seconds)
    )
    track = Track(side=Side.SERVER, flow=Flow.UP, first_data_at_s=from_s, intervals=intervals)
    return TestSeconds(test=test, tracks=(track,))


def test_reports_traffic_after_the_lease() -> None:
    fault = FAULTS["control-cut"]
    right = evidence()
    silent = server_record(10, from_s=right.struck_at_s)
    assert violations(replace(right, tests=(silent,)), fault) == []
    loud = server_record(14, from_s=right.struck_at_s)
    assert violations(replace(right, tests=(loud,)), fault) == ["sent 14.0 s after it was cut off"]
    assert violations(replace(right, tests=(loud,)), SOME) == []
    # If the client was armed, bytes sent before the recovery are counted as well.
    after_recovery = server_record(16, from_s=right.struck_at_s + 4.6)
    assert violations(replace(right, tests=(after_recovery,)), fault) == [
        "sent 19.6 s after it was cut off"
    ]


def test_reports_different_byte_counts_of_both_ends() -> None:
    right = evidence()
    report = right.stored.reports[0][0]
    assert report.engine is not None
    total = FlowTotals(flow=Flow.UP, sent_bytes=3000, received_bytes=3000)
    engine = report.engine.model_copy(update={"cookie": "c", "totals": (total,)})
    reports = {0: {0: report.model_copy(update={"engine": engine})}}
    changed = replace(right.stored, reports=reports)
    start_s = right.struck_at_s
    same = replace(right, stored=changed, tests=(server_record(3, from_s=start_s, cookie="c"),))
    assert violations(same, SOME) == []
    less = replace(same, tests=(server_record(2, from_s=start_s, cookie="c"),))
    [message] = violations(less, SOME)
    assert message.endswith("the client says 3000 bytes arrived, the server recorded 2000")
    for version, streams_count, block_bytes, known in (
        ("3.16", 2, 1000, True),
        # There is one block for each stream.
        ("3.18", 2, 500, True),
        ("3.16", 1, 500, False),
        # Not a multiple of the block size.
        ("3.16", 4, 300, False),
        ("3.15", 2, 1000, False),
        (None, 2, 1000, False),
    ):
        fields = {"version": version, "streams_count": streams_count, "block_bytes": block_bytes}
        blocks = {0: {0: report.model_copy(update={"engine": engine.model_copy(update=fields)})}}
        late = replace(less, stored=replace(less.stored, reports=blocks))
        assert (violations(late, SOME) == []) is known
        more = replace(late, tests=(server_record(4, from_s=start_s, cookie="c"),))
        assert violations(more, SOME) != [], "the server recorded more than arrived"
    [message] = (
        violation
        for violation in violations(same, FAULTS["nothing"])
        if "without a" not in violation
    )
    assert message == "only 1 tests have an account of their bytes from both ends"


def connection(at_s: float, client: str, server: str, payload_bytes: int = 90_000) -> Connection:
    return Connection(
        client=client, client_port=1, server=server, first_at_s=at_s, payload_bytes=payload_bytes
    )


def fired(*, more: tuple[Connection, ...]) -> list[str]:
    """Return the violations when these connections are added to a run."""
    right = evidence()
    start_s = right.struck_at_s
    expected = [connection(start_s, f"10.1.1.{n}", f"10.2.1.{n}") for n in (1, 2, 3)]
    control = [connection(start_s - 0.9, "10.1.1.1", "10.2.1.1", 900)]
    wire = (*expected, *control, *more)
    return violations(replace(right, watched=True, connections=wire), SOME)


def test_reports_duplicate_test_of_a_pair() -> None:
    start_s = evidence().struck_at_s
    assert fired(more=()) == []
    again = connection(start_s + 4, "10.1.1.1", "10.2.1.1")
    assert fired(more=(again,)) == [
        "burst 1: the firewall saw 2 tests from 10.1.1.1, not one",
        "burst 1: the firewall saw 2 tests to 10.2.1.1, not one",
    ]
    by_the_standby = connection(start_s + 4, "10.1.1.4", "10.2.1.1")
    assert fired(more=(by_the_standby,)) == [
        "burst 1: the firewall saw 2 tests to 10.2.1.1, not one"
    ]
    early = connection(start_s - EARLY_S - 0.1, "10.1.1.4", "10.2.1.4")
    assert fired(more=(early,)) == [
        "the firewall saw 1 tests from 10.1.1.4 before the first burst",
        "the firewall saw 1 tests to 10.2.1.4 before the first burst",
    ]


def test_reports_duplicate_server_test_without_report() -> None:
    right = evidence()
    loud = server_record(3, from_s=right.struck_at_s, second_bytes=20_000)
    assert violations(replace(right, tests=(loud,)), SOME) == []
    again = server_record(3, from_s=right.struck_at_s + 4, second_bytes=20_000)
    assert violations(replace(right, tests=(loud, again)), SOME) == [
        "burst 1: the servers saw 2 tests from 198.18.0.1, not one",
        "burst 1: the servers saw 2 tests to 198.19.0.1, not one",
    ]


def test_reports_missing_evidence_and_high_memory() -> None:
    right = evidence()
    [message] = violations(replace(right, unseen_count=7), SOME)
    assert message.startswith("7 packets were not looked at")
    [message] = violations(replace(right, watched=True), SOME)
    assert "the rule had nothing to look at" in message
    [message] = violations(replace(right, peak_bytes=401_000_000), SOME)
    assert message == "the coordinator took 401 MB of memory"
    assert violations(replace(right, peak_bytes=400_000_000), SOME) == []


# Table ------------------------------------------------------------------------------------------


def test_result_table_has_outcome_verdict_and_rules() -> None:
    fine = Result(
        fault="poison",
        phase="armed",
        bursts=("2 measured", "1 lost"),
        verdict="pass",
        peak_bytes=150_000_000,
    )
    bad = replace(fine, phase="running", verdict="none", note="n", broken=("a rule",))
    assert RESULT.validate_json(RESULT.dump_json(fine)) == fine
    lines = text([fine, bad]).splitlines()
    assert " ".join(lines[0].split()) == "azure poison/armed 2 measured / 1 lost pass ok 150 MB"
    assert lines[2].strip() == "BROKEN a rule"
    assert markdown([fine, bad]).splitlines()[:3] == [
        "| fault | armed | running |",
        "| --- | --- | --- |",
        "| poison | 2 measured / 1 lost; pass; ok | 2 measured / 1 lost [n]; none; BROKEN |",
    ]


def test_last_chapter_of_the_docs_is_replaced() -> None:
    fine = Result(fault="poison", phase="armed", bursts=("2 measured",), verdict="pass")
    hosts = replace(fine, fabric="http", peak_bytes=130_000_000)
    document = chapter("# Faults\n\n## The table\n\nold\n", [hosts, fine], "today")
    assert document.startswith(
        "# Faults\n\n## The table\n\n### Any hosts: agents over HTTPS\n\n"
        "today The coordinator took at most 130 MB of memory.\n\n| fault | armed |\n"
    )
    assert "\n### Azure: Service Bus" in document
    later = chapter(document, [replace(hosts, verdict="fail")], "tomorrow")
    assert later.count("| poison | 2 measured; pass; ok |") == 1, "the Azure row must be unchanged"
    assert later.count("| poison | 2 measured; fail; ok |") == 1
    assert chapter(later, [hosts], "today") == document
    assert "\n| poison | 2 measured; pass; ok |\n" in document
    assert all(f"| {name} | {fault.description} |" in document for name, fault in FAULTS.items())
    with pytest.raises(ValueError, match="no chapter"):
        chapter("# Faults\n", [fine], "today")


@pytest.mark.parametrize("missed_count", [0, 2, 3])
def test_missed_phase_is_retried(missed_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Cell] = []

    def try_cell(_site: object, target: Cell) -> Result:
        tried.append(target)
        if len(tried) <= missed_count:
            raise cell.PhaseMissed("the first job was past running unseen")
        return Result(fault=target[0], phase=target[1].value)

    monkeypatch.setattr(cell, "_try_cell", try_cell)
    monkeypatch.setattr(cell, "_clear_away", lambda _site: None)
    site = SimpleNamespace(name="azure")
    result = cell.run_cell(site, ("sigkill", Phase.RUNNING))  # type: ignore[arg-type]
    assert len(tried) == min(missed_count + 1, cell.TRIES_MAX)
    assert bool(result.broken) == (missed_count >= cell.TRIES_MAX)
