"""What a later version adds to a message: left out by default, refused or ignored by readers."""

from collections.abc import Mapping
from typing import ClassVar

import pytest

from broadside.exchange.messages import AgentMessage, Message
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.rows import message_row, parse_row

RED = "red"


class Inner(Message):
    """Of a module that first_fields.json does not know: all its defaults are later ones."""

    name: str
    colour: str = RED


class Outer(Message):
    size: int
    inner: Inner = Inner(name="a")
    more: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner | None] = {}


class Plain(Message):
    """Without a later field."""

    size: int
    numbers: tuple[int, ...]


class Said(AgentMessage):
    size: int
    inner: Inner


def test_a_later_field_is_left_out_while_it_has_its_default() -> None:
    assert Inner(name="b").to_json() == '{"name":"b"}'
    assert Inner(name="b", colour="blue").to_json() == '{"name":"b","colour":"blue"}'
    assert Outer(size=1).to_json() == '{"size":1}'


def test_so_it_is_wherever_the_value_stands() -> None:
    parts = (Inner(name="b"), Inner(name="c", colour="blue"))
    complete = Outer(size=1, inner=parts[0], more=parts, by_name={"x": parts[0], "y": None})
    assert complete.to_json() == (
        '{"size":1,"inner":{"name":"b"},"more":[{"name":"b"},{"name":"c","colour":"blue"}],'
        '"by_name":{"x":{"name":"b"},"y":null}}'
    )
    assert Outer.model_validate_json(complete.to_json()) == complete


def test_what_people_are_shown_has_all_fields() -> None:
    assert Inner(name="b").model_dump() == {"name": "b", "colour": RED}


def test_a_model_without_later_fields_is_written_as_ever() -> None:
    plain = Plain(size=1, numbers=(1, 2))
    assert plain.to_json() == plain.model_dump_json()


@pytest.mark.parametrize("text", ['{"size":1,"inner":{"name":"a","x":1},"y":[]}'])
def test_a_report_is_read_without_what_it_says_besides(text: str) -> None:
    row = message_row("p", "k", Plain(size=1, numbers=()))
    later = row.__class__(partition_key="p", row_key="k", properties={"json": text})
    assert parse_row(Said, later) == Said(size=1, inner=Inner(name="a"))
    with pytest.raises(RecordUnreadable, match="written by another version"):
        parse_row(Outer, later)


class Grown(Plain):
    """A part that is reached by way of a base class's fields only."""

    kinds: ClassVar[tuple[str, ...]] = ()
    inner: Inner


def test_a_required_field_is_always_written() -> None:
    assert Grown(size=1, numbers=(), inner=Inner(name="a")).to_json() == (
        '{"size":1,"numbers":[],"inner":{"name":"a"}}'
    )
