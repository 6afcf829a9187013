"""Tests that a unit test fails when it starts a process, uses the network, waits or reads a clock.

Each case is real if the isolation does not reject it: it starts ``true`` or waits for 0.3 s.
"""

import _posixsubprocess
import ctypes
import multiprocessing
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broadside.exchange.embedded import sqlite
from tests.unit import conftest, isolation

WAIT_S = 0.3


def wait_for_condition() -> None:
    condition = threading.Condition()
    with condition:
        condition.wait(WAIT_S)


def wait_in_a_pool() -> None:
    with ThreadPoolExecutor() as pool:
        pool.submit(threading.Event().wait, WAIT_S).result()


def spawn() -> None:
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()


CASES: dict[str, Callable[[], object]] = {
    "process": lambda: subprocess.run(["true"]),
    "system": lambda: os.system("true"),  # noqa: S605
    "spawned process": spawn,
    "C fork": lambda: cast(Any, _posixsubprocess).fork_exec(),
    "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "name": lambda: socket.getaddrinfo("localhost", 80),
    "C system": lambda: ctypes.CDLL(None).system(b"true"),
    "C system of Python": lambda: ctypes.pythonapi.system(b"true"),
    "C socket": lambda: os.close(ctypes.CDLL(None).socket(socket.AF_INET, socket.SOCK_DGRAM, 0)),
    "sleep": lambda: time.sleep(WAIT_S),
    "event": lambda: threading.Event().wait(WAIT_S),
    "event in a pool": wait_in_a_pool,
    "condition": wait_for_condition,
    "select": lambda: select.select([], [], [], WAIT_S),
    "sleep of SQLite": lambda: cast(Any, sqlite).time.sleep(WAIT_S),
    "clock_gettime": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "clock_gettime_ns": lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC),
}


def assert_rejected(forbidden: Callable[[], object]) -> None:
    try:
        with pytest.raises(pytest.fail.Exception, match="A unit test must not"):
            forbidden()
        assert isolation.violations()
    finally:
        # Otherwise the fixture fails this test.
        isolation.violations()


@pytest.mark.parametrize("name", CASES)
def test_rejects_processes_network_waits_and_clocks(name: str) -> None:
    assert_rejected(CASES[name])


def test_wait_that_another_thread_ends_is_accepted() -> None:
    event = threading.Event()
    threading.Thread(target=event.set).start()
    assert event.wait(60)
    assert select.select([], [], [], 0) == ([], [], [])
    assert isolation.violations() == []


@pytest.mark.parametrize("name", [*isolation.CLOCKS, *(f"{name}_ns" for name in isolation.CLOCKS)])
def test_clocks_stop_while_code_runs(name: str) -> None:
    clock = getattr(time, name)
    began = clock()
    sum(range(10_000))
    assert clock() == began


def test_date_is_not_the_real_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert time.time() - file.stat().st_mtime > isolation.SHIFT_S / 2


@pytest.mark.parametrize("name", ["process", "spawned process", "socket"])
def test_rejects_processes_and_network_while_a_file_is_imported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SimpleNamespace(path=Path(__file__))
    monkeypatch.setattr(isolation.STATE, "active", False)
    report = SimpleNamespace(outcome="passed")
    collection = conftest.pytest_make_collect_report(cast(Any, file))
    next(collection)
    with pytest.raises(pytest.fail.Exception, match="A unit test must not"):
        CASES[name]()
    with pytest.raises(StopIteration):
        collection.send(cast(Any, report))
    assert report.outcome == "failed"
    assert not isolation.STATE.collecting


def test_files_of_other_folders_may_start_processes() -> None:
    file = SimpleNamespace(path=Path(__file__).parents[1] / "live")
    collection = conftest.pytest_make_collect_report(cast(Any, file))
    next(collection)
    assert not isolation.STATE.collecting
    collection.close()


def test_end_of_an_earlier_call_does_not_let_the_clock_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that an earlier test left in a pool can end while this one has another call."""
    earlier, later = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        left = pool.submit(earlier.wait)
        # The next test begins.
        monkeypatch.setattr(isolation.STATE, "pool_calls", set())
        pending = pool.submit(later.wait)
        earlier.set()
        left.result()
        assert isolation.STATE.pool_calls == {pending}
        later.set()
    assert isolation.STATE.pool_calls == set()
