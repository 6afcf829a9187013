"""Tests that replay prefixes of runs, so that no live view fails and no known value changes."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from broadside.coordinator.cli.run_event_state import RunEventState
from broadside.coordinator.cli.screen import render_line, render_screen
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.live.live_view import (
    FIGURE_NAMES,
    LiveMetrics,
    LiveSnapshot,
    changed_seconds,
    counter_message,
    final_snapshot,
    full_snapshot,
    incremental_snapshot,
    live_status,
    seconds_message,
)
from broadside.coordinator.core.live.status import derive
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.evidence import (
    BurstEvidence,
    CounterRecord,
    PairEvidence,
)
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import BottleneckName
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.coordinator.runs.run_documents import read_counter
from broadside.exchange.fabric import Fabric
from tests.synthetic import Fleet, Plant, fleet
from tests.unit.coordinator.core.judge.test_summarise import in_both_directions
from tests.unit.coordinator.runs.test_stored_verdicts import STORED, load

BURST_S = 12
ONE = Plant(pairs=3, bursts=1, burst_s=BURST_S, firewall_bits_per_second=None)
FLEETS = {
    "up": fleet(ONE),
    "both": in_both_directions(fleet(ONE)),
    "two-bursts": fleet(replace(ONE, bursts=2)),
    "coarse-counter": fleet(replace(ONE, grain_s=5.0, lag_s=1.4)),
    "faulty": fleet(replace(ONE, pairs=6, late=1, null=1, killed=1, missing=1)),
}


def until(evidence: BurstEvidence, at_s: float) -> BurstEvidence:
    """Return the evidence of a burst that had been stored at this time (epoch s)."""

    def short(track: IntervalColumns) -> IntervalColumns:
        return track.rows(track.first_data_at_s + track.end_s <= at_s)

    def cut(pair: PairEvidence) -> PairEvidence:
        over = at_s >= evidence.burst.planned_end_at.timestamp() + 2
        return replace(
            pair,
            report=pair.report if over else None,
            client_tracks=tuple(map(short, pair.client_tracks)),
            server_tracks=tuple(map(short, pair.server_tracks)),
            client_host=pair.client_host.rows(pair.client_host.end_at_s <= at_s),
            server_host=pair.server_host.rows(pair.server_host.end_at_s <= at_s),
        )

    return replace(evidence, pairs=tuple(map(cut, evidence.pairs)))


def without_flow(evidence: BurstEvidence, number: int) -> BurstEvidence:
    """Return the evidence without one flow of one side of pair 0, as if its rows were late."""
    first, *others = evidence.pairs
    tracks = tuple(t for place, t in enumerate(first.client_tracks) if place != number)
    return replace(evidence, pairs=(replace(first, client_tracks=tracks), *others))


def counted_until(device_counter: CounterRecord | None, at_s: float) -> CounterRecord | None:
    if device_counter is None:
        return None
    return replace(
        device_counter, bytes=np.where(device_counter.end_s <= at_s, device_counter.bytes, np.nan)
    )


def show(
    plan: Plan, shown: LiveSnapshot, device_counter: CounterRecord | None, now: datetime
) -> None:
    """Send all events of a snapshot to a viewer and render every text of it."""
    burst = plan.bursts[shown.burst_index]
    status = live_status(plan, derive(plan, None, {}, now), shown.burst_index, now)
    state = RunEventState()
    messages = [("status", status), ("counter", counter_message(device_counter, burst))]
    messages.append(("seconds", seconds_message(shown, changed_seconds(None, shown))))
    if shown.figures is not None:
        messages.append(("figures", shown.figures))
    for name, message in messages:
        state.process(name, message.model_dump_json())
    assert render_line(state, now)
    for width in (40, 80, 200):
        assert str(render_screen(state, width, 24, now, None))


def replay(
    plan: Plan, evidence: BurstEvidence, device_counter: CounterRecord | None, step_s: float
) -> Iterator[LiveSnapshot]:
    """Yield the snapshot at each time of a burst, and render it in every form."""
    # The seconds of stored evidence can be unpacked only once.
    pairs = tuple(pair for block in evidence.blocks() for pair in block)
    evidence = replace(evidence, pairs=pairs, unpack=None)
    begin_s = evidence.burst.planned_start_at.timestamp()
    end_s = evidence.burst.planned_end_at.timestamp() + 40
    before: LiveSnapshot | None = None
    for at_s in np.arange(begin_s - 1, end_s, step_s).tolist():
        now = evidence.burst.planned_start_at + timedelta(seconds=at_s - begin_s)
        part, counted = until(evidence, at_s), counted_until(device_counter, at_s)
        shown = full_snapshot(plan, part, counted, now)
        show(plan, shown, counted, now)
        if before is not None:
            onwards = incremental_snapshot(plan, before, part, now)
            if onwards is not None:
                show(plan, onwards, counted, now)
        before = shown
        yield shown


def assert_known_values_are_final(live: LiveMetrics, final: LiveMetrics) -> None:
    """Compare every live value whose state is *known* with the value of the verdict."""
    now, last = live.summary, final.summary
    half = last.fleet_received_half_width_bits_per_second or 0.0

    def known(name: str) -> bool:
        return live.states[name].state == "known"

    if known("received"):
        rate = now.fleet_received_bits_per_second
        assert rate == pytest.approx(last.fleet_received_bits_per_second, abs=half, rel=1e-6)
    if known("interval"):
        assert now.fleet_received_half_width_bits_per_second == pytest.approx(
            last.fleet_received_half_width_bits_per_second, rel=1e-6
        )
    if known("completeness"):
        assert now.completeness_ratio == pytest.approx(last.completeness_ratio, abs=1e-6)
    if known("bottleneck"):
        assert now.bottleneck in (last.bottleneck, BottleneckName.UNKNOWN)
    one, other = now.reconciliation, last.reconciliation
    if known("lag") or known("device_counter"):
        assert one is not None and other is not None
        uncertainty_s = other.lag_uncertainty_s or 0.0
        assert one.lag_s == pytest.approx(other.lag_s, abs=uncertainty_s)
        share = other.residual_uncertainty_ratio or 0.0
        assert one.firewall_bits_per_second == pytest.approx(
            other.firewall_bits_per_second, rel=share + 1e-6
        )


def final_figures(made: Fleet) -> LiveMetrics:
    measured = [measure_burst(made.plan.spec, part, made.now) for part in made.evidence]
    summary = summarise_run(made.plan, measured, made.device_counter, made.now)
    figures = final_snapshot(summary, 0, measured[0].series).figures
    assert figures is not None
    return figures


@pytest.mark.parametrize("name", FLEETS)
def test_values_shown_as_known_are_those_of_the_verdict(name: str) -> None:
    made = FLEETS[name]
    last = final_figures(made)
    assert {state.state for state in last.states.values()} == {"known"}
    seen: set[str] = set()
    for shown in replay(made.plan, made.evidence[0], made.device_counter, 2.0):
        if shown.figures is None:
            continue
        assert set(shown.figures.states) == set(FIGURE_NAMES)
        assert_known_values_are_final(shown.figures, last)
        running = shown.known_s < BURST_S
        states = {key: value.state for key, value in shown.figures.states.items()}
        assert states["seconds"] == states["received"]
        assert not (running and "known" in states.values())
        seen |= {key for key, value in states.items() if value == "known"}
    assert {"received", "completeness"} <= seen
    # The lag is that of all bursts, so it cannot be known after the first of two. Without enough
    # traffic there is none.
    if name != "faulty":
        assert ("lag" in seen) == (len(made.plan.bursts) == 1)


@pytest.mark.parametrize("number", [0, 1])
def test_live_view_of_both_directions_without_one_flow_does_not_fail(number: int) -> None:
    made = FLEETS["both"]
    part = without_flow(made.evidence[0], number)
    assert len(list(replay(made.plan, part, made.device_counter, 3.0))) > 10


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name.partition(".")[0])
async def test_prefixes_of_stored_runs_can_be_shown(path: Path, fabric: Fabric) -> None:
    """Every prefix in time of a stored run is shown, and its known values are the final ones."""
    await load(fabric, path)
    coordinator = Coordinator(fabric)
    shown_count = 0
    for run_id in [header.run_id async for header in fabric.records.private.list_runs()]:
        plan = await coordinator.stored.read_plan(run_id)
        device_counter = await read_counter(fabric.records, run_id)
        for burst in plan.bursts:
            evidence = await read_evidence(fabric.records, plan, burst)
            length_s = (burst.planned_end_at - burst.planned_start_at).total_seconds()
            step_s = max(3.0, length_s / 8)
            for shown in replay(plan, evidence, device_counter, step_s):
                shown_count += shown.figures is not None
    assert shown_count
