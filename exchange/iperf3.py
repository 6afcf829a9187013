"""iperf3 as text: a job becomes an argv, and output becomes intervals and totals.

Pure: nothing here runs a process or reads a clock. Both the agents and the coordinator's importer
read iperf3's output with it. Rules of the reading:

- iperf3's exit code lies. A test is *usable* when there is no ``error`` key and bytes came through.
- Bad output never raises: it becomes a :class:`Reading` with ``report.error``.
- Output that stops early yields what it holds, with ``report.truncated``.
- What an end cannot know is ``None``. A receiver's record of what was sent is a 0 in iperf3's
  JSON, and unknown here.

Errors::

    Iperf3Error
    └── Unsupported   this iperf3 version cannot do what the job asks; says field, version and fix
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from exchange.messages import EngineReport, Flow, Interval, Job, Side, Track


class Iperf3Error(Exception):
    """Something about iperf3 cannot be done."""


class Unsupported(Iperf3Error):
    """This iperf3 version cannot do what the job asks."""


class Version(NamedTuple):
    """An iperf3 release; compares as releases do."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + (f".{self.patch}" if self.patch else "")


MINIMUM_VERSION: Final = Version(3, 9)


def parse_version(text: str) -> Version | None:
    """The release that ``iperf3 --version`` (or a record's ``version``) names, or None."""
    raise NotImplementedError


def streams_json(version: Version) -> bool:
    """Whether this release writes a line of JSON an interval (``--json-stream``, 3.17)."""
    raise NotImplementedError


def client_argv(
    job: Job,
    version: Version,
    *,
    binary: Sequence[str],
    connect_timeout_s: float = 3.0,
    silence_s: float = 10.0,
    bind: str | None = None,
) -> tuple[str, ...]:
    """The client's command line for one job.

    ``silence_s`` ends the engine when the path has gone silent for so long, where iperf3 can see
    that (FACTS, "iperf3"); the caller holds a deadline all the same. Raises :class:`Unsupported`.
    """
    raise NotImplementedError


def server_argv(
    port: int,
    version: Version,
    *,
    binary: Sequence[str],
    bind: str | None = None,
    max_duration_s: int | None = None,
    silence_s: float = 15.0,
    idle_s: int | None = None,
) -> tuple[str, ...]:
    """The command line of a server that serves one test on ``port`` and exits.

    ``max_duration_s`` and ``idle_s`` bound it where the version can, and are left out where it
    cannot: the supervisor bounds it from outside all the same.
    """
    raise NotImplementedError


class StartBasis(StrEnum):
    """What ``first_data_at_s`` rests on, best first."""

    ARRIVALS = "arrivals"  # min over intervals of (arrival of the line - end): about 1 ms
    EXIT = "exit"  # arrival of the whole text - end of the last interval: never early, tens of ms
    TIMESTAMP = "timestamp"  # the engine's own stamp, before its connections: coarse


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine's connections stand; a client's data follows at once, or at the gate's instant."""

    side: Side
    cookie: str | None
    started_at_s: float | None  # epoch s, the engine's own stamp
    client_address: str | None  # at the server: who connected


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
    ended: bool  # the engine's last word came

    @property
    def usable(self) -> bool:
        """No error, and bytes came through in every flow that was asked for."""
        raise NotImplementedError

    def tracks(self) -> tuple[Track, ...]:
        """The flows with their place in time; empty while that is unknown."""
        raise NotImplementedError


class StreamReader:
    """Reads ``--json-stream`` output line by line, as it arrives.

    Feed every line of standard output, in any version's form: a whole document (``-J``, or an old
    version) is gathered and read by :meth:`finish`.
    """

    def feed(self, line: bytes, at_s: float) -> tuple[Event, ...]:
        """Take one line that arrived at epoch ``at_s``; what it says, or nothing."""
        raise NotImplementedError

    def finish(self, exit_code: int | None = None) -> Reading:
        """Everything so far. May be called at any time, also for a look mid-test."""
        raise NotImplementedError


def read_whole(text: str, *, ended_at_s: float | None = None) -> Reading:
    """Read one ``-J`` document; ``ended_at_s`` is when its text arrived, where known."""
    raise NotImplementedError


def read_any(text: bytes) -> Reading:
    """Read one test in either form. Of several, the last."""
    raise NotImplementedError


def read_all(text: bytes) -> list[Reading]:
    """Read a file of any number of tests in either form, such as a persistent server's log."""
    raise NotImplementedError
