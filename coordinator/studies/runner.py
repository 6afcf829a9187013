"""Execution of studies in steps, which switch the device, launch, wait and store the result.

All data for a study is in the study row and in the rows of the runs. The run for a trial is
followed using a feed (:mod:`broadside.coordinator.views.feeds`), in the same way as on the web
page. The next step will start when there is a verdict. The run id is made from the study and the
trial number, to make sure that a repeated step cannot launch twice.

Only one coordinator at a time can execute the steps of a study, because the device must not be
switched twice. It holds the study using the study row, and another coordinator can take over when
the hold has expired. A switch can only be used by one study at a time. It should only be used for a
trial that can run, and when no other run is sending traffic
(:mod:`broadside.coordinator.studies.switch_lock`).
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from broadside.coordinator.core import formatting
from broadside.coordinator.core.plan.cost_estimate import expected_bill
from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.core.plan.planner import Infeasible, first_start, live
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.request_errors import (
    BadStudy,
    NotHere,
    RunIsOver,
    UnknownRun,
    UnknownStudy,
)
from broadside.coordinator.runs.comparison_groups import compare_stored
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.device_history import read_history
from broadside.coordinator.runs.run_cost import cost_of
from broadside.coordinator.scenarios import ScenarioError
from broadside.coordinator.studies.conclude import comparison_wanted, conclude, result_of
from broadside.coordinator.studies.drill_reader import read_drill
from broadside.coordinator.studies.events import Events, check_drill
from broadside.coordinator.studies.scale_out_reader import read_scale_out, read_scaling
from broadside.coordinator.studies.sequential_rounds import expected_text, round_size
from broadside.coordinator.studies.study import (
    AB,
    CloseUp,
    Drill,
    Matrix,
    Search,
    SearchLoad,
    Staircase,
    Study,
    StudySpec,
    Trial,
    TrialResult,
)
from broadside.coordinator.studies.switch import Switch, SwitchError
from broadside.coordinator.studies.switch_lock import SwitchLocks, other_runs
from broadside.coordinator.studies.trials import next_trial
from broadside.exchange.engines import engines, measures
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import EntityExists, EntityNotFound, ExchangeError, Table
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import STUDIES

# Time after which a different coordinator can take over a study, in seconds.
HOLD_S: Final = 30.0
# Time to wait for the agents of the last trial to become idle.
FEASIBLE_WITHIN_S: Final = 60.0
# Time to wait for other runs to end before the device is switched.
QUIET_WITHIN_S: Final = 1800.0
# Maximum number of trials to check before a study is stored.
CHECKED_MAX_COUNT: Final = 1000

log = logging.getLogger(__name__)


class Busy(Exception):
    """Other runs send traffic through the device that needs to be switched."""


class Follower(Protocol):
    """Interface to wait for verdicts, see :class:`broadside.coordinator.views.feeds.Feeds`."""

    async def verdict(self, run_id: str) -> RunSummary | None: ...


class Studies:
    """Service that creates studies and executes them to their conclusion."""

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
        self._shelf = Collection(table, STUDIES, Study)
        self._switches = switches or {}
        self._now = now
        self._name = secrets.token_hex(6)
        self._ended: set[str] = set()
        # Tasks that wait for a verdict, by study id.
        self._verdicts: dict[str, asyncio.Task[RunSummary | None]] = {}
        self._verdict_came = asyncio.Event()
        # Time of the first rejection, by run id and whether other runs were the reason.
        self._refused_since: dict[tuple[str, bool], datetime] = {}
        self._locks = SwitchLocks(table, self._is_open)
        self._events = Events(
            coordinator.stored.read_plan, self._shelf, self._locks.note, self._switches, now
        )

    # Operator actions --------------------------------------------------------------------------

    async def create(
        self, spec: StudySpec, *, by: str, command: Sequence[str] | None = None
    ) -> Study:
        """Store a study, to be executed by the loop.

        Args:
            spec: Study specification.
            by: User who creates it.
            command: Own command for a drill. It is only known to this process, so no other
                coordinator can execute the study. None uses the switch of the question.

        Returns:
            The stored study with its id.

        Raises:
            BadStudy: The study is invalid.
            ScenarioError: The specification of the run is invalid.
        """
        self._check(spec, command)
        now = self._now()
        study_id = f"{now:%Y%m%d-%H%M%S}-{spec.name.replace('_', '-')}-{secrets.token_hex(2)}"
        study = Study(
            study_id=study_id,
            spec=spec,
            created_at=now,
            created_by=by,
            expected=await self._expected(spec),
        )
        if command is not None:
            self._events.commands[study_id] = tuple(command)
            lock = {"locked_by": self._name, "locked_until_at": now + timedelta(seconds=HOLD_S)}
            study = study.model_copy(update=lock)
        await self._shelf.create(study_id, study)
        log.info("study created", extra={"action": "study", "run_id": study_id})
        return study

    async def _expected(self, spec: StudySpec) -> str | None:
        """Return the expected number of bursts, from the history of the device if there is one.

        Raises:
            BadStudy: The budget does not cover the first round.
        """
        if spec.sequential is None or (first := next_trial(spec, ())) is None:
            return None
        trial, coordinator = first.resolve("check", spec), self._coordinator
        records, now = coordinator.fabric.records, self._now()
        budget_usd = spec.sequential.budget_usd
        if budget_usd is not None:
            fleet = live(await records.fleet.read_presences(), now)
            bill = expected_bill(trial, expect_usage(trial, fleet, now), coordinator.prices)
            round_usd = (bill.total_low_usd or 0.0) * round_size(spec.question)
            if round_usd > budget_usd:
                raise BadStudy(
                    f"sequential.budget_usd: {formatting.dollars(budget_usd)} is less than the "
                    f"cost of one round, at least {formatting.dollars(round_usd)}; raise it, or "
                    "use shorter bursts"
                )
        history = await read_history(records, coordinator.stored.read_plan, trial)
        return expected_text(spec, history)

    def _check(self, spec: StudySpec, command: Sequence[str] | None) -> None:
        """Check that a study can be executed, before it is stored."""
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
            self._check_search(question, spec.spec)
        results: Sequence[TrialResult] = ()
        for _ in range(CHECKED_MAX_COUNT):
            if (trial := next_trial(spec, results)) is None:
                break
            trial.resolve("check", spec)
            if trial.offered is not None:
                # The next trial depends on the result of this one.
                break
            results = (*results, TrialResult(index=trial.index))

    def _check_search(self, question: Search, spec: RunSpec) -> None:
        """Reject engines without exact pacing, and limits that cannot be measured."""
        if question.load is not SearchLoad.BITS:
            _check_connections(question, spec)
            return
        traffic = spec.traffic
        exact = [engine.name for engine in engines().values() if engine.paces_exactly]
        if traffic.engine not in exact:
            raise BadStudy(
                f"traffic.engine: {traffic.engine} does not pace streams exactly, as a search "
                f"needs; set {' or '.join(exact)}"
            )
        rtt_max_s = question.rtt_mean_max_s
        if rtt_max_s is not None and "rtt" not in measures(traffic):
            raise BadStudy(
                f"question.rtt_mean_max_s: {rtt_max_s:g}: {traffic.engine} over "
                f"{traffic.protocol.value} does not measure the RTT; remove the field, or set "
                "another engine (/docs/engines.html of the coordinator)"
            )
        if question.residual_max_ratio is not None and not self._coordinator.has_counter:
            raise NotHere(
                f"question.residual_max_ratio: {question.residual_max_ratio:g}: this coordinator "
                "has no device counter; remove the field, or configure a byte_counter "
                "(/docs/telemetry.html of the coordinator)"
            )

    def _check_switch(self, name: str | None, states: Sequence[str]) -> None:
        if name is None:
            return
        switch = self._switches.get(name)
        if switch is None:
            declared = ", ".join(sorted(self._switches)) or "none"
            raise BadStudy(
                f"question.switch: {name!r} is not declared (declared: {declared}); "
                "declare it in the file of BROADSIDE_SWITCHES_FILE"
            )
        absent = [state for state in states if state not in switch.states]
        if absent:
            raise BadStudy(
                f"question.switch: {name!r} has no state {', '.join(absent)}; give one of "
                f"{', '.join(switch.states)}"
            )

    async def read(self, study_id: str) -> Study:
        """Return a study.

        Raises:
            UnknownStudy: If the id is unknown.
        """
        study = await self._shelf.read(study_id)
        if study is None:
            raise UnknownStudy(study_id)
        return study

    async def newest(
        self,
        *,
        limit: int,
        cursor: str | None = None,
        fits: Callable[[Study], bool] = lambda _: True,
    ) -> tuple[Sequence[Study], str | None]:
        """Return studies, newest first. Studies that cannot be read are left out.

        Args:
            limit: Maximum number of studies to return.
            cursor: Cursor from the last call, or None to start.
            fits: Filter for the studies.

        Returns:
            The studies, and the cursor for the next call or None at the end.
        """
        # Ids begin with the time of creation, so you can use them to sort by time.
        results = [study async for _, study in self._shelf.scan() if fits(study)]
        results = [
            study for study in reversed(results) if cursor is None or study.study_id <= cursor
        ]
        following = results[limit].study_id if len(results) > limit else None
        return results[:limit], following

    async def cancel(self, study_id: str, *, by: str, reason: str) -> Study:
        """Stop a study and the current trial. The device will be set to the rest state.

        Args:
            study_id: The id to look up.
            by: User who cancels it.
            reason: Text to store.

        Returns:
            The study as it is stored. A study that has ended is not changed.

        Raises:
            UnknownStudy: If the id is unknown.
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

    # Main loop ---------------------------------------------------------------------------------

    async def run_forever(self, tick_s: float) -> None:
        """Execute all open studies until cancelled, and retry after outages.

        Args:
            tick_s: Longest time between two steps in seconds.
        """
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
        """Stop following runs."""
        waiting = list(self._verdicts.values())
        for study_id in list(self._verdicts):
            self._let_go(study_id)
        await asyncio.gather(*waiting, return_exceptions=True)

    async def tick(self) -> None:
        """Execute one step for each open study that is not held by another coordinator."""
        async for study_id, study in self._shelf.scan():
            if study_id in self._ended:
                continue
            if study.ended_at is not None:
                self._ended.add(study_id)
                self._let_go(study_id)
                continue
            extra = {"action": "study", "run_id": study_id}
            try:
                if await self._acquire(study_id, HOLD_S):
                    await self._step(await self.read(study_id))
            except ExchangeError as error:
                log.warning("study %s waits: %s", study_id, error, extra=extra)
            # If there is an error in a study, we should still run the others.
            except Exception:
                log.exception("study %s", study_id, extra=extra)

    async def _acquire(self, study_id: str, hold_s: float) -> bool:
        """Hold the study for some seconds, and return True on success."""
        now = self._now()

        def take(study: Study) -> Study:
            lapsed = study.locked_until_at is None or study.locked_until_at < now
            if study.locked_by != self._name and not lapsed:
                return study
            until_at = now + timedelta(seconds=hold_s)
            return study.model_copy(update={"locked_by": self._name, "locked_until_at": until_at})

        try:
            return (await self._shelf.change(study_id, take)).locked_by == self._name
        except EntityNotFound:
            return False

    async def _step(self, study: Study) -> None:
        """Execute the next step, to store a result, switch and launch, or end the study."""
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
            await self._events.check(study, run_id)
        summary = self._verdict_of(study.study_id, run_id)
        if summary is not None:
            result = result_of(trial.index, summary)
            more = {
                "scaling": await read_scaling(self._coordinator, study, run_id, trial),
                "offered_bits_per_second": trial.offered_bits_per_second,
                "offered_connections_count": trial.offered_connections_count,
                "concurrent_run_ids": tuple(await self._beside(study.study_id, run_id)),
                "cost_usd": await self._cost_usd(study, run_id),
            }
            await self._record(study, result.model_copy(update=more))

    async def _cost_usd(self, study: Study, run_id: str) -> float | None:
        """Return the cost of a trial at real scale, or None without a budget."""
        sequential = study.spec.sequential
        if sequential is None or sequential.budget_usd is None:
            return None
        records = self._coordinator.fabric.records
        plan = await self._coordinator.stored.read_plan(run_id)
        control = await records.runs.read_control(run_id)
        return await cost_of(records, plan, control, self._coordinator.prices)

    def _verdict_of(self, study_id: str, run_id: str) -> RunSummary | None:
        """Return the verdict for a trial if its feed already has it."""
        if not (task := self._follow(study_id, run_id)).done():
            return None
        # The result is used only once. If it cannot be stored, it will be read again.
        del self._verdicts[study_id]
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
            # It was launched by an earlier step that was interrupted.
            return
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
                offered_connections_count=trial.offered_connections_count,
            )
            await self._record(study, problem)
            return
        self._follow(study.study_id, run_id)
        await self._note_wait(study, None)
        # The study was cancelled during the launch.
        if (await self.read(study.study_id)).cancelled_at is not None:
            await self._cancel_run(run_id, study.created_by, "the study was cancelled")

    async def _may_begin(self, study: Study, spec: RunSpec) -> bool:
        """Return True if this study can use its switch and the trial can run.

        Raises SwitchError, Busy or ``Infeasible``.
        """
        name, switch = self._switch_of(study)
        if name is None:
            return True
        if switch is None:
            raise SwitchError(f"switch {name!r} is not declared to this coordinator")
        owner = await self._locks.take(name, study.study_id, self._now())
        if owner != study.study_id:
            await self._note_wait(study, f"study {owner}, which uses the switch {name}")
            return False
        now = self._now()
        sends_s = (spec.bursts_count - 1) * spec.period_s + spec.traffic.omit_s + spec.burst_s
        switching_s = switch.timeout_s + switch.settle_s
        end_at = first_start(spec, now) + timedelta(seconds=sends_s + switching_s)
        sending = await other_runs(self._coordinator, study.study_id, [(now, end_at)])
        if sending:
            runs = [
                f"run {run_id}, which sends traffic until {at:%H:%M:%SZ}"
                for run_id, at in sending.items()
            ]
            raise Busy(", ".join(runs))
        await self._coordinator.check(spec)
        await self._note_wait(study, None)
        return True

    async def _waits(self, study: Study, run_id: str, error: Exception) -> bool:
        """Return True if the launch should be tried again later."""
        busy = isinstance(error, Busy)
        if not busy and not isinstance(error, Infeasible):
            return False
        since_at = self._refused_since.setdefault((run_id, busy), self._now())
        waited_s = (self._now() - since_at).total_seconds()
        if waited_s >= (QUIET_WITHIN_S if busy else FEASIBLE_WITHIN_S):
            return False
        await self._note_wait(study, str(error))
        return True

    async def _note_wait(self, study: Study, waits_for: str | None) -> None:
        """Store the reason for which the study waits."""
        update = {"waits_for": waits_for}
        await self._shelf.change(study.study_id, lambda there: there.model_copy(update=update))

    async def _beside(self, study_id: str, run_id: str) -> Sequence[str]:
        """Return other runs with traffic during the bursts of a trial."""
        bursts = (await self._coordinator.stored.read_plan(run_id)).bursts
        spans = [(burst.planned_start_at, burst.planned_end_at) for burst in bursts]
        return sorted(await other_runs(self._coordinator, study_id, spans))

    async def _is_open(self, study_id: str) -> bool:
        study = await self._shelf.read(study_id)
        return study is not None and study.ended_at is None

    async def _switch(self, study: Study, trial: Trial) -> None:
        """Set the device to the state for the trial, if it is not already set."""
        name, switch = self._switch_of(study)
        if name is None or switch is None or trial.mode is None:
            return
        lock = await self._locks.read(name, study.study_id)
        if lock is None or lock.state != trial.mode:
            await self._put(study, name, switch, trial.mode)

    async def _put(self, study: Study, name: str, switch: Switch, state: str) -> None:
        await self._acquire(study.study_id, switch.timeout_s + switch.settle_s + HOLD_S)
        # The state is unknown until the command has succeeded.
        await self._locks.note(name, None)
        await switch.set(state)
        await self._locks.note(name, state)
        log.info("switched to %s", state, extra={"action": "switch"})

    def _switch_of(self, study: Study) -> tuple[str | None, Switch | None]:
        """Return the name of the study's switch, and the switch if it is declared."""
        question = study.spec.question
        name = question.switch if isinstance(question, AB | Matrix | Drill) else None
        return name, None if name is None else self._switches.get(name)

    async def _record(self, study: Study, result: TrialResult) -> None:
        def recorded(there: Study) -> Study:
            if len(there.results) != result.index:
                # It was stored by an earlier step.
                return there
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
        """Set the device to the rest state, store the conclusion and close the study."""
        if (left := await self._rest(study)) is not None:
            problem = left if problem is None else f"{problem}; {left}"
        wanted = comparison_wanted(study.spec, study.results)
        comparison = None if wanted is None else await compare_stored(self._coordinator, wanted)
        study = await self.read(study.study_id)
        close_up: CloseUp | None = None
        if isinstance(study.spec.question, Staircase):
            close_up = await read_scale_out(self._coordinator, study)
        elif isinstance(study.spec.question, Drill):
            close_up = await read_drill(self._coordinator, study)
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
        """Set the device to the rest state if this study has switched it.

        Returns the reason if this fails, or None.
        """
        name, switch = self._switch_of(study)
        lock = None if name is None else await self._locks.read(name, study.study_id)
        if name is None or lock is None or not lock.switched:
            return None
        if switch is None:
            return f"the device was not reset: switch {name!r} is not declared here"
        try:
            if lock.state != switch.rest:
                await self._put(study, name, switch, switch.rest)
        except SwitchError as error:
            return f"the device was not reset to {switch.rest}: {error}"
        return None


def _check_connections(question: Search, spec: RunSpec) -> None:
    """Reject a search over connections that its runs cannot answer. Raises ``BadStudy``."""
    traffic, fix = spec.traffic, "set traffic.engine=connections"
    if traffic.engine != "connections":
        raise BadStudy(f"traffic.engine: {traffic.engine} does not count connections; {fix}")
    for name in ("rtt_mean_max_s", "residual_max_ratio"):
        if getattr(question, name) is not None:
            raise BadStudy(f"question.{name}: connections have none; remove the field")
    mode = traffic.options.get("mode", "connect")
    if (mode == "hold") is not (question.load is SearchLoad.HELD):
        other = "hold" if question.load is SearchLoad.HELD else "connect or exchange"
        raise BadStudy(f"traffic.options.mode: {mode} has no {question.load}; set {other}")
    if question.load is SearchLoad.HELD:
        per_second = float(str(traffic.options.get("attempts_per_second", 1000)))
        opening_s = question.highest / spec.pairs_count / per_second
        if opening_s > spec.burst_s / 2:
            raise BadStudy(
                f"traffic.options.attempts_per_second: {per_second:g} per pair need "
                f"{opening_s:.0f} s to open {question.highest:.0f} connections, more than half of "
                "the burst; raise it, or burst_s"
            )


def _run_id(study_id: str, index: int) -> str:
    return f"{study_id}-{index + 1:03d}"
