"""Tests for the spend of a run and its budget."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.plan.budget import (
    STOPPED_BY,
    Spend,
    basis,
    measure,
    over_budget_reason,
    overspent_reason,
    ran,
)
from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.core.plan.planner import plan
from broadside.coordinator.core.run_spec import Plan, due_at
from broadside.exchange.messages import Control, Presence
from tests.unit.coordinator.core.plan.test_cost_estimate import D4_FLEET, TABLE, estimated, spec
from tests.unit.coordinator.presences import NOW


def soak(agents: list[Presence] = D4_FLEET, **overrides: object) -> Plan:
    requested = spec("soak", bursts_count=10, align_to_period=False, **overrides)
    return plan(requested, agents, NOW, "run-1")


def spending(run: Plan, *payload_bytes: int, running: int | None = None) -> Spend:
    measured = dict(enumerate(payload_bytes))
    if running is not None:
        measured[len(payload_bytes)] = running
    return Spend(
        plan=run,
        basis=basis(run.spec, expect_usage(run.spec, D4_FLEET)),
        payload_bytes=measured,
        over=frozenset(range(len(payload_bytes))),
    )


# Payload for a burst at the documented limit of the firewall.
BURST_BYTES = round(100e9 / 8 * 1740 / (1500 / 1448))


def test_spend_grows_from_zero_to_the_estimate() -> None:
    run = soak()
    estimate = estimated(run.spec, D4_FLEET).bill.total_usd or 0
    begin = measure(spending(run), TABLE, NOW, None)
    assert begin.spent.total_usd == 0
    assert begin.projected.total_usd == pytest.approx(estimate, rel=1e-3)
    half_at = run.bursts[5].planned_start_at
    half = measure(spending(run, *[BURST_BYTES] * 5), TABLE, half_at, None)
    assert half.spent.total_usd == pytest.approx(estimate / 2, rel=0.02)
    assert half.projected.total_usd == pytest.approx(estimate, rel=1e-3)
    end_at = run.bursts[-1].planned_end_at + timedelta(days=3)
    end = measure(spending(run, *[BURST_BYTES] * 10), TABLE, end_at, None)
    assert end.spent == end.projected
    assert end.spent.total_usd == pytest.approx(estimate, rel=1e-3)


@pytest.mark.parametrize("after_s", [0, 1, 100, 1700, 1799])
def test_estimate_includes_wait_for_aligned_start(after_s: int) -> None:
    requested, now = spec("soak", bursts_count=3), NOW + timedelta(seconds=after_s)
    assert requested.align_to_period
    estimate = estimated(requested, D4_FLEET, now)
    budgeted = requested.model_copy(update={"budget_usd": estimate.bill.total_usd})
    agents = [agent.model_copy(update={"beat_at": now}) for agent in D4_FLEET]
    run = plan(budgeted, agents, now, "run-1")
    ends_at = due_at(run.bursts[-1])
    assert estimate.elapsed_s == (ends_at - now).total_seconds()
    end = measure(spending(run, *[BURST_BYTES] * 3), TABLE, ends_at, None)
    assert end.spent.total_usd == pytest.approx(estimate.bill.total_usd, rel=1e-6)
    assert over_budget_reason(spending(run, *[BURST_BYTES] * 2), run.bursts[2], TABLE) is None


def test_running_burst_counts_sent_bytes_and_projects_full_burst() -> None:
    run = soak()
    now = run.bursts[1].planned_start_at + timedelta(seconds=60)
    meter = measure(spending(run, BURST_BYTES, running=1000), TABLE, now, None)
    assert meter.measured_bytes == BURST_BYTES + 1000
    complete = measure(spending(run, *[BURST_BYTES] * 10), TABLE, NOW + timedelta(days=9), None)
    assert meter.projected.total_usd == pytest.approx(complete.spent.total_usd, rel=1e-6)


def test_cancelled_run_has_no_further_cost() -> None:
    run = soak(budget_usd=20_000)
    cancelled_at = run.bursts[2].planned_start_at - timedelta(seconds=10)
    control = Control(
        run_id="run-1", lease_until_at=NOW, cancelled_at=cancelled_at, cancelled_by="somebody"
    )
    meter = measure(
        spending(run, BURST_BYTES, BURST_BYTES), TABLE, NOW + timedelta(days=9), control
    )
    assert meter.spent == meter.projected
    assert meter.budget_left_usd == pytest.approx(20_000 - (meter.spent.total_usd or 0))
    assert meter.stopped is None
    assert meter.elapsed_s == pytest.approx((cancelled_at - NOW).total_seconds())


@given(budget=st.floats(100, 30_000), bursts=st.lists(st.integers(0, 2 * BURST_BYTES), max_size=9))
def test_run_with_constant_bursts_stays_within_budget(budget: float, bursts: list[int]) -> None:
    run = soak(budget_usd=budget)
    steady = [bursts[0]] * 10 if bursts and bursts[0] else [BURST_BYTES] * 10
    # The first burst is checked at launch.
    ran_count = 1
    for burst in run.bursts[1:]:
        if over_budget_reason(spending(run, *steady[: burst.index]), burst, TABLE) is not None:
            break
        ran_count += 1
    if ran_count > 1:
        ended_at = run.bursts[ran_count - 1].planned_end_at
        meter = measure(spending(run, *steady[:ran_count]), TABLE, ended_at, None)
        assert (meter.spent.total_usd or 0) <= budget * (1 + 1e-9)


def test_names_burst_that_would_exceed_the_budget() -> None:
    # Each burst costs about $1,200.
    run = soak(budget_usd=3000)
    assert over_budget_reason(spending(run, BURST_BYTES), run.bursts[1], TABLE) is None
    reason = over_budget_reason(spending(run, BURST_BYTES, BURST_BYTES), run.bursts[2], TABLE)
    assert reason is not None
    assert reason.startswith("budget: $2,4")
    assert "burst 3 of 10" in reason
    assert "above the budget of $3,000" in reason


def test_stops_a_burst_whose_bytes_have_spent_the_budget() -> None:
    # Each burst costs about $1,200.
    run = soak(budget_usd=1500)
    burst = run.bursts[1]
    now = burst.planned_start_at + timedelta(seconds=600)
    within = spending(run, BURST_BYTES, running=BURST_BYTES // 8)
    assert overspent_reason(within, burst, TABLE, now) is None
    above = spending(run, BURST_BYTES, running=BURST_BYTES // 2)
    reason = overspent_reason(above, burst, TABLE, now)
    assert reason is not None
    assert "are spent in burst 2 of 10, above the budget of $1,500" in reason
    unlimited = soak()
    assert overspent_reason(spending(unlimited, BURST_BYTES), burst, TABLE, now) is None


def test_ended_burst_without_report_counts_as_expected() -> None:
    # Each burst costs about $1,200.
    run = soak(budget_usd=5000)
    reported = spending(run, *[BURST_BYTES] * 4)
    for silent in ({0}, {1, 2}, {0, 1, 2, 3}):
        stored = {
            index: sent for index, sent in reported.payload_bytes.items() if index not in silent
        }
        unreported = replace(reported, payload_bytes=stored)
        assert unreported.over_ip_bytes.value == pytest.approx(
            reported.over_ip_bytes.value, rel=1e-3
        )
        assert over_budget_reason(unreported, run.bursts[4], TABLE) is not None
        meter = measure(unreported, TABLE, run.bursts[4].planned_start_at, None)
        assert meter.measured_bytes == (4 - len(silent)) * BURST_BYTES
    nothing = replace(reported, payload_bytes=dict.fromkeys(range(4), 0))
    assert nothing.over_ip_bytes.value == 0


def test_plan_is_cut_only_if_the_budget_stopped_the_run() -> None:
    run = soak()
    at = run.bursts[2].planned_start_at - timedelta(seconds=3)
    control = Control(run_id="run-1", lease_until_at=NOW, cancelled_at=at, cancelled_by=STOPPED_BY)
    assert [burst.index for burst in ran(run, control).bursts] == [0, 1]
    assert ran(run, control.model_copy(update={"cancelled_by": "ada"})) == run
    # A burst that was stopped in progress is left out, but there is always one.
    in_third = run.bursts[2].planned_start_at + timedelta(seconds=5)
    stopped = control.model_copy(update={"cancelled_at": in_third})
    assert [burst.index for burst in ran(run, stopped).bursts] == [0, 1]
    in_first = run.bursts[0].planned_start_at + timedelta(seconds=5)
    stopped = control.model_copy(update={"cancelled_at": in_first})
    assert [burst.index for burst in ran(run, stopped).bursts] == [0]
    assert ran(run, None) == run
