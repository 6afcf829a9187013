"""Tests for the description of imported files."""

from pathlib import Path

import pytest

from broadside.coordinator.imports.import_answers import describe
from broadside.coordinator.imports.import_requests import Recordings, RecordingState
from broadside.coordinator.imports.iperf3_files import read_files
from tests.unit.coordinator.imports.small_tables import made
from tests.unit.coordinator.imports.test_iperf3_files import ALL, DATA


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_describes_all_recordings(path: Path) -> None:
    matched = [describe(recording) for recording in read_files([path])[0]]
    assert matched
    erring = "err-" in path.name or path == DATA / "3.12" / "tcp-opts.json"
    for result in matched:
        assert (result.state is RecordingState.MEASURED) == (not erring)
        assert (result.reason is None) == (not erring)
        if not erring:
            assert result.version is not None
            assert result.version == path.parent.name
            assert result.direction is not None
            assert result.protocol is not None
            assert result.streams
            assert result.sent_bytes or result.received_bytes or len(result.flows) == 2
    made(Recordings(recordings=read_files([path])[0]))
