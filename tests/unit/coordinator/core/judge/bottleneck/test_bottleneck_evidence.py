from typing import Any

import pytest

from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import (
    drops_can_limit,
    has_drops,
    idle_rtt_s,
    is_idle,
    is_queued,
    loaded_rtt_s,
    path_facts,
    queue_delay_s,
)
from broadside.coordinator.core.summary import PathLatency
from broadside.exchange.messages import Protocol, Traffic
from tests.unit.coordinator.core.judge.bottleneck.bottleneck_input import given, pair, pairs

UDP = Traffic(protocol=Protocol.UDP, stream_bits_per_second=1_000_000)


def _rtt(idle_s: float | None, loaded_s: float | None) -> dict[str, Any]:
    return {"rtt_idle_s": idle_s, "rtt_mean_s": loaded_s}


def test_uses_probe_rtt_if_streams_report_none() -> None:
    phases: dict[str, Any] = {
        name: {"sent_count": 1, "answered_count": 1} for name in ("before", "during", "after")
    }
    phases["before"]["p50_s"] = 0.004
    phases["during"]["mean_s"] = 0.02
    probed = PathLatency.model_validate(phases)
    assert idle_rtt_s(pair(latency=probed)) == 0.004
    assert loaded_rtt_s(pair(latency=probed)) == 0.02
    assert idle_rtt_s(pair(latency=probed, rtt_idle_s=0.001)) == 0.001
    assert loaded_rtt_s(pair(latency=probed, rtt_mean_s=0.002)) == 0.002
    assert idle_rtt_s(pair()) is None
    assert loaded_rtt_s(pair()) is None


def test_queue_delay_is_median_over_pairs_with_both_rtts() -> None:
    rows = [_rtt(0.010, 0.011), _rtt(0.010, 0.030), _rtt(0.020, 0.023), _rtt(None, 9.0)]
    assert queue_delay_s(given(pairs(*rows))) == pytest.approx(0.003)
    assert queue_delay_s(given(pairs(rows[0], rows[1]))) == pytest.approx(0.020)
    assert queue_delay_s(given(pairs(_rtt(0.0, 0.1)))) is None


@pytest.mark.parametrize(("unknown_count", "known"), [(1, True), (2, False)])
def test_queue_delay_needs_half_of_the_pairs(unknown_count: int, known: bool) -> None:
    rows = [_rtt(0.010, 0.011)] + [_rtt(None, None)] * unknown_count
    assert (queue_delay_s(given(pairs(*rows))) is not None) is known


@pytest.mark.parametrize(
    ("rows", "queued"),
    [
        pytest.param([_rtt(0.01, 0.015)], False, id="50 % more RTT is no queue"),
        pytest.param([_rtt(0.01, 0.0151)], True, id="more than 50 % is a queue"),
        pytest.param([_rtt(0.01, 0.02), _rtt(0.01, 0.01)], True, id="half of the traffic"),
        pytest.param(
            [_rtt(0.01, 0.02), _rtt(0.01, 0.01), _rtt(0.01, 0.01)],
            False,
            id="a third of the traffic",
        ),
        pytest.param(
            [_rtt(0.01, 0.02), _rtt(0.01, 0.01), _rtt(0.01, 0.01), _rtt(None, 0.01)],
            None,
            id="a quarter, and a quarter is unknown",
        ),
        pytest.param(
            [_rtt(0.01, 0.01), _rtt(0.01, 0.01), _rtt(None, 0.01)], False, id="a third is unknown"
        ),
        pytest.param([_rtt(None, 0.01)], None, id="no idle RTT"),
    ],
)
def test_path_is_queued_if_half_of_the_traffic_waits(
    rows: list[dict[str, Any]], queued: bool | None
) -> None:
    assert is_queued(given(pairs(*rows))) is queued


@pytest.mark.parametrize(
    ("ratio", "count", "drops"),
    [
        (None, None, None),
        (1e-5, None, False),
        (1.1e-5, None, True),
        (0.01, 5, True),
        (0.01, 4, False),
        (None, 9, None),
    ],
)
def test_path_has_drops_above_minimum_retransmissions(
    ratio: float | None, count: int | None, drops: bool | None
) -> None:
    of = given(pairs({}), retransmit_ratio=ratio, retransmits_count=count)
    assert has_drops(of) is drops


@pytest.mark.parametrize(("ratio", "drops"), [(None, None), (1e-5, False), (2e-5, True)])
def test_lost_datagrams_are_drops(ratio: float | None, drops: bool | None) -> None:
    assert has_drops(given(pairs({}), UDP, loss_ratio=ratio, retransmit_ratio=0.5)) is drops


@pytest.mark.parametrize(("share", "could"), [(0.99, False), (1.01, True)])
@pytest.mark.parametrize("streams", [1, 4])
def test_drops_limit_streams_at_the_mathis_rate(share: float, could: bool, streams: int) -> None:
    """The limit is 1.22 x 1460 bytes / (10 ms x sqrt(1 %)) = 14.2496 Mbit/s per stream."""
    rate = share * streams * 1.22 * 1460 * 8 / (0.01 * 0.1)
    fields: dict[str, Any] = {"retransmit_ratio": 0.01, "rtt_mean_s": 0.01, "mss_bytes": 1460}
    rates = [pair(0, 0.5 * rate), pair(1, 1.5 * rate)]
    assert drops_can_limit(given(rates, Traffic(streams_count=streams), **fields)) is could


def test_mathis_rate_with_assumed_segment_size_and_unknown_rtt() -> None:
    fields: dict[str, Any] = {"retransmit_ratio": 0.01, "rtt_mean_s": 0.01}
    most = 1.22 * 1448 * 8 / (0.01 * 0.1)
    assert drops_can_limit(given([pair(0, 1.001 * most)], **fields)) is True
    assert drops_can_limit(given([pair(0, 0.999 * most)], **fields)) is False
    assert drops_can_limit(given([pair(0, 1.0)], retransmit_ratio=0.01)) is True
    assert drops_can_limit(given([pair(0, 1.0)], retransmit_ratio=0.0)) is False
    assert drops_can_limit(given([pair(0, 1.0)])) is None


@pytest.mark.parametrize(
    ("row", "ratio", "idle"),
    [
        (_rtt(0.01, 0.01), 0.0, True),
        (_rtt(0.01, 0.01), None, None),
        (_rtt(None, 0.01), 0.0, None),
        (_rtt(0.01, 0.02), None, False),
        (_rtt(None, 0.01), 0.1, False),
    ],
)
def test_path_is_idle_without_queue_and_drops(
    row: dict[str, Any], ratio: float | None, idle: bool | None
) -> None:
    assert is_idle(given(pairs(row), retransmit_ratio=ratio)) is idle


def test_path_facts_state_queue_and_loss() -> None:
    rows = [_rtt(0.010, 0.030), _rtt(0.011, 0.031), _rtt(0.012, 0.032)]
    assert path_facts(given(pairs(*rows), retransmit_ratio=0.02)) == [
        "the path has a queue: RTT 31 ms under load, 11 ms without load",
        "the path drops packets: 2.000 % of segments were retransmitted",
    ]
    assert path_facts(given(pairs({}), UDP, loss_ratio=0.03)) == ["3.00 % of datagrams were lost"]
    assert path_facts(given(pairs(_rtt(0.01, 0.01)), retransmit_ratio=0.0)) == []
