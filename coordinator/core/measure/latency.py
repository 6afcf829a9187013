"""Latency under load, measured by probes before, during and after a burst.

Probes are datagrams with 16 bytes. They use the same path as the traffic but not its flows, and
they are not included in any byte count. Buffer delay is (mean RTT during - baseline) / baseline, as
in RFC 6349, section 4.3. The mean RTT on the idle path just before the burst is used as the
baseline.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.phases import Sustain
from broadside.coordinator.core.measure.formulas.quantiles import quantiles
from broadside.coordinator.core.measure.records.evidence import ProbeColumn
from broadside.coordinator.core.run_spec import Burst
from broadside.coordinator.core.summary import (
    Latency,
    PathLatency,
    PhaseLatency,
    Spike,
    figure,
    instant,
)
from broadside.exchange.messages import pair_name


def buffer_delay(rtt_mean_s: float | None, baseline_s: float | None) -> float | None:
    """Return (mean RTT in transfer - baseline RTT) / baseline RTT (RFC 6349, section 4.3).

    Args:
        rtt_mean_s: Mean RTT during the transfer in seconds. None if unknown.
        baseline_s: RTT on the idle path in seconds. None if unknown.

    Returns:
        The ratio, or ``None`` when a value is not known or the baseline is 0.
    """
    if rtt_mean_s is None or not baseline_s:
        return None
    return (rtt_mean_s - baseline_s) / baseline_s


# Seconds. If probes have no good answer for this time, it is a spike.
SPIKE_S: Final = 1.0
# Multiple of the baseline's 99th percentile.
SPIKE_RATIO: Final = 5.0
# Seconds above the baseline. When the baseline is some microseconds, an RTT of some ms should not
# be a spike.
SPIKE_OVER_S: Final = 0.02
# Multiple of the burst's median. If a queue is full all the time, this is not a spike.
LOADED_RATIO: Final = 2.0
# How many spikes to store for a burst, starting with the longest.
SPIKES_MAX_COUNT: Final = 32


def find_latency(
    burst: Burst, probes: Mapping[int, ProbeColumn], sustain: Sustain | None = None
) -> tuple[Latency | None, dict[int, PathLatency]]:
    """Return the latency for the fleet and for each pair.

    Args:
        burst: The burst to use.
        probes: Probes by pair index.
        sustain: The sustain phase, or ``None`` if the load has no ramps.

    Returns:
        Latency for the fleet (``None`` if there are no probes), and for pairs by index.
    """
    phases = {index: _phases(burst, column, sustain) for index, column in probes.items()}
    by_pair = {index: _path(parts) for index, parts in phases.items()}
    if not by_pair:
        return None, {}
    pooled = [np.concatenate([parts[at] for parts in phases.values()]) for at in range(3)]
    fleet = _path(pooled)
    spikes = _spikes(probes, by_pair, fleet.before.p99_s)
    slowest = max(
        (index for index, path in by_pair.items() if path.during.p99_s is not None),
        key=lambda index: (by_pair[index].during.p99_s, -index),
        default=None,
    )
    selected = sorted(spikes, key=lambda spike: (spike.from_at - spike.to_at, spike.from_at))
    latency = Latency(
        fleet=fleet,
        pairs_count=len(by_pair),
        complete_pairs_count=sum(
            bool(len(parts[1]))
            and float((parts[1] >= 0).sum() + np.isnan(parts[1]).sum()) >= 0.95 * len(parts[1])
            for parts in phases.values()
        ),
        worst_pair=None if slowest is None else pair_name(slowest),
        worst_p99_s=None if slowest is None else by_pair[slowest].during.p99_s,
        spikes=tuple(sorted(selected[:SPIKES_MAX_COUNT], key=lambda spike: spike.from_at)),
        spikes_count=len(spikes),
    )
    return latency, by_pair


def _times(column: ProbeColumn) -> Floats:
    return column.first_at_s + column.every_s * np.arange(len(column.rtt_s), dtype=np.float64)


def _phases(burst: Burst, column: ProbeColumn, sustain: Sustain | None) -> list[Floats]:
    """Return probes that were due before, during and after the burst.

    With ramps, those of the sustain phase are returned in place of those during the burst.
    """
    # A time is a sum of floats, so it may be slightly below the planned time.
    edge_s = column.every_s / 1000
    start_s, end_s = burst.planned_start_at.timestamp(), burst.planned_end_at.timestamp()
    bounds_s = [start_s, start_s, end_s, end_s]
    if sustain is not None:
        bounds_s[1:3] = [start_s + sustain.from_s, start_s + sustain.to_s]
    cuts = np.searchsorted(_times(column), np.array(bounds_s) - edge_s)
    return np.split(column.rtt_s, cuts)[::2]


def _phase(rtt_s: Floats) -> PhaseLatency:
    answered = rtt_s[rtt_s >= 0]
    sent_count = len(answered) + int(np.isnan(rtt_s).sum())
    if not len(answered):
        loss = 1.0 if sent_count else None
        return PhaseLatency(sent_count=sent_count, answered_count=0, loss_ratio=loss)
    p50, p90, p95, p99, most = quantiles(answered, (0.5, 0.9, 0.95, 0.99, 1.0))
    return PhaseLatency(
        sent_count=sent_count,
        answered_count=len(answered),
        loss_ratio=figure(1 - len(answered) / sent_count),
        mean_s=figure(float(answered.mean())),
        p50_s=p50,
        p90_s=p90,
        p95_s=p95,
        p99_s=p99,
        max_s=most,
    )


def _path(parts: Sequence[Floats]) -> PathLatency:
    before, during, after = map(_phase, parts)
    return PathLatency(
        before=before,
        during=during,
        after=after,
        buffer_delay_ratio=figure(buffer_delay(during.mean_s, before.mean_s)),
    )


# Spikes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bad:
    """A pair's bad probes in a row.

    Attributes:
        pair_index: Pair index.
        from_s: Start in epoch seconds.
        to_s: End in epoch seconds.
        rtt_max_s: Longest RTT in seconds, or ``None`` if all probes were lost.
        lost_count: Number of lost probes.
    """

    pair_index: int
    from_s: float
    to_s: float
    rtt_max_s: float | None
    lost_count: int


def _spikes(
    probes: Mapping[int, ProbeColumn], by_pair: Mapping[int, PathLatency], fleet_p99_s: float | None
) -> list[Spike]:
    results: list[_Bad] = []
    for index, column in sorted(probes.items()):
        baseline_s = by_pair[index].before.p99_s or fleet_p99_s
        if baseline_s is not None:
            loaded_s = by_pair[index].during.p50_s or 0.0
            limit_s = max(
                SPIKE_RATIO * baseline_s, baseline_s + SPIKE_OVER_S, LOADED_RATIO * loaded_s
            )
            results += _bad(index, column, limit_s)
    return _clusters(results)


def _bad(index: int, column: ProbeColumn, limit_s: float) -> Iterable[_Bad]:
    """Yield parts of ``SPIKE_S`` or more where all sent probes are lost or above the limit.

    If a single probe was not sent, it will be ignored. If there are two in a row, the part will end
    there, because the agent itself has paused.
    """
    (sent,) = np.nonzero(~(column.rtt_s < 0))
    rtt_s, at_s = column.rtt_s[sent], _times(column)[sent]
    (bad,) = np.nonzero(np.isnan(rtt_s) | (rtt_s > limit_s))
    distances = (np.diff(bad) > 1) | (np.diff(sent[bad]) > 2)
    for stretch in np.split(bad, np.flatnonzero(distances) + 1):
        if len(stretch) * column.every_s < SPIKE_S - column.every_s / 1000:
            continue
        seen_s = rtt_s[stretch]
        answered = seen_s[~np.isnan(seen_s)]
        yield _Bad(
            pair_index=index,
            from_s=float(at_s[stretch[0]]),
            to_s=float(at_s[stretch[-1]]) + column.every_s,
            rtt_max_s=float(answered.max()) if len(answered) else None,
            lost_count=len(stretch) - len(answered),
        )


def _clusters(results: Sequence[_Bad]) -> list[Spike]:
    """Merge overlapping parts from all pairs into fleet spikes."""
    spikes: list[list[_Bad]] = []
    reach_s = -np.inf
    for bad in sorted(results, key=lambda bad: (bad.from_s, bad.pair_index)):
        if bad.from_s > reach_s:
            spikes.append([])
        spikes[-1].append(bad)
        reach_s = max(reach_s, bad.to_s)
    return [_spike(parts) for parts in spikes]


def _spike(parts: Sequence[_Bad]) -> Spike:
    indices = sorted({bad.pair_index for bad in parts})
    known = [bad.rtt_max_s for bad in parts if bad.rtt_max_s is not None]
    return Spike(
        from_at=instant(min(bad.from_s for bad in parts)),
        to_at=instant(max(bad.to_s for bad in parts)),
        pairs_count=len(indices),
        pairs=tuple(map(pair_name, indices[:3])),
        rtt_max_s=figure(max(known)) if known else None,
        lost_count=sum(bad.lost_count for bad in parts),
    )
