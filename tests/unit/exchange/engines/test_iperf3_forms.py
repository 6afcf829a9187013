"""Tests for the encodings, archives, logs and wrappers of iperf3's JSON output."""

import gzip
import json

import pytest

from broadside.exchange.engines.iperf3_forms import (
    TooLarge,
    decode,
    find_objects,
    split_sources,
    unpack,
)

ARCHIVE = gzip.compress(b"abc", mtime=0)
STAMP = "2025-11-25T12:00:00.000000000Z "


def objects(text: str) -> list[object]:
    """Return the objects that a reader finds, which skips what is not JSON."""
    matches = []
    positions = find_objects(text)
    at = next(positions, None)
    while at is not None:
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
            matches.append(value)
        except ValueError:
            end = None
        try:
            at = positions.send(end)
        except StopIteration:
            break
    return matches


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", (b"", True)),
        (b"longer than the limit", (b"longer than the limit", True)),
        (ARCHIVE, (b"abc", True)),
        (ARCHIVE + ARCHIVE, (b"abcabc", True)),
        (ARCHIVE + b"\n", (b"abc", True)),
        (ARCHIVE[:-1], (b"abc", False)),
        (ARCHIVE + ARCHIVE[:4], (b"abc", False)),
        (b"\x1f\x8bother", (b"", False)),
    ],
)
def test_unpack_reports_if_the_archive_is_complete(
    data: bytes, expected: tuple[bytes, bool]
) -> None:
    assert unpack(data, 6) == expected


@pytest.mark.parametrize(("data", "size"), [(ARCHIVE, 3), (ARCHIVE + ARCHIVE, 6)])
def test_unpack_accepts_exactly_the_limit(data: bytes, size: int) -> None:
    assert len(unpack(data, size)[0]) == size
    with pytest.raises(TooLarge):
        unpack(data, size - 1)


@pytest.mark.parametrize("text", ['{"title": "Zürich"}', "[{}]", "{}"])
@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        ("", "utf-8"),
        ("\ufeff", "utf-8"),
        ("", "utf-16-le"),
        ("\ufeff", "utf-16-le"),
        ("", "utf-16-be"),
        ("\ufeff", "utf-16-be"),
        ("", "utf-32-le"),
        ("\ufeff", "utf-32-le"),
        ("", "utf-32-be"),
        ("\ufeff", "utf-32-be"),
    ],
)
def test_decode_needs_no_byte_order_mark(mark: str, encoding: str, text: str) -> None:
    assert decode((mark + text).encode(encoding)) == text


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", ""), (b'{"a": "\xfc"}', '{"a": "\ufffd"}'), (b"\xff\xfe{\x00}", "{\ufffd")],
)
def test_decode_replaces_invalid_bytes(data: bytes, expected: str) -> None:
    assert decode(data) == expected


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        STAMP,
        "[pod/client-0/iperf3] ",
        "[pod/client-0/iperf3] " + STAMP,
        "client-1  | " + STAMP,
        "2025-11-25T12:00:00.1+01:00 stderr F ",
        "[2025-11-25T12:00:00+0000] ",
        "Tue Nov 25 12:00:00 2025 ",
        "Nov  5 12:00:00 host iperf3[123]: ",
    ],
)
def test_prefixes_are_removed_and_indents_are_not(prefix: str) -> None:
    lines = ["{", '  "start": {},', '\t"2025-11-25T12:00:00Z ": 1', "}"]
    assert split_sources("\r\n".join(prefix + line for line in lines)) == ["\n".join(lines)]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_line_feeds_and_carriage_returns_end_a_line(mark: str) -> None:
    text = f'{{"title": "a{mark}2025-11-25T12:00:00Z b"}}'
    assert split_sources(f"{STAMP}{text}\r\n{STAMP}next\r") == [f"{text}\nnext"]
    assert split_sources(text) == [text]


def test_pods_are_separate_and_in_order() -> None:
    log = "[pod/a/c] {\n[pod/b/c] [\n[pod/a/c] }\n[pod/a/d] 1\n[pod/b/c] ]\n"
    assert split_sources(log) == ["{\n}", "[\n]", "1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("\x1b[1;32m{\x1b[0m}\x1b[K", "{}"),
        ('{"a": -nan, "b":inf, "c": -Infinity}', '{"a": null, "b":null, "c": null}'),
        ('{"name": 1, "b": "info"}', '{"name": 1, "b": "info"}'),
    ],
)
def test_colours_and_missing_numbers_become_json(text: str, expected: str) -> None:
    assert split_sources(text) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("[]", []),
        ("iperf3: error - unable to connect", []),
        ('[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ('[\n\t{"a": 1},\n\t{"a": 2}\n]\n', [{"a": 1}, {"a": 2}]),
        ('{"a": 1}{"a": 2} {"a": 3}', [{"a": 1}, {"a": 2}, {"a": 3}]),
        # An object inside of an object is no other object.
        ('{"a":\n{"start": 1}}\n', [{"a": {"start": 1}}]),
        # In a line of text, iperf3's own documents and events are found.
        ('INFO {"start": 1} INFO {"event":"end"} {x}', [{"start": 1}, {"event": "end"}]),
        # A cut object does not hide the next one.
        ('{"a": 1,\n{"a": 2}', [{"a": 2}]),
        ('{"a": 1} {cut\n{"a": 2}', [{"a": 1}, {"a": 2}]),
    ],
)
def test_objects_are_read_in_order(text: str, expected: list[object]) -> None:
    assert objects(text) == expected
