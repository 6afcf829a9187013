"""Reader of iperf3 output files, as JSON or JSON stream, in every encoding and log format.

Versions from 3.9 are tested. Older versions are read as far as they contain the values. A file can
contain one test, or all tests of a server process. A file without a test is imported as
*unreadable* with the reason. Only a file that cannot be opened is rejected.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_requests import (
    RECORDINGS_MAX_COUNT,
    Note,
    Recording,
    RecordingState,
)
from broadside.coordinator.imports.uploaded_files import RECORDING_MAX_BYTES, read_unpacked
from broadside.exchange.engines.iperf3_account import Version, parse_version
from broadside.exchange.engines.iperf3_forms import decode
from broadside.exchange.engines.iperf3_text import read_all, read_any
from broadside.exchange.engines.port import EngineResult
from broadside.exchange.messages import Side

# Year 2000. An earlier timestamp means that the clock was not set.
_STAMP_MIN_S: Final = 946_684_800.0
# Year 2100.
_STAMP_MAX_S: Final = 4_102_444_800.0
_NOTES_MAX_COUNT: Final = 100
# The first version of iperf3. Its JSON is the oldest that can be read.
_OLDEST: Final = Version(3, 0)
# Error that the parser reports for text without any result.
NO_RESULT: Final = "iperf3 gave no result"


def read_files(
    paths: Sequence[Path], advance: Callable[[int], object] = lambda _: None
) -> tuple[tuple[Recording, ...], tuple[Note, ...]]:
    """Read all tests of all files, in the given order, with notes on parts that were not read.

    Args:
        paths: Files of iperf3's output.
        advance: Function that is called with 1 after each file.

    Returns:
        Recordings, also of unreadable files, and notes.

    Raises:
        BadFile: A file cannot be read, or there are too many tests.
    """
    notes: list[Note] = []
    recordings = []
    for path in paths:
        recordings += _read(path, notes)
        advance(1)
    if len(recordings) > RECORDINGS_MAX_COUNT:
        raise BadFile(
            f"{len(recordings)} tests in {len(paths)} files, and at most {RECORDINGS_MAX_COUNT} "
            "make one run; import fewer at once"
        )
    return tuple(recordings), tuple(notes[:_NOTES_MAX_COUNT])


def _read(path: Path, notes: list[Note]) -> list[Recording]:
    """Return the tests of a file, and add notes about the file."""
    if path.is_dir():
        raise BadFile(f"{path}: a folder; name its files: {path}/*.json")
    text, complete = read_unpacked(path, RECORDING_MAX_BYTES)
    written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    readings = read_all(text, most_count=RECORDINGS_MAX_COUNT)
    tests = [reading for reading in readings if not _is_farewell(reading)] or readings
    if not tests:
        return [_without_test(path, written_at, text)]
    notes += _file_notes(path, decode(text), readings, complete)
    return [_recording(path, index, reading, written_at) for index, reading in enumerate(tests)]


def _file_notes(
    path: Path, text: str, readings: Sequence[EngineResult], complete: bool
) -> Iterator[Note]:
    """Yield notes about parts of a file that could not be used."""
    if not complete:
        yield Note(
            id="archive-cut",
            sentence=f"{path.name}: the gzip archive is incomplete, so its last part is missing.",
            next_step="Copy the file again, then import it",
        )
    sides = {reading.side for reading in readings}
    if '"server_output_text"' in text and Side.SERVER not in sides:
        yield Note(
            id="server-text",
            sentence=f"{path.name} contains the server's output as text, with rounded values. The "
            "receiver's seconds were not read from it.",
            next_step="Start the iperf3 server with --json too. The client with "
            "--get-server-output then has the exact values",
        )


def _is_farewell(reading: EngineResult) -> bool:
    """Return True for the last message of a persistent server, which is not part of a test."""
    error = reading.report.error or ""
    return reading.side is None and error.startswith("interrupt - the server has terminated")


def _without_test(path: Path, written_at: datetime, text: bytes) -> Recording:
    """Return a recording for a file without a test, with the reason."""
    error, plain = (read_any(text).report.error if text else None), decode(text)
    state, reason = RecordingState.UNREADABLE, "the file is empty"
    if error is not None and error != NO_RESULT:
        state, reason = RecordingState.FAILED, error
    elif plain.lstrip().startswith("Usage: iperf3"):
        state, reason = RecordingState.FAILED, "iperf3 printed its usage: an option was invalid"
    elif "[ ID] Interval" in plain:
        reason = (
            "the text output of iperf3, which is not read; run iperf3 with --json or --json-stream"
        )
    elif text:
        reason = (
            "no test in it; it is not iperf3's --json or --json-stream output. It begins with "
            f"{' '.join(plain.split())[:40]!r}"
        )
    return Recording(file=str(path), state=state, reason=_short(reason), started_at=written_at)


def _short(reason: str) -> str:
    return " ".join(reason.split())[:500]


def _recording(path: Path, index: int, reading: EngineResult, written_at: datetime) -> Recording:
    state, reason = _state(reading)
    stamp_s = reading.started_at_s
    known = stamp_s is not None and _STAMP_MIN_S <= stamp_s <= _STAMP_MAX_S
    return Recording(
        file=str(path),
        test_index=index,
        state=state,
        reason=None if reason is None else _short(reason),
        side=reading.side,
        report=reading.report,
        started_at=datetime.fromtimestamp(stamp_s, UTC) if known and stamp_s else written_at,
        first_data_at_s=reading.first_data_at_s if known else None,
        start_basis=reading.start_basis,
        packed=Recording.pack(reading.intervals),
    )


def _state(reading: EngineResult) -> tuple[RecordingState, str | None]:
    """Return the state of the test and its reason. An error that iperf3 reports comes first."""
    report = reading.report
    version = parse_version(f"iperf {report.version}") if report.version else None
    if version is not None and version < _OLDEST:
        return RecordingState.UNSUPPORTED, (
            f"written by iperf {version}; {_OLDEST} is the oldest whose results can be read"
        )
    if report.error is not None:
        refused = "Connection refused" in report.error or "server is busy" in report.error
        return RecordingState.REFUSED if refused else RecordingState.FAILED, report.error
    if report.truncated:
        return RecordingState.TRUNCATED, "the output stops before the test's end"
    if not reading.usable:
        return RecordingState.FAILED, "a requested flow carried no bytes"
    return RecordingState.MEASURED, None
