"""The processes of one pair's client end, as if they were one: started, ended and read together."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from broadside.agent.attempt import Attempt
from broadside.agent.engine_process import Exit
from broadside.agent.gate import Release
from broadside.agent.workspace import Workspace
from broadside.exchange.documents import Packed, packed
from broadside.exchange.engines.merge import merge
from broadside.exchange.engines.port import Engine, Launch, Process, Reading
from broadside.exchange.messages import Job

ALONE: Final = "another process of its pair ended before the instant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProcesses:
    """One try at one test by all of a pair's client processes."""

    attempts: tuple[Attempt, ...]
    texts: Mapping[str, str]  # of the files that they were given
    exit: asyncio.Task[Exit]  # of all of them; cancel it to kill them

    @classmethod
    async def spawn(
        cls,
        engine: Engine,
        launch: Launch,
        job: Job,
        *,
        deadline_at_s: float,
        env: Callable[[Process], Mapping[str, str] | None],
        workspace: Workspace | None,
        raw_max_bytes: int,
    ) -> "ClientProcesses":
        """Start them all. Raises :class:`~broadside.agent.engine_process.EngineUnusable`; then
        none runs."""
        instant_s = job.planned_start_at.timestamp()
        attempts: list[Attempt] = []
        try:
            for process in launch.processes:
                attempts.append(  # noqa: PERF401 - one that fails must find those before it
                    await Attempt.spawn(
                        process,
                        engine.client_reader(job),
                        instant_s=instant_s,
                        deadline_at_s=deadline_at_s,
                        env=env(process),
                        identity=workspace.identity if workspace else None,
                        raw_max_bytes=raw_max_bytes,
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
        """End every process that still runs; the first reason stands."""
        for attempt in self.attempts:
            attempt.process.stop(reason)

    @property
    def over(self) -> Exit | None:
        """How they ended, as one; None while any runs, and after a fault of ours."""
        exits = [exit_ for attempt in self.attempts if (exit_ := attempt.over) is not None]
        return _one(exits) if len(exits) == len(self.attempts) else None

    @property
    def held(self) -> bool:
        """The start gate said that every connection of every process stands."""
        return all(attempt.held for attempt in self.attempts)

    @property
    def release(self) -> Release | None:
        """The gate's account of the process that was held last; None without a gate."""
        releases = [attempt.release for attempt in self.attempts]
        known = [release for release in releases if release is not None]
        return max(known, key=lambda release: release.held_at_s, default=None)

    def read(self) -> Reading:
        """What they said so far, or in all, as one."""
        reading = merge([attempt.read() for attempt in self.attempts])
        report = reading.report.model_copy(update={"files": self.texts})
        return replace(reading, report=report)

    def packed(self) -> Packed:
        """What they printed, one after another."""
        if len(self.attempts) == 1:
            return self.attempts[0].transcript.packed()
        return packed(b"\n".join(attempt.transcript.text() for attempt in self.attempts))

    def discard(self) -> None:
        """Free what their output takes of the disk."""
        for attempt in self.attempts:
            attempt.transcript.discard()


async def _wait_all(attempts: list[Attempt], instant_s: float) -> Exit:
    """Wait for the end of all; before the instant the end of one is the end of all."""
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


def _one(exits: list[Exit]) -> Exit:
    """Several ends as one: the first of each fault, the last of the ends."""
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
