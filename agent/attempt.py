"""An engine process together with the reader of what it says."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agent.gate import Release, holds, read_release
from agent.process import EngineProcess, Exit
from exchange.iperf3 import Event, Reading, StreamReader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at one test, from either end."""

    process: EngineProcess
    argv: tuple[str, ...]
    reader: StreamReader
    lines: list[bytes]  # all of standard output so far
    exit: asyncio.Task[Exit]  # cancel it to kill the engine

    @classmethod
    async def spawn(
        cls,
        argv: tuple[str, ...],
        *,
        deadline_at_s: float | None = None,
        env: Mapping[str, str] | None = None,
        on_event: Callable[[Event, float], None] | None = None,
        keep_lines: bool = True,
    ) -> "Attempt":
        """Start an engine; ``on_event`` gets each event with its epoch second.

        Raises :class:`~agent.process.EngineUnusable`.
        """
        reader, lines = StreamReader(), list[bytes]()

        def take(line: bytes, at_s: float) -> None:
            if keep_lines:
                lines.append(line)
            try:
                events = reader.feed(line, at_s)
            except Exception:  # a fault of ours must not end a test; the line is kept
                log.exception("unreadable line", extra={"action": "read"})
                return
            for event in events:
                if on_event is not None:
                    on_event(event, at_s)

        process = await EngineProcess.spawn(
            argv, on_line=take, deadline_at_s=deadline_at_s, env=env
        )
        return cls(
            process=process,
            argv=argv,
            reader=reader,
            lines=lines,
            exit=asyncio.create_task(process.wait()),
        )

    @property
    def over(self) -> Exit | None:
        """How the process ended; None while it runs, and when it was killed for a fault of ours."""
        done = self.exit.done() and not self.exit.cancelled() and self.exit.exception() is None
        return self.exit.result() if done else None

    @property
    def held(self) -> bool:
        """The start gate said that every connection stands."""
        return holds(self.process.stderr)

    @property
    def release(self) -> Release | None:
        """The start gate's own account, once the process is over; None without a gate."""
        return read_release(self.over.stderr) if self.over else None

    def read(self) -> Reading:
        """What the engine said so far, or in all, with the argv that it was asked by."""
        over, release = self.over, self.release
        reading = self.reader.finish(
            over.exit_code if over else None,
            stderr=over.stderr if over else "",
            released_at_s=release.released_at_s if release else None,
            server_ahead_s=release.server_ahead_s if release else 0.0,
        )
        report = reading.report.model_copy(update={"argv": self.argv})
        return replace(reading, report=report)


def known_until_s(reading: Reading) -> float:
    """Engine seconds up to which every flow of a reading has intervals; 0 without any."""
    ends_s = [intervals[-1].end_s for intervals in reading.intervals.values() if intervals]
    return min(ends_s, default=0.0)
