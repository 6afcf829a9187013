"""Test that tests/review/README.md has a test for each finding in the external review."""

import re

from tests.compat.write import ROOT

PAGE = (ROOT / "tests" / "review" / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (M\d+) \|.*\| (.*) \|$", PAGE, re.MULTILINE)
TESTS = {
    name
    for folder in ("review", "live")
    for path in (ROOT / "tests" / folder).glob("test_*.py")
    for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
}


def test_all_review_findings_have_a_test() -> None:
    assert {finding for finding, _ in ROWS} == {f"M{number}" for number in range(1, 23)}
    references = {name for _, tests in ROWS for name in re.findall(r"`(test_\w+)`", tests)}
    assert references <= TESTS
    assert {name for name in TESTS if re.match(r"test_m\d+_", name)} <= references
