"""Test the selection in `make mutants`, and how to read the output written by mutmut."""

import ast

import pytest

from tests.mutants import (
    changed_node,
    differences,
    drawn,
    is_prose,
    means_the_same,
    report,
    without_others,
)

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


def names(code: str) -> list[str]:
    return [name for name, _ in differences(ast.parse(code))]


def test_mutants_of_message_texts_are_not_selected() -> None:
    assert names(MUTATED) == [
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
def test_message_text_is_recognised(before: str, after: str, prose: bool) -> None:
    assert is_prose(changed_node(ast.parse(before), ast.parse(after))) is prose


def test_equal_code_has_no_changed_node() -> None:
    assert changed_node(ast.parse("a  +  1"), ast.parse("a + 1")) is None


@pytest.mark.parametrize(
    ("after", "same"),
    [
        ("def f(a, b): return zip(a, b)", True),
        ("def f(a, b): return zip(a, b, strict=None)", True),
        ("def f(a, b): return zip(a, strict=True)", False),
    ],
)
def test_equivalent_assertion_is_recognised(after: str, same: bool) -> None:
    before = ast.parse("def f(a, b): return zip(a, b, strict=True)")
    assert means_the_same(before, ast.parse(after)) is same


def test_selection_depends_only_on_the_seed() -> None:
    names = [f"mutant {number}" for number in range(50)]
    assert drawn(names, 5, 7) == drawn(names[::-1], 5, 7)
    assert drawn(names, 5, 7) != drawn(names, 5, 8)
    assert len(set(drawn(names, 5, 7))) == 5
    assert sorted(drawn(names, 80, 7)) == sorted(names)
    without = [name for name in names if name != drawn(names, 1, 7)[0]]
    assert drawn(without, 4, 7) == drawn(names, 5, 7)[1:]


def test_unselected_mutants_are_removed() -> None:
    """Test with real mutmut output, which has decorated methods, heads with several lines and a
    mutant table."""
    code = (
        "class Rate:\n"
        "    @classmethod\n"
        "    def xǁRateǁof__mutmut_orig(cls):\n"
        "        return cls()\n"
        "    @classmethod\n"
        "    def xǁRateǁof__mutmut_1(\n"
        "        cls,\n"
        "    ):\n"
        "\n"
        "        return None\n"
        "    @classmethod\n"
        "    def xǁRateǁof__mutmut_12(cls):\n"
        "        return cls\n"
        "    after = 1\n"
        "mutants_xǁRateǁof__mutmut['_mutmut_orig'] = Rate.xǁRateǁof__mutmut_orig\n"
        "mutants_xǁRateǁof__mutmut['xǁRateǁof__mutmut_1'] = Rate.xǁRateǁof__mutmut_1\n"
        "mutants_xǁRateǁof__mutmut['xǁRateǁof__mutmut_12'] = Rate.xǁRateǁof__mutmut_12\n"
    )
    lines = code.splitlines()
    assert without_others(code, ["xǁRateǁof__mutmut_12"]).splitlines() == [
        *lines[:4],
        *lines[10:15],
        lines[16],
    ]
    assert without_others(code, []).splitlines() == [*lines[:4], *lines[13:15]]


def test_survivors_are_printed_with_their_difference() -> None:
    changes = dict(differences(ast.parse(MUTATED)))
    killers = {"x_limit__mutmut_1": "a test", "x_limit__mutmut_4": None}
    text, share = report(list(changes), killers, changes, 7)
    assert "return self.a * self.b" in text
    assert "x_limit__mutmut_4" in text
    assert "x_limit__mutmut_1" not in text
    assert text.endswith("drawn 3 (seed 7), killed 1, survived 2 (66.7%)")
    assert share == pytest.approx(2 / 3)
