"""Parser for the text output of iperf3.

It supports JSON documents, event streams and incomplete output. This module is pure: it starts no
process and reads no clock. The agents and the importer of the coordinator use it. Rules:

- The exit code of iperf3 is not reliable. A test is *usable* if it ended without an ``error`` and
  every requested flow carried bytes.
- Invalid output never raises. It results in a :class:`EngineResult` with ``report.error``.
- Incomplete output results in a :class:`EngineResult` of the available part, with
  ``report.truncated``.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

from broadside.exchange.engines.iperf3_account import EVENTS, Account, object_of
from broadside.exchange.engines.iperf3_forms import decode, find_objects, split_sources
from broadside.exchange.engines.port import EngineEvent, EngineResult, Reader


class StreamReader(Reader):
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

    def feed(self, line: bytes, at_s: float) -> tuple[EngineEvent, ...]:
        """Parse a line of standard output.

        Args:
            line: The line, without the line break.
            at_s: Arrival of the line, in epoch seconds.

        Returns:
            Events of the line. Empty if it is not JSON or has no event.
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

    def finish(
        self,
        exit_code: int | None = None,
        *,
        stderr: str = "",
        released_at_s: float | None = None,
        server_ahead_s: float = 0.0,
    ) -> EngineResult:
        """Return everything that was read so far. It can be called at any time, also during a test.

        Args:
            exit_code: The process exit code. None if it is unknown.
            stderr: Standard error. It supplies the reason if the output contains no error.
            released_at_s: Time at which the start gate released the data, in epoch seconds
                (:class:`broadside.agent.gate.Release`). None without a gate.
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


def parse_complete(text: str, *, ended_at_s: float | None = None) -> EngineResult:
    """Parse a ``--json`` document.

    Args:
        text: The document. If it contains several tests, the last one will be returned.
        ended_at_s: Time at which the text arrived, in epoch seconds. None if unknown.

    Returns:
        The reading of the test. Without a test, it contains the text as the error.
    """
    tests = _read_tests(text)
    return (tests[-1] if tests else Account()).reading(sentence=text, ended_at_s=ended_at_s)


def read_any(text: bytes) -> EngineResult:
    """Parse a test in any form. If the text contains several tests, return the last one."""
    return parse_complete(decode(text))


def read_all(text: bytes, *, most_count: int | None = None) -> list[EngineResult]:
    """Parse a file of many tests in any form, for example the log of a persistent server.

    The results of the server that a client has received (``--get-server-output``) are another test
    with the same cookie.

    Args:
        text: The file content.
        most_count: Largest number of tests that the caller accepts. Parsing stops after one more,
            so that the caller can detect a file with too many tests. None has no limit.

    Returns:
        One reading for each end that is recorded, in file order.
    """
    tests: list[Account] = []
    for source in split_sources(decode(text)):
        tests += _read_tests(source, most_count)
    ends = [end for test in tests for end in (test, test.server_output) if end is not None]
    return [test.reading(sentence="") for test in ends]


# Texts -----------------------------------------------------------------------------------------


def _read_tests(text: str, most_count: int | None = None) -> list[Account]:
    """Return every test in a text, as documents, events, or members of another JSON object."""
    tests: list[Account] = []
    for outer, complete in _values(text):
        for value in _unwrap(outer):
            if most_count is not None and len(tests) > most_count:
                return tests
            _add_value(tests, value, complete)
    return tests


def _add_value(tests: list[Account], value: dict[str, object], complete: bool) -> None:
    """Add an event or a document to the tests."""
    event = value.get("event")
    last = tests[-1] if tests else None
    if event in EVENTS and complete:
        if last is None or (event == "start" and last.begun) or _is_over(last, event):
            tests.append(last := Account())
        last.take(event, value.get("data"), None)
    elif isinstance(value.get("start"), dict):
        test = Account.of_document(value, complete)
        if (
            last is None
            or last.cookie is None
            or (test.cookie, test.side) != (last.cookie, last.side)
        ):
            # --json-stream-full-output repeats the last test as a document.
            tests.append(test)
        elif last.server_output is None:
            last.server_output = test.server_output
    elif last is not None and not last.ended and not complete:
        last.truncated = True


def _is_over(test: Account, event: object) -> bool:
    """Return True if the event belongs to another test. The server's output can come last."""
    return test.ended and event != "server_output_json"


# Nesting level up to which tests are searched in the JSON of another tool.
_DEPTH_MAX: Final = 5
# Members of an iperf3 document with their types. They contain no other test. A stream has ``start``
# and ``end`` too, as numbers.
_DOCUMENT_MEMBERS: Final = {"start": dict, "intervals": list, "end": dict, "error": str}


def _unwrap(value: object, depth: int = 0) -> Iterator[dict[str, object]]:
    """Yield the iperf3 objects in a value, which can be a result of another tool.

    Ansible stores the output as text (``stdout``), and Docker stores each line (``log``).
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        for inner, _ in _values(value):
            yield from _unwrap(inner, depth + 1)
    elif isinstance(value, dict) and (
        (not depth and not any(isinstance(member, dict | list | str) for member in value.values()))
        or value.get("event") in EVENTS
        or any(isinstance(value.get(key), kind) for key, kind in _DOCUMENT_MEMBERS.items())
    ):
        yield value
    elif isinstance(value, dict | list) and depth < _DEPTH_MAX:
        for member in value.values() if isinstance(value, dict) else value:
            yield from _unwrap(member, depth + 1)


def _values(text: str) -> Iterator[tuple[dict[str, object], bool]]:
    """Yield the JSON objects of a text, and whether each object is complete."""
    decoder = json.JSONDecoder(strict=False)
    objects = find_objects(text)
    at: int | None = next(objects, None)
    while at is not None:
        end: int | None = None
        try:
            value, end = decoder.raw_decode(text, at)
            yield object_of(value), True
        except json.JSONDecodeError as error:
            # The next object that starts in column 1 is another one.
            following = text.find("\n{", at)
            stop = error.pos if following < 0 else min(error.pos, following)
            rest = _mend(text[at:stop])
            if rest is not None:
                yield rest, False
                end = stop
        except (ValueError, RecursionError):
            pass
        try:
            at = objects.send(end)
        except StopIteration:
            at = None


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
