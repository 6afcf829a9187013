from types import SimpleNamespace
from typing import cast

import pytest

from broadside.coordinator.core.judge.checks.check_types import BurstInput
from broadside.coordinator.core.judge.checks.coverage_checks import check_coverage
from broadside.coordinator.core.summary import ByteSource, SecondState, Verdict
from tests.unit.coordinator.core.judge.checks.check_input import burst, of_burst, pair, seen


@pytest.mark.parametrize(
    ("measured", "proven", "findings"),
    [
        (0.95, 0.95, []),
        (0.949, 0.95, ["below-floor"]),
        (0.95, 0.949, ["receiver-unseen"]),
        (0.0, 0.0, ["below-floor"]),
    ],
)
def test_compares_coverage_with_its_floor(
    measured: float, proven: float, findings: list[str]
) -> None:
    seen = SimpleNamespace(completeness_ratio=measured, measured_s=measured * 100, planned_s=100)
    objective = SimpleNamespace(coverage_floor_ratio=0.95)
    given = SimpleNamespace(
        spec=SimpleNamespace(objective=objective),
        burst=SimpleNamespace(completeness=seen, proven_ratio=proven, pairs=()),
    )
    result = check_coverage(cast(BurstInput, given))
    assert [finding.id for finding in result.findings] == findings
    assert result.verdict is (Verdict.INCONCLUSIVE if findings else Verdict.PASS)


def test_names_the_missing_pairs_by_reason() -> None:
    lost = [pair(f"pair-{n}", state=SecondState.MISSED, reason="no agent") for n in range(1, 5)]
    late = pair("pair-9", state=SecondState.LATE)
    of = burst(completeness=seen(100), pairs=(*lost, late, pair("pair-10")))
    [finding] = check_coverage(of_burst(of)).findings
    assert finding.sentence.endswith(
        " 4 of 6 pairs never started: pair-1, pair-2, pair-3 (no agent); and 1 more."
        " 1 of 6 pairs started too late: pair-9."
    )
    assert (finding.next_step or "").startswith("Start client agents on more hosts")
    gaps = (pair("pair-1", completeness_ratio=0.9), pair("pair-2", completeness_ratio=0.5))
    [finding] = check_coverage(of_burst(burst(completeness=seen(700), pairs=gaps))).findings
    assert finding.sentence.endswith(" 2 of 2 pairs have gaps: pair-2, pair-1.")


def test_names_the_pairs_without_a_record_of_the_receiver() -> None:
    pairs = (pair("pair-1", basis=ByteSource.SENDER), pair("pair-2"))
    [finding] = check_coverage(of_burst(burst(proven_ratio=0.5, pairs=pairs))).findings
    assert finding.sentence.endswith(" Pairs without such a record: pair-1.")
