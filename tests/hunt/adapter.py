"""Conversion of neutral recordings from `tests.worlds` to evidence for the engine.

The adapter replaces agents and device sources and returns only data that they would have. A
free-running clock has no bound. A bin or a reading that its source marks as partial is unknown. If
the time of a request is recorded, it is the time of the reading.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.judge.verdict_inputs import RunContext
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.columns import (
    NO_HOST,
    HostColumns,
    IntervalColumns,
    disjoint_host,
    disjoint_track,
)
from broadside.coordinator.core.measure.records.evidence import (
    BurstEvidence,
    CounterDirection,
    CounterLayer,
    CounterRecord,
    PairEvidence,
    ProbeColumn,
)
from broadside.coordinator.core.measure.records.server_tests import foreign_tests_during, join_tests
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry, Quantity, TelemetrySeries
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.run_spec import Burst, CounterRequirement, Pair, Plan, RunSpec
from broadside.coordinator.core.summary import BottleneckName, RunSummary
from broadside.coordinator.core.thresholds import Objective
from broadside.coordinator.imports.import_requests import (
    MetricPoint,
    OriginalTable,
    Recordings,
    RecordingState,
)
from broadside.coordinator.imports.import_requests import Recording as EngineFile
from broadside.coordinator.imports.iperf3_runs import Iperf3Tests
from broadside.coordinator.imports.metric_declaration import MetricDeclaration
from broadside.coordinator.imports.stored_imports import summarise as summarise_import
from broadside.coordinator.imports.table_bursts import OriginalRow
from broadside.coordinator.imports.table_runs import TableTests
from broadside.exchange.messages import (
    BurstEnd,
    Claim,
    ClockReading,
    ClockSource,
    Direction,
    EndCause,
    Endpoint,
    EngineReport,
    Flow,
    FlowTotals,
    Interval,
    JobPhase,
    JobReport,
    Outcome,
    Protocol,
    ServerTest,
    Side,
    StartMethod,
    Traffic,
)
from tests.worlds import record_format as neutral

RUN_ID: Final = "world"
LOCAL_REFERENCE: Final = "7F7F0101"
PROBE_EVERY_S: Final = 0.1
PROBE_BEFORE_S: Final = 2.0
DIRECTIONS: Final = {
    "forward": Direction.FORWARD,
    "reverse": Direction.REVERSE,
    "both": Direction.BIDIRECTIONAL,
}
FLOWS: Final = {
    "forward": (Flow.UP,),
    "reverse": (Flow.DOWN,),
    "both": tuple(Flow),
    None: tuple(Flow),
}
LAYERS: Final[dict[str | None, CounterLayer]] = {"ip": "ip", "wire": "wire", None: "unknown"}
WAYS: Final[dict[str | None, CounterDirection]] = {
    "forward": "in",
    "reverse": "out",
    "both": "both",
    None: "both",
}
OUTCOMES: Final = {
    "measured": Outcome.MEASURED,
    "late": Outcome.LATE,
    "abandoned": Outcome.ABANDONED,
    "failed": Outcome.FAILED,
}
BOTTLENECKS: Final = {
    BottleneckName.FIREWALL: "device",
    BottleneckName.CLIENT_NIC: "nic",
    BottleneckName.SERVER_NIC: "nic",
    BottleneckName.CLIENT_CPU: "cpu",
    BottleneckName.SERVER_CPU: "cpu",
    BottleneckName.WINDOW: "window",
    BottleneckName.SINGLE_FLOW: "single-flow",
    BottleneckName.OFFERED_LOAD: "none",
    BottleneckName.SNAT_PORTS: "snat-ports",
    BottleneckName.ONE_UNIT: "device",
    BottleneckName.UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """Server record of one test."""

    test: ServerTest
    tracks: tuple[IntervalColumns, ...]
    host: HostColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of a launched run, as recorded by the coordinator."""

    plan: Plan
    bursts: tuple[BurstEvidence, ...]
    device_counter: CounterRecord | None
    telemetry: DeviceTelemetry | None
    now: datetime


def conclude(recording: neutral.Recording) -> RunSummary:
    """Return the engine's summary of a recorded run.

    Args:
        recording: Records of hosts, devices and engines.
    """
    if recording.plan.origin == "recordings":
        files = engine_files(recording)
        now = _at(recording.plan, _last_s(recording))
        tests = Iperf3Tests(files)
        plan = tests.plan(RUN_ID, now).sealed()
        return summarise_import(plan, tests.measure(plan), now)
    if recording.plan.origin == "table":
        table = original_table(recording)
        now = _at(recording.plan, _last_s(recording))
        rows = TableTests(table)
        plan = rows.plan(RUN_ID, now).sealed()
        return summarise_import(plan, rows.measure(plan), now)
    evidence = evidence_of(recording)
    spec = evidence.plan.spec
    return summarise_run(
        evidence.plan,
        [measure_burst(spec, burst, evidence.now) for burst in evidence.bursts],
        evidence.device_counter,
        evidence.now,
        RunContext(telemetry=evidence.telemetry),
    )


def evidence_of(recording: neutral.Recording) -> Evidence:
    """Return the evidence of a launched run."""
    plan = plan_of(recording)
    now = _at(recording.plan, _last_s(recording))
    return Evidence(
        plan=plan,
        bursts=tuple(_Burst(recording, plan, burst).evidence() for burst in plan.bursts),
        device_counter=counter_of(recording, now),
        telemetry=testimony_of(recording, now),
        now=now,
    )


def _last_s(recording: neutral.Recording) -> float:
    """Return a time at which all data has been read."""
    last = max(burst.start_s + burst.duration_s for burst in recording.plan.bursts)
    ends = [float(device.end_s[-1]) for device in recording.devices if device.end_s.size]
    return max([last, *ends]) + 600.0


def _at(plan: neutral.Plan, at_s: float) -> datetime:
    return datetime.fromtimestamp(plan.epoch_unix_s + at_s, UTC)


# Plan ---------------------------------------------------------------------------------------------


def _traffic(plan: neutral.Plan) -> Traffic:
    offered = plan.offered_bits_per_second
    return Traffic(
        engine=plan.engine,
        protocol=Protocol(plan.protocol),
        direction=DIRECTIONS[plan.direction],
        streams_count=plan.streams_count,
        block_bytes=plan.datagram_bytes,
        stream_bits_per_second=None
        if offered is None
        else max(1, round(offered / plan.streams_count)),
    )


def _objective(plan: neutral.Plan) -> Objective:
    return Objective(
        target_bits_per_second=plan.target_bits_per_second,
        layer=Layer(plan.target_layer),
        tolerance_ratio=plan.tolerance_ratio,
        coverage_floor_ratio=plan.completeness_min_ratio,
        loss_max_ratio=plan.loss_max_ratio,
        device_cpu_p95_max_ratio=plan.device_cpu_max_ratio,
        residual_max_ratio=plan.residual_max_ratio,
        start_spread_max_s=plan.start_spread_max_s,
        stop="when-certain" if plan.ends_when_certain else None,
    )


def plan_of(recording: neutral.Recording) -> Plan:
    """Return the sealed plan of a launched run."""
    plan = recording.plan
    starts = [burst.start_s for burst in plan.bursts]
    nic = plan.nic_cap_bits_per_second
    spec = RunSpec(
        scenario="world",
        pairs_count=len(plan.pairs),
        bursts_count=len(plan.bursts),
        burst_s=round(plan.bursts[0].duration_s),
        period_s=round(starts[1] - starts[0]) if len(starts) > 1 else 60,
        traffic=_traffic(plan),
        objective=_objective(plan),
        clock_bound_max_s=plan.clock_gate_s,
        device={"path": "bypass"} if plan.bursts[0].reference else {},
    )
    return Plan(
        run_id=RUN_ID,
        created_at=_at(plan, starts[0] - 30.0),
        spec=spec,
        pairs=tuple(
            Pair(
                index=pair.index,
                endpoint=Endpoint(
                    agent_id=pair.server_host, address=pair.server_address, port=pair.server_port
                ),
                server_nic_bits_per_second=None if nic is None else round(nic),
                nic_mtu_bytes=plan.mtu_bytes,
            )
            for pair in plan.pairs
        ),
        bursts=tuple(_burst(plan, burst) for burst in plan.bursts),
        ledger=CounterRequirement(source="world") if plan.device_promised else None,
        clocks_promised=plan.clocks_promised,
        witnesses=tuple(sorted({record.device for record in recording.telemetry}))
        if plan.device_cpu_max_ratio is not None
        else (),
    ).sealed()


def _burst(plan: neutral.Plan, burst: neutral.PlannedBurst) -> Burst:
    """Return the planned burst, with the order to end it if there was one."""
    planned = Burst(
        index=burst.index,
        planned_start_at=_at(plan, burst.start_s),
        duration_s=round(burst.duration_s),
    )
    if burst.stopped_s is None:
        return planned
    at = planned.planned_start_at + timedelta(seconds=burst.stopped_s)
    return planned.ended(
        BurstEnd(
            burst_index=burst.index,
            at=at,
            cause=EndCause.CERTAIN,
            reason="the rate is certain",
            decided_at=at - timedelta(seconds=4),
        )
    )


# Records of agents --------------------------------------------------------------------------------


def track_of(plan: neutral.Plan, end: neutral.EndRecord) -> IntervalColumns | None:
    """Return the rows of an end, or `None` if they have no timestamps."""
    if end.began_at_s is None:
        return None
    rows = end.rows
    unknown = np.full(rows.bytes.size, np.nan, np.float32)

    def column(values: Floats | None) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return unknown if values is None else values.astype(np.float32)

    return disjoint_track(
        IntervalColumns(
            side=_side(end.host),
            flow=Flow.UP if end.direction == "forward" else Flow.DOWN,
            first_data_at_s=plan.epoch_unix_s + end.began_at_s,
            start_s=rows.start_s,
            end_s=rows.end_s,
            transferred_bytes=rows.bytes,
            omitted=np.zeros(rows.bytes.size, np.bool_),
            retransmits_count=column(rows.retransmits),
            rtt_s=column(rows.rtt_s),
            cwnd_bytes=column(rows.cwnd_bytes),
            packets_count=column(rows.packets),
            lost_count=column(rows.lost),
        )
    )


def _side(host: str) -> Side:
    return Side.CLIENT if host.startswith("client") else Side.SERVER


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _totals(ends: Sequence[neutral.EndRecord]) -> tuple[FlowTotals, ...]:
    """Return the totals of one host's engine for its ends."""
    results = []
    for end in ends:
        if end.total_bytes is None:
            continue
        flow = Flow.UP if end.direction == "forward" else Flow.DOWN
        rtt = end.rows.rtt_s
        sends = end.side == "sender"
        results.append(
            FlowTotals(
                flow=flow,
                sent_bytes=_rounded(end.total_bytes) if sends else None,
                sent_s=end.total_s if sends else None,
                received_bytes=None if sends else _rounded(end.total_bytes),
                received_s=None if sends else end.total_s,
                retransmits_count=_rounded(end.total_retransmits),
                rtt_mean_s=float(rtt.mean()) if rtt is not None and rtt.size else None,
                packets_count=_rounded(end.total_packets),
                lost_count=_rounded(end.total_lost),
            )
        )
    return tuple(results)


def _engine(
    plan: neutral.Plan,
    record: neutral.PairRecord,
    ends: Sequence[neutral.EndRecord],
    token: str | None,
) -> EngineReport:
    segment = None
    if plan.protocol == "tcp" and plan.mtu_bytes is not None and plan.tcp_options_bytes is not None:
        headers = (20 if plan.ip_version == 4 else 40) + 20 + plan.tcp_options_bytes
        segment = plan.mtu_bytes - headers
    return EngineReport(
        engine=plan.engine,
        version="3.18" if plan.engine == "iperf3" else None,
        cookie=None if token is None else f"{token}-{record.burst}",
        protocol=Protocol(plan.protocol),
        direction=DIRECTIONS[plan.direction],
        streams_count=plan.streams_count,
        duration_s=round(plan.bursts[0].duration_s),
        omit_s=0,
        block_bytes=plan.datagram_bytes,
        mss_bytes=segment,
        window_bytes=_rounded(record.window_bytes),
        totals=_totals(ends),
        error=record.reason or None,
        truncated=any(not end.complete for end in ends),
    )


def clock_of(plan: neutral.Plan, reading: neutral.ClockReading) -> ClockReading:
    """Return a reading in the form of an agent (docs/evidence.md, clocks).

    A free-running clock has no known bound. The bound includes the offset reported by the daemon
    and the part that is still being slewed.
    """
    synchronised = reading.synchronised and reading.reference_id != LOCAL_REFERENCE
    bound_s = abs(reading.offset_s) + abs(reading.slewing_s) + reading.bound_s
    return ClockReading(
        source=ClockSource.CHRONY,
        read_at=_at(plan, reading.at_s),
        synchronised=synchronised,
        offset_s=reading.offset_s if synchronised else None,
        bound_s=bound_s if synchronised else None,
        reference=reading.reference_id,
        boot_id=reading.boot_id,
    )


def host_of(plan: neutral.Plan, counters: neutral.HostCounters | None) -> HostColumns:
    """Return the counters of a host.

    Agents count the interface to which the kernel routes the test. If a recording has another
    interface or an unknown one, its bytes are unknown.
    """
    if counters is None or counters.at_s.size < 2:
        return NO_HOST
    at_s = plan.epoch_unix_s + counters.at_s
    unknown = np.full(at_s.size - 1, np.nan, np.float32)
    routed = counters.interface == counters.routed_interface
    return disjoint_host(
        HostColumns(
            start_at_s=at_s[:-1],
            end_at_s=at_s[1:],
            nic_rx_bytes=np.diff(counters.rx_bytes) if routed else unknown.astype(np.float64),
            nic_tx_bytes=np.diff(counters.tx_bytes) if routed else unknown.astype(np.float64),
            drops_count=np.zeros(at_s.size - 1, np.float32),
            cpu_busy_ratio=unknown,
            cpu_busiest_core_ratio=counters.cpu_ratio[1:].astype(np.float32),
        )
    )


class _Burst:
    """All records of one burst."""

    def __init__(self, recording: neutral.Recording, plan: Plan, burst: Burst) -> None:
        self._recording, self._plan, self._burst = recording, plan, burst
        self._neutral = recording.plan
        self._pairs = {r.pair: r for r in recording.pairs if r.burst == burst.index}
        self._hosts = {h.host: h for h in recording.hosts if h.burst == burst.index}
        self._clocks = {
            (c.host, c.when): clock_of(self._neutral, c)
            for c in recording.clocks
            if c.burst == burst.index
        }

    def evidence(self) -> BurstEvidence:
        """Return the burst in the form that the coordinator creates."""
        claims: dict[int, Claim] = {}
        reports: dict[int, JobReport] = {}
        tests: list[ServerRecord] = []
        for pair in self._neutral.pairs:
            record = self._pairs.get(pair.index)
            if record is None or record.outcome == "missed":
                continue
            claims[pair.index] = self._claim(pair, record)
            if record.outcome in OUTCOMES:
                reports[pair.index] = self._report(pair, record)
            test = self._test(pair, record)
            if test is not None:
                tests.append(test)
        tests += [self._foreign(t) for t in self._recording.foreign if t.burst == self._burst.index]
        join = join_tests(self._burst, self._plan.pairs, claims, reports, tests)
        pairs = []
        for pair in self._neutral.pairs:
            joined, record = join.records.get(pair.index), self._pairs.get(pair.index)
            received = pair.index in claims and record is not None
            nic = self._neutral.nic_cap_bits_per_second
            pairs.append(
                PairEvidence(
                    pair_index=pair.index,
                    claim=claims.get(pair.index),
                    report=reports.get(pair.index),
                    client_tracks=self._tracks(record, Side.CLIENT) if received else (),
                    client_host=host_of(self._neutral, self._hosts.get(pair.client_host)),
                    server_test=joined.test if joined else None,
                    server_tracks=tuple(joined.tracks) if joined else (),
                    server_host=joined.host if joined else NO_HOST,
                    joined_by=join.joined_by.get(pair.index),
                    client_nic_bits_per_second=nic,
                    server_nic_bits_per_second=nic,
                    nic_mtu_bytes=self._neutral.mtu_bytes,
                    probes=self._probes(record) if record is not None else None,
                )
            )
        return BurstEvidence(
            burst=self._burst,
            pairs=tuple(pairs),
            foreign_tests=foreign_tests_during(self._burst, self._plan.pairs, join.foreign_tests),
        )

    def _job_id(self, pair: int) -> str:
        return f"{RUN_ID}.{self._burst.index:05d}.{pair:05d}"

    def _ends(self, record: neutral.PairRecord, side: Side) -> list[neutral.EndRecord]:
        return [end for end in record.ends if _side(end.host) is side]

    def _tracks(self, record: neutral.PairRecord | None, side: Side) -> tuple[IntervalColumns, ...]:
        if record is None:
            return ()
        tracks = (track_of(self._neutral, end) for end in self._ends(record, side))
        return tuple(track for track in tracks if track is not None and len(track))

    def _claim(self, pair: neutral.PlannedPair, record: neutral.PairRecord) -> Claim:
        return Claim(
            job_id=self._job_id(pair.index),
            agent_id=pair.client_host,
            phase=JobPhase.RUNNING,
            claimed_at=self._burst.planned_start_at - timedelta(seconds=8),
            cookie=f"{record.token}-{record.burst}",
            clock=self._clocks.get((pair.client_host, "before")),
            address=record.client_address,
        )

    def _report(self, pair: neutral.PlannedPair, record: neutral.PairRecord) -> JobReport:
        ends = self._ends(record, Side.CLIENT)
        began = [end.began_at_s for end in ends if end.began_at_s is not None]
        planned_s = self._burst.planned_start_at.timestamp() - self._neutral.epoch_unix_s
        last = [
            end.began_at_s + float(end.rows.end_s[-1])
            for end in ends
            if end.began_at_s is not None and end.rows.end_s.size
        ]
        outcome = OUTCOMES[record.outcome]
        fields = {"measured": None, "late": "late", "abandoned": "the engine was cut"}
        return JobReport(
            job_id=self._job_id(pair.index),
            run_id=RUN_ID,
            burst_index=self._burst.index,
            pair_index=pair.index,
            agent_id=pair.client_host,
            outcome=outcome,
            reason=record.reason or fields.get(record.outcome),
            planned_start_at=self._burst.planned_start_at,
            start_method=StartMethod.GATE,
            first_data_at=_at(self._neutral, min(began)) if began else None,
            start_error_s=min(began) - planned_s if began else None,
            ended_at=_at(self._neutral, max(last)) if last else None,
            engine=_engine(self._neutral, record, ends, record.token),
            clock_before=self._clocks.get((pair.client_host, "before")),
            clock_after=self._clocks.get((pair.client_host, "after")),
            reported_at=self._burst.planned_end_at + timedelta(seconds=2),
        )

    def _test(self, pair: neutral.PlannedPair, record: neutral.PairRecord) -> ServerRecord | None:
        ends = self._ends(record, Side.SERVER)
        began = [end.began_at_s for end in ends if end.began_at_s is not None]
        if not began:
            return None
        last = max(float(end.rows.end_s[-1]) if end.rows.end_s.size else 0.0 for end in ends)
        test = ServerTest(
            agent_id=pair.server_host,
            endpoint=self._plan.pairs[pair.index].endpoint,
            client_address=record.seen_address,
            started_at=_at(self._neutral, min(began) - 2.0),
            first_data_at=_at(self._neutral, min(began)),
            ended_at=_at(self._neutral, min(began) + last),
            engine=_engine(self._neutral, record, ends, record.server_token),
            clock_before=self._clocks.get((pair.server_host, "before")),
            clock_after=self._clocks.get((pair.server_host, "after")),
        )
        return ServerRecord(
            test=test,
            tracks=self._tracks(record, Side.SERVER),
            host=host_of(self._neutral, self._hosts.get(pair.server_host)),
        )

    def _foreign(self, foreign: neutral.ForeignTest) -> ServerRecord:
        owner = next(p for p in self._plan.pairs if p.endpoint.agent_id == foreign.server_host)
        length_s = foreign.ended_at_s - foreign.began_at_s
        unknown = np.full(1, np.nan, np.float32)
        track = IntervalColumns(
            side=Side.SERVER,
            flow=Flow.UP,
            first_data_at_s=self._neutral.epoch_unix_s + foreign.began_at_s,
            start_s=np.zeros(1),
            end_s=np.array([length_s]),
            transferred_bytes=np.array([foreign.bytes]),
            omitted=np.zeros(1, np.bool_),
            retransmits_count=unknown,
            rtt_s=unknown,
            cwnd_bytes=unknown,
            packets_count=unknown,
            lost_count=unknown,
        )
        test = ServerTest(
            agent_id=foreign.server_host,
            endpoint=owner.endpoint,
            client_address=foreign.source_address,
            started_at=_at(self._neutral, foreign.began_at_s),
            first_data_at=_at(self._neutral, foreign.began_at_s),
            ended_at=_at(self._neutral, foreign.ended_at_s),
            engine=EngineReport(engine=self._neutral.engine, cookie=foreign.token),
        )
        return ServerRecord(test=test, tracks=(track,), host=NO_HOST)

    def _probes(self, record: neutral.PairRecord) -> ProbeColumn | None:
        """Return the probes of a burst: on the idle path before it, then under load."""
        if record.idle_rtt_s is None or record.loaded_rtt_s is None:
            return None
        before = round(PROBE_BEFORE_S / PROBE_EVERY_S)
        count = before + round(self._burst.duration_s / PROBE_EVERY_S)
        rtt_s = np.full(count, record.loaded_rtt_s)
        rtt_s[:before] = record.idle_rtt_s
        return ProbeColumn(
            first_at_s=self._burst.planned_start_at.timestamp() - PROBE_BEFORE_S,
            every_s=PROBE_EVERY_S,
            rtt_s=rtt_s,
        )


# Records of devices -------------------------------------------------------------------------------


def _bins(plan: neutral.Plan, record: neutral.DeviceRecord) -> tuple[Floats, Floats, Floats]:
    """Return start, end (epoch s) and bytes of a counter's bins. Partial bins are unknown."""
    length_s = record.end_s - record.start_s
    amount = record.value / (8.0 if record.unit == "bits" else 1.0)
    if record.aggregation == "average":
        amount = amount * length_s
    amount = np.where(record.partial, np.nan, amount)
    start_s, end_s = record.start_s, record.end_s
    if record.asked_at_s is not None and record.answered_at_s is not None and end_s.size:
        end_s = (record.asked_at_s + record.answered_at_s) / 2
        start_s = np.concatenate(([end_s[0] - length_s[0]], end_s[:-1]))
    return plan.epoch_unix_s + start_s, plan.epoch_unix_s + end_s, amount


def _resampled(start_s: Floats, end_s: Floats, other: tuple[Floats, Floats, Floats]) -> Floats:
    """Return the bytes of another counter in these bins, unknown if one of its bins is unknown."""
    edges = np.append(other[0], other[1][-1])
    known = np.isfinite(other[2])
    reached = np.append(0.0, np.cumsum(np.where(known, other[2], 0.0)))
    absent_s = np.append(0.0, np.cumsum(np.where(known, 0.0, other[1] - other[0])))

    def between(curve: Floats) -> Floats:
        return np.asarray(np.interp(end_s, edges, curve) - np.interp(start_s, edges, curve))

    outside = (start_s < edges[0]) | (end_s > edges[-1])
    return np.where(outside | (between(absent_s) > 1e-6), np.nan, between(reached))


def counter_of(recording: neutral.Recording, now: datetime) -> CounterRecord | None:
    """Return the device counter. Several devices are added on the bins of the coarsest one.

    Args:
        recording: Recorded run.
        now: Time at which it was read.
    """
    if not recording.devices:
        return None
    order = sorted(recording.devices, key=lambda d: -float(np.median(d.end_s - d.start_s)))
    lead = order[0]
    start_s, end_s, amount = _bins(recording.plan, lead)
    for other in order[1:]:
        amount = amount + _resampled(start_s, end_s, _bins(recording.plan, other))
    declared = {counter.device: counter for counter in recording.plan.counters}
    lags = {declared[d.device].lag_s if d.device in declared else None for d in order}
    layer: CounterLayer = "unknown"
    if lead.layer == "ip":
        layer = "ip"
    elif lead.layer == "wire":
        layer = "wire"
    return CounterRecord(
        source="world",
        layer=layer,
        start_s=start_s,
        end_s=end_s,
        bytes=amount,
        grain_s=float(np.median(lead.end_s - lead.start_s)),
        read_at=now,
        lag_hint_s=lags.pop() if len(lags) == 1 else None,
        flows=FLOWS[lead.directions],
    )


def testimony_of(recording: neutral.Recording, now: datetime) -> DeviceTelemetry | None:
    """Return telemetry and pings of the devices, or `None` without any reading."""
    series = [*_telemetry(recording), *_pings(recording)]
    if not series:
        return None
    return DeviceTelemetry(
        devices=tuple(dict.fromkeys(sery.device for sery in series)),
        series=tuple(series),
        read_at=now,
    )


def _telemetry(recording: neutral.Recording) -> Iterator[TelemetrySeries]:
    for record in recording.telemetry:
        # The clock of timestamps without a request time is unknown.
        at_s, bound_s = record.own_stamp_s, np.full(record.value.size, np.nan)
        if record.asked_at_s is not None and record.answered_at_s is not None:
            at_s = (record.asked_at_s + record.answered_at_s) / 2
            bound_s = (record.answered_at_s - record.asked_at_s) / 2
        if at_s is None:
            continue
        yield TelemetrySeries(
            device=record.device,
            source="world",
            quantity=Quantity(record.quantity),
            at_s=recording.plan.epoch_unix_s + at_s,
            over_s=np.zeros(record.value.size),
            bound_s=bound_s,
            values=np.where(record.partial, np.nan, record.value),
        )


def _pings(recording: neutral.Recording) -> Iterator[TelemetrySeries]:
    """Return pings to the device at a rate of one per second before and in each burst."""
    if not recording.plan.counters:
        return
    at_s: list[Floats] = []
    values: list[Floats] = []
    for burst in recording.plan.bursts:
        records = [record for record in recording.pairs if record.burst == burst.index]
        idle = [r.device_ping_idle_s for r in records if r.device_ping_idle_s is not None]
        loaded = [r.device_ping_loaded_s for r in records if r.device_ping_loaded_s is not None]
        if not idle or not loaded:
            return
        before = burst.start_s - np.arange(10.0, 1.0, -1.0)
        during = burst.start_s + np.arange(1.0, burst.duration_s)
        at_s += [before, during]
        values += [
            np.full(before.size, float(np.median(idle))),
            np.full(during.size, float(np.median(loaded))),
        ]
    stamps = recording.plan.epoch_unix_s + np.concatenate(at_s)
    yield TelemetrySeries(
        device=recording.plan.counters[0].device,
        source="world ping",
        quantity=Quantity.PING_ICMP,
        at_s=stamps,
        over_s=np.zeros(stamps.size),
        bound_s=np.zeros(stamps.size),
        values=np.concatenate(values),
    )


# Imports ------------------------------------------------------------------------------------------


def _overrides(plan: neutral.Plan) -> Mapping[str, object]:
    objective = _objective(plan).model_dump(mode="json", exclude_defaults=True)
    return {f"objective.{name}": value for name, value in objective.items()}


def engine_files(recording: neutral.Recording) -> Recordings:
    """Return the recordings of both ends for an import of engine files."""
    plan = recording.plan
    files = []
    for record in recording.pairs:
        for side in Side:
            ends = [end for end in record.ends if _side(end.host) is side]
            if not ends or ends[0].began_at_s is None:
                continue
            token = record.token if side is Side.CLIENT else record.server_token
            complete = all(end.complete for end in ends)
            began_s = ends[0].began_at_s
            files.append(
                EngineFile(
                    file=f"{ends[0].host}-{record.burst}.json",
                    state=RecordingState.MEASURED if complete else RecordingState.TRUNCATED,
                    side=side,
                    report=_engine(plan, record, ends, token),
                    started_at=_at(plan, began_s),
                    first_data_at_s=plan.epoch_unix_s + began_s,
                    packed=EngineFile.pack(
                        {
                            Flow.UP if end.direction == "forward" else Flow.DOWN: _intervals(end)
                            for end in ends
                        }
                    ),
                )
            )
    return Recordings(recordings=tuple(files), overrides=dict(_overrides(plan)))


def _intervals(end: neutral.EndRecord) -> tuple[Interval, ...]:
    rows = end.rows

    def known(values: Floats | None, row: int) -> float | None:
        return None if values is None or math.isnan(values[row]) else float(values[row])

    return tuple(
        Interval(
            start_s=float(rows.start_s[row]),
            end_s=float(rows.end_s[row]),
            transferred_bytes=round(float(rows.bytes[row])),
            retransmits_count=_rounded(known(rows.retransmits, row)),
            rtt_s=known(rows.rtt_s, row),
            cwnd_bytes=_rounded(known(rows.cwnd_bytes, row)),
            packets_count=_rounded(known(rows.packets, row)),
            lost_count=_rounded(known(rows.lost, row)),
        )
        for row in range(rows.bytes.size)
    )


def original_table(recording: neutral.Recording) -> OriginalTable:
    """Return a table of means with the metric of the device for an import."""
    plan = recording.plan
    rows: list[OriginalRow] = []
    for record in recording.pairs:
        ends = {end.side: end for end in record.ends}
        sender, receiver = ends.get("sender"), ends.get("receiver")
        lead = sender or receiver
        if lead is None or lead.began_at_s is None:
            continue
        pair = plan.pairs[record.pair]
        rows.append(
            OriginalRow(
                row_number=len(rows) + 2,
                client=pair.client_host,
                started_at=_at(plan, lead.began_at_s),
                duration_s=round(plan.bursts[record.burst].duration_s),
                sent_bits_per_second=_rate(sender),
                received_bits_per_second=_rate(receiver),
                server=f"{pair.server_address}:{pair.server_port}",
                rtt_mean_s=_mean_rtt(sender),
            )
        )
    points: tuple[MetricPoint, ...] = ()
    if recording.devices:
        start_s, end_s, amount = _bins(plan, recording.devices[0])
        points = tuple(
            MetricPoint(
                at=datetime.fromtimestamp(float(start), UTC),
                bits_per_second=None if math.isnan(value) else float(value) * 8 / (end - start),
            )
            for start, end, value in zip(start_s, end_s, amount, strict=True)
        )
    return OriginalTable(
        source="world.csv",
        rows=tuple(rows),
        metric_source="metric.csv" if points else None,
        metric=points,
        metric_declaration=_metric_declaration(plan),
        pairs_planned=len(plan.pairs),
        overrides=dict(_overrides(plan)),
    )


def _metric_declaration(plan: neutral.Plan) -> MetricDeclaration:
    """Return the declared metric of the first device. The unit is already applied."""
    stated = plan.counters[0] if plan.counters else None
    return MetricDeclaration(
        layer=LAYERS[None if stated is None else stated.layer],
        direction=WAYS[None if stated is None else stated.directions],
        lag_s=None if stated is None else stated.lag_s,
        mtu_bytes=plan.mtu_bytes,
    )


def _rate(end: neutral.EndRecord | None) -> float | None:
    if end is None or end.total_bytes is None or not end.total_s:
        return None
    return end.total_bytes * 8 / end.total_s


def _mean_rtt(end: neutral.EndRecord | None) -> float | None:
    if end is None or end.rows.rtt_s is None or not end.rows.rtt_s.size:
        return None
    return float(end.rows.rtt_s.mean())
