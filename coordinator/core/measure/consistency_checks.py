"""Consistency checks between all sources of a burst.

Each source limits the values that you can get from other sources:

- Received bytes were sent before.
- Sent bytes were offered by the plan.
- When bytes cross a NIC, they are below its limit and in its counters.
- TCP cannot send more than a congestion window per round trip.
- Both ends recorded the same start.

If a value is above its limit, it is impossible, and some source must be wrong. These checks do
not try to find out which source this is. A missing source does not limit any other. There are other
checks to report when a source is missing.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.formulas.headers import Headers
from broadside.coordinator.core.measure.records.clock_readings import clock_troubles
from broadside.coordinator.core.measure.records.columns import HostColumns, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import PairEvidence, receiving_side
from broadside.coordinator.core.summary import Contradiction, Rule
from broadside.exchange.engines import find, offered_bits_per_second
from broadside.exchange.messages import EngineReport, Flow, Pacing, Side, Traffic, pair_name

# Tolerances. They should be far above any normal difference between sources. If an error is below
# its tolerance, it cannot change a pair's result by more than that.
#
# iperf3 will use this size for a write when no block size is set. iperf3 3.16 and newer count a
# block per stream after the last interval. A sender may also have written a block that was never
# read.
TCP_BLOCK_BYTES: Final = 131_072
# Share of the bytes, to be used when both ends count the same payload. In iperf3's text output,
# rows have three digits. So the rounding error can be up to 0.5 % for a row, and it is smaller for
# a sum.
SAME_BYTES_RATIO: Final = 0.01
# Share of the fleet's bytes. With more rows and pairs, rounding errors average out.
FLEET_BYTES_RATIO: Final = 0.002
# Share of the pace. iperf3 can set a stream's mean rate to about 1 %, and kernel pacing can set it
# to its quantum. This is a fifth of the spread that the bottleneck analysis uses for a stream that
# is not paced.
OFFERED_RATIO: Final = 0.05
# Share of a NIC's limit, which is a round number set by the VM size.
CAP_RATIO: Final = 0.05
# Seconds at the limit. A token bucket can release as many bytes at once.
CAP_CREDIT_S: Final = 0.5
# Share of a NIC's counter. It should also include headers, and these add 3 % or more to the
# payload.
HOST_RATIO: Final = 0.02
# Seconds of traffic. The host's readings do not start at the same time as the engine's.
HOST_EDGE_S: Final = 0.5
# Share of the payload. If a counter is below this, it is for another interface.
HOST_OTHER_RATIO: Final = 0.01
# Share of a track's time that needs to be in the counters.
HOST_COVERED_RATIO: Final = 0.9
# Multiple of cwnd / RTT. Both values are read once a second. The RTT is a mean for all streams, and
# a single stream can have a much smaller RTT.
WINDOW_FACTOR: Final = 4.0
# Share of a track's time for which the kernel needs to report both values.
WINDOW_KNOWN_RATIO: Final = 0.9
# Seconds, to be added to both clocks' error bounds. When the time for the first data is read from
# output lines, it has an error of some ms. When it is computed from the process exit (iperf3 before
# 3.17), it has an error of some 100 ms.
STAMPS_APART_S: Final = 0.5
# Seconds, to be used when an engine has no start gate. In this case, one end reports its connection
# or login, and the other its first data. If a segment is lost three times in a row, the data will
# be delayed by 1 + 2 + 4 s (RFC 6298, sections 2.1 and 5.5).
LOGIN_APART_S: Final = 7.0
# If a track has this number of different values, and another pair has the same track, it is a copy.
COPIED_COUNT: Final = 5
# The same, to be used for paced pairs that read whole blocks. They share two or three regular
# values, and another one at either end. A busy host will add more values. For ten more values, the
# probability to be equal by chance is no more than 1/2 per value.
COPIED_PACED_COUNT: Final = 15
# Smallest common divisor of a track's values that is taken for the size of a unit, in bytes. This
# is less than a UDP datagram or a body usually has, and by chance five values do not share it.
UNIT_LEAST_BYTES: Final = 1_000
# Seconds that may be missing at either end when a track is complete.
WHOLE_EDGE_S: Final = 0.5
# Seconds by which a receiver's curve can be ahead of its sender's curve.
LAG_S: Final = 0.5


class ConsistencyChecker:
    """Collector for impossible values in a burst.

    To use it, call :meth:`add` for each block of pairs, sorted by index. Then call :meth:`done` to
    get the result.
    """

    def __init__(self, traffic: Traffic, headers: Headers, clock_bound_max_s: float) -> None:
        """Set up the checks for a burst.

        Args:
            traffic: Requested traffic as it was sent to the engine, after scaling.
            headers: Header overhead to use.
            clock_bound_max_s: Limit for a clock's error bound, in seconds.
        """
        self._traffic = traffic
        self._headers = headers
        self._clock_bound_max_s = clock_bound_max_s
        self._found: list[Contradiction] = []
        self._stamps: list[Contradiction] = []
        self._fleets = [_Fleet(flow) for flow in traffic.direction.flows]

    def add(self, block: Sequence[PairEvidence]) -> None:
        """Check the next pairs and their seconds."""
        for evidence in block:
            pair = _Pair.of(evidence, self._traffic)
            self._found += _of_pair(pair, self._headers)
            # If a clock moved during the burst, this is already part of the coverage check.
            if not any(clock_troubles(evidence, self._clock_bound_max_s)):
                self._stamps += _stamps(pair)
            for fleet in self._fleets:
                fleet.add(pair)

    def done(self) -> tuple[Contradiction, ...]:
        """Return all contradictions. Call this when all pairs have been added."""
        of_fleets = (item for fleet in self._fleets for item in fleet.contradictions())
        return (*self._found, *self._stamps, *of_fleets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A pair's records by end and flow.

    Attributes:
        evidence: The pair's evidence.
        traffic: Requested traffic.
        tracks: Longest track for each end and flow.
        both_ends_comparable: True if both ends count the same payload.
        start_tolerance_s: How far the first data at both ends can be apart, in seconds.
    """

    evidence: PairEvidence
    traffic: Traffic
    tracks: Mapping[tuple[Side, Flow], IntervalColumns]
    both_ends_comparable: bool
    start_tolerance_s: float

    @classmethod
    def of(cls, evidence: PairEvidence, traffic: Traffic) -> "_Pair":
        tracks: dict[tuple[Side, Flow], IntervalColumns] = {}
        lead_s = evidence.server_lead_s
        served = (track.without_lead(lead_s) for track in evidence.server_tracks)
        for track in (*evidence.client_tracks, *served):
            key = (track.side, track.flow)
            if key not in tracks or len(track) > len(tracks[key]):
                tracks[key] = track
        engine = find(traffic.engine)
        both_ends_comparable = engine is not None and engine.both_ends_comparable
        gated = engine is None or engine.gated
        return cls(
            evidence=evidence,
            traffic=traffic,
            tracks=tracks,
            both_ends_comparable=both_ends_comparable,
            start_tolerance_s=STAMPS_APART_S if gated else LOGIN_APART_S,
        )

    @property
    def name(self) -> str:
        return self.evidence.name or pair_name(self.evidence.pair_index)

    @property
    def blocks_bytes(self) -> float:
        """A block per stream, in bytes.

        These bytes can be counted at either end and not at the other.
        """
        return float((self.traffic.block_bytes or TCP_BLOCK_BYTES) * self.traffic.streams_count)

    def broke(
        self, rule: Rule, observed: float, limit: float, flow: Flow | None, side: Side | None = None
    ) -> Contradiction:
        """Create a contradiction for this pair.

        Args:
            rule: The broken rule.
            observed: The reported value.
            limit: The limit for this value.
            flow: The flow, if there is a single one.
            side: The end that reported the value, if there is a single one.
        """
        return Contradiction(
            rule=rule, pair=self.name, flow=flow, side=side, observed=observed, limit=limit
        )

    def ends(self, flow: Flow) -> tuple[IntervalColumns | None, IntervalColumns | None]:
        """Return the receiver's track, then the sender's track."""
        receiver = receiving_side(flow)
        return self._track(receiver, flow), self._track(_other(receiver), flow)

    def _track(self, side: Side, flow: Flow) -> IntervalColumns | None:
        track = self.tracks.get((side, flow))
        return track if track is not None and len(track) else None

    def engine(self, side: Side) -> EngineReport | None:
        """Return an end's engine report if it is complete."""
        evidence = self.evidence
        holder = evidence.report if side is Side.CLIENT else evidence.server_test
        engine = None if holder is None else holder.engine
        return None if engine is None or engine.error is not None or engine.truncated else engine

    def host(self, side: Side) -> HostColumns:
        evidence = self.evidence
        return evidence.client_host if side is Side.CLIENT else evidence.server_host


def _of_pair(pair: _Pair, headers: Headers) -> Iterator[Contradiction]:
    for (side, flow), track in pair.tracks.items():
        if track.impossible_count:
            yield pair.broke(Rule.ROWS, track.impossible_count, 0, flow, side)
    for flow in pair.traffic.direction.flows:
        received, sent = pair.ends(flow)
        if pair.both_ends_comparable:
            yield from _two_ends(pair, flow, received, sent)
        else:
            yield from _served(pair, flow, received)
        yield from _totals(pair, flow)
        if received is not None:
            yield from _caps(pair, flow, received, headers)
            yield from _counters(pair, flow, received)
        yield from _offered(pair, flow, received, sent)
        if sent is not None:
            yield from _window(pair, flow, sent, received)


def _bytes(track: IntervalColumns) -> float:
    return float(track.transferred_bytes.sum())


def _counted_bytes(track: IntervalColumns) -> float:
    """Add up bytes after the warm-up, because engine totals do not include it."""
    if not track.omitted.any():
        return _bytes(track)
    return float(track.transferred_bytes[~track.omitted].sum())


def _is_varied(pair: _Pair, track: IntervalColumns, *, sent: bool) -> bool:
    """Return true if a track has too many different values to be a copy by chance.

    Paced pairs transfer whole blocks or whole bodies in turn, and every sender writes whole blocks.
    An engine that sends a scheduled number of messages gives all pairs the same varied values.
    """
    engine = find(pair.traffic.engine)
    if engine is not None and engine.sets_each_second:
        return False
    amounts = track.transferred_bytes
    regular = sent or offered_bits_per_second(pair.traffic) is not None
    block_bytes = pair.traffic.block_bytes or TCP_BLOCK_BYTES
    # This is the size of a block or of a body if all values are multiples of it.
    unit_bytes = int(np.gcd.reduce(amounts.astype(np.int64)))
    keeps_step = regular and unit_bytes >= min(block_bytes, UNIT_LEAST_BYTES)
    least = COPIED_PACED_COUNT if keeps_step else COPIED_COUNT
    # The first values are usually enough to see it.
    head = amounts[:64]
    return any(len(set(part.tolist())) >= least for part in (head, amounts))


def _span_s(track: IntervalColumns) -> float:
    return float(track.end_s[-1] - track.start_s[0])


def _is_complete(track: IntervalColumns, until_s: float) -> bool:
    """Return true if a track has no gaps from its first byte to ``until_s``."""
    covered_s = float((track.end_s - track.start_s).sum())
    begun_s, ended_s = float(track.start_s[0]), float(track.end_s[-1])
    return (
        begun_s < WHOLE_EDGE_S
        and ended_s > until_s - WHOLE_EDGE_S
        and covered_s > ended_s - WHOLE_EDGE_S
    )


def _two_ends(
    pair: _Pair, flow: Flow, received: IntervalColumns | None, sent: IntervalColumns | None
) -> Iterator[Contradiction]:
    """Check that received bytes were sent before, at the end of every interval."""
    if received is None or sent is None or not _is_complete(sent, float(received.end_s[-1])):
        return
    written = np.cumsum(sent.transferred_bytes)
    bound = np.interp(received.end_s + LAG_S, np.append(0.0, sent.end_s), np.append(0.0, written))
    bound[-1] = max(bound[-1], written[-1])
    arrived = np.cumsum(received.transferred_bytes)
    over = arrived - bound * (1 + SAME_BYTES_RATIO) - pair.blocks_bytes
    worst = int(np.argmax(over))
    if over[worst] > 0:
        reported, most = float(arrived[worst]), float(bound[worst])
        yield pair.broke(Rule.RECEIVED_OVER_SENT, reported, most, flow)


def _served(pair: _Pair, flow: Flow, received: IntervalColumns | None) -> Iterator[Contradiction]:
    """Check that a daemon sent the bytes that its client received.

    Here we can only use totals, because a daemon's log just has a line at the end of a transfer.
    """
    engine, test = find(pair.traffic.engine), pair.evidence.server_test
    served = pair.engine(Side.SERVER)
    if engine is None or served is None or test is None or test.ended_at is None:
        return
    values = next((total for total in served.totals if total.flow is flow), None)
    if received is None or values is None or values.sent_bytes is None:
        return
    if receiving_side(flow) is Side.SERVER:
        return
    reported = _bytes(received)
    beside = engine.uncounted_bytes(served) + pair.blocks_bytes
    if reported > values.sent_bytes * (1 + SAME_BYTES_RATIO) + beside:
        yield pair.broke(Rule.RECEIVED_OVER_SENT, reported, float(values.sent_bytes), flow)


def _totals(pair: _Pair, flow: Flow) -> Iterator[Contradiction]:
    """Check that seconds do not exceed the engine's totals, and that received is not above sent."""
    receiver = receiving_side(flow)
    for side in Side:
        engine = pair.engine(side)
        reported = next((t for t in engine.totals if t.flow is flow), None) if engine else None
        if reported is None:
            continue
        checks: list[tuple[float, int | None]] = [
            (float(reported.received_bytes or 0), reported.sent_bytes)
        ]
        for end, total in (
            (receiver, reported.received_bytes),
            (_other(receiver), reported.sent_bytes),
        ):
            track = pair.tracks.get((end, flow))
            if track is not None and (end is side or pair.both_ends_comparable):
                checks.append((_counted_bytes(track), total))
        for count, total in checks:
            # A total of 0 should be treated as unknown. Engines report it when they did not get a
            # result.
            if total and count > total * (1 + SAME_BYTES_RATIO) + pair.blocks_bytes:
                yield pair.broke(Rule.TOTALS, count, float(total), flow, side)


def _other(side: Side) -> Side:
    return Side.CLIENT if side is Side.SERVER else Side.SERVER


def _offered(
    pair: _Pair, flow: Flow, received: IntervalColumns | None, sent: IntervalColumns | None
) -> Iterator[Contradiction]:
    """Check that received and written bytes are within the pace.

    Written bytes cannot be used when pacing is done by the kernel. In this case, they include data
    that is still in the socket buffers.
    """
    engine = find(pair.traffic.engine)
    if engine is None or not engine.paces_exactly:
        return
    item = engine.offered_bits_per_second(pair.traffic)
    if item is None:
        return
    written = sent if pair.traffic.pacing is Pacing.ENGINE else None
    for track in (received, written):
        if track is None:
            continue
        offered = item / len(pair.traffic.direction.flows) / 8 * _span_s(track)
        if _bytes(track) > offered * (1 + OFFERED_RATIO) + pair.blocks_bytes:
            yield pair.broke(Rule.SENT_OVER_OFFERED, _bytes(track), offered, flow, track.side)
            return


def _caps(
    pair: _Pair, flow: Flow, received: IntervalColumns, headers: Headers
) -> Iterator[Contradiction]:
    """Check that received bytes are within the limit set for the sender's NIC.

    A VM size only has a limit for egress, so the receiver's NIC has no limit to use here.
    """
    sender = _other(receiving_side(flow))
    evidence = pair.evidence
    cap = (
        evidence.client_nic_bits_per_second
        if sender is Side.CLIENT
        else evidence.server_nic_bits_per_second
    )
    if not cap:
        return
    crossed = _bytes(received) * headers.wire_ratio
    most = cap / 8 * _span_s(received)
    if crossed > most * (1 + CAP_RATIO) + cap / 8 * CAP_CREDIT_S:
        yield pair.broke(Rule.OVER_NIC, crossed, most, flow, sender)


def _counters(pair: _Pair, flow: Flow, received: IntervalColumns) -> Iterator[Contradiction]:
    """Check that received bytes are in both NIC counters."""
    receiver, came = receiving_side(flow), _bytes(received)
    zero_s, span_s = received.first_data_at_s, _span_s(received)
    begun_s, ended_s = zero_s + received.start_s[0], zero_s + received.end_s[-1]
    for side in Side:
        host = pair.host(side)
        if not len(host):
            continue
        inside = (host.end_at_s > begun_s - 2) & (host.start_at_s < ended_s + 2)
        counter = host.nic_rx_bytes if side is receiver else host.nic_tx_bytes
        counted = float(np.nansum(counter[inside]))
        overlap_s = np.minimum(host.end_at_s, ended_s) - np.maximum(host.start_at_s, begun_s)
        # Only the test's own time should be used here. If a counter is unknown, its time will not
        # be covered.
        covered_s = float(overlap_s.clip(0)[~np.isnan(counter)].sum())
        if counted < HOST_OTHER_RATIO * came or covered_s < HOST_COVERED_RATIO * span_s:
            continue
        edge_s = HOST_EDGE_S + max(0.0, span_s - covered_s)
        if came > counted * (1 + HOST_RATIO) + came / span_s * edge_s:
            yield pair.broke(Rule.HOST_COUNTERS, came, counted, flow, side)


def _window(
    pair: _Pair, flow: Flow, sent: IntervalColumns, received: IntervalColumns | None
) -> Iterator[Contradiction]:
    length_s = sent.end_s - sent.start_s
    known = (sent.rtt_s > 0) & (sent.cwnd_bytes > 0)
    known_s = float(length_s[known].sum())
    if known_s < WINDOW_KNOWN_RATIO * float(length_s.sum()):
        return
    flights = sent.cwnd_bytes[known].astype(np.float64) / sent.rtt_s[known] * length_s[known]
    most = float(flights.sum()) * float(length_s.sum()) / known_s
    for track in (sent, received):
        if track is not None and _bytes(track) > WINDOW_FACTOR * most + pair.blocks_bytes:
            yield pair.broke(Rule.OVER_WINDOW, _bytes(track), most, flow, track.side)


def _stamps(pair: _Pair) -> Iterator[Contradiction]:
    """Check that both ends recorded the same start, using their corrected clocks."""
    evidence = pair.evidence
    fixes = evidence.clock_fixes
    reported = {Side.CLIENT: evidence.report, Side.SERVER: evidence.server_test}
    zeros = []
    allowed = pair.start_tolerance_s
    for side, (fix_s, bound_s) in fixes.items():
        first = [t.first_data_at_s for (end, _), t in pair.tracks.items() if end is side]
        holder = reported[side]
        if not first and holder is not None and holder.first_data_at is not None:
            lead_s = evidence.server_lead_s if side is Side.SERVER else 0.0
            # This end's seconds may be lost.
            first = [holder.first_data_at.timestamp() + lead_s]
        if not first or bound_s is None:
            return
        zeros.append(min(first) - fix_s)
        allowed += bound_s
    began_s, served_s = zeros
    difference_s = abs(began_s - served_s)
    served = [track for (end, _), track in pair.tracks.items() if end is Side.SERVER]
    if difference_s > allowed and served_s < began_s and served:
        # The server's time starts when all connections are open. A busy client can start the
        # traffic much later.
        recorded_s = min(map(_first_byte_s, served)) - fixes[Side.SERVER][0]
        difference_s = min(difference_s, max(0.0, began_s - recorded_s))
    if difference_s > allowed:
        yield pair.broke(Rule.STAMPS, difference_s, allowed - pair.start_tolerance_s, None)


def _first_byte_s(track: IntervalColumns) -> float:
    """Return the estimated time of the first payload in epoch seconds.

    The time is by this end's clock. For the first second with payload, we assume that traffic runs
    at the usual rate up to the end, and that there is none before.
    """
    loud = np.flatnonzero(track.transferred_bytes > 0)
    if not len(loud):
        return track.first_data_at_s
    first, usual = loud[0], float(np.median(track.transferred_bytes[loud]))
    share = min(1.0, float(track.transferred_bytes[first]) / usual)
    start_s, end_s = float(track.start_s[first]), float(track.end_s[first])
    return track.first_data_at_s + end_s - share * (end_s - start_s)


class _Fleet:
    """Sums and comparisons for a flow, using all pairs."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._arrived = self._written = self._blocks = 0.0
        self._count = 0
        self._seen: set[tuple[bool, bytes]] = set()
        self._copies: list[Contradiction] = []

    def add(self, pair: _Pair) -> None:
        received, sent = pair.ends(self._flow)
        if received is None:
            return
        if (
            pair.both_ends_comparable
            and sent is not None
            and _is_complete(sent, float(received.end_s[-1]))
        ):
            self._arrived += _bytes(received)
            self._written += _bytes(sent)
            self._blocks += pair.blocks_bytes
            self._count += 1
        copies = list(self._copy(pair, received, sent=False))
        if not copies and sent is not None:
            copies = list(self._copy(pair, sent, sent=True))
        self._copies += copies

    def contradictions(self) -> Iterator[Contradiction]:
        """Return copied tracks, and contradictions that can only be seen in the fleet's sum.

        A difference can be within every pair's tolerance but above the tolerance for their sum.
        """
        arrived, written = self._arrived, self._written
        if self._count > 1 and arrived > written * (1 + FLEET_BYTES_RATIO) + self._blocks:
            yield Contradiction(
                rule=Rule.RECEIVED_OVER_SENT, flow=self._flow, observed=arrived, limit=written
            )
        yield from self._copies

    def _copy(self, pair: _Pair, track: IntervalColumns, *, sent: bool) -> Iterator[Contradiction]:
        """Yield a contradiction if another pair has exactly the same seconds at the same end.

        Different tests are never equal to the byte. When they have just a few values, or regular
        ones, this can happen by chance.
        """
        reported = (sent, hashlib.sha256(track.transferred_bytes.tobytes()).digest())
        if reported in self._seen and _is_varied(pair, track, sent=sent):
            yield pair.broke(Rule.COPIED, _bytes(track), 0.0, self._flow)
        self._seen.add(reported)
