"""What coordinator and agents say to each other: frozen, versioned values, checked at the door.

Three rules hold for everything here:

- An instant is an aware UTC datetime and its name ends in ``_at``.
- A quantity carries its unit in its name (``_s``, ``_bytes``, ``_bits_per_second``, ``_count``,
  ``_ratio``); rates are decimal and, unless the name says otherwise, payload.
- ``None`` means *unknown*. It is never replaced by zero.

Small values that cross a wire are pydantic; :class:`Interval` and :class:`HostSecond`, of which
there are thousands, are plain frozen dataclasses that :mod:`broadside.exchange.chunks` packs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError


def _utc(at: datetime) -> datetime:
    try:
        utc_at = at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("an instant from 1970 to 2285 is wanted") from error
    if not 1970 <= utc_at.year < 2286:  # keys hold 13 digits of milliseconds
        raise ValueError("an instant from 1970 to 2285 is wanted")
    return utc_at


def no_number(at: object) -> object:
    """Pydantic would take a number for seconds since 1970."""
    if ":" not in at if isinstance(at, str) else isinstance(at, int | float):
        raise ValueError("an instant such as 2026-11-22T14:00:00Z is wanted")
    return at


_INSTANT: Final = {  # RFC 3339, section 5.6
    "type": "string",
    "format": "date-time",
    "pattern": "^(19[7-9][0-9]|2[01][0-9]{2}|22[0-7][0-9]|228[0-5])-[01][0-9]-[0-3][0-9]"
    r"T[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-][0-2][0-9]:[0-5][0-9])$",
}

UtcDatetime = Annotated[
    AwareDatetime, AfterValidator(_utc), BeforeValidator(no_number), WithJsonSchema(_INSTANT)
]


def _has_an_end(at: datetime) -> datetime:
    if at.year >= 2285:
        raise ValueError("an instant from 1970 to 2284 is wanted, so that its traffic can end")
    return at


TrafficAt = Annotated[UtcDatetime, AfterValidator(_has_an_end)]  # where traffic began

WallClock = Annotated[datetime, BeforeValidator(no_number)]  # of a zone that is told beside it

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]

RunId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]

TEXT_MAX_CHARS: Final = 4_000
LINES_MAX_CHARS: Final = 65_536

# Control characters, those that turn or hide text, line separators, halves of pairs.
_UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)


def plain_text(text: str, most: int = TEXT_MAX_CHARS) -> str:
    """Text that can stand in a terminal, a log line or a cell: one line, nothing hidden, cut."""
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return _UNSEEN.sub(lambda found: " " if found[0] in "\n\r\t\u2028\u2029" else "?", cut)


def plain_lines(text: str) -> str:
    """The same of several lines, which keep their ends and tabs."""
    cut = text[:LINES_MAX_CHARS]
    return _UNSEEN.sub(lambda found: found[0] if found[0] in "\n\t" else "?", cut)


def parse_address(text: str) -> str:
    """A literal IPv4 or IPv6 address as it is usually spelled. Raises ``ValueError``.

    A scope (``fe80::1%eth0``) is refused: Python takes any text for one.
    """
    if "%" in text:
        raise ValueError("an IP address without a scope is wanted")
    try:
        return str(ip_address(text))
    except ValueError as error:
        raise ValueError("a literal IPv4 or IPv6 address is wanted") from error


def parse_network(text: str) -> str:
    """A network as 10.0.0.0/8 or fd00::/8, without a scope. Raises ``ValueError``."""
    if "%" in text:
        raise ValueError("a network without a scope is wanted")
    return str(ip_network(text))


def peer_address(text: str | None) -> str | None:
    """The address that an engine or a socket names, without its scope; None where it names none."""
    with suppress(ValueError):
        address = ip_address((text or "").partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return str(mapped or address)
    return None


Text = Annotated[str, AfterValidator(plain_text)]  # for people: cleaned, never refused
Lines = Annotated[str, AfterValidator(plain_lines)]
Short = Annotated[Text, StringConstraints(max_length=500)]
Address = Annotated[str, StringConstraints(max_length=45), AfterValidator(parse_address)]
Network = Annotated[str, StringConstraints(max_length=49), AfterValidator(parse_network)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Ports = Annotated[tuple[Port, ...], Field(max_length=4_096)]  # of one host
Index = Annotated[int, Field(ge=0, le=99_999)]  # of a burst or pair: five digits in keys
# Numbers that no text and no truth is taken for.
Whole = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)]  # what a column of figures holds
Number = Annotated[float, Strict()]
SpanS = Annotated[float, Field(ge=0, le=86_400)]  # s, of a day at most
FieldName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.]{1,200}$")]  # dotted
JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]


# Fields that a model had in its first version, by the model's module and name. They are always
# written. The file never changes: models and fields that are not in it are newer.
_FIRST_FIELDS: Final[Mapping[str, str]] = json.loads(
    Path(__file__).with_name("first_fields.json").read_text(encoding="utf-8")
)


class Message(BaseModel):
    """A frozen value that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # What a reader of stored rows does with fields of a later version: docs/compatibility.md.
    unknown_fields: ClassVar[Literal["forbid", "ignore"]] = "forbid"

    def to_json(self, *, without: tuple[str, ...] = ()) -> str:
        """Return the text that is stored or sent to another process.

        A field that came after the model's first version is left out while it has its default, so
        that an older version can read the text, and a digest over it stays the same.

        Args:
            without: Fields of this model to leave out in any case.
        """
        return self.model_dump_json(exclude=_unset(self) | dict.fromkeys(without, True) or None)

    def to_fields(self) -> dict[str, Any]:
        """Return what :meth:`to_json` writes, as plain values."""
        fields: dict[str, Any] = json.loads(self.to_json())
        return fields


class AgentMessage(Message):
    """A message that only tells what was seen: its reader ignores fields of a later version."""

    unknown_fields: ClassVar[Literal["forbid", "ignore"]] = "ignore"


@cache
def _later_fields(kind: type[Message]) -> Mapping[str, object]:
    """Return the fields that came after the model's first version, with their defaults."""
    names = [f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__]
    first = " ".join(_FIRST_FIELDS.get(name.removeprefix("broadside."), "") for name in names)
    return {
        name: field.get_default(call_default_factory=True, validated_data={})
        for name, field in kind.model_fields.items()
        if name not in first.split() and not field.is_required()
    }


@cache
def _growing_parts(kind: type[Message]) -> frozenset[str]:
    """Return the fields in whose values a later field may be."""
    return frozenset(
        name
        for name, field in kind.model_fields.items()
        if any(_has_later_fields(part) for part in _models_in(field.annotation))
    )


@cache
def _has_later_fields(kind: type[Message]) -> bool:
    reached, queue = {kind}, [kind]
    while queue:
        model = queue.pop()
        if _later_fields(model):
            return True
        parts = {
            part for field in model.model_fields.values() for part in _models_in(field.annotation)
        }
        queue += parts - reached
        reached |= parts
    return False


def _models_in(annotation: object) -> Iterator[type[Message]]:
    if isinstance(annotation, type) and issubclass(annotation, Message):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _unset(value: object) -> dict[Any, Any]:
    """Return what pydantic is to leave out: later fields that have their default."""
    if isinstance(value, Message):
        kind = type(value)
        later = _later_fields(kind)
        left_out: dict[Any, Any] = {
            name: True for name, default in later.items() if getattr(value, name) == default
        }
        for name in _growing_parts(kind) - left_out.keys():
            if inner := _unset(getattr(value, name)):
                left_out[name] = inner
        return left_out
    if isinstance(value, Mapping):
        parts = {key: _unset(part) for key, part in value.items()}
    elif isinstance(value, list | tuple):
        parts = {index: _unset(part) for index, part in enumerate(value)}
    else:
        parts = {}
    return {key: inner for key, inner in parts.items() if inner}


def is_none(value: object) -> bool:
    """Fields that came later are left out where unset: stored rows and seals keep their bytes."""
    return value is None


def is_empty(value: object) -> bool:
    """As :func:`is_none`, of fields that are sequences."""
    return value == ()


# Clocks


class ClockSource(StrEnum):
    CHRONY = "chrony"
    ADJTIMEX = "adjtimex"
    UNKNOWN = "unknown"


class ClockReading(Message):
    """What an agent knew of its own clock at one instant.

    ``bound_s`` is the largest error the source admits: ``|offset| + root dispersion +
    root delay / 2`` for chrony (RFC 5905, section 11.2: root distance), the kernel's ``maxerror``
    for adjtimex. ``None`` is an unknown bound, which the clock gate treats as too large.
    """

    source: ClockSource
    read_at: UtcDatetime
    synchronised: bool
    offset_s: float | None = None  # s, positive when the local clock is ahead
    bound_s: float | None = None  # s, >= 0
    reference: Text | None = None  # the source's name or address
    stratum: Whole | None = None
    # The boot of the kernel whose clock this is: agents that say the same one read one clock. None:
    # not known, or the operator named another clock than the kernel's.
    boot_id: Identifier | None = Field(None, exclude_if=is_none)


# Traffic: what one pair sends during one burst


class Flow(StrEnum):
    """Which way payload travels between the two ends of a pair."""

    UP = "up"  # client to server
    DOWN = "down"  # server to client


class Direction(StrEnum):
    """The flows that a job asks for."""

    FORWARD = "forward"  # UP only
    REVERSE = "reverse"  # DOWN only
    BIDIRECTIONAL = "bidirectional"  # both at once

    @property
    def flows(self) -> tuple[Flow, ...]:
        match self:
            case Direction.FORWARD:
                return (Flow.UP,)
            case Direction.REVERSE:
                return (Flow.DOWN,)
            case Direction.BIDIRECTIONAL:
                return (Flow.UP, Flow.DOWN)


class Protocol(StrEnum):
    TCP = "tcp"
    UDP = "udp"


class Pacing(StrEnum):
    """What holds a paced stream to its rate."""

    ENGINE = "engine"  # the engine itself: between its writes (iperf3 --bitrate)
    KERNEL = "kernel"  # the socket: between its packets (iperf3 --fq-rate; TCP only)


class Probe(Message):
    """Small datagrams beside the traffic, of any engine: what the load does to the path."""

    every_s: Annotated[float, Field(ge=0.02, le=1)] = 0.1
    before_s: Annotated[float, Field(ge=0.5, le=4)] = 2.0  # s before the instant: the baseline
    after_s: Annotated[float, Field(ge=0, le=5)] = 2.0  # s after the burst
    device: Address | None = Field(None, exclude_if=is_none)  # the device's own, pinged beside
    device_tcp_port: Port | None = Field(None, exclude_if=is_none)  # None: by ICMP alone


class Vxlan(Message):
    """A tunnel a pair, from agent to agent (RFC 7348), for the time of a burst."""

    vni_from: Annotated[int, Field(ge=1, le=16_000_000)] = 4096  # of the first pair
    port: Port = 4789  # UDP


TRAFFIC_WORDS: Final[Mapping[str, Mapping[str, Message | None]]] = {  # by field of Traffic: what a
    # word stands for, with all its fields as usual
    "probe": {"udp": Probe(), "off": None},
    "encapsulation": {"vxlan": Vxlan(), "none": None},
}


def _parse_word(value: object, info: ValidationInfo) -> object:
    """What a word stands for; anything but a word as it is."""
    words = TRAFFIC_WORDS[info.field_name or ""]
    if not isinstance(value, str):
        return value
    if value not in words:
        known = {"words": " or ".join(words)}
        raise PydanticCustomError("word", "Input should be {words}", known)
    return words[value]


DEFAULT_ENGINE: Final = "iperf3"  # which every agent has, or does not work at all

EngineName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,32}$")]

OptionName = Annotated[str, StringConstraints(max_length=64), AfterValidator(plain_text)]


BLOCK_MIN_BYTES: Final = 16  # of one write


class Traffic(Message):
    """What one pair sends during one burst. Rates and sizes are per stream where it says so.

    Not every engine takes every field, and some have other defaults (a download's direction is
    reverse): :mod:`broadside.exchange.engines` knows.
    """

    engine: EngineName = DEFAULT_ENGINE
    protocol: Protocol = Protocol.TCP
    direction: Direction = Direction.FORWARD
    streams_count: Annotated[int, Field(ge=1, le=128)] = 64
    stream_bits_per_second: Annotated[int, Field(ge=1, lt=2**63)] | None = (
        None  # per stream; None: no pacing
    )
    # of one write, per stream
    block_bytes: Annotated[int, Field(ge=BLOCK_MIN_BYTES, le=1_048_576)] | None = None
    window_bytes: Annotated[int, Field(ge=1024, le=512_000_000)] | None = None  # socket buffer
    mss_bytes: Annotated[int, Field(ge=88, le=9216)] | None = None  # TCP only
    congestion: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,15}$")] | None = None  # TCP
    pacing: Pacing = Pacing.ENGINE  # who holds stream_bits_per_second
    dscp: Annotated[int, Field(ge=0, le=63)] | None = None  # RFC 2474: of every packet sent
    processes_count: Annotated[int, Field(ge=1, le=16)] = 1  # engine processes that share the
    # pair's streams, each with a server port of its own
    omit_s: Annotated[int, Field(ge=0, le=60)] = 0  # s, engine's own warm-up before the test
    interval_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0  # s between the engine's readings
    probe: Annotated[
        Probe | None,
        BeforeValidator(_parse_word, json_schema_input_type=Probe | Literal["udp", "off"] | None),
    ] = None  # beside any engine
    encapsulation: Annotated[
        Vxlan | None,
        BeforeValidator(
            _parse_word, json_schema_input_type=Vxlan | Literal["vxlan", "none"] | None
        ),
    ] = None  # of any engine's traffic
    options: Annotated[
        Mapping[OptionName, bool | Whole | float | Text], Field(max_length=32)
    ] = {}  # the
    # engine's own, checked by its Options: docs/engines.md


VXLAN_BYTES: Final = 50  # inner Ethernet 14, VXLAN 8, UDP 8, IPv4 20 (RFC 7348, section 5)


# What an engine was asked, and what it says that it did


class FlowTotals(Message):
    """The engine's own end-of-test sums for one flow. ``None``: that end never said."""

    flow: Flow
    sent_bytes: Whole | None = None
    sent_s: Number | None = None  # s over which sent_bytes were counted
    received_bytes: Whole | None = None
    received_s: Number | None = None
    retransmits_count: Whole | None = None
    rtt_min_s: Number | None = None  # smallest over streams
    rtt_mean_s: Number | None = None  # mean over streams
    rtt_max_s: Number | None = None  # largest over streams
    packets_count: Whole | None = None  # UDP
    lost_count: Whole | None = None  # UDP
    jitter_s: Number | None = None  # UDP, mean over streams


class Combine(StrEnum):
    """How one measure of several processes, pairs or bursts becomes one."""

    SUM = "sum"
    MEAN = "mean"  # weighted by each one's weight
    MAX = "max"


class Measure(Message):
    """One figure that an engine tells beside bytes and seconds."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,47}$")]
    value: Annotated[Number, Field(allow_inf_nan=False)]
    unit: Annotated[str, StringConstraints(pattern=r"^[a-z/]{1,16}$")]  # s, ratio, bytes, count
    combine: Combine = Combine.SUM
    weight: Annotated[Number, Field(ge=0, allow_inf_nan=False)] = 1.0  # for the mean


class Distribution(Message):
    """How one quantity spread, as counts in logarithmic buckets that add up over pairs.

    Bucket ``i`` holds values from ``BUCKET_RATIO ** i`` up to the next, in ``unit``: a quantile
    read from it is within 2.2 % of the true one.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    unit: Annotated[str, StringConstraints(pattern=r"^[a-z/]{1,16}$")]
    counts: Annotated[
        Mapping[Annotated[int, Field(ge=-(2**63), lt=2**63)], Whole], Field(max_length=1024)
    ]  # by bucket
    max: Number


BUCKET_RATIO: Final = 2 ** (1 / 16)


class StreamSilence(Message):
    """Seconds in which one of several streams carried nothing and others did."""

    flow: Flow
    client_port: Whole | None = None  # at the client: names the stream at both ends
    from_s: Annotated[Number, Field(ge=-1e6, le=1e6)]  # engine time
    to_s: Annotated[Number, Field(ge=-1e6, le=1e6)]


SILENT_STREAMS_MAX_COUNT: Final = 32  # of a report, the longest


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
    cpu_local_percent: Number | None = None  # of one core
    cpu_remote_percent: Number | None = None
    cpu_s: Number | None = None  # s, user and system, of the engine's processes at this end
    cpu_payload_bytes: Whole | None = None  # payload that they moved in it, warm-up included
    host_cpu_s: Number | None = None  # s of the whole host meanwhile, where it is the agent's alone
    host_taken_ratio: Number | None = None  # of all its cores' time, by its hypervisor meanwhile
    # Share of looks, one a second, that found the egress queue (qdisc) of its interface filled.
    egress_queued_ratio: Number | None = None
    error: Text | None = None  # the engine's own words; it decides, never the exit code
    truncated: StrictBool = False  # the output stopped before its end
    exit_code: Whole | None = None  # negative: killed by that signal
    processes: Annotated[tuple["EngineReport", ...], Field(max_length=16)] = ()  # of several: each
    measures: Annotated[tuple[Measure, ...], Field(max_length=32)] = ()
    distributions: Annotated[tuple[Distribution, ...], Field(max_length=8)] = ()
    silent_streams: Annotated[
        tuple[StreamSilence, ...], Field(max_length=SILENT_STREAMS_MAX_COUNT)
    ] = ()

    @property
    def cookies(self) -> tuple[str, ...]:
        """The cookie of each of its processes."""
        told = [part.cookie for part in self.processes] if self.processes else [self.cookie]
        return tuple(cookie for cookie in told if cookie is not None)


# Seconds as an engine and a host told them


class Side(StrEnum):
    """Which end of a pair speaks."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What the engine said of one of its own intervals, summed over the streams of one flow."""

    start_s: float  # s of engine time since the flow's first byte
    end_s: float  # s
    transferred_bytes: int  # payload sent (at the sender) or received (at the receiver)
    omitted: bool = False  # inside the engine's own warm-up
    retransmits_count: int | None = None  # TCP sender only
    rtt_s: float | None = None  # s, mean over streams; TCP sender only
    cwnd_bytes: int | None = None  # sum over streams; TCP sender only
    packets_count: int | None = None  # UDP only
    lost_count: int | None = None  # UDP receiver only
    jitter_s: float | None = None  # s, mean over streams; UDP receiver only


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSecond:
    """What one host's counters did between two readings. Counts are differences, not totals."""

    start_at_s: float  # epoch s of the earlier reading, by the host's clock
    end_at_s: float  # epoch s of the later one
    nic_rx_bytes: int  # link layer, as the kernel counts
    nic_tx_bytes: int
    nic_rx_packets_count: int
    nic_tx_packets_count: int
    nic_drops_count: int  # receive and transmit
    tcp_retransmits_count: int
    cpu_busy_ratio: float  # 0..1 over all cores
    cpu_busiest_core_ratio: float  # 0..1 of the busiest core
    cpu_taken_ratio: float | None = None  # 0..1 over all cores, by a hypervisor; not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One flow of one pair as one end saw it: its intervals, and where they stand in time."""

    side: Side
    flow: Flow
    first_data_at_s: float  # epoch s of engine time zero, by that end's clock
    intervals: tuple[Interval, ...]


# Spells of trouble with the services between coordinator and agents
TROUBLES_MAX_COUNT: Final = 16  # spells that one report may carry, the newest


class TroubleKind(StrEnum):
    """What may go wrong with the services between coordinator and agents."""

    QUEUE_AWAY = "queue_away"  # attempts at the queue failed
    TABLE_AWAY = "table_away"  # attempts at the table failed
    RAW_AWAY = "raw_away"  # attempts at the store of raw output failed
    SPOOLED = "spooled"  # writes waited on the agent's disk
    LOST = "lost"  # writes found no room there, or could not be written
    DUPLICATE = "duplicate"  # a second delivery of a job that somebody has was dropped
    FORGED = "forged"  # a message was refused that is no job of its run's plan
    UNREADABLE = "unreadable"  # a message or row that nobody can read was set aside
    CLOCK_STEPPED = "clock_stepped"  # the host's wall clock was set
    TICK_FAILED = "tick_failed"  # the coordinator could not look after its runs


class Trouble(Message):
    """One spell of trouble that a process lived through, by its own clock."""

    kind: TroubleKind
    from_at: UtcDatetime
    to_at: UtcDatetime | None = None  # None: it was not over when this was told
    count: Annotated[int, Field(ge=1, lt=2**63)]  # failed attempts, rows that waited, duplicates


Troubles = Annotated[tuple[Trouble, ...], Field(max_length=TROUBLES_MAX_COUNT)]


def _over_by(at: datetime, troubles: tuple[Trouble, ...]) -> tuple[Trouble, ...]:
    return tuple(
        trouble.model_copy(update={"to_at": at}) if trouble.to_at is None else trouble
        for trouble in troubles
    )


# Jobs: what a pair is asked to do, and who does it
PROTOCOL_VERSION: Final = 2  # raised whenever an older agent could misread a job


class Phase(StrEnum):
    """How far the agent that claimed a job has come."""

    CLAIMED = "claimed"
    ARMED = "armed"
    RUNNING = "running"
    REPORTED = "reported"


class Endpoint(Message):
    """A server agent's address and one port of its own."""

    agent_id: Identifier
    address: Address
    port: Port
    more_ports: Annotated[tuple[Port, ...], Field(max_length=15)] = ()  # one a further process
    echo_port: Port | None = None  # UDP: answers probes

    @property
    def ports(self) -> tuple[int, ...]:
        """Every port of the pair, the first one first."""
        return (self.port, *self.more_ports)


class RawPolicy(StrEnum):
    """Of whom what the engine printed is kept."""

    ALL = "all"
    FAILED = "failed"  # and of one sample pair's client
    NONE = "none"

    def keeps(self, *, failed: bool) -> bool:
        return self is RawPolicy.ALL or (failed and self is RawPolicy.FAILED)


def is_failed_only(policy: RawPolicy) -> bool:
    """The default, which is left out: see :func:`is_none`."""
    return policy is RawPolicy.FAILED


class Job(Message):
    """One pair's part in one burst: the message on the queue."""

    version: Whole = PROTOCOL_VERSION
    run_id: RunId
    burst_index: Index
    pair_index: Index
    endpoint: Endpoint
    traffic: Traffic
    planned_start_at: UtcDatetime  # the instant at which every pair of the burst starts
    duration_s: Annotated[int, Field(ge=1, le=86_400)]  # s, without omit_s
    late_after_s: SpanS = 1.0  # s after the instant at which data counts as late
    clock_bound_max_s: SpanS = 0.05  # s, the clock gate
    shared_boot_id: Identifier | None = Field(None, exclude_if=is_none)  # all ends read its clock
    raw: RawPolicy = Field(RawPolicy.FAILED, exclude_if=is_failed_only)  # of the client's engine
    # Dotted names of this job's fields that an agent which does not know them may leave out:
    # nothing of the traffic depends on them.
    may_ignore: Annotated[tuple[FieldName, ...], Field(max_length=64)] = ()

    @property
    def job_id(self) -> str:
        """``<run>.<burst>.<pair>``: also the queue's duplicate-detection id."""
        return f"{self.run_id}.{self.burst_index:05d}.{self.pair_index:05d}"

    @property
    def pair(self) -> str:
        return pair_name(self.pair_index)

    @property
    def body(self) -> bytes:
        """The message on the queue, whose digest agents look for."""
        return self.to_json().encode()


INNER_NETWORK: Final = ip_network("198.19.128.0/17")  # for benchmarks (RFC 2544); 8,192 times /30


class Tunnel(Message):
    """What a client's agent asks of its server's: the other end of a tunnel."""

    vni: Annotated[int, Field(ge=1, le=16_777_215)]
    port: Port
    client_address: Address  # underlay
    inner_client_address: Address
    inner_server_address: Address
    ports: Annotated[tuple[Port, ...], Field(max_length=16)]  # whose servers are to listen at the
    # inner address
    opened_by: JobId
    beat: Index = 0  # raised every two seconds while it is wanted

    @model_validator(mode="after")
    def _inner_addresses_fit(self) -> "Tunnel":
        """What a tunnel's ends are called inside follows from its id, and from nothing else."""
        inner = (self.inner_client_address, self.inner_server_address)
        if inner != inner_addresses(self.vni):
            raise ValueError(f"the inner addresses are not those of tunnel {self.vni}")
        return self


def inner_addresses(vni: int) -> tuple[str, str]:
    """Of a tunnel's client and of its server."""
    place = 4 * (vni % (INNER_NETWORK.num_addresses // 4))
    return str(INNER_NETWORK[place + 1]), str(INNER_NETWORK[place + 2])


def tunnel_of(job: "Job", *, client_address: str) -> Tunnel:
    """The tunnel of one pair; it must have been asked for."""
    asked = job.traffic.encapsulation
    if asked is None:
        raise ValueError("the job asks for no tunnel")
    vni = asked.vni_from + job.pair_index
    client, server = inner_addresses(vni)
    return Tunnel(
        vni=vni,
        port=asked.port,
        client_address=client_address,
        inner_client_address=client,
        inner_server_address=server,
        ports=job.endpoint.ports,
        opened_by=job.job_id,
    )


def pair_name(pair_index: int) -> str:
    """The name a person reads for a pair: ``pair-001`` for index 0."""
    return f"pair-{pair_index + 1:03d}"


class Control(Message):
    """A run's control row: agents read it before they start and every second or two after."""

    run_id: RunId
    lease_until_at: UtcDatetime  # agents stop when this instant has passed (dead-man switch)
    cancelled_at: UtcDatetime | None = None
    cancelled_by: Text | None = None
    cancel_reason: Text | None = None
    copies_count: int = Field(1, ge=1, le=1000)  # of this row, itself among them


class Claim(AgentMessage):
    """Who took a job, and how far it has come. Created once; a second delivery loses."""

    job_id: JobId
    agent_id: Identifier
    phase: Phase
    claimed_at: UtcDatetime
    armed_at: UtcDatetime | None = None
    running_at: UtcDatetime | None = None
    cookie: Text | None = None  # the engine's own id of the test, once known
    clock: ClockReading | None = None  # at arming
    address: Address | None = None  # whence its traffic comes, as it knows; None: not told


# Agents


class Role(StrEnum):
    CLIENT = "client"
    SERVER = "server"


class AgentState(StrEnum):
    IDLE = "idle"
    BUSY = "busy"  # holds a job: armed or running
    STOPPING = "stopping"


class EngineState(Message):
    """Whether an agent can play its part for one engine."""

    name: EngineName
    version: Text | None = None  # of its program
    ports: Ports = ()  # server role: free ones
    self_signed: bool | None = None  # server role, TLS: the certificate is of the agent's making
    problem: Text | None = None  # why it cannot


class Passport(AgentMessage):
    """What a host is made of, as far as it decides what its NIC can carry; None is unknown."""

    nic_driver: Short | None = None
    nic_driver_version: Short | None = None
    nic_firmware: Short | None = None
    nic_megabits_per_second: Whole | None = None
    rx_ring_count: Whole | None = None  # descriptors, as set
    tx_ring_count: Whole | None = None
    rx_queues_count: Whole | None = None  # channels that receive, combined ones too
    tx_queues_count: Whole | None = None
    offloads: Annotated[Mapping[Short, bool], Field(max_length=64)] = {}  # by ethtool's names
    numa_node: Whole | None = None  # that the NIC hangs on
    accelerated_networking: bool | None = None  # Azure: a virtual function below the NIC
    sysctls: Annotated[Mapping[Short, Short], Field(max_length=64)] = {}
    kernel_build: Short | None = None
    cpu_model: Short | None = None
    cpu_flags: Annotated[tuple[Short, ...], Field(max_length=64)] = ()  # that matter to traffic
    hypervisor: Short | None = None  # its kind, vendor and product
    engine_build: Short | None = None  # what iperf3 says of itself


class Presence(AgentMessage):
    """An agent's heartbeat."""

    agent_id: Identifier
    role: Role
    state: AgentState
    beat_at: UtcDatetime
    started_at: UtcDatetime
    address: Address  # where the pair's traffic leaves or arrives
    ports: Ports = ()  # server role: ports that are listening and free
    busy_ports: Ports = ()  # server role: ports with a test in progress
    broadside_version: Text
    engine_version: Text | None = None  # "3.18"; None: no engine found
    gate: bool = False  # the start gate is built and usable
    kernel: Text | None = None
    cpu_count: Whole | None = None
    nic: Text | None = None  # interface that carries the traffic
    nic_bits_per_second: Whole | None = None  # its cap by the VM size, where the agent was told
    nic_mtu_bytes: Whole | None = None
    vm_size: Text | None = None
    clock: ClockReading | None = None
    problem: Text | None = None  # why the agent cannot work, in one line
    # What the agent could not read of its host, with the fix; it works without.
    warnings: Annotated[tuple[Text, ...], Field(max_length=16, exclude_if=is_empty)] = ()
    engines: Annotated[tuple[EngineState, ...], Field(max_length=16)] = ()  # beside iperf3
    echo_port: Port | None = None  # server role: UDP, answers probes
    tunnels: bool = False  # it makes VXLAN devices: allowed, and tried
    passport: Passport | None = None
    # client role: where it may send; empty: not told
    allowed_networks: Annotated[tuple[Network, ...], Field(max_length=256)] = ()

    def engine(self, name: str) -> EngineState | None:
        """What this agent says of an engine; None: nothing, so it cannot."""
        if name == DEFAULT_ENGINE:
            return EngineState(name=name, version=self.engine_version, ports=self.ports)
        return next((state for state in self.engines if state.name == name), None)


# Each end's account of one test


class Outcome(StrEnum):
    """How a job ended, as the agent that held it saw it."""

    MEASURED = "measured"  # started on time, ran to its end
    LATE = "late"  # ran, but data began more than the tolerance after the instant
    MISSED = "missed"  # never started: received, armed or released too late
    REFUSED = "refused"  # stood down on purpose: clock gate, target, caps, version
    FAILED = "failed"  # the engine said error, or sent nothing
    ABANDONED = "abandoned"  # began, then was cut: cancelled, lease lapsed, agent stopping


class StartMethod(StrEnum):
    GATE = "gate"  # connections opened early, released at the instant
    TIMED_EXEC = "timed_exec"  # the engine was started at the instant


class IdleRtt(Message):
    """Round-trip time of the idle path, measured between arming and the planned instant."""

    least_s: Number
    median_s: Number
    samples_count: Whole
    how: Literal["connections", "handshakes"]  # the kernel's figures of the engine's connections
    # that the start gate holds; or handshakes with the engine's port


class JobReport(AgentMessage):
    """The client end's account of one job."""

    job_id: JobId
    run_id: RunId
    burst_index: Index
    pair_index: Index
    agent_id: Identifier
    outcome: Outcome
    reason: Text | None = None  # required unless measured
    planned_start_at: UtcDatetime
    start_method: StartMethod | None = None
    process_start_at: UtcDatetime | None = None
    retries_count: Whole = 0  # engines that were refused before this one's connections stood
    first_data_at: UtcDatetime | None = None  # estimated: FACTS, "data start"
    start_error_s: float | None = None  # s, first_data_at - planned_start_at
    server_lead_s: float | None = None  # s for which the server's readings ran before first_data_at
    ended_at: UtcDatetime | None = None
    engine: EngineReport | None = None
    clock_before: ClockReading | None = None
    clock_after: ClockReading | None = None
    idle_rtt: IdleRtt | None = None  # None: not measured
    reported_at: UtcDatetime
    delivered_at: UtcDatetime | None = None  # when it left the spool; None: it never waited there
    troubles: Troubles = ()  # since the job before, or a minute before the claim

    def delivered(self, at: datetime) -> "JobReport":
        """The report as it leaves the spool: what was not over when it was written is now."""
        changes = {"delivered_at": at, "troubles": _over_by(at, self.troubles)}
        return self.model_copy(update=changes)


class ServerTest(AgentMessage):
    """The server end's account of one test on one of its ports; joined to a job by cookie."""

    agent_id: Identifier
    endpoint: Endpoint
    client_address: Address | None = None
    started_at: UtcDatetime  # the engine's first word of the test: part of the record's key
    first_data_at: UtcDatetime | None = None
    ended_at: UtcDatetime | None = None  # None: still running, or cut off
    engine: EngineReport
    clock_before: ClockReading | None = None
    clock_after: ClockReading | None = None
    troubles: Troubles = ()  # while it ran

    def delivered(self, at: datetime) -> "ServerTest":
        """The record as it leaves the spool: what was not over when it was written is now."""
        return self.model_copy(update={"troubles": _over_by(at, self.troubles)})

    @property
    def cookie(self) -> str | None:
        return self.engine.cookie
