"""Tests for random changes of a stored range."""

from collections import Counter

import pytest

from tests.azure_emulator.range_mutants import (
    GAP,
    SCORE_MIN_RATIO,
    STATES,
    Mutant,
    evaluate,
    mutants,
    recreate,
    run,
    sample,
)
from tests.unit.coordinator.azure_range.stored import document


def all_of(state: str) -> list[Mutant]:
    stored = document(state)
    return list(mutants(stored["store"], set(stored["before"])))


def test_a_stored_range_can_be_created() -> None:
    assert [recreate(document(state)["store"]) for state in STATES] == [None] * len(STATES)


def test_every_kind_of_change_is_made() -> None:
    operators = Counter(mutant.operator for state in STATES for mutant in all_of(state))
    assert operators.keys() >= {
        "remove resource", "remove reference", "remove item", "swap id", "role", "scope",
        "principal", "port", "prefix", "zone", "tier", "flag", "choice", "service tag", "size",
        "given value", "depends_on", "tag", "group",
    }  # fmt: skip


def test_a_change_leaves_the_stored_range_as_it_was() -> None:
    before = str(document("private")["store"])
    for mutant in all_of("private")[:40]:
        evaluate("private", mutant)
    assert str(document("private")["store"]) == before


@pytest.mark.parametrize(
    ("key", "result"),
    [
        ("/natgateways/broadside-clients", "refused"),
        ("/broadside-clients/securityrules/toservicebus", "found"),
        ("/budgets/broadside-monthly", "survived"),
    ],
)
def test_evaluates_a_removed_resource(key: str, result: str) -> None:
    removals = [one for one in all_of("notebook") if one.operator == "remove resource"]
    (mutant,) = (one for one in removals if one.key.endswith(key))
    assert evaluate("notebook", mutant).result == result


def test_a_seed_draws_the_same_changes() -> None:
    one, other = (sample(20, 7) for _ in range(2))
    assert [(state, mutant.text) for state, mutant in one] == [
        (state, mutant.text) for state, mutant in other
    ]
    assert sample(20, 8)[0][1].text != one[0][1].text or sample(20, 8)[1][1].text != one[1][1].text


def test_score_and_reasons_are_printed() -> None:
    lines: list[str] = []
    score = run(30, 5, lines.append)
    assert score >= SCORE_MIN_RATIO
    assert len(lines) == 31
    assert lines[-1].startswith("mutants: seed 5, ")
    assert not [line for line in lines if line.endswith(f": {GAP}")]
