"""All client processes for a pair, used like a single process."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from broadside.agent.attempt import Attempt, AttemptLimits
from broadside.agent.engine_process import ProcessExit, ProcessSetup
from broadside.agent.gate import Release
from broadside.exchange.documents import Packed, packed
from broadside.exchange.engines.merge import merge
from broadside.exchange.engines.port import Engine, EngineResult, Launch, Process
from broadside.exchange.messages import Job

ALONE: Final = "another process of its pair ended before the planned start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProcesses:
    """One attempt to run a test with all client processes for a pair.

    Attributes:
        attempts: One attempt for each process.
        texts: Text in the files given to the processes, by name.
        exit: Task that waits for all processes to end. Cancel it to kill them.
    """

    attempts: tuple[Attempt, ...]
    texts: Mapping[str, str]
    exit: asyncio.Task[ProcessExit]

    @classmethod
    async def spawn(
        cls,
        engine: Engine,
        launch: Launch,
        job: Job,
        limits: AttemptLimits,
        setup: Callable[[Process], ProcessSetup],
    ) -> "ClientProcesses":
        """Start all processes. If one cannot be started, the others are killed.

        Args:
            engine: The engine that creates the parsers.
            launch: Processes and files to use.
            job: The job to run.
            limits: Deadline for the processes, and maximum size for each stored output.
            setup: Callback to get the environment and the user for a process.

        Returns:
            The running processes.

        Raises:
            EngineUnusable: A program cannot be executed.
        """
        instant_s = job.planned_start_at.timestamp()
        limits = replace(limits, instant_s=instant_s)
        attempts: list[Attempt] = []
        try:
            for process in launch.processes:
                attempts.append(  # noqa: PERF401 - after an error we need the first ones
                    await Attempt.spawn(
                        process,
                        engine.client_reader(job),
                        limits,
                        setup=setup(process),
                    )
                )
        except BaseException:
            for attempt in attempts:
                attempt.exit.cancel()
            raise
        return cls(
            attempts=tuple(attempts),
            texts=launch.texts,
            exit=asyncio.create_task(_wait_all(attempts, instant_s)),
        )

    def stop(self, reason: str) -> None:
        """Stop all processes that still run. Only the first reason is stored."""
        for attempt in self.attempts:
            attempt.process.stop(reason)

    @property
    def over(self) -> ProcessExit | None:
        """Combined exit of all processes, or None while one runs and after an internal error."""
        exits = [exit_ for attempt in self.attempts if (exit_ := attempt.over) is not None]
        return _one(exits) if len(exits) == len(self.attempts) else None

    @property
    def gate_reached(self) -> bool:
        """True if the start gate has reported all connections for all processes."""
        return all(attempt.gate_reached for attempt in self.attempts)

    @property
    def release(self) -> Release | None:
        """Gate report for the process that was held last, or None if there is no gate."""
        releases = [attempt.release for attempt in self.attempts]
        known = [release for release in releases if release is not None]
        return max(known, key=lambda release: release.gate_reached_at_s, default=None)

    def read(self) -> EngineResult:
        """Return the merged measurements so far."""
        reading = merge([attempt.read() for attempt in self.attempts])
        report = reading.report.model_copy(update={"files": self.texts})
        return replace(reading, report=report)

    def packed(self) -> Packed:
        """Return the compressed output from all processes."""
        if len(self.attempts) == 1:
            return self.attempts[0].transcript.packed()
        return packed(b"\n".join(attempt.transcript.text() for attempt in self.attempts))

    def discard(self) -> None:
        """Release the disk space used for the stored output."""
        for attempt in self.attempts:
            attempt.transcript.discard()


async def _wait_all(attempts: list[Attempt], instant_s: float) -> ProcessExit:
    """Wait for all processes to end. If one ends before the planned start, stop all."""
    exits = {attempt.exit for attempt in attempts}
    try:
        _, running = await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
        if running and time.time() < instant_s:
            for attempt in attempts:
                attempt.process.stop(ALONE)
        return _one(await asyncio.gather(*(attempt.exit for attempt in attempts)))
    finally:
        for exit_ in exits:
            exit_.cancel()


def _one(exits: list[ProcessExit]) -> ProcessExit:
    """Combine several exits, using the first error, the first start and the last end."""
    lead = exits[0]
    if len(exits) == 1:
        return lead
    stops = [exit_.stopped for exit_ in exits if exit_.stopped not in (None, ALONE)]
    return replace(
        lead,
        exit_code=next((exit_.exit_code for exit_ in exits if exit_.exit_code), lead.exit_code),
        stderr="\n".join(exit_.stderr for exit_ in exits if exit_.stderr),
        started_at_s=min(exit_.started_at_s for exit_ in exits),
        ended_at_s=max(exit_.ended_at_s for exit_ in exits),
        stopped=stops[0] if stops else None,
    )
