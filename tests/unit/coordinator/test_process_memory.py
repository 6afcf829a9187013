"""The memory of a coordinator: garbage is collected seldom, but it is, and one heap is used."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from coordinator.process_memory import NEW_MAX_COUNT, collect_rarely


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
    before = sum(each["collections"] for each in gc.get_stats())
    kept = [[number] for number in range(count)]
    return sum(each["collections"] for each in gc.get_stats()) - before if kept else 0


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

    kept = [[number] for number in range(2 * NEW_MAX_COUNT)]

    assert kept
    assert garbage() is None


PAGES_FRESH = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
import numpy
from coordinator.process_memory import keep_one_heap

def work():
    return len([numpy.ones(250_000) for _ in range(10)])

assert sys.argv[1] == "own" or keep_one_heap()
with ThreadPoolExecutor(4) as threads:
    list(threads.map(lambda _: work(), range(8)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        threads.submit(work).result()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def fresh_pages(heap: str) -> int:
    said = subprocess.run(
        [sys.executable, "-c", PAGES_FRESH, heap], capture_output=True, text=True, check=True
    )
    return int(said.stdout)


def test_threads_make_arrays_where_others_were() -> None:
    assert fresh_pages("one") * 4 < fresh_pages("own")
