"""The only place where the hunt touches the engine: the values it is fed, and what it concludes.

Nothing else here imports the coordinator: what is planted must not agree with the engine's own
rules by construction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from broadside.coordinator.core.figures import Layer
from broadside.coordinator.core.judge.comparison import Group, compare, observe
from broadside.coordinator.core.judge.reconcile import Neighbour
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.columns import (
    NO_HOST,
    HostColumns,
    TrackColumns,
    disjoint_host,
    disjoint_track,
)
from broadside.coordinator.core.measure.evidence import (
    BurstEvidence,
    FirewallLedger,
    PairEvidence,
    join_tests,
    strays_during,
)
from broadside.coordinator.core.measure.measure_burst import measure_burst
from broadside.coordinator.core.measure.series import MeasuredBurst
from broadside.coordinator.core.plan.spec import (
    Burst,
    LedgerPromise,
    Objective,
    Pair,
    Plan,
    RunSpec,
)
from broadside.coordinator.core.summary import BurstSummary, RunSummary
from broadside.exchange.messages import Claim, JobReport, ServerTest
from tests.seconds_as_columns import told_track

__all__ = [
    "NO_HOST",
    "Burst",
    "FirewallLedger",
    "HostColumns",
    "Layer",
    "Neighbour",
    "Objective",
    "Pair",
    "Plan",
    "RunSpec",
    "TrackColumns",
    "told_track",
]

PASS: Final = "pass"  # noqa: S105  # a verdict, not a password
FAIL: Final = "fail"
UNSEEN_WORDS: Final = "bytes alone"  # of the sentence that says what a ledger cannot show
ALONE_WORDS: Final = "nothing but the fleet vouches"  # of the first sentence, where that is so
CLOCKS_WORDS: Final = "by its own readings alone"  # of the sentence on what clocks rest on


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A server's record of one test, as the table holds it."""

    test: ServerTest
    tracks: tuple[TrackColumns, ...]
    host: HostColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What a client's agent left of one job."""

    claim: Claim | None = None
    report: JobReport | None = None
    tracks: tuple[TrackColumns, ...] = ()
    host: HostColumns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that is on record of a run: what the engine may look at."""

    plan: Plan
    ends: tuple[Mapping[int, End], ...]  # a burst: by pair index
    records: tuple[tuple[Record, ...], ...]  # a burst: whatever its servers' ports recorded
    ledger: FirewallLedger | None
    ledger_promised: bool  # a ledger was configured when the run was launched
    neighbours: tuple[Neighbour, ...] = ()
    nic_bits_per_second: float | None = None
    mtu_bytes: int | None = None
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure and the half width of its 95 % interval; None: none was given."""

    value: float | None = None
    half_width: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What the engine says of a world."""

    verdict: str
    findings: tuple[str, ...]
    rate: Measured  # payload bit/s over the run
    burst_rates: tuple[Measured, ...]  # in the plan's order
    residual: Measured
    lag: Measured
    limiter: str
    says_unseen: bool = False  # it says what bytes alone cannot show
    says_alone: bool = False  # and first of all that it rests on the fleet alone
    says_own_clocks: bool = False  # and that each clock is known by its host's word
    error: str | None = None  # it raised
    bursts: tuple[BurstSummary, ...] = field(default=(), repr=False)
    measured: Mapping[tuple[int, int], MeasuredBurst] = field(default_factory=dict, repr=False)


def _tracks(tracks: Sequence[TrackColumns]) -> tuple[TrackColumns, ...]:
    """As they come from the table: in order."""
    return tuple(map(disjoint_track, tracks))


def _evidence(world: World, number: int) -> BurstEvidence:
    burst, ends = world.plan.bursts[number], world.ends[number]
    claims = {index: end.claim for index, end in ends.items() if end.claim is not None}
    reports = {index: end.report for index, end in ends.items() if end.report is not None}
    join = join_tests(burst, world.plan.pairs, claims, reports, world.records[number])
    pairs = []
    for pair in world.plan.pairs:
        end, record = ends.get(pair.index, End()), join.records.get(pair.index)
        pairs.append(
            PairEvidence(
                pair_index=pair.index,
                claim=end.claim,
                report=end.report,
                client_tracks=_tracks(end.tracks),
                client_host=disjoint_host(end.host) if end.host is not None else NO_HOST,
                server_test=record.test if record else None,
                server_tracks=_tracks(record.tracks) if record else (),
                server_host=record.host if record else NO_HOST,
                joined_by=join.joined_by.get(pair.index),
                client_nic_bits_per_second=world.nic_bits_per_second,
                server_nic_bits_per_second=world.nic_bits_per_second,
                nic_mtu_bytes=world.mtu_bytes,
            )
        )
    strays = strays_during(burst, world.plan.pairs, join.strays)
    return BurstEvidence(burst=burst, pairs=tuple(pairs), strays=strays)


def conclude(world: World, *, like: "Conclusion | None" = None) -> Conclusion:
    """The engine's word on a world; an exception is a conclusion too.

    ``like``: what it said of a world with the same plan; bursts whose rows are the very same
    objects are not measured again.
    """
    try:
        return _conclude(world, {} if like is None else like.measured)
    except Exception as error:
        return Conclusion(
            verdict="error",
            findings=(),
            rate=Measured(),
            burst_rates=(),
            residual=Measured(),
            lag=Measured(),
            limiter="unknown",
            error=f"{type(error).__name__}: {error}",
        )


def _conclude(world: World, known: Mapping[tuple[int, int], MeasuredBurst]) -> Conclusion:
    spec = world.plan.spec
    measured = {
        rows: known.get(rows) or measure_burst(spec, _evidence(world, number), world.now)
        for number, rows in enumerate(_rows(world))
    }
    bursts = list(measured.values())
    promise = LedgerPromise(source="planted") if world.ledger_promised else None
    plan = world.plan.model_copy(update={"ledger": promise}).sealed()
    summary: RunSummary = summarise_run(
        plan, bursts, world.ledger, world.now, neighbours=world.neighbours
    )
    held = summary.reconciliation
    stated = [
        finding.id for finding in summary.findings if finding.severity in ("problem", "warning")
    ]
    return Conclusion(
        verdict=summary.verdict.value,
        findings=tuple(stated),
        rate=Measured(
            value=summary.fleet_received_bits_per_second,
            half_width=summary.fleet_received_half_width_bits_per_second,
        ),
        burst_rates=tuple(
            Measured(
                value=burst.fleet_received_bits_per_second,
                half_width=burst.fleet_received_half_width_bits_per_second,
            )
            for burst in summary.bursts
        ),
        residual=Measured(
            value=held.residual_ratio if held else None,
            half_width=held.residual_uncertainty_ratio if held else None,
        ),
        lag=Measured(
            value=held.lag_s if held else None,
            half_width=held.lag_uncertainty_s if held else None,
        ),
        limiter=summary.limiter.value,
        says_unseen=any(UNSEEN_WORDS in finding.sentence for finding in summary.findings),
        says_alone=ALONE_WORDS in summary.findings[0].sentence,
        says_own_clocks=any(CLOCKS_WORDS in finding.sentence for finding in summary.findings),
        bursts=summary.bursts,
        measured=measured,
    )


def _rows(world: World) -> Iterator[tuple[int, int]]:
    """A burst's rows by who they are; a world lives for as long as what was measured of it."""
    for ends, records in zip(world.ends, world.records, strict=True):
        yield id(ends), id(records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """How two groups of bursts differ, as the engine compares them."""

    difference: Measured  # payload bit/s, b - a
    apart: bool
    thin: bool


def difference(a: Sequence[BurstSummary], b: Sequence[BurstSummary]) -> Gap | None:
    """The engine's comparison of two groups of bursts; None: it has no rate to compare."""
    told = compare(
        Group(name="a", observations=tuple(observe(burst) for burst in a)),
        Group(name="b", observations=tuple(observe(burst) for burst in b)),
    )
    for metric in told.metrics:
        if metric.name == RATE:
            return Gap(
                difference=Measured(
                    value=metric.difference, half_width=metric.difference_half_width
                ),
                apart=metric.apart,
                thin=told.thin,
            )
    return None


RATE: Final = "received_bits_per_second"  # the metric's name
