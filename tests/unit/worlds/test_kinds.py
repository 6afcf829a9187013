"""Tests for all kinds of worlds. They should be deterministic and have the described property."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from tests.worlds import KINDS, World, generate, judge, permitted
from tests.worlds.record_format import EndRecord

SEEDS = range(3)

# Review findings that can be seen in records.
FINDINGS = {f"M{number}" for number in (*range(1, 18), 19, 20, 21, 22)}


def same_records(first: World, second: World) -> bool:
    """Compare the records in two worlds, value by value."""
    return pickle.dumps(first.recording) == pickle.dumps(second.recording)


def ends(world: World, side: str) -> list[EndRecord]:
    """Return all records for one side."""
    return [e for record in world.recording.pairs for e in record.ends if e.side == side]


def names(world: World) -> set[str]:
    """Return all violation names."""
    return {violation.name for violation in world.truth.violations}


def reading_s(world: World, side: str) -> float:
    """Return the median length for full rows on this side."""
    rows = ends(world, side)[0].rows
    return float(np.max(rows.end_s - rows.start_s))


def lowest_20_s(world: World) -> float:
    """Return the lowest 20 s in any burst, divided by its mean."""
    results = []
    for burst in world.truth.bursts:
        means = np.convolve(burst.seconds[5:], np.ones(20) / 20, mode="valid")
        results.append(float(means.min() / burst.seconds.mean()))
    return min(results)


def bypassed(world: World) -> bool:
    """Return true if the device carries less than the received bytes in some burst."""
    return any(
        b.crossed_payload_bits_per_second < 0.995 * b.payload_bits_per_second
        for b in world.truth.bursts
    )


def quiet_device(world: World) -> bool:
    """Return true if the device counts nothing outside the bursts."""
    return _outside(world) < 1e-6


def _outside(world: World) -> float:
    """Return the share of device bytes outside the bursts, using the true counter."""
    from tests.worlds.devices import through_device

    curve, step = through_device(world.spec, world.physics, 0)
    grid = step * np.arange(curve.size)
    inside = 0.0
    for burst in world.physics.bursts:
        last = float(burst.ends_s[np.isfinite(burst.ends_s)].max()) + 1.0
        first = min(burst.start_s, float(burst.starts_s.min())) - 1.0
        inside += float(np.diff(np.interp([first, last], grid, curve))[0])
    return 1.0 - inside / float(curve[-1])


def pairs_without_record(world: World) -> list[int]:
    """Return the pairs that ran without any record in some burst."""
    ran = {(b.index, p) for b in world.truth.bursts for p in b.ran}
    return [r.pair for r in world.recording.pairs if not r.ends and (r.burst, r.pair) in ran]


def manipulated(name: str) -> Callable[[World], bool]:
    """Return a check to see if exactly one manipulation was made, using this name."""
    return lambda world: [m.name for m in world.manipulations] == [name]


def cpu_in_bursts(world: World) -> float:
    """Return the median CPU reading in the bursts, using the request time or the true time."""
    results = []
    for record in world.recording.telemetry:
        if record.quantity != "cpu_ratio":
            continue
        at = record.asked_at_s
        if at is None and record.own_stamp_s is not None and world.spec.telemetry is not None:
            at = record.own_stamp_s - world.spec.telemetry.stamp_offset_s
        assert at is not None
        for burst in world.truth.bursts:
            end = burst.window_start_s + burst.window_s
            complete = (at > burst.window_start_s + 2) & (at < end - 1) & ~record.partial
            results.extend(record.value[complete].tolist())
    return float(np.median(results)) if results else float("nan")


def bottleneck_is(name: str) -> Callable[[World], bool]:
    """Return a check to see if this is the true bottleneck in the world."""

    def check(world: World) -> bool:
        allowed = judge(world).bottlenecks
        return world.truth.bottleneck == name and allowed == {name, "unknown"}

    return check


def pair_cov(world: World) -> float:
    """Return the median coefficient of variation for receiver seconds."""
    covs = []
    for end in ends(world, "receiver"):
        inner = end.rows.bytes[4:-2]
        if inner.size > 5:
            covs.append(float(inner.std() / inner.mean()))
    return float(np.median(covs))


def accept(world: World) -> bool:
    """Accept all worlds. See the other tests for this property."""
    return bool(world.recording.pairs)


# Checks that should pass for all seeds. See `ANY` for checks to pass for at least one seed.
EVERY: dict[str, Callable[[World], bool]] = {
    "clean": lambda w: names(w) <= {"rate", "through", "stretch"} and quiet_device(w),
    "clean-30s": lambda w: w.spec.duration_s == 30.0 and w.spec.noise.rho <= 0.5,
    "clean-no-device": lambda w: not w.recording.devices,
    "clean-azure": lambda w: w.recording.devices[0].unit == "bits" and w.truth.lag_s["fw-a"] > 70,
    "clean-udp": lambda w: all(
        float(e.rows.lost.sum()) == 0 for e in ends(w, "receiver") if e.rows.lost is not None
    ),
    "readings": lambda w: reading_s(w, "receiver") >= w.spec.receiver_reading_s,
    "noisy": lambda w: w.spec.noise.rho >= 0.5,
    "bursty": lambda w: pair_cov(w) > 0.1,
    "heavy-tails": lambda w: bool(w.physics.weights.max() / w.physics.weights.min() > 2.5),
    "short": lambda w: w.spec.duration_s <= 20.0,
    "long": lambda w: w.spec.duration_s >= 600.0 and w.truth.bursts[0].seconds.size >= 600,
    "jumbo-unknown": lambda w: w.recording.plan.mtu_bytes is None,
    "collapse": lambda w: lowest_20_s(w) < 0.95 and "stretch" in names(w),
    "slow-ramp": lambda w: all(b.seconds[2] < 0.95 * b.seconds[-4:].mean() for b in w.truth.bursts),
    "drift": lambda w: abs(w.spec.drift_ratio) >= 0.05,
    "scale-in": lambda w: all(
        b.seconds[-3:].mean() < 0.97 * b.seconds[3:6].mean() for b in w.truth.bursts
    ),
    "late-starters": lambda w: all(np.ptp(b.starts_s) > 1.4 for b in w.physics.bursts),
    "deaths": lambda w: any(r.outcome == "abandoned" for r in w.recording.pairs),
    "stalls": lambda w: any((e.rows.bytes[1:-2] == 0).any() for e in ends(w, "receiver")),
    "missed": lambda w: any(r.outcome in ("missed", "failed") for r in w.recording.pairs),
    "resolution-device": lambda w: (
        reading_s(w, "receiver") >= 10
        and all("device" in v.visible_in for v in w.truth.violations if v.name == "stretch")
    ),
    "resolution-sender": lambda w: (
        reading_s(w, "receiver") >= 10
        and all("sender" in v.visible_in for v in w.truth.violations if v.name == "stretch")
    ),
    "resolution-coarse": lambda w: reading_s(w, "sender") >= 20 and "stretch" in names(w),
    "coarse-correlated": lambda w: reading_s(w, "receiver") >= 10 and w.spec.noise.rho == 0.9,
    "clock-apart": lambda w: _clock_difference(w) >= 1.0,
    "fit-shape": lambda w: "start-spread" in names(w) and _claimed_spread(w) < 0.1,
    "clocks-common": lambda w: "start-spread" not in names(w) and _common(w) > 0.08,
    "bidirectional": lambda w: {e.direction for e in ends(w, "sender")} == {"forward", "reverse"},
    "reverse": lambda w: {e.host[:6] for e in ends(w, "sender")} == {"server"},
    "correlated-bursts": lambda w: len({round(b.level, 6) for b in w.physics.bursts}) > 1,
    "start-smear": lambda w: max(w.spec.sender_early_s, w.spec.receiver_early_s) >= 0.1,
    "acknowledgements": lambda w: w.spec.ack_ratio("ip") > 0.0008 and not bypassed(w),
    "unheard-large-pair": lambda w: 0 in pairs_without_record(w) and _giant(w) >= 2.0,
    "unheard-pairs": lambda w: any(len(r.ends) < 2 for r in w.recording.pairs),
    "other-traffic": lambda w: not w.truth.violations,
    "wrong-interface": lambda w: (
        all(
            h.rx_bytes[-1] < _payload(w, h.host, h.burst)
            for h in w.recording.hosts
            if h.host.startswith("server")
        )
        or w.spec.hosts.other_bits_per_second > 1e7
    ),
    "small-absolute-forgery": manipulated("scale"),
    "translation": lambda w: any(
        (r.seen_address, r.seen_port) != (r.client_address, r.client_port)
        and r.server_token == r.token
        for r in w.recording.pairs
    ),
    "foreign-requests": lambda w: (
        bool(w.recording.foreign) and all(t.token is None for t in w.recording.foreign)
    ),
    "udp-first-lost": lambda w: any(r.outcome == "failed" and r.reason for r in w.recording.pairs),
    "bypass": bypassed,
    "bypass-pairs": bypassed,
    "bypass-bursts": lambda w: (
        bypassed(w)
        and any(
            abs(b.crossed_payload_bits_per_second - b.payload_bits_per_second)
            < 1e-6 * b.payload_bits_per_second
            for b in w.truth.bursts
        )
    ),
    "bypass-masked": lambda w: bypassed(w) and w.truth.background_ratio["fw-a"] >= 0.0,
    "background-after": lambda w: bypassed(w) and _outside(w) > 0.001,
    "background": lambda w: not bypassed(w) and bool(w.spec.backgrounds),
    "retransmission-bypass": lambda w: bypassed(w) and _masked(w),
    "retransmissions": lambda w: all(b.resent_bytes > 0.008 * b.sent_bytes for b in w.truth.bursts),
    "udp-loss": lambda w: all(b.lost_bytes > 0.0005 * b.sent_bytes for b in w.truth.bursts),
    "lag-duty": lambda w: w.spec.duration_s / w.spec.period_s > 0.96,
    "lag-280": lambda w: w.spec.duration_s == 280.0 and w.recording.devices[0].value.size > 10,
    "short-in-minutes": lambda w: w.spec.duration_s == 30.0 and w.spec.counters[0].bin_s == 60.0,
    "lag-drift": lambda w: abs(w.truth.lag_end_s["fw-a"] - w.truth.lag_s["fw-a"]) >= 1.0,
    "unrecorded-bursts": lambda w: (
        len(w.physics.bursts) > len({r.burst for r in w.recording.pairs if r.ends})
    ),
    "metric-declaration": lambda w: (
        w.recording.plan.counters[0].layer is not None and not w.truth.violations
    ),
    "wrong-units": lambda w: w.recording.devices[0].unit == "bytes" and _factor(w) > 7.5,
    "one-way": lambda w: _factor(w) < 0.9,
    "device-clock": lambda w: (
        w.spec.telemetry is not None and abs(w.spec.telemetry.stamp_offset_s) >= 20.0
    ),
    "device-stamps-off": lambda w: abs(w.truth.lag_s["fw-a"]) >= 4.9,
    "partial-telemetry": lambda w: any(t.partial.any() for t in w.recording.telemetry),
    "partial-bins": lambda w: (
        bool(w.recording.devices[0].partial.any()) or w.spec.counters[0].partial_ratio <= 0.05
    ),
    "device-gaps": lambda w: not w.recording.devices[0].partial.any(),
    "device-absent": lambda w: "device-absent" in names(w) and "pass" not in permitted(w),
    "free-running": lambda w: any(
        c.reference_id == "7F7F0101" or abs(c.slewing_s) > 0 for c in w.recording.clocks
    ),
    "clock-readings-missing": lambda w: (
        len({c.host for c in w.recording.clocks}) < 2 * w.spec.pairs_count
        or w.spec.clocks.unread_ratio < 0.1
    ),
    "search-paced-low": lambda w: _paced_low(w),
    "several-devices": lambda w: len(w.recording.devices) >= 2,
    "bottleneck-device": bottleneck_is("device"),
    "bottleneck-policer": lambda w: bottleneck_is("policer")(w) and pair_cov(w) > 0.03,
    "bottleneck-nic": lambda w: bottleneck_is("nic")(w) and _nic_load(w) > 0.97,
    "bottleneck-cpu": lambda w: bottleneck_is("cpu")(w) and _sender_cpu(w) > 0.9,
    "bottleneck-window": lambda w: bottleneck_is("window")(w) and _window_full(w),
    "bottleneck-shared-link": lambda w: bottleneck_is("shared-link")(w) and cpu_in_bursts(w) < 0.7,
    "bottleneck-none": bottleneck_is("none"),
    "bottleneck-stall": lambda w: (
        bottleneck_is("device")(w)
        and any((b.seconds < 0.1 * b.seconds.mean()).sum() >= 6 for b in w.truth.bursts)
    ),
    "bottleneck-shaper": lambda w: (
        bottleneck_is("device")(w)
        and all((r.loaded_rtt_s or 0) > 20 * (r.idle_rtt_s or 1e-4) for r in w.recording.pairs)
    ),
    "stop-steady": lambda w: may_stop(w) and 0.9 < _last_to_first(w) < 1.1,
    "stop-noise": lambda w: may_stop(w) and w.spec.noise.loud_factor == 5.0,
    "stop-collapse": lambda w: may_stop(w) and _last_to_first(w) < 0.75,
    "stop-drift": lambda w: may_stop(w) and 0.02 < abs(w.spec.drift_ratio) <= 0.1,
    "stop-ramp": lambda w: may_stop(w) and _last_to_first(w) > 1.05,
    "stop-scale-in": lambda w: may_stop(w) and 0.85 < _last_to_first(w) < 0.95,
    "stop-scale-out": lambda w: may_stop(w) and 1.08 < _last_to_first(w) < 1.18,
    "stop-silent-pair": lambda w: (
        may_stop(w)
        and any(len(record.ends) < 2 or not record.ends[0].complete for record in w.recording.pairs)
    ),
    "stop-bypass": lambda w: may_stop(w) and bypassed(w),
    "forged": manipulated("scale"),
    "cut-outages": manipulated("cut-outages"),
    "flattened": manipulated("flatten"),
    "rows-removed": manipulated("remove-rows"),
    "rows-added": manipulated("add-rows"),
    "rows-swapped": manipulated("swap-rows"),
    "stamps-shifted": manipulated("shift"),
    "source-removed": manipulated("remove-source"),
    "anything": accept,
}


def may_stop(world: World) -> bool:
    """Return true if one long burst may be stopped when its rate is certain."""
    plan = world.recording.plan
    return plan.ends_when_certain and len(plan.bursts) == 1 and plan.bursts[0].duration_s >= 150.0


def _last_to_first(world: World) -> float:
    """Return the rate of the last 5 s, divided by that of 20 s at the start."""
    [burst] = world.truth.bursts
    return float(burst.seconds[-5:].mean() / burst.seconds[2:22].mean())


def _clock_difference(world: World) -> float:
    offsets = world.truth.clock_offsets_s
    return (
        min(
            abs(offsets[f"server-{p:02d}"] - offsets[f"client-{p:02d}"])
            for p in range(world.spec.pairs_count)
        )
        + 0.01
    )


def _claimed_spread(world: World) -> float:
    began = [
        e.began_at_s
        for e in ends(world, "sender")
        if e.began_at_s is not None and e.began_at_s < world.spec.lead_s + 30.0
    ]
    return max(began) - min(began)


def _common(world: World) -> float:
    return min(abs(value) for value in world.truth.clock_offsets_s.values())


def _giant(world: World) -> float:
    return float(world.physics.weights[0] / world.physics.weights[1:].max()) + 1e-9


def _payload(world: World, host: str, burst: int) -> float:
    pair = int(host[-2:])
    return sum(
        float(f.delivered[pair].sum()) for f in world.physics.flows if f.burst.index == burst
    )


def _masked(world: World) -> bool:
    """Return true if retransmissions can be used to hide most of the bypassed bytes."""
    delivered = sum(float(f.delivered.sum()) for f in world.physics.flows)
    resent = sum(float(f.resent.sum()) for f in world.physics.flows)
    return resent > 0.5 * world.truth.bypass_ratio * delivered


def _factor(world: World) -> float:
    """Return the labelled counter sum, divided by the fleet bytes with headers."""
    device = world.recording.devices[0]
    value = device.value
    if device.aggregation == "average":
        value = value * (device.end_s - device.start_s)
    if device.unit == "bits":
        value = value / 8.0
    layer = world.spec.counters[0].layer
    fleet = sum(float(f.delivered.sum()) for f in world.physics.flows)
    return float(np.nansum(value) / (fleet * world.spec.layer_factor(layer)))


def _paced_low(world: World) -> bool:
    offered = world.recording.plan.offered_bits_per_second
    assert offered is not None
    sent = min(b.sent_bits_per_second for b in world.truth.bursts) / world.spec.pairs_count
    return 0.98 < sent / offered < 0.9995


def _nic_load(world: World) -> float:
    cap = world.recording.plan.nic_cap_bits_per_second
    assert cap is not None
    sender = "client" if world.spec.direction == "forward" else "server"
    rates = []
    for host in world.recording.hosts:
        if host.host.startswith(sender):
            inner = host.tx_bytes[8:-8]
            seconds = host.at_s[8:-8]
            rates.append(8.0 * float((inner[-1] - inner[0]) / (seconds[-1] - seconds[0])))
    return float(np.median(rates)) / cap


def _sender_cpu(world: World) -> float:
    sender = "client" if world.spec.direction == "forward" else "server"
    return float(
        np.median(
            [np.nanmax(h.cpu_ratio) for h in world.recording.hosts if h.host.startswith(sender)]
        )
    )


def _window_full(world: World) -> bool:
    for record in world.recording.pairs:
        for end in record.ends:
            if end.side == "sender" and end.rows.cwnd_bytes is not None:
                assert record.window_bytes is not None
                requested = record.window_bytes * world.spec.streams_count
                return 0.7 < float(np.median(end.rows.cwnd_bytes)) / requested < 1.3
    return False


# Checks that should pass for at least one seed.
ANY: dict[str, list[Callable[[World], bool]]] = {
    "clean": [lambda w: judge(w).should_pass, lambda w: "fail" in permitted(w)],
    "resolution-coarse": [lambda w: bool(judge(w).unseen)],
    "clock-apart": [lambda w: "rate" in names(w), lambda w: _clock_difference(w) > 600.0],
    "translation": [lambda w: len({r.seen_address for r in w.recording.pairs}) > 1],
    "background-after": [lambda w: any("device-tail" in v.visible_in for v in w.truth.violations)],
    "bypass-masked": [lambda w: bool(judge(w).unseen)],
    "retransmission-bypass": [lambda w: "pass" not in permitted(w)],
    "unheard-large-pair": [lambda w: permitted(w) == {"pass", "inconclusive"}],
    "lag-duty": [lambda w: any(not r.ends for r in w.recording.pairs)],
    "lag-280": [lambda w: any(b.index < 0 for b in w.physics.bursts)],
    "device-clock": [lambda w: cpu_in_bursts(w) > 0.85 and "pass" not in permitted(w)],
    "partial-telemetry": [lambda w: "telemetry" in names(w)],
    "device-gaps": [
        lambda w: bool(np.isnan(w.recording.devices[0].value).any()),
        lambda w: w.spec.counters[0].zero_ratio > 0.0,
        lambda w: w.spec.counters[0].partial_ratio > 0.0,
    ],
    "free-running": [lambda w: "clocks" in names(w)],
    "search-paced-low": [lambda w: "loss" in names(w), lambda w: "loss" not in names(w)],
    "fit-shape": [lambda w: any("device-shape" in v.visible_in for v in w.truth.violations)],
    "forged": [lambda w: "pass" not in permitted(w) and w.manipulations[0].amount < 1.05],
    "anything": [lambda w: bool(w.manipulations), lambda w: not w.manipulations],
}


def test_every_kind_has_a_check_and_a_description() -> None:
    assert set(EVERY) == set(KINDS)
    assert set(ANY) <= set(KINDS)
    assert all(kind.sentence.endswith(".") for kind in KINDS.values())


def test_all_review_findings_are_covered() -> None:
    assert {finding for kind in KINDS.values() for finding in kind.findings} == FINDINGS


@pytest.mark.parametrize("kind", KINDS)
def test_every_seed_has_the_property(kind: str) -> None:
    for seed in SEEDS:
        assert EVERY[kind](generate(kind, seed)), seed


@pytest.mark.parametrize("kind", ANY)
def test_some_seed_has_the_special_property(kind: str) -> None:
    missing = list(range(len(ANY[kind])))
    for seed in range(25):
        world = generate(kind, seed)
        missing = [index for index in missing if not ANY[kind][index](world)]
        if not missing:
            return
    raise AssertionError(missing)


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_gives_the_same_world(kind: str) -> None:
    first, second = generate(kind, 3), generate(kind, 3)
    assert same_records(first, second)
    assert first.manipulations == second.manipulations
    assert judge(first) == judge(second)
    assert not same_records(first, generate(kind, 4))


def test_unknown_kind_raises_key_error() -> None:
    with pytest.raises(KeyError):
        generate("nosuch", 1)
