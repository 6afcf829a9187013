"""Engine process with a parser for its output, and a copy of the output with limited size."""

import asyncio
import fcntl
import json
import logging
import os
import signal
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

from broadside.agent.cpu import with_cpu
from broadside.agent.engine_process import (
    KILL_AFTER_S,
    EngineProcess,
    EngineUnusable,
    ProcessExit,
    ProcessSetup,
    StopRules,
)
from broadside.agent.gate import Release, holds, read_release
from broadside.exchange.documents import Packed
from broadside.exchange.engines.port import (
    EndBy,
    EngineEvent,
    EngineResult,
    FileWatch,
    Process,
    Reader,
    Started,
)
from broadside.exchange.programs import program_environment

# Size of the newest lines. The last lines contain the totals.
_TAIL_BYTES: Final = 65_536
# Size of the compressed first lines in memory. Larger output will be written to disk.
_MEMORY_BYTES: Final = 262_144

log = logging.getLogger(__name__)


class Transcript:
    """Engine output, limited to the first and the newest lines when it is too long.

    A short output is stored completely. In a long output, a line ``{"event": "cut", ...}`` replaces
    the missing lines. This is the same format as in iperf3's stream. If the disk is full, the first
    lines are dropped.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._open_head()
        self._head_max_bytes = max_bytes - _TAIL_BYTES
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._cut_count = 0
        self._cut_bytes = 0

    def add(self, line: bytes) -> None:
        """Append a line, given without its newline."""
        size = len(line) + 1
        if not self._tail and self._head_bytes + size <= self._head_max_bytes:
            deflated = self._head.compress(b"\n" + line if self._head_bytes else line)
            self._head_bytes += size
            self._head_count += 1
            try:
                self._file.write(deflated)
            except OSError as error:
                self._lose_head(error)
            return
        self._tail.append(line)
        self._tail_bytes += size
        while self._tail_bytes > min(_TAIL_BYTES, self._max_bytes) and len(self._tail) > 1:
            gone_bytes = len(self._tail.pop(0)) + 1
            self._tail_bytes -= gone_bytes
            self._cut_count += 1
            self._cut_bytes += gone_bytes

    def _lose_head(self, error: OSError) -> None:
        log.error("LOST an engine's first output: %s", error, extra={"action": "read"})
        self._cut_count += self._head_count
        self._cut_bytes += self._head_bytes
        self.discard()

    def discard(self) -> None:
        """Release the disk space. The first lines are dropped and only the newest ones remain."""
        _close(self._file)
        self._open_head()
        self._head_max_bytes = 0

    def _open_head(self) -> None:
        self._head, self._head_bytes, self._head_count = zlib.compressobj(), 0, 0
        self._file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - see _close
        weakref.finalize(self, _close, self._file)

    @property
    def is_cut(self) -> bool:
        return self._cut_count > 0

    def packed(self) -> Packed:
        """Return the compressed text. The full text is never loaded into memory."""
        try:
            self._file.seek(0)
            first = self._file.read()
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            self._lose_head(error)
            first = b""
        rest = list[bytes]()
        if self.is_cut:
            truncation = {
                "lines_count": self._cut_count,
                "bytes": self._cut_bytes,
                "by": "broadside",
            }
            rest.append(json.dumps({"event": "cut", "data": truncation}).encode())
        rest += self._tail
        text = b"\n".join([b"", *rest] if self._head_bytes and rest else rest)
        # The output may continue, so work on a copy.
        head = self._head.copy()
        return Packed(b"".join([first, head.compress(text), head.flush()]))

    def text(self) -> bytes:
        """Return the uncompressed text."""
        return zlib.decompress(self.packed())


def _close(file: IO[bytes]) -> None:
    # A full disk does not accept the last buffered bytes.
    with suppress(OSError):
        file.close()


def _watched_path(watch: FileWatch, pid: int) -> Path:
    return Path(watch.path.replace("{pid}", str(pid)))


# Read a watched file every quarter second in UTC, to get the bytes for each full second.
WATCH_S: Final = 0.25
# Interval to use until data flows. This is also the error of the measured start.
WATCH_SOON_S: Final = 0.02
# Bytes read from a watched log before it is emptied.
TAIL_MAX_BYTES: Final = 4 * 2**20
# Reason to use when stopping an engine that runs until it is stopped.
PLANNED_END: Final = "its time was over"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLimits:
    """Limits for time and output of an engine.

    Attributes:
        raw_max_bytes: Maximum size for the stored output.
        instant_s: Unix timestamp to add ``Process.stop_after_s`` to.
        deadline_at_s: Unix timestamp to stop the engine at, or None for no deadline.
    """

    raw_max_bytes: int
    instant_s: float | None = None
    deadline_at_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt to run a test with one process, at either end.

    Attributes:
        process: The engine process.
        argv: Command line used.
        reader: Parser for the engine's output.
        transcript: Standard output so far.
        exit: Task that waits for the process to end. Cancel it to kill the engine.
        endless: True if the engine should run until it is stopped. If it exits before, it has
            failed.
    """

    process: EngineProcess
    argv: tuple[str, ...]
    reader: Reader
    transcript: Transcript
    exit: asyncio.Task[ProcessExit]
    endless: bool = False
    _take: Callable[[Iterator[EngineEvent], float], None]
    # Bytes already read from each watched log.
    _watched: dict[FileWatch, int] = field(default_factory=dict)

    @classmethod
    async def spawn(
        cls,
        process: Process,
        reader: Reader,
        limits: AttemptLimits,
        *,
        setup: ProcessSetup | None = None,
        on_event: Callable[[EngineEvent, float], None] | None = None,
    ) -> "Attempt":
        """Start an engine.

        Args:
            process: Command line and options.
            reader: Parser for the output.
            limits: Limits for time and output.
            setup: Environment and user. None uses the defaults.
            on_event: Callback to be used for each event, with a Unix timestamp. None ignores
                events.

        Returns:
            The running attempt.

        Raises:
            EngineUnusable: The program cannot be executed.
        """
        raw_max_bytes = limits.raw_max_bytes
        transcript = Transcript(min(raw_max_bytes, process.raw_max_bytes or raw_max_bytes))

        def publish(events: Iterator[EngineEvent], at_s: float) -> None:
            for event in events:
                if on_event is not None:
                    on_event(event, at_s)

        def take(line: bytes, at_s: float) -> None:
            transcript.add(line)
            try:
                events = reader.feed(line, at_s)
            except Exception:
                # An internal error must not end a test. The line itself is already stored.
                log.exception("unreadable line", extra={"action": "read"})
                return
            publish(iter(events), at_s)

        def on_started(pid: int) -> None:
            """Read counters before the program moves data.

            Starting a second process takes time.
            """
            for watch in process.watches:
                if not watch.tail:
                    with suppress(OSError):
                        text, at_s = (
                            _watched_path(watch, pid).read_text(errors="replace"),
                            time.time(),
                        )
                        publish(iter(reader.sample(watch.name, text, at_s)), at_s)

        setup = setup or ProcessSetup()
        env = {**(program_environment() if setup.env is None else setup.env), **process.env}
        setup = replace(setup, env=env)
        stop = StopRules(
            deadline_at_s=limits.deadline_at_s,
            end_by=signal.SIGTERM if process.end_by is EndBy.TERM else signal.SIGKILL,
            ends_at_alarm=process.ends_at_alarm,
        )
        with _pipe(bool(process.pipe_to)) as (reading, writing):
            started = await EngineProcess.spawn(
                process.argv,
                on_line=take,
                stop=stop,
                setup=setup if writing is None else replace(setup, stdout=writing),
                on_start=on_started,
            )
            second: EngineProcess | None = None
            if reading is not None:
                try:
                    second = await EngineProcess.spawn(
                        process.pipe_to,
                        on_line=take,
                        stop=StopRules(deadline_at_s=limits.deadline_at_s),
                        setup=replace(setup, stdin=reading),
                    )
                except EngineUnusable:
                    started.stop("the process it writes to does not run")
                    await started.wait()
                    raise
        attempt = cls(
            process=started,
            argv=process.argv,
            reader=reader,
            transcript=transcript,
            exit=asyncio.create_task(_wait(started, second)),
            endless=process.stop_after_s is not None,
            _take=publish,
        )
        if process.watches or process.stop_after_s is not None:
            stop_at_s = (
                None
                if process.stop_after_s is None or limits.instant_s is None
                else limits.instant_s + process.stop_after_s
            )
            watching = asyncio.create_task(attempt._watch(process.watches, stop_at_s))
            attempt.exit.add_done_callback(lambda _: watching.cancel())
        return attempt

    async def _watch(self, watches: tuple[FileWatch, ...], stop_at_s: float | None) -> None:
        """Read watched files until the process ends, and stop it at ``stop_at_s``."""
        begun = False
        while True:
            now_s = time.time()
            begun = self.poll(watches) or begun
            if stop_at_s is not None and now_s >= stop_at_s:
                self.process.stop(PLANNED_END)
                return
            pause_s = WATCH_S - now_s % WATCH_S if begun or not watches else WATCH_SOON_S
            left_s = pause_s if stop_at_s is None else max(0.0, stop_at_s - now_s)
            await asyncio.sleep(min(pause_s, left_s))

    def poll(self, watches: tuple[FileWatch, ...]) -> bool:
        """Read the watched files now and return True if one of them shows that data flows."""
        begun = False
        for watch in watches:
            # The file does not exist yet, or was removed.
            with suppress(OSError):
                text, at_s = self._read(watch, _watched_path(watch, self.process.pid))
                events = self.reader.sample(watch.name, text, at_s)
                begun = begun or any(isinstance(event, Started) for event in events)
                self._take(iter(events), at_s)
        return begun

    def _read(self, watch: FileWatch, path: Path) -> tuple[str, float]:
        """Return a watched file's text and the matching Unix timestamp.

        For a log, this is the time when the last line was written.
        """
        at_s = time.time()
        if not watch.tail:
            return path.read_text(errors="replace"), at_s
        with os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
            file.seek(self._watched.get(watch, 0))
            new = file.read(2 * TAIL_MAX_BYTES)
            at_s = min(time.time(), os.fstat(file.fileno()).st_mtime) if new else at_s
            complete, newline, _ = new.rpartition(b"\n")
            self._watched[watch] = self._watched.get(watch, 0) + len(complete) + len(newline)
            if self._watched[watch] > TAIL_MAX_BYTES and _is_unwritten(
                file, len(new) - len(complete)
            ):
                file.truncate(0)
                self._watched[watch] = 0
        return complete.decode(errors="replace"), at_s

    @property
    def over(self) -> ProcessExit | None:
        """The exit of the process, or None while it runs and after an internal error."""
        done = self.exit.done() and not self.exit.cancelled() and self.exit.exception() is None
        return self.exit.result() if done else None

    @property
    def gate_reached(self) -> bool:
        """True if the start gate has reported that all connections are established."""
        return holds(self.process.stderr)

    @property
    def release(self) -> Release | None:
        """Report of the start gate, or None while the process runs or if there is no gate."""
        return read_release(self.over.stderr) if self.over else None

    def read(self) -> EngineResult:
        """Return the measurements so far, with the command line in the report."""
        over, release = self.over, self.release
        reading = self.reader.finish(
            over.exit_code if over else None,
            stderr=over.stderr if over else "",
            released_at_s=release.released_at_s if release else None,
            server_ahead_s=release.server_ahead_s if release else 0.0,
        )
        report = with_cpu(reading, over.cpu_s if over else None)
        error = report.error or self._cut_short(over)
        report = report.model_copy(update={"argv": self.argv, "error": error})
        return replace(reading, report=report)

    def _cut_short(self, over: ProcessExit | None) -> str | None:
        """Return how an endless engine ended, if the agent did not stop it."""
        if over is None or not self.endless or self.process.stopping:
            return None
        code = over.exit_code or 0
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by signal {-code} ({signal.strsignal(-code)}), not by its agent"
        return f"{Path(self.argv[0]).name} {how} before its time was over"


def _is_unwritten(file: IO[bytes], rest_bytes: int) -> bool:
    """Return True if a log can be emptied without losing a line.

    The writer holds a lock while it writes, as vsftpd does. The agent's lock is released when the
    file is closed. ``rest_bytes`` is the number of bytes read after the last complete line,
    including its newline.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return rest_bytes <= 1 and not file.read(1)


@contextmanager
def _pipe(wanted: bool) -> Iterator[tuple[int | None, int | None]]:
    """Yield a pipe to connect two processes, and close it here when done."""
    if not wanted:
        yield None, None
        return
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


async def _wait(process: EngineProcess, second: EngineProcess | None) -> ProcessExit:
    """Wait for a process to end, and for the second process that reads from it.

    A process that was stopped because its time was over counts as not stopped.
    """
    if second is None:
        exit_ = await process.wait()
        return replace(exit_, stopped=None) if exit_.stopped == PLANNED_END else exit_
    try:
        exit_ = await process.wait()
    finally:
        reading = asyncio.ensure_future(second.wait())
        _, late = await asyncio.wait({reading}, timeout=KILL_AFTER_S)
        if late:
            second.stop("the process it reads from is over")
    read = await reading
    return replace(
        exit_,
        ended_at_s=max(exit_.ended_at_s, read.ended_at_s),
        cpu_s=None if None in (exit_.cpu_s, read.cpu_s) else (exit_.cpu_s or 0) + (read.cpu_s or 0),
        stderr="\n".join(filter(None, [exit_.stderr, read.stderr])),
    )


def known_until_s(reading: EngineResult) -> float:
    """Return the engine time up to which all flows have intervals, or 0 if there are none."""
    ends_s = [intervals[-1].end_s for intervals in reading.intervals.values() if intervals]
    return min(ends_s, default=0.0)
