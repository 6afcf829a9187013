"""Attacks over every boundary, and what stopped each: ``make attack`` prints the table."""

import logging
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True)
class Attack:
    """One try at doing what one has no right to."""

    name: str
    boundary: str  # whose word was not to be believed: queue, table, server agent...
    tried: str
    run: Callable[[], str]  # what stopped it; raises AssertionError where nothing did


def each(
    name: str,
    boundary: str,
    tried: str,
    run: Callable[..., str],
    given: Mapping[str, Any] | Iterable[str],
) -> Iterator[Attack]:
    """One attack for each of what is given.

    ``{}`` in its name and in what it tries is the key; ``run`` gets the value, of a tuple all
    parts. What has no key is its own.
    """
    cases = given if isinstance(given, Mapping) else {one: one for one in given}
    for key, value in cases.items():
        parts = value if isinstance(value, tuple) else (value,)
        yield Attack(name.format(key), boundary, tried.format(key), partial(run, *parts))


def refusal(
    errors: type[Exception] | tuple[type[Exception], ...], work: Callable[[], object], went: str
) -> str:
    """The words by which it was refused; ``went``: what it is called where it was not."""
    try:
        work()
    except errors as error:
        return str(error)
    raise AssertionError(went)


@contextmanager
def memory_within(max_bytes: int) -> Iterator[None]:
    """Raises AssertionError where more was taken at any time."""
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < max_bytes, f"{peak_bytes} bytes were taken"


@contextmanager
def quiet() -> Iterator[None]:
    """Without log lines, of which an attack makes thousands."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
