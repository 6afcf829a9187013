"""Ground truth of a world, and which verdicts the documented rules permit.

`docs/verdict.md`, `docs/evidence.md` and `docs/witnesses.md` state the rules. Nothing here was
taken from the engine. Where the documents leave a reading open (which seconds belong to the
ramp), a rate has a high and a low reading, and a verdict is wrong only if both say so.
"""

from dataclasses import dataclass, field

import numpy as np

from tests.worlds.recording import counted_of_flow, cpu_at, through_device
from tests.worlds.records import DeviceRecord, EndRecord, Floats, Recording
from tests.worlds.spec import Spec
from tests.worlds.traffic import Burst, Physics

# A ramp may be cut: at most a fifth of the window and 30 s (docs/verdict.md, "Rate of a burst").
RAMP_RATIO, RAMP_MAX_S = 0.2, 30.0
# A slow part is a fifth of the window and at least 5 s (docs/verdict.md, "Shape").
STRETCH_RATIO, STRETCH_LEAST_S = 0.2, 5.0
# A difference below this is within what two honest readers of exact counters may disagree by: one
# second's edge of 100 ms in 20 s.
RATE_MARGIN = 0.005
# The documented rule calls 1.5 % slow. Truth must be twice as far below the limit.
STRETCH_TRUE_MARGIN, STRETCH_SHOWN_MARGIN = 0.03, 0.015
# Completeness is a share of planned pair-seconds; edges of rows are worth 2 %.
COMPLETENESS_MARGIN = 0.02
# A residual within one point of its limit may be read either way.
RESIDUAL_MARGIN = 0.01
# Share of hosts without a proven clock from which the clocks are unproven in every reading.
CLOCKS_SHARE = 0.3
# Starts further apart than this are not one burst; the documented limit is 0.1 s.
SPREAD_S = 0.5
# A recorded series that misses by this much, and by five times its own noise, has another shape.
SHAPE_RATIO, SHAPE_SIGMAS = 0.04, 5.0
# Longest time from a sender's write to the device, without a queue of seconds.
EDGE_S = 0.03
# Bytes in the first quiet bins behind a burst that those before it do not have.
TAIL_RATIO = 0.02
# A device threshold is broken if CPU is this much over its limit.
CPU_MARGIN = 0.03
WORST_MARGIN = 0.02


@dataclass(frozen=True, kw_only=True)
class BurstTruth:
    """What truly happened in one planned burst. Rates are bit/s of both directions together.

    Attributes:
        index: Index of the burst.
        window_start_s: Start of the window in true UTC: the planned instant, moved by the shift
            that all hosts' clocks have in common.
        window_s: Length of the window.
        payload_bits_per_second: Payload that arrived in the window.
        ip_bits_per_second: The same with headers at the IP layer.
        sent_bits_per_second: Payload that senders wrote in the window, first transmissions.
        crossed_payload_bits_per_second: Payload that arrived and crossed the device.
        high_bits_per_second: Highest reading at the target's layer that the ramp rule allows.
        low_bits_per_second: Lowest reading.
        crossed_high_bits_per_second: Highest reading of what crossed the device.
        lowest_fifth_bits_per_second: Lowest mean of a fifth of the window, after the longest ramp.
        expected_bits_per_second: Expected rate of the process in the window (noise averaged out).
        process_bits_per_second: The same without this burst's own level: what intervals of a run
            must hold.
        seconds: Payload bytes that arrived in each second of the window.
        crossed_seconds: The same of what crossed the device.
        lost_bytes: Payload bytes lost for good (UDP) in the burst.
        sent_bytes: Payload bytes sent in the burst.
        resent_bytes: Payload bytes sent again in the burst.
        start_spread_s: Distance of the first and the last true start, late pairs left out.
        ran: Pairs that truly sent.
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


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A requirement that the truth, or the evidence, does not meet.

    Attributes:
        name: `rate`, `through`, `stretch`, `start-spread`, `completeness`, `receivers-absent`,
            `device-absent`, `clocks`, `cpu`, `telemetry` or `loss`.
        burst: Index of the burst; `None` for the run.
        value: The figure.
        limit: What it had to be.
        visible_in: Recorded sources that show it: `receiver`, `sender`, `receiver-total`,
            `sender-total`, `host`, `device`, `device-residual`, `device-shape`, `device-tail`,
            `clock`, `telemetry` or `plan` (absence of what was promised).
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
        bursts: Truth of each planned burst.
        limit_bits_per_second: Limit at the target's layer.
        target_met: The high reading of every burst reaches the limit.
        violations: Everything that is not met, with the sources that show it.
        bottleneck: What truly limited.
        lag_s: True lag of each device counter, at the start of the run.
        lag_end_s: True lag at the end of the run.
        clock_offsets_s: True clock minus UTC of each host at instant 0.
        bypass_ratio: Share of the fleet's delivered bytes that did not cross a device.
        background_ratio: Others' bytes over the fleet's in the windows, per device.
        cpu_p95_ratio: True 95th percentile of device CPU in the windows, worst device; `nan`
            without telemetry.
        holds: Everything is met with room, so that a fail is wrong.
        comfortable: Everything is met by 2 % or more.
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


def ramp_cut_max(seconds: int) -> int:
    """Return the largest number of seconds that the documents allow to cut as a ramp."""
    return int(min(RAMP_RATIO * seconds, RAMP_MAX_S))


def readings(series: Floats) -> tuple[float, float]:
    """Return the highest and the lowest mean of a series over all allowed ramp cuts."""
    cuts = range(ramp_cut_max(series.size) + 1)
    means = [float(series[cut:].mean()) for cut in cuts]
    return max(means), min(means)


def lowest_fifth(series: Floats) -> float:
    """Return the lowest mean of a fifth of the window that lies behind the longest ramp."""
    length = max(int(STRETCH_LEAST_S), round(STRETCH_RATIO * series.size))
    kept = series[ramp_cut_max(series.size) :]
    if kept.size <= length:
        return float(kept.mean())
    sums = np.convolve(kept, np.ones(length), mode="valid")
    return float(sums.min() / length)


def _shift(physics: Physics, burst: Burst) -> float:
    """Return the shift of the starts that most of the fleet has in common."""
    ran = np.isfinite(burst.starts_s)
    if not ran.any():
        return 0.0
    late = burst.starts_s[ran] - burst.start_s
    order = np.argsort(late)
    weights = np.cumsum(physics.weights[ran][order])
    middle = float(late[order][np.searchsorted(weights, weights[-1] / 2)])
    return middle if abs(middle) > SPREAD_S else 0.0


def burst_truth(spec: Spec, physics: Physics, burst: Burst) -> BurstTruth:
    """Compute the truth of one burst from the physics.

    Args:
        spec: Parameters.
        physics: What happened.
        burst: The burst.

    Returns:
        Its truth.
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


@dataclass
class _Sources:
    """What each recorded source shows of one burst, in bit/s at the target's layer."""

    series: dict[str, Floats] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    # Cumulative payload by claimed time of the receivers, as interpolation points.
    spread_s: dict[str, float] = field(default_factory=dict)
    coverage: float = 0.0
    residual: float | None = None
    shape: tuple[float, float] | None = None
    tail: float | None = None
    tail_noise: float = 0.0
    device_coverage: float = 1.0


def _points(end: EndRecord, began_s: float) -> tuple[Floats, Floats]:
    """Return interpolation points of one end's cumulative bytes by time."""
    rows = end.rows
    at = np.empty(2 * rows.bytes.size)
    at[0::2], at[1::2] = rows.start_s, rows.end_s
    curve = np.empty(2 * rows.bytes.size)
    sums = np.cumsum(rows.bytes)
    curve[0::2], curve[1::2] = sums - rows.bytes, sums
    return np.maximum.accumulate(at) + began_s, curve


def _source_view(
    spec: Spec, recording: Recording, truth: BurstTruth, claimed: dict[str, float]
) -> tuple[_Sources, list[tuple[int, Floats, Floats]]]:
    """Return what the engines' records of a burst show, and the receivers' points."""
    view = _Sources()
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
        # A shift that all ends have in common is a lag and costs nothing.
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
        # Fewer senders than pairs that ran do not bound the fleet.
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
                # All that the counter saw around the burst bounds what arrived in it.
                amount += float(host.rx_bytes[-1] - host.rx_bytes[0])
            wire = spec.layer_factor("wire")
            view.totals["host"] = amount / wire * factor / seconds
    return view, receivers


def _true_bins(
    physics: Physics, lag_s: float, drift_s: float, record: DeviceRecord
) -> tuple[Floats, Floats]:
    """Return the true start and end of each bin."""
    start = record.start_s - lag_s - drift_s * record.start_s / physics.end_s
    end = record.end_s - lag_s - drift_s * record.end_s / physics.end_s
    return start, end


def _clock_of(at: Floats) -> tuple[Floats, Floats]:
    """Return interpolation points of the time that pairs of start and end cover."""
    lengths = at[1::2] - at[0::2]
    sums = np.cumsum(lengths)
    covered = np.empty_like(at)
    covered[0::2], covered[1::2] = sums - lengths, sums
    return at, covered


def _device_view(
    spec: Spec,
    physics: Physics,
    recording: Recording,
    truth: BurstTruth,
    view: _Sources,
    receivers: list[tuple[int, Floats, Floats]],
    device_shift_s: float,
) -> None:
    """Add what the device counters show of a burst to `view`."""
    seconds = round(truth.window_s)
    edges = truth.window_start_s + np.arange(seconds + 1.0)
    flows = [flow for flow in physics.flows if flow.burst.index == truth.index]
    shown = np.zeros(seconds)
    residual_sum = predicted_sum = 0.0
    squares: list[float] = []
    noise = 0.0
    usable = bool(recording.devices)
    coverage = told = 1.0
    tail: float | None = None
    for device, counter in enumerate(spec.counters):
        record = next((r for r in recording.devices if r.device == counter.device), None)
        if record is None:
            usable, coverage, told = False, 0.0, 0.0
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
        told = min(told, float(inside[good].sum()) / seconds)
        width = end - start
        rate = np.where(good, np.nan_to_num(amount) / width, 0.0)
        quiet = good.copy()
        before = np.zeros(good.size, dtype=np.bool_)
        after = np.zeros(good.size, dtype=np.bool_)
        own_bins = np.zeros(good.size, dtype=np.bool_)
        of_others = np.zeros(good.size, dtype=np.bool_)
        own_first, own_last = edges[0], edges[-1]
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
                own_bins, own_first, own_last = touches, first + 1.0, last - 1.0 + EDGE_S
            else:
                of_others |= touches
        idle = float(rate[quiet].mean()) if quiet.any() else 0.0
        nominal = spec.payload_bytes_per_second * spec.layer_factor(counter.layer) * counter.share
        if (quiet & before).any() and (quiet & after).any() and nominal > 0.0:
            # The first quiet bins after the burst, against those before it.
            first_after = rate[quiet & after][:2]
            more = (float(first_after.mean()) - float(rate[quiet & before].mean())) / nominal
            tail = max(tail or 0.0, more)
            view.tail_noise = max(view.tail_noise, float(rate[quiet & before].std()) / nominal)
        pairs = physics.pairs_of_devices[device]
        counted = sum(float(counted_of_flow(spec, f, counter, pairs).sum()) for f in flows)
        crossed = sum(float(f.crossing_ratio * pairs @ f.delivered.sum(axis=1)) for f in flows)
        whole = sum(float(pairs @ f.delivered.sum(axis=1)) for f in flows)
        if counter.directions != "both" and spec.direction == "both":
            usable = False
        if counted <= 0.0 or crossed <= 0.0 or whole <= 0.0:
            usable = usable and whole <= 0.0
            continue
        per_payload = counted / crossed
        # What a bin holds beside the idle level belongs to the part of it that the burst covers.
        alone = good & own_bins & ~of_others
        clipped_start = np.clip(start, own_first, own_last)
        clipped_end = np.clip(end, own_first, own_last)
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
            # Seconds that no bin of this burst covers alone get the mean of the others.
            filled = of_seconds + (1.0 - known) * of_seconds.sum() / max(covered, 1e-9)
            shown += filled / per_payload
        else:
            coverage = 0.0
        # The prediction uses the receivers' records of the pairs that this device carries.
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
        where = np.flatnonzero(inner)
        if where.size and receivers:
            predicted = predicted_bins[where]
            excess = excess_bytes[where] - predicted
            whole_groups = where.size // group
            if whole_groups >= 3:
                cut = whole_groups * group
                grouped = excess[:cut].reshape(whole_groups, group).sum(axis=1)
                base = predicted[:cut].reshape(whole_groups, group).sum(axis=1).mean()
                if base > 0.0:
                    relative = grouped / base
                    squares.append(float(np.sqrt(np.mean((relative - relative.mean()) ** 2))))
                    own = counter.bin_noise_ratio**2 + 2 * counter.bin_trade_ratio**2
                    own += (counter.bin_jitter_s * 1.5 / counter.bin_s) ** 2
                    own += (0.01 / counter.bin_s) ** 2 + 0.003**2
                    noise = max(noise, float(np.sqrt(own / group)))
    view.device_coverage = told
    view.tail = tail
    # A few bytes at an edge are no residual.
    if predicted_sum > 0.3 * sum(float(f.delivered.sum()) for f in flows):
        view.residual = residual_sum / predicted_sum
    if squares:
        view.shape = (max(squares), noise)
    if usable and coverage > 0.8:
        view.series["device"] = shown * 8.0 * spec.layer_factor(spec.target_layer)


def _device_doubts(view: _Sources, recording: Recording) -> frozenset[str]:
    """Return how the device counter shows that the fleet's records do not explain it."""
    doubts = set()
    limit = recording.plan.residual_max_ratio + RESIDUAL_MARGIN
    if view.residual is not None and abs(view.residual) > limit:
        doubts.add("device-residual")
    if view.shape is not None and view.shape[0] > max(SHAPE_RATIO, SHAPE_SIGMAS * view.shape[1]):
        doubts.add("device-shape")
    if view.tail is not None and view.tail > max(TAIL_RATIO, SHAPE_SIGMAS * view.tail_noise):
        doubts.add("device-tail")
    return frozenset(doubts)


def _clock_violation(spec: Spec, recording: Recording) -> Violation | None:
    """Return the violation of unproven clocks, if most readings of the documents see one."""
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
    found = []
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
        # Stamps that nothing proves are no evidence, and the values that they carry are on record.
        for burst in bursts:
            end = burst.window_start_s + burst.window_s
            inside = (at >= burst.window_start_s + 1.0) & (at <= end)
            inside &= np.isfinite(record.value)
            known += int(inside.sum())
            partial += int((inside & record.partial).sum())
            whole = inside & ~record.partial
            shows |= not placed or bool(
                whole.sum() >= 3 and np.quantile(record.value[whole], 0.9) > limit
            )
    if cpu_p95 > limit + CPU_MARGIN:
        found.append(
            Violation(
                name="cpu",
                burst=None,
                value=cpu_p95,
                limit=limit,
                visible_in=frozenset({"telemetry"}) if shows else frozenset(),
            )
        )
    if known == 0 or partial > 0.3 * known:
        found.append(
            Violation(
                name="telemetry",
                burst=None,
                value=1.0 - partial / max(1, known),
                limit=0.8,
                visible_in=frozenset({"telemetry"}),
            )
        )
    return found


def _burst_violations(
    spec: Spec,
    physics: Physics,
    recording: Recording,
    truth: BurstTruth,
    claimed: dict[str, float],
    device_shift_s: float,
) -> list[Violation]:
    limit = spec.limit_bits_per_second
    view, receivers = _source_view(spec, recording, truth, claimed)
    has_device = bool(recording.devices)
    if has_device:
        _device_view(spec, physics, recording, truth, view, receivers, device_shift_s)
    doubts = _device_doubts(view, recording) if has_device else frozenset()
    found = []

    def shown_rate() -> set[str]:
        below = limit * (1.0 - RATE_MARGIN)
        names = {name for name, series in view.series.items() if readings(series)[0] < below}
        return names | {name for name, rate in view.totals.items() if rate < below}

    if truth.high_bits_per_second < limit * (1.0 - RATE_MARGIN):
        found.append(
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
        found.append(
            Violation(
                name="through",
                burst=truth.index,
                value=truth.crossed_high_bits_per_second,
                limit=limit,
                visible_in=frozenset(visible),
            )
        )
    if truth.lowest_fifth_bits_per_second < limit * (1.0 - STRETCH_TRUE_MARGIN):
        below = limit * (1.0 - STRETCH_SHOWN_MARGIN)
        names = {n for n, series in view.series.items() if lowest_fifth(series) < below}
        found.append(
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
        found.append(
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
        found.append(
            Violation(
                name="receivers-absent",
                burst=truth.index,
                value=0.0,
                limit=floor,
                visible_in=frozenset({"plan"}),
            )
        )
    elif view.coverage < floor - COMPLETENESS_MARGIN:
        found.append(
            Violation(
                name="completeness",
                burst=truth.index,
                value=view.coverage,
                limit=floor,
                visible_in=frozenset({"plan"}),
            )
        )
    if recording.plan.device_promised and (not has_device or view.device_coverage < 0.5):
        found.append(
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
            heard = any(
                end.rows.lost is not None
                for record in recording.pairs
                if record.burst == truth.index
                for end in record.ends
            )
            found.append(
                Violation(
                    name="loss",
                    burst=truth.index,
                    value=loss,
                    limit=loss_max,
                    visible_in=frozenset({"receiver"}) if heard else frozenset(),
                )
            )
    return found


def claimed_offsets(recording: Recording) -> dict[str, float]:
    """Return the clock offset that each host's time daemon reports."""
    offsets: dict[str, float] = {}
    for reading in recording.clocks:
        offsets.setdefault(reading.host, reading.offset_s)
    return offsets


def find_truth(
    spec: Spec, physics: Physics, recording: Recording, device_shift_s: float = 0.0
) -> Truth:
    """Compute the ground truth of a world and where its records show what is wrong.

    Args:
        spec: Parameters.
        physics: What happened.
        recording: Records, manipulated or not. Only `visible_in` depends on them.
        device_shift_s: Seconds by which the labels of all device bins were moved.

    Returns:
        The truth.
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
        own = others = 0.0
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
            own += mine
            others += everything - mine
        background[counter.device] = others / own if own > 0.0 else float("inf")
    room = 1.0 + RATE_MARGIN
    cpu_limit = spec.device_cpu_max_ratio
    cpu_holds = cpu_limit is None or not cpu_p95 > cpu_limit - CPU_MARGIN
    loss_holds = spec.loss_max_ratio is None or all(
        b.lost_bytes <= spec.loss_max_ratio * b.sent_bytes for b in bursts
    )
    holds = all(
        b.low_bits_per_second >= limit * room and b.lowest_fifth_bits_per_second >= limit
        for b in bursts
    )
    holds = holds and cpu_holds and loss_holds
    true_faults = {"rate", "through", "stretch", "start-spread", "cpu", "loss"}
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
        and all(b.low_bits_per_second >= limit * (1.0 + WORST_MARGIN) for b in bursts),
    )
