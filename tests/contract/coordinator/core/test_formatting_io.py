"""Tests for formatting that need processes, sockets or real time."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest

from broadside.coordinator.core import formatting
from broadside.coordinator.views.page_labels import page_labels
from tests.unit.coordinator.core.test_formatting import RATES, TIMES

WEB = Path(__file__).parents[4] / "dashboards" / "web"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_page_formats_quantities_like_the_coordinator(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "words.js").write_text(page_labels())
    (tmp_path / "format.js").write_text((WEB / "format.js").read_text())
    values = [*RATES, *(math.pi * 10.0**power for power in range(-3, 15))]
    times = [*TIMES, *(math.pi * 10.0**power for power in range(-8, 5))]
    ratios = [-0.0523, 0.0, 0.04996, 1.0]
    counts = [0, 1 / 3, 1.5, 7, 9.99, 10.4, 1234567]
    sums = [0, 0.126, 12, 99.99, 100, 1234.4, 5678901.6]
    sent = json.dumps([values, times, ratios, counts, sums])
    text = f"const [values, times, ratios, counts, sums] = {sent};"
    (tmp_path / "ask.js").write_text(
        'import { count, dollars, percent, rate, seconds } from "./format.js";'
        + text
        + "console.log("
        "JSON.stringify([[...values, null].map(rate), [...times, null].map(seconds), "
        "ratios.map((r) => percent(r)), ratios.map((r) => percent(r, 1, true)), "
        "counts.map(count), [...sums, null].map(dollars)]))"
    )
    completed = subprocess.run(
        ["node", tmp_path / "ask.js"], check=True, capture_output=True, text=True, timeout=60
    )
    assert json.loads(completed.stdout) == [
        [formatting.rate(value) for value in [*values, None]],
        [formatting.time(value) for value in [*times, None]],
        [formatting.ratio(value) for value in ratios],
        [formatting.signed_ratio(value, 1) for value in ratios],
        [formatting.count(value) for value in counts],
        [formatting.dollars(value) for value in [*sums, None]],
    ]
