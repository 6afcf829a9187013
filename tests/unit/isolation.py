"""Keep unit tests away from processes, the network, and real time.

While a unit test runs, an audit hook rejects new processes and network sockets, ``time.sleep`` is
rejected, and the clock is not the clock of the host:

* ``time.time`` is shifted by :data:`SHIFT_S`, so a result that depends on the date differs from the
  expected one.
* The event loop does not wait for its timers. When nothing else can run, it moves the clock to the
  next timer, so ``asyncio.sleep(60)`` takes no time.
"""

import asyncio
import concurrent.futures.thread
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
_POLL_S: Final = 0.002
_REAL: Final = SimpleNamespace(**vars(time))
_REAL_TIME, _REAL_TIME_NS, _REAL_MONOTONIC = time.time, time.time_ns, time.monotonic


class _State:
    """State of the running unit test. There is one for the process, like the audit hook.

    Attributes:
        active: True while a unit test runs.
        violations: What the test did that a unit test must not do.
        jumped_s: Sum of the timers for which the event loop did not wait.
        pool_count: Calls in thread pools that have not ended.
        known_threads: Threads that were alive when the test started.
    """

    def __init__(self) -> None:
        self.active = False
        self.violations: list[str] = []
        self.jumped_s = 0.0
        self.pool_count = 0
        self.known_threads: frozenset[threading.Thread] = frozenset()
        self.lock = threading.Lock()


_state: Final = _State()


def _reject(what: str) -> NoReturn:
    _state.violations.append(what)
    pytest.fail(f"A unit test must not {what}. Move it to tests/contract or tests/live.")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook (``sys.addaudithook``), which cannot be removed from a process."""
    if not _state.active:
        return
    if event in _PROCESS_EVENTS:
        _reject(f"start a process ({event} {arguments[0] if arguments else ''!r:.80})")
    if event in _NETWORK_EVENTS:
        _reject(f"use the network ({event} {arguments[1:]!r:.80})")
    if event == "socket.__new__" and arguments[1] != socket.AF_UNIX:
        _reject(f"open a network socket (family {arguments[1]})")


sys.addaudithook(_audit)


def _sleep(seconds: Any) -> None:
    if _state.active:
        _reject(f"sleep (time.sleep({seconds}))")
    _REAL.sleep(seconds)


def _time() -> float:
    return _REAL_TIME() + (SHIFT_S + _state.jumped_s if _state.active else 0.0)


def _time_ns() -> int:
    return _REAL_TIME_NS() + (int((SHIFT_S + _state.jumped_s) * 1e9) if _state.active else 0)


def _monotonic() -> float:
    return _REAL_MONOTONIC() + (_state.jumped_s if _state.active else 0.0)


def _is_foreign(thread: threading.Thread) -> bool:
    """Whether a test started this thread itself, so that nothing shows when it is idle."""
    pools = concurrent.futures.thread._threads_queues
    return thread not in _state.known_threads and not (
        isinstance(thread, WorkerThread) or thread in pools
    )


class _JumpingSelector(selectors.EpollSelector):
    """Selector that moves the clock instead of waiting, unless a thread can cause an event."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        super().__init__()
        self._is_busy = is_busy

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or not _state.active:
            return super().select(timeout)
        # This must precede the poll: a thread causes its event before it becomes idle.
        is_busy = self._is_busy()
        events = super().select(0)
        if events:
            return events
        if is_busy:
            return super().select(min(timeout, _POLL_S))
        _state.jumped_s += timeout
        return []


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
            or _state.pool_count > 0
            or any(isinstance(one, WorkerThread) and one not in one.idle_workers for one in threads)
            or any(map(_is_foreign, threads))
        )


_submit: Final = ThreadPoolExecutor.submit


def _count_submit(self: ThreadPoolExecutor, *args: Any, **kwargs: Any) -> "Future[Any]":
    with _state.lock:
        _state.pool_count += 1
    future: Future[Any] = _submit(self, *args, **kwargs)
    future.add_done_callback(_end_pool_call)
    return future


def _end_pool_call(_: "Future[Any]") -> None:
    with _state.lock:
        _state.pool_count -= 1


def install() -> None:
    """Replace the functions of ``time``. This must precede the import of the tested modules.

    Many of them use a function of ``time`` as a default argument. The replacements behave like the
    originals while no unit test runs.
    """
    time.time, time.time_ns, time.monotonic, time.sleep = _time, _time_ns, _monotonic, _sleep


@contextmanager
def isolated() -> Iterator[None]:
    """Reject processes, network and sleep, and use the shifted clock and the jumping loop."""
    _state.violations.clear()
    _state.jumped_s = 0.0
    _state.pool_count = 0
    _state.known_threads = frozenset(threading.enumerate())
    with (
        # Used by pytest-asyncio and by ``asyncio.run``.
        mock.patch.object(asyncio.DefaultEventLoopPolicy, "_loop_factory", JumpingLoop),
        mock.patch.object(ThreadPoolExecutor, "submit", _count_submit),
        # This module compares the clock with the times of its files, which are real.
        mock.patch("broadside.exchange.embedded.sqlite.time", _REAL),
    ):
        _state.active = True
        try:
            yield
        finally:
            _state.active = False


def violations() -> list[str]:
    """Return what the running test did that a unit test must not do, and forget it."""
    matches, _state.violations = _state.violations, []
    return matches
