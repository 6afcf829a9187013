from types import SimpleNamespace

import pytest

from broadside.coordinator.core.judge.checks.check_types import NOTHING
from broadside.coordinator.core.judge.checks.record_checks import check_starts
from broadside.coordinator.core.summary import Verdict
from tests.unit.coordinator.core.judge.checks.check_input import (
    burst,
    of_burst,
    spec,
    weights,
    window,
)


def _pair(name: str, error_s: float | None) -> SimpleNamespace:
    return SimpleNamespace(
        pair=name,
        start_error_s=error_s,
        client_agent_id=None if name == "a" else f"client-{name}",
        client_cpu_ratio=0.4,
        client_core_ratio=None if name == "a" else 0.5,
    )


PAIRS = (
    _pair("a", 0.2), _pair("late", 9.0), _pair("b", 1.5), _pair("c", 0.7), _pair("d", 0.1),
    _pair("unknown", None), _pair("sharp", 0.0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("spread_s", "bound_s", "verdict", "weight"),
    [
        pytest.param(1.5, 1.0, Verdict.INCONCLUSIVE, 87, id="above clock error"),
        pytest.param(1.5, 1.5, Verdict.PASS, 58, id="within clock error"),
    ],
)
def test_names_three_latest_pairs_if_start_spread_is_too_large(
    spread_s: float, bound_s: float, verdict: Verdict, weight: float
) -> None:
    of = burst(
        start_spread_s=spread_s, pairs=PAIRS, late_pairs=("late",), window=window(common_s=28)
    )
    result = check_starts(of_burst(of, spec(clock_bound_max_s=bound_s)))
    assert (result.verdict, weights(result)) == (verdict, [("start-spread", weight)])
    (finding,) = result.findings
    gap = verdict is Verdict.INCONCLUSIVE
    assert finding.kind == ("verdict" if gap else "context")
    assert finding.severity == ("problem" if gap else "warning")
    assert "(limit 1 s). 28 of 30 s are common" in finding.sentence
    assert finding.sentence.endswith(
        "b on client-b (+1.5 s), c on client-c (+700 ms), a (+200 ms)."
    )


@pytest.mark.parametrize(("core_ratio", "part"), [(0.9, "were busy"), (0.89, "agent --check")])
def test_next_step_depends_on_the_cpu_of_the_latest_clients(core_ratio: float, part: str) -> None:
    pairs = (SimpleNamespace(**vars(PAIRS[2]) | {"client_core_ratio": core_ratio}), *PAIRS[3:])
    result = check_starts(of_burst(burst(start_spread_s=2.0, window=None, pairs=pairs)))
    assert part in (result.findings[0].next_step or "")


@pytest.mark.parametrize("spread_s", [None, 0.0, 1.0])
def test_allowed_or_unknown_start_spread_has_no_finding(spread_s: float | None) -> None:
    assert check_starts(of_burst(burst(start_spread_s=spread_s))) == NOTHING


def test_no_common_seconds_without_a_window() -> None:
    result = check_starts(of_burst(burst(start_spread_s=2.0, window=None, pairs=PAIRS)))
    assert "0 of 30 s are common" in result.findings[0].sentence
