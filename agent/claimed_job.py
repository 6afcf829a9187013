"""Run a claimed job, from arming to the report.

These tasks run beside :meth:`ClaimedJob.conduct` until the job is over:

- the *engine*, in a separate process, which is stopped at its deadline
- the *guard*, which reads the run's control row every second and the clock once more before the
  planned start. It ends with the reason to stop, or when the coordinator ends the burst before its
  planned end. The latter is no abort.
- the *narrator*, which marks the claim as armed and running and uploads the measured seconds.

A burst can be stopped early only by the guard or when the agent is stopping. If the progress cannot
be reported, this should not stop it.
"""

import asyncio
import logging
import math
import socket
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from broadside.agent.agent_context import Tools
from broadside.agent.attempt import PLANNED_END, AttemptLimits, known_until_s
from broadside.agent.canary_sender import CanarySender
from broadside.agent.client_processes import ClientProcesses
from broadside.agent.client_tunnel import LEAD_S, ClientTunnel
from broadside.agent.clock import clock_problem, read_clock
from broadside.agent.control_reads import LAST_LOOK_S, ControlReads, ControlWatch
from broadside.agent.decide import GateReport, JobOutcome, judge_outcome, may_retry, start_error_s
from broadside.agent.device_pings import DevicePings
from broadside.agent.engine_process import (
    EngineUnusable,
    ProcessExit,
    ProcessSetup,
    least_privileged,
)
from broadside.agent.gate import find_bodies, gate_env
from broadside.agent.host import find_source
from broadside.agent.idle_rtt import MARGIN_S, from_connections, from_handshakes
from broadside.agent.installed_engines import InstalledEngine
from broadside.agent.probe import Prober
from broadside.agent.side_tasks import pause, safely
from broadside.agent.tunnel import TunnelFailed
from broadside.agent.workspace import Workspace
from broadside.exchange.engines.port import (
    ClientRequest,
    EngineResult,
    Launch,
    Process,
    ServerLifetime,
    Unsupported,
)
from broadside.exchange.messages import (
    Claim,
    ClockReading,
    ClockSource,
    EngineReport,
    IdleRtt,
    Job,
    JobPhase,
    JobReport,
    Outcome,
    StartMethod,
)
from broadside.exchange.pacing import ARMED_TURN_MAX_S, turn_s

# Seconds to wait after the planned end before a stuck engine is stopped.
ENGINE_GRACE_S: Final = 10.0
# Seconds to wait between checks for all connections.
ARMED_POLL_S: Final = 0.1
# Seconds to wait before trying to arm again.
RETRY_S: Final = 0.2
# Engine time to start with. It is not 0, so that the first upload is a tail in a single row, like
# all the following ones.
UNTOLD_S: Final = 1e-6
CLAIM_TIMEOUT_S: Final = 5.0
# Seconds needed to stop a held engine before the planned start.
CLOCK_WORD_S: Final = 0.2
# Seconds after an early end until the engine is stopped, so that it reports its last whole second.
STOP_MARGIN_S: Final = 0.2
# A late start delays this by at most this many seconds, so that all pairs stop within one second.
STOP_LATE_MAX_S: Final = 0.6
# Seconds to wait for answers to the last probes after an early end.
LAST_PROBES_S: Final = 1.0
# Seconds to use instead if there are canaries, for their last answers and questions.
LAST_CANARIES_S: Final = 5.0
# Seconds of host counters to add before and after a burst.
EDGE_S: Final = 2.0
# Outages up to this long before the claim are added to the report.
TROUBLES_BEFORE: Final = timedelta(minutes=1)

log = logging.getLogger(__name__)


def utc(epoch_s: float) -> datetime:
    """Return a Unix timestamp as a UTC datetime."""
    return datetime.fromtimestamp(epoch_s, UTC)


class ClaimedJob:
    """A claimed job in progress. Each instance executes one job."""

    def __init__(self, job: Job, claim: Claim, tools: Tools) -> None:
        self._job = job
        self._claim = claim
        self._tools = tools
        self._instant_s = job.planned_start_at.timestamp()
        self._attempt: ClientProcesses | None = None
        self._workspace: Workspace | None = None
        self._prober: Prober | None = None
        self._canary: CanarySender | None = None
        self._pings: DevicePings | None = None
        self._tunnel: ClientTunnel | None = None
        # Errors from earlier attempts to arm.
        self._failures: list[str] = []
        # True if there is no gate and only the planned start is awaited.
        self._waiting = False
        # Engine time in seconds up to which data has been uploaded.
        self._sent_s = UNTOLD_S
        self._clock_before: ClockReading | None = None
        # None means that the RTT was not measured.
        self._idle_rtt: IdleRtt | None = None
        # True after the second clock reading, which follows arming.
        self._clock_looked = False
        # Problem found by that reading, for which the guard stopped the job.
        self._clock_moved: str | None = None
        # Unix timestamp to stop the engine at because of an early end, and the time when it was
        # stopped for this reason.
        self._stop_at_s: float | None = None
        self._stopped_at: datetime | None = None
        self._context = {"job_id": job.job_id}

    @property
    def claim(self) -> Claim:
        """The claim row in its current state."""
        return self._claim

    async def conduct(self) -> JobReport:
        """Execute the job and return its report.

        All rows except the report itself are written before this method returns.
        """
        guard = asyncio.create_task(self._watch_run())
        narrator = asyncio.create_task(self._narrate())
        senders = {task for task in (self._start_probing(), self._start_canary()) if task}
        pinger = self._start_pinging()
        publisher = self._start_publishing()
        try:
            ending = await self._carry_out(guard)
            if ending.outcome is Outcome.ABANDONED and self._clock_moved is not None:
                ending = JobOutcome(outcome=Outcome.REFUSED, reason=self._clock_moved)
            if ending.outcome in (Outcome.MEASURED, Outcome.LATE):
                await self._finish(senders, guard)
        except Exception as error:
            # After an internal error, the claim must still get a report.
            log.exception("burst failed", extra={"action": "error", **self._context})
            ending = JobOutcome(outcome=Outcome.FAILED, reason=f"the agent erred: {error!r}")
        finally:
            guard.cancel()
            narrator.cancel()
            beside = [*senders, *(task for task in (pinger, publisher) if task is not None)]
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, guard, narrator, return_exceptions=True)
            if self._attempt is not None and self._attempt.over is None:
                self._attempt.exit.cancel()
                await asyncio.wait({self._attempt.exit})
            if self._workspace is not None:
                self._workspace.close()
            if self._tunnel is not None:
                await self._tunnel.close()
        await self._save_all(ending)
        return await self._report(ending)

    async def _finish(self, senders: set[asyncio.Task[None]], guard: asyncio.Task[str]) -> None:
        """Wait until all probes and canaries are sent, or until the guard stops the job."""
        waiting = set(senders)
        while waiting and not guard.done():
            done, _ = await asyncio.wait({*waiting, guard}, return_when=asyncio.FIRST_COMPLETED)
            waiting -= done
        if waiting and self._stopped_at is not None:
            if self._canary is not None:
                self._canary.finish()
            await asyncio.wait(waiting, timeout=LAST_CANARIES_S if self._canary else LAST_PROBES_S)

    # Arm and run ------------------------------------------------------------------------------

    async def _carry_out(self, guard: asyncio.Task[str]) -> JobOutcome:
        settings, installed = self._tools.settings, self._tools.installed(self._job.traffic.engine)
        arm_at_s = self._instant_s - settings.arm_lead_s
        if self._job.traffic.encapsulation is not None:
            if reason := await self._race(guard, arm_at_s - LEAD_S):
                return JobOutcome(outcome=Outcome.ABANDONED, reason=reason)
            if (outcome := await self._open_tunnel(guard)) is not None:
                return outcome
        if reason := await self._race(guard, arm_at_s):
            return JobOutcome(outcome=Outcome.ABANDONED, reason=reason)
        self._clock_before = await read_clock(settings.chronyc_socket)
        if problem := self._clock_problem(self._clock_before):
            return JobOutcome(outcome=Outcome.REFUSED, reason=problem)
        if installed.problem is not None:
            return JobOutcome(
                outcome=Outcome.REFUSED, reason=f"traffic.engine: {installed.problem}"
            )
        try:
            launch = self._prepare(installed)
        except Unsupported as error:
            return JobOutcome(outcome=Outcome.REFUSED, reason=str(error))
        except OSError as error:
            return JobOutcome(outcome=Outcome.FAILED, reason=f"no folder for the engine: {error}")
        late_s = time.time() - self._instant_s
        if late_s >= 0:
            return JobOutcome(
                outcome=Outcome.MISSED, reason=f"armed {late_s:.3f} s after the planned start"
            )
        if not self._gated:
            self._waiting = True
            if reason := await self._race(guard, self._instant_s):
                return JobOutcome(outcome=Outcome.ABANDONED, reason=reason)
        return await self._fire(installed, launch, guard)

    async def _open_tunnel(self, guard: asyncio.Task[str]) -> JobOutcome | None:
        """Open the tunnel of the job. Return an outcome if this is not possible."""
        try:
            if not self._tools.tunnels:
                raise TunnelFailed("not allowed, or not possible, on this agent")
            self._tunnel = ClientTunnel(self._job, self._tools)
            opening = asyncio.create_task(self._tunnel.open())
            await asyncio.wait({opening, guard}, return_when=asyncio.FIRST_COMPLETED)
            if guard.done():
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                return JobOutcome(outcome=Outcome.ABANDONED, reason=guard.result())
            await opening
        except TunnelFailed as error:
            reason = f"traffic.encapsulation: {error}"
            return JobOutcome(outcome=Outcome.REFUSED, reason=reason)
        return None

    def _setup(self, process: Process) -> ProcessSetup:
        """Return the user for a process, and its environment if the start gate holds it."""
        identity = self._workspace.identity if self._workspace else None
        engine = self._tools.installed(self._job.traffic.engine).engine
        if self._tools.gate is None or not self._gated or engine.waits_itself:
            return ProcessSetup(identity=identity)
        local = {"streams_count": process.streams_count or self._job.traffic.streams_count}
        traffic = self._job.traffic.model_copy(update=local)
        env = gate_env(self._tools.gate, self._instant_s, traffic)
        return ProcessSetup(env=env, identity=identity)

    @property
    def _gated(self) -> bool:
        """True if the start gate holds this job's engine, or if the engine waits itself."""
        engine = self._tools.installed(self._job.traffic.engine).engine
        return engine.waits_itself or (self._tools.gate is not None and engine.gated)

    def _prepare(self, installed: InstalledEngine) -> Launch:
        """Return the processes to start, after writing their files.

        Raises:
            Unsupported: The engine does not support the job.
            OSError: The folder or a file cannot be written.
        """
        if installed.engine.needs_folder:
            self._workspace = Workspace(self._tools.settings.agent_id)
        launch = installed.engine.client(
            ClientRequest(
                job=self._tunnel.job if self._tunnel else self._job,
                tools=installed.tools,
                folder=str(self._workspace.path) if self._workspace else "",
                bind=self._tunnel.bind if self._tunnel else self._bind_address(),
                bodies=find_bodies(),
            )
        )
        if self._workspace is not None:
            if launch.unprivileged:
                self._workspace.give_to(least_privileged(launch.processes[0].argv[0]))
            self._workspace.fill(launch.files)
        return launch

    async def _fire(
        self, installed: InstalledEngine, launch: Launch, guard: asyncio.Task[str]
    ) -> JobOutcome:
        """Run the engine and return the outcome.

        If the engine is rejected before the planned start, it is started again.
        """
        requested_s = self._job.duration_s + self._job.traffic.omit_s
        while True:
            try:
                attempt = await ClientProcesses.spawn(
                    installed.engine,
                    launch,
                    self._job,
                    AttemptLimits(
                        raw_max_bytes=self._tools.settings.raw_max_bytes,
                        deadline_at_s=self._instant_s + requested_s + ENGINE_GRACE_S,
                    ),
                    self._setup,
                )
            except EngineUnusable as error:
                return JobOutcome(outcome=Outcome.FAILED, reason=str(error))
            self._attempt = attempt
            reason = await self._race(guard, None)
            if reason == PLANNED_END:
                reason, self._stopped_at = None, utc(time.time())
                attempt.stop(PLANNED_END)
            elif reason is not None:
                attempt.stop(reason)
            exit_ = await attempt.exit
            reading = self._reading(attempt)
            retry_s = time.time() + RETRY_S
            if reason is None and retry_s < self._instant_s and may_retry(reading.report.error):
                self._failures.append(str(reading.report.error))
                log.info(
                    "armed in vain, trying again: %s",
                    reading.report.error,
                    extra={"action": "arm_again", **self._context},
                )
                if reason := await self._race(guard, retry_s):
                    return JobOutcome(outcome=Outcome.ABANDONED, reason=reason)
                continue
            return judge_outcome(
                self._job,
                reading,
                exit_,
                GateReport(
                    release=attempt.release,
                    refusal=reason,
                    ended_early=self._stopped_at is not None,
                ),
                late_after_s=_tighter(self._tools.settings.late_after_s, self._job.late_after_s),
            )

    def _reading(self, attempt: ClientProcesses) -> EngineResult:
        """Return the measurements so far. To be stopped at an early end is no error."""
        reading = attempt.read()
        if self._stopped_at is None:
            return reading
        report = reading.report.model_copy(update={"error": None, "truncated": False})
        return replace(reading, report=report)

    async def _race(self, guard: asyncio.Task[str], until_s: float | None) -> str | None:
        """Wait for a time or the end of the engine, or return the guard's reason to stop."""
        waiting: set[asyncio.Task[str] | asyncio.Task[ProcessExit]] = {guard}
        if self._attempt is not None and not self._attempt.exit.done():
            waiting.add(self._attempt.exit)
        while True:
            # Wait in short steps, because a wall clock that is being adjusted drifts against the
            # loop's clock.
            step_s = 1.0 if until_s is None else min(until_s - time.time(), 1.0)
            if step_s <= 0:
                return None
            done, _ = await asyncio.wait(
                waiting, timeout=step_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done - {guard}:
                return None
            if done:
                return guard.result()

    def _bind_address(self) -> str | None:
        """Return the address in the settings if it has the same IP version as the target."""
        local, target = self._tools.settings.address, ip_address(self._job.endpoint.address)
        return str(local) if local is not None and local.version == target.version else None

    def _source_address(self) -> str | None:
        """Return the source address of this end as seen by the server, without translation."""
        if self._tunnel is not None:
            return self._tunnel.bind
        target = ip_address(self._job.endpoint.address)
        family = socket.AF_INET if target.version == 4 else socket.AF_INET6
        return self._bind_address() or find_source(family, str(target))

    def _start_probing(self) -> asyncio.Task[None] | None:
        """Probe the path from before the planned start to after the end, if the job requests it."""
        endpoint = self._job.endpoint
        if self._job.traffic.probe is None or endpoint.echo_port is None:
            return None
        self._prober = Prober(self._job)
        run = self._prober.run(endpoint.address, endpoint.echo_port, self._bind_address())
        return asyncio.create_task(safely(run, "probe", self._context))

    def _start_canary(self) -> asyncio.Task[None] | None:
        """Send canaries from before the planned start to after the end, if the job requests it."""
        if self._job.traffic.canary is None:
            return None
        self._canary = CanarySender(self._job, self._bind_address())
        return asyncio.create_task(safely(self._canary.run(), "canary", self._context))

    def _start_pinging(self) -> asyncio.Task[None] | None:
        """Ping the device itself, if the job requests it and it is in an allowed network."""
        probe = self._job.traffic.probe
        if probe is None or probe.device is None:
            return None
        if not self._tools.settings.is_allowed(probe.device):
            log.warning(
                "no pings to the device: %s is not in the allowed networks",
                probe.device,
                extra={"action": "no_device_pings", **self._context},
            )
            return None
        self._pings = DevicePings(self._job, probe.device, probe.device_tcp_port)
        return asyncio.create_task(safely(self._pings.run(), "device_pings", self._context))

    def _start_publishing(self) -> asyncio.Task[None] | None:
        """Publish live values of the probes with the claim, if the job requests them."""
        every_s = self._job.live_probes_s
        if self._prober is None or every_s is None:
            return None
        return asyncio.create_task(self._publish_probes(self._prober, every_s))

    async def _publish_probes(self, prober: Prober, every_s: float) -> None:
        turn = turn_s(self._job.pair_index, every_s)
        await asyncio.sleep(max(0.0, prober.first_at_s - time.time()) + turn)
        while True:
            await self._mark(probes=prober.live())
            await asyncio.sleep(every_s)

    # Guard ------------------------------------------------------------------------------------

    async def _watch_run(self) -> str:
        """Read the control row until the run must stop, and return the reason.

        An abort will be detected after one poll interval and one read. If reads take up to 2 s, the
        engine will be stopped within 5 s.
        """
        tools, now_s = self._tools, asyncio.get_running_loop().time
        watch = ControlWatch(instant_s=self._instant_s)
        poll_s = _tighter(self._job.control_poll_s, tools.settings.control_poll_s)
        reads = ControlReads(
            lambda: tools.records.runs.read_control(self._job.run_id, self._job.pair_index),
            tools.stopping,
        )
        try:
            while True:
                reads.ask()
                ask_at_s = now_s() + watch.pause_s(poll_s, time.time())
                while now_s() < ask_at_s:
                    news = await reads.next(min(ask_at_s - now_s(), self._stops_in_s()))
                    if tools.stopping.is_set():
                        return "the agent is stopping"
                    reason = watch.judge(news, time.time())
                    if reason is None and self._is_ended(watch):
                        return PLANNED_END
                    if reason is None:
                        reason = self._clock_moved = await self._check_clock()
                    if reason is not None:
                        return reason
        finally:
            await reads.close()

    def _is_ended(self, watch: ControlWatch) -> bool:
        """Return True if the engine needs to be stopped now because the burst was ended early."""
        end = watch.end_of(self._job.burst_index)
        if end is not None and self._stop_at_s is None:
            reading = self._attempt.read() if self._attempt else None
            late_s = (start_error_s(self._job, reading) if reading else None) or 0.0
            # Without a whole second, there would be no measurement.
            end_s = max(end.at.timestamp(), self._instant_s + self._job.traffic.omit_s + 1)
            self._stop_at_s = end_s + STOP_MARGIN_S + min(max(late_s, 0.0), STOP_LATE_MAX_S)
        return self._stops_in_s() <= 0

    def _stops_in_s(self) -> float:
        """Return the seconds until the engine needs to be stopped, or infinity."""
        return math.inf if self._stop_at_s is None else self._stop_at_s - time.time()

    async def _check_clock(self) -> str | None:
        """Return why the clock is no longer good after arming, or None if it is good or not due.

        If chronyd is slow to answer, this is ignored.
        """
        left_s = self._instant_s - time.time()
        if self._clock_looked or self._clock_before is None or left_s > LAST_LOOK_S:
            return None
        self._clock_looked = True
        try:
            async with asyncio.timeout(max(0.0, left_s - CLOCK_WORD_S)):
                reading = await read_clock(self._tools.settings.chronyc_socket)
        except TimeoutError:
            return None
        if reading.source is ClockSource.UNKNOWN:
            return None
        self._clock_before = reading
        problem = self._clock_problem(reading)
        return problem and f"after arming: {problem}"

    def _clock_problem(self, reading: ClockReading) -> str | None:
        bound_max_s = _tighter(self._tools.settings.clock_bound_max_s, self._job.clock_bound_max_s)
        return clock_problem(reading, bound_max_s, self._job.shared_boot_id)

    # Narrator ---------------------------------------------------------------------------------

    async def _narrate(self) -> None:
        while not self._is_armed() and time.time() < self._instant_s:  # noqa: ASYNC110 - the
            # gate reports this on the engine's standard error and does not set an event
            await asyncio.sleep(ARMED_POLL_S)
        if self._is_armed():
            now_at = utc(time.time())
            await safely(self._measure_idle_rtt(), "idle_rtt", self._context)
            turn = turn_s(self._job.pair_index, ARMED_TURN_MAX_S)
            await asyncio.sleep(min(turn, max(0.0, self._instant_s - time.time())))
            await self._mark(
                phase=JobPhase.ARMED,
                armed_at=now_at,
                clock=self._clock_before,
                address=self._source_address(),
            )
        turn = turn_s(self._job.pair_index, self._tools.settings.upload_s)
        await asyncio.sleep(max(self._instant_s - time.time(), 0.0) + turn)
        while True:
            if self._attempt is not None and not self._attempt.exit.done():
                await safely(self._publish(self._attempt), "upload", self._context)
            await asyncio.sleep(self._tools.settings.upload_s)

    async def _measure_idle_rtt(self) -> None:
        """Measure the path's RTT before there is any load. If this fails, it will be unknown."""
        job = self._tunnel.job if self._tunnel else self._job
        engine = self._tools.installed(job.traffic.engine).engine
        left_s = self._instant_s - MARGIN_S - time.time()
        if left_s <= 0:
            return
        if self._gated:
            self._idle_rtt = from_connections(job.endpoint.address, job.endpoint.ports)
        elif engine.serving is ServerLifetime.DAEMON:
            bind = self._tunnel.bind if self._tunnel else self._bind_address()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    self._idle_rtt = await from_handshakes(
                        job.endpoint.address, job.endpoint.port, bind
                    )

    def _is_armed(self) -> bool:
        """Return True if all connections are established or, without a gate, ready to be opened."""
        return self._waiting or (self._attempt is not None and self._attempt.gate_reached)

    async def _publish(self, attempt: ClientProcesses) -> None:
        reading = attempt.read()
        await self._mark_running(reading)
        await self._save_seconds(reading, from_s=self._sent_s)
        self._sent_s = max(UNTOLD_S, known_until_s(reading))

    async def _mark_running(self, reading: EngineResult) -> None:
        cookie = reading.report.cookie
        if self._claim.phase is not JobPhase.RUNNING:
            first_s = reading.first_data_at_s or time.time()
            await self._mark(
                phase=JobPhase.RUNNING,
                running_at=utc(first_s),
                cookie=cookie,
                address=self._source_address(),
                mss_bytes=reading.report.mss_bytes,
            )
        elif cookie != self._claim.cookie:
            await self._mark(cookie=cookie)

    async def _mark(self, **changes: object) -> None:
        """Update the claim row. This is only used to show progress, so a lost write is fine."""
        self._claim = self._claim.model_copy(update=changes)

        async def save() -> None:
            async with asyncio.timeout(CLAIM_TIMEOUT_S):
                await self._tools.records.bursts.save_claim(self._job, self._claim)

        await safely(save(), "mark", self._context)

    # Results ----------------------------------------------------------------------------------

    async def _save_seconds(self, reading: EngineResult, *, from_s: float) -> None:
        peer = None if self._job.traffic.encapsulation else self._job.endpoint.address
        host = self._tools.host_seconds(self._instant_s - EDGE_S, time.time() + EDGE_S, peer)
        await self._tools.results.save_seconds(self._job, reading.tracks(), host, from_s=from_s)

    async def _save_all(self, ending: JobOutcome) -> None:
        """Save all seconds again using the final engine time, and the raw output if requested.

        All pairs in a run end at the same time, so they take turns. If the agent is stopping, it
        does not wait. The raw output is moved from disk to memory first, because the disk might be
        full and the rows are more important.
        """
        if self._attempt is None:
            return
        await pause(self._tools.stopping, turn_s(self._job.pair_index))
        attempt, job = self._attempt, self._job
        keeps_raw = job.raw.keeps(failed=ending.outcome is not Outcome.MEASURED)
        printed = attempt.packed() if keeps_raw else None
        attempt.discard()
        if self._prober is not None:
            probes = self._tools.results.save_probes(job, self._prober.probes)
            await safely(probes, "upload_probes", self._context)
        if self._canary is not None:
            canaries = self._tools.results.save_canary(job, self._canary.rounds)
            await safely(canaries, "upload_canary", self._context)

        async def save_seconds() -> None:
            await self._save_seconds(self._reading(attempt), from_s=0.0)

        await safely(save_seconds(), "upload", self._context)
        if printed is not None:
            raw = self._tools.results.save_raw(job.run_id, job.burst_index, job.pair_index, printed)
            await safely(raw, "upload_raw", self._context)

    async def _report(self, ending: JobOutcome) -> JobReport:
        attempt, job = self._attempt, self._job
        reading = self._reading(attempt) if attempt else None
        exit_ = attempt.over if attempt else None
        first_s = reading.first_data_at_s if reading else None
        gated = self._gated
        release = attempt.release if attempt else None
        return JobReport(
            job_id=job.job_id,
            run_id=job.run_id,
            burst_index=job.burst_index,
            pair_index=job.pair_index,
            agent_id=self._tools.settings.agent_id,
            outcome=ending.outcome,
            reason="; ".join(filter(None, [ending.reason, self._earlier_tries()])) or None,
            planned_start_at=job.planned_start_at,
            start_method=(StartMethod.GATE if gated else StartMethod.TIMED_EXEC)
            if attempt
            else None,
            process_start_at=utc(exit_.started_at_s) if exit_ else None,
            retries_count=len(self._failures),
            first_data_at=utc(first_s) if first_s is not None else None,
            start_error_s=start_error_s(job, reading) if reading else None,
            server_lead_s=(release.server_ahead_s or None) if release else None,
            ended_at=utc(exit_.ended_at_s) if exit_ else None,
            stopped_at=self._stopped_at,
            engine=self._engine_report(reading, exit_),
            clock_before=self._clock_before,
            clock_after=await read_clock(self._tools.settings.chronyc_socket),
            idle_rtt=self._idle_rtt,
            reported_at=utc(time.time()),
            troubles=self._tools.troubles.new_since(self._claim.claimed_at - TROUBLES_BEFORE),
        )

    def _engine_report(
        self, reading: EngineResult | None, exit_: ProcessExit | None
    ) -> EngineReport | None:
        if reading is None:
            return None
        report = reading.report if self._pings is None else self._pings.with_pings(reading.report)
        if exit_ is None or reading.first_data_at_s is None:
            return report
        peer = None if self._job.traffic.encapsulation else self._job.endpoint.address
        return self._tools.with_host_counters(
            report, reading.first_data_at_s, exit_.ended_at_s, peer
        )

    def _earlier_tries(self) -> str | None:
        if not self._failures:
            return None
        reason = "; ".join(dict.fromkeys(self._failures))
        return f"tried to arm {len(self._failures)} times before: {reason}"


def _tighter(local: float | None, requested: float) -> float:
    return requested if local is None else min(local, requested)
