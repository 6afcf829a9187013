"""Tests for the conclusion of a drill."""

import pytest

from broadside.coordinator.studies.drill_text import drilled as describe_drill
from tests.unit.coordinator.studies.samples import drill


@pytest.mark.parametrize(("cut_count", "carry"), [(8, "0 %"), (4, "unknown")])
def test_rate_of_old_sessions_is_zero_when_all_were_cut(cut_count: int, carry: str) -> None:
    """If seconds are missing, the rate for the other sessions is unknown."""
    [dip] = drill().flows
    cut = drill(cut_count=cut_count, flows=(dip.model_copy(update={"old_ratio": None}),))
    sentence = describe_drill(cut.event, cut).sentence
    assert f"{cut_count} of 8 sessions were cut" in sentence
    assert f"old sessions carry {carry} of the earlier level and new ones 98 %" in sentence


@pytest.mark.parametrize(("count", "more"), [(3, ")"), (5, " and 2 more)")])
def test_long_list_of_cut_pairs_is_shortened(count: int, more: str) -> None:
    names = tuple(f"pair-00{number}" for number in range(1, count + 1))
    result = drill(cut_count=8, cut_pairs=names)
    sentence = describe_drill(result.event, result).sentence
    assert f"were cut (of pair-001, pair-002, pair-003{more}" in sentence
