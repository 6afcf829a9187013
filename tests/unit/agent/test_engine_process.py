"""Tests for the split of process output into lines."""

from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.engine_process import LINE_MAX_BYTES, LineCutter


@given(st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\xff", b"\n")), max_size=12))
def test_lines_and_arrival_times_do_not_depend_on_chunks(
    chunks: list[bytes],
) -> None:
    cutter = LineCutter()
    lines = [
        pair for at_s, chunk in enumerate(chunks) for pair in cutter.cut(chunk, float(at_s))
    ] + list(cutter.flush())
    text = b"".join(chunks)
    assert b"\n".join(line for line, _ in lines) == text.removesuffix(b"\n")
    arrivals = [float(at_s) for at_s, chunk in enumerate(chunks) for _ in chunk]
    at = 0
    for line, at_s in lines:
        assert at_s == arrivals[at]
        at += len(line) + 1


def test_a_cutter_is_empty_after_its_flush() -> None:
    cutter = LineCutter()
    assert list(cutter.cut(b"a\nb", 1.0)) == [(b"a", 1.0)]
    assert list(cutter.flush()) == [(b"b", 1.0)]
    assert list(cutter.flush()) == []


def test_endless_line_is_cut() -> None:
    cutter = LineCutter()
    piece = b"x" * 2**20
    cut = [len(line) for _ in range(40) for line, _ in cutter.cut(piece, 1.0)]
    assert cut == [LINE_MAX_BYTES + 2**20] * 2
