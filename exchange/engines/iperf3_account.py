"""State of an iperf3 test, with its events, intervals and totals.

- A value that an end cannot know is ``None``. iperf3 prints 0 if its peer did not send the value.
- iperf3 restarts its clock after the warm-up (omit). Engine time in this module continues.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from broadside.exchange.engines.buckets import Buckets
from broadside.exchange.engines.peer_seconds import PeerRates, addresses_of
from broadside.exchange.engines.port import (
    Ended,
    EngineEvent,
    EngineResult,
    Failed,
    Intervals,
    StartBasis,
    Started,
)
from broadside.exchange.engines.stream_silences import StreamSilences
from broadside.exchange.messages import (
    Direction,
    EngineReport,
    Flow,
    FlowTotals,
    Interval,
    Pacing,
    Protocol,
    Side,
)

# Round trip of each stream, as the sender reports it in each interval.
STREAM_RTT: Final = "stream_rtt"
# Default block size of iperf3, if the output does not contain it.
BLOCK_BYTES: Final = 131_072
# If iperf3 dropped less of the warm-up than this, in seconds, it will be ignored. It is half of the
# shortest interval.
DROPPED_S: Final = 0.05


# Events of --json-stream, including those of --get-server-output.
EVENTS: Final = ("start", "interval", "error", "end", "server_output_json", "server_output_text")


class Version(NamedTuple):
    """iperf3 version. Versions compare in release order."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + (f".{self.patch}" if self.patch else "")


def parse_version(text: str) -> Version | None:
    """Return the version in ``iperf3 --version`` or in the ``version`` of a record, or None."""
    match = re.match(r"\s*iperf (\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text)
    return Version(*(int(part or 0) for part in match.groups())) if match else None


class _Implausible(ValueError):
    """A value that is impossible for a test."""


class Account:
    """Everything that was read of a test so far."""

    def __init__(self) -> None:
        self.start: dict[str, object] = {}
        self.intervals: dict[Flow, list[Interval]] = {}
        self.end: dict[str, object] = {}
        self.error: str | None = None
        self.ended = False
        # A part of the output could not be parsed.
        self.truncated = False
        # Smallest (arrival - end of interval) so far, which estimates the zero of engine time.
        self._zero_at_s: float | None = None
        # True if the last interval belongs to the warm-up.
        self._omitted = False
        # Engine time at which the iperf3 clock started or restarted.
        self._shift_s = 0.0
        # End of the last interval by the iperf3 clock.
        self._last_s = 0.0
        # Start of the last interval in engine time.
        self._start_s = 0.0
        self._rtts = Buckets(STREAM_RTT, "s")
        self._silences = StreamSilences()
        self._peers = PeerRates()
        # Address of the client by socket number, only at the server.
        self._addresses: dict[int, str] = {}
        # Results of the server that the client has received, with --get-server-output.
        self.server_output: Account | None = None

    @classmethod
    def of_document(cls, document: dict[str, object], is_complete: bool) -> "Account":
        test = cls()
        test.take("start", document.get("start"), None)
        # This should be done before any error is detected here.
        test.take("error", document.get("error"), None)
        for interval in objects_of(document.get("intervals")):
            test.take("interval", interval, None)
        test.end = object_of(document.get("end"))
        test.ended = is_complete
        test.truncated |= not is_complete
        # In an incomplete document this part can be incomplete too.
        if is_complete:
            test.take("server_output_json", document.get("server_output_json"), None)
        return test

    @property
    def begun(self) -> bool:
        return bool(self.start or self.intervals or self.error or self.ended)

    @property
    def cookie(self) -> str | None:
        return _text(self.start.get("cookie"))

    @property
    def _requested(self) -> dict[str, object]:
        return object_of(self.start.get("test_start"))

    @property
    def side(self) -> Side | None:
        if "connecting_to" in self.start:
            return Side.CLIENT
        return Side.SERVER if "accepted_connection" in self.start else None

    @property
    def direction(self) -> Direction | None:
        if not self._requested:
            return None
        # Before 3.13, we need to look for a second flow to detect a bidirectional test.
        if self._requested.get("bidir") or len(self.intervals) > 1:
            return Direction.BIDIRECTIONAL
        return Direction.REVERSE if self._requested.get("reverse") else Direction.FORWARD

    @property
    def started_at_s(self) -> float | None:
        stamp = object_of(self.start.get("timestamp"))
        milliseconds = _lenient(stamp.get("timemillisecs"))
        return milliseconds / 1e3 if milliseconds else _lenient(stamp.get("timesecs")) or None

    @property
    def client_address(self) -> str | None:
        return _text(object_of(self.start.get("accepted_connection")).get("host"))

    def take(self, event: object, data: object, at_s: float | None) -> tuple[EngineEvent, ...]:
        """Process an event, from a live stream or from a document.

        Args:
            event: The event name.
            data: Content of the event.
            at_s: Arrival of the event, in epoch seconds. None if unknown.

        Returns:
            Start or intervals of the test. Empty for all other events.
        """
        match event:
            case "start":
                self.start = object_of(data)
                self._addresses = self._client_addresses()
                expected_s = [_lenient(self._requested.get(key)) for key in ("omit", "duration")]
                return (
                    Started(
                        side=self.side,
                        cookie=self.cookie,
                        started_at_s=self.started_at_s,
                        client_address=self.client_address,
                        expected_s=sum(s for s in expected_s if s) or None,
                    ),
                )
            case "interval":
                try:
                    by_flow = self._interval(object_of(data), at_s)
                except _Implausible as implausible:
                    return self._fail(f"iperf3 reported impossible values: {implausible}")
                return (Intervals(arrived_at_s=at_s or 0.0, by_flow=by_flow),) if by_flow else ()
            case "error":
                text = _text(data)
                return self._fail(text) if text else ()
            case "end":
                self.end = object_of(data)
                self.ended = True
                return (Ended(),)
            case "server_output_json":
                if isinstance(data, dict) and "start" in data:
                    self.server_output = Account.of_document(data, is_complete=True)
                return ()
            # server_output_text, and events of newer versions.
            case _:
                return ()

    def _fail(self, error: str) -> tuple[EngineEvent, ...]:
        self.error = self.error or error
        return (Failed(error=error),)

    # Intervals

    def _interval(self, data: dict[str, object], at_s: float | None) -> dict[Flow, Interval]:
        if not self._requested:
            # iperf3 prints an empty interval if the test ends while the connections are opened.
            return {}
        streams = objects_of(data.get("streams"))
        sums = {
            Flow.DOWN if self._requested.get("reverse") else Flow.UP: object_of(data.get("sum"))
        }
        if "sum_bidir_reverse" in data:
            sums[Flow.DOWN] = object_of(data["sum_bidir_reverse"])
        elif len({bool(stream.get("sender")) for stream in streams}) > 1:
            # Before 3.11 the sums of both flows have the same name.
            sums = {Flow.UP: {}, Flow.DOWN: {}}
        by_flow: dict[Flow, Interval] = {}
        for flow, total in sums.items():
            local_side = self._streams_of(flow, streams) if len(sums) > 1 else streams
            total = total or _fold(local_side)
            transferred_bytes = _strict(total, "bytes")
            if transferred_bytes is None:
                raise _Implausible("an interval without bytes")
            if not by_flow and not self._advance(total, at_s):
                return {}
            by_flow[flow] = Interval(
                start_s=self._start_s,
                end_s=self._shift_s + self._last_s,
                transferred_bytes=transferred_bytes,
                omitted=self._omitted,
                retransmits_count=_lenient_count(total.get("retransmits")),
                rtt_s=_mean_of(local_side, "rtt", 1e6),
                cwnd_bytes=_sum_of(local_side, "snd_cwnd") or None,
                packets_count=_lenient_count(total.get("packets")),
                lost_count=_lenient_count(total.get("lost_packets")),
                jitter_s=_mean_of([total], "jitter_ms", 1e3),
            )
            if not self._omitted:
                self._take_streams(flow, by_flow[flow], local_side)
        for flow, interval in by_flow.items():
            self.intervals.setdefault(flow, []).append(interval)
        return by_flow

    def _take_streams(
        self, flow: Flow, interval: Interval, streams: list[dict[str, object]]
    ) -> None:
        for rtt_s in _positive(streams, "rtt", 1e6):
            self._rtts.add(rtt_s)
        moved = [(_lenient_count(s.get("socket")), _strict(s, "bytes")) for s in streams]
        known = {socket: count for socket, count in moved if socket and count is not None}
        self._silences.take(flow, interval.start_s, interval.end_s, known)
        self._peers.take(interval.start_s, interval.end_s, known, self._addresses)

    def _client_addresses(self) -> dict[int, str]:
        """Return the address of the client by socket number, as the server received it."""
        if self.side is not Side.SERVER:
            return {}
        ends = objects_of(self.start.get("connected"))
        sockets = [
            (_lenient_count(one.get("socket")), _text(one.get("remote_host"))) for one in ends
        ]
        return addresses_of({socket: host for socket, host in sockets if socket})

    def _client_ports(self) -> dict[int, int]:
        """Return the port at the client of each socket number, from the start event."""
        end = "local_port" if self.side is Side.CLIENT else "remote_port"
        ports = [
            (_lenient_count(one.get("socket")), _lenient_count(one.get(end)))
            for one in objects_of(self.start.get("connected"))
        ]
        return {socket: port for socket, port in ports if socket and port}

    def _advance(self, clock: dict[str, object], at_s: float | None) -> bool:
        """Advance by one interval. Return False if the interval repeats the last one.

        A client that lost its server prints the last interval twice. At the end of the warm-up
        iperf3 restarts its clock and counters. The start of the next interval is then its absolute
        distance from the new zero. If that zero is later than the end of the last printed interval,
        iperf3 has dropped the time between them, and the bytes of this time are unknown.
        """
        start_s, end_s = _seconds(clock, "start"), _seconds(clock, "end")
        omitted = clock.get("omitted") is True
        is_new_zero = self._omitted and not omitted
        if start_s > end_s and not is_new_zero:
            raise _Implausible(f"start = {start_s}, end = {end_s}")
        if is_new_zero:
            length_s = _lenient(clock.get("seconds")) or abs(end_s - start_s)
            before_s = self._shift_s + self._last_s
            self._shift_s = before_s + length_s - end_s
            dropped = self._shift_s - before_s > DROPPED_S
            self._start_s = self._shift_s if dropped else before_s
        elif end_s <= self._last_s:
            return False
        else:
            self._start_s = self._shift_s + start_s
        self._omitted, self._last_s = omitted, end_s
        if at_s is not None:
            zero_at_s = at_s - (self._shift_s + end_s)
            self._zero_at_s = min(self._zero_at_s or zero_at_s, zero_at_s)
        return True

    def _streams_of(self, flow: Flow, streams: list[dict[str, object]]) -> list[dict[str, object]]:
        sends = (flow is Flow.UP) == (self.side is Side.CLIENT)
        return [stream for stream in streams if bool(stream.get("sender")) == sends]

    # Totals

    def _totals(self, server_ahead_s: float) -> Iterator[FlowTotals]:
        direction, side = self.direction, self.side
        if not self.end or direction is None or side is None:
            return
        # If there was no error, the two will end have exchanged their results.
        silences_by_port = side is Side.CLIENT and self.error is None
        bidir = direction is Direction.BIDIRECTIONAL
        ends = objects_of(self.end.get("streams"))
        for flow in direction.flows:
            sends = (flow is Flow.UP) == (side is Side.CLIENT)
            suffix = "_bidir_reverse" if bidir and flow is Flow.DOWN else ""
            parts: dict[str, list[dict[str, object]]] = {}
            sums: dict[str, dict[str, object]] = {}
            for part, name in (
                ("sender", "sum_sent"),
                ("receiver", "sum_received"),
                ("udp", "sum"),
            ):
                parts[part] = [object_of(end[part]) for end in ends if part in end]
                if bidir:
                    parts[part] = self._streams_of(flow, parts[part])
                # Versions before 3.11 have no separate sum for the reverse flow.
                by_direction = not bidir or name + "_bidir_reverse" in self.end
                total = object_of(self.end.get(name + suffix)) if by_direction else {}
                sums[part] = total or _fold(parts[part])
            sent, received, both = sums["sender"], sums["receiver"], sums["udp"]
            # Before 3.11 UDP has one sum for both ends.
            if both and not sent and not received:
                sent = _fold(parts["udp"]) or both
                received = self._udp_received(flow, both) if silences_by_port or not sends else {}
            # Only the sender measures round trips.
            senders = parts["sender"] if sends else []
            sent_bytes = _known(_strict(sent, "bytes"), sends or silences_by_port)
            received_bytes = _known(_strict(received, "bytes"), not sends or silences_by_port)
            sent_s, received_s = _lenient(sent.get("seconds")), _lenient(received.get("seconds"))
            if received_s is not None and flow is Flow.UP:
                received_s = max(0.0, received_s - server_ahead_s)
            receiver_known = received_bytes is not None
            yield FlowTotals(
                flow=flow,
                sent_bytes=sent_bytes,
                sent_s=None if sent_bytes is None else sent_s,
                received_bytes=received_bytes,
                received_s=received_s if receiver_known else None,
                retransmits_count=_lenient_count(sent.get("retransmits")),
                rtt_min_s=min(_positive(senders, "min_rtt", 1e6), default=None),
                rtt_mean_s=_mean_of(senders, "mean_rtt", 1e6),
                rtt_max_s=max(_positive(senders, "max_rtt", 1e6), default=None),
                packets_count=(
                    _lenient_count(sent.get("packets"))
                    or _lenient_count(received.get("packets"))
                    or _lenient_count(both.get("packets"))
                ),
                lost_count=_lenient_count(received.get("lost_packets")) if receiver_known else None,
                jitter_s=_mean_of([received], "jitter_ms", 1e3) if receiver_known else None,
            )

    def _udp_received(self, flow: Flow, both: dict[str, object]) -> dict[str, object]:
        """Estimate the received bytes from the sent bytes and the lost packets.

        This is possible because all packets have the same size. If a value is missing, the result
        is the sum of the intervals.
        """
        sent, packets, lost = (
            _lenient_count(both.get(key)) for key in ("bytes", "packets", "lost_packets")
        )
        if not sent or not packets or lost is None:
            local_side = sum(
                i.transferred_bytes for i in self.intervals.get(flow, ()) if not i.omitted
            )
            return {**both, "bytes": local_side}
        return {**both, "bytes": sent * max(0, packets - lost) // packets}

    # Reading
    def reading(
        self,
        *,
        sentence: str,
        exit_code: int | None = None,
        ended_at_s: float | None = None,
        released_at_s: float | None = None,
        server_ahead_s: float = 0.0,
    ) -> EngineResult:
        """Return everything that was read so far.

        Args:
            sentence: Text outside the JSON, in which an error message is searched.
            exit_code: The process exit code. None if it is unknown.
            ended_at_s: Arrival of the complete output, in epoch seconds. None if unknown.
            released_at_s: Release time of the start gate, in epoch seconds. None without the gate.
            server_ahead_s: Seconds for which the server's clock ran before the release.
        """
        error = self.error
        totals: tuple[FlowTotals, ...] = ()
        try:
            totals = tuple(self._totals(server_ahead_s))
        except _Implausible as implausible:
            error = error or f"iperf3 reported impossible values: {implausible}"
        if error is None and not totals and (self.ended or not self.begun):
            match = re.search(r"(?m)^\s*iperf3: (?:error - |parameter error - )?(.+)$", sentence)
            error = match[1].strip() if match else "iperf3 gave no result"
        requested, version = self._requested, _text(self.start.get("version")) or ""
        cpu = object_of(self.end.get("cpu_utilization_percent"))
        protocol = (_text(requested.get("protocol")) or "").lower()
        first_data_at_s, basis = self._first_data(ended_at_s, released_at_s)
        return EngineResult(
            report=EngineReport(
                engine="iperf3",
                version=str(parse_version(version) or version) or None,
                cookie=self.cookie,
                protocol=Protocol(protocol) if protocol in set(Protocol) else None,
                direction=self.direction,
                streams_count=self._streams_count(),
                # A test of a number of bytes or blocks has the duration 0.
                duration_s=_lenient_count(requested.get("duration")) or None,
                omit_s=_lenient_count(requested.get("omit")),
                block_bytes=_lenient_count(requested.get("blksize")),
                # The client reports the MSS of its control connection. "tcp_mss" only repeats
                # the value of --set-mss.
                mss_bytes=_lenient_count(self.start.get("tcp_mss_default")) or None,
                window_bytes=self._window_bytes(),
                stream_bits_per_second=_lenient_count(
                    requested.get("target_bitrate")
                    # Versions 3.10 to 3.12 write it into the start event.
                    or self.start.get("target_bitrate")
                    or requested.get("fqrate")
                )
                or None,
                pacing=self._pacing(),
                tos=_lenient_count(requested.get("tos")),
                sender_congestion=_text(self.end.get("sender_tcp_congestion")),
                receiver_congestion=_text(self.end.get("receiver_tcp_congestion")),
                totals=totals,
                cpu_local_percent=_lenient(cpu.get("host_total")),
                cpu_remote_percent=_lenient(cpu.get("remote_total")) or None,
                error=error,
                truncated=self.truncated or not self.ended,
                exit_code=exit_code,
                distributions=self._rtts.distribution(),
                silent_streams=self._silences.silences_by_port(
                    self._client_ports(), _lenient_count(requested.get("blksize")) or BLOCK_BYTES
                ),
                peers=self._peers.peers(self._addresses.values()),
            ),
            side=self.side,
            intervals={flow: tuple(intervals) for flow, intervals in self.intervals.items()},
            first_data_at_s=first_data_at_s,
            start_basis=basis,
            started_at_s=self.started_at_s,
            client_address=self.client_address,
        )

    def _streams_count(self) -> int | None:
        """Return the open streams of each flow from the start event, or the requested number."""
        count, direction = _lenient_count(self._requested.get("num_streams")), self.direction
        stand = len(objects_of(self.start.get("connected")))
        if not count or not stand or direction is None:
            return count
        return min(count, stand // len(direction.flows))

    def _pacing(self) -> Pacing | None:
        if _lenient_count(self._requested.get("fqrate")):
            return Pacing.KERNEL
        rate = self._requested.get("target_bitrate") or self.start.get("target_bitrate")
        return Pacing.ENGINE if _lenient_count(rate) else None

    def _window_bytes(self) -> int | None:
        """Return the size of the granted socket buffer, or None if no size was requested.

        Linux reserves and reports twice the requested size (socket(7), SO_SNDBUF).
        """
        if not _lenient_count(self.start.get("sock_bufsize")):
            return None
        actual = [_lenient_count(self.start.get(f"{end}buf_actual")) for end in ("snd", "rcv")]
        known = [size for size in actual if size]
        return min(known) // 2 if known else None

    def _first_data(
        self, ended_at_s: float | None, released_at_s: float | None
    ) -> tuple[float | None, StartBasis | None]:
        # At the server the release is the start of the clock. At the client the release is the
        # start time, and the clock starts when the kernel schedules the process.
        if self.intervals and released_at_s is not None and self.side is Side.SERVER:
            return released_at_s, StartBasis.RELEASE
        if self._zero_at_s is not None:
            return self._zero_at_s, StartBasis.ARRIVALS
        if self.intervals and released_at_s is not None:
            return released_at_s, StartBasis.RELEASE
        if self.intervals and ended_at_s is not None:
            return ended_at_s - self._shift_s - self._last_s, StartBasis.EXIT
        if self.intervals and self.started_at_s is not None:
            return self.started_at_s, StartBasis.TIMESTAMP
        return None, None


# Numbers ---------------------------------------------------------------------------------------


def object_of(value: object) -> dict[str, object]:
    """Return a JSON object, or an empty one if the value is not an object."""
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[dict[str, object]]:
    """Return a list of JSON objects, or an empty list if the value is not a list."""
    return [object_of(item) for item in value] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _lenient(value: object) -> float | None:
    """Return a number that no result depends on, or None if it is negative or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # NaN fails this comparison.
    return value if 0 <= value < 2**63 else None


def _lenient_count(value: object) -> int | None:
    number = _lenient(value)
    return None if number is None else int(number)


def _strict(holder: Mapping[str, object], key: str) -> int | None:
    """Return a count that results depend on, or None if missing. Raise if it is invalid."""
    value = holder.get(key)
    if value is None:
        return None
    count = _lenient_count(value)
    if count is None:
        raise _Implausible(f"{key} = {value!r:.40}")
    return count


def _seconds(holder: Mapping[str, object], key: str) -> float:
    seconds = _lenient(holder.get(key))
    if seconds is None or not math.isfinite(seconds):
        raise _Implausible(f"{key} = {holder.get(key)!r:.40}")
    return float(seconds)


def _known(value: int | None, sure: bool) -> int | None:
    """Return the value, or None for a 0 from an end that cannot know the value."""
    return value if value or sure else None


def _fold(streams: Sequence[dict[str, object]]) -> dict[str, object]:
    """Return the sum over the streams, for output in which iperf3 printed no sum.

    The times are those of the first stream, as in iperf3's own sums.
    """
    if not streams:
        return {}
    counts = {key: _sum_of(streams, key) for key in ("retransmits", "packets", "lost_packets")}
    sizes = [_strict(stream, "bytes") for stream in streams]
    known = [size for size in sizes if size is not None]
    jitter_s = _mean_of(streams, "jitter_ms", 1e3)
    return {
        **streams[0],
        **counts,
        "bytes": sum(known) if len(known) == len(sizes) else None,
        "jitter_ms": None if jitter_s is None else jitter_s * 1e3,
    }


def _sum_of(streams: Iterable[dict[str, object]], key: str) -> int | None:
    """Return the sum, or None unless every stream has the value."""
    counts = [_lenient_count(stream.get(key)) for stream in streams]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _positive(holders: Iterable[dict[str, object]], key: str, per_second: float) -> list[float]:
    numbers = [_lenient(holder.get(key)) for holder in holders]
    return [number / per_second for number in numbers if number]


def _mean_of(holders: Iterable[dict[str, object]], key: str, per_second: float) -> float | None:
    """Return the mean in seconds. A round trip of 0 us means that this end did not measure it."""
    numbers = _positive(holders, key, per_second)
    return sum(numbers) / len(numbers) if numbers else None
