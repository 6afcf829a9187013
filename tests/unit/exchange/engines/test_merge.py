"""Tests for readings of several processes."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from broadside.exchange.engines.iperf3_text import read_any
from broadside.exchange.engines.merge import merge
from broadside.exchange.messages import Flow
from tests.unit.exchange.engines.test_iperf3 import RECORDINGS, recording


@pytest.mark.parametrize("name", ["3.22/tcp-stream.json", "3.22/tcp-bidir.json", "3.22/udp.json"])
def test_readings_of_several_processes_are_summed(name: str) -> None:
    single_reading = recording(name)
    other_reading = replace(single_reading, first_data_at_s=1000.3)
    both = merge([single_reading, other_reading])
    assert both.usable
    assert both.first_data_at_s == 1000.0
    assert len(both.report.processes) == 2
    for flow, rows in single_reading.intervals.items():
        merged = both.intervals[flow]
        assert sum(row.transferred_bytes for row in merged) == 2 * sum(
            row.transferred_bytes for row in rows
        )
        assert merged[-1].end_s == pytest.approx(rows[-1].end_s + 0.3)
        assert all(a.end_s == b.start_s for a, b in pairwise(merged))
    for total, single in zip(both.report.totals, single_reading.report.totals, strict=True):
        assert total.received_bytes == 2 * (single.received_bytes or 0)
        assert total.packets_count == (single.packets_count and 2 * single.packets_count)
        assert total.rtt_mean_s == single.rtt_mean_s
    assert both.report.streams_count == 2 * (single_reading.report.streams_count or 0)
    for merged_distribution, alone in zip(
        both.report.distributions, single_reading.report.distributions, strict=True
    ):
        assert merged_distribution.counts == {
            bucket: 2 * count for bucket, count in alone.counts.items()
        }
        assert (merged_distribution.name, merged_distribution.max) == (alone.name, alone.max)


def test_one_failed_process_fails_the_test() -> None:
    good = recording("3.22/tcp-stream.json")
    bad = read_any((RECORDINGS / "3.22" / "err-busy-json-stream.json").read_bytes())
    both = merge([good, bad])
    assert not both.usable
    assert "busy" in (both.report.error or "")


def test_running_test_has_only_seconds_of_all_processes() -> None:
    lines = (RECORDINGS / "3.22" / "tcp-stream.json").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    cut = events.index("interval") + 1
    short = replace(read_any("\n".join(lines[:cut]).encode()), first_data_at_s=1000.0)
    both = merge([recording("3.22/tcp-stream.json"), short])
    assert len(both.intervals[Flow.UP]) == 1
