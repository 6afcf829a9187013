"""Tests for the outage log with times, counts, merging and limits."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from broadside.exchange.messages import (
    TROUBLES_MAX_COUNT,
    JobReport,
    OutageKind,
    Outcome,
    ServiceOutage,
)
from broadside.exchange.outage_log import OutageLog

AT = datetime(2026, 11, 20, 3, 12, tzinfo=UTC)
QUEUE, TABLE, TWICE = OutageKind.QUEUE_AWAY, OutageKind.TABLE_AWAY, OutageKind.DUPLICATE


class Clock:
    """Clock that will only move when it is set by the test."""

    def __init__(self) -> None:
        self.now = AT

    def __call__(self) -> datetime:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def test_outage_lasts_from_first_failure_to_first_success() -> None:
    clock = Clock()
    log = OutageLog(clock)
    log.record_success(TABLE)
    for _ in range(3):
        log.failed(TABLE)
        clock.go(10)
    log.record_success(QUEUE)
    [open_] = log.between(AT, clock())
    assert (open_.kind, open_.from_at, open_.to_at, open_.count) == (TABLE, AT, None, 3)
    log.record_success(TABLE)
    clock.go(100)
    log.record_success(TABLE)
    [over] = log.between(AT, clock())
    assert over.to_at == AT + timedelta(seconds=30)


def test_close_failures_are_merged_into_one_outage() -> None:
    clock = Clock()
    log = OutageLog(clock)
    for pause_s in (4, 4, 6, 0):
        log.failed(TABLE)
        log.record_success(TABLE)
        clock.go(pause_s)
    first, second = log.between(AT, clock())
    assert (first.count, first.to_at) == (3, AT + timedelta(seconds=8))
    assert (second.count, second.from_at) == (1, AT + timedelta(seconds=14))


def test_single_events_are_counted() -> None:
    clock = Clock()
    log = OutageLog(clock)
    log.happened(TWICE)
    clock.go(2)
    log.happened(TWICE)
    [twice] = log.between(AT, clock())
    assert (twice.from_at, twice.to_at, twice.count) == (AT, AT + timedelta(seconds=2), 2)


def test_outages_are_selected_by_span_and_reported_once() -> None:
    clock = Clock()
    log = OutageLog(clock)
    log.failed(QUEUE)
    clock.go(1)
    log.record_success(QUEUE)
    clock.go(100)
    log.failed(TABLE)
    assert [t.kind for t in log.between(AT + timedelta(seconds=2), clock())] == [TABLE]
    assert [t.kind for t in log.between(AT, AT + timedelta(seconds=50))] == [QUEUE]
    assert [t.kind for t in log.new_since(AT)] == [QUEUE, TABLE]
    clock.go(1)
    assert [t.kind for t in log.new_since(AT)] == [TABLE], "the outage continues"
    log.record_success(TABLE)
    clock.go(1)
    assert [t.kind for t in log.new_since(AT)] == [TABLE], "the outage ended"
    clock.go(1)
    assert log.new_since(AT) == ()


@given(st.lists(st.tuples(st.sampled_from(list(OutageKind)), st.integers(0, 2), st.floats(0, 60))))
def test_number_of_reported_outages_is_limited(
    events: list[tuple[OutageKind, int, float]],
) -> None:
    clock = Clock()
    log = OutageLog(clock)
    for kind, method, pause_s in events:
        (log.failed, log.happened, log.record_success)[method](kind)
        clock.go(pause_s)
    reported = log.between(AT, clock())
    assert len(reported) <= TROUBLES_MAX_COUNT
    assert [t.from_at for t in reported] == sorted(t.from_at for t in reported)
    assert all(t.to_at is None or t.to_at >= t.from_at for t in reported)


def test_delayed_report_has_its_delivery_time() -> None:
    open_ = ServiceOutage(kind=TABLE, from_at=AT, count=4)
    over = ServiceOutage(kind=QUEUE, from_at=AT, to_at=AT + timedelta(seconds=1), count=1)
    report = JobReport(
        job_id="run-1.00000.00000",
        run_id="run-1",
        burst_index=0,
        pair_index=0,
        agent_id="c1",
        outcome=Outcome.MEASURED,
        planned_start_at=AT,
        reported_at=AT,
        troubles=(over, open_),
    )
    at = AT + timedelta(seconds=20)
    late = report.delivered(at)
    assert late.delivered_at == at
    assert late.troubles == (over, open_.model_copy(update={"to_at": at}))
    assert JobReport.model_validate_json(late.model_dump_json()) == late
