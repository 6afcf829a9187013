"""Tests for the live view, which should show new rows as if the complete burst were measured."""

import random
from datetime import timedelta

import numpy as np
import pytest

from broadside.coordinator.core.live.live_view import COLUMNS, LiveSnapshot, full_snapshot
from broadside.coordinator.runs import live_burst
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.coordinator.runs.live_burst import LiveBurst
from broadside.exchange.fabric import Fabric
from broadside.exchange.records.keys import CHUNK
from tests.bench.stored_fleet import START, plan_of, store, upload

PAIRS, BURST_S, BEGIN_S = 9, 180, 40


def same_seconds(shown: LiveSnapshot, complete: LiveSnapshot) -> None:
    assert shown.known_s == complete.known_s
    known = slice(0, complete.known_s)
    np.testing.assert_array_equal(shown.cells[known], complete.cells[known])
    for row, name in enumerate(COLUMNS):
        np.testing.assert_allclose(
            shown.columns[row, known],
            complete.columns[row, known],
            rtol=1e-6,
            err_msg=name,
        )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("silent_s", [0, 25])
async def test_newest_rows_show_the_same_as_all_rows(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, seed: int, silent_s: int
) -> None:
    """Rows can be sent in any order, and some can be lost.

    If ``silent_s`` is set, two pairs will pause. These are shown when all rows are read again.
    """
    monkeypatch.setattr(live_burst, "CHEAP_S", -1.0)
    # Do not start this automatically.
    monkeypatch.setattr(live_burst, "SHARE_RATIO", 1e-9)
    noise = random.Random(seed)
    plan = plan_of(PAIRS, BURST_S)
    await store(fabric, plan, until_s=BEGIN_S)
    live = LiveBurst(fabric.records, plan, plan.bursts[0])
    sent_s = dict.fromkeys(range(PAIRS), BEGIN_S)
    followed_count = 0
    try:
        for at_s in range(BEGIN_S + 1, BEGIN_S + 42):
            reported = [pair for pair in sent_s if noise.random() < 0.4 or at_s - sent_s[pair] > 5]
            if at_s < BEGIN_S + 10 + silent_s:
                reported = [pair for pair in reported if pair > 1 or not silent_s]
            noise.shuffle(reported)
            for pair in reported:
                await upload(fabric, plan, until_s=at_s, from_s=sent_s[pair], only=[pair])
                sent_s[pair] = at_s
            # If a chunk is lost, only the last rows are left for this pair.
            if noise.random() < 0.1:
                await fabric.results.delete(f"burst.{plan.run_id}.00000", f"{CHUNK}00004.000")
            now = START + timedelta(seconds=at_s + 1)
            shown = await live.take_snapshot(None, now)
            evidence = await read_evidence(fabric.records, plan, plan.bursts[0])
            complete = full_snapshot(plan, evidence, None, now)
            followed_count += shown.figures != complete.figures
            if not silent_s and not any(pair.report for pair in evidence.pairs):
                part = slice(max(0, complete.known_s - 6), complete.known_s)
                np.testing.assert_array_equal(shown.cells[part], complete.cells[part])
        assert followed_count > 12, "most passes read the tails only"
        monkeypatch.setattr(live_burst, "SHARE_RATIO", 1.0)
        # The measurement is started by the first call, and is shown by the next.
        for _ in range(2):
            await live.take_snapshot(None, now)
            if live.measuring is not None:
                await live.measuring
        same_seconds(await live.take_snapshot(None, now), complete)
    finally:
        await live.close()
