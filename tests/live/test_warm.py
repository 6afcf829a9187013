"""Test the processes that are forked from a warm process."""

import gc
import os
import sys
from pathlib import Path

import pytest

from tests.live.warm import shell

pytestmark = pytest.mark.live


def test_garbage_collection_closes_unreferenced_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test processes in reference cycles, as if a test had failed."""
    with (tmp_path / "output").open("wb") as output:
        process = shell().start(
            "coordinator",
            ["--version"],
            env=os.environ,
            folder=tmp_path,
            stdout=output,
            stderr=output,
        )
    assert process.wait(60) == 0
    files = {process._exit_socket.fileno(), process._pidfd}
    vars(process)["itself"] = process
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    gc.disable()
    del process
    gc.collect()
    gc.enable()
    assert reported == []
    assert not files & {int(item.name) for item in Path("/proc/self/fd").iterdir()}
