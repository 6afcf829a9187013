"""Tests for the iperf3 command line for a job and an iperf3 version."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broadside.exchange.engines.iperf3 import ServerLimits, client_argv, server_argv, streams_json
from broadside.exchange.engines.iperf3_account import Version, parse_version
from broadside.exchange.engines.port import Unsupported
from broadside.exchange.messages import Direction, Endpoint, Job, Protocol, Traffic

RECORDINGS = Path(__file__).parents[3] / "data" / "iperf3"
OLDEST, DEBIAN_12, NEWEST = Version(3, 9), Version(3, 12), Version(3, 22)


def job(traffic: Traffic, *, address: str = "10.0.0.2") -> Job:
    return Job(
        run_id="r1",
        burst_index=0,
        pair_index=0,
        endpoint=Endpoint(agent_id="s1", address=address, port=5201),
        traffic=traffic,
        planned_start_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_s=30,
    )


def options(argv: tuple[str, ...]) -> dict[str, str | bool]:
    """Return options by name. The value is set to True for a flag."""
    named: dict[str, str | bool] = {}
    for argument in argv[1:]:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            named[name] = value if equals else True
        else:
            named[next(reversed(named))] = argument
    return named


def client(traffic: Traffic, version: Version = NEWEST) -> dict[str, str | bool]:
    return options(client_argv(job(traffic), version, binary=("iperf3",)))


def test_complete_command_line_of_a_forward_test() -> None:
    argv = client_argv(job(Traffic(streams_count=8)), DEBIAN_12, binary=("/opt/iperf3", "x"))
    assert " ".join(argv) == (
        "/opt/iperf3 x --client 10.0.0.2 --port 5201 --time 30 --interval 1 --parallel 8 "
        "--connect-timeout 3000 --snd-timeout 10000 --version4 --json"
    )


def test_every_field_sets_its_option() -> None:
    full = Traffic(
        direction=Direction.REVERSE,
        streams_count=3,
        stream_bits_per_second=10_000_000,
        block_bytes=32_768,
        window_bytes=262_144,
        mss_bytes=1200,
        congestion="bbr",
        omit_s=2,
        interval_s=0.5,
    )
    arguments = client(full)
    expected = {
        "--parallel": "3",
        "--bitrate": "10000000",
        "--length": "32768",
        "--window": "262144",
        "--set-mss": "1200",
        "--congestion": "bbr",
        "--omit": "2",
        "--interval": "0.5",
        "--reverse": True,
        "--time": "30",
    }
    assert expected.items() <= arguments.items()
    assert "--udp" not in arguments and "--bidir" not in arguments


def test_unset_fields_have_no_option() -> None:
    arguments = client(Traffic())
    unset = {"--bitrate", "--length", "--window", "--set-mss", "--congestion", "--omit", "--bind"}
    assert not unset & arguments.keys()


@pytest.mark.parametrize(
    ("direction", "protocol", "flags"),
    [
        (Direction.FORWARD, Protocol.TCP, {"--snd-timeout"}),
        (Direction.REVERSE, Protocol.TCP, {"--snd-timeout", "--reverse", "--rcv-timeout"}),
        (Direction.BIDIRECTIONAL, Protocol.TCP, {"--snd-timeout", "--bidir"}),
        (Direction.FORWARD, Protocol.UDP, {"--udp"}),
        (Direction.REVERSE, Protocol.UDP, {"--udp", "--reverse", "--rcv-timeout"}),
        (Direction.BIDIRECTIONAL, Protocol.UDP, {"--udp", "--bidir"}),
    ],
)
def test_timeouts_follow_direction_and_protocol(
    direction: Direction, protocol: Protocol, flags: set[str]
) -> None:
    traffic = Traffic(direction=direction, protocol=protocol, stream_bits_per_second=1_000_000)
    varying = {"--snd-timeout", "--rcv-timeout", "--reverse", "--bidir", "--udp"}
    assert client(traffic).keys() & varying == flags


@pytest.mark.parametrize(
    ("option", "first"),
    [
        ("--json-stream", Version(3, 17)),
        ("--snd-timeout", Version(3, 12)),
        ("--rcv-timeout", Version(3, 10)),
        ("--cntl-ka", Version(3, 19)),
    ],
)
def test_option_is_used_only_from_its_release(option: str, first: Version) -> None:
    reverse = Traffic(direction=Direction.REVERSE)
    before = Version(first.major, first.minor - 1, 9)
    assert option in client(reverse, first)
    assert option not in client(reverse, before)
    assert ("--json" in client(reverse, before)) == (not streams_json(before))


def test_server_options_depend_on_the_release() -> None:
    def server(version: Version) -> dict[str, str | bool]:
        argv = server_argv(
            5201,
            version,
            binary=("iperf3",),
            bind="10.0.0.2",
            limits=ServerLimits(max_duration_s=60, idle_s=90),
        )
        return options(argv)

    always = {"--server": True, "--one-off": True, "--port": "5201", "--bind": "10.0.0.2"}
    assert server(OLDEST) == always | {"--version4": True, "--json": True}
    timeouts = {"--rcv-timeout": "15000", "--snd-timeout": "15000", "--idle-timeout": "90"}
    assert server(DEBIAN_12) == server(OLDEST) | timeouts
    newest = server(NEWEST)
    assert newest["--server-max-duration"] == "60"
    assert newest["--json-stream"] is True


@pytest.mark.parametrize("version", [DEBIAN_12, NEWEST])
@pytest.mark.parametrize("direction", list(Direction))
def test_all_options_are_in_the_help_text(version: Version, direction: Direction) -> None:
    text = (RECORDINGS / f"help-{version}.txt").read_text()
    known = set(re.findall(r"--[a-z0-9-]+", text))
    full = Traffic(
        direction=direction,
        stream_bits_per_second=1000,
        block_bytes=100,
        window_bytes=2000,
        mss_bytes=100,
        congestion="reno",
        omit_s=1,
    )
    servers = server_argv(
        1, version, binary=("iperf3",), limits=ServerLimits(max_duration_s=1, idle_s=1)
    )
    assert client(full, version).keys() <= known
    assert options(servers).keys() <= known


def test_address_family_follows_the_address() -> None:
    argv = client_argv(
        job(Traffic(), address="fd00::2"), NEWEST, binary=("iperf3",), bind="fd00::1"
    )
    arguments = options(argv)
    assert (arguments["--client"], arguments["--bind"], arguments["--version6"]) == (
        "fd00::2",
        "fd00::1",
        True,
    )
    assert "--version4" not in arguments


def test_old_release_is_rejected_with_a_fix() -> None:
    with pytest.raises(Unsupported, match=r"iperf3 3\.7 is too old; install 3\.9 or newer"):
        client_argv(job(Traffic()), Version(3, 7), binary=("iperf3",))
    with pytest.raises(Unsupported, match="too old"):
        server_argv(5201, Version(3, 8, 1), binary=("iperf3",))


def test_other_engine_is_rejected() -> None:
    with pytest.raises(Unsupported, match=r"traffic\.engine: 'trex' is not iperf3"):
        client_argv(job(Traffic(engine="trex")), NEWEST, binary=("iperf3",))


def test_datagram_size_is_limited() -> None:
    udp = Traffic(protocol=Protocol.UDP, stream_bits_per_second=1000, block_bytes=65_508)
    with pytest.raises(Unsupported, match=r"block_bytes: .* 65508 bytes; set at most 65507"):
        client_argv(job(udp), NEWEST, binary=("iperf3",))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("iperf 3.12 (cJSON 1.7.15)\nLinux vm 6.1", Version(3, 12)),
        ("iperf 3.10.1", Version(3, 10, 1)),
        ("iperf 3.21+", Version(3, 21)),
        ("iperf 3.17-rc1", Version(3, 17)),
        ("iperf version 2.1.8 (12 August 2022) pthreads", None),
        ("", None),
        ("Usage: iperf3", None),
    ],
)
def test_parses_versions(text: str, version: Version | None) -> None:
    assert parse_version(text) == version


def test_versions_compare_as_releases() -> None:
    assert Version(3, 9) < Version(3, 10) < Version(3, 10, 1) < Version(3, 22)
    assert (str(Version(3, 12)), str(Version(3, 10, 1))) == ("3.12", "3.10.1")
