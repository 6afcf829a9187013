"""Synthetic fleets with planted truth, as agents and a firewall would record them.

A :class:`Plant` describes the faults. :func:`fleet` returns the evidence, the device counter and
the truth. All randomness has a seed.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.records.columns import NO_HOST, HostColumns
from broadside.coordinator.core.measure.records.evidence import (
    BurstEvidence,
    CounterRecord,
    PairEvidence,
)
from broadside.coordinator.core.run_spec import Burst, Pair, Plan, RunSpec
from broadside.coordinator.core.thresholds import Objective
from broadside.exchange.messages import (
    Claim,
    ClockReading,
    ClockSource,
    Endpoint,
    EngineReport,
    Flow,
    FlowTotals,
    IdleRtt,
    JobPhase,
    JobReport,
    Outcome,
    ServerTest,
    Side,
    Traffic,
)
from tests.seconds_as_columns import told_track

START: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
IP_RATIO: Final = 1500 / 1448
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Fault in one burst for some pairs.

    Attributes:
        from_s: Start in each pair's own time.
        factor: Share of the rate that remains. 0 is a stall.
        pairs: Indexes of the pairs. None means all.
    """

    burst: int
    from_s: int
    length_s: int
    factor: float
    pairs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A fleet and what is planted in it. The defaults are a clean fleet under a firewall's cap."""

    seed: int = 0
    pairs: int = 30
    bursts: int = 2
    burst_s: int = 30
    period_s: int = 60
    streams: int = 8
    # Rate that each pair could send.
    pair_bits_per_second: float = 6e9
    # Payload rate that the device forwards at most.
    firewall_bits_per_second: float | None = 180e9
    nic_bits_per_second: float | None = 10e9
    # Relative noise of each second of a pair.
    noise: float = 0.03
    rtt_base_s: float = 0.001
    grain_s: float = 1.0
    lag_s: float = 0.0
    counter_noise: float = 0.002
    # Variation of the true bounds of the counter's bins.
    counter_jitter_s: float = 0.0
    layer: str = "ip"
    # Planted faults --------------------------------------------------------------------------
    # Spread of the agents' clocks, which they know within the bound.
    clock_offset_s: float = 0.0
    start_spread_s: float = 0.05
    # Pairs that start 5 to 60 s late.
    late: int = 0
    # Pairs with an engine that failed at once.
    null: int = 0
    # Pairs with an unclaimed job.
    missing: int = 0
    # Pairs that sent but have no records.
    lost: int = 0
    # Clients that die half way.
    killed: int = 0
    # Constant other traffic as a share of the fleet's mean.
    foreign_ratio: float = 0.0
    # Pairs with traffic that bypasses the firewall.
    bypass: int = 0
    # The device counter counts each byte twice.
    duplicate: bool = False
    # Rate of the firewall as a share of its cap.
    slow_firewall: float = 1.0
    capped_nic: bool = False
    # Bytes that a NIC counts for one byte of payload.
    nic_counted_ratio: float = 1.0456
    # "client" or "server".
    busy_cpu: str = ""
    small_window: bool = False
    single_flow_bits_per_second: float | None = None
    # SKU of the firewall, among the documented limits.
    sku: str | None = None
    # Offered rate of each pair.
    offered_bits_per_second: float | None = None
    # The firewall falls to this share half way.
    collapse: float = 0.0
    # Pairs without a server record, which need the senders' seconds.
    unheard: int = 0
    # Time in which each pair reaches its rate.
    ramp_s: float = 0.0
    breaks: tuple[Break, ...] = ()
    # Share of the rate added per hour.
    drift_per_hour: float = 0.0
    # Newest bins that the device counter does not have yet.
    unread_bins: int = 0
    device_counter: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Planted truth of a fleet.

    Attributes:
        payload_bytes: Bytes received by the pairs with records.
        rates: Mean payload rate of the fleet for each burst in bit/s, from second 1 to the end.
    """

    payload_bytes: float
    rates: tuple[float, ...]
    lag_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    plan: Plan
    evidence: tuple[BurstEvidence, ...]
    device_counter: CounterRecord | None
    truth: Truth
    now: datetime

    def asked(self, **spec: object) -> "Fleet":
        """Return the same fleet with changed fields of the run spec."""
        requested = self.plan.spec.model_copy(update=spec)
        return replace(self, plan=self.plan.model_copy(update={"spec": requested}))

    def aiming(self, **goals: object) -> "Fleet":
        """Return the same fleet with changed fields of the objective."""
        return self.asked(objective=self.plan.spec.objective.model_copy(update=goals))

    def told(
        self, change: Callable[[PairEvidence], PairEvidence], pairs: Collection[int] | None = None
    ) -> "Fleet":
        """Return the same fleet with changed evidence of all or the given pairs in each burst."""
        bursts = tuple(
            replace(
                burst,
                pairs=tuple(
                    change(pair) if pairs is None or pair.pair_index in pairs else pair
                    for pair in burst.pairs
                ),
            )
            for burst in self.evidence
        )
        return replace(self, evidence=bursts)


def clock(offset_s: float, bound_s: float, at: datetime) -> ClockReading:
    return ClockReading(
        source=ClockSource.CHRONY,
        read_at=at,
        synchronised=True,
        offset_s=offset_s,
        bound_s=bound_s,
    )


def fleet(plant: Plant, *, target_bits_per_second: float | None = None) -> Fleet:
    """Build the records of a fleet."""
    rng = np.random.default_rng(plant.seed)
    traffic = Traffic(
        streams_count=1 if plant.single_flow_bits_per_second else plant.streams,
        stream_bits_per_second=(
            round(plant.offered_bits_per_second / plant.streams)
            if plant.offered_bits_per_second
            else None
        ),
    )
    spec = RunSpec(
        scenario="synthetic",
        pairs_count=plant.pairs,
        bursts_count=plant.bursts,
        burst_s=plant.burst_s,
        period_s=plant.period_s,
        traffic=traffic,
        device={"sku": plant.sku} if plant.sku else {},
        objective=Objective(target_bits_per_second=target_bits_per_second),
    )
    pairs = tuple(
        Pair(
            index=index,
            endpoint=Endpoint(agent_id=f"server-{index}", address="10.2.0.4", port=5201 + index),
        )
        for index in range(plant.pairs)
    )
    bursts = tuple(
        Burst(
            index=index,
            planned_start_at=START + timedelta(seconds=index * plant.period_s),
            duration_s=plant.burst_s,
        )
        for index in range(plant.bursts)
    )
    plan = Plan(run_id="synthetic", created_at=START, spec=spec, pairs=pairs, bursts=bursts)
    chosen = rng.permutation(plant.pairs)
    roles = {}
    place = 0
    for role in ("late", "null", "missing", "lost", "killed", "bypass", "unheard"):
        count = getattr(plant, role)
        roles[role] = set(chosen[place : place + count].tolist())
        place += count
    weights = 1 + 0.15 * rng.standard_normal(plant.pairs).clip(-2, 2)
    # Start, bounds and bytes of each pair.
    crossed: list[tuple[float, Floats, Floats]] = []
    evidence, rates = [], []
    payload = 0.0
    for burst in bursts:
        members = []
        begun = burst.planned_start_at.timestamp()
        seconds = plant.burst_s
        wanted = _demand(plant, rng, weights, seconds)
        late_s = {
            int(index): float(rng.uniform(5, min(60, seconds / 2))) for index in roles["late"]
        }
        silent = roles["null"] | roles["missing"]
        wanted[list(silent)] = 0.0
        sent = _through(plant, rng, wanted)
        sent *= 1 + plant.drift_per_hour * burst.index * plant.period_s / 3600
        for broken in plant.breaks:
            if broken.burst == burst.index:
                rows = list(range(plant.pairs) if broken.pairs is None else broken.pairs)
                sent[rows, broken.from_s : broken.from_s + broken.length_s] *= broken.factor
        total = np.zeros(seconds)
        for index in range(plant.pairs):
            rate = sent[index]
            start = late_s.get(index, 0.0) + float(rng.uniform(0.0, plant.start_spread_s))
            stop = seconds if index not in roles["killed"] else seconds // 2
            bounds = np.concatenate(
                ([0.0], np.arange(1, stop) + rng.uniform(-2e-3, 2e-3, stop - 1), [float(stop)])
            )
            amounts = np.round(rate[:stop] / 8 * np.diff(bounds))
            offsets = rng.uniform(-1, 1, 2) * plant.clock_offset_s
            if index not in silent:
                if index not in roles["bypass"]:
                    crossed.append((begun + start, bounds, amounts))
                if index not in roles["lost"]:
                    payload += float(amounts.sum())
                    total[:stop] += rate[:stop]
            member = _member(plant, rng, burst, pairs[index], plan, bounds, amounts, start, offsets)
            if index in roles["null"]:
                member = _as_null(member)
            elif index in roles["missing"]:
                member = PairEvidence(pair_index=index)
            elif index in roles["lost"]:
                member = PairEvidence(pair_index=index, claim=member.claim)
            elif index in roles["killed"]:
                member = replace(member, report=None)
            elif index in roles["unheard"]:
                member = replace(member, server_test=None, server_tracks=(), server_host=NO_HOST)
            members.append(member)
        rates.append(float(total[1:].mean()))
        evidence.append(
            BurstEvidence(
                burst=burst, pairs=tuple(members[i] for i in rng.permutation(plant.pairs))
            )
        )
    device_counter = (
        _device_counter(plant, rng, bursts, crossed, float(np.mean(rates)))
        if plant.device_counter
        else None
    )
    return Fleet(
        plan=plan,
        evidence=tuple(evidence),
        device_counter=device_counter,
        truth=Truth(payload_bytes=payload, rates=tuple(rates), lag_s=plant.lag_s),
        now=bursts[-1].planned_end_at + timedelta(seconds=600),
    )


# Drops of each pair at a full firewall.
DROPS_PER_SECOND = 20


def _demand(plant: Plant, rng: np.random.Generator, weights: Floats, seconds: int) -> Floats:
    """Return bit/s that each pair would send without a firewall, shape (pairs, seconds)."""
    item = plant.pair_bits_per_second * weights
    if plant.capped_nic and plant.nic_bits_per_second:
        item = np.full(plant.pairs, 0.985 * plant.nic_bits_per_second / 1.0456)
    if plant.single_flow_bits_per_second:
        item = np.full(plant.pairs, 0.99 * plant.single_flow_bits_per_second)
    if plant.offered_bits_per_second:
        item = np.full(plant.pairs, plant.offered_bits_per_second)
    quiet = plant.capped_nic or plant.offered_bits_per_second or plant.single_flow_bits_per_second
    noise = plant.noise * (0.05 if quiet else 1.0)
    wanted = item[:, None] * (1 + noise * rng.standard_normal((plant.pairs, seconds)))
    if plant.ramp_s:
        wanted = wanted * np.minimum(1.0, (np.arange(seconds) + 0.5) / plant.ramp_s)
    return np.maximum(wanted, 0.0)


def _through(plant: Plant, rng: np.random.Generator, wanted: Floats) -> Floats:
    """Return the forwarded rates. The pairs share the cap in varying proportions."""
    if plant.firewall_bits_per_second is None:
        return wanted
    seconds = wanted.shape[1]
    cap = np.full(seconds, plant.firewall_bits_per_second * plant.slow_firewall)
    if plant.collapse:
        cap[seconds // 2 :] *= plant.collapse
    cap *= 1 + 0.002 * rng.standard_normal(seconds)
    total = wanted.sum(axis=0)
    over = np.minimum(1.0, cap / np.maximum(total, 1.0))
    shared: Floats = wanted * over
    return shared


def _firewall_drops(plant: Plant) -> bool:
    """Return whether the firewall is the bottleneck, with a full queue and drops."""
    return (
        plant.firewall_bits_per_second is not None
        and plant.firewall_bits_per_second * plant.slow_firewall
        < plant.pair_bits_per_second * plant.pairs * 0.99
        and not (
            plant.capped_nic
            or plant.busy_cpu
            or plant.small_window
            or plant.single_flow_bits_per_second
            or plant.offered_bits_per_second
        )
    ) or plant.collapse > 0


def _member(
    plant: Plant,
    rng: np.random.Generator,
    burst: Burst,
    pair: Pair,
    plan: Plan,
    bounds: Floats,
    amounts: Floats,
    start_s: float,
    offsets: Floats,
) -> PairEvidence:
    planned_s = burst.planned_start_at.timestamp()
    index = pair.index
    rate = amounts / np.maximum(np.diff(bounds), 1e-9) * 8
    limited = _firewall_drops(plant)
    base = plant.rtt_base_s
    rtt = base * (1 + 0.05 * rng.random(len(amounts))) + (0.004 if limited else 0.0)
    retransmits = rng.poisson(DROPS_PER_SECOND if limited else 0, len(amounts))
    if plant.small_window:
        cwnd = rate * rtt / 8 * (1 + 0.01 * rng.standard_normal(len(amounts)))
    else:
        cwnd = rate * rtt / 8 * (1.3 if limited else 3.0)
    clocks = [
        clock(
            float(offset),
            abs(float(offset)) * 0.05 + 1e-4,
            burst.planned_start_at,
        )
        for offset in offsets
    ]
    zero = planned_s + start_s
    known: dict[Side, dict[str, NDArray[Any]]] = {
        Side.CLIENT: {
            "retransmits_count": retransmits,
            "rtt_s": rtt,
            "cwnd_bytes": cwnd.astype(np.int64),
        },
        Side.SERVER: {},
    }
    tracks = {
        side: told_track(side, Flow.UP, zero + float(offset), bounds, amounts, known[side])
        for side, offset in zip((Side.CLIENT, Side.SERVER), offsets, strict=True)
    }
    job_id = f"{plan.run_id}.{burst.index:05d}.{index:05d}"
    cookie = f"cookie-{burst.index}-{index}"
    total = int(amounts.sum())
    engine = EngineReport(
        engine="iperf3",
        version="3.18",
        cookie=cookie,
        mss_bytes=1448,
        totals=(
            FlowTotals(
                flow=Flow.UP,
                sent_bytes=total,
                sent_s=float(plant.burst_s),
                received_bytes=total,
                received_s=float(plant.burst_s),
                rtt_min_s=base,
            ),
        ),
    )
    first_at = burst.planned_start_at + timedelta(seconds=start_s + float(offsets[0]))
    hosts = {
        side: _host(plant, side, zero + float(offset), amounts)
        for side, offset in zip((Side.CLIENT, Side.SERVER), offsets, strict=True)
    }
    return PairEvidence(
        pair_index=index,
        claim=Claim(
            job_id=job_id,
            agent_id=f"client-{index}",
            phase=JobPhase.RUNNING,
            claimed_at=burst.planned_start_at - timedelta(seconds=10),
            cookie=cookie,
            clock=clocks[0],
        ),
        report=JobReport(
            job_id=job_id,
            run_id=plan.run_id,
            burst_index=burst.index,
            pair_index=index,
            agent_id=f"client-{index}",
            outcome=Outcome.MEASURED if start_s <= 1 else Outcome.LATE,
            reason=None if start_s <= 1 else "late",
            planned_start_at=burst.planned_start_at,
            first_data_at=first_at,
            start_error_s=start_s,
            engine=engine,
            clock_before=clocks[0],
            clock_after=clocks[0],
            idle_rtt=IdleRtt(least_s=base, median_s=base, samples_count=9, how="connections"),
            reported_at=burst.planned_end_at,
        ),
        client_tracks=(tracks[Side.CLIENT],),
        client_host=hosts[Side.CLIENT],
        server_test=ServerTest(
            agent_id=pair.endpoint.agent_id,
            endpoint=pair.endpoint,
            started_at=burst.planned_start_at - timedelta(seconds=2),
            first_data_at=first_at,
            ended_at=burst.planned_end_at,
            engine=engine,
            clock_before=clocks[1],
            clock_after=clocks[1],
        ),
        server_tracks=(tracks[Side.SERVER],),
        server_host=hosts[Side.SERVER],
        client_nic_bits_per_second=plant.nic_bits_per_second,
        server_nic_bits_per_second=plant.nic_bits_per_second,
    )


def _host(plant: Plant, side: Side, zero_s: float, amounts: Floats) -> HostColumns:
    busy = plant.busy_cpu == side
    nic = np.trunc(amounts * plant.nic_counted_ratio)
    seconds = zero_s + np.arange(len(amounts), dtype=np.float64)
    none = np.zeros(len(amounts))
    return HostColumns(
        start_at_s=seconds,
        end_at_s=seconds + 1,
        nic_rx_bytes=nic if side is Side.SERVER else none,
        nic_tx_bytes=nic if side is Side.CLIENT else none,
        drops_count=none.astype(np.float32),
        cpu_busy_ratio=np.full(len(amounts), 0.985 if busy else 0.4, np.float32),
        cpu_busiest_core_ratio=np.full(len(amounts), 0.995 if busy else 0.6, np.float32),
    )


def _as_null(member: PairEvidence) -> PairEvidence:
    assert member.report is not None
    return PairEvidence(
        pair_index=member.pair_index,
        claim=member.claim,
        report=member.report.model_copy(
            update={
                "outcome": Outcome.FAILED,
                "reason": "unable to connect to server",
                "engine": EngineReport(engine="iperf3", error="unable to connect to server"),
                "first_data_at": None,
            }
        ),
    )


def _device_counter(
    plant: Plant,
    rng: np.random.Generator,
    bursts: tuple[Burst, ...],
    crossed: list[tuple[float, Floats, Floats]],
    fleet_bits_per_second: float,
) -> CounterRecord:
    """Return the firewall's counter bins with lag, noise and an offset from the grid."""
    begin = bursts[0].planned_start_at.timestamp() - 360
    end = bursts[-1].planned_end_at.timestamp() + 480
    phase = 0.37 if plant.grain_s < 10 else 0.0
    count = int((end - begin) / plant.grain_s)
    labels = begin + phase + plant.grain_s * np.arange(count + 1, dtype=np.float64)
    # Bytes move to a neighbouring bin.
    jitter = rng.uniform(-1, 1, count + 1) * plant.counter_jitter_s
    edges = labels - plant.lag_s + jitter
    total = np.zeros(count + 1)
    for zero, bounds, amounts in crossed:
        total += np.interp(edges, zero + bounds, np.concatenate(([0.0], np.cumsum(amounts))))
    drops = np.zeros(count)
    if _firewall_drops(plant):
        drops = np.where(np.diff(total) > 0, DROPS_PER_SECOND * plant.pairs * plant.grain_s, 0.0)
    passed = np.diff(total) * (IP_RATIO if plant.layer == "ip" else 1.0456)
    foreign = plant.foreign_ratio * fleet_bits_per_second / 8 * plant.grain_s
    passed = passed + foreign * (1 + 0.02 * rng.standard_normal(count))
    passed *= 1 + plant.counter_noise * rng.standard_normal(count)
    if plant.duplicate:
        passed *= 2
    if plant.unread_bins:
        passed[-plant.unread_bins :] = np.nan
    return CounterRecord(
        source="synthetic",
        layer="ip" if plant.layer == "ip" else "wire",
        start_s=labels[:-1],
        end_s=labels[1:],
        bytes=passed,
        drops_count=drops,
        grain_s=plant.grain_s,
        # No acknowledgements are planted.
        flows=(Flow.UP,),
        read_at=bursts[-1].planned_end_at + timedelta(seconds=600),
    )
