"""A minute of the hunt, with a seed that stays: nothing wrong, and not by refusing all."""

import json
from pathlib import Path

import pytest

from tests.hunt.__main__ import FOUND, hunt
from tests.hunt.searches import replay

CASES = 300  # at random; a tenth as many climbs' steps and about as many tamperings come on top
SEED = 20261122


@pytest.mark.timeout(1800)  # by then it hangs: a minute or two of a core that others want, too
def test_a_minute_finds_nothing_wrong() -> None:
    rows, climbed = hunt(seed=SEED, minutes=None, cases=CASES, workers=1)
    tried = [*rows, *climbed]
    assert len(rows) == CASES
    assert [row.case.document() for row in tried if row.wrong_pass] == []
    assert [(row.case.document(), row.flips) for row in tried if row.flips] == []
    assert [row.error for row in tried if row.error] == []
    assert [row.case.document() for row in tried if row.unseen_pass and not row.says_unseen] == []
    assert sum(row.wrong_fail for row in rows) <= 0.005 * CASES
    clear = [row for row in rows if row.case.kind.startswith("clean") and row.margin >= 1.02]
    assert len(clear) > 10
    assert sum(row.verdict == "pass" for row in clear) >= 0.95 * len(clear)


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_is_right_now(path: Path) -> None:
    assert replay(json.loads(path.read_text("utf-8"))) is None
