"""Fleet physics with sent, received and device traffic of all pairs.

The series are taken at the device. A sender wrote its bytes `delay_up` earlier, and a receiver
read them `delay_down` later. Both ends use the same cumulative curve, so bytes are conserved.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tests.worlds.noise import DRAW, lognormal
from tests.worlds.noise import weights as draw_weights
from tests.worlds.parameters import Spec
from tests.worlds.record_format import Floats

# Quiet time to keep on the grid before a burst. Hosts with a fast clock will start in it.
PRE_S = 2.0
# Quiet time to keep on the grid after the last byte in flight.
POST_S = 3.0

# Starts need to be closer than this to the planned instant to be on time.
COMMON_S = 0.05


def cumulative(steps: Floats) -> Floats:
    """Return the running sum along the last axis, with a leading zero."""
    out = np.zeros((*steps.shape[:-1], steps.shape[-1] + 1))
    np.cumsum(steps, axis=-1, out=out[..., 1:])
    return out


def value_at(curve: Floats, grid_start_s: float, step_s: float, at_s: Floats) -> Floats:
    """Interpolate cumulative curves linearly.

    Args:
        curve: Cumulative bytes at the grid times, shape (pairs, steps + 1).
        grid_start_s: Time of the first value.
        step_s: Grid step.
        at_s: Times, shape (pairs, k). Times outside the grid get the value of the nearest edge.

    Returns:
        Cumulative bytes, shape (pairs, k).
    """
    last = curve.shape[1] - 1
    position = np.clip((at_s - grid_start_s) / step_s, 0.0, last)
    index = np.minimum(position.astype(np.int64), last - 1)
    fraction = position - index
    low = np.take_along_axis(curve, index, axis=1)
    high = np.take_along_axis(curve, index + 1, axis=1)
    return np.asarray(low + (high - low) * fraction, dtype=np.float64)


@dataclass(frozen=True)
class Burst:
    """Burst that ran.

    Attributes:
        index: Index of the planned burst, or -1 for an unplanned burst.
        start_s: Planned instant.
        origin_s: True time at which most of the fleet started.
        duration_s: Planned length.
        grid_start_s: Time of the first grid step.
        steps: Number of grid steps.
        starts_s: True time of the first write, by pair. `inf` if the pair never ran.
        ends_s: True time of the last write, by pair.
        level: Rate factor for this burst.
    """

    index: int
    start_s: float
    origin_s: float
    duration_s: float
    grid_start_s: float
    steps: int
    starts_s: Floats
    ends_s: Floats
    level: float


@dataclass(frozen=True)
class Flow:
    """Traffic of one burst and direction at the device, in payload bytes per step.

    Attributes:
        burst: The burst.
        direction: `forward` or `reverse`.
        step_s: Step length.
        sent: First transmissions, shape (pairs, steps).
        delivered: Bytes that reach the receiver.
        resent: Bytes that TCP retransmits.
        crossing_ratio: Share that crosses the device, shape (pairs,).
        delay_up_s: Delay from the sender's write to the device, shape (pairs,).
        delay_down_s: Delay from the device to the receiver's read.
        expected: Expected delivered bytes per step for the fleet, without noise.
    """

    burst: Burst
    direction: str
    step_s: float
    sent: Floats
    delivered: Floats
    resent: Floats
    crossing_ratio: Floats
    delay_up_s: Floats
    delay_down_s: Floats
    expected: Floats

    @cached_property
    def sent_curve(self) -> Floats:
        """Cumulative bytes sent, shape (pairs, steps + 1)."""
        return cumulative(self.sent)

    @cached_property
    def delivered_curve(self) -> Floats:
        """Cumulative bytes delivered."""
        if self.delivered is self.sent:
            return self.sent_curve
        return cumulative(self.delivered)

    @cached_property
    def resent_curve(self) -> Floats:
        """Cumulative retransmitted bytes."""
        return cumulative(self.resent)

    def written(self, at_s: Floats) -> Floats:
        """Return the bytes that the senders had written by the true times `at_s` (pairs, k)."""
        at_device = at_s + self.delay_up_s[:, None]
        return value_at(self.sent_curve, self.burst.grid_start_s, self.step_s, at_device)

    def resent_by(self, at_s: Floats) -> Floats:
        """Return the bytes that the senders had retransmitted by the true times `at_s`."""
        at_device = at_s + self.delay_up_s[:, None]
        return value_at(self.resent_curve, self.burst.grid_start_s, self.step_s, at_device)

    def received(self, at_s: Floats) -> Floats:
        """Return the bytes that the receivers had read by the true times `at_s` (pairs, k)."""
        at_device = at_s - self.delay_down_s[:, None]
        return value_at(self.delivered_curve, self.burst.grid_start_s, self.step_s, at_device)

    def arrived(self, at_s: Floats) -> Floats:
        """Return the bytes that would have arrived by `at_s` without loss."""
        at_device = at_s - self.delay_down_s[:, None]
        return value_at(self.sent_curve, self.burst.grid_start_s, self.step_s, at_device)


@dataclass(frozen=True)
class Physics:
    """Complete simulated physics.

    Attributes:
        weights: Relative sizes of the pairs with sum 1.
        bursts: Bursts that ran, including unplanned ones, in order of time.
        flows: Flows in the bursts.
        offsets_s: True clock offset for client and server hosts, shape (2, pairs).
        drift: Relative frequency error of the clocks, shape (2, pairs).
        group: Members of the clock group, shape (2, pairs).
        pairs_of_devices: Pairs with traffic through a device, shape (devices, pairs).
        rtt_s: Round-trip time of the idle path, by pair.
        end_s: End of the observed time.
        background_seed: Seed for the background traffic.
        counted_curves: Cache for the cumulative bytes of the devices.
    """

    weights: Floats
    bursts: tuple[Burst, ...]
    flows: tuple[Flow, ...]
    offsets_s: Floats
    drift: Floats
    group: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    pairs_of_devices: Floats
    rtt_s: Floats
    end_s: float
    background_seed: int
    counted_curves: dict[int, Floats] = field(default_factory=dict)

    def clock(self, side: int, at_s: Floats) -> Floats:
        """Return the clock readings of the hosts at true times.

        Args:
            side: 0 for clients, 1 for servers.
            at_s: True times, shape (pairs,) or (pairs, k).
        """
        offset, drift = self.offsets_s[side], self.drift[side]
        if at_s.ndim == 2:
            offset, drift = offset[:, None], drift[:, None]
        return np.asarray(at_s + offset + drift * at_s, dtype=np.float64)

    def of(self, burst: Burst) -> tuple[Flow, ...]:
        """Return the flows in a burst."""
        return tuple(flow for flow in self.flows if flow.burst is burst)


def directions_of(spec: Spec) -> tuple[str, ...]:
    """Return the payload directions."""
    return ("forward", "reverse") if spec.direction == "both" else (spec.direction,)


def _profile(spec: Spec, at_s: Floats) -> Floats:
    """Return the rate factor for the fleet at times after the burst origin."""
    profile = np.ones_like(at_s)
    if spec.slow_ramp_s > 0.0:
        risen = np.clip(at_s / spec.slow_ramp_s, 0.0, 1.0)
        profile *= spec.slow_ramp_from + (1.0 - spec.slow_ramp_from) * risen
    if spec.drift_ratio:
        profile *= 1.0 + spec.drift_ratio * (at_s / spec.duration_s - 0.5)
    for from_s, ratio in spec.steps:
        profile = np.where(at_s >= from_s, profile * ratio, profile)
    return profile


def _ramp(spec: Spec, shares: Floats, at: Floats, begin: Floats) -> None:
    """Apply the start ramp for each pair to `shares` (pairs, steps), in place.

    Args:
        spec: Parameters to use.
        shares: Traffic of the pairs.
        at: Middle of the steps.
        begin: Time of the first byte, by pair. It is not finite if the pair never ran.
    """
    ran = begin[np.isfinite(begin)]
    if spec.ramp_s <= 0.0 or not ran.size:
        return
    # The ramp is over ten time constants after the last start.
    part = slice(*np.searchsorted(at, [ran.min(), ran.max() + 10.0 * spec.ramp_s]).tolist())
    since = np.maximum(at[part] - np.where(np.isfinite(begin), begin, 0.0)[:, None], 0.0)
    shares[:, part] *= 1.0 - np.exp(-since / spec.ramp_s)


def _stall_factors(spec: Spec, burst: Burst, at_s: Floats) -> tuple[Floats, Floats | None]:
    """Return the stall factors for the fleet (steps,) and for pairs (pairs, steps) if any."""
    fleet = np.ones_like(at_s)
    factors: Floats | None = None
    for stall in spec.stalls:
        if stall.burst is not None and stall.burst != burst.index:
            continue
        inside = (at_s >= stall.at_s) & (at_s < stall.at_s + stall.for_s)
        if stall.pairs is None:
            fleet[inside] *= stall.floor_ratio
            continue
        if factors is None:
            factors = np.ones((spec.pairs_count, at_s.size))
        factors[np.ix_(np.array(stall.pairs), inside)] *= stall.floor_ratio
    return fleet, factors


def _bursts(spec: Spec, rng: np.random.Generator, client_offsets_s: Floats) -> tuple[Burst, ...]:
    levels = lognormal(rng, (1, spec.bursts_count), spec.burst_cov, spec.burst_rho)[0]
    planned = [
        (index, spec.lead_s + index * spec.period_s, spec.duration_s, float(levels[index]))
        for index in range(spec.bursts_count)
    ]
    extra = [(-1, start, length, 1.0) for start, length in spec.extra_bursts]
    bursts = []
    for index, start_s, duration_s, level in sorted(planned + extra, key=lambda item: item[1]):
        errors = np.abs(rng.standard_normal(spec.pairs_count)) * spec.start_scatter_s
        # An agent will use its own clock to start.
        starts = start_s + errors - client_offsets_s
        if spec.origin != "launched":
            # The starts of imported tests were not coordinated by these clocks.
            starts = start_s + errors
        ends = starts + duration_s
        for event in spec.events:
            if event.burst not in (None, index):
                continue
            if event.what == "late":
                starts[event.pair] += event.at_s
                ends[event.pair] += event.at_s
            elif event.what == "dies":
                ends[event.pair] = min(ends[event.pair], starts[event.pair] + event.at_s)
            elif event.what in ("missed", "failed"):
                starts[event.pair] = ends[event.pair] = np.inf
        ran = np.isfinite(starts)
        origin = float(np.median(starts[ran])) if ran.any() else start_s
        first = min(start_s, float(starts[ran].min(initial=start_s)))
        last = max(start_s + duration_s, float(ends[ran].max(initial=start_s)))
        # The grid has full seconds at the planned instants.
        grid_start = start_s - np.ceil(start_s - first + PRE_S)
        steps = int(np.ceil((last + POST_S - grid_start) / spec.step_s))
        bursts.append(
            Burst(
                index=index,
                start_s=start_s,
                origin_s=origin if abs(origin - start_s) > COMMON_S else start_s,
                duration_s=duration_s,
                grid_start_s=float(grid_start),
                steps=steps,
                starts_s=starts,
                ends_s=ends,
                level=level,
            )
        )
    return tuple(bursts)


def _louder(rng: np.random.Generator, seconds: Floats, factor: float) -> Floats:
    """Return the series with a larger variation in random periods. The mean is unchanged."""
    factors = np.ones(seconds.size)
    for begin in rng.integers(0, seconds.size, max(1, seconds.size // 60)):
        factors[begin : begin + int(rng.integers(5, 21))] = factor
    return np.maximum(0.05, 1.0 + (seconds - 1.0) * factors)


def _flow(
    spec: Spec,
    rng: np.random.Generator,
    burst: Burst,
    direction: str,
    weights: Floats,
    trade: Floats | None,
    delays_s: tuple[Floats, Floats],
) -> Flow:
    pairs, steps, step = spec.pairs_count, burst.steps, spec.step_s
    delay_up, delay_down = delays_s
    at: Floats = burst.grid_start_s + step * np.arange(steps, dtype=np.float64)
    begin = burst.starts_s + delay_up
    end = burst.ends_s + delay_up
    with np.errstate(invalid="ignore"):
        active = np.clip((end[:, None] - at) / step, 0.0, 1.0) - np.clip(
            (begin[:, None] - at) / step, 0.0, 1.0
        )
    active = np.nan_to_num(active)
    share = 1.0
    if spec.direction == "both":
        share = spec.forward_share if direction == "forward" else 1.0 - spec.forward_share
    nominal = spec.payload_bytes_per_second * share * burst.level * step
    middle = at + step / 2
    profile = _profile(spec, middle - burst.origin_s - float(np.median(delay_up)))
    if trade is not None:
        profile = profile * trade
    seconds = int(np.ceil(steps * step)) + 1
    second_of_step = (np.arange(steps) * step + 1e-9).astype(np.int64)
    noise = spec.noise
    shares = active * weights[:, None]
    fleet_stalls, pair_stalls = _stall_factors(spec, burst, at - burst.origin_s)
    profile = profile * fleet_stalls
    if pair_stalls is not None:
        shares *= pair_stalls
    _ramp(spec, shares, middle, begin)
    quiet = shares.sum(axis=0)
    per_second = DRAW[noise.family](rng, (pairs, seconds), noise.pair_cov, noise.rho)
    shares *= per_second[:, second_of_step]
    if noise.fine_cov:
        fine = rng.standard_normal((pairs, steps), dtype=np.float32)
        np.multiply(fine, noise.fine_cov, out=fine)
        np.maximum(fine, -0.95, out=fine)
        shares *= 1.0 + fine
    fleet = lognormal(rng, (1, seconds), noise.fleet_cov, noise.rho)[0]
    if noise.loud_factor != 1.0:
        fleet = _louder(rng, fleet, noise.loud_factor)
    fleet = fleet[second_of_step]
    if spec.bottleneck in ("device", "shared-link"):
        # Demand above the capacity is reduced to it, and the pairs share it in proportion.
        total = shares.sum(axis=0)
        carried = np.minimum(1.0, spec.headroom_ratio * total)
        scale = np.divide(carried, total, out=np.zeros_like(total), where=total > 0.0)
        shares *= scale * (nominal * profile * fleet)
        expected = np.minimum(1.0, spec.headroom_ratio * quiet) * nominal * profile
    else:
        shares *= nominal * profile * fleet
        expected = quiet * nominal * profile
    delivered = shares
    if spec.protocol == "udp":
        sent = delivered
        if spec.loss_ratio:
            loss = spec.loss_ratio * lognormal(rng, (pairs, seconds), 0.3, noise.rho)
            # The sender has a constant pace, and the loss varies.
            sent = shares / (1.0 - spec.loss_ratio)
            delivered = sent * (1.0 - np.minimum(0.9, loss)[:, second_of_step])
        resent = np.zeros((pairs, steps))
    else:
        sent = delivered
        again = spec.resend_ratio * lognormal(rng, (pairs, seconds), 0.5, 0.0)
        resent = delivered * again[:, second_of_step]
    crossing = np.ones(pairs)
    if spec.bypass_bursts is None or burst.index in spec.bypass_bursts:
        last = max(1, spec.bursts_count - 1)
        beside = spec.bypass_ratio + spec.bypass_trend_ratio * max(0, burst.index) / last
        rows = np.arange(pairs) if spec.bypass_pairs is None else np.array(spec.bypass_pairs)
        crossing[rows] -= beside
    return Flow(
        burst=burst,
        direction=direction,
        step_s=step,
        sent=sent,
        delivered=delivered,
        resent=resent,
        crossing_ratio=crossing,
        delay_up_s=delay_up,
        delay_down_s=delay_down,
        expected=expected,
    )


def simulate(spec: Spec, rng: np.random.Generator) -> Physics:
    """Run the physics of a world.

    Args:
        spec: Parameters to use.
        rng: Random number generator to use.

    Returns:
        The simulated physics.
    """
    pairs, clocks = spec.pairs_count, spec.clocks
    sizes = draw_weights(rng, pairs, spec.weights, spec.largest_ratio)
    if spec.giant_ratio and pairs > 1:
        sizes[0] = spec.giant_ratio * sizes[1:].max()
        sizes /= sizes.sum()
    group = np.zeros((2, pairs), dtype=np.bool_)
    members = np.zeros(pairs, dtype=np.bool_)
    members[: max(1, round(clocks.group_share * pairs))] = True
    members = rng.permutation(members)
    if clocks.group in ("clients", "servers"):
        group[0 if clocks.group == "clients" else 1] = True
    elif clocks.group == "pairs":
        group[:] = members
    elif clocks.group == "some-clients":
        group[0] = members
    offsets = rng.standard_normal((2, pairs)) * clocks.scatter_s + clocks.common_offset_s
    offsets += np.where(group, clocks.group_offset_s, 0.0)
    drift = rng.standard_normal((2, pairs)) * clocks.drift_ppm * 1e-6
    bursts = _bursts(spec, rng, offsets[0])
    rtt = spec.rtt_s * (0.8 + 0.4 * rng.random(pairs))
    loaded = spec.queue_s if spec.bottleneck in ("device", "shared-link") else 0.0
    flows = []
    for burst in bursts:
        trades: dict[str, Floats | None] = dict.fromkeys(directions_of(spec))
        if spec.directions_trade and spec.direction == "both":
            seconds = int(np.ceil(burst.steps * spec.step_s)) + 1
            wave = lognormal(rng, (1, seconds), spec.directions_trade, spec.noise.rho)[0]
            moved = np.clip(wave - 1.0, -0.9, 0.9)
            index = (np.arange(burst.steps) * spec.step_s + 1e-9).astype(np.int64)
            # One direction gains the bytes that the other one loses.
            forward, reverse = spec.forward_share, 1.0 - spec.forward_share
            trades = {
                "forward": 1.0 + moved[index] * min(1.0, reverse / forward),
                "reverse": 1.0 - moved[index] * min(1.0, forward / reverse),
            }
        for direction in directions_of(spec):
            # Socket buffers and the sender's queue add delay.
            up = rtt / 2 + loaded / 2 + 0.02 * rng.random(pairs)
            down = rtt / 2 + loaded / 2 + 0.001
            flows.append(_flow(spec, rng, burst, direction, sizes, trades[direction], (up, down)))
    shares = np.array([counter.share for counter in spec.counters])
    of_devices = np.zeros((len(spec.counters), pairs))
    if len(spec.counters):
        edges = np.concatenate(([0.0], np.cumsum(shares)))
        placed = (np.arange(pairs) + 0.5) / pairs
        of_devices = ((placed >= edges[:-1, None]) & (placed < edges[1:, None])).astype(np.float64)
    end_s = max(burst.grid_start_s + burst.steps * spec.step_s for burst in bursts) + spec.after_s
    return Physics(
        weights=sizes,
        bursts=bursts,
        flows=tuple(flows),
        offsets_s=offsets,
        drift=drift,
        group=group,
        pairs_of_devices=of_devices,
        rtt_s=rtt,
        end_s=float(end_s),
        background_seed=int(rng.integers(2**31)),
    )


def stop_traffic(physics: Physics, second: float) -> Physics:
    """Return the physics with all bursts stopped at this time after their start."""
    bursts = []
    flows = []
    for burst in physics.bursts:
        stopped = replace(
            burst, duration_s=second, ends_s=np.minimum(burst.ends_s, burst.starts_s + second)
        )
        bursts.append(stopped)
        for flow in physics.of(burst):
            at = burst.grid_start_s + flow.step_s * np.arange(burst.steps)
            last = (stopped.ends_s + flow.delay_up_s)[:, None]
            with np.errstate(invalid="ignore"):
                active = np.nan_to_num(np.clip((last - at) / flow.step_s, 0.0, 1.0))
            sent = flow.sent * active
            delivered = sent if flow.delivered is flow.sent else flow.delivered * active
            flows.append(
                replace(
                    flow,
                    burst=stopped,
                    sent=sent,
                    delivered=delivered,
                    resent=flow.resent * active,
                    expected=flow.expected * (physics.weights @ active),
                )
            )
    return replace(physics, bursts=tuple(bursts), flows=tuple(flows), counted_curves={})
