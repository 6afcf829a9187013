"""Functions to compute the ground truth for a world.

`docs/verdict.md`, `docs/evidence.md` and `docs/telemetry.md` define the rules. The code is
independent of the engine. The documents do not define all details, for example the seconds in
the ramp. A rate therefore has a high and a low reading, and a verdict is wrong only if both
readings agree.
"""

from dataclasses import dataclass

import numpy as np

from tests.worlds.bursts import SPREAD_S, BurstTruth, burst_truth, lowest_fifth, readings
from tests.worlds.devices import counted_of_flow, cpu_at, through_device
from tests.worlds.parameters import Spec
from tests.worlds.record_format import Recording
from tests.worlds.traffic import Physics
from tests.worlds.visible import add_view_of_devices, doubts_of_devices, view_of_ends

# Readers can be expected to differ by less than this, which is an edge of 100 ms in 20 s.
RATE_MARGIN = 0.005
# The documented rule reports 1.5 % as slow. The truth must be twice as far below the limit.
STRETCH_TRUE_MARGIN, STRETCH_SHOWN_MARGIN = 0.03, 0.015
# Completeness is a share of the planned pair-seconds. Edges of rows can change it by 2 %.
COMPLETENESS_MARGIN = 0.02
# When more hosts than this have no verified clock, the clocks cannot be used.
CLOCKS_SHARE = 0.3
# The CPU needs to be above its limit by this much to be a violation.
CPU_MARGIN = 0.03
# A clean fleet with this margin should pass.
COMFORT_RATIO = 0.02


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A requirement that the truth or the evidence does not meet.

    Attributes:
        name: `rate`, `expected-rate`, `through`, `stretch`, `start-spread`, `completeness`,
            `receivers-absent`, `device-absent`, `clocks`, `cpu`, `telemetry` or `loss`.
        burst: Burst index, or `None` for the run.
        value: Measured value.
        limit: Required value.
        visible_in: Recorded sources that show it, `receiver`, `sender`, `receiver-total`,
            `sender-total`, `host`, `device`, `device-residual`, `device-shape`, `device-tail`,
            `clock`, `telemetry` or `plan` (a promised source is missing).
    """

    name: str
    burst: int | None
    value: float
    limit: float
    visible_in: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Ground truth of a world.

    Attributes:
        bursts: Ground truth of all planned bursts.
        limit_bits_per_second: Limit at the target layer.
        target_met: True if the high reading reaches the limit in all bursts.
        violations: Violated requirements and the sources that show them.
        bottleneck: True bottleneck.
        lag_s: True lag at the start of the run, by device.
        lag_end_s: True lag at the end of the run, by device.
        clock_offsets_s: True clock offset from UTC at instant 0, by host.
        bypass_ratio: Share of the delivered bytes that did not cross a device.
        background_ratio: Ratio of background bytes to fleet bytes in the windows, by device.
        cpu_p95_ratio: True 95th percentile of the CPU in the windows for the worst device. `nan`
            without telemetry.
        holds: True if all requirements are met with a margin. A fail is then wrong.
        comfortable: True if all requirements are met by 2 % or more.
    """

    bursts: tuple[BurstTruth, ...]
    limit_bits_per_second: float
    target_met: bool
    violations: tuple[Violation, ...]
    bottleneck: str
    lag_s: dict[str, float]
    lag_end_s: dict[str, float]
    clock_offsets_s: dict[str, float]
    bypass_ratio: float
    background_ratio: dict[str, float]
    cpu_p95_ratio: float
    holds: bool
    comfortable: bool


def _clock_violation(spec: Spec, recording: Recording) -> Violation | None:
    """Return the violation for unverified clocks, if most readings of the documents have one."""
    if not recording.plan.clocks_promised:
        return None
    gate = recording.plan.clock_gate_s
    proven: set[tuple[str, int]] = set()
    bad: set[tuple[str, int]] = set()
    for reading in recording.clocks:
        unknown = reading.reference_id == "7F7F0101" or not reading.synchronised
        over = reading.bound_s + abs(reading.slewing_s) > gate or abs(reading.offset_s) > gate
        (bad if unknown or over else proven).add((reading.host, reading.burst))
    hosts = 2 * spec.pairs_count * (spec.bursts_count - len(spec.unrecorded))
    share = 1.0 - len(proven - bad) / max(1, hosts)
    if share < CLOCKS_SHARE:
        return None
    return Violation(
        name="clocks",
        burst=None,
        value=share,
        limit=1.0 - recording.plan.completeness_min_ratio,
        visible_in=frozenset({"clock"}),
    )


def _cpu_truth(spec: Spec, physics: Physics, bursts: tuple[BurstTruth, ...]) -> float:
    if spec.telemetry is None or not spec.counters:
        return float("nan")
    worst = 0.0
    for device in range(len(spec.counters)):
        for burst in bursts:
            at = burst.window_start_s + 1.5 + np.arange(burst.window_s - 2.0)
            worst = max(worst, float(np.quantile(cpu_at(spec, physics, device, at), 0.95)))
    return worst


def _cpu_violations(
    spec: Spec, recording: Recording, bursts: tuple[BurstTruth, ...], cpu_p95: float
) -> list[Violation]:
    limit = recording.plan.device_cpu_max_ratio
    if limit is None:
        return []
    results = []
    known = partial = 0
    shows = False
    for record in recording.telemetry:
        if record.quantity != "cpu_ratio":
            continue
        honest_stamps = spec.telemetry is not None and spec.telemetry.stamp_offset_s == 0.0
        at = record.asked_at_s
        placed = at is not None or honest_stamps
        if at is None:
            at = record.own_stamp_s
        if at is None:
            continue
        # Unverified timestamps are no evidence, but their values are recorded.
        for burst in bursts:
            end = burst.window_start_s + burst.window_s
            inside = (at >= burst.window_start_s + 1.0) & (at <= end)
            inside &= np.isfinite(record.value)
            known += int(inside.sum())
            partial += int((inside & record.partial).sum())
            complete = inside & ~record.partial
            shows |= not placed or bool(
                complete.sum() >= 3 and np.quantile(record.value[complete], 0.9) > limit
            )
    if cpu_p95 > limit + CPU_MARGIN:
        results.append(
            Violation(
                name="cpu",
                burst=None,
                value=cpu_p95,
                limit=limit,
                visible_in=frozenset({"telemetry"}) if shows else frozenset(),
            )
        )
    if known == 0 or partial > 0.3 * known:
        results.append(
            Violation(
                name="telemetry",
                burst=None,
                value=1.0 - partial / max(1, known),
                limit=0.8,
                visible_in=frozenset({"telemetry"}),
            )
        )
    return results


def _burst_violations(
    spec: Spec,
    physics: Physics,
    recording: Recording,
    truth: BurstTruth,
    claimed: dict[str, float],
    device_shift_s: float,
) -> list[Violation]:
    limit = spec.limit_bits_per_second
    view, receivers = view_of_ends(spec, recording, truth, claimed)
    has_device = bool(recording.devices)
    if has_device:
        add_view_of_devices(spec, physics, recording, truth, view, receivers, device_shift_s)
    doubts = doubts_of_devices(view, recording) if has_device else frozenset()
    results = []

    def shown_rate() -> set[str]:
        below = limit * (1.0 - RATE_MARGIN)
        names = {name for name, series in view.series.items() if readings(series)[0] < below}
        return names | {name for name, rate in view.totals.items() if rate < below}

    if truth.high_bits_per_second < limit * (1.0 - RATE_MARGIN):
        results.append(
            Violation(
                name="rate",
                burst=truth.index,
                value=truth.high_bits_per_second,
                limit=limit,
                visible_in=frozenset(shown_rate() | doubts),
            )
        )
    device_matters = has_device or recording.plan.device_promised
    if device_matters and truth.crossed_high_bits_per_second < limit * (1.0 - RATE_MARGIN):
        visible = {name for name in shown_rate() if name == "device"} | doubts
        if truth.high_bits_per_second < limit * (1.0 - RATE_MARGIN):
            visible |= shown_rate()
        results.append(
            Violation(
                name="through",
                burst=truth.index,
                value=truth.crossed_high_bits_per_second,
                limit=limit,
                visible_in=frozenset(visible),
            )
        )
    expected = truth.expected_bits_per_second
    if spec.planned_s and expected < limit * (1.0 - RATE_MARGIN):
        # The decision to stop is about the rate without noise.
        results.append(
            Violation(
                name="expected-rate",
                burst=truth.index,
                value=expected,
                limit=limit,
                visible_in=frozenset({"receiver"}),
            )
        )
    if truth.lowest_fifth_bits_per_second < limit * (1.0 - STRETCH_TRUE_MARGIN):
        below = limit * (1.0 - STRETCH_SHOWN_MARGIN)
        names = {n for n, series in view.series.items() if lowest_fifth(series) < below}
        results.append(
            Violation(
                name="stretch",
                burst=truth.index,
                value=truth.lowest_fifth_bits_per_second,
                limit=limit,
                visible_in=frozenset(names | doubts),
            )
        )
    if truth.start_spread_s > SPREAD_S and spec.origin == "launched":
        names = {n for n, spread in view.spread_s.items() if spread > truth.start_spread_s / 2}
        names |= {d for d in doubts if d == "device-shape"}
        results.append(
            Violation(
                name="start-spread",
                burst=truth.index,
                value=truth.start_spread_s,
                limit=recording.plan.start_spread_max_s,
                visible_in=frozenset(names),
            )
        )
    floor = recording.plan.completeness_min_ratio
    if not receivers:
        results.append(
            Violation(
                name="receivers-absent",
                burst=truth.index,
                value=0.0,
                limit=floor,
                visible_in=frozenset({"plan"}),
            )
        )
    elif view.coverage < floor - COMPLETENESS_MARGIN:
        results.append(
            Violation(
                name="completeness",
                burst=truth.index,
                value=view.coverage,
                limit=floor,
                visible_in=frozenset({"plan"}),
            )
        )
    if recording.plan.device_promised and (not has_device or view.device_coverage < 0.5):
        results.append(
            Violation(
                name="device-absent",
                burst=truth.index,
                value=view.device_coverage if has_device else 0.0,
                limit=floor,
                visible_in=frozenset({"plan"}),
            )
        )
    loss_max = recording.plan.loss_max_ratio
    if loss_max is not None and truth.sent_bytes > 0.0:
        loss = truth.lost_bytes / truth.sent_bytes
        if loss > loss_max + 1e-5:
            received = any(
                end.rows.lost is not None
                for record in recording.pairs
                if record.burst == truth.index
                for end in record.ends
            )
            results.append(
                Violation(
                    name="loss",
                    burst=truth.index,
                    value=loss,
                    limit=loss_max,
                    visible_in=frozenset({"receiver"}) if received else frozenset(),
                )
            )
    return results


def claimed_offsets(recording: Recording) -> dict[str, float]:
    """Return the clock offset that the time daemon reports, by host."""
    offsets: dict[str, float] = {}
    for reading in recording.clocks:
        offsets.setdefault(reading.host, reading.offset_s)
    return offsets


def find_truth(
    spec: Spec, physics: Physics, recording: Recording, device_shift_s: float = 0.0
) -> Truth:
    """Compute the ground truth of a world and the sources that show its violations.

    Args:
        spec: Parameters to use.
        physics: Simulated physics to use.
        recording: Records, which may be manipulated. Only `visible_in` depends on them.
        device_shift_s: Shift of the labels of all device bins in seconds.

    Returns:
        The ground truth.
    """
    bursts = tuple(
        burst_truth(spec, physics, burst) for burst in physics.bursts if burst.index >= 0
    )
    claimed = claimed_offsets(recording)
    violations: list[Violation] = []
    for burst in bursts:
        violations.extend(
            _burst_violations(spec, physics, recording, burst, claimed, device_shift_s)
        )
    clock = _clock_violation(spec, recording)
    if clock is not None:
        violations.append(clock)
    cpu_p95 = float("nan")
    if spec.device_cpu_max_ratio is not None:
        cpu_p95 = _cpu_truth(spec, physics, bursts)
        violations.extend(_cpu_violations(spec, recording, bursts, cpu_p95))
    limit = spec.limit_bits_per_second
    delivered = sum(float(f.delivered.sum()) for f in physics.flows if f.burst.index >= 0)
    beside = sum(
        float((1.0 - f.crossing_ratio) @ f.delivered.sum(axis=1))
        for f in physics.flows
        if f.burst.index >= 0
    )
    background = {}
    for device, counter in enumerate(spec.counters):
        curve, step = through_device(spec, physics, device)
        grid = step * np.arange(curve.size)
        local = others = 0.0
        for burst in bursts:
            ends = [burst.window_start_s, burst.window_start_s + burst.window_s]
            everything = float(np.diff(np.interp(ends, grid, curve))[0])
            mine = 0.0
            for flow in physics.flows:
                if flow.burst.index != burst.index:
                    continue
                pairs = physics.pairs_of_devices[device]
                steps = np.cumsum(counted_of_flow(spec, flow, counter, pairs))
                at = flow.burst.grid_start_s + step * np.arange(1, steps.size + 1)
                mine += float(np.diff(np.interp(ends, at, steps))[0])
            local += mine
            others += everything - mine
        background[counter.device] = others / local if local > 0.0 else float("inf")
    space = 1.0 + RATE_MARGIN
    cpu_limit = spec.device_cpu_max_ratio
    cpu_holds = cpu_limit is None or not cpu_p95 > cpu_limit - CPU_MARGIN
    loss_holds = spec.loss_max_ratio is None or all(
        b.lost_bytes <= spec.loss_max_ratio * b.sent_bytes for b in bursts
    )
    holds = all(
        b.low_bits_per_second >= limit * space and b.lowest_fifth_bits_per_second >= limit
        for b in bursts
    )
    true_faults = {"rate", "through", "stretch", "start-spread", "cpu", "loss"}
    if spec.planned_s:
        # If a burst was stopped, a fail is wrong too if only the noise was low.
        holds = all(
            b.expected_bits_per_second >= limit * space and b.lowest_fifth_bits_per_second >= limit
            for b in bursts
        )
        true_faults -= {"rate", "through"}
    holds = holds and cpu_holds and loss_holds
    faultless = not any(v.name in true_faults for v in violations)
    return Truth(
        bursts=bursts,
        limit_bits_per_second=limit,
        target_met=all(b.high_bits_per_second >= limit for b in bursts),
        violations=tuple(violations),
        bottleneck=spec.bottleneck,
        lag_s={counter.device: counter.label_lag_s + device_shift_s for counter in spec.counters},
        lag_end_s={c.device: c.label_lag_s + c.lag_drift_s + device_shift_s for c in spec.counters},
        clock_offsets_s={
            f"{name}-{pair:02d}": float(physics.offsets_s[side, pair])
            for side, name in ((0, "client"), (1, "server"))
            for pair in range(spec.pairs_count)
        },
        bypass_ratio=beside / delivered if delivered > 0.0 else 0.0,
        background_ratio=background,
        cpu_p95_ratio=cpu_p95,
        holds=holds and faultless,
        comfortable=holds
        and faultless
        and all(b.low_bits_per_second >= limit * (1.0 + COMFORT_RATIO) for b in bursts),
    )
