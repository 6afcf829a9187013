"""Tests for the answers to snmpd."""

import json
from pathlib import Path

import pytest

from tests.devices.snmp_extension import answer, key_of, value_of

COUNTER = {"type": "counter64", "start": 90, "rate": 5.0, "from_s": 100.0, "turn": 128}


@pytest.mark.parametrize(("now_s", "value"), [(50.0, 90), (100.0, 90), (102.0, 100), (108.0, 2)])
def test_counter_grows_from_its_start_and_wraps(now_s: float, value: int) -> None:
    assert value_of(COUNTER, now_s) == value


@pytest.mark.parametrize(("now_s", "value"), [(0.0, 3), (10.0, 3), (15.0, 3), (20.0, 7)])
def test_value_is_the_last_point_in_the_past(now_s: float, value: int) -> None:
    assert value_of({"points": [[10.0, 3], [20.0, 7]]}, now_s) == value


def test_counts_lines_with_a_text(tmp_path: Path) -> None:
    file = tmp_path / "log"
    lines = {"lines": {"file": str(file), "holding": "up", "first": 2}}
    assert value_of(lines, 0.0) == 2
    file.write_text("fw up\nfw down\nfw up\n")
    assert value_of(lines, 0.0) == 4


def test_getnext_follows_the_numbers_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    figures = {f".1.3.{n}": {"type": "string", "text": str(n)} for n in (10, 9)}
    path.write_text(json.dumps(figures))
    assert key_of(".1.3.9") < key_of(".1.3.10")
    assert answer("get", ".1.3.9", str(path)) == [".1.3.9", "string", "9"]
    assert answer("getnext", ".1.3.9", str(path)) == [".1.3.10", "string", "10"]
    assert answer("getnext", ".1.3.10", str(path)) == ["NONE"]
    assert answer("get", ".1.3.8", str(path)) == ["NONE"]
    assert answer("get", ".1.3.9", str(tmp_path / "missing")) == ["NONE"]
