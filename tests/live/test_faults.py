"""The core of the fault matrix with real processes: a cell for each way in which things break."""

import signal
import subprocess
import sys

import pytest

from lab.faults.__main__ import run_matrix
from lab.faults.matrix import CORE
from lab.invariants import left_behind
from lab.namespaces import list_owned
from tests.live.labs import needs_root, wait_until

pytestmark = [pytest.mark.live, pytest.mark.alone, needs_root]


def test_no_cell_of_the_core_breaks_a_rule() -> None:
    results, problems = run_matrix(CORE, labs_count=3)
    assert problems == []
    assert {(r.fault, r.phase): r.broken for r in results if r.broken} == {}
    assert [(r.fault, r.phase) for r in results] == [(name, phase.value) for name, phase in CORE]
    assert all(len(r.bursts) == 2 for r in results), "recovery shows in the second burst"


def test_ctrl_c_leaves_no_process_and_no_namespace() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lab.faults", "--only", "nothing/armed", "--labs", "1"],
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell ignores Ctrl-C and hands that down to us.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    with process.stderr:
        prefix = process.stderr.readline().split()[-1]
        wait_until(lambda: len(list_owned(prefix)) > 8, "clocks and agents")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
    assert left_behind(prefix) == []
