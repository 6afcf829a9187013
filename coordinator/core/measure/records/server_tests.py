"""Matching of server-side tests to the pairs of a burst."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.columns import HostColumns, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import OPENED_BEFORE_MAX_S
from broadside.coordinator.core.run_spec import Burst, Pair
from broadside.coordinator.core.summary import ForeignTest, MatchMethod
from broadside.exchange.engines.buckets import folded
from broadside.exchange.engines.peer_seconds import PeerRates
from broadside.exchange.engines.stream_silences import longest_silences
from broadside.exchange.engines.tokens import is_job_cookie
from broadside.exchange.messages import (
    Claim,
    Flow,
    FlowTotals,
    JobReport,
    Outcome,
    PeerSeconds,
    ServerTest,
    Side,
)

# Seconds by which clocks can differ when tests are matched to pairs.
CLOCK_SLACK_S: Final = 2.0
# A test's agent, address, port and start time.
_Key = tuple[str, str, int, datetime]
_NEVER_STARTED: Final = (Outcome.MISSED, Outcome.REFUSED)


class ServerRecord(Protocol):
    """Server-side test and its seconds, independent of how the caller stores it."""

    @property
    def test(self) -> ServerTest: ...
    @property
    def tracks(self) -> Sequence[IntervalColumns]: ...
    @property
    def host(self) -> HostColumns: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTests:
    """Server-side tests by pair index, and tests that belong to no pair in the burst."""

    records: Mapping[int, ServerRecord]
    joined_by: Mapping[int, MatchMethod]
    foreign_tests: tuple[ServerRecord, ...] = field(default=())


def join_tests(
    burst: Burst,
    pairs: Sequence[Pair],
    claims: Mapping[int, Claim],
    reports: Mapping[int, JobReport],
    tests: Sequence[ServerRecord],
) -> JoinedTests:
    """Match server-side tests to pairs, and return all other tests as foreign_tests.

    A test can only belong to a pair if it was recorded by the planned agent. Tests are matched in
    two steps:

    1. By cookie, if the client's report or claim has a cookie. The test must not be on another
       pair's endpoint. A cookie can be used to prove the pair, even if a device on the path changes
       addresses. For a daemon, it is the job id, which is available even if the client died.
    2. By endpoint and time (see ``_near``), starting with the nearest test. If a client sent
       nothing, it cannot have a test. If it named its test, it cannot have another. The client
       address in the test needs to be that of the agent with the job's claim. If the test has a
       cookie, this address needs to be available. If the test names a job, it belongs to this job.

    A test can only be matched once. If there are several records for a test, the most complete will
    be used. When a pair uses several processes, there should be a test on each port, and these
    tests will be added. If a test is missing, no test will be used, because a part would look like
    the total.

    Args:
        burst: The burst to match.
        pairs: Its planned pairs.
        claims: Claims by pair index.
        reports: Client reports by pair index.
        tests: Records from all servers, in any order.

    Returns:
        Tests by pair index, and the tests that belong to no pair.
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
    """State for matching, where ``free`` has all tests that are not matched yet."""

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
        # Cookies that clients have named.
        self._named: set[str] = set()
        # Records by pair index and port.
        self._parts: dict[int, dict[int, ServerRecord]] = {}
        self._joined_by: dict[int, MatchMethod] = {}

    def by_cookie(self, pair: Pair) -> None:
        """Match tests by this pair's cookies.

        A test will not be used if it is on another pair's endpoint.
        """
        report, claim = self._reports.get(pair.index), self._claims.get(pair.index)
        reported = _cookies(report, claim)
        self._named.update(reported)
        for cookie in dict.fromkeys((*reported, *_job_ids(report, claim))):
            results = [
                key
                for key in self._by_cookie.get(cookie, ())
                if key in self._free and self._is_at(pair, self._free[key].test)
            ]
            if results:
                self._take(pair, _fullest(results, self._free), MatchMethod.COOKIE)
                # The server's daemon was restarted during the test.
                if is_job_cookie(cookie):
                    for key in results:
                        self._free.pop(key, None)

    def by_endpoint(self, pair: Pair) -> None:
        """Match the nearest test on each port that does not have any yet."""
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
                self._take(pair, min(near)[1], MatchMethod.ENDPOINT)

    def done(self) -> JoinedTests:
        """Return the result. If a pair uses several processes, it will need a test for each."""
        records: dict[int, ServerRecord] = {}
        for pair in self._pairs:
            results = list(self._parts.get(pair.index, {}).values())
            if results and len(results) >= len(pair.endpoint.ports):
                records[pair.index] = results[0] if len(results) == 1 else summed(results)
            else:
                self._joined_by.pop(pair.index, None)
        foreign_tests = tuple(self._free.values())
        return JoinedTests(records=records, joined_by=self._joined_by, foreign_tests=foreign_tests)

    def _take(self, pair: Pair, key: _Key, how: MatchMethod) -> None:
        record = self._free.pop(key)
        self._parts.setdefault(pair.index, {})[record.test.endpoint.port] = record
        self._joined_by[pair.index] = how

    def _is_at(self, pair: Pair, test: ServerTest) -> bool:
        """Return true if a test ran on this pair's server and on no other pair's endpoint."""
        if test.agent_id != pair.endpoint.agent_id:
            return False
        return self._owners.get(_place(test), pair.index) == pair.index

    def _may_be(self, pair: Pair, test: ServerTest) -> bool:
        """Return true if a test near the burst, on this pair's port, can belong to the pair."""
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
        # When there are several processes, a claim only names the first.
        return not _cookies(
            self._reports.get(pair.index), None if pair.endpoint.more_ports else claim
        )


def _fullest_records(tests: Sequence[ServerRecord]) -> dict[_Key, ServerRecord]:
    """Return the most complete record per test, sorted by key."""
    fullest: dict[_Key, ServerRecord] = {}
    for record in tests:
        test = record.test
        key = (test.agent_id, test.endpoint.address, test.endpoint.port, test.started_at)
        known = fullest.get(key)
        if known is None or _fullness(record) > _fullness(known):
            fullest[key] = record
    return dict(sorted(fullest.items(), key=lambda item: item[0]))


# Server agent, address and port.
_Place = tuple[str, str, int]


def _place(test: ServerTest) -> _Place:
    return test.agent_id, test.endpoint.address, test.endpoint.port


def _owners(pairs: Sequence[Pair]) -> Mapping[_Place, int]:
    """Return pair indexes by server agent, address and port."""
    return {
        (pair.endpoint.agent_id, pair.endpoint.address, port): pair.index
        for pair in pairs
        for port in pair.endpoint.ports
    }


def is_unsent(report: JobReport | None) -> bool:
    """Return true if a client reports that it sent nothing.

    In this case, it cannot have a server-side test.
    """
    if report is None:
        return False
    if report.outcome is Outcome.FAILED:
        reported = () if report.engine is None else report.engine.totals
        return report.first_data_at is None and not any(
            total.sent_bytes or total.received_bytes for total in reported
        )
    return report.outcome in _NEVER_STARTED


def foreign_tests_during(
    burst: Burst, pairs: Sequence[Pair], foreign_tests: Sequence[ServerRecord]
) -> tuple[ForeignTest, ...]:
    """Return stray tests that ran on a pair's endpoint during the burst.

    Args:
        burst: The burst to check.
        pairs: Its planned pairs.
        foreign_tests: Tests that belong to no pair.

    Returns:
        One entry for each test, in the order of ``foreign_tests``.
    """
    owners = _owners(pairs)
    results = []
    for record in foreign_tests:
        test = record.test
        place = _place(test)
        begun_at = test.first_data_at or test.started_at
        slack = timedelta(seconds=CLOCK_SLACK_S)
        is_over = test.ended_at is not None and (
            test.ended_at <= burst.planned_start_at + slack or test.first_data_at is None
        )
        if place not in owners or is_over or begun_at >= burst.planned_end_at - slack:
            continue
        results.append(
            ForeignTest(
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
    return tuple(results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """Tests from a pair's processes, merged into a single record."""

    test: ServerTest
    tracks: Sequence[IntervalColumns]
    host: HostColumns


def summed(records: Sequence[ServerRecord]) -> Summed:
    """Add up records that ran at the same time on the same server, with no loss of bytes."""
    lead = records[0]
    tests = [record.test for record in records]
    firsts = [test.first_data_at for test in tests if test.first_data_at is not None]
    ends = [test.ended_at for test in tests if test.ended_at is not None]
    totals = tuple(
        _summed_totals(reported)
        for flow in Flow
        if len(reported := [t for test in tests for t in test.engine.totals if t.flow is flow])
        == len(tests)
    )
    known: dict[tuple[Side, Flow], list[IntervalColumns]] = {}
    for track in (track for record in records for track in record.tracks):
        known.setdefault((track.side, track.flow), []).append(track)
    places = ((side, flow) for side in Side for flow in Flow)
    tracks = [
        _summed_tracks(known[place]) for place in places if len(known.get(place, ())) == len(tests)
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
            "peers": _summed_peers(records, min(firsts, default=None)),
            # These are on the same host, and run at nearly the same time.
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


def _summed_peers(
    records: Sequence[ServerRecord], zero_at: datetime | None
) -> tuple[PeerSeconds, ...]:
    """Return the seconds by client address of several processes, on their common engine time.

    An address can be in the result several times. If there are several addresses, a test with only
    one of them gets the steps from its tracks.

    Args:
        records: Tests of the processes.
        zero_at: Zero of the common engine time. None if unknown.
    """
    addresses = {peer.address for record in records for peer in record.test.engine.peers}
    peers = []
    for record in records:
        test = record.test
        shift_s = 0.0
        if zero_at is not None and test.first_data_at is not None:
            shift_s = (test.first_data_at - zero_at).total_seconds()
        for peer in test.engine.peers:
            if not peer.packed and len(addresses) > 1:
                peer = _with_steps(peer, record.tracks)
            peers.append(peer.model_copy(update={"from_s": peer.from_s + shift_s}))
    return tuple(peers)


def _with_steps(peer: PeerSeconds, tracks: Sequence[IntervalColumns]) -> PeerSeconds:
    """Return the only address of a test with the seconds of the test as its steps."""
    rates = PeerRates()
    for track in tracks:
        rows = zip(track.start_s, track.end_s, track.transferred_bytes, strict=True)
        for start_s, end_s, amount in rows:
            if not math.isnan(amount):
                rates.take(float(start_s), float(end_s), {1: int(amount)}, {1: peer.address})
    return rates.steps_of(peer)


def _summed_totals(reported: Sequence[FlowTotals]) -> FlowTotals:
    """Add up counts if they are available in all parts, and get the longest time."""

    def total(name: str) -> int | None:
        values = [getattr(part, name) for part in reported]
        return None if None in values else sum(values)

    def longest(name: str) -> float | None:
        return max((v for part in reported if (v := getattr(part, name)) is not None), default=None)

    counts = ("sent_bytes", "received_bytes", "retransmits_count", "packets_count", "lost_count")
    update = {name: total(name) for name in counts}
    spans = {name: longest(name) for name in ("sent_s", "received_s", "rtt_max_s")}
    return reported[0].model_copy(update=update | spans)


def _summed_tracks(tracks: Sequence[IntervalColumns]) -> IntervalColumns:
    """Add up several tracks for a flow, using the longest track's interval bounds.

    Cumulative values are interpolated at these bounds. Round-trip times are averaged, and windows
    are added.
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
    """Return true if a test can belong to this burst.

    It must not open more than :data:`OPENED_BEFORE_MAX_S` before the planned start, and there needs
    to be no data until then. It needs to end after the planned start.
    """
    phase = timedelta(seconds=OPENED_BEFORE_MAX_S)
    slack = timedelta(seconds=CLOCK_SLACK_S)
    at = burst.planned_start_at
    return (
        at - phase <= test.started_at < burst.planned_end_at
        and (test.first_data_at is None or test.first_data_at >= at - slack)
        and (test.ended_at is None or test.ended_at > at)
    )


def _cookies(report: JobReport | None, claim: Claim | None) -> tuple[str, ...]:
    """Return cookies for a pair's processes, or just the first if the client died."""
    if report is not None and report.engine is not None and report.engine.cookies:
        return report.engine.cookies
    return () if claim is None or claim.cookie is None else (claim.cookie,)


def _job_ids(report: JobReport | None, claim: Claim | None) -> tuple[str, ...]:
    """Return a pair's job ids if they are available from the client."""
    return tuple(reported.job_id for reported in (report, claim) if reported is not None)


def _client_address(test: ServerTest) -> str | None:
    """Return the client's address without the IPv6 prefix added by dual-stack servers."""
    return None if test.client_address is None else test.client_address.removeprefix("::ffff:")


def _fullness(record: ServerRecord) -> tuple[bool, float, int]:
    """Return a key to compare how complete records are, as (has an end, bytes, rows)."""
    return (
        record.test.ended_at is not None,
        float(sum(np.nansum(track.transferred_bytes) for track in record.tracks)),
        sum(len(track) for track in record.tracks),
    )


def _fullest(keys: Sequence[_Key], records: Mapping[_Key, ServerRecord]) -> _Key:
    """Return the most complete record. If there is just one, it will not be unpacked."""
    return keys[0] if len(keys) == 1 else max(keys, key=lambda key: _fullness(records[key]))


def _distance_s(test: ServerTest, burst: Burst) -> float:
    begun_at = test.first_data_at or test.started_at
    return abs((begun_at - burst.planned_start_at).total_seconds())
