import os
from dataclasses import replace

import pytest

from broadside.agent.cpu import group_cpu_s, host_cpu_s, parse_process_time, taken_ratio, with_cpu
from broadside.exchange.engines.merge import merge
from broadside.exchange.messages import Flow, HostSecond, Interval
from tests.unit.agent.jobs import make_reading

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def second(at_s: float, busy: float) -> HostSecond:
    return HostSecond(
        start_at_s=at_s,
        end_at_s=at_s + 1,
        nic_rx_bytes=0,
        nic_tx_bytes=0,
        nic_rx_packets_count=0,
        nic_tx_packets_count=0,
        nic_drops_count=0,
        tcp_retransmits_count=0,
        cpu_busy_ratio=busy,
        cpu_busiest_core_ratio=busy,
    )


def test_parses_process_names_with_spaces_and_brackets() -> None:
    text = "77 (a ) b (c) R 1 70 70 0 -1 4194560 1 2 3 4 250 50 20 10 20 0 1 0 99"
    process_time = parse_process_time(text)
    assert process_time.group_id == 70
    assert process_time.cpu_s == pytest.approx(330 * TICK_S)


def test_missing_process_group_has_zero_cpu_time() -> None:
    assert group_cpu_s(2**22 + 1) == 0.0
    assert group_cpu_s(os.getpgrp()) > 0


def test_host_cpu_covers_all_cores_in_the_requested_span() -> None:
    seconds = [second(10, 0.5), second(11, 1.0), second(12, 0.25)]
    assert host_cpu_s(seconds, 10.5, 12.0, 4) == pytest.approx(4 * (0.25 + 1.0))


def test_steal_ratio_is_weighted_by_time() -> None:
    seconds = [
        replace(second(10, 0.5), cpu_taken_ratio=0.4),
        replace(second(11, 0.5), end_at_s=14.0, cpu_taken_ratio=0.0),
    ]
    assert taken_ratio([*seconds, second(20, 0.5)]) == pytest.approx(0.1)
    assert taken_ratio([second(20, 0.5)]) is None


def test_cpu_payload_includes_warm_up_and_is_none_without_payload() -> None:
    warm = Interval(start_s=0, end_s=1, transferred_bytes=500, omitted=True)
    reading = make_reading()
    rows = (warm, *reading.intervals[Flow.UP])
    report = with_cpu(replace(reading, intervals={Flow.UP: rows}), 0.25)
    assert (report.cpu_s, report.cpu_payload_bytes) == (0.25, 2500)
    for unknown in (with_cpu(reading, None), with_cpu(replace(reading, intervals={}), 0.25)):
        assert (unknown.cpu_s, unknown.cpu_payload_bytes) == (None, None)


def test_cpu_of_a_pair_is_summed_or_unknown_if_one_is_missing() -> None:
    reading = make_reading()
    reported = replace(reading, report=with_cpu(reading, 0.5))
    assert merge([reported, reported]).report.cpu_s == 1.0
    assert merge([reported, reported]).report.cpu_payload_bytes == 4000
    assert merge([reported, reading]).report.cpu_s is None
