"""Kinds of worlds. A kind is used to draw parameters and to generate a property."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from tests.worlds import manipulate
from tests.worlds.parameters import (
    Background,
    Clocks,
    Counter,
    Event,
    Hosts,
    Noise,
    Spec,
    Stall,
    Telemetry,
)
from tests.worlds.world import World, build

Draw = Callable[[np.random.Generator], Spec]
After = Callable[[World, np.random.Generator], World]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of world.

    Attributes:
        name: Kind name.
        sentence: Description of the generated property.
        findings: Review findings that the kind covers.
        draw: Function to draw the parameters.
        after: Function to change the records, or `None`.
    """

    name: str
    sentence: str
    findings: tuple[str, ...]
    draw: Draw
    after: After | None = None


KINDS: dict[str, Kind] = {}


def _kind(
    name: str, sentence: str, findings: tuple[str, ...] = (), after: After | None = None
) -> Callable[[Draw], Draw]:
    """Register a kind."""

    def register(draw: Draw) -> Draw:
        KINDS[name] = Kind(name=name, sentence=sentence, findings=findings, draw=draw, after=after)
        return draw

    return register


def generate(kind: str, seed: int) -> World:
    """Generate a world.

    Args:
        kind: Kind to use, a key in `KINDS`.
        seed: Seed to use, an integer from 0.

    Returns:
        The world. The same kind and seed give the same world.

    Raises:
        KeyError: If the kind does not exist.
    """
    entry = KINDS[kind]
    rng = np.random.default_rng([crc32(kind.encode()), seed])
    world = build(kind, seed, entry.draw(rng), rng)
    return world if entry.after is None else entry.after(world, rng)


# Building blocks.


def _pick(rng: np.random.Generator, *values: float) -> float:
    return float(rng.choice(np.array(values)))


def _count(rng: np.random.Generator, *values: int) -> int:
    return int(rng.choice(np.array(values)))


def _choose(rng: np.random.Generator, *values: str) -> str:
    return str(rng.choice(np.array(values)))


def _level(rng: np.random.Generator) -> float:
    """Draw the ratio of the fleet's rate to the limit. It is clearly above, near or clearly below
    1."""
    draw = rng.random()
    if draw < 0.45:
        return float(rng.uniform(1.02, 1.12))
    if draw < 0.60:
        return float(rng.uniform(0.98, 1.02))
    return float(rng.uniform(0.85, 0.98))


def _above(rng: np.random.Generator) -> float:
    return float(rng.uniform(1.025, 1.12))


def _below(rng: np.random.Generator) -> float:
    return float(rng.uniform(0.82, 0.975))


def _fleet(rng: np.random.Generator, level: float | None = None) -> Spec:
    """Draw an ordinary fleet with an ordinary device."""
    duration = _pick(rng, 30.0, 30.0, 45.0, 60.0, 60.0, 90.0)
    spec = Spec(
        pairs_count=_count(rng, 3, 6, 10, 16, 24, 30),
        weights=_choose(rng, "equal", "lognormal", "pareto"),
        largest_ratio=_pick(rng, 1.3, 3.0, 10.0, 50.0),
        streams_count=_count(rng, 1, 4, 8, 64),
        mtu_bytes=_count(rng, 1500, 1500, 1500, 9000),
        tcp_options_bytes=_count(rng, 12, 12, 0),
        target_bits_per_second=_pick(rng, 5e8, 1.8e9, 10e9, 30e9, 180e9),
        tolerance_ratio=_pick(rng, 0.0, 0.02, 0.05),
        target_layer=_choose(rng, "ip", "payload"),
        level_ratio=_level(rng) if level is None else level,
        bottleneck=_choose(rng, "device", "device", "policer", "nic", "none"),
        noise=Noise(
            pair_cov=_pick(rng, 0.01, 0.03, 0.08),
            fleet_cov=_pick(rng, 0.002, 0.005, 0.01),
            rho=_pick(rng, 0.0, 0.3, 0.5),
        ),
        bursts_count=_count(rng, 1, 2, 3, 3, 4),
        duration_s=duration,
        period_s=duration + _pick(rng, 30.0, 60.0, 90.0),
        counters=(_counter(rng),),
    )
    if spec.bottleneck in ("nic", "none"):
        # All hosts have the same VM size and pace.
        spec.weights = "equal"
    if spec.bottleneck == "none":
        spec.noise.pair_cov = min(spec.noise.pair_cov, _pick(rng, 0.003, 0.03))
    return spec


def _udp(spec: Spec) -> Spec:
    """Make a fleet send paced UDP."""
    spec.protocol, spec.weights, spec.ramp_s = "udp", "equal", 0.0
    spec.noise = Noise(pair_cov=0.003, fleet_cov=0.001, rho=0.0, fine_cov=0.02)
    return spec


def _counter(rng: np.random.Generator) -> Counter:
    """Draw a device counter of a known system."""
    system = rng.random()
    before_drop = bool(rng.random() < 0.5)
    if system < 0.45:
        # A polled counter, as with SNMP or REST.
        bin_s = _pick(rng, 1.0, 2.0, 5.0)
        return Counter(
            bin_s=bin_s,
            bin_jitter_s=0.01 * bin_s,
            lag_s=_pick(rng, 0.0, 0.3, 1.0, 3.0),
            layer="wire",
            before_drop=before_drop,
            polled=True,
        )
    if system < 0.75:
        # A metrics store with a fixed step.
        return Counter(
            bin_s=_pick(rng, 10.0, 15.0),
            lag_s=_pick(rng, 0.0, 10.0, 30.0),
            bin_noise_ratio=0.002,
            before_drop=before_drop,
        )
    return _azure(rng)


def _azure(rng: np.random.Generator) -> Counter:
    """Draw a counter like Azure Monitor, with bins of one minute that are about 75 s late."""
    return Counter(
        bin_s=60.0,
        lag_s=75.0 + _pick(rng, -2.0, 0.0, 2.0),
        bin_trade_ratio=0.004,
        bin_noise_ratio=0.002,
        average=True,
        bits=True,
        labelled_bits=True,
        preset="azure-monitor",
        declared_lag=bool(rng.random() < 0.5),
    )


def _with_quiet_time(spec: Spec) -> Spec:
    """Extend the quiet time before and after the bursts for the bins of the counters."""
    longest = max((c.bin_s + abs(c.lag_s) for c in spec.counters), default=0.0)
    # Bursts start at full seconds, so the grids of all bursts have common steps.
    spec.lead_s = float(np.ceil(max(spec.lead_s, 3.0 * longest)))
    spec.after_s = max(spec.after_s, 3.0 * longest)
    widest = max((c.bin_s for c in spec.counters), default=0.0)
    if spec.bursts_count > 1 and spec.period_s < spec.duration_s + 3.0 * widest:
        spec.period_s = spec.duration_s + float(np.ceil(3.0 * widest))
    return spec


def _some(rng: np.random.Generator, count: int, share: float) -> tuple[int, ...]:
    taken = max(1, round(share * count))
    return tuple(int(p) for p in rng.permutation(count)[:taken])


# Clean worlds.


@_kind("clean", "A quiet fleet with a device counter of some known system.")
def _clean(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.expect_pass = True
    return _with_quiet_time(spec)


@_kind("clean-30s", "A quiet fleet in bursts of 30 s with noise up to rho 0.5.")
def _clean_30(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.duration_s, spec.expect_pass = 30.0, True
    spec.counters = (Counter(bin_s=_pick(rng, 1.0, 2.0, 5.0, 10.0), lag_s=_pick(rng, 0.0, 2.0)),)
    spec.noise.rho = float(rng.uniform(0.0, 0.5))
    return _with_quiet_time(spec)


@_kind("clean-no-device", "A quiet fleet; no device counter was promised or recorded.")
def _clean_no_device(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.counters, spec.device_promised = (), False
    spec.telemetry, spec.expect_pass = None, True
    return spec


@_kind("clean-azure", "A quiet fleet; the counter has bins of 60 s that are 75 s late.")
def _clean_azure(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.duration_s = _pick(rng, 180.0, 280.0)
    spec.pairs_count, spec.bursts_count = _count(rng, 3, 6, 10), 2
    spec.period_s = spec.duration_s + 240.0
    spec.counters, spec.expect_pass = (_azure(rng),), True
    return _with_quiet_time(spec)


@_kind("clean-udp", "Paced UDP without loss.")
def _clean_udp(rng: np.random.Generator) -> Spec:
    spec = _udp(_fleet(rng))
    spec.bottleneck, spec.expect_pass = "none", True
    return _with_quiet_time(spec)


@_kind("readings", "A quiet fleet whose ends report every 1 to 60 s, each side its own length.")
def _readings(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.duration_s = _pick(rng, 60.0, 120.0)
    spec.pairs_count = min(spec.pairs_count, 16)
    spec.sender_reading_s = _pick(rng, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
    spec.receiver_reading_s = _pick(rng, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
    return _with_quiet_time(spec)


@_kind("noisy", "Seconds that correlate with rho 0.5 to 0.95 and vary by up to 25 %.")
def _noisy(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.noise = Noise(
        pair_cov=_pick(rng, 0.1, 0.25),
        fleet_cov=_pick(rng, 0.02, 0.05, 0.1),
        rho=float(rng.uniform(0.5, 0.95)),
    )
    return _with_quiet_time(spec)


@_kind("bursty", "Pairs that switch between two rates, or have heavy-tailed seconds.")
def _bursty(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.bottleneck = "none"
    spec.noise = Noise(
        family="bursty" if rng.random() < 0.5 else "pareto",
        pair_cov=_pick(rng, 0.3, 0.6, 1.0),
        rho=_pick(rng, 0.3, 0.7, 0.9),
    )
    return _with_quiet_time(spec)


@_kind("heavy-tails", "Pair sizes from a Pareto distribution, up to 50 to 1.")
def _heavy_tails(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.bottleneck = _choose(rng, "device", "policer")
    spec.weights, spec.largest_ratio = "pareto", 50.0
    spec.pairs_count = _count(rng, 10, 30)
    spec.expect_pass = True
    return _with_quiet_time(spec)


@_kind("short", "Bursts of 10 to 20 s.")
def _short(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.duration_s = _pick(rng, 10.0, 15.0, 20.0)
    spec.counters = (Counter(bin_s=_pick(rng, 1.0, 5.0), lag_s=_pick(rng, 0.0, 2.0)),)
    return _with_quiet_time(spec)


@_kind("long", "Bursts of 600 to 1,740 s of a few pairs.")
def _long(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.pairs_count, spec.bursts_count = _count(rng, 2, 4), 1
    spec.duration_s = _pick(rng, 600.0, 1200.0, 1740.0)
    spec.noise.rho = _pick(rng, 0.3, 0.7, 0.9)
    return _with_quiet_time(spec)


@_kind("jumbo-unknown", "Packets of 9,000 bytes or with options, and the MTU was not recorded.")
def _jumbo_unknown(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.mtu_bytes, spec.mtu_recorded = _count(rng, 1280, 1400, 1500, 9000), False
    spec.ip_version = _count(rng, 4, 6)
    spec.short_packet_ratio = _pick(rng, 0.0, 0.001, 0.004)
    return _with_quiet_time(spec)


# Shapes over time.


@_kind("collapse", "The rate falls to a half or less for 20 of 60 s; every end reports seconds.")
def _collapse(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.duration_s, spec.bottleneck = 60.0, "device"
    floor = _pick(rng, 0.2, 0.5, 0.7)
    at = float(rng.integers(12, 40))
    spec.stalls = (Stall(at_s=at, for_s=20.0, floor_ratio=floor),)
    mean = 1.0 - (1.0 - floor) * 20.0 / 60.0
    spec.level_ratio = _pick(rng, 1.02, 1.1) / mean
    return _with_quiet_time(spec)


@_kind("slow-ramp", "The rate climbs for a third or more of the burst.")
def _slow_ramp(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    spec.slow_ramp_s = float(rng.uniform(0.35, 0.8)) * spec.duration_s
    spec.slow_ramp_from = _pick(rng, 0.1, 0.4, 0.7)
    if rng.random() < 0.5:
        # The mean reaches the limit.
        part = spec.slow_ramp_s / spec.duration_s
        spec.level_ratio /= 1.0 - part * (1.0 - spec.slow_ramp_from) / 2.0
    return _with_quiet_time(spec)


@_kind("drift", "The rate drifts by 5 to 30 % over each burst.")
def _drift(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.drift_ratio = float(rng.choice([-1, 1]) * rng.uniform(0.05, 0.3))
    return _with_quiet_time(spec)


@_kind("scale-in", "The device loses one of its units in the middle of a burst.")
def _scale_in(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.bottleneck = "device"
    units = _count(rng, 2, 3, 5, 10)
    spec.hidden_units_count = units
    spec.steps = ((float(rng.uniform(0.25, 0.7)) * spec.duration_s, 1.0 - 1.0 / units),)
    spec.level_ratio = _pick(rng, 1.03, 1.08, 1.2)
    return _with_quiet_time(spec)


@_kind("late-starters", "Some pairs start 1.5 to 30 s late.")
def _late_starters(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.events = tuple(
        Event(pair=pair, what="late", at_s=float(rng.uniform(1.5, min(30.0, spec.duration_s / 2))))
        for pair in _some(rng, spec.pairs_count, _pick(rng, 0.05, 0.2, 0.5))
    )
    return _with_quiet_time(spec)


@_kind("deaths", "Some pairs die in the middle of a burst.")
def _deaths(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.events = tuple(
        Event(
            pair=pair,
            what="dies",
            at_s=float(rng.uniform(0.1, 0.9)) * spec.duration_s,
            burst=int(rng.integers(spec.bursts_count)),
        )
        for pair in _some(rng, spec.pairs_count, _pick(rng, 0.05, 0.2))
    )
    return _with_quiet_time(spec)


@_kind("stalls", "Single pairs carry nothing for 3 to 15 s.")
def _stalls(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.stalls = tuple(
        Stall(
            at_s=float(rng.uniform(2.0, spec.duration_s * 0.7)),
            for_s=float(rng.uniform(3.0, 15.0)),
            pairs=(pair,),
        )
        for pair in _some(rng, spec.pairs_count, _pick(rng, 0.05, 0.3))
    )
    return _with_quiet_time(spec)


@_kind("missed", "Some pairs never ran, or their engine failed at the start.")
def _missed(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    what = _choose(rng, "missed", "failed")
    spec.events = tuple(
        Event(pair=pair, what=what) for pair in _some(rng, spec.pairs_count, _pick(rng, 0.05, 0.3))
    )
    return _with_quiet_time(spec)


# M1, M5, M10, M21 and M22: resolution, correlation and uncertainty.


def _resolution_spec(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.duration_s, spec.bottleneck = 60.0, "device"
    spec.period_s = 120.0
    spec.pairs_count = min(spec.pairs_count, 16)
    spec.receiver_reading_s = _pick(rng, 10.0, 20.0, 30.0, 60.0)
    floor = _pick(rng, 0.4, 0.5, 0.6)
    spec.stalls = (Stall(at_s=float(rng.integers(14, 38)), for_s=20.0, floor_ratio=floor),)
    spec.level_ratio = _pick(rng, 1.03, 1.1) / (1.0 - (1.0 - floor) / 3.0)
    return spec


@_kind(
    "resolution-device",
    "Receivers report every 10 to 60 s; the rate halves for 20 of 60 s, and bins of 1 s show it.",
    ("M1",),
)
def _resolution_device(rng: np.random.Generator) -> Spec:
    spec = _resolution_spec(rng)
    spec.sender_reading_s = spec.receiver_reading_s
    spec.counters = (Counter(bin_s=1.0, lag_s=_pick(rng, 0.0, 1.0), polled=True),)
    return spec


@_kind(
    "resolution-sender",
    "Receivers report every 10 to 60 s; the rate halves for 20 of 60 s, and senders' seconds "
    "show it.",
    ("M1",),
)
def _resolution_sender(rng: np.random.Generator) -> Spec:
    spec = _resolution_spec(rng)
    spec.sender_reading_s = 1.0
    spec.counters, spec.device_promised, spec.telemetry = (), False, None
    return spec


@_kind(
    "resolution-coarse",
    "The rate halves for 20 of 60 s, and no source reports more often than every 20 s.",
    ("M1",),
)
def _resolution_coarse(rng: np.random.Generator) -> Spec:
    spec = _resolution_spec(rng)
    spec.receiver_reading_s = _pick(rng, 20.0, 30.0, 60.0)
    spec.sender_reading_s = spec.receiver_reading_s
    spec.counters, spec.device_promised, spec.telemetry = (), False, None
    spec.hosts.recorded = False
    return spec


@_kind(
    "coarse-correlated",
    "Readings of 10 to 60 s of a rate that correlates for minutes: intervals of 95 % must hold.",
    ("M1", "M10"),
)
def _coarse_correlated(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.duration_s = _pick(rng, 60.0, 120.0)
    spec.pairs_count = min(spec.pairs_count, 10)
    spec.receiver_reading_s = spec.sender_reading_s = _pick(rng, 10.0, 20.0, 30.0, 60.0)
    spec.noise = Noise(pair_cov=0.1, fleet_cov=_pick(rng, 0.02, 0.06), rho=0.9)
    return _with_quiet_time(spec)


@_kind(
    "clock-apart",
    "Imported recordings of both ends, whose clocks differ by 1 s to an hour.",
    ("M2",),
)
def _clock_difference(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.origin, spec.clocks_promised, spec.rtt_baseline = "recordings", False, False
    spec.counters, spec.device_promised, spec.telemetry = (), False, None
    spec.hosts.recorded = False
    spec.pairs_count = _count(rng, 1, 2, 6)
    gap = float(np.exp(rng.uniform(0.0, np.log(3600.0)))) * _pick(rng, -1.0, 1.0)
    spec.clocks = Clocks(group="servers", group_offset_s=gap, unread_ratio=1.0)
    if rng.random() < 0.6:
        # A slow start that the shift hides.
        part = min(abs(gap), spec.duration_s / 3)
        spec.stalls = (Stall(at_s=0.0, for_s=part, floor_ratio=_pick(rng, 0.1, 0.4)),)
    return spec


@_kind(
    "fit-shape",
    "A group of hosts (client and server) runs 5 to 25 s off; records claim the same instant.",
    ("M5",),
)
def _fit_shape(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    spec.duration_s, spec.period_s = 60.0, 150.0
    spec.bottleneck = _choose(rng, "policer", "nic")
    spec.clocks = Clocks(
        group="pairs",
        group_offset_s=float(rng.choice([-1, 1]) * rng.uniform(5.0, 25.0)),
        group_share=_pick(rng, 0.3, 0.5),
    )
    spec.counters = (Counter(bin_s=_pick(rng, 1.0, 2.0, 5.0), lag_s=_pick(rng, 0.0, 1.0)),)
    return _with_quiet_time(spec)


@_kind("clocks-common", "All hosts are 0.1 to 60 s off by the same amount: only a lag.", ("M5",))
def _clocks_common(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    off = float(np.exp(rng.uniform(np.log(0.1), np.log(60.0))))
    spec.clocks = Clocks(common_offset_s=float(rng.choice([-1, 1])) * off)
    spec.lead_s = spec.after_s = 180.0
    spec.counters = (Counter(bin_s=_pick(rng, 1.0, 5.0, 10.0), lag_s=_pick(rng, 0.0, 5.0)),)
    return _with_quiet_time(spec)


@_kind(
    "bidirectional", "Both directions share the device: one gains what the other loses.", ("M10",)
)
def _bidirectional(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.direction, spec.bottleneck = "both", _choose(rng, "device", "nic")
    spec.forward_share = _pick(rng, 0.3, 0.5, 0.7)
    spec.directions_trade = _pick(rng, 0.0, 0.1, 0.3)
    spec.pairs_count = min(spec.pairs_count, 16)
    return _with_quiet_time(spec)


@_kind("reverse", "Servers send to clients.")
def _reverse(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.direction, spec.expect_pass = "reverse", True
    return _with_quiet_time(spec)


@_kind(
    "correlated-bursts",
    "The bursts' levels vary by 1 to 4 % and correlate with 0.7 from burst to burst.",
    ("M10",),
)
def _correlated_bursts(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.bursts_count, spec.duration_s, spec.period_s = _count(rng, 4, 6, 8), 30.0, 60.0
    spec.pairs_count = min(spec.pairs_count, 10)
    spec.burst_cov, spec.burst_rho = _pick(rng, 0.01, 0.02, 0.04), _pick(rng, 0.5, 0.7, 0.9)
    spec.counters = (Counter(bin_s=1.0),)
    return spec


@_kind(
    "start-smear",
    "The server's engine starts its clock 0.25 s before the data; seconds need not be smeared.",
    ("M21",),
)
def _start_smear(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.step_s, spec.pairs_count = 0.01, _count(rng, 1, 3, 6)
    spec.duration_s = _pick(rng, 20.0, 30.0)
    spec.direction = _choose(rng, "forward", "reverse")
    early = _pick(rng, 0.1, 0.25)
    if spec.direction == "forward":
        spec.receiver_early_s = early
    else:
        spec.sender_early_s = early
    if rng.random() < 0.5:
        spec.stalls = (Stall(at_s=float(rng.integers(5, 12)), for_s=1.0),)
    spec.counters = (Counter(bin_s=1.0, lag_s=0.0),)
    return spec


@_kind(
    "acknowledgements",
    "The counter counts both ways, and acknowledgements come for every segment to every 40th.",
    ("M22",),
)
def _acknowledgements(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    # RFC 9293, section 3.8.6.3, requires at least one for every second full segment. With offloads
    # one covers many more.
    spec.ack_every = _pick(rng, 1.5, 2.0, 2.0, 4.0, 20.0, 40.0)
    spec.counters = (Counter(bin_s=_pick(rng, 1.0, 5.0), directions="both", layer="ip"),)
    spec.expect_pass = True
    return _with_quiet_time(spec)


# M3, M4, M12, M16, M19 and M20: missing records and foreign traffic.


def _fleet_with_lost_records(rng: np.random.Generator, level: float) -> Spec:
    spec = _fleet(rng, level)
    spec.weights, spec.largest_ratio = "equal", 1.0
    spec.pairs_count = _count(rng, 10, 20, 30)
    spec.counters = (Counter(bin_s=_pick(rng, 1.0, 5.0, 10.0), lag_s=_pick(rng, 0.0, 5.0)),)
    return spec


@_kind(
    "unheard-large-pair",
    "A pair 2 to 5 times as large as any other left no record; the device counted its bytes.",
    ("M3",),
)
def _lost_record_of_large_pair(rng: np.random.Generator) -> Spec:
    spec = _fleet_with_lost_records(rng, _pick(rng, 1.01, 1.03, 1.08))
    spec.bottleneck = "policer"
    spec.giant_ratio = float(rng.uniform(2.0, 5.0))
    in_one_burst = rng.random() < 0.4
    spec.bursts_count = 3
    spec.events = (
        Event(pair=0, what="unheard", burst=int(rng.integers(3)) if in_one_burst else None),
    )
    return _with_quiet_time(spec)


@_kind("unheard-pairs", "Some pairs of any size left no record at either end.", ("M3",))
def _lost_records(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    what = _choose(rng, "unheard", "receiver-unheard", "sender-unheard")
    spec.events = tuple(
        Event(pair=pair, what=what)
        for pair in _some(rng, spec.pairs_count, _pick(rng, 0.04, 0.1, 0.3))
    )
    return _with_quiet_time(spec)


@_kind(
    "other-traffic",
    "Unrelated traffic of any rate on the hosts' interfaces; the test itself is healthy.",
    ("M4",),
)
def _other_traffic(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    per_pair = spec.target_bits_per_second / spec.pairs_count
    spec.hosts = Hosts(other_bits_per_second=float(per_pair * np.exp(rng.uniform(-7.0, 1.0))))
    spec.expect_pass = True
    return _with_quiet_time(spec)


@_kind(
    "wrong-interface",
    "The counted interface does not carry the test (loopback, policy routing, a bond).",
    ("M4",),
)
def _wrong_interface(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    spec.hosts = Hosts(
        wrong_interface=True,
        routed_known=bool(rng.random() < 0.5),
        other_bits_per_second=_pick(rng, 1e3, 3e6, 1e8),
    )
    spec.expect_pass = True
    return _with_quiet_time(spec)


@_kind(
    "small-absolute-forgery",
    "Pairs of 20 to 200 Mbit/s below the limit; receivers' rows are multiplied by 1.01 to 1.06.",
    ("M12",),
    after=lambda world, rng: manipulate.scale(world, "receiver", float(rng.uniform(1.01, 1.06))),
)
def _small_absolute_forgery(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, float(rng.uniform(0.955, 0.985)))
    spec.target_bits_per_second = spec.pairs_count * _pick(rng, 2e7, 5e7, 2e8)
    spec.streams_count = _count(rng, 8, 64)
    if rng.random() < 0.5:
        spec.counters, spec.device_promised, spec.telemetry = (), False, None
    return _with_quiet_time(spec)


@_kind(
    "translation",
    "The device translates addresses and ports, by one to eight hidden units.",
    ("M16",),
)
def _translation(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.engine = _choose(rng, "iperf3", "http", "https", "ftp")
    if spec.engine != "iperf3":
        spec.direction = "reverse"
    spec.translation = _choose(rng, "address", "port", "address-port")
    spec.hidden_units_count = _count(rng, 1, 2, 4, 8)
    spec.expect_pass = True
    return _with_quiet_time(spec)


@_kind(
    "foreign-requests",
    "Other hosts' requests and health checks reach the daemons before and during bursts.",
    ("M19",),
)
def _foreign_requests(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.engine, spec.direction = _choose(rng, "http", "https", "ftp"), "reverse"
    spec.foreign_tests_count = _count(rng, 1, 5, 40)
    spec.resend_ratio = _pick(rng, 0.0002, 0.05)
    if rng.random() < 0.3:
        spec.translation = "address"
    spec.expect_pass = True
    return _with_quiet_time(spec)


@_kind(
    "udp-first-lost",
    "The first datagram of a stream was lost: some pairs' engines hang and end with an error.",
    ("M20",),
)
def _udp_first_lost(rng: np.random.Generator) -> Spec:
    spec = _udp(_fleet(rng))
    spec.bottleneck, spec.streams_count = "none", 16
    spec.loss_ratio = _pick(rng, 0.01, 0.05)
    spec.events = tuple(
        Event(pair=pair, what="failed")
        for pair in _some(rng, spec.pairs_count, _pick(rng, 0.05, 0.2, 0.6))
    )
    return _with_quiet_time(spec)


# M6, M7, M8, M11, M13, M14, M15 and M17: device counters.


@_kind("bypass", "A share of every pair's bytes does not cross the device.")
def _bypass(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.bypass_ratio = _pick(rng, 0.02, 0.05, 0.1, 0.3, 0.6)
    return _with_quiet_time(spec)


@_kind("bypass-pairs", "All bytes of some pairs pass beside the device.")
def _bypass_pairs(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.bypass_ratio = 1.0
    spec.bypass_pairs = _some(rng, spec.pairs_count, _pick(rng, 0.05, 0.2, 0.5))
    return _with_quiet_time(spec)


@_kind("bypass-bursts", "The bypass exists in some bursts only, or grows from burst to burst.")
def _bypass_bursts(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    spec.bursts_count = _count(rng, 3, 4, 6)
    if rng.random() < 0.5:
        spec.bypass_ratio = _pick(rng, 0.1, 0.3)
        spec.bypass_bursts = _some(rng, spec.bursts_count, 0.4)
    else:
        spec.bypass_trend_ratio = _pick(rng, 0.1, 0.3)
    return _with_quiet_time(spec)


@_kind(
    "bypass-masked",
    "Others' traffic of any shape makes up for a bypass: during the bursts, or all the time.",
    ("M6",),
)
def _bypass_masked(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    share = _pick(rng, 0.05, 0.1, 0.2)
    spec.bypass_ratio = share
    shape = _choose(rng, "constant", "in-bursts", "as-bypass", "own-bursts", "random", "diurnal")
    spec.backgrounds = (Background(shape=shape, level_ratio=share),)
    return _with_quiet_time(spec)


@_kind(
    "background-after",
    "Others' traffic starts with each burst and ends 5 to 60 s after it, and hides a bypass.",
    ("M6",),
)
def _background_after(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _pick(rng, 1.02, 1.05))
    share = float(rng.uniform(0.05, 0.2))
    spec.bypass_ratio = share
    tail = float(rng.uniform(5.0, 60.0))
    spec.backgrounds = (
        Background(shape="outlasting", level_ratio=share * spec.level_ratio, tail_s=tail),
    )
    spec.counters = (Counter(bin_s=_pick(rng, 1.0, 2.0, 5.0, 10.0), lag_s=_pick(rng, 0.0, 3.0)),)
    spec.period_s = spec.duration_s + 150.0
    return _with_quiet_time(spec)


@_kind("background", "Others' traffic of one or two shapes; nothing bypasses the device.")
def _background_only(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    shapes = rng.permutation(
        np.array(["constant", "diurnal", "in-bursts", "outlasting", "own-bursts", "random"])
    )
    spec.backgrounds = tuple(
        Background(shape=str(shape), level_ratio=_pick(rng, 0.01, 0.05, 0.2, 0.5), tail_s=20.0)
        for shape in shapes[: _count(rng, 1, 2)]
    )
    return _with_quiet_time(spec)


@_kind(
    "retransmission-bypass",
    "1 to 4.5 % of segments are sent again and counted twice; a bypass of that size hides.",
    ("M7",),
)
def _retransmission_bypass(rng: np.random.Generator) -> Spec:
    again = float(rng.uniform(0.01, 0.045))
    spec = _fleet(rng, float(rng.uniform(1.0, 1.04)))
    spec.resend_ratio = again
    spec.bypass_ratio = again * _pick(rng, 1.0, 1.5)
    spec.counters = (
        Counter(bin_s=_pick(rng, 1.0, 5.0, 10.0), lag_s=_pick(rng, 0.0, 2.0), before_drop=True),
    )
    return _with_quiet_time(spec)


@_kind(
    "retransmissions",
    "1 to 4.5 % of segments are sent again, lost before or behind the counter; no bypass.",
    ("M7",),
)
def _retransmissions(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.resend_ratio = float(rng.uniform(0.01, 0.045))
    spec.loss_before_counter = bool(rng.random() < 0.5)
    spec.counters = (
        Counter(bin_s=_pick(rng, 1.0, 5.0, 10.0), before_drop=bool(rng.random() < 0.5)),
    )
    return _with_quiet_time(spec)


@_kind("udp-loss", "UDP datagrams are lost before or behind the device's counter.", ("M7",))
def _udp_loss(rng: np.random.Generator) -> Spec:
    spec = _udp(_fleet(rng))
    spec.bottleneck = "device"
    spec.loss_ratio = _pick(rng, 0.001, 0.01, 0.05, 0.15)
    spec.loss_before_counter = bool(rng.random() < 0.5)
    spec.counters = (Counter(bin_s=_pick(rng, 1.0, 5.0), before_drop=bool(rng.random() < 0.7)),)
    return _with_quiet_time(spec)


@_kind(
    "lag-duty",
    "1,740 of 1,800 s with bins of 60 s about 75 s late, and often an unrecorded burst.",
    ("M8",),
)
def _lag_duty(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.pairs_count, spec.bursts_count = _count(rng, 2, 3), 3
    spec.duration_s, spec.period_s = 1740.0, 1800.0
    spec.target_layer = "ip"
    spec.lead_s = spec.after_s = 600.0
    spec.sender_reading_s = spec.receiver_reading_s = _pick(rng, 1.0, 10.0)
    spec.counters = (replace(_azure(rng), bin_trade_ratio=_pick(rng, 0.004, 0.03)),)
    if rng.random() < 0.6:
        spec.unrecorded = (int(rng.integers(3)),)
    return spec


@_kind(
    "lag-280",
    "280 of 300 s with bins of 60 s about 75 s late; some with an unrecorded or unplanned burst.",
    ("M8",),
)
def _lag_280(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.pairs_count, spec.bursts_count = _count(rng, 3, 6), _count(rng, 4, 6)
    spec.duration_s, spec.period_s = 280.0, 300.0
    spec.lead_s, spec.after_s = 660.0, 300.0
    spec.counters = (
        replace(
            _azure(rng),
            bin_trade_ratio=_pick(rng, 0.004, 0.03),
            lag_s=float(rng.uniform(15.0, 110.0)),
        ),
    )
    draw = rng.random()
    if draw < 0.35:
        spec.unrecorded = (int(rng.integers(spec.bursts_count)),)
    elif draw < 0.6:
        spec.extra_bursts = ((spec.lead_s - spec.period_s, spec.duration_s),)
    return spec


@_kind(
    "short-in-minutes",
    "Bursts of 30 s every 60 s or 120 s; bins of 60 s are 75 s late.",
    ("M8",),
)
def _short_in_minutes(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.bursts_count, spec.duration_s = _count(rng, 4, 8), 30.0
    spec.period_s, spec.pairs_count = _pick(rng, 60.0, 120.0), min(spec.pairs_count, 10)
    spec.counters = (_azure(rng),)
    spec.lead_s = spec.after_s = 420.0
    return spec


@_kind("lag-drift", "The device's clock drifts by 5 to 120 s over the run.", ("M8",))
def _lag_drift(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.bursts_count, spec.pairs_count = _count(rng, 6, 8), _count(rng, 3, 6)
    bin_s = _pick(rng, 1.0, 10.0)
    spec.counters = (
        Counter(
            bin_s=bin_s,
            lag_s=_pick(rng, 0.0, 5.0, 20.0),
            lag_drift_s=float(rng.choice([-1, 1]) * np.exp(rng.uniform(1.6, 4.8)) / 4.0),
        ),
    )
    spec.lead_s = spec.after_s = 120.0
    return _with_quiet_time(spec)


@_kind("unrecorded-bursts", "Bursts without a record, or bursts that nobody planned.", ("M8",))
def _unrecorded_bursts(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.bursts_count = _count(rng, 3, 4)
    spec = _with_quiet_time(spec)
    if rng.random() < 0.5:
        spec.unrecorded = (int(rng.integers(spec.bursts_count)),)
    else:
        spec.lead_s += spec.period_s
        spec.extra_bursts = ((spec.lead_s - spec.period_s, spec.duration_s),)
        spec.expect_pass = True
    return spec


@_kind(
    "metric-declaration",
    "Perfect data of a metric with a declared layer, unit, aggregation and direction.",
    ("M11",),
)
def _metric_declaration(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    spec.duration_s, spec.pairs_count, spec.bursts_count = 280.0, _count(rng, 3, 10), 2
    spec.period_s = 600.0
    bits, average = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    spec.counters = (
        Counter(
            bin_s=60.0,
            lag_s=_pick(rng, 0.0, 75.0),
            average=average,
            bits=bits,
            labelled_bits=bits,
            layer=_choose(rng, "ip", "wire"),
            declared_lag=bool(rng.random() < 0.5),
        ),
    )
    spec.origin = _choose(rng, "launched", "table")
    if spec.origin == "table":
        spec.receiver_reading_s = spec.sender_reading_s = spec.duration_s
        spec.clocks_promised, spec.rtt_baseline = False, False
        spec.hosts.recorded = False
        spec.clocks = Clocks(unread_ratio=1.0)
    spec.expect_pass = True
    return _with_quiet_time(spec)


@_kind("wrong-units", "The counter's numbers are bits and labelled bytes.", ("M11",))
def _wrong_units(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.counters = (replace(_counter(rng), bits=True, labelled_bits=False, preset=None),)
    return _with_quiet_time(spec)


@_kind(
    "one-way",
    "Traffic in both directions; the counter counts one direction and may say so or not.",
    ("M11",),
)
def _single_direction_counter(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.direction, spec.pairs_count = "both", min(spec.pairs_count, 16)
    spec.counters = (
        replace(
            _counter(rng),
            directions=_choose(rng, "forward", "reverse"),
            declared=bool(rng.random() < 0.5),
        ),
    )
    return _with_quiet_time(spec)


@_kind(
    "device-clock",
    "Device CPU is over its limit in the bursts, and the device's own stamps are 20 to 300 s off.",
    ("M13",),
)
def _device_clock(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    hot = rng.random() < 0.7
    spec.telemetry = Telemetry(
        cpu_ratio=_pick(rng, 0.9, 0.97) if hot else 0.6,
        every_s=_pick(rng, 1.0, 3.0),
        own_stamps=True,
        asked=bool(rng.random() < 0.7),
        stamp_offset_s=float(rng.choice([-1, 1]) * np.exp(rng.uniform(3.0, 5.7))),
    )
    spec.device_cpu_max_ratio = 0.8
    spec.period_s = spec.duration_s + 120.0
    return _with_quiet_time(spec)


@_kind(
    "device-stamps-off",
    "The counter's own stamps are 5 to 300 s off; the coordinator knows when it asked, or not.",
    ("M13",),
)
def _device_stamps_off(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    counter = Counter(
        bin_s=_pick(rng, 1.0, 5.0, 10.0),
        polled=bool(rng.random() < 0.6),
        stamp_offset_s=float(rng.choice([-1, 1]) * np.exp(rng.uniform(1.6, 5.7))),
    )
    spec.counters = (counter,)
    return _with_quiet_time(spec)


@_kind(
    "partial-telemetry",
    "Many CPU readings are partial answers that hold idle planes only; the device may be full.",
    ("M15",),
)
def _partial_telemetry(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng, _above(rng))
    spec.telemetry = Telemetry(
        cpu_ratio=_pick(rng, 0.6, 0.97),
        every_s=1.0,
        partial_ratio=_pick(rng, 0.1, 0.5, 1.0),
    )
    spec.device_cpu_max_ratio = 0.8
    return _with_quiet_time(spec)


@_kind("partial-bins", "Some bins of the counter hold a part of the bytes and say so.", ("M15",))
def _partial_bins(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.counters = (replace(_counter(rng), partial_ratio=_pick(rng, 0.05, 0.3, 1.0)),)
    return _with_quiet_time(spec)


@_kind("device-gaps", "Bins of the counter are missing, zero, or partial without a mark.")
def _device_gaps(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    share = _pick(rng, 0.03, 0.15, 0.5)
    field = _choose(rng, "missing_ratio", "zero_ratio", "partial_ratio")
    counter = _counter(rng)
    setattr(counter, field, share)
    counter.partial_unmarked = True
    counter.tail_zero_bins = _count(rng, 0, 0, 2)
    spec.counters = (counter,)
    return _with_quiet_time(spec)


@_kind("device-absent", "A device counter was promised, and there is none.")
def _device_absent(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.counters, spec.telemetry = (), None
    return spec


@_kind("free-running", "Host clocks that follow nobody, or are still being slewed.", ("M14",))
def _free_running(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    off = float(rng.choice([-1, 1]) * np.exp(rng.uniform(np.log(0.005), np.log(20.0))))
    spec.clocks = Clocks(
        group=_choose(rng, "clients", "servers", "pairs"),
        group_offset_s=off,
        group_share=_pick(rng, 0.3, 0.6),
        bound_s=0.0 if rng.random() < 0.5 else 0.002,
        synchronised=bool(rng.random() < 0.7),
        reference_id="7F7F0101",
    )
    if rng.random() < 0.3:
        spec.clocks.reference_id = "0A000001"
        spec.clocks.synchronised, spec.clocks.slewing_s = True, off
    return _with_quiet_time(spec)


@_kind("clock-readings-missing", "Many hosts have no clock reading.", ("M14",))
def _clocks_unread(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.clocks = Clocks(unread_ratio=_pick(rng, 0.02, 0.4, 1.0))
    return _with_quiet_time(spec)


@_kind(
    "search-paced-low",
    "A sender paces 0.1 to 1 % below the offered rate and loses nothing: the rate is loss-free.",
    ("M17",),
)
def _search_paced_low(rng: np.random.Generator) -> Spec:
    spec = _udp(_fleet(rng, _above(rng)))
    spec.bottleneck = "none"
    spec.noise = Noise(pair_cov=0.0005, fleet_cov=0.0, rho=0.0, fine_cov=0.01)
    spec.pace_error_ratio = _pick(rng, 0.001, 0.003, 0.01)
    lossy = rng.random() < 0.3
    spec.loss_max_ratio = _pick(rng, 0.0, 0.001)
    spec.loss_ratio = 2.0 * spec.loss_max_ratio + 0.0005 if lossy else 0.0
    return _with_quiet_time(spec)


@_kind("several-devices", "Two or three devices share the fleet, each with its own counter.")
def _several_devices(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.pairs_count = _count(rng, 10, 20)
    shares = (0.7, 0.3) if rng.random() < 0.5 else (0.4, 0.3, 0.3)
    spec.counters = tuple(
        replace(
            Counter(bin_s=_pick(rng, 1.0, 5.0, 10.0), lag_s=_pick(rng, 0.0, 1.0, 4.0)),
            device=f"fw-{'abc'[index]}",
            share=share,
        )
        for index, share in enumerate(shares)
    )
    if rng.random() < 0.3:
        spec.bypass_ratio = 0.2
    return _with_quiet_time(spec)


# M9: bottlenecks.


def _bottleneck(rng: np.random.Generator, truth: str) -> Spec:
    spec = _fleet(rng, _above(rng))
    spec.bottleneck = truth
    spec.counters = (Counter(bin_s=1.0, lag_s=_pick(rng, 0.0, 1.0), polled=True),)
    spec.pairs_count = _count(rng, 4, 10, 20)
    spec.rtt_baseline = bool(rng.random() < 0.8)
    if spec.telemetry is not None:
        spec.telemetry.cpu_ratio = float(rng.uniform(0.2, 0.6))
    return _with_quiet_time(spec)


@_kind("bottleneck-device", "The device is full: shares are traded, a queue stands in it.", ("M9",))
def _bottleneck_device(rng: np.random.Generator) -> Spec:
    spec = _bottleneck(rng, "device")
    if spec.telemetry is not None and rng.random() < 0.5:
        spec.telemetry.cpu_ratio = 0.98
    spec.resend_ratio = _pick(rng, 0.0005, 0.005)
    return spec


@_kind(
    "bottleneck-policer",
    "Each client is policed to its own rate, with noise of 5 to 15 %.",
    ("M9",),
)
def _bottleneck_policer(rng: np.random.Generator) -> Spec:
    spec = _bottleneck(rng, "policer")
    spec.noise = Noise(pair_cov=_pick(rng, 0.05, 0.08, 0.12, 0.15), fleet_cov=0.0, rho=0.3)
    spec.resend_ratio = _pick(rng, 0.003, 0.01, 0.03)
    return spec


@_kind("bottleneck-nic", "Each client's NIC is at its cap.", ("M9",))
def _bottleneck_nic(rng: np.random.Generator) -> Spec:
    spec = _bottleneck(rng, "nic")
    spec.weights = "equal"
    spec.noise = Noise(pair_cov=0.002, fleet_cov=0.0, rho=0.0, fine_cov=0.01)
    spec.resend_ratio = 0.0
    return spec


@_kind("bottleneck-cpu", "A core of each client is full.", ("M9",))
def _bottleneck_cpu(rng: np.random.Generator) -> Spec:
    spec = _bottleneck(rng, "cpu")
    spec.noise = Noise(pair_cov=0.04, fleet_cov=0.0, rho=0.5)
    spec.resend_ratio = 0.0
    return spec


@_kind("bottleneck-window", "The socket window is full over a long, idle path.", ("M9",))
def _bottleneck_window(rng: np.random.Generator) -> Spec:
    spec = _bottleneck(rng, "window")
    spec.rtt_s, spec.resend_ratio = _pick(rng, 0.01, 0.04, 0.1), 0.0
    spec.noise = Noise(pair_cov=0.01, fleet_cov=0.0, rho=0.3)
    return spec


@_kind(
    "bottleneck-shared-link", "A link that is not the device is full; the device has room.", ("M9",)
)
def _bottleneck_shared_link(rng: np.random.Generator) -> Spec:
    spec = _bottleneck(rng, "shared-link")
    spec.loss_before_counter = bool(rng.random() < 0.5)
    spec.resend_ratio = _pick(rng, 0.0005, 0.005)
    return spec


@_kind("bottleneck-none", "Nothing limits: paced senders, and now and then a stray drop.", ("M9",))
def _bottleneck_none(rng: np.random.Generator) -> Spec:
    spec = _bottleneck(rng, "none")
    spec.noise = Noise(pair_cov=_pick(rng, 0.003, 0.05), fleet_cov=0.0, rho=0.2)
    spec.weights = "equal"
    spec.resend_ratio = _pick(rng, 0.0, 0.0001, 0.001)
    return spec


@_kind("bottleneck-stall", "The device stalls all pairs for 8 to 12 s.", ("M9",))
def _bottleneck_stall(rng: np.random.Generator) -> Spec:
    spec = _bottleneck(rng, "device")
    spec.noise = Noise(pair_cov=0.03, fleet_cov=0.002, rho=0.3)
    spec.stalls = (
        Stall(
            at_s=float(rng.uniform(5.0, spec.duration_s * 0.6)), for_s=_pick(rng, 8.0, 10.0, 12.0)
        ),
    )
    return spec


@_kind(
    "bottleneck-shaper",
    "A router shapes to its rate with a deep queue; the idle path is short.",
    ("M9",),
)
def _bottleneck_shaper(rng: np.random.Generator) -> Spec:
    spec = _bottleneck(rng, "device")
    spec.rtt_s, spec.queue_s = 0.0001, _pick(rng, 0.005, 0.014, 0.05)
    spec.noise = Noise(pair_cov=0.03, fleet_cov=0.0005, rho=0.3)
    spec.resend_ratio = 0.0
    return spec


# Bursts that are stopped when their rate is certain.


def _stopping(rng: np.random.Generator, level: float) -> Spec:
    """Draw a long burst to be stopped when its rate is certain.

    Args:
        rng: Random number generator to use.
        level: Ratio of the rate to the limit.
    """
    spec = _fleet(rng, level)
    spec.ends_when_certain = True
    spec.bursts_count, spec.tolerance_ratio = 1, 0.0
    spec.pairs_count = _count(rng, 3, 6, 10)
    spec.duration_s = _pick(rng, 150.0, 180.0, 240.0)
    spec.period_s = spec.duration_s + 60.0
    spec.noise = Noise(
        pair_cov=_pick(rng, 0.005, 0.01, 0.03),
        fleet_cov=_pick(rng, 0.002, 0.005, 0.01),
        rho=_pick(rng, 0.0, 0.3, 0.5, 0.8, 0.9, 0.95),
    )
    return _with_quiet_time(spec)


@_kind(
    "stop-steady",
    "A burst that ends when certain, with a margin of -5 to 5 % and a correlation of 0 to 0.95.",
)
def _stop_steady(rng: np.random.Generator) -> Spec:
    margins = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05)
    return _stopping(rng, 1.0 + _pick(rng, -1.0, 1.0) * _pick(rng, *margins))


@_kind("stop-noise", "A burst that ends when certain, with periods of five times the scatter.")
def _stop_noise(rng: np.random.Generator) -> Spec:
    spec = _stopping(rng, 1.0 + float(rng.uniform(-0.05, 0.05)))
    spec.noise.loud_factor = 5.0
    return spec


@_kind(
    "stop-collapse",
    "A burst that ends when certain collapses by 30 to 60 %, before or after the stop.",
)
def _stop_collapse(rng: np.random.Generator) -> Spec:
    spec = _stopping(rng, _pick(rng, 1.02, 1.05))
    at_s = float(rng.uniform(40.0, spec.duration_s - 10.0))
    spec.steps = ((at_s, float(rng.uniform(0.4, 0.7))),)
    return spec


@_kind("stop-drift", "A burst that ends when certain drifts from one side of the limit to another.")
def _stop_drift(rng: np.random.Generator) -> Spec:
    spec = _stopping(rng, float(rng.uniform(0.99, 1.01)))
    spec.drift_ratio = float(rng.choice([-1, 1])) * _pick(rng, 0.03, 0.06, 0.1)
    return spec


@_kind("stop-ramp", "A burst that ends when certain rises for 30 to 120 s to its rate.")
def _stop_ramp(rng: np.random.Generator) -> Spec:
    spec = _stopping(rng, _pick(rng, 0.99, 1.02, 1.05))
    spec.slow_ramp_s, spec.slow_ramp_from = _pick(rng, 30.0, 60.0, 90.0, 120.0), 0.8
    return spec


@_kind("stop-scale-in", "A burst that ends when certain loses a tenth, before or after the stop.")
def _stop_scale_in(rng: np.random.Generator) -> Spec:
    spec = _stopping(rng, _pick(rng, 1.02, 1.05))
    spec.steps = ((float(rng.uniform(40.0, spec.duration_s - 10.0)), 0.9),)
    return spec


@_kind("stop-scale-out", "A burst that ends when certain is below the limit until units are added.")
def _stop_scale_out(rng: np.random.Generator) -> Spec:
    spec = _stopping(rng, _pick(rng, 0.95, 0.98))
    spec.steps = ((float(rng.uniform(40.0, spec.duration_s - 10.0)), 1.13),)
    return spec


@_kind("stop-silent-pair", "A burst that ends when certain, without the records of one pair.")
def _stop_silent_pair(rng: np.random.Generator) -> Spec:
    spec = _stopping(rng, _pick(rng, 0.95, 1.05))
    what = _choose(rng, "unheard", "receiver-unheard", "missed", "dies")
    spec.events = (Event(pair=0, what=what, at_s=float(rng.uniform(20.0, 60.0))),)
    return spec


@_kind("stop-bypass", "A tenth of a burst that ends when certain does not cross the device.")
def _stop_bypass(rng: np.random.Generator) -> Spec:
    spec = _stopping(rng, _pick(rng, 0.97, 1.05))
    spec.bypass_ratio = _pick(rng, 0.1, 0.3)
    return spec


# Manipulations.


@_kind(
    "forged",
    "Any fleet below the limit; the bytes of one source are multiplied by 1.01 to 2.",
    ("M12",),
    after=lambda world, rng: manipulate.scale(
        world,
        _choose(rng, "sender", "receiver", "device", "host"),
        manipulate.draw_factor(rng),
        bool(rng.random() < 0.5),
    ),
)
def _forged(rng: np.random.Generator) -> Spec:
    return _with_quiet_time(_fleet(rng, _below(rng)))


@_kind(
    "cut-outages",
    "A stall or collapse was cut out of the rows of one side.",
    after=lambda world, rng: manipulate.cut_outages(world, _choose(rng, "sender", "receiver")),
)
def _cut(rng: np.random.Generator) -> Spec:
    return _collapse(rng)


@_kind(
    "flattened",
    "The seconds of one source were replaced by their mean.",
    after=lambda world, rng: manipulate.flatten(
        world, _choose(rng, "sender", "receiver", "device")
    ),
)
def _flattened(rng: np.random.Generator) -> Spec:
    return _collapse(rng)


@_kind(
    "rows-removed",
    "The lowest rows of one side, or bins of the device, were removed.",
    after=lambda world, rng: manipulate.remove_rows(
        world, _choose(rng, "sender", "receiver", "device"), _pick(rng, 0.02, 0.04, 0.1, 0.4)
    ),
)
def _rows_removed(rng: np.random.Generator) -> Spec:
    return _with_quiet_time(_fleet(rng))


@_kind(
    "rows-added",
    "Rows were added to one side.",
    after=lambda world, rng: manipulate.add_rows(
        world, _choose(rng, "sender", "receiver"), _count(rng, 1, 3, 10)
    ),
)
def _rows_added(rng: np.random.Generator) -> Spec:
    return _with_quiet_time(_fleet(rng, _below(rng)))


@_kind(
    "rows-swapped",
    "Some pairs have another pair's rows.",
    after=lambda world, rng: manipulate.swap_rows(
        world, _choose(rng, "sender", "receiver"), _pick(rng, 0.05, 0.2, 0.5)
    ),
)
def _rows_swapped(rng: np.random.Generator) -> Spec:
    return _with_quiet_time(_fleet(rng, _below(rng)))


@_kind(
    "stamps-shifted",
    "The stamps of clients, servers, a group, all ends or the device were moved.",
    ("M5",),
    after=lambda world, rng: manipulate.shift(
        world,
        _choose(rng, "clients", "servers", "group", "all", "device"),
        float(rng.choice([-1, 1]) * np.exp(rng.uniform(np.log(0.3), np.log(40.0)))),
    ),
)
def _stamps_shifted(rng: np.random.Generator) -> Spec:
    return _with_quiet_time(_fleet(rng))


@_kind(
    "source-removed",
    "One whole source was removed.",
    after=lambda world, rng: manipulate.remove_source(
        world, _choose(rng, "sender", "receiver", "device", "host", "clocks")
    ),
)
def _source_removed(rng: np.random.Generator) -> Spec:
    return _with_quiet_time(_fleet(rng, _below(rng)))


# Combinations.


def _anything_after(world: World, rng: np.random.Generator) -> World:
    if rng.random() < 0.3:
        return manipulate.random_manipulation(world, rng)
    return world


@_kind(
    "anything",
    "Two or three troubles at once, drawn from all of the above; a third is manipulated too.",
    after=_anything_after,
)
def _anything(rng: np.random.Generator) -> Spec:
    spec = _fleet(rng)
    spec.pairs_count = min(spec.pairs_count, 20)
    spec.direction = _choose(rng, "forward", "forward", "reverse", "both")
    for trouble in rng.permutation(len(_TROUBLES))[: _count(rng, 2, 3)]:
        _TROUBLES[int(trouble)](spec, rng)
    return _with_quiet_time(spec)


def _trouble_readings(spec: Spec, rng: np.random.Generator) -> None:
    spec.receiver_reading_s = _pick(rng, 2.0, 5.0, 10.0, 30.0)
    spec.sender_reading_s = _pick(rng, 1.0, 2.0, 10.0)


def _trouble_noise(spec: Spec, rng: np.random.Generator) -> None:
    spec.noise = Noise(
        family="lognormal" if rng.random() < 0.6 else "bursty",
        pair_cov=_pick(rng, 0.1, 0.3),
        fleet_cov=_pick(rng, 0.01, 0.05),
        rho=float(rng.uniform(0.0, 0.95)),
    )


def _trouble_bypass(spec: Spec, rng: np.random.Generator) -> None:
    spec.bypass_ratio = _pick(rng, 0.03, 0.1, 0.3)


def _trouble_background(spec: Spec, rng: np.random.Generator) -> None:
    shape = _choose(rng, "constant", "diurnal", "in-bursts", "outlasting", "own-bursts", "random")
    spec.backgrounds = (
        *spec.backgrounds,
        Background(shape=shape, level_ratio=_pick(rng, 0.03, 0.1, 0.3), tail_s=15.0),
    )


def _trouble_stall(spec: Spec, rng: np.random.Generator) -> None:
    spec.stalls = (
        Stall(
            at_s=float(rng.uniform(1.0, spec.duration_s * 0.7)),
            for_s=float(rng.uniform(2.0, spec.duration_s / 3)),
            floor_ratio=_pick(rng, 0.0, 0.5),
            burst=int(rng.integers(spec.bursts_count)),
        ),
    )


def _trouble_pairs(spec: Spec, rng: np.random.Generator) -> None:
    what = _choose(rng, "late", "dies", "unheard", "receiver-unheard", "missed")
    spec.events = tuple(
        Event(pair=pair, what=what, at_s=float(rng.uniform(1.5, spec.duration_s / 2)))
        for pair in _some(rng, spec.pairs_count, _pick(rng, 0.04, 0.15))
    )


def _trouble_resend(spec: Spec, rng: np.random.Generator) -> None:
    spec.resend_ratio = float(rng.uniform(0.002, 0.04))


def _trouble_clock(spec: Spec, rng: np.random.Generator) -> None:
    spec.clocks = Clocks(
        group=_choose(rng, "clients", "servers", "pairs"),
        group_offset_s=float(rng.choice([-1, 1]) * np.exp(rng.uniform(np.log(0.05), np.log(20.0)))),
    )


def _trouble_bins(spec: Spec, rng: np.random.Generator) -> None:
    spec.counters = (
        replace(_counter(rng), missing_ratio=_pick(rng, 0.0, 0.1), bin_noise_ratio=0.01),
    )


def _trouble_drift(spec: Spec, rng: np.random.Generator) -> None:
    spec.drift_ratio = float(rng.uniform(-0.25, 0.25))


_TROUBLES: tuple[Callable[[Spec, np.random.Generator], None], ...] = (
    _trouble_readings,
    _trouble_noise,
    _trouble_bypass,
    _trouble_background,
    _trouble_stall,
    _trouble_pairs,
    _trouble_resend,
    _trouble_clock,
    _trouble_bins,
    _trouble_drift,
)
