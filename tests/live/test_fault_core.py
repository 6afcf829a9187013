"""Test the core cells of the fault matrix with real processes and a cell for every kind of
fault.
"""

import json
import subprocess
import sys

import pytest

from tests.faults.matrix import CORE

AZURE = ("--fabric", "azure")
pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.timeout(600)]


def test_core_cells_violate_no_rule() -> None:
    names = ",".join(f"{name}/{phase.value}" for name, phase in CORE)
    ran = subprocess.run(
        # Use a single lab in sequence. With three labs it would be necessary to start services,
        # agents and clocks three times.
        [sys.executable, "-m", "tests.faults", "--only", names, "--labs", "1", "--json", *AZURE],
        stdout=subprocess.PIPE,
        timeout=570,
        check=False,
    )
    document = json.loads(ran.stdout)
    assert document["problems"] == []
    assert {(c["fault"], c["phase"]): c["broken"] for c in document["cells"] if c["broken"]} == {}
    assert [(c["fault"], c["phase"]) for c in document["cells"]] == [
        (name, phase.value) for name, phase in CORE
    ]
    assert all(len(c["bursts"]) == 2 for c in document["cells"]), (
        "the second burst must show the recovery"
    )
    assert ran.returncode == 0
