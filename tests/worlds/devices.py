"""Functions to compute device traffic and to record device counters and telemetry."""

from dataclasses import replace

import numpy as np

from tests.worlds.noise import lognormal
from tests.worlds.parameters import Background, Counter, Spec
from tests.worlds.record_format import DeviceRecord, Floats, TelemetryRecord
from tests.worlds.traffic import Flow, Physics, cumulative


def through_device(spec: Spec, physics: Physics, device: int) -> tuple[Floats, float]:
    """Return the true bytes at a device counter per step, including background traffic.

    Args:
        spec: Parameters to use.
        physics: Simulated physics to use.
        device: Index of the counter to use.

    Returns:
        Cumulative bytes at the counter's layer from instant 0, and the step length.
    """
    counter = spec.counters[device]
    step = spec.step_s
    if device in physics.counted_curves:
        return physics.counted_curves[device], step
    steps = int(np.ceil(physics.end_s / step))
    total = np.zeros(steps)
    for flow in physics.flows:
        counted = counted_of_flow(spec, flow, counter, physics.pairs_of_devices[device])
        first = round(flow.burst.grid_start_s / step)
        total[first : first + counted.size] += counted[: steps - first]
    nominal = spec.payload_bytes_per_second * spec.layer_factor(counter.layer) * step
    nominal *= counter.share
    for background in spec.backgrounds:
        total += _background(spec, physics, background, device, nominal, steps)
    physics.counted_curves[device] = cumulative(total)
    return physics.counted_curves[device], step


def counted_of_flow(spec: Spec, flow: Flow, counter: Counter, pairs: Floats) -> Floats:
    """Return the fleet's bytes at a counter per step of the flow's grid.

    Args:
        spec: Parameters to use.
        flow: Flow to count.
        counter: Counter with layer, directions and position before or after drops.
        pairs: 1 for pairs through this device, shape (pairs,).
    """
    crossing = flow.crossing_ratio * pairs
    data_counted = counter.directions in ("both", flow.direction)
    counted = np.zeros(flow.delivered.shape[1])
    factor = spec.layer_factor(counter.layer)
    if data_counted:
        # Bytes lost before the device reach it once, because only the retransmission arrives. Bytes
        # lost after it reach it twice.
        seen_lost = counter.before_drop and not spec.loss_before_counter
        counted += crossing @ (flow.sent if seen_lost else flow.delivered)
        if seen_lost and spec.protocol == "tcp":
            counted += crossing @ flow.resent
        counted *= factor
    other = "reverse" if flow.direction == "forward" else "forward"
    if counter.directions in ("both", other) and spec.protocol == "tcp":
        counted += spec.ack_ratio(counter.layer) * (crossing @ flow.delivered)
    return counted


def _background(
    spec: Spec,
    physics: Physics,
    background: Background,
    device: int,
    nominal: float,
    steps: int,
) -> Floats:
    """Return the background bytes per step at the counter's layer."""
    at = spec.step_s * np.arange(steps)
    level = nominal * background.level_ratio
    if background.shape == "constant":
        return np.full(steps, level)
    if background.shape == "diurnal":
        # A run covers only a small part of a day, which is a slow slope.
        return np.asarray(level * (1.0 + 0.6 * np.sin(2 * np.pi * at / 3600.0)), dtype=np.float64)
    if background.shape in ("in-bursts", "outlasting"):
        on = np.zeros(steps)
        for burst in physics.bursts:
            first = round(burst.origin_s / spec.step_s)
            last = round((burst.origin_s + burst.duration_s + background.tail_s) / spec.step_s)
            on[first:last] = level
        return on
    if background.shape == "as-bypass":
        beside = np.zeros(steps)
        counter = spec.counters[device]
        for flow in physics.flows:
            local = physics.pairs_of_devices[device]
            all_cross = replace(flow, crossing_ratio=np.ones(spec.pairs_count))
            complete = counted_of_flow(spec, all_cross, counter, local)
            first = round(flow.burst.grid_start_s / spec.step_s)
            missing = complete - counted_of_flow(spec, flow, counter, local)
            beside[first : first + missing.size] += missing[: steps - first]
        return beside
    rng = np.random.default_rng([physics.background_seed, device])
    seconds = int(np.ceil(steps * spec.step_s)) + 1
    index = (at + 1e-9).astype(np.int64)
    if background.shape == "own-bursts":
        lengths = rng.exponential(1.0, 2 * seconds // int(background.on_s + 1) + 4)
        lengths[::2] *= background.off_s
        lengths[1::2] *= background.on_s
        changes = np.cumsum(lengths)
        return np.where(np.searchsorted(changes, at) % 2 == 1, level, 0.0)
    return np.asarray(level * lognormal(rng, (1, seconds), 0.3, 0.9)[0][index], dtype=np.float64)


def device_records(spec: Spec, physics: Physics, rng: np.random.Generator) -> list[DeviceRecord]:
    """Return the records for the device counters, including their errors."""
    records = []
    for device, counter in enumerate(spec.counters):
        curve, step = through_device(spec, physics, device)
        count = int(physics.end_s / counter.bin_s)
        phase = float(rng.random()) * counter.bin_s
        labels: Floats = phase + counter.bin_s * np.arange(count, dtype=np.float64)
        drift = counter.lag_drift_s * labels / physics.end_s
        true_edges = labels - counter.lag_s - drift
        true_edges = true_edges + counter.bin_jitter_s * rng.standard_normal(count)
        inside = (true_edges >= 0.0) & (true_edges <= physics.end_s - 0.5)
        labels, true_edges = labels[inside], np.maximum.accumulate(true_edges[inside])
        grid = step * np.arange(curve.size)
        value = np.diff(np.interp(true_edges, grid, curve))
        bins = value.size
        if counter.bin_trade_ratio:
            moved = counter.bin_trade_ratio * rng.standard_normal(bins) * value
            moved[-1] = 0.0
            # Bytes missing in one bin are counted in the next one.
            value = np.maximum(0.0, value - moved + np.concatenate(([0.0], moved[:-1])))
        if counter.bin_noise_ratio:
            value = value * np.maximum(
                0.0, 1.0 + counter.bin_noise_ratio * rng.standard_normal(bins)
            )
        value = np.floor(value)
        partial = np.zeros(bins, dtype=np.bool_)
        if counter.partial_ratio:
            partial = rng.random(bins) < counter.partial_ratio
            value = np.where(partial, np.floor(value * rng.random(bins)), value)
        if counter.zero_ratio:
            value = np.where(rng.random(bins) < counter.zero_ratio, 0.0, value)
        if counter.missing_ratio:
            value = np.where(rng.random(bins) < counter.missing_ratio, np.nan, value)
        if counter.tail_zero_bins:
            value[-counter.tail_zero_bins :] = 0.0
        lengths = np.diff(labels)
        if counter.average:
            value = value / lengths
        if counter.bits:
            value = value * 8.0
        requested = answered = None
        if counter.polled:
            requested = labels[1:] - 0.004 * rng.random(bins)
            answered = labels[1:] + 0.004 * rng.random(bins)
        labels = labels + counter.stamp_offset_s
        records.append(
            DeviceRecord(
                device=counter.device,
                start_s=labels[:-1],
                end_s=labels[1:],
                value=value,
                asked_at_s=requested,
                answered_at_s=answered,
                unit="bits" if counter.labelled_bits else "bytes",
                aggregation="average" if counter.average else "total",
                layer=counter.layer if counter.declared else None,
                directions=counter.directions if counter.declared else None,
                partial=partial & (not counter.partial_unmarked),
            )
        )
    return records


def cpu_at(spec: Spec, physics: Physics, device: int, at_s: Floats) -> Floats:
    """Return the device's true CPU ratio at true instants. It follows the traffic."""
    telemetry = spec.telemetry
    if telemetry is None:
        return np.full(at_s.size, np.nan)
    curve, step = through_device(spec, physics, device)
    grid = step * np.arange(curve.size)
    rate = (np.interp(at_s, grid, curve) - np.interp(at_s - 1.0, grid, curve)) * 1.0
    counter = spec.counters[device]
    nominal = spec.payload_bytes_per_second * spec.layer_factor(counter.layer) * counter.share
    load = telemetry.cpu_ratio - telemetry.idle_ratio
    return np.clip(telemetry.idle_ratio + load * rate / nominal, 0.0, 1.0)


def telemetry_records(
    spec: Spec, physics: Physics, rng: np.random.Generator
) -> list[TelemetryRecord]:
    """Return the CPU and drop readings of all devices."""
    telemetry = spec.telemetry
    if telemetry is None:
        return []
    records = []
    for device, counter in enumerate(spec.counters):
        count = int((physics.end_s - 2.0) / telemetry.every_s)
        at = 1.0 + telemetry.every_s * (np.arange(count) + 0.1 * rng.random(count))
        value = np.clip(
            cpu_at(spec, physics, device, at) + 0.01 * rng.standard_normal(count), 0.0, 1.0
        )
        partial = rng.random(count) < telemetry.partial_ratio
        # A partial answer has only the idle planes.
        value = np.where(partial, telemetry.idle_ratio + 0.02 * rng.random(count), value)
        wait = 0.02 * rng.random(count)
        records.append(
            TelemetryRecord(
                device=counter.device,
                quantity="cpu_ratio",
                own_stamp_s=at + telemetry.stamp_offset_s if telemetry.own_stamps else None,
                asked_at_s=at - wait if telemetry.asked else None,
                answered_at_s=at + wait if telemetry.asked else None,
                value=np.round(value, 3),
                partial=partial,
            )
        )
        drops = np.zeros(count)
        if spec.bottleneck == "device":
            busy = cpu_at(spec, physics, device, at) > telemetry.idle_ratio + 0.05
            drops = np.where(busy, 40.0 + 10.0 * rng.random(count), 0.0)
        records.append(
            TelemetryRecord(
                device=counter.device,
                quantity="drops_per_second",
                own_stamp_s=at + telemetry.stamp_offset_s if telemetry.own_stamps else None,
                asked_at_s=at - wait if telemetry.asked else None,
                answered_at_s=at + wait if telemetry.asked else None,
                value=np.round(drops, 1),
                partial=np.zeros(count, dtype=np.bool_),
            )
        )
    return records
