"""Cursors come back as they went out, and nothing else is taken for one."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.views.cursors import BadCursor, make_cursor, parse_cursor

PARTS = st.lists(st.from_regex(r"[A-Za-z0-9._-]{1,50}", fullmatch=True), min_size=1, max_size=3)


@given(PARTS)
def test_a_cursor_comes_back(parts: list[str]) -> None:
    assert parse_cursor(make_cursor(*parts), len(parts)) == parts


@given(st.text(max_size=80))
@example("LR")  # as LQ, with a bit that means nothing
def test_anything_else_is_a_bad_cursor(text: str) -> None:
    try:
        (part,) = parse_cursor(text, 1)
    except BadCursor as error:
        assert "\n" not in str(error)
    else:
        assert make_cursor(part) == text.rstrip("=")


@pytest.mark.parametrize("parts", [("a/b",), ("a#",), ("",), ("a", "b")])
def test_what_no_key_can_hold_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(BadCursor):
        parse_cursor(make_cursor(*parts), 1)
