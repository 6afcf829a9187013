"""Parser for the text output of iperf3.

It supports JSON documents, event streams and incomplete output. This module is pure: it starts no
process and reads no clock. The agents and the importer of the coordinator use it. Rules:

- The exit code of iperf3 is not reliable. A test is *usable* if it ended without an ``error`` and
  every requested flow carried bytes.
- Invalid output never raises. It results in a :class:`Reading` with ``report.error``.
- Incomplete output results in a :class:`Reading` of the available part, with ``report.truncated``.
"""

import json
import re
from collections.abc import Iterator

from broadside.exchange.engines.iperf3_account import Account, object_of
from broadside.exchange.engines.port import Event, Reading


class StreamReader:
    """Parser for the standard output of one iperf3 process, line by line as it arrives.

    ``--json-stream`` output results in events immediately. A complete document (``--json``, the
    only format of older versions) results in no events. Its lines are collected, and :meth:`finish`
    parses them.
    """

    def __init__(self) -> None:
        self._test = Account()
        # Lines that are not events.
        self._other: list[bytes] = []
        # Arrival of the first of these lines, in epoch seconds.
        self._other_at_s: float | None = None

    def feed(self, line: bytes, at_s: float) -> tuple[Event, ...]:
        """Parse a line of standard output and return its events.

        Args:
            line: The line, without the line break.
            at_s: Arrival of the line, in epoch seconds.
        """
        if not line.startswith(b'{"event"'):
            if self._other_at_s is None:
                self._other_at_s = at_s
            self._other.append(line)
            return ()
        try:
            message = object_of(json.loads(line))
        except (ValueError, RecursionError):
            self._test.truncated = True
            return ()
        if message.get("event") == "start" and self._test.begun:
            # A persistent server starts the next test.
            self._test = Account()
        return self._test.take(message.get("event"), message.get("data"), at_s)

    def sample(self, name: str, text: str, at_s: float) -> tuple[Event, ...]:
        return ()

    def finish(
        self,
        exit_code: int | None = None,
        *,
        stderr: str = "",
        released_at_s: float | None = None,
        server_ahead_s: float = 0.0,
    ) -> Reading:
        """Return everything that was read so far. It can be called at any time, also during a test.

        Args:
            exit_code: The process exit code. None if it is unknown.
            stderr: Standard error. It supplies the reason if the output contains no error.
            released_at_s: Time at which the start gate released the data, in epoch seconds
                (:class:`broadside.agent.gate.Release`).
            server_ahead_s: How long the server's engine clock ran before the release, in seconds.
                The server counts this as receiving time.
        """
        other = b"\n".join(self._other).decode(errors="replace")
        test = self._test
        if not test.begun:
            tests = _read_tests(other)
            test = tests[-1] if tests else test
        return test.reading(
            exit_code=exit_code,
            sentence=other + "\n" + stderr,
            ended_at_s=self._other_at_s,
            released_at_s=released_at_s,
            server_ahead_s=server_ahead_s,
        )


def parse_complete(text: str, *, ended_at_s: float | None = None) -> Reading:
    """Parse a ``--json`` document.

    Args:
        text: The document. If it contains several tests, the last one will be returned.
        ended_at_s: Time at which the text arrived, in epoch seconds. None if unknown.
    """
    tests = _read_tests(text)
    return (tests[-1] if tests else Account()).reading(sentence=text, ended_at_s=ended_at_s)


def read_any(text: bytes) -> Reading:
    """Parse a test in either format. If the text contains several tests, return the last one."""
    return parse_complete(text.decode(errors="replace"))


def read_all(text: bytes, *, most_count: int | None = None) -> list[Reading]:
    """Parse a file of many tests in either format, for example the log of a persistent server.

    Args:
        text: The file content.
        most_count: Largest number of tests that the caller accepts. Parsing stops after one more,
            so that the caller can detect a file with too many tests.
    """
    decoded = text.decode(errors="replace")
    return [test.reading(sentence="") for test in _read_tests(decoded, most_count)]


# Texts -----------------------------------------------------------------------------------------


def _read_tests(text: str, most_count: int | None = None) -> list[Account]:
    """Return every test in a text. iperf3 starts each document and event at the start of a line."""
    tests: list[Account] = []
    for piece in re.split(r"(?m)^(?=\{)", text):
        if most_count is not None and len(tests) > most_count:
            break
        for value, complete in _values(piece):
            event = value.get("event")
            last = tests[-1] if tests else None
            if event in ("start", "interval", "error", "end") and complete:
                if last is None or last.ended or (event == "start" and last.begun):
                    tests.append(last := Account())
                last.take(event, value.get("data"), None)
            elif "start" in value:
                test = Account.of_document(value, complete)
                if last is None or last.cookie is None or test.cookie != last.cookie:
                    # --json-stream-full-output repeats the last test as a document.
                    tests.append(test)
            elif last is not None and not last.ended and not complete:
                last.truncated = True
    return tests


def _values(piece: str) -> Iterator[tuple[dict[str, object], bool]]:
    """Yield the JSON objects at the start of the text, and whether each object is complete."""
    while piece.startswith("{"):
        try:
            value, end = json.JSONDecoder().raw_decode(piece)
        except json.JSONDecodeError as error:
            rest = _mend(piece[: error.pos])
            if rest is not None:
                yield rest, False
            return
        except (ValueError, RecursionError):
            return
        yield object_of(value), True
        piece = piece[end:].lstrip()


def _mend(text: str) -> dict[str, object] | None:
    """Return the complete parts of an incomplete document, down to the second nesting level.

    At a deeper level the result could contain a part of an interval, which would look complete.
    """
    closers: list[str] = []
    end, missing = 0, ""
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"?|[{}\[\],]', text):
        match token.group():
            case "{":
                closers.append("}")
            case "[":
                closers.append("]")
            case "}" | "]":
                if not closers:
                    return None
                closers.pop()
            case ",":
                pass
            case _:
                continue
        if len(closers) <= 2:
            end = token.start() if token.group() == "," else token.end()
            missing = "".join(reversed(closers))
    try:
        return object_of(json.loads(text[:end] + missing))
    except (ValueError, RecursionError):
        return None
