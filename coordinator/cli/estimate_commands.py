"""The ``broadside estimate`` and ``broadside price`` commands, which show the cost."""

from pathlib import Path
from typing import Annotated

import typer

from broadside.coordinator import prices, scenarios
from broadside.coordinator.cli import display
from broadside.coordinator.cli.connection import RunArgument, operator_name, run, run_of
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.options import Api, Assignments, Json, Scenario, print_json
from broadside.coordinator.core import formatting
from broadside.coordinator.core.formatting import dollars, dollars_each
from broadside.coordinator.core.plan.cost_estimate import Appraisal, Estimate
from broadside.coordinator.core.plan.price import Bill
from broadside.coordinator.views.requests import EstimateRequest


def estimate(
    scenario: Scenario,
    assignments: Assignments = None,
    own: Annotated[
        Path | None,
        typer.Option("--prices", metavar="FILE", help="your own figures, over the table's"),
    ] = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Say what a run would cost and whether the fleet could carry it now; launch nothing."""
    try:
        spec = scenarios.load(scenario, scenarios.parse_overrides(assignments or []))
        figures = None if own is None else prices.plain(prices.read(own))
    except prices.BadPrices as error:
        stop(str(error), Exit.USAGE)
    request = EstimateRequest(spec=spec.to_fields(), prices=figures, by=operator_name())

    said = run(api, lambda client: client.estimate(request))
    if as_json:
        print_json(said)
    else:
        _show(said)


def price(run_id: RunArgument, api: Api = None, as_json: Json = False) -> None:
    """Say what a run has cost so far, and will have cost at its end."""

    meter = run_of(api, run_id, lambda client, chosen: client.price(chosen))
    if as_json:
        print_json(meter)
        return
    if not meter.charged:
        typer.echo(f"{meter.not_charged_why}; the figures are what it would cost at real scale")
    typer.echo(f"spent: {_total(meter.spent)}, of {formatting.size(meter.real_ip_bytes)} at IP")
    typer.echo(f"at its end: {_total(meter.projected)}")
    _show_bill(meter.projected)
    if meter.budget_usd is not None:
        typer.echo(f"budget: {dollars(meter.budget_usd)}, left {dollars(meter.budget_left_usd)}")
    if meter.stopped is not None:
        typer.echo(f"stopped: {meter.stopped}")
    typer.echo(f"prices: {meter.prices}, {meter.prices_as_of}, {meter.region}")


def _show(said: Appraisal) -> None:
    price = said.price
    typer.echo(_headline(price))
    _show_bill(price.bill)
    typer.echo(
        f"{formatting.time(price.traffic_s)} of traffic at "
        f"{formatting.rate(price.ip_bits_per_second)} IP ({price.rate_how}), over "
        f"{formatting.number(price.elapsed_s / 3600)} h"
    )
    typer.echo(f"prices: {price.prices}, {price.prices_as_of}, {price.region}")
    for assumption in price.assumed:
        typer.echo(f"assumed: {assumption}")
    for warning in said.warnings:
        typer.echo(f"warning: {warning}")
    for problem in said.problems:
        typer.echo(f"problem: {problem}")
    typer.echo("could be launched now" if said.feasible else "could not be launched now")


def _headline(price: Estimate) -> str:
    total = _total(price.bill)
    if price.charged:
        return f"price: {total}"
    return f"price: {price.not_charged_why}; at real scale it would be {total}"


def _total(bill: Bill) -> str:
    least = "at least " if bill.unknown else ""
    high = dollars(bill.total_high_usd) if bill.total_high_usd is not None else "an unknown most"
    return f"{least}{dollars(bill.total_usd)} ({dollars(bill.total_low_usd)} to {high})"


def _show_bill(bill: Bill) -> None:
    display.print_table(
        "",
        ["what", "quantity", "each", "USD", "low", "high", "source"],
        [
            [
                line.item,
                formatting.quantity(line.quantity, line.unit),
                dollars_each(line.usd_each),
                dollars(line.usd),
                dollars(line.low_usd),
                dollars(line.high_usd),
                ", ".join(filter(None, [line.source, str(line.as_of or ""), line.note])),
            ]
            for line in bill.lines
        ],
        spare=["source", "each"],
    )
    if bill.unknown:
        typer.echo(f"not in the total, price unknown: {', '.join(bill.unknown)}")
