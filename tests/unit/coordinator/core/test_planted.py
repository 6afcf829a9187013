import pytest

from tests.planted import EXPECTED, Score, scores, table

SEEDS = range(8)
# Use more seeds for fleets that must not have a cause.
CLEAN_SEEDS = range(8, 50)
CLEAN = [kind for kind, expected in EXPECTED.items() if expected is None]
CALM = [*CLEAN, "foreign", "bypass", "capped-nic", "slow-firewall", "offered-load", "small-window"]


@pytest.fixture(scope="module")
def all_scores() -> list[Score]:
    return [*scores(SEEDS), *scores(CLEAN_SEEDS, CLEAN)]


def test_names_planted_cause_first(all_scores: list[Score]) -> None:
    planted = [score for score in all_scores if EXPECTED[score.kind] is not None]
    wrong = [(score.kind, score.seed, score.named) for score in planted if not score.right]
    assert len(wrong) <= 0.05 * len(planted), f"{wrong}\n{table(all_scores)}"


def test_clean_fleets_have_no_cause(all_scores: list[Score]) -> None:
    clean = [score for score in all_scores if EXPECTED[score.kind] is None]
    wrong = [(score.kind, score.seed, score.named) for score in clean if not score.right]
    assert len(clean) >= 200
    assert len(wrong) < 0.01 * len(clean), wrong


def test_fewer_than_one_percent_false_disruptions(
    all_scores: list[Score],
) -> None:
    calm = [score for score in all_scores if score.kind in CALM]
    alarmed = [
        (score.kind, score.seed)
        for score in calm
        if any(burst.disruptions for burst in score.summary.bursts)
    ]
    assert len(calm) >= 240
    assert len(alarmed) < 0.01 * len(calm), alarmed


def test_estimates_lag_within_five_seconds(all_scores: list[Score]) -> None:
    lags = [(score.kind, score.seed, score.lag_error_s) for score in all_scores]
    known = [row for row in lags if row[2] is not None]
    assert len(known) >= 0.95 * len(lags)
    assert [row for row in known if row[2] is None or abs(row[2]) > 5] == []


def test_total_bytes_are_within_three_permille(all_scores: list[Score]) -> None:
    assert max(score.total_error_ratio for score in all_scores) <= 0.003


def test_no_pass_below_the_coverage_floor(all_scores: list[Score]) -> None:
    below = [score for score in all_scores if score.summary.completeness_ratio < 0.95]
    assert len(below) >= 20
    assert not any(score.wrong_pass for score in all_scores)
