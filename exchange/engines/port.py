"""The engine port: what turns a job into processes, and their output into intervals and totals.

An engine is one module of this package with an ``ENGINE``; :mod:`broadside.exchange.engines` finds
it there,
so that a new one is one file, its test, and its line in ``docs/engines.md``. Everything in it is
pure: it spells command lines and files, and reads lines. The agent starts, watches, feeds, ends and
cleans up, the same for every engine; what it promises is said at each field.

An engine's duties, at both ends of a pair:

======================== =========================================================================
which fields it takes    ``honours``, ``defaults``, ``problems``: wrong combinations are refused at
                         launch, and again by every agent, as ``field: problem; fix``
what it says of itself   ``statement``: how it makes traffic, for reports
what it can show         ``measures``: the goals of an objective that its figures can answer
what it needs            ``client_programs``, ``server_programs``, ``needs_certificate``
what the client runs     ``client`` -> :class:`Launch`; ``client_reader`` -> :class:`Reader`
what the server runs     ``server`` -> :class:`Launch`; ``server_reader`` -> :class:`Reader`
when a server is ready   when it listens on its port, which the agent reads from the kernel's
                         tables and never probes
how the start is held    ``gated``: the start gate holds it; else it is started at the instant
                         (``StartMethod.TIMED_EXEC``) and its start error is on record
how the end may drag     ``tail_s``: bursts lie so much further apart
how the ends are joined  by a cookie: the engine's own, or of a daemon the token that its requests
                         carry (:mod:`broadside.exchange.engines.tokens`); addresses prove nothing
======================== =========================================================================

Errors::

    EngineProblem
    └── Unsupported   this version of the program cannot do what the job asks
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Protocol

from broadside.exchange.messages import EngineReport, Flow, Interval, Job, Side, Track, Traffic


class StartBasis(StrEnum):
    """What ``first_data_at_s`` rests on, best first."""

    ARRIVALS = "arrivals"  # min over intervals of (arrival of the line - end): about 1 ms
    RELEASE = "release"  # the start gate's own account: early by what follows it, a few ms
    STAMPS = "stamps"  # the engine's own stamp of its first request or byte
    SAMPLES = "samples"  # the look before a counter had moved: early by at most one look
    EXIT = "exit"  # arrival of the whole text - end of the last interval: late by tens of ms
    TIMESTAMP = "timestamp"  # the engine's own stamp, before its connections: coarse


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine's connections stand, and its own clock runs."""

    side: Side | None
    started_at_s: float | None  # epoch s, the engine's own stamp
    cookie: str | None = None
    client_address: str | None = None  # at the server: who connected
    expected_s: float | None = None  # s that the test should take: omit + duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """One of the engine's intervals, for each flow that it carries."""

    arrived_at_s: float  # epoch s
    by_flow: Mapping[Flow, Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The engine said error, in its own words."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The engine's last word: totals follow from ``finish``."""


Event = Started | Intervals | Failed | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one end's output says of one test."""

    report: EngineReport  # ``argv`` is empty: the text does not say it; fill with model_copy
    side: Side | None  # None: the output stopped before it said
    intervals: Mapping[Flow, tuple[Interval, ...]]
    first_data_at_s: float | None  # epoch s of engine time zero, by this end's clock
    start_basis: StartBasis | None  # what first_data_at_s rests on
    started_at_s: float | None  # epoch s, the engine's own stamp of the test
    client_address: str | None  # at the server: who connected

    @property
    def usable(self) -> bool:
        """It ended without an error, and this end knows of bytes in every flow asked for.

        A client knows what arrived at either end; a server only what it received or sent itself.
        """
        report = self.report
        if report.error is not None or report.truncated or not report.totals:
            return False
        if self.side is Side.SERVER:
            return all(
                (total.received_bytes if total.flow is Flow.UP else total.sent_bytes)
                for total in report.totals
            )
        return all(total.received_bytes for total in report.totals)

    def tracks(self) -> tuple[Track, ...]:
        """The flows with their place in time; empty while that is unknown."""
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


FILE_TEXT_MAX: Final = 4000  # characters of a file that stay on record
EVERY_ENGINE: Final = frozenset(  # fields of Traffic that all take
    {"engine", "options", "probe", "encapsulation"}
)


class EngineProblem(Exception):
    """Something about an engine cannot be done; says field or program, and the fix."""


class Unsupported(EngineProblem):
    """This version of the program cannot do what the job asks; says field, version and fix."""


class Serving(StrEnum):
    """How a server end lives, and with that how its record finds its pair."""

    ONE_TEST = "one_test"  # a process a test; the record is joined by the engine's cookie
    DAEMON = "daemon"  # a process until it is stopped; joined by the token in its log


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that an engine runs, and how to tell its version."""

    name: str  # looked for in the checkout's .tools/<name>/bin, on PATH, and in /usr/sbin
    version_argv: tuple[str, ...]  # beside the program itself
    version_pattern: str  # of a regular expression with one group
    fix: str  # what to do where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program that was found and runs."""

    argv: tuple[str, ...]  # argv prefix
    version: str


Toolset = Mapping[str, Tool]  # by the program's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a TLS server shows, as files that its process can read."""

    certificate: str  # path, PEM
    key: str  # path, PEM


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAsk:
    """What the client end of one job is to be made of."""

    job: Job
    tools: Toolset
    folder: str  # absolute path of an empty folder of its own, gone when the job is over
    bind: str | None  # the agent's own address, where it is of the target's family


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAsk:
    """What the server end on one port is to be made of."""

    port: int
    address: str | None  # to listen on; None: all
    tools: Toolset
    folder: str  # as of the client; gone when the server is over
    duration_max_s: float  # the agent's longest test
    certificate: Certificate | None = None  # given or made by the agent, where one is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that stands in the folder before anything runs."""

    name: str  # relative to the folder
    text: str = ""
    size_bytes: int | None = None  # a sparse file of zeros of this size, in place of the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A file that the agent reads once a second (and often until data flows) for the reader."""

    name: str  # under which ``Reader.sample`` gets it
    path: str  # ``{pid}`` stands for the process
    tail: bool = False  # give what was added since the last look, not the whole


class EndBy(StrEnum):
    """What a process gets when its agent dies, from the kernel."""

    KILL = "kill"
    TERM = "term"  # for one with children of its own that it ends at SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process: its lines of standard output go to the reader.

    The agent gives it a process group of its own and kills that by pid at the deadline, on abort
    and at its own end; the kernel does so when the agent dies.
    """

    argv: tuple[str, ...]
    pipe_to: tuple[str, ...] = ()  # a second process that reads its standard output as a pipe
    env: Mapping[str, str] = field(default_factory=dict)  # beside the agent's own environment
    watches: tuple[Watch, ...] = ()
    stop_after_s: float | None = None  # s after the instant at which the agent ends it: for an
    # engine that has no end of its own. That end is not a failure, any other is.
    end_by: EndBy = EndBy.KILL
    ends_at_alarm: bool = False  # SIGALRM ends it, so that the kernel's timer alone stops it should
    # the agent hang; else the agent sets a watchdog beside it
    raw_max_bytes: int | None = None  # of its output that are kept; None: the agent's bound
    streams_count: int | None = None  # its share of the pair's streams: what the gate waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that one end starts. Several processes make one test: their readings are summed.

    With the start gate all are started before the instant; without it all of them at it.
    """

    processes: tuple[Process, ...]
    files: tuple[File, ...] = ()
    unprivileged: bool = False  # run as nobody where the agent is root

    @property
    def texts(self) -> Mapping[str, str]:
        """What its files say, by name, for the record: of long ones the head."""
        return {
            file.name: file.text[:FILE_TEXT_MAX] + ("..." if len(file.text) > FILE_TEXT_MAX else "")
            for file in self.files
            if file.text
        }


class Reader(Protocol):
    """Reads one process's output as it arrives. Never raises for what the output holds."""

    def feed(self, line: bytes, at_s: float) -> Sequence[Event]:
        """Take one line whose first byte arrived at epoch ``at_s``; what it says, or nothing."""

    def sample(self, name: str, text: str, at_s: float) -> Sequence[Event]:
        """Take what a :class:`Watch` showed at epoch ``at_s``, the end of a log's last line."""

    def finish(
        self,
        exit_code: int | None = None,
        *,
        stderr: str = "",
        released_at_s: float | None = None,
        server_ahead_s: float = 0.0,
    ) -> Reading:
        """Everything so far. May be called at any time, also for a look mid-test.

        ``stderr`` gives a reason where the output has none; the other two are the start gate's
        account (:class:`broadside.agent.gate.Release`).
        """


class DaemonTest(Protocol):
    """One test as a daemon's log tells of it. All times are epoch seconds."""

    opened_s: float  # when the log first named it
    heard_s: float  # when the log named it last
    until_s: float  # by when its client is to be done

    @property
    def quiet_s(self) -> float:
        """Seconds without a line after which it counts as over."""

    @property
    def is_told(self) -> bool:
        """Whether the log says more of it than that it began."""

    @property
    def last_at_s(self) -> float | None:
        """When its last byte was sent; None without one."""

    def finish(self) -> Reading:
        """Return everything so far."""


class DaemonReader(Reader, Protocol):
    """Reads a daemon's log, of which it makes tests by the token of each request."""

    @property
    def tests(self) -> "Mapping[str, DaemonTest]":
        """The newest tests, by cookie."""


class Engine(ABC):
    """A traffic engine. Its methods are pure and cheap; see the module for its duties."""

    name: ClassVar[str]  # as in Traffic.engine
    title: ClassVar[str]  # one line, for lists and docs
    defaults: ClassVar[Mapping[str, object]] = {}  # of Traffic, where the engine's differ
    honours: ClassVar[frozenset[str]]  # fields of Traffic that it takes, beside EVERY_ENGINE
    gated: ClassVar[bool] = False
    idle_control: ClassVar[bool] = False  # a connection of its own is silent while a test runs
    paces_exactly: ClassVar[bool] = False  # a stream offers stream_bits_per_second, to 1 % or so
    counts_alike: ClassVar[bool] = False  # both ends count the same payload as it passes
    serving: ClassVar[Serving] = Serving.DAEMON
    needs_certificate: ClassVar[bool] = False
    needs_folder: ClassVar[bool] = True  # False: an ask's folder is empty text
    client_programs: ClassVar[tuple[Program, ...]] = ()
    server_programs: ClassVar[tuple[Program, ...]] = ()

    @abstractmethod
    def problems(self, traffic: Traffic) -> Iterator[str]:
        """What of its own options and their combinations is wrong, as ``field: problem; fix``.

        Raises :class:`Unsupported` for an option that cannot be read. Fields that it does not take
        are found by :func:`broadside.exchange.engines.problems`, which tells the refusal as well.
        """

    @abstractmethod
    def statement(self, traffic: Traffic) -> str:
        """One sentence for a report: how it makes traffic, over which protocol, with or without
        TLS, and whether what comes back holds the next back (closed loop) or not (open loop)."""

    @abstractmethod
    def measures(self, traffic: Traffic) -> frozenset[str]:
        """What a goal may bound that it tells: rtt, retransmits, loss, success, latency."""

    def offered_bits_per_second(self, traffic: Traffic) -> int | None:
        """Payload asked of one pair, all flows; None: as fast as it goes."""
        if traffic.stream_bits_per_second is None:
            return None
        flows_count = len(traffic.direction.flows)
        return traffic.stream_bits_per_second * traffic.streams_count * flows_count

    def tail_s(self, traffic: Traffic) -> float:
        """Seconds after a burst's planned end for which its client may still wait for answers."""
        return 0.0

    def scaled(self, traffic: Traffic, scale: float) -> Traffic:
        """The same traffic with its paced rates divided by a lab's scale."""
        if traffic.stream_bits_per_second is None:
            return traffic
        rate = max(1, round(traffic.stream_bits_per_second / scale))
        return traffic.model_copy(update={"stream_bits_per_second": rate})

    def uncounted_bytes(self, served: EngineReport) -> int:
        """Return what a client may count beside the payload that its server's report counts."""
        return 0

    @abstractmethod
    def client(self, ask: ClientAsk) -> Launch:
        """What the client end of a job starts. Raises :class:`Unsupported`."""

    @abstractmethod
    def client_reader(self, job: Job) -> Reader:
        """A reader of one of the client's processes."""

    @abstractmethod
    def server(self, ask: ServerAsk) -> Launch:
        """What serves one port. Raises :class:`Unsupported`."""

    @abstractmethod
    def server_reader(self) -> Reader | DaemonReader:
        """A reader of the server's process; of a daemon a :class:`DaemonReader`."""


_WORD: Final = re.compile(r"[A-Za-z0-9_./:\[*][A-Za-z0-9_./:\[\]@+,=*-]{0,1023}")


class Unwritable(Unsupported):
    """A value is no plain word, so that no script may hold it."""


def word(value: object, field: str) -> str:
    """The value as one word. Raises :class:`Unwritable`, which names ``field``."""
    text = str(value)
    if _WORD.fullmatch(text) is None:
        raise Unwritable(
            f"{field}: {text[:60]!r} is no plain word, as scripts and command lines take it; "
            "use letters, digits and _ . / : only"
        )
    return text


def host_word(address: str, field: str) -> str:
    """An address as it stands in a URL: IPv6 in brackets."""
    plain = word(address, field)
    return f"[{plain}]" if ":" in plain else plain
