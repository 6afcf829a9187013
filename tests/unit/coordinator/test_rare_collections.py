"""The garbage collector of a coordinator: seldom, but it comes."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from coordinator.rare_collections import NEW_MAX_COUNT, collect_rarely


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
