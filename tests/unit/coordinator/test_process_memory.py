"""The memory of a coordinator: garbage is collected seldom, but it is, and one heap is used."""

import gc
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from broadside.coordinator.process_memory import NEW_MAX_COUNT, collect_rarely


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    tests_pace = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # Python's own
    gc.unfreeze()
    yield
    gc.set_threshold(*tests_pace)
    gc.freeze()


def collections_while(count: int) -> int:
    before = sum(get_stat["collections"] for get_stat in gc.get_stats())
    stored = [[number] for number in range(count)]
    return sum(get_stat["collections"] for get_stat in gc.get_stats()) - before if stored else 0


def test_what_is_there_is_not_looked_through_again() -> None:
    collect_rarely()

    assert gc.get_freeze_count() > 1_000


def test_many_new_things_are_looked_through_seldom() -> None:
    often = collections_while(NEW_MAX_COUNT)
    collect_rarely()

    assert collections_while(NEW_MAX_COUNT) * 20 < often


def test_garbage_in_cycles_goes_all_the_same() -> None:
    collect_rarely()
    garbage = weakref.ref(Cycle())

    stored = [[number] for number in range(2 * NEW_MAX_COUNT)]

    assert stored
    assert garbage() is None


# What glibc says of itself before four threads hold an array each, and while they do.
HELD_BY_THREADS = """
import ctypes, sys, threading
import numpy
from broadside.coordinator.process_memory import keep_one_heap

assert sys.argv[1] == "own" or keep_one_heap()
libc = ctypes.CDLL(None)
made, said = threading.Barrier(5), threading.Barrier(5)

def say():
    libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
    libc.fflush(None)

def hold():
    array = numpy.ones(250_000)
    made.wait(60)
    said.wait(60)
    return array

threads = [threading.Thread(target=hold) for _ in range(4)]
say()
for each in threads:
    each.start()
made.wait(60)
say()
said.wait(60)
"""


def heaps_and_fresh_arrays(heaps: str) -> tuple[int, int]:
    """How many heaps the threads made, and how many arrays in none: fresh from the kernel."""
    by_default = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    stdout = subprocess.run(
        [sys.executable, "-c", HELD_BY_THREADS, heaps],
        capture_output=True,
        text=True,
        check=True,
        env=by_default | {"GLIBC_TUNABLES": ""},
    ).stdout
    before, stored = map(int, re.findall(r'<total type="mmap" count="(\d+)"', stdout))
    return stdout.count("<heap ") - 2, stored - before


def test_threads_make_arrays_where_others_were() -> None:
    assert heaps_and_fresh_arrays("one") == (0, 0)
    assert heaps_and_fresh_arrays("own")[0] > 0
