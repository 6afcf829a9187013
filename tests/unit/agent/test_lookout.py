from datetime import timedelta

from agent.lookout import LAST_WORD_S, RECOVERY_S, Lookout
from exchange.messages import Control
from tests.unit.agent.jobs import INSTANT_AT, INSTANT_S


def lookout() -> Lookout:
    return Lookout(instant_s=INSTANT_S, blind_max_s=100.0)


def control(lease_s: float) -> Control:
    return Control(run_id="run-1", lease_until_at=INSTANT_AT + timedelta(seconds=lease_s))


def test_a_lease_that_lapses_stops_the_run() -> None:
    watch = lookout()
    assert watch.see(control(30), INSTANT_S + 29) is None
    assert "lease lapsed" in (watch.see(control(30), INSTANT_S + 30) or "")


def test_the_row_must_be_read_once_before_the_instant() -> None:
    watch = lookout()
    assert watch.miss("away", INSTANT_S - 2) is None
    assert "before the instant: away" in (watch.miss("away", INSTANT_S - LAST_WORD_S) or "")


def test_an_outage_stops_nothing_until_it_has_lasted_too_long() -> None:
    watch = lookout()
    assert watch.see(control(30), INSTANT_S) is None
    assert watch.miss("away", INSTANT_S + 99) is None
    assert "blind_max_s" in (watch.miss("away", INSTANT_S + 101) or "")


def test_an_outage_is_not_held_against_the_lease() -> None:
    """The coordinator could not renew either: it gets its time when the table is back."""
    watch = lookout()
    watch.see(control(30), INSTANT_S + 20)
    watch.miss("away", INSTANT_S + 40)
    assert watch.see(control(30), INSTANT_S + 60) is None  # lapsed 30 s ago, but 40 s were dark
    assert watch.see(control(120), INSTANT_S + 61) is None
    watch.miss("away", INSTANT_S + 62)
    back_s = INSTANT_S + 63
    assert watch.see(control(120), back_s) is None
    assert "lapsed" in (watch.see(control(30), back_s + RECOVERY_S) or "")


def test_a_cancel_counts_also_after_an_outage() -> None:
    watch = lookout()
    watch.see(control(30), INSTANT_S)
    watch.miss("away", INSTANT_S + 1)
    row = control(300).model_copy(update={"cancelled_at": INSTANT_AT})
    assert "cancelled by somebody" in (watch.see(row, INSTANT_S + 2) or "")
