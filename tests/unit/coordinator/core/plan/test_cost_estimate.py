import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator import prices, scenarios
from broadside.coordinator.core.plan.budget import (
    STOPPED_BY,
    Spend,
    basis,
    measure,
    over_budget_reason,
    overspent_reason,
    ran,
)
from broadside.coordinator.core.plan.cost_estimate import Estimate, estimate, rate_of
from broadside.coordinator.core.plan.planner import plan
from broadside.coordinator.core.plan.price import Line, Span
from broadside.coordinator.core.run_spec import Plan, RunSpec, due_at
from broadside.exchange.messages import Control, Presence, Role
from tests.unit.coordinator.presences import NOW, fleet, presence

TABLE = prices.load()
D4_FLEET = [agent.model_copy(update={"vm_size": "Standard_D4_v4"}) for agent in fleet(30)]


def spec(scenario: str = "jumbo-1740s", /, **overrides: object) -> RunSpec:
    return scenarios.load(scenario, {"device": {"sku": "premium"}} | overrides)


def line(cost: Estimate, item: str) -> Line:
    (result,) = [entry for entry in cost.bill.lines if entry.item.endswith(item)]
    return result


def test_29_minutes_at_180_gbits_cost_about_2200_dollars() -> None:
    cost = estimate(spec(bursts_count=1), D4_FLEET, TABLE)
    assert line(cost, "firewall data").quantity == pytest.approx(39_150)
    assert line(cost, "firewall data").usd == pytest.approx(626.4)
    assert line(cost, "peering data").usd == pytest.approx(1566)
    assert cost.bill.total_usd == pytest.approx(2200, rel=0.005)
    assert cost.bill.unknown == ()
    assert cost.bill.total_low_usd is not None
    assert cost.bill.total_low_usd < 2200
    assert line(cost, "capacity units").quantity == pytest.approx((20 - 2) * 1780 / 3600)
    assert line(cost, "VMs Standard_D4_v4").usd_each == pytest.approx(0.192)
    assert line(cost, "VMs Standard_D4_v4").quantity == pytest.approx(60 * 1780 / 3600)
    assert cost.charged


def test_every_price_has_a_source_and_shows_if_unverified() -> None:
    cost = estimate(spec(), D4_FLEET, TABLE)
    for item in cost.bill.lines:
        assert item.source
        assert item.as_of == TABLE.as_of
    assert line(cost, "firewall deployment").note == "unverified here"
    assert "unverified here" in (line(cost, "VMs Standard_D4_v4").note or "")


def test_unknown_price_is_listed_and_not_zero() -> None:
    cost = estimate(spec(), fleet(30), TABLE)
    machines = line(cost, "VMs of unknown size")
    assert (machines.usd, machines.note) == (None, "price unknown")
    assert cost.bill.unknown == ("60 VMs of unknown size",)
    assert any("BROADSIDE_AGENT_VM_SIZE" in assumption for assumption in cost.assumed)


def test_lab_run_costs_nothing_and_is_estimated_at_real_scale() -> None:
    real = estimate(spec(), D4_FLEET, TABLE)
    lab = estimate(spec(scale=100), D4_FLEET, TABLE)
    assert (lab.charged, lab.not_charged_why) == (False, "a lab run at 1:100 costs nothing")
    assert lab.bill == real.bill
    nowhere = estimate(spec(device={}), D4_FLEET, TABLE)
    assert "without an Azure device" in (nowhere.not_charged_why or "")
    assert line(nowhere, "firewall deployment").low_usd == pytest.approx(
        1.25 * real.elapsed_s / 3600
    )
    assert line(nowhere, "firewall deployment").usd == pytest.approx(1.75 * real.elapsed_s / 3600)


def test_prices_paced_traffic_by_rate_and_unpaced_by_nic_limit() -> None:
    pace = {"stream_bits_per_second": 10_000_000, "streams_count": 10}
    paced = spec(traffic=pace)
    cost = estimate(paced, [], TABLE)
    assert cost.ip_bits_per_second == pytest.approx(30 * 10 * 10e6 * 1500 / 1448)
    capped = [
        presence(Role.CLIENT, index, nic_bits_per_second=10_000_000_000) for index in range(1, 31)
    ]
    wide = estimate(spec(), capped, TABLE)
    high = line(wide, "firewall data").high_usd
    # The limit is 30 NICs with 10 Gbit/s for 2 x 1740 seconds.
    assert high == pytest.approx(0.016 * 300 / 8 * 3480)
    # The documented limit of Premium is 100 Gbit/s. The target is above it.
    assert wide.ip_bits_per_second == pytest.approx(180e9)
    assert wide.rate_how == "the target"
    few = estimate(spec(), capped[:10], TABLE)
    assert few.ip_bits_per_second == pytest.approx(100e9)
    assert "below the target" in few.rate_how


@pytest.mark.parametrize(
    ("sku", "target", "nics", "expected", "low", "high"),
    [
        # A low target does not lower the price, because the traffic is not paced.
        ("premium", 1, 300e9, 100e9, 1, 100e9),
        ("premium", 1, 60e9, 60e9, 1, 60e9),
        ("premium", 1, None, 100e9, 1, 100e9),
        ("premium", 180e9, 300e9, 180e9, 180e9, 300e9),
        ("premium", 180e9, None, 180e9, 180e9, None),
        (None, 1, 300e9, 300e9, 1, 300e9),
        (None, 180e9, None, 180e9, 180e9, None),
        (None, None, 300e9, 300e9, None, 300e9),
    ],
)
def test_prices_what_unpaced_traffic_can_carry(
    sku: str | None,
    target: float | None,
    nics: float | None,
    expected: float,
    low: float | None,
    high: float | None,
) -> None:
    objective = {} if target is None else {"target_bits_per_second": target, "layer": "ip"}
    requested = spec(device={} if sku is None else {"sku": sku}, objective=objective)
    agents = [
        presence(Role.CLIENT, index, nic_bits_per_second=None if nics is None else round(nics / 30))
        for index in range(1, 31)
    ]
    rate, _ = rate_of(requested, agents)
    assert rate == Span(value=expected, low=low, high=high)


def test_fleet_on_azure_without_sku_is_priced_up_to_the_limit_of_premium() -> None:
    objective = {"target_bits_per_second": 1, "layer": "ip"}
    rate, _ = rate_of(spec(device={}, objective=objective), D4_FLEET)
    assert rate == Span(value=100e9, low=1, high=100e9)


def test_price_is_unknown_without_target_pacing_or_nic_limit() -> None:
    open_ended = spec("smoke", device={}, objective={}, traffic={"streams_count": 1})
    cost = estimate(open_ended, fleet(2), TABLE)
    assert cost.ip_bits_per_second is None
    assert line(cost, "firewall data").usd is None
    assert "firewall data" in cost.bill.unknown


@pytest.mark.parametrize(
    ("overrides", "pattern"),
    [
        ({"budget_usd": 1000}, "estimated at \\$4,.* above its budget of \\$1,000; raise"),
        ({"budget_usd": 1000, "scale": 100}, "at real scale"),
        (
            {"budget_usd": 1000, "device": {}, "objective": {}},
            "cost is unknown; set objective.target_bits_per_second",
        ),
    ],
)
def test_rejects_run_over_budget_with_cost_and_fix(
    overrides: dict[str, object], pattern: str
) -> None:
    requested = spec(**overrides)
    agents = D4_FLEET if requested.objective.target_bits_per_second else fleet(30)
    refusal = estimate(requested, agents, TABLE).over_budget
    assert refusal is not None
    assert refusal.field == "budget_usd"
    assert re.search(pattern, str(refusal)), str(refusal)


def test_accepts_run_within_budget() -> None:
    assert estimate(spec(budget_usd=5000), D4_FLEET, TABLE).over_budget is None


# Spend -------------------------------------------------------------------------------------------


def soak(agents: list[Presence] = D4_FLEET, **overrides: object) -> Plan:
    requested = spec("soak", bursts_count=10, align_to_period=False, **overrides)
    return plan(requested, agents, NOW, "run-1")


def spending(run: Plan, *payload_bytes: int, running: int | None = None) -> Spend:
    measured = dict(enumerate(payload_bytes))
    if running is not None:
        measured[len(payload_bytes)] = running
    return Spend(
        plan=run,
        basis=basis(run.spec, D4_FLEET),
        payload_bytes=measured,
        over=frozenset(range(len(payload_bytes))),
    )


# Payload for a burst at the documented limit of the firewall.
BURST_BYTES = round(100e9 / 8 * 1740 / (1500 / 1448))


def test_spend_grows_from_zero_to_the_estimate() -> None:
    run = soak()
    estimated = estimate(run.spec, D4_FLEET, TABLE).bill.total_usd or 0
    begin = measure(spending(run), TABLE, NOW, None)
    assert begin.spent.total_usd == 0
    assert begin.projected.total_usd == pytest.approx(estimated, rel=1e-3)
    half_at = run.bursts[5].planned_start_at
    half = measure(spending(run, *[BURST_BYTES] * 5), TABLE, half_at, None)
    assert half.spent.total_usd == pytest.approx(estimated / 2, rel=0.02)
    assert half.projected.total_usd == pytest.approx(estimated, rel=1e-3)
    end_at = run.bursts[-1].planned_end_at + timedelta(days=3)
    end = measure(spending(run, *[BURST_BYTES] * 10), TABLE, end_at, None)
    assert end.spent == end.projected
    assert end.spent.total_usd == pytest.approx(estimated, rel=1e-3)


@pytest.mark.parametrize("after_s", [0, 1, 100, 1700, 1799])
def test_estimate_includes_wait_for_aligned_start(after_s: int) -> None:
    requested, now = spec("soak", bursts_count=3), NOW + timedelta(seconds=after_s)
    assert requested.align_to_period
    estimated = estimate(requested, D4_FLEET, TABLE, now)
    budgeted = requested.model_copy(update={"budget_usd": estimated.bill.total_usd})
    agents = [agent.model_copy(update={"beat_at": now}) for agent in D4_FLEET]
    run = plan(budgeted, agents, now, "run-1")
    ends_at = due_at(run.bursts[-1])
    assert estimated.elapsed_s == (ends_at - now).total_seconds()
    end = measure(spending(run, *[BURST_BYTES] * 3), TABLE, ends_at, None)
    assert end.spent.total_usd == pytest.approx(estimated.bill.total_usd, rel=1e-6)
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


# User prices -------------------------------------------------------------------------------------


def test_user_prices_override_the_table() -> None:
    user_prices = prices.override(
        {
            "name": "ours",
            "firewall": {"premium": {"gb": 0.01}},
            "peering": {"usd": 0.0},
            "vm_hour": {"standard_d4_v4": 0.1},
        }
    )
    cost = estimate(spec(bursts_count=1), D4_FLEET, user_prices)
    assert cost.prices == "ours"
    assert line(cost, "firewall data").usd == pytest.approx(391.5)
    assert line(cost, "firewall data").source == "your own figure"
    assert (line(cost, "peering data").usd, line(cost, "peering data").low_usd) == (0, 0)
    assert line(cost, "VMs Standard_D4_v4").usd_each == pytest.approx(0.1)
    # This is the price in the table.
    assert line(cost, "firewall deployment").usd_each == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("overrides", "pattern"),
    [
        ({"peering": -1}, "prices: peering.usd: .* greater than or equal to 0"),
        ({"firewal": {}}, "prices: firewal: Extra inputs"),
        ({"peering": {"usd": "cheap"}}, "prices: peering.usd: .*cheap"),
    ],
)
def test_rejects_invalid_user_prices(overrides: dict[str, object], pattern: str) -> None:
    with pytest.raises(prices.BadPrices, match=pattern):
        prices.override(overrides)


def test_finds_vm_price_by_size() -> None:
    assert TABLE.of_vm("standard_d16s_v5") is not None
    assert TABLE.of_vm("Standard_D16s_v5") == TABLE.of_vm("standard_d16S_v5")
    assert getattr(TABLE.of_vm("Standard_D16s_v5"), "usd", None) == pytest.approx(16 * 0.048)
    assert TABLE.of_vm("Standard_Z1") is None
    assert TABLE.of_vm(None) is None


def test_price_table_has_a_date() -> None:
    assert TABLE.as_of <= datetime.now(UTC).date()
