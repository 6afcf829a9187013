"""Forms in which users have iperf3's JSON output: encodings, archives, logs and wrappers.

This module converts the bytes of a file to texts that contain the JSON at the start of a line. It
is pure and does not interpret the JSON.
"""

import re
import zlib
from collections.abc import Generator
from typing import Final

# Encoding by byte order mark. UTF-32 comes first, because its mark starts with that of UTF-16.
_MARKS: Final = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
)
_GZIP_MARK: Final = b"\x1f\x8b"
_TIME: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
# Prefixes of log lines. The group "source" separates the lines of several pods or containers.
_PREFIXES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # kubectl logs --prefix
        r"(?P<source>\[pod/[^\]\s]+\]) ",
        # docker compose logs
        r"(?P<source>[\w.-]+)\s+\| ?",
        # stern, and journalctl or syslog
        r"(?P<source>[A-Z][a-z]{2}\s+\d+ \d\d:\d\d:\d\d \S+ [\w./-]+(?:\[\d+\])?:) ?",
        # containerd and CRI-O
        rf"{_TIME} (?:stdout|stderr) [FP] ",
        # kubectl logs --timestamps, docker logs --timestamps, iperf3 --timestamps, ts
        rf"\[?{_TIME}\]? ?",
        # iperf3 --timestamps with the default format
        r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4} ",
    )
)
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
# Terminal colours and cursor movements.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# iperf3 before 3.10 writes a number without a value in this form, which is not JSON.
_NOT_FINITE: Final = re.compile(r"(:\s*)-?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)


class TooLarge(ValueError):
    """The content of an archive is larger than the limit."""


def unpack(data: bytes, max_bytes: int) -> tuple[bytes, bool]:
    """Decompress gzip data. Other data is returned as it is.

    Args:
        data: The file content.
        max_bytes: Largest size of the result.

    Returns:
        The content, and False if the end of the archive is missing.

    Raises:
        TooLarge: The content is larger than ``max_bytes``.
    """
    complete, size = True, 0
    parts: list[bytes] = []
    if not data.startswith(_GZIP_MARK):
        return data, True
    while data.startswith(_GZIP_MARK):
        decoder = zlib.decompressobj(wbits=31)
        try:
            part = decoder.decompress(data, max_bytes - size + 1)
        except zlib.error:
            return b"".join(parts), False
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise TooLarge
        complete, data = decoder.eof, decoder.unused_data
    return b"".join(parts), complete


def decode(data: bytes) -> str:
    """Decode text in UTF-8, UTF-16 or UTF-32, with or without a byte order mark.

    Bytes that are invalid in the encoding are replaced.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    head = data[:64]
    # JSON starts with ASCII, so three of four bytes are 0 in UTF-32 and one of two in UTF-16.
    if len(head) >= 4 and 0 in head:
        if not any(head[1::4] + head[2::4] + head[3::4]):
            return data.decode("utf-32-le", errors="replace")
        if not any(head[0::4] + head[1::4] + head[2::4]):
            return data.decode("utf-32-be", errors="replace")
        if not any(head[1::2]):
            return data.decode("utf-16-le", errors="replace")
        if not any(head[0::2]):
            return data.decode("utf-16-be", errors="replace")
    return data.decode(errors="replace")


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, without their ends.

    Unlike ``str.splitlines``, other separators such as U+2028 do not end a line. JSON strings and
    cells of tables can contain them.
    """
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def split_sources(text: str) -> list[str]:
    """Return the text of each pod or container in a log, without the prefixes of its lines.

    Args:
        text: Text of one file.

    Returns:
        At least one text. The lines of a text have the order of the file.
    """
    text = _NOT_FINITE.sub(r"\1null", _ESCAPES.sub("", text))
    by_source: dict[str, list[str]] = {}
    for line in split_lines(text):
        source, rest = _split_line(line)
        by_source.setdefault(source, []).append(rest)
    return ["\n".join(lines) for lines in by_source.values()] or [""]


def _split_line(line: str) -> tuple[str, str]:
    """Return the source and the line without prefixes. A line can have two of them."""
    source = ""
    for _ in range(2):
        # Most lines are JSON.
        if not line or line[0] in ' \t{}"':
            break
        for prefix in _PREFIXES:
            if match := prefix.match(line):
                source += match.groupdict().get("source") or ""
                line = line[match.end() :]
                break
        else:
            break
    return source, line


_OBJECT: Final = re.compile(r'(?m)^[\s\[,\]]*(?=\{)|(?=\{\s*"(?:event|start)"\s*:)')
_NEXT: Final = re.compile(r"[\s\[,\]]*(?=\{)")


def find_objects(text: str) -> Generator[int, int | None, None]:
    """Yield the positions at which a JSON object can start, in order.

    Send the end of an object to the generator to continue there.

    Yields:
        Position after the match, at which to parse. Send None if no object begins there.
    """
    at = 0
    while match := _OBJECT.search(text, at):
        end = yield match.end()
        if end is None:
            at = match.end() + 1
            continue
        # Objects can follow each other in one line.
        while adjacent := _NEXT.match(text, end):
            end = yield adjacent.end()
            if end is None:
                end = adjacent.end() + 1
                break
        at = end
