"""Runs one engine process: its own group, timed lines, a deadline, and no survivors.

An engine never outlives its agent: the kernel kills it when the agent dies (PR_SET_PDEATHSIG), and
ends it at ``hard_stop_at_s`` even if the agent hangs (an interval timer, which survives exec). Some
programs live through that timer's SIGALRM, as all that are written in Go: these get a *watchdog*, a
shell of a megabyte that the timer wakes and that kills the engine's process group.

Errors::

    EngineError
    ├── EngineMissing   no iperf3 where we looked
    ├── EngineTooOld    an iperf3 below the minimum
    └── EngineUnusable  it is there and does not run; says why
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

from broadside.agent.gate import find_gate, takes_hold
from broadside.exchange.engines.iperf3 import MINIMUM_VERSION
from broadside.exchange.engines.iperf3_account import Version, parse_version
from broadside.exchange.installation import bring
from broadside.exchange.messages import DEFAULT_ENGINE, plain_text
from broadside.exchange.programs import program_environment, program_path

OnLine = Callable[[bytes, float], None]

KILL_AFTER_S: Final = 2.0  # s between SIGTERM and SIGKILL
HARD_STOP_AFTER_S: Final = 15.0  # s between the deadline and the kernel's timer
STDERR_MAX_BYTES: Final = 65_536
LINE_MAX_BYTES: Final = 16 * 2**20  # the totals of 128 streams are under one
_VERSION_TIMEOUT_S: Final = 10.0
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_TOOLS: Final = _CHECKOUT / ".tools" / DEFAULT_ENGINE / "bin" / DEFAULT_ENGINE
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_WATCHDOG: Final = 'trap "kill -9 -$0; exit" ALRM; read -r _'  # its input ends with the agent
_BROKEN: Final = "its reader failed"
_FIX: Final = bring("apt-get install iperf3", target="setup")

_libc = ctypes.CDLL(None)  # opened here, as little may happen between fork and exec


class EngineError(Exception):
    """The traffic engine cannot be used."""


class EngineMissing(EngineError):
    """No iperf3 where we looked."""


class EngineTooOld(EngineError):
    """An iperf3 below the minimum."""


class EngineUnusable(EngineError):
    """It is there and does not run."""


# Finding ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Iperf3:
    """An iperf3 that runs."""

    binary: tuple[str, ...]  # argv prefix
    version: Version
    preloadable: bool  # the start gate is built and takes hold in it
    build: str | None = None  # what it says of itself, in one line


def find_iperf3(setting: str | None = None) -> Iperf3:
    """The iperf3 to use: the setting, else the checkout's ``.tools``, else ``PATH``.

    Runs it twice (blocking, milliseconds). Raises :class:`EngineError` with one line that names
    what was tried and the fix.
    """
    if setting is not None:
        return _try_iperf3(setting)
    if _TOOLS.exists():
        with suppress(EngineError):  # it may have been unpacked for another machine
            return _try_iperf3(str(_TOOLS))
    return _try_iperf3(DEFAULT_ENGINE)


def _try_iperf3(name: str) -> Iperf3:
    path = program_path(name)
    if path is None:
        if Path(name).is_file():
            raise EngineUnusable(f"iperf3: {name} may not be executed; chmod +x it")
        where = "on PATH" if name == DEFAULT_ENGINE else f"at {name}"
        raise EngineMissing(f"iperf3: none {where}; {_FIX}")
    try:
        said = subprocess.run(
            [path, "--version"],
            env=program_environment(),
            capture_output=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnusable(f"iperf3: {path} does not run: {error}; {_FIX}") from error
    text = said.stdout.decode(errors="replace")
    version = parse_version(text)
    if version is None:
        words = (said.stderr or said.stdout).decode(errors="replace").strip().split("\n")[0]
        raise EngineUnusable(f"iperf3: {path} does not tell its version: {words[:200]!r}; {_FIX}")
    if version < MINIMUM_VERSION:
        raise EngineTooOld(f"iperf3: {path} is {version}, need {MINIMUM_VERSION} or newer; {_FIX}")
    gate = find_gate()
    preloadable = gate is not None and takes_hold(gate, [path])
    return Iperf3(binary=(path,), version=version, preloadable=preloadable, build=_build_of(text))


def _build_of(text: str) -> str | None:
    """Without the line of `uname -a`: the host's name would make each host another."""
    lines = [line.strip() for line in text.splitlines() if not line.startswith("Linux")]
    return plain_text("; ".join(filter(None, lines)))[:500] or None


# Running ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How an engine process ended. Expected endings are values: this never is an exception."""

    exit_code: int | None  # negative: killed by that signal; None: not known
    stderr: str  # the last 64 KiB
    started_at_s: float  # epoch s at which it was spawned
    ended_at_s: float  # epoch s
    stopped: str | None = None  # why we stopped it: "deadline", or stop's reason
    cpu_s: float | None = None  # s, user and system, of it and the children that it waited for


class EngineProcess:
    """One engine under way. Create with :meth:`spawn`; end with :meth:`stop` or by waiting."""

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
        deadline_at_s: float | None,
        hard_stop_at_s: float | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        identity: "Identity | None" = None,
        end_by: signal.Signals = signal.SIGKILL,
        ends_at_alarm: bool = True,
        on_start: Callable[[int], None] = lambda _: None,
    ) -> "EngineProcess":
        """Start the engine. Raises :class:`EngineUnusable` when it cannot be executed.

        ``stdin`` and ``stdout`` may be a pipe's descriptor in place of the usual; with a
        ``stdout`` of its own there are no lines. ``identity`` is who it runs as, where not as the
        agent; ``end_by`` is what the kernel sends it when the agent dies.

        ``on_line`` gets every line of standard output (without its end) and the epoch second at
        which its first byte arrived; what it raises ends the engine, and comes out of
        :meth:`wait`. From ``deadline_at_s`` on the engine is ended as by ``stop("deadline")``.
        ``hard_stop_at_s`` (default: 15 s after the deadline) is the kernel's timer, for an agent
        that hangs; ``ends_at_alarm`` of False sets a watchdog beside an engine that lives through
        it. Call from the main thread: the kernel ties the engine's life to the thread.
        ``on_start`` gets the process's id as soon as its program runs, before all else.
        """
        if hard_stop_at_s is None and deadline_at_s is not None:
            hard_stop_at_s = deadline_at_s + HARD_STOP_AFTER_S
        loop = asyncio.get_running_loop()
        started_at_s = time.time()
        try:
            started = subprocess.Popen(  # noqa: ASYNC220 - as asyncio itself does it, but what
                # a process cost is told only to who waits for it
                argv,
                bufsize=0,
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.PIPE,
                env=program_environment() if env is None else dict(env),
                # Another user may not enter the folder that the agent was started in.
                cwd=None if identity is None else "/",
                process_group=0,
                preexec_fn=_leash(hard_stop_at_s, identity, end_by),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EngineUnusable(f"engine: {argv[0]} does not run: {error}; {_FIX}") from error
        pipes = _Pipes(started, on_line)
        process = cls(pipes, started_at_s)
        try:
            on_start(started.pid)
            if hard_stop_at_s is not None and not ends_at_alarm:
                pipes.watchdog = _watch(started.pid, hard_stop_at_s)
            await pipes.open()
        except BaseException:
            process._signal(signal.SIGKILL)
            pipes.close()
            raise
        pipes.stop = process.stop
        if pipes.broken is not None:  # by the first lines already
            process.stop(_BROKEN)
        if deadline_at_s is not None:
            process._timers.append(
                loop.call_later(max(0.0, deadline_at_s - time.time()), process.stop, "deadline")
            )
        return process

    @property
    def stderr(self) -> str:
        """What it said on standard error so far, at most the last 64 KiB."""
        return self._pipes.stderr.decode(errors="replace")

    @property
    def stopping(self) -> bool:
        """It was told to end."""
        return self._stopped is not None

    def stop(self, reason: str) -> None:
        """SIGTERM now, which makes iperf3 print what it has; SIGKILL 2 s later. The first reason
        stands."""
        if self._stopped is not None or self._pipes.ended.done():
            return
        self._stopped = reason
        self._signal(signal.SIGTERM)
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(KILL_AFTER_S, self._signal, signal.SIGKILL))

    async def wait(self) -> Exit:
        """Wait for the end of process and output. Cancelling the waiter kills the engine."""
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
        return Exit(
            exit_code=self._pipes.exit_code,
            stderr=self.stderr,
            started_at_s=self._started_at_s,
            ended_at_s=self._pipes.ended.result(),
            stopped=self._stopped,
            cpu_s=self._pipes.cpu_s,
        )

    def _signal(self, number: signal.Signals) -> None:
        """To the whole group: a wrapper may stand between us and the engine."""
        if self._pipes.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class LineCutter:
    """Cuts chunks into lines, each with the arrival of its first byte.

    A line that has no end is cut at :data:`LINE_MAX_BYTES`.
    """

    def __init__(self) -> None:
        self._rest = b""  # a line that has not ended
        self._rest_at_s = 0.0

    def cut(self, chunk: bytes, at_s: float) -> Iterator[tuple[bytes, float]]:
        """Take a chunk that arrived at ``at_s``; yield the lines that end in it."""
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
        """The last line, where it has no end of its own."""
        if self._rest:
            yield self._rest, self._rest_at_s
            self._rest = b""


class _Pipes:
    """Hands on standard output by lines, keeps the end of standard error, and reaps.

    Both pipes are always drained, so neither can block the engine.
    """

    def __init__(self, process: subprocess.Popen[bytes], on_line: OnLine) -> None:
        self._process = process
        self._on_line = on_line
        self._cutter = LineCutter()
        self._transports: list[asyncio.BaseTransport] = []
        files = ((1, process.stdout), (2, process.stderr))
        self._files = [(number, file) for number, file in files if file is not None]
        self._open_count = 0  # pipes that did not end yet
        self.pid = process.pid
        self.stderr = bytearray()
        self.exit_code: int | None = None
        self.cpu_s: float | None = None
        self.broken: Exception | None = None  # what on_line raised
        self.stop: Callable[[str], None] | None = None  # the engine's
        self.watchdog: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[float] = self._loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    async def open(self) -> None:
        """Begin to read."""
        self._open_count = len(self._files)
        while self._files:
            number, file = self._files.pop()
            transport, _ = await self._loop.connect_read_pipe(partial(_Pipe, self, number), file)
            self._transports.append(transport)

    def close(self) -> None:
        """Read no more. The process is reaped all the same, once it ends."""
        for transport in self._transports:
            transport.close()
        for _, file in self._files:  # not opened yet
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
        """Take the exit code, and with it what the process cost."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self.watchdog is not None:  # before the number of its group is free for another
            self.watchdog.kill()
            self.watchdog.communicate()
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:  # somebody else reaped it
            self.exit_code = 255
        else:
            self.exit_code = os.waitstatus_to_exitcode(status)
            self.cpu_s = usage.ru_utime + usage.ru_stime
        self._process.returncode = self.exit_code
        self._end()

    def _end(self) -> None:
        """The process has ended and both pipes are empty."""
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
    """One of a process's pipes."""

    def __init__(self, pipes: _Pipes, number: int) -> None:
        self._pipes = pipes
        self._number = number

    def data_received(self, data: bytes) -> None:
        self._pipes.received(self._number, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipes.emptied(self._number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a process runs as."""

    user_id: int
    group_id: int


def least_privileged(program: str) -> Identity | None:
    """Nobody, for an agent that is root; None: as the agent, which is no one special.

    Also None where nobody cannot reach the program, as in a checkout in root's own folder.
    """
    if os.geteuid() != 0:
        return None
    path = Path(program).resolve()
    if not all(place.stat().st_mode & stat.S_IXOTH for place in (path, *path.parents)):
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return None
    return Identity(user_id=entry.pw_uid, group_id=entry.pw_gid)


def _leash(
    hard_stop_at_s: float | None, identity: Identity | None, end_by: signal.Signals
) -> Callable[[], None]:
    """What the child does between fork and exec: tie its life to ours, and to the clock."""
    parent = os.getpid()
    hard_stop_s = None if hard_stop_at_s is None else max(0.001, hard_stop_at_s - time.time())

    def leash() -> None:
        if identity is not None:
            for fd in (1, 2):  # a daemon may open /dev/stdout anew
                os.fchown(fd, identity.user_id, identity.group_id)
            os.setgroups([])
            os.setgid(identity.group_id)
            os.setuid(identity.user_id)  # clears what follows, hence first
        _libc.prctl(_PR_SET_PDEATHSIG, end_by)
        if os.getppid() != parent:
            os._exit(1)  # the agent died before it could be tied
        if hard_stop_s is not None:
            signal.setitimer(signal.ITIMER_REAL, hard_stop_s)

    return leash


def _watch(group_id: int, hard_stop_at_s: float) -> subprocess.Popen[bytes]:
    """A process that kills a group at an epoch second. Raises :class:`EngineUnusable`."""
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
        raise EngineUnusable(f"engine: no watchdog for it: {error}; install sh") from error
