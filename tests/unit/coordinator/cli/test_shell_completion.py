"""Tests for completion of fields and values, also when bash splits words at ``=``."""

import pytest

from broadside.coordinator.cli.options import complete_field
from broadside.coordinator.cli.shell_completion import join_assignments, read_words
from broadside.coordinator.scenarios import known_values, names, settable_fields


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        (["launch", "--set", "scale", "=", "2"], ["launch", "--set", "scale=2"]),
        (["--set", "scale", "="], ["--set", "scale="]),
        (["--set", "=", "scale", "=", "2"], ["--set=scale=2"]),
        (["a", "b"], ["a", "b"]),
        (["="], ["="]),
    ],
)
def test_parts_of_an_assignment_are_joined(words: list[str], joined: list[str]) -> None:
    assert join_assignments(words) == joined


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("launch --set scale =", "scale="),
        ("launch --set scale = 2", "scale="),
        ("launch --set = scale = 2", "scale="),
        ("launch --set = sca", ""),
        ("launch --set sca", ""),
        ("launch\n--reason\n'a b'\n", ""),
    ],
)
def test_bash_preserves_all_before_the_last_part(words: str, kept: str) -> None:
    count = len(words.split("\n" if "\n" in words else " "))
    joined, before = read_words({"COMP_WORDS": words, "COMP_CWORD": str(count - 1)})
    assert before == kept
    assert joined[0] == "launch"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("align_to_period", ["true", "false"]),
        ("traffic.protocol", ["tcp", "udp", "sctp"]),
        ("protocol", ["tcp", "udp", "sctp"]),
        ("objective.stop", ["when-certain"]),
        ("traffic.probe", ["udp", "off"]),
        ("scenario", names()),
        ("burst_s", []),
        ("no.such.field", []),
    ],
)
def test_values_of_a_field(field: str, values: list[str]) -> None:
    assert known_values(field) == values


@pytest.mark.parametrize("field", settable_fields())
def test_every_field_is_completed(field: str) -> None:
    completed = complete_field(field)
    assert any(text.startswith(f"{field}=") for text in completed)
    for value in known_values(field):
        assert f"{field}={value}" in complete_field(f"{field}=")
