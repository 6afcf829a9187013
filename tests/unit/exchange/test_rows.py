"""Tests for message fields that later versions add. Writers omit defaults, and readers reject or
ignore them."""

from collections.abc import Mapping
from typing import ClassVar

import pytest

from broadside.exchange.messages import AgentMessage, Message
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.rows import message_row, parse_row

RED = "red"


class Inner(Message):
    """Message in a module that is not in first_fields.json, so all defaults are later fields."""

    name: str
    colour: str = RED


class Outer(Message):
    size: int
    inner: Inner = Inner(name="a")
    more: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner | None] = {}


class Plain(Message):
    """Message without a later field."""

    size: int
    numbers: tuple[int, ...]


class AgentReport(AgentMessage):
    size: int
    inner: Inner


def test_later_field_with_its_default_is_omitted() -> None:
    assert Inner(name="b").to_json() == '{"name":"b"}'
    assert Inner(name="b", colour="blue").to_json() == '{"name":"b","colour":"blue"}'
    assert Outer(size=1).to_json() == '{"size":1}'


def test_later_field_is_omitted_in_nested_values() -> None:
    parts = (Inner(name="b"), Inner(name="c", colour="blue"))
    complete = Outer(size=1, inner=parts[0], more=parts, by_name={"x": parts[0], "y": None})
    assert complete.to_json() == (
        '{"size":1,"inner":{"name":"b"},"more":[{"name":"b"},{"name":"c","colour":"blue"}],'
        '"by_name":{"x":{"name":"b"},"y":null}}'
    )
    assert Outer.model_validate_json(complete.to_json()) == complete


def test_model_dump_has_all_fields() -> None:
    assert Inner(name="b").model_dump() == {"name": "b", "colour": RED}


def test_model_without_later_fields_is_written_unchanged() -> None:
    plain = Plain(size=1, numbers=(1, 2))
    assert plain.to_json() == plain.model_dump_json()


@pytest.mark.parametrize("text", ['{"size":1,"inner":{"name":"a","x":1},"y":[]}'])
def test_unknown_fields_of_a_report_are_ignored(text: str) -> None:
    row = message_row("p", "k", Plain(size=1, numbers=()))
    later = row.__class__(partition_key="p", row_key="k", properties={"json": text})
    assert parse_row(AgentReport, later) == AgentReport(size=1, inner=Inner(name="a"))
    with pytest.raises(RecordUnreadable, match="written by another version"):
        parse_row(Outer, later)


class Grown(Plain):
    """Message with a part that is inherited from a base class."""

    kinds: ClassVar[tuple[str, ...]] = ()
    inner: Inner


def test_a_required_field_is_always_written() -> None:
    assert Grown(size=1, numbers=(), inner=Inner(name="a")).to_json() == (
        '{"size":1,"numbers":[],"inner":{"name":"a"}}'
    )
