import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.core.measure.engine_metrics import find, measure_pairs
from broadside.coordinator.core.measure.grid.align import align
from broadside.coordinator.core.measure.records.columns import NO_HOST
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.measure.records.server_tests import Summed, join_tests
from broadside.coordinator.core.measure.requested_vs_effective import find_setting_differences
from broadside.coordinator.core.plan.planner import Infeasible, plan
from broadside.coordinator.core.run_spec import Burst, Pair, Plan, RunSpec
from broadside.coordinator.core.summary import MatchMethod, Verdict
from broadside.exchange.engines.iperf3_text import read_any
from broadside.exchange.messages import (
    BUCKET_RATIO,
    Aggregation,
    Direction,
    Distribution,
    Endpoint,
    EngineReport,
    EngineState,
    Flow,
    FlowTotals,
    JobReport,
    Measure,
    Pacing,
    Presence,
    Role,
    ServerTest,
    Side,
    Traffic,
)
from tests.judged import judged_burst
from tests.unit.coordinator.core.records import job_report, seconds
from tests.unit.coordinator.presences import NOW, presence

RECORDINGS = Path(__file__).parents[3] / "data" / "iperf3" / "3.22"
BURST = Burst(index=0, planned_start_at=NOW.replace(microsecond=0), duration_s=10)
T0_S = BURST.planned_start_at.timestamp()


def spec(**changes: Any) -> RunSpec:
    return RunSpec.model_validate({"scenario": "test", "pairs_count": 2} | changes)


# Launch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"objective": {"loss_max_ratio": 0.01}},
            "objective.loss_max_ratio: iperf3 over tcp does not measure it",
        ),
        (
            {"traffic": {"engine": "smtp"}},
            "traffic.engine: 'smtp' is none that this Broadside knows",
        ),
    ],
)
def test_rejects_invalid_combination_and_names_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(scenarios.BadScenario) as caught:
        scenarios.build({"scenario": "test"} | changes)
    assert message in str(caught.value)


def test_reads_stored_run_that_breaks_newer_launch_rules() -> None:
    """Launch rules can be added in later versions, but stored runs must still load."""
    requested = spec(
        traffic={"engine": "smtp", "probe": "udp"},
        objective={"loss_max_ratio": 0.01},
        bursts_count=2,
        burst_s=30,
        period_s=31,
    )
    assert [problem.partition(":")[0] for problem in requested.problems()] == [
        "traffic.engine",
        "objective.loss_max_ratio",
        "period_s",
    ]
    stored = Plan(run_id="r1", created_at=NOW, spec=requested, pairs=(PAIR,), bursts=(BURST,))
    assert Plan.model_validate_json(stored.model_dump_json()) == stored


def test_period_includes_time_for_request_timeouts() -> None:
    fields = {"bursts_count": 2, "burst_s": 30, "period_s": 37}
    assert spec(**fields).problems() == ()
    http = {"engine": "http", "options": {"timeout_s": 7.5}}
    (short,) = spec(**fields, traffic=http).problems()
    assert short.startswith("period_s: 37 s is too short for bursts of 30 s (omit_s 0 s, up to 7.5")
    assert short.endswith("set at least 43 s")
    (probed,) = spec(**fields, traffic=http | {"probe": "udp"}).problems()
    # The last probe returns during this time.
    assert probed == short


def test_accepts_thresholds_on_measured_metrics() -> None:
    objective = {"success_min_ratio": 0.99, "latency_p99_max_s": 0.5}
    assert spec(traffic={"engine": "http"}, objective=objective).objective.success_min_ratio == 0.99
    udp = {"protocol": "udp", "stream_bits_per_second": 5}
    assert spec(traffic=udp, objective={"loss_max_ratio": 0.1}).objective.loss_max_ratio == 0.1


def engine_fleet(*, client: EngineState | None, server: EngineState | None) -> list[Presence]:
    def states(state: EngineState | None) -> tuple[EngineState, ...]:
        return () if state is None else (state,)

    return [
        presence(role, index, engines=states(client if role is Role.CLIENT else server))
        for role in Role
        for index in (1, 2)
    ]


def test_pairs_use_ports_of_requested_engine() -> None:
    client = EngineState(name="https", version="vegeta 12.13.0")
    server = EngineState(name="https", ports=(8443, 8444), self_signed=True)
    made = plan(
        spec(traffic={"engine": "https"}), engine_fleet(client=client, server=server), NOW, "r1"
    )
    assert {pair.endpoint.port for pair in made.pairs} == {8443}
    assert made.warnings == ()


@pytest.mark.parametrize(
    ("client", "server", "message"),
    [
        (
            EngineState(name="https", problem="vegeta: none here; run make tools"),
            EngineState(name="https", ports=(8443,)),
            (
                "2 of 2 client agents cannot run https, and any client can take a job "
                "(client-001: vegeta: none here; run make tools"
            ),
        ),
        (
            EngineState(name="https"),
            None,
            "no server agent offers https (server-001: it does not report https",
        ),
    ],
)
def test_names_agents_without_the_requested_engine(
    client: EngineState, server: EngineState | None, message: str
) -> None:
    requested = spec(traffic={"engine": "https"})
    with pytest.raises(Infeasible) as caught:
        plan(requested, engine_fleet(client=client, server=server), NOW, "r1")
    problems = {problem.field: str(problem) for problem in caught.value.problems}
    assert message in problems["traffic.engine"]


def test_pair_gets_one_port_per_process() -> None:
    servers = [presence(Role.SERVER, index, ports=(1, 2, 3, 4, 5)) for index in (1, 2)]
    clients = [presence(Role.CLIENT, index) for index in (1, 2)]
    made = plan(spec(traffic={"processes_count": 2}), [*servers, *clients], NOW, "r1")
    ports = {(pair.endpoint.agent_id, pair.endpoint.ports) for pair in made.pairs}
    assert ports == {("server-001", (1, 2)), ("server-002", (1, 2))}
    with pytest.raises(Infeasible, match=r"0 free ports, 6 per pair \(traffic.processes_count\)"):
        plan(spec(traffic={"processes_count": 6}), [*servers, *clients], NOW, "r1")


# Server records ----------------------------------------------------------------------------------


def report(index: int, engine: EngineReport) -> JobReport:
    start_at = BURST.planned_start_at
    return job_report(index, start_at, first_data_at=start_at, engine=engine)


def served(port: int, cookie: str | None, first_s: float = 0.0) -> Summed:
    started_at = BURST.planned_start_at + timedelta(seconds=first_s)
    total = FlowTotals(flow=Flow.UP, received_bytes=10_000, received_s=10.0)
    return Summed(
        test=ServerTest(
            agent_id="s1",
            endpoint=Endpoint(agent_id="s1", address="10.2.0.4", port=port),
            started_at=started_at,
            first_data_at=started_at,
            ended_at=BURST.planned_end_at,
            engine=EngineReport(
                engine="iperf3",
                cookie=cookie,
                totals=(total,),
                cpu_s=0.5,
                cpu_payload_bytes=10_000,
                host_cpu_s=4.0 + port / 10,
            ),
        ),
        tracks=(seconds(Side.SERVER, started_at.timestamp(), [1000] * 10),),
        host=NO_HOST,
    )


PAIR = Pair(
    index=0, endpoint=Endpoint(agent_id="s1", address="10.2.0.4", port=1, more_ports=(2, 3))
)


@pytest.mark.parametrize("cookies", [("a", "b", "c"), (None, None, None), ("a", None, "c")])
def test_sums_server_tests_of_several_processes(cookies: tuple[str | None, ...]) -> None:
    tests = [
        served(port, cookie, 0.25 * port) for port, cookie in zip((1, 2, 3), cookies, strict=True)
    ]
    reported = tuple(EngineReport(engine="iperf3", cookie=cookie) for cookie in cookies)
    engine = EngineReport(engine="iperf3", cookie=cookies[0], processes=reported)
    join = join_tests(BURST, [PAIR], {}, {0: report(0, engine)}, tests)
    record = join.records[0]
    assert join.foreign_tests == ()
    assert join.joined_by[0] in (MatchMethod.COOKIE, MatchMethod.ENDPOINT)
    (track,) = record.tracks
    assert isinstance(track.transferred_bytes, np.ndarray)
    assert track.transferred_bytes.sum() == pytest.approx(30_000)
    assert track.first_data_at_s == pytest.approx(T0_S + 0.25)
    (total,) = record.test.engine.totals
    assert total.received_bytes == 30_000
    summed = record.test.engine
    assert (summed.cpu_s, summed.cpu_payload_bytes) == (1.5, 30_000)
    # All tests run on one host, so CPU time is not added.
    assert summed.host_cpu_s == 4.3


def test_does_not_join_part_of_the_processes() -> None:
    engine = EngineReport(engine="iperf3", cookie="a")
    join = join_tests(BURST, [PAIR], {}, {0: report(0, engine)}, [served(1, "a"), served(2, "b")])
    assert join.records == {}


# Measures and differences ------------------------------------------------------------------------


def burst_of(*engines: EngineReport, flow: Flow = Flow.DOWN) -> BurstEvidence:
    return BurstEvidence(
        burst=BURST,
        pairs=tuple(
            PairEvidence(
                pair_index=index,
                report=report(index, engine),
                client_tracks=(seconds(Side.CLIENT, T0_S, [1_000_000] * 10, flow=flow),),
            )
            for index, engine in enumerate(engines)
        ),
    )


def http_report(good_count: int, latency_s: float) -> EngineReport:
    bucket = math.floor(math.log(latency_s, BUCKET_RATIO))
    return EngineReport(
        engine="http",
        measures=(
            Measure(name="requests_count", value=100, unit="count"),
            Measure(
                name="success_ratio",
                value=good_count / 100,
                unit="ratio",
                combine=Aggregation.MEAN,
                weight=100,
            ),
        ),
        distributions=(
            Distribution(name="latency", unit="s", counts={bucket: good_count}, max=latency_s),
        ),
    )


def test_sums_measures_and_computes_quantiles_over_all_requests() -> None:
    evidence = burst_of(http_report(100, 0.010), http_report(50, 1.0))
    result = measure_pairs(align(evidence, Direction.REVERSE))
    values = {measure.name: measure.value for measure in result}
    assert values["requests_count"] == 200
    assert values["success_ratio"] == 0.75
    assert values["latency_p50"] == pytest.approx(0.010, rel=0.023)
    assert values["latency_p90"] == pytest.approx(1.0, rel=0.023)
    assert values["latency_max"] == 1.0
    reported = find(result, "latency_p99")
    assert reported is not None
    assert (reported.unit, reported.pairs_count) == ("s", 2)


@pytest.mark.parametrize(
    ("goal", "verdict", "finding"),
    [
        ({"success_min_ratio": 0.9}, Verdict.FAIL, "success-ratio-limit"),
        ({"latency_p99_max_s": 0.5}, Verdict.FAIL, "latency-p99-limit"),
        ({"success_min_ratio": 0.7, "latency_p99_max_s": 2}, Verdict.PASS, "no-target"),
    ],
)
def test_compares_measures_with_thresholds(
    goal: dict[str, float], verdict: Verdict, finding: str
) -> None:
    requested = spec(traffic={"engine": "http"}, objective=goal, burst_s=10)
    evidence = burst_of(http_report(100, 0.010), http_report(50, 1.0))
    summary = judged_burst(
        requested, evidence, None, NOW + timedelta(minutes=5), clocks_promised=False
    )
    assert finding in [result.id for result in summary.findings]
    assert summary.verdict is verdict
    assert find(summary.measures, "requests_count") is not None


def test_threshold_is_unproven_if_a_pair_did_not_report_it() -> None:
    requested = spec(traffic={"engine": "http"}, objective={"success_min_ratio": 0.5}, burst_s=10)
    evidence = burst_of(http_report(100, 0.010), EngineReport(engine="http"))
    summary = judged_burst(requested, evidence, None, NOW + timedelta(minutes=5))
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert "success-ratio-unproven" in [finding.id for finding in summary.findings]


def test_reports_jitter_by_flow() -> None:
    def report_with_jitter(jitter_s: float) -> EngineReport:
        total = FlowTotals(flow=Flow.UP, received_bytes=5, received_s=1.0, jitter_s=jitter_s)
        return EngineReport(engine="iperf3", totals=(total,))

    result = measure_pairs(
        align(
            burst_of(report_with_jitter(0.001), report_with_jitter(0.003), flow=Flow.UP),
            Direction.FORWARD,
        )
    )
    assert [(m.name, m.value, m.unit) for m in result] == [("jitter_up", 0.002, "s")]


def test_reports_settings_that_differ_from_the_request() -> None:
    traffic = Traffic(streams_count=8, window_bytes=400_000, congestion="bbr", dscp=46)
    as_requested = EngineReport(
        engine="iperf3",
        streams_count=8,
        duration_s=10,
        window_bytes=400_000,
        sender_congestion="bbr",
        tos=184,
    )
    clamped = as_requested.model_copy(
        update={"window_bytes": 212_992, "sender_congestion": "cubic"}
    )
    aligned = align(burst_of(as_requested, clamped, clamped, flow=Flow.UP), Direction.FORWARD)
    by_name = {one.field: one for one in find_setting_differences(traffic, 10, aligned)}
    assert set(by_name) == {"window_bytes", "congestion"}
    assert str(by_name["window_bytes"]) == (
        "window_bytes: 400000 requested, 212992 used by 2 pairs (pair-002, pair-003)"
    )
    silent = align(burst_of(EngineReport(engine="iperf3"), flow=Flow.UP), Direction.FORWARD)
    assert find_setting_differences(traffic, 10, silent) == ()


def test_reports_requested_segment_size_only_if_iperf3_dropped_it() -> None:
    """With ``--set-mss`` iperf3 repeats the request. Without it, the control connection is used."""
    requested = Traffic(mss_bytes=1000)
    for recording, result in (("tcp-opts", ()), ("tcp-P2", (("1000", "1448"),))):
        text = (RECORDINGS / f"{recording}.json").read_bytes()
        engine = read_any(text).report
        reported = EngineReport(engine="iperf3", mss_bytes=engine.mss_bytes)
        aligned = align(burst_of(reported, flow=Flow.UP), Direction.FORWARD)
        setting_differences = find_setting_differences(requested, 10, aligned)
        assert (
            tuple(
                (one.requested, one.effective)
                for one in setting_differences
                if one.field == "mss_bytes"
            )
            == result
        )


def test_assumes_header_overhead_for_requested_segment_size() -> None:
    engine = EngineReport(engine="iperf3")
    requested = spec(traffic={"mss_bytes": 9000}, burst_s=10)
    evidence = burst_of(engine, flow=Flow.UP)
    summary = judged_burst(requested, evidence, None, NOW + timedelta(minutes=5))
    assert summary.header_ratio == pytest.approx(1500 / 1448, abs=1e-6)
    assert summary.headers_assumed
    jumbo = replace(
        evidence, pairs=tuple(replace(pair, nic_mtu_bytes=9000) for pair in evidence.pairs)
    )
    summary = judged_burst(requested, jumbo, None, NOW + timedelta(minutes=5))
    assert summary.header_ratio == pytest.approx(9000 / 8948, abs=1e-6)


@pytest.mark.parametrize(
    ("mss_bytes", "changes", "most"),
    [(1460, {}, None), (1461, {}, 1460), (1411, {"encapsulation": "vxlan"}, 1410)],
)
def test_warns_if_segment_size_exceeds_mtu_of_nics(
    mss_bytes: int, changes: dict[str, Any], most: int | None
) -> None:
    def made(**fields: Any) -> Plan:
        agents = [
            presence(
                role, index, tunnels=True, **(fields if index == 2 else {"nic_mtu_bytes": 9000})
            )
            for role in Role
            for index in (1, 2)
        ]
        return plan(spec(traffic={"mss_bytes": mss_bytes, **changes}), agents, NOW, "r1")

    lines = [warning for warning in made(nic_mtu_bytes=1500).warnings if "mss_bytes" in warning]
    if most is None:
        assert lines == []
    else:
        (parts,) = lines
        assert parts.startswith(f"traffic.mss_bytes: {mss_bytes} is above {most}, the largest")
        assert "client-002" in parts
        assert parts.endswith(f"request at most {most}")
    assert {pair.nic_mtu_bytes for pair in made(nic_mtu_bytes=1500).pairs} == {1500}
    unknown = made(nic_mtu_bytes=None)
    assert not any("mss_bytes" in warning for warning in unknown.warnings)
    assert {pair.nic_mtu_bytes for pair in unknown.pairs} == {None}


def test_compares_settings_of_every_process_with_the_request() -> None:
    traffic = Traffic(
        streams_count=8,
        processes_count=2,
        congestion="bbr",
        stream_bits_per_second=1000,
        pacing=Pacing.KERNEL,
    )
    good = EngineReport(
        engine="iperf3",
        streams_count=4,
        sender_congestion="bbr",
        stream_bits_per_second=1000,
        pacing=Pacing.KERNEL,
    )
    changes = {"sender_congestion": "cubic", "pacing": Pacing.ENGINE}
    bad = good.model_copy(update=changes)
    complete = good.model_copy(update={"streams_count": 8, "processes": (good, bad)})
    aligned = align(burst_of(complete, flow=Flow.UP), Direction.FORWARD)
    by_name = {
        one.field: (one.requested, one.effective)
        for one in find_setting_differences(traffic, 10, aligned)
    }
    assert by_name == {"congestion": ("bbr", "cubic"), "pacing": ("kernel", "engine")}
    alone = align(burst_of(good.model_copy(update={"streams_count": 8})), Direction.REVERSE)
    (one,) = find_setting_differences(traffic, 10, alone)
    assert str(one) == "processes_count: 2 requested, 1 used by 1 pairs (pair-001)"


def test_setting_difference_is_a_finding() -> None:
    engine = EngineReport(engine="iperf3", streams_count=4, direction=Direction.REVERSE)
    requested = spec(traffic={"streams_count": 8, "direction": "reverse"}, burst_s=10)
    summary = judged_burst(requested, burst_of(engine), None, NOW + timedelta(minutes=5))
    (finding,) = [result for result in summary.findings if result.id == "engine-differs"]
    assert "streams_count: 8 requested, 4 used by 1 pairs (pair-001)" in finding.sentence


@pytest.mark.parametrize(
    ("traffic", "fix"),
    [
        ({"stream_bits_per_second": 50_000}, "block_bytes to at most 6250"),
        ({"stream_bits_per_second": 1_000_000, "block_bytes": 1_048_576}, "at most 125000"),
        ({"stream_bits_per_second": 100}, "set at least 128, and traffic.block_bytes=16"),
    ],
)
def test_rejects_streams_that_are_idle_longer_than_the_timeout(
    traffic: dict[str, int], fix: str
) -> None:
    """iperf3 closes the test if it receives no data for 10 seconds."""
    (problem,) = spec(traffic=traffic).problems()

    assert problem.startswith("traffic.stream_bits_per_second: at ")
    assert fix in problem


def test_checks_stream_rate_after_scaling() -> None:
    traffic = {"stream_bits_per_second": 5_000_000}
    assert spec(traffic=traffic).problems() == ()

    (problem,) = spec(traffic=traffic, scale=100).problems()

    assert problem.startswith("traffic.stream_bits_per_second: at 50000 bit/s")


@pytest.mark.parametrize(
    "traffic",
    [
        {"stream_bits_per_second": 50_000, "block_bytes": 6_250},
        {"stream_bits_per_second": 50_000, "pacing": "kernel"},
        {"stream_bits_per_second": 50_000, "protocol": "udp"},
    ],
)
def test_accepts_slow_streams_that_write_often_enough(traffic: dict[str, object]) -> None:
    assert spec(traffic=traffic).problems() == ()
