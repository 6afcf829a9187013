"""The hunt itself: its worlds conserve bytes, its oracle knows what was planted."""

from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.judge import summarise
from broadside.coordinator.core.measure import steady
from tests.hunt.constants import listed, scaled
from tests.hunt.oracle import Ruling, rule
from tests.hunt.planting import KINDS, MOVES, Case, draw, moved
from tests.hunt.searches import attempt, simplest
from tests.hunt.tally import report
from tests.hunt.tampering import TAMPERS, tampered
from tests.hunt.worlds import build, header_ratio


def case(**planted: Any) -> Case:
    return Case(kind="clean", seed=7, **({"margin": 1.05} | planted))


def ruled(planted: Case) -> Ruling:
    return rule(planted, build(planted)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_builds_and_is_the_same_again(kind: str) -> None:
    drawn = draw(kind, 3)
    first, second = build(drawn), build(drawn)
    assert first[1] == second[1]
    assert first[0].plan == second[0].plan
    assert len(first[0].ends) == drawn.bursts


def test_a_case_is_its_document() -> None:
    drawn = draw("anything", 5)
    assert Case(**drawn.document()) == drawn


def test_the_device_counts_what_crosses_and_what_is_foreign() -> None:
    planted = case(ledger_noise=0.0, bypass=0.25, bypass_pairs=False, grain_s=10.0)
    world, truth = build(planted)
    received = sum(
        float(track.transferred_bytes.sum())
        for records in world.records
        for record in records
        for track in record.tracks
    )
    assert world.ledger is not None
    assert world.ledger.bytes.sum() == pytest.approx(
        0.75 * received * header_ratio(planted, "ip"), rel=1e-6
    )
    assert truth.residual == pytest.approx(-0.25, abs=1e-6)
    more, _ = build(planted.evolve(foreign=0.5))
    assert more.ledger is not None
    assert more.ledger.bytes.sum() > 1.5 * world.ledger.bytes.sum()


def test_labels_run_behind_by_the_lag() -> None:
    def middle_s(lag_s: float) -> float:
        world, _ = build(case(lag_s=lag_s, ledger_noise=0.0))
        assert world.ledger is not None
        weights = world.ledger.bytes / world.ledger.bytes.sum()
        return float((weights * (world.ledger.start_s + world.ledger.end_s) / 2).sum())

    assert middle_s(40.0) - middle_s(0.0) == pytest.approx(40.0, abs=0.5)


@pytest.mark.parametrize(
    ("planted", "reason"),
    [
        ({"margin": 0.98}, "rate"),
        ({"bypass": 0.2, "bypass_pairs": False}, "through"),
        ({"bypass": 0.2, "bypass_pairs": False, "foreign": 0.2}, "through"),
        ({"fall_at": 0.5, "fall_level": 0.5, "margin": 1.3}, "stretch"),
        ({"head_share": 0.45, "head_level": 0.1, "margin": 0.8}, "stretch"),
        ({"head_share": 0.2, "head_level": 3.0, "margin": 1.1}, "stretch"),
        ({"null": 1, "margin": 1.5}, "completeness"),
        ({"lost_bursts": 1}, "completeness"),
        ({"busy": 4}, "completeness"),
        ({"ledger": False}, "ledger-absent"),
        ({"cover_to": 0.3, "quiet_s": 0.0}, "ledger-absent"),
        ({"readings": "none"}, "clocks-unread"),
        ({"bound_s": 1.0}, "clock-gate"),
        ({"receivers_seconds": False}, "receivers-unheard"),
        ({"twin": 1}, "completeness"),
        ({"phantom": 2, "margin": 0.9}, "rate"),
        ({"fall_at": 0.5, "fall_level": 0.0, "shape_pairs": 0.5, "margin": 1.2}, "stretch"),
        ({"climb": 0.5}, "rate"),
        ({"tilt": 0.6, "margin": 1.1}, "stretch"),
        ({"bypass": 0.3, "bypass_pairs": False, "bypass_bursts": 0.5}, "through"),
        ({"reference": True, "bypass": 0.5}, "crossed"),
    ],
)
def test_a_pass_would_be_wrong(planted: dict[str, Any], reason: str) -> None:
    ruling = ruled(case(**planted))
    assert reason in ruling.wrong_to_pass
    assert not ruling.unseen
    assert ruling.goodness < 1


@pytest.mark.parametrize(
    "planted",
    [
        {},
        {"foreign": 0.4},
        {"lag_s": 200.0, "grain_s": 60.0},
        {"ledger": False, "promised": False},
        {"gap_pairs": 1, "gap_s": 1},
        {"ramp_s": 2.0},
        {"omit_s": 5, "interval_s": 0.5},
        {"reference": True, "bypass": 1.0},
        {"direction": "bidirectional"},
    ],
)
def test_a_pass_would_be_right_and_a_fail_wrong(planted: dict[str, Any]) -> None:
    ruling = ruled(case(**planted, margin=1.1))
    assert ruling.is_right_to_pass
    assert ruling.wrong_to_fail


def test_what_nobody_can_see_is_told_apart() -> None:
    planted = case(bypass=0.2, bypass_pairs=False, in_bursts=0.2, margin=1.02)
    assert ruled(planted).unseen
    assert not ruled(planted.evolve(in_bursts=0.05)).unseen


def test_a_low_margin_may_fail() -> None:
    ruling = ruled(case(margin=0.9))
    assert not ruling.wrong_to_fail
    assert ruling.badness < 1


@pytest.mark.parametrize("tamper", TAMPERS)
def test_every_tampering_changes_one_source(tamper: str) -> None:
    planted = case(null=1, bursts=3, other_runs=1, lag_hint=True)
    world, _ = build(planted)
    other = tampered(tamper, world, np.random.default_rng(1))
    assert other is not None
    assert other.plan == world.plan
    sides = [
        other.ledger is not world.ledger,
        other.ends != world.ends,
        other.neighbours != world.neighbours,
        [[record.test for record in some] for some in other.records]
        != [[record.test for record in some] for some in world.records]
        or any(
            new.tracks is not old.tracks
            for news, olds in zip(other.records, world.records, strict=True)
            for new, old in zip(news, olds, strict=False)
        ),
    ]
    assert any(sides)


def test_a_neighbour_is_within_its_bounds() -> None:
    rng = np.random.default_rng(4)
    first = walked = draw("anything", 1)
    for _ in range(200):
        walked = moved(walked, rng)
        for name, (low, high, _) in MOVES.items():
            drawn = getattr(first, name)
            assert min(low, drawn) <= getattr(walked, name) <= max(high, drawn), name
    assert walked.period_s >= walked.burst_s + walked.omit_s + 6


def test_what_the_engine_says_is_held_against_the_truth_and_told() -> None:
    row = attempt(case(margin=1.2, burst_s=10))
    assert row.verdict in ("pass", "inconclusive")
    assert not row.wrong_pass
    assert not row.wrong_fail
    lines = list(report([row], []))
    assert any(line.startswith("clean ") for line in lines)


def test_a_right_verdict_is_left_as_it_is() -> None:
    planted = case(margin=1.2, burst_s=10)
    assert simplest(planted) is planted


def test_a_constant_is_scaled_everywhere_and_put_back() -> None:
    def values() -> list[int]:
        return [vars(module)["VALUES_MIN"] for module in (steady, summarise)]

    usual = values()
    with scaled("steady.VALUES_MIN", 2.0):
        assert values() == [2 * value for value in usual]
    assert values() == usual
    assert "steady.VALUES_MIN" in listed()
