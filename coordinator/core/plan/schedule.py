"""Start times of schedules, and the state of each start time. Pure.

A cron expression has five fields (minute, hour, day of month, month, day of week), or six with
seconds first. It uses local time. cronsim finds the local times. This module converts them to UTC
when the clock is set forward (gap) or back (fold), in the same way as Debian's cron(8):

- A *fixed* time of day, with a minute and hour that do not start with ``*``, is used once a day. In
  a gap, this is the first time after the gap. In a fold, it is the first of the two times.
- A *repeating* time follows the clock. A time in a gap is not used, and a time in a fold is used
  twice.

The time zone support in cronsim is not used. It steps by whole hours, and misses 03:00 on the day
when the clock on Lord Howe Island is set forward by half an hour.
"""

import difflib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.messages import Message, RunId, UtcDatetime

# Seconds after the start time in which a launch still counts as on time.
ON_TIME_S: Final = 60.0
# Maximum number of missed start times with a row of their own. Older ones share one row.
ROWS_MAX_COUNT: Final = 100
# Maximum number of start times to check in one call.
DUE_MAX_COUNT: Final = 10_000
# Maximum number of start times in the queue of one schedule.
WAITING_MAX_COUNT: Final = 100

# Upper limit for a change of the clock in a time zone.
_SHIFT_MAX: Final = timedelta(hours=3)
_FIELDS: Final[Mapping[str, str]] = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31 that its months have, or L for the last",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, SAT#1 for the first, 5L for the last",
}


class BadSchedule(Exception):
    """The schedule is invalid. The text has field, value and fix."""


class Overlap(StrEnum):
    """Action for a start time when the last scheduled run is still in progress.

    Attributes:
        SKIP: Record the start time as skipped.
        QUEUE: Launch as soon as the last run has finished.
        CANCEL: Cancel the last run, and then launch.
    """

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"


class MissedPolicy(StrEnum):
    """Action for a start time that was missed because no coordinator was running.

    Attributes:
        SKIP: Record the start time as missed.
        RUN_LATE: Launch the newest one late, unless it is too old.
    """

    SKIP = "skip"
    RUN_LATE = "run-late"


class FiringState(StrEnum):
    """State of one start time.

    Attributes:
        WAITING: It is waiting to be launched.
        FIRING: A coordinator is launching it.
        LAUNCHED: The run was launched.
        SKIPPED: It was skipped because of the overlap policy.
        MISSED: No coordinator was running.
        REFUSED: The fleet or the budget did not allow the launch.
    """

    WAITING = "waiting"
    FIRING = "firing"
    LAUNCHED = "launched"
    SKIPPED = "skipped"
    MISSED = "missed"
    REFUSED = "refused"


OPEN: Final = frozenset({FiringState.WAITING, FiringState.FIRING})


class Firing(Message):
    """Row for one start time of a schedule. It is created only once.

    Attributes:
        instant_at: Start time of the schedule.
        state: State of this start time.
        noted_at: Time when a coordinator first detected it.
        by: Coordinator that launches it. None if it was not launched.
        since_at: Time when this coordinator began.
        turn_at: Time when it could first be launched.
        run_id: Id of the run, also while it is being launched.
        reason: Why it waits, or was skipped, missed or refused.
        until_at: Last start time, if this row is for many missed ones.
        instants_count: Number of start times that this row covers.
    """

    instant_at: UtcDatetime
    state: FiringState
    noted_at: UtcDatetime
    by: str | None = None
    since_at: UtcDatetime | None = None
    turn_at: UtcDatetime | None = None
    run_id: RunId | None = None
    reason: str | None = None
    until_at: UtcDatetime | None = None
    instants_count: int = 1

    @property
    def last_at(self) -> datetime:
        """Last start time in this row."""
        return self.until_at or self.instant_at


class Schedule(Message):
    """Start times at which a run is launched.

    Attributes:
        name: Name of the schedule.
        spec: Specification of its runs.
        cron: Cron expression. Either `cron` or `at` is set.
        at: Single start time. Either `cron` or `at` is set.
        timezone: IANA time zone for the cron expression.
        until_at: Last possible start time. None means no limit.
        runs_max_count: Maximum number of runs. None means no limit.
        overlap: Action if the last run has not ended.
        missed: Action for a missed start time.
        missed_limit_s: Seconds after the start time in which a late launch is allowed.
        paused_at: Time when it was paused. None if it is active.
        from_at: Time when the schedule was created or resumed. Earlier start times are not used.
        settled_at: Every start time up to this one has a row that will not change.
        runs_count: Number of runs that were launched up to ``settled_at``.
        last_run_id: Newest run that was launched up to ``settled_at``.
    """

    name: str
    spec: RunSpec
    cron: str | None = None
    at: UtcDatetime | None = None
    timezone: str = "UTC"
    until_at: UtcDatetime | None = None
    runs_max_count: int | None = None
    overlap: Overlap = Overlap.SKIP
    missed: MissedPolicy = MissedPolicy.SKIP
    missed_limit_s: int = 3600
    created_by: str
    created_at: UtcDatetime
    paused_at: UtcDatetime | None = None
    from_at: UtcDatetime
    settled_at: UtcDatetime
    runs_count: int = 0
    last_run_id: RunId | None = None


def check(schedule: Schedule, now: datetime) -> None:
    """Check a new schedule.

    Args:
        schedule: The schedule to check.
        now: Current time to use.

    Raises:
        BadSchedule: The schedule is invalid or will never start a run.
    """
    if (schedule.cron is None) == (schedule.at is None):
        raise BadSchedule("cron, at: set exactly one of them")
    check_zone(schedule.timezone)
    if schedule.at is not None and schedule.at <= now:
        raise BadSchedule(
            f"at: {_stamp(schedule.at)} is in the past (now {_stamp(now)}); set a later time"
        )
    if schedule.cron is not None:
        _check_cron(schedule.cron)
    if not next_instants(schedule, now, 1):
        if schedule.until_at is not None:
            raise BadSchedule(
                f"until: no start time between now ({_stamp(now)}) and "
                f"{_stamp(schedule.until_at)}; set a later end"
            )
        raise BadSchedule(f"cron: {schedule.cron!r} has no date in the next 50 years; correct it")


def check_zone(name: str) -> None:
    """Check a time zone name.

    Raises:
        BadSchedule: The name is not in the IANA database.
    """
    known = available_timezones()
    if name in known:
        return
    folded = {zone.lower(): zone for zone in sorted(known)}
    # Match the city too: "Amsterdam" should find Europe/Amsterdam, a name twice as long.
    cities = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known)}
    requested = name.strip().lower().replace(" ", "_")
    near = difflib.get_close_matches(requested, folded, n=1, cutoff=0.75)
    city = difflib.get_close_matches(requested.rpartition("/")[2], cities, n=1, cutoff=0.75)
    result = [folded[hit] for hit in near] + [cities[hit] for hit in city]
    hint = f"did you mean {result[0]}?" if result else "use a name such as Europe/Amsterdam or UTC"
    raise BadSchedule(f"timezone: {name!r} is unknown; {hint}")


def localise(wall: datetime, timezone: str, field: str) -> datetime:
    """Convert a local time to UTC.

    Args:
        wall: Local time. If it has an offset, this offset will be used. In a fold, the first of the
            two times is used.
        timezone: Time zone name.
        field: Field name, for error messages.

    Returns:
        The time in UTC.

    Raises:
        BadSchedule: The time is in a gap, or the time zone is unknown.
    """
    if wall.tzinfo is not None:
        return wall.astimezone(UTC)
    check_zone(timezone)
    zone = ZoneInfo(timezone)
    first_at, second_at = _both(wall, zone)
    if first_at > second_at:
        after = _after_gap(second_at, first_at, zone).astimezone(zone)
        raise BadSchedule(
            f"{field}: {wall:%Y-%m-%d %H:%M} does not exist in {timezone}, because the clock is "
            f"set forward; the next time is {after:%H:%M}"
        )
    return first_at


def next_instants(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    """Return the next start times in UTC, in ascending order.

    Args:
        schedule: The schedule.
        after: Return only later start times.
        count: Number to return. The list is shorter if the schedule ends.
    """
    return list(islice(_to_come(schedule, after), count))


def due(schedule: Schedule, fired: Mapping[datetime, Firing], now: datetime) -> list[datetime]:
    """Return the start times up to now that do not have a row yet, oldest first.

    The list has at most :data:`DUE_MAX_COUNT` items. For a paused schedule, it has no start time
    after the pause.

    Args:
        schedule: The schedule.
        fired: Rows by start time.
        now: Current time to use.
    """
    before_at = now if schedule.paused_at is None else min(now, schedule.paused_at)
    after_at = max([schedule.settled_at, *(row.until_at for row in fired.values() if row.until_at)])
    result = islice(_to_come(schedule, after_at), DUE_MAX_COUNT)
    begun = takewhile(lambda instant: instant <= before_at, result)
    return [instant for instant in begun if instant not in fired]


def idle(schedule: Schedule, now: datetime) -> bool:
    """Return True if no start time can be open or due, so that the rows need not be read.

    Args:
        schedule: The schedule.
        now: Current time to use.
    """
    most = schedule.runs_max_count
    if most is not None and schedule.runs_count >= most:
        return True
    instant = next(_instants(schedule, schedule.settled_at), None)
    return instant is None or instant > min(now, schedule.until_at or now)


def ended(schedule: Schedule, now: datetime) -> bool:
    """Return True if the schedule will never start a run again.

    Args:
        schedule: The schedule.
        now: Current time to use.
    """
    most = schedule.runs_max_count
    return (most is not None and schedule.runs_count >= most) or not next_instants(schedule, now, 1)


def runs_left(schedule: Schedule, fired: Mapping[datetime, Firing]) -> int | None:
    """Return the number of runs that can still be started.

    Args:
        schedule: The schedule.
        fired: Rows by start time. Open rows count as runs.

    Returns:
        The number, at least 0. None if the schedule has no limit.
    """
    if schedule.runs_max_count is None:
        return None
    taken = sum(
        row.state in OPEN or row.state is FiringState.LAUNCHED
        for at, row in fired.items()
        if at > schedule.settled_at
    )
    return max(0, schedule.runs_max_count - schedule.runs_count - taken)


def first_rows(schedule: Schedule, instants: Sequence[datetime], now: datetime) -> list[Firing]:
    """Return the first row for each due start time, in ascending order.

    A start time is missed if it is first detected more than :data:`ON_TIME_S` late. With the policy
    ``run-late``, the newest one within the limit is used if none was on time after it. If there are
    more than :data:`ROWS_MAX_COUNT` missed start times, the older ones share one row. The key of
    this row does not depend on ``now``, so that only one of several coordinators can create it.

    Args:
        schedule: The schedule.
        instants: Due start times in ascending order.
        now: Current time to use.
    """
    chosen = [at for at in instants if _on_time(at, now)]
    if schedule.missed is MissedPolicy.RUN_LATE and not chosen:
        limit = timedelta(seconds=schedule.missed_limit_s)
        chosen = [at for at in instants[-1:] if now - at <= limit and schedule.paused_at is None]
    if schedule.paused_at is not None:
        chosen = []
    missed = [at for at in instants if at not in chosen]
    why = _why_missed(schedule, chosen)
    crowd = missed[:-ROWS_MAX_COUNT]
    rows = [
        Firing(instant_at=at, state=FiringState.MISSED, noted_at=now, reason=why)
        for at in missed[len(crowd) :]
    ]
    if crowd:
        rows.append(
            Firing(
                instant_at=crowd[0],
                until_at=crowd[-1],
                instants_count=len(crowd),
                state=FiringState.MISSED,
                noted_at=now,
                reason=why,
            )
        )
    rows += [Firing(instant_at=at, state=FiringState.WAITING, noted_at=now) for at in chosen]
    return sorted(rows, key=lambda row: row.instant_at)


def too_late(schedule: Schedule, ready_at: datetime, now: datetime) -> str | None:
    """Return the reason why a waiting start time is missed.

    Args:
        schedule: The schedule.
        ready_at: Time when it could first be launched.
        now: Current time to use.

    Returns:
        The reason with the delay in seconds. None if the start time can still be used.
    """
    late = now - ready_at
    if late <= timedelta(seconds=ON_TIME_S):
        return None
    late_s = round(late.total_seconds())
    if schedule.missed is MissedPolicy.RUN_LATE:
        if late <= timedelta(seconds=schedule.missed_limit_s):
            return None
        return (
            f"no coordinator launched it for {late_s} s, above the limit of "
            f"{schedule.missed_limit_s} s"
        )
    return f"no coordinator launched it for {late_s} s"


def settled(schedule: Schedule, fired: Mapping[datetime, Firing]) -> Schedule:
    """Move ``settled_at`` past all rows that will not change, in order.

    The counts depend only on the rows between the old and the new time. The result is therefore the
    same for any coordinator and any number of calls.

    Args:
        schedule: The schedule.
        fired: Rows by start time.

    Returns:
        A copy with the new ``settled_at``, number of runs and last run.
    """
    mark_at, runs, last = schedule.settled_at, schedule.runs_count, schedule.last_run_id
    for at in sorted(fired):
        row = fired[at]
        if row.state in OPEN:
            break
        if at <= schedule.settled_at:
            continue
        mark_at = max(mark_at, row.last_at)
        if row.state is FiringState.LAUNCHED:
            runs, last = runs + 1, row.run_id
    return schedule.model_copy(
        update={"settled_at": mark_at, "runs_count": runs, "last_run_id": last}
    )


def _on_time(instant: datetime, now: datetime) -> bool:
    return (now - instant).total_seconds() <= ON_TIME_S


def _why_missed(schedule: Schedule, chosen: Sequence[datetime]) -> str:
    if schedule.paused_at is not None:
        return "no coordinator was running before the schedule was paused"
    if schedule.missed is MissedPolicy.SKIP:
        return f"no coordinator was running within {ON_TIME_S:g} s"
    if chosen:
        return f"no coordinator was running; the start time {_stamp(chosen[0])} is used instead"
    return f"no coordinator was running within {schedule.missed_limit_s} s"


def _check_cron(cron: str) -> None:
    parts = cron.split()
    names = list(_FIELDS)[-len(parts) :]
    if len(parts) not in (5, 6):
        raise BadSchedule(
            f"cron: {cron!r} has {len(parts)} fields; use five (minute hour day month weekday), "
            "for example '0 2 * * 6'"
        )
    try:
        CronSim(cron, datetime(2000, 1, 1))  # noqa: DTZ001 - a wall clock's time
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        if name not in names:
            raise BadSchedule(f"cron: {cron!r}: {error}; see cron(5)") from error
        value = parts[names.index(name)]
        raise BadSchedule(
            f"cron: {name} {value!r} in {cron!r} is invalid; use {_FIELDS[name]}, with * , - /"
        ) from error


def _to_come(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """Yield the start times of the schedule after a time."""
    until_at = schedule.until_at
    instants = _instants(schedule, max(after, schedule.from_at))
    return takewhile(lambda instant: until_at is None or instant <= until_at, instants)


def _instants(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    if schedule.at is not None:
        if schedule.at > after:
            yield schedule.at
    elif schedule.cron is not None:
        yield from _cron_instants(schedule.cron, ZoneInfo(schedule.timezone), after)


def _cron_instants(cron: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield start times after a time in ascending order, each once, up to the year 9999."""
    minute, hour = cron.split()[-5:-3]
    repeating = minute.startswith("*") or hour.startswith("*")
    # We need to start before the fold, because a local time before `after` can be used again in the
    # fold.
    shifting = (after - _SHIFT_MAX).astimezone(zone).utcoffset() != (after + _SHIFT_MAX).astimezone(
        zone
    ).utcoffset()
    begin = after.astimezone(zone).replace(tzinfo=None) - (_SHIFT_MAX if shifting else timedelta())
    last_at = after
    # A heap, because the second times of a fold come after its other times.
    pending: list[datetime] = []
    with suppress(OverflowError):
        for wall in CronSim(cron, begin):
            result, earliest_at = _of_wall(wall, zone, repeating=repeating)
            for instant in result:
                heapq.heappush(pending, instant)
            # No later local time can give an earlier start time.
            while pending and pending[0] <= earliest_at:
                instant = heapq.heappop(pending)
                if instant > last_at:
                    last_at = instant
                    yield instant


def _of_wall(
    wall: datetime, zone: ZoneInfo, *, repeating: bool
) -> tuple[tuple[datetime, ...], datetime]:
    """Return the UTC times for a local time, and the earliest UTC time for any later local time."""
    first_at, second_at = _both(wall, zone)
    if first_at == second_at:
        return (first_at,), first_at
    if first_at < second_at:
        return ((first_at, second_at) if repeating else (first_at,)), first_at
    after_at = _after_gap(second_at, first_at, zone)
    return (() if repeating else (after_at,)), after_at


def _both(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Convert a local time with the offsets before and after a clock change (PEP 495).

    The results are ascending in a fold, descending in a gap, and equal otherwise.
    """
    first_at, second_at = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return first_at, second_at


def _after_gap(before_at: datetime, after_at: datetime, zone: ZoneInfo) -> datetime:
    """Return the first time with the same offset as ``after_at``."""
    offset = after_at.astimezone(zone).utcoffset()
    low, high = int(before_at.timestamp()), int(after_at.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return datetime.fromtimestamp(high, UTC)


def _stamp(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
