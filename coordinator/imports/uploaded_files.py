"""Access to user files, with size limits and one-line errors."""

import csv
import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.imports import BadFile

# About 250 times the largest table of the original test.
TABLE_MAX_BYTES: Final = 32 * 1_048_576
# Limit for an iperf3 file. 64 streams x 1740 s result in 41 MB with -J.
RECORDING_MAX_BYTES: Final = 64 * 1_048_576

_PIECE_BYTES: Final = 1_048_576


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a file of at most ``max_bytes``, also from a device or a pipe.

    Args:
        path: File to read.
        max_bytes: Maximum size of the file.

    Raises:
        BadFile: The file is missing, unreadable or too large.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = b"" if size > max_bytes else file.read(max_bytes + 1)
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}; name a readable file") from error
    if size > max_bytes or len(data) > max_bytes:
        held = formatting.size(size) if size else "too large"
        raise BadFile(
            f"{path}: {held}, and at most {formatting.size(max_bytes)} are read at once; "
            "split it and import the parts"
        )
    return data


def read_text(path: Path) -> str:
    """Read a table as UTF-8 text, with or without a byte order mark.

    Raises:
        BadFile: The file is unreadable, empty, too large or not UTF-8.
    """
    data = read_bytes(path, TABLE_MAX_BYTES)
    if not data.strip():
        raise BadFile(f"{path}: the file is empty; export the table again")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadFile(f"{path}: UTF-16 text, not UTF-8; save it as `CSV UTF-8`")
    zero = data.find(b"\0")
    if zero >= 0:
        raise BadFile(
            f"{path}: row {_row(data, zero)}: a zero byte; this is a binary file, not a table: "
            "export the table as CSV"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(
            f"{path}: row {_row(data, error.start)}: byte 0x{data[error.start]:02x} is not UTF-8; "
            "save it as `CSV UTF-8`"
        ) from error


def wrong_cell(name: str, number: int, column: str, value: str, reason: str) -> BadFile:
    """Return the error for a wrong cell.

    Args:
        name: File name.
        number: Row number.
        column: Column name.
        value: Cell text.
        reason: Why the cell is wrong, and how to fix it.
    """
    return BadFile(f"{name}: row {number}, {column}: {value[:60]!r}: {reason}")


def _row(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def read_rows(text: str, *, name: str, header_word: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table with their line numbers. Cells have no surrounding white space.

    The separator is the comma, semicolon or tab that is most frequent in the header line.

    Args:
        text: The file's content.
        name: File name for error messages.
        header_word: Word that identifies the header line. If no line has it, the first line is the
            header line.

    Raises:
        BadFile: The text is not CSV.
    """
    unified = text.replace("\r\n", "\n").replace("\r", "\n")
    wanted = header_word.lower()
    lines = list(itertools.islice(io.StringIO(unified), 100))
    head = next(
        (line for line in lines if wanted in line.lower()),
        next((line for line in lines if line.strip()), ""),
    )
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO(unified), delimiter=delimiter, strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise BadFile(
                f"{name}: row {reader.line_num}: not CSV ({error}); export the table again"
            ) from error
        yield reader.line_num, [cell.strip() for cell in cells]
