"""iperf3 engine, which builds the command lines of client and server.

:mod:`broadside.exchange.engines.iperf3_text` parses the output. Functions raise
:class:`~broadside.exchange.engines.port.Unsupported` if this iperf3 version cannot run the job. The
message names the field, the version and the fix.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from broadside.exchange.engines.iperf3_account import Version, parse_version
from broadside.exchange.engines.iperf3_text import StreamReader
from broadside.exchange.engines.port import (
    ClientRequest,
    Engine,
    Launch,
    Process,
    Program,
    ServerLifetime,
    ServerRequest,
    Unsupported,
    validate_argument,
)
from broadside.exchange.installation import bring
from broadside.exchange.messages import BLOCK_MIN_BYTES, Direction, Job, Pacing, Protocol, Traffic

PROGRAM: Final = Program(
    name="iperf3",
    version_argv=("--version",),
    version_pattern=r"iperf (\d+\.\d+(?:\.\d+)?)",
    fix=bring("apt-get install iperf3", target="setup"),
)


# 65,535 bytes minus the IPv4 header and the UDP header.
UDP_BLOCK_MAX_BYTES: Final = 65_507

MINIMUM_VERSION: Final = Version(3, 9)

# First release that supports each option, from the sources of iperf3. We only use an option if the
# version supports it. _RECEIVE_TIMEOUT also applies to ``--idle-timeout``.
_RECEIVE_TIMEOUT: Final = Version(3, 10)
_SEND_TIMEOUT: Final = Version(3, 12)
_JSON_STREAM: Final = Version(3, 17)
_KEEPALIVE: Final = Version(3, 19)
_SERVER_MAX_DURATION: Final = Version(3, 20)

# A client stops if it receives no byte for this time. A server waits longer.
SILENCE_S: Final = 10.0
# Time that a client waits for the connection.
CONNECT_TIMEOUT_S: Final = 3.0
# Bytes per write of a TCP stream if the job sets no block size.
_BLOCK_BYTES: Final = 131_072
# Longest allowed time between two writes of a stream with a rate limit.
_BLOCK_MAX_S: Final = SILENCE_S / 2


class Iperf3(Engine):
    """Streams of TCP or UDP, in one or both directions. The start gate delays the data."""

    name: ClassVar[str] = "iperf3"
    title: ClassVar[str] = "TCP or UDP streams, forward, reverse or both at once"
    supported_fields: ClassVar[frozenset[str]] = frozenset(Traffic.model_fields)
    gated: ClassVar[bool] = True
    idle_control: ClassVar[bool] = True
    paces_exactly: ClassVar[bool] = True
    both_ends_comparable: ClassVar[bool] = True
    serving: ClassVar[ServerLifetime] = ServerLifetime.ONE_TEST
    needs_folder: ClassVar[bool] = False
    client_programs: ClassVar[tuple[Program, ...]] = (PROGRAM,)
    server_programs: ClassVar[tuple[Program, ...]] = (PROGRAM,)

    def problems(self, traffic: Traffic) -> Iterator[str]:
        if traffic.options:
            yield f"traffic.options: iperf3 has none, and {min(traffic.options)} is set; drop it"
        udp = traffic.protocol is Protocol.UDP
        yield from _protocol_problems(traffic)
        if udp and traffic.stream_bits_per_second is None:
            yield "traffic.stream_bits_per_second: UDP needs a rate per stream; set one"
        tcp_only = {"mss_bytes": "segments", "congestion": "congestion control"}
        for field, what in tcp_only.items():
            if udp and (value := getattr(traffic, field)) is not None:
                yield (
                    f"traffic.{field}: UDP has no {what}, and {value} is set; "
                    "drop it, or set traffic.protocol=tcp"
                )
        if udp and (traffic.block_bytes or 0) > UDP_BLOCK_MAX_BYTES:
            yield (
                f"traffic.block_bytes: a UDP datagram cannot carry {traffic.block_bytes} bytes; "
                f"set at most {UDP_BLOCK_MAX_BYTES}"
            )
        yield from _too_slow(traffic)
        if traffic.pacing is Pacing.KERNEL:
            if udp:
                yield "traffic.pacing: the kernel paces TCP sockets only; set engine"
            elif traffic.stream_bits_per_second is None:
                yield (
                    "traffic.pacing: kernel, but no rate is set; set traffic.stream_bits_per_second"
                )
        if traffic.processes_count > traffic.streams_count:
            yield (
                f"traffic.processes_count: {traffic.processes_count} processes for "
                f"{traffic.streams_count} streams; set at most a process a stream"
            )

    def statement(self, traffic: Traffic) -> str:
        if traffic.protocol is Protocol.UDP:
            return (
                "iperf3 sends UDP datagrams at a set rate, without TLS and without application "
                "transactions, in an open loop: what is lost does not hold the next back."
            )
        paced = "at a set rate at most" if traffic.stream_bits_per_second else "as fast as TCP goes"
        return (
            f"iperf3 sends bulk streams over TCP {paced}, without TLS and without application "
            "transactions, in a closed loop: acknowledgements let the next segments out."
        )

    def measures(self, traffic: Traffic) -> frozenset[str]:
        if traffic.protocol is Protocol.UDP:
            return frozenset({"loss"})
        return frozenset({"rtt", "retransmits"})

    def client(self, ask: ClientRequest) -> Launch:
        job, tool = ask.job, ask.tools["iperf3"]
        return Launch(
            processes=tuple(
                Process(
                    argv=client_argv(part, _version(tool.version), binary=tool.argv, bind=ask.bind),
                    streams_count=part.traffic.streams_count,
                    ends_at_alarm=True,
                )
                for part in _parts(job)
            )
        )

    def client_reader(self, job: Job) -> StreamReader:
        return StreamReader()

    def server(self, ask: ServerRequest) -> Launch:
        tool = ask.tools["iperf3"]
        argv = server_argv(
            ask.port,
            _version(tool.version),
            binary=tool.argv,
            bind=ask.address,
            limits=ServerLimits(max_duration_s=-int(-ask.duration_max_s // 1)),
        )
        return Launch(processes=(Process(argv=argv),))

    def server_reader(self) -> StreamReader:
        return StreamReader()


def _parts(job: Job) -> Iterator[Job]:
    """Yield a job for each process, with an even share of the streams and a separate port.

    Raises :class:`~broadside.exchange.engines.port.Unsupported` if the pair has too few ports.
    """
    count, traffic = job.traffic.processes_count, job.traffic
    if count > len(job.endpoint.ports):
        raise Unsupported(
            f"traffic.processes_count: {count} processes, but the pair has "
            f"{len(job.endpoint.ports)} ports; launch the run again"
        )
    for index in range(count):
        share, rest = divmod(traffic.streams_count, count)
        update = {"streams_count": share + (index < rest), "processes_count": 1}
        endpoint = job.endpoint.model_copy(
            update={"port": job.endpoint.ports[index], "more_ports": ()}
        )
        yield job.model_copy(
            update={"traffic": traffic.model_copy(update=update), "endpoint": endpoint}
        )


def _version(text: str) -> Version:
    version = parse_version(f"iperf {text}")
    if version is None:
        raise Unsupported(f"iperf3: {text!r} is not a version; {PROGRAM.fix}")
    return version


def _protocol_problems(traffic: Traffic) -> Iterator[str]:
    if traffic.protocol is Protocol.SCTP:
        yield "traffic.protocol: sctp results can be imported, not generated; set tcp or udp"


def _too_slow(traffic: Traffic) -> Iterator[str]:
    """Yield an error if the rate limit leaves the connection silent for too long.

    All streams send their first blocks at the same time. The other end will then receive nothing
    until the second blocks.
    """
    rate = traffic.stream_bits_per_second
    if traffic.protocol is Protocol.UDP or traffic.pacing is not Pacing.ENGINE or rate is None:
        return
    block_bytes = traffic.block_bytes or _BLOCK_BYTES
    block_s = block_bytes * 8 / rate
    if block_s <= _BLOCK_MAX_S:
        return
    fix = f"set traffic.block_bytes to at most {rate // 8}: a block a second"
    if rate // 8 < BLOCK_MIN_BYTES:
        fix = f"set at least {8 * BLOCK_MIN_BYTES}, and traffic.block_bytes={BLOCK_MIN_BYTES}"
    yield (
        f"traffic.stream_bits_per_second: at {rate} bit/s a stream sends {block_bytes} bytes every "
        f"{block_s:.0f} s, but iperf3 aborts after {SILENCE_S:g} s without data; {fix}"
    )


# Argv ------------------------------------------------------------------------------------------


def streams_json(version: Version) -> bool:
    """Return whether this release writes one JSON line per interval (``--json-stream``, 3.17)."""
    return version >= _JSON_STREAM


def client_argv(
    job: Job,
    version: Version,
    *,
    binary: Sequence[str],
    silence_s: float = SILENCE_S,
    bind: str | None = None,
) -> tuple[str, ...]:
    """Return the command line of the client for a job.

    Args:
        job: The job to run.
        version: iperf3 version.
        binary: The iperf3 command with its leading arguments.
        silence_s: iperf3 stops if it receives no data for this time, in seconds. Not every case is
            detected (FACTS, "iperf3"), so the caller must set a deadline too.
        bind: The local address to bind to, or None.

    Returns:
        Program and arguments.

    Raises:
        Unsupported: This version cannot run the job.
    """
    traffic = job.traffic
    udp = traffic.protocol is Protocol.UDP
    kernel_paced = traffic.pacing is Pacing.KERNEL
    _require_version(version)
    if traffic.engine != "iperf3":
        raise Unsupported(f"traffic.engine: {traffic.engine!r} is not iperf3; set iperf3")
    if udp and (traffic.block_bytes or 0) > UDP_BLOCK_MAX_BYTES:
        raise Unsupported(
            f"traffic.block_bytes: iperf3 {version} cannot send a UDP datagram of "
            f"{traffic.block_bytes} bytes; set at most {UDP_BLOCK_MAX_BYTES}"
        )
    options: list[tuple[str, object]] = [
        ("--client", validate_argument(job.endpoint.address, "endpoint.address")),
        ("--port", job.endpoint.port),
        ("--bind", None if bind is None else validate_argument(bind, "bind")),
        ("--time", job.duration_s),
        ("--interval", f"{traffic.interval_s:g}"),
        ("--parallel", traffic.streams_count),
        ("--connect-timeout", _milliseconds(CONNECT_TIMEOUT_S)),
        ("--reverse", traffic.direction is Direction.REVERSE),
        ("--bidir", traffic.direction is Direction.BIDIRECTIONAL),
        ("--udp", udp),
        ("--fq-rate" if kernel_paced else "--bitrate", traffic.stream_bits_per_second),
        ("--length", traffic.block_bytes),
        ("--window", traffic.window_bytes),
        ("--set-mss", traffic.mss_bytes),
        (
            "--congestion",
            traffic.congestion and validate_argument(traffic.congestion, "traffic.congestion"),
        ),
        ("--dscp", traffic.dscp),
        ("--omit", traffic.omit_s or None),
    ]
    if not udp and version >= _SEND_TIMEOUT:
        options.append(("--snd-timeout", _milliseconds(silence_s)))
    if traffic.direction is Direction.REVERSE and version >= _RECEIVE_TIMEOUT:
        options.append(("--rcv-timeout", _milliseconds(silence_s)))
    return _argv(binary, version, job.endpoint.address, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Time limits of a server, in seconds.

    Attributes:
        max_duration_s: Maximum test duration, or None. The supervisor enforces a limit in any case.
        silence_s: iperf3 stops if it receives no data for this time.
        idle_s: The server will exit if no client connects for this time. None for no limit.
    """

    max_duration_s: int | None = None
    silence_s: float = 15.0
    idle_s: int | None = None


def server_argv(
    port: int,
    version: Version,
    *,
    binary: Sequence[str],
    bind: str | None = None,
    limits: ServerLimits = ServerLimits(),
) -> tuple[str, ...]:
    """Return the command line of a server that runs one test on ``port`` and exits.

    From 3.16 to 3.19, a server counts the silence from its own start until the first data. If the
    server was idle for long, its client must therefore send within a second of TEST_START. The
    start gate delays the data longer than that, so it sends one byte in advance (for UDP, three
    datagrams without a number).

    Args:
        port: The port to listen on.
        version: iperf3 version.
        binary: The iperf3 command with its leading arguments.
        bind: The local address to bind to, or None for all.
        limits: Time limits. A limit will be omitted if the version does not have the option.

    Returns:
        Program and arguments.

    Raises:
        Unsupported: The version is too old.
    """
    _require_version(version)
    options: list[tuple[str, object]] = [
        ("--server", True),
        ("--one-off", True),
        ("--port", port),
        ("--bind", None if bind is None else validate_argument(bind, "bind")),
    ]
    if version >= _RECEIVE_TIMEOUT:
        options += [
            ("--rcv-timeout", _milliseconds(limits.silence_s)),
            ("--idle-timeout", limits.idle_s),
        ]
    if version >= _SEND_TIMEOUT:
        options.append(("--snd-timeout", _milliseconds(limits.silence_s)))
    if version >= _SERVER_MAX_DURATION:
        options.append(("--server-max-duration", limits.max_duration_s))
    return _argv(binary, version, bind, options)


def _argv(
    binary: Sequence[str],
    version: Version,
    address: str | None,
    options: list[tuple[str, object]],
) -> tuple[str, ...]:
    """Return the command line. A flag is True or False, and an option that is None is omitted."""
    if address is not None:
        options.append(("--version6" if ":" in address else "--version4", True))
    if version >= _KEEPALIVE:
        # The control connection is idle during the whole test. Cloud firewalls drop idle
        # connections after four minutes (FACTS, "Azure Firewall"). The idle time should be more
        # than interval * count.
        options.append(("--cntl-ka=60/10/5", True))
    options.append(("--json-stream" if streams_json(version) else "--json", True))
    argv = list(binary)
    for name, value in options:
        if value is True:
            argv.append(name)
        elif value is not None and value is not False:
            argv += [name, str(value)]
    return tuple(argv)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _require_version(version: Version) -> None:
    if version < MINIMUM_VERSION:
        raise Unsupported(f"iperf3 {version} is too old; install {MINIMUM_VERSION} or newer")


ENGINE: Final = Iperf3()
