"""The ``broadside estimate`` and ``broadside price`` commands, which show the cost of a run."""

from pathlib import Path
from typing import Annotated

import typer

from broadside.coordinator import prices, scenarios
from broadside.coordinator.cli.exit_codes import exit_usage
from broadside.coordinator.cli.options import ScenarioArgument
from broadside.coordinator.cli.session import (
    Assignments,
    RunArgument,
    Session,
    WatchedSession,
    user_name,
)
from broadside.coordinator.cli.text_tables import TextColumn, cells, print_table
from broadside.coordinator.core import formatting
from broadside.coordinator.core.formatting import dollars
from broadside.coordinator.core.plan.budget import PriceMeter
from broadside.coordinator.core.plan.cost_estimate import EarlyStopEstimate, LaunchEstimate
from broadside.coordinator.core.plan.price import Bill
from broadside.coordinator.runs.requests import EstimateRequest


def estimate(
    session: Session,
    scenario: ScenarioArgument,
    assignments: Assignments = None,
    price_file: Annotated[Path | None, typer.Option("--price-file", metavar="FILE")] = None,
) -> None:
    """Estimate the cost of a run.

    It also checks if the fleet can execute the run now. Nothing is launched.

    Args:
        price_file: Prices that replace those of the table.
    """
    try:
        spec = scenarios.load(scenario, scenarios.parse_overrides(assignments or []))
        table = None if price_file is None else prices.plain(prices.read(price_file))
    except prices.BadPrices as error:
        exit_usage(str(error))
    request = EstimateRequest(spec=spec.to_fields(), prices=table, by=user_name())
    session.show(session.call(lambda client: client.estimate(request)), _print_estimate)


def price(session: WatchedSession, run_id: RunArgument) -> None:
    """Show the cost of a run.

    It prints the cost so far and the expected cost at the end of the run.
    """
    meter = session.call_run(run_id, lambda client, resolved: client.price(resolved))
    session.show(meter, _print_price)


def _print_price(meter: PriceMeter) -> None:
    if not meter.charged and not meter.spent.lines:
        typer.echo(meter.not_charged_why)
        return
    if not meter.charged:
        typer.echo(f"{meter.not_charged_why}; the costs below are those at real scale")
    spent = (
        f"spent: {_total(meter.spent)}, for {formatting.size(meter.real_ip_bytes)} at the IP layer"
    )
    typer.echo(f"{spent}\nat the end: {_total(meter.projected)}")
    _print_bill(meter.projected)
    if meter.budget_usd is not None:
        typer.echo(f"budget: {dollars(meter.budget_usd)}, left {dollars(meter.budget_left_usd)}")
    if meter.stopped is not None:
        typer.echo(f"stopped: {meter.stopped}")
    typer.echo(f"prices: {meter.prices}, {meter.prices_as_of}, {meter.region}")


def _print_estimate(result: LaunchEstimate) -> None:
    price = result.price
    total = _total(price.bill)
    if not price.charged:
        total = f"{price.not_charged_why}; at real scale it would be {total}"
    typer.echo(f"price: {total}")
    _print_bill(price.bill)
    if price.early_stop is not None:
        _print_early_stop(price.early_stop)
    typer.echo(
        f"{formatting.time(price.traffic_s)} of traffic at "
        f"{formatting.rate(price.ip_bits_per_second)} IP ({price.rate_how}), over "
        f"{formatting.number(price.elapsed_s / 3600)} h"
    )
    typer.echo(f"prices: {price.prices}, {price.prices_as_of}, {price.region}")
    for kind, lines in (
        ("assumed", price.assumed),
        ("warning", result.warnings),
        ("problem", result.problems),
    ):
        for line in lines:
            typer.echo(f"{kind}: {line}")
    typer.echo("could be launched now" if result.feasible else "could not be launched now")


def _print_early_stop(early: EarlyStopEstimate) -> None:
    margin = "unknown" if early.margin_ratio is None else f"{early.margin_ratio:+.1%}"
    scatter = f"scatter {early.scatter_ratio:.1%}, correlation {early.correlation:.2f}"
    typer.echo(
        f"with objective.stop: {dollars(early.expected_usd)} expected, at most "
        f"{dollars(early.worst_usd)}; {early.expected_burst_s:.0f} s per burst at a margin of "
        f"{margin} ({early.how}; {scatter}"
        f"{'' if early.history_bursts_count else ', both assumed'})"
    )


def _total(bill: Bill) -> str:
    minimum = "at least " if bill.unknown else ""
    high = dollars(bill.total_high_usd) if bill.total_high_usd is not None else "unknown"
    return f"{minimum}{dollars(bill.total_usd)} ({dollars(bill.total_low_usd)} to {high})"


def _print_bill(bill: Bill) -> None:
    columns: dict[str, TextColumn] = {
        "item": "item",
        "quantity": lambda line: formatting.quantity(line.quantity, line.unit),
        "unit price": lambda line: formatting.unit_price(line.unit_price_usd),
        "USD": lambda line: dollars(line.usd),
        "low": "low_usd",
        "high": "high_usd",
        "source": lambda line: ", ".join(
            filter(None, [line.source, str(line.as_of or ""), line.note])
        ),
    }
    rows = [cells(line, columns) for line in bill.lines]
    print_table("", list(columns), rows, low_priority=["source", "unit price"])
    if bill.unknown:
        typer.echo(f"not in the total, because the price is unknown: {', '.join(bill.unknown)}")
