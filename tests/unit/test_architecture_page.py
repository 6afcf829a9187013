"""The page for newcomers names files that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "",
    "coordinator",
    "coordinator/core",
    "coordinator/core/judge",
    "coordinator/core/measure",
    "exchange",
    "exchange/engines",
    "coordinator/device/ledgers",
)


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_it_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = {name for name in re.findall(r"[\w/]+\.py\b", text) if "<" not in name}
    assert named
    absent = {name for name in named if not any((ROOT / room / name).exists() for room in ROOMS)}
    assert absent == set()
