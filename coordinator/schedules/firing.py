"""Scheduler in which exactly one of several coordinators launches the run for a start time.

Each start time has one row that is created once. Each step changes this row with its ETag::

    waiting ──► firing (by whom, since when, as which run) ──► launched
       │          └► waiting again, or refused: the fleet or the budget cannot carry it
       └► skipped or missed

The coordinator first stores a *hidden* run, then changes the row from firing to launched, and only
then lists the run. The jobs are queued by another task, because a large number can need a minute,
and the next start time could be missed. If a coordinator fails, the state is:

- Before it has changed the row to launched, there is a hidden run. After :data:`TAKEOVER_S`, a
  different coordinator will take over the row with a new run id, and drop the hidden run.
- After that, the row contains the run id, and any coordinator that reads it can list the run.

A coordinator that was only slow will find that the row has changed, and will drop its hidden run. A
start time that was taken over can therefore not be launched twice, even if clocks are wrong.
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
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.request_errors import NameTaken, RunIsOver, UnknownRun, UnknownSchedule
from broadside.coordinator.views.responses import ScheduleView
from broadside.exchange.ports import EntityExists, EntityNotFound, ExchangeError, Table
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import SCHEDULES, fired_shelf

log = logging.getLogger(__name__)

# Seconds after which a coordinator in state firing is assumed to have failed.
TAKEOVER_S: Final = 20.0
# Time to wait for agents to report that they are free after a run.
FLEET_WAIT_S: Final = 15.0
# Number of start times to show.
HISTORY_COUNT: Final = 50
NEXT_COUNT: Final = 5

_REASON_MAX_CHARS: Final = 500
# Length of history to read in the first query.
_WINDOW: Final = timedelta(hours=1)
# Start times are whole seconds.
_WINDOW_MIN: Final = timedelta(seconds=HISTORY_COUNT)
_WINDOW_ROWS_MAX_COUNT: Final = 4 * HISTORY_COUNT


class Runs(Protocol):
    """Interface of the coordinator that is used by schedules."""

    async def prepare(self, spec: RunSpec, *, by: str, run_id: str) -> Plan:
        """Store a run that is not listed yet.

        Args:
            spec: The specification.
            by: User to store as the creator.
            run_id: Id for the new run.

        Returns:
            The stored plan.

        Raises:
            Infeasible, OverBudget: The run cannot be planned.
        """

    async def release(self, run_id: str) -> None:
        """List a prepared run, so that its jobs will be queued. A second call has no effect."""

    async def drop(self, run_id: str) -> None:
        """Delete a prepared run that should not be listed."""

    async def ended_at(self, run_id: str) -> datetime | None:
        """Return the time when a run ended, or None if it is still in progress."""

    async def cancel(self, run_id: str, *, by: str, reason: str) -> None:
        """Cancel a run.

        Args:
            run_id: The run to cancel.
            by: User to store.
            reason: Text to store.
        """


class Schedules:
    """Schedules in one table. Each method can raise ``ExchangeUnavailable``."""

    def __init__(self, table: Table, runs: Runs, *, now: Callable[[], datetime]) -> None:
        self._table = table
        self._shelf = Collection(table, SCHEDULES, Schedule)
        self._runs = runs
        self._now = now
        self._me = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(2)}"

    # Operator actions --------------------------------------------------------------------------

    async def add(self, schedule: Schedule) -> ScheduleView:
        """Add a schedule.

        Raises:
            BadSchedule: The schedule is invalid.
            NameTaken: There is a schedule with this name.
        """
        check(schedule, self._now())
        try:
            await self._shelf.create(schedule.name, schedule)
        except EntityExists as error:
            raise NameTaken(
                f"name {schedule.name}: name in use; remove it, or choose another"
            ) from error
        return self._view(schedule)

    async def list(self) -> "list[ScheduleView]":
        """Return all readable schedules by name, with no history."""
        return [self._view(schedule) async for _, schedule in self._shelf.scan()]

    async def read(self, name: str) -> ScheduleView:
        """Return a schedule with its newest start times.

        Raises:
            UnknownSchedule: If the name is unknown.
        """
        schedule = await self._read(name)
        newest = await _newest(self._fired(name), schedule.created_at, self._now())
        view = self._view(schedule, {row.instant_at: row for row in newest})
        return view.model_copy(update={"history": tuple(newest)})

    async def replace(self, schedule: Schedule) -> ScheduleView:
        """Replace the start times or the specification of a schedule, from now on.

        Its history is not changed, and a paused schedule will still be paused.

        Raises:
            UnknownSchedule: If the name is unknown.
            BadSchedule: The new schedule is invalid.
        """
        now = self._now()
        check(schedule, now)
        # This will record start times that were due before.
        await self._check(await self._read(schedule.name))
        stored = (
            "created_by",
            "created_at",
            "paused_at",
            "settled_at",
            "runs_count",
            "last_run_id",
        )
        return await self._change(
            schedule.name,
            lambda old: schedule.model_copy(
                update={"from_at": now} | {name: getattr(old, name) for name in stored}
            ),
        )

    async def pause(self, name: str) -> ScheduleView:
        """Pause a schedule. A run that has already started is not stopped.

        Raises:
            UnknownSchedule: If the name is unknown.
        """
        now = self._now()
        return await self._change(
            name, lambda old: old.model_copy(update={"paused_at": old.paused_at or now})
        )

    async def resume(self, name: str) -> ScheduleView:
        """Resume a schedule. Start times in the pause are not made up for.

        Raises:
            UnknownSchedule: If the name is unknown.
        """
        # This will record start times that were missed before the pause.
        await self._check(await self._read(name))
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
        """Delete a schedule and its history, but not its runs.

        Raises:
            UnknownSchedule: If the name is unknown.
        """
        schedule = await self._read(name)
        await self._shelf.delete(name)
        await self._fired(name).clear()
        return self._view(schedule)

    # Main loop ---------------------------------------------------------------------------------

    async def run_forever(self, tick_s: float) -> None:
        """Launch due runs until cancelled, and retry after outages.

        Args:
            tick_s: Time between two checks in seconds.
        """
        while True:
            try:
                await self.tick()
            except ExchangeError as error:
                log.warning("schedules not read: %s", error, extra={"action": "schedule"})
            await asyncio.sleep(tick_s)

    async def tick(self) -> None:
        """Check every schedule once."""
        for schedule in [schedule async for _, schedule in self._shelf.scan()]:
            try:
                await self._check(schedule)
            except EntityNotFound:
                # It has been removed in the meantime.
                continue
            except ExchangeError as error:
                log.warning("schedule %s: %s", schedule.name, error, extra={"action": "schedule"})
            # If there is an error in a schedule, we should still run the others.
            except Exception:
                log.exception("schedule %s", schedule.name, extra={"action": "schedule"})

    async def _check(self, schedule: Schedule) -> None:
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
        """Create a row for each due start time, or return False if another coordinator does so."""
        left = runs_left(schedule, rows)
        for first in first_rows(schedule, due(schedule, rows, now), now):
            # Start times that come after a missing row should not be settled.
            if left == 0:
                for at in [at for at in rows if at > first.instant_at]:
                    del rows[at]
                return True
            row = first
            if row.state is FiringState.WAITING:
                reason = await self._skip_reason(schedule, rows)
                if reason is not None:
                    row = _as(row, FiringState.SKIPPED, reason)
            try:
                await self._fired(schedule.name).create(_key(row.instant_at), row)
            except EntityExists:
                return False
            if row.state is FiringState.WAITING and left is not None:
                left -= 1
            if row.state is not FiringState.WAITING:
                self._log(schedule, row)
            rows[row.instant_at] = row
        return True

    async def _skip_reason(self, schedule: Schedule, rows: dict[datetime, Firing]) -> str | None:
        """Return the reason to skip a due start time, or None."""
        waiting = [row for row in rows.values() if row.state in OPEN]
        if schedule.overlap is Overlap.QUEUE and len(waiting) >= WAITING_MAX_COUNT:
            return f"{len(waiting)} start times are waiting, the limit is {WAITING_MAX_COUNT}"
        if schedule.overlap is not Overlap.SKIP:
            return None
        if waiting:
            return f"the run of {waiting[-1].instant_at:%Y-%m-%d %H:%M:%SZ} has not ended"
        run_id = _newest_run(schedule, rows)
        if run_id is not None and await self._runs.ended_at(run_id) is None:
            return f"run {run_id} has not ended"
        return None

    async def _take_turn(
        self, schedule: Schedule, rows: dict[datetime, Firing], row: Firing
    ) -> Firing:
        """Execute all steps that are possible now for an open row, and return its new state."""
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
                instead = (
                    f"the next start time {min(later):%Y-%m-%d %H:%M:%SZ} was due before its turn"
                )
                return await self._step(schedule, row, _as(row, FiringState.SKIPPED, instead))
        run_id = _newest_run(schedule, rows)
        if run_id is not None:
            ended_at = await self._runs.ended_at(run_id)
            if ended_at is None:
                if schedule.overlap is Overlap.CANCEL:
                    await self._cancel(schedule, run_id, row)
                waits = _as(row, FiringState.WAITING, f"run {run_id} has not ended")
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
                "schedule %s: took over start time %s from %s",
                schedule.name, _key(row.instant_at), row.by,
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
        # The schedule has been removed in the meantime.
        except EntityNotFound:
            await self._runs.drop(mine.run_id)
            raise
        if done == launched:
            await self._runs.release(mine.run_id)
        else:
            await self._runs.drop(mine.run_id)
        return done

    async def _cancel(self, schedule: Schedule, run_id: str, row: Firing) -> None:
        at = f"{row.instant_at:%Y-%m-%d %H:%M:%SZ}"
        reason = f"schedule {schedule.name}: its start time {at} is due"
        # The run has just ended.
        with contextlib.suppress(RunIsOver):
            await self._runs.cancel(run_id, by=f"schedule {schedule.name}", reason=reason)

    async def _step(self, schedule: Schedule, row: Firing, new: Firing) -> Firing:
        """Change a row if it is still the same as when it was read, and return the current row.

        If an earlier coordinator has stored a hidden run that is no longer in the row, this run
        will be dropped. It could not be found later.
        """
        current = await self._fired(schedule.name).change(
            _key(row.instant_at), lambda old: new if old == row else old
        )
        if current == new and new != row:
            if row.run_id is not None and row.run_id != new.run_id:
                await self._runs.drop(row.run_id)
            if new.state not in OPEN:
                self._log(schedule, new)
        return current

    async def _settle(self, schedule: Schedule, rows: dict[datetime, Firing]) -> None:
        """Move the mark past rows that will not change, and list all runs in them."""
        marked = settled(schedule, rows)
        if marked == schedule:
            return
        for at, row in rows.items():
            # The coordinator that launched it may have failed before it was listed.
            if row.state is FiringState.LAUNCHED and row.run_id and at <= marked.settled_at:
                # It has already been removed.
                with contextlib.suppress(UnknownRun):
                    await self._runs.release(row.run_id)
        await self._shelf.change(schedule.name, lambda old: settled(old, rows))

    # -------------------------------------------------------------------------------------------

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

    def _fired(self, name: str) -> Collection[Firing]:
        return Collection(self._table, fired_shelf(name), Firing)

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

    def _log(self, schedule: Schedule, row: Firing) -> None:
        log.log(
            logging.INFO if row.state is FiringState.LAUNCHED else logging.WARNING,
            "schedule %s: %s %s%s", schedule.name, _key(row.instant_at), row.state,
            f": {row.reason}" if row.reason else "",
            extra={"action": "schedule", "run_id": row.run_id},
        )  # fmt: skip


async def _newest(fired: Collection[Firing], since_at: datetime, now: datetime) -> list[Firing]:
    """Return the newest :data:`HISTORY_COUNT` rows since a time, oldest first.

    A scan can only go forward, and there can be rows for several years. The rows are therefore read
    in windows from the newest to the oldest. A window is made smaller if it has too many rows, and
    larger otherwise.
    """
    newest: list[Firing] = []
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
        newest = rows + newest
        if len(newest) >= HISTORY_COUNT or from_at == since_at:
            return newest[-HISTORY_COUNT:]
        before, end_at, width = _key(from_at), from_at, width * 8


def _as(row: Firing, state: FiringState, reason: str) -> Firing:
    """Return the row in a state that is not in progress."""
    changes = {"state": state, "reason": reason[:_REASON_MAX_CHARS], "run_id": None}
    return row.model_copy(update=changes | {"by": None, "since_at": None})


def _newest_run(schedule: Schedule, rows: dict[datetime, Firing]) -> str | None:
    launched = [at for at, row in rows.items() if row.state is FiringState.LAUNCHED]
    return rows[max(launched)].run_id if launched else schedule.last_run_id


def _run_id(schedule: Schedule, row: Firing) -> str:
    """Return a run id that was not used before, such as ``20261121-020000-nightly-7f3a``."""
    return f"{row.instant_at:%Y%m%d-%H%M%S}-{schedule.name}-{secrets.token_hex(2)}"


def _key(instant: datetime) -> str:
    return f"{instant:%Y%m%dT%H%M%SZ}"
