"""From a case to what would be on record of it, and to what truly happened.

True time is UTC. A pair sends piecewise constant payload from its start on; what of it crosses the
device is counted there, with whatever else crosses, into bins whose labels run behind by the lag.
Hosts stamp by clocks of their own. Nothing here knows how the engine reads any of it.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.exchange.messages import (
    Claim,
    ClockReading,
    ClockSource,
    Direction,
    Endpoint,
    EngineReport,
    Flow,
    FlowTotals,
    IdleRtt,
    JobReport,
    Outcome,
    Phase,
    Protocol,
    ServerTest,
    Side,
    StartMethod,
    Traffic,
)
from tests.hunt.engine import (
    NO_HOST,
    Burst,
    End,
    FirewallLedger,
    HostColumns,
    Layer,
    Neighbour,
    Objective,
    Pair,
    Plan,
    Record,
    RunSpec,
    TrackColumns,
    World,
    told_track,
)
from tests.hunt.planting import Case, Rng

Floats = NDArray[np.float64]
START_S: Final = 1_795_000_000.0  # 2026-11-18
COVERAGE_FLOOR: Final = 0.95
CLOCK_GATE_S: Final = 0.05
BLOCK_BYTES: Final = 131_072
CUT_SHARE: Final = 0.25  # of a burst, the longest ramp that any reader would leave out
FATES: Final = (
    "late",
    "null",
    "missing",
    "lost",
    "killed",
    "unheard",
    "clientless",
    "busy",
    "twin",
    "phantom",
)
NOT_RUN: Final = ("null", "missing", "busy", "twin", "phantom")
INVENTED: Final = ("twin", "phantom")
NIC_LOAD: Final = 0.985  # of its cap, where it is full


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstTruth:
    """One burst as it was: rates in bit/s at the objective's layer, by every fair reading."""

    received_high: float  # what the fleet received: the most generous window and set of pairs
    received_low: float
    through_high: float  # of it, through the device
    through_low: float
    apparent_high: float  # what a perfect reader of the ledger would take for it
    stretch_low: float  # the lowest planted stretch that lasts, through the device; inf: none
    moment_low: float  # and of those that do not last
    completeness: float  # of planned pair-seconds on record
    level: float  # payload bit/s, mean of the process without its noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What really happened, and what was promised of it."""

    limit: float  # bit/s at the objective's layer: under it no pass
    bursts: tuple[BurstTruth, ...]
    level: float  # payload bit/s: mean of the process over bursts without their scatter
    residual: float | None  # through the device / on record - 1, both at the ledger's layer
    lag_s: float
    limiters: frozenset[str]  # right names
    ledger_promised: bool
    ledger_cover: float  # share of bursts' time that the ledger tells of
    clocks_read: bool
    over_gate: float  # share of hosts that told a bound over the gate
    receivers_seconds: bool


@dataclass(slots=True, kw_only=True)
class _Fleet:
    """Pairs in truth; arrays are (bursts, pairs, readings) unless said otherwise."""

    rates: Floats  # payload bit/s
    bounds: Floats  # (readings + 1,) s since the first byte
    totals: Floats  # (bursts, pairs, readings + 1) bytes sent by then
    starts_s: Floats  # (bursts, pairs) epoch s of the first byte
    spans: Floats  # (bursts, pairs) readings that it sent in; 0: never
    fates: list[list[str]]
    crossing: Floats  # (bursts, pairs) share of its bytes through the device
    levels: Floats  # (bursts,) payload bit/s
    rtt_s: float
    equal: bool

    def cumulated(self, burst: int, pair: int) -> tuple[Floats, Floats]:
        """Knots of one pair's bytes over true time."""
        span = int(self.spans[burst, pair])
        return (
            self.starts_s[burst, pair] + self.bounds[: span + 1],
            self.totals[burst, pair, : span + 1],
        )

    def amounts(self, burst: int, pair: int) -> Floats:
        """Bytes of each reading."""
        return np.diff(self.totals[burst, pair, : int(self.spans[burst, pair]) + 1])

    def sent_between(self, burst: int, begin_s: float, end_s: float) -> Floats:
        """Bytes that each pair sent between two instants."""
        instants_s = np.array([[begin_s], [end_s]])
        since_s = np.clip(instants_s - self.starts_s[burst], 0.0, self.bounds[-1])
        after = np.clip(np.searchsorted(self.bounds, since_s, "right"), 1, len(self.bounds) - 1)
        begun_s, pairs = self.bounds[after - 1], np.arange(since_s.shape[1])
        part = (since_s - begun_s) / (self.bounds[after] - begun_s)
        begun = self.totals[burst, pairs, after - 1]
        sent = begun + part * (self.totals[burst, pairs, after] - begun)
        return np.asarray(sent[1] - sent[0])


def _totals(rates: Floats, bounds: Floats, spans: Floats) -> Floats:
    """Whole bytes that each pair had sent by each of its readings; flat once it has stopped."""
    amounts = np.round(rates / 8 * np.diff(bounds))
    amounts[np.arange(len(bounds) - 1) >= spans[:, :, None]] = 0.0
    totals = np.zeros((*spans.shape, len(bounds)))
    np.cumsum(amounts, axis=-1, out=totals[:, :, 1:])
    return totals


def _noise(rng: Rng, shape: tuple[int, ...], rho: float) -> Floats:
    """Standard normal AR(1) along the last axis, from its stationary distribution."""
    told = rng.standard_normal(shape)
    if rho > 0:
        fresh = np.sqrt(1 - rho * rho)
        for second in range(1, shape[-1]):
            told[..., second] = rho * told[..., second - 1] + fresh * told[..., second]
    return told


def _shape(case: Case, middles_s: Floats) -> Floats:
    """Share of the rate that stays, at instants since a pair's first byte."""
    at = (middles_s - case.omit_s) / case.burst_s  # under 0: warm-up
    shape = np.ones(len(at))
    if case.ramp_s:
        shape *= np.minimum(1.0, middles_s / case.ramp_s)
    shape[(at >= 0) & (at < case.head_share)] *= case.head_level
    shape[at >= case.fall_at] *= case.fall_level
    shape[(at >= case.dip_at) & (at < case.dip_at + case.dip_share)] *= case.dip_level
    shape *= 1 - case.tilt * np.clip(at, 0.0, 1.0)
    return shape


def _fates(case: Case, rng: Rng) -> list[list[str]]:
    order, place = rng.permutation(case.pairs), 0
    fates = [[""] * case.pairs for _ in range(case.bursts)]
    hit = rng.permutation(case.bursts)[: max(1, round(case.fate_bursts * case.bursts))]
    for name in FATES:
        for pair in order[place : place + getattr(case, name)]:
            for burst in hit:
                fates[burst][pair] = name
        place += getattr(case, name)
    for burst in rng.permutation(case.bursts)[: case.lost_bursts]:
        fates[burst] = ["lost"] * case.pairs
    return fates


def _sent(case: Case) -> _Fleet:
    bursts, pairs = case.bursts, case.pairs
    rng, bounds = case.rng("noise"), _bounds(case, case.rng("bounds"))
    readings = len(bounds) - 1
    fates = _fates(case, case.rng("fates"))
    equal = case.limiter in ("offered", "client-nic", "window", "single-flow", "policer")
    weights = np.ones(pairs) if equal else 1 + 0.15 * rng.standard_normal(pairs).clip(-2, 2)
    each = 1.485e9 / case.scale if case.limiter == "single-flow" else case.pair_gigabits * 1e9
    total = each * pairs
    quiet = 0.08 if equal else 1.0
    own = 1 + case.noise * quiet * _noise(rng, (bursts, pairs, readings), case.rho)
    common = 1 + case.common_noise * _noise(rng, (bursts, 1, readings), case.rho)
    wanted = np.maximum(weights[:, None] * own, 0.0)
    runs = np.array([[fate not in NOT_RUN for fate in row] for row in fates])
    if case.limiter == "device":  # pairs trade shares of one limit
        heard = wanted * runs[:, :, None]
        sums = heard.sum(axis=1, keepdims=True)
        share = runs.mean(axis=1)[:, None, None]
        rates = np.where(sums > 0, heard / np.maximum(sums, 1e-9), 0.0) * total * share
    else:
        rates = wanted / weights.sum() * total
    factor = 1 + case.scatter * case.rng("scatter").standard_normal(bursts)
    if case.climb and bursts > 1:
        factor *= 1 - case.climb * (1 - np.arange(bursts) / (bursts - 1))
    shifted = np.where(np.arange(bursts) % 2 == 1, 1 + case.shift, 1.0)
    rates = np.maximum(rates * common, 0.0) * (factor * shifted)[:, None, None]
    shaped = case.rng("shape").permutation(bursts)[: max(1, round(case.shape_bursts * bursts))]
    bent = case.rng("shaped pairs").permutation(pairs)[: max(1, round(case.shape_pairs * pairs))]
    rates[np.ix_(shaped, bent)] *= _shape(case, (bounds[1:] + bounds[:-1]) / 2)
    spans = np.where(runs, float(readings), 0.0)
    rng = case.rng("starts")
    starts = _planned(case)[:, None] + rng.uniform(0, case.start_spread_s, (bursts, pairs))
    for burst, row in enumerate(fates):
        for pair, fate in enumerate(row):
            if fate == "late":
                starts[burst, pair] += rng.uniform(1.5, min(60, 1.5 + case.burst_s))
            if fate == "killed":
                spans[burst, pair] = max(1, readings // 2)
    return _Fleet(
        rates=rates,
        bounds=bounds,
        totals=_totals(rates, bounds, spans),
        starts_s=starts,
        spans=spans,
        fates=fates,
        crossing=_crossing(case, case.rng("crossing")),
        levels=total * factor * shifted * runs.mean(axis=1),
        rtt_s=float(rng.uniform(0.0003, 0.02)),
        equal=equal,
    )


def _bounds(case: Case, rng: Rng) -> Floats:
    """When an engine reads, s since the first byte: on its interval, a little off."""
    whole_s = case.omit_s + case.burst_s
    count = max(1, round(whole_s / case.interval_s))
    bounds = np.linspace(0, whole_s, count + 1)
    bounds[1:-1] += rng.uniform(-2e-3, 2e-3, count - 1)
    if case.omit_s and count > 1:
        bounds[int(np.argmin(np.abs(bounds - case.omit_s)))] = case.omit_s
    return bounds


def _planned(case: Case) -> Floats:
    return START_S + 3600 + case.period_s * np.arange(case.bursts, dtype=np.float64)


def _crossing(case: Case, rng: Rng) -> Floats:
    """Share of each pair's bytes that crosses the device; a bypassed burst's mean is 1 - bypass."""
    left = case.bypass * case.pairs
    crossing = np.ones(case.pairs)
    if not case.bypass_pairs:
        crossing -= case.bypass
    else:
        for pair in rng.permutation(case.pairs):
            taken = min(1.0, left)
            crossing[pair] -= taken
            left -= taken
    whole = np.ones((case.bursts, case.pairs))
    count = max(1, round(case.bypass_bursts * case.bursts))
    whole[rng.permutation(case.bursts)[:count]] = crossing
    return whole


def header_ratio(case: Case, layer: str) -> float:
    """Bytes at a layer for each byte of payload: over IPv4; TCP with timestamps but for 1460."""
    if layer == "payload":
        return 1.0
    outer = 28 if case.udp else 40 if case.mss == 1460 else 52
    frame = 14 if layer == "wire" else 0
    return (case.mss + outer + frame) / case.mss * (1 + case.header_slack)


def _carried(fleet: _Fleet, burst: int, weights: Floats, begin_s: float, end_s: float) -> float:
    """Payload bit/s of weighted pairs in a span of true time."""
    if end_s <= begin_s:
        return 0.0
    return float(weights @ fleet.sent_between(burst, begin_s, end_s)) * 8 / (end_s - begin_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Readings:
    high: float
    low: float
    plain: float  # all that ran, over the common window


def _read(case: Case, fleet: _Fleet, burst: int, weights: Floats) -> _Readings:
    """Every fair reading of what weighted pairs carried in one burst."""
    planned_s = float(_planned(case)[burst]) + case.omit_s
    ran = fleet.spans[burst] > 0
    whole = np.array([fate not in (*NOT_RUN, "late", "killed") for fate in fleet.fates[burst]])
    anyone = weights * ran
    asked = _carried(fleet, burst, anyone, planned_s, planned_s + case.burst_s)
    if not (whole & ran).any():
        return _Readings(high=asked, low=0.0, plain=asked)
    begun = float(fleet.starts_s[burst][whole].max()) + case.omit_s
    ended = float(fleet.starts_s[burst][whole].min()) + case.omit_s + case.burst_s
    plain = _carried(fleet, burst, anyone, begun, ended)
    strict = _carried(fleet, burst, weights * whole, begun, ended)
    told = [asked, plain, strict]
    if case.ramp_s or (case.head_share and case.head_level < 1):
        cuts = np.linspace(0, CUT_SHARE * case.burst_s, 8)[1:]
        told += [_carried(fleet, burst, anyone, begun + float(cut), ended) for cut in cuts]
    return _Readings(high=max(told), low=min(asked, strict), plain=plain)


def _stretches(case: Case, fleet: _Fleet, burst: int, weights: Floats, *, lasting: bool) -> float:
    """The lowest rate of a planted fall, dip or slow head, or of those that last; inf: none."""
    seconds = case.burst_s
    spans = []
    if case.head_level > 1 and case.head_share > 0:
        spans.append((case.head_share, 1.0))
    if case.head_level < 1 and case.head_share >= (0.3 if lasting else 0.01):
        spans.append((0.0, case.head_share))
    if case.fall_level < 1 and case.fall_at <= (0.8 if lasting else 0.99):
        spans.append((case.fall_at, 1.0))
    if case.tilt > 0:
        spans.append((0.8, 1.0))
    if case.dip_level < 1 and case.dip_share >= (0.2 if lasting else 0.01):
        spans.append((case.dip_at, min(1.0, case.dip_at + case.dip_share)))
    zero = float(np.median(fleet.starts_s[burst])) + case.omit_s
    weights = weights * np.array(
        [fate not in (*NOT_RUN, "late", "killed") for fate in fleet.fates[burst]]
    )
    least_s = 5.0 if lasting else 0.0
    edge_s = 0.5 if lasting else 0.0
    return min(
        (
            _carried(
                fleet, burst, weights, zero + a * seconds + edge_s, zero + b * seconds - edge_s
            )
            for a, b in spans
            if (b - a) * seconds >= least_s
        ),
        default=np.inf,
    )


def build(case: Case) -> tuple[World, Truth]:
    """What is on record of a case, and the truth of it."""
    fleet = _sent(case)
    clocks = _Clocks.of(case, case.rng("clocks"))
    fleet.starts_s -= clocks.true_s[:, :, 0]  # agents start by their own clocks
    ratio = header_ratio(case, case.layer)
    everything, crossing = np.ones(case.pairs), fleet.crossing
    received = [_read(case, fleet, burst, everything) for burst in range(case.bursts)]
    through = [_read(case, fleet, burst, crossing[burst]) for burst in range(case.bursts)]
    carried = float(np.mean([reading.plain for reading in received])) * ratio
    limit = (carried or case.pair_gigabits * 1e9 * case.pairs) / case.margin
    plan = _plan(case, fleet, limit)
    others = _others(case, case.rng("others"), float(fleet.levels.mean()))
    foreign = _Foreign.of(case, case.rng("foreign"), float(fleet.levels.mean()), others)
    ledger, cover = _ledger(case, case.rng("ledger"), fleet, foreign)
    ends, records = [], []
    rng = case.rng("records")
    for burst in plan.bursts:
        made = _records(case, rng, fleet, clocks, plan, burst)
        ends.append(made[0])
        records.append(made[1])
    world = World(
        plan=plan,
        ends=tuple(ends),
        records=tuple(records),
        ledger=ledger,
        ledger_promised=case.promised,
        neighbours=others if case.others_known else (),
        nic_bits_per_second=_nic(case, fleet) if case.caps_known else None,
        mtu_bytes=(case.mss + 52 if case.mss != 1460 else 1500) if case.mss_told else None,
        now=plan.bursts[-1].planned_end_at + timedelta(seconds=max(900.0, case.quiet_s)),
    )
    level_ratio = header_ratio(case, case.ledger_layer)
    truth = Truth(
        limit=limit,
        bursts=tuple(
            BurstTruth(
                received_high=received[burst].high * ratio,
                received_low=received[burst].low * ratio,
                through_high=through[burst].high * ratio,
                through_low=through[burst].low * ratio,
                apparent_high=through[burst].high * ratio * _counted(case)
                + foreign.taken_for_fleet(case, burst) / level_ratio * ratio,
                stretch_low=_stretches(case, fleet, burst, crossing[burst], lasting=True) * ratio,
                moment_low=_stretches(case, fleet, burst, crossing[burst], lasting=False) * ratio,
                completeness=_completeness(case, fleet, burst),
                level=float(fleet.levels[burst]),
            )
            for burst in range(case.bursts)
        ),
        level=_level(case, fleet),
        residual=-_bypassed(case, fleet) if case.ledger else None,
        lag_s=case.lag_s,
        limiters=_limiters(case),
        ledger_promised=case.promised,
        ledger_cover=cover,
        clocks_read=case.readings != "none",
        over_gate=float(np.mean(clocks.bounds_s > CLOCK_GATE_S)),
        receivers_seconds=case.receivers_seconds,
    )
    return world, truth


def _level(case: Case, fleet: _Fleet) -> float:
    each = 1.485e9 / case.scale if case.limiter == "single-flow" else case.pair_gigabits * 1e9
    runs = np.mean([[fate not in NOT_RUN for fate in row] for row in fleet.fates])
    return float(each * case.pairs * runs)


def _bypassed(case: Case, fleet: _Fleet) -> float:
    """Share of the fleet's bytes that did not cross."""
    sent = fleet.totals[:, :, -1]
    crossed, total = float((sent * fleet.crossing).sum()), float(sent.sum())
    return 1 - crossed / total if total else 0.0


def _completeness(case: Case, fleet: _Fleet, burst: int) -> float:
    """Planned pair-seconds that anybody has on record as they were to be, at most."""
    seen = 0.0
    for pair, fate in enumerate(fleet.fates[burst]):
        if fate in (*NOT_RUN, "lost", "late"):
            continue
        gap = case.gap_s if case.gap_both and pair < case.gap_pairs else 0
        sent_s = float(fleet.bounds[int(fleet.spans[burst, pair])])
        seen += max(0.0, sent_s - gap)
    return seen / (case.pairs * float(fleet.bounds[-1]))


def _limiters(case: Case) -> frozenset[str]:
    name = case.limiter
    known = {"device": "firewall", "offered": "offered-load", "none": "unknown"}
    # Its devices are not pinged and count no drops: unknown is right as well.
    return frozenset({known.get(name, "unknown" if name == "policer" else name), "unknown"})


def _nic(case: Case, fleet: _Fleet) -> float:
    each = float(fleet.levels.mean()) / case.pairs * header_ratio(case, "wire")
    return each / NIC_LOAD if case.limiter == "client-nic" else 3 * each


# What the device counts ----------------------------------------------------------------------


def _others(case: Case, rng: Rng, level: float) -> tuple[Neighbour, ...]:
    """Bursts of other runs, somewhere about ours, a few of them at the very same time."""
    planned = _planned(case)
    found = []
    for number in range(case.other_runs):
        at = float(rng.uniform(planned[0] - 120, planned[-1] + case.burst_s + 60))
        if rng.random() < 0.3:
            at = float(rng.choice(planned))
        found.append(
            Neighbour(
                run_id=f"other-{number}",
                burst_index=0,
                start_s=int(at),
                received_bytes=np.full(case.burst_s, case.other_level * level / 8),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Foreign:
    """What else crosses the device, bit/s at the ledger's layer on a grid of one second."""

    start_s: float
    rate: Floats
    untold: Floats  # of it, what nobody told of

    @classmethod
    def of(cls, case: Case, rng: Rng, level: float, others: tuple[Neighbour, ...]) -> "_Foreign":
        planned = _planned(case)
        start_s = float(np.floor(planned[0] - case.quiet_s - 700))
        end_s = planned[-1] + case.burst_s + case.quiet_s + 700
        count = int(end_s - start_s)
        ratio = header_ratio(case, case.ledger_layer)
        full = level * ratio
        untold = np.zeros(count)
        if case.foreign or case.foreign_trend:
            steady = 1 + 0.02 * _noise(rng, (count,), 0.5)
            along = (start_s + np.arange(count) - planned[0]) / max(1.0, planned[-1] - planned[0])
            level_at = case.foreign + case.foreign_trend * np.clip(along, -0.2, 1.2)
            untold += full * np.maximum(level_at, 0.0) * np.maximum(steady, 0.0)
        at = start_s + np.arange(count)
        if case.yields:
            for begun in planned:
                untold[(at >= begun) & (at < begun + case.omit_s + case.burst_s)] *= 1 - case.yields
        if case.periodic:
            beat = ((at - planned[0]) / case.period_s - case.periodic_at) % 1 < 0.5
            untold[beat] += case.periodic * full
        if case.bursty:
            untold += case.bursty * full * _on_off(case, rng, count)
        if case.in_bursts:
            inside = np.zeros(count, np.bool_)
            for begun in planned:
                inside |= (at >= np.floor(begun)) & (
                    at < np.ceil(begun + case.omit_s + case.burst_s)
                )
            untold[inside] += case.in_bursts * full
        told = np.zeros(count)
        for other in others:
            place = int(other.start_s - start_s)
            told[place : place + len(other.received_bytes)] += other.received_bytes[
                : max(0, count - place)
            ] * (8 * ratio)
        rate = untold + told
        return cls(start_s=start_s, rate=rate, untold=untold if case.others_known else rate)

    def between(self, edges_s: Floats) -> Floats:
        """Bytes between neighbouring instants of true time."""
        at = self.start_s + np.arange(len(self.rate) + 1)
        total = np.concatenate(([0.0], np.cumsum(self.rate / 8)))
        return np.diff(np.interp(edges_s, at, total))

    def taken_for_fleet(self, case: Case, burst: int) -> float:
        """Bit/s in a burst beyond the level outside of bursts: nothing tells it from the fleet."""
        at = self.start_s + np.arange(len(self.rate)) + 0.5
        planned = _planned(case)
        outside = np.ones(len(at), np.bool_)
        for begun in planned:
            outside &= (at < begun - 1) | (at > begun + case.omit_s + case.burst_s + 1)
        outside &= (at > planned[0] - case.quiet_s) & (
            at < planned[-1] + case.burst_s + case.quiet_s
        )
        inside = (at > planned[burst]) & (at < planned[burst] + case.omit_s + case.burst_s)
        if outside.sum() < case.grain_s:
            return 0.0  # no quiet time: whoever cannot know the level is not to pass
        more = float(self.untold[inside].mean()) - float(self.untold[outside].mean())
        return max(0.0, more)


def _on_off(case: Case, rng: Rng, count: int) -> Floats:
    """Mean 1: full or nothing, exponential spells."""
    off_s = case.bursty_on_s * (1 - case.bursty_duty) / case.bursty_duty
    told = np.zeros(count)
    at, on = 0.0, bool(rng.random() < case.bursty_duty)
    while at < count:
        spell = 1 + float(rng.exponential(case.bursty_on_s if on else off_s))
        if on:
            told[int(at) : int(at + spell)] = 1 / case.bursty_duty
        at, on = at + spell, not on
    return told


def _ledger(
    case: Case, rng: Rng, fleet: _Fleet, foreign: _Foreign
) -> tuple[FirewallLedger | None, float]:
    """The device's count, and the share of bursts' time that it tells of."""
    if not case.ledger:
        return None, 0.0
    planned, grain = _planned(case), case.grain_s
    begin = planned[0] - case.quiet_s - case.phase * grain
    end = planned[-1] + case.omit_s + case.burst_s + case.quiet_s + case.lag_s
    count = max(2, int(np.ceil((end - begin) / grain)) + 1)
    labels = begin + grain * np.arange(count + 1, dtype=np.float64)
    drift = case.lag_drift_s * (np.arange(count + 1) / count - 0.5)
    jitter = rng.uniform(-1, 1, count + 1) * min(case.ledger_jitter_s, 0.3 * grain)
    edges = np.maximum.accumulate(labels - case.lag_s - drift + jitter)
    total = np.zeros(count + 1)
    for burst in range(case.bursts):
        for pair in range(case.pairs):
            if fleet.crossing[burst, pair] <= 0 or (
                fleet.spans[burst, pair] <= 0 and fleet.fates[burst][pair] != "busy"
            ):
                continue
            at, cumulative = _crossed(fleet, burst, pair)
            first, last = np.searchsorted(edges, [at[0], at[-1]])
            share = float(fleet.crossing[burst, pair])
            total[first:last] += np.interp(edges[first:last], at, cumulative) * share
            total[last:] += cumulative[-1] * share
    passed = np.diff(total) * header_ratio(case, case.ledger_layer) + foreign.between(edges)
    passed *= 1 + case.ledger_noise * rng.standard_normal(count)
    passed *= _counted(case)
    for place in sorted(rng.integers(0, count - 1, case.stalls)):
        passed[place + 1] += passed[place]
        passed[place] = 0.0
    if case.wraps:
        passed %= 2.0**32
    busy = np.flatnonzero(passed > 0.2 * passed.max())
    for place in rng.permutation(busy)[: case.resets]:
        passed[place] *= float(rng.uniform(0, 0.6))
    if case.holes:
        passed[rng.random(count) < case.holes] = np.nan
    if case.unread_bins:
        passed[-case.unread_bins :] = 0.0 if case.unread_zero else np.nan
    from_s = labels[0] + case.cover_from * (labels[-1] - labels[0])
    to_s = labels[0] + case.cover_to * (labels[-1] - labels[0])
    kept = (labels[:-1] >= from_s - 1e-6) & (labels[1:] <= to_s + 1e-6)
    if kept.sum() < 1:
        return None, 0.0
    known = kept & ~np.isnan(passed)
    told = np.zeros(count)
    for begun in planned:
        told += np.clip(
            np.minimum(edges[1:], begun + case.omit_s + case.burst_s)
            - np.maximum(edges[:-1], begun),
            0,
            None,
        )
    whole_s = case.bursts * (case.omit_s + case.burst_s)
    told_bins = np.concatenate(
        (np.flatnonzero(kept), rng.choice(np.flatnonzero(kept), case.repeats))
    )
    ledger = FirewallLedger(
        source="planted",
        layer=("ip" if case.ledger_layer == "ip" else "wire") if case.layer_said else "unknown",
        start_s=labels[:-1][told_bins],
        end_s=labels[1:][told_bins],
        bytes=passed[told_bins],
        grain_s=grain,
        read_at=_at(labels[-1] + 60),
        lag_hint_s=case.lag_s + case.hint_off_s if case.lag_hint else None,
    )
    return ledger, float(told[known].sum() / whole_s)


def _counted(case: Case) -> float:
    """Bytes that the device counts for each that crossed."""
    return case.ledger_scale * (2 if case.duplicate else 1)


def _crossed(fleet: _Fleet, burst: int, pair: int) -> tuple[Floats, Floats]:
    """A pair's bytes over true time; of a busy server those of the other run's test."""
    if fleet.fates[burst][pair] != "busy":
        return fleet.cumulated(burst, pair)
    amounts = _stolen(fleet, burst, pair)
    return fleet.starts_s[burst, pair] + fleet.bounds, np.concatenate(([0.0], np.cumsum(amounts)))


def _stolen(fleet: _Fleet, burst: int, pair: int) -> Floats:
    """What another run's client sent to this pair's server."""
    heard = fleet.rates[burst].max(axis=0)
    level = heard if heard.any() else np.full(len(heard), 1e9)
    return np.asarray(np.round(level / 8 * np.diff(fleet.bounds)))


# What agents leave on record --------------------------------------------------------------------


def _at(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)


def _plan(case: Case, fleet: _Fleet, limit: float) -> Plan:
    # No paced sender sends more than its pace: that is the most that any pair sends in a burst.
    each = float(fleet.rates.mean(axis=2).max()) / case.streams / (1 - case.loss)
    paced = case.udp or case.limiter == "offered"
    traffic = Traffic(
        streams_count=case.streams,
        direction=Direction(case.direction),
        protocol=Protocol.UDP if case.udp else Protocol.TCP,
        block_bytes=case.mss if case.udp else None,
        omit_s=case.omit_s,
        interval_s=case.interval_s,
        stream_bits_per_second=max(1, round(each * case.scale)) if paced else None,
    )
    device = {"sku": "standard"} if case.limiter == "single-flow" else {}
    if case.reference:
        device["path"] = "bypass"
    spec = RunSpec(
        scenario="hunted",
        pairs_count=case.pairs,
        bursts_count=case.bursts,
        burst_s=case.burst_s,
        period_s=case.period_s,
        traffic=traffic,
        objective=Objective(
            target_bits_per_second=limit * case.scale / (1 - case.tolerance),
            layer=Layer(case.layer),
            tolerance_ratio=case.tolerance,
            coverage_floor_ratio=COVERAGE_FLOOR,
            residual_max_ratio=case.residual_max,
        ),
        clock_bound_max_s=CLOCK_GATE_S,
        scale=case.scale,
        device=device,
    )
    pairs = tuple(
        Pair(
            index=index,
            endpoint=Endpoint(
                agent_id=f"server-{index}", address=f"10.2.0.{index + 4}", port=5201 + index
            ),
        )
        for index in range(case.pairs)
    )
    bursts = tuple(
        Burst(
            index=index,
            planned_start_at=_at(float(at)),
            duration_s=case.burst_s,
            omit_s=case.omit_s,
        )
        for index, at in enumerate(_planned(case))
    )
    created_at = bursts[0].planned_start_at - timedelta(seconds=30)
    return Plan(run_id="hunted", created_at=created_at, spec=spec, pairs=pairs, bursts=bursts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clocks:
    """Clocks of hosts, (bursts, pairs, 2): client and server."""

    true_s: Floats  # ahead of UTC
    told_s: Floats
    after_s: Floats  # true, at the burst's end
    told_after_s: Floats
    bounds_s: Floats

    @classmethod
    def of(cls, case: Case, rng: Rng) -> "_Clocks":
        shape = (case.bursts, case.pairs, 2)
        steady = rng.uniform(-1, 1, (1, case.pairs, 2)) * case.offset_s
        bounds = np.broadcast_to(case.bound_s * rng.uniform(0.5, 1, (1, case.pairs, 2)), shape)
        honest = steady + 0.2 * bounds * rng.uniform(-1, 1, shape)
        told = honest + 0.5 * bounds * rng.uniform(-1, 1, shape)
        lies = np.zeros(shape)
        liars = rng.random(case.pairs) < case.lie_share
        lies[:, liars, 0] = case.lie_s * rng.choice([-1.0, 1.0], int(liars.sum()))
        if case.lie_both:
            lies[:, :, 1] = lies[:, :, 0]
        steps = np.where(rng.random((1, case.pairs, 2)) < case.step_share, case.step_s, 0.0)
        true = honest + lies
        return cls(
            true_s=true,
            told_s=told,
            after_s=true + steps,
            told_after_s=told + steps,
            bounds_s=bounds,
        )

    def reading(
        self, burst: int, pair: int, side: int, at: datetime, *, told: bool, after: bool = False
    ) -> ClockReading | None:
        if not told:
            return None
        offsets_s = self.told_after_s if after else self.told_s
        return ClockReading(
            source=ClockSource.CHRONY,
            read_at=at,
            synchronised=True,
            offset_s=float(offsets_s[burst, pair, side]),
            bound_s=float(self.bounds_s[burst, pair, side]),
        )


def _path(case: Case, rng: Rng, fleet: _Fleet, amounts: Floats) -> dict[str, Floats]:
    """What a sender's kernel shows, a second."""
    seconds = len(amounts)
    base = fleet.rtt_s
    segments = amounts / case.mss
    rtt = base * (1 + 0.05 * rng.random(seconds))
    lost, room = 0.0, 3.0
    if case.limiter == "device":
        rtt, lost, room = rtt + rng.uniform(0.002, 0.008), 3e-4, 1.2
    elif case.limiter == "client-nic":
        rtt, room = rtt + rng.uniform(0.001, 0.004), 1.3
    elif case.limiter in ("policer", "single-flow"):
        lost, room = 1e-3, 1.2
    elif case.limiter == "window":
        room = 1.0
    return {
        "rtt_s": rtt,
        "retransmits_count": rng.poisson(np.maximum(lost * segments, 0)).astype(np.float64),
        "cwnd_bytes": np.maximum(amounts * rtt * room, 1.0) * (1 + 0.01 * rng.random(seconds)),
    }


def _datagrams(case: Case, told: Floats, sent: Floats) -> dict[str, Floats]:
    """Counts in place of what TCP knows; lost ones are known to the receiver alone."""
    known = {"packets_count": np.round(sent / case.mss)}
    return known if told is sent else known | {"lost_count": np.round((sent - told) / case.mss)}


def _warmed(case: Case, track: TrackColumns) -> TrackColumns:
    """As an engine tells it: its time begins anew when the warm-up is over."""
    warm = track.end_s <= case.omit_s + 1e-6
    if not case.omit_s or not warm.any():
        return track
    begun = float(track.end_s[warm][-1])
    return replace(
        track,
        omitted=warm,
        start_s=np.where(warm, track.start_s, track.start_s - begun),
        end_s=np.where(warm, track.end_s, track.end_s - begun),
    )


def _host(
    case: Case, rng: Rng, side: Side, stamps_s: Floats, tx: Floats, rx: Floats
) -> HostColumns | None:
    if not case.counters_known:
        return None
    wire = header_ratio(case, "wire")
    count = len(tx)
    pressed = case.limiter == f"{side.value}-cpu"
    cpu = rng.uniform(0.93, 0.99, count) if pressed else rng.uniform(0.15, 0.5, count)
    core = rng.uniform(0.985, 1.0, count) if pressed else np.minimum(0.9, cpu * 1.5)
    return HostColumns(
        start_at_s=stamps_s[:-1],
        end_at_s=stamps_s[1:],
        nic_rx_bytes=np.round(rx * wire + tx * 0.002),
        nic_tx_bytes=np.round(tx * wire + rx * 0.002),
        drops_count=np.zeros(count, np.float32),
        cpu_busy_ratio=cpu.astype(np.float32),
        cpu_busiest_core_ratio=core.astype(np.float32),
    )


def _flows(case: Case) -> tuple[tuple[Flow, float], ...]:
    flows = Direction(case.direction).flows
    return tuple((flow, 1 / len(flows)) for flow in flows)


def _records(
    case: Case, rng: Rng, fleet: _Fleet, clocks: _Clocks, plan: Plan, burst: Burst
) -> tuple[dict[int, End], tuple[Record, ...]]:
    ends: dict[int, End] = {}
    records: list[Record] = []
    forgers = set(rng.permutation(case.pairs)[: case.forged].tolist())
    for pair in plan.pairs:
        end, record = _pair(case, rng, fleet, clocks, plan, burst, pair)
        if record is not None and pair.index in forgers:
            record = forged(record, case.forge, case.forge_by)
        ends[pair.index] = end
        if record is not None:
            records.append(record)
    return ends, tuple(records)


def _pair(
    case: Case,
    rng: Rng,
    fleet: _Fleet,
    clocks: _Clocks,
    plan: Plan,
    burst: Burst,
    pair: Pair,
) -> tuple[End, Record | None]:
    """Both ends' account of one pair in one burst."""
    b, p = burst.index, pair.index
    fate = fleet.fates[b][p]
    if fate == "missing":
        return End(), None
    job_id = f"{plan.run_id}.{b:05d}.{p:05d}"
    cookie = f"cookie-{b}-{_others_pair(fleet, b, p) if fate == 'twin' else p}"
    read = case.readings
    begun_at, over_at = burst.planned_start_at, burst.planned_end_at
    before = [clocks.reading(b, p, side, begun_at, told=read != "none") for side in (0, 1)]
    after = [clocks.reading(b, p, side, over_at, told=read == "all", after=True) for side in (0, 1)]
    claim = Claim(
        job_id=job_id,
        agent_id=f"client-{p}",
        phase=Phase.RUNNING,
        claimed_at=burst.planned_start_at - timedelta(seconds=8),
        cookie=None if fate == "busy" else cookie,
        clock=before[0],
        address=f"10.1.0.{p + 4}",
    )
    planned = JobReport(
        job_id=job_id,
        run_id=plan.run_id,
        burst_index=b,
        pair_index=p,
        agent_id=f"client-{p}",
        outcome=Outcome.FAILED,
        planned_start_at=begun_at,
        clock_before=before[0],
        clock_after=before[0],
        reported_at=begun_at + timedelta(seconds=2),
    )
    if fate == "null":
        return End(claim=claim, report=_failed(planned, fate)), None
    start_s, span = float(fleet.starts_s[b, p]), int(fleet.spans[b, p])
    if fate in ("busy", *INVENTED):
        amounts, span = _stolen(fleet, b, p), len(fleet.bounds) - 1
    else:
        amounts = fleet.amounts(b, p)
    bounds = fleet.bounds[: span + 1]
    sent_s = float(bounds[-1])
    zeros = (start_s + clocks.true_s[b, p, 0], start_s + clocks.true_s[b, p, 1] + fleet.rtt_s / 2)
    client_tracks: list[TrackColumns] = []
    server_tracks: list[TrackColumns] = []
    totals = []
    buffered = min(case.streams * 262_144.0, float(amounts.sum()) * 0.02)
    for flow, share in _flows(case):
        arrived = np.round(amounts * share)
        left = arrived.copy()
        if case.udp:
            left = np.round(left / (1 - case.loss))
        else:
            left[0] += buffered * share
        path = _path(case, rng, fleet, left)
        sends = Side.CLIENT if flow is Flow.UP else Side.SERVER
        for side, tracks in ((Side.CLIENT, client_tracks), (Side.SERVER, server_tracks)):
            sent = side is sends
            if not (sent or case.receivers_seconds):
                continue
            zero_s = zeros[0 if side is Side.CLIENT else 1]
            told = left if sent else arrived
            counts = _datagrams(case, told, left) if case.udp else path
            known = counts if sent or case.udp else {}
            track = told_track(side, flow, zero_s, bounds, told, known)
            tracks.append(_warmed(case, track))
        totals.append(
            FlowTotals(
                flow=flow,
                sent_bytes=int(left.sum()),
                sent_s=sent_s,
                received_bytes=int(arrived.sum())
                + (0 if case.udp else int(rng.integers(2)) * BLOCK_BYTES),
                received_s=sent_s,
                retransmits_count=None if case.udp else int(path["retransmits_count"].sum()),
                rtt_min_s=None if case.udp else fleet.rtt_s,
                rtt_mean_s=None if case.udp else float(path["rtt_s"].mean()),
                packets_count=round(left.sum() / case.mss) if case.udp else None,
                lost_count=round((left - arrived).sum() / case.mss) if case.udp else None,
            )
        )
    up = amounts * sum(share for flow, share in _flows(case) if flow is Flow.UP)
    down = amounts - up
    stamps = [_stamps(zeros[side], bounds, clocks, b, p, side) for side in (0, 1)]
    client_host = _host(case, rng, Side.CLIENT, stamps[0], up, down)
    server_host = _host(case, rng, Side.SERVER, stamps[1], down, up)
    engine = EngineReport(
        engine="iperf3",
        version="3.18",
        cookie=cookie,
        protocol=Protocol.UDP if case.udp else Protocol.TCP,
        block_bytes=case.mss if case.udp else None,
        omit_s=case.omit_s,
        direction=Direction(case.direction),
        streams_count=case.streams,
        duration_s=case.burst_s,
        mss_bytes=case.mss if case.mss_told and not case.udp else None,
        totals=tuple(totals),
    )
    error_s = zeros[0] - begun_at.timestamp()
    late = error_s > plan.spec.late_after_s
    idle_rtt = IdleRtt(
        least_s=fleet.rtt_s, median_s=fleet.rtt_s, samples_count=9, how="connections"
    )
    report = planned.model_copy(
        update={
            "idle_rtt": idle_rtt,
            "outcome": Outcome.LATE if late else Outcome.MEASURED,
            "reason": "late" if late else None,
            "start_method": StartMethod.GATE,
            "process_start_at": begun_at - timedelta(seconds=3),
            "first_data_at": _at(zeros[0]),
            "start_error_s": error_s,
            "ended_at": _at(zeros[0] + sent_s),
            "engine": engine,
            "clock_after": after[0],
            "reported_at": over_at + timedelta(seconds=2),
        }
    )
    test = ServerTest(
        agent_id=pair.endpoint.agent_id,
        endpoint=pair.endpoint,
        client_address=f"10.{9 if fate == 'busy' else 1}.0.{p + 4}",
        started_at=_at(zeros[1] - 2),
        first_data_at=_at(zeros[1]),
        ended_at=_at(zeros[1] + sent_s),
        engine=engine,
        clock_before=before[1],
        clock_after=after[1],
    )
    if fate == "busy" or p < case.strange_cookies:
        other = f"{'other' if fate == 'busy' else 'strange'}-{b}-{p}"
        test = test.model_copy(update={"engine": engine.model_copy(update={"cookie": other})})
    record = Record(
        test=test,
        tracks=tuple(server_tracks),
        host=server_host or NO_HOST,
    )
    end = End(claim=claim, report=report, tracks=tuple(client_tracks), host=client_host)
    if p < case.doubled_pairs:
        record = replace(record, tracks=_twice(record.tracks))
        end = replace(end, tracks=_twice(end.tracks))
    if p < case.gap_pairs and case.gap_s:
        at = int(rng.integers(0, max(1, span - case.gap_s)))
        record = replace(record, tracks=_without(record.tracks, at, case.gap_s))
        if case.gap_both:
            end = replace(end, tracks=_without(end.tracks, at, case.gap_s))
    match fate:
        case "busy":
            return End(claim=claim, report=_failed(planned, fate)), record
        case "lost":
            return End(claim=claim), None
        case "killed":
            return replace(end, report=None), record
        case "unheard" | "twin" | "phantom":
            return end, None
        case "clientless":
            return End(claim=claim), record
    return end, record


def _others_pair(fleet: _Fleet, burst: int, pair: int) -> int:
    """A pair that did run, if there is one."""
    ran = np.flatnonzero(fleet.spans[burst] > 0)
    return int(ran[0]) if len(ran) else pair


def _failed(planned: JobReport, fate: str) -> JobReport:
    """A client's account of an engine that sent nothing."""
    why = "unable to connect to server"
    if fate == "busy":
        why = "the server is busy running a test. try again later"
    engine = EngineReport(engine="iperf3", version="3.18", error=why, exit_code=1)
    return planned.model_copy(update={"reason": why, "engine": engine})


def _stamps(
    zero_s: float, bounds: Floats, clocks: _Clocks, burst: int, pair: int, side: int
) -> Floats:
    """When a host read its counters, by its own clock, which may step in mid-burst."""
    step_s = float(clocks.after_s[burst, pair, side] - clocks.true_s[burst, pair, side])
    stamps = zero_s + bounds
    if step_s:
        stamps = stamps + np.where(np.arange(len(bounds)) > len(bounds) // 2, step_s, 0.0)
    return stamps


def _twice(tracks: tuple[TrackColumns, ...]) -> tuple[TrackColumns, ...]:
    return tuple(track.rows(np.repeat(np.arange(len(track)), 2)) for track in tracks)


def _without(tracks: tuple[TrackColumns, ...], at: int, length: int) -> tuple[TrackColumns, ...]:
    kept = []
    for track in tracks:
        keep = np.ones(len(track), np.bool_)
        keep[at : at + length] = False
        kept.append(track.rows(keep))
    return tuple(kept)


# Forgery ------------------------------------------------------------------------------------------


def forged(record: Record, how: str, by: float) -> Record:
    """A server's record whose rows were rewritten. What its client says stays as it was."""
    tracks = tuple(_forged_track(track, how, by) for track in record.tracks)
    if how != "times":
        return replace(record, tracks=tracks)
    engine = record.test.engine
    totals = tuple(
        total.model_copy(update={"received_bytes": int((total.received_bytes or 0) * by)})
        for total in engine.totals
    )
    test = record.test.model_copy(update={"engine": engine.model_copy(update={"totals": totals})})
    return replace(record, test=test, tracks=tracks)


def _forged_track(track: TrackColumns, how: str, by: float) -> TrackColumns:
    amounts = track.transferred_bytes.copy()
    start, end = track.start_s.copy(), track.end_s.copy()
    if not len(amounts):
        return track  # it tells no second to forge
    some = np.arange(len(amounts)) % 5 == 1
    changes: dict[str, Any] = {}
    match how:
        case "times":
            changes["transferred_bytes"] = np.round(amounts * by)
        case "huge":
            amounts[len(amounts) // 2] = 1e15
            changes["transferred_bytes"] = amounts
        case "negative":
            amounts[some] *= -1
            changes["transferred_bytes"] = amounts
        case "nan":
            amounts[some] = np.nan
            changes["transferred_bytes"] = amounts
        case "reverse":
            start[some], end[some] = end[some], start[some]
            changes |= {"start_s": start, "end_s": end}
        case "repeat":
            twice = track.rows(np.repeat(np.arange(len(amounts)), 2))
            half = np.linspace(start[0], end[-1], 2 * len(amounts) + 1)
            return replace(twice, start_s=half[:-1], end_s=half[1:])
        case "shift":
            changes["first_data_at_s"] = track.first_data_at_s + by
        case _:
            raise ValueError(f"forge: {how} is not one")
    return replace(track, **changes)
