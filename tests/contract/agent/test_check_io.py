"""Tests for check that need processes, sockets or real time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from broadside.agent import engine_process
from broadside.exchange.engines.port import Tool
from tests.unit.agent import test_check
from tests.unit.agent.test_check import lines, set_iperf3

# Fixtures.
host = test_check.host

DOES_NOT_STREAM: Final = "iperf 3.16 (cJSON 1.7.15)"


def set_engines(monkeypatch: pytest.MonkeyPatch, programs: Mapping[str, Tool | str]) -> None:
    """Set the programs to be found. Use a text as the reason when a program is missing."""
    monkeypatch.setattr(
        "broadside.agent.installed_engines.find_program",
        lambda program: programs.get(program.name, Tool(argv=(program.name,), version="1.0")),
    )


def test_host_with_all_programs_is_ready(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_engines(monkeypatch, {})
    code, [line] = lines(capsys)
    assert code == 0
    assert line.startswith("ready to be a client agent: iperf3 (3.18, ")
    assert "start gate (built, and holds this iperf3)" in line
    assert "http (vegeta 1.0)" in line


def test_prints_one_line_with_a_fix_per_missing_program(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_iperf3(host, DOES_NOT_STREAM, monkeypatch)
    monkeypatch.setattr(engine_process, "preload_works", lambda gate, binary: False)
    set_engines(monkeypatch, {"vegeta": "vegeta: none here; install it"})
    code, text = lines(capsys)
    assert code == 4
    assert [line.partition(":")[0] for line in text] == ["iperf3", "start gate", "http", "https"]
    assert "3.17 or newer" in text[0]
    assert text[2] == "http: vegeta: none here; install it"


@pytest.mark.parametrize(
    ("engines", "code"), [(["iperf3"], 0), (["iperf3", "http"], 4), (["ftp"], 0)]
)
def test_requires_only_the_named_engines(
    engines: list[str],
    code: int,
    host: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_engines(monkeypatch, {"vegeta": "vegeta: none here; install it"})
    assert lines(capsys, *engines)[0] == code


def test_a_server_needs_no_start_gate(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROADSIDE_AGENT_ROLE", "server")
    monkeypatch.setattr(engine_process, "find_gate", lambda: None)
    assert lines(capsys, "iperf3")[0] == 0
