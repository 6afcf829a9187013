"""Tests for results as one document."""

import json

import pytest

from broadside.coordinator.cli.document_output import print_document


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_characters_are_printed_as_they_are(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_document({"lag": "10 µs ± 1"}, output)
    assert "10 µs ± 1" in capsys.readouterr().out


def test_json_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"a": None}, "json")
    assert json.loads(capsys.readouterr().out) == {"a": None}
