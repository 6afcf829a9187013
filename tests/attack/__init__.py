"""Attacks over every boundary, and what stopped each: ``make attack`` prints the table."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attack:
    """One try at doing what one has no right to."""

    name: str
    boundary: str  # whose word was not to be believed: queue, table, server agent...
    tried: str
    run: Callable[[], str]  # what stopped it; raises AssertionError where nothing did


@contextmanager
def quiet() -> Iterator[None]:
    """Without log lines, of which an attack makes thousands."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
