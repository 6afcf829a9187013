"""Fires what is due: of any number of coordinators exactly one launches a given instant.

Each instant has one row, created once, and every step of it is a change of that row by its ETag::

    waiting ──► firing (by whom, since when, as which run) ──► launched
       │          └► waiting again, or refused: the fleet or the budget cannot carry it
       └► skipped or missed

A coordinator that fires stores the run *hidden*, then changes the row from firing to launched, and
only then lets the run show. Its jobs are queued beside that, by who looks after runs: a great many
take a minute, in which the next schedule's instant would pass. So this is what stands when it dies:

- before it changed the row to launched: a hidden run. After :data:`TAKEOVER_S` another coordinator
  takes the row over, under a new run id, and drops the hidden one.
- after that: the row names the run, and any coordinator that sees it lets the run show.

A coordinator that was only slow finds its row changed and drops its hidden run: what was taken
over cannot be launched twice, whatever the clocks say.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, Protocol

from broadside.coordinator.core.plan.cost_estimate import OverBudget
from broadside.coordinator.core.plan.planner import Infeasible
from broadside.coordinator.core.plan.schedule import (
    OPEN,
    WAITING_MAX_COUNT,
    Firing,
    FiringState,
    Overlap,
    Schedule,
    check,
    due,
    ended,
    first_rows,
    idle,
    next_instants,
    runs_left,
    settled,
    too_late,
)
from broadside.coordinator.core.plan.spec import Plan, RunSpec
from broadside.coordinator.refusals import NameTaken, RunIsOver, UnknownRun, UnknownSchedule
from broadside.coordinator.views.answers import ScheduleView
from broadside.exchange.ports import EntityExists, EntityNotFound, ExchangeError, Table
from broadside.exchange.records.keys import SCHEDULES, fired_shelf
from broadside.exchange.records.shelf import Shelf

log = logging.getLogger(__name__)

TAKEOVER_S: Final = 20.0  # s after which a coordinator that fires counts as dead
FLEET_WAIT_S: Final = 15.0  # s in which agents of a run that just ended say that they are free
HISTORY_COUNT: Final = 50  # newest instants that are shown
NEXT_COUNT: Final = 5

_REASON_MAX_CHARS: Final = 500
_WINDOW: Final = timedelta(hours=1)  # of history, read in one go at first
_WINDOW_MIN: Final = timedelta(seconds=HISTORY_COUNT)  # instants are whole seconds
_WINDOW_ROWS_MAX_COUNT: Final = 4 * HISTORY_COUNT


class Runs(Protocol):
    """What a schedule needs of the coordinator."""

    async def prepare(self, spec: RunSpec, *, by: str, run_id: str) -> Plan:
        """Store a run that does not show yet. Raises Infeasible, OverBudget."""

    async def release(self, run_id: str) -> None:
        """Let a prepared run show, so that its jobs are queued; again is harmless."""

    async def drop(self, run_id: str) -> None:
        """Forget a prepared run that is not to show."""

    async def ended_at(self, run_id: str) -> datetime | None:
        """When a run ended, None while it goes on."""

    async def cancel(self, run_id: str, *, by: str, reason: str) -> None:
        """Stop a run."""


class Schedules:
    """The schedules of one table. Every verb may raise ``ExchangeUnavailable``."""

    def __init__(self, table: Table, runs: Runs, *, now: Callable[[], datetime]) -> None:
        self._table = table
        self._shelf = Shelf(table, SCHEDULES, Schedule)
        self._runs = runs
        self._now = now
        self._me = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(2)}"

    # Verbs of an operator ---------------------------------------------------------------------

    async def add(self, schedule: Schedule) -> ScheduleView:
        """Raises :class:`~broadside.coordinator.core.plan.schedule.BadSchedule`,
        :class:`NameTaken`."""
        check(schedule, self._now())
        try:
            await self._shelf.create(schedule.name, schedule)
        except EntityExists as error:
            raise NameTaken(
                f"name {schedule.name}: there is one of that name; remove it, or choose another"
            ) from error
        return self._view(schedule)

    async def list(self) -> "list[ScheduleView]":
        """By name, without history; those that cannot be read are left out."""
        return [self._view(schedule) async for _, schedule in self._shelf.scan()]

    async def read(self, name: str) -> ScheduleView:
        """With its newest instants. Raises :class:`UnknownSchedule`."""
        schedule = await self._read(name)
        newest = await _newest(self._fired(name), schedule.created_at, self._now())
        view = self._view(schedule, {row.instant_at: row for row in newest})
        return view.model_copy(update={"history": tuple(newest)})

    async def replace(self, schedule: Schedule) -> ScheduleView:
        """The same schedule with other instants or another specification, from now on; it keeps its
        history, and stays paused where it is. Raises :class:`UnknownSchedule`, ``BadSchedule``.
        """
        now = self._now()
        check(schedule, now)
        await self._look(await self._read(schedule.name))  # what was due before is on record
        kept = ("created_by", "created_at", "paused_at", "settled_at", "runs_count", "last_run_id")
        return await self._change(
            schedule.name,
            lambda old: schedule.model_copy(
                update={"from_at": now} | {name: getattr(old, name) for name in kept}
            ),
        )

    async def pause(self, name: str) -> ScheduleView:
        """Fire nothing until resumed; a run that goes on goes on. Raises UnknownSchedule."""
        now = self._now()
        return await self._change(
            name, lambda old: old.model_copy(update={"paused_at": old.paused_at or now})
        )

    async def resume(self, name: str) -> ScheduleView:
        """Fire again from now on; instants of the pause are not made up for.

        Raises :class:`UnknownSchedule`.
        """
        await self._look(await self._read(name))  # what was missed before the pause is on record
        now = self._now()
        return await self._change(
            name,
            lambda old: (
                old
                if old.paused_at is None
                else old.model_copy(update={"paused_at": None, "from_at": now})
            ),
        )

    async def remove(self, name: str) -> ScheduleView:
        """Forget a schedule and its history; its runs stay. Raises :class:`UnknownSchedule`."""
        schedule = await self._read(name)
        await self._shelf.delete(name)
        await self._fired(name).clear()
        return self._view(schedule)

    # The loop ---------------------------------------------------------------------------------

    async def run_forever(self, tick_s: float) -> None:
        """Fire what is due until cancelled; an outage is waited out."""
        while True:
            try:
                await self.tick()
            except ExchangeError as error:
                log.warning("schedules not read: %s", error, extra={"action": "schedule"})
            await asyncio.sleep(tick_s)

    async def tick(self) -> None:
        """One look at every schedule."""
        for schedule in [schedule async for _, schedule in self._shelf.scan()]:
            try:
                await self._look(schedule)
            except EntityNotFound:
                continue  # removed meanwhile
            except ExchangeError as error:
                log.warning("schedule %s: %s", schedule.name, error, extra={"action": "schedule"})
            except Exception:  # one that cannot be read here must not stop the others
                log.exception("schedule %s", schedule.name, extra={"action": "schedule"})

    async def _look(self, schedule: Schedule) -> None:
        now = self._now()
        if idle(schedule, now):
            return
        after_key = f"{_key(schedule.settled_at)}~"
        fired = self._fired(schedule.name)
        rows = {row.instant_at: row async for _, row in fired.scan(key_from=after_key)}
        if not await self._note(schedule, rows, now):
            return
        for at in sorted(rows):
            if rows[at].state in OPEN:
                rows[at] = await self._take_turn(schedule, rows, rows[at])
                if rows[at].state in OPEN:
                    break
        await self._settle(schedule, rows)

    async def _note(self, schedule: Schedule, rows: dict[datetime, Firing], now: datetime) -> bool:
        """Give every due instant its row; False when another coordinator is at it as well."""
        left = runs_left(schedule, rows)
        for first in first_rows(schedule, due(schedule, rows, now), now):
            if left == 0:  # what comes after an instant without a row is not settled
                for at in [at for at in rows if at > first.instant_at]:
                    del rows[at]
                return True
            row = first
            if row.state is FiringState.WAITING:
                reason = await self._in_the_way(schedule, rows)
                if reason is not None:
                    row = _as(row, FiringState.SKIPPED, reason)
            try:
                await self._fired(schedule.name).create(_key(row.instant_at), row)
            except EntityExists:
                return False
            if row.state is FiringState.WAITING and left is not None:
                left -= 1
            if row.state is not FiringState.WAITING:
                self._say(schedule, row)
            rows[row.instant_at] = row
        return True

    async def _in_the_way(self, schedule: Schedule, rows: dict[datetime, Firing]) -> str | None:
        """Why an instant that is due now is skipped."""
        waiting = [row for row in rows.values() if row.state in OPEN]
        if schedule.overlap is Overlap.QUEUE and len(waiting) >= WAITING_MAX_COUNT:
            return f"{len(waiting)} instants wait already"
        if schedule.overlap is not Overlap.SKIP:
            return None
        if waiting:
            return f"the instant {waiting[-1].instant_at:%Y-%m-%d %H:%M:%SZ} is not over"
        run_id = _newest_run(schedule, rows)
        if run_id is not None and await self._runs.ended_at(run_id) is None:
            return f"run {run_id} is not over"
        return None

    async def _take_turn(
        self, schedule: Schedule, rows: dict[datetime, Firing], row: Firing
    ) -> Firing:
        """Move an open row on as far as it goes now; its newest state."""
        now = self._now()
        theirs = row.state is FiringState.FIRING and row.by != self._me
        if theirs and now - (row.since_at or now) < timedelta(seconds=TAKEOVER_S):
            return row
        if schedule.paused_at is not None:
            paused = "the schedule was paused while it waited"
            return await self._step(schedule, row, _as(row, FiringState.MISSED, paused))
        ready_at = row.instant_at
        if schedule.overlap is Overlap.CANCEL:
            later = [at for at, other in rows.items() if at > ready_at and other.state in OPEN]
            if later:
                instead = f"the instant {min(later):%Y-%m-%d %H:%M:%SZ} came before its turn"
                return await self._step(schedule, row, _as(row, FiringState.SKIPPED, instead))
        run_id = _newest_run(schedule, rows)
        if run_id is not None:
            ended_at = await self._runs.ended_at(run_id)
            if ended_at is None:
                if schedule.overlap is Overlap.CANCEL:
                    await self._cancel(schedule, run_id, row)
                waits = _as(row, FiringState.WAITING, f"run {run_id} is not over")
                return await self._step(schedule, row, waits)
            ready_at = max(ready_at, ended_at)
        missed = too_late(schedule, ready_at, now)
        if missed is not None:
            return await self._step(schedule, row, _as(row, FiringState.MISSED, missed))
        return await self._fire(schedule, row, now)

    async def _fire(self, schedule: Schedule, row: Firing, now: datetime) -> Firing:
        mine = row.model_copy(
            update={
                "state": FiringState.FIRING,
                "by": self._me,
                "since_at": now,
                "turn_at": row.turn_at or now,
                "run_id": _run_id(schedule, row),
                "reason": None,
            }
        )
        taken = await self._step(schedule, row, mine)
        if taken != mine or mine.run_id is None:
            return taken
        if row.state is FiringState.FIRING:
            log.warning(
                "schedule %s: took %s over from %s", schedule.name, _key(row.instant_at), row.by,
                extra={"action": "schedule"},
            )  # fmt: skip
        by = f"schedule {schedule.name}"
        try:
            await self._runs.prepare(schedule.spec, by=by, run_id=mine.run_id)
        except Infeasible as error:
            tried_s = (now - (mine.turn_at or now)).total_seconds()
            final = isinstance(error, OverBudget) or tried_s >= FLEET_WAIT_S
            state = FiringState.REFUSED if final else FiringState.WAITING
            return await self._step(schedule, mine, _as(mine, state, str(error)))
        launched = mine.model_copy(update={"state": FiringState.LAUNCHED})
        try:
            done = await self._step(schedule, mine, launched)
        except EntityNotFound:  # the schedule was removed meanwhile
            await self._runs.drop(mine.run_id)
            raise
        if done == launched:
            await self._runs.release(mine.run_id)
        else:
            await self._runs.drop(mine.run_id)
        return done

    async def _cancel(self, schedule: Schedule, run_id: str, row: Firing) -> None:
        at = f"{row.instant_at:%Y-%m-%d %H:%M:%SZ}"
        reason = f"schedule {schedule.name}: its instant {at} is due"
        with contextlib.suppress(RunIsOver):  # just now
            await self._runs.cancel(run_id, by=f"schedule {schedule.name}", reason=reason)

    async def _step(self, schedule: Schedule, row: Firing, new: Firing) -> Firing:
        """Change the row if it still is what was read; what it is now.

        A run that whoever was at it before had stored, hidden, and that the row no longer names is
        dropped: nothing else would ever find it.
        """
        stands = await self._fired(schedule.name).change(
            _key(row.instant_at), lambda old: new if old == row else old
        )
        if stands == new and new != row:
            if row.run_id is not None and row.run_id != new.run_id:
                await self._runs.drop(row.run_id)
            if new.state not in OPEN:
                self._say(schedule, new)
        return stands

    async def _settle(self, schedule: Schedule, rows: dict[datetime, Firing]) -> None:
        """Move the schedule's mark over what no longer changes, every run of it released."""
        marked = settled(schedule, rows)
        if marked == schedule:
            return
        for at, row in rows.items():
            # Whoever launched it may have died before it let the run show.
            if row.state is FiringState.LAUNCHED and row.run_id and at <= marked.settled_at:
                with contextlib.suppress(UnknownRun):  # pruned already
                    await self._runs.release(row.run_id)
        await self._shelf.change(schedule.name, lambda old: settled(old, rows))

    # ------------------------------------------------------------------------------------------

    async def _read(self, name: str) -> Schedule:
        schedule = await self._shelf.read(name)
        if schedule is None:
            raise UnknownSchedule(name)
        return schedule

    async def _change(self, name: str, change: Callable[[Schedule], Schedule]) -> ScheduleView:
        try:
            return self._view(await self._shelf.change(name, change))
        except EntityNotFound as error:
            raise UnknownSchedule(name) from error

    def _fired(self, name: str) -> Shelf[Firing]:
        return Shelf(self._table, fired_shelf(name), Firing)

    def _view(
        self, schedule: Schedule, rows: Mapping[datetime, Firing] = MappingProxyType({})
    ) -> ScheduleView:
        now = self._now()
        over = ended(schedule, now)
        left = runs_left(schedule, rows)
        count = NEXT_COUNT if left is None else min(NEXT_COUNT, left)
        return ScheduleView(
            schedule=schedule,
            state="ended" if over else "paused" if schedule.paused_at else "active",
            next_at=() if over else tuple(next_instants(schedule, now, count)),
        )

    def _say(self, schedule: Schedule, row: Firing) -> None:
        log.log(
            logging.INFO if row.state is FiringState.LAUNCHED else logging.WARNING,
            "schedule %s: %s %s%s", schedule.name, _key(row.instant_at), row.state,
            f": {row.reason}" if row.reason else "",
            extra={"action": "schedule", "run_id": row.run_id},
        )  # fmt: skip


async def _newest(fired: Shelf[Firing], since_at: datetime, now: datetime) -> list[Firing]:
    """The newest :data:`HISTORY_COUNT` rows, oldest first; none is older than ``since_at``.

    A scan goes forward only, and there may be years of rows: so it looks back through one window
    after another, a narrower one where there are too many rows, else a wider one.
    """
    found: list[Firing] = []
    before, end_at, width = None, now, _WINDOW
    while True:
        from_at = max(end_at - width, since_at)
        rows = [
            row
            async for _, row in fired.scan(
                key_from=_key(from_at), key_before=before, limit=_WINDOW_ROWS_MAX_COUNT
            )
        ]
        if len(rows) == _WINDOW_ROWS_MAX_COUNT and width > _WINDOW_MIN:
            width = max(width / 8, _WINDOW_MIN)
            continue
        found = rows + found
        if len(found) >= HISTORY_COUNT or from_at == since_at:
            return found[-HISTORY_COUNT:]
        before, end_at, width = _key(from_at), from_at, width * 8


def _as(row: Firing, state: FiringState, reason: str) -> Firing:
    """The row in a state in which nobody is at it."""
    changes = {"state": state, "reason": reason[:_REASON_MAX_CHARS], "run_id": None}
    return row.model_copy(update=changes | {"by": None, "since_at": None})


def _newest_run(schedule: Schedule, rows: dict[datetime, Firing]) -> str | None:
    launched = [at for at, row in rows.items() if row.state is FiringState.LAUNCHED]
    return rows[max(launched)].run_id if launched else schedule.last_run_id


def _run_id(schedule: Schedule, row: Firing) -> str:
    """One that no earlier attempt at the instant has used: ``20261121-020000-nightly-7f3a``."""
    return f"{row.instant_at:%Y%m%d-%H%M%S}-{schedule.name}-{secrets.token_hex(2)}"


def _key(instant: datetime) -> str:
    return f"{instant:%Y%m%dT%H%M%SZ}"
