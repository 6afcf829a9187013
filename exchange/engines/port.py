"""Interface that every traffic engine implements.

An engine turns a job into processes, and the output of these processes into intervals and totals.
Each engine is one module of this package with an ``ENGINE`` constant. The package
:mod:`broadside.exchange.engines` discovers these modules. A new engine therefore needs one module,
a test and a line in ``docs/engines.md``.

Engines are pure: they build command lines and files, and parse lines. The agent starts, monitors,
stops and cleans up the processes in the same way for every engine.

An engine defines, for both ends of a pair:

======================== =========================================================================
supported fields         ``supported_fields``, ``defaults``, ``problems``. The launch and every
agent reject
                         invalid combinations with an error ``field: problem; fix``.
description              ``statement``: how the engine generates traffic, for reports
metrics                  ``measures``: the thresholds of an objective that its results can check
requirements             ``client_programs``, ``server_programs``, ``needs_certificate``
client                   ``client`` -> :class:`Launch`; ``client_reader`` -> :class:`Reader`
server                   ``server`` -> :class:`Launch`; ``server_reader`` -> :class:`Reader`
server readiness         A server is ready when its port is in state LISTEN. The agent reads this
                         from the kernel's socket tables and sends no probe.
start                    ``gated``: the start gate delays the first data until the start time.
                         Without it the process starts at that time (``StartMethod.TIMED_EXEC``)
                         and the agent records the start error.
shutdown                 ``shutdown_grace_s``: extra time between two bursts
matching of both ends    A cookie: from the engine itself, or for a daemon the token in each request
                         (:mod:`broadside.exchange.engines.tokens`). Addresses are not used.
======================== =========================================================================

Errors::

    EngineProblem
    └── Unsupported   this version of the program cannot run the job
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Protocol

from broadside.exchange.messages import EngineReport, Flow, Interval, Job, Side, Track, Traffic


class StartBasis(StrEnum):
    """Source of ``first_data_at_s``, the most accurate source first.

    Attributes:
        ARRIVALS: Smallest (arrival of a line - end of its interval). The error is about 1 ms.
        RELEASE: Release time that the start gate recorded. It is a few ms early.
        STAMPS: Timestamp that the engine wrote for the first request or byte.
        SAMPLES: Last sample before a counter increased, early by at most one sampling interval.
        EXIT: Arrival of the complete output minus the end of the last interval, late by tens of ms.
        TIMESTAMP: Coarse timestamp that the engine wrote before the connections opened.
    """

    ARRIVALS = "arrivals"
    RELEASE = "release"
    STAMPS = "stamps"
    SAMPLES = "samples"
    EXIT = "exit"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine has opened its connections and its clock runs.

    Attributes:
        side: End of the pair, if the output names it.
        started_at_s: Start timestamp from the engine, in epoch seconds.
        cookie: Cookie of the test, if the engine has one.
        client_address: The client address, only set at the server.
        expected_s: Planned length of the test in seconds: omit + duration.
    """

    side: Side | None
    started_at_s: float | None
    cookie: str | None = None
    client_address: str | None = None
    expected_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """One interval of the engine, for each flow that the engine carries.

    Attributes:
        arrived_at_s: Arrival time of the output line, in epoch seconds.
        by_flow: Interval of each flow.
    """

    arrived_at_s: float
    by_flow: Mapping[Flow, Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The engine reported an error, with the text of the engine."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The engine wrote the last event. ``finish`` returns the totals."""


EngineEvent = Started | Intervals | Failed | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """Result of a test as one end recorded it.

    Attributes:
        report: Report of the engine. ``argv`` is empty because the output does not contain it. The
            caller sets it with ``model_copy``.
        side: End of the pair. None if the output stopped before the engine named it.
        intervals: Intervals of each flow.
        first_data_at_s: Start of engine time by the clock of this end, in epoch seconds.
        start_basis: Source of ``first_data_at_s``.
        started_at_s: Start timestamp from the engine, in epoch seconds.
        client_address: The client address, only set at the server.
        is_sent_only: True if a client does not know the received bytes of an upload.
    """

    report: EngineReport
    side: Side | None
    intervals: Mapping[Flow, tuple[Interval, ...]]
    first_data_at_s: float | None
    start_basis: StartBasis | None
    started_at_s: float | None
    client_address: str | None
    is_sent_only: bool = False

    @property
    def usable(self) -> bool:
        """Return True if the test ended without an error and every requested flow carried bytes.

        A client knows the received bytes of both ends, except for ``is_sent_only``. A server knows
        only the bytes that it received or sent. An engine with counts in its intervals may carry no
        bytes.
        """
        report = self.report
        if report.error is not None or report.truncated or not report.totals:
            return False
        if any(row.counts for rows in self.intervals.values() for row in rows):
            return True
        if self.side is Side.SERVER:
            return all(
                (total.received_bytes if total.flow is Flow.UP else total.sent_bytes)
                for total in report.totals
            )
        if self.is_sent_only:
            return all(total.sent_bytes for total in report.totals)
        return all(total.received_bytes for total in report.totals)

    def tracks(self) -> tuple[Track, ...]:
        """Return the flows with their position in time, or an empty tuple while that is unknown."""
        if self.first_data_at_s is None or self.side is None:
            return ()
        return tuple(
            Track(
                side=self.side,
                flow=flow,
                first_data_at_s=self.first_data_at_s,
                intervals=intervals,
            )
            for flow, intervals in self.intervals.items()
        )


# A file is cut to this number of characters in the record.
FILE_TEXT_MAX: Final = 4000
# Fields of ``Traffic`` that every engine supports.
EVERY_ENGINE: Final = frozenset({"engine", "options", "probe", "encapsulation", "canary"})


class EngineProblem(Exception):
    """An engine cannot do something. The message names the field or program, and the fix."""


class Unsupported(EngineProblem):
    """This version of the program cannot run the job. The message names field, version and fix."""


class ServerLifetime(StrEnum):
    """Lifetime of a server process. It also determines how records are matched with the pair.

    Attributes:
        ONE_TEST: There is a process for each test. The engine's cookie matches the record.
        DAEMON: One process runs until it is stopped. The token in its log matches the records.
    """

    ONE_TEST = "one_test"
    DAEMON = "daemon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that an engine runs, and the command that prints its version.

    Attributes:
        name: The executable name. We will look for it in ``.tools/<name>/bin`` of the
            checkout, in PATH and in ``/usr/sbin``.
        version_argv: Arguments that make the program print its version.
        version_pattern: Regular expression with one group, which matches the version.
        fix: What to do if the program is missing.
        module: Python module of Broadside to run instead of an executable.
    """

    name: str
    version_argv: tuple[str, ...]
    version_pattern: str
    fix: str
    module: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program that was found and that runs.

    Attributes:
        argv: Command that runs the program, with leading arguments.
        version: Version number.
    """

    argv: tuple[str, ...]
    version: str


# Tools by program name.
Toolset = Mapping[str, Tool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Certificate of a TLS server, as files that the server process can read.

    Attributes:
        certificate: Path of the certificate, PEM.
        key: Path of the private key, PEM.
    """

    certificate: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """Information that an engine needs to start the client end of a job.

    Attributes:
        job: The job to run.
        tools: Programs found on this host, by name.
        folder: Absolute path of an empty folder for this client. It will be deleted after the job.
        bind: The agent's address to bind to, if it has the same address family as the target.
            Otherwise None.
        bodies: Path of the library for the content of large files (``agent/bodies.c``), if built.
    """

    job: Job
    tools: Toolset
    folder: str
    bind: str | None
    bodies: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """Information that an engine needs to start the server end on a port.

    Attributes:
        port: The port to listen on.
        address: The address to listen on. None means all addresses.
        tools: Programs found on this host, by name.
        folder: Absolute path of an empty folder for this server. It will be deleted after the
            server ends.
        duration_max_s: Duration of the longest test that the server allows, in seconds.
        certificate: The certificate, if the engine needs one. You can provide it, or it will be
            created by the agent.
        bodies: Path of the library for the content of large files (``agent/bodies.c``), if built.
        tls: TLS version and cipher suite of the port, such as ``1.2:ECDHE-RSA-AES128-GCM-SHA256``.
            An empty string allows any.
    """

    port: int
    address: str | None
    tools: Toolset
    folder: str
    duration_max_s: float
    certificate: Certificate | None = None
    bodies: str | None = None
    tls: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFile:
    """A file that the agent creates in the folder before it starts a process.

    Attributes:
        name: Path of the file, relative to the folder.
        text: The file content.
        size_bytes: If set, the agent will create a file of this size instead, of random bytes and
            zeros.
        zeros_percent: Share of zeros in a file of this size.
        is_sparse: True if the file of this size needs no disk space, because ``agent/bodies.c``
            supplies its content. Nobody can write to it.
        link_to: If set, the agent will create a symbolic link to this path instead.
        is_closed_folder: True if this is a folder, to which nobody can add files from now on.
    """

    name: str
    text: str = ""
    size_bytes: int | None = None
    zeros_percent: int = 0
    is_sparse: bool = False
    link_to: str | None = None
    is_closed_folder: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWatch:
    """File that the agent reads for a reader, once a second and more often until data flows.

    Attributes:
        name: Name that ``Reader.sample`` receives.
        path: The file to read. ``{pid}`` is replaced by the process ID.
        tail: True to pass only the text that was added since the last read.
    """

    name: str
    path: str
    tail: bool = False


class EndBy(StrEnum):
    """Signal that the kernel sends to a process when the agent dies.

    Attributes:
        KILL: SIGKILL.
        TERM: SIGTERM, for a process that stops its own children when it receives SIGTERM.
    """

    KILL = "kill"
    TERM = "term"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process to start. The reader receives the lines of its standard output.

    The agent starts the process in a new process group. It kills this group by pid at the deadline,
    on abort and when the agent stops. The kernel will kill the process when the agent dies.

    Attributes:
        argv: The command line to run.
        pipe_to: Command line of a second process, which reads the standard output of the first
            through a pipe.
        env: Environment variables to add to the environment of the agent.
        watches: Files to read while the process is running.
        stop_after_s: For an engine that does not stop by itself. The agent will stop the process
            this time after the start time, in seconds. This is not a failure, but any other end is.
        end_by: The signal to send when the agent dies.
        ends_at_alarm: True if SIGALRM ends the process. A kernel timer will then stop it even if
            the agent hangs. Otherwise the agent will start a watchdog for the process.
        raw_max_bytes: The maximum output to store, in bytes. None means the agent's limit.
        streams_count: Number of streams that this process opens. The start gate waits for them.
    """

    argv: tuple[str, ...]
    pipe_to: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    watches: tuple[FileWatch, ...] = ()
    stop_after_s: float | None = None
    end_by: EndBy = EndBy.KILL
    ends_at_alarm: bool = False
    raw_max_bytes: int | None = None
    streams_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """All processes and files of one end.

    If there are several processes, they form one test, and their readings will be summed.

    With the start gate the agent starts all processes before the start time. Without it the agent
    starts all processes at the start time.

    Attributes:
        processes: The processes to start.
        files: The files to create first.
        unprivileged: True to run as user ``nobody`` if the agent is root.
    """

    processes: tuple[Process, ...]
    files: tuple[EngineFile, ...] = ()
    unprivileged: bool = False

    @property
    def texts(self) -> Mapping[str, str]:
        """Return the content of the files by name, to store it in the record.

        A long text will be cut to ``FILE_TEXT_MAX`` characters.
        """
        return {
            file.name: file.text[:FILE_TEXT_MAX] + ("..." if len(file.text) > FILE_TEXT_MAX else "")
            for file in self.files
            if file.text
        }


class Reader(Protocol):
    """Parser for the output of a process as it arrives. It never raises because of the output."""

    def feed(self, line: bytes, at_s: float) -> Sequence[EngineEvent]:
        """Parse a line of standard output.

        Args:
            line: The line, without the line break.
            at_s: Arrival of the first byte, in epoch seconds.

        Returns:
            The events in the line, or an empty sequence.
        """
        return ()

    def sample(self, name: str, text: str, at_s: float) -> Sequence[EngineEvent]:
        """Parse the content of a :class:`FileWatch`.

        Args:
            name: The watch name.
            text: Content, or the added text if the watch has ``tail``.
            at_s: Time of the read, in epoch seconds. For a log this is the time of the last line.

        Returns:
            The events in the text, or an empty sequence.
        """
        return ()

    def finish(
        self,
        exit_code: int | None = None,
        *,
        stderr: str = "",
        released_at_s: float | None = None,
        server_ahead_s: float = 0.0,
    ) -> EngineResult:
        """Return everything that was read so far. It can be called at any time, also during a test.

        Args:
            exit_code: Exit code of the process, or None while it runs.
            stderr: Standard error. It supplies the reason if the output contains no error.
            released_at_s: Time at which the start gate released the data, in epoch seconds. None
                without a gate.
            server_ahead_s: How long the server's engine clock ran before the release, in seconds
                (:class:`broadside.agent.gate.Release`).

        Returns:
            The reading.
        """


class DaemonTest(Protocol):
    """One test from the log of a daemon.

    Attributes:
        opened_s: Time of the first log line of the test, in epoch seconds.
        last_data_s: Time of the last log line of the test, in epoch seconds.
        until_s: Latest time at which the client can finish, in epoch seconds.
    """

    opened_s: float
    last_data_s: float
    until_s: float

    @property
    def quiet_s(self) -> float:
        """Return after how many seconds without a log line the test counts as ended."""

    @property
    def is_reported(self) -> bool:
        """Return True if the log contains a transfer of the test, not only its start."""

    @property
    def last_at_s(self) -> float | None:
        """Return the epoch second at which the last byte was sent, or None if no byte was sent."""

    def finish(self) -> EngineResult:
        """Return everything that was read so far."""


class DaemonReader(Reader, Protocol):
    """Parser for the log of a daemon that assigns each request to a test by its token."""

    @property
    def tests(self) -> "Mapping[str, DaemonTest]":
        """Return the newest tests by cookie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeeds:
    """Most connections that a pair has at a time, for the limits of its hosts.

    Attributes:
        open_count: Open sockets of each end.
        ports_count: Local ports of the client, with those in TIME_WAIT.
        flows_count: Flows of the network interfaces, with those in TIME_WAIT.
        tracked_count: Entries in the conntrack table of a host that tracks connections.
        per_second: New connections per second.
        core_per_second: New connections per second that one core makes, at the slower end.
        uses_all_addresses: True if the client uses all addresses of its interface.
        field: Option that sets the number.
        fix: How to need less.
    """

    open_count: float
    ports_count: float
    flows_count: float
    tracked_count: float
    per_second: float
    core_per_second: float
    uses_all_addresses: bool
    field: str
    fix: str


class Engine(ABC):
    """Base class of all traffic engines. All methods are pure and fast.

    Attributes:
        name: Value of ``Traffic.engine``.
        title: One line for lists and documentation.
        defaults: Default values of ``Traffic`` fields, if they differ from those of the class.
        supported_fields: Fields of ``Traffic`` that it supports, in addition to ``EVERY_ENGINE``.
        new_options: Options and fields that agents of version 1.0 reject or ignore. Agents
            announce them, so that a launch can check them.
        gated: True if the start gate should delay the first data.
        waits_itself: True if the client waits for the start time without the library of the start
            gate, and writes the same lines.
        idle_control: True if a control connection has no traffic during a test.
        paces_exactly: True if a stream sends at ``stream_bits_per_second``, to about 1 %.
        sets_each_second: True if the options set the bytes of each second, so that the records of
            two pairs can be equal.
        both_ends_comparable: True if both ends count the same payload bytes as the data passes.
        serving: Lifetime of the server process.
        needs_certificate: True if the server needs a TLS certificate.
        needs_folder: True if the engine needs a folder. If False, ``folder`` is an empty string.
        client_programs: Programs of the client.
        server_programs: Programs of the server.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    defaults: ClassVar[Mapping[str, object]] = {}
    supported_fields: ClassVar[frozenset[str]]
    new_options: ClassVar[frozenset[str]] = frozenset()
    gated: ClassVar[bool] = False
    waits_itself: ClassVar[bool] = False
    idle_control: ClassVar[bool] = False
    paces_exactly: ClassVar[bool] = False
    sets_each_second: ClassVar[bool] = False
    both_ends_comparable: ClassVar[bool] = False
    serving: ClassVar[ServerLifetime] = ServerLifetime.DAEMON
    needs_certificate: ClassVar[bool] = False
    needs_folder: ClassVar[bool] = True
    client_programs: ClassVar[tuple[Program, ...]] = ()
    server_programs: ClassVar[tuple[Program, ...]] = ()

    @abstractmethod
    def problems(self, traffic: Traffic) -> Iterator[str]:
        """Yield errors in the options of this engine and their combinations.

        :func:`broadside.exchange.engines.problems` checks for unsupported fields. It also converts
        the exception below to an error text.

        Yields:
            Errors as ``field: problem; fix``.

        Raises:
            Unsupported: An option cannot be parsed.
        """

    @abstractmethod
    def statement(self, traffic: Traffic) -> str:
        """Return one sentence for the report that describes the traffic.

        It names the method, the protocol and whether TLS is used. It also contains whether the loop
        is closed (responses delay the next data) or open.
        """

    @abstractmethod
    def measures(self, traffic: Traffic) -> frozenset[str]:
        """Return the metrics that a threshold can use: names in ``Threshold.requires``."""

    def used_new_options(self, traffic: Traffic) -> frozenset[str]:
        """Return the names in ``new_options`` that the traffic uses."""
        changed = {n for n, value in self.defaults.items() if getattr(traffic, n) != value}
        return self.new_options & (changed | set(traffic.options))

    def service_problem(self, tls: str) -> str | None:
        """Return why a port cannot enforce a value of ``ServerRequest.tls``, or None if it can."""
        return f"engine {self.name} enforces no TLS version; drop :{tls}" if tls else None

    def tls_of(self, traffic: Traffic) -> str:
        """Return the value of ``ServerRequest.tls`` that a server port needs for the traffic."""
        return ""

    def needs(self, traffic: Traffic, busy_s: float) -> HostNeeds | None:
        """Return the most that a pair needs of its hosts.

        Args:
            traffic: The traffic.
            busy_s: Seconds with traffic in the run.

        Returns:
            Ports, descriptors and connections of one pair. None if no limit of its hosts is near.
        """
        return None

    def pauses(self, traffic: Traffic) -> bool:
        """Return True if seconds without payload, or with less, are part of the traffic."""
        return False

    def offered_bits_per_second(self, traffic: Traffic) -> int | None:
        """Return the requested payload rate of a pair, all flows. None means no limit is set."""
        if traffic.stream_bits_per_second is None:
            return None
        flows_count = len(traffic.direction.flows)
        return traffic.stream_bits_per_second * traffic.streams_count * flows_count

    def ramps_s(self, traffic: Traffic) -> tuple[int, int]:
        """Return the seconds of ramp-up and ramp-down of a burst, which are not judged."""
        return 0, 0

    def shutdown_grace_s(self, traffic: Traffic) -> float:
        """Return how many seconds after the planned end the client can wait for responses."""
        return 0.0

    def scaled(self, traffic: Traffic, scale: float) -> Traffic:
        """Return the same traffic with its rate limits divided by ``scale``.

        Args:
            traffic: The traffic to scale.
            scale: The scale of a lab, by which the rate limits are divided.
        """
        if traffic.stream_bits_per_second is None:
            return traffic
        rate = max(1, round(traffic.stream_bits_per_second / scale))
        return traffic.model_copy(update={"stream_bits_per_second": rate})

    def uncounted_bytes(self, served: EngineReport) -> int:
        """Return the maximum bytes that a client counts but the report of its server does not."""
        return 0

    @abstractmethod
    def client(self, ask: ClientRequest) -> Launch:
        """Return the processes and files of the client end.

        Raises:
            Unsupported: The installed version cannot run the job.
        """

    @abstractmethod
    def client_reader(self, job: Job) -> Reader:
        """Return a parser for one of the client processes."""

    @abstractmethod
    def server(self, ask: ServerRequest) -> Launch:
        """Return the processes and files that serve a port.

        Raises:
            Unsupported: The installed version cannot run the server.
        """

    @abstractmethod
    def server_reader(self) -> Reader | DaemonReader:
        """Return a parser for the server process.

        For a daemon it is a :class:`DaemonReader`.
        """


_WORD: Final = re.compile(r"[A-Za-z0-9_./:\[*][A-Za-z0-9_./:\[\]@+,=*-]{0,1023}")


class Unwritable(Unsupported):
    """A value contains characters that a script or command line must not contain."""


def validate_argument(value: object, field: str) -> str:
    """Return the value as a single word that is safe in scripts and command lines.

    Args:
        value: The value.
        field: The field name, for the error message.

    Raises:
        Unwritable: The value contains other characters.
    """
    text = str(value)
    if _WORD.fullmatch(text) is None:
        raise Unwritable(
            f"{field}: {text[:60]!r} is not safe in scripts and command lines; "
            "use letters, digits and _ . / : only"
        )
    return text


def validate_host(address: str, field: str) -> str:
    """Return an address in the form of a URL, with brackets around an IPv6 address.

    Args:
        address: The address.
        field: The field name, for the error message.

    Raises:
        Unwritable: The address is not a safe word.
    """
    plain = validate_argument(address, field)
    return f"[{plain}]" if ":" in plain else plain
