"""Execution of the event of a drill at its planned time, once, with a stored result.

A command can only be given by a user who runs a process with it. A drill from the API gives a state
of a switch that was declared by the operator of the coordinator. A user's own command is given to
``broadside study drill --event-command``. It runs in that process, with the rights of that user on
that host. It is never stored for execution, and no text is passed to a shell.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.measure.experiments.drill import ExecutedEvent
from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.request_errors import BadStudy, UnknownRun
from broadside.coordinator.studies.study import Drill, Study
from broadside.coordinator.studies.switch import Switch, SwitchError, run_argv
from broadside.exchange.log_sanitizer import redact
from broadside.exchange.records.collection import Collection

# Minimum number of seconds from the event to the burst end.
AFTER_S: Final = 10
# Seconds after which a user's own command is killed.
TIMEOUT_S: Final = 600.0
# Seconds before the event in which a task waits for it.
NEAR_S: Final = 10.0
# Seconds after the planned time in which the event is still executed.
LATE_S: Final = 1.0
_SAID_MAX_CHARS: Final = 300

log = logging.getLogger(__name__)


def check_drill(question: Drill, spec: RunSpec, command: Sequence[str] | None) -> None:
    """Check the event of a drill.

    Args:
        question: The drill.
        spec: Run specification.
        command: The user's own command, or None.

    Raises:
        BadStudy: There is no event, there are two, or it is too near to the burst end.
    """
    if question.switch is None and not command:
        raise BadStudy(
            "question.switch: missing; give a declared switch and its state, or run the drill "
            "on the coordinator's host with `broadside study drill --event-command COMMAND`, "
            "without --api"
        )
    if question.switch is not None and command:
        raise BadStudy(f"question.switch: {question.switch!r} and a command; give one of the two")
    if question.at_s + AFTER_S > spec.burst_s:
        raise BadStudy(
            f"question.at_s: {question.at_s:g} s is too late in a burst of {spec.burst_s} s; set "
            f"burst_s to {question.at_s + AFTER_S:g} at least"
        )


class Events:
    """Events of the drills in this process, with one task for each event."""

    def __init__(
        self,
        read_plan: Callable[[str], Awaitable[Plan]],
        shelf: Collection[Study],
        note_switch: Callable[[str, str | None], Awaitable[None]],
        switches: Mapping[str, Switch],
        now: Callable[[], datetime],
    ) -> None:
        self._read_plan, self._shelf, self._note_switch = read_plan, shelf, note_switch
        self._switches, self._now = switches, now
        # Users' own commands by study id.
        self.commands: dict[str, tuple[str, ...]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def check(self, study: Study, run_id: str) -> None:
        """Start a task to wait for the event of a study, unless the event is recorded.

        Args:
            study: The study.
            run_id: The run of its trial.
        """
        if study.event is not None or study.study_id in self._tasks:
            return
        question = study.spec.question
        assert isinstance(question, Drill)  # noqa: S101 - the caller looked
        try:
            burst = (await self._read_plan(run_id)).bursts[0]
        except UnknownRun:
            return
        at = burst.planned_start_at + timedelta(seconds=burst.omit_s + question.at_s)
        if (at - self._now()).total_seconds() > NEAR_S:
            return
        self._tasks[study.study_id] = asyncio.create_task(self._at(study.study_id, question, at))

    def drop(self, study_id: str) -> None:
        """Remove the event of a study, and stop it if it is in progress."""
        self.commands.pop(study_id, None)
        task = self._tasks.pop(study_id, None)
        if task is not None:
            task.cancel()

    async def _at(self, study_id: str, question: Drill, at: datetime) -> None:
        wait_s = (at - self._now()).total_seconds()
        planned = ExecutedEvent(planned_at=at)
        if wait_s < -LATE_S:
            late = f"no coordinator was running at its time, {-wait_s:.0f} s ago"
            await self._note(study_id, planned.model_copy(update={"problem": late}))
            return
        await asyncio.sleep(max(0.0, wait_s))
        ran = await self._carry_out(study_id, question, planned)
        log.info("event carried out", extra={"action": "event", "run_id": study_id})
        await self._note(study_id, ran)

    async def _carry_out(
        self, study_id: str, question: Drill, planned: ExecutedEvent
    ) -> ExecutedEvent:
        switch = None if question.switch is None else self._switches.get(question.switch)
        argv = self.commands.get(study_id, ())
        timeout_s = TIMEOUT_S
        if question.switch is not None and question.state is not None:
            if switch is None or question.state not in switch.states:
                problem = f"switch {question.switch!r} is not declared to this coordinator"
                return planned.model_copy(update={"problem": problem})
            argv, timeout_s = switch.states[question.state], switch.timeout_s
        elif not argv:
            problem = "the process that had its command has ended"
            return planned.model_copy(update={"problem": problem})
        stored_argv = tuple(redact(argument)[:_SAID_MAX_CHARS] for argument in argv)
        begun = planned.model_copy(update={"argv": stored_argv, "started_at": self._now()})
        # We get the time here, so that it will not include the time to write the row.
        work = asyncio.create_task(run_argv(argv, timeout_s, "event"))
        try:
            if question.switch is not None:
                await self._note_switch(question.switch, None)
            await self._note(study_id, begun)
            code, output = await work
        except SwitchError as error:
            return begun.model_copy(update={"ended_at": self._now(), "problem": str(error)})
        finally:
            work.cancel()
        return begun.model_copy(
            update={"ended_at": self._now(), "exit_code": code, "output": output}
        )

    async def _note(self, study_id: str, ran: ExecutedEvent) -> None:
        await self._shelf.change(study_id, lambda study: study.model_copy(update={"event": ran}))
