from datetime import timedelta

from broadside.coordinator.core.guards import FAST_PAIRS_MAX_COUNT
from broadside.coordinator.core.plan.planner import PRESENCE_STALE_S, plan
from broadside.coordinator.core.plan.server_failover import (
    choose_failovers,
    free_servers,
    jobs_in,
    pairs_in,
    servers_since,
)
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.messages import Presence, Role, Traffic
from tests.unit.coordinator.presences import NOW, fleet, presence

PLAN = plan(
    RunSpec(scenario="soak", pairs_count=3, bursts_count=5, burst_s=10, period_s=60),
    fleet(3),
    NOW,
    "run-1",
)
LATER = NOW + timedelta(seconds=PRESENCE_STALE_S + 5)


def servers(*beating: int) -> list[Presence]:
    """Build five servers. Only these have a current heartbeat."""
    return [
        presence(Role.SERVER, index, beat_at=LATER if index in beating else NOW)
        for index in range(1, 6)
    ]


def test_moves_pair_of_silent_server_to_free_server() -> None:
    [move] = choose_failovers(PLAN, [], free_servers(servers(1, 3, 5), LATER), 2, LATER)
    assert (move.pair_index, move.left_agent_id) == (1, "server-002")
    assert move.endpoint.agent_id == "server-005"
    before, after = (pairs_in(PLAN, [move], burst) for burst in (1, 2))
    assert before == PLAN.pairs
    assert [pair.endpoint.agent_id for pair in after] == ["server-001", "server-005", "server-003"]
    assert "server-002 is not live; from burst 3 on it is replaced by server-005" in str(move)


def test_moved_pair_stays_until_new_server_is_silent() -> None:
    first = choose_failovers(PLAN, [], free_servers(servers(1, 3, 5), LATER), 1, LATER)
    assert choose_failovers(PLAN, first, free_servers(servers(1, 2, 3, 5), LATER), 2, LATER) == []
    [second] = choose_failovers(PLAN, first, free_servers(servers(1, 3, 4), LATER), 3, LATER)
    assert second.left_agent_id == "server-005"
    moves = [second, *first]
    assert [p.endpoint.agent_id for p in pairs_in(PLAN, moves, 3)][1] == "server-004"
    assert [servers_since(moves, burst) for burst in (0, 2, 3)] == [{}, {1: 1}, {1: 3}]


def test_superseded_jobs_equal_those_of_earlier_messages() -> None:
    # A dry run with so many pairs does not poll fast.
    spec = PLAN.spec.model_copy(update={"dry_run": True})
    pairs = [PLAN.pairs[0].model_copy(update={"index": i}) for i in range(FAST_PAIRS_MAX_COUNT + 1)]
    large = PLAN.model_copy(update={"spec": spec, "pairs": tuple(pairs)})
    [first] = choose_failovers(PLAN, [], free_servers(servers(1, 3, 5), LATER), 1, LATER)
    second = first.model_copy(update={"from_burst_index": 3, "endpoint": PLAN.pairs[2].endpoint})
    burst = large.bursts[3]
    messages = [jobs_in(large, moves, burst)[0] for moves in ([], [first], [second, first])]
    superseded = jobs_in(large, [second, first], burst)[1]
    assert superseded == [messages[0][1], messages[1][1]]
    servers_of_pair = [jobs[1].endpoint.agent_id for jobs in messages]
    assert servers_of_pair == ["server-001", "server-005", "server-003"]


def test_moves_no_pair_without_a_free_server() -> None:
    assert choose_failovers(PLAN, [], free_servers(servers(1, 3), LATER), 2, LATER) == []
    assert choose_failovers(PLAN, [], free_servers(servers(), LATER), 2, LATER) == []


def test_two_pairs_never_move_to_the_same_endpoint() -> None:
    moves = choose_failovers(PLAN, [], free_servers(servers(3, 4, 5), LATER), 2, LATER)
    assert {move.endpoint.agent_id for move in moves} == {"server-004", "server-005"}
    endpoints = [pair.endpoint for pair in pairs_in(PLAN, moves, 2)]
    assert len({(endpoint.agent_id, endpoint.port) for endpoint in endpoints}) == 3


def test_replacement_server_must_support_probes_and_tunnels() -> None:
    able = {"echo_port": 5200, "tunnels": True}
    traffic = {"probe": "udp", "encapsulation": "vxlan"}
    made = plan(
        PLAN.spec.model_copy(update={"traffic": Traffic.model_validate(traffic)}),
        [agent.model_copy(update=able) for agent in fleet(3)],
        NOW,
        "run-1",
    )
    here = [server.model_copy(update=able) for server in servers(1, 3)]

    def free_server(**changes: object) -> Presence:
        return presence(Role.SERVER, 5, beat_at=LATER, **able | changes)

    assert (
        choose_failovers(
            made, [], free_servers([*here, free_server(echo_port=None)], LATER), 2, LATER
        )
        == []
    )
    assert (
        choose_failovers(
            made, [], free_servers([*here, free_server(tunnels=False)], LATER), 2, LATER
        )
        == []
    )
    [move] = choose_failovers(made, [], free_servers([*here, free_server()], LATER), 2, LATER)
    assert move.endpoint.echo_port == 5200
    [plain] = choose_failovers(
        PLAN, [], free_servers([*servers(1, 3), free_server()], LATER), 2, LATER
    )
    assert plain.endpoint.echo_port is None
