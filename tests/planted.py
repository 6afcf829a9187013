"""Cases with planted truth and the score of their summaries, for a test and a benchmark."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.judge.verdict_inputs import RunContext
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.summary import BurstSummary, RunSummary, Verdict
from tests.synthetic import Fleet, Plant, fleet

# Maps the kind of case to the ids of the cause that must come first. None means no cause.
EXPECTED: Final[dict[str, frozenset[str] | None]] = {
    "clean": None,
    "lag": None,
    "clocks": None,
    "unheard": None,
    "late": frozenset({"late-pairs"}),
    "null": frozenset({"null-pairs"}),
    "missing": frozenset({"missed-pairs"}),
    "lost": frozenset({"lost-pairs", "lost-reports"}),
    "killed": frozenset({"abandoned-pairs"}),
    "foreign": frozenset({"foreign-traffic"}),
    "bypass": frozenset({"bypass"}),
    "duplicate": frozenset({"duplicate-counting"}),
    "slow-firewall": frozenset({"bottleneck-firewall"}),
    "capped-nic": frozenset({"bottleneck-client-nic"}),
    "client-cpu": frozenset({"bottleneck-client-cpu"}),
    "server-cpu": frozenset({"bottleneck-server-cpu"}),
    "small-window": frozenset({"bottleneck-window"}),
    "single-flow": frozenset({"bottleneck-single-flow"}),
    "offered-load": frozenset({"bottleneck-offered-load"}),
    "collapse": frozenset({"collapse"}),
}


def plant(kind: str, seed: int) -> Plant:
    """Return a random fleet of one kind. Bursts are long enough for coarse device counters."""
    rng = np.random.default_rng([seed, sum(kind.encode())])
    pairs = int(rng.integers(8, 41))
    grain_s, burst_s, period_s = (
        (1.0, 10, 25),
        (1.0, 30, 60),
        (10.0, 60, 90),
        (60.0, 280, 300),
        (60.0, 280, 420),
    )[rng.integers(5)]
    item = float(rng.uniform(1e9, 8e9))
    base = Plant(
        seed=seed,
        pairs=pairs,
        bursts=int(rng.integers(1, 4)),
        burst_s=burst_s,
        period_s=period_s,
        pair_bits_per_second=item,
        firewall_bits_per_second=None,
        noise=float(rng.uniform(0.01, 0.06)),
        rtt_base_s=float(rng.uniform(0.0005, 0.03)),
        grain_s=grain_s,
        lag_s=float(rng.uniform(0, 3)) if grain_s < 5 else float(rng.uniform(-30, 240)),
        counter_noise=float(rng.uniform(0.0, 0.01)),
        counter_jitter_s=float(rng.uniform(0.0, 0.05)) * grain_s,
        start_spread_s=float(rng.uniform(0.005, 0.5)),
        ramp_s=float(rng.choice([0.0, 1.0, 4.0])),
        unread_bins=int(rng.integers(0, 3)),
    )
    few = max(1, round(pairs * rng.uniform(0.03, 0.2)))
    fleet_rate = pairs * item
    kinds: dict[str, dict[str, object]] = {
        "clean": {},
        "lag": {"lag_s": float(rng.uniform(-60, 300)), "bursts": 3},
        "clocks": {"clock_offset_s": float(rng.uniform(0.005, 0.05))},
        "late": {"late": few},
        "null": {"null": few},
        "missing": {"missing": few},
        "lost": {"lost": few},
        "killed": {"killed": few},
        "foreign": {"foreign_ratio": float(rng.uniform(0.02, 0.3))},
        "bypass": {"bypass": few},
        "duplicate": {"duplicate": True},
        "unheard": {"unheard": few},
        "slow-firewall": {
            "firewall_bits_per_second": fleet_rate,
            "slow_firewall": float(rng.uniform(0.3, 0.85)),
        },
        "capped-nic": {"capped_nic": True, "nic_bits_per_second": item},
        "client-cpu": {"busy_cpu": "client"},
        "server-cpu": {"busy_cpu": "server"},
        "small-window": {"small_window": True},
        "single-flow": {"single_flow_bits_per_second": 1.5e9, "sku": "standard"},
        "offered-load": {"offered_bits_per_second": item},
        "collapse": {
            "firewall_bits_per_second": fleet_rate * 0.9,
            "collapse": float(rng.uniform(0.3, 0.75)),
            # A collapse needs a plateau before it.
            "ramp_s": float(rng.integers(2)),
        },
    }
    return Plant(**(asdict(base) | kinds[kind]))


@dataclass(slots=True, kw_only=True)
class Score:
    """Score of one case.

    Attributes:
        named: Id of the first cause, or None.
        wrong_pass: The verdict is pass with a rate below the floor.
    """

    kind: str
    seed: int
    named: str | None
    right: bool
    lag_error_s: float | None
    total_error_ratio: float
    residual_ratio: float | None
    wrong_pass: bool
    summary: RunSummary = field(repr=False)


def measure(made: Fleet) -> list[BurstMeasurement]:
    return [measure_burst(made.plan.spec, evidence, made.now) for evidence in made.evidence]


def summarise(made: Fleet, **known: Any) -> RunSummary:
    """Return the run's summary from all of its bursts and its device counter."""
    return summarise_run(
        made.plan, measure(made), made.device_counter, made.now, RunContext(**known)
    )


def ids(summary: RunSummary | BurstSummary) -> set[str]:
    """Return the ids of the findings."""
    return {finding.id for finding in summary.findings}


def score(kind: str, seed: int) -> Score:
    """Build a fleet, summarise it and compare with the truth."""
    planted = plant(kind, seed)
    rates = planted.pairs * planted.pair_bits_per_second
    made = fleet(planted, target_bits_per_second=rates)
    measured = measure(made)
    summary = summarise_run(made.plan, measured, made.device_counter, made.now)
    causes = [finding.id for finding in summary.findings if finding.kind == "cause"]
    named = causes[0] if causes else None
    expected = EXPECTED[kind]
    reconciliation = summary.reconciliation
    lag = (
        None
        if reconciliation is None or reconciliation.lag_s is None
        else reconciliation.lag_s - made.truth.lag_s
    )
    received = sum(float(burst.series.received_bytes.sum()) for burst in measured)
    floor = made.plan.spec.objective.coverage_floor_ratio
    return Score(
        kind=kind,
        seed=seed,
        named=named,
        right=named is None if expected is None else named in expected,
        lag_error_s=lag,
        total_error_ratio=abs(received / made.truth.payload_bytes - 1),
        residual_ratio=None if reconciliation is None else reconciliation.residual_ratio,
        wrong_pass=summary.completeness_ratio < floor and summary.verdict is Verdict.PASS,
        summary=summary,
    )


def scores(seeds: range, kinds: Iterable[str] = EXPECTED) -> Iterator[Score]:
    for kind in kinds:
        for seed in seeds:
            yield score(kind, seed)


def table(results: list[Score]) -> str:
    """Return the score table with one line per kind."""
    head = ("cases", "named first", "lag known", "lag error p95", "total error max", "wrong pass")
    lines = [f"{'kind':14} " + " ".join(head)]
    for kind in EXPECTED:
        rows = [row for row in results if row.kind == kind]
        if not rows:
            continue
        lags = [abs(row.lag_error_s) for row in rows if row.lag_error_s is not None]
        p95 = f"{np.quantile(lags, 0.95):.2f} s" if lags else "-"
        lines.append(
            f"{kind:14} {len(rows):5d} {sum(row.right for row in rows) / len(rows):11.1%} "
            f"{len(lags) / len(rows):9.0%} {p95:>13} "
            f"{max(row.total_error_ratio for row in rows):15.4%} "
            f"{sum(row.wrong_pass for row in rows):10d}"
        )
    return "\n".join(lines)
