"""A service of the lab's for as long as a ``with`` lasts, stopped also where a test fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Service(Protocol):
    """A process of the lab's, such as its broker or Azurite."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


S = TypeVar("S", bound=Service)


@contextmanager
def started(service: S) -> Iterator[S]:
    service.start()
    try:
        yield service
    finally:
        service.stop()
