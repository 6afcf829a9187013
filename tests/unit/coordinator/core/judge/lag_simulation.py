"""Simulate counters with a known lag. All random numbers are seeded.

This module does not use ``tests/synthetic.py`` or ``tests/worlds``.
Traffic is drawn in steps of 0.1 s. The fleet record is the sum for each UTC second.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.judge.reconciliation.counter_bins import (
    Bins,
    Curve,
    fleet_curve,
    seconds_curve,
)
from broadside.coordinator.core.judge.reconciliation.lag import Known, Lag, estimate_lag

Floats = NDArray[np.float64]
STEP_S: Final = 0.1
# Number of steps after which noise is no longer correlated.
MEMORY: Final = 60
# Time before the first burst and after the last.
LEAD_S: Final = 2400
# Number of rate readings per bin, if the source returns means.
READINGS: Final = 60
PAYLOAD_RATIO: Final = 1500 / 1448


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Parameters for one simulated run.

    Attributes:
        lag_s: Lag in the middle of the run.
        drift_s: Increase in lag over the bursts.
        noise_ratio: Independent error in a bin.
        trade_ratio: Standard deviation for the share that is counted in the next bin.
        average: True if the source returns mean rates.
        background_ratio: Other traffic relative to the fleet rate. It is correlated over minutes.
        unrecorded: Planned bursts without a record.
        unplanned: Unplanned bursts, with start (periods after the first burst) and rate.
        missing_ratio: Share of bins without a value.
        crossing_ratio: Share of fleet bytes that cross the device.
    """

    seed: int
    burst_s: int
    period_s: int
    bursts: int
    bin_s: float
    lag_s: float
    drift_s: float = 0.0
    noise_ratio: float = 0.002
    trade_ratio: float = 0.01
    average: bool = False
    background_ratio: float = 0.0
    unrecorded: tuple[int, ...] = ()
    unplanned: tuple[tuple[float, float], ...] = ()
    missing_ratio: float = 0.0
    crossing_ratio: float = 1.0


@dataclass(frozen=True, kw_only=True)
class _Traffic:
    start_s: int
    received_bytes: Floats


def _autoregressive(rng: np.random.Generator, count: int, rho: float) -> Floats:
    """Return normal noise. Neighbours have correlation ``rho``."""
    noise = rng.standard_normal(count + MEMORY)
    weights = np.sqrt(1 - rho**2) * rho ** np.arange(MEMORY + 1)
    return np.convolve(noise, weights, mode="valid")


def _burst(rng: np.random.Generator, setup: Setup, at_s: float, steps: int) -> Floats:
    """Return the bytes for each step in one burst. Pairs start at different times."""
    amounts = np.zeros(steps)
    level = 1 + 0.01 * rng.standard_normal()
    for _ in range(4):
        rho, size = rng.choice([0.0, 0.5, 0.9]), rng.uniform(0.5, 2.0)
        seconds = 1 + 0.05 * _autoregressive(rng, setup.burst_s + 1, float(rho))
        first = round((at_s + rng.uniform(0, 0.4)) / STEP_S)
        place = np.arange(round(setup.burst_s / STEP_S))
        amounts[first + place] += (
            size * level * np.maximum(0.0, seconds)[(place * STEP_S).astype(int)]
        )
    return amounts


@dataclass(kw_only=True)
class Simulated:
    """Input for the lag estimate and the true values.

    Attributes:
        middles_s: Labels in the middle of the recorded bursts.
    """

    setup: Setup
    bins: Bins
    known: Known
    middles_s: Floats

    def estimate(self, hint_s: float | None = None) -> Lag:
        return estimate_lag(self.bins, self.known, grain_s=self.setup.bin_s, hint_s=hint_s)

    def true_lag(self, label_s: Floats) -> Floats:
        """Return the counter lag at these labels."""
        setup = self.setup
        length_s = setup.period_s * (setup.bursts - 1) + setup.burst_s
        return setup.lag_s + setup.drift_s * ((label_s - LEAD_S) / length_s - 0.5)

    def outcome(self) -> str:
        """Return ``right``, ``unknown``, ``wrong``, or ``drift`` for a false drift."""
        lag = self.estimate()
        if not lag.known:
            return "unknown"
        off_s = np.abs(lag.at(self.middles_s) - self.true_lag(self.middles_s)).max()
        if lag.drift_s and not self.setup.drift_s:
            return "drift"
        return "right" if off_s <= lag.uncertainty_s else "wrong"


def simulate(setup: Setup) -> Simulated:
    """Simulate the counter and the fleet record for a run."""
    rng = np.random.default_rng(setup.seed)
    starts = LEAD_S + setup.period_s * np.arange(setup.bursts)
    end_s = LEAD_S * 2 + setup.period_s * (setup.bursts + 1)
    steps = round(end_s / STEP_S)
    device_rate = np.zeros(steps)
    recorded: list[_Traffic] = []
    for number, at_s in enumerate(starts):
        burst = _burst(rng, setup, float(at_s), steps)
        device_rate += setup.crossing_ratio * burst
        if number not in setup.unrecorded:
            seconds = burst.reshape(-1, round(1 / STEP_S)).sum(axis=1)
            mine = slice(int(at_s), int(at_s) + setup.burst_s + 1)
            recorded.append(_Traffic(start_s=int(at_s), received_bytes=seconds[mine]))
    for periods, rate in setup.unplanned:
        device_rate += rate * _burst(rng, setup, LEAD_S + setup.period_s * periods, steps)
    full = float(np.median(recorded[0].received_bytes))
    device_rate = device_rate * PAYLOAD_RATIO + _background(rng, setup, full * STEP_S, steps)
    bins, middles_s = _counted(rng, setup, device_rate, starts)
    return Simulated(
        setup=setup, bins=bins, known=_known(setup, recorded, starts, full), middles_s=middles_s
    )


def _background(rng: np.random.Generator, setup: Setup, full: float, steps: int) -> Floats:
    minutes = np.exp(0.2 * _autoregressive(rng, steps // 100 + 1, 0.9))
    return np.asarray(setup.background_ratio * full * minutes[np.arange(steps) // 100])


def _counted(
    rng: np.random.Generator, setup: Setup, device_rate: Floats, starts: NDArray[np.int_]
) -> tuple[Bins, Floats]:
    """Return the counter bins, and the labels in the middle of the recorded bursts."""
    at_s = STEP_S * np.arange(len(device_rate) + 1)
    total = np.concatenate(([0.0], np.cumsum(device_rate)))
    labels = rng.uniform(0, setup.bin_s) + setup.bin_s * np.arange(int(at_s[-1] / setup.bin_s) - 1)
    length_s = setup.period_s * (setup.bursts - 1) + setup.burst_s
    true_s = labels - setup.lag_s - setup.drift_s * ((labels - LEAD_S) / length_s - 0.5)
    inside = (true_s >= 0) & (true_s <= at_s[-1])
    labels, true_s = labels[inside], true_s[inside]
    amounts = np.diff(np.interp(true_s, at_s, total))
    if setup.average:
        share = (np.arange(READINGS) + 0.5) / READINGS
        readings_s = true_s[:-1, None] + share * np.diff(true_s)[:, None] - STEP_S / 2
        rates = np.interp(readings_s + STEP_S, at_s, total) - np.interp(readings_s, at_s, total)
        amounts = rates.mean(axis=1) / STEP_S * setup.bin_s
    moved = setup.trade_ratio * rng.standard_normal(len(amounts)) * amounts
    moved[-1] = 0.0
    amounts = amounts - moved + np.concatenate(([0.0], moved[:-1]))
    amounts = np.maximum(0.0, amounts * (1 + setup.noise_ratio * rng.standard_normal(len(amounts))))
    present = rng.random(len(amounts)) >= setup.missing_ratio
    bins = Bins(start_s=labels[:-1], end_s=labels[1:], bytes=amounts).pick(present)
    recorded = [at for number, at in enumerate(starts) if number not in setup.unrecorded]
    return bins, np.array(recorded, dtype=np.float64) + setup.burst_s / 2 + setup.lag_s


def _known(setup: Setup, recorded: list[_Traffic], starts: NDArray[np.int_], full: float) -> Known:
    unrecorded: Curve | None = None
    if setup.unrecorded:
        seconds = np.concatenate(
            [
                starts[number] + np.arange(setup.burst_s, dtype=np.float64)
                for number in setup.unrecorded
            ]
        )
        unrecorded = seconds_curve(seconds, np.full(len(seconds), 1.5 * full))
    bursts = [
        (
            float(item.start_s),
            float(item.start_s + len(item.received_bytes)),
            float(item.received_bytes.sum()),
        )
        for item in recorded
    ]
    return Known(fleet=fleet_curve(recorded), bursts=bursts, unrecorded=unrecorded)


@dataclass(kw_only=True)
class Tally:
    """Number of simulated runs for each outcome."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[Setup] = field(default_factory=list)

    @property
    def summary(self) -> str:
        counts = self.counts
        return " ".join(f"{name} {counts[name]}" for name in ("right", "unknown", "wrong", "drift"))


def tally(setups: Iterator[Setup]) -> Tally:
    """Estimate the lag for all setups and count the outcomes."""
    result = Tally()
    for setup in setups:
        outcome = simulate(setup).outcome()
        result.counts[outcome] += 1
        if outcome in ("wrong", "drift"):
            result.wrong.append(setup)
    return result


def drawn(
    count: int, seed: int, draw: Callable[[np.random.Generator, int], Setup]
) -> Iterator[Setup]:
    """Draw setups. Each one uses a separate random generator."""
    for number in range(count):
        yield draw(np.random.default_rng([seed, number]), number)
