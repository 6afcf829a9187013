"""Tests for plain fields that need processes, sockets or real time."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.core.plain_fields import plain_fields
from broadside.coordinator.views.page_labels import page_labels
from tests.unit.coordinator.core.test_plain_fields import ROOT


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_page_shows_every_field_of_a_scenario(tmp_path: Path) -> None:
    spec = scenarios.load("smoke")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "words.js").write_text(page_labels())
    (tmp_path / "format.js").write_text((ROOT / "dashboards" / "web" / "format.js").read_text())
    (tmp_path / "ask.js").write_text(
        'import { fieldsOf } from "./format.js";'
        f"console.log(JSON.stringify(fieldsOf({spec.model_dump_json()})));"
    )
    done = subprocess.run(
        ["node", "ask.js"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    # It is only in the text of a run that has canaries.
    expected = plain_fields(spec).keys() - {"traffic.canary"}
    assert {name for name, _ in json.loads(done.stdout)} == expected
