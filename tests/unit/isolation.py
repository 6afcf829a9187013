"""Keep unit tests away from processes, the network, and real time.

While a unit test runs, an audit hook rejects new processes, network sockets and C libraries that a
test loads with ``ctypes``. Also rejected are ``time.sleep``, ``time.clock_gettime``, and a wait for
a condition, an event or ``select.select`` that ends by its timeout. The clock is not the clock of
the host:

* ``time.time`` starts :data:`SHIFT_S` after the real time, so a result that depends on the date
  differs from the expected one.
* The clocks of ``time`` stop while code runs, so a test cannot measure how long something takes.
* The event loop does not wait for its timers. When nothing else can run, it moves the clocks to the
  next timer, so ``asyncio.sleep(60)`` takes no time.

While pytest imports a file of unit tests, new processes and network sockets are rejected.

Python offers no way to catch these:

* ``datetime.now`` and ``date.today``, which are methods of C types. ``test_structure.py`` rejects
  them in the packages and in unit tests. ``time.localtime`` without an argument is the same.
* A function of ``time`` or ``select`` that a module imported by name before :func:`install`.
* CPU time (``time.process_time``), which two tests compare with other CPU time.
* The timeout of a lock, of ``Thread.join``, and of ``select.poll`` and ``select.epoll``.
* A wait in a thread that a test or a package starts itself. The test need not wait for it.
* C code that a package loads itself.
"""

import _posixsubprocess
import asyncio
import concurrent.futures.thread
import ctypes  # noqa: F401 - imported early, because its import loads the C library of Python
import select
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, NoReturn
from unittest import mock

import pytest
from anyio._backends._asyncio import WorkerThread

# 400 days and 7 h: another day, another hour of the day, and another day of the week.
SHIFT_S: Final = 400 * 86400 + 7 * 3600

_PROCESS_EVENTS: Final = frozenset(
    {
        *("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn"),
        *("os.spawn", "pty.spawn"),
    }
)
# The event loop uses a pair of Unix sockets, which are neither bound nor connected.
_NETWORK_EVENTS: Final = frozenset(
    {
        *("socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg"),
        *("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"),
    }
)
# Its first two arguments are the library and the name of a function.
_LIBRARY_EVENTS: Final = frozenset({"ctypes.dlopen", "ctypes.dlsym"})
_POLL_S: Final = 0.002
CLOCKS: Final = ("time", "monotonic", "perf_counter")
_REAL: Final = SimpleNamespace(**vars(time))
_REAL_FORK: Final = _posixsubprocess.fork_exec
_REAL_SELECT: Final = select.select
_REAL_WAIT: Final = threading.Condition.wait


class _State:
    """State of the running unit test. There is one for the process, like the audit hook.

    Attributes:
        active: True while a unit test runs.
        collecting: True while pytest imports a file of unit tests.
        violations: What the test did that a unit test must not do.
        started_s: Value of each clock when the test started, in seconds.
        jumped_s: Sum of the timers for which the event loop did not wait.
        pool_calls: Calls in thread pools that the test started and that have not ended.
        known_threads: Threads that were alive when the test started.
    """

    def __init__(self) -> None:
        self.active = False
        self.collecting = False
        self.violations: list[str] = []
        self.started_s: dict[str, float] = {}
        self.jumped_s = 0.0
        self.pool_calls: set[Future[Any]] = set()
        self.known_threads: frozenset[threading.Thread] = frozenset()


STATE: Final = _State()


def _reject(what: str) -> NoReturn:
    STATE.violations.append(what)
    pytest.fail(f"A unit test must not {what}. Move it to tests/contract or tests/live.")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook (``sys.addaudithook``), which cannot be removed from a process."""
    if not (STATE.active or STATE.collecting):
        return
    if event in _PROCESS_EVENTS:
        _reject(f"start a process ({event} {arguments[0] if arguments else ''!r:.80})")
    if event in _NETWORK_EVENTS:
        _reject(f"use the network ({event} {arguments[1:]!r:.80})")
    if event == "socket.__new__" and arguments[1] != socket.AF_UNIX:
        _reject(f"open a network socket (family {arguments[1]})")
    if event in _LIBRARY_EVENTS and STATE.active:
        _reject(f"call C functions with ctypes ({event} {arguments[-1]!r:.80})")


sys.addaudithook(_audit)


def _sleep(seconds: Any) -> None:
    if STATE.active:
        _reject(f"sleep (time.sleep({seconds}))")
    _REAL.sleep(seconds)


def _wait(self: threading.Condition, timeout: float | None = None) -> bool:
    """Wait for another thread. A wait that only ends by its timeout is a sleep."""
    is_notified = _REAL_WAIT(self, timeout)
    if not is_notified and (timeout or 0) > 0 and _delays_test():
        _reject(f"wait until a timeout (Condition.wait({timeout}))")
    return is_notified


def _select(*args: Any) -> tuple[list[Any], list[Any], list[Any]]:
    ready = _REAL_SELECT(*args)
    if not any(ready) and args[-1] and _delays_test():
        _reject(f"wait until a timeout (select.select, {args[-1]} s)")
    return ready


def _delays_test() -> bool:
    """Whether a unit test runs and waits for the current thread."""
    thread = threading.current_thread()
    return STATE.active and (thread is threading.main_thread() or _is_in_pool(thread))


def _guarded(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is rejected while a unit test runs."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if STATE.active or (STATE.collecting and real is _REAL_FORK):
            _reject(f"{what} ({real.__name__})")
        return real(*args, **kwargs)

    return guarded


def _clock(name: str) -> Callable[[], float]:
    """Return a replacement of a clock of ``time``, which stops while a unit test runs."""
    real: Callable[[], float] = getattr(_REAL, name)

    def now_s() -> float:
        return STATE.started_s[name] + STATE.jumped_s if STATE.active else real()

    return now_s


def _clock_ns(name: str) -> Callable[[], int]:
    """Return a replacement of the clock of ``time`` that returns nanoseconds."""
    real: Callable[[], int] = getattr(_REAL, f"{name}_ns")

    def now_ns() -> int:
        if not STATE.active:
            return real()
        return int((STATE.started_s[name] + STATE.jumped_s) * 1e9)

    return now_ns


def _is_foreign(thread: threading.Thread) -> bool:
    """Whether a test started this thread itself, so that nothing shows when it is idle."""
    return thread not in STATE.known_threads and not _is_in_pool(thread)


def _is_in_pool(thread: threading.Thread) -> bool:
    pools = concurrent.futures.thread._threads_queues
    return isinstance(thread, WorkerThread) or thread in pools


class _JumpingSelector(selectors.EpollSelector):
    """Selector that moves the clock instead of waiting, unless a thread can cause an event."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        super().__init__()
        self._is_busy = is_busy

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or not STATE.active:
            return super().select(timeout)
        # This must precede the poll: a thread causes its event before it becomes idle.
        is_busy = self._is_busy()
        events = super().select(0)
        if events:
            return events
        if is_busy:
            timeout = min(timeout, _POLL_S)
            events = super().select(timeout)
        if not events:
            STATE.jumped_s += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    """Event loop whose timers take no time."""

    def __init__(self) -> None:
        self._call_count = 0
        super().__init__(_JumpingSelector(self._is_busy))

    def run_in_executor(  # type: ignore[override]
        self, *args: Any
    ) -> "asyncio.Future[Any]":
        """Run a call in a thread. Timers wait until its result is here."""
        future = super().run_in_executor(*args)
        self._call_count += 1
        future.add_done_callback(self._end_call)
        return future

    def _end_call(self, _: "asyncio.Future[Any]") -> None:
        self._call_count -= 1

    def _is_busy(self) -> bool:
        threads = threading.enumerate()
        return (
            self._call_count > 0
            or bool(STATE.pool_calls)
            or any(isinstance(one, WorkerThread) and one not in one.idle_workers for one in threads)
            or any(map(_is_foreign, threads))
        )


# The clock of files is the real one.
_FILE_TIME: Final = SimpleNamespace(time=_REAL.time, monotonic=_REAL.monotonic, sleep=_sleep)
_submit: Final = ThreadPoolExecutor.submit


def _count_submit(self: ThreadPoolExecutor, *args: Any, **kwargs: Any) -> "Future[Any]":
    future: Future[Any] = _submit(self, *args, **kwargs)
    STATE.pool_calls.add(future)
    # A call of an earlier test can end in this one. It must not count as the end of another call.
    future.add_done_callback(STATE.pool_calls.discard)
    return future


def install() -> None:
    """Replace functions that wait or read a clock, before the tested modules are imported.

    Many of them use a function of ``time`` as a default argument. The replacements behave like the
    originals while no unit test runs.
    """
    for name in CLOCKS:
        setattr(time, name, _clock(name))
        setattr(time, f"{name}_ns", _clock_ns(name))
    time.sleep = _sleep
    time.clock_gettime = _guarded("read a clock", time.clock_gettime)
    time.clock_gettime_ns = _guarded("read a clock", time.clock_gettime_ns)
    select.select = _select
    threading.Condition.wait = _wait  # type: ignore[method-assign]
    # ``multiprocessing`` starts its processes with it, without an audit event.
    _posixsubprocess.fork_exec = _guarded("start a process", _REAL_FORK)


@contextmanager
def isolated() -> Iterator[None]:
    """Reject processes, network and sleep, and use the shifted clock and the jumping loop."""
    STATE.violations.clear()
    STATE.started_s = {name: getattr(_REAL, name)() for name in CLOCKS}
    STATE.started_s["time"] += SHIFT_S
    STATE.jumped_s = 0.0
    STATE.pool_calls = set()
    STATE.known_threads = frozenset(threading.enumerate())
    with (
        # Used by pytest-asyncio and by ``asyncio.run``.
        mock.patch.object(asyncio.DefaultEventLoopPolicy, "_loop_factory", JumpingLoop),
        mock.patch.object(ThreadPoolExecutor, "submit", _count_submit),
        # This module compares the clock with the times of its files, which are real.
        mock.patch("broadside.exchange.embedded.sqlite.time", _FILE_TIME),
    ):
        STATE.active = True
        try:
            yield
        finally:
            STATE.active = False


@contextmanager
def collecting() -> Iterator[None]:
    """Reject processes and network while pytest imports a file of unit tests."""
    STATE.violations.clear()
    STATE.collecting = True
    try:
        yield
    finally:
        STATE.collecting = False


def violations() -> list[str]:
    """Return what the running test did that a unit test must not do, and forget it."""
    matches, STATE.violations = STATE.violations, []
    return matches
