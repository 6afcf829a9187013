"""Tests for the cases and the result table of ``make scenarios``."""

from dataclasses import replace
from typing import Any

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.studies.study import Axis, Study, StudySpec, Sweep
from broadside.lab.profiles import PROFILES
from tests.scenarios.cases import CASES, TESTBEDS, Case, Expected
from tests.scenarios.facts import Facts, faults
from tests.scenarios.scenario_range import chosen
from tests.scenarios.scenario_table import CHAPTER, Row, cells, chapter, markdown, study_row
from tests.unit.coordinator.presences import NOW

ROW = Row(
    name="one",
    pairs_count=4,
    flows_count=256,
    encapsulation="none",
    engine="iperf3",
    payload_bits_per_second=50e6,
    latency_p50_s=0.001,
    latency_p99_s=None,
    cpu_s_per_gigabyte=2.5,
    outcome="pass: nothing",
    verdict="pass",
    completeness_ratio=1.0,
)
NO_FACTS = Facts()
BURST = (100.0, 120.0)
PAUSES = Expected(pauses_within_s=1.0)
OUTAGE = Expected(outage_within_s=(0.1, 0.2))
BASE = replace(ROW, name="base", payload_bits_per_second=100e6)


def case_faults(
    expected: Expected, row: Row = ROW, facts: Facts = NO_FACTS, base: Row = BASE
) -> list[str]:
    case = Case(name="one", scenario="smoke", expected=expected)
    return list(faults(case, row, facts, {"base": base}))


def test_cases_have_scenario_and_profile_and_follow_their_base() -> None:
    seen: set[str] = set()
    for case in sorted(CASES, key=lambda case: list(TESTBEDS).index(case.testbed)):
        spec = scenarios.load(case.scenario)
        pairs = case.overrides.get("pairs_count", spec.pairs_count)
        assert pairs <= TESTBEDS[case.testbed].pairs_count
        assert case.profile in PROFILES
        assert case.name not in seen
        if case.expected.rate_ratio_of is not None:
            assert case.expected.rate_ratio_of[0] in seen
        seen.add(case.name)


@pytest.mark.parametrize(
    ("expected", "facts", "message"),
    [
        (
            Expected(bottleneck="window"),
            Facts(bottleneck="firewall"),
            "bottleneck firewall, planted window",
        ),
        (Expected(bottleneck="window"), Facts(bottleneck="window"), None),
        (Expected(says="fell"), Facts(words="nothing"), "nothing says 'fell'"),
        (Expected(cost_ratio=(0.19, 0.25)), Facts(cost_ratio=0.3), "b / a is 0.3"),
        (Expected(cost_ratio=(0.19, 0.25)), Facts(), "b / a is None"),
        (Expected(cost_ratio=(0.19, 0.25)), Facts(cost_ratio=0.22), None),
        (Expected(knee=(4, 16)), Facts(knees=(2.0,)), "knees at (2.0,)"),
        (Expected(fall_within_s=2), Facts(found_at_s=107.0, fell_at_s=(100.0,)), "found at 107"),
        (Expected(steps_within_s=3), Facts(steps_s=(1.0,), fell_at_s=(1.0, 9.0)), "1 steps, pl"),
        (Expected(steps_within_s=3), Facts(steps_s=(1.0,), fell_at_s=(5.0,)), "a step at 1.0"),
        (Expected(steps_within_s=3), Facts(steps_s=(7.0,), fell_at_s=(5.0,)), None),
        (Expected(step_ratio=0.16), Facts(unit_bits_per_second=60e6), "a step adds 6"),
        (Expected(step_ratio=0.16), Facts(unit_bits_per_second=74e6), None),
        (OUTAGE, Facts(outage=(5.1, 1.55), fell_at_s=(5.0, 6.5)), None),
        (OUTAGE, Facts(outage=(5.1, 1.65), fell_at_s=(5.0, 6.5)), "out for 1.650 s"),
        (OUTAGE, Facts(outage=(5.3, 1.5), fell_at_s=(5.0, 6.5)), "out from 5.300 on"),
        (OUTAGE, Facts(fell_at_s=(5.0, 6.5)), "outage None"),
        (Expected(lost_says="timed out"), Facts(), "no pair was lost to"),
        (Expected(fall_within_s=2), Facts(found_at_s=101.0), "planted at none"),
        (Expected(fall_within_s=2), Facts(found_at_s=101.0, fell_at_s=(100.0,)), None),
        (
            Expected(product_megabytes=1.25),
            Facts(words="the bandwidth-delay product at 1 Gbit/s and 21 ms is 2.6 MB per pair"),
            "BDP 2.6 MB, planted 1.25 MB",
        ),
        (Expected(rate_ratio_of=("base", 0.6, 0.9)), Facts(), "0.50 of 'base'"),
        (Expected(rate_ratio_of=("base", 0.4, 0.6)), Facts(), None),
        (
            Expected(rate_ratio_of=("other", 0.4, 0.6)),
            Facts(),
            "cannot be held against 'other', which did not run",
        ),
        (Expected(share=(0.1, 0.2)), Facts(), None),
        (Expected(share=(0.2, 0.3)), Facts(), "0.12 of the NICs' rate, planted 0.2 to 0.3"),
        (Expected(verdict="inconclusive"), Facts(), "one: verdict pass, expected inconclusive"),
        (Expected(), Facts(problems=("trial 2: refused",)), "trial 2: refused"),
        (PAUSES, Facts(burst_s=BURST, fell_at_s=(95.0, 105.0), spikes_s=((105.3, 106.9),)), None),
        (PAUSES, Facts(burst_s=BURST, fell_at_s=(95.0, 119.0)), "no pause was planted"),
        (PAUSES, Facts(burst_s=BURST, fell_at_s=(105.0,)), "no spike at the pause of 105.0"),
        (
            PAUSES,
            Facts(burst_s=BURST, fell_at_s=(105.0,), spikes_s=((105.3, 107.0), (111.0, 112.5))),
            "a spike from 111.0 to 112.5",
        ),
    ],
)
def test_reports_missing_effect(expected: Expected, facts: Facts, message: str | None) -> None:
    result = case_faults(expected, facts=facts)
    assert len(result) == (message is not None)
    assert message is None or message in result[0]


def test_unknown_base_rate_is_reported() -> None:
    unknown = replace(BASE, payload_bits_per_second=None)
    result = case_faults(Expected(rate_ratio_of=("base", 0.4, 0.6)), base=unknown)
    assert result == ["cannot be held against 'base', which has no rate"]


def test_selected_case_includes_its_base() -> None:
    compared = {
        case.name: case.expected.rate_ratio_of[0]
        for case in CASES
        if case.expected.rate_ratio_of is not None
    }
    assert compared
    for name, base in compared.items():
        names = [case.name for case in chosen([name])]
        assert names.index(base) < names.index(name)
    assert [case.name for case in chosen(None)] == [case.name for case in CASES]
    assert chosen(["no such case"]) == []


def test_study_row_has_encapsulation_of_its_runs() -> None:
    spec = scenarios.load("vxlan-1-flow")
    question = Sweep(axes=(Axis(field="traffic.streams_count", values=(1, 2)),))
    study = Study(
        study_id="s1",
        spec=StudySpec(name="s", question=question, spec=spec),
        created_at=NOW,
        created_by="lab",
    )
    assert study_row("flows in a tunnel", study, []).encapsulation == "vxlan"
    plain = study.spec.model_copy(update={"spec": scenarios.load("native-1-flow")})
    assert study_row("x", study.model_copy(update={"spec": plain}), []).encapsulation == "none"
    trials = [ROW, replace(ROW, encapsulation="vxlan")]
    assert study_row("x", study, trials).encapsulation == "none, vxlan"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "fail"}, "verdict fail, expected pass"),
        ({"completeness_ratio": 0.9}, "completeness 0.9, expected 0.95 to 1"),
        ({"payload_bits_per_second": None}, "no rate"),
    ],
)
def test_reports_invalid_run_or_trial(changes: dict[str, Any], message: str) -> None:
    broken = replace(ROW, **changes)
    study = replace(ROW, payload_bits_per_second=None, verdict=None, trials=(BASE, broken))
    assert case_faults(Expected(), broken) == case_faults(Expected(), study) == [f"one: {message}"]


def test_reports_trials_with_an_excluded_limit() -> None:
    expected = Expected(trials_not_limited_by="firewall")
    trials = [
        replace(BASE, name=f"- {name}", bottleneck=name)
        for name in ("window", "firewall", "unknown")
    ]
    result = case_faults(expected, replace(ROW, trials=tuple(trials)))
    assert result == ["- firewall: bottleneck firewall, which is not planted"]
    assert case_faults(expected) == ["no trial has a verdict"]


def test_modes_are_compared_with_the_first() -> None:
    expected = Expected(modes={"deny": (0.19, 0.25), "alert": (0.8, 1.0)})
    trials = (
        replace(BASE, name="- mode plain"),
        replace(BASE, name="- mode deny", payload_bits_per_second=22e6),
        replace(BASE, name="- mode alert", payload_bits_per_second=70e6),
    )
    result = case_faults(expected, replace(ROW, trials=trials))
    assert result == ["alert is at 0.7 of the first mode's rate, planted 0.8 to 1"]
    (missing,) = case_faults(expected, replace(ROW, trials=trials[:2]))
    assert missing.startswith("alert is at None")


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        ((0.05, 0.31), []),
        ((0.05, 0.35), ["- log: fw at 0.300, counted 0.350"]),
        ((0.30, 0.05), ["- cef: fw at 0.040, counted 0.300", "- log: fw at 0.300, counted 0.050"]),
        ((None, 0.3), ["- cef: CPU of ['fw'], counted of []"]),
    ],
)
def test_device_cpu_is_compared_with_kernel_counters(
    counted: tuple[float | None, float], message: list[str]
) -> None:
    trials = tuple(
        replace(ROW, name=f"- {name}", cpu={"fw": result}, cpu_counted={"fw": item} if item else {})
        for name, result, item in zip(("cef", "log"), (0.04, 0.3), counted, strict=True)
    )
    expected = Expected(cpu_within=0.02)
    assert case_faults(expected, replace(ROW, trials=trials)) == message
    idle = replace(trials[1], cpu={"fw": 0.04}, cpu_counted={"fw": 0.04})
    result = case_faults(expected, replace(ROW, trials=(trials[1], idle)))
    assert "- log: fw at 0.040, no more than in - log" in result


def test_row_shows_unknown_values_faults_and_full_cpu() -> None:
    shown = cells(replace(ROW, faults=("bottleneck x, planted y",), machine_was_busy=True))
    assert shown[5:8] == ("50.0", "1.00 / -", "2.50")
    assert shown[8].startswith("(the machine was the limit) NOT SHOWN: bottleneck x, planted y")
    assert cells(replace(ROW, core_was_full=True))[8].startswith("(one core was full) ")


def test_table_lists_trials_below_their_study() -> None:
    study = replace(ROW, name="modes", payload_bits_per_second=None, trials=(BASE, BASE))
    lines = list(markdown([ROW, study]))
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| one", "| modes", "| base", "| base"]
    document = chapter(f"# Title\n\n{CHAPTER}\nold\n", [ROW], "today")
    assert document == f"# Title\n\n{CHAPTER}\ntoday\n\n" + "\n".join(markdown([ROW])) + "\n"
    with pytest.raises(ValueError, match="Measured"):
        chapter("# Title\n", [ROW], "today")
