"""Hunt for wrong decisions of bursts that end as soon as their rate is certain.

``python -m tests.hunt.stop_decisions --bursts 20000`` prints a table by margin and correlation, and
of bursts whose rate changes. The bursts are generated here, without code of the product. The rate
of a burst is relative to the limit.

A decision is wrong if the expected rate over the seconds until the stop is on the other side of the
limit. A later change is not seen, and the verdict says so.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator import prices, scenarios
from broadside.coordinator.core.measure.formulas.certainty import BATCH_S, SKIP_S, certain_at_s
from broadside.coordinator.core.measure.formulas.steady import correlated_mean
from broadside.coordinator.core.plan.cost_estimate import expected_bill
from broadside.coordinator.core.plan.expected_usage import expect_usage

Floats = NDArray[np.float64]

MARGINS: Final = (
    -0.05,
    -0.02,
    -0.01,
    -0.005,
    -0.002,
    -0.001,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
)
CORRELATIONS: Final = (0.0, 0.5, 0.8, 0.9, 0.95)
# Standard deviation of the seconds, relative to the limit.
SCATTER: Final = 0.01
# Time for the reports of a second and for the order to stop.
DELAY_S: Final = 8
LEAST_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Decisions on bursts of the same kind.

    Attributes:
        stop_s: Duration of each burst.
        side: 1 for a pass, -1 for a fail and 0 for undecided.
        early: True if the burst was stopped.
        wrong: True if the decision contradicts the expected rate until the stop.
        changed: True if the expected rate of the planned burst is on the other side.
    """

    stop_s: Floats
    side: Floats
    early: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    changed: NDArray[np.bool_]


def correlated(rng: np.random.Generator, count: int, burst_s: int, correlation: float) -> Floats:
    """Return AR(1) noise with a variance of 1, of shape (bursts, seconds)."""
    noise = rng.standard_normal((burst_s, count))
    fresh = np.sqrt(1 - correlation**2)
    for second in range(1, burst_s):
        noise[second] = correlation * noise[second - 1] + fresh * noise[second]
    return noise.T


def decide(seconds: Floats, expected: Floats) -> Outcomes:
    """Return the decisions of the product on some bursts.

    As in the product, a burst ends when both the confidence sequence and the interval of the rate
    are on one side of the limit. At the planned end, the interval decides.

    Args:
        seconds: Rates by second, of shape (bursts, seconds).
        expected: Rates without noise, of shape (bursts, seconds) or (1, seconds).
    """
    count, burst_s = seconds.shape
    first = certain_at_s(seconds, 1.0, LEAST_S)
    stop_s = np.full(count, float(burst_s))
    side = np.zeros(count)
    early = np.zeros(count, np.bool_)
    for row in range(count):
        at_s = first[row]
        while not np.isnan(at_s) and at_s + DELAY_S < burst_s:
            part = seconds[row, : int(at_s)]
            if (matches := _side(part)) and certain_at_s(part[None], 1.0, int(at_s))[0] == at_s:
                stop_s[row] = min(burst_s, at_s + DELAY_S)
                early[row] = True
                # The verdict is computed from the whole record, until the stop.
                side[row] = matches
                break
            at_s += 2 * BATCH_S
        if not early[row]:
            side[row] = _side(seconds[row])
    sums = np.cumsum(np.broadcast_to(expected, seconds.shape) - 1.0, axis=1)
    sums = sums - sums[:, SKIP_S - 1 : SKIP_S]
    seen = sums[np.arange(count), stop_s.astype(int) - 1]
    return Outcomes(
        stop_s=stop_s,
        side=side,
        early=early,
        wrong=side * np.sign(seen) < 0,
        changed=side * np.sign(sums[:, -1]) < 0,
    )


def _side(seconds: Floats) -> float:
    mean = correlated_mean(seconds[SKIP_S:])
    off = mean.value - 1.0
    return float(np.sign(off)) if abs(off) > mean.half_width else 0.0


# Kinds whose rate changes. Each returns the expected rates by second.


def collapse_after(burst_s: int) -> Floats:
    """Return a rate that collapses by 60 % after a third of the burst."""
    rate = np.full(burst_s, 1.05)
    rate[burst_s // 3 :] = 0.42
    return rate


def drift(burst_s: int) -> Floats:
    """Return a rate that falls from 3 % above the limit to 3 % below it."""
    return np.linspace(1.03, 0.97, burst_s)


def ramp(burst_s: int) -> Floats:
    """Return a rate that rises for 90 s to 2 % above the limit."""
    rate = np.full(burst_s, 1.02)
    rate[:90] = np.linspace(0.8, 1.02, 90)
    return rate


def scale_in_after(burst_s: int) -> Floats:
    """Return a rate that falls by a tenth after half of the burst."""
    rate = np.full(burst_s, 1.05)
    rate[burst_s // 2 :] = 0.945
    return rate


def scale_out(burst_s: int) -> Floats:
    """Return a rate that is 3 % below the limit, and 10 % above it after half of the burst."""
    rate = np.full(burst_s, 0.97)
    rate[burst_s // 2 :] = 1.1
    return rate


CHANGES: Final[dict[str, Callable[[int], Floats]]] = {
    "collapse after the stop": collapse_after,
    "drift": drift,
    "ramp": ramp,
    "scale-in after the stop": scale_in_after,
    "scale-out after the stop": scale_out,
}


def noise_bursts(rng: np.random.Generator, count: int, burst_s: int) -> Floats:
    """Return noise with periods of 5 to 20 seconds in which its scatter is five times as large."""
    noise = correlated(rng, count, burst_s, 0.5)
    for row in range(count):
        for begin in rng.integers(0, burst_s, burst_s // 60):
            noise[row, begin : begin + rng.integers(5, 21)] *= 5
    return noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Result for the bursts of one line of a table."""

    kind: str
    margin: float | None
    correlation: float | None
    outcomes: Outcomes


def steady(count: int, burst_s: int, seed: int) -> Iterator[Cell]:
    """Yield results for each margin and correlation, and for bursts of noise.

    Args:
        count: Bursts per cell.
        burst_s: Planned duration.
        seed: Seed of the noise.
    """
    rng = np.random.default_rng(seed)
    for correlation in (*CORRELATIONS, None):
        for margin in MARGINS:
            if correlation is None:
                noise = noise_bursts(rng, count, burst_s)
            else:
                noise = correlated(rng, count, burst_s, correlation)
            expected = np.full((1, burst_s), 1 + margin)
            yield Cell(
                kind="steady" if correlation is not None else "bursts of noise",
                margin=margin,
                correlation=correlation,
                outcomes=decide(expected + SCATTER * noise, expected),
            )


def changing(count: int, burst_s: int, seed: int) -> Iterator[Cell]:
    """Yield results for bursts whose rate changes, with a correlation of 0.5."""
    rng = np.random.default_rng(seed)
    for kind, expected_rate in CHANGES.items():
        expected = expected_rate(burst_s)[None]
        noise = correlated(rng, count, burst_s, 0.5)
        outcomes = decide(expected + SCATTER * noise, expected)
        yield Cell(kind=kind, margin=None, correlation=0.5, outcomes=outcomes)


def cost_usd(burst_s: int) -> float:
    """Return the price of one burst at 180 Gbit/s through a premium firewall."""
    overrides = {"burst_s": max(1, burst_s), "bursts_count": 1, "device": {"sku": "premium"}}
    spec = scenarios.load("jumbo-1740s", overrides)
    return expected_bill(spec, expect_usage(spec, ()), prices.load()).total_usd or 0.0


def lines(cells: Sequence[Cell], burst_s: int) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield (
        "| kind | margin | correlation | wrong | wrong early | undecided | median stop, s "
        "| 90 % stop, s | saved, USD | other side at the planned end |"
    )
    yield "| --- |" + " --- |" * 9
    full_usd = cost_usd(burst_s)
    for cell in cells:
        out = cell.outcomes
        saved = full_usd - cost_usd(round(float(out.stop_s.mean())))
        yield (
            f"| {cell.kind} | {'-' if cell.margin is None else f'{cell.margin:+.1%}'} "
            f"| {'-' if cell.correlation is None else cell.correlation} "
            f"| {out.wrong.mean():.2%} | {(out.wrong & out.early).mean():.2%} "
            f"| {(out.side == 0).mean():.0%} | {np.median(out.stop_s):.0f} "
            f"| {np.quantile(out.stop_s, 0.9):.0f} | {saved:.0f} | {out.changed.mean():.0%} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=20_000, help="simulated bursts in total")
    parser.add_argument("--burst-s", type=int, default=1740, help="planned duration")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    count = max(1, given.bursts // (len(MARGINS) * (len(CORRELATIONS) + 1) + len(CHANGES)))
    cells = [*steady(count, given.burst_s, given.seed), *changing(count, given.burst_s, given.seed)]
    total = sum(len(cell.outcomes.side) for cell in cells)
    sys.stdout.write(f"{total} bursts of at most {given.burst_s} s, {count} per line\n\n")
    sys.stdout.write("\n".join(lines(cells, given.burst_s)) + "\n")
    worst = max(float(cell.outcomes.wrong.mean()) for cell in cells)
    sys.stdout.write(f"\nlargest share of wrong decisions: {worst:.2%}\n")
    return 1 if worst > 0.05 else 0


if __name__ == "__main__":
    raise SystemExit(main())
