"""Tests for ``broadside agent --check``, using fake programs."""

from pathlib import Path
from typing import Final

import pytest

from broadside.agent import check, engine_process
from broadside.agent.check import READY, main

STREAMS: Final = "iperf 3.18 (cJSON 1.7.15)"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up a client with an iperf3 that can stream and a start gate for it."""
    monkeypatch.setenv("BROADSIDE_AGENT_ROLE", "client")
    monkeypatch.setattr(engine_process, "preload_works", lambda gate, binary: True)
    monkeypatch.setattr(engine_process, "find_gate", lambda: tmp_path / "libgate.so")
    set_iperf3(tmp_path, STREAMS, monkeypatch)
    return tmp_path


def set_iperf3(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "iperf3"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("BROADSIDE_AGENT_IPERF3", str(program))


def lines(capsys: pytest.CaptureFixture[str], *engines: str) -> tuple[int, list[str]]:
    code = main([READY, *engines])
    return code, capsys.readouterr().out.splitlines()


def test_unknown_engine_is_reported_with_the_known_ones(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines(capsys, "gopher") == (
        4,
        ["gopher: unknown engine; use one of connections, ftp, http, https, iperf3"],
    )


def test_missing_iperf3_is_reported_once(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROADSIDE_AGENT_IPERF3", str(host / "absent"))
    code, [line] = lines(capsys, "iperf3")
    assert code == 4
    assert line.startswith(f"iperf3: none at {host / 'absent'}; ")


def test_invalid_setting_exits_with_usage_error(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROADSIDE_AGENT_PORTS", "many")
    assert check.main([READY]) == 3
    assert "BROADSIDE_AGENT_PORTS" in capsys.readouterr().err
