"""Tests for metrics that need processes, sockets or real time."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.core.metrics import (
    ALL_METRICS,
)
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.views.page_labels import page_labels
from tests.unit.coordinator.core import test_metrics
from tests.unit.coordinator.core.test_metrics import ROOT

# Fixtures.
summary = test_metrics.summary

WEB = ROOT / "dashboards" / "web"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_page_reads_and_aggregates_metrics_like_the_coordinator(
    summary: RunSummary, tmp_path: Path
) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "words.js").write_text(page_labels())
    (tmp_path / "format.js").write_text((WEB / "format.js").read_text())
    (tmp_path / "run.json").write_text(summary.model_dump_json())
    (tmp_path / "ask.js").write_text(
        'import { readFileSync } from "node:fs"; import { FIGURES } from "./words.js";'
        'import { figureOf, told } from "./format.js";'
        'const run = JSON.parse(readFileSync("run.json"));'
        "const say = (f, of) => told(f.unit, figureOf(f, of), f.decimals);"
        "console.log(JSON.stringify(FIGURES.filter((f) => f.read).map((f) => "
        "[f.name, say(f, run), say(f, run.bursts[0])])));"
    )
    done = subprocess.run(
        ["node", "ask.js"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    document: list[list[Any]] = json.loads(done.stdout)
    assert document == [
        [
            item.name,
            item.format(item.of_run(summary)),
            item.format(item.of_burst(summary.bursts[0])),
        ]
        for item in ALL_METRICS
        if item.path is not None
    ]
