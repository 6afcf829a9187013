import pytest

from broadside.coordinator.core.judge.bottleneck import BottleneckInput, find_bottleneck
from broadside.coordinator.core.summary import SessionCount
from broadside.exchange.engines import traffic_of
from tests.unit.coordinator.core.judge.bottleneck.bottleneck_input import given, pairs

ATTEMPTS = 10_000.0


def sessions(set_up: float, accepted: float) -> SessionCount:
    return SessionCount(device="fw", set_up_count=set_up, fleet_count=accepted)


def connections(
    established: float, *counted: SessionCount, cpu: float = 0.2, **measures: float
) -> BottleneckInput:
    """Return the input of a burst in which this number of attempts has a connection."""
    known = {
        "attempted_count": ATTEMPTS,
        "established_count": established,
        "attempted_ratio": 1.0,
        "server_backlog_dropped_count": 0.0,
    }
    return given(
        pairs({"client_cpu_ratio": cpu, "server_cpu_ratio": 0.2}, rate=0),
        traffic_of(engine="connections"),
        measures={**known, **measures},
        sessions=counted,
    )


def name_of(burst: BottleneckInput) -> str:
    return find_bottleneck(burst).name


def test_device_is_the_limit_if_it_set_up_what_servers_accepted() -> None:
    result = find_bottleneck(connections(6000, sessions(6010, 6002)))
    assert result.name == "firewall"
    assert "fw set up 6010 sessions for 10000 attempts" in result.evidence[0]
    assert "dropped before a session existed" in result.evidence[1]
    rejected = find_bottleneck(connections(6000, sessions(6000, 6000), refused_count=4000))
    assert "rejected" in rejected.evidence[1]


@pytest.mark.parametrize(
    "count",
    [
        # The device set up all of them, so they were lost behind it.
        sessions(10_000, 6000),
        # Device and servers disagree.
        sessions(5000, 6000),
    ],
)
def test_other_counts_are_no_evidence_against_the_device(count: SessionCount) -> None:
    assert name_of(connections(6000, count)) == "unknown"


def test_without_telemetry_the_limit_is_unknown() -> None:
    result = find_bottleneck(connections(6000))
    assert result.name == "unknown"
    assert "the new sessions of the device" in result.not_known[0]


def test_generator_comes_before_the_device() -> None:
    short = connections(6000, sessions(6000, 6000), attempted_ratio=0.8, attempt_delay_max=1.5)
    assert name_of(short) == "generator"
    ports = connections(6000, failed_count=4000, failed_ports_count=4000, time_wait_count=28_000)
    evidence = find_bottleneck(ports).evidence
    assert evidence == (
        "4000 of 10000 attempts failed on the clients: 4000 because no local port was left",
        "up to 28000 sockets of a client were in TIME_WAIT",
    )
    assert name_of(connections(ATTEMPTS, failed_count=5)) == "offered-load"


def test_servers_listen_queue_is_named() -> None:
    assert name_of(connections(6000, server_backlog_dropped_count=2500)) == "server-backlog"
    assert name_of(connections(6000, server_backlog_dropped_count=1500)) == "unknown"
    assert name_of(connections(ATTEMPTS, server_backlog_dropped_count=500)) == "offered-load"


def test_full_cpu_is_the_limit_only_if_attempts_were_lost() -> None:
    assert name_of(connections(6000, cpu=0.99)) == "client-cpu"
    assert name_of(connections(ATTEMPTS, cpu=0.99)) == "offered-load"


def test_connections_that_ended_early_are_not_the_offered_load() -> None:
    assert name_of(connections(ATTEMPTS, success_ratio=0.99)) == "unknown"
