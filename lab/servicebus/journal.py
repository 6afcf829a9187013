"""Append-only log of all queue commands, to restore a killed broker.

It survives a crash of the process, but not of the host. It will be written before a command is
acknowledged, but is not flushed to disk. Each record has its length (4 bytes) and an AMQP list with
queue path, command, time and arguments.
"""

import struct
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from broadside.lab.servicebus import amqp
from broadside.lab.servicebus.queues import Log, Queue, QueueSettings, Sent


class Journal:
    """Creates queues and stores their commands.

    Attributes:
        queues: Queues by path, including dead-letter queues.
    """

    def __init__(self, path: Path) -> None:
        self.queues: dict[str, Queue] = {}
        self._pending: list[bytes] = []
        self._file: BinaryIO | None = None
        complete_bytes = 0
        if path.exists():
            for record, end in _records(path.read_bytes()):
                self._replay(*record)
                complete_bytes = end
        self._file = path.open("ab", buffering=0)
        # We can ignore a truncated record, because it was never acknowledged.
        self._file.truncate(complete_bytes)

    def queue(self, path: str, settings: QueueSettings) -> Queue:
        """Return the restored queue for a path, or a new one.

        Args:
            path: Path of the queue.
            settings: Settings for a new queue.
        """
        path = path.lower()
        if path not in self.queues:
            self._record(path, "create", 0.0, asdict(settings))
            queue = Queue(path, settings, log=self._log_of)
            self.queues |= {item.path: item for item in (queue, queue.dead) if item}
        return self.queues[path]

    def flush(self) -> None:
        """Write pending records. This needs to be called before commands are acknowledged."""
        if self._pending and self._file:
            self._file.write(b"".join(self._pending))
            self._pending.clear()

    def close(self) -> None:
        self.flush()
        if self._file:
            self._file.close()

    def _log_of(self, queue: Queue) -> Log:
        return lambda command, now, arguments: self._record(queue.path, command, now, arguments)

    def _record(self, path: str, command: str, now: float, arguments: dict[str, Any]) -> None:
        if self._file is None:
            # The journal is still being replayed.
            return
        if command == "send":
            arguments = asdict(arguments["sent"])
        raw = amqp.encode([path, command, now, arguments])
        self._pending.append(struct.pack(">I", len(raw)) + raw)

    def _replay(self, path: str, command: str, now: float, arguments: dict[str, Any]) -> None:
        if command == "create":
            self.queue(path, QueueSettings(**arguments))
        elif command == "send":
            self.queues[path].send(Sent(**arguments), now)
        else:
            getattr(self.queues[path], command)(now=now, **arguments)


def _records(raw: bytes) -> Iterator[tuple[Any, int]]:
    """Yield all complete records with the offset of their end."""
    at = 0
    while at + 4 <= len(raw):
        end = at + 4 + struct.unpack_from(">I", raw, at)[0]
        if end > len(raw):
            return
        yield amqp.decode(raw, at + 4)[0], end
        at = end
