"""Tests for process memory that need processes, sockets or real time."""

import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restore_gc() -> Iterator[None]:
    threshold = gc.get_threshold()
    # These are the default values in Python.
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.set_threshold(*threshold)
    gc.freeze()


# This will print glibc statistics before and when there are arrays in four threads.
ARRAYS_IN_THREADS = """
import ctypes, sys, threading
import numpy
from broadside.coordinator.process_memory import keep_one_heap

assert sys.argv[1] == "default" or keep_one_heap()
libc = ctypes.CDLL(None)
allocated, printed = threading.Barrier(5), threading.Barrier(5)

def print_malloc_info():
    libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
    libc.fflush(None)

def allocate():
    array = numpy.ones(250_000)
    allocated.wait(60)
    printed.wait(60)
    return array

threads = [threading.Thread(target=allocate) for _ in range(4)]
print_malloc_info()
for thread in threads:
    thread.start()
allocated.wait(60)
print_malloc_info()
printed.wait(60)
"""


def heaps_and_fresh_arrays(heaps: str) -> tuple[int, int]:
    """Return the number of new heaps, and the number of arrays allocated by mmap."""
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    stdout = subprocess.run(
        [sys.executable, "-c", ARRAYS_IN_THREADS, heaps],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"GLIBC_TUNABLES": ""},
    ).stdout
    before, during = map(int, re.findall(r'<total type="mmap" count="(\d+)"', stdout))
    return stdout.count("<heap ") - 2, during - before


def test_threads_allocate_arrays_in_one_heap() -> None:
    assert heaps_and_fresh_arrays("one") == (0, 0)
    assert heaps_and_fresh_arrays("default")[0] > 0
