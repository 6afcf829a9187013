"""iperf3's output as text: whole documents, streams of events, and what is left of broken ones.

Pure: nothing here runs a process or reads a clock. Both the agents and the coordinator's importer
read iperf3's output with it. Rules of the reading:

- iperf3's exit code lies. A test is *usable* when it ended, without an ``error``, and bytes came
  through in every flow that was asked for.
- Bad output never raises: it becomes a :class:`Reading` with ``report.error``.
- Output that stops early yields what it holds, with ``report.truncated``.
"""

import json
import re
from collections.abc import Iterator

from broadside.exchange.engines.iperf3_account import Account, object_of
from broadside.exchange.engines.port import Event, Reading


class StreamReader:
    """Reads one engine's standard output line by line, as it arrives.

    ``--json-stream`` output yields events at once. A whole document (``--json``, the only form of
    older versions) yields none: it is gathered, and read by :meth:`finish`.
    """

    def __init__(self) -> None:
        self._test = Account()
        self._other: list[bytes] = []  # lines that are no event
        self._other_at_s: float | None = None  # arrival of the first of them

    def feed(self, line: bytes, at_s: float) -> tuple[Event, ...]:
        """Take one line that arrived at epoch ``at_s``; what it says, or nothing."""
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
            self._test = Account()  # a persistent server's next test
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
        """Everything so far. May be called at any time, also for a look mid-test.

        ``stderr`` gives a reason where the output has none. ``released_at_s`` and
        ``server_ahead_s`` are the start gate's account (:class:`broadside.agent.gate.Release`):
        when data
        may have begun, and how long the server's clock ran before that, which it counts as
        receiving time.
        """
        other = b"\n".join(self._other).decode(errors="replace")
        test = self._test
        if not test.begun:
            tests = _read_tests(other)
            test = tests[-1] if tests else test
        return test.reading(
            exit_code=exit_code,
            words=other + "\n" + stderr,
            ended_at_s=self._other_at_s,
            released_at_s=released_at_s,
            server_ahead_s=server_ahead_s,
        )


def read_whole(text: str, *, ended_at_s: float | None = None) -> Reading:
    """Read one ``--json`` document; ``ended_at_s`` is when its text arrived, where known."""
    tests = _read_tests(text)
    return (tests[-1] if tests else Account()).reading(words=text, ended_at_s=ended_at_s)


def read_any(text: bytes) -> Reading:
    """Read one test in either form. Of several, the last."""
    return read_whole(text.decode(errors="replace"))


def read_all(text: bytes, *, most_count: int | None = None) -> list[Reading]:
    """Read a file of many tests in either form, such as a persistent server's log; no more than
    one over ``most_count``."""
    decoded = text.decode(errors="replace")
    return [test.reading(words="") for test in _read_tests(decoded, most_count)]


# Texts -----------------------------------------------------------------------------------------


def _read_tests(text: str, most_count: int | None = None) -> list[Account]:
    """Every test in a text. iperf3 begins a document or an event at the start of a line."""
    tests: list[Account] = []
    for piece in re.split(r"(?m)^(?=\{)", text):
        if most_count is not None and len(tests) > most_count:
            break
        for value, whole in _values(piece):
            event = value.get("event")
            last = tests[-1] if tests else None
            if event in ("start", "interval", "error", "end") and whole:
                if last is None or last.ended or (event == "start" and last.begun):
                    tests.append(last := Account())
                last.take(event, value.get("data"), None)
            elif "start" in value:
                test = Account.of_document(value, whole)
                if last is None or last.cookie is None or test.cookie != last.cookie:
                    tests.append(test)  # else --json-stream-full-output: said already
            elif last is not None and not last.ended and not whole:
                last.truncated = True
    return tests


def _values(piece: str) -> Iterator[tuple[dict[str, object], bool]]:
    """The JSON objects at the head of a piece of text, and whether each is whole."""
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
    """What a document that stops anywhere holds: its finished parts, down to the second level.

    A level deeper would keep half an interval, and pass it off as a whole one.
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
