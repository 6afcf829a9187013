"""Test the adapter between neutral recordings and the engine, and the hunt report."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from broadside.coordinator.core.summary import Verdict
from broadside.exchange.messages import Flow, Side
from tests.hunt.adapter import clock_of, conclude, counter_of, engine_files, evidence_of
from tests.hunt.played_stops import contradictions, play
from tests.hunt.report import is_failed, report
from tests.hunt.world_cases import Case, hunt, numbered, run_case
from tests.worlds import World, generate, judge, manipulate
from tests.worlds.kinds import KINDS


def worlds_to_pass(kind: str, count: int = 1) -> list[World]:
    """Return the first worlds for which a pass is required."""
    worlds = (generate(kind, number) for number in range(40))
    return list(islice((world for world in worlds if judge(world).should_pass), count))


@pytest.mark.parametrize("kind", ["clean-30s", "bidirectional", "reverse", "clean-udp"])
def test_bytes_of_both_ends_are_conserved(kind: str) -> None:
    recording = generate(kind, 3).recording
    flows = {"forward": Flow.UP, "reverse": Flow.DOWN}
    for burst in evidence_of(recording).bursts:
        for pair in burst.pairs:
            record = next(
                r
                for r in recording.pairs
                if (r.pair, r.burst) == (pair.pair_index, burst.burst.index)
            )
            fields = {
                (track.side, track.flow): float(track.transferred_bytes.sum())
                for track in (*pair.client_tracks, *pair.server_tracks)
            }
            reported = {
                (
                    Side.CLIENT if end.host.startswith("client") else Side.SERVER,
                    flows[end.direction],
                ): float(end.rows.bytes.sum())
                for end in record.ends
            }
            assert fields == reported
            assert record.ends


def test_device_counter_has_the_bytes_of_the_device() -> None:
    world = generate("clean-azure", 2)
    evidence = evidence_of(world.recording)
    (device,) = world.recording.devices
    assert evidence.device_counter is not None
    # Azure Monitor returns a mean rate in bit/s.
    assert (device.unit, device.aggregation) == ("bits", "average")
    assert np.nansum(evidence.device_counter.bytes) == pytest.approx(
        float((device.value / 8 * (device.end_s - device.start_s)).sum())
    )


def test_several_devices_are_summed() -> None:
    world = generate("several-devices", 1)
    recording = world.recording
    device_counter = counter_of(recording, evidence_of(recording).now)
    assert device_counter is not None
    assert len(recording.devices) > 1
    complete = sum(float(np.nansum(device.value)) for device in recording.devices)
    # Bins at the edges of the shorter records are unknown, and there was no traffic in them.
    assert float(np.nansum(device_counter.bytes)) == pytest.approx(complete, rel=1e-6)


def test_partial_bins_are_unknown() -> None:
    world = generate("partial-bins", 1)
    device_counter = counter_of(world.recording, evidence_of(world.recording).now)
    assert device_counter is not None
    assert (np.isnan(device_counter.bytes) == world.recording.devices[0].partial).all()
    assert world.recording.devices[0].partial.any()


def test_free_running_clock_of_a_world_has_no_bound() -> None:
    recording = generate("clean-30s", 1).recording
    reading = recording.clocks[0]
    assert clock_of(recording.plan, reading).bound_s is not None
    free = clock_of(recording.plan, replace(reading, reference_id="7F7F0101"))
    assert (free.synchronised, free.bound_s, free.offset_s) == (False, None, None)
    slewing = clock_of(recording.plan, replace(reading, slewing_s=-3.0))
    assert slewing.bound_s is not None
    assert slewing.bound_s > 3.0


@pytest.mark.parametrize("kind", ["clean", "clean-30s", "clean-no-device", "clean-udp"])
def test_clean_worlds_pass(kind: str) -> None:
    verdicts = [conclude(world.recording).verdict for world in worlds_to_pass(kind, 3)]
    # An interval may be wide by chance, but a clean world should never fail.
    assert verdicts.count(Verdict.PASS) >= 2
    assert Verdict.FAIL not in verdicts


def test_bypass_does_not_pass() -> None:
    worlds = [generate("bypass", seed) for seed in range(12)]
    bypassed = [w for w in worlds if judge(w).permitted and "pass" not in judge(w).permitted]
    assert len(bypassed) > 3
    for world in bypassed:
        assert conclude(world.recording).verdict is not Verdict.PASS


def test_missing_promised_counter_does_not_pass() -> None:
    world = manipulate.remove_source(worlds_to_pass("clean-30s")[0], "device")
    assert conclude(world.recording).verdict is Verdict.INCONCLUSIVE


def test_recordings_and_tables_are_imported() -> None:
    world = generate("clock-apart", 1)
    files = engine_files(world.recording)
    assert {file.side for file in files.recordings} == set(Side)
    summary = conclude(world.recording)
    assert summary.scenario == "iperf3"
    table = next(
        w
        for n in range(20)
        if (w := generate("metric-declaration", n)).recording.plan.origin == "table"
    )
    assert conclude(table.recording).scenario == "original"
    assert len(conclude(table.recording).bursts) == len(table.recording.plan.bursts)


def test_case_is_reproducible() -> None:
    assert run_case("clean-30s", 5, manipulated=True) == run_case("clean-30s", 5, manipulated=True)


def test_case_numbers_cover_kinds_and_depend_on_the_seed() -> None:
    kinds = ("clean", "bypass")
    first, other = numbered(6, 1, kinds), numbered(6, 2, kinds)
    assert [kind for kind, _ in first] == ["clean", "bypass"] * 3
    assert not {n for _, n in first} & {n for _, n in other}


def test_report_counts_and_decides() -> None:
    right = Case(kind="clean", seed=1, verdict="pass", should_pass=True)
    wrong = replace(right, seed=2, wrong=("rate in burst 0",))
    late = replace(right, seed=3, verdict="inconclusive", why=("residual",))
    fail = replace(wrong, seed=4, verdict="fail")
    assert not is_failed([right, late])
    assert is_failed([right, wrong])
    assert is_failed([fail, *[right] * 99])
    assert not is_failed([fail, *[right] * 299])
    assert is_failed([replace(late, flip="inconclusive to pass")])
    lines = "\n".join(report([right, wrong, late, fail]))
    assert "clean 2: wrong pass: rate in burst 0" in lines
    assert "clean 3: needless inconclusive: residual" in lines


def test_bursts_end_when_certain_and_the_summary_states_it() -> None:
    for kind, level in (("stop-steady", 0.015), ("stop-bypass", 0.0)):
        world = next(
            world
            for number in range(100)
            if (world := generate(kind, number)).spec.level_ratio > 1 + level
            and world.spec.noise.rho < 0.5
        )
        stopped, stop = play(world)
        assert stop is not None
        assert stop.verdict is Verdict.PASS
        assert 60 <= stop.second < world.spec.duration_s
        summary = conclude(stopped.recording)
        assert list(contradictions(stopped, stop, summary)) == []
        # A device counter that is read later can only weaken the result.
        bypassed = kind == "stop-bypass"
        assert summary.verdict is (Verdict.INCONCLUSIVE if bypassed else Verdict.PASS)
        later = replace(stop, second=stop.second + 1)
        assert list(contradictions(stopped, later, summary)) != []


def test_a_pair_without_records_prevents_an_early_stop() -> None:
    world = next(
        world
        for number in range(100)
        if (world := generate("stop-silent-pair", number)).spec.events[0].what == "unheard"
    )
    assert play(world) == (world, None)


def test_a_world_without_early_stop_is_not_changed() -> None:
    world = generate("clean-30s", 1)
    assert play(world) == (world, None)
    assert list(contradictions(world, None, conclude(world.recording))) == []


def test_report_shows_early_stops() -> None:
    case = Case(kind="stop-drift", seed=1, verdict="pass", stopped_s=72, changed=True)
    lines = "\n".join(report([case, replace(case, seed=2, stopped_s=None, changed=False)]))
    assert "stop-drift: 1 of 2, median second 72; 1 on the other side" in lines
    assert not is_failed([case])
    assert is_failed([replace(case, contradictions=("a fail at the stop became a pass",))])


def test_kinds_are_known() -> None:
    assert {"resolution-device", "unheard-large-pair", "anything"} <= set(KINDS)


def test_one_world_per_kind_has_no_wrong_verdict() -> None:
    """Run a short hunt with a fixed seed. Use `make hunt` to run the long one."""
    cases = hunt(len(KINDS), 20261126, manipulated=True)
    assert [(case.kind, case.seed) for case in cases if case.wrong_pass or case.wrong_fail] == []
    assert [(case.kind, case.seed, case.flip) for case in cases if case.flip] == []
    assert {case.verdict for case in cases} == {"pass", "fail", "inconclusive"}
