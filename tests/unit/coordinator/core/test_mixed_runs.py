"""Tests for runs in which pairs send different traffic."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.core.comparison.group_comparison import Group, compare, observe
from broadside.coordinator.core.comparison.regression_gate import parse_gate
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.live.live_view import COLUMNS, full_snapshot
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.mixed import measure_parts
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.metrics import metric_by_short_name
from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.core.plan.planner import Infeasible, plan
from broadside.coordinator.core.plan.server_failover import choose_failovers
from broadside.coordinator.core.run_spec import Plan, RunSpec, TrafficShare
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.coordinator.views.part_rows import part_rows
from broadside.coordinator.views.tables.run_tables import make_tables
from broadside.exchange.messages import EngineState, Role
from tests.synthetic import Fleet, Plant, fleet
from tests.unit.coordinator.presences import NOW, presence
from tests.unit.coordinator.presences import fleet as agents

CONNECTIONS = {"engine": "connections", "options": {"attempts_per_second": 100}}


def make_spec(**changes: Any) -> RunSpec:
    mix = [{"traffic": CONNECTIONS, "pairs_count": 2}]
    return RunSpec.model_validate({"scenario": "x", "pairs_count": 5, "mix": mix} | changes)


def test_parts_have_their_traffic_pairs_and_thresholds() -> None:
    objective = {
        "target_bits_per_second": 1e9,
        "rtt_mean_max_s": 0.1,
        "connections_min_per_second": 150,
    }
    spec = make_spec(objective=objective)
    assert spec.problems() == ()
    bulk, connections = spec.parts
    assert (bulk.traffic.engine, bulk.pairs_count, bulk.mix) == ("iperf3", 3, ())
    assert (connections.traffic.engine, connections.pairs_count) == ("connections", 2)
    assert bulk.objective.target_bits_per_second == 1e9
    assert connections.objective.target_bits_per_second is None
    assert bulk.objective.connections_min_per_second is None
    assert connections.objective.connections_min_per_second == 150
    assert (bulk.objective.rtt_mean_max_s, connections.objective.rtt_mean_max_s) == (0.1, None)


def test_part_has_a_separate_name_thresholds_and_probes() -> None:
    share = {
        "name": "echo",
        "traffic": CONNECTIONS | {"probe": "udp"},
        "objective": {"probe_p99_max_s": 0.01, "success_min_ratio": 0.5},
    }
    objective = {"target_bits_per_second": 1e9, "success_min_ratio": 0.99}
    mix = [{"traffic": CONNECTIONS}, share, {"traffic": CONNECTIONS}]
    spec = make_spec(pairs_count=8, objective=objective, mix=mix)
    assert spec.problems() == ()
    assert spec.part_names == ("iperf3", "connections", "echo", "connections 3")
    bulk, storm, echo, _ = spec.parts
    assert [part.objective.success_min_ratio for part in (bulk, storm, echo)] == [None, 0.99, 0.5]
    assert [part.objective.probe_p99_max_s for part in (bulk, storm, echo)] == [None, None, 0.01]
    assert [part.objective.target_bits_per_second for part in (bulk, echo)] == [1e9, None]


def test_part_with_probes_has_an_echo_port_in_its_jobs() -> None:
    mix = [{"traffic": CONNECTIONS | {"probe": "udp"}, "pairs_count": 2}]
    with pytest.raises(Infeasible, match=r"traffic\.probe: 5 of 5 server agents"):
        make_plan(make_spec(mix=mix))
    planned = make_plan(make_spec(mix=mix), echo_port=5200)
    jobs = list(planned.jobs(planned.bursts[0]))
    assert [job.endpoint.echo_port for job in jobs] == [None, None, None, 5200, 5200]


def test_run_without_a_mix_is_its_only_part_and_stores_nothing_new() -> None:
    spec = RunSpec(scenario="x")
    assert spec.parts == (spec,)
    assert "mix" not in spec.to_json()
    assert RunSpec.model_validate_json(make_spec().to_json()) == make_spec()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs_count": 2}, "mix: it has 2 of 2 pairs, so traffic has none"),
        ({"traffic": {"omit_s": 2}}, "traffic.omit_s are not possible"),
        ({"objective": {"latency_p99_max_s": 1}}, "objective.latency_p99_max_s"),
        (
            {
                "mix": [
                    {"traffic": CONNECTIONS, "name": "storm"},
                    {"traffic": CONNECTIONS, "name": "storm"},
                ]
            },
            "mix.name: iperf3, storm, storm are not different",
        ),
        (
            {"mix": [{"traffic": CONNECTIONS, "objective": {"probe_p99_max_s": 0.1}}]},
            "mix 1: objective.probe_p99_max_s: it is not measured without probes",
        ),
        (
            {"mix": [{"traffic": {"engine": "connections", "encapsulation": "vxlan"}}]},
            "mix.traffic.encapsulation: all pairs need the same",
        ),
        (
            {"mix": [{"traffic": {"engine": "connections", "options": {"held_count": 2}}}]},
            "mix 1: traffic.options.held_count: mode connect has none",
        ),
    ],
)
def test_problems_name_the_part(changes: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in make_spec(**changes).problems())


def make_plan(spec: RunSpec, echo_port: int | None = None, **client: Any) -> Plan:
    """Plan for five servers with a port of each engine."""
    state = EngineState(name="connections", ports=(9000,))
    servers = [
        presence(Role.SERVER, index, engines=(state,), echo_port=echo_port) for index in range(1, 6)
    ]
    clients = [agent for agent in agents(5) if agent.role is Role.CLIENT]
    able = [one.model_copy(update={"engines": (state,), **client}) for one in clients]
    return plan(spec, [*servers, *able], NOW, "20261120-000000-aaaa")


def test_jobs_carry_the_traffic_of_their_pair() -> None:
    planned = make_plan(make_spec(scale=10))
    jobs = list(planned.jobs(planned.bursts[0]))
    assert [job.pair_index for job in jobs] == [0, 1, 2, 3, 4]
    assert Counter(job.traffic.engine for job in jobs) == {"iperf3": 3, "connections": 2}
    assert jobs[4].traffic.options["attempts_per_second"] == 10
    assert [job.endpoint.port for job in jobs] == [5201, 5201, 5201, 9000, 9000]
    # Each host has pairs of one part.
    assert len({job.endpoint.agent_id for job in jobs}) == 5
    assert [pair.part_index for pair in planned.pairs] == [0, 0, 0, 1, 1]
    assert Plan.read(planned.document).document == planned.document


def test_parts_of_a_plan_keep_its_seal() -> None:
    planned = make_plan(make_spec())
    bulk, connections = planned.parts
    assert [pair.index for pair in connections.pairs] == [3, 4]
    assert bulk.is_intact and connections.is_intact
    assert bulk.digest() == planned.digest()


def mixed_plan(made: Fleet) -> Plan:
    """Return the plan of a fleet of which the last two pairs are another part."""
    spec = made.plan.spec
    share = TrafficShare(traffic=spec.traffic, pairs_count=2)
    spec = spec.model_copy(update={"mix": (share,)})
    pairs = tuple(
        pair.model_copy(update={"part_index": int(pair.index >= len(made.plan.pairs) - 2)})
        for pair in made.plan.pairs
    )
    return made.plan.model_copy(update={"spec": spec, "pairs": pairs})


def summarise(made: Fleet) -> RunSummary:
    """Judge a fleet of which the last two pairs are another part."""
    mixed = mixed_plan(made)
    bursts = [measure_parts(mixed, evidence, made.now) for evidence in made.evidence]
    return summarise_run(mixed, bursts, None, made.now)


PLANTED = fleet(Plant(pairs=6, bursts=1, burst_s=30, firewall_bits_per_second=None))


def test_parts_are_measured_separately_with_one_verdict() -> None:
    summary = summarise(PLANTED)
    (burst,) = summary.bursts
    (part,) = burst.parts
    assert (burst.pairs_planned, part.summary.pairs_planned) == (4, 2)
    assert (part.engine, part.part_index) == ("iperf3", 1)
    assert [pair.pair_index for pair in part.summary.pairs] == [4, 5]
    rate, other = burst.fleet_received_bits_per_second, part.summary.fleet_received_bits_per_second
    assert rate is not None and other is not None
    assert other == pytest.approx(
        sum(pair.received_bits_per_second or 0 for pair in part.summary.pairs), rel=0.01
    )
    assert rate == pytest.approx(
        sum(pair.received_bits_per_second or 0 for pair in burst.pairs), rel=0.01
    )
    assert max(value or 0 for value in part.received_bits_per_second) > 0.9 * other
    assert summary.verdict is Verdict.MEASURED


def test_live_view_shows_every_part_and_the_seconds_of_the_first() -> None:
    mixed = mixed_plan(PLANTED)
    (evidence,) = PLANTED.evidence
    shown = full_snapshot(mixed, evidence, None, PLANTED.now)
    (final,) = summarise(PLANTED).bursts
    assert shown.figures is not None
    (part,) = shown.figures.summary.parts
    assert (part.name, part.summary.pairs, part.summary.findings) == ("iperf3 2", (), ())
    rates = part.received_bits_per_second
    assert len(rates) >= 30
    assert rates == final.parts[0].received_bits_per_second[: len(rates)]
    fleet_rates = shown.columns[COLUMNS.index("fleet_bits_per_second")]
    assert fleet_rates.mean() == pytest.approx(final.fleet_received_bits_per_second, rel=0.02)
    assert shown.cells.shape[1] == final.pairs_planned


def test_broken_part_decides_the_verdict_and_is_named() -> None:
    def lost(pair: PairEvidence) -> PairEvidence:
        return replace(pair, claim=None, report=None, server_test=None, client_tracks=())

    summary = summarise(PLANTED.told(lost, pairs=[4, 5]))
    assert summary.verdict is Verdict.INCONCLUSIVE
    named = [finding for finding in summary.findings if finding.part is not None]
    assert any(finding.id == "clock-readings-missing" for finding in named)
    assert all(finding.sentence.startswith("iperf3 2: ") for finding in named)
    assert summary.completeness_ratio > 0.99
    alone = [finding for finding in summary.findings if finding.part is None]
    assert "clock-readings-missing" not in [finding.id for finding in alone]


def test_scenario_of_a_storm_is_mixed() -> None:
    spec = scenarios.load("storm")
    assert [part.traffic.engine for part in spec.parts] == ["iperf3", "connections"]
    assert spec.problems() == ()


def test_launch_warns_of_the_flows_of_an_azure_nic() -> None:
    held = {"mode": "hold", "held_count": 600_000, "source_addresses": "all"}
    mix = [{"traffic": {"engine": "connections", "options": held}, "pairs_count": 2}]
    assert not any("500,000" in text for text in make_plan(make_spec(mix=mix)).warnings)
    azure = make_plan(make_spec(mix=mix), vm_size="Standard_D4_v4")
    limit = "600,000 connections of its VM and has 500,000"
    assert any(limit in text for text in azure.warnings)
    few = make_plan(make_spec(), vm_size="Standard_D4_v4")
    assert not any("500,000" in text for text in few.warnings)


def test_lost_server_is_replaced_by_one_with_the_engine_of_its_part() -> None:
    planned = make_plan(make_spec(pairs_count=4))
    state = EngineState(name="connections", ports=(9000, 9001))
    servers = [presence(Role.SERVER, index, engines=(state,)) for index in (1, 2, 3)]
    moves = choose_failovers(planned, [], servers, 0, NOW)
    lost = [
        pair for pair in planned.pairs if pair.endpoint.agent_id in ("server-004", "server-005")
    ]
    assert [move.pair_index for move in moves] == [pair.index for pair in lost]
    assert {move.endpoint.port for move in moves} <= {9000, 9001}


def test_comparison_has_the_metrics_of_every_part() -> None:
    summary = summarise(PLANTED)
    group = Group(name="x", observations=tuple(observe(burst) for burst in summary.bursts))
    comparison = compare(group, group)
    names = [metric.name for metric in comparison.metrics]
    assert names.index("received_bits_per_second") < names.index(
        "iperf3 2/received_bits_per_second"
    )
    part = next(
        one for one in comparison.metrics if one.name == "iperf3 2/received_bits_per_second"
    )
    assert part.a_mean == summary.bursts[0].parts[0].summary.fleet_received_bits_per_second
    assert metric_by_short_name(part.name).label == "iperf3 2: fleet received"
    gate = parse_gate("iperf3 2/received_bits_per_second < -3%")
    assert gate.figure == "iperf3 2/received_bits_per_second"


def test_tables_have_the_rows_and_seconds_of_every_part() -> None:
    summary = summarise(PLANTED)
    tables = {
        name: {column.name: list(column.values) for column in columns}
        for name, columns in make_tables(summary, []).items()
    }
    assert tables["bursts"]["part"] == ["iperf3", "iperf3 2"]
    assert tables["bursts"]["pairs_planned"] == [4, 2]
    assert tables["pairs"]["part"] == ["iperf3"] * 4 + ["iperf3 2"] * 2
    (part,) = summary.bursts[0].parts
    seconds = tables["parts"]
    assert set(seconds["part"]) == {"iperf3 2"}
    assert len(seconds["at"]) == len(part.received_bits_per_second)
    rows = part_rows(summary)
    assert [(row[1], *row[5:7]) for row in rows] == [
        ("iperf3", "4 of 4", "100.0 %"),
        ("iperf3 2", "2 of 2", "100.0 %"),
    ]


def test_price_is_that_of_all_parts() -> None:
    paced = {"stream_bits_per_second": 1_000_000, "streams_count": 1}
    downloads = {"engine": "https", "options": {"requests_per_second": 10, "body_bytes": 1000}}
    mix = [{"traffic": downloads, "pairs_count": 2}]
    spec = make_spec(traffic=paced, mix=mix)
    usage = expect_usage(spec, [])
    alone = [expect_usage(part, []).rate.value or 0.0 for part in spec.parts]
    assert usage.rate.value == pytest.approx(sum(alone))
    assert alone[0] > 3e6 > alone[1] > 2 * 10 * 1000 * 8
    assert usage.rate_how.startswith("iperf3: 3 pairs") and "; https: 2 pairs" in usage.rate_how
    unpaced = make_spec(mix=mix)
    assert expect_usage(unpaced, []).rate.value is None


def test_bytes_of_a_burst_are_those_of_all_parts() -> None:
    mixed = mixed_plan(PLANTED)
    (evidence,) = PLANTED.evidence
    all_parts = measure_parts(mixed, evidence, PLANTED.now)
    alone = measure_burst(PLANTED.plan.spec, evidence, PLANTED.now)
    assert all_parts.payload_bytes == pytest.approx(alone.payload_bytes, rel=0.01)
    assert all_parts.series.payload_bytes < 0.8 * all_parts.payload_bytes


def test_counter_of_a_device_is_compared_with_all_parts() -> None:
    made = fleet(Plant(pairs=6, bursts=1, burst_s=60))
    mixed = mixed_plan(made)
    bursts = [measure_parts(mixed, evidence, made.now) for evidence in made.evidence]
    (burst,) = summarise_run(mixed, bursts, made.device_counter, made.now).bursts
    counter = burst.reconciliation
    assert counter is not None and counter.residual_ratio is not None
    assert abs(counter.residual_ratio) < 0.05
    assert counter.overlapping_run_ids == ()
