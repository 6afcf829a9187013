"""What is known of a burst before anything is concluded: both ends' records and the ledger.

Seconds are columns from the decoder on: a tenth of the memory of row values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol

import numpy as np

from broadside.coordinator.core.measure.columns import NO_HOST, Floats, HostColumns, TrackColumns
from broadside.coordinator.core.measure.two_ends import EndsOffset
from broadside.coordinator.core.plan.spec import Burst, Pair
from broadside.coordinator.core.summary import ForeignRow, Joined, Stray
from broadside.exchange.engines.buckets import folded
from broadside.exchange.engines.stream_silences import longest_silences
from broadside.exchange.engines.tokens import is_job_cookie
from broadside.exchange.messages import (
    Claim,
    ClockReading,
    EngineReport,
    Flow,
    FlowTotals,
    JobReport,
    Outcome,
    ServerTest,
    Side,
)

HOLD_MAX_S: Final = 60.0  # s before the instant at which the gate may already open connections
CLOCK_SLACK_S: Final = 2.0  # s by which two hosts' clocks may disagree when ends are joined
_BLOCK_COUNT: Final = 50_000  # seconds of one end of all pairs that are unpacked at once


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeColumn:
    """One pair's probes, a step apart."""

    first_at_s: float  # epoch s
    every_s: float
    rtt_s: Floats  # NaN: lost; negative: not sent


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvidence:
    """Everything known of one planned pair in one burst; ``None`` and empty mean unknown."""

    pair_index: int
    name: str | None = None  # what a file calls it; None: it has a number only
    unheard: str | None = None  # why nobody told of it, though it may have sent; None: no such word
    claim: Claim | None = None
    report: JobReport | None = None
    client_tracks: tuple[TrackColumns, ...] = ()
    client_host: HostColumns = NO_HOST
    server_test: ServerTest | None = None
    server_tracks: tuple[TrackColumns, ...] = ()
    server_host: HostColumns = NO_HOST
    joined_by: Joined | None = None
    client_nic_bits_per_second: float | None = None  # egress cap by the VM size
    server_nic_bits_per_second: float | None = None
    nic_mtu_bytes: int | None = None  # smallest of both ends'
    client_vm_size: str | None = None
    server_vm_size: str | None = None
    probes: ProbeColumn | None = None
    ends_offset: EndsOffset | None = None  # of imports: how the server's seconds were placed

    @property
    def engines(self) -> tuple[EngineReport, ...]:
        """What the engines of its two ends said, as far as they did; the client's first."""
        ends = (self.report, self.server_test)
        return tuple(end.engine for end in ends if end is not None and end.engine is not None)

    @property
    def server_lead_s(self) -> float:
        """Seconds of a server's engine time in which its client was still held by the gate."""
        return (self.report.server_lead_s or 0.0) if self.report is not None else 0.0

    @property
    def clock_fixes(self) -> Mapping[Side, tuple[float, float | None]]:
        """Of each end's stamps, as :func:`clock_correction` says."""
        report, test, claim = self.report, self.server_test, self.claim
        return {
            Side.CLIENT: clock_correction(
                *((report.clock_before, report.clock_after) if report else ()),
                claim.clock if claim else None,
            ),
            Side.SERVER: clock_correction(*((test.clock_before, test.clock_after) if test else ())),
        }


# Gives pairs the seconds that are still packed: all columns, or (with True) those alone that say
# from when to when a track is.
Unpack = Callable[[Sequence[PairEvidence], bool], Sequence[PairEvidence]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstEvidence:
    """One planned burst: one :class:`PairEvidence` for every planned pair, in any order."""

    burst: Burst
    pairs: tuple[PairEvidence, ...]  # with their seconds, or without them and with ``unpack``
    unpack: Unpack | None = None
    strays: tuple["Stray", ...] = ()  # others' tests on the pairs' endpoints
    foreign_rows: tuple[ForeignRow, ...] = ()  # rows that name another than their writer
    start_known: bool = True  # False: the instant was inferred from the starts themselves
    cancelled_at: datetime | None = None
    cancel_reason: str | None = None

    @property
    def in_order(self) -> tuple[PairEvidence, ...]:
        """The pairs in the order of their numbers."""
        return tuple(sorted(self.pairs, key=lambda pair: pair.pair_index))

    def blocks(self, *, instants_only: bool = False) -> Iterator[Sequence[PairEvidence]]:
        """The same with their seconds, some pairs at a time: all at once may take gigabytes."""
        pairs = self.in_order
        if self.unpack is None:
            yield pairs
            return
        count = max(1, _BLOCK_COUNT // max(1, self.burst.duration_s))
        for first in range(0, len(pairs), count):
            yield self.unpack(pairs[first : first + count], instants_only)


# Where the firewall counts: payload, IP packets, Ethernet frames (without preamble and checksum),
# or unsaid.
LedgerLayer = Literal["payload", "ip", "wire", "unknown"]
# Which way it counts: from clients to servers, from servers to clients, or both.
CounterDirection = Literal["in", "out", "both"]
FLOWS_COUNTED: Final[Mapping[CounterDirection, tuple[Flow, ...]]] = {
    "in": (Flow.UP,),
    "out": (Flow.DOWN,),
    "both": tuple(Flow),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallLedger:
    """Bytes over time as the firewall counted them; bins in time order, never overlapping.

    A bin says that ``bytes`` passed between ``start_s - lag`` and ``end_s - lag``; the lag is
    estimated (:mod:`broadside.coordinator.core.judge.reconcile`). NaN bytes are unknown, never
    zero."""

    source: str  # "lab", "azure-monitor", a file's name: what a reader should look up
    layer: LedgerLayer = "unknown"
    start_s: Floats  # epoch s of each bin's label
    end_s: Floats
    bytes: Floats
    grain_s: float  # s, the usual length of a bin
    read_at: datetime
    lag_hint_s: float | None = None  # s, documented or known from earlier runs
    vxlan: bool = False  # layer wire: frames carry a VXLAN outer header
    flows: tuple[Flow, ...] = tuple(Flow)  # those whose payload it counts
    snat_utilization_ratio: float | None = None  # worst over the run, where the firewall says
    notes: tuple[str, ...] = ()
    drops_count: Floats | None = None  # packets dropped, of each bin; None: not counted
    counts_from_s: float | None = None  # epoch s before which its device counted nothing, if told
    # Why the source's answer is known to be incomplete: what is missing would read as traffic that
    # did not cross the device.
    partial: str | None = None
    # Whether bytes that are lost on the path are counted: True for a counter in front of the drop,
    # False for one behind it, None where nobody declared it
    counts_lost: bool | None = None
    # Declared: TCP payload of a full packet, or the path's MTU; None: as the fleet recorded it.
    mss_bytes: int | None = None
    mtu_bytes: int | None = None
    extreme: Literal["maximum", "minimum"] | None = None  # of samples in a bin: no byte counts

    def __len__(self) -> int:
        return len(self.start_s)

    def proving(self) -> "FirewallLedger":
        """Return the bins as evidence: those of an incomplete answer are unknown."""
        if self.partial is None:
            return self
        return replace(self, bytes=np.full(len(self), np.nan), snat_utilization_ratio=None)


_Key = tuple[str, str, int, datetime]  # of a test: its agent, address, port and beginning
_NEVER_STARTED: Final = (Outcome.MISSED, Outcome.REFUSED)


class ServerRecord(Protocol):
    """A server-side test with its seconds, however the caller stores it."""

    @property
    def test(self) -> ServerTest: ...
    @property
    def tracks(self) -> Sequence[TrackColumns]: ...
    @property
    def host(self) -> HostColumns: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Server-side tests by pair index, and those that belong to no pair of the burst."""

    records: Mapping[int, ServerRecord]
    joined_by: Mapping[int, Joined]
    strays: tuple[ServerRecord, ...] = field(default=())


def join_tests(
    burst: Burst,
    pairs: Sequence[Pair],
    claims: Mapping[int, Claim],
    reports: Mapping[int, JobReport],
    tests: Sequence[ServerRecord],
) -> Join:
    """Find each pair's server-side test; what is left on the pairs' endpoints are strays.

    A test is of the pair only where it is a record of the planned agent: who else names the
    endpoint did not serve it.

    By cookie where the client lived to name it (in its report, else in its claim), but never a
    test on another pair's endpoint. A cookie proves the pair, whatever addresses a device on the
    path has rewritten. A daemon's is the job's id, which is known of a client that died too.

    Else by endpoint and time (:func:`_near`), nearest first, where it is nobody else's: a client
    that sent nothing has no test, one that named its test has no other, a test comes from the
    address of the agent that claimed the job, one that has a name is not taken without knowing
    that address, and one that names a job is that job's.

    A test is joined once; of records of one test the fullest stands. The order of ``tests`` does
    not matter. A pair of several processes has a test on each of its ports: they are summed, and
    where one is missing none is used, as a part would pass for the whole.
    """
    joining = _Joining(burst, pairs, claims, reports, _fullest_records(tests))
    for pair in pairs:
        if not is_unsent(reports.get(pair.index)):
            joining.by_cookie(pair)
    for pair in pairs:
        if not is_unsent(reports.get(pair.index)):
            joining.by_endpoint(pair)
    return joining.done()


class _Joining:
    """Server-side tests that are being joined to pairs; ``free`` are those of nobody so far."""

    def __init__(
        self,
        burst: Burst,
        pairs: Sequence[Pair],
        claims: Mapping[int, Claim],
        reports: Mapping[int, JobReport],
        free: dict[_Key, ServerRecord],
    ) -> None:
        self._burst = burst
        self._pairs = pairs
        self._claims = claims
        self._reports = reports
        self._free = free
        self._owners = _owners(pairs)
        self._by_cookie: dict[str, list[_Key]] = {}
        for key, record in free.items():
            if record.test.cookie is not None:
                self._by_cookie.setdefault(record.test.cookie, []).append(key)
        self._named: set[str] = set()  # cookies that clients named
        self._parts: dict[int, dict[int, ServerRecord]] = {}  # by pair index and port
        self._joined_by: dict[int, Joined] = {}

    def by_cookie(self, pair: Pair) -> None:
        """Join the tests that carry a cookie of the pair's, where they ran on no other's
        endpoint."""
        report, claim = self._reports.get(pair.index), self._claims.get(pair.index)
        said = _cookies(report, claim)
        self._named.update(said)
        for cookie in dict.fromkeys((*said, *_job_ids(report, claim))):
            found = [
                key
                for key in self._by_cookie.get(cookie, ())
                if key in self._free and self._is_at(pair, self._free[key].test)
            ]
            if found:
                self._take(pair, _fullest(found, self._free), Joined.COOKIE)
                if is_job_cookie(cookie):  # its server's daemon was started again meanwhile
                    for key in found:
                        self._free.pop(key, None)

    def by_endpoint(self, pair: Pair) -> None:
        """Join the nearest test on each of the pair's ports that still has none."""
        if pair.index in self._parts and not pair.endpoint.more_ports:
            return
        for port in pair.endpoint.ports:
            if port in self._parts.get(pair.index, {}):
                continue
            near = [
                (_distance_s(record.test, self._burst), key)
                for key, record in self._free.items()
                if record.test.endpoint.port == port and self._may_be(pair, record.test)
            ]
            if near:
                self._take(pair, min(near)[1], Joined.ENDPOINT)

    def done(self) -> Join:
        """Return what was joined; a pair of several processes needs a test of each."""
        records: dict[int, ServerRecord] = {}
        for pair in self._pairs:
            found = list(self._parts.get(pair.index, {}).values())
            if found and len(found) >= len(pair.endpoint.ports):
                records[pair.index] = found[0] if len(found) == 1 else summed(found)
            else:
                self._joined_by.pop(pair.index, None)
        strays = tuple(self._free.values())
        return Join(records=records, joined_by=self._joined_by, strays=strays)

    def _take(self, pair: Pair, key: _Key, how: Joined) -> None:
        record = self._free.pop(key)
        self._parts.setdefault(pair.index, {})[record.test.endpoint.port] = record
        self._joined_by[pair.index] = how

    def _is_at(self, pair: Pair, test: ServerTest) -> bool:
        """Return whether a test is of the pair's server, and ran on no other pair's endpoint."""
        if test.agent_id != pair.endpoint.agent_id:
            return False
        return self._owners.get(_place(test), pair.index) == pair.index

    def _may_be(self, pair: Pair, test: ServerTest) -> bool:
        """Return whether a test near the burst, on the pair's port, can be that of the pair."""
        planned = pair.endpoint.agent_id, pair.endpoint.address
        if (test.agent_id, test.endpoint.address) != planned or not _near(test, self._burst):
            return False
        claim = self._claims.get(pair.index)
        address = None if claim is None else claim.address
        if address is not None and _client_address(test) not in (None, address):
            return False
        if test.cookie is None:
            return True
        if is_job_cookie(test.cookie) or test.cookie in self._named or address is None:
            return False
        # A claim names the first of several processes only.
        return not _cookies(
            self._reports.get(pair.index), None if pair.endpoint.more_ports else claim
        )


def _fullest_records(tests: Sequence[ServerRecord]) -> dict[_Key, ServerRecord]:
    """Return the fullest record of each test, in the order of their keys."""
    fullest: dict[_Key, ServerRecord] = {}
    for record in tests:
        test = record.test
        key = (test.agent_id, test.endpoint.address, test.endpoint.port, test.started_at)
        known = fullest.get(key)
        if known is None or _fullness(record) > _fullness(known):
            fullest[key] = record
    return dict(sorted(fullest.items(), key=lambda item: item[0]))


_Place = tuple[str, str, int]  # server agent, address, port


def _place(test: ServerTest) -> _Place:
    return test.agent_id, test.endpoint.address, test.endpoint.port


def _owners(pairs: Sequence[Pair]) -> Mapping[_Place, int]:
    """Pair indices by server agent, address and port."""
    return {
        (pair.endpoint.agent_id, pair.endpoint.address, port): pair.index
        for pair in pairs
        for port in pair.endpoint.ports
    }


def is_unsent(report: JobReport | None) -> bool:
    """Whether a client says that it sent nothing: no server's test can be its own."""
    if report is None:
        return False
    if report.outcome is Outcome.FAILED:
        said = () if report.engine is None else report.engine.totals
        return report.first_data_at is None and not any(
            total.sent_bytes or total.received_bytes for total in said
        )
    return report.outcome in _NEVER_STARTED


def strays_during(
    burst: Burst, pairs: Sequence[Pair], strays: Sequence[ServerRecord]
) -> tuple[Stray, ...]:
    """Of the tests that belong to no pair, those that ran on a pair's endpoint in the burst."""
    owners = _owners(pairs)
    found = []
    for record in strays:
        test = record.test
        place = _place(test)
        begun_at = test.first_data_at or test.started_at
        slack = timedelta(seconds=CLOCK_SLACK_S)
        is_over = test.ended_at is not None and (
            test.ended_at <= burst.planned_start_at + slack or test.first_data_at is None
        )
        if place not in owners or is_over or begun_at >= burst.planned_end_at - slack:
            continue
        found.append(
            Stray(
                pair_index=owners[place],
                address=test.endpoint.address,
                port=test.endpoint.port,
                started_at=test.started_at,
                client_address=test.client_address,
                cookie=test.cookie,
                received_bytes=int(
                    sum(np.nansum(track.transferred_bytes) for track in record.tracks)
                )
                if record.tracks
                else None,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """The tests of a pair's several processes as one record."""

    test: ServerTest
    tracks: Sequence[TrackColumns]
    host: HostColumns


def summed(records: Sequence[ServerRecord]) -> Summed:
    """One record of several that ran at once on one server, its bytes conserved."""
    lead = records[0]
    tests = [record.test for record in records]
    firsts = [test.first_data_at for test in tests if test.first_data_at is not None]
    ends = [test.ended_at for test in tests if test.ended_at is not None]
    totals = tuple(
        _summed_totals(said)
        for flow in Flow
        if len(said := [t for test in tests for t in test.engine.totals if t.flow is flow])
        == len(tests)
    )
    told: dict[tuple[Side, Flow], list[TrackColumns]] = {}
    for track in (track for record in records for track in record.tracks):
        told.setdefault((track.side, track.flow), []).append(track)
    places = ((side, flow) for side in Side for flow in Flow)
    tracks = [
        _summed_tracks(told[place]) for place in places if len(told.get(place, ())) == len(tests)
    ]

    def total(name: str) -> float | None:
        values = [getattr(test.engine, name) for test in tests]
        return None if None in values else sum(values)

    hosts = [cpu_s for test in tests if (cpu_s := test.engine.host_cpu_s) is not None]
    engine = lead.test.engine.model_copy(
        update={
            "totals": totals,
            "cpu_s": total("cpu_s"),
            "cpu_payload_bytes": total("cpu_payload_bytes"),
            "distributions": folded(d for test in tests for d in test.engine.distributions),
            "silent_streams": longest_silences(
                s for test in tests for s in test.engine.silent_streams
            ),
            # Of one host, over all but the same time.
            "host_cpu_s": max(hosts) if len(hosts) == len(tests) else None,
        }
    )
    return Summed(
        test=lead.test.model_copy(
            update={
                "engine": engine,
                "first_data_at": min(firsts, default=None),
                "ended_at": max(ends) if len(ends) == len(tests) else None,
            }
        ),
        tracks=tracks,
        host=lead.host,
    )


def _summed_totals(said: Sequence[FlowTotals]) -> FlowTotals:
    """Counts added up where each is known; seconds of the longest."""

    def total(name: str) -> int | None:
        values = [getattr(part, name) for part in said]
        return None if None in values else sum(values)

    def longest(name: str) -> float | None:
        return max((v for part in said if (v := getattr(part, name)) is not None), default=None)

    counts = ("sent_bytes", "received_bytes", "retransmits_count", "packets_count", "lost_count")
    update = {name: total(name) for name in counts}
    spans = {name: longest(name) for name in ("sent_s", "received_s", "rtt_max_s")}
    return said[0].model_copy(update=update | spans)


def _summed_tracks(tracks: Sequence[TrackColumns]) -> TrackColumns:
    """Several tracks of one flow as one, on the bounds of the longest.

    Cumulative amounts are interpolated at the bounds; round trips are means, windows sums.
    """
    zero_s = min(track.first_data_at_s for track in tracks)
    placed = [
        replace(
            track,
            start_s=track.start_s + (track.first_data_at_s - zero_s),
            end_s=track.end_s + (track.first_data_at_s - zero_s),
        )
        for track in tracks
        if len(track)
    ]
    lead = max(placed, key=len, default=tracks[0])
    if not placed:
        return lead
    edges = np.append(lead.start_s, lead.end_s[-1])
    edges[0] = min(track.start_s[0] for track in placed)
    edges[-1] = max(track.end_s[-1] for track in placed)
    middles = (edges[1:] + edges[:-1]) / 2

    def added(name: str) -> Floats:
        amounts = np.zeros(len(lead))
        for track in placed:
            reached = np.append(0.0, np.cumsum(getattr(track, name), dtype=np.float64))
            bounds = np.append(track.start_s, track.end_s[-1])
            amounts += np.diff(np.interp(edges, bounds, reached))
        return amounts

    def levels(name: str) -> list[Floats]:
        return [
            np.interp(middles, (track.start_s + track.end_s) / 2, getattr(track, name))
            for track in placed
        ]

    return replace(
        lead,
        first_data_at_s=zero_s,
        start_s=edges[:-1],
        end_s=edges[1:],
        transferred_bytes=added("transferred_bytes"),
        rtt_s=np.mean(levels("rtt_s"), axis=0).astype(np.float32),
        cwnd_bytes=np.sum(levels("cwnd_bytes"), axis=0).astype(np.float32),
        retransmits_count=added("retransmits_count").astype(np.float32),
        packets_count=added("packets_count").astype(np.float32),
        lost_count=added("lost_count").astype(np.float32),
    )


def _near(test: ServerTest, burst: Burst) -> bool:
    """Whether a test can be of this burst: opened at most :data:`HOLD_MAX_S` before the instant,
    no data before it, not over by then."""
    hold = timedelta(seconds=HOLD_MAX_S)
    slack = timedelta(seconds=CLOCK_SLACK_S)
    at = burst.planned_start_at
    return (
        at - hold <= test.started_at < burst.planned_end_at
        and (test.first_data_at is None or test.first_data_at >= at - slack)
        and (test.ended_at is None or test.ended_at > at)
    )


def _cookies(report: JobReport | None, claim: Claim | None) -> tuple[str, ...]:
    """The cookies of a pair's processes; of a client that died that of its first one."""
    if report is not None and report.engine is not None and report.engine.cookies:
        return report.engine.cookies
    return () if claim is None or claim.cookie is None else (claim.cookie,)


def _job_ids(report: JobReport | None, claim: Claim | None) -> tuple[str, ...]:
    """Return the job of a pair, where a client has told of it."""
    return tuple(told.job_id for told in (report, claim) if told is not None)


def _client_address(test: ServerTest) -> str | None:
    """Who connected, without the prefix that a server of both families writes before IPv4."""
    return None if test.client_address is None else test.client_address.removeprefix("::ffff:")


def _fullness(record: ServerRecord) -> tuple[bool, float, int]:
    """How much a record of a test holds: ended, bytes, rows."""
    return (
        record.test.ended_at is not None,
        float(sum(np.nansum(track.transferred_bytes) for track in record.tracks)),
        sum(len(track) for track in record.tracks),
    )


def _fullest(
    keys: Sequence[_Key],
    records: Mapping[_Key, ServerRecord],
) -> _Key:
    """Of one record nobody needs to know how full it is: that may cost unpacking it."""
    return keys[0] if len(keys) == 1 else max(keys, key=lambda key: _fullness(records[key]))


def _distance_s(test: ServerTest, burst: Burst) -> float:
    begun_at = test.first_data_at or test.started_at
    return abs((begun_at - burst.planned_start_at).total_seconds())


def clock_correction(*readings: ClockReading | None) -> tuple[float, float | None]:
    """Seconds to subtract from an end's stamps, and how far off they may still be.

    The mean offset of the readings that say they are synchronised, and the largest bound of
    them; ``(0, None)`` when none does: an unknown bound is not a small one.
    """
    good = [reading for reading in readings if reading is not None and reading.synchronised]
    offsets = [reading.offset_s for reading in good if reading.offset_s is not None]
    bounds = [reading.bound_s for reading in good if reading.bound_s is not None]
    return (
        sum(offsets) / len(offsets) if offsets else 0.0,
        max(bounds) if bounds else None,
    )
