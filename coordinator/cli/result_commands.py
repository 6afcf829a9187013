"""Commands that list runs, bursts, pairs, seconds, reconciliation and agents."""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broadside.coordinator.cli.connection import RunArgument, run, run_of
from broadside.coordinator.cli.display import print_table
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.lists import RowsFormat, RowsOption, print_rows, show_list
from broadside.coordinator.cli.options import Api, Json, print_json
from broadside.coordinator.cli.screen_text import write_bytes
from broadside.coordinator.core import formatting
from broadside.coordinator.core.summary import Verdict
from broadside.coordinator.runs.listing import GROUPINGS, ListedState, state_of

if TYPE_CHECKING:
    from broadside.coordinator.core.summary import BurstSummary
    from broadside.coordinator.runs.listing import CostSum, RateSpread
    from broadside.coordinator.views.answers import BurstEntry
    from broadside.exchange.messages import ClockReading
    from broadside.exchange.records import RunHeader


BASELINES_MAX_COUNT: Final = 100


class Whose(StrEnum):
    FLEET = "fleet"
    PAIR = "pair"


Burst = Annotated[int, typer.Option("--burst", min=1, help="which burst, from 1")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="at most so many")]
Scenario = Annotated[str | None, typer.Option(help="only of this scenario")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="only with it; repeatable")
]
From = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="traffic begins at or after it")
]
Before = Annotated[str | None, typer.Option(metavar="TIME", help="traffic begins before it")]


def _asked(
    scenario: str | None, labels: list[str] | None, since: str | None, before: str | None
) -> dict[str, object]:
    """Return the filters as API parameters."""
    for label in labels or ():
        if "=" not in label:
            stop(f"--label {label}: give NAME=VALUE", Exit.USAGE)
    asked: dict[str, object] = {
        "scenario": scenario,
        "label": [label.replace("=", ":", 1) for label in labels or ()] or None,
        "from_at": instant_of(since),
        "before_at": instant_of(before),
    }
    return {name: value for name, value in asked.items() if value is not None}


def instant_of(text: str | None) -> str | None:
    """Convert a date or time from the command line to ISO 8601, or return None for None.

    Without an offset, local time is used. This is printed.
    """
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        stop(f"{text!r} is no time; write it like 2026-11-22 or 2026-11-22T14:00Z", Exit.USAGE)
    if at.tzinfo is None:
        at = at.astimezone()
        typer.echo(f"{text}: taken as {at.isoformat()}, this host's time", err=True)
    return at.isoformat()


def list_runs(
    limit: Limit = 20,
    scenario: Scenario = None,
    labels: Labels = None,
    state: Annotated[ListedState | None, typer.Option(help="only in this state")] = None,
    verdict: Annotated[Verdict | None, typer.Option(help="only with this verdict")] = None,
    by: Annotated[str | None, typer.Option(help="only of this operator")] = None,
    since: From = None,
    before: Before = None,
    form: RowsOption = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """List runs, newest first, with how each ended."""
    asked = _asked(scenario, labels, since, before)
    asked |= {
        name: str(value)
        for name, value in (("state", state), ("verdict", verdict), ("by", by))
        if value is not None
    }

    found = run(api, lambda client: client.runs(limit, **asked))
    show_list(
        found,
        {
            "run": lambda header: header.run_id,
            "scenario": lambda header: header.scenario,
            "created": lambda header: f"{header.created_at:%Y-%m-%d %H:%M:%SZ}",
            "by": lambda header: header.created_by,
            "verdict": _verdict,
            "received": _received,
            "complete": lambda header: (
                formatting.ratio(header.outcome.completeness_ratio) if header.outcome else ""
            ),
        },
        of="broadside.exchange.records:RunHeader",
        none="no such run; `broadside launch loopback` makes one"
        if asked
        else "no run yet; launch one with `broadside launch loopback`",
        form=form,
        as_json=as_json,
        spare=["scenario", "created", "by", "complete"],
        more=lambda header: {"verdict": header.outcome and header.outcome.verdict},
    )


def baseline(
    scenario: Annotated[str, typer.Argument(help="scenario of the run")], api: Api = None
) -> None:
    """Print the newest accepted run of a scenario that has a rate and did not fail."""
    from broadside.coordinator.core.metrics import RECEIVED

    asked = _asked(scenario, ["baseline=accepted"], None, None)
    asked["state"] = ListedState.FINISHED.value
    for header in run(api, lambda client: client.runs(BASELINES_MAX_COUNT, **asked)):
        outcome = header.outcome
        if outcome and outcome.verdict is not Verdict.FAIL and RECEIVED.of_run(outcome):
            typer.echo(header.run_id)
            return


def _verdict(header: "RunHeader") -> str:
    if header.outcome is None:
        return "not over"
    cancelled = " (cancelled)" if state_of(header) is ListedState.CANCELLED else ""
    return f"{header.outcome.verdict}{cancelled}"


def _received(header: "RunHeader") -> str:
    from broadside.coordinator.core.metrics import RECEIVED

    return formatting.rate(RECEIVED.of_run(header.outcome)) if header.outcome else ""


def aggregate(
    group_by: Annotated[
        str, typer.Option("--group-by", metavar="WHAT", help=GROUPINGS)
    ] = "scenario",
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="of hours, days, weeks and months: an IANA name")
    ] = "UTC",
    scenario: Scenario = None,
    labels: Labels = None,
    since: From = None,
    before: Before = None,
    form: RowsOption = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Sum many runs by time, scenario, label, device or verdict: rates, coverage, residual."""
    asked = _asked(scenario, labels, since, before)

    found = run(api, lambda client: client.aggregate(group_by, timezone, **asked))
    if as_json:
        print_json(found)
        return
    show_list(
        found.groups,
        {
            group_by: lambda group: group.group if group.group is not None else "(none)",
            "runs": lambda group: str(group.runs_count),
            "bursts": lambda group: formatting.count(group.bursts_count),
            "verdicts": lambda group: ", ".join(
                f"{count} {verdict}" for verdict, count in group.verdicts.items()
            ),
            "mean, real scale": lambda group: _rate(group.received, "mean"),
            "+-": lambda group: _rate(group.received, "half_width"),
            "min": lambda group: _rate(group.received, "min"),
            "max": lambda group: _rate(group.received, "max"),
            "inconclusive ones": lambda group: _rate(group.received_inconclusive, "mean"),
            "complete": lambda group: formatting.ratio(
                None if group.completeness is None else group.completeness.mean_ratio
            ),
            "worst residual": lambda group: formatting.signed_ratio(group.worst_residual_ratio),
            "cost": lambda group: _cost(group.cost),
        },
        of="broadside.coordinator.runs.listing:RunGroup",
        none="no run to sum: none is there, or none fits what was asked; see `broadside runs`",
        form=form,
        as_json=False,
        spare=["min", "max", "runs", "complete", "cost", "bursts"],
    )
    if found.truncated:
        typer.echo("there are more; narrow the range with --from and --before", err=True)


def _rate(received: "RateSpread | None", which: str) -> str:
    return formatting.rate(getattr(received, f"{which}_bits_per_second", None))


def _cost(cost: "CostSum | None") -> str:
    """Return the cost on Azure. For runs without cost on Azure, return the cost at real scale."""
    if cost is None:
        return "unknown"
    if not cost.charged_usd:
        return f"none ({formatting.dollars(cost.uncharged_usd)} at real scale)"
    return formatting.dollars(cost.charged_usd)


def bursts(
    run_id: RunArgument,
    limit: Limit = 100,
    form: RowsOption = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """List a run's bursts: where each stands, and what it showed."""
    from broadside.coordinator.core.metrics import RECEIVED

    def shown(cell: Callable[["BurstSummary"], str]) -> Callable[["BurstEntry"], str]:
        return lambda entry: cell(entry.summary) if entry.summary else ""

    found = run_of(api, run_id, lambda client, chosen: client.bursts(chosen, limit))
    show_list(
        found,
        {
            "burst": lambda entry: str(entry.status.index + 1),
            "start (UTC)": lambda entry: f"{entry.status.planned_start_at:%Y-%m-%d %H:%M:%S}",
            "phase": lambda entry: entry.status.phase.value,
            "measured": shown(lambda burst: f"{burst.pairs_measured}/{burst.pairs_planned}"),
            "received": shown(lambda burst: formatting.rate(RECEIVED.of_burst(burst))),
            "firewall": shown(lambda burst: formatting.rate(burst.firewall_bits_per_second)),
            "limiter": shown(lambda burst: burst.limiter.value),
            "verdict": shown(lambda burst: burst.verdict.value),
        },
        of="broadside.coordinator.views.answers:BurstEntry",
        none="the run has no burst",
        form=form,
        as_json=as_json,
        spare=["measured", "limiter"],
    )


def pairs(
    run_id: RunArgument,
    burst: Burst = 1,
    limit: Limit = 2000,
    form: RowsOption = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """List the pairs of one burst: who took each, how it ended, what it showed."""
    found = run_of(api, run_id, lambda client, chosen: client.pairs(chosen, burst - 1, limit))
    show_list(
        found,
        {
            "pair": lambda entry: entry.pair,
            "client": lambda entry: entry.client_agent_id or "nobody",
            "server": lambda entry: (
                f"{entry.endpoint.agent_id} {entry.endpoint.address}:{entry.endpoint.port}"
            ),
            "ended": lambda entry: (
                entry.summary.state.value
                if entry.summary
                else (entry.outcome or entry.phase or "waiting")
            ),
            "received": lambda entry: (
                formatting.rate(entry.summary.received_bits_per_second) if entry.summary else ""
            ),
            "complete": lambda entry: (
                formatting.ratio(entry.summary.completeness_ratio) if entry.summary else ""
            ),
            "why": lambda entry: (entry.summary or entry).reason or "",
        },
        of="broadside.coordinator.views.answers:PairEntry",
        none="the burst has no pair",
        form=form,
        as_json=as_json,
        spare=["server", "complete"],
    )


def series(
    run_id: RunArgument,
    burst: Burst = 1,
    resolution_s: Annotated[
        int, typer.Option("--resolution", metavar="SECONDS", min=1, max=3600, help="a row each")
    ] = 1,
    of: Annotated[
        Whose | None,
        typer.Option(help="the fleet's figures, or each pair's received rate", show_default=False),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="one pair's, such as pair-003 or 3")] = None,
    form: Annotated[RowsFormat, typer.Option("--format", help="how to write them")] = (
        RowsFormat.CSV
    ),
    api: Api = None,
) -> None:
    """Print a burst's seconds, once it is over; unknown is empty or null, never zero."""
    write_bytes(
        run_of(
            api,
            run_id,
            lambda client, chosen: client.series(
                chosen,
                burst - 1,
                resolution_s=resolution_s,
                of=of,
                pair=pair,
                accept=form.media_type,
            ),
        )
    )


def reconciliation(
    run_id: RunArgument, form: RowsOption = None, api: Api = None, as_json: Json = False
) -> None:
    """Hold the fleet's ledger against the firewall's: the run, and each burst."""
    held = run_of(api, run_id, lambda client, chosen: client.reconciliation(chosen))
    if as_json:
        print_json(held)
        return
    if form is not None:
        bursts = [part.model_dump(mode="json") for part in held.bursts]
        print_rows(bursts, form, of="broadside.coordinator.views.answers:BurstReconciliation")
        return
    rows = [("run", held.reconciliation)] + [
        (f"burst {part.burst_index + 1}", part.reconciliation)
        for part in held.bursts
        if part.reconciliation is not None
    ]
    print_table(
        f"{held.reconciliation.source}, layer {held.reconciliation.layer}",
        ["", "firewall", "residual", "+-", "lag", "causes"],
        [
            [
                name,
                formatting.rate(part.firewall_bits_per_second),
                formatting.ratio(part.residual_ratio),
                formatting.ratio(part.residual_uncertainty_ratio),
                formatting.time(part.lag_s),
                "; ".join(cause.sentence for cause in part.causes),
            ]
            for name, part in rows
        ],
    )


def agents(form: RowsOption = None, api: Api = None, as_json: Json = False) -> None:
    """List the agents that were heard of: role, state, engine, clock, and what is wrong."""
    found = run(api, lambda client: client.presences())
    show_list(
        found,
        {
            "agent": lambda presence: presence.agent_id,
            "role": lambda presence: presence.role.value,
            "state": lambda presence: presence.state.value,
            "heard": lambda presence: f"{presence.beat_at:%Y-%m-%d %H:%M:%SZ}",
            "address": lambda presence: presence.address,
            "engine": lambda presence: presence.engine_version or "none",
            "clock": lambda presence: _clock_source(presence.clock),
            "bound": lambda presence: formatting.time(
                presence.clock.bound_s if presence.clock else None
            ),
            "problem": lambda presence: presence.problem or "; ".join(presence.warnings),
        },
        of="broadside.exchange.messages:Presence",
        none="no agent was heard of; start one on each host: `broadside agent -h`",
        form=form,
        as_json=as_json,
        spare=["heard", "engine", "address", "bound"],
    )


def _clock_source(clock: "ClockReading | None") -> str:
    """Return the clock source and its reference, such as ``chrony 10.0.0.1``."""
    if clock is None:
        return "unread"
    return " ".join(filter(None, (clock.source.value, clock.reference)))
