from datetime import timedelta

import pytest

from agent.control_watch import LAST_LOOK_S, LAST_WORD_S, ControlWatch
from exchange.messages import Control
from tests.unit.agent.jobs import INSTANT_AT, INSTANT_S


def make_watch() -> ControlWatch:
    return ControlWatch(instant_s=INSTANT_S)


def control(lease_s: float) -> Control:
    return Control(run_id="run-1", lease_until_at=INSTANT_AT + timedelta(seconds=lease_s))


def test_a_lease_that_lapses_stops_the_run() -> None:
    watch = make_watch()
    assert watch.see(control(30), INSTANT_S + 29) is None
    assert "lease lapsed" in (watch.see(control(30), INSTANT_S + 30) or "")


def test_a_lease_that_is_renewed_before_the_last_look_stops_nothing() -> None:
    watch = make_watch()
    assert watch.see(control(-20), INSTANT_S - 15) is None
    assert watch.miss("away", INSTANT_S - 10) is None
    assert watch.see(control(60), INSTANT_S - LAST_LOOK_S) is None


def test_a_lease_that_is_not_renewed_by_the_last_look_stops_the_run() -> None:
    lapsed = control(-20)
    seen, missed = make_watch(), make_watch()
    seen.see(lapsed, INSTANT_S - 15)
    missed.see(lapsed, INSTANT_S - 15)
    assert "lease lapsed" in (seen.see(lapsed, INSTANT_S - LAST_LOOK_S) or "")
    assert missed.miss("away", INSTANT_S - LAST_LOOK_S) is None, "the answer may be on its way"
    assert "unreadable" in (missed.miss("away", INSTANT_S - LAST_WORD_S) or "")


def test_the_row_is_read_at_the_last_look_and_judged_at_the_last_word() -> None:
    watch = make_watch()
    assert watch.pause_s(1.0, INSTANT_S - 10) == 1.0
    assert watch.pause_s(1.0, INSTANT_S - LAST_LOOK_S - 0.25) == pytest.approx(0.25)
    assert watch.pause_s(1.0, INSTANT_S - LAST_LOOK_S) == pytest.approx(LAST_LOOK_S - LAST_WORD_S)
    assert watch.pause_s(1.0, INSTANT_S - LAST_WORD_S) == 1.0


def test_a_cancel_stops_the_run_at_once() -> None:
    row = control(60).model_copy(update={"cancelled_at": INSTANT_AT})
    assert "cancelled" in (make_watch().see(row, INSTANT_S - 15) or "")


def test_the_row_must_be_read_once_before_the_instant() -> None:
    watch = make_watch()
    assert watch.miss("away", INSTANT_S - 2) is None
    assert "before the instant: away" in (watch.miss("away", INSTANT_S - LAST_WORD_S) or "")


def test_an_outage_stops_nothing_while_the_lease_last_read_runs() -> None:
    watch = make_watch()
    assert watch.see(control(60), INSTANT_S) is None
    assert watch.miss("away", INSTANT_S + 59) is None
    assert watch.see(control(120), INSTANT_S + 59.5) is None
    assert watch.miss("away", INSTANT_S + 119) is None


def test_an_agent_that_is_cut_off_stops_with_its_lease() -> None:
    watch = make_watch()
    watch.see(control(60), INSTANT_S)
    reason = watch.miss("away", INSTANT_S + 60) or ""
    assert "lease lapsed" in reason
    assert "unreadable: away" in reason


def test_a_cancel_counts_also_after_an_outage() -> None:
    watch = make_watch()
    watch.see(control(30), INSTANT_S)
    watch.miss("away", INSTANT_S + 1)
    row = control(300).model_copy(update={"cancelled_at": INSTANT_AT})
    assert "cancelled by somebody" in (watch.see(row, INSTANT_S + 2) or "")
