"""The matrix of faults: which cells are asked for, when a phase has come, and what rules see."""

import socket
import struct
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
from broadside.exchange.messages import Phase as Told
from broadside.exchange.second_rows import TestSeconds
from broadside.lab.ledger import parse_ledger
from tests.faults import cell
from tests.faults.__main__ import RESULT, chapter, markdown, text
from tests.faults.cell import Result
from tests.faults.fired_tests import PORT, Connection, Wire
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
ASKED = {  # the rows that there must be, whatever else there is
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


def claim(phase: Told, *, armed: bool = False) -> Claim:
    return Claim(
        job_id="j",
        agent_id="c001",
        phase=phase,
        claimed_at=AT,
        armed_at=AT if armed else None,
        running_at=AT if phase is Told.RUNNING else None,
    )


def test_every_fault_meets_every_phase() -> None:
    assert FAULTS.keys() >= ASKED
    assert len(CELLS) == len(set(CELLS)) == len(FAULTS) * 4
    assert set(CORE) <= set(CELLS)


def test_cells_are_chosen_by_fault_by_phase_or_by_both() -> None:
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
    with pytest.raises(ValueError, match="write FAULT/PHASE"):  # its agents share files
        chosen("control-cut/armed", "embedded")


@pytest.mark.parametrize(
    ("phase", "found", "come"),
    [
        (Phase.BEFORE_CLAIM, None, True),
        (Phase.BEFORE_CLAIM, claim(Told.CLAIMED), False),
        (Phase.ARMED, claim(Told.CLAIMED), False),
        (Phase.ARMED, claim(Told.ARMED, armed=True), True),
        (Phase.RUNNING, claim(Told.ARMED, armed=True), False),
        (Phase.RUNNING, claim(Told.RUNNING, armed=True), True),
        (Phase.REPORTING, None, False),
        (Phase.REPORTING, claim(Told.RUNNING, armed=True), True),
    ],
)
def test_a_phase_is_told_by_the_claim(phase: Phase, found: Claim | None, come: bool) -> None:
    now_s = AT.timestamp() + 2.0
    assert has_come(phase, found, now_s=now_s) is come


def test_a_wrong_clock_before_the_claim_stays_wrong_until_the_job_is_armed() -> None:
    fault = FAULTS["clock-step"]
    assert LEAD_BEFORE_CLAIM_S - 5 < fault.lasting_s(Phase.BEFORE_CLAIM) < LEAD_BEFORE_CLAIM_S
    assert fault.lasting_s(Phase.ARMED) == fault.lasts_s


def test_rounds_of_luck_strike_several_at_once_and_are_the_same_for_a_seed() -> None:
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


(NOTHING_COUNTED,) = parse_ledger("0,0,0,0,0,0,0,,\n")
SOME = FAULTS["poison"]  # a row with no rules of its own


def evidence(up_bytes: dict[float, int] | None = None) -> Evidence:
    """A run without a fault; ``up_bytes`` by seconds after its first planned start."""
    right = stored(Plant(pairs=3, bursts=1, ledger=False))
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
        ledger=tuple(readings),
        recomputed={"equal": True, "differences": []},
        engines_left=0,
    )


def test_a_run_without_a_fault_breaks_no_rule() -> None:
    assert violations(evidence({0: 0, 1: 500_000, 2: 500_000}), SOME) == []


def test_bytes_outside_every_burst_are_named() -> None:
    right = evidence()
    burst = right.stored.plan.bursts[0]
    after_s = burst.duration_s + 6.0
    [message] = violations(evidence({after_s: 0, after_s + 1: 90_000}), SOME)
    assert message.startswith("90000 bytes crossed the firewall outside any burst")


def loud_after(end_s: float, *, whole: bool) -> Evidence:
    """Bytes cross so long after the end of a burst that was measured whole, or was struck."""
    right = evidence()
    [burst] = right.stored.summary.bursts
    after_s = right.stored.plan.bursts[0].duration_s + end_s
    loud = evidence({after_s: 0, after_s + 0.5: 90_000})
    if whole:
        return loud
    seconds = burst.completeness.model_copy(update={"measured_s": 89, "lost_s": 1})
    struck = burst.model_copy(update={"completeness": seconds})
    summary = right.stored.summary.model_copy(update={"bursts": (struck,)})
    return replace(loud, stored=replace(loud.stored, summary=summary))


def outside(found: list[str]) -> list[str]:
    return [message for message in found if "outside any burst" in message]


def test_silence_begins_at_once_after_a_burst_that_was_measured_whole() -> None:
    fault = FAULTS["network-cut"]
    assert fault.stop_s == STOP_S > SILENT_S
    assert outside(violations(loud_after(SILENT_S + 0.1, whole=True), fault))
    assert not outside(violations(loud_after(SILENT_S + 0.1, whole=False), fault))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_bytes_between_the_bursts_are_seen_also_where_the_first_was_struck(fault: Fault) -> None:
    assert fault.gap_s - EARLY_S - fault.stop_s >= 1, "no second between the bursts is looked at"
    assert outside(violations(loud_after(fault.stop_s + 0.1, whole=False), fault))


def test_what_does_not_recompute_or_still_runs_is_named() -> None:
    wrong = replace(evidence(), recomputed={"equal": False, "differences": ["x"]}, engines_left=2)
    message = violations(wrong, SOME)
    assert message == [
        "does not recompute: ['x']",
        "2 iperf3 clients still run after the verdict",
    ]


def test_a_pass_below_the_floor_is_named() -> None:
    right = evidence()
    summary = right.stored.summary.model_copy(
        update={"verdict": Verdict.PASS, "completeness_ratio": 0.5}
    )
    message = violations(replace(right, stored=replace(right.stored, summary=summary)), SOME)
    assert "the run passes at 50.0 % coverage" in message


def test_a_row_that_a_full_disk_took_is_named() -> None:
    fault, right = FAULTS["full-disk"], evidence()

    def struck(phase: Told, *, reported: bool = True) -> Evidence:
        reports = right.stored.reports if reported else {0: {}}
        answer = replace(right.stored, claims={0: {0: claim(phase)}}, reports=reports)
        return replace(right, stored=answer, clients=frozenset({"c001"}))

    assert full_disk(struck(Told.REPORTED), fault) == []
    assert full_disk(struck(Told.RUNNING), fault) == [
        "burst 1, pair 1: its claim's last word was lost on a full disk"
    ]
    assert full_disk(struck(Told.RUNNING, reported=False), fault) == [
        "burst 1, pair 1: its report was lost on a full disk"
    ]
    assert full_disk(struck(Told.RUNNING), SOME) == []


def full_disk(found: Evidence, fault: Fault) -> list[str]:
    return [violation for violation in violations(found, fault) if "full disk" in violation]


def told_by_server(
    seconds: int, *, from_s: float, cookie: str | None = None, each_bytes: int = 1000
) -> TestSeconds:
    """A server's record of a test by the struck client."""
    test = ServerTest(
        agent_id="s001",
        endpoint=Endpoint(agent_id="s001", address="198.19.0.1", port=5201),
        client_address="198.18.0.1",
        started_at=datetime.fromtimestamp(from_s, UTC),
        ended_at=datetime.fromtimestamp(from_s + seconds, UTC),
        engine=EngineReport(engine="iperf3", cookie=cookie),
    )
    intervals = tuple(
        Interval(start_s=float(index), end_s=index + 1.0, transferred_bytes=each_bytes)
        for index in range(seconds)
    )
    track = Track(side=Side.SERVER, flow=Flow.UP, first_data_at_s=from_s, intervals=intervals)
    return TestSeconds(test=test, tracks=(track,))


def test_who_sends_on_past_the_lease_is_named() -> None:
    fault = FAULTS["control-cut"]
    right = evidence()
    silent = told_by_server(10, from_s=right.struck_at_s)
    assert violations(replace(right, tests=(silent,)), fault) == []
    loud = told_by_server(14, from_s=right.struck_at_s)
    assert violations(replace(right, tests=(loud,)), fault) == ["sent 14.0 s after it was cut off"]
    assert violations(replace(right, tests=(loud,)), SOME) == []
    # Struck when armed, it ends only after the healing: what came before that counts.
    past_healing = told_by_server(16, from_s=right.struck_at_s + 4.6)
    assert violations(replace(right, tests=(past_healing,)), fault) == [
        "sent 19.6 s after it was cut off"
    ]


def test_bytes_that_differ_between_the_ends_are_named() -> None:
    right = evidence()
    report = right.stored.reports[0][0]
    assert report.engine is not None
    total = FlowTotals(flow=Flow.UP, sent_bytes=3000, received_bytes=3000)
    engine = report.engine.model_copy(update={"cookie": "c", "totals": (total,)})
    reports = {0: {0: report.model_copy(update={"engine": engine})}}
    stored_so = replace(right.stored, reports=reports)
    start_s = right.struck_at_s
    same = replace(right, stored=stored_so, tests=(told_by_server(3, from_s=start_s, cookie="c"),))
    assert violations(same, SOME) == []
    less = replace(same, tests=(told_by_server(2, from_s=start_s, cookie="c"),))
    [message] = violations(less, SOME)
    assert message.endswith("the client says 3000 bytes arrived, the server recorded 2000")
    for version, streams_count, block_bytes, known in (
        ("3.16", 2, 1000, True),
        ("3.18", 2, 500, True),  # one a stream
        ("3.16", 1, 500, False),
        ("3.16", 4, 300, False),  # only whole ones
        ("3.15", 2, 1000, False),
        (None, 2, 1000, False),
    ):
        fields = {"version": version, "streams_count": streams_count, "block_bytes": block_bytes}
        blocks = {0: {0: report.model_copy(update={"engine": engine.model_copy(update=fields)})}}
        late = replace(less, stored=replace(less.stored, reports=blocks))
        assert (violations(late, SOME) == []) is known
        twice = replace(late, tests=(told_by_server(4, from_s=start_s, cookie="c"),))
        assert violations(twice, SOME) != [], "the server recorded more than arrived"
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
    """What is said of a run whose pairs fired once, and of these connections beside it."""
    right = evidence()
    start_s = right.struck_at_s
    usual = [connection(start_s, f"10.1.1.{n}", f"10.2.1.{n}") for n in (1, 2, 3)]
    control = [connection(start_s - 0.9, "10.1.1.1", "10.2.1.1", 900)]
    wire = (*usual, *control, *more)
    return violations(replace(right, watched=True, connections=wire), SOME)


def test_a_pair_that_fires_twice_in_a_burst_is_named_whoever_did_it() -> None:
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


def test_two_tests_on_a_servers_record_are_named_also_where_one_has_no_report() -> None:
    right = evidence()
    loud = told_by_server(3, from_s=right.struck_at_s, each_bytes=20_000)
    assert violations(replace(right, tests=(loud,)), SOME) == []
    again = told_by_server(3, from_s=right.struck_at_s + 4, each_bytes=20_000)
    assert violations(replace(right, tests=(loud, again)), SOME) == [
        "burst 1: the servers saw 2 tests from 198.18.0.1, not one",
        "burst 1: the servers saw 2 tests to 198.19.0.1, not one",
    ]


def test_evidence_with_holes_and_a_coordinator_that_grows_are_named() -> None:
    right = evidence()
    [message] = violations(replace(right, unseen_count=7), SOME)
    assert message.startswith("7 packets were not looked at")
    [message] = violations(replace(right, watched=True), SOME)
    assert "the rule had nothing to look at" in message
    [message] = violations(replace(right, peak_bytes=401_000_000), SOME)
    assert message == "the coordinator took 401 MB of memory"
    assert violations(replace(right, peak_bytes=400_000_000), SOME) == []


def packet(
    sender: str, from_port: int, receiver: str, to_port: int, payload_bytes: int, *, protocol: int
) -> bytes:
    """The headers of an IPv4 packet, with four bytes of options in each."""
    ip = struct.pack(
        "!BBHHHBBH4s4s4x",
        0x46,
        0,
        24 + 24 + payload_bytes,
        0,
        0,
        64,
        protocol,
        0,
        socket.inet_aton(sender),
        socket.inet_aton(receiver),
    )
    return ip + struct.pack("!HHIIBBHHH4x", from_port, to_port, 0, 0, 0x60, 0, 0, 0, 0)


def test_payload_is_counted_by_connection_both_ways() -> None:
    client, server = ("10.1.1.1", 40_000), ("10.2.1.1", PORT)
    with socket.socket() as tap:
        wire = Wire(tap)
        wire.see(packet(*client, *server, 0, protocol=6), 0.5)  # an acknowledgement is no payload
        wire.see(packet(*client, *server, 1000, protocol=6), 1.0)
        wire.see(packet(*server, *client, 50, protocol=6), 2.0)
        wire.see(packet(*client, *server, 70, protocol=17), 3.0)
        wire.see(packet(*client, "10.2.1.1", 80, 70, protocol=6), 3.0)
    [result] = wire.connections(0.0)
    assert (result.client, result.server, result.client_port) == ("10.1.1.1", "10.2.1.1", 40_000)
    assert (result.payload_bytes, result.first_at_s) == (1050, 1.0)
    assert wire.connections(1.5) == ()


# Table ------------------------------------------------------------------------------------------


def test_the_table_shows_outcome_verdict_and_rules() -> None:
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


def test_the_docs_last_chapter_is_written_anew() -> None:
    fine = Result(fault="poison", phase="armed", bursts=("2 measured",), verdict="pass")
    hosts = replace(fine, fabric="http", peak_bytes=130_000_000)
    written = chapter("# Faults\n\n## The table\n\nold\n", [hosts, fine], "today")
    assert written.startswith(
        "# Faults\n\n## The table\n\n### Any hosts: agents over HTTPS\n\n"
        "today The coordinator took at most 130 MB of memory.\n\n| fault | armed |\n"
    )
    assert "\n### Azure: Service Bus" in written
    later = chapter(written, [replace(hosts, verdict="fail")], "tomorrow")
    assert later.count("| poison | 2 measured; pass; ok |") == 1, "Azure's was not run, and stays"
    assert later.count("| poison | 2 measured; fail; ok |") == 1
    assert chapter(later, [hosts], "today") == written
    assert "\n| poison | 2 measured; pass; ok |\n" in written
    assert all(f"| {name} | {fault.says} |" in written for name, fault in FAULTS.items())
    with pytest.raises(ValueError, match="no chapter"):
        chapter("# Faults\n", [fine], "today")


@pytest.mark.parametrize("missed_count", [0, 2, 3])
def test_a_phase_that_passed_unseen_is_tried_again(
    missed_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Cell] = []

    def carry_out(_site: object, which: Cell) -> Result:
        tried.append(which)
        if len(tried) <= missed_count:
            raise cell.PhaseMissed("the first job was past running unseen")
        return Result(fault=which[0], phase=which[1].value)

    monkeypatch.setattr(cell, "_try_cell", carry_out)
    monkeypatch.setattr(cell, "_clear_away", lambda _site: None)
    site = SimpleNamespace(name="azure")
    result = cell.run_cell(site, ("sigkill", Phase.RUNNING))  # type: ignore[arg-type]
    assert len(tried) == min(missed_count + 1, cell.TRIES_MAX)
    assert bool(result.broken) == (missed_count >= cell.TRIES_MAX)
