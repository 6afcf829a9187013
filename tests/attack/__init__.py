"""Attacks on all trust boundaries.

Use ``make attack`` to print them with the check that stopped them.
"""

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
    """One attempt at an operation without permission.

    Attributes:
        boundary: Trust boundary that is attacked, such as queue, table or server agent.
    """

    name: str
    boundary: str
    tried: str
    how: Callable[[], str | Coroutine[Any, Any, str]]

    def run(self) -> str:
        """Run the attack and return the defence that stopped it.

        Raises:
            AssertionError: No defence stopped it.
        """
        with quiet():
            text = self.how()
            return text if isinstance(text, str) else asyncio.run(text)


def attack_variants(
    name: str,
    boundary: str,
    tried: str | Callable[..., str],
    how: Callable[..., str | Coroutine[Any, Any, str]],
    given: Mapping[str, Any] | Iterable[str],
) -> Iterator[Attack]:
    """Yield one attack for each given value.

    ``{}`` in the name and in the attempt is replaced by the key. If the value is a tuple, ``how``
    gets all its parts as arguments, else the value. If ``tried`` can be called, it gets the same.
    If there are no keys, the values are used as keys.
    """
    cases = given if isinstance(given, Mapping) else {one: one for one in given}
    for key, value in cases.items():
        parts = value if isinstance(value, tuple) else (value,)
        text = tried.format(key) if isinstance(tried, str) else tried(*parts)
        yield Attack(name.format(key), boundary, text, partial(how, *parts))


def refusal(
    errors: type[Exception] | tuple[type[Exception], ...], work: Callable[[], object], went: str
) -> str:
    """Return the text of the refusal, or raise AssertionError with ``went``."""
    try:
        work()
    except errors as error:
        return str(error)
    raise AssertionError(went)


def unfolding(megabytes: int, *, gzip: bool = False) -> bytes:
    """Return zeros as a valid zlib or gzip stream that repeats one block."""
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
    """Enter a context once and close it when this process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(made)


@contextmanager
def memory_within(max_bytes: int) -> Iterator[None]:
    """Raise AssertionError if more memory than ``max_bytes`` was allocated at any time."""
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < max_bytes, f"{peak_bytes} bytes were taken"


@contextmanager
def quiet() -> Iterator[None]:
    """Disable logging, because an attack would write thousands of lines."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
