"""Tests for the permitted verdicts. The sources should agree with the truth."""

import numpy as np
import pytest

from tests.worlds import Spec, World, build, generate, judge, manipulate, permitted
from tests.worlds.parameters import Background, Clocks, Counter, Event, Noise, Stall

QUIET = Noise(pair_cov=0.02, fleet_cov=0.002, rho=0.2)


def world_of(level: float, **changes: object) -> World:
    """Return a quiet world with a rate relative to the limit."""
    spec = Spec(level_ratio=level, bursts_count=2, duration_s=30.0, noise=QUIET)
    for name, value in changes.items():
        setattr(spec, name, value)
    return build("test", 5, spec, np.random.default_rng(5))


def visible(world: World, name: str) -> set[str]:
    """Return the sources that show a violation, over all bursts."""
    return {s for v in world.truth.violations if v.name == name for s in v.visible_in}


def test_fleet_above_the_limit_must_not_fail() -> None:
    world = world_of(1.05, expect_pass=True)
    assert permitted(world) == {"pass", "inconclusive"}
    assert judge(world).should_pass
    assert not world.truth.violations


def test_fleet_below_the_limit_must_not_pass() -> None:
    world = world_of(0.95)
    assert permitted(world) == {"fail", "inconclusive"}
    assert visible(world, "rate") >= {
        "receiver",
        "sender",
        "receiver-total",
        "sender-total",
        "device",
        "host",
    }


def test_every_verdict_is_permitted_near_the_limit() -> None:
    assert permitted(world_of(1.002)) == {"pass", "fail", "inconclusive"}


def test_forged_receiver_contradicts_the_other_sources() -> None:
    world = manipulate.scale(world_of(0.95), "receiver", 1.2)
    assert "pass" not in permitted(world)
    assert "receiver" not in visible(world, "rate")
    assert {"sender", "device"} <= visible(world, "rate")


def test_fail_is_permitted_for_a_lowered_receiver() -> None:
    assert "fail" in permitted(manipulate.scale(world_of(1.05), "receiver", 0.8))


def test_bypass_is_visible_only_in_the_device_counter() -> None:
    world = world_of(1.03, bypass_ratio=0.1)
    assert visible(world, "through") & {"device", "device-residual"}
    assert "rate" not in {v.name for v in world.truth.violations}


def test_bypass_masked_in_the_same_seconds_is_invisible() -> None:
    world = world_of(
        1.03,
        bypass_ratio=0.1,
        backgrounds=(Background(shape="as-bypass", level_ratio=0.1),),
    )
    assert judge(world).unseen
    assert "pass" in permitted(world)


def test_constant_background_does_not_mask_a_bypass() -> None:
    world = world_of(
        1.03, bypass_ratio=0.1, backgrounds=(Background(shape="constant", level_ratio=0.1),)
    )
    assert "pass" not in permitted(world)


def test_traffic_after_the_burst_reveals_the_mask() -> None:
    world = world_of(
        1.03,
        bypass_ratio=0.1,
        backgrounds=(Background(shape="outlasting", level_ratio=0.1, tail_s=30.0),),
        period_s=150.0,
    )
    assert "device-tail" in visible(world, "through")


def test_bypass_is_no_violation_without_a_device() -> None:
    world = world_of(1.03, bypass_ratio=0.3, counters=(), device_promised=False, telemetry=None)
    assert not world.truth.violations


@pytest.mark.parametrize("bin_s", [1.0, 5.0, 10.0, 60.0])
def test_bins_of_any_length_have_the_rate_of_a_clean_burst(bin_s: float) -> None:
    """Check this, because bins extend over the edges of the burst and could make the rate look
    lower."""
    world = world_of(
        1.03,
        counters=(Counter(bin_s=bin_s, lag_s=30.0),),
        lead_s=300.0,
        after_s=300.0,
        period_s=300.0,
    )
    assert not world.truth.violations
    below = world_of(
        0.97,
        counters=(Counter(bin_s=bin_s, lag_s=30.0),),
        lead_s=300.0,
        after_s=300.0,
        period_s=300.0,
    )
    assert "device" in visible(below, "rate")


def test_slow_stretch_is_visible_only_in_fine_sources() -> None:
    changes = {
        "duration_s": 60.0,
        "period_s": 150.0,
        "stalls": (Stall(at_s=20.0, for_s=20.0, floor_ratio=0.5),),
        "sender_reading_s": 60.0,
        "receiver_reading_s": 60.0,
    }
    fine = world_of(1.25, counters=(Counter(bin_s=1.0),), **changes)
    assert visible(fine, "stretch") == {"device"}
    coarse = world_of(1.25, counters=(), device_promised=False, telemetry=None, **changes)
    assert visible(coarse, "stretch") == set()
    assert judge(coarse).unseen


def test_ramp_in_the_first_fifth_may_be_excluded() -> None:
    world = world_of(1.04, slow_ramp_s=5.0, slow_ramp_from=0.3)
    assert "pass" in permitted(world)
    half = world_of(1.04, slow_ramp_s=18.0, slow_ramp_from=0.3)
    assert "pass" not in permitted(half)


def test_common_clock_offset_does_not_change_the_verdict() -> None:
    world = world_of(1.05, clocks=Clocks(common_offset_s=25.0))
    assert permitted(world) == {"pass", "inconclusive"}


def test_shifted_group_is_visible_only_in_the_device_counter() -> None:
    world = world_of(
        1.05,
        duration_s=60.0,
        period_s=150.0,
        bottleneck="policer",
        clocks=Clocks(group="pairs", group_offset_s=-15.0, group_share=0.4),
    )
    assert "device-shape" in visible(world, "start-spread")
    assert "receiver" not in visible(world, "start-spread")


def test_large_pair_without_record_is_no_reason_to_fail() -> None:
    world = world_of(
        1.03,
        pairs_count=30,
        weights="equal",
        giant_ratio=4.0,
        bottleneck="policer",
        events=(Event(pair=0, what="unheard"),),
    )
    assert "fail" not in permitted(world)
    recorded = sum(
        float(e.rows.bytes.sum())
        for r in world.recording.pairs
        for e in r.ends
        if e.side == "receiver" and r.burst == 0
    )
    received = recorded * 8.0 / 30.0 * world.spec.layer_factor("ip")
    assert received < world.truth.limit_bits_per_second


@pytest.mark.parametrize(
    "clocks",
    [
        Clocks(group="clients", reference_id="7F7F0101", bound_s=0.0),
        Clocks(group="clients", synchronised=False),
        Clocks(group="clients", slewing_s=3.0),
        Clocks(bound_s=0.2),
        Clocks(unread_ratio=1.0),
    ],
)
def test_unproven_clocks_forbid_a_pass(clocks: Clocks) -> None:
    assert "pass" not in permitted(world_of(1.05, clocks=clocks))


def test_missing_promised_sources_forbid_a_pass() -> None:
    world = world_of(1.05)
    for source in ("receiver", "device", "clocks"):
        assert "pass" not in permitted(manipulate.remove_source(world, source))
    assert "pass" in permitted(manipulate.remove_source(world, "host"))


@pytest.mark.parametrize("kind", ["clean", "clean-30s", "clean-no-device", "clean-azure"])
def test_mean_rate_of_clean_records_gives_a_permitted_verdict(kind: str) -> None:
    """Check that the mean of the receivers over the planned window agrees with the permitted
    verdicts."""
    for seed in range(25):
        world = generate(kind, seed)
        limit = world.spec.limit_bits_per_second
        rates = []
        for burst in world.recording.plan.bursts:
            total = sum(
                float(e.rows.bytes.sum())
                for r in world.recording.pairs
                if r.burst == burst.index
                for e in r.ends
                if e.side == "receiver"
            )
            factor = world.spec.layer_factor(world.spec.target_layer)
            rates.append(total * 8.0 / burst.duration_s * factor)
        verdict = "pass" if min(rates) >= limit else "fail"
        assert verdict in permitted(world), (kind, seed, judge(world))


def test_clean_worlds_have_no_device_violation() -> None:
    """Check that the device views find no shapes, tails or residuals that were not generated."""
    for kind in ("clean", "clean-30s", "noisy", "readings", "translation", "udp-loss"):
        for seed in range(15):
            for violation in generate(kind, seed).truth.violations:
                assert not violation.visible_in & {
                    "device-residual",
                    "device-shape",
                    "device-tail",
                }, (kind, seed, violation)


def test_recorded_cpu_above_the_limit_forbids_a_pass() -> None:
    world = generate("device-clock", 1)
    for seed in range(30):
        world = generate("device-clock", seed)
        over = world.truth.cpu_p95_ratio > 0.85
        assert over == any(v.name == "cpu" for v in world.truth.violations)
        if over:
            assert "pass" not in permitted(world)
