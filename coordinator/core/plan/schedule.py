"""When a schedule fires, and what becomes of each instant. Pure: ``now`` is an argument.

A cron expression has five fields (minute, hour, day of month, month, day of week), or six with
seconds first, and speaks of a wall clock. cronsim finds the wall times; what a zone's clock makes
of them when it is put forward (a gap) or back (a fold) is decided here, as Debian's cron(8) does:

- A *fixed* time of day, whose minute and hour do not begin with ``*``, runs once a day: in a gap
  at the first instant after it, in a fold when the clock shows it first.
- A *repeating* one follows the clock: what the clock leaves out does not run, what it shows twice
  runs twice.

cronsim's own handling of zones is left aside: it steps by whole hours, and misses 03:00 on the day
that Lord Howe Island's clock is put forward by half an hour.
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

from broadside.coordinator.core.plan.spec import RunSpec
from broadside.exchange.messages import Message, RunId, UtcDatetime

ON_TIME_S: Final = 60.0  # s after its instant in which a run counts as begun on time
ROWS_MAX_COUNT: Final = 100  # missed instants with a row of their own; older ones share one
DUE_MAX_COUNT: Final = 10_000  # instants looked at in one go
WAITING_MAX_COUNT: Final = 100  # instants in the queue of one schedule

_SHIFT_MAX: Final = timedelta(hours=3)  # no zone's clock was ever put back by more
_FIELDS: Final[Mapping[str, str]] = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31 that its months have, or L for the last",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, SAT#1 for the first, 5L for the last",
}


class BadSchedule(Exception):
    """A schedule cannot be what was asked; one line that names field, value and fix."""


class Overlap(StrEnum):
    """What happens to an instant that comes while the schedule's last run goes on."""

    SKIP = "skip"  # it is recorded as skipped
    QUEUE = "queue"  # it fires when that run is over
    CANCEL = "cancel"  # that run is aborted, then it fires


class MissedPolicy(StrEnum):
    """What happens to an instant at which no coordinator was there."""

    SKIP = "skip"  # it is recorded as missed
    RUN_LATE = "run-late"  # the newest one runs late, unless it is too old


class FiringState(StrEnum):
    """What became of one instant."""

    WAITING = "waiting"  # for its turn
    FIRING = "firing"  # a coordinator is at it
    LAUNCHED = "launched"
    SKIPPED = "skipped"  # by the overlap policy
    MISSED = "missed"  # nobody was there
    REFUSED = "refused"  # the fleet, or the budget, could not carry it


OPEN: Final = frozenset({FiringState.WAITING, FiringState.FIRING})


class Firing(Message):
    """What became of one instant of a schedule; created once, by whoever saw it first."""

    instant_at: UtcDatetime
    state: FiringState
    noted_at: UtcDatetime  # when a coordinator first saw it
    by: str | None = None  # the coordinator that is, or was, at it
    since_at: UtcDatetime | None = None  # since when
    turn_at: UtcDatetime | None = None  # when its turn came first
    run_id: RunId | None = None  # launched, or being launched
    reason: str | None = None  # why it waits, was skipped, missed or refused
    until_at: UtcDatetime | None = None  # a row for many missed instants: the last of them
    instants_count: int = 1

    @property
    def last_at(self) -> datetime:
        """The last instant that this row speaks of."""
        return self.until_at or self.instant_at


class Schedule(Message):
    """Instants at which a run is launched."""

    name: str
    spec: RunSpec
    cron: str | None = None  # exactly one of cron and at
    at: UtcDatetime | None = None
    timezone: str = "UTC"  # whose wall clock the cron expression speaks of
    until_at: UtcDatetime | None = None  # no instant after it
    runs_max_count: int | None = None
    overlap: Overlap = Overlap.SKIP
    missed: MissedPolicy = MissedPolicy.SKIP
    missed_limit_s: int = 3600  # s after its instant at which a run may still begin late
    created_by: str
    created_at: UtcDatetime
    paused_at: UtcDatetime | None = None
    from_at: UtcDatetime  # instants up to it are none of this schedule's: created, or resumed
    settled_at: UtcDatetime  # every instant up to it has a row that no longer changes
    runs_count: int = 0  # launched, up to settled_at
    last_run_id: RunId | None = None  # the newest launched, up to settled_at


def check(schedule: Schedule, now: datetime) -> None:
    """Raise :class:`BadSchedule` for what can never fire as asked."""
    if (schedule.cron is None) == (schedule.at is None):
        raise BadSchedule("cron, at: give one of the two")
    check_zone(schedule.timezone)
    if schedule.at is not None and schedule.at <= now:
        raise BadSchedule(
            f"at: {_stamp(schedule.at)} is in the past, it is {_stamp(now)}; give a later time"
        )
    if schedule.cron is not None:
        _check_cron(schedule.cron)
    if not next_instants(schedule, now, 1):
        if schedule.until_at is not None:
            raise BadSchedule(
                f"until: no instant from now ({_stamp(now)}) to {_stamp(schedule.until_at)}; "
                "give a later end"
            )
        raise BadSchedule(f"cron: {schedule.cron!r} names no date of the next 50 years; mend it")


def check_zone(name: str) -> None:
    """Raise :class:`BadSchedule` for a name that is not in the IANA database."""
    known = available_timezones()
    if name in known:
        return
    folded = {zone.lower(): zone for zone in sorted(known)}
    # "Amsterdam" should find Europe/Amsterdam, whose whole name is twice as long.
    cities = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known)}
    asked = name.strip().lower().replace(" ", "_")
    near = difflib.get_close_matches(asked, folded, n=1, cutoff=0.75)
    city = difflib.get_close_matches(asked.rpartition("/")[2], cities, n=1, cutoff=0.75)
    found = [folded[hit] for hit in near] + [cities[hit] for hit in city]
    hint = f"did you mean {found[0]}?" if found else "give one such as Europe/Amsterdam or UTC"
    raise BadSchedule(f"timezone: {name!r} is unknown; {hint}")


def localise(wall: datetime, timezone: str, field: str) -> datetime:
    """The UTC instant of a wall time; one with an offset of its own is taken by that.

    Of a time that comes twice the first counts. Raises :class:`BadSchedule` for one that the clock
    leaves out, or an unknown zone.
    """
    if wall.tzinfo is not None:
        return wall.astimezone(UTC)
    check_zone(timezone)
    zone = ZoneInfo(timezone)
    first_at, second_at = _both(wall, zone)
    if first_at > second_at:
        after = _after_gap(second_at, first_at, zone).astimezone(zone)
        raise BadSchedule(
            f"{field}: {wall:%Y-%m-%d %H:%M} does not exist in {timezone}, where the clock is put "
            f"forward; the next time is {after:%H:%M}"
        )
    return first_at


def next_instants(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    """The first ``count`` instants after ``after``, ascending, in UTC; fewer where it ends."""
    return list(islice(_to_come(schedule, after), count))


def due(schedule: Schedule, fired: Mapping[datetime, Firing], now: datetime) -> list[datetime]:
    """The instants up to ``now`` of which ``fired`` says nothing yet; the oldest, at most
    :data:`DUE_MAX_COUNT`.

    While a schedule is paused no instant after the pause is due.
    """
    before_at = now if schedule.paused_at is None else min(now, schedule.paused_at)
    after_at = max([schedule.settled_at, *(row.until_at for row in fired.values() if row.until_at)])
    found = islice(_to_come(schedule, after_at), DUE_MAX_COUNT)
    begun = takewhile(lambda instant: instant <= before_at, found)
    return [instant for instant in begun if instant not in fired]


def idle(schedule: Schedule, now: datetime) -> bool:
    """Whether nothing of it can be open or due: no need to read its rows."""
    most = schedule.runs_max_count
    if most is not None and schedule.runs_count >= most:
        return True
    instant = next(_instants(schedule, schedule.settled_at), None)
    return instant is None or instant > min(now, schedule.until_at or now)


def ended(schedule: Schedule, now: datetime) -> bool:
    """Whether it will never fire again."""
    most = schedule.runs_max_count
    return (most is not None and schedule.runs_count >= most) or not next_instants(schedule, now, 1)


def runs_left(schedule: Schedule, fired: Mapping[datetime, Firing]) -> int | None:
    """How many instants may still become runs; open ones count as runs. None: no limit."""
    if schedule.runs_max_count is None:
        return None
    taken = sum(
        row.state in OPEN or row.state is FiringState.LAUNCHED
        for at, row in fired.items()
        if at > schedule.settled_at
    )
    return max(0, schedule.runs_max_count - schedule.runs_count - taken)


def first_rows(schedule: Schedule, instants: Sequence[datetime], now: datetime) -> list[Firing]:
    """The first row of each due instant, ascending: it waits for its turn, or was missed.

    An instant is missed when it is first seen more than :data:`ON_TIME_S` late, unless the policy
    lets it run late: then the newest within the limit does, if none came on time after it. More
    than :data:`ROWS_MAX_COUNT` missed instants share one row, the oldest; its key does not depend
    on ``now``, so of several coordinators one writes it.
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
    """Why an instant whose turn came at ``ready_at`` is missed after all; None: it may fire."""
    late = now - ready_at
    if late <= timedelta(seconds=ON_TIME_S):
        return None
    late_s = round(late.total_seconds())
    if schedule.missed is MissedPolicy.RUN_LATE:
        if late <= timedelta(seconds=schedule.missed_limit_s):
            return None
        return (
            f"no coordinator finished firing it for {late_s} s, over the limit of "
            f"{schedule.missed_limit_s} s"
        )
    return f"no coordinator finished firing it for {late_s} s"


def settled(schedule: Schedule, fired: Mapping[datetime, Firing]) -> Schedule:
    """The schedule with its mark moved over the rows that no longer change, in their order.

    What it counts depends on the rows between the old mark and the new one alone, so it does not
    matter which coordinator moves it, nor how often.
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
        return "no coordinator was there before the schedule was paused"
    if schedule.missed is MissedPolicy.SKIP:
        return f"no coordinator was there within {ON_TIME_S:g} s"
    if chosen:
        return f"no coordinator was there; the instant {_stamp(chosen[0])} runs in its place"
    return f"no coordinator was there within {schedule.missed_limit_s} s"


def _check_cron(cron: str) -> None:
    parts = cron.split()
    names = list(_FIELDS)[-len(parts) :]
    if len(parts) not in (5, 6):
        raise BadSchedule(
            f"cron: {cron!r} has {len(parts)} fields; give five, minute hour day month weekday, "
            "such as '0 2 * * 6'"
        )
    try:
        CronSim(cron, datetime(2000, 1, 1))  # noqa: DTZ001 - a wall clock's time
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        if name not in names:
            raise BadSchedule(f"cron: {cron!r}: {error}; see cron(5)") from error
        value = parts[names.index(name)]
        raise BadSchedule(
            f"cron: {name} {value!r} in {cron!r} is wrong; give {_FIELDS[name]}, or * , - / of them"
        ) from error


def _to_come(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """The schedule's own instants after ``after``, each found when it is asked for."""
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
    """Instants after ``after``, ascending, each once; none after the year 9999."""
    minute, hour = cron.split()[-5:-3]
    repeating = minute.startswith("*") or hour.startswith("*")
    # A wall time that the clock showed before `after` may come again: begin before the fold.
    shifting = (after - _SHIFT_MAX).astimezone(zone).utcoffset() != (after + _SHIFT_MAX).astimezone(
        zone
    ).utcoffset()
    begin = after.astimezone(zone).replace(tzinfo=None) - (_SHIFT_MAX if shifting else timedelta())
    last_at = after
    pending: list[datetime] = []  # a heap: what a fold shows again comes after its other times
    with suppress(OverflowError):
        for wall in CronSim(cron, begin):
            found, earliest_at = _of_wall(wall, zone, repeating=repeating)
            for instant in found:
                heapq.heappush(pending, instant)
            while pending and pending[0] <= earliest_at:  # no later wall time is any earlier
                instant = heapq.heappop(pending)
                if instant > last_at:
                    last_at = instant
                    yield instant


def _of_wall(
    wall: datetime, zone: ZoneInfo, *, repeating: bool
) -> tuple[tuple[datetime, ...], datetime]:
    """The instants of a wall time, and the earliest that any later wall time can have."""
    first_at, second_at = _both(wall, zone)
    if first_at == second_at:
        return (first_at,), first_at
    if first_at < second_at:
        return ((first_at, second_at) if repeating else (first_at,)), first_at
    after_at = _after_gap(second_at, first_at, zone)
    return (() if repeating else (after_at,)), after_at


def _both(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """By the offsets before and after a shift (PEP 495): ascending in a fold, descending in a gap,
    equal elsewhere."""
    first_at, second_at = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return first_at, second_at


def _after_gap(before_at: datetime, after_at: datetime, zone: ZoneInfo) -> datetime:
    """The first instant at which the zone's offset is the one of ``after_at``."""
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
