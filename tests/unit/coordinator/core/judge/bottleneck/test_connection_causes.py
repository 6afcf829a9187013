from dataclasses import replace

import pytest

from broadside.coordinator.core.judge.bottleneck import find_bottleneck
from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import BottleneckInput
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


def test_generator_is_named_with_the_resource_that_it_lacked() -> None:
    short = connections(
        ATTEMPTS, attempted_ratio=0.8, attempt_delay_max=1.5, client_program_core_ratio=0.98
    )
    result = find_bottleneck(short)
    assert result.name == "generator"
    assert result.evidence == (
        "the clients made 80.0 % of the planned attempts, up to 1.5 s late",
        "the program of a client used 98 % of a core",
    )
    assert result.advice is not None and "faster cores" in result.advice
    busy = find_bottleneck(connections(ATTEMPTS, cpu=0.99, attempted_ratio=0.8))
    assert (
        busy.evidence[1] == "1 of 1 pairs have a client with a core or all cores 95 % busy or more"
    )
    idle = find_bottleneck(connections(ATTEMPTS, attempted_ratio=0.8))
    assert len(idle.evidence) == 1
    ports = connections(
        6000,
        failed_count=4000,
        failed_ports_count=4000,
        ports_limit_count=500,
        time_wait_count=480,
    )
    result = find_bottleneck(ports)
    assert result.evidence == (
        (
            "4000 of 10000 attempts failed on the clients: 4000 because no local port was left "
            "(limit 500)"
        ),
        "up to 480 sockets of a client were in TIME_WAIT",
    )
    assert result.advice is not None and "close=rst" in result.advice
    files = connections(224, failed_count=9776, failed_files_count=9776, files_limit_count=256)
    result = find_bottleneck(files)
    assert result.name == "generator"
    assert "9776 because no file descriptor was left (limit 256)" in result.evidence[0]
    assert result.advice is not None and "LimitNOFILE of the client" in result.advice
    assert name_of(connections(ATTEMPTS, failed_count=5)) == "offered-load"


@pytest.mark.parametrize(
    ("short", "name"),
    [
        # A busy host made 99 % of the attempts, and the device set up 6000 of them.
        ({"attempted_ratio": 0.99}, "firewall"),
        ({"failed_count": 100.0, "failed_files_count": 100.0}, "firewall"),
        # The device set up all attempts except a few.
        ({"attempted_ratio": 0.5}, "generator"),
    ],
)
def test_generator_is_named_only_for_most_of_the_missing_connections(
    short: dict[str, float], name: str
) -> None:
    made = 6000 if name == "firewall" else 9900
    assert name_of(connections(made, sessions(made, made), cpu=0.99, **short)) == name


def test_servers_without_descriptors_are_named() -> None:
    lacked = {"server_failed_files_count": 3000.0, "server_files_limit_count": 256.0}
    result = find_bottleneck(connections(ATTEMPTS, success_ratio=0.6, **lacked))
    assert result.name == "generator"
    assert "3000 connections because no file descriptor was left (limit 256)" in result.evidence[0]
    assert result.advice is not None and "LimitNOFILE of the server" in result.advice
    assert name_of(connections(ATTEMPTS, success_ratio=0.3, **lacked)) == "unknown"
    assert name_of(connections(ATTEMPTS, success_ratio=1.0, **lacked)) == "offered-load"


@pytest.mark.parametrize(("prefix", "side"), [("", "clients"), ("server_", "servers")])
def test_full_conntrack_table_of_a_host_is_named(prefix: str, side: str) -> None:
    result = find_bottleneck(connections(6000, **{f"{prefix}conntrack_dropped_count": 9000}))
    assert result.name == "generator"
    assert f"the conntrack table of the {side} was full and dropped 9000" in result.evidence[0]
    assert name_of(connections(6000, **{f"{prefix}conntrack_dropped_count": 100})) == "unknown"
    all_made = connections(ATTEMPTS, **{f"{prefix}conntrack_dropped_count": 9000})
    assert name_of(all_made) == "offered-load"


def test_snat_ports_are_named_if_attempts_were_lost() -> None:
    lossy, complete = (
        replace(connections(count), snat_utilization_ratio=0.99) for count in (6000, ATTEMPTS)
    )
    assert (name_of(lossy), name_of(complete)) == ("snat-ports", "offered-load")


def test_servers_listen_queue_is_named() -> None:
    counts = {"server_backlog_overflowed_count": 2400, "server_backlog_limit_count": 8}
    result = find_bottleneck(connections(6000, server_backlog_dropped_count=2500, **counts))
    assert result.name == "server-backlog"
    assert result.evidence == (
        (
            "the servers dropped 2500 connections because their listen queue was full (limit 8), "
            "2400 of them at the accept queue; 4000 attempts have no connection"
        ),
    )
    busy = connections(6000, server_backlog_dropped_count=2500, server_program_core_ratio=0.99)
    assert "the program of a server used 99 % of a core" in find_bottleneck(busy).evidence
    assert name_of(connections(6000, server_backlog_dropped_count=1500)) == "unknown"
    assert name_of(connections(ATTEMPTS, server_backlog_dropped_count=500)) == "offered-load"


def test_full_cpu_of_clients_is_the_limit_if_servers_accepted_more() -> None:
    late = {"timed_out_count": 4000.0, "server_established_count": 9900.0}
    assert name_of(connections(6000, cpu=0.99, **late)) == "client-cpu"
    assert name_of(connections(6000, client_program_core_ratio=0.99, **late)) == "client-cpu"
    assert name_of(connections(6000, **late)) == "unknown"
    # The attempts were lost before the servers.
    late["server_established_count"] = 6000.0
    assert name_of(connections(6000, cpu=0.99, **late)) == "unknown"
    assert name_of(connections(6000, cpu=0.99, refused_count=4000)) == "unknown"
    assert name_of(connections(ATTEMPTS, cpu=0.99)) == "offered-load"


def test_full_cpu_of_servers_is_the_limit_if_they_did_not_answer() -> None:
    late = {"timed_out_count": 4000.0, "success_ratio": 0.6, "server_program_core_ratio": 0.99}
    assert name_of(connections(ATTEMPTS, **late)) == "server-cpu"
    late["timed_out_count"] = 100.0
    assert name_of(connections(ATTEMPTS, **late)) == "unknown"


def test_connections_that_ended_early_are_not_the_offered_load() -> None:
    assert name_of(connections(ATTEMPTS, success_ratio=0.99)) == "unknown"
