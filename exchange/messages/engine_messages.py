"""What an engine was asked and what it says it did."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import (
    Field,
    StringConstraints,
)

from exchange.messages.message_base import Lines, Message, Text, Whole
from exchange.messages.traffic_messages import Direction, EngineName, Flow, Pacing, Protocol


class FlowTotals(Message):
    """The engine's own end-of-test sums for one flow. ``None``: that end never said."""

    flow: Flow
    sent_bytes: Whole | None = None
    sent_s: float | None = None  # s over which sent_bytes were counted
    received_bytes: Whole | None = None
    received_s: float | None = None
    retransmits_count: Whole | None = None
    rtt_min_s: float | None = None  # smallest over streams
    rtt_mean_s: float | None = None  # mean over streams
    rtt_max_s: float | None = None  # largest over streams
    packets_count: Whole | None = None  # UDP
    lost_count: Whole | None = None  # UDP
    jitter_s: float | None = None  # UDP, mean over streams


class Combine(StrEnum):
    """How one measure of several processes, pairs or bursts becomes one."""

    SUM = "sum"
    MEAN = "mean"  # weighted by each one's weight
    MAX = "max"


class Measure(Message):
    """One figure that an engine tells beside bytes and seconds."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,47}$")]
    value: Annotated[float, Field(allow_inf_nan=False)]
    unit: Annotated[str, StringConstraints(pattern=r"^[a-z/]{1,16}$")]  # s, ratio, bytes, count
    combine: Combine = Combine.SUM
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0  # for the mean


class Distribution(Message):
    """How one quantity spread, as counts in logarithmic buckets that add up over pairs.

    Bucket ``i`` holds values from ``BUCKET_RATIO ** i`` up to the next, in ``unit``: a quantile
    read from it is within 2.2 % of the true one.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    unit: Annotated[str, StringConstraints(pattern=r"^[a-z/]{1,16}$")]
    counts: Annotated[Mapping[Whole, Whole], Field(max_length=1024)]  # by bucket
    max: float


BUCKET_RATIO: Final = 2 ** (1 / 16)


class EngineReport(Message):
    """What the engine was asked, what it says it did, and how it ended."""

    engine: EngineName
    version: Text | None = None
    argv: Annotated[tuple[Text, ...], Field(max_length=256)] = ()  # exactly as executed
    files: Annotated[Mapping[Text, Lines], Field(max_length=4)] = {}  # by name, those of its folder
    # that argv names: the heads of long ones
    cookie: Text | None = None  # joins the two ends of one test
    protocol: Protocol | None = None  # what the engine says it did, from here on
    direction: Direction | None = None
    streams_count: Whole | None = None
    duration_s: Whole | None = None
    omit_s: Whole | None = None
    block_bytes: Whole | None = None
    mss_bytes: Whole | None = None  # None as well where the engine only repeats what it was asked
    window_bytes: Whole | None = None  # socket buffer that the kernel granted, halved as on Linux
    stream_bits_per_second: Whole | None = None  # pacing that was set; None: none, or not told
    pacing: Pacing | None = None  # who held it
    tos: Whole | None = None  # IP type of service: dscp * 4
    sender_congestion: Text | None = None
    receiver_congestion: Text | None = None
    totals: Annotated[tuple[FlowTotals, ...], Field(max_length=16)] = ()
    cpu_local_percent: float | None = None  # of one core
    cpu_remote_percent: float | None = None
    cpu_s: float | None = None  # s, user and system, of the engine's processes at this end
    cpu_payload_bytes: Whole | None = None  # payload that they moved in it, warm-up included
    host_cpu_s: float | None = None  # s of the whole host meanwhile, where it is the agent's alone
    error: Text | None = None  # the engine's own words; it decides, never the exit code
    truncated: bool = False  # the output stopped before its end
    exit_code: Whole | None = None  # negative: killed by that signal
    processes: Annotated[tuple["EngineReport", ...], Field(max_length=16)] = ()  # of several: each
    measures: Annotated[tuple[Measure, ...], Field(max_length=32)] = ()
    distributions: Annotated[tuple[Distribution, ...], Field(max_length=4)] = ()

    @property
    def cookies(self) -> tuple[str, ...]:
        """The cookie of each of its processes."""
        told = [part.cookie for part in self.processes] if self.processes else [self.cookie]
        return tuple(cookie for cookie in told if cookie is not None)
