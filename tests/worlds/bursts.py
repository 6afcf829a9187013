"""Functions to compute the ground truth for a burst."""

from dataclasses import dataclass

import numpy as np

from tests.worlds.parameters import Spec
from tests.worlds.record_format import Floats
from tests.worlds.traffic import Burst, Physics

# A ramp of at most a fifth of the window and 30 s may be excluded (docs/statistics.md, "Rate of a
# burst").
RAMP_RATIO, RAMP_MAX_S = 0.2, 30.0
# The slowest part is a fifth of the window and at least 5 s long (docs/statistics.md, "Shape").
STRETCH_RATIO, STRETCH_LEAST_S = 0.2, 5.0
# Starts need to be closer than this to be one burst. The documented limit is 0.1 s.
SPREAD_S = 0.5


@dataclass(frozen=True, kw_only=True)
class BurstTruth:
    """Ground truth of a planned burst. Rates are in bit/s and include both directions.

    Attributes:
        index: Burst index.
        window_start_s: Start of the window in true UTC. This is the planned instant plus the shift
            common to all host clocks.
        window_s: Length of the window.
        payload_bits_per_second: Payload received in the window.
        ip_bits_per_second: The same including headers at the IP layer.
        sent_bits_per_second: Payload sent in the window, without retransmissions.
        crossed_payload_bits_per_second: Received payload that crossed the device.
        high_bits_per_second: Highest rate at the target layer that the ramp rule allows.
        low_bits_per_second: Lowest rate that the ramp rule allows.
        crossed_high_bits_per_second: Highest rate through the device.
        lowest_fifth_bits_per_second: Lowest mean over a fifth of the window, after any ramp.
        expected_bits_per_second: Expected rate in the window, without noise.
        process_bits_per_second: The same without the level of this burst. Intervals of a run
            must contain it.
        seconds: Payload bytes received per second of the window.
        crossed_seconds: The same for the bytes through the device.
        lost_bytes: Payload bytes lost in the burst (UDP).
        sent_bytes: Payload bytes sent in the burst.
        resent_bytes: Payload bytes retransmitted in the burst.
        start_spread_s: Time between the first and the last true start, without late pairs.
        ran: Pairs that sent.
    """

    index: int
    window_start_s: float
    window_s: float
    payload_bits_per_second: float
    ip_bits_per_second: float
    sent_bits_per_second: float
    crossed_payload_bits_per_second: float
    high_bits_per_second: float
    low_bits_per_second: float
    crossed_high_bits_per_second: float
    lowest_fifth_bits_per_second: float
    expected_bits_per_second: float
    process_bits_per_second: float
    seconds: Floats
    crossed_seconds: Floats
    lost_bytes: float
    sent_bytes: float
    resent_bytes: float
    start_spread_s: float
    ran: tuple[int, ...]


def ramp_cut_max(seconds: int) -> int:
    """Return the maximum number of seconds that may be excluded as a ramp."""
    return int(min(RAMP_RATIO * seconds, RAMP_MAX_S))


def readings(series: Floats) -> tuple[float, float]:
    """Return the highest and lowest mean for a series over all allowed ramp cuts."""
    cuts = range(ramp_cut_max(series.size) + 1)
    means = [float(series[cut:].mean()) for cut in cuts]
    return max(means), min(means)


def lowest_fifth(series: Floats) -> float:
    """Return the lowest mean over a fifth of the window, after the longest ramp."""
    length = max(int(STRETCH_LEAST_S), round(STRETCH_RATIO * series.size))
    rest = series[ramp_cut_max(series.size) :]
    if rest.size <= length:
        return float(rest.mean())
    sums = np.convolve(rest, np.ones(length), mode="valid")
    return float(sums.min() / length)


def _shift(physics: Physics, burst: Burst) -> float:
    """Return the common start shift for most pairs."""
    ran = np.isfinite(burst.starts_s)
    if not ran.any():
        return 0.0
    late = burst.starts_s[ran] - burst.start_s
    order = np.argsort(late)
    weights = np.cumsum(physics.weights[ran][order])
    middle = float(late[order][np.searchsorted(weights, weights[-1] / 2)])
    return middle if abs(middle) > SPREAD_S else 0.0


def burst_truth(spec: Spec, physics: Physics, burst: Burst) -> BurstTruth:
    """Compute the ground truth of a burst from the physics.

    Args:
        spec: Parameters to use.
        physics: Simulated physics to use.
        burst: Burst to compute the truth for.

    Returns:
        The ground truth.
    """
    seconds = round(burst.duration_s)
    start = burst.start_s + _shift(physics, burst)
    edges = np.tile(start + np.arange(seconds + 1.0), (spec.pairs_count, 1))
    arrived = np.zeros(seconds)
    crossed = np.zeros(seconds)
    expected = 0.0
    sent_window = sent = lost = resent = 0.0
    factor = spec.layer_factor(spec.target_layer)
    for flow in physics.of(burst):
        of_pairs = np.diff(flow.received(edges), axis=1)
        arrived += of_pairs.sum(axis=0)
        crossed += flow.crossing_ratio @ of_pairs
        written = flow.written(edges[:, [0, -1]])
        sent_window += float((written[:, 1] - written[:, 0]).sum())
        sent += float(flow.sent.sum())
        resent += float(flow.resent.sum())
        lost += float(flow.sent.sum() - flow.delivered.sum())
        at = flow.burst.grid_start_s + flow.step_s * np.arange(flow.expected.size + 1)
        delay = float(np.median(flow.delay_down_s))
        curve = np.concatenate(([0.0], np.cumsum(flow.expected)))
        ends = np.interp([start - delay, start + seconds - delay], at, curve)
        expected += float(ends[1] - ends[0])
    rates = arrived * 8.0 * factor
    high, low = readings(rates)
    ran = np.isfinite(burst.starts_s)
    late = {event.pair for event in spec.events if event.what == "late"}
    on_time = [p for p in range(spec.pairs_count) if ran[p] and p not in late]
    starts = burst.starts_s[on_time]
    return BurstTruth(
        index=burst.index,
        window_start_s=start,
        window_s=float(seconds),
        payload_bits_per_second=float(arrived.mean()) * 8.0,
        ip_bits_per_second=float(arrived.mean()) * 8.0 * spec.layer_factor("ip"),
        sent_bits_per_second=sent_window * 8.0 / seconds,
        crossed_payload_bits_per_second=float(crossed.mean()) * 8.0,
        high_bits_per_second=high,
        low_bits_per_second=low,
        crossed_high_bits_per_second=readings(crossed * 8.0 * factor)[0],
        lowest_fifth_bits_per_second=lowest_fifth(rates),
        expected_bits_per_second=expected * 8.0 * factor / seconds,
        process_bits_per_second=expected * 8.0 * factor / seconds / burst.level,
        seconds=arrived,
        crossed_seconds=crossed,
        lost_bytes=lost,
        sent_bytes=sent,
        resent_bytes=resent,
        start_spread_s=float(np.ptp(starts)) if starts.size else 0.0,
        ran=tuple(int(p) for p in np.flatnonzero(ran)),
    )
