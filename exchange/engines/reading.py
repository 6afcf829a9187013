"""What a traffic engine's output says, whatever the engine: events while it runs, a reading after.

Everything here is one *end's* account of one test. ``None`` is unknown, never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from exchange.messages import EngineReport, Flow, Interval, Side, Track


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
    cookie: str | None
    started_at_s: float | None  # epoch s, the engine's own stamp
    client_address: str | None  # at the server: who connected
    expected_s: float | None  # s that the test should take: omit + duration


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
