"""Tests for iperf3 when the streams are split over several processes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.exchange.engines import engines
from broadside.exchange.engines.iperf3_text import read_any
from broadside.exchange.engines.port import EngineResult, Unsupported
from broadside.exchange.messages import BUCKET_RATIO, Pacing, Traffic
from tests.unit.exchange.engines.asks import client_ask, job

IPERF3 = engines()["iperf3"]
RECORDINGS = Path(__file__).parents[3] / "data" / "iperf3"


def recording(name: str) -> EngineResult:
    reading = read_any((RECORDINGS / name).read_bytes())
    assert reading.usable
    return replace(reading, first_data_at_s=1000.0)


@given(streams_count=st.integers(1, 128), processes_count=st.integers(1, 16))
def test_stream_shares_sum_to_the_total(streams_count: int, processes_count: int) -> None:
    count = min(processes_count, streams_count)
    requested = job(
        Traffic(streams_count=streams_count, processes_count=count),
        more_ports=tuple(range(9001, 9000 + count)),
    )
    launch = IPERF3.client(client_ask(requested))
    assert len(launch.processes) == count
    shares = [process.streams_count or 0 for process in launch.processes]
    assert sum(shares) == streams_count
    assert max(shares) - min(shares) <= 1
    ports = [process.argv[process.argv.index("--port") + 1] for process in launch.processes]
    assert len(set(ports)) == count


def test_a_pair_with_too_few_ports_is_refused() -> None:
    requested = job(Traffic(streams_count=4, processes_count=2))
    with pytest.raises(Unsupported, match=r"processes_count: 2 processes, but the pair has 1 port"):
        IPERF3.client(client_ask(requested))


def test_pacing_and_dscp_options() -> None:
    traffic = Traffic(stream_bits_per_second=5_000_000, pacing=Pacing.KERNEL, dscp=46)
    (process,) = IPERF3.client(client_ask(job(traffic))).processes
    argv = process.argv
    assert argv[argv.index("--fq-rate") + 1] == "5000000"
    assert argv[argv.index("--dscp") + 1] == "46"
    assert "--bitrate" not in argv
    for version in ("3.12", "3.22"):
        text = (RECORDINGS / f"help-{version}.txt").read_text()
        assert "--fq-rate" in text
        assert "--dscp" in text


@pytest.mark.parametrize("version", ["3.12", "3.22"])
def test_stream_rtt_distribution_matches_the_recording(version: str) -> None:
    name = f"{version}/tcp-P2.json"
    text = (RECORDINGS / name).read_text()
    seen_s = [int(result) / 1e6 for result in re.findall(r'"rtt":\s*(\d+)', text)]
    [distribution] = recording(name).report.distributions
    assert (distribution.name, distribution.unit, distribution.max) == (
        "stream_rtt",
        "s",
        max(seen_s),
    )
    assert sum(distribution.counts.values()) == len(seen_s) == 2 * 3
    lows = [BUCKET_RATIO**bucket for bucket in distribution.counts]
    assert all(any(low <= rtt_s * 1.001 <= low * 1.05 for low in lows) for rtt_s in seen_s)


@pytest.mark.parametrize(
    ("settings", "pacing"),
    [
        ({"target_bitrate": 5}, Pacing.ENGINE),
        ({"target_bitrate": 0, "fqrate": 5}, Pacing.KERNEL),
        ({"target_bitrate": 0, "fqrate": 0}, None),
    ],
)
def test_pacing_method_is_read(settings: dict[str, int], pacing: Pacing | None) -> None:
    start = {"test_start": {"protocol": "TCP", **settings}}
    report = read_any(json.dumps({"start": start, "intervals": [], "end": {}}).encode()).report
    assert report.pacing is pacing
    assert report.stream_bits_per_second == (pacing and 5)


def test_effective_window_and_tos_are_read(name: str = "3.22/tcp-opts.json") -> None:
    report = read_any((RECORDINGS / name).read_bytes()).report
    assert report.window_bytes == 262_144
    assert report.tos == 0
