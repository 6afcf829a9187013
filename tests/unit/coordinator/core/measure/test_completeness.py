"""Tests for the state of pairs and of planned pair-seconds."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from broadside.coordinator.core.measure.completeness import (
    PairGrade,
    clock_fields,
    combine,
    grade,
)
from broadside.coordinator.core.measure.grid.align import Aligned
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import Burst
from broadside.coordinator.core.summary import Completeness, SecondState
from broadside.exchange.messages import (
    Claim,
    ClockReading,
    ClockSource,
    Endpoint,
    EngineReport,
    JobPhase,
    Outcome,
    ServerTest,
)
from tests.unit.coordinator.core.records import job_report

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
BURST = Burst(index=0, planned_start_at=AT, duration_s=10)
LATER = AT + timedelta(hours=1)
CLAIM = Claim(job_id="j", agent_id="c-1", phase=JobPhase.RUNNING, claimed_at=AT)


def _aligned(
    pair: PairEvidence, seen: int, *, proven_s: float | None = None, start_s: float | None = 0.0
) -> Aligned:
    """Return a pair for which ``seen`` of ten seconds exist."""
    flow = SimpleNamespace(
        engine_seen=(np.arange(10) < seen)[None, :],
        proven_s=np.array([float(seen) if proven_s is None else proven_s]),
    )
    first = np.nan if start_s is None else AT.timestamp() + start_s
    reported = SimpleNamespace(pairs=[pair], flows=[flow], first_data_at_s=np.array([first]))
    return cast(Aligned, reported)


def _graded(
    pair: PairEvidence,
    seen: int = 0,
    *,
    now: datetime = LATER,
    late_after_s: float = 1.0,
    **options: Any,
) -> PairGrade:
    known = {name: options.pop(name) for name in ("proven_s", "start_s") if name in options}
    evidence = BurstEvidence(burst=BURST, pairs=(pair,), **options)
    (result,) = grade(evidence, _aligned(pair, seen, **known), late_after_s, now)
    return result


def _pair(outcome: Outcome | None = None, **options: Any) -> PairEvidence:
    fields = {name: options.pop(name) for name in ("reason", "engine") if name in options}
    report = None if outcome is None else job_report(0, AT, outcome=outcome, **fields)
    return PairEvidence(pair_index=0, report=report, **options)


def test_pair_with_all_seconds_is_measured() -> None:
    result = _graded(_pair(Outcome.MEASURED), 10, proven_s=8.0, start_s=0.25)
    assert (result.state, result.reason, result.measured, result.ran) == (
        SecondState.MEASURED, None, True, True,
    )  # fmt: skip
    assert (result.start_error_s, result.proven_ratio) == (0.25, 0.8)
    assert (result.completeness.measured_s, result.completeness.planned_s) == (10, 10)
    assert _graded(_pair(Outcome.MEASURED), 10, proven_s=11.0).proven_ratio == 1.0


@pytest.mark.parametrize(("seen", "measured"), [(9, True), (8, False)])
def test_pair_with_nine_tenths_of_its_seconds_is_measured(seen: int, measured: bool) -> None:
    result = _graded(_pair(Outcome.MEASURED), seen)
    assert result.measured is measured
    assert result.completeness.seconds(SecondState.MEASURED) == seen
    assert result.completeness.seconds(SecondState.LOST) == 10 - seen
    if not measured:
        assert result.state is SecondState.LOST
        assert result.reason == "seconds are missing from the record after 8 of 10 s"
        # It ran, if its report is used.
        assert result.ran


@pytest.mark.parametrize(
    ("outcome", "seen", "state", "reason"),
    [
        (Outcome.MISSED, 0, SecondState.MISSED, "never started"),
        (Outcome.REFUSED, 0, SecondState.REFUSED, "refused by the agent without a reason"),
        (Outcome.ABANDONED, 0, SecondState.ABANDONED, "stopped before the end"),
        (Outcome.FAILED, 0, SecondState.NULL, "the engine failed"),
        (Outcome.FAILED, 3, SecondState.ABANDONED, "the engine failed after 3 of 10 s"),
        (Outcome.MEASURED, 0, SecondState.NULL, "the engine reported no bytes"),
        (Outcome.LATE, 0, SecondState.NULL, "the engine reported no bytes"),
    ],
)
def test_report_decides_the_state_of_missing_seconds(
    outcome: Outcome, seen: int, state: SecondState, reason: str
) -> None:
    result = _graded(_pair(outcome), seen)
    assert (result.state, result.reason) == (state, reason)
    assert result.completeness.seconds(state) == 10 - seen
    assert not result.measured
    assert not result.ran
    with_reason = _graded(_pair(outcome, reason="given reason"), seen)
    assert (with_reason.reason or "").startswith("given reason")
    engine = EngineReport(engine="iperf3", error="connection reset")
    with_error = _graded(_pair(outcome, engine=engine), seen)
    assert (with_error.reason or "").startswith("connection reset")


@pytest.mark.parametrize(
    ("options", "seen", "state", "reason"),
    [
        ({"cancelled_at": AT}, 0, SecondState.ABANDONED, "the run was cancelled"),
        ({"cancelled_at": AT, "cancel_reason": "budget"}, 0, SecondState.ABANDONED, "budget"),
        ({"now": AT}, 0, SecondState.PENDING, "not reported yet"),
        ({}, 4, SecondState.ABANDONED, "the agent stopped reporting after 4 of 10 s"),
        ({"missing_reason": "its file is cut"}, 0, SecondState.LOST, "its file is cut"),
        ({}, 0, SecondState.MISSED, "no agent claimed the job"),
        ({"claim": CLAIM}, 0, SecondState.LOST, "c-1 claimed the job and did not report"),
    ],
)
def test_reason_without_a_report_uses_other_evidence(
    options: dict[str, Any], seen: int, state: SecondState, reason: str
) -> None:
    of_pair = {
        name: options.pop(name) for name in ("missing_reason", "claim") if name in dict(options)
    }
    result = _graded(_pair(**of_pair), seen, start_s=None, **options)
    assert (result.state, result.reason, result.start_error_s) == (state, reason, None)


@pytest.mark.parametrize(
    ("start_s", "outcome", "late"),
    [
        (1.0, Outcome.MEASURED, False),
        (1.5, Outcome.MEASURED, True),
        (-1.5, Outcome.MEASURED, True),
        (0.0, Outcome.LATE, True),
        (None, Outcome.LATE, False),
    ],
)
def test_pair_is_late_by_start_time_or_by_its_report(
    start_s: float | None, outcome: Outcome, late: bool
) -> None:
    result = _graded(_pair(outcome), 10, start_s=start_s)
    assert (result.state is SecondState.LATE) is late
    assert result.completeness.seconds(SecondState.LATE if late else SecondState.MEASURED) == 10
    if late and start_s:
        assert result.reason == (
            f"data began 1.5 s {'after' if start_s > 0 else 'before'} the start"
        )


def test_combined_parts_add_up() -> None:
    one = Completeness.of({SecondState.MEASURED: 3, SecondState.LOST: 1})
    other = Completeness.of({SecondState.MEASURED: 2, SecondState.LATE: 4})
    both = combine([one, other])
    assert (both.planned_s, both.measured_s, both.late_s, both.lost_s) == (10, 5, 4, 1)
    assert both.completeness_ratio == 0.5
    assert combine([]) == Completeness.of({})


def _reading(**options: Any) -> ClockReading:
    known = {"read_at": AT, "synchronised": True, "offset_s": 0.0, "bound_s": 0.001}
    return ClockReading(source=ClockSource.CHRONY, **(known | options))


def _clocked(*readings: ClockReading | None, claimed: bool = False) -> PairEvidence:
    """Return a pair with the given readings, before and after, for client and server.

    Use ``claimed`` to put the first reading into the claim.
    """
    before, after, first, last = readings
    return PairEvidence(
        pair_index=0,
        claim=CLAIM.model_copy(update={"clock": before}) if claimed else None,
        report=job_report(0, AT, clock_before=None if claimed else before, clock_after=after),
        server_test=ServerTest(
            agent_id="s",
            endpoint=Endpoint(agent_id="s", address="10.0.0.1", port=5201),
            started_at=AT,
            engine=EngineReport(engine="iperf3"),
            clock_before=first,
            clock_after=last,
        ),
    )


GOOD = [_reading()] * 4
MEASURED = PairGrade(
    completeness=Completeness.of({SecondState.MEASURED: 6, SecondState.LOST: 4}),
    state=SecondState.MEASURED,
    reason=None,
    start_error_s=0.0,
    proven_ratio=1.0,
)


@pytest.mark.parametrize("end", range(4))
@pytest.mark.parametrize(
    "reading",
    [None, _reading(synchronised=False), _reading(offset_s=None), _reading(bound_s=None)],
)
def test_clock_needs_readings_before_and_after_at_both_ends(
    end: int, reading: ClockReading | None
) -> None:
    bad = [*GOOD[:end], reading, *GOOD[end + 1 :]]
    pairs = SimpleNamespace(pairs=[_clocked(*GOOD), _clocked(*bad)])
    aligned = cast(Aligned, pairs)
    assert clock_fields(aligned, [MEASURED] * 2, 0.05)["clocks_read_ratio"] == 0.5
    # If this reading shows that the clock is wrong, it is not counted as missing.
    off = end in {1, 3} and reading is not None
    off = off and reading in (_reading(synchronised=False), _reading(bound_s=None))
    assert clock_fields(aligned, [MEASURED] * 2, 0.05)["clocks_unread_s"] == (0 if off else 6)


def test_claim_provides_the_first_clock_reading() -> None:
    aligned = cast(Aligned, SimpleNamespace(pairs=[_clocked(*GOOD, claimed=True)]))
    assert clock_fields(aligned, [MEASURED], 0.05)["clocks_read_ratio"] == 1.0
    assert clock_fields(aligned, [MEASURED], 0.05)["clocks_unread_s"] == 0
    silent = cast(Aligned, SimpleNamespace(pairs=[PairEvidence(pair_index=0)]))
    assert clock_fields(silent, [MEASURED], 0.05)["clocks_read_ratio"] == 0.0
    empty = cast(Aligned, SimpleNamespace(pairs=[]))
    assert clock_fields(empty, [], 0.05)["clocks_read_ratio"] is None


def test_counts_moved_clocks_and_lists_three() -> None:
    moved = [*GOOD[:3], _reading(offset_s=9.0, bound_s=9.5)]
    steady_pair, bad = _clocked(*GOOD), _clocked(*moved)
    nothing = PairGrade(
        completeness=Completeness.of({SecondState.LOST: 10}), state=SecondState.LOST, reason="",
        start_error_s=None, proven_ratio=0.0,
    )  # fmt: skip
    late = PairGrade(
        completeness=Completeness.of({SecondState.LATE: 10}), state=SecondState.LATE, reason="",
        start_error_s=9.0, proven_ratio=0.0,
    )  # fmt: skip
    pairs = [bad, steady_pair, bad, bad, bad, bad]
    aligned = cast(Aligned, SimpleNamespace(pairs=pairs))
    grades = [MEASURED, MEASURED, nothing, late, MEASURED, MEASURED]
    result = clock_fields(aligned, grades, 0.05)["unsteady_clocks"]
    assert result is not None
    assert (result.pairs_count, result.measured_s) == (4, 18)
    assert len(result.examples) == 3
    assert all(item.startswith("pair-001 (") for item in result.examples)
    steady = cast(Aligned, SimpleNamespace(pairs=[steady_pair, bad]))
    assert clock_fields(steady, [MEASURED, nothing], 0.05)["unsteady_clocks"] is None
