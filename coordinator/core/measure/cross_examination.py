"""Every source of a burst held against every other: what bounds it, and what breaks the bound.

What was received was sent before, what was sent was offered, what crossed a NIC fits under its cap
and is in its counters, a window lets through so much a round trip, and both ends of a pair saw one
instant begin. What does not fit cannot be true, whoever said it; nothing here guesses who lied. A
source that is silent bounds nothing: what must be there is another rule's.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.align import receiving_side
from broadside.coordinator.core.measure.columns import HostColumns, TrackColumns
from broadside.coordinator.core.measure.evidence import PairEvidence
from broadside.coordinator.core.measure.headers import Headers
from broadside.coordinator.core.measure.unsteady_clocks import clock_troubles
from broadside.coordinator.core.summary import Contradiction, Rule
from broadside.exchange.engines import find, offered_bits_per_second
from broadside.exchange.messages import EngineReport, Flow, Pacing, Side, Traffic, pair_name

# What is no contradiction yet. Each is far above what the sources do of themselves, and what slips
# under it moves a pair's figure by no more than itself.
TCP_BLOCK_BYTES: Final = 131_072  # iperf3's write where none was asked: 3.16 and newer count one a
# stream after the last interval, and a sender may have written one that was never read
SAME_BYTES_RATIO: Final = 0.01  # of two counts of one payload: rows of iperf3's text have three
# digits, 0.5 % a row at worst and less in a sum
FLEET_BYTES_RATIO: Final = 0.002  # of their sums: rounding averages out over rows and pairs
OFFERED_RATIO: Final = 0.05  # over the pace: iperf3 keeps a stream's mean to 1 % or so, kernel
# pacing to its quantum; a fifth of what the limiter calls an unpaced stream's spread
CAP_RATIO: Final = 0.05  # over a NIC's cap, which is a VM size's round number
CAP_CREDIT_S: Final = 0.5  # s at the cap: what a token bucket may hand out at once
HOST_RATIO: Final = 0.02  # of a NIC's counter: it counts headers, 3 % and more, on top of payload
HOST_EDGE_S: Final = 0.5  # s of traffic: a host's readings and the engine's begin apart
HOST_OTHER_RATIO: Final = 0.01  # of the payload: a counter under it is another interface's
HOST_COVERED_RATIO: Final = 0.9  # of a track's time, that the counters must tell of
WINDOW_FACTOR: Final = 4.0  # times cwnd / RTT: both are read once a second, the RTT is a mean over
# streams, and a stream's own may be a fraction of it
WINDOW_KNOWN_RATIO: Final = 0.9  # of a track's time, of which the kernel told both
STAMPS_APART_S: Final = 0.5  # s beyond both clocks' bounds: the first data of either end is told
# to some ms from lines as they arrive, to some 100 ms from a process's exit (iperf3 before 3.17)
# s, instead, of an engine without a start gate: one end reports its connection or log-in, the other
# its first data. Three losses of one segment in a row delay that by 1 + 2 + 4 s (RFC 6298, sections
# 2.1 and 5.5).
LOGIN_APART_S: Final = 7.0
COPIED_COUNT: Final = 5  # different values that an account must have before another may not be
# the same
# The same, of paced pairs that read whole blocks: they share two or three regular values and one at
# either end. Of ten more, which a busy host adds, each is equal by chance at most once in two.
COPIED_PACED_COUNT: Final = 15
WHOLE_EDGE_S: Final = 0.5  # s at either end without which a track is whole still
LAG_S: Final = 0.5  # s by which a receiver's curve may run ahead of its sender's


class CrossExamination:
    """Everything in a burst that cannot be true, from some pairs at a time, in order of numbers."""

    def __init__(self, traffic: Traffic, headers: Headers, clock_bound_max_s: float) -> None:
        """``traffic`` is as it was sent: scaled."""
        self._traffic = traffic
        self._headers = headers
        self._clock_bound_max_s = clock_bound_max_s
        self._found: list[Contradiction] = []
        self._stamps: list[Contradiction] = []
        self._fleets = [_Fleet(flow) for flow in traffic.direction.flows]

    def add(self, block: Sequence[PairEvidence]) -> None:
        """The next pairs, with their seconds."""
        for evidence in block:
            pair = _Pair.of(evidence, self._traffic)
            self._found += _of_pair(pair, self._headers)
            # A clock that moved meanwhile is held against the coverage floor already.
            if not any(clock_troubles(evidence, self._clock_bound_max_s)):
                self._stamps += _stamps(pair)
            for fleet in self._fleets:
                fleet.add(pair)

    def done(self) -> tuple[Contradiction, ...]:
        """What was found, once every pair has come."""
        of_fleets = (each for fleet in self._fleets for each in fleet.found())
        return (*self._found, *self._stamps, *of_fleets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """One pair's own words, by end and flow."""

    evidence: PairEvidence
    traffic: Traffic
    tracks: Mapping[tuple[Side, Flow], TrackColumns]
    alike: bool  # both ends count the same payload
    begin_apart_s: float  # how far the ends' first data may be told apart

    @classmethod
    def of(cls, evidence: PairEvidence, traffic: Traffic) -> "_Pair":
        tracks: dict[tuple[Side, Flow], TrackColumns] = {}
        lead_s = evidence.server_lead_s
        served = (track.without_lead(lead_s) for track in evidence.server_tracks)
        for track in (*evidence.client_tracks, *served):
            key = (track.side, track.flow)
            if key not in tracks or len(track) > len(tracks[key]):
                tracks[key] = track
        engine = find(traffic.engine)
        alike = engine is not None and engine.counts_alike
        gated = engine is None or engine.gated
        return cls(
            evidence=evidence,
            traffic=traffic,
            tracks=tracks,
            alike=alike,
            begin_apart_s=STAMPS_APART_S if gated else LOGIN_APART_S,
        )

    @property
    def name(self) -> str:
        return self.evidence.name or pair_name(self.evidence.pair_index)

    @property
    def blocks_bytes(self) -> float:
        """A block a stream: what one end may have counted and the other not."""
        return float((self.traffic.block_bytes or TCP_BLOCK_BYTES) * self.traffic.streams_count)

    def broke(
        self, rule: Rule, said: float, bound: float, flow: Flow | None, side: Side | None = None
    ) -> Contradiction:
        """What of the pair cannot be true; of a side, where it is that end's word."""
        return Contradiction(
            rule=rule, pair=self.name, flow=flow, side=side, said=said, bound=bound
        )

    def ends(self, flow: Flow) -> tuple[TrackColumns | None, TrackColumns | None]:
        """What the receiver recorded, and what the sender."""
        receiver = receiving_side(flow)
        return self._told(receiver, flow), self._told(_other(receiver), flow)

    def _told(self, side: Side, flow: Flow) -> TrackColumns | None:
        track = self.tracks.get((side, flow))
        return track if track is not None and len(track) else None

    def engine(self, side: Side) -> EngineReport | None:
        """What an end's engine says at its end, where it got there."""
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
        if pair.alike:
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


def _bytes(track: TrackColumns) -> float:
    return float(track.transferred_bytes.sum())


def _counted_bytes(track: TrackColumns) -> float:
    """Without the warm-up, of which engines' totals do not tell."""
    if not track.omitted.any():
        return _bytes(track)
    return float(track.transferred_bytes[~track.omitted].sum())


def _is_varied(pair: _Pair, track: TrackColumns, *, sent: bool) -> bool:
    """Whether it has so many different values that no other test has them all by chance.

    Paced pairs move whole blocks in turn, and every sender writes whole blocks.
    """
    regular = sent or offered_bits_per_second(pair.traffic) is not None
    block_bytes = pair.traffic.block_bytes or TCP_BLOCK_BYTES
    keeps_step = regular and not np.any(track.transferred_bytes % block_bytes)
    least = COPIED_PACED_COUNT if keeps_step else COPIED_COUNT
    head = track.transferred_bytes[:64]  # says it most times
    return any(len(set(part.tolist())) >= least for part in (head, track.transferred_bytes))


def _span_s(track: TrackColumns) -> float:
    return float(track.end_s[-1] - track.start_s[0])


def _is_whole(track: TrackColumns, until_s: float) -> bool:
    """Whether a track tells of all its time, from its first byte to that instant."""
    covered_s = float((track.end_s - track.start_s).sum())
    begun_s, ended_s = float(track.start_s[0]), float(track.end_s[-1])
    return (
        begun_s < WHOLE_EDGE_S
        and ended_s > until_s - WHOLE_EDGE_S
        and covered_s > ended_s - WHOLE_EDGE_S
    )


def _two_ends(
    pair: _Pair, flow: Flow, received: TrackColumns | None, sent: TrackColumns | None
) -> Iterator[Contradiction]:
    """What came was sent before: at every instant, by the ends' own seconds."""
    if received is None or sent is None or not _is_whole(sent, float(received.end_s[-1])):
        return
    written = np.cumsum(sent.transferred_bytes)
    bound = np.interp(received.end_s + LAG_S, np.append(0.0, sent.end_s), np.append(0.0, written))
    bound[-1] = max(bound[-1], written[-1])
    arrived = np.cumsum(received.transferred_bytes)
    over = arrived - bound * (1 + SAME_BYTES_RATIO) - pair.blocks_bytes
    worst = int(np.argmax(over))
    if over[worst] > 0:
        said, most = float(arrived[worst]), float(bound[worst])
        yield pair.broke(Rule.RECEIVED_OVER_SENT, said, most, flow)


def _served(pair: _Pair, flow: Flow, received: TrackColumns | None) -> Iterator[Contradiction]:
    """What a client of a daemon received was served: by the totals, as a log tells of a transfer at
    its end and has no seconds of its own."""
    engine, test = find(pair.traffic.engine), pair.evidence.server_test
    served = pair.engine(Side.SERVER)
    if engine is None or served is None or test is None or test.ended_at is None:
        return
    told = next((total for total in served.totals if total.flow is flow), None)
    if received is None or told is None or told.sent_bytes is None:
        return
    if receiving_side(flow) is Side.SERVER:
        return
    said = _bytes(received)
    beside = engine.uncounted_bytes(served) + pair.blocks_bytes
    if said > told.sent_bytes * (1 + SAME_BYTES_RATIO) + beside:
        yield pair.broke(Rule.RECEIVED_OVER_SENT, said, float(told.sent_bytes), flow)


def _totals(pair: _Pair, flow: Flow) -> Iterator[Contradiction]:
    """Seconds that come to more than an engine's own sums of them; more received than sent."""
    receiver = receiving_side(flow)
    for side in Side:
        engine = pair.engine(side)
        said = next((t for t in engine.totals if t.flow is flow), None) if engine else None
        if said is None:
            continue
        checks: list[tuple[float, int | None]] = [
            (float(said.received_bytes or 0), said.sent_bytes)
        ]
        for end, total in ((receiver, said.received_bytes), (_other(receiver), said.sent_bytes)):
            track = pair.tracks.get((end, flow))
            if track is not None and (end is side or pair.alike):
                checks.append((_counted_bytes(track), total))
        for count, total in checks:
            # Of a total of nothing, nothing is known: engines say 0 where they never heard.
            if total and count > total * (1 + SAME_BYTES_RATIO) + pair.blocks_bytes:
                yield pair.broke(Rule.TOTALS, count, float(total), flow, side)


def _other(side: Side) -> Side:
    return Side.CLIENT if side is Side.SERVER else Side.SERVER


def _offered(
    pair: _Pair, flow: Flow, received: TrackColumns | None, sent: TrackColumns | None
) -> Iterator[Contradiction]:
    """What came fits into the pace; what was written too, unless the kernel paces: then as much as
    the sockets' buffers hold was written and not sent."""
    engine = find(pair.traffic.engine)
    if engine is None or not engine.paces_exactly:
        return
    each = engine.offered_bits_per_second(pair.traffic)
    if each is None:
        return
    written = sent if pair.traffic.pacing is Pacing.ENGINE else None
    for track in (received, written):
        if track is None:
            continue
        offered = each / len(pair.traffic.direction.flows) / 8 * _span_s(track)
        if _bytes(track) > offered * (1 + OFFERED_RATIO) + pair.blocks_bytes:
            yield pair.broke(Rule.SENT_OVER_OFFERED, _bytes(track), offered, flow, track.side)
            return


def _caps(
    pair: _Pair, flow: Flow, received: TrackColumns, headers: Headers
) -> Iterator[Contradiction]:
    """What came left its sender's NIC. A VM size caps egress alone, so the receiver's says
    nothing."""
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


def _counters(pair: _Pair, flow: Flow, received: TrackColumns) -> Iterator[Contradiction]:
    """What came is in both NICs' counters."""
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
        told_s = np.minimum(host.end_at_s, ended_s) - np.maximum(host.start_at_s, begun_s)
        # Of the test itself, not of what is around it; an unknown count covers nothing.
        covered_s = float(told_s.clip(0)[~np.isnan(counter)].sum())
        if counted < HOST_OTHER_RATIO * came or covered_s < HOST_COVERED_RATIO * span_s:
            continue
        edge_s = HOST_EDGE_S + max(0.0, span_s - covered_s)
        if came > counted * (1 + HOST_RATIO) + came / span_s * edge_s:
            yield pair.broke(Rule.HOST_COUNTERS, came, counted, flow, side)


def _window(
    pair: _Pair, flow: Flow, sent: TrackColumns, received: TrackColumns | None
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
    """Both ends of a pair, each by its own corrected clock, saw the same test begin."""
    evidence = pair.evidence
    fixes = evidence.clock_fixes
    told = {Side.CLIENT: evidence.report, Side.SERVER: evidence.server_test}
    zeros = []
    allowed = pair.begin_apart_s
    for side, (fix_s, bound_s) in fixes.items():
        first = [t.first_data_at_s for (end, _), t in pair.tracks.items() if end is side]
        holder = told[side]
        if not first and holder is not None and holder.first_data_at is not None:
            lead_s = evidence.server_lead_s if side is Side.SERVER else 0.0
            first = [holder.first_data_at.timestamp() + lead_s]  # its seconds may be lost
        if not first or bound_s is None:
            return
        zeros.append(min(first) - fix_s)
        allowed += bound_s
    began_s, served_s = zeros
    apart_s = abs(began_s - served_s)
    served = [track for (end, _), track in pair.tracks.items() if end is Side.SERVER]
    if apart_s > allowed and served_s < began_s and served:
        # Its clock runs from when all connections stand, however late a busy client lets go.
        heard_s = min(map(_first_byte_s, served)) - fixes[Side.SERVER][0]
        apart_s = min(apart_s, max(0.0, began_s - heard_s))
    if apart_s > allowed:
        yield pair.broke(Rule.STAMPS, apart_s, allowed - pair.begin_apart_s, None)


def _first_byte_s(track: TrackColumns) -> float:
    """When its first second with payload had as much of it left as it carried, by that end's clock
    (epoch s)."""
    loud = np.flatnonzero(track.transferred_bytes > 0)
    if not len(loud):
        return track.first_data_at_s
    first, usual = loud[0], float(np.median(track.transferred_bytes[loud]))
    share = min(1.0, float(track.transferred_bytes[first]) / usual)
    start_s, end_s = float(track.start_s[first]), float(track.end_s[first])
    return track.first_data_at_s + end_s - share * (end_s - start_s)


class _Fleet:
    """One flow of the pairs, held against each other and summed."""

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
        if pair.alike and sent is not None and _is_whole(sent, float(received.end_s[-1])):
            self._arrived += _bytes(received)
            self._written += _bytes(sent)
            self._blocks += pair.blocks_bytes
            self._count += 1
        copies = list(self._copy(pair, received, sent=False))
        if not copies and sent is not None:
            copies = list(self._copy(pair, sent, sent=True))
        self._copies += copies

    def found(self) -> Iterator[Contradiction]:
        """Of many pairs, what is under every single one's tolerance and over that of their sum;
        and the copies."""
        arrived, written = self._arrived, self._written
        if self._count > 1 and arrived > written * (1 + FLEET_BYTES_RATIO) + self._blocks:
            yield Contradiction(
                rule=Rule.RECEIVED_OVER_SENT, flow=self._flow, said=arrived, bound=written
            )
        yield from self._copies

    def _copy(self, pair: _Pair, track: TrackColumns, *, sent: bool) -> Iterator[Contradiction]:
        """Yield an end's seconds that are those of another pair's same end to the byte.

        Two tests are never that alike, but for those so few, or so even, that it may be chance.
        """
        told = (sent, hashlib.sha256(track.transferred_bytes.tobytes()).digest())
        if told in self._seen and _is_varied(pair, track, sent=sent):
            yield pair.broke(Rule.COPIED, _bytes(track), 0.0, self._flow)
        self._seen.add(told)
