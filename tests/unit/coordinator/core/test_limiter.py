"""Who is named as the limit when payload flows down, or both ways at once."""

import pytest

from coordinator.core.aggregate import FlowSummary, HostSummary, PairSummary
from coordinator.core.align import Basis
from coordinator.core.completeness import State
from coordinator.core.limiter import Limiter, LimiterName, find_limiter
from exchange.messages import Direction, Flow, Traffic


def found(
    traffic: Traffic,
    *,
    client_nic: float | None,
    server_nic: float | None,
    pushed: bool = False,
    pair: float = 1e9,
) -> Limiter:
    """Who limits four equal pairs over a round trip of 10 ms."""
    pairs = [
        PairSummary(
            pair=f"pair-{index + 1:03d}",
            pair_index=index,
            state=State.MEASURED,
            completeness_ratio=1.0,
            basis=Basis.RECEIVER,
            received_bits_per_second=pair,
            rtt_mean_s=0.01,
            client_nic_ratio=client_nic,
            server_nic_ratio=server_nic,
        )
        for index in range(4)
    ]
    lead = FlowSummary(
        flow=traffic.direction.flows[0],
        pair_cov_ratio=0.1 if pushed else 0.01,
        pair_median_bits_per_second=pair,
        second_cov_ratio=0.01,
        rtt_mean_s=0.01,
        rtt_baseline_s=0.001 if pushed else 0.01,
        buffer_delay_ratio=9.0 if pushed else 0.0,
        retransmit_ratio=0.01 if pushed else 0.0,
    )
    others = [FlowSummary(flow=Flow.DOWN)] if len(traffic.direction.flows) > 1 else []
    return find_limiter(
        traffic,
        [lead, *others],
        pairs,
        HostSummary(nic_max_ratio=client_nic, hosts_count=4),
        HostSummary(nic_max_ratio=server_nic, hosts_count=4),
        None,
    )


@pytest.mark.parametrize(
    ("direction", "client_nic", "server_nic", "firewall"),
    [
        (Direction.FORWARD, 0.2, 0.93, True),
        (Direction.FORWARD, 0.93, 0.03, False),
        (Direction.REVERSE, 0.03, 0.2, True),
        (Direction.REVERSE, 0.03, 0.93, False),
        (Direction.BIDIRECTIONAL, 0.2, 0.2, True),
        (Direction.BIDIRECTIONAL, 0.2, 0.93, False),
        (Direction.BIDIRECTIONAL, 0.93, 0.2, False),
    ],
)
def test_room_on_a_nic_that_only_acknowledges_is_no_sign_of_the_firewall(
    direction: Direction, client_nic: float | None, server_nic: float | None, firewall: bool
) -> None:
    traffic = Traffic(direction=direction)
    limiter = found(traffic, client_nic=client_nic, server_nic=server_nic, pushed=True)
    assert (limiter.name is LimiterName.FIREWALL) == firewall


def test_a_full_sender_is_no_cap_on_one_connection() -> None:
    down = Traffic(direction=Direction.REVERSE, streams_count=1)
    assert found(down, client_nic=0.03, server_nic=0.5).name is LimiterName.SINGLE_FLOW
    assert found(down, client_nic=0.03, server_nic=0.96).name is LimiterName.SERVER_NIC


@pytest.mark.parametrize("pair", [0.8e9, 1.6e9])
def test_both_ways_have_windows_of_their_own(pair: float) -> None:
    """A window of 1.25 MB over 10 ms is 1 Gbit/s each way, 2 Gbit/s both ways."""
    traffic = Traffic(
        direction=Direction.BIDIRECTIONAL, streams_count=4, window_bytes=1_250_000 // 4
    )
    limiter = found(traffic, client_nic=0.1, server_nic=0.1, pair=pair)
    assert (limiter.name is LimiterName.WINDOW) == (pair > 1e9)


def test_the_window_that_is_advised_is_for_the_senders_nic() -> None:
    traffic = Traffic(direction=Direction.REVERSE, streams_count=4, window_bytes=312_500)
    limiter = found(traffic, client_nic=0.01, server_nic=0.5)
    assert limiter.name is LimiterName.WINDOW
    assert "2 Gbit/s" in (limiter.advice or "")
