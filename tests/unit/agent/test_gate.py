"""What the start gate is told, and what it says."""

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
def test_connects_are_control_and_one_a_stream_and_flow(
    direction: Direction, connects: str, protocol: Protocol
) -> None:
    traffic = Traffic(
        streams_count=8, direction=direction, protocol=protocol, stream_bits_per_second=1000
    )
    env = gate_env(LIBRARY, 1795167299.25, traffic, base={})
    assert env["BROADSIDE_GATE_CONNECTS"] == connects
    assert env["BROADSIDE_GATE_AT"] == "1795167299.250000"
    assert env["LD_PRELOAD"] == "/x/libgate.so"


def test_only_a_lone_sender_without_warm_up_waits_for_its_server() -> None:
    def settle_s(**fields: object) -> float:
        env = gate_env(LIBRARY, 0.0, Traffic.model_validate(fields), base={})
        return float(env["BROADSIDE_GATE_SETTLE"])

    assert settle_s() > 0
    assert settle_s(omit_s=1) == 0
    assert settle_s(direction="reverse") == 0
    assert settle_s(direction="bidirectional") == 0


def test_the_environment_is_added_to() -> None:
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
def test_a_release_says_by_how_much_a_server_was_ahead(released: str, ahead_s: float) -> None:
    """Where the server sends, by nothing."""
    text = f"warning: something\nbroadside-gate: armed 1000.1\nbroadside-gate: {released}\n"
    release = read_release(text)
    assert release is not None
    assert (release.gate_reached_at_s, release.released_at_s) == (
        1000.1,
        float(released.split()[1]),
    )
    assert release.server_ahead_s == pytest.approx(ahead_s)


@pytest.mark.parametrize("stderr", ["", "broadside-gate: armed 1000.1\n", "broadside-gate: probed"])
def test_a_test_that_never_went_has_no_release(stderr: str) -> None:
    assert read_release(stderr) is None


def test_a_gate_that_holds_says_so_before_it_lets_go() -> None:
    assert not holds("warning: something\n")
    assert holds("warning: something\nbroadside-gate: armed 1000.100000\n")


def test_the_server_settles_for_one_of_its_readings() -> None:
    """Else its readings begin between two seconds of the instant, and mix them."""
    env = gate_env(LIBRARY, 0.0, Traffic(), base={})
    argv = server_argv(5201, Version(3, 18), binary=("iperf3",))
    assert "--interval" not in argv  # iperf3's own, which is a second
    assert float(env["BROADSIDE_GATE_SETTLE"]) == 1.0


def test_a_server_only_says_when_its_clock_starts() -> None:
    env = serving_env(LIBRARY, base={"LD_PRELOAD": "/y/other.so"})
    assert env == {"LD_PRELOAD": "/x/libgate.so /y/other.so", "BROADSIDE_GATE_SERVES": "1"}


def test_what_the_gate_says_of_udp_streams_is_read() -> None:
    assert read_opening("broadside-gate: armed 1000.1\n") is None
    text = "broadside-gate: armed 1000.1\nbroadside-gate: unanswered 2 of 16\n"
    assert read_opening(text) == Opening(unanswered_count=2, streams_count=16)
