"""Tests for the garbage collection and the number of heaps in a coordinator."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from broadside.coordinator.process_memory import NEW_MAX_COUNT, collect_rarely


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def restore_gc() -> Iterator[None]:
    threshold = gc.get_threshold()
    # These are the default values in Python.
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.set_threshold(*threshold)
    gc.freeze()


def collections_while(count: int) -> int:
    before = sum(generation["collections"] for generation in gc.get_stats())
    objects = [[number] for number in range(count)]
    return (
        sum(generation["collections"] for generation in gc.get_stats()) - before if objects else 0
    )


def test_existing_objects_are_frozen() -> None:
    collect_rarely()

    assert gc.get_freeze_count() > 1_000


def test_new_objects_are_collected_rarely() -> None:
    default_count = collections_while(NEW_MAX_COUNT)
    collect_rarely()

    assert collections_while(NEW_MAX_COUNT) * 20 < default_count


def test_garbage_cycles_are_collected() -> None:
    collect_rarely()
    garbage = weakref.ref(Cycle())

    objects = [[number] for number in range(2 * NEW_MAX_COUNT)]

    assert objects
    assert garbage() is None
