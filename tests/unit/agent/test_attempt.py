"""Tests for how the agent reads the end of an engine process."""

import json
import random
import resource

from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.attempt import Transcript

lines = st.lists(st.binary(max_size=300).filter(lambda line: b"\n" not in line), max_size=60)


def transcript(lines: list[bytes], max_bytes: int) -> Transcript:
    stored = Transcript(max_bytes)
    for line in lines:
        stored.add(line)
    return stored


@given(lines)
def test_short_output_is_stored_unchanged(lines: list[bytes]) -> None:
    stored = transcript(lines, 2**20)
    assert stored.text() == b"\n".join(lines)
    assert not stored.is_cut


@given(lines, st.integers(1, 5_000))
def test_lines_stay_complete_and_dropped_lines_are_counted(
    lines: list[bytes], max_bytes: int
) -> None:
    stored = transcript(lines, max_bytes)
    parts = stored.text().split(b"\n")
    notes = [at for at, line in enumerate(parts) if line.startswith(b'{"event": "cut"')]
    if not notes:
        assert stored.text() == b"\n".join(lines)
        return
    [at] = notes
    note = json.loads(parts[at])["data"]
    head, tail = parts[:at], parts[at + 1 :]
    assert head + tail == lines[:at] + lines[len(lines) - len(tail) :]
    missing = lines[at : len(lines) - len(tail)]
    assert note["lines_count"] == len(missing)
    assert note["bytes"] == sum(len(line) + 1 for line in missing)


def test_long_output_is_cut_in_the_middle_at_the_limit() -> None:
    lines = [b'{"event":"start"}', *(b"%08d" % n * 20 for n in range(30_000)), b'{"event":"end"}']
    stored = transcript(lines, 2**20)
    text = stored.text()
    assert stored.is_cut
    assert 0.9 * 2**20 < len(text) < 2**20 + 1_000
    assert text.startswith(b'{"event":"start"}\n')
    assert text.endswith(b'\n{"event":"end"}')


def test_full_disk_drops_the_first_lines_and_notes_it() -> None:
    noise = random.Random(7)
    # 0.9 MB after compression.
    lines = [noise.randbytes(300).hex().encode() for _ in range(3_000)]
    stored = Transcript(8 * 2**20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The file size limit is used to get the same error as for a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        for line in lines:
            stored.add(line)
        note, *tail = stored.text().split(b"\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert json.loads(note)["data"]["lines_count"] == len(lines) - len(tail)
    assert tail == lines[-len(tail) :]


def test_discard_drops_the_older_lines() -> None:
    stored = transcript([b"one", b"two"], 2**20)
    stored.discard()
    stored.add(b"three")
    assert stored.text() == b"three"
