"""iperf3 as an engine; :mod:`exchange.engines.iperf3_text` spells its argv and reads its output."""

from collections.abc import Iterator
from typing import ClassVar, Final

from exchange.engines.iperf3_text import (
    UDP_BLOCK_MAX_BYTES,
    StreamReader,
    Version,
    client_argv,
    parse_version,
    server_argv,
)
from exchange.engines.port import (
    ClientAsk,
    Engine,
    Launch,
    Process,
    Program,
    ServerAsk,
    Serving,
    Unsupported,
)
from exchange.engines.reading import Event
from exchange.messages import Job, Pacing, Protocol, Traffic

PROGRAM: Final = Program(
    name="iperf3",
    version_argv=("--version",),
    version_pattern=r"iperf (\d+\.\d+(?:\.\d+)?)",
    fix="run make setup, or apt-get install iperf3",
)


class Iperf3Reader(StreamReader):
    """iperf3 tells all on its standard output."""

    def sample(self, name: str, text: str, at_s: float) -> tuple[Event, ...]:
        return ()


class Iperf3(Engine):
    """Streams of TCP or UDP, either way or both; the start gate holds it."""

    name: ClassVar[str] = "iperf3"
    title: ClassVar[str] = "TCP or UDP streams, forward, reverse or both at once"
    honours: ClassVar[frozenset[str]] = frozenset(Traffic.model_fields)
    gated: ClassVar[bool] = True
    idle_control: ClassVar[bool] = True
    paces_exactly: ClassVar[bool] = True
    counts_alike: ClassVar[bool] = True
    serving: ClassVar[Serving] = Serving.ONE_TEST
    needs_folder: ClassVar[bool] = False
    client_programs: ClassVar[tuple[Program, ...]] = (PROGRAM,)
    server_programs: ClassVar[tuple[Program, ...]] = (PROGRAM,)

    def problems(self, traffic: Traffic) -> Iterator[str]:
        if traffic.options:
            yield f"traffic.options: iperf3 has none, and {min(traffic.options)} is set; drop it"
        udp = traffic.protocol is Protocol.UDP
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

    def client(self, ask: ClientAsk) -> Launch:
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

    def client_reader(self, job: Job) -> Iperf3Reader:
        return Iperf3Reader()

    def server(self, ask: ServerAsk) -> Launch:
        tool = ask.tools["iperf3"]
        argv = server_argv(
            ask.port,
            _version(tool.version),
            binary=tool.argv,
            bind=ask.address,
            max_duration_s=-int(-ask.duration_max_s // 1),
        )
        return Launch(processes=(Process(argv=argv),))

    def server_reader(self) -> Iperf3Reader:
        return Iperf3Reader()


def _parts(job: Job) -> Iterator[Job]:
    """One job a process: the streams shared out evenly, each on a port of its own.

    Raises :class:`~exchange.engines.port.Unsupported` where the pair has too few ports.
    """
    count, traffic = job.traffic.processes_count, job.traffic
    if count > len(job.endpoint.ports):
        raise Unsupported(
            f"traffic.processes_count: {count} processes, but the pair has "
            f"{len(job.endpoint.ports)} ports; launch the run anew"
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
        raise Unsupported(f"iperf3: {text!r} is no version; run make setup")
    return version


ENGINE: Final = Iperf3()
