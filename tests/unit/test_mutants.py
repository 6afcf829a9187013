"""What `make mutants` draws, and how it reads what mutmut wrote."""

import ast
import json
from pathlib import Path

import pytest

from tests.mutants import candidates, changed_node, drawn, is_prose, outcomes, report

MUTATED = """
def x_limit__mutmut_orig(rate, name):
    if rate > 2:
        return f"{rate / 8} of {name}"
    return say("too slow to judge", kind="rate")
def x_limit__mutmut_1(rate, name):
    if rate >= 2:
        return f"{rate / 8} of {name}"
    return say("too slow to judge", kind="rate")
def x_limit__mutmut_2(rate, name):
    if rate > 2:
        return f"{rate / 9} of {name}"
    return say("too slow to judge", kind="rate")
def x_limit__mutmut_3(rate, name):
    if rate > 2:
        return f"{rate / 8} of {name}"
    return say("XXtoo slow to judgeXX", kind="rate")
def x_limit__mutmut_4(rate, name):
    if rate > 2:
        return f"{rate / 8} of {name}"
    return say("too slow to judge", kind="XXrateXX")
class Rate:
    def xǁRateǁshare__mutmut_orig(self):
        return self.a / self.b
    def xǁRateǁshare__mutmut_1(self):
        return self.a * self.b
"""
MODULE = "broadside.judge.rate"
CODES = {
    f"{MODULE}.x_limit__mutmut_1": 1,
    f"{MODULE}.x_limit__mutmut_2": None,
    f"{MODULE}.x_limit__mutmut_3": None,
    f"{MODULE}.x_limit__mutmut_4": 33,
    f"{MODULE}.xǁRateǁshare__mutmut_1": 0,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder as mutmut leaves it, with one mutated file and one that it only copied."""
    folder = tmp_path / "mutants" / "src" / "broadside" / "judge"
    folder.mkdir(parents=True)
    (folder / "rate.py").write_text(MUTATED)
    (folder / "rate.py.meta").write_text(json.dumps({"exit_code_by_key": CODES}))
    (folder / "other.py").write_text("")
    (folder / "other.py.meta").write_text(json.dumps({"exit_code_by_key": {}}))
    return tmp_path


def test_mutants_of_text_for_readers_are_not_drawn(tree: Path) -> None:
    assert [name.rpartition(".")[2] for name in candidates(tree)] == [
        "x_limit__mutmut_1",
        "x_limit__mutmut_4",
        "xǁRateǁshare__mutmut_1",
    ]


@pytest.mark.parametrize(
    ("before", "after", "prose"),
    [
        ("say('no rate', 1)", "say(None, 1)", True),
        ("say('no rate', 1)", "say(1)", False),
        ("say(f'{rate:.1f} bit/s')", "say(None)", True),
        ("kind == 'rate'", "kind == 'RATE'", False),
        ("a + 1", "a - 1", False),
    ],
)
def test_what_counts_as_text_for_readers(before: str, after: str, prose: bool) -> None:
    assert is_prose(changed_node(ast.parse(before), ast.parse(after))) is prose


def test_equal_code_has_no_changed_node() -> None:
    assert changed_node(ast.parse("a  +  1"), ast.parse("a + 1")) is None


def test_a_seed_draws_the_same_names_in_any_order() -> None:
    names = [f"mutant {number}" for number in range(50)]
    assert drawn(names, 5, 7) == drawn(names[::-1], 5, 7)
    assert drawn(names, 5, 7) != drawn(names, 5, 8)
    assert len(set(drawn(names, 5, 7))) == 5
    assert drawn(names, 80, 7) == sorted(names)


def test_survivors_and_untested_are_printed_with_their_difference(tree: Path) -> None:
    chosen = list(candidates(tree))
    said, share = report(outcomes(tree, chosen), 7)
    assert "-        return self.a / self.b" in said or "-    return self.a / self.b" in said
    assert "x_limit__mutmut_4" in said
    assert "x_limit__mutmut_1" not in said
    assert said.endswith("drawn 3 (seed 7), killed 1, survived 2 (66.7%)")
    assert share == pytest.approx(2 / 3)


def test_a_mutant_that_did_not_run_is_no_kill(tree: Path) -> None:
    said, share = report(outcomes(tree, [f"{MODULE}.x_limit__mutmut_2"]), 7)
    assert share == 1
    assert "killed 0" in said
