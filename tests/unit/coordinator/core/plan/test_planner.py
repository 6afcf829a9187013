from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.plan.planner import Infeasible, PlanContext, first_start, live, plan
from broadside.coordinator.core.run_spec import CounterRequirement, RunSpec
from broadside.exchange.messages import (
    ClockReading,
    ClockSource,
    EngineState,
    Job,
    Presence,
    Role,
    Traffic,
)
from tests.unit.coordinator.presences import NOW, fleet, presence


def spec(**changes: object) -> RunSpec:
    return RunSpec.model_validate({"scenario": "test", "pairs_count": 2} | changes)


def test_spreads_pairs_over_servers_before_using_second_ports() -> None:
    servers = [presence(Role.SERVER, i, ports=(5201, 5202)) for i in (1, 2, 3)]
    clients = [presence(Role.CLIENT, i) for i in range(1, 5)]
    made = plan(spec(pairs_count=4), servers + clients, NOW, "run-1")
    ends = [(pair.endpoint.agent_id, pair.endpoint.port) for pair in made.pairs]
    assert ends == [
        ("server-001", 5201),
        ("server-002", 5201),
        ("server-003", 5201),
        ("server-001", 5202),
    ]


def test_endpoint_announced_twice_belongs_to_the_first_server() -> None:
    first, cloned = (
        presence(Role.SERVER, number, ports=ports, address="10.0.0.9", started_at=started_at)
        for number, ports, started_at in (
            (2, (5201, 5202), NOW - timedelta(hours=1)),
            (1, (5202, 5203), NOW),
        )
    )
    clients = [presence(Role.CLIENT, number) for number in range(1, 5)]
    made = plan(spec(pairs_count=3), [cloned, first, *clients], NOW, "run-1")
    ends = {(pair.endpoint.port, pair.endpoint.agent_id) for pair in made.pairs}
    assert ends == {(5201, "server-002"), (5202, "server-002"), (5203, "server-001")}
    assert any(
        "server-001 announces 10.0.0.9:5202, but server-002 announced it before" in warning
        for warning in made.warnings
    )
    with pytest.raises(Infeasible, match="3 free ports"):
        plan(spec(pairs_count=4), [cloned, first, *clients], NOW, "run-1")


@given(pairs_count=st.integers(1, 40), bursts_count=st.integers(1, 20))
def test_every_pair_has_one_job_per_burst(pairs_count: int, bursts_count: int) -> None:
    made = plan(
        spec(pairs_count=pairs_count, bursts_count=bursts_count), fleet(pairs_count), NOW, "run-1"
    )
    jobs = [job for burst in made.bursts for job in made.jobs(burst)]
    assert len({job.job_id for job in jobs}) == len(jobs) == pairs_count * bursts_count
    for burst in made.bursts:
        ends = [(job.endpoint.address, job.endpoint.port) for job in made.jobs(burst)]
        assert len(set(ends)) == pairs_count


def test_device_threshold_needs_a_telemetry_source() -> None:
    requested = spec(pairs_count=1, objective={"device_cpu_p95_max_ratio": 0.8})
    assert not requested.problems()
    with pytest.raises(Infeasible, match=r"device_cpu_p95_max_ratio: the limit is 80\.000 %, but"):
        plan(requested, fleet(1), NOW, "run-1")
    fields = {"fw-a": {"cpu_ratio", "sessions_count"}}
    assert plan(requested, fleet(1), NOW, "run-1", PlanContext(telemetry=fields)).witnesses == (
        "fw-a",
    )
    fields["lb"] = {"health_ratio", "ping_loss_ratio"}
    with pytest.raises(Infeasible, match=r"but lb has no cpu_ratio"):
        plan(requested, fleet(1), NOW, "run-1", PlanContext(telemetry=fields))


def test_lists_all_missing_resources_with_agent_problems() -> None:
    stale = presence(Role.CLIENT, 1, beat_at=NOW - timedelta(seconds=60))
    unwell = presence(Role.SERVER, 1, problem="iperf3: not found; run make setup")
    with pytest.raises(Infeasible) as caught:
        plan(spec(), [stale, unwell, presence(Role.CLIENT, 2)], NOW, "run-1")
    assert [problem.field for problem in caught.value.problems] == ["pairs_count", "pairs_count"]
    assert "0 live server agents have 0 free ports" in str(caught.value)
    assert "iperf3: not found; run make setup" in str(caught.value)
    assert "1 client agents are live" in str(caught.value)
    assert "1 without heartbeat for 15 s" in str(caught.value)


def test_names_servers_without_a_free_port() -> None:
    agents = [*fleet(1), presence(Role.CLIENT, 2), presence(Role.SERVER, 2, ports=())]
    with pytest.raises(Infeasible, match=r"1 free ports \(none at server-002\)") as caught:
        plan(spec(pairs_count=2), agents, NOW, "run-1")
    assert caught.value.problems[0].fix.startswith("wait until other runs and tests end")


def test_agent_with_stale_heartbeat_or_problem_is_not_live() -> None:
    assert live([presence(Role.CLIENT, 1, problem="no")], NOW) == []
    assert live([presence(Role.CLIENT, 1, beat_at=NOW - timedelta(seconds=16))], NOW) == []
    ahead = presence(Role.CLIENT, 1, beat_at=NOW + timedelta(seconds=16))
    assert live([ahead], NOW) == [], "an agent with a heartbeat in the future must not be live"
    assert len(live(fleet(2), NOW)) == 4


@given(period_s=st.integers(10, 3600), lead_s=st.integers(1, 600))
def test_aligned_start_is_first_period_boundary_after_lead_time(period_s: int, lead_s: int) -> None:
    start_at = first_start(
        spec(period_s=period_s, lead_s=lead_s, burst_s=1, align_to_period=True), NOW
    )
    wait_s = (start_at - NOW).total_seconds()
    assert start_at.timestamp() % period_s == 0
    assert lead_s <= wait_s < lead_s + period_s


def test_unaligned_start_is_a_full_second() -> None:
    start_at = first_start(spec(lead_s=10), NOW)
    assert start_at.microsecond == 0
    assert 10 <= (start_at - NOW).total_seconds() < 11


def test_plan_and_jobs_survive_json_round_trip() -> None:
    made = plan(spec(), fleet(2), NOW, "run-1")
    assert type(made).model_validate_json(made.model_dump_json()) == made
    job = next(made.jobs(made.bursts[0]))
    assert Job.model_validate_json(job.model_dump_json()) == job


def test_divides_paced_rate_by_scale() -> None:
    traffic = Traffic.model_validate(
        {"protocol": "udp", "streams_count": 1, "stream_bits_per_second": 1_000_000_000}
    )
    made = plan(spec(scale=100, traffic=traffic), fleet(2), NOW, "run-1")
    assert next(made.jobs(made.bursts[0])).traffic.stream_bits_per_second == 10_000_000


def test_warns_of_low_nic_rate_bad_clocks_and_missing_gate() -> None:
    agents = [
        *[presence(Role.CLIENT, i, nic_bits_per_second=10**9, gate=False) for i in (1, 2)],
        *[presence(Role.SERVER, i) for i in (1, 2)],
    ]
    agents[0] = agents[0].model_copy(update={"clock": None})
    made = plan(spec(objective={"target_bits_per_second": 180e9}), agents, NOW, "run-1")
    text = " | ".join(made.warnings)
    assert "2 clients can send at most 2 Gbit/s, which is below the target 180 Gbit/s" in text
    assert "1 client agents have a clock error above 0.05 s (client-001)" in text
    assert "2 client agents have none" in text


@pytest.mark.parametrize(("burst_s", "warned"), [(5, True), (9, True), (10, False)])
def test_warns_if_burst_is_too_short_for_an_interval(burst_s: int, warned: bool) -> None:
    requested = spec(burst_s=burst_s, objective={"target_bits_per_second": 1e9})
    for aim, text in ((requested, warned), (spec(burst_s=burst_s), False)):
        warnings = plan(aim, fleet(2), NOW, "run-1").warnings
        assert (
            any("burst_s: a verdict on a target needs 7 s" in warning for warning in warnings)
            is text
        )


@pytest.mark.parametrize(
    ("engine", "allowed", "promised", "warned"),
    [
        ("ftp", 0.05, True, True),
        ("ftp", 0.08, True, False),
        ("ftp", 0.05, False, False),
        ("iperf3", 0.05, True, False),
    ],
)
def test_warns_if_device_counter_cannot_agree(
    engine: str, allowed: float, promised: bool, warned: bool
) -> None:
    traffic = {"engine": engine, "streams_count": 1}
    requested = spec(traffic=traffic, objective={"residual_max_ratio": allowed})
    state = EngineState(name=engine, version="1", ports=(2121,))
    agents = [agent.model_copy(update={"engines": (state,)}) for agent in fleet(2)]
    device_counter = CounterRequirement(source="lab") if promised else None
    warnings = plan(
        requested, agents, NOW, "run-1", PlanContext(device_counter=device_counter)
    ).warnings
    assert any("does not report its segment size" in warning for warning in warnings) is warned


@pytest.mark.parametrize(
    ("fields", "known", "problem"),
    [
        ({}, (), None),
        ({"direction": "forward"}, ("direction",), None),
        ({"direction": "forward"}, (), "traffic.direction: 4 of 4 agents have a version"),
        (
            {"options": {"compressible_percent": 25}},
            ("direction",),
            "traffic.options.compressible_percent: 4 of 4 agents have a version",
        ),
        (
            {"options": {"tls": "1.2"}},
            ("tls",),
            "traffic.options.tls: no server agent offers https:1.2 (server-001: it does not",
        ),
        ({"options": {"tls": "1.3"}}, ("tls",), None),
    ],
)
def test_agents_must_know_the_options_and_offer_the_tls_version(
    fields: dict[str, object], known: tuple[str, ...], problem: str | None
) -> None:
    traffic = {"engine": "https", "streams_count": 1, **fields}
    plain = EngineState(name="https", version="1", ports=(8443,), new_options=known)
    chosen = plain.model_copy(update={"tls": "1.3", "ports": (8444,)})
    agents = [agent.model_copy(update={"engines": (plain, chosen)}) for agent in fleet(2)]
    requested = spec(traffic=traffic)
    if problem is None:
        (pair, *_) = plan(requested, agents, NOW, "run-1").pairs
        assert pair.endpoint.port == (8444 if "options" in fields else 8443)
        return
    with pytest.raises(Infeasible) as infeasible:
        plan(requested, agents, NOW, "run-1")
    assert problem in str(infeasible.value)


def test_warns_if_documented_flow_or_sku_limit_is_below_target() -> None:
    agents = [presence(role, i, vm_size="Standard_D4_v4") for role in Role for i in (1, 2)]
    requested = spec(
        objective={"target_bits_per_second": 180e9},
        traffic=Traffic(streams_count=2),
        device={"sku": "Premium"},
    )
    text = " | ".join(plan(requested, agents, NOW, "run-1").warnings)
    assert "2 clients can send at most 20 Gbit/s" in text
    assert "4 flows of at most 9 Gbit/s each (premium" in text
    assert "above the documented rate of premium, 100 Gbit/s" in text
    modest = requested.model_copy(update={"objective": spec().objective})
    assert plan(modest, agents, NOW, "run-1").warnings == ()


def on_host(agent: Presence, boot_id: str | None, bound_s: float | None = None) -> Presence:
    clock = ClockReading(
        source=ClockSource.ADJTIMEX,
        read_at=NOW,
        synchronised=bound_s is not None,
        bound_s=bound_s,
        boot_id=boot_id,
    )
    return agent.model_copy(update={"clock": clock})


def test_agents_on_one_host_share_a_clock() -> None:
    made = plan(spec(), [on_host(agent, "laptop") for agent in fleet(2)], NOW, "run-1")
    assert made.is_intact
    assert {job.shared_boot_id for job in made.jobs(made.bursts[0])} == {"laptop"}
    assert "so their seconds agree by definition" in " ".join(made.warnings)


@pytest.mark.parametrize("boot_id", ["another", None])
def test_clock_is_not_shared_if_one_agent_is_on_another_host(boot_id: str | None) -> None:
    invalid, *rest = fleet(2)
    agents = [on_host(invalid, boot_id), *(on_host(agent, "laptop") for agent in rest)]
    made = plan(spec(), agents, NOW, "run-1")
    assert made.shared_boot_id is None
    assert "would refuse jobs" in " ".join(made.warnings)


def test_accurate_clocks_need_no_shared_host() -> None:
    made = plan(spec(), [on_host(agent, "laptop", 0.001) for agent in fleet(2)], NOW, "run-1")
    # If this field is not set, it must not change the seal.
    assert "shared_boot_id" not in made.model_dump_json()


def test_rejects_server_outside_allowed_networks() -> None:
    client = presence(Role.CLIENT, 1, allowed_networks=("10.9.0.0/16", "::1/128"))
    agents = [client, *fleet(2)[1:]]
    with pytest.raises(Infeasible, match=r"would refuse 10\.2\.1\.1.*10\.9\.0\.0/16") as caught:
        plan(spec(), agents, NOW, "run-1")
    assert "BROADSIDE_AGENT_ALLOWED_NETWORKS" in caught.value.problems[0].fix


def test_rejects_device_probe_outside_allowed_networks() -> None:
    client = presence(Role.CLIENT, 1, allowed_networks=("10.0.0.0/8",))
    agents = [item.model_copy(update={"echo_port": 7000}) for item in [client, *fleet(2)[1:]]]
    plan(spec(traffic={"probe": {"device": "10.9.0.4"}}), agents, NOW, "run-1")
    with pytest.raises(Infeasible, match=r"would refuse 192\.0\.2\.1") as caught:
        plan(spec(traffic={"probe": {"device": "192.0.2.1"}}), agents, NOW, "run-1")
    made = plan(spec(traffic={"probe": {}}), agents, NOW, "run-1")
    # If this field is not set, it must not change the seal.
    assert "device_tcp_port" not in made.model_dump_json()
    assert caught.value.problems[0].field == "traffic.probe.device"


@pytest.mark.parametrize(("streams_count", "warned"), [(8, False), (64, True)])
def test_warns_if_host_cannot_start_streams_together(streams_count: int, warned: bool) -> None:
    """On two cores, 30 pairs with 64 streams start within 782 ms, and with 8 within 45 ms."""
    agents = [
        item.model_copy(update={"cpu_count": 2, "address": "10.1.0.4", "ports": (5201 + number,)})
        for number, item in enumerate(fleet(30))
    ]
    made = plan(
        spec(pairs_count=30, traffic={"streams_count": streams_count}), agents, NOW, "run-1"
    )
    lines = [item for item in made.warnings if "differ by hundreds of milliseconds" in item]
    assert bool(lines) == warned
