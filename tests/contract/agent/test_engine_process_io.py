"""Tests for engine process that need processes, sockets or real time."""

from pathlib import Path

from broadside.agent.engine_process import find_iperf3


def test_engine_build_does_not_include_the_host_name(tmp_path: Path) -> None:
    program = tmp_path / "iperf3"
    lines = ("iperf 3.18 (cJSON 1.7.15)", "Linux one-host 6.1.0", "Optional features: SCTP")
    program.write_text("#!/bin/sh\ncat <<E\n" + "\n".join(lines) + "\nE\n")
    program.chmod(0o755)
    assert find_iperf3(str(program)).build == "iperf 3.18 (cJSON 1.7.15); Optional features: SCTP"
