"""Tests to compare the rate of a pair to its median, and to get the state in which it ends."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from broadside.coordinator.core.measure.completeness import PairGrade
from broadside.coordinator.core.measure.disruptions import (
    Levels,
    _absence,
    _cluster,
    _Ending,
    _ending,
    _Event,
    _groups,
    _hints,
    _median,
    _moving_median,
    _of_pair,
    _PairRecord,
    _reading_bounds,
    _spans,
    judge_levels,
)
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.run_spec import Burst, RunSpec
from broadside.coordinator.core.summary import Completeness, DisruptionKind, SecondState
from broadside.exchange.messages import Claim, EngineReport, JobPhase, Outcome
from tests.unit.coordinator.core.records import job_report

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT_S = AT.timestamp()
BURST = Burst(index=3, planned_start_at=AT, duration_s=10)
SPEC = cast(RunSpec, SimpleNamespace(clock_bound_max_s=0.05))


def test_spans_of_true_cells() -> None:
    flags = np.array([True, True, False, True, False, False, True])
    assert list(_spans(flags)) == [(0, 2), (3, 4), (6, 7)]
    assert list(_spans(np.zeros(3, bool))) == []


@pytest.mark.parametrize(
    ("begin", "stop", "reading_s", "span"),
    [
        (3, 5, None, (3, 5)),
        (3, 5, 2.0, (2, 6)),
        (4, 6, 2.0, (4, 6)),
        (0, 1, 5.0, (0, 5)),
        # This is not longer than the burst.
        (8, 9, 5.0, (5, 9)),
    ],
)
def test_widens_a_span_to_its_readings(
    begin: int, stop: int, reading_s: float | None, span: tuple[float, float]
) -> None:
    assert _reading_bounds(begin, stop, reading_s, 9) == span


def test_median_is_the_lower_middle_of_finite_values() -> None:
    rows = np.array([[5.0, 1, 3, 2, 4, 6], [9.0, 9, 9, np.inf, np.inf, np.inf]])
    assert float(_median(rows)[0]) == 3.0
    assert np.isnan(_median(np.full((1, 6), np.inf))[0])


def test_usual_rate_is_the_median_of_the_previous_minute() -> None:
    """After the rate is changed to 20, it takes half a minute to become the median."""
    rates = np.array([[10.0] * 60 + [20.0] * 90])
    usual = _moving_median(rates)[0]
    assert set(usual[:60]) == {10.0}
    assert usual[60] == 10.0
    assert usual[-1] == 20.0
    assert (np.diff(usual) >= 0).all()
    changed = int(np.flatnonzero(np.diff(usual))[0]) + 1
    assert 90 <= changed <= 96


def test_half_of_the_usual_rate_is_low_and_near_zero_is_empty() -> None:
    rates = np.full((3, 30), 100.0)
    # This is low because it is at the limit.
    rates[0, 10:12] = 50.0
    rates[1, 10:12] = 51.0
    rates[2, 10:12] = 0.0
    levels = judge_levels(rates, np.ones_like(rates), 0.5)
    assert [list(np.flatnonzero(row)) for row in levels.low] == [[10, 11], [], [10, 11]]
    assert [list(np.flatnonzero(row)) for row in levels.empty] == [[], [], [10, 11]]
    assert set(levels.median.ravel()) == {100.0}


def test_unobserved_seconds_are_unknown_and_partial_ones_are_scaled() -> None:
    rates = np.full((1, 30), 100.0)
    coverage = np.ones((1, 30))
    rates[0, 10], coverage[0, 10] = 0.0, 0.0
    # This is 100 for the part that was seen.
    rates[0, 11], coverage[0, 11] = 90.0, 0.9
    levels = judge_levels(rates, coverage, 0.5)
    assert np.isnan(levels.rates[0, 10])
    assert levels.rates[0, 11] == 100.0
    assert not levels.low.any()


def test_ramp_is_not_a_drop() -> None:
    rates = np.full((1, 30), 100.0)
    rates[0, :3] = [10.0, 20.0, 40.0]
    assert not judge_levels(rates, np.ones_like(rates), 0.5).low.any()


def test_level_of_more_than_a_minute_becomes_the_usual_rate() -> None:
    rates = np.array([[100.0] * 60 + [30.0] * 100])
    low = judge_levels(rates, np.ones_like(rates), 0.5).low[0]
    assert low[60:100].all()
    assert not low[125:].any()


def _grade(state: SecondState, reason: str | None = "why") -> PairGrade:
    return PairGrade(
        completeness=Completeness.of({state: 10}), state=state, reason=reason,
        start_error_s=None, proven_ratio=0.0,
    )  # fmt: skip


CLAIM = Claim(job_id="j", agent_id="c-1", phase=JobPhase.RUNNING, claimed_at=AT)


@pytest.mark.parametrize(
    ("pair", "state", "kind", "cause"),
    [
        (
            {"claim": CLAIM},
            SecondState.LOST,
            DisruptionKind.CUT,
            "c-1 stopped reporting: it was killed or lost its network",
        ),
        ({"claim": CLAIM}, SecondState.PENDING, DisruptionKind.GAP, "why"),
        ({}, SecondState.MISSED, DisruptionKind.ABSENT, "why"),
        ({}, SecondState.LOST, DisruptionKind.GAP, "why"),
    ],
)
def test_end_without_a_report_uses_other_evidence(
    pair: dict[str, Any], state: SecondState, kind: DisruptionKind, cause: str
) -> None:
    result = _ending(PairEvidence(pair_index=0, **pair), _grade(state))
    assert result == _Ending(kind=kind, cause=cause, broken=False)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.FAILED, DisruptionKind.RESET),
        (Outcome.ABANDONED, DisruptionKind.CUT),
        (Outcome.MISSED, DisruptionKind.ABSENT),
        (Outcome.REFUSED, DisruptionKind.ABSENT),
        (Outcome.MEASURED, DisruptionKind.GAP),
        (Outcome.LATE, DisruptionKind.GAP),
    ],
)
def test_report_decides_how_a_pair_ended(outcome: Outcome, kind: DisruptionKind) -> None:
    def ended(**fields: Any) -> _Ending:
        report = job_report(0, AT, outcome=outcome, **fields)
        return _ending(PairEvidence(pair_index=0, report=report), _grade(SecondState.LOST))

    result = ended(reason="given reason")
    assert (result.kind, result.broken) == (kind, outcome is Outcome.FAILED)
    if kind is DisruptionKind.GAP:
        assert result.cause == "why"
        return
    assert result.cause == "client-0: given reason"
    assert ended().cause == f"client-0: {outcome}"
    engine = EngineReport(engine="iperf3", error="reset by peer")
    assert ended(engine=engine).cause == "client-0: reset by peer"


def test_pair_without_any_record_was_absent() -> None:
    cut = _Ending(kind=DisruptionKind.CUT, cause="killed", broken=False)
    result = _absence(2, BURST, cut)
    assert (result.kind, result.row, result.cause) == (DisruptionKind.ABSENT, 2, "killed")
    assert (result.start_s, result.end_s, result.short_bytes) == (AT_S, AT_S + 10, None)
    reset = _Ending(kind=DisruptionKind.RESET, cause="x", broken=True)
    assert _absence(2, BURST, reset).kind is DisruptionKind.RESET


GOES_ON = _Ending(kind=DisruptionKind.GAP, cause="lost rows", broken=False)
BROKE = _Ending(kind=DisruptionKind.RESET, cause="reset", broken=True)


def _events(
    rates: list[float],
    low: list[int] = [],  # noqa: B006 - not changed
    empty: list[int] = [],  # noqa: B006
    *,
    ending: _Ending = GOES_ON,
    over: bool = True,
    server_only: bool = False,
    reading_s: float | None = None,
) -> list[tuple[DisruptionKind, float, float, float | None, str | None]]:
    """Return the disruptions of a pair with a usual rate of 100 bytes per second."""
    row = np.array([rates])
    levels = Levels(
        rates=row,
        median=np.full(row.shape, 100.0),
        low=np.isin(np.arange(row.shape[1]), low)[None, :],
        empty=np.isin(np.arange(row.shape[1]), empty)[None, :],
    )
    known = np.flatnonzero(~np.isnan(row[0]))
    record = _PairRecord(
        row=0,
        ending=ending,
        zero_s=AT_S,
        last=int(known[-1]) + 1,
        hints="; ".join(_hints(PairEvidence(pair_index=0), SPEC, server_only=server_only)) or None,
        reading_s=reading_s,
    )
    result = _of_pair(record, levels, over=over)
    return [
        (item.kind, item.start_s - AT_S, item.end_s - AT_S, item.short_bytes, item.cause)
        for item in result
    ]


NAN = float("nan")


def test_drop_lacks_the_bytes_below_the_median() -> None:
    result = _events([100, 20, 30, 100], [1, 2])
    assert result == [(DisruptionKind.DROP, 1.0, 3.0, 150.0, None)]
    stalled = _events([100, 0, 30, 100], [1, 2], [1])
    assert stalled == [(DisruptionKind.STALL, 1.0, 3.0, 170.0, None)]


def test_unknown_seconds_between_known_ones_are_a_gap() -> None:
    result = _events([100, NAN, NAN, 100], server_only=True)
    assert result == [(DisruptionKind.GAP, 1.0, 3.0, None, "the server's record only")]


def test_missing_end_has_the_kind_of_the_report() -> None:
    assert _events([100, 100, NAN, NAN]) == [(DisruptionKind.GAP, 2.0, 4.0, None, "lost rows")]
    assert _events([100, 100, NAN, NAN], over=False) == []
    broke = _events([100, 100, NAN, NAN], ending=BROKE, over=False, server_only=True)
    assert broke == [(DisruptionKind.RESET, 2.0, 4.0, 200.0, "reset; the server's record only")]


def test_drop_without_recovery_is_merged_with_the_end() -> None:
    result = _events([100, 100, 40, 0, NAN], [2, 3], [3], ending=BROKE)
    assert result == [(DisruptionKind.RESET, 2.0, 5.0, 60.0 + 100.0 + 100.0, "reset")]
    gap = _events([100, 100, 40, 0, NAN], [2, 3], [3])
    assert [item[0] for item in gap] == [DisruptionKind.STALL, DisruptionKind.GAP]


def test_events_are_as_long_as_readings() -> None:
    result = _events([100, 100, 100, 0, 100, 100], [3], [3], reading_s=2.0)
    assert result == [(DisruptionKind.STALL, 2.0, 4.0, 100.0, None)]


def _event(row: int, start_s: float, **fields: Any) -> _Event:
    known: dict[str, Any] = {
        "kind": DisruptionKind.STALL,
        "end_s": start_s + 1,
        "short_bytes": 10.0,
        "cause": None,
    }
    return _Event(row=row, start_s=start_s, **(known | fields))


def test_groups_events_of_one_kind_that_began_together() -> None:
    events = [
        _event(0, 0.0), _event(1, 1.5), _event(2, 90.0),
        _event(3, 0.5, kind=DisruptionKind.DROP),
    ]  # fmt: skip
    assert [[item.row for item in group] for group in _groups(events)] == [[3], [0, 1], [2]]
    assert list(_groups([])) == []


def test_group_sums_events_and_lists_pairs_and_causes() -> None:
    events = [_event(2, 5.0, cause="a"), _event(0, 3.0, cause="a"), _event(2, 4.0, cause="b")]
    result = _cluster(BURST, ["p0", "p1", "p2"], events)
    assert (result.kind, result.burst_index) == (DisruptionKind.STALL, 3)
    assert (result.start_at.timestamp(), result.end_at.timestamp()) == (3.0, 6.0)
    assert (result.duration_s, result.scope, result.pairs_count) == (3.0, "some", 2)
    assert (result.pairs, result.short_bytes, result.causes) == (("p0", "p2"), 30.0, ("a", "b"))
    assert result.resolution_s is None
    unknown = _cluster(BURST, ["p0"], [_event(0, 3.0, short_bytes=None), _event(0, 4.0)])
    assert (unknown.scope, unknown.short_bytes) == ("one", None)
    coarse = [_event(0, 3.0, resolution_s=5.0), _event(1, 3.0, resolution_s=10.0)]
    all_pairs = _cluster(BURST, ["p0", "p1"], coarse)
    assert (all_pairs.scope, all_pairs.resolution_s) == ("all", 10.0)
    many = [_event(0, 3.0, cause=f"cause {number}") for number in range(9)]
    causes = _cluster(BURST, ["p0", "p1"], many).causes
    assert causes[-1] == f"and {9 - (len(causes) - 1)} more"
