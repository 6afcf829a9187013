"""Messages between coordinator and agents, as frozen, versioned and validated models.

Rules for all messages:

- A timestamp is a UTC datetime with time zone. Its name ends in ``_at``.
- The name of a quantity contains its unit (``_s``, ``_bytes``, ``_bits_per_second``, ``_count``,
  ``_ratio``). Rates are decimal. They refer to payload unless the name has another layer.
- ``None`` means *unknown*. Zero never replaces an unknown value.

Small messages sent over a network are pydantic models. :class:`Interval` and :class:`HostSecond`
exist in thousands, so they are frozen dataclasses. :mod:`broadside.exchange.chunks` packs them.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from functools import cache
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializationInfo,
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
        raise ValueError("use a time from 1970 to 2285") from error
    # Row keys have 13 digits for epoch milliseconds.
    if not 1970 <= utc_at.year < 2286:
        raise ValueError("use a time from 1970 to 2285")
    return utc_at


def no_number(at: object) -> object:
    """Reject numbers, which pydantic would accept as seconds since 1970.

    Raises:
        ValueError: The value is a number or a text without a time.
    """
    if ":" not in at if isinstance(at, str) else isinstance(at, int | float):
        raise ValueError("use a time such as 2026-11-22T14:00:00Z")
    return at


# RFC 3339, section 5.6
_INSTANT: Final = {
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
        raise ValueError("use a time from 1970 to 2284, so that the traffic can end")
    return at


# The start of traffic.
TrafficAt = Annotated[UtcDatetime, AfterValidator(_has_an_end)]

# Local time in a time zone that is given in another field.
WallClock = Annotated[datetime, BeforeValidator(no_number)]

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]

RunId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]

TEXT_MAX_CHARS: Final = 4_000
LINES_MAX_CHARS: Final = 65_536

# Control characters, invisible and direction characters, line separators, lone surrogates.
_UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)


def plain_text(text: str, most: int = TEXT_MAX_CHARS) -> str:
    """Clean text for use in a terminal, a log line or a table cell.

    Args:
        text: Any text.
        most: The maximum length in characters. Longer text is cut and ends in "...".

    Returns:
        Text on one line. Line breaks and tabs become spaces. Other control and invisible characters
        become "?".
    """
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return _UNSEEN.sub(lambda result: " " if result[0] in "\n\r\t\u2028\u2029" else "?", cut)


def plain_lines(text: str) -> str:
    """Clean text like :func:`plain_text`, but preserve line breaks and tabs."""
    cut = text[:LINES_MAX_CHARS]
    return _UNSEEN.sub(lambda result: result[0] if result[0] in "\n\t" else "?", cut)


def parse_address(text: str) -> str:
    """Return a literal IPv4 or IPv6 address in its usual spelling.

    Addresses with a scope (``fe80::1%eth0``) are rejected, because Python accepts any text as the
    scope.

    Raises:
        ValueError: The text is not an address, or has a scope.
    """
    if "%" in text:
        raise ValueError("use an IP address without a scope")
    try:
        return str(ip_address(text))
    except ValueError as error:
        raise ValueError("use an IPv4 or IPv6 address, not a name") from error


def parse_network(text: str) -> str:
    """Return a network such as 10.0.0.0/8 or fd00::/8 in its usual spelling.

    Raises:
        ValueError: The text is not a network, or has a scope.
    """
    if "%" in text:
        raise ValueError("use a network without a scope")
    return str(ip_network(text))


def peer_address(text: str | None) -> str | None:
    """Return the address reported by an engine or socket, without its scope.

    Returns:
        IPv4 or IPv6 address. IPv4-mapped IPv6 addresses become IPv4. None if there is no valid
        address.
    """
    with suppress(ValueError):
        address = ip_address((text or "").partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return str(mapped or address)
    return None


# Text for people. If there are invalid characters, they will be replaced and no error will be
# raised.
Text = Annotated[str, AfterValidator(plain_text)]
Lines = Annotated[str, AfterValidator(plain_lines)]
Short = Annotated[Text, StringConstraints(max_length=500)]
Address = Annotated[str, StringConstraints(max_length=45), AfterValidator(parse_address)]
Network = Annotated[str, StringConstraints(max_length=49), AfterValidator(parse_network)]
Port = Annotated[int, Field(ge=1, le=65_535)]
# Ports of one host.
Ports = Annotated[tuple[Port, ...], Field(max_length=4_096)]
# Index of a burst or pair, with five digits in keys.
Index = Annotated[int, Field(ge=0, le=99_999)]

# Validation context of an answer.
_ANSWER: Final = "answer"


def _read_number(value: int | None, info: ValidationInfo) -> int | None:
    return value - 1 if info.context == _ANSWER and value is not None else value


def _write_number(value: int | None, info: SerializationInfo) -> int | None:
    return value + 1 if info.by_alias and value is not None else value


_NUMBER: Final = Field(
    ge=0,
    le=99_999,
    validation_alias=AliasChoices("burst_index", "burst"),
    serialization_alias="burst",
    description="Number of the burst, from 1",
)

# Index of a burst, from 0. Answers of the API, commands and files have the number of the burst
# instead, from 1, in a field named ``burst``. It is converted only here.
BurstIndex = Annotated[
    int,
    _NUMBER,
    AfterValidator(_read_number),
    PlainSerializer(_write_number, return_type=Annotated[int, Field(ge=1)]),
]
OptionalBurstIndex = Annotated[
    int | None,
    _NUMBER,
    AfterValidator(_read_number),
    PlainSerializer(_write_number, return_type=Annotated[int, Field(ge=1)] | None),
]

# Strict numbers, which do not accept text or booleans. An integer must fit a 64-bit column.
Integer = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)]
Number = Annotated[float, Strict()]
# At most one day.
SpanS = Annotated[float, Field(ge=0, le=86_400)]
# Field names separated by dots.
FieldName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.]{1,200}$")]
JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]


# Fields of each model's first version, by module and name of the model. We always write these
# fields. You should not change the file. If a model or a field is not in the file, it is newer.
_FIRST_FIELDS: Final[Mapping[str, str]] = json.loads(
    Path(__file__).with_name("first_fields.json").read_text(encoding="utf-8")
)


def renamed(name: str, *former: str) -> Any:
    """Return the annotation of a stored field that had another name in earlier versions.

    Both names are read, and the current one is written.

    Args:
        name: Current name of the field.
        former: Names in earlier versions.
    """
    return Field(validation_alias=AliasChoices(name, *former))


def renamed_values(current: Mapping[str, str]) -> Any:
    """Return the annotation of a stored text with values that had other names before.

    Args:
        current: Current value for each former one.
    """
    return BeforeValidator(
        lambda value: current.get(value, value) if isinstance(value, str) else value
    )


# Index of a burst in a field named ``index`` of a model of the burst itself.
OwnBurstIndex = Annotated[BurstIndex, renamed("index", "burst")]


def former_names(field: Any) -> frozenset[str]:
    """Return all names under which a field with :func:`renamed` is read, or an empty set."""
    alias = field.validation_alias
    return frozenset(map(str, alias.choices)) if isinstance(alias, AliasChoices) else frozenset()


class Message(BaseModel):
    """Frozen model that rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Handling of fields from a later version in stored rows, see docs/compatibility.md.
    unknown_fields: ClassVar[Literal["forbid", "ignore"]] = "forbid"

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the schema, in which fields that can be omitted are not required."""
        schema = handler(core_schema)
        model = handler.resolve_ref_schema(schema)
        omitted = {
            info.serialization_alias or name
            for name, info in cls.model_fields.items()
            if info.exclude_if is not None
        }
        if omitted and "required" in model:
            model["required"] = [name for name in model["required"] if name not in omitted]
        return schema

    def to_json(self, *, without: tuple[str, ...] = ()) -> str:
        """Return the JSON text to store or to send to another process.

        A field that was added after the first version of the model is omitted if it has its
        default value. An older version can then read the text, and its digest stays the same.

        Args:
            without: Fields of this model to omit in any case.
        """
        return self.model_dump_json(exclude=_unset(self) | dict.fromkeys(without, True) or None)

    def to_fields(self) -> dict[str, Any]:
        """Return the output of :meth:`to_json` as a dictionary."""
        fields: dict[str, Any] = json.loads(self.to_json())
        return fields

    def answer_json(self) -> str:
        """Return the JSON text of an answer, with burst numbers from 1."""
        return self.model_dump_json(by_alias=True)

    def answer_fields(self, *exclude: str) -> dict[str, Any]:
        """Return the JSON fields of an answer, with burst numbers from 1.

        Args:
            exclude: Names of fields to omit.
        """
        return self.model_dump(mode="json", by_alias=True, exclude=set(exclude))

    @classmethod
    def parse_answer(cls, value: Any) -> Self:
        """Parse an answer with burst numbers from 1. Fields of a later version are ignored.

        Args:
            value: JSON text or parsed JSON.

        Raises:
            ValueError: The answer does not have this type.
        """
        parse = cls.model_validate_json if isinstance(value, str) else cls.model_validate
        return parse(value, extra="ignore", context=_ANSWER)


class AgentMessage(Message):
    """Message that contains only observations. Readers ignore its fields of a later version."""

    unknown_fields: ClassVar[Literal["forbid", "ignore"]] = "ignore"


@cache
def _later_fields(kind: type[Message]) -> Mapping[str, object]:
    """Return the fields added after the model's first version, with defaults."""
    names = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    first = {
        field
        for name in names
        for field in _FIRST_FIELDS.get(name.removeprefix("broadside."), "").split()
    }
    return {
        name: field.get_default(call_default_factory=True, validated_data={})
        for name, field in kind.model_fields.items()
        if former_names(field).isdisjoint(first) and name not in first and not field.is_required()
    }


@cache
def _growing_parts(kind: type[Message]) -> frozenset[str]:
    """Return the fields with nested models to which a later version can add fields."""
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
    """Return the ``exclude`` argument for pydantic, with later fields that have their default."""
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
    """Return True for None, to omit later fields that are not set.

    Stored rows and their seals then stay the same, byte for byte.
    """
    return value is None


def is_empty(value: object) -> bool:
    """Return True for an empty tuple, for the same reason as :func:`is_none`."""
    return value == ()


# Clocks


class ClockSource(StrEnum):
    """Source of a clock's error bound."""

    CHRONY = "chrony"
    ADJTIMEX = "adjtimex"
    UNKNOWN = "unknown"


class ClockReading(Message):
    """Reading of an agent's clock.

    ``bound_s`` is the largest possible error. For chrony it is ``|offset| + root dispersion + root
    delay / 2`` (root distance, RFC 5905, section 11.2). For adjtimex it is the kernel's
    ``maxerror``. If it is ``None``, the bound is unknown and the clock gate rejects the clock.

    Attributes:
        source: Program that gave the reading.
        read_at: Time of the reading.
        synchronised: True if the clock is synchronised.
        offset_s: Offset of the clock in seconds, positive if it is ahead.
        bound_s: Bound for the error of the clock in seconds. None if unknown.
        reference: Name or address of the time source.
        stratum: NTP stratum.
        boot_id: Boot id of the kernel that provides the clock. If two agents have the same boot id,
            they use the same clock. None if unknown, or if the operator has configured a different
            clock.
    """

    source: ClockSource
    read_at: UtcDatetime
    synchronised: bool
    offset_s: float | None = None
    bound_s: float | None = None
    reference: Text | None = None
    stratum: Integer | None = None
    boot_id: Identifier | None = Field(None, exclude_if=is_none)


# Traffic that one pair sends during one burst


class Flow(StrEnum):
    """Direction of the payload between the ends of a pair.

    Attributes:
        UP: Client to server
        DOWN: Server to client
    """

    UP = "up"
    DOWN = "down"


class Direction(StrEnum):
    """Requested flows of a job.

    Attributes:
        FORWARD: UP only
        REVERSE: DOWN only
        BIDIRECTIONAL: UP and DOWN at the same time
    """

    FORWARD = "forward"
    REVERSE = "reverse"
    BIDIRECTIONAL = "bidirectional"

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
    """Transport protocol of a stream.

    Attributes:
        TCP: Transmission Control Protocol.
        UDP: User Datagram Protocol.
        SCTP: Only in imports. No engine is started with it.
    """

    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"


class Pacing(StrEnum):
    """Component that enforces the rate of a stream.

    Attributes:
        ENGINE: The engine paces between its writes (iperf3 --bitrate).
        KERNEL: The socket paces between its packets (iperf3 --fq-rate, TCP only).
    """

    ENGINE = "engine"
    KERNEL = "kernel"


class Probe(Message):
    """Settings for probes, which are small datagrams sent during the traffic of any engine.

    They measure the latency and the loss of the path under load.

    Attributes:
        every_s: Seconds between two probes.
        before_s: Seconds of probes before the planned start, used as the baseline.
        after_s: Seconds of probes after the burst.
        device: Address of the device, which is pinged during the burst.
        device_tcp_port: TCP port of the device to connect to. If None, only ICMP is used.
    """

    every_s: Annotated[float, Field(ge=0.02, le=1)] = 0.1
    before_s: Annotated[float, Field(ge=0.5, le=4)] = 2.0
    after_s: Annotated[float, Field(ge=0, le=5)] = 2.0
    device: Address | None = Field(None, exclude_if=is_none)
    device_tcp_port: Port | None = Field(None, exclude_if=is_none)


class Vxlan(Message):
    """Settings for VXLAN tunnels (RFC 7348). Each pair uses a tunnel during a burst.

    Attributes:
        vni_from: VXLAN network identifier of the first pair.
        port: UDP port of the tunnels.
    """

    vni_from: Annotated[int, Field(ge=1, le=16_000_000)] = 4096
    port: Port = 4789


# Printable ASCII without line breaks, so that a value cannot add lines to a request.
_PRINTABLE: Final = r"^[ -~]*$"

# Signatures in one run.
SIGNATURES_MAX_COUNT: Final = 8


@cache
def canary_catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of each signature in ``canary_signatures.toml``, by name."""
    path = Path(__file__).with_name("canary_signatures.toml")
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: {"name": name, **fields} for name, fields in entries.items()}


def _named_signatures(value: object) -> object:
    """Replace the names of signatures by their fields. Other values are returned unchanged."""
    if not isinstance(value, list | tuple):
        return value
    names = [one for one in value if isinstance(one, str)]
    if not canary_catalogue().keys() >= set(names):
        known = {"names": ", ".join(canary_catalogue())}
        raise PydanticCustomError("signature", "Signature should be one of {names}", known)
    return tuple(canary_catalogue()[one] if isinstance(one, str) else one for one in value)


def _default_signatures() -> Any:
    return ("port",)


class CanaryRequest(Message):
    """Request of a canary, in HTTP or in a UDP datagram. All of its parts are harmless.

    Attributes:
        path: Path of the request.
        user_agent: Header User-Agent.
        host: Header Host. None uses the address and port of the server.
        body: Body. If it is not empty, the method is POST.
        over_udp: True to send ``body`` in a UDP datagram without HTTP.
        to_forbidden_port: True to use ``Canary.forbidden_port`` in place of ``Canary.port``.
    """

    path: Annotated[str, StringConstraints(pattern=r"^/[!-~]{0,199}$")] = "/"
    user_agent: Annotated[str, StringConstraints(pattern=_PRINTABLE, max_length=200)] = "Broadside"
    host: (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]{0,199}$")] | None
    ) = None
    body: Annotated[str, StringConstraints(pattern=_PRINTABLE, max_length=1000)] = ""
    over_udp: StrictBool = False
    to_forbidden_port: StrictBool = False

    @model_validator(mode="after")
    def _datagram_has_no_http(self) -> "CanaryRequest":
        http = (self.path, self.user_agent, self.host)
        if self.over_udp and http != ("/", "Broadside", None):
            raise ValueError("over_udp: a datagram has no path, user_agent or host; set its body")
        return self


class CanarySignature(Message):
    """Request that the policy must block, and its allowed twin of the same form.

    Attributes:
        name: Name of the signature.
        rule: Rule that blocks the request, with its id.
        forbidden: Request that the policy must block.
        allowed: Allowed twin of the same form.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    rule: Annotated[Short, StringConstraints(min_length=1)]
    forbidden: CanaryRequest
    allowed: CanaryRequest = CanaryRequest()

    @model_validator(mode="after")
    def _twin_differs(self) -> "CanarySignature":
        if self.forbidden == self.allowed:
            raise ValueError(f"signature {self.name}: forbidden and allowed are the same request")
        if self.forbidden.over_udp != self.allowed.over_udp:
            raise ValueError(f"signature {self.name}: set over_udp for both requests or for none")
        return self


class CanaryOutcome(IntEnum):
    """What the client saw of one request."""

    NOT_SENT = 0
    # The server's answer arrived completely.
    ANSWERED = 1
    # The server's answer began and did not end.
    CUT = 2
    # The connection was reset or closed without an answer.
    RESET = 3
    # The connection was refused, or the server was reported as unreachable.
    REFUSED = 4
    # Something else answered in place of the server.
    REPLACED = 5
    # There was no answer in time.
    SILENT = 6


class Canary(Message):
    """Settings for canaries: harmless requests that show if the device still inspects.

    Each pair sends a forbidden request and its allowed twin at the same time, at a low rate,
    before, during and after the burst.

    Attributes:
        consent: Name of the person who agreed to send forbidden requests through this device.
        signatures: Names from the catalogue, or own signatures.
        port: Port of the server for canaries.
        forbidden_port: Port that the policy must block.
        every_s: Seconds between two requests of a pair. The signatures take turns.
        before_s: Seconds before the planned start, to compare with the idle device.
        after_s: Seconds after the planned end.
        hold_s: Seconds over which the server sends its answer, to see a late block.
    """

    consent: Annotated[Text, StringConstraints(pattern=r"\S", max_length=200)]
    signatures: Annotated[
        tuple[CanarySignature, ...],
        Field(min_length=1, max_length=SIGNATURES_MAX_COUNT),
        BeforeValidator(
            _named_signatures, json_schema_input_type=tuple[CanarySignature | str, ...]
        ),
    ] = Field(default_factory=_default_signatures, validate_default=True)
    port: Port = 5198
    forbidden_port: Port = 5199
    every_s: Annotated[float, Field(ge=0.2, le=60)] = 1.0
    before_s: Annotated[float, Field(ge=0, le=60)] = 6.0
    after_s: Annotated[float, Field(ge=0, le=60)] = 4.0
    hold_s: Annotated[float, Field(ge=0, le=5)] = 0.5

    @model_validator(mode="after")
    def _ports_differ(self) -> "Canary":
        if self.port == self.forbidden_port:
            raise ValueError(f"canary: port and forbidden_port are both {self.port}; use two ports")
        return self


# Keywords for fields of Traffic. You can use a keyword to set a value with all its defaults.
TRAFFIC_WORDS: Final[Mapping[str, Mapping[str, Message | None]]] = {
    "probe": {"udp": Probe(), "off": None},
    "encapsulation": {"vxlan": Vxlan(), "none": None},
}


def _parse_keyword(value: object, info: ValidationInfo) -> object:
    """Return the value of a keyword, or any other value unchanged."""
    keywords = TRAFFIC_WORDS[info.field_name or ""]
    if not isinstance(value, str):
        return value
    if value not in keywords:
        known = {"words": " or ".join(keywords)}
        raise PydanticCustomError("word", "Input should be {words}", known)
    return keywords[value]


# Every agent needs this engine.
DEFAULT_ENGINE: Final = "iperf3"

EngineName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,32}$")]

OptionName = Annotated[str, StringConstraints(max_length=64), AfterValidator(plain_text)]


# The smallest size of one write.
BLOCK_MIN_BYTES: Final = 16


class Traffic(Message):
    """Traffic that a pair sends during a burst.

    An engine can reject a field or use another default. For example, the direction of downloads is
    reverse. See docs/engines.md.

    Attributes:
        engine: Name of the traffic engine.
        protocol: Transport protocol.
        direction: Flows of the test: from the client, to the client, or both.
        streams_count: Number of streams per pair.
        stream_bits_per_second: Rate of each stream in bit/s. None for no limit.
        block_bytes: Size of one write in bytes.
        window_bytes: Size of the socket buffer in bytes.
        mss_bytes: Largest TCP segment in bytes.
        congestion: Name of the TCP congestion control.
        pacing: Component that limits the rate.
        dscp: DSCP of every packet (RFC 2474).
        processes_count: Number of engine processes to use for the streams of the pair. Each process
            will use a separate server port.
        omit_s: Seconds of warm-up before the test.
        interval_s: Seconds between two reports of the engine.
        probe: Probes during the traffic. None for no probes.
        encapsulation: VXLAN tunnels. None for none.
        options: Options of the engine, see docs/engines.md.
        canary: Canaries beside the traffic. None sends none. Every engine supports them.
    """

    engine: EngineName = DEFAULT_ENGINE
    protocol: Protocol = Protocol.TCP
    direction: Direction = Direction.FORWARD
    streams_count: Annotated[int, Field(ge=1, le=128)] = 64
    stream_bits_per_second: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    block_bytes: Annotated[int, Field(ge=BLOCK_MIN_BYTES, le=1_048_576)] | None = None
    window_bytes: Annotated[int, Field(ge=1024, le=512_000_000)] | None = None
    mss_bytes: Annotated[int, Field(ge=88, le=9216)] | None = None
    congestion: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,15}$")] | None = None
    pacing: Pacing = Pacing.ENGINE
    dscp: Annotated[int, Field(ge=0, le=63)] | None = None
    processes_count: Annotated[int, Field(ge=1, le=16)] = 1
    omit_s: Annotated[int, Field(ge=0, le=60)] = 0
    interval_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    probe: Annotated[
        Probe | None,
        BeforeValidator(
            _parse_keyword, json_schema_input_type=Probe | Literal["udp", "off"] | None
        ),
    ] = None
    encapsulation: Annotated[
        Vxlan | None,
        BeforeValidator(
            _parse_keyword, json_schema_input_type=Vxlan | Literal["vxlan", "none"] | None
        ),
    ] = None
    canary: Canary | None = Field(None, exclude_if=is_none)
    options: Annotated[
        Mapping[OptionName, bool | Integer | float | Text], Field(max_length=32)
    ] = {}


# Inner Ethernet 14, VXLAN 8, UDP 8, IPv4 20 (RFC 7348, section 5).
VXLAN_BYTES: Final = 50


# Parameters and results of an engine


class FlowTotals(Message):
    """Totals that the engine reported for a flow at the end of a test.

    ``None`` means that this end did not report the value.

    Attributes:
        sent_bytes: Sent payload in bytes.
        sent_s: Seconds in which `sent_bytes` were counted.
        received_bytes: Received payload in bytes.
        received_s: Seconds in which `received_bytes` were counted.
        rtt_min_s: Smallest round-trip time of all streams in seconds.
        rtt_mean_s: Mean round-trip time over streams in seconds.
        rtt_max_s: Largest round-trip time of all streams in seconds.
        packets_count: Number of UDP datagrams.
        lost_count: Number of lost UDP datagrams.
        jitter_s: Mean jitter of UDP datagrams over streams, in seconds.
    """

    flow: Flow
    sent_bytes: Integer | None = None
    sent_s: Number | None = None
    received_bytes: Integer | None = None
    received_s: Number | None = None
    retransmits_count: Integer | None = None
    rtt_min_s: Number | None = None
    rtt_mean_s: Number | None = None
    rtt_max_s: Number | None = None
    packets_count: Integer | None = None
    lost_count: Integer | None = None
    jitter_s: Number | None = None


class Aggregation(StrEnum):
    """Rule that combines several known values of a metric into one."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"

    def of(self, values: Sequence[float], weights: Sequence[float] | None = None) -> float:
        """Combine values.

        Args:
            values: One or more known values.
            weights: Weight of each value for the mean. By default, or if all are 0, they are equal.

        Returns:
            The sum, mean, or other combination, in the unit of ``values``.
        """
        match self:
            case Aggregation.SUM if all(isinstance(value, int) for value in values):
                return sum(values)
            case Aggregation.SUM:
                return math.fsum(values)
            case Aggregation.MAX:
                return max(values)
            case Aggregation.MIN:
                return min(values)
            case Aggregation.MEAN:
                if weights is None or not (total := math.fsum(weights)):
                    return math.fsum(values) / len(values)
                return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / total


class Measure(Message):
    """Additional value that an engine reported, for example requests per second.

    Attributes:
        name: Name of the value.
        value: Value in this unit.
        unit: Unit: s, ratio, bytes or count.
        combine: How values of several processes are combined.
        weight: Weight for the mean.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,47}$")]
    value: Annotated[Number, Field(allow_inf_nan=False)]
    unit: Annotated[str, StringConstraints(pattern=r"^[a-z/]{1,16}$")]
    combine: Aggregation = Aggregation.SUM
    weight: Annotated[Number, Field(ge=0, allow_inf_nan=False)] = 1.0


class Distribution(Message):
    """Histogram with logarithmic buckets. Histograms of several pairs can be added.

    Bucket ``i`` counts values from ``2 ** (i / resolution)`` to ``2 ** ((i + 1) / resolution)``, in
    ``unit``. A quantile from these counts has an error of at most 2.2 % with 16 buckets per
    doubling, and 0.8 % with 48. Three fine buckets are one coarse bucket, so both can be added.

    Attributes:
        name: Name of the value.
        unit: Unit of the values.
        counts: Number of values by bucket.
        max: Largest value.
        resolution: Buckets per doubling of the value.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    unit: Annotated[str, StringConstraints(pattern=r"^[a-z/]{1,16}$")]
    counts: Annotated[
        Mapping[Annotated[int, Field(ge=-(2**63), lt=2**63)], Integer], Field(max_length=1536)
    ]
    max: Number
    resolution: Annotated[Literal[16, 48], Field(exclude_if=lambda value: value == 16)] = 16


BUCKET_RATIO: Final = 2 ** (1 / 16)


class StreamSilence(Message):
    """Time in which a stream transferred no data and other streams of the pair did.

    Attributes:
        client_port: Port at the client. It identifies the stream at both ends.
        from_s: Start in seconds of engine time.
        to_s: End in seconds of engine time.
    """

    flow: Flow
    client_port: Integer | None = None
    from_s: Annotated[Number, Field(ge=-1e6, le=1e6)]
    to_s: Annotated[Number, Field(ge=-1e6, le=1e6)]


# Largest number in one report. The longest silences are reported.
SILENT_STREAMS_MAX_COUNT: Final = 32


class PeerSeconds(Message):
    """Payload of the streams that the server received from one address, step by step.

    If a device translates source addresses, this is an address of the device and not of the client.

    Attributes:
        address: Address that the server received.
        streams_count: Number of streams that were open. None if the engine records requests and not
            streams.
        from_s: Start of the first step in seconds of engine time.
        step_s: Length of a step in seconds.
        packed: Payload and active streams (or started requests or connections) of each step, packed
            and encoded as Base64. Empty if all streams of the test have this address.
    """

    address: Address
    streams_count: Integer | None = None
    from_s: Annotated[Number, Field(ge=-1e6, le=1e6)] = 0.0
    step_s: Annotated[int, Field(ge=1, le=86_400)] = 1
    packed: Annotated[str, StringConstraints(max_length=60_000, pattern=r"^[A-Za-z0-9+/=]*$")] = ""


# Largest number of addresses in one report.
PEERS_MAX_COUNT: Final = 64


class EngineReport(Message):
    """Report of an engine: its command line, the values that it used, totals and errors.

    Attributes:
        engine: Name of the traffic engine.
        version: Version of the engine.
        argv: Command line as it was executed.
        files: Files of the engine's folder that the command line refers to, by name. Long files are
            cut.
        cookie: Id of the test, which matches the two ends.
        protocol: Transport protocol that the engine used.
        direction: Flows that the engine used.
        streams_count: Number of streams that the engine used.
        duration_s: Duration that the engine used, in seconds.
        omit_s: Warm-up that the engine used, in seconds.
        block_bytes: Size of one write in bytes.
        mss_bytes: TCP payload of a full packet in bytes. None also if the engine only repeats the
            requested value.
        window_bytes: Socket buffer that the kernel granted in bytes, halved as on Linux.
        stream_bits_per_second: Pacing in effect, in bit/s. None if there was none, or if the engine
            does not report it.
        pacing: Component that enforced the pacing.
        tos: IP type of service, dscp * 4.
        sender_congestion: TCP congestion control of the sender.
        receiver_congestion: TCP congestion control of the receiver.
        totals: Totals of each flow.
        cpu_local_percent: CPU use of the engine at this end, in percent of one core.
        cpu_remote_percent: CPU use of the engine at the other end, in percent of one core.
        cpu_s: User and system time of the engine's processes at this end, in seconds.
        cpu_payload_bytes: Payload that these processes transferred in this time, in bytes,
            including the warm-up.
        host_cpu_s: CPU time of the whole host during the test in seconds, if the agent uses the
            host alone.
        host_taken_ratio: Part of all cores' time that the hypervisor took during the test (0 to 1).
        egress_queued_ratio: Part of the samples with packets in the egress queue (qdisc) of the
            interface (0 to 1), one sample per second.
        error: Error text of the engine. The outcome depends on it, and not on the exit code.
        truncated: True if the output ended early.
        exit_code: Exit code, or a negative number if a signal stopped the process.
        processes: Reports of the single processes, if there are several.
        measures: Additional values that the engine reported.
        distributions: Histograms that the engine reported.
        silent_streams: Streams that transferred no data while others did.
        peers: Addresses of the client as the server received them. Empty if unknown, and at the
            client.
    """

    engine: EngineName
    version: Text | None = None
    argv: Annotated[tuple[Text, ...], Field(max_length=256)] = ()
    files: Annotated[Mapping[Text, Lines], Field(max_length=4)] = {}
    cookie: Text | None = None
    protocol: Protocol | None = None
    direction: Direction | None = None
    streams_count: Integer | None = None
    duration_s: Integer | None = None
    omit_s: Integer | None = None
    block_bytes: Integer | None = None
    mss_bytes: Integer | None = None
    window_bytes: Integer | None = None
    stream_bits_per_second: Integer | None = None
    pacing: Pacing | None = None
    tos: Integer | None = None
    sender_congestion: Text | None = None
    receiver_congestion: Text | None = None
    totals: Annotated[tuple[FlowTotals, ...], Field(max_length=16)] = ()
    cpu_local_percent: Number | None = None
    cpu_remote_percent: Number | None = None
    cpu_s: Number | None = None
    cpu_payload_bytes: Integer | None = None
    host_cpu_s: Number | None = None
    host_taken_ratio: Number | None = None
    egress_queued_ratio: Number | None = None
    error: Text | None = None
    truncated: StrictBool = False
    exit_code: Integer | None = None
    processes: Annotated[tuple["EngineReport", ...], Field(max_length=16)] = ()
    measures: Annotated[tuple[Measure, ...], Field(max_length=32)] = ()
    distributions: Annotated[tuple[Distribution, ...], Field(max_length=8)] = ()
    silent_streams: Annotated[
        tuple[StreamSilence, ...], Field(max_length=SILENT_STREAMS_MAX_COUNT)
    ] = ()
    peers: Annotated[tuple[PeerSeconds, ...], Field(max_length=PEERS_MAX_COUNT)] = ()

    @property
    def cookies(self) -> tuple[str, ...]:
        """Return the cookies of all processes."""
        cookies = [part.cookie for part in self.processes] if self.processes else [self.cookie]
        return tuple(cookie for cookie in cookies if cookie is not None)


# Measurements per second from an engine and a host


class Side(StrEnum):
    """End of a pair that recorded the data."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Engine report of one interval, summed over the streams of one flow.

    Attributes:
        start_s: The start in engine time, in seconds since the flow's first byte.
        end_s: The end in engine time, in seconds.
        transferred_bytes: Payload in bytes, sent (at the sender) or received (at the receiver).
        omitted: True if the interval is part of the engine's warm-up.
        retransmits_count: Retransmitted segments, TCP sender only.
        rtt_s: Mean round-trip time over streams, TCP sender only.
        cwnd_bytes: The sum of congestion windows over streams, TCP sender only.
        packets_count: Packets, UDP only.
        lost_count: Lost packets, UDP receiver only.
        jitter_s: Mean jitter over streams, UDP receiver only.
        counts: Events by name, for an engine that counts other things than bytes. The names are
            short words with underscores.
    """

    start_s: float
    end_s: float
    transferred_bytes: int
    omitted: bool = False
    retransmits_count: int | None = None
    rtt_s: float | None = None
    cwnd_bytes: int | None = None
    packets_count: int | None = None
    lost_count: int | None = None
    jitter_s: float | None = None
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSecond:
    """Counters of one host between two readings. Counts are differences, not totals.

    Attributes:
        start_at_s: The time of the earlier reading by the host's clock, in epoch seconds.
        end_at_s: The time of the later reading, in epoch seconds.
        nic_rx_bytes: Received bytes at the link layer, from the kernel's counter.
        nic_tx_bytes: Sent bytes at the link layer, from the kernel's counter.
        nic_rx_packets_count: Received packets.
        nic_tx_packets_count: Sent packets.
        nic_drops_count: Dropped packets, received and sent.
        tcp_retransmits_count: Retransmitted TCP segments.
        cpu_busy_ratio: Load of all cores, 0 to 1.
        cpu_busiest_core_ratio: Load of the busiest core, 0 to 1.
        cpu_taken_ratio: Share of all cores' time that a hypervisor took, 0 to 1. Not stored.
    """

    start_at_s: float
    end_at_s: float
    nic_rx_bytes: int
    nic_tx_bytes: int
    nic_rx_packets_count: int
    nic_tx_packets_count: int
    nic_drops_count: int
    tcp_retransmits_count: int
    cpu_busy_ratio: float
    cpu_busiest_core_ratio: float
    cpu_taken_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Intervals of one flow of one pair, recorded at one end.

    Attributes:
        side: The end of the pair.
        flow: The direction of the payload.
        first_data_at_s: The start of engine time by the clock of that end, in epoch seconds.
        intervals: Intervals of the flow, in order.
    """

    side: Side
    flow: Flow
    first_data_at_s: float
    intervals: tuple[Interval, ...]


# If there are more outages than this, only the newest ones will be reported. An outage is a failure
# of the services between coordinator and agents.
TROUBLES_MAX_COUNT: Final = 16


class OutageKind(StrEnum):
    """Kind of an outage of the services between coordinator and agents.

    Attributes:
        QUEUE_AWAY: Requests to the queue failed.
        TABLE_AWAY: Requests to the table failed.
        RAW_AWAY: Requests to the raw store failed.
        SPOOLED: Writes waited on the agent's disk.
        LOST: Writes were lost because the disk was full or not writable.
        DUPLICATE: A second delivery of a job that already has an agent was dropped.
        FORGED: A message was rejected because its job is not in the run's plan.
        UNREADABLE: An unreadable message or row was set aside.
        CLOCK_STEPPED: The wall clock of the host was set.
        TICK_FAILED: The coordinator failed to process its runs.
    """

    QUEUE_AWAY = "queue_away"
    TABLE_AWAY = "table_away"
    RAW_AWAY = "raw_away"
    SPOOLED = "spooled"
    LOST = "lost"
    DUPLICATE = "duplicate"
    FORGED = "forged"
    UNREADABLE = "unreadable"
    CLOCK_STEPPED = "clock_stepped"
    TICK_FAILED = "tick_failed"


class ServiceOutage(Message):
    """Outage that a process detected, with times by its local clock.

    Attributes:
        kind: The kind of the outage.
        from_at: The start.
        to_at: The end. None if the outage had not ended when the report was written.
        count: The number of failed requests, delayed rows or duplicates.
    """

    kind: OutageKind
    from_at: UtcDatetime
    to_at: UtcDatetime | None = None
    count: Annotated[int, Field(ge=1, lt=2**63)]


ServiceOutages = Annotated[tuple[ServiceOutage, ...], Field(max_length=TROUBLES_MAX_COUNT)]


def _over_by(at: datetime, troubles: tuple[ServiceOutage, ...]) -> tuple[ServiceOutage, ...]:
    return tuple(
        trouble.model_copy(update={"to_at": at}) if trouble.to_at is None else trouble
        for trouble in troubles
    )


# Version of the jobs. You should increase it if an older agent could misread a job.
PROTOCOL_VERSION: Final = 2


class JobPhase(StrEnum):
    """Progress of a claimed job.

    Attributes:
        CLAIMED: A client has claimed the job.
        ARMED: The client is connected and waits for the start.
        RUNNING: Traffic is sent.
        REPORTED: The client has reported the result.
    """

    CLAIMED = "claimed"
    ARMED = "armed"
    RUNNING = "running"
    REPORTED = "reported"


class Endpoint(Message):
    """Address of a server agent, and the ports that it uses for a pair.

    Attributes:
        agent_id: Id of the server's agent.
        address: Address of the server.
        port: Port of the server.
        more_ports: Further ports, one for each additional process.
        echo_port: UDP port that answers probes.
    """

    agent_id: Identifier
    address: Address
    port: Port
    more_ports: Annotated[tuple[Port, ...], Field(max_length=15)] = ()
    echo_port: Port | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        """Return all ports of the pair, starting with ``port``."""
        return (self.port, *self.more_ports)


class RawPolicy(StrEnum):
    """Jobs whose raw engine output is stored.

    Attributes:
        ALL: All jobs.
        FAILED: Output of failed jobs, and of one sample pair's client.
        NONE: No jobs.
    """

    ALL = "all"
    FAILED = "failed"
    NONE = "none"

    def keeps(self, *, failed: bool) -> bool:
        return self is RawPolicy.ALL or (failed and self is RawPolicy.FAILED)


def is_failed_only(policy: RawPolicy) -> bool:
    """Return True for the default, to omit it for the same reason as :func:`is_none`."""
    return policy is RawPolicy.FAILED


# Maximum size of a job as JSON. Most have about 700 bytes.
JOB_MAX_BYTES: Final = 65_536


class Job(Message):
    """Task of one pair in one burst, sent as a message on the queue.

    Attributes:
        version: The protocol version.
        run_id: The run id.
        burst_index: The burst index in the run, from 0.
        pair_index: The pair index in the run, from 0.
        endpoint: The server agent and its ports.
        traffic: The traffic to send.
        planned_start_at: The time when all pairs of the burst start.
        duration_s: The duration in seconds, without ``traffic.omit_s``.
        late_after_s: Data that begins more than this after the planned start counts as late.
        clock_bound_max_s: The clock gate rejects a larger error bound of the clock, in seconds.
        shared_boot_id: Boot id of the kernel, if both ends read the same kernel's clock.
        raw: Which raw output of the client's engine is stored.
        control_poll_s: Longest time between two reads of the control row. None uses the setting of
            the agent.
        live_probes_s: Time between two live values of the probes that the agent publishes. None
            publishes no values.
        may_ignore: Dotted names of fields that an older agent may ignore. These fields do not
            affect the traffic.
    """

    version: Integer = PROTOCOL_VERSION
    run_id: RunId
    burst_index: Index
    pair_index: Index
    endpoint: Endpoint
    traffic: Traffic
    planned_start_at: UtcDatetime
    duration_s: Annotated[int, Field(ge=1, le=86_400)]
    late_after_s: SpanS = 1.0
    clock_bound_max_s: SpanS = 0.05
    shared_boot_id: Identifier | None = Field(None, exclude_if=is_none)
    raw: RawPolicy = Field(RawPolicy.FAILED, exclude_if=is_failed_only)
    control_poll_s: Annotated[float, Field(ge=0.1, le=60)] | None = Field(None, exclude_if=is_none)
    live_probes_s: Annotated[float, Field(ge=0.1, le=60)] | None = Field(None, exclude_if=is_none)
    # True if the control row may end the burst before its planned end. Agents of versions that do
    # not know this reject the job.
    may_end_early: bool = False
    may_ignore: Annotated[tuple[FieldName, ...], Field(max_length=64)] = ()

    @property
    def job_id(self) -> str:
        """Return the id ``<run>.<burst>.<pair>``, which the queue uses to detect duplicates."""
        return f"{self.run_id}.{self.burst_index:05d}.{self.pair_index:05d}"

    @property
    def pair(self) -> str:
        return pair_name(self.pair_index)

    @property
    def body(self) -> bytes:
        """Return the body of the queue message. Agents compare its digest."""
        return self.to_json().encode()


# Part of the network for benchmarks (RFC 2544). It has 8,192 subnets of size /30.
INNER_NETWORK: Final = ip_network("198.19.128.0/17")


class Tunnel(Message):
    """Request from a client's agent that its server's agent creates the other end of a tunnel.

    Attributes:
        vni: VXLAN network identifier.
        port: UDP port of the tunnel.
        client_address: Underlay address of the client.
        inner_client_address: The address of the client inside the tunnel.
        inner_server_address: The address of the server inside the tunnel.
        ports: Server ports that must listen at the inner address.
        opened_by: The job that needs the tunnel.
        beat: Counter that the client increases every two seconds while it needs the tunnel.
    """

    vni: Annotated[int, Field(ge=1, le=16_777_215)]
    port: Port
    client_address: Address
    inner_client_address: Address
    inner_server_address: Address
    ports: Annotated[tuple[Port, ...], Field(max_length=16)]
    opened_by: JobId
    beat: Index = 0

    @model_validator(mode="after")
    def _inner_addresses_fit(self) -> "Tunnel":
        """Check that the inner addresses match the VNI."""
        inner = (self.inner_client_address, self.inner_server_address)
        if inner != inner_addresses(self.vni):
            raise ValueError(f"the inner addresses are not those of tunnel {self.vni}")
        return self


def inner_addresses(vni: int) -> tuple[str, str]:
    """Return the inner addresses of a tunnel, client first and server second."""
    place = 4 * (vni % (INNER_NETWORK.num_addresses // 4))
    return str(INNER_NETWORK[place + 1]), str(INNER_NETWORK[place + 2])


def tunnel_of(job: "Job", *, client_address: str) -> Tunnel:
    """Return the tunnel of one pair.

    Args:
        job: The job with ``traffic.encapsulation``.
        client_address: Underlay address of the client.

    Raises:
        ValueError: The job does not request a tunnel.
    """
    encapsulation = job.traffic.encapsulation
    if encapsulation is None:
        raise ValueError("the job does not request a tunnel")
    vni = encapsulation.vni_from + job.pair_index
    client, server = inner_addresses(vni)
    return Tunnel(
        vni=vni,
        port=encapsulation.port,
        client_address=client_address,
        inner_client_address=client,
        inner_server_address=server,
        ports=job.endpoint.ports,
        opened_by=job.job_id,
    )


def pair_name(pair_index: int) -> str:
    """Return the display name of a pair, ``pair-001`` for index 0."""
    return f"pair-{pair_index + 1:03d}"


class EndCause(StrEnum):
    """Why a burst ends before its planned end.

    Attributes:
        CERTAIN: The verdict of the burst is certain (``objective.stop``).
        GUARD: A guard on a live value was breached.
    """

    CERTAIN = "certain"
    GUARD = "guard"


class BurstEnd(Message):
    """Order that all pairs end a burst before its planned end. It is a planned end, no abort.

    Attributes:
        burst_index: The burst index in the run, from 0.
        at: Time when the pairs stop. If it has passed, they stop immediately.
        cause: Why the burst ends.
        reason: The reason as text.
        decided_at: Time of the decision.
        saved_usd: Estimated cost of the rest of the burst at real scale, or None if unknown.
    """

    burst_index: BurstIndex
    at: UtcDatetime
    cause: EndCause
    reason: Text
    decided_at: UtcDatetime
    saved_usd: float | None = None


class Control(Message):
    """Control row of a run, which agents read before the start and every one or two seconds.

    Attributes:
        run_id: The run id.
        lease_until_at: The time when agents stop unless the lease is renewed (dead-man switch).
        cancelled_at: The time of the cancellation, if any.
        cancelled_by: The user who cancelled the run.
        cancel_reason: The reason for the cancellation.
        copies_count: How many copies of this row exist, including the row itself.
        burst_end: The last burst that ends before its planned end, if any.
    """

    run_id: RunId
    lease_until_at: UtcDatetime
    cancelled_at: UtcDatetime | None = None
    cancelled_by: Text | None = None
    cancel_reason: Text | None = None
    copies_count: int = Field(1, ge=1, le=1000)
    burst_end: BurstEnd | None = Field(None, exclude_if=is_none)


class LiveProbes(Message):
    """Probes of a pair in the last second or less.

    Attributes:
        at: Time of these values.
        rtt_s: Median round trip, at most the second that a probe waits. None if no probe was sent.
        loss_ratio: Share of the probes that had no response within half a second. None if no probe
            is old enough.
    """

    at: UtcDatetime
    rtt_s: float | None = None
    loss_ratio: float | None = None


class Claim(AgentMessage):
    """Record of the agent that claimed a job, and of its progress.

    The row is created once, so a second delivery of the job fails to claim it.

    Attributes:
        job_id: The job id.
        agent_id: The agent that claimed the job.
        phase: The job progress.
        claimed_at: The time of the claim.
        armed_at: Time when the job was armed.
        running_at: Time when the traffic started.
        cookie: Engine identifier of the test, if known.
        clock: The clock reading when the job was armed.
        address: The source address of the traffic, if the agent knows it.
        probes: Newest live values of the probes, if the job requests them.
        mss_bytes: Segment size of the test while it is running, if known.
    """

    job_id: JobId
    agent_id: Identifier
    phase: JobPhase
    claimed_at: UtcDatetime
    armed_at: UtcDatetime | None = None
    running_at: UtcDatetime | None = None
    cookie: Text | None = None
    clock: ClockReading | None = None
    address: Address | None = None
    probes: LiveProbes | None = None
    mss_bytes: Integer | None = Field(None, exclude_if=is_none)


# Agents


class Role(StrEnum):
    """Role of an agent."""

    CLIENT = "client"
    SERVER = "server"


class AgentState(StrEnum):
    """State of an agent.

    Attributes:
        IDLE: Ready for a job.
        BUSY: The agent has an armed or running job.
        STOPPING: It accepts no more jobs.
    """

    IDLE = "idle"
    BUSY = "busy"
    STOPPING = "stopping"


class EngineState(Message):
    """State of an engine on an agent.

    Attributes:
        name: Name of the engine.
        version: The version of the engine program.
        ports: Free ports of a server.
        self_signed: True if the agent of a server created the TLS certificate.
        problem: Why the engine cannot be used. None if it can.
        tls: TLS version and cipher suite that the ports of a server enforce, such as
            ``1.3:TLS_AES_256_GCM_SHA384``. An empty string if they enforce none.
        new_options: Options and fields that agents of version 1.0 do not support, and this agent
            does.
    """

    name: EngineName
    version: Text | None = None
    ports: Ports = ()
    self_signed: bool | None = None
    problem: Text | None = None
    tls: Text = ""
    new_options: Annotated[tuple[OptionName, ...], Field(max_length=64, exclude_if=is_empty)] = ()


class HostInfo(AgentMessage):
    """Properties of a host that affect its network throughput. None means unknown.

    Attributes:
        nic_driver: Driver of the NIC.
        nic_driver_version: Version of the driver.
        nic_firmware: Firmware of the NIC.
        nic_megabits_per_second: Link speed of the NIC in Mbit/s.
        rx_ring_count: Number of receive descriptors.
        tx_ring_count: Number of transmit descriptors.
        rx_queues_count: Number of receive channels, including combined ones.
        tx_queues_count: Number of transmit channels, including combined ones.
        offloads: Offloads of the NIC, by the names of ethtool.
        numa_node: NUMA node of the NIC.
        accelerated_networking: True if Azure has a virtual function below the NIC.
        sysctls: Kernel settings that affect traffic, by name.
        kernel_build: Build of the kernel.
        cpu_model: Model of the CPU.
        cpu_flags: Flags of the CPU that affect traffic.
        hypervisor: Kind, vendor and product of the hypervisor.
        engine_build: Version text of iperf3.
        files_max_count: Open file descriptors that each process of the agent may have (hard limit
            of RLIMIT_NOFILE).
        nic_addresses_count: Number of addresses of the NIC in the family of the agent's address.
    """

    nic_driver: Short | None = None
    nic_driver_version: Short | None = None
    nic_firmware: Short | None = None
    nic_megabits_per_second: Integer | None = None
    rx_ring_count: Integer | None = None
    tx_ring_count: Integer | None = None
    rx_queues_count: Integer | None = None
    tx_queues_count: Integer | None = None
    offloads: Annotated[Mapping[Short, bool], Field(max_length=64)] = {}
    numa_node: Integer | None = None
    accelerated_networking: bool | None = None
    sysctls: Annotated[Mapping[Short, Short], Field(max_length=64)] = {}
    kernel_build: Short | None = None
    cpu_model: Short | None = None
    cpu_flags: Annotated[tuple[Short, ...], Field(max_length=64)] = ()
    hypervisor: Short | None = None
    engine_build: Short | None = None
    files_max_count: Integer | None = None
    nic_addresses_count: Integer | None = None


class Presence(AgentMessage):
    """An agent's heartbeat.

    Attributes:
        agent_id: Id of the agent.
        role: Role of the agent.
        state: State of the agent.
        beat_at: Time of the heartbeat.
        started_at: Time when the agent started.
        address: Source or destination address of the pair's traffic.
        ports: Free ports of a server.
        busy_ports: Ports of a server with a test in progress.
        engine_version: Version of iperf3, for example "3.18". None if it was not found.
        gate: True if the start gate is built and usable.
        kernel: Release of the kernel.
        cpu_count: Number of CPU cores.
        nic: Interface that carries the traffic.
        nic_bits_per_second: Limit of the NIC in bit/s, from the VM size. None if unknown.
        nic_mtu_bytes: MTU of the interface in bytes.
        vm_size: VM size on Azure. None elsewhere.
        clock: Last reading of the clock.
        problem: Why the agent cannot work, in one line. None if it can.
        warnings: Properties of the host that could not be read, and how to fix this.
        engines: Engines other than iperf3.
        echo_port: UDP port of a server that answers probes. None if there is none.
        tunnels: True if the agent may create VXLAN devices and a test succeeded.
        passport: Properties of the host.
        allowed_networks: Networks that the client is allowed to send to. Empty if unknown.
        canary_ports: TCP ports that answer canaries (server role), also over UDP.
    """

    agent_id: Identifier
    role: Role
    state: AgentState
    beat_at: UtcDatetime
    started_at: UtcDatetime
    address: Address
    ports: Ports = ()
    busy_ports: Ports = ()
    broadside_version: Text
    engine_version: Text | None = None
    gate: bool = False
    kernel: Text | None = None
    cpu_count: Integer | None = None
    nic: Text | None = None
    nic_bits_per_second: Integer | None = None
    nic_mtu_bytes: Integer | None = None
    vm_size: Text | None = None
    clock: ClockReading | None = None
    problem: Text | None = None
    warnings: Annotated[tuple[Text, ...], Field(max_length=16, exclude_if=is_empty)] = ()
    engines: Annotated[tuple[EngineState, ...], Field(max_length=16)] = ()
    echo_port: Port | None = None
    canary_ports: Annotated[Ports, Field(exclude_if=is_empty)] = ()
    tunnels: bool = False
    passport: HostInfo | None = None
    allowed_networks: Annotated[tuple[Network, ...], Field(max_length=256)] = ()

    def engine(self, name: str, tls: str = "") -> EngineState | None:
        """Return the state of an engine.

        Args:
            name: Name of the engine.
            tls: TLS version and cipher suite that the ports of a server must enforce.

        Returns:
            State with version and ports. None if the agent does not support the engine with this
            TLS.
        """
        if name == DEFAULT_ENGINE:
            return EngineState(name=name, version=self.engine_version, ports=self.ports)
        return next((s for s in self.engines if (s.name, s.tls) == (name, tls)), None)


# Results of one test from each end


class Outcome(StrEnum):
    """Result of a job, reported by the agent that claimed it.

    Attributes:
        MEASURED: Started on time and ran to the end.
        LATE: Ran, but data began later than the tolerance after the planned start.
        MISSED: Not started, because it was received, armed or released too late.
        REFUSED: Rejected by the agent because of clock gate, target, limits or version.
        FAILED: The engine reported an error or sent no data.
        ABANDONED: Started and then stopped, because the job was cancelled, its lease expired or the
            agent stopped.
    """

    MEASURED = "measured"
    LATE = "late"
    MISSED = "missed"
    REFUSED = "refused"
    FAILED = "failed"
    ABANDONED = "abandoned"


class StartMethod(StrEnum):
    """Method to start the traffic at the planned time."""

    # Connections are opened early and released at the planned start.
    GATE = "gate"
    # The engine is started at the planned start.
    TIMED_EXEC = "timed_exec"


class IdleRtt(Message):
    """Round-trip time of the idle path, measured between arming and the planned start.

    Attributes:
        least_s: Smallest round-trip time, in seconds.
        median_s: Median, in seconds.
        samples_count: The number of samples.
        how: Source of the samples. ``connections`` are kernel values of the engine's connections,
            which the start gate holds. ``handshakes`` are TCP handshakes with the engine's port.
    """

    least_s: Number
    median_s: Number
    samples_count: Integer
    how: Literal["connections", "handshakes"]


class JobReport(AgentMessage):
    """Report of the client end of one job.

    Attributes:
        job_id: The job id.
        run_id: The run id.
        burst_index: The burst index in the run, from 0.
        pair_index: The pair index in the run, from 0.
        agent_id: The client agent's id.
        outcome: The result of the job.
        reason: Reason for the outcome. Required unless the job was measured.
        planned_start_at: The planned start of the burst.
        start_method: Method used to start the traffic.
        process_start_at: The start of the engine process.
        retries_count: Number of rejected engine processes before the connections were established.
        first_data_at: Estimated time of the first data.
        start_error_s: ``first_data_at - planned_start_at`` in seconds.
        server_lead_s: How long before ``first_data_at`` the server's readings began, in seconds.
        ended_at: The end of the test.
        stopped_at: Time when the agent stopped the engine because the coordinator ended the burst
            before its planned end. None if the burst was not ended early.
        engine: Report of the engine.
        clock_before: The clock reading before the test.
        clock_after: The clock reading after the test.
        idle_rtt: Idle round-trip time, or None if it was not measured.
        reported_at: Time when the report was written.
        delivered_at: Time when the report left the spool. None if it was sent directly.
        troubles: Outages since the previous job, or since a minute before the claim.
    """

    job_id: JobId
    run_id: RunId
    burst_index: Index
    pair_index: Index
    agent_id: Identifier
    outcome: Outcome
    reason: Text | None = None
    planned_start_at: UtcDatetime
    start_method: StartMethod | None = None
    process_start_at: UtcDatetime | None = None
    retries_count: Integer = 0
    first_data_at: UtcDatetime | None = None
    start_error_s: float | None = None
    server_lead_s: float | None = None
    ended_at: UtcDatetime | None = None
    stopped_at: UtcDatetime | None = Field(None, exclude_if=is_none)
    engine: EngineReport | None = None
    clock_before: ClockReading | None = None
    clock_after: ClockReading | None = None
    idle_rtt: IdleRtt | None = None
    reported_at: UtcDatetime
    delivered_at: UtcDatetime | None = None
    troubles: ServiceOutages = ()

    def delivered(self, at: datetime) -> "JobReport":
        """Return a copy with the delivery time. Open outages end at that time."""
        changes = {"delivered_at": at, "troubles": _over_by(at, self.troubles)}
        return self.model_copy(update=changes)


class ServerTest(AgentMessage):
    """Report of the server end of one test on one port, matched to a job by cookie.

    Attributes:
        agent_id: The server agent's id.
        endpoint: Address and port of the test.
        client_address: The address of the client, if known.
        started_at: The time of the first engine output of the test, part of the row key.
        first_data_at: The time of the first data.
        ended_at: The end of the test, or None if the test is running or was interrupted.
        engine: Report of the engine.
        clock_before: The clock reading before the test.
        clock_after: The clock reading after the test.
        troubles: Outages during the test.
    """

    agent_id: Identifier
    endpoint: Endpoint
    client_address: Address | None = None
    started_at: UtcDatetime
    first_data_at: UtcDatetime | None = None
    ended_at: UtcDatetime | None = None
    engine: EngineReport
    clock_before: ClockReading | None = None
    clock_after: ClockReading | None = None
    troubles: ServiceOutages = ()

    def delivered(self, at: datetime) -> "ServerTest":
        """Return a copy in which open outages end at the delivery time."""
        return self.model_copy(update={"troubles": _over_by(at, self.troubles)})

    @property
    def cookie(self) -> str | None:
        return self.engine.cookie


# Values of ``Verdict``, which only the coordinator has.
VERDICTS: Final = ["pass", "fail", "inconclusive", "measured"]


class RunOutcome(Message):
    """Outcome of a run, with the metrics that are needed to list and aggregate runs.

    Attributes:
        cancelled: True if it was aborted.
        verdict: Verdict of the run.
        ended_at: Time when the verdict was computed.
        fleet_received_bits_per_second: Payload rate that the fleet received as measured, in bit/s.
        firewall_bits_per_second: Rate of the device counter as measured, at its layer, in bit/s.
        bottleneck: Name of the bottleneck. None if there is none.
        reason: Why this verdict. None in outcomes of versions without this field.
        next_step: What to do next. None in outcomes of versions without this field.
        residual_ratio: Residual of the run. None if there is none.
        cost_usd: Cost at real scale in US dollars. None for an import, or if a price is unknown.
        charged: True if Azure bills the run.
    """

    cancelled: bool
    verdict: Annotated[str, Field(json_schema_extra={"enum": VERDICTS})]
    ended_at: UtcDatetime
    completeness_ratio: float
    fleet_received_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    scale: float = 1.0
    bottleneck: Annotated[str | None, renamed("bottleneck", "limiter")] = None
    reason: str | None = None
    next_step: str | None = None
    target_layer: str | None = None
    fleet_ip_bits_per_second: float | None = None
    residual_ratio: float | None = None
    cost_usd: float | None = None
    charged: bool = False
