"""Single engine process with its own group, timed lines and a deadline.

An engine should never outlive its agent. The kernel kills it when the agent dies
(``PR_SET_PDEATHSIG``). If the agent hangs, the kernel ends it at ``hard_stop_at_s``, using an
interval timer that is not reset by exec. Some programs ignore the SIGALRM of this timer, such as
all programs written in Go. For these we start a *watchdog*, which is a small shell (1 MB). It gets
the timer's signal and kills the process group of the engine.

Errors::

    EngineError
    ├── EngineMissing   iperf3 was not found
    ├── EngineTooOld    iperf3 is below the minimum version
    └── EngineUnusable  it was found but does not run
"""

import asyncio
import ctypes
import os
import pwd
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from broadside.agent.gate import find_gate, preload_works
from broadside.exchange.engines.iperf3 import MINIMUM_VERSION
from broadside.exchange.engines.iperf3_account import Version, parse_version
from broadside.exchange.installation import bring
from broadside.exchange.messages import DEFAULT_ENGINE, plain_text
from broadside.exchange.programs import program_environment, program_path

OnLine = Callable[[bytes, float], None]

# Seconds to wait between SIGTERM and SIGKILL.
KILL_AFTER_S: Final = 2.0
# Seconds to wait between the deadline and the kernel's timer.
HARD_STOP_AFTER_S: Final = 15.0
STDERR_MAX_BYTES: Final = 65_536
# The totals for 128 streams are below 1 MiB.
LINE_MAX_BYTES: Final = 16 * 2**20
_VERSION_TIMEOUT_S: Final = 10.0
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_TOOLS: Final = _CHECKOUT / ".tools" / DEFAULT_ENGINE / "bin" / DEFAULT_ENGINE
# linux/prctl.h.
_PR_SET_PDEATHSIG: Final = 1
# The input of the shell is closed when the agent ends, so the shell will end as well.
_WATCHDOG: Final = 'trap "kill -9 -$0; exit" ALRM; read -r _'
_BROKEN: Final = "its reader failed"
_FIX: Final = bring("apt-get install iperf3", target="setup")

# Loaded here, because as little as possible should happen between fork and exec.
_libc = ctypes.CDLL(None)


class EngineError(Exception):
    """The traffic engine cannot be used."""


class EngineMissing(EngineError):
    """iperf3 was not found."""


class EngineTooOld(EngineError):
    """iperf3 is below the minimum version."""


class EngineUnusable(EngineError):
    """The engine was found, but it does not run."""


# Search ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Iperf3Program:
    """An iperf3 that can be used.

    Attributes:
        binary: First words of the command line.
        version: Version of the program.
        preloadable: True if the start gate is built and works with this iperf3.
        build: Version text in a single line, if any.
    """

    binary: tuple[str, ...]
    version: Version
    preloadable: bool
    build: str | None = None


def find_iperf3(setting: str | None = None) -> Iperf3Program:
    """Return the iperf3 to use, from the setting, the ``.tools`` of the checkout or ``PATH``.

    The program is run twice, which takes some milliseconds and will block.

    Args:
        setting: Path or name of the program, or None to search for it.

    Raises:
        EngineError: There is no usable iperf3. The message has the path and the fix in a single
            line.
    """
    if setting is not None:
        return _try_iperf3(setting)
    if _TOOLS.exists():
        # It might have been built for a different machine.
        with suppress(EngineError):
            return _try_iperf3(str(_TOOLS))
    return _try_iperf3(DEFAULT_ENGINE)


def _try_iperf3(name: str) -> Iperf3Program:
    path = program_path(name)
    if path is None:
        if Path(name).is_file():
            raise EngineUnusable(f"iperf3: {name} may not be executed; chmod +x it")
        location = "on PATH" if name == DEFAULT_ENGINE else f"at {name}"
        raise EngineMissing(f"iperf3: none {location}; {_FIX}")
    try:
        completed = subprocess.run(
            [path, "--version"],
            env=program_environment(),
            capture_output=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnusable(f"iperf3: {path} does not run: {error}; {_FIX}") from error
    text = completed.stdout.decode(errors="replace")
    version = parse_version(text)
    if version is None:
        reason = (
            (completed.stderr or completed.stdout).decode(errors="replace").strip().split("\n")[0]
        )
        raise EngineUnusable(f"iperf3: {path} does not print its version: {reason[:200]!r}; {_FIX}")
    if version < MINIMUM_VERSION:
        raise EngineTooOld(f"iperf3: {path} is {version}, need {MINIMUM_VERSION} or newer; {_FIX}")
    gate = find_gate()
    preloadable = gate is not None and preload_works(gate, [path])
    return Iperf3Program(
        binary=(path,), version=version, preloadable=preloadable, build=_build_of(text)
    )


def _build_of(text: str) -> str | None:
    """Return the version text without the ``uname -a`` line, which is different on each host."""
    lines = [line.strip() for line in text.splitlines() if not line.startswith("Linux")]
    return plain_text("; ".join(filter(None, lines)))[:500] or None


# Running ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """Exit of an engine process.

    This is a value and not an exception, because an exit is expected.

    Attributes:
        exit_code: Exit code, negative for the signal that killed it. None if it is not known.
        stderr: The last 64 KiB of the standard error.
        started_at_s: Unix timestamp when the process was started.
        ended_at_s: Unix timestamp when it ended.
        stopped: Reason if we stopped it, such as "deadline". None otherwise.
        cpu_s: User and system time in seconds, for the process and the children that it waited for.
    """

    exit_code: int | None
    stderr: str
    started_at_s: float
    ended_at_s: float
    stopped: str | None = None
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """When and how an engine is stopped.

    Attributes:
        deadline_at_s: Unix timestamp at which to call ``stop("deadline")``, or None.
        hard_stop_at_s: Unix timestamp for the kernel's timer. The default is 15 s after the
            deadline.
        end_by: Signal that the kernel will send if the agent dies.
        ends_at_alarm: False to add a watchdog for an engine that ignores the timer.
    """

    deadline_at_s: float | None = None
    hard_stop_at_s: float | None = None
    end_by: signal.Signals = signal.SIGKILL
    ends_at_alarm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSetup:
    """Environment, user and pipes of an engine.

    Attributes:
        env: Environment, or None to use the default.
        identity: User to run as, or None for the agent's user.
        stdin: File descriptor to use as the input.
        stdout: File descriptor of a pipe to write to. In this case there are no lines.
    """

    env: Mapping[str, str] | None = None
    identity: "ProcessUser | None" = None
    stdin: int = subprocess.DEVNULL
    stdout: int = subprocess.PIPE


class EngineProcess:
    """A running engine.

    Create it with :meth:`spawn`. To end it, call :meth:`stop` or wait for it.
    """

    def __init__(self, pipes: "_Pipes", started_at_s: float) -> None:
        self._pipes = pipes
        self._started_at_s = started_at_s
        self._stopped: str | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self.pid = pipes.pid

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        *,
        on_line: OnLine,
        stop: "StopRules",
        setup: "ProcessSetup | None" = None,
        on_start: Callable[[int], None] = lambda _: None,
    ) -> "EngineProcess":
        """Start an engine.

        This has to be called from the main thread, because the kernel ties the process to its
        thread.

        Args:
            argv: Command line.
            on_line: Callback for each line of the output, without its newline. It also gets a Unix
                timestamp for the first byte. If it raises, the engine is stopped and :meth:`wait`
                raises the error.
            stop: When and how the engine is stopped.
            setup: Environment, user and pipes. None uses the defaults.
            on_start: Callback with the process id, called as soon as the program runs.

        Returns:
            The running process.

        Raises:
            EngineUnusable: The program cannot be executed.
        """
        setup, deadline_at_s, hard_stop_at_s = (
            setup or ProcessSetup(),
            stop.deadline_at_s,
            stop.hard_stop_at_s,
        )
        if hard_stop_at_s is None and deadline_at_s is not None:
            hard_stop_at_s = deadline_at_s + HARD_STOP_AFTER_S
        loop = asyncio.get_running_loop()
        started_at_s = time.time()
        try:
            started = subprocess.Popen(  # noqa: ASYNC220 - same as in asyncio, but we
                # need to call wait4 to get the CPU time of the process
                argv,
                bufsize=0,
                stdin=setup.stdin,
                stdout=setup.stdout,
                stderr=subprocess.PIPE,
                env=program_environment() if setup.env is None else dict(setup.env),
                # Another user may not enter the folder that the agent was started in.
                cwd=None if setup.identity is None else "/",
                process_group=0,
                preexec_fn=_leash(hard_stop_at_s, setup.identity, stop.end_by),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EngineUnusable(f"engine: {argv[0]} does not run: {error}; {_FIX}") from error
        pipes = _Pipes(started, on_line)
        process = cls(pipes, started_at_s)
        try:
            on_start(started.pid)
            if hard_stop_at_s is not None and not stop.ends_at_alarm:
                pipes.watchdog = _watch(started.pid, hard_stop_at_s)
            await pipes.open()
        except BaseException:
            process._signal(signal.SIGKILL)
            pipes.close()
            raise
        pipes.stop = process.stop
        # The first lines have already failed.
        if pipes.broken is not None:
            process.stop(_BROKEN)
        if deadline_at_s is not None:
            process._timers.append(
                loop.call_later(max(0.0, deadline_at_s - time.time()), process.stop, "deadline")
            )
        return process

    @property
    def stderr(self) -> str:
        """The standard error so far, up to the last 64 KiB."""
        return self._pipes.stderr.decode(errors="replace")

    @property
    def stopping(self) -> bool:
        """True if the process was asked to stop."""
        return self._stopped is not None

    def stop(self, reason: str) -> None:
        """Send SIGTERM now and SIGKILL 2 s later. Only the first reason is used.

        With SIGTERM, iperf3 will print the results that it has.
        """
        if self._stopped is not None or self._pipes.ended.done():
            return
        self._stopped = reason
        self._signal(signal.SIGTERM)
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(KILL_AFTER_S, self._signal, signal.SIGKILL))

    async def wait(self) -> ProcessExit:
        """Wait for the process and its output to end.

        If the waiting task is cancelled, the engine is killed.

        Raises:
            asyncio.CancelledError: The waiting task was cancelled.
            Exception: The function that receives the output failed. It is its own exception.
        """
        try:
            await asyncio.shield(self._pipes.ended)
        except asyncio.CancelledError:
            self._stopped = self._stopped or "cancelled"
            self._signal(signal.SIGKILL)
            await asyncio.wait({self._pipes.ended}, timeout=KILL_AFTER_S)
            raise
        finally:
            for timer in self._timers:
                timer.cancel()
            self._signal(signal.SIGKILL)
            self._pipes.close()
        if self._pipes.broken is not None:
            raise self._pipes.broken
        return ProcessExit(
            exit_code=self._pipes.exit_code,
            stderr=self.stderr,
            started_at_s=self._started_at_s,
            ended_at_s=self._pipes.ended.result(),
            stopped=self._stopped,
            cpu_s=self._pipes.cpu_s,
        )

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group.

        The engine might have been started by a wrapper.
        """
        if self._pipes.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class LineCutter:
    """Splits chunks into lines, using the time when the first byte of each line was received.

    A line that is too long is split at :data:`LINE_MAX_BYTES`.
    """

    def __init__(self) -> None:
        # A line that is not complete yet.
        self._rest = b""
        self._rest_at_s = 0.0

    def cut(self, chunk: bytes, at_s: float) -> Iterator[tuple[bytes, float]]:
        """Add a chunk to the output.

        Args:
            chunk: Bytes that were received.
            at_s: Unix timestamp when they were received.

        Yields:
            Each line that ends in the chunk, without its newline, and the Unix timestamp of its
            first byte.
        """
        if not self._rest:
            self._rest_at_s = at_s
        first, *others = chunk.split(b"\n")
        self._rest += first
        if len(self._rest) > LINE_MAX_BYTES:
            yield self._rest, self._rest_at_s
            self._rest, self._rest_at_s = b"", at_s
        for line in others:
            yield self._rest, self._rest_at_s
            self._rest, self._rest_at_s = line, at_s

    def flush(self) -> Iterator[tuple[bytes, float]]:
        """Yield the last line if it has no newline."""
        if self._rest:
            yield self._rest, self._rest_at_s
            self._rest = b""


class _Pipes:
    """Output and exit of a process.

    Passes lines of the standard output to a callback, and keeps the last part of the standard
    error. Both pipes are always drained, so they cannot block the engine.
    """

    def __init__(self, process: subprocess.Popen[bytes], on_line: OnLine) -> None:
        self._process = process
        self._on_line = on_line
        self._cutter = LineCutter()
        self._transports: list[asyncio.BaseTransport] = []
        files = ((1, process.stdout), (2, process.stderr))
        self._files = [(number, file) for number, file in files if file is not None]
        # Number of pipes that have not ended yet.
        self._open_count = 0
        self.pid = process.pid
        self.stderr = bytearray()
        self.exit_code: int | None = None
        self.cpu_s: float | None = None
        # Error that was raised by the callback.
        self.broken: Exception | None = None
        # Method to stop the engine.
        self.stop: Callable[[str], None] | None = None
        self.watchdog: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[float] = self._loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    async def open(self) -> None:
        """Start to receive data."""
        self._open_count = len(self._files)
        while self._files:
            number, file = self._files.pop()
            transport, _ = await self._loop.connect_read_pipe(partial(_Pipe, self, number), file)
            self._transports.append(transport)

    def close(self) -> None:
        """Stop receiving data. The exit of the process will still be handled."""
        for transport in self._transports:
            transport.close()
        # Pipes that have not been opened yet.
        for _, file in self._files:
            file.close()

    def received(self, number: int, data: bytes) -> None:
        if number == 1:
            self._give(self._cutter.cut(data, time.time()))
        else:
            self.stderr += data
            del self.stderr[:-STDERR_MAX_BYTES]

    def emptied(self, number: int) -> None:
        if number == 1:
            self._give(self._cutter.flush())
        self._open_count -= 1
        self._end()

    def _reap(self) -> None:
        """Get the exit code and the CPU time of the process."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Stop it before its group id can be used by another process.
        if self.watchdog is not None:
            self.watchdog.kill()
            self.watchdog.communicate()
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            # Another part of the program has already waited for it.
            self.exit_code = 255
        else:
            self.exit_code = os.waitstatus_to_exitcode(status)
            self.cpu_s = usage.ru_utime + usage.ru_stime
        self._process.returncode = self.exit_code
        self._end()

    def _end(self) -> None:
        """Set the result if the process has ended and both pipes are empty."""
        if self.exit_code is not None and not self._open_count and not self.ended.done():
            self.ended.set_result(time.time())

    def _give(self, lines: Iterator[tuple[bytes, float]]) -> None:
        for line, at_s in lines:
            if self.broken is not None:
                return
            try:
                self._on_line(line, at_s)
            except Exception as error:
                self.broken = error
                if self.stop is not None:
                    self.stop(_BROKEN)


class _Pipe(asyncio.Protocol):
    """Protocol for one of the pipes."""

    def __init__(self, pipes: _Pipes, number: int) -> None:
        self._pipes = pipes
        self._number = number

    def data_received(self, data: bytes) -> None:
        self._pipes.received(self._number, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipes.emptied(self._number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUser:
    """User and group to run a process as."""

    user_id: int
    group_id: int


def least_privileged(program: str) -> ProcessUser | None:
    """Return the user ``nobody`` if the agent is root.

    Args:
        program: Path of the program to run.

    Returns:
        None to use the agent's user, which is the case if it is not root. Also None if ``nobody``
        has no access to the program, for example in a checkout in root's home.
    """
    if os.geteuid() != 0:
        return None
    path = Path(program).resolve()
    # A virtual environment can be in another place than its interpreter.
    places = (path, *path.parents, *Path(program).absolute().parents)
    if not all(place.stat().st_mode & stat.S_IXOTH for place in places):
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return None
    return ProcessUser(user_id=entry.pw_uid, group_id=entry.pw_gid)


def _leash(
    hard_stop_at_s: float | None, identity: ProcessUser | None, end_by: signal.Signals
) -> Callable[[], None]:
    """Return the function to run in the child between fork and exec.

    It ties the process to the agent and to the kernel's timer.
    """
    parent = os.getpid()
    hard_stop_s = None if hard_stop_at_s is None else max(0.001, hard_stop_at_s - time.time())

    def leash() -> None:
        if identity is not None:
            # A daemon might open /dev/stdout again.
            for fd in (1, 2):
                os.fchown(fd, identity.user_id, identity.group_id)
            os.setgroups([])
            os.setgid(identity.group_id)
            # This clears the settings below, so it has to be done first.
            os.setuid(identity.user_id)
        _libc.prctl(_PR_SET_PDEATHSIG, end_by)
        if os.getppid() != parent:
            # The agent died before the process could be tied to it.
            os._exit(1)
        if hard_stop_s is not None:
            signal.setitimer(signal.ITIMER_REAL, hard_stop_s)

    return leash


def _watch(group_id: int, hard_stop_at_s: float) -> subprocess.Popen[bytes]:
    """Start a process that kills a group at a Unix timestamp.

    Raises:
        EngineUnusable: The shell cannot be executed.
    """
    try:
        return subprocess.Popen(
            ["sh", "-c", _WATCHDOG, str(group_id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=program_environment(),
            process_group=0,
            preexec_fn=_leash(hard_stop_at_s, None, signal.SIGKILL),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnusable(
            f"engine: its watchdog could not be started: {error}; install sh"
        ) from error
