"""Tests for the start gate's environment and messages."""

from pathlib import Path

import pytest

from broadside.agent.gate import (
    Opening,
    gate_env,
    holds,
    read_opening,
    read_release,
    serving_env,
)
from broadside.exchange.engines.iperf3 import server_argv
from broadside.exchange.engines.iperf3_account import Version
from broadside.exchange.messages import Direction, Protocol, Traffic

LIBRARY = Path("/x/libgate.so")


@pytest.mark.parametrize(
    ("direction", "connects"),
    [(Direction.FORWARD, "9"), (Direction.REVERSE, "9"), (Direction.BIDIRECTIONAL, "17")],
)
@pytest.mark.parametrize("protocol", list(Protocol))
def test_gate_expects_control_and_stream_connections(
    direction: Direction, connects: str, protocol: Protocol
) -> None:
    traffic = Traffic(
        streams_count=8, direction=direction, protocol=protocol, stream_bits_per_second=1000
    )
    env = gate_env(LIBRARY, 1795167299.25, traffic, base={})
    assert env["BROADSIDE_GATE_CONNECTS"] == connects
    assert env["BROADSIDE_GATE_AT"] == "1795167299.250000"
    assert env["LD_PRELOAD"] == "/x/libgate.so"


def test_settle_time_only_for_forward_tests_without_warm_up() -> None:
    def settle_s(**fields: object) -> float:
        env = gate_env(LIBRARY, 0.0, Traffic.model_validate(fields), base={})
        return float(env["BROADSIDE_GATE_SETTLE"])

    assert settle_s() > 0
    assert settle_s(omit_s=1) == 0
    assert settle_s(direction="reverse") == 0
    assert settle_s(direction="bidirectional") == 0


def test_gate_extends_the_environment() -> None:
    base = {"PATH": "/bin", "LD_PRELOAD": "/y/other.so"}
    env = gate_env(LIBRARY, 0.0, Traffic(), base=base)
    assert env["PATH"] == "/bin"
    assert env["LD_PRELOAD"] == "/x/libgate.so /y/other.so"
    assert base == {"PATH": "/bin", "LD_PRELOAD": "/y/other.so"}


@pytest.mark.parametrize(
    ("released", "ahead_s"),
    [
        ("released 1005.000061 started 1004.751000", 0.249061),
        ("released 1005.0 started 0.000000", 0),
    ],
)
def test_release_reports_the_server_lead(released: str, ahead_s: float) -> None:
    """Test also a server that is set to send, which cannot be ahead."""
    text = f"warning: something\nbroadside-gate: armed 1000.1\nbroadside-gate: {released}\n"
    release = read_release(text)
    assert release is not None
    assert (release.gate_reached_at_s, release.released_at_s) == (
        1000.1,
        float(released.split()[1]),
    )
    assert release.server_ahead_s == pytest.approx(ahead_s)


@pytest.mark.parametrize("stderr", ["", "broadside-gate: armed 1000.1\n", "broadside-gate: probed"])
def test_test_without_start_has_no_release(stderr: str) -> None:
    assert read_release(stderr) is None


def test_armed_gate_is_detected_before_its_release() -> None:
    assert not holds("warning: something\n")
    assert holds("warning: something\nbroadside-gate: armed 1000.100000\n")


def test_settle_time_is_one_server_interval() -> None:
    """Check the interval. If not, the readings could start between two seconds after the
    instant."""
    env = gate_env(LIBRARY, 0.0, Traffic(), base={})
    argv = server_argv(5201, Version(3, 18), binary=("iperf3",))
    # The default interval of iperf3 is one second.
    assert "--interval" not in argv
    assert float(env["BROADSIDE_GATE_SETTLE"]) == 1.0


def test_server_gate_only_reports_its_start() -> None:
    env = serving_env(LIBRARY, base={"LD_PRELOAD": "/y/other.so"})
    assert env == {"LD_PRELOAD": "/x/libgate.so /y/other.so", "BROADSIDE_GATE_SERVES": "1"}


def test_reads_unanswered_udp_streams() -> None:
    assert read_opening("broadside-gate: armed 1000.1\n") is None
    text = "broadside-gate: armed 1000.1\nbroadside-gate: unanswered 2 of 16\n"
    assert read_opening(text) == Opening(unanswered_count=2, streams_count=16)
