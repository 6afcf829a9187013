"""Access to user files, with size limits and one-line errors."""

import os
from pathlib import Path
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.imports import BadFile
from broadside.exchange.engines.iperf3_forms import TooLarge, decode, unpack

# About 250 times the largest table of the original test.
TABLE_MAX_BYTES: Final = 32 * 1_048_576
# Limit for an iperf3 file. 64 streams x 1740 s result in 41 MB with -J.
RECORDING_MAX_BYTES: Final = 64 * 1_048_576


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a file of at most ``max_bytes``, also from a device or a pipe.

    Args:
        path: File to read.
        max_bytes: Maximum size of the file.

    Returns:
        The complete content.

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
        actual = formatting.size(size) if size else "too large"
        raise BadFile(
            f"{path}: {actual}, and at most {formatting.size(max_bytes)} can be read; split the "
            "file"
        )
    return data


def read_unpacked(path: Path, max_bytes: int) -> tuple[bytes, bool]:
    """Read a file, and decompress it if it is a gzip archive.

    Args:
        path: File to read.
        max_bytes: Maximum size of the file, and of its content.

    Returns:
        The content, and False if the end of the archive is missing.

    Raises:
        BadFile: The file is missing, unreadable or too large.
    """
    try:
        return unpack(read_bytes(path, max_bytes), max_bytes)
    except TooLarge as error:
        raise BadFile(
            f"{path}: its content is larger than {formatting.size(max_bytes)}; split the file"
        ) from error


def read_text(path: Path) -> str:
    """Read a table as UTF-8 text or as UTF-16 text with a byte order mark, also from gzip.

    Raises:
        BadFile: The file is unreadable, empty, too large, incomplete or of another encoding.
    """
    data, complete = read_unpacked(path, TABLE_MAX_BYTES)
    if not complete:
        raise BadFile(f"{path}: the gzip archive is incomplete; copy the file again")
    if not data.strip():
        raise BadFile(f"{path}: the file is empty; export the table again")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return decode(data)
    if b"\0" in data:
        raise BadFile(f"{path}: this is a binary file, not a table; export the table as CSV")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
        raise BadFile(
            f"{path}: row {row}: byte 0x{data[error.start]:02x} is not UTF-8; save it as "
            "`CSV UTF-8`"
        ) from error
