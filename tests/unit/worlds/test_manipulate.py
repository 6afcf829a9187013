"""Tests for manipulations. They should change the records for one source, but not the truth."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.worlds import World, generate, judge, manipulate, permitted
from tests.worlds.record_format import EndRecord, Floats


def rows(world: World, side: str) -> list[Floats]:
    """Return the bytes in all records for one side."""
    return [e.rows.bytes for e in _ends(world, side)]


def _ends(world: World, side: str) -> list[EndRecord]:
    return [e for r in world.recording.pairs for e in r.ends if e.side == side]


@pytest.fixture(scope="module")
def collapsed() -> World:
    """Return a world with a collapse."""
    return generate("collapse", 2)


CHANGES: dict[str, tuple[str, Callable[[World], World]]] = {
    "scale": ("receiver", lambda w: manipulate.scale(w, "receiver", 1.1)),
    "remove-rows": ("receiver", lambda w: manipulate.remove_rows(w, "receiver", 0.2)),
    "add-rows": ("receiver", lambda w: manipulate.add_rows(w, "receiver", 3)),
    "cut-outages": ("receiver", lambda w: manipulate.cut_outages(w, "receiver", 0.9)),
    "flatten": ("receiver", lambda w: manipulate.flatten(w, "receiver")),
    "swap-rows": ("receiver", lambda w: manipulate.swap_rows(w, "receiver", 0.5)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_manipulation_changes_only_its_side(collapsed: World, name: str) -> None:
    side, change = CHANGES[name]
    changed = change(collapsed)
    assert [m.name for m in changed.manipulations] == [name]
    first, second = rows(collapsed, side), rows(changed, side)
    assert any(
        a.size != b.size or not np.array_equal(a, b) for a, b in zip(first, second, strict=True)
    )
    for a, b in zip(rows(collapsed, "sender"), rows(changed, "sender"), strict=True):
        assert np.array_equal(a, b)
    for before, after in zip(collapsed.truth.bursts, changed.truth.bursts, strict=True):
        assert before.payload_bits_per_second == after.payload_bits_per_second
        assert before.lowest_fifth_bits_per_second == after.lowest_fifth_bits_per_second


@pytest.mark.parametrize("name", CHANGES)
def test_manipulation_of_one_source_never_permits_a_pass(collapsed: World, name: str) -> None:
    assert "pass" not in permitted(collapsed)
    assert "pass" not in permitted(CHANGES[name][1](collapsed))


def test_scale_multiplies_rows_and_totals(collapsed: World) -> None:
    changed = manipulate.scale(collapsed, "receiver", 1.5)
    for before, after in zip(_ends(collapsed, "receiver"), _ends(changed, "receiver"), strict=True):
        assert after.rows.bytes == pytest.approx(np.floor(1.5 * before.rows.bytes))
        assert before.total_bytes is not None
        assert after.total_bytes == np.floor(1.5 * before.total_bytes)
    stored = manipulate.scale(collapsed, "receiver", 1.5, with_totals=False)
    assert _ends(stored, "receiver")[0].total_bytes == _ends(collapsed, "receiver")[0].total_bytes


def test_flatten_preserves_the_sum(collapsed: World) -> None:
    changed = manipulate.flatten(collapsed, "receiver")
    for before, after in zip(_ends(collapsed, "receiver"), _ends(changed, "receiver"), strict=True):
        count = before.rows.bytes.size
        assert after.rows.bytes.sum() == pytest.approx(before.rows.bytes.sum(), abs=count)
        rate = after.rows.bytes / (after.rows.end_s - after.rows.start_s)
        assert float(np.ptp(rate[:-1])) < 0.001 * float(rate.mean())


def test_cut_outages_leaves_no_gap(collapsed: World) -> None:
    changed = manipulate.cut_outages(collapsed, "receiver", 0.9)
    shorter = 0
    for before, after in zip(_ends(collapsed, "receiver"), _ends(changed, "receiver"), strict=True):
        assert after.rows.start_s[1:] == pytest.approx(after.rows.end_s[:-1])
        shorter += int(after.rows.bytes.size < before.rows.bytes.size)
    assert shorter > 0


def test_remove_rows_removes_the_lowest(collapsed: World) -> None:
    changed = manipulate.remove_rows(collapsed, "receiver", 0.2)
    for before, after in zip(rows(collapsed, "receiver"), rows(changed, "receiver"), strict=True):
        assert after.size == before.size - int(np.ceil(0.2 * before.size))
        assert after.sum() == pytest.approx(np.sort(before)[before.size - after.size :].sum())


@pytest.mark.parametrize("source", ["clients", "servers", "group", "all"])
def test_shift_moves_the_timestamps_of_its_hosts(collapsed: World, source: str) -> None:
    changed = manipulate.shift(collapsed, source, 7.5)
    moved = {
        new.host
        for old, new in zip(
            _ends(collapsed, "sender") + _ends(collapsed, "receiver"),
            _ends(changed, "sender") + _ends(changed, "receiver"),
            strict=True,
        )
        if old.began_at_s is not None
        and new.began_at_s is not None
        and abs(new.began_at_s - old.began_at_s - 7.5) < 1e-9
    }
    hosts = {e.host for e in _ends(collapsed, "sender") + _ends(collapsed, "receiver")}
    expected = {
        "clients": {h for h in hosts if h.startswith("client")},
        "servers": {h for h in hosts if h.startswith("server")},
        "group": {h for h in hosts if int(h[-2:]) % 2 == 0},
        "all": hosts,
    }
    assert moved == expected[source]


def test_shift_of_all_labels_changes_only_the_lag(collapsed: World) -> None:
    changed = manipulate.shift(collapsed, "device", 12.0)
    for device, lag in collapsed.truth.lag_s.items():
        assert changed.truth.lag_s[device] == pytest.approx(lag + 12.0)
    assert judge(changed).permitted == judge(collapsed).permitted


@pytest.mark.parametrize("source", ["sender", "receiver", "device", "host", "clocks", "telemetry"])
def test_remove_source_removes_all_its_records(collapsed: World, source: str) -> None:
    changed = manipulate.remove_source(collapsed, source)
    left = {
        "sender": rows(changed, "sender"),
        "receiver": rows(changed, "receiver"),
        "device": changed.recording.devices,
        "host": changed.recording.hosts,
        "clocks": changed.recording.clocks,
        "telemetry": changed.recording.telemetry,
    }
    assert not left[source]
    assert all(value for name, value in left.items() if name != source)
    if source in ("receiver", "device", "clocks"):
        # A promised source is missing.
        assert any(
            "plan" in v.visible_in or "clock" in v.visible_in for v in changed.truth.violations
        )


def test_small_and_large_factors_are_equally_frequent() -> None:
    rng = np.random.default_rng(4)
    factors = np.array([manipulate.draw_factor(rng) for _ in range(2000)])
    assert factors.min() >= 1.01
    assert factors.max() <= 2.0
    assert 0.4 < float((factors < 1.1).mean()) < 0.6


def test_random_manipulations_are_deterministic_and_complete() -> None:
    world = generate("clean", 1)
    result = set()
    for seed in range(80):
        first = manipulate.random_manipulation(world, np.random.default_rng(seed))
        second = manipulate.random_manipulation(world, np.random.default_rng(seed))
        assert first.manipulations == second.manipulations
        result.add(first.manipulations[0].name)
    assert result == {
        "scale",
        "shift",
        "remove-source",
        "remove-rows",
        "add-rows",
        "cut-outages",
        "flatten",
        "swap-rows",
    }
