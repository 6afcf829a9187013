"""Functions to run many real processes together, each with its adapter instance.

They are forked from a warm single-threaded server, so a hundred processes take about a second.
"""

import asyncio
import multiprocessing
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Final, TypeVar

from tests.contract.adapters import Place

_T = TypeVar("_T")

Work = Callable[[Place, int], Coroutine[None, None, _T]]

# Time in which all processes need to be ready.
_START_S: Final = 60.0
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.contract.warmed"])


def in_processes(count: int, work: Work[_T], place: Place) -> Sequence[_T]:
    """Run ``work(place, number)`` in ``count`` processes and return the results by number.

    All processes will start at the same time. ``work`` should be a function in a module.

    Raises:
        AssertionError: If a process died.
    """
    barrier = _CONTEXT.Barrier(count)
    pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(count)]
    processes = [
        _CONTEXT.Process(target=_run, args=(work, place, number, barrier, writer))
        for number, (_, writer) in enumerate(pipes)
    ]
    for process, (_, writer) in zip(processes, pipes, strict=True):
        process.start()
        # From here on, the death of the process can be seen as the end of the file.
        writer.close()
    try:
        return [_result(reader) for reader, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()
        for reader, _ in pipes:
            reader.close()


@contextmanager
def reported_by(
    work: Callable[[Place, "Connection[_T, object]"], Coroutine[None, None, None]], place: Place
) -> "Iterator[tuple[BaseProcess, Connection[object, _T]]]":
    """Run ``work(place, writer)`` in one process, which is killed at the end of the context.

    Yields:
        The process and a reader of the objects that it sends.
    """
    reader, writer = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_report, args=(work, place, writer))
    process.start()
    writer.close()
    try:
        yield process, reader
    finally:
        process.kill()
        process.join()
        reader.close()


def _report(
    work: Callable[[Place, "Connection[_T, object]"], Coroutine[None, None, None]],
    place: Place,
    writer: "Connection[_T, object]",
) -> None:
    asyncio.run(work(place, writer))


def _result(reader: "Connection[object, _T]") -> _T:
    try:
        return reader.recv()
    except EOFError:
        raise AssertionError("a process died; its traceback is on standard error") from None


def _run(
    work: Work[_T], place: Place, number: int, barrier: Barrier, writer: "Connection[_T, object]"
) -> None:
    barrier.wait(_START_S)
    writer.send(asyncio.run(work(place, number)))
    writer.close()
