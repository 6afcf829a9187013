import re
from collections.abc import Sequence
from datetime import datetime

import pytest

from broadside.coordinator import prices, scenarios
from broadside.coordinator.core.plan.cost_estimate import Estimate, estimate
from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.core.plan.price import Line, Prices
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.messages import Presence, Role
from tests.unit.coordinator.presences import fleet, presence

TABLE = prices.load()
D4_FLEET = [agent.model_copy(update={"vm_size": "Standard_D4_v4"}) for agent in fleet(30)]


def spec(scenario: str = "jumbo-1740s", /, **overrides: object) -> RunSpec:
    return scenarios.load(scenario, {"device": {"sku": "premium"}} | overrides)


def estimated(
    spec: RunSpec,
    agents: Sequence[Presence],
    now: datetime | None = None,
    table: Prices = TABLE,
) -> Estimate:
    return estimate(spec, expect_usage(spec, agents, now), table)


def line(cost: Estimate, item: str) -> Line:
    (result,) = [entry for entry in cost.bill.lines if entry.item.endswith(item)]
    return result


def test_29_minutes_at_180_gbits_cost_about_2200_dollars() -> None:
    cost = estimated(spec(bursts_count=1), D4_FLEET)
    assert line(cost, "firewall data").quantity == pytest.approx(39_150)
    assert line(cost, "firewall data").usd == pytest.approx(626.4)
    assert line(cost, "peering data").usd == pytest.approx(1566)
    assert cost.bill.total_usd == pytest.approx(2200, rel=0.005)
    assert cost.bill.unknown == ()
    assert cost.bill.total_low_usd is not None
    assert cost.bill.total_low_usd < 2200
    assert line(cost, "capacity units").quantity == pytest.approx((20 - 2) * 1780 / 3600)
    assert line(cost, "VMs Standard_D4_v4").unit_price_usd == pytest.approx(0.192)
    assert line(cost, "VMs Standard_D4_v4").quantity == pytest.approx(60 * 1780 / 3600)
    assert cost.charged


def test_every_price_has_a_source_and_shows_if_unverified() -> None:
    cost = estimated(spec(), D4_FLEET)
    for item in cost.bill.lines:
        assert item.source
        assert item.as_of == TABLE.as_of
    assert line(cost, "firewall deployment").note == "unverified here"
    assert "unverified here" in (line(cost, "VMs Standard_D4_v4").note or "")


def test_unknown_price_is_listed_and_not_zero() -> None:
    cost = estimated(spec(), fleet(30))
    machines = line(cost, "VMs of unknown size")
    assert (machines.usd, machines.note) == (None, "price unknown")
    assert cost.bill.unknown == ("60 VMs of unknown size",)
    assert any("BROADSIDE_AGENT_VM_SIZE" in assumption for assumption in cost.assumed)


def test_lab_run_costs_nothing_and_is_estimated_at_real_scale() -> None:
    real = estimated(spec(), D4_FLEET)
    lab = estimated(spec(scale=100), D4_FLEET)
    assert (lab.charged, lab.not_charged_why) == (False, "a lab run at 1:100 costs nothing")
    assert lab.bill == real.bill
    nowhere = estimated(spec(device={}), D4_FLEET)
    assert "without an Azure device" in (nowhere.not_charged_why or "")
    assert line(nowhere, "firewall deployment").low_usd == pytest.approx(
        1.25 * real.elapsed_s / 3600
    )
    assert line(nowhere, "firewall deployment").usd == pytest.approx(1.75 * real.elapsed_s / 3600)


def test_prices_paced_traffic_by_rate_and_unpaced_by_nic_limit() -> None:
    pace = {"stream_bits_per_second": 10_000_000, "streams_count": 10}
    paced = spec(traffic=pace)
    cost = estimated(paced, [])
    assert cost.ip_bits_per_second == pytest.approx(30 * 10 * 10e6 * 1500 / 1448)
    capped = [
        presence(Role.CLIENT, index, nic_bits_per_second=10_000_000_000) for index in range(1, 31)
    ]
    wide = estimated(spec(), capped)
    high = line(wide, "firewall data").high_usd
    # The limit is 30 NICs with 10 Gbit/s for 2 x 1740 seconds.
    assert high == pytest.approx(0.016 * 300 / 8 * 3480)
    # The documented limit of Premium is 100 Gbit/s. The target is above it.
    assert wide.ip_bits_per_second == pytest.approx(180e9)
    assert wide.rate_how == "the target"
    few = estimated(spec(), capped[:10])
    assert few.ip_bits_per_second == pytest.approx(100e9)
    assert "below the target" in few.rate_how


def test_price_is_unknown_without_target_pacing_or_nic_limit() -> None:
    open_ended = spec("smoke", device={}, objective={}, traffic={"streams_count": 1})
    cost = estimated(open_ended, fleet(2))
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
    refusal = estimated(requested, agents).over_budget
    assert refusal is not None
    assert refusal.field == "budget_usd"
    assert re.search(pattern, str(refusal)), str(refusal)


def test_accepts_run_within_budget() -> None:
    assert estimated(spec(budget_usd=5000), D4_FLEET).over_budget is None
