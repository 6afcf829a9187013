"""Functions to compute how the recorded sources show a burst.

The views use the true lag, the true header factors and the clock offsets that the daemons
report. They check if a record has a contradiction, and not if a given method finds it.
"""

from dataclasses import dataclass, field

import numpy as np

from tests.worlds.bursts import SPREAD_S, BurstTruth
from tests.worlds.devices import counted_of_flow
from tests.worlds.parameters import Spec
from tests.worlds.record_format import DeviceRecord, EndRecord, Floats, Recording
from tests.worlds.traffic import Physics

# A residual can pass or fail when it is within one point of its limit.
RESIDUAL_MARGIN = 0.01
# A series needs to differ by this ratio and by five times its noise to have another shape.
SHAPE_RATIO, SHAPE_SIGMAS = 0.04, 5.0
# Additional bytes in the first quiet bins after the burst, compared with those before it.
TAIL_RATIO = 0.02


@dataclass
class Sources:
    """Values of the recorded sources for one burst, in bit/s at the target layer.

    Attributes:
        series: Rate per second of the window, by source.
        totals: Mean rate from engine totals and host counters, by source.
        spread_s: Time between the first and the last start from the timestamps, by side.
        coverage: Share of the planned pair-seconds that receivers recorded.
        residual: Ratio of the device bytes to the bytes predicted from the receivers, minus one.
        shape: Scatter of this ratio over the bins, and the scatter of a correct counter.
        tail: Device rate in the first quiet bins after the burst minus the one before, over the
            nominal rate.
        tail_noise: Scatter of the quiet bins before the burst, relative to the nominal rate.
        device_coverage: Share of the window in bins with a value.
    """

    series: dict[str, Floats] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    spread_s: dict[str, float] = field(default_factory=dict)
    coverage: float = 0.0
    residual: float | None = None
    shape: tuple[float, float] | None = None
    tail: float | None = None
    tail_noise: float = 0.0
    device_coverage: float = 1.0


def _points(end: EndRecord, began_s: float) -> tuple[Floats, Floats]:
    """Return points to interpolate the cumulative bytes for one end over time."""
    rows = end.rows
    at = np.empty(2 * rows.bytes.size)
    at[0::2], at[1::2] = rows.start_s, rows.end_s
    curve = np.empty(2 * rows.bytes.size)
    sums = np.cumsum(rows.bytes)
    curve[0::2], curve[1::2] = sums - rows.bytes, sums
    return np.maximum.accumulate(at) + began_s, curve


def view_of_ends(
    spec: Spec, recording: Recording, truth: BurstTruth, claimed: dict[str, float]
) -> tuple[Sources, list[tuple[int, Floats, Floats]]]:
    """Return the view of the engines' records of a burst, and the points of the receivers."""
    view = Sources()
    factor = spec.layer_factor(spec.target_layer) * 8.0
    seconds = round(truth.window_s)
    flows = 2 if spec.direction == "both" else 1
    receivers: list[tuple[int, Floats, Floats]] = []
    planned_start = next(b.start_s for b in recording.plan.bursts if b.index == truth.index)
    for side in ("receiver", "sender"):
        ends = [
            (record.pair, end)
            for record in recording.pairs
            if record.burst == truth.index
            for end in record.ends
            if end.side == side and end.rows.bytes.size
        ]
        if not ends:
            continue
        began = [
            (end.began_at_s if end.began_at_s is not None else planned_start)
            - claimed.get(end.host, 0.0)
            for _, end in ends
        ]
        amounts = np.array([max(1.0, float(end.rows.bytes.sum())) for _, end in ends])
        order = np.argsort(began)
        middle = int(np.searchsorted(np.cumsum(amounts[order]), amounts.sum() / 2))
        common = began[int(order[middle])] - planned_start
        # A common shift of all ends is a lag and is removed.
        moved = common if abs(common) > SPREAD_S else 0.0
        edges = planned_start + np.arange(seconds + 1.0)
        total = np.zeros(seconds)
        covered = 0.0
        for (pair, end), at in zip(ends, began, strict=True):
            points = _points(end, at - moved)
            total += np.diff(np.interp(edges, *points))
            if side == "receiver":
                receivers.append((pair, *points))
                inside = np.clip(points[0], edges[0], edges[-1])
                covered += float((inside[1::2] - inside[0::2]).sum())
        if side == "receiver":
            view.coverage = covered / (seconds * spec.pairs_count * flows)
        # With missing senders the sum is not an upper bound for the fleet.
        if side == "receiver" or len(ends) >= flows * len(truth.ran):
            view.series[side] = total * factor
        late = [at - moved - planned_start for at in began]
        view.spread_s[side] = float(np.ptp([x for x in late if x < 1e9])) if late else 0.0
        known = [end for _, end in ends if end.total_bytes is not None]
        if len(known) >= flows * len(truth.ran):
            amount = sum(end.total_bytes or 0.0 for end in known)
            view.totals[f"{side}-total"] = amount * factor / seconds
    hosts = [h for h in recording.hosts if h.burst == truth.index]
    comparable = hosts and all(
        h.routed_interface is not None and h.interface == h.routed_interface for h in hosts
    )
    if comparable and spec.direction != "both":
        role = "server" if spec.direction == "forward" else "client"
        taken = [h for h in hosts if h.host.startswith(role)]
        if len(taken) == spec.pairs_count:
            amount = 0.0
            for host in taken:
                # All bytes of the counter around the burst are an upper bound.
                amount += float(host.rx_bytes[-1] - host.rx_bytes[0])
            wire = spec.layer_factor("wire")
            view.totals["host"] = amount / wire * factor / seconds
    return view, receivers


def _true_bins(
    physics: Physics, lag_s: float, drift_s: float, record: DeviceRecord
) -> tuple[Floats, Floats]:
    """Return the true start and end for all bins."""
    start = record.start_s - lag_s - drift_s * record.start_s / physics.end_s
    end = record.end_s - lag_s - drift_s * record.end_s / physics.end_s
    return start, end


def _clock_of(at: Floats) -> tuple[Floats, Floats]:
    """Return points to interpolate the time covered by the intervals."""
    lengths = at[1::2] - at[0::2]
    sums = np.cumsum(lengths)
    covered = np.empty_like(at)
    covered[0::2], covered[1::2] = sums - lengths, sums
    return at, covered


def add_view_of_devices(
    spec: Spec,
    physics: Physics,
    recording: Recording,
    truth: BurstTruth,
    view: Sources,
    receivers: list[tuple[int, Floats, Floats]],
    device_shift_s: float,
) -> None:
    """Add the device counters to `view`."""
    seconds = round(truth.window_s)
    edges = truth.window_start_s + np.arange(seconds + 1.0)
    flows = [flow for flow in physics.flows if flow.burst.index == truth.index]
    delay_s = max(float(flow.delay_up_s.max()) for flow in flows)
    shown = np.zeros(seconds)
    residual_sum = predicted_sum = 0.0
    squares: list[float] = []
    noise = 0.0
    usable = bool(recording.devices)
    coverage = reported = 1.0
    tail: float | None = None
    for device, counter in enumerate(spec.counters):
        record = next((r for r in recording.devices if r.device == counter.device), None)
        if record is None:
            usable, coverage, reported = False, 0.0, 0.0
            continue
        scale = 1.0 / 8.0 if counter.bits else 1.0
        amount = record.value * scale
        if counter.average:
            amount = amount * (record.end_s - record.start_s)
        start, end = _true_bins(
            physics, counter.label_lag_s + device_shift_s, counter.lag_drift_s, record
        )
        good = np.isfinite(amount) & ~record.partial
        inside = np.clip(end, edges[0], edges[-1]) - np.clip(start, edges[0], edges[-1])
        reported = min(reported, float(inside[good].sum()) / seconds)
        width = end - start
        rate = np.where(good, np.nan_to_num(amount) / width, 0.0)
        quiet = good.copy()
        before = np.zeros(good.size, dtype=np.bool_)
        after = np.zeros(good.size, dtype=np.bool_)
        local_bins = np.zeros(good.size, dtype=np.bool_)
        of_others = np.zeros(good.size, dtype=np.bool_)
        local_first, local_last = edges[0], edges[-1]
        for burst in physics.bursts:
            first = min(burst.start_s, float(np.min(burst.starts_s))) - 1.0
            finite = burst.ends_s[np.isfinite(burst.ends_s)]
            last = max(burst.start_s + burst.duration_s, float(finite.max(initial=0.0))) + 1.0
            quiet &= (end <= first) | (start >= last)
            near = max(60.0, 3 * counter.bin_s)
            touches = (end > first) & (start < last)
            if burst.index == truth.index:
                before = (end <= first) & (end >= first - near)
                after = (start >= last) & (start <= last + near)
                local_bins, local_first, local_last = touches, first + 1.0, last - 1.0 + delay_s
            else:
                of_others |= touches
        idle = float(rate[quiet].mean()) if quiet.any() else 0.0
        nominal = spec.payload_bytes_per_second * spec.layer_factor(counter.layer) * counter.share
        if (quiet & before).any() and (quiet & after).any() and nominal > 0.0:
            # Compare the first quiet bins after the burst with those before it.
            first_after = rate[quiet & after][:2]
            more = (float(first_after.mean()) - float(rate[quiet & before].mean())) / nominal
            tail = max(tail or 0.0, more)
            view.tail_noise = max(view.tail_noise, float(rate[quiet & before].std()) / nominal)
        pairs = physics.pairs_of_devices[device]
        counted = sum(float(counted_of_flow(spec, f, counter, pairs).sum()) for f in flows)
        crossed = sum(float(f.crossing_ratio * pairs @ f.delivered.sum(axis=1)) for f in flows)
        complete = sum(float(pairs @ f.delivered.sum(axis=1)) for f in flows)
        if counter.directions != "both" and spec.direction == "both":
            usable = False
        if counted <= 0.0 or crossed <= 0.0 or complete <= 0.0:
            usable = usable and complete <= 0.0
            continue
        per_payload = counted / crossed
        # Bytes above the idle level belong to the part of the bin that overlaps the burst.
        alone = good & local_bins & ~of_others
        clipped_start = np.clip(start, local_first, local_last)
        clipped_end = np.clip(end, local_first, local_last)
        excess_bytes = (rate - idle) * width
        at = np.empty(2 * int(alone.sum()))
        at[0::2], at[1::2] = clipped_start[alone], clipped_end[alone]
        sums = np.cumsum(excess_bytes[alone])
        amounts = np.empty_like(at)
        amounts[0::2], amounts[1::2] = sums - excess_bytes[alone], sums
        if at.size:
            of_seconds = np.diff(np.interp(edges, at, amounts))
            known = np.diff(np.interp(edges, *_clock_of(at)))
            covered = float(known.sum())
            coverage = min(coverage, covered / seconds)
            # Seconds without a bin of this burst alone get the mean of the others.
            filled = of_seconds + (1.0 - known) * of_seconds.sum() / max(covered, 1e-9)
            shown += filled / per_payload
        else:
            coverage = 0.0
        # The prediction uses the receivers' records for the pairs through this device.
        inner = good & (start >= edges[0] + 2.0) & (end <= edges[-1] - 2.0)
        group = max(1, int(np.ceil(2.0 * spec.receiver_reading_s / counter.bin_s)))
        group = 1 if spec.receiver_reading_s <= 1.0 and counter.bin_s >= 5.0 else group
        predicted_bins = np.zeros(good.size)
        for pair, at, amounts in receivers:
            if pairs[pair]:
                predicted_bins += np.interp(end, at, amounts) - np.interp(start, at, amounts)
        predicted_bins *= per_payload
        residual_sum += float((excess_bytes - predicted_bins)[alone].sum())
        predicted_sum += float(predicted_bins[alone].sum())
        place = np.flatnonzero(inner)
        if place.size and receivers:
            predicted = predicted_bins[place]
            excess = excess_bytes[place] - predicted
            complete_groups = place.size // group
            if complete_groups >= 3:
                cut = complete_groups * group
                grouped = excess[:cut].reshape(complete_groups, group).sum(axis=1)
                base = predicted[:cut].reshape(complete_groups, group).sum(axis=1).mean()
                if base > 0.0:
                    relative = grouped / base
                    squares.append(float(np.sqrt(np.mean((relative - relative.mean()) ** 2))))
                    local = counter.bin_noise_ratio**2 + 2 * counter.bin_trade_ratio**2
                    local += (counter.bin_jitter_s * 1.5 / counter.bin_s) ** 2
                    local += (0.01 / counter.bin_s) ** 2 + 0.003**2
                    noise = max(noise, float(np.sqrt(local / group)))
    view.device_coverage = reported
    view.tail = tail
    # A few bytes at an edge should not be used as a residual.
    if predicted_sum > 0.3 * sum(float(f.delivered.sum()) for f in flows):
        view.residual = residual_sum / predicted_sum
    if squares:
        view.shape = (max(squares), noise)
    if usable and coverage > 0.8:
        view.series["device"] = shown * 8.0 * spec.layer_factor(spec.target_layer)


def doubts_of_devices(view: Sources, recording: Recording) -> frozenset[str]:
    """Return the contradictions between the device counter and the fleet's records."""
    doubts = set()
    limit = recording.plan.residual_max_ratio + RESIDUAL_MARGIN
    if view.residual is not None and abs(view.residual) > limit:
        doubts.add("device-residual")
    if view.shape is not None and view.shape[0] > max(SHAPE_RATIO, SHAPE_SIGMAS * view.shape[1]):
        doubts.add("device-shape")
    if view.tail is not None and view.tail > max(TAIL_RATIO, SHAPE_SIGMAS * view.tail_noise):
        doubts.add("device-tail")
    return frozenset(doubts)
