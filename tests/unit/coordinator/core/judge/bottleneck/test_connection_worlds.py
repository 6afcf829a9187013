"""Plant limits of device and generator at random, and compare them with the bottleneck."""

from hypothesis import given as drawn
from hypothesis import strategies as st

from broadside.coordinator.core.judge.bottleneck import find_bottleneck
from broadside.coordinator.core.summary import SessionCount
from broadside.exchange.engines import traffic_of
from tests.unit.coordinator.core.judge.bottleneck.bottleneck_input import given, pairs

PLANNED = 20_000
# A planted limit is to be named if it costs this many times as many connections as the other.
CLEAR = 1.1
# Share of the planned attempts that a planted limit costs at least.
LEAST = 0.003


def bottleneck_of(
    lost: int, unmade: int, failed: int, *, rejects: bool, client_cpu: float, server_cpu: float
) -> str:
    """Return the bottleneck of a burst.

    Args:
        lost: Attempts that the device lost.
        unmade: Attempts that the clients did not make.
        failed: Attempts without a local port.
        rejects: True if the device rejects connections, False if it drops them.
        client_cpu: CPU load of the clients, 0 to 1.
        server_cpu: CPU load of the servers, 0 to 1.
    """
    attempted = PLANNED - unmade
    established = attempted - failed - lost
    measures = {
        "attempted_count": attempted,
        "attempted_ratio": attempted / PLANNED,
        "attempt_delay_max": 0.3 if unmade else 0.01,
        "established_count": established,
        "server_established_count": established,
        "failed_count": failed,
        "refused_count" if rejects else "timed_out_count": lost,
        "success_ratio": established / attempted,
        "server_backlog_dropped_count": 0,
    } | ({"failed_ports_count": failed} if failed else {})
    burst = given(
        pairs({"client_cpu_ratio": client_cpu, "server_cpu_ratio": server_cpu}, rate=0),
        traffic_of(engine="connections"),
        measures=measures,
        sessions=[SessionCount(device="fw", set_up_count=established, fleet_count=established)],
    )
    return find_bottleneck(burst).name


ratios = st.floats(0, 0.45)


@drawn(
    lost=ratios,
    unmade=st.just(0.0) | ratios,
    failed=st.just(0.0) | ratios,
    rejects=st.booleans(),
    client_cpu=st.floats(0, 1),
    server_cpu=st.floats(0, 1),
)
def test_the_limit_that_costs_more_is_named_on_any_host(
    lost: float, unmade: float, failed: float, rejects: bool, client_cpu: float, server_cpu: float
) -> None:
    made = 1 - unmade
    at_device, at_hosts = lost * made, unmade + failed * made
    name = bottleneck_of(
        round(PLANNED * at_device),
        round(PLANNED * unmade),
        round(PLANNED * failed * made),
        rejects=rejects,
        client_cpu=client_cpu,
        server_cpu=server_cpu,
    )
    if at_device > LEAST and at_device > CLEAR * at_hosts:
        assert name == "firewall"
    elif at_hosts > LEAST and at_hosts > CLEAR * at_device:
        assert name == "generator"
    elif max(at_device, at_hosts) < LEAST / 10:
        assert name == "offered-load"
    else:
        assert name in ("firewall", "generator", "offered-load", "unknown")
