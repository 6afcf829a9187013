"""A short output is kept to the byte; of a long one both ends, with the gap said."""

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.transcript import Transcript

lines = st.lists(st.binary(max_size=300).filter(lambda line: b"\n" not in line), max_size=60)


def transcript(lines: list[bytes], max_bytes: int) -> Transcript:
    kept = Transcript(max_bytes)
    for line in lines:
        kept.add(line)
    return kept


@given(lines)
def test_a_short_output_is_kept_to_the_byte(lines: list[bytes]) -> None:
    kept = transcript(lines, 2**20)
    assert kept.text() == b"\n".join(lines)
    assert not kept.is_cut


@given(lines, st.integers(1, 5_000))
def test_no_line_is_cut_and_the_missing_ones_are_counted(
    lines: list[bytes], max_bytes: int
) -> None:
    kept = transcript(lines, max_bytes)
    said = kept.text().split(b"\n")
    notes = [at for at, line in enumerate(said) if line.startswith(b'{"event": "cut"')]
    if not notes:
        assert kept.text() == b"\n".join(lines)
        return
    [at] = notes
    note = json.loads(said[at])["data"]
    head, tail = said[:at], said[at + 1 :]
    assert head + tail == lines[:at] + lines[len(lines) - len(tail) :]
    missing = lines[at : len(lines) - len(tail)]
    assert note["lines_count"] == len(missing)
    assert note["bytes"] == sum(len(line) + 1 for line in missing)


def test_a_long_output_keeps_its_bound_its_start_and_its_end() -> None:
    lines = [b'{"event":"start"}', *(b"%08d" % n * 20 for n in range(30_000)), b'{"event":"end"}']
    kept = transcript(lines, 2**20)
    said = kept.text()
    assert kept.is_cut
    assert 0.9 * 2**20 < len(said) < 2**20 + 1_000
    assert said.startswith(b'{"event":"start"}\n')
    assert said.endswith(b'\n{"event":"end"}')
