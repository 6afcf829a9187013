"""Tests for runs in which pairs send different traffic."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.mixed import measure_parts
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.plan.planner import plan
from broadside.coordinator.core.plan.server_failover import choose_failovers
from broadside.coordinator.core.run_spec import Plan, RunSpec, TrafficShare
from broadside.coordinator.core.summary import RunSummary, Verdict
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


def test_run_without_a_mix_is_its_only_part_and_stores_nothing_new() -> None:
    spec = RunSpec(scenario="x")
    assert spec.parts == (spec,)
    assert "mix" not in spec.to_json()
    assert RunSpec.model_validate_json(make_spec().to_json()) == make_spec()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs_count": 2}, "mix: its 2 pairs leave none of 2 for traffic"),
        ({"traffic": {"omit_s": 2}}, "traffic.omit_s are not possible"),
        ({"objective": {"latency_p99_max_s": 1}}, "objective.latency_p99_max_s"),
        (
            {"mix": [{"traffic": {"engine": "connections", "probe": "udp"}}]},
            "mix.traffic.probe: only traffic can have probes",
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


def make_plan(spec: RunSpec, **client: Any) -> Plan:
    """Plan for five servers with a port of each engine."""
    state = EngineState(name="connections", ports=(9000,))
    servers = [presence(Role.SERVER, index, engines=(state,)) for index in range(1, 6)]
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


def summarise(made: Fleet) -> RunSummary:
    """Judge a fleet of which the last two pairs are another part."""
    spec = made.plan.spec
    share = TrafficShare(traffic=spec.traffic, pairs_count=2)
    spec = spec.model_copy(update={"mix": (share,)})
    pairs = tuple(
        pair.model_copy(update={"part_index": int(pair.index >= len(made.plan.pairs) - 2)})
        for pair in made.plan.pairs
    )
    mixed = made.plan.model_copy(update={"spec": spec, "pairs": pairs})
    bursts = [measure_parts(mixed, evidence, made.now) for evidence in made.evidence]
    return summarise_run(mixed, bursts, None, made.now)


PLANTED = fleet(Plant(pairs=6, bursts=1, burst_s=30, firewall_bits_per_second=None))


def test_parts_are_measured_apart_with_one_verdict() -> None:
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


def test_broken_part_decides_the_verdict_and_is_named() -> None:
    def lost(pair: PairEvidence) -> PairEvidence:
        return replace(pair, claim=None, report=None, server_test=None, client_tracks=())

    summary = summarise(PLANTED.told(lost, pairs=[4, 5]))
    assert summary.verdict is Verdict.INCONCLUSIVE
    named = [finding for finding in summary.findings if finding.part is not None]
    assert any(finding.id == "clock-readings-missing" for finding in named)
    assert all(finding.sentence.startswith("iperf3: ") for finding in named)
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
