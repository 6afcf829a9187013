"""What an engine printed, kept up to a bound, with what is left out said in its own form."""

import json
from typing import Final

_TAIL_BYTES: Final = 65_536  # of the newest lines: an engine's last ones are its totals


class Transcript:
    """The first lines of an output and its newest ones; in between nothing, if it grows too long.

    A short output is kept to the byte. In a long one a line ``{"event": "cut", ...}`` stands where
    lines are missing, as iperf3's own stream would have it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._head: list[bytes] = []
        self._head_bytes = 0
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._cut_count = 0
        self._cut_bytes = 0

    def add(self, line: bytes) -> None:
        size = len(line) + 1
        if not self._tail and self._head_bytes + size <= self._max_bytes - _TAIL_BYTES:
            self._head.append(line)
            self._head_bytes += size
            return
        self._tail.append(line)
        self._tail_bytes += size
        while self._tail_bytes > min(_TAIL_BYTES, self._max_bytes) and len(self._tail) > 1:
            gone_bytes = len(self._tail.pop(0)) + 1
            self._tail_bytes -= gone_bytes
            self._cut_count += 1
            self._cut_bytes += gone_bytes

    @property
    def is_cut(self) -> bool:
        return self._cut_count > 0

    def text(self) -> bytes:
        note: list[bytes] = []
        if self.is_cut:
            said = {"lines_count": self._cut_count, "bytes": self._cut_bytes, "by": "broadside"}
            note.append(json.dumps({"event": "cut", "data": said}).encode())
        return b"\n".join([*self._head, *note, *self._tail])
