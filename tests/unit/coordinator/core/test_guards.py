"""Test that a guard stops on a breach, on missing values, and on nothing else."""

import pytest
from pydantic import ValidationError

from broadside.coordinator.core.guards import (
    Breach,
    Guard,
    GuardState,
    LiveValue,
    slow_guard_warnings,
)
from broadside.coordinator.core.run_spec import RunSpec

T0 = 1_795_000_000.0


def state(text: str, interval_s: float = 0.4) -> GuardState:
    guard = Guard.model_validate(text)
    return GuardState(guard=guard, index=0, interval_s=interval_s, since_s=T0)


def first_breach(guarded: GuardState, values: list[float], step_s: float = 0.4) -> Breach | None:
    """Return the first breach if the values are read every ``step_s``."""
    for number, value in enumerate(values):
        at_s = T0 + number * step_s
        guarded.add([LiveValue(at_s, value, "fw")])
        if (breach := guarded.judge(at_s + 0.05)) is not None:
            return breach
    return None


@pytest.mark.parametrize(
    ("text", "limit", "after_s", "device"),
    [
        ("cpu_ratio > 80% for 1500ms on fw", 0.8, 1.5, "fw"),
        ("probe_rtt_s>50ms", 0.05, 0.0, None),
        ("sessions_count > 900000 for 2", 900_000, 2.0, None),
        ("health_ratio < 100%", 1.0, 0.0, None),
    ],
)
def test_reads_and_writes_the_text_form(
    text: str, limit: float, after_s: float, device: str | None
) -> None:
    guard = Guard.model_validate(text)
    assert (guard.limit, guard.abort_after_s, guard.device) == (limit, after_s, device)
    assert guard.is_floor == ("<" in text)
    again = str(guard).replace("\u202f", "").replace(" ms", "ms").replace(" s", "s")
    assert Guard.model_validate(again.replace(" %", "%")) == guard


@pytest.mark.parametrize("text", ["cpu_ratio", "cpu_ratio > much", "cpu > 1 on", "x > 3ms", ""])
def test_rejects_text_that_is_no_guard(text: str) -> None:
    with pytest.raises(ValidationError):
        Guard.model_validate(text)


def test_stops_at_the_first_value_beyond_the_limit() -> None:
    breach = first_breach(state("cpu_ratio > 80%"), [0.3, 0.8, 0.81, 0.3])
    assert breach is not None
    assert (breach.value, breach.source, breach.breached_at_s) == (0.81, "fw", T0 + 0.8)
    assert breach.reason == "cpu_ratio of fw was 81.0 %, above the limit 80.0 %"


def test_waits_for_the_complete_time_beyond_the_limit() -> None:
    """A single value within the limit starts the time again."""
    guard = "cpu_ratio > 80% for 1s"
    assert first_breach(state(guard), [0.9, 0.9, 0.7, 0.9, 0.9, 0.7]) is None
    breach = first_breach(state(guard), [0.7, 0.9, 0.9, 0.9, 0.9])
    assert breach is not None
    assert breach.breached_at_s == T0 + 0.4


def test_a_floor_stops_below_the_limit() -> None:
    assert first_breach(state("health_ratio < 90%"), [1.0, 0.9]) is None
    breach = first_breach(state("health_ratio < 90%"), [1.0, 0.5])
    assert breach is not None
    assert "below the limit" in breach.reason


def test_uses_the_worst_device_or_pair() -> None:
    guarded = state("cpu_ratio > 80%")
    guarded.add([LiveValue(T0, 0.2, "fw-a"), LiveValue(T0, 0.95, "fw-b")])
    breach = guarded.judge(T0)
    assert breach is not None
    assert breach.source == "fw-b"


def test_one_silent_device_stops_the_run_although_another_reports() -> None:
    guarded = state("cpu_ratio > 80%")
    guarded.add([LiveValue(T0, 0.2, "fw-a"), LiveValue(T0, 0.3, "fw-b")])
    for at_s in (T0 + 3, T0 + 6):
        guarded.add([LiveValue(at_s, 0.2, "fw-a"), LiveValue(T0, 0.3, "fw-b")])
    assert guarded.judge(T0 + 4.9) is None
    breach = guarded.judge(T0 + 6)
    assert breach is not None
    assert breach.reason == "cpu_ratio had no new value for 5 s"
    assert breach.breached_at_s == T0


def test_ignores_old_values_of_a_pair_that_ended() -> None:
    guarded = state("probe_rtt_s > 50ms")
    guarded.add([LiveValue(T0, 0.9, "pair-001"), LiveValue(T0 + 4, 0.001, "pair-002")])
    assert guarded.judge(T0 + 4) is None
    assert guarded.worst == 0.001


def test_does_not_start_without_a_value() -> None:
    guarded = state("cpu_ratio > 80%")
    assert guarded.judge(T0 + 1) is None
    breach = guarded.judge_start(T0 + 1)
    assert breach is not None
    assert breach.reason == "cpu_ratio has no value, so the guard cannot be armed"


def test_warns_about_values_that_are_read_too_slowly() -> None:
    guards = [Guard.model_validate(text) for text in ("cpu_ratio > 1", "probe_rtt_s > 1")]
    assert slow_guard_warnings(guards, {"cpu_ratio": 0.4}) == []
    [warning] = slow_guard_warnings(guards, {"cpu_ratio": 60.0})
    assert "the value is read every 60 s" in warning
    assert "can continue for 61.0 s after a breach" in warning


def test_rejects_guards_that_could_not_be_armed() -> None:
    spec = RunSpec.model_validate(
        {"scenario": "x", "guards": ["probe_rtt_s > 50ms"], "lead_s": 3, "unattended_s": 600}
    )
    text = " | ".join(spec.problems())
    assert "set traffic.probe.before_s=4" in text
    assert "set at least 8 s" in text
    assert "have no guards" in text
    late = RunSpec.model_validate({"scenario": "x", "guards": ["probe_rtt_s > 1s"]})
    assert "a probe is lost after 1 s" in " ".join(late.problems())
    armed = {
        "scenario": "x",
        "guards": ["probe_rtt_s > 50ms"],
        "traffic": {"probe": {"before_s": 4}},
    }
    assert RunSpec.model_validate(armed).problems() == ()
