"""What one pair sends during one burst."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from exchange.messages.message_base import Message, Port, Text, Whole, plain_text


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


class Traffic(Message):
    """What one pair sends during one burst. Rates and sizes are per stream where it says so.

    Not every engine takes every field, and some have other defaults (a download's direction is
    reverse): :mod:`exchange.engines` knows.
    """

    engine: EngineName = DEFAULT_ENGINE
    protocol: Protocol = Protocol.TCP
    direction: Direction = Direction.FORWARD
    streams_count: Annotated[int, Field(ge=1, le=128)] = 64
    stream_bits_per_second: Annotated[int, Field(ge=1, lt=2**63)] | None = (
        None  # per stream; None: no pacing
    )
    block_bytes: Annotated[int, Field(ge=16, le=1_048_576)] | None = None  # one write; per stream
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
