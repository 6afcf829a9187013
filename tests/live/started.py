"""Run a lab service for a ``with`` block and stop it if the test fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Service(Protocol):
    """Process of the lab, for example the broker or Azurite."""

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
