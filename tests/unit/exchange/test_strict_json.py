"""Unit tests for the strict parser of untrusted JSON."""

import json

import pytest

from broadside.exchange.strict_json import (
    DEPTH_MAX_COUNT,
    DuplicateNames,
    TooMuch,
    bounded_json,
    lone_surrogate,
    parse_strict_json,
    walk,
)

BYTES = 10_000


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("text", ["NaN", "[1, -Infinity]", '{"a": Infinity}'])
def test_constants_that_are_not_json_are_rejected(text: str) -> None:
    with pytest.raises(json.JSONDecodeError, match="is not a JSON value"):
        parse_strict_json(text, BYTES)


def test_all_duplicate_names_have_their_path_and_the_last_value_is_kept() -> None:
    text = '{"a": [1, {"b": 1, "b": 2}], "c": {"d": {}, "d": 3}, "e": 1, "e": 2}'
    with pytest.raises(DuplicateNames) as caught:
        parse_strict_json(text, BYTES)
    assert set(caught.value.paths) == {("a", 1, "b"), ("c", "d"), ("e",)}
    assert caught.value.value == {"a": [1, {"b": 2}], "c": {"d": 3}, "e": 2}


def test_equal_names_in_different_objects_are_allowed() -> None:
    assert parse_strict_json('[{"a": 1}, {"a": {"a": 2}}]', BYTES) == [{"a": 1}, {"a": {"a": 2}}]


def test_size_is_limited_before_the_text_is_decoded() -> None:
    assert bounded_json(b"[1, 2]", 6) == "[1, 2]"
    with pytest.raises(TooMuch, match="7 bytes of JSON; the limit is 6"):
        bounded_json(b"[1, 2] ", 6)
    # Not UTF-8, but the size is checked first.
    with pytest.raises(TooMuch):
        bounded_json(b"\xff" * 7, 6)


def test_deepest_nesting_is_accepted_and_one_more_is_not() -> None:
    assert parse_strict_json(nested(DEPTH_MAX_COUNT), BYTES)
    with pytest.raises(TooMuch, match=f"nested {DEPTH_MAX_COUNT + 1} levels"):
        parse_strict_json(nested(DEPTH_MAX_COUNT + 1), BYTES)


def test_brackets_in_strings_and_in_sequence_are_not_nesting() -> None:
    many = DEPTH_MAX_COUNT * 2
    brackets = ["[" * many, '\\"{' * many]
    assert parse_strict_json(json.dumps(brackets), BYTES) == brackets
    assert len(parse_strict_json(f"[{','.join(['[]'] * many)}]", BYTES)) == many


def test_members_of_each_object_are_limited() -> None:
    text = '{"a": 1, "b": {"c": 1, "d": 2, "e": 3}}'
    assert parse_strict_json(text, BYTES, names_max_count=3)["b"]["e"] == 3
    with pytest.raises(TooMuch, match="an object of 3 members; the limit is 2"):
        parse_strict_json(text, BYTES, names_max_count=2)


def test_walk_yields_all_members_and_the_upper_levels_first() -> None:
    visited = [(path, member) for path, _, member in walk({"a": [1, {"b": 2}], "c": 3})]
    assert visited == [
        (("a",), [1, {"b": 2}]),
        (("c",), 3),
        (("a", 0), 1),
        (("a", 1), {"b": 2}),
        (("a", 1, "b"), 2),
    ]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (r'"\ud800"', "text"),
        (r'{"a": ["x", {"b": "\udfff"}]}', "a[1].b"),
        (r'{"a": {"\ud800": 1}}', "a name in a"),
        (r'{"\ud800": 1}', "a name in it"),
        # A pair of surrogates is one character.
        (r'{"a": "\ud83d\ude00", "b": [1, null, "é"]}', None),
    ],
)
def test_path_of_a_lone_surrogate(text: str, path: str | None) -> None:
    assert lone_surrogate(json.loads(text)) == path
