"""Carries studies on, one step at a time: switch, launch, wait, judge.

All that a study needs is in its row and in its runs' rows. A trial's run is followed by its feed,
as a page does (:mod:`broadside.coordinator.views.feeds`), and its verdict brings the next step.
Its run id
follows from the study and the trial's number, so a step that is taken twice launches once. One
coordinator at a time takes a study's steps, because switching the device twice is not harmless: it
holds the study by its row, and another takes over when the hold has lapsed. A switch belongs to one
study at a time, and is thrown only for a trial that can run, while no other run sends
(:mod:`broadside.coordinator.studies.turns`).
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from broadside.coordinator.core.plan.planner import Infeasible, first_start
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.refusals import BadStudy, NotHere, RunIsOver, UnknownRun, UnknownStudy
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.scenarios import ScenarioError
from broadside.coordinator.studies.close_ups import read_close_up, read_scaling
from broadside.coordinator.studies.conclude import comparison_wanted, conclude, result_of
from broadside.coordinator.studies.events import Events, check_drill
from broadside.coordinator.studies.study import (
    AB,
    Drill,
    Matrix,
    Search,
    Study,
    StudySpec,
    Trial,
    TrialResult,
)
from broadside.coordinator.studies.switch import Switch, SwitchError
from broadside.coordinator.studies.trials import next_trial
from broadside.coordinator.studies.turns import Turns, other_runs
from broadside.coordinator.views.groups import compare_stored
from broadside.exchange.engines import engines, measures
from broadside.exchange.messages import Traffic
from broadside.exchange.ports import EntityExists, EntityNotFound, ExchangeError, Table
from broadside.exchange.records.keys import STUDIES
from broadside.exchange.records.shelf import Shelf
from broadside.exchange.troubles import utc_now

HOLD_S: Final = 30.0  # s without a word until another coordinator takes a study over
FEASIBLE_WITHIN_S: Final = 60.0  # s for agents of the trial before to be idle again
QUIET_WITHIN_S: Final = 1800.0  # s for other runs to end before the device is switched
CHECKED_MAX_COUNT: Final = 1000  # trials that are tried out before a study is stored

log = logging.getLogger(__name__)


class Busy(Exception):
    """Other runs send through the device that is to be switched; the message names them."""


class Follower(Protocol):
    """Who follows runs: :class:`broadside.coordinator.views.feeds.Feeds`."""

    async def verdict(self, run_id: str) -> RunSummary | None: ...


class Studies:
    """Creates studies and carries them to their conclusion over one coordinator's runs."""

    def __init__(
        self,
        coordinator: Coordinator,
        feeds: Follower,
        table: Table,
        switches: Mapping[str, Switch] | None = None,
        *,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._coordinator = coordinator
        self._feeds = feeds
        self._shelf = Shelf(table, STUDIES, Study)
        self._switches = switches or {}
        self._now = now
        self._name = secrets.token_hex(6)
        self._ended: set[str] = set()
        self._verdicts: dict[str, asyncio.Task[RunSummary | None]] = {}  # waited for, by study id
        self._verdict_came = asyncio.Event()
        self._refused_since: dict[tuple[str, bool], datetime] = {}  # by run id, and whether busy
        self._turns = Turns(table, self._is_open)
        self._events = Events(
            coordinator.stored.read_plan, self._shelf, self._turns.note, self._switches, now
        )

    # Verbs of an operator ---------------------------------------------------------------------

    async def create(
        self, spec: StudySpec, *, by: str, command: Sequence[str] | None = None
    ) -> Study:
        """Store a study; the loop carries it out. Raises :class:`BadStudy`, ``ScenarioError``.

        A drill's own ``command`` stays in this process, which alone carries the study on.
        """
        self._check(spec, command)
        now = self._now()
        study_id = f"{now:%Y%m%d-%H%M%S}-{spec.name.replace('_', '-')}-{secrets.token_hex(2)}"
        study = Study(study_id=study_id, spec=spec, created_at=now, created_by=by)
        if command is not None:
            self._events.commands[study_id] = tuple(command)
            held = {"held_by": self._name, "held_until_at": now + timedelta(seconds=HOLD_S)}
            study = study.model_copy(update=held)
        await self._shelf.create(study_id, study)
        log.info("study created", extra={"action": "study", "run_id": study_id})
        return study

    def _check(self, spec: StudySpec, command: Sequence[str] | None) -> None:
        """Refuse what could not be carried out before anything is stored."""
        question = spec.question
        if isinstance(question, Drill):
            self._check_switch(question.switch, [question.state or ""])
            check_drill(question, spec.spec, command)
        if isinstance(question, AB | Matrix):
            names = (
                [mode.name for mode in question.modes]
                if isinstance(question, Matrix)
                else [question.a.name, question.b.name]
            )
            self._check_switch(question.switch, names)
        if isinstance(question, Search):
            self._check_search(question, spec.spec.traffic)
        results: Sequence[TrialResult] = ()
        for _ in range(CHECKED_MAX_COUNT):
            if (trial := next_trial(spec, results)) is None:
                break
            trial.resolve("check", spec)
            if trial.offered_bits_per_second is not None:
                break  # the next depends on what this one shows
            results = (*results, TrialResult(index=trial.index))

    def _check_search(self, question: Search, traffic: Traffic) -> None:
        """Refuse an engine that offers otherwise than asked, and a goal that nobody measures."""
        exact = [engine.name for engine in engines().values() if engine.paces_exactly]
        if traffic.engine not in exact:
            raise BadStudy(
                f"traffic.engine: {traffic.engine} does not keep each stream to the rate that a "
                f"search offers; set {' or '.join(exact)}"
            )
        rtt_max_s = question.rtt_mean_max_s
        if rtt_max_s is not None and "rtt" not in measures(traffic):
            raise BadStudy(
                f"question.rtt_mean_max_s: {traffic.engine} over {traffic.protocol.value} does "
                "not measure it; drop it, or use an engine that does (docs/engines.md)"
            )
        if question.residual_max_ratio is not None and not self._coordinator.has_ledger:
            raise NotHere(
                "question.residual_max_ratio: this coordinator has no firewall's figures to hold "
                "the fleet's against; drop it, or set BROADSIDE_LEDGER"
            )

    def _check_switch(self, name: str | None, states: Sequence[str]) -> None:
        if name is None:
            return
        switch = self._switches.get(name)
        if switch is None:
            there = ", ".join(sorted(self._switches)) or "none"
            raise NotHere(
                f"question.switch: {name!r} is not declared; there are: {there}; "
                "declare it in the file of BROADSIDE_SWITCHES_FILE"
            )
        absent = [state for state in states if state not in switch.states]
        if absent:
            raise BadStudy(
                f"question.switch: {name!r} has no state {', '.join(absent)}; it has "
                f"{', '.join(switch.states)}"
            )

    async def read(self, study_id: str) -> Study:
        """Raises :class:`UnknownStudy`."""
        study = await self._shelf.read(study_id)
        if study is None:
            raise UnknownStudy(study_id)
        return study

    async def newest(
        self, *, limit: int, cursor: str | None = None
    ) -> tuple[Sequence[Study], str | None]:
        """Studies, newest first, and the cursor of what follows; unreadable ones are left out."""
        # Ids begin with the instant of creation, so that their order is that of time
        found = [study async for _, study in self._shelf.scan()]
        found = [study for study in reversed(found) if cursor is None or study.study_id <= cursor]
        following = found[limit].study_id if len(found) > limit else None
        return found[:limit], following

    async def cancel(self, study_id: str, *, by: str, reason: str) -> Study:
        """Stop a study and its running trial; the device goes back to rest.

        Raises :class:`UnknownStudy`.
        """
        mark = {"cancelled_at": self._now(), "cancelled_by": by, "cancel_reason": reason}

        def cancelled(study: Study) -> Study:
            over = study.cancelled_at is not None or study.ended_at is not None
            return study if over else study.model_copy(update=mark)

        try:
            study = await self._shelf.change(study_id, cancelled)
        except EntityNotFound as error:
            raise UnknownStudy(study_id) from error
        self._events.drop(study_id)
        if study.ended_at is None:
            await self._cancel_run(_run_id(study_id, len(study.results)), by, reason)
        return study

    async def _cancel_run(self, run_id: str, by: str, reason: str) -> None:
        with contextlib.suppress(UnknownRun, RunIsOver):
            await self._coordinator.cancel(run_id, by=by, reason=reason)

    # The loop ---------------------------------------------------------------------------------

    async def run_forever(self, tick_s: float) -> None:
        """Carry on every open study until cancelled; an outage is waited out."""
        try:
            while True:
                self._verdict_came.clear()
                try:
                    await self.tick()
                except ExchangeError as error:
                    log.warning("studies wait: %s", error, extra={"action": "study"})
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._verdict_came.wait(), tick_s)
        finally:
            await self.close()

    async def close(self) -> None:
        """Follow no run any longer."""
        waiting = list(self._verdicts.values())
        for study_id in list(self._verdicts):
            self._let_go(study_id)
        await asyncio.gather(*waiting, return_exceptions=True)

    async def tick(self) -> None:
        """One step of every study that is open and that no other coordinator holds."""
        async for study_id, study in self._shelf.scan():
            if study_id in self._ended:
                continue
            if study.ended_at is not None:
                self._ended.add(study_id)
                self._let_go(study_id)
                continue
            say = {"action": "study", "run_id": study_id}
            try:
                if await self._hold(study_id, HOLD_S):
                    await self._step(await self.read(study_id))
            except ExchangeError as error:
                log.warning("study %s waits: %s", study_id, error, extra=say)
            except Exception:  # one that cannot be carried on must not stop the others
                log.exception("study %s", study_id, extra=say)

    async def _hold(self, study_id: str, hold_s: float) -> bool:
        """Whether this coordinator takes the study's steps for ``hold_s`` from now on."""
        now = self._now()

        def held(study: Study) -> Study:
            lapsed = study.held_until_at is None or study.held_until_at < now
            if study.held_by != self._name and not lapsed:
                return study
            until_at = now + timedelta(seconds=hold_s)
            return study.model_copy(update={"held_by": self._name, "held_until_at": until_at})

        try:
            return (await self._shelf.change(study_id, held)).held_by == self._name
        except EntityNotFound:
            return False

    async def _step(self, study: Study) -> None:
        """Whatever is due now: record a result, switch and launch, or end."""
        if study.cancelled_at is not None:
            await self._end(study, None)
            return
        trial = next_trial(study.spec, study.results)
        if trial is None:
            await self._end(study, None)
            return
        run_id = _run_id(study.study_id, trial.index)
        try:
            await self._coordinator.stored.read_plan(run_id)
        except UnknownRun:
            await self._begin(study, trial, run_id)
            return
        if isinstance(study.spec.question, Drill):
            await self._events.look(study, run_id)
        summary = self._verdict_of(study.study_id, run_id)
        if summary is not None:
            result = result_of(trial.index, summary)
            more = {
                "scaling": await read_scaling(self._coordinator, study, run_id, trial),
                "offered_bits_per_second": trial.offered_bits_per_second,
                "beside_run_ids": tuple(await self._beside(study.study_id, run_id)),
            }
            await self._record(study, result.model_copy(update=more))

    def _verdict_of(self, study_id: str, run_id: str) -> RunSummary | None:
        """A trial's verdict, if its feed has told it by now."""
        if not (task := self._follow(study_id, run_id)).done():
            return None
        del self._verdicts[study_id]  # told once: where it cannot be recorded it is read anew
        return task.result()

    def _follow(self, study_id: str, run_id: str) -> asyncio.Task[RunSummary | None]:
        task = self._verdicts.get(study_id)
        if task is None or task.get_name() != run_id:
            self._let_go(study_id)
            task = asyncio.create_task(self._feeds.verdict(run_id), name=run_id)
            task.add_done_callback(lambda _: self._verdict_came.set())
            self._verdicts[study_id] = task
        return task

    def _let_go(self, study_id: str) -> None:
        if (task := self._verdicts.pop(study_id, None)) is not None:
            task.cancel()

    async def _begin(self, study: Study, trial: Trial, run_id: str) -> None:
        due_at = (study.last_over_at or study.created_at) + timedelta(seconds=study.spec.pause_s)
        if study.results and self._now() < due_at:
            return
        try:
            spec = trial.resolve(study.study_id, study.spec)
            if not await self._may_begin(study, spec):
                return
            await self._switch(study, trial)
            await self._coordinator.launch(spec, by=study.created_by, run_id=run_id)
        except EntityExists:
            return  # an earlier step that died after it
        except SwitchError as error:
            await self._end(study, f"trial {trial.index + 1}: {error}")
            return
        except (Busy, Infeasible, ScenarioError) as error:
            if await self._waits(study, run_id, error):
                return
            problem = TrialResult(
                index=trial.index,
                problem=str(error),
                offered_bits_per_second=trial.offered_bits_per_second,
            )
            await self._record(study, problem)
            return
        self._follow(study.study_id, run_id)
        await self._say(study, None)
        if (await self.read(study.study_id)).cancelled_at is not None:  # while it was launched
            await self._cancel_run(run_id, study.created_by, "the study was cancelled")

    async def _may_begin(self, study: Study, spec: RunSpec) -> bool:
        """Whether the device is this study's to switch for a trial that can run.

        Raises :class:`SwitchError`, :class:`Busy`, ``Infeasible``.
        """
        name, switch = self._switch_of(study)
        if name is None:
            return True
        if switch is None:
            raise SwitchError(f"switch {name!r} is not declared to this coordinator")
        has_it = await self._turns.take(name, study.study_id, self._now())
        if has_it != study.study_id:
            await self._say(study, f"study {has_it}, which has the switch {name}")
            return False
        now = self._now()
        sends_s = (spec.bursts_count - 1) * spec.period_s + spec.traffic.omit_s + spec.burst_s
        switching_s = switch.timeout_s + switch.settle_s
        end_at = first_start(spec, now) + timedelta(seconds=sends_s + switching_s)
        sending = await other_runs(self._coordinator, study.study_id, [(now, end_at)])
        if sending:
            said = [f"run {each}, which sends until {at:%H:%M:%SZ}" for each, at in sending.items()]
            raise Busy(", ".join(said))
        await self._coordinator.check(spec)
        await self._say(study, None)
        return True

    async def _waits(self, study: Study, run_id: str, error: Exception) -> bool:
        """Whether what keeps a trial from its launch may still pass."""
        busy = isinstance(error, Busy)
        if not busy and not isinstance(error, Infeasible):
            return False
        since_at = self._refused_since.setdefault((run_id, busy), self._now())
        waited_s = (self._now() - since_at).total_seconds()
        if waited_s >= (QUIET_WITHIN_S if busy else FEASIBLE_WITHIN_S):
            return False
        await self._say(study, str(error))
        return True

    async def _say(self, study: Study, waits_for: str | None) -> None:
        """Let the study's row say what it waits for."""
        said = {"waits_for": waits_for}
        await self._shelf.change(study.study_id, lambda there: there.model_copy(update=said))

    async def _beside(self, study_id: str, run_id: str) -> Sequence[str]:
        """Other runs that sent during a trial's bursts."""
        bursts = (await self._coordinator.stored.read_plan(run_id)).bursts
        spans = [(burst.planned_start_at, burst.planned_end_at) for burst in bursts]
        return sorted(await other_runs(self._coordinator, study_id, spans))

    async def _is_open(self, study_id: str) -> bool:
        study = await self._shelf.read(study_id)
        return study is not None and study.ended_at is None

    async def _switch(self, study: Study, trial: Trial) -> None:
        """Put the device into the trial's state, unless it is in it."""
        name, switch = self._switch_of(study)
        if name is None or switch is None or trial.mode is None:
            return
        turn = await self._turns.read(name, study.study_id)
        if turn is None or turn.state != trial.mode:
            await self._put(study, name, switch, trial.mode)

    async def _put(self, study: Study, name: str, switch: Switch, state: str) -> None:
        await self._hold(study.study_id, switch.timeout_s + switch.settle_s + HOLD_S)
        await self._turns.note(name, None)  # unknown until the command has ended well
        await switch.set(state)
        await self._turns.note(name, state)
        log.info("switched to %s", state, extra={"action": "switch"})

    def _switch_of(self, study: Study) -> tuple[str | None, Switch | None]:
        """The name of the study's switch, and the switch where it is declared."""
        question = study.spec.question
        name = question.switch if isinstance(question, AB | Matrix | Drill) else None
        return name, None if name is None else self._switches.get(name)

    async def _record(self, study: Study, result: TrialResult) -> None:
        def recorded(there: Study) -> Study:
            if len(there.results) != result.index:
                return there  # recorded by an earlier step
            update = {
                "results": (*there.results, result),
                "last_over_at": self._now(),
                "waits_for": None,
            }
            return there.model_copy(update=update)

        after = await self._shelf.change(study.study_id, recorded)
        if result.problem is not None and study.spec.stop_on_failure:
            await self._end(after, f"trial {result.index + 1}: {result.problem}")

    async def _end(self, study: Study, problem: str | None) -> None:
        """Put the device to rest, conclude from the results there are, and close the study."""
        if (left := await self._rest(study)) is not None:
            problem = left if problem is None else f"{problem}; {left}"
        wanted = comparison_wanted(study.spec, study.results)
        comparison = None if wanted is None else await compare_stored(self._coordinator, wanted)
        study = await self.read(study.study_id)
        close_up = await read_close_up(self._coordinator, study)
        ending = {
            "ended_at": self._now(),
            "problem": problem,
            "waits_for": None,
            "conclusion": conclude(study.spec, study.results, comparison, close_up, study.event),
        }
        await self._shelf.change(
            study.study_id,
            lambda there: there if there.ended_at else there.model_copy(update=ending),
        )
        self._ended.add(study.study_id)
        self._let_go(study.study_id)
        self._events.drop(study.study_id)
        log.info("study ended", extra={"action": "study", "run_id": study.study_id})

    async def _rest(self, study: Study) -> str | None:
        """Put the device to rest if this study switched it; why it is not at rest."""
        name, switch = self._switch_of(study)
        turn = None if name is None else await self._turns.read(name, study.study_id)
        if name is None or turn is None or not turn.threw:
            return None
        if switch is None:
            return f"the device was not put back: switch {name!r} is not declared here"
        try:
            if turn.state != switch.rest:
                await self._put(study, name, switch, switch.rest)
        except SwitchError as error:
            return f"the device was not put back to {switch.rest}: {error}"
        return None


def _run_id(study_id: str, index: int) -> str:
    return f"{study_id}-{index + 1:03d}"
