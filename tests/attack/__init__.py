"""Attacks over every boundary, and what stopped each: ``make attack`` prints the table."""

import asyncio
import atexit
import logging
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attack:
    """One try at doing what one has no right to."""

    name: str
    boundary: str  # whose word was not to be believed: queue, table, server agent...
    tried: str
    how: Callable[[], str | Coroutine[Any, Any, str]]

    def run(self) -> str:
        """What stopped it. Raises AssertionError where nothing did."""
        with quiet():
            said = self.how()
            return said if isinstance(said, str) else asyncio.run(said)


def each(
    name: str,
    boundary: str,
    tried: str | Callable[..., str],
    how: Callable[..., str | Coroutine[Any, Any, str]],
    given: Mapping[str, Any] | Iterable[str],
) -> Iterator[Attack]:
    """One attack for each of what is given.

    ``{}`` in its name and in what it tries is the key; ``how`` gets the value, of a tuple all
    parts, and so does what is tried where it is to be said of that. What has no key is its own.
    """
    cases = given if isinstance(given, Mapping) else {one: one for one in given}
    for key, value in cases.items():
        parts = value if isinstance(value, tuple) else (value,)
        said = tried.format(key) if isinstance(tried, str) else tried(*parts)
        yield Attack(name.format(key), boundary, said, partial(how, *parts))


def refusal(
    errors: type[Exception] | tuple[type[Exception], ...], work: Callable[[], object], went: str
) -> str:
    """The words by which it was refused; ``went``: what it is called where it was not."""
    try:
        work()
    except errors as error:
        return str(error)
    raise AssertionError(went)


def unfolding(megabytes: int, *, gzip: bool = False) -> bytes:
    """Zeros, packed: a sound zlib or gzip stream whose blocks are all the same one."""
    zeros = bytes(1_048_576)
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = block * megabytes + packer.flush()
    check = 0 if gzip else 1
    for _ in range(megabytes):
        check = (zlib.crc32 if gzip else zlib.adler32)(zeros, check)
    if not gzip:
        return b"\x78\xda" + packed + struct.pack(">I", check)
    size = megabytes * len(zeros) % 2**32
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + packed + struct.pack("<II", check, size)


def lasting(made: AbstractContextManager[T]) -> T:
    """What is made once and stands until this process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(made)


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
