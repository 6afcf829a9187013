"""TCP connections at a fixed rate, with our own program at both ends (``agent/connections.c``).

- The loop is open: attempt *i* is due at the start plus *i* / rate, independent of earlier ones.
  Times count from then, so a stall of the path or of the generator is in the percentiles. An
  attempt ends after ``timeout_s`` at the latest.
- The client makes attempts in one of four modes: ``connect`` (handshake, close), ``exchange``
  (bytes each way, close), ``http`` (a request, its answer, close) and ``hold`` (bytes each way at
  every heartbeat, until the end). Each of them can use TLS.
- Each attempt of the client has one outcome: closed, refused, reset, denied (an HTTP status other
  than 200), timed out, failed on the host (no port or descriptor left), or unfinished at the end. A
  held connection that ended early is also dropped.
- Before the start, the client opens a control connection with the job token. While it is open, the
  server counts for this test. With bytes, each connection starts with a hash of the token, and one
  with another hash is foreign. In mode ``connect`` the server counts every connection to its port.
- With ramps, the rate rises from 0 and falls to 0, or the number of held connections does. The
  measures are those of the sustain phase between both: of the attempts that were due in it, at the
  server of the seconds in it. Held connections were opened before it, so all their attempts count.
- Intervals have the payload bytes of both directions. Those of the flow ``up`` have the counts.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StrictBool, field_validator

from broadside.exchange.engines.downloads import (
    HostName,
    JsonInteger,
    JsonNumber,
    SizeMix,
    TlsCipher,
    negotiated_name,
    parse_options,
)
from broadside.exchange.engines.peer_seconds import PeerRates
from broadside.exchange.engines.port import (
    ClientRequest,
    Engine,
    EngineEvent,
    EngineResult,
    HostNeeds,
    Launch,
    Process,
    Program,
    Reader,
    ServerRequest,
    StartBasis,
    Started,
    Unsupported,
    validate_argument,
)
from broadside.exchange.engines.served_log import ServedTests
from broadside.exchange.engines.tokens import JobToken, parse_token, token_of
from broadside.exchange.installation import bring_gate
from broadside.exchange.messages import (
    Aggregation,
    Direction,
    Distribution,
    EngineReport,
    Flow,
    FlowTotals,
    Interval,
    Job,
    Measure,
    Message,
    Protocol,
    Side,
    Traffic,
    peer_address,
)
from broadside.exchange.strict_json import parse_strict_json

GENERATOR: Final = Program(
    name="connections",
    module="broadside.agent.connection_generator",
    version_argv=("--version",),
    version_pattern=r"connections (\d+\.\d+)",
    fix=bring_gate(),
)
TIMEOUT_MAX_S: Final = 8
# Least bytes of an exchange, which contain the hash of the token.
ID_BYTES: Final = 8
# A test counts as ended after this time without a line, in seconds.
QUIET_S: Final = 3.0
# An interval of the client must not be shorter, in seconds.
LEAST_S: Final = 1e-6
# TCP_TIMEWAIT_LEN of Linux, in seconds.
TIME_WAIT_S: Final = 60
# Seconds that conntrack of Linux keeps a connection after its end (defaults of
# nf_conntrack_tcp_timeout_time_wait and nf_conntrack_tcp_timeout_close).
TRACKED_FIN_S: Final = 120
TRACKED_RST_S: Final = 10
OUTCOMES: Final = ("closed", "refused", "reset", "denied", "timed_out", "failed")
# "secured" counts TLS handshakes, "tls_failed" those that ended in a reset.
CLIENT_COUNTS: Final = (
    "attempted",
    "established",
    "secured",
    *OUTCOMES,
    "tls_failed",
    "dropped",
    "open",
)
# "named" counts TLS handshakes with a server name (SNI).
SERVER_COUNTS: Final = ("established", "secured", "named", "closed", "reset", "open")
# Times of a second and of a test, and their values in a second.
TIMES: Final = ("handshake", "tls_handshake", "first_byte")
QUANTILES: Final = ("p50", "p99", "max")
# Counts that are 0 in a line of version 1.0.
LATER_COUNTS: Final = frozenset({"secured", "denied", "tls_failed", "named"})
# Most versions and cipher suites that a report names.
NEGOTIATED_MAX_COUNT: Final = 4
# Version of the program that has ramps.
RAMPS_VERSION: Final = (1, 3)
RAMP_MAX_S: Final = 3600
# Counts that are also reported for the time outside the sustain phase. With them, sessions of a
# device can be compared with all connections.
RAMP_COUNTS: Final = ("established", "closed", "reset")
# New connections per CPU-second of the client, which needs more than the server, by mode or kind of
# TLS handshake. Measured with tests.bench.bench_connections on loopback of an idle cloud VM, on 28
# November 2026.
CORE_RATES: Final[Mapping[str, float]] = {
    "connect": 45_000,
    "exchange": 35_000,
    "http": 34_000,
    "hold": 16_000,
    "full": 1900,
    "resumed": 3200,
}
BODY_MAX_BYTES: Final = 1_000_000_000
# Bytes of an HTTP head, about.
HEAD_BYTES: Final = 200


class ConnectionsOptions(Message):
    """``traffic.options`` of connections."""

    mode: Literal["connect", "exchange", "http", "hold"] = "connect"
    # Attempts of a pair, independent of their outcome.
    attempts_per_second: Annotated[JsonNumber, Field(gt=0, le=200_000)] = 1000.0
    # Seconds until an attempt or a heartbeat counts as timed out.
    timeout_s: Annotated[JsonNumber, Field(ge=0.1, le=TIMEOUT_MAX_S)] = 3.0
    # Bytes in each direction (exchange, hold).
    exchange_bytes: Annotated[JsonInteger, Field(ge=ID_BYTES, le=1_000_000)] = 64
    # How the client closes: rst leaves nothing behind, fin leaves its port in TIME_WAIT.
    close: Literal["rst", "fin"] = "rst"
    # Connections to hold per pair (hold).
    held_count: Annotated[JsonInteger, Field(ge=1, le=1_000_000)] = 1000
    # Seconds between two exchanges on a held connection (hold).
    heartbeat_s: Annotated[JsonNumber, Field(ge=0.1, le=600)] = 5.0
    # Seconds in which the rate, or the number of held connections, rises from 0 and falls to 0.
    ramp_up_s: Annotated[JsonInteger, Field(ge=0, le=RAMP_MAX_S)] = 0
    ramp_down_s: Annotated[JsonInteger, Field(ge=0, le=RAMP_MAX_S)] = 0
    # The address of the agent, or all addresses of its interface in turn.
    source_addresses: Literal["one", "all"] = "one"
    # TLS version, or any of 1.2 and 1.3.
    tls: Literal["off", "any", "1.2", "1.3"] = "off"
    # The only cipher suite that the client offers, by OpenSSL's name.
    tls_cipher: TlsCipher | None = None
    # Resume the session of a connection before the start.
    tls_resume: StrictBool = False
    # Name in the Host field and in TLS (SNI). The client connects to the address of its server.
    server_name: HostName | None = None
    # Size of an answer's body (http).
    body_bytes: Annotated[JsonInteger, Field(ge=0, le=BODY_MAX_BYTES)] = 1000
    # Sizes in bytes that the answers have in turn, in place of body_bytes (http).
    body_mix: SizeMix | None = None
    # Size of a request's body (http).
    upload_bytes: Annotated[JsonInteger, Field(ge=0, le=10_000_000)] = 0
    # Share of zeros in the payload. All other bytes are pseudo-random.
    compressible_percent: Annotated[JsonInteger, Field(ge=0, le=100)] = 0

    @field_validator("tls", mode="before")
    @classmethod
    def _number_as_text(cls, value: object) -> object:
        return str(value) if type(value) in (int, float) else value

    @property
    def bodies_bytes(self) -> tuple[int, ...]:
        """Return the sizes of the answers' bodies."""
        if self.body_mix is None:
            return (self.body_bytes,)
        return tuple(int(size) for size in self.body_mix.split(","))

    @property
    def uses_bytes(self) -> bool:
        """Return True if connections carry payload."""
        return self.mode != "connect"


# Options that only some modes have.
_MODES: Final[Mapping[str, tuple[str, ...]]] = {
    "exchange_bytes": ("exchange", "hold"),
    "held_count": ("hold",),
    "heartbeat_s": ("hold",),
    "body_bytes": ("http",),
    "body_mix": ("http",),
    "upload_bytes": ("http",),
    "compressible_percent": ("exchange", "http", "hold"),
}


class Connections(Engine):
    """TCP connections at a rate, or held, between the ends of a pair."""

    name: ClassVar[str] = "connections"
    title: ClassVar[str] = "TCP connections at a rate, in an open loop, or held with a heartbeat"
    defaults: ClassVar[dict[str, object]] = {"direction": "bidirectional", "streams_count": 1}
    supported_fields: ClassVar[frozenset[str]] = frozenset()
    gated: ClassVar[bool] = True
    waits_itself: ClassVar[bool] = True
    sets_each_second: ClassVar[bool] = True
    needs_certificate: ClassVar[bool] = True
    needs_folder: ClassVar[bool] = False
    client_programs: ClassVar[tuple[Program, ...]] = (GENERATOR,)
    server_programs: ClassVar[tuple[Program, ...]] = (GENERATOR,)

    def problems(self, traffic: Traffic) -> Iterator[str]:
        options = parse_options(ConnectionsOptions, traffic)
        for name, modes in _MODES.items():
            if name in traffic.options and options.mode not in modes:
                yield f"traffic.options.{name}: mode {options.mode} has none; drop it"
        for name in ("tls_cipher", "tls_resume"):
            if options.tls == "off" and name in traffic.options:
                yield f"traffic.options.{name}: only TLS uses it; remove it, or set tls=any"
        if options.server_name and options.tls == "off" and options.mode != "http":
            yield "traffic.options.server_name: only TLS and HTTP use it; set tls=any or mode=http"
        if "body_bytes" in traffic.options and options.body_mix is not None:
            yield "traffic.options.body_bytes: body_mix replaces it; remove one of them"

    def statement(self, traffic: Traffic) -> str:
        options = _options(traffic)
        size = f"{options.exchange_bytes} bytes in each direction"
        bodies = " or ".join(str(size_bytes) for size_bytes in options.bodies_bytes)
        upload = f" an upload of {options.upload_bytes} bytes and" if options.upload_bytes else ""
        action = {
            "connect": "closes each one after its handshake",
            "exchange": f"closes each one after {size}",
            "http": f"closes each one after{upload} an HTTP/1.1 answer of {bodies} bytes",
            "hold": f"holds {options.held_count}, with {size} every {options.heartbeat_s:g} s",
        }[options.mode]
        how = "a reset" if options.close == "rst" else "FIN, so its ports stay in TIME_WAIT"
        ramps = (
            f" In the first {options.ramp_up_s} s of a burst the {_ramped(options)} rises from 0, "
            f"and in the last {options.ramp_down_s} s it falls to 0. Only the time between is "
            "judged."
            if options.ramp_up_s or options.ramp_down_s
            else ""
        )
        rate = f"{_opening_rate(options):g}"
        return (
            f"The client opens {rate} TCP connections a second per pair "
            f"in an open loop and {action} (by {how}), {_tls_text(options)}: a slow or lost "
            "connection does not delay the next one, and an attempt times out after "
            f"{options.timeout_s:g} s.{ramps}"
        )

    def ramps_s(self, traffic: Traffic) -> tuple[int, int]:
        options = _options(traffic)
        return options.ramp_up_s, options.ramp_down_s

    def measures(self, traffic: Traffic) -> frozenset[str]:
        named = {"success", "connections", "handshake"}
        options = _options(traffic)
        if options.uses_bytes:
            named.add("first_byte")
        if options.tls != "off":
            named.add("tls_handshake")
        return frozenset(named | ({"held"} if options.mode == "hold" else set()))

    def needs(self, traffic: Traffic, busy_s: float) -> HostNeeds:
        options = _options(traffic)
        rate = options.attempts_per_second
        made = rate * busy_s
        # Attempts that wait for their time limit, because the path drops all of them.
        waiting = min(made, rate * options.timeout_s)
        is_fin = options.close == "fin"
        closed = min(made, rate * TIME_WAIT_S) if is_fin else 0.0
        tracked = min(made, rate * (TRACKED_FIN_S if is_fin else TRACKED_RST_S))
        held = float(options.held_count) if options.mode == "hold" else 0.0
        return HostNeeds(
            open_count=held or waiting,
            ports_count=held or max(waiting, closed),
            flows_count=held or waiting + closed,
            tracked_count=held or tracked,
            per_second=rate,
            core_per_second=_core_per_second(options),
            uses_all_addresses=options.source_addresses == "all",
            field="held_count" if held else "attempts_per_second",
            fix=_fix(options),
        )

    def pauses(self, traffic: Traffic) -> bool:
        return _options(traffic).mode not in ("exchange", "http")

    def offered_bits_per_second(self, traffic: Traffic) -> int | None:
        options = _options(traffic)
        if options.mode == "http":
            bodies = options.bodies_bytes
            size_bytes = sum(bodies) / len(bodies) + options.upload_bytes + 2 * HEAD_BYTES
            return round(options.attempts_per_second * size_bytes * 8)
        exchanges_per_second = {
            "connect": 0.0,
            "exchange": options.attempts_per_second,
            "hold": _opening_rate(options) + options.held_count / options.heartbeat_s,
        }[options.mode]
        return round(exchanges_per_second * options.exchange_bytes * 16)

    def shutdown_grace_s(self, traffic: Traffic) -> float:
        return _options(traffic).timeout_s

    def scaled(self, traffic: Traffic, scale: float) -> Traffic:
        options = _options(traffic)
        if scale == 1:
            return traffic
        fields: dict[str, object] = {"attempts_per_second": options.attempts_per_second / scale}
        if options.mode == "hold":
            fields["held_count"] = max(1, round(options.held_count / scale))
        return traffic.model_copy(update={"options": {**traffic.options, **fields}})

    def client(self, ask: ClientRequest) -> Launch:
        job, options = ask.job, _options(ask.job.traffic)
        arguments: dict[str, object] = {
            "address": validate_argument(job.endpoint.address, "endpoint.address"),
            "port": job.endpoint.port,
            "token": validate_argument(token_of(job, options.timeout_s), "job_id"),
            "at": f"{job.planned_start_at.timestamp():.6f}",
            "duration": job.duration_s,
            "rate": f"{options.attempts_per_second:.6f}",
            "limit": f"{options.timeout_s:g}",
            "mode": options.mode,
            "close": options.close,
            "sources": options.source_addresses,
        }
        arguments |= _payload_arguments(options) | _tls_arguments(options)
        if options.mode == "hold":
            arguments |= {"count": options.held_count, "heartbeat": f"{options.heartbeat_s:g}"}
        arguments |= _ramp_arguments(options, ask.tools[self.name].version)
        if ask.bind is not None:
            arguments["bind"] = validate_argument(ask.bind, "bind")
        return Launch(processes=(_process(ask.tools[self.name].argv, "client", arguments),))

    def client_reader(self, job: Job) -> "AttemptReader":
        return AttemptReader(self.name, job)

    def server(self, ask: ServerRequest) -> Launch:
        address = "::" if ask.address is None else validate_argument(ask.address, "address")
        arguments: dict[str, object] = {"address": address, "port": ask.port}
        if ask.certificate is not None:
            shown = ask.certificate
            arguments["certificate"] = validate_argument(shown.certificate, "certificate")
            arguments["key"] = validate_argument(shown.key, "certificate_key")
        return Launch(
            processes=(_process(ask.tools[self.name].argv, "server", arguments),), unprivileged=True
        )

    def server_reader(self) -> "AcceptReader":
        return AcceptReader(self.name)


def _core_per_second(options: ConnectionsOptions) -> float:
    """Return the connections per second of one core at the slower end."""
    if options.tls != "off":
        return CORE_RATES["resumed" if options.tls_resume else "full"]
    return CORE_RATES[options.mode]


def _fix(options: ConnectionsOptions) -> str:
    """Return how to need less of the hosts."""
    if options.mode == "hold":
        return "hold fewer per pair, use more pairs"
    close = "close=rst, " if options.close == "fin" else ""
    return f"use {close}a shorter timeout_s, a lower rate or more pairs"


def _process(argv: Sequence[str], role: str, arguments: Mapping[str, object]) -> Process:
    options = (text for name, value in arguments.items() for text in (f"--{name}", str(value)))
    return Process(argv=(*argv, role, *options), ends_at_alarm=True)


def _payload_arguments(options: ConnectionsOptions) -> dict[str, object]:
    if not options.uses_bytes:
        return {}
    arguments: dict[str, object] = {"compressible": options.compressible_percent}
    if options.mode != "http":
        return arguments | {"bytes": options.exchange_bytes}
    arguments["bodies"] = ",".join(map(str, options.bodies_bytes))
    return arguments | ({"upload": options.upload_bytes} if options.upload_bytes else {})


def _ramp_arguments(options: ConnectionsOptions, version: str) -> dict[str, object]:
    ramps = {"ramp-up": options.ramp_up_s, "ramp-down": options.ramp_down_s}
    if not any(ramps.values()):
        return {}
    if tuple(map(int, version.split("."))) < RAMPS_VERSION:
        raise Unsupported(
            f"traffic.options.ramp_up_s, ramp_down_s: the generator {version} of this agent has no "
            "ramps; install the coordinator's Broadside on the agent"
        )
    return {name: value for name, value in ramps.items() if value}


def _opening_rate(options: ConnectionsOptions) -> float:
    """Return the attempts per second of a pair, without ramps of this rate."""
    if options.mode == "hold" and options.ramp_up_s:
        return options.held_count / options.ramp_up_s
    return options.attempts_per_second


def _ramped(options: ConnectionsOptions) -> str:
    return "number of connections" if options.mode == "hold" else "rate"


def _tls_arguments(options: ConnectionsOptions) -> dict[str, object]:
    arguments: dict[str, object] = {}
    if options.server_name is not None:
        arguments["name"] = options.server_name
    if options.tls == "off":
        return arguments
    arguments["tls"] = options.tls
    if options.tls_cipher is not None:
        arguments["cipher"] = options.tls_cipher
    return arguments | ({"resume": 1} if options.tls_resume else {})


def _tls_text(options: ConnectionsOptions) -> str:
    if options.tls == "off":
        return "without TLS"
    version = "1.2 or 1.3" if options.tls == "any" else options.tls
    cipher = f" ({options.tls_cipher})" if options.tls_cipher else ""
    resumed = "resumed" if options.tls_resume else "full"
    return f"with {resumed} handshakes of TLS {version}{cipher}"


def _options(traffic: Traffic) -> ConnectionsOptions:
    try:
        return parse_options(ConnectionsOptions, traffic)
    except Unsupported:
        # The launch has already rejected invalid options.
        return ConnectionsOptions()


# Reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """Counts of one second at one end, with the second's place in the time of this end."""

    from_s: float
    counts: Mapping[str, int]
    sent_bytes: int
    received_bytes: int

    @property
    def is_empty(self) -> bool:
        return not (any(self.counts.values()) or self.sent_bytes or self.received_bytes)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line of the program, or None if there is none."""
    try:
        row = parse_strict_json(line, len(line))
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def parse_second(row: Mapping[str, Any], names: Sequence[str]) -> Second | None:
    """Return the counts in a line of the program.

    Args:
        row: The object in the line.
        names: Names of the counts.

    Returns:
        Counts, bytes and times in seconds. None if the line is not valid.
    """
    row = {**dict.fromkeys(LATER_COUNTS, 0), **row}
    fields = ("second", "sent_bytes", "received_bytes", *names)
    if not all(type(row.get(name)) is int and row[name] >= 0 for name in fields):
        return None
    return Second(
        from_s=float(row["second"]),
        counts={name: row[name] for name in names} | _times(row),
        sent_bytes=row["sent_bytes"],
        received_bytes=row["received_bytes"],
    )


def parse_peers(row: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return new connections and payload in bytes by source address, from a line of the server.

    A line of version 1.1 has none.
    """
    peers = row.get("peers")
    return {
        address: (counts[0], counts[1])
        for name, counts in (peers.items() if isinstance(peers, dict) else ())
        if (address := peer_address(name)) is not None
        and isinstance(counts, list)
        and len(counts) == 2
        and all(type(count) is int and count >= 0 for count in counts)
    }


def _times(row: Mapping[str, Any]) -> dict[str, int]:
    """Return percentiles and maximum of the times in a second, in microseconds by name."""
    times = {name: row.get(f"{name}_us") for name in TIMES}
    return {
        f"{name}_{quantile}_us": value
        for name, values in times.items()
        if isinstance(values, list) and len(values) == len(QUANTILES)
        for quantile, value in zip(QUANTILES, values, strict=True)
        if type(value) is int and value >= 0
    }


def parse_histogram(name: str, row: object) -> tuple[Distribution, ...]:
    """Return the histogram of the program.

    Args:
        name: Name of the quantity.
        row: The object, with ``max_s`` and the counts by bucket.

    Returns:
        One distribution. Empty if it has no values or is not valid.
    """
    try:
        counts = {int(bucket): int(count) for bucket, count in row["counts"].items()}  # type: ignore[index]
        largest = float(row["max_s"])  # type: ignore[index]
        fields = {"name": name, "unit": "s", "counts": counts, "max": largest}
        distribution = Distribution.model_validate(
            fields | {"resolution": row.get("resolution", 16)}  # type: ignore[attr-defined]
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        return ()
    return (distribution,) if counts else ()


class _Counts:
    """Seconds of one end in order, and their sums.

    Args:
        names: Names of the counts.
        span: Start and end of the sustain phase, in the time of the rows. None means all rows.

    Attributes:
        total: Sums of all rows.
        sustain: Sums of the rows in the sustain phase.
        most_open: Most open connections in the sustain phase.
    """

    def __init__(self, names: Sequence[str], span: tuple[float, float] | None = None) -> None:
        self._names = names
        self.span = span
        self.rows: list[Second] = []
        self.total: Counter[str] = Counter()
        self.sustain: Counter[str] = Counter()
        self.most_open = 0
        self.sent_bytes = self.received_bytes = 0

    def add(self, row: Mapping[str, Any]) -> Second | None:
        """Add a line with counts. Return None if it is not valid or out of order."""
        second = parse_second(row, self._names)
        if second is None or (self.rows and second.from_s <= self.rows[-1].from_s):
            return None
        self.rows.append(second)
        counts = {name: second.counts[name] for name in self._names}
        self.total.update(counts)
        if self.in_sustain(second):
            self.sustain.update(counts)
            self.most_open = max(self.most_open, counts["open"])
        self.sent_bytes += second.sent_bytes
        self.received_bytes += second.received_bytes
        return second

    def in_sustain(self, second: Second) -> bool:
        """Return True if the second is in the sustain phase, or if there are no ramps."""
        return self.span is None or self.span[0] <= second.from_s < self.span[1]

    def outside(self, prefix: str) -> Iterator[Measure]:
        """Yield the counts outside the sustain phase.

        Args:
            prefix: Text before the name of a count.
        """
        if self.span is not None:
            for name in RAMP_COUNTS:
                outside_count = max(0, self.total[name] - self.sustain[name])
                yield _count(f"{prefix}ramp_{name}", outside_count)

    def intervals(
        self, side: Side, zero_s: float, until_s: float
    ) -> dict[Flow, tuple[Interval, ...]]:
        """Return the intervals of both flows.

        Args:
            side: The end.
            zero_s: Time of the first attempt, in the time of the rows.
            until_s: End of the last interval, in the time of the rows.
        """
        spans = [
            (max(0.0, row.from_s - zero_s), min(row.from_s + 1, until_s) - zero_s, row)
            for row in self.rows
        ]
        spans = [span for span in spans if span[1] - span[0] > LEAST_S]
        up, down = ("sent_bytes", "received_bytes")[:: 1 if side is Side.CLIENT else -1]
        return {
            flow: tuple(
                Interval(
                    start_s=start_s,
                    end_s=end_s,
                    transferred_bytes=getattr(row, field),
                    counts=row.counts if flow is Flow.UP else None,
                )
                for start_s, end_s, row in spans
            )
            for flow, field in ((Flow.UP, up), (Flow.DOWN, down))
            if spans
        }

    def totals(self, side: Side, length_s: float) -> tuple[FlowTotals, ...]:
        """Return the totals of both flows, as counted at one end."""
        sent = {"sent_bytes": self.sent_bytes, "sent_s": length_s}
        received = {"received_bytes": self.received_bytes, "received_s": length_s}
        up, down = (sent, received)[:: 1 if side is Side.CLIENT else -1]
        return (FlowTotals(flow=Flow.UP, **up), FlowTotals(flow=Flow.DOWN, **down))


def _count(name: str, value: float) -> Measure:
    return Measure(name=f"{name}_count", value=value, unit="count")


class AttemptReader(Reader):
    """Parser for the output of the client.

    Args:
        engine: The engine name.
        job: The job.
    """

    def __init__(self, engine: str, job: Job) -> None:
        self._engine, self._job = engine, job
        options = _options(job.traffic)
        self._mode = options.mode
        self._uses_tls = options.tls != "off"
        span: tuple[float, float] | None = None
        if options.ramp_up_s or options.ramp_down_s:
            span = (options.ramp_up_s, job.duration_s - options.ramp_down_s)
        self._counts = _Counts(CLIENT_COUNTS, span)
        self._at_s = job.planned_start_at.timestamp()
        self._first_s: float | None = None
        self._behind_s = 0.0
        self._started: dict[str, Any] = {}
        self._ended: dict[str, Any] | None = None

    def feed(self, line: bytes, at_s: float) -> tuple[EngineEvent, ...]:
        row = parse_line(line) or {}
        if "started" in row:
            self._started = row
        elif isinstance(row.get("ended"), float):
            self._ended = row
        elif "second" in row and (second := self._counts.add(row)) is not None:
            if self._counts.in_sustain(second):
                self._behind_s = max(self._behind_s, _number(row, "behind_s"))
            if self._first_s is None:
                self._first_s = _number(row, "first_s")
                return (Started(side=Side.CLIENT, started_at_s=self._at_s + self._first_s),)
        return ()

    def finish(
        self,
        exit_code: int | None = None,
        *,
        stderr: str = "",
        released_at_s: float | None = None,
        server_ahead_s: float = 0.0,
    ) -> EngineResult:
        job, counts, first_s = self._job, self._counts, self._first_s
        version = self._started.get("version")
        ended_s = _number(self._ended, "ended") if self._ended else float(job.duration_s)
        until_s = min(ended_s, job.duration_s)
        began_s = None if first_s is None else self._at_s + first_s
        return EngineResult(
            report=EngineReport(
                engine=self._engine,
                version=version if isinstance(version, str) else None,
                cookie=job.job_id,
                protocol=Protocol.TCP,
                direction=Direction.BIDIRECTIONAL,
                duration_s=job.duration_s,
                totals=() if first_s is None else counts.totals(Side.CLIENT, until_s - first_s),
                error=self._error(exit_code, stderr),
                truncated=self._ended is None,
                exit_code=exit_code,
                measures=() if first_s is None else tuple(self._measures(until_s)),
                distributions=self._distributions(),
            ),
            side=Side.CLIENT,
            intervals=counts.intervals(Side.CLIENT, first_s or 0.0, until_s),
            first_data_at_s=began_s,
            start_basis=None if began_s is None else StartBasis.STAMPS,
            started_at_s=began_s,
            client_address=None,
        )

    def _error(self, exit_code: int | None, stderr: str) -> str | None:
        total = self._counts.total
        if exit_code:
            lines = [line for line in stderr.splitlines() if not line.startswith("broadside-gate")]
            return lines[-1][:300] if lines else f"connections ended with exit code {exit_code}"
        if self._ended is not None and not total["established"]:
            outcomes = ", ".join(f"{total[name]} {name}" for name in OUTCOMES if total[name])
            return (
                f"0 of {total['attempted']} connections were established"
                f"{': ' + outcomes if outcomes else ''}".replace("_", " ")
            )
        return None

    def _measures(self, until_s: float) -> Iterator[Measure]:
        ended = self._read_sustain()
        counts, total = self._counts, self._counts.sustain
        attempted = total["attempted"]
        for name in CLIENT_COUNTS[:-1]:
            if name in ("secured", "tls_failed") and not self._uses_tls:
                continue
            if name != "dropped" or self._mode == "hold":
                yield _count(name, total[name])
        yield from self._negotiated()
        if self._mode == "hold":
            yield _count("held", counts.most_open)
            lost_s = [
                row.from_s
                for row in counts.rows
                if row.counts["dropped"] and counts.in_sustain(row)
            ]
            if lost_s:
                yield Measure(
                    name="dropped_first", value=lost_s[0], unit="s", combine=Aggregation.MIN
                )
        from_s, to_s = counts.span or (0.0, until_s)
        # Held connections were opened before the sustain phase.
        from_s = 0.0 if self._mode == "hold" else from_s
        per_second = max(min(to_s, until_s) - from_s, LEAST_S)
        for name in ("attempted", "established"):
            yield Measure(name=f"{name}_per_second", value=total[name] / per_second, unit="/s")
        complete = total["closed"]
        if self._mode == "hold" and self._ended is None:
            ready = total["secured" if self._uses_tls else "established"]
            complete = max(complete, ready - total["dropped"])
        elif self._mode == "hold":
            # A client that was stopped does not wait for the last heartbeats.
            complete += int(_number(ended, "unfinished"))
        yield _ratio("success_ratio", complete, attempted)
        scheduled = ended.get("scheduled")
        if isinstance(scheduled, int):
            yield _ratio("attempted_ratio", attempted, scheduled)
        yield Measure(
            name="attempt_delay_max", value=self._behind_s, unit="s", combine=Aggregation.MAX
        )
        yield from _present(ended, ("unfinished", "failed_ports", "failed_files"))
        yield from _host_measures(ended)
        for name, factor in (("ports", max(1, _whole(self._started, "addresses"))), ("files", 1)):
            if _whole(ended, f"failed_{name}"):
                yield _limit(name, factor * _whole(self._started, name))
        left = ended.get("time_wait")
        if type(left) is int:
            yield Measure(name="time_wait_count", value=left, unit="count", combine=Aggregation.MAX)
        yield from counts.outside("")

    def _read_sustain(self) -> dict[str, Any]:
        """Return the last line, and use the counts in it for the sustain phase.

        These are of the attempts that were due in the phase. A program that was killed has no last
        line, so the counts are of its seconds.
        """
        counts, ended = self._counts, self._ended or {}
        sustain = ended.get("sustain")
        if counts.span is None or not isinstance(sustain, dict):
            return ended
        counts.sustain = Counter({name: int(_number(sustain, name)) for name in CLIENT_COUNTS[:-1]})
        return {**ended, "scheduled": sustain.get("scheduled")}

    def _negotiated(self) -> Iterator[Measure]:
        """Yield the number of TLS handshakes by version and cipher suite, and of resumed ones."""
        ended = self._ended or {}
        counts = ended.get("negotiated")
        if not self._uses_tls or not isinstance(counts, dict):
            return
        yield _count("tls_resumed", int(_number(ended, "resumed")))
        # Certificates that are not the server's. A device in the path inspects these connections.
        yield _count("tls_replaced", int(_number(ended, "replaced")))
        for name in sorted(counts, key=lambda name: -_number(counts, name))[:NEGOTIATED_MAX_COUNT]:
            text = negotiated_name(name)
            if text:
                yield _count(text, int(_number(counts, name)))

    def _distributions(self) -> tuple[Distribution, ...]:
        ended = self._ended or {}
        return tuple(
            distribution
            for name in TIMES
            for distribution in parse_histogram(name, ended.get(name))
        )


def _whole(row: Mapping[str, Any], name: str) -> int:
    """Return a count in a line of the program, or 0 if there is none."""
    value = row.get(name)
    return value if type(value) is int and value > 0 else 0


def _present(row: Mapping[str, Any], names: Sequence[str], prefix: str = "") -> Iterator[Measure]:
    """Yield the counts of a line that are not zero."""
    for name in names:
        if _whole(row, name):
            yield _count(prefix + name, row[name])


def _host_measures(row: Mapping[str, Any], prefix: str = "") -> Iterator[Measure]:
    """Yield what an end used of its host, from its last line."""
    yield from _present(row, ("conntrack_dropped",), prefix)
    if ratio := _number(row, "core_ratio"):
        name = f"{prefix or 'client_'}program_core_ratio"
        yield Measure(name=name, value=ratio, unit="ratio", combine=Aggregation.MAX)


def _limit(name: str, value: int) -> Measure:
    combine = Aggregation.MIN
    return Measure(name=f"{name}_limit_count", value=value, unit="count", combine=combine)


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and value >= 0 else 0.0


def _ratio(name: str, part: int, total: int) -> Measure:
    return Measure(
        name=name,
        value=part / total if total else 0.0,
        unit="ratio",
        combine=Aggregation.MEAN,
        weight=total,
    )


def _read_span(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the sustain phase in a line of the server, in epoch seconds, or None without one."""
    span = row.get("sustain")
    if not isinstance(span, list) or len(span) != 2:
        return None
    if not all(isinstance(at_s, int | float) and math.isfinite(at_s) for at_s in span):
        return None
    return float(span[0]), float(span[1])


class AcceptedTest:
    """Counts of one test at the server.

    Args:
        engine: The engine name.
        token: Token of the test.
        at_s: Epoch second of the first line of the test.
    """

    def __init__(self, engine: str, token: JobToken, at_s: float) -> None:
        self._engine, self.cookie = engine, token.job_id
        self._counts = _Counts(SERVER_COUNTS)
        self._foreign_count = 0
        self._ended: Mapping[str, Any] = {}
        self._first_s: float | None = None
        self._ended_s: float | None = None
        self._client: str | None = None
        self._rates = PeerRates()
        self.opened_s = self.last_data_s = at_s
        self.until_s = at_s + token.lasts_s

    @property
    def quiet_s(self) -> float:
        """Return after how many seconds without a line the test counts as ended."""
        return 0.0 if self._ended_s is not None else QUIET_S

    @property
    def is_reported(self) -> bool:
        """Return True if a connection was counted."""
        return self._first_s is not None

    @property
    def last_at_s(self) -> float | None:
        """Return the epoch second of the last connection, or None if there was none."""
        return self._last_s() if self.is_reported else None

    def feed(self, row: Mapping[str, Any], at_s: float) -> None:
        """Add a line of the server.

        Args:
            row: The object in the line.
            at_s: Epoch second at which it was read.
        """
        self.last_data_s = max(self.last_data_s, at_s)
        if isinstance(row.get("ended"), float):
            self._ended_s, self._ended = row["ended"], row
            return
        if self._first_s is None and not _number(row, "first_at"):
            return
        self._counts.span = _read_span(row)
        second = self._counts.add(row)
        if second is None:
            return
        for address, counts in parse_peers(row).items():
            self._rates.count(address, int(second.from_s), counts[1], counts[0])
        if self._first_s is None:
            self._first_s = _number(row, "first_at")
        self._foreign_count += int(_number(row, "foreign"))
        if isinstance(row.get("client"), str):
            self._client = row["client"] or self._client

    def _last_s(self) -> float:
        rows = self._counts.rows
        while len(rows) > 1 and rows[-1].is_empty:
            rows = rows[:-1]
        return min(rows[-1].from_s + 1, self._ended_s or rows[-1].from_s + 1)

    def _host_measures(self) -> Iterator[Measure]:
        """Yield what the server lacked. The listen queues are all of its host."""
        ended = self._ended
        if type(ended.get("backlog_dropped")) is int:
            yield _count("server_backlog_dropped", ended["backlog_dropped"])
        yield from _present(ended, ("backlog_overflowed", "failed_files"), "server_")
        yield from _host_measures(ended, "server_")
        for name, cause in (("backlog", "backlog_dropped"), ("files", "failed_files")):
            if _whole(ended, cause):
                yield _limit(f"server_{name}", _whole(ended, name))

    def finish(self) -> EngineResult:
        """Return everything that was read so far."""
        counts, first_s = self._counts, self._first_s
        intervals: dict[Flow, tuple[Interval, ...]] = {}
        totals: tuple[FlowTotals, ...] = ()
        measures: list[Measure] = []
        if first_s is not None:
            until_s = max(self._last_s(), first_s + LEAST_S)
            intervals = counts.intervals(Side.SERVER, first_s, until_s)
            totals = counts.totals(Side.SERVER, until_s - first_s)
            measures = [
                _count(f"server_{name}", counts.sustain[name])
                for name in SERVER_COUNTS[:-1]
                if name not in LATER_COUNTS or counts.total[name]
            ]
            measures += counts.outside("server_")
            measures += self._host_measures()
            if self._foreign_count:
                measures.append(_count("server_foreign", self._foreign_count))
        return EngineResult(
            report=EngineReport(
                engine=self._engine,
                cookie=self.cookie,
                protocol=Protocol.TCP,
                direction=Direction.BIDIRECTIONAL,
                totals=totals,
                measures=tuple(measures),
                peers=self._rates.peers(zero_s=first_s or 0.0),
            ),
            side=Side.SERVER,
            intervals=intervals,
            first_data_at_s=first_s,
            start_basis=None if first_s is None else StartBasis.STAMPS,
            started_at_s=first_s,
            client_address=self._client,
        )


class AcceptReader(ServedTests[AcceptedTest]):
    """Parser for the output of the server, which assigns each line to a test."""

    def feed(self, line: bytes, at_s: float) -> tuple[EngineEvent, ...]:
        row = parse_line(line) or {}
        token = parse_token(str(row.get("test", "")))
        if token is not None:
            test = self.find_or_add(token, lambda: AcceptedTest(self._engine, token, at_s))
            test.feed(row, at_s)
        return ()


ENGINE: Final = Connections()
