"""Test the check of the canaries."""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest

from broadside.coordinator.core.judge.checks.canary_check import check_canary
from broadside.coordinator.core.judge.checks.check_types import BurstInput, CheckResult
from broadside.coordinator.core.judge.checks.thresholds_check import check_thresholds
from broadside.coordinator.core.measure.formulas.binomial import share_interval
from broadside.coordinator.core.summary import (
    CanaryPhase,
    CanaryStep,
    CanarySummary,
    SignatureSummary,
    Verdict,
    describe_leaks,
)
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS
from broadside.exchange.messages import Canary
from tests.unit.coordinator.core.judge.checks.check_input import pair

AT = datetime(2026, 11, 27, 12, tzinfo=UTC)


def phase(leaked: int, tested: int) -> CanaryPhase:
    low, high = share_interval(leaked, tested) if tested else (None, None)
    return CanaryPhase(
        tested_count=tested,
        leaked_count=leaked,
        leak_ratio=leaked / tested if tested else None,
        leak_low_ratio=low,
        leak_high_ratio=high,
        confidence_ratio=0.99,
    )


def inputs(
    leaked: int | None,
    tested: int = 300,
    *,
    limit: float | None = None,
    before: tuple[int, int] = (0, 40),
    pairs: int = 10,
    asked: bool = True,
    signatures: Mapping[str, int] = MappingProxyType({}),
) -> BurstInput:
    canary = (
        None
        if leaked is None
        else CanarySummary(
            consent="N. Owner",
            pairs_count=pairs,
            before=phase(*before),
            during=phase(leaked, tested),
            after=phase(0, 40),
            signatures=tuple(
                SignatureSummary(name=name, rule="", during=phase(0, count))
                for name, count in signatures.items()
            ),
            first_leak_at=AT if leaked else None,
            every_s=1,
            steps=(
                CanaryStep(
                    at=AT,
                    tested_count=10,
                    leaked_count=1,
                    allowed_blocked_count=0,
                    received_bits_per_second=1.5e9,
                    device_cpu_ratio=0.93,
                ),
            ),
        )
    )
    unset: dict[str, float | None] = {threshold.bound: None for threshold in ALL_THRESHOLDS}
    objective = SimpleNamespace(**(unset | {"coverage_floor_ratio": 0.95, "leak_max_ratio": limit}))
    settings = Canary(consent="N. Owner") if asked else None
    traffic = SimpleNamespace(canary=settings)
    burst = SimpleNamespace(
        canary=canary,
        pairs_planned=10,
        pairs=(pair("a"),),
        completeness=SimpleNamespace(completeness_ratio=1.0),
    )
    given = SimpleNamespace(spec=SimpleNamespace(objective=objective, traffic=traffic), burst=burst)
    return cast(BurstInput, given)


def ids(result: CheckResult) -> list[str]:
    return [finding.id for finding in result.findings]


def test_a_run_without_canaries_is_not_checked() -> None:
    assert check_canary(inputs(None, asked=False)) == CheckResult(Verdict.PASS, ())


@pytest.mark.parametrize(
    ("leaked", "tested", "pairs", "verdict", "id_"),
    [
        pytest.param(0, 300, 10, Verdict.PASS, "canary-blocked", id="all blocked"),
        pytest.param(0, 104, 10, Verdict.PASS, "canary-blocked", id="just enough"),
        pytest.param(0, 103, 10, Verdict.INCONCLUSIVE, "canary-few", id="too few"),
        pytest.param(1, 300, 10, Verdict.FAIL, "canary-leaked", id="one leaked"),
        pytest.param(1, 5, 1, Verdict.FAIL, "canary-leaked", id="one of few leaked"),
        pytest.param(0, 300, 9, Verdict.INCONCLUSIVE, "canary-missing", id="a pair is missing"),
        pytest.param(0, 0, 0, Verdict.INCONCLUSIVE, "canary-missing", id="no twin arrived"),
        pytest.param(None, 0, 0, Verdict.INCONCLUSIVE, "canary-missing", id="no records"),
    ],
)
def test_verdict_without_a_limit(
    leaked: int | None, tested: int, pairs: int, verdict: Verdict, id_: str
) -> None:
    result = check_canary(inputs(leaked, tested, pairs=pairs))
    assert (result.verdict, ids(result)) == (verdict, [id_])


def test_a_signature_without_a_tested_canary_is_inconclusive() -> None:
    result = check_canary(inputs(0, signatures={"url": 300, "port-udp": 0}))
    assert (result.verdict, ids(result)) == (Verdict.INCONCLUSIVE, ["canary-missing"])
    assert "No canary of port-udp was tested" in result.findings[0].sentence
    assert check_canary(inputs(0, signatures={"url": 300})).verdict is Verdict.PASS


def test_a_stored_interval_has_a_separate_confidence() -> None:
    stored = phase(30, 300).model_dump() | {"leak_low_ratio": 0.068, "leak_high_ratio": 0.14}
    del stored["confidence_ratio"]
    text = describe_leaks(CanaryPhase.model_validate(stored))
    assert text == "10.0 % (30 of 300, 95 % interval 6.8 % to 14.0 %)"


def test_a_leak_is_dated_with_rate_and_cpu() -> None:
    (finding,) = check_canary(inputs(30)).findings
    assert "10.0 % (30 of 300, 99 % interval 6.0 % to 15.3 %)" in finding.sentence
    assert "First at 12:00:00 UTC, at 1.5 Gbit/s and 93 % CPU of the device." in finding.sentence
    assert "Before the burst: 0.0 % (0 of 40" in finding.sentence
    assert "fail-open" in str(finding.next_step)


def test_a_policy_that_never_blocks_has_a_separate_next_step() -> None:
    (finding,) = check_canary(inputs(300, before=(40, 40))).findings
    assert "does not block these requests without load either" in str(finding.next_step)


@pytest.mark.parametrize(
    ("leaked", "limit", "verdict", "threshold_ids", "canary_ids"),
    [
        pytest.param(0, 0.02, Verdict.PASS, [], ["canary-blocked"], id="below"),
        pytest.param(3, 0.05, Verdict.PASS, [], ["canary-leaked"], id="allowed leaks"),
        pytest.param(30, 0.05, Verdict.FAIL, ["leak-limit"], ["canary-leaked"], id="above"),
        pytest.param(
            3, 0.02, Verdict.INCONCLUSIVE, ["leak-unproven"], ["canary-leaked"], id="undecided"
        ),
        pytest.param(
            None, 0.02, Verdict.INCONCLUSIVE, ["leak-unproven"], ["canary-missing"], id="none"
        ),
    ],
)
def test_verdict_with_a_limit(
    leaked: int | None,
    limit: float,
    verdict: Verdict,
    threshold_ids: list[str],
    canary_ids: list[str],
) -> None:
    given = inputs(leaked, limit=limit)
    result = check_thresholds(given)
    assert (result.verdict, ids(result)) == (verdict, threshold_ids)
    canary = check_canary(given)
    assert ids(canary) == canary_ids
    assert canary.verdict is (Verdict.INCONCLUSIVE if leaked is None else Verdict.PASS)


def test_findings_of_a_limit_state_the_interval() -> None:
    (above,) = check_thresholds(inputs(30, limit=0.05)).findings
    assert "is 10.0 % (30 of 300, 99 % interval 6.0 % to 15.3 %), above the limit" in above.sentence
    (undecided,) = check_thresholds(inputs(3, limit=0.02)).findings
    assert "The interval contains the limit 2.000 %" in undecided.sentence


def test_a_missing_pair_is_inconclusive_despite_allowed_leaks() -> None:
    result = check_canary(inputs(3, limit=0.05, pairs=5))
    assert (result.verdict, ids(result)) == (Verdict.INCONCLUSIVE, ["canary-missing"])
