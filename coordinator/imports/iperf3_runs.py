"""Runs from iperf3 files. Pure.

The cookie joins the recordings of both ends of a test, which are one pair. Tests with the same
direction and protocol that overlap by at least half are one burst. Files from different days become
separate bursts. The tests may not have been started together on purpose. A start is therefore late
only after more than a minute.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Final

from broadside.coordinator.chunk_decoder import read_track
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.ends_offset import EndsOffset, place_ends
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import Burst, CounterRequirement, Pair, Plan, due_at
from broadside.coordinator.core.summary import Finding, MatchMethod
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_answers import bit_rate
from broadside.coordinator.imports.import_requests import Recording, Recordings, RecordingState
from broadside.coordinator.imports.import_runs import (
    ImportedState,
    Measured,
    build_spec,
    endpoint,
    identifier,
    job_report,
    note_findings,
)
from broadside.coordinator.imports.metric_csv import throughput_counter
from broadside.exchange.chunks import last_end_s
from broadside.exchange.engines.iperf3 import MINIMUM_VERSION
from broadside.exchange.engines.iperf3_account import parse_version
from broadside.exchange.messages import (
    Direction,
    EngineReport,
    Outcome,
    Protocol,
    ServerTest,
    Side,
    Traffic,
)
from broadside.exchange.second_rows import PackedChunk, PackedTrack

SCENARIO: Final = "iperf3"
LATE_AFTER_S: Final = 60.0
# Before version 3.20, iperf3 timestamps are whole seconds.
CLOCK_BOUND_S: Final = 1.0
# Minimum overlap between two tests in one burst, relative to the shorter one.
OVERLAP_RATIO: Final = 0.5
# Length of a test with unknown duration. This is the default of iperf3.
_UNTIMED_S: Final = 10
_OUTSIDE: Final = (RecordingState.UNREADABLE, RecordingState.UNSUPPORTED)
_OUTCOMES: Final = {
    RecordingState.MEASURED: Outcome.MEASURED,
    RecordingState.TRUNCATED: Outcome.ABANDONED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """One test, with recordings from one or both ends.

    Attributes:
        ends: Recording of each end.
        name: Test name.
        seen_s: Recorded engine time in seconds, including warm-up.
        clock: End that provides the time of the test.
    """

    ends: Mapping[Side | None, Recording]
    name: str
    seen_s: float
    clock: Side = Side.CLIENT

    @property
    def lead(self) -> Recording:
        return _lead(self.ends)

    @property
    def report(self) -> EngineReport:
        return self.lead.report or EngineReport(engine="iperf3")

    @property
    def start_s(self) -> float:
        first = self.ends.get(self.clock, self.lead)
        stamps = (first, self.lead, *self.ends.values())
        known = (end.first_data_at_s for end in stamps if end.first_data_at_s)
        return next(known, self.lead.started_at.timestamp())

    @property
    def end_s(self) -> float:
        return self.start_s + self.seen_s

    @property
    def duration_s(self) -> float:
        """Seconds of measured traffic, requested or else recorded. 0 if both are unknown."""
        return self.report.duration_s or max(0.0, self.seen_s - (self.report.omit_s or 0))

    @property
    def kind(self) -> tuple[Direction, Protocol] | None:
        """Direction and protocol. None if the test failed before it reported them."""
        direction, protocol = self.report.direction, self.report.protocol
        return None if direction is None or protocol is None else (direction, protocol)


def _lead(ends: Mapping[Side | None, Recording]) -> Recording:
    """Return the client's recording if available, because it has the results of both ends."""
    return ends.get(Side.CLIENT) or next(iter(ends.values()))


@dataclass(slots=True)
class _Group:
    """Tests of one burst."""

    tests: list[_Test]
    kind: tuple[Direction, Protocol] | None

    def takes(self, test: _Test) -> bool:
        """Return True if the test belongs to the group. It must not start before the group."""
        first = self.tests[0]
        if None not in (test.kind, self.kind) and test.kind != self.kind:
            return False
        shared_s = min(test.end_s, first.end_s) - test.start_s
        shorter_s = min(test.end_s - test.start_s, first.end_s - first.start_s)
        return shared_s >= OVERLAP_RATIO * shorter_s

    def add(self, test: _Test) -> None:
        self.tests.append(test)
        self.kind = self.kind or test.kind


def _tests(recordings: Sequence[Recording]) -> tuple[list[_Test], list[Recording]]:
    """Return tests in time order, and recordings that repeat another one."""
    basenames = Counter(PurePath(file).name for file in {r.file for r in recordings})
    counts = Counter(recording.file for recording in recordings)

    def name(recording: Recording) -> str:
        short = PurePath(recording.file).name
        unique = short if basenames[short] == 1 else recording.file
        return f"{unique}#{recording.test_index + 1}" if counts[recording.file] > 1 else unique

    ends_by_key: dict[object, dict[Side | None, Recording]] = {}
    repeated: list[Recording] = []
    for number, recording in enumerate(recordings):
        if recording.state in _OUTSIDE:
            continue
        cookie = recording.report.cookie if recording.report else None
        key: object = number if cookie is None or recording.side is None else cookie
        ends = ends_by_key.setdefault(key, {})
        if recording.side in ends:
            repeated.append(recording)
        else:
            ends[recording.side] = recording
    tests = [
        _Test(
            ends=ends,
            name=name(_lead(ends)),
            seen_s=max(map(last_end_s, _lead(ends).chunks.values()), default=0.0),
        )
        for ends in ends_by_key.values()
    ]
    clock = _clock(tests)
    return _in_order(replace(test, clock=clock) for test in tests), repeated


def _in_order(tests: Iterable[_Test]) -> list[_Test]:
    return sorted(tests, key=lambda test: (test.start_s, test.name))


def _clock(tests: Sequence[_Test]) -> Side:
    """Return the end that is used as clock, which is the one with less scattered test starts.

    It is the client, unless the servers are clearly better. Errors of clocks scatter the starts and
    never bring them together.
    """
    stamped = [
        test
        for test in tests
        if len(test.ends) == len(Side) and all(end.first_data_at_s for end in test.ends.values())
    ]
    if len(stamped) < max(2, len(tests)):
        return Side.CLIENT
    spreads = []
    for side in (Side.CLIENT, Side.SERVER):
        groups = _groups(_in_order(replace(test, clock=side) for test in tests))
        starts = [[test.start_s for test in group.tests] for group in groups]
        spreads.append((len(groups), max(max(group) - min(group) for group in starts)))
    (count, spread_s), (server_count, server_spread_s) = spreads
    if server_count != count:
        return Side.SERVER if server_count < count else Side.CLIENT
    return Side.SERVER if server_spread_s < spread_s - CLOCK_BOUND_S else Side.CLIENT


def _groups(tests: Sequence[_Test]) -> list[_Group]:
    """Group tests into bursts. Both are in time order."""
    groups: list[_Group] = []
    running: list[_Group] = []
    for test in tests:
        running = [group for group in running if group.tests[0].end_s > test.start_s]
        group = next((group for group in running if group.takes(test)), None)
        if group is None:
            group = _Group(tests=[], kind=test.kind)
            groups.append(group)
            running.append(group)
        group.add(test)
    return groups


class Iperf3Tests:
    """Planned bursts of iperf3 recordings."""

    def __init__(self, imported: Recordings) -> None:
        self._imported = imported
        self._tests, self._repeated = _tests(imported.recordings)
        self._groups = _groups(self._tests)

    def plan(self, run_id: str, now: datetime) -> Plan:
        """Build the plan that the tests imply.

        Args:
            run_id: The new run's id.
            now: Current time.

        Returns:
            A plan with ``clocks_promised`` false: its start times are those of the recordings.

        Raises:
            BadFile: There is no test in the recordings.
            BadScenario: A field cannot be set, or its value is not valid.
        """
        imported, groups = self._imported, self._groups
        if not groups:
            raise BadFile(
                "recordings: no file contains an iperf3 test; give files of --json or "
                "--json-stream output"
            )
        bursts = tuple(_burst(index, group) for index, group in enumerate(groups))
        largest = max(groups, key=lambda group: len(group.tests))
        pairs_count, traffic = len(largest.tests), _traffic(largest)
        # A launch cannot use SCTP, so the specification is checked with TCP.
        launchable = Protocol.UDP if traffic.protocol is Protocol.UDP else Protocol.TCP
        spec = build_spec(
            {
                "scenario": SCENARIO,
                "description": f"imported from {len(imported.recordings)} recordings of iperf3",
                "pairs_count": pairs_count,
                "bursts_count": len(bursts),
                "late_after_s": LATE_AFTER_S,
                "clock_bound_max_s": CLOCK_BOUND_S,
                "traffic": traffic.model_dump(mode="json") | {"protocol": launchable},
                "labels": imported.labels,
            },
            imported.overrides,
            burst_s=max(burst.duration_s for burst in bursts),
            period_s=0.0,
        )
        if traffic.protocol is Protocol.SCTP:
            recorded = spec.traffic.model_copy(update={"protocol": Protocol.SCTP})
            spec = spec.model_copy(update={"traffic": recorded})
        return Plan(
            run_id=run_id,
            created_at=now,
            spec=spec,
            clocks_promised=False,
            ledger=None
            if not imported.metric or imported.metric_source is None
            else CounterRequirement(source=imported.metric_source),
            pairs=tuple(Pair(index=i, endpoint=endpoint(None)) for i in range(pairs_count)),
            bursts=bursts,
        )

    def states(self) -> Sequence[ImportedState]:
        """Return the state of each burst."""
        return [
            ImportedState(
                pairs_planned=len(group.tests),
                outcomes=Counter(_outcome(test) for test in group.tests),
            )
            for group in self._groups
        ]

    def measure(self, plan: Plan) -> Measured:
        """Return the measured bursts for ``summarise_run``.

        Args:
            plan: The run's plan.
        """
        recordings, groups = self._imported.recordings, self._groups
        ends = [[_place(test) for test in group.tests] for group in groups]
        notes = [
            *note_findings(self._imported.notes),
            *_ends_notes(groups, ends),
            *_version_notes(self._tests),
        ]
        if len({group.kind for group in groups if group.kind}) > 1:
            notes.append(
                _note(
                    "mixed-tests",
                    "The files have several directions or protocols, so the mean over all bursts "
                    "has no meaning.",
                    "Read the result of each burst (`broadside bursts`)",
                )
            )
        if self._repeated:
            files = ", ".join(recording.file for recording in self._repeated[:3])
            sentence = (
                f"{len(self._repeated)} recordings repeat the test of another one and were not "
                f"used: {files}."
            )
            notes.append(_note("repeated-tests", sentence))
        outside = [r for r in recordings if r.state in _OUTSIDE]
        return Measured(
            bursts=tuple(
                _measure(plan, burst, group, placed)
                for burst, group, placed in zip(plan.bursts, groups, ends, strict=True)
            ),
            findings=tuple(notes),
            device_counter=throughput_counter(
                self._imported.metric_source,
                self._imported.metric,
                self._imported.metric_declaration,
                self._imported.metric_problem,
            )
            if self._imported.metric and self._imported.metric_source is not None
            else None,
            open_reason=None
            if not outside
            else f"{len(outside)} of {len(recordings)} recordings could not be read, the first "
            f"{outside[0].file}: {outside[0].reason}",
        )


def _burst(index: int, group: _Group) -> Burst:
    start_s = min(test.start_s for test in group.tests)
    length_s = max(test.duration_s for test in group.tests)
    return Burst(
        index=index,
        planned_start_at=datetime.fromtimestamp(start_s, UTC),
        duration_s=max(1, round(length_s)) if length_s else _UNTIMED_S,
        omit_s=max(test.report.omit_s or 0 for test in group.tests),
    )


def _traffic(group: _Group) -> Traffic:
    """Return the traffic settings of the tests in a burst."""
    direction, protocol = group.kind or (Direction.FORWARD, Protocol.TCP)
    reports = [test.report for test in group.tests]
    streams = Counter(report.streams_count for report in reports if report.streams_count)
    count = min(128, max(1, streams.most_common(1)[0][0] if streams else 1))
    rates = [
        bit_rate(total.sent_bytes, total.sent_s)
        or bit_rate(total.received_bytes, total.received_s)
        or 1.0
        for report in reports
        for total in report.totals
    ]
    # A UDP sender is not limited by the receiver, so it will have used the requested rate to send.
    offered = max(1, round(max(rates, default=1.0) / count)) if protocol is Protocol.UDP else None
    return Traffic(
        protocol=protocol,
        direction=direction,
        streams_count=count,
        stream_bits_per_second=offered,
        omit_s=min(60, max(report.omit_s or 0 for report in reports)),
    )


def _note(name: str, sentence: str, next_step: str | None = None) -> Finding:
    return Finding(
        id=name,
        kind="context",
        severity="warning",
        weight=45,
        sentence=sentence,
        next_step=next_step,
    )


def _outcome(test: _Test) -> Outcome:
    return _OUTCOMES.get(test.lead.state, Outcome.FAILED)


def _measure(
    plan: Plan, burst: Burst, group: _Group, ends: Sequence["_PlacedEnds"]
) -> BurstMeasurement:
    spec = plan.spec.model_copy(update={"traffic": _traffic(group)})
    evidence = BurstEvidence(
        burst=burst,
        pairs=tuple(
            _evidence(plan, burst, i, test, placed)
            for i, (test, placed) in enumerate(zip(group.tests, ends, strict=True))
        ),
        start_known=False,
    )
    return measure_burst(spec, evidence, due_at(burst))


def _evidence(
    plan: Plan, burst: Burst, pair_index: int, test: _Test, ends: "_PlacedEnds"
) -> PairEvidence:
    client, server = test.ends.get(Side.CLIENT), test.ends.get(Side.SERVER)
    agent_id = identifier(test.name)
    first = None
    if any(end.first_data_at_s is not None for end in test.ends.values()):
        first = datetime.fromtimestamp(test.start_s, UTC)
    report = job_report(plan, burst, pair_index, agent_id, _outcome(test)).model_copy(
        update={
            "reason": test.lead.reason,
            "first_data_at": first,
            "engine": client.report if client else None,
        }
    )
    return PairEvidence(
        pair_index=pair_index,
        name=test.name,
        report=report,
        client_tracks=ends.client,
        server_test=None
        if server is None or server.report is None
        else ServerTest(
            agent_id=agent_id,
            endpoint=endpoint(None),
            started_at=server.started_at,
            engine=server.report,
        ),
        server_tracks=ends.server,
        joined_by=MatchMethod.COOKIE if client and server else None,
        ends_offset=ends.offset,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacedEnds:
    """Seconds of both ends on one clock.

    Attributes:
        client: Client tracks.
        server: Server tracks. Empty if their time is unknown.
        offset: Estimated offset between the clocks.
        contradicts: True if the tracks of both ends do not match a common start.
    """

    client: tuple[IntervalColumns, ...]
    server: tuple[IntervalColumns, ...]
    offset: EndsOffset | None = None
    contradicts: bool = False


def _place(test: _Test) -> _PlacedEnds:
    """Return the seconds of a test on one clock.

    If an end has no timestamp, the start from the other end is used, which is the same time.
    """
    client, server = test.ends.get(Side.CLIENT), test.ends.get(Side.SERVER)
    stamped = [end for end in (client, server) if end and end.first_data_at_s is not None]
    zero_s = stamped[0].first_data_at_s if stamped else None
    client_tracks, server_tracks = _tracks(client, zero_s), _tracks(server, zero_s)
    if not client_tracks or not server_tracks or len(stamped) < 2:
        return _PlacedEnds(client=client_tracks, server=server_tracks)
    rtts = [total.rtt_max_s for total in test.report.totals if total.rtt_max_s is not None]
    offset = place_ends(
        client_tracks,
        server_tracks,
        rtt_max_s=max(rtts, default=0.0),
        stamps_s=max(_stamp_error_s(end) for end in stamped),
    )
    if offset is None:
        return _PlacedEnds(client=client_tracks, server=(), contradicts=True)
    shift_s = offset.offset_s if test.clock is Side.SERVER else 0.0
    client_tracks, server_tracks = (
        tuple(replace(track, first_data_at_s=track.first_data_at_s + shift_s) for track in tracks)
        for tracks in (client_tracks, map(offset.placed, server_tracks))
    )
    return _PlacedEnds(client=client_tracks, server=server_tracks, offset=offset)


def _stamp_error_s(recording: Recording) -> float:
    """Return the maximum timestamp error in seconds. iperf3 before 3.20 writes whole seconds."""
    is_complete = (recording.first_data_at_s or 0.0) % 1 == 0
    return CLOCK_BOUND_S if is_complete else 0.0


def _ends_notes(
    groups: Sequence[_Group], ends: Sequence[Sequence[_PlacedEnds]]
) -> Iterator[Finding]:
    """Yield findings about the clocks at both ends, with the test that has the largest offset."""
    tests = [
        (test.name, placed)
        for group, group_ends in zip(groups, ends, strict=True)
        for test, placed in zip(group.tests, group_ends, strict=True)
    ]
    offsets = [
        (name, end.offset) for name, end in tests if end.offset and end.offset.is_significant
    ]
    if offsets:
        name, offset = max(offsets, key=lambda item: abs(item[1].offset_s))
        order = "ahead of" if offset.offset_s > 0 else "behind"
        drift = f", and {offset.drift_ratio * 1e6:+.0f} ppm fast" if offset.drift_ratio else ""
        source = "the series of bytes and " if offset.by_series else ""
        yield _note(
            "clocks-apart",
            f"The clocks of the two ends differ in {len(offsets)} of {len(tests)} tests. In {name} "
            f"the server's clock is {abs(offset.offset_s):.1f} s {order} the client's{drift} "
            f"({offset.low_s:+.1f} to {offset.high_s:+.1f} s at 95 %), estimated from {source}the "
            f"common start of the test. All times are by the clocks of the "
            f"{groups[0].tests[0].clock}s.",
            "Synchronise the clocks of the hosts (chrony) before the next test",
        )
    unplaced = [name for name, end in tests if end.contradicts]
    if unplaced:
        yield _note(
            "ends-not-placed",
            f"In {len(unplaced)} of {len(tests)} tests the byte series of the two ends do not fit "
            f"a common start, so the offset between their clocks is unknown: "
            f"{', '.join(unplaced[:3])}. The seconds of the server are not used.",
            "Check that both files are complete and belong to the same test",
        )


def _version_notes(tests: Sequence[_Test]) -> Iterator[Finding]:
    """Yield a note on tests of iperf3 versions whose output was not tested, with the gaps."""
    old = [
        (version, test)
        for test in tests
        if (version := parse_version(f"iperf {test.report.version}")) and version < MINIMUM_VERSION
    ]
    if not old:
        return
    version, test = min(old, key=lambda item: (item[0], item[1].name))
    gaps = ", ".join(dict.fromkeys(gap for _, test in old for gap in _gaps(test.report)))
    yield Finding(
        id="old-iperf3",
        kind="context",
        severity="note",
        weight=16,
        sentence=f"{len(old)} of {len(tests)} tests were recorded by iperf3 before "
        f"{MINIMUM_VERSION}, such as {test.name} by {version}. These versions are read as far as "
        f"they contain the values. Missing: {gaps or 'nothing'}.",
        next_step=f"Use iperf3 {MINIMUM_VERSION} or later for new tests",
    )


def _gaps(report: EngineReport) -> Iterator[str]:
    """Yield the names of values that newer versions of iperf3 report."""
    totals = report.totals
    is_tcp = report.protocol is Protocol.TCP
    missing = {
        "the totals": not totals,
        "the received bytes": any(total.received_bytes is None for total in totals),
        "the sent bytes": any(total.sent_bytes is None for total in totals),
        "the round-trip time": is_tcp and any(total.rtt_mean_s is None for total in totals),
        "the segment size": is_tcp and report.mss_bytes is None,
        "the protocol or direction": report.protocol is None or report.direction is None,
    }
    yield from (name for name, is_missing in missing.items() if is_missing)


def _tracks(recording: Recording | None, zero_s: float | None) -> tuple[IntervalColumns, ...]:
    """Return the tracks in a recording, using its own timestamp or else ``zero_s`` (epoch s)."""
    if recording is None or recording.side is None:
        return ()
    first_s = zero_s if recording.first_data_at_s is None else recording.first_data_at_s
    if first_s is None:
        return ()
    return tuple(
        read_track(
            PackedTrack(
                side=recording.side,
                flow=flow,
                first_data_at_s=first_s,
                chunks=(PackedChunk(row=f"{recording.file}: {flow}", data=data),),
            )
        )
        for flow, data in recording.chunks.items()
    )
