"""docs/azure-limits.md is what its script prints of the code as it is."""

import runpy
from pathlib import Path

from exchange.pacing import CONTROL_PAIRS_COUNT

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "azure_limits.py"))


def test_the_page_is_what_the_script_prints() -> None:
    told = (DOCS / "azure-limits.md").read_text("utf-8")
    assert told == SCRIPT["page"](), "run: .venv/bin/python docs/azure_limits.py"


def test_three_hundred_pairs_are_within_every_limit_and_then_servers_are_the_first() -> None:
    for pairs in (30, 300):
        for where, (asked, limit) in SCRIPT["loads"](pairs).items():
            assert asked <= limit, (pairs, where)
    for pairs in (1_000, 3_000):
        over = [where for where, (asked, limit) in SCRIPT["loads"](pairs).items() if asked > limit]
        assert over == ["results: servers' tests, its end"]
        assert SCRIPT["first_limit"](pairs)[0] == over[0]
    assert SCRIPT["loads"](3_000)["control: one copy of the control row"][0] <= CONTROL_PAIRS_COUNT
