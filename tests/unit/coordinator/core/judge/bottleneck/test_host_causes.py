from typing import Any

import pytest

from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import (
    ABSENT,
    BottleneckCause,
    cpu_use,
)
from broadside.coordinator.core.judge.bottleneck.host_causes import (
    CLIENT_CPU,
    CLIENT_NIC,
    OFFERED_LOAD,
    SERVER_CPU,
    SERVER_NIC,
    WINDOW,
    _cpu_cause,
    _nic_cause,
)
from broadside.coordinator.core.summary import BottleneckName
from broadside.exchange.messages import Direction, Protocol, Side, Traffic
from tests.unit.coordinator.core.judge.bottleneck.bottleneck_input import given, pair, pairs

ONE = {"streams_count": 1}
PACED = Traffic(streams_count=4, stream_bits_per_second=1_000_000)


@pytest.mark.parametrize(
    ("rates", "holds"),
    [
        # This is 97 % of 4 Mbit/s for one pair out of two.
        ((3.88e6, 1e6), True),
        ((3.87e6, 1e6), False),
        ((4e6, 1e6, 1e6), False),
        ((4e6, 4e6, None), True),
    ],
)
def test_pairs_at_requested_rate_are_limited_by_offered_load(
    rates: tuple[float | None, ...], holds: bool
) -> None:
    of = given([pair(index, rate) for index, rate in enumerate(rates)], PACED)
    result = OFFERED_LOAD.evaluate(of)
    assert result.holds is holds
    if holds:
        full = sum((rate or 0) > 3.8e6 for rate in rates)
        assert result.facts == (
            f"{full} of {len(rates)} pairs carry the requested rate of 4 Mbit/s",
        )


def test_offered_load_uses_scale_and_excludes_lost_datagrams() -> None:
    assert OFFERED_LOAD.evaluate(given([pair(0, 0.4e6)], PACED, scale=10.0)).holds is True
    assert OFFERED_LOAD.evaluate(given([pair(0, 0.4e6)], PACED)).holds is False
    assert OFFERED_LOAD.evaluate(given([pair(0, 1e9)])) == ABSENT
    udp = PACED.model_copy(update={"protocol": Protocol.UDP})
    assert OFFERED_LOAD.evaluate(given([pair(0, 4e6)], udp, loss_ratio=0.01)) == ABSENT
    assert OFFERED_LOAD.evaluate(given([pair(0, 4e6)], udp, loss_ratio=0.0)).holds is True
    dropping = given([pair(0, 4e6)], PACED, retransmit_ratio=0.5)
    assert OFFERED_LOAD.evaluate(dropping).holds is True


def _nics(*ratios: float | None, queued: tuple[float | None, ...] = (), **fields: Any) -> Any:
    rows = [
        {"client_nic_ratio": ratio, "client_egress_queued_ratio": wait}
        for ratio, wait in zip(ratios, queued or (None,) * len(ratios), strict=True)
    ]
    return given(pairs(*rows), **fields)


def test_nic_is_the_cause_if_half_of_the_senders_are_full() -> None:
    result = CLIENT_NIC.evaluate(_nics(0.97, 0.95, 0.94, 0.5))
    assert result.holds is True
    text = "2 of 4 pairs have a client that sends at 95 % of its NIC's rate or more"
    assert result.facts == (text,)
    assert CLIENT_NIC.evaluate(_nics(0.97, 0.94, 0.94)) == ABSENT
    over = CLIENT_NIC.evaluate(_nics(1.02, 1.03))
    assert over.facts[0].endswith("at 100 % of its NIC's rate or more")


@pytest.mark.parametrize(("window_s", "most"), [(None, 2.05), (10, 1.1), (1, 1.55)])
def test_rate_above_nic_limit_and_credit_disproves_the_limit(
    window_s: int | None, most: float
) -> None:
    """The limit may be exceeded by 5 % and by 0.5 seconds of token bucket credit in the window."""
    assert CLIENT_NIC.evaluate(_nics(most - 0.01, 0.1, window_s=window_s)).holds is True
    result = CLIENT_NIC.evaluate(_nics(most + 0.01, 0.1, window_s=window_s))
    assert result.holds is None
    text = "the true NIC rate of the clients: 1 of 2 pairs send more than the declared rate"
    assert result.missing == (text,)
    few = CLIENT_NIC.evaluate(_nics(most + 0.01, 0.1, 0.1, window_s=window_s))
    assert few == ABSENT


def test_full_egress_queue_means_full_nic() -> None:
    result = CLIENT_NIC.evaluate(_nics(None, None, queued=(0.95, 0.94)))
    assert result.holds is True
    assert result.facts[0].startswith(
        "1 of 2 pairs have a client with packets in its egress queue (qdisc) in 95 % of all samples"
    )
    lower = CLIENT_NIC.evaluate(_nics(None, None, queued=(0.99, 0.96)))
    assert "in 96 % of all samples" in lower.facts[0]
    few = CLIENT_NIC.evaluate(_nics(None, None, None, queued=(0.95, 0.94, None)))
    assert few.holds is None
    text = "the NIC rate of the clients of 3 of 3 pairs (set the agents' VM size or NIC rate)"
    assert few.missing == (text,)
    part = CLIENT_NIC.evaluate(_nics(0.5, None))
    assert part.missing == (text.replace("3 of 3", "1 of 2"),)
    assert CLIENT_NIC.evaluate(_nics(0.5, 0.4)) == ABSENT


@pytest.mark.parametrize(
    ("direction", "client", "server"),
    [
        (Direction.FORWARD, True, False),
        (Direction.REVERSE, False, True),
        (Direction.BIDIRECTIONAL, True, True),
    ],
)
def test_only_payload_senders_can_fill_their_nic(
    direction: Direction, client: bool, server: bool
) -> None:
    full = pairs({"client_nic_ratio": 0.99, "server_nic_ratio": 0.99})
    of = given(full, Traffic(direction=direction))
    assert CLIENT_NIC.evaluate(of).holds is client
    assert SERVER_NIC.evaluate(of).holds is server


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("client-nic", BottleneckName.CLIENT_NIC),
        ("server-nic", BottleneckName.SERVER_NIC),
        ("client-cpu", BottleneckName.CLIENT_CPU),
        ("server-cpu", BottleneckName.SERVER_CPU),
    ],
)
def test_side_specific_cause_reads_only_that_side(id: str, name: BottleneckName) -> None:
    side, what = id.split("-")
    cause: BottleneckCause = (
        _nic_cause(Side(side)) if what == "nic" else _cpu_cause(Side(side), "advice")
    )
    assert (cause.id, cause.name) == (id, name)
    assert cause.refuted_by
    assert cause.advice == (
        "advice" if what == "cpu" else f"Use larger {side} VMs, or more of them"
    )
    traffic = Traffic(direction=Direction.BIDIRECTIONAL)
    for other in Side:
        of = given(pairs({f"{other}_{what}_ratio": 0.99}), traffic)
        assert (cause.evaluate(of).holds is True) == (other == side)


def test_cpu_use_is_maximum_of_mean_and_busiest_core() -> None:
    one = pair(client_cpu_ratio=0.3, client_core_ratio=0.9, server_cpu_ratio=0.4)
    assert cpu_use(one, Side.CLIENT) == 0.9
    assert cpu_use(one, Side.SERVER) == 0.4
    assert cpu_use(pair(), Side.CLIENT) is None


def test_cpu_is_the_cause_if_half_of_the_hosts_are_full() -> None:
    rows = [{"client_core_ratio": 0.95}, {"client_core_ratio": 0.94}]
    result = CLIENT_CPU.evaluate(given(pairs(*rows)))
    assert result.holds is True
    text = "1 of 2 pairs have a client with all cores, or its busiest core, 95 % busy"
    assert result.facts == (text,)
    assert CLIENT_CPU.evaluate(given(pairs(*rows, rows[1]))) == ABSENT
    over = CLIENT_CPU.evaluate(given(pairs({"client_core_ratio": 1.004})))
    assert "100 % busy" in over.facts[0]
    blind = SERVER_CPU.evaluate(given(pairs({"server_cpu_ratio": 0.1}, {})))
    assert blind.holds is None
    assert blind.missing == (
        "the CPU load of the servers of 1 of 2 pairs (let the agents read it)",
    )


CALM: dict[str, Any] = {"retransmit_ratio": 0.0, "rtt_mean_s": 0.01}


def _windows(share: float, requested: int | None = None, streams: int = 1, **fields: Any) -> Any:
    """Build two pairs. The first has this share of a 1 MB window in flight at 10 ms RTT."""
    rate = share * 1e6 * 8 / 0.01
    row: dict[str, Any] = {
        "rtt_mean_s": 0.01,
        "rtt_idle_s": 0.01,
        "cwnd_bytes": None if requested else 1e6,
    }
    of = [pair(0, rate, **row), pair(1, rate * 0.99, **(row | {"cwnd_bytes": 1e9}))]
    traffic = Traffic(window_bytes=requested, streams_count=streams)
    return given(of[: 1 if requested else 2], traffic, **(CALM | fields))


@pytest.mark.parametrize(
    ("share", "requested", "streams", "holds"),
    [
        (0.901, None, 1, True),
        (0.899, None, 1, False),
        (0.701, 1_000_000, 1, True),
        (0.699, 1_000_000, 1, False),
        (0.701, 250_000, 4, True),
        (0.699, 250_000, 4, False),
    ],
)
def test_window_is_full_by_littles_law(
    share: float, requested: int | None, streams: int, holds: bool
) -> None:
    assert WINDOW.evaluate(_windows(share, requested, streams)).holds is holds


def test_full_window_is_the_cause_only_on_idle_path() -> None:
    result = WINDOW.evaluate(_windows(0.95))
    [fact] = result.facts
    assert fact.startswith("1 of 2 pairs always have a full window in flight (RTT 10 ms); ")
    assert fact.endswith("the path has no queue and no drops")
    assert WINDOW.evaluate(_windows(0.95, retransmit_ratio=0.01)) == ABSENT
    unknown = WINDOW.evaluate(_windows(0.95, retransmit_ratio=None))
    assert unknown.holds is None
    assert unknown.missing == (
        "the packet loss on the path (use an engine that reports it: iperf3)",
    )
    row: dict[str, Any] = {"rtt_mean_s": 0.01, "cwnd_bytes": 1e6}
    blind = WINDOW.evaluate(given([pair(0, 0.95 * 8e8, **row)], **CALM))
    assert blind.missing[0].startswith("the RTT without load")
    queued = given([pair(0, 0.95 * 8e8, **row, rtt_idle_s=0.001)], **CALM)
    assert WINDOW.evaluate(queued) == ABSENT
    no_rtt = given([pair(0, 1e12, cwnd_bytes=1e6, rtt_idle_s=0.01)], **CALM)
    assert WINDOW.evaluate(no_rtt) == ABSENT


def test_requested_window_may_be_full_with_a_few_drops() -> None:
    """With 0.001 % loss a higher rate would be possible. With 1 % loss it would not."""
    few = WINDOW.evaluate(_windows(0.8, 1_000_000, retransmit_ratio=2e-5, retransmits_count=9))
    # The rate 640 Mbit/s is the Mathis limit for this loss.
    assert few.holds is False
    fewer = _windows(0.8, 1_000_000, 64, retransmit_ratio=2e-5, retransmits_count=9)
    # With 64 streams the windows are not full.
    assert WINDOW.evaluate(fewer).holds is False
    traffic = Traffic(window_bytes=15_625, streams_count=64)
    row: dict[str, Any] = {"rtt_mean_s": 0.01, "rtt_idle_s": 0.01}
    fields: dict[str, Any] = {"retransmit_ratio": 2e-5, "retransmits_count": 9, "rtt_mean_s": 0.01}
    result = WINDOW.evaluate(given([pair(0, 6.4e8, **row)], traffic, **fields))
    assert result.holds is True
    assert result.facts[0].endswith(
        "the path has no queue; 0.002 % of segments were dropped, which is too few to limit the "
        "rate"
    )
    fields = {"retransmit_ratio": None, "rtt_mean_s": 0.01}
    result = WINDOW.evaluate(given([pair(0, 6.4e8, **row)], traffic, **fields))
    assert result.facts[0].endswith("the path has no queue; its packet loss is unknown")
    fields = {"retransmit_ratio": 1e-7, "retransmits_count": 0, "rtt_mean_s": 0.01}
    result = WINDOW.evaluate(given([pair(0, 6.4e8, **row)], traffic, **fields))
    assert result.facts[0].endswith("the path has no queue and no drops")
    udp = traffic.model_copy(update={"protocol": Protocol.UDP})
    assert WINDOW.evaluate(given([pair(0, 6.4e8, **row)], udp, **fields)) == ABSENT


@pytest.mark.parametrize(
    ("nic", "direction", "wanted", "product", "per_stream"),
    [
        pytest.param(
            0.4, Direction.FORWARD, "2 Gbit/s", "1 MB", "500 kB", id="NIC limit of the client"
        ),
        pytest.param(
            None, Direction.FORWARD, "1.6 Gbit/s", "800 kB", "400 kB", id="twice the rate"
        ),
        pytest.param(
            0.2, Direction.REVERSE, "4 Gbit/s", "2 MB", "1 MB", id="NIC limit of the server"
        ),
    ],
)
def test_advises_bandwidth_delay_product_of_idle_path(
    nic: float | None, direction: Direction, wanted: str, product: str, per_stream: str
) -> None:
    """Two streams carry 800 Mbit/s at this NIC utilization. The idle RTT is 4 ms."""
    side = "server" if direction is Direction.REVERSE else "client"
    row: dict[str, Any] = {
        "rtt_mean_s": 0.01,
        "rtt_idle_s": 0.004,
        "cwnd_bytes": 1e6,
        f"{side}_nic_ratio": nic,
    }
    of = given([pair(0, 8e8, **row)], Traffic(streams_count=2, direction=direction))
    assert WINDOW.advise is not None
    assert WINDOW.advise(of).startswith(f"Set window_bytes to at least {per_stream} per stream")
    assert f"at {wanted} and 4 ms is {product} per pair" in WINDOW.advise(of)
