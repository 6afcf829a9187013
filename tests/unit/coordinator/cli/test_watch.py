"""Tests for the full-screen view of a run."""

import base64
from collections.abc import AsyncIterator
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadside.coordinator.cli.api_client import events_of
from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.cli.operations import Operations
from broadside.coordinator.cli.run_event_state import RunEventState
from broadside.coordinator.cli.screen import (
    FOOTER,
    progress_key,
    render_line,
    render_screen,
)
from broadside.coordinator.core.live.live_view import UNKNOWN_CELL, LiveSeconds, LiveStatus
from broadside.coordinator.core.live.status import BurstPhase, BurstStatus, RunState
from broadside.coordinator.core.metrics import Layer
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.presences import NOW
from tests.unit.coordinator.stored_run import store_run
from tests.unit.coordinator.views.charts.views import FAULTY

START = NOW + timedelta(seconds=10)


def status(phase: BurstPhase, state: RunState, **changes: object) -> LiveStatus:
    burst = BurstStatus(
        index=0,
        planned_start_at=START,
        planned_end_at=START + timedelta(seconds=30),
        phase=phase,
        pairs_planned=3,
        claimed_count=3,
        armed_count=2,
        reported_count=0,
        outcomes={},
    )
    values: dict[str, object] = {
        "now": NOW,
        "run_id": "r1",
        "scenario": "smoke",
        "state": state,
        "created_at": NOW,
        "ends_at": START + timedelta(seconds=55),
        "bursts_count": 1,
        "bursts_over_count": 0,
        "burst": burst,
        "duration_s": 30,
        "pairs_count": 3,
        "scale": 100.0,
        "target_bits_per_second": 3e8,
        "target_layer": Layer.PAYLOAD,
        "tolerance_ratio": 0.05,
        "coverage_floor_ratio": 0.95,
        "clock_bound_max_s": 0.05,
        "late_after_s": 1.0,
    }
    return LiveStatus.model_validate(values | changes)


def seconds(rates: dict[int, float | None], pairs: list[list[int]], burst: int = 0) -> LiveSeconds:
    nothing = tuple(None for _ in rates)
    cells = np.array(pairs, "<u4")
    return LiveSeconds(
        burst_index=burst,
        start_at=START,
        pairs_count=3,
        known_s=len(rates),
        second=tuple(rates),
        coverage_ratio=tuple(None if rate is None else 1.0 for rate in rates.values()),
        fleet_bits_per_second=tuple(rates.values()),
        pair_p5_bits_per_second=nothing,
        pair_p50_bits_per_second=nothing,
        pair_p95_bits_per_second=nothing,
        retransmits_count=nothing,
        rtt_mean_s=nothing,
        client_cpu_ratio=nothing,
        server_cpu_ratio=nothing,
        pairs=base64.b64encode(cells.tobytes()).decode(),
    )


def running() -> RunEventState:
    state = RunEventState()
    state.process("status", status(BurstPhase.RUNNING, RunState.RUNNING).answer_json())
    update = seconds(
        {0: 1e8, 1: 2e8, 2: None, 3: 3e8},
        [[1, 1, 1], [2, 2, 2], [UNKNOWN_CELL] * 3, [100_000, 200_000, UNKNOWN_CELL]],
    )
    state.process("seconds", update.answer_json())
    return state


def lines(state: RunEventState, width: int = 80, height: int = 24, **changes: str) -> list[str]:
    drawn = render_screen(state, width, height, NOW + timedelta(seconds=14), changes.get("problem"))
    return drawn.plain.split("\n")


def test_screen_shows_countdown_then_progress_bar() -> None:
    state = RunEventState()
    state.process("status", status(BurstPhase.ARMING, RunState.ARMING).answer_json())
    early = render_screen(state, 80, 24, NOW, None).plain
    assert "starts in 10 s" in early
    assert "armed 2/3" in early
    assert "no complete second yet" in early
    text = "\n".join(lines(running()))
    assert "4 of 30 s" in text
    assert "ends within 51 s" in text
    assert "lab at 1:100" in text


def test_phase_of_a_load_with_ramps_is_shown() -> None:
    state = running()
    ramp = status(BurstPhase.RUNNING, RunState.RUNNING, load_phase="ramp-up")
    state.process("status", ramp.answer_json())
    assert "4 of 30 s, ramp-up" in "\n".join(lines(state))
    assert "second 4 (ramp-up):" in render_line(state, NOW)


def test_rate_is_a_sparkline_with_gaps() -> None:
    text = "\n".join(lines(running()))
    assert "now 300 Mbit/s payload" in text
    assert "(100 %)" in text
    # Second 2 is shown as a gap.
    assert "rate, up to 300 Mbit/s  ▃▅·█" in text


def test_status_line_shows_progress() -> None:
    state = RunEventState()
    assert render_line(state, NOW) == "waiting for the coordinator"
    state.process("status", status(BurstPhase.ARMING, RunState.ARMING).answer_json())
    arming = "r1: arming, burst 1/1, armed 2/3, starts in 10 s, ends within 65 s"
    assert render_line(state, NOW) == arming
    armed = progress_key(state)
    state = running()
    assert progress_key(state) != armed
    assert render_line(state, START) == (
        "r1: running, burst 1/1, second 4: ▃▅·█ 300 Mbit/s payload, ends within 55 s"
    )
    # Incomplete seconds may still change, so they are not shown.
    state.known_s = 2
    assert "second 2: ▄█ 200 Mbit/s payload" in render_line(state, START)
    over = status(BurstPhase.COLLECTING, RunState.COLLECTING, problem="the table is away")
    state.process("status", over.answer_json())
    end = ", reported 0/3, ends within 55 s; no new data: the table is away"
    assert render_line(state, START).endswith(end)


def test_new_burst_resets_the_seconds() -> None:
    state = running()
    state.process("seconds", seconds({0: 5e7}, [[1, 2, 3]], burst=1).answer_json())
    assert state.fleet == {0: 5e7}
    assert state.burst_index == 1
    state.process("news-of-later-versions", "{}")


def test_screen_shows_connection_problem_and_footer() -> None:
    drawn = lines(running(), problem="coordinator at x: no answer")
    assert any(line.startswith("no new data: coordinator at x") for line in drawn)
    assert drawn[-1] == FOOTER
    assert render_screen(RunEventState(), 80, 24, NOW, None).plain == "waiting for the coordinator"


@settings(max_examples=60)
@given(st.integers(20, 240), st.integers(12, 80))
def test_screen_fits_any_terminal_size(width: int, height: int) -> None:
    drawn = lines(running(), width, height)
    assert len(drawn) <= height
    assert max(map(len, drawn)) <= width
    assert drawn[-1].startswith(FOOTER[: width - 1])


async def test_parses_server_sent_events() -> None:
    async def stream() -> AsyncIterator[str]:
        for text in (
            ": beat",
            "",
            "id: 7",
            "event: figures",
            "data: {",
            "data:}",
            "",
            "data: x",
            "",
        ):
            yield text

    results = [event async for event in events_of(stream())]
    assert [(e.name, e.data, e.id) for e in results] == [
        ("figures", "{\n}", "7"),
        ("message", "x", "7"),
    ]


async def test_follows_events_of_a_stored_run(fabric: Fabric) -> None:
    run_id = await store_run(fabric)
    local, state = Operations(fabric), RunEventState()
    async for event in local.events(run_id):
        state.process(event.name, event.data)
    assert state.over
    assert state.status is not None
    assert state.status.pairs_count == FAULTY.pairs
    assert state.findings
    assert "Gbit/s" in render_screen(state, 80, 24, NOW, None).plain
    with pytest.raises(ApiError, match="no such run") as refused:
        async for _ in local.events("nothing"):
            pass
    assert refused.value.status == 404
