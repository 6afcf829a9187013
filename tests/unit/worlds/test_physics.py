"""Tests for the physics, using a slow method to check the truth."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from tests.worlds import KINDS, Spec, World, build, generate, permitted, stop
from tests.worlds.bursts import lowest_fifth, ramp_cut_max, readings
from tests.worlds.devices import counted_of_flow, through_device
from tests.worlds.parameters import Background, Clocks, Counter, Event, Noise, Stall
from tests.worlds.record_format import EndRecord, Floats
from tests.worlds.traffic import Flow


def make(spec: Spec, seed: int = 1) -> World:
    """Build a world from parameters."""
    return build("test", seed, spec, np.random.default_rng(seed))


def ends_of(world: World, side: str, burst: int, direction: str) -> list[EndRecord]:
    """Return the records from one flow side."""
    return [
        end
        for record in world.recording.pairs
        if record.burst == burst
        for end in record.ends
        if end.side == side and end.direction == direction
    ]


def slow_bytes(flow: Flow, pair: int, from_s: float, to_s: float) -> float:
    """Return the bytes read by a receiver between two instants, using a plain Python loop."""
    total = 0.0
    shift = float(flow.delay_down_s[pair])
    for step, amount in enumerate(flow.delivered[pair].tolist()):
        start = flow.burst.grid_start_s + step * flow.step_s + shift
        overlap = min(to_s, start + flow.step_s) - max(from_s, start)
        if overlap > 0.0:
            total += amount * overlap / flow.step_s
    return total


SPECS = {
    "plain": Spec(pairs_count=3, bursts_count=2, duration_s=20.0, period_s=60.0),
    "reverse": Spec(pairs_count=2, bursts_count=1, duration_s=15.0, direction="reverse"),
    "both": Spec(
        pairs_count=2, bursts_count=1, duration_s=15.0, direction="both", directions_trade=0.2
    ),
    "udp": Spec(
        pairs_count=2, bursts_count=1, duration_s=15.0, protocol="udp", loss_ratio=0.05, ramp_s=0.0
    ),
    "readings": Spec(
        pairs_count=2,
        bursts_count=1,
        duration_s=45.0,
        sender_reading_s=20.0,
        receiver_reading_s=10.0,
    ),
    "late": Spec(
        pairs_count=3,
        bursts_count=1,
        duration_s=20.0,
        events=(Event(pair=1, what="late", at_s=7.0),),
    ),
    "stalled": Spec(
        pairs_count=3,
        bursts_count=1,
        duration_s=20.0,
        stalls=(Stall(at_s=5.0, for_s=4.0), Stall(at_s=12.0, for_s=3.0, pairs=(0,))),
    ),
    "bypass": Spec(pairs_count=3, bursts_count=1, duration_s=20.0, bypass_ratio=0.3),
    "fine": Spec(pairs_count=2, bursts_count=1, duration_s=10.0, step_s=0.01),
}


@pytest.mark.parametrize("name", SPECS)
def test_records_have_all_sent_and_delivered_bytes(name: str) -> None:
    world = make(SPECS[name])
    for flow in world.physics.flows:
        index = flow.burst.index
        written = sum(
            float(e.rows.bytes.sum()) for e in ends_of(world, "sender", index, flow.direction)
        )
        read = sum(
            float(e.rows.bytes.sum()) for e in ends_of(world, "receiver", index, flow.direction)
        )
        # All records will be rounded down to complete bytes.
        assert written == pytest.approx(float(flow.sent.sum()), abs=world.spec.pairs_count + 1.0)
        assert read == pytest.approx(float(flow.delivered.sum()), abs=world.spec.pairs_count + 1.0)


@pytest.mark.parametrize("name", SPECS)
def test_bytes_never_arrive_before_they_are_written(name: str) -> None:
    world = make(SPECS[name])
    for flow in world.physics.flows:
        at = np.tile(
            np.linspace(flow.burst.start_s - 1.0, flow.burst.start_s + 40.0, 200),
            (world.spec.pairs_count, 1),
        )
        assert (flow.received(at) <= flow.written(at) + 1e-6).all()


@pytest.mark.parametrize("name", SPECS)
def test_truth_equals_a_slow_sum_over_steps(name: str) -> None:
    world = make(SPECS[name])
    for truth in world.truth.bursts:
        flows = [f for f in world.physics.flows if f.burst.index == truth.index]
        start, end = truth.window_start_s, truth.window_start_s + truth.window_s
        amounts = {
            (f.direction, pair): slow_bytes(f, pair, start, end)
            for f in flows
            for pair in range(world.spec.pairs_count)
        }
        rate = sum(amounts.values()) * 8.0 / truth.window_s
        assert truth.payload_bits_per_second == pytest.approx(rate, rel=1e-9)
        crossed = sum(
            amounts[f.direction, pair] * float(f.crossing_ratio[pair])
            for f in flows
            for pair in range(world.spec.pairs_count)
        )
        assert truth.crossed_payload_bits_per_second == pytest.approx(
            crossed * 8.0 / truth.window_s, rel=1e-9
        )
        third = sum(
            slow_bytes(f, pair, start + 3.0, start + 4.0)
            for f in flows
            for pair in range(world.spec.pairs_count)
        )
        assert truth.seconds[3] == pytest.approx(third, rel=1e-9)


def test_readings_and_lowest_fifth_agree_with_a_slow_method() -> None:
    series: Floats = np.random.default_rng(2).random(37) + 0.5
    values = series.tolist()
    means = [sum(values[cut:]) / (37 - cut) for cut in range(8)]
    assert ramp_cut_max(37) == 7
    assert readings(series) == pytest.approx((max(means), min(means)))
    rest = values[7:]
    fifths = [sum(rest[i : i + 7]) / 7 for i in range(len(rest) - 6)]
    assert lowest_fifth(series) == pytest.approx(min(fifths))


@pytest.mark.parametrize("before_drop", [True, False])
@pytest.mark.parametrize("loss_before", [True, False])
@pytest.mark.parametrize("layer", ["ip", "wire"])
def test_device_counts_crossing_bytes(before_drop: bool, loss_before: bool, layer: str) -> None:
    counter = Counter(bin_s=1.0, layer=layer, before_drop=before_drop, directions="forward")
    spec = Spec(
        pairs_count=3,
        bursts_count=2,
        duration_s=20.0,
        resend_ratio=0.03,
        bypass_ratio=0.25,
        loss_before_counter=loss_before,
        counters=(counter,),
        short_packet_ratio=0.0,
    )
    world = make(spec)
    delivered = sum(float(f.delivered.sum()) for f in world.physics.flows)
    resent = sum(float(f.resent.sum()) for f in world.physics.flows)
    # 1,448 bytes of payload in packets of 1,500 bytes at the IP layer, 1,514 on the wire.
    factor = {"ip": 1500.0, "wire": 1514.0}[layer] / 1448.0
    expected = delivered + (resent if before_drop and not loss_before else 0.0)
    counted = float(np.nansum(world.recording.devices[0].value))
    assert counted == pytest.approx(0.75 * expected * factor, rel=1e-6)


def test_acknowledgements_and_background_add_to_the_counter() -> None:
    spec = Spec(
        pairs_count=2,
        bursts_count=1,
        duration_s=30.0,
        ack_every=2.0,
        resend_ratio=0.0,
        short_packet_ratio=0.0,
        counters=(Counter(bin_s=1.0),),
        backgrounds=(Background(shape="constant", level_ratio=0.1),),
    )
    world = make(spec)
    curve, step = through_device(spec, world.physics, 0)
    delivered = sum(float(f.delivered.sum()) for f in world.physics.flows)
    nominal = spec.payload_bytes_per_second * spec.layer_factor("ip")
    others = 0.1 * nominal * step * (curve.size - 1)
    assert curve[-1] == pytest.approx(
        delivered * (1500.0 / 1448.0 + 52.0 / (2 * 1448.0)) + others, rel=1e-9
    )


@pytest.mark.parametrize("before_drop", [True, False])
def test_udp_counter_before_a_drop_counts_sent_bytes(before_drop: bool) -> None:
    spec = replace(
        SPECS["udp"],
        counters=(Counter(bin_s=1.0, before_drop=before_drop),),
        short_packet_ratio=0.0,
    )
    world = make(spec)
    flow = world.physics.flows[0]
    amount = float((flow.sent if before_drop else flow.delivered).sum())
    counted = float(counted_of_flow(spec, flow, spec.counters[0], np.ones(2)).sum())
    assert counted == pytest.approx(amount * 1428.0 / 1400.0, rel=1e-9)
    assert float(flow.delivered.sum()) == pytest.approx(0.95 * float(flow.sent.sum()), rel=0.02)
    lost = sum(
        float(e.rows.lost.sum())
        for e in ends_of(world, "receiver", 0, "forward")
        if e.rows.lost is not None
    )
    missing = (flow.sent.sum() - flow.delivered.sum()) / 1400.0
    assert lost == pytest.approx(float(missing), rel=0.02)


def test_every_pair_crosses_exactly_one_device() -> None:
    world = generate("several-devices", 3)
    assert (world.physics.pairs_of_devices.sum(axis=0) == 1.0).all()


def test_level_is_reached_at_the_target_layer() -> None:
    for layer in ("ip", "payload"):
        spec = Spec(
            target_layer=layer,
            level_ratio=1.04,
            ramp_s=0.0,
            bursts_count=2,
            duration_s=60.0,
            noise=Noise(pair_cov=0.01, fleet_cov=0.0, rho=0.0, fine_cov=0.0),
        )
        for burst in make(spec).truth.bursts:
            assert burst.high_bits_per_second == pytest.approx(
                1.04 * spec.limit_bits_per_second, rel=0.005
            )
            assert burst.expected_bits_per_second == pytest.approx(
                1.04 * spec.limit_bits_per_second, rel=0.005
            )


def test_expected_rate_is_the_mean_over_many_draws() -> None:
    spec = Spec(
        bottleneck="policer",
        bursts_count=1,
        duration_s=30.0,
        slow_ramp_s=10.0,
        counters=(),
        noise=Noise(pair_cov=0.2, fleet_cov=0.05, rho=0.5),
        hosts=replace(Spec().hosts, recorded=False),
    )
    ratios = []
    for seed in range(60):
        burst = make(spec, seed).truth.bursts[0]
        realised = burst.payload_bits_per_second * spec.layer_factor(spec.target_layer)
        ratios.append(realised / burst.expected_bits_per_second)
    assert float(np.mean(ratios)) == pytest.approx(
        1.0, abs=3 * float(np.std(ratios)) / 60**0.5 + 1e-3
    )


def test_seconds_of_a_pair_have_the_requested_correlation() -> None:
    for rho in (0.0, 0.5, 0.9):
        spec = Spec(
            bottleneck="policer",
            weights="equal",
            pairs_count=30,
            bursts_count=1,
            duration_s=600.0,
            counters=(),
            telemetry=None,
            ramp_s=0.0,
            noise=Noise(pair_cov=0.1, fleet_cov=0.0, rho=rho, fine_cov=0.0),
        )
        world = make(spec)
        rows = np.array([e.rows.bytes[2:598] for e in ends_of(world, "receiver", 0, "forward")])
        centred = rows - rows.mean()
        result = float((centred[:, 1:] * centred[:, :-1]).mean() / (centred**2).mean())
        # Delays can move a small part to the next second.
        assert result == pytest.approx(rho, abs=0.06)


def test_pairs_of_a_full_device_compete_for_a_constant_rate() -> None:
    spec = Spec(
        bottleneck="device",
        weights="equal",
        pairs_count=10,
        bursts_count=1,
        duration_s=120.0,
        noise=Noise(pair_cov=0.1, fleet_cov=0.0, rho=0.0, fine_cov=0.0),
    )
    full = make(spec).physics.flows[0].delivered[:, 60:-60]
    free = make(replace(spec, bottleneck="policer")).physics.flows[0].delivered[:, 60:-60]
    assert full.sum(axis=0).std() / full.sum(axis=0).mean() < 1e-9
    assert free.sum(axis=0).std() / free.sum(axis=0).mean() > 0.02


def test_directions_compete_for_a_constant_sum() -> None:
    spec = Spec(
        direction="both",
        directions_trade=0.2,
        pairs_count=4,
        bursts_count=1,
        duration_s=60.0,
        noise=Noise(pair_cov=0.05, fleet_cov=0.0, rho=0.5, fine_cov=0.0),
    )
    forward, reverse = make(spec).physics.flows
    first, second = forward.delivered.sum(axis=0)[60:-60], reverse.delivered.sum(axis=0)[60:-60]
    assert float(np.corrcoef(first, second)[0, 1]) < -0.9


def test_clock_ahead_starts_early_and_the_record_hides_it() -> None:
    spec = Spec(
        pairs_count=4,
        bursts_count=1,
        duration_s=30.0,
        clocks=Clocks(group="pairs", group_offset_s=8.0, group_share=0.5, drift_ppm=0.0),
    )
    world = make(spec)
    burst = world.physics.bursts[0]
    early = world.physics.group[0]
    assert burst.starts_s[early] == pytest.approx(burst.start_s - 8.0, abs=0.05)
    for record in world.recording.pairs:
        for end in record.ends:
            assert end.began_at_s == pytest.approx(burst.start_s, abs=0.1)


def test_true_bytes_are_valid_for_every_kind() -> None:
    for kind in KINDS:
        world = generate(kind, 7)
        for flow in world.physics.flows:
            assert (flow.delivered <= flow.sent + 1e-6).all()
            assert float(flow.delivered.min(initial=0.0)) >= 0.0
            # The grid should end after the last byte.
            assert float(flow.sent[:, -3:].sum()) == 0.0
            assert float(flow.sent[:, :3].sum()) == 0.0


def test_a_stop_ends_the_traffic_and_changes_nothing_before() -> None:
    planned = generate("stop-collapse", 1)
    stopped = stop(planned, 80.0)
    [before], [after] = planned.truth.bursts, stopped.truth.bursts
    assert (after.window_s, before.window_s) == (80.0, planned.spec.duration_s)
    assert after.seconds[:79] == pytest.approx(before.seconds[:79])
    expected = planned.physics.flows[0].expected.sum()
    assert 0 < stopped.physics.flows[0].expected.sum() < expected
    for record in stopped.recording.pairs:
        for end in record.ends:
            assert end.complete
            assert end.rows.end_s[-1] == pytest.approx(80.0, abs=0.5)
    [burst] = stopped.recording.plan.bursts
    assert (burst.duration_s, burst.stopped_s) == (planned.spec.duration_s, 80.0)
    # The device counts nothing after the stop.
    counted = [float(np.nansum(device.value)) for device in stopped.recording.devices]
    assert counted < [float(np.nansum(device.value)) for device in planned.recording.devices]
    assert pickle.dumps(stop(planned, 80.0).recording) == pickle.dumps(stopped.recording)


def test_the_truth_of_a_stopped_burst_is_the_rate_without_noise() -> None:
    """Before the collapse, the rate is above the limit. The planned burst would be below it."""
    planned = next(
        world
        for seed in range(100)
        if (world := generate("stop-collapse", seed)).spec.steps[0][0] > 80.0
        and world.spec.level_ratio > 1.03
    )
    assert "expected-rate" not in {v.name for v in stop(planned, 70.0).truth.violations}
    assert "fail" not in permitted(stop(planned, 70.0))
    low = next(
        world
        for seed in range(100)
        if (world := generate("stop-steady", seed)).spec.level_ratio < 0.98
    )
    assert "expected-rate" in {v.name for v in stop(low, 70.0).truth.violations}
    assert "pass" not in permitted(stop(low, 70.0))
