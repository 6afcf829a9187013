from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.plan.schedule import (
    DUE_MAX_COUNT,
    ROWS_MAX_COUNT,
    BadSchedule,
    Firing,
    FiringState,
    MissedPolicy,
    Schedule,
    check,
    due,
    ended,
    first_rows,
    idle,
    localise,
    next_instants,
    runs_left,
    settled,
    too_late,
)
from broadside.coordinator.core.run_spec import RunSpec

NOW = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
SPEC = RunSpec(scenario="smoke")


def schedule(cron: str | None = "*/10 * * * *", **changes: object) -> Schedule:
    values: dict[str, object] = {
        "name": "nightly",
        "spec": SPEC,
        "cron": cron,
        "created_by": "tester",
        "created_at": NOW,
        "from_at": NOW,
        "settled_at": NOW,
    }
    return Schedule.model_validate(values | changes)


def local(cron: str, zone: str, from_utc: str, count: int) -> list[str]:
    """Return the next local times with their UTC offset."""
    after = datetime.fromisoformat(from_utc).replace(tzinfo=UTC)
    plan = schedule(cron, timezone=zone, from_at=after, settled_at=after)
    return [
        f"{at.astimezone(ZoneInfo(zone)):%d %H:%M %z}" for at in next_instants(plan, after, count)
    ]


def row(at: datetime, state: FiringState, **changes: object) -> Firing:
    values = {"instant_at": at, "state": state, "noted_at": at}
    return Firing.model_validate(values | changes)


def minutes(*numbers: int) -> list[datetime]:
    return [NOW.replace(second=0) + timedelta(minutes=number) for number in numbers]


# Daylight saving time ----------------------------------------------------------------------------

GAPS = {
    # Zone: (time in the gap, start, first local time, local time on the next day)
    "Europe/Amsterdam": ("30 2 * * *", "2026-03-28T12:00", "29 03:00 +0200", "30 02:30 +0200"),
    "America/New_York": ("30 2 * * *", "2026-03-07T12:00", "08 03:00 -0400", "09 02:30 -0400"),
    "Australia/Lord_Howe": ("15 2 * * *", "2026-10-03T10:00", "04 02:30 +1100", "05 02:15 +1100"),
}
FOLDS = {
    "Europe/Amsterdam": ("30 2 * * *", "2026-10-24T12:00", "25 02:30 +0200", "26 02:30 +0100"),
    "America/New_York": ("30 1 * * *", "2026-10-31T12:00", "01 01:30 -0400", "02 01:30 -0500"),
    "Australia/Lord_Howe": ("45 1 * * *", "2026-04-04T10:00", "05 01:45 +1100", "06 01:45 +1030"),
}


@pytest.mark.parametrize("zone", GAPS)
def test_time_in_dst_gap_runs_at_first_instant_after_it(zone: str) -> None:
    cron, after, shifted, next_day = GAPS[zone]
    assert local(cron, zone, after, 2) == [shifted, next_day]


@pytest.mark.parametrize("zone", FOLDS)
def test_time_in_dst_fold_runs_once_at_its_first_occurrence(zone: str) -> None:
    cron, after, first, next_day = FOLDS[zone]
    assert local(cron, zone, after, 2) == [first, next_day]


def test_time_in_dst_fold_does_not_run_at_second_occurrence() -> None:
    # This is 02:40 in Amsterdam before the change and 02:10 after it.
    for after in ("2026-10-25T00:40", "2026-10-25T01:10"):
        assert local("30 2 * * *", "Europe/Amsterdam", after, 1) == ["26 02:30 +0100"]


def test_hourly_runs_follow_wall_clock_across_dst_changes() -> None:
    hourly = "0 * * * *"
    assert local(hourly, "Europe/Amsterdam", "2026-03-29T00:30", 2) == [
        "29 03:00 +0200",
        "29 04:00 +0200",
    ]
    assert local(hourly, "Europe/Amsterdam", "2026-10-24T23:30", 3) == [
        "25 02:00 +0200",
        "25 02:00 +0100",
        "25 03:00 +0100",
    ]
    assert local(hourly, "America/New_York", "2026-03-08T06:30", 1) == ["08 03:00 -0400"]
    assert local(hourly, "America/New_York", "2026-11-01T04:30", 3) == [
        "01 01:00 -0400",
        "01 01:00 -0500",
        "01 02:00 -0500",
    ]
    # The change is half an hour, so 02:00 is one and a half hours after 01:00.
    assert local(hourly, "Australia/Lord_Howe", "2026-04-04T13:30", 3) == [
        "05 01:00 +1100",
        "05 02:00 +1030",
        "05 03:00 +1030",
    ]
    assert local(hourly, "Australia/Lord_Howe", "2026-10-03T14:00", 2) == [
        "04 01:00 +1030",
        "04 03:00 +1100",
    ]


def test_quarter_hours_repeat_in_order_in_half_hour_fold() -> None:
    assert local("*/15 * * * *", "Australia/Lord_Howe", "2026-04-04T14:10", 6) == [
        "05 01:15 +1100",
        "05 01:30 +1100",
        "05 01:45 +1100",
        "05 01:30 +1030",
        "05 01:45 +1030",
        "05 02:00 +1030",
    ]


def test_does_not_skip_hour_after_half_hour_gap() -> None:
    assert local("*/15 3 * * *", "Australia/Lord_Howe", "2026-10-03T10:00", 2) == [
        "04 03:00 +1100",
        "04 03:15 +1100",
    ]


def test_times_merged_by_dst_gap_run_once() -> None:
    assert local("0,30 2,3 * * *", "Europe/Amsterdam", "2026-03-29T00:30", 3) == [
        "29 03:00 +0200",
        "29 03:30 +0200",
        "30 02:00 +0200",
    ]


@given(
    cron=st.sampled_from(["*/7 * * * *", "30 2 * * *", "15,45 1,2 * * *", "0 * * * *"]),
    zone=st.sampled_from(sorted(GAPS)),
    after=st.integers(0, 525_600).map(
        lambda minute: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
    ),
    step=st.integers(1, 5),
)
def test_instants_ascend_and_do_not_depend_on_start_time(
    cron: str, zone: str, after: datetime, step: int
) -> None:
    plan = schedule(cron, timezone=zone, from_at=after, settled_at=after)
    result = next_instants(plan, after, 8)
    assert result == sorted(set(result))
    assert all(at > after for at in result)
    assert next_instants(plan, result[step - 1], 8 - step) == result[step:]


def test_localises_time_without_offset_and_rejects_time_in_gap() -> None:
    instant = localise(datetime.fromisoformat("2026-11-21T02:00"), "Europe/Amsterdam", "at")
    assert instant == datetime(2026, 11, 21, 1, tzinfo=UTC)
    with_offset = datetime.fromisoformat("2026-11-21T02:00+05:00")
    assert localise(with_offset, "Europe/Amsterdam", "at").hour == 21
    with pytest.raises(BadSchedule, match="at: 2027-03-28 02:30 does not exist in Europe/Amsterd"):
        localise(datetime.fromisoformat("2027-03-28T02:30"), "Europe/Amsterdam", "at")


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"cron": "0 25 * * *"}, r"cron: hour '25' in '0 25 \* \* \*' is invalid; use 0-23"),
        ({"cron": "0 2 * * 9"}, "cron: day-of-week '9'"),
        ({"cron": "0 2 31 feb *"}, "cron: day-of-month '31'"),
        ({"cron": "x 2 * * *"}, "cron: minute 'x'"),
        ({"cron": "0 2 * *"}, "has 4 fields; use five"),
        ({"cron": "99 0 2 * * *"}, "cron: second '99'"),
        ({"timezone": "Europe/Amsterdm"}, "did you mean Europe/Amsterdam?"),
        ({"timezone": "amsterdam"}, "did you mean Europe/Amsterdam?"),
        ({"timezone": "../etc/passwd"}, "is unknown"),
        ({"cron": None, "at": NOW - timedelta(seconds=1)}, "at: .* is in the past"),
        ({"cron": None}, "set exactly one of them"),
        ({"at": NOW + timedelta(hours=1)}, "set exactly one of them"),
        ({"until_at": NOW + timedelta(minutes=1)}, "until: no start time between now"),
    ],
)
def test_schedule_error_is_one_line_with_field_value_and_fix(
    changes: dict[str, object], pattern: str
) -> None:
    with pytest.raises(BadSchedule, match=pattern) as caught:
        check(schedule(**changes), NOW)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


# States of an instant ----------------------------------------------------------------------------


def test_instant_on_time_waits_and_recorded_instant_is_not_due() -> None:
    plan, now = schedule(), NOW + timedelta(minutes=10)
    first = due(plan, {}, now)
    assert first == minutes(10)
    (made,) = first_rows(plan, first, now)
    assert (made.state, made.instant_at) == (FiringState.WAITING, minutes(10)[0])
    assert due(plan, {made.instant_at: made}, now) == []


def test_skip_policy_records_every_missed_instant() -> None:
    now = NOW + timedelta(minutes=35)
    rows = first_rows(schedule(), due(schedule(), {}, now), now)
    assert [made.instant_at for made in rows] == minutes(10, 20, 30)
    assert {made.state for made in rows} == {FiringState.MISSED}


def test_run_late_policy_uses_only_newest_instant_within_limit() -> None:
    plan = schedule(missed=MissedPolicy.RUN_LATE, missed_limit_s=600)
    now = NOW + timedelta(minutes=35)
    rows = first_rows(plan, due(plan, {}, now), now)
    assert [made.state.value for made in rows] == ["missed", "missed", "waiting"]
    assert "is used instead" in (rows[0].reason or "")
    strict = plan.model_copy(update={"missed_limit_s": 60})
    assert {made.state for made in first_rows(strict, minutes(10, 20, 30), now)} == {
        FiringState.MISSED
    }


def test_instant_on_time_replaces_late_instant() -> None:
    plan = schedule(missed=MissedPolicy.RUN_LATE)
    now = NOW + timedelta(minutes=30)
    rows = first_rows(plan, due(plan, {}, now), now)
    assert [made.state.value for made in rows] == ["missed", "missed", "waiting"]


def test_many_missed_instants_share_one_row_and_are_not_due_again() -> None:
    plan, now = schedule("* * * * *"), NOW + timedelta(minutes=500)
    instants = due(plan, {}, now)
    rows = first_rows(plan, instants, now)
    crowd = rows[0]
    # There is one row for the older instants, and one that is on time.
    assert len(rows) == ROWS_MAX_COUNT + 2
    assert sum(made.instants_count for made in rows) == len(instants) == 500
    stored = {made.instant_at: made for made in rows}
    assert due(plan, stored, now) == []
    assert due(plan, {crowd.instant_at: crowd}, now) == [m.instant_at for m in rows[1:]]
    mark = settled(plan, {crowd.instant_at: crowd}).settled_at
    assert mark == crowd.until_at == minutes(399)[0]


class Counted(CronSim):
    """Count how many times are computed."""

    steps_count = 0

    def __next__(self) -> datetime:
        Counted.steps_count += 1
        return super().__next__()


def test_finds_rare_instant_with_few_cron_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broadside.coordinator.core.plan.schedule.CronSim", Counted)
    for cron, day in (
        ("0 2 1 1 *", datetime(2027, 1, 1, 2, tzinfo=UTC)),
        ("0 2 29 2 *", datetime(2028, 2, 29, 2, tzinfo=UTC)),
    ):
        Counted.steps_count = 0
        assert due(schedule(cron), {}, day + timedelta(seconds=5)) == [day]
        assert Counted.steps_count < 5


def test_cron_ends_at_year_9999() -> None:
    result = next_instants(schedule("0 2 1 1 *"), NOW, DUE_MAX_COUNT)
    assert result[-1] == datetime(9999, 1, 1, 2, tzinfo=UTC)


def test_limits_number_of_due_instants_after_long_downtime() -> None:
    plan = schedule("* * * * *")
    assert len(due(plan, {}, NOW + timedelta(days=700))) == DUE_MAX_COUNT


def test_no_instant_is_due_during_pause_and_earlier_ones_are_missed() -> None:
    paused = schedule(paused_at=NOW + timedelta(minutes=15))
    now = NOW + timedelta(minutes=16)
    instants = due(paused, {}, NOW + timedelta(minutes=60))
    assert instants == minutes(10)
    assert [made.state for made in first_rows(paused, instants, now)] == [FiringState.MISSED]
    resumed = schedule(from_at=NOW + timedelta(minutes=45))
    assert due(resumed, {}, NOW + timedelta(minutes=60)) == minutes(50, 60)


def test_schedule_ends_at_end_time_or_run_count() -> None:
    plan = schedule(until_at=minutes(25)[0], runs_max_count=2)
    assert next_instants(plan, NOW, 5) == minutes(10, 20)
    rows = {at: row(at, FiringState.LAUNCHED, run_id="r-1") for at in minutes(10)}
    assert runs_left(plan, rows) == 1
    assert runs_left(plan, rows | {at: row(at, FiringState.FIRING) for at in minutes(20)}) == 0
    assert runs_left(plan, {at: row(at, FiringState.REFUSED) for at in minutes(10)}) == 2
    done = plan.model_copy(update={"runs_count": 2})
    assert ended(done, NOW)
    assert idle(done, NOW + timedelta(days=1))
    assert not ended(plan, NOW)
    assert ended(plan, NOW + timedelta(hours=1))


def test_one_time_schedule_fires_once() -> None:
    plan = schedule(None, at=minutes(10)[0])
    assert next_instants(plan, NOW, 5) == minutes(10)
    assert due(plan, {}, NOW + timedelta(minutes=11)) == minutes(10)
    assert idle(plan, NOW)


def test_settled_mark_stops_at_first_open_firing() -> None:
    rows = {
        minutes(10)[0]: row(minutes(10)[0], FiringState.LAUNCHED, run_id="r-1"),
        minutes(20)[0]: row(minutes(20)[0], FiringState.REFUSED),
        minutes(30)[0]: row(minutes(30)[0], FiringState.WAITING),
        minutes(40)[0]: row(minutes(40)[0], FiringState.LAUNCHED, run_id="r-4"),
    }
    moved = settled(schedule(), rows)
    assert (moved.settled_at, moved.runs_count, moved.last_run_id) == (minutes(20)[0], 1, "r-1")
    # The result must be the same if it is computed again.
    assert settled(moved, rows) == moved


def test_late_start_follows_missed_policy() -> None:
    on_time, late = NOW + timedelta(seconds=59), NOW + timedelta(seconds=90)
    assert too_late(schedule(), NOW, on_time) is None
    assert "90 s" in (too_late(schedule(), NOW, late) or "")
    lenient = schedule(missed=MissedPolicy.RUN_LATE)
    assert too_late(lenient, NOW, late) is None
    assert "above the limit" in (too_late(lenient, NOW, NOW + timedelta(hours=2)) or "")
