"""Test that each price in the documentation is the answer of the code."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from broadside.coordinator import prices, scenarios
from broadside.coordinator.core.plan.cost_estimate import expected_bill
from broadside.coordinator.core.plan.expected_usage import expect_usage
from broadside.coordinator.core.plan.standing_cost import RangeState, standing_bill
from broadside.exchange.messages import Role
from tests.unit.coordinator.presences import presence

DOCS: Final = Path(__file__).parents[2] / "docs"
TABLE: Final = prices.load()
GB_PER_MINUTE: Final = 180e9 / 8 / 1e9 * 60
# Requirements as deploy/azure/existing.tf computes them for the two examples on the page.
SCALE: Final = {
    "vm_size": "Standard_D4_v4",
    "coordinator_size": "Standard_B2als_v2",
    "appliance": "azure-firewall",
    "firewall_tier": "Premium",
    "bastion": True,
    "nva_size": None,
    "nva_count": 0,
    "nat_gateways_count": 3,
    "private_endpoints": False,
    "public_addresses_count": 5,
}
EXISTING: Final = SCALE | {"appliance": "existing-firewall", "public_addresses_count": 4}


def run_cost(scenario: str, /, pairs_count: int = 30, **overrides: object) -> float:
    """Return the expected cost in USD of a run through Azure Firewall Premium."""
    fields = {"device": {"sku": "premium"}, "pairs_count": pairs_count, **overrides}
    agents = [
        presence(role, index).model_copy(update={"vm_size": "Standard_D4_v4"})
        for role in Role
        for index in range(1, pairs_count + 1)
    ]
    spec = scenarios.load(scenario, fields)
    total_usd = expected_bill(spec, expect_usage(spec, agents), TABLE).total_usd
    assert total_usd is not None
    return total_usd


def hourly_cost(needs: Mapping[str, Any], agents_count: int = 0, *, parked: bool = False) -> float:
    """Return the cost of a range in USD per hour."""
    bill = standing_bill(needs, RangeState(agents_count=agents_count, parked=parked), TABLE)
    assert bill.unknown == ()
    assert bill.total_usd is not None
    return bill.total_usd


def traffic_minute_cost() -> float:
    assert TABLE.peering is not None
    gigabyte = TABLE.firewall["premium"].gb
    assert gigabyte is not None
    return GB_PER_MINUTE * (gigabyte.usd + TABLE.peering.usd)


def units_hour_cost() -> float:
    premium = TABLE.firewall["premium"]
    assert premium.unit_hour is not None
    return (20 - premium.included_units_count) * premium.unit_hour.usd


# Text around each price, with the code that gives it and the tolerance in percent.
DAY_ONE: Final[tuple[tuple[str, Callable[[], float], float], ...]] = (
    (
        "an hour and a half and about $_",
        lambda: 1.5 * hourly_cost(SCALE, 60) + run_cost("burst-30s", bursts_count=1),
        2,
    ),
    ("Each minute at 180 Gbit/s costs $_.", traffic_minute_cost, 1),
    ("cost $_ an hour with 60 agents", lambda: hourly_cost(SCALE, 60), 0),
    ("60 agents, $_ without agents", lambda: hourly_cost(SCALE), 0),
    ("$2.26 without agents, and parked $_ a day", lambda: 24 * hourly_cost(SCALE, parked=True), 0),
    ("25 minutes, and costs $_ an hour", lambda: hourly_cost(SCALE), 0),
    ("plus $_ while the 60 VMs", lambda: hourly_cost(SCALE, 60) - hourly_cost(SCALE), 0),
    ("7 minutes each and costs $_ an hour", units_hour_cost, 0),
    ("the run costs about $_.", lambda: run_cost("burst-30s", bursts_count=1), 1),
    ("280 seconds, which cost about $_.", lambda: run_cost("scale-180g"), 1),
    ("With 0 VMs the range costs $_ an hour", lambda: hourly_cost(SCALE), 0),
    ("parked, it costs $_ a day", lambda: 24 * hourly_cost(SCALE, parked=True), 0),
    ("costs about $_ a day parked", lambda: 24 * hourly_cost(SCALE, parked=True), 0),
    ("parked, $_ running without agents", lambda: 24 * hourly_cost(SCALE), 0),
    ("cost $_ an hour with 20 agents", lambda: hourly_cost(EXISTING, 20), 0),
    ("20 agents, $_ without agents", lambda: hourly_cost(EXISTING), 0),
    ("$0.50 without agents, and parked $_ a day",
     lambda: 24 * hourly_cost(EXISTING, parked=True), 0),
    ("15 minutes, and costs $_ an hour", lambda: hourly_cost(EXISTING), 0),
    ("plus $_ while the 20 VMs", lambda: hourly_cost(EXISTING, 20) - hourly_cost(EXISTING), 0),
    ("Peering costs $_ per GB", lambda: TABLE.peering.usd if TABLE.peering else 0.0, 0),
    (
        "75 GB and costs about $_.",
        lambda: run_cost("burst-30s", pairs_count=2, bursts_count=1),
        7,
    ),
)  # fmt: skip
LONG_RUNS: Final[tuple[tuple[str, Callable[[], float], float], ...]] = (
    (
        "--set device.sku=premium # about $_ for 48 hours",
        lambda: run_cost("soak", bursts_count=96),
        1,
    ),
)
FIRST: Final = SCALE | {"firewall_tier": "Basic", "public_addresses_count": 6}


def first_hour_cost() -> float:
    """Return the cost of two hours with four agents, and of the run in step 7."""
    target = {"target_bits_per_second": 1e8}
    run = run_cost(
        "burst-30s", pairs_count=2, bursts_count=3, device={"sku": "basic"}, objective=target
    )
    return 2 * hourly_cost(FIRST, 4) + run


FIRST_HOUR: Final[tuple[tuple[str, Callable[[], float], float], ...]] = (
    ("for two hours about $_", first_hour_cost, 0),
)
PAGES: Final = {
    "azure-first-hour.md": FIRST_HOUR, "day-one.md": DAY_ONE, "long-runs.md": LONG_RUNS
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_prices_on_the_page_are_the_computed_ones(page: str) -> None:
    text = " ".join((DOCS / page).read_text("utf-8").split())
    spans: set[tuple[int, int]] = set()
    for context, compute, tolerance_percent in PAGES[page]:
        pattern = re.escape(context).replace("_", r"([\d,]+(?:\.\d+)?)", 1)
        matches = list(re.finditer(pattern, text))
        assert matches, context
        for match in matches:
            stated, computed = float(match[1].replace(",", "")), compute()
            digits = len(match[1].partition(".")[2])
            allowed = computed * tolerance_percent / 100 or 0.5 * 10**-digits
            assert stated == pytest.approx(computed, abs=allowed * (1 + 1e-9)), context
            spans.add(match.span(1))
    prices_on_page = {match.span(1) for match in re.finditer(r"\$(\d[\d,]*(?:\.\d+)?)", text)}
    assert prices_on_page <= spans, [text[a - 40 : b + 20] for a, b in prices_on_page - spans]


def test_no_other_page_states_a_price() -> None:
    stated = {
        path.name
        for path in DOCS.rglob("*.md")
        if re.search(r"\$\d", path.read_text("utf-8")) and path.name not in PAGES
    }
    # Savings of bursts that end early (make stops).
    assert stated == {"validation.md", "verdict.md"}


def test_first_hour_costs_less_than_ten_dollars_even_if_it_takes_three() -> None:
    assert first_hour_cost() + hourly_cost(FIRST, 4) < 10
    text = " ".join((DOCS / "azure-first-hour.md").read_text("utf-8").split())
    variables = (DOCS.parent / "deploy/azure/examples/first-hour.tfvars").read_text("utf-8")
    assert re.findall(r"^(\w+) += (.*)$", variables, re.MULTILINE) == [
        ("firewall_tier", '"Basic"'), ("instances", "2"), ("budget_amount", "20"),
    ]  # fmt: skip
    for words in ("pairs_count=2", "bursts_count=3", "device.sku=basic", "per_second=100M"):
        assert words in text


def test_burst_of_29_minutes_costs_what_the_pages_state() -> None:
    cost_usd = run_cost("jumbo-1740s", bursts_count=1)
    for page in ("verdict.md", "validation.md"):
        assert "about $2,200" in (DOCS / page).read_text("utf-8")
    assert cost_usd == pytest.approx(2200, rel=0.01)
