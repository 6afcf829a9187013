"""Commands that print runs, bursts, pairs, seconds, reconciliation, agents and raw output."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broadside.coordinator.cli.api_errors import require_known
from broadside.coordinator.cli.document_output import OutputFormat
from broadside.coordinator.cli.exit_codes import exit_usage
from broadside.coordinator.cli.known_names import SEARCHED_RUNS_COUNT, require_known_filters
from broadside.coordinator.cli.options import (
    BurstOption,
    LimitOption,
    complete_scenario,
    parse_time_option,
)
from broadside.coordinator.cli.session import (
    ApiSession,
    RunArgument,
    Session,
    WatchedSession,
    complete_label,
)
from broadside.coordinator.cli.terminal_text import write_bytes
from broadside.coordinator.cli.text_tables import (
    ListTable,
    TextColumn,
    cells,
    print_list,
    print_table,
)
from broadside.coordinator.core import formatting
from broadside.coordinator.core.summary import Verdict
from broadside.coordinator.runs.listing import GROUPINGS, ListedState, state_of
from broadside.exchange.messages import Side
from broadside.exchange.strict_json import parse_strict_json

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations
    from broadside.coordinator.core.live.status import RunStatus
    from broadside.coordinator.runs.listing import CostSum, RunGroups
    from broadside.coordinator.views.responses import BurstEntry, PairEntry, RunReconciliation
    from broadside.exchange.messages import ClockReading
    from broadside.exchange.records import RunHeader

_BASELINES_MAX_COUNT: Final = 100


class SeriesOf(StrEnum):
    """Rows of a series: the fleet or a single pair."""

    FLEET = "fleet"
    PAIR = "pair"


ScenarioFilter = Annotated[
    str | None,
    typer.Option(help="Only runs of this scenario.", autocompletion=complete_scenario),
]
LabelFilter = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME=VALUE",
        help="Only runs with this label; repeatable.",
        autocompletion=complete_label,
    ),
]
From = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only runs whose traffic begins at or after it."),
]
Before = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Only runs whose traffic begins before it."),
]


def _filters(
    scenario: str | None, labels: list[str] | None, since: str | None, before: str | None
) -> dict[str, object]:
    """Return the filters as API parameters."""
    for label in labels or ():
        if "=" not in label:
            exit_usage(f"--label {label}: it has no value; write NAME=VALUE")
    filters: dict[str, object] = {
        "scenario": scenario,
        "label": list(labels or ()) or None,
        "from_at": _local_time("--since", since),
        "before_at": _local_time("--until", before),
    }
    return {name: value for name, value in filters.items() if value is not None}


def _local_time(option: str, text: str | None) -> str | None:
    """Convert a time option to ISO 8601. Without an offset, it is local time; this is printed."""
    at = parse_time_option(option, text)
    if at is None:
        return None
    if at.tzinfo is None:
        at = at.astimezone()
        typer.echo(f"{option} {text}: read as local time, {at.isoformat()}", err=True)
    return at.isoformat()


def runs(  # noqa: PLR0913 - options
    session: WatchedSession,
    limit: LimitOption = 20,
    scenario: ScenarioFilter = None,
    labels: LabelFilter = None,
    state: ListedState | None = None,
    verdict: Verdict | None = None,
    by: str | None = None,
    since: From = None,
    before: Before = None,
) -> None:
    """List runs, newest first.

    Args:
        state: Only runs in this state.
        verdict: Only runs with this verdict.
        by: Only runs of this operator.
    """
    filters = _filters(scenario, labels, since, before)
    named = {"state": state, "verdict": verdict, "by": by}
    filters |= {name: str(value) for name, value in named.items() if value is not None}
    print_list(
        session,
        session.call(lambda client: _find_runs(client, limit, filters)),
        ListTable(
            columns={
                "run": "run_id",
                "scenario": "scenario",
                "created (UTC)": "created_at",
                "by": "created_by",
                "verdict": _verdict,
                "received": _received,
                "complete": "outcome.completeness_ratio",
                "ended (UTC)": "outcome.ended_at",
                "labels": lambda header: _pairs_text(header.labels),
                "device": lambda header: _pairs_text(header.device),
            },
            model="broadside.exchange.records:RunHeader",
            empty="no run matches the filters"
            if filters
            else "no run yet; start one with `broadside launch loopback`",
            low_priority=["scenario", "created (UTC)", "by", "complete"],
            wide=["ended (UTC)", "labels", "device"],
        ),
        extra=lambda header: {"verdict": header.outcome and header.outcome.verdict},
    )


async def _find_baselines(client: "Operations", filters: Mapping[str, Any]) -> "list[RunHeader]":
    """Return the accepted runs of a scenario. Exit if the scenario is unknown."""
    headers = await client.runs(_BASELINES_MAX_COUNT, **filters)
    if not headers:
        await require_known_filters(client, {"scenario": filters["scenario"]})
    return headers


async def _find_runs(
    client: "Operations", limit: int, filters: Mapping[str, Any]
) -> "list[RunHeader]":
    """Return the runs that match the filters. Exit if the filters have an unknown name."""
    headers = await client.runs(limit, **filters)
    if not headers:
        await require_known_filters(client, filters)
    return headers


def baseline(
    session: ApiSession,
    scenario: Annotated[str, typer.Argument(autocompletion=complete_scenario)],
) -> None:
    """Print the newest accepted run of a scenario.

    The run has the label baseline=accepted, a received rate, and a verdict that is not *fail*.

    Args:
        scenario: Scenario of the run.
    """
    from broadside.coordinator.core.metrics import RECEIVED

    filters = _filters(scenario, ["baseline=accepted"], None, None)
    filters["state"] = ListedState.FINISHED.value
    for header in session.call(lambda client: _find_baselines(client, filters)):
        outcome = header.outcome
        if outcome and outcome.verdict is not Verdict.FAIL and RECEIVED.of_run(outcome):
            typer.echo(header.run_id)
            return


def _verdict(header: "RunHeader") -> str:
    if header.outcome is None:
        return "none yet"
    cancelled = " (cancelled)" if state_of(header) is ListedState.CANCELLED else ""
    return f"{header.outcome.verdict}{cancelled}"


def _pairs_text(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items()))


def _received(header: "RunHeader") -> str:
    """Return the rate at the layer of the objective, as measured, with its layer and scale.

    A run of an older version has only the payload rate.
    """
    from broadside.coordinator.core.metrics import RECEIVED, layer_label, received_at

    outcome = header.outcome
    if outcome is None:
        return ""
    rate, layer = received_at(outcome.target_layer).of_run(outcome), outcome.target_layer
    if rate is None or layer is None:
        rate, layer = RECEIVED.of_run(outcome), RECEIVED.layer
    lab = "" if outcome.scale == 1 else f", {formatting.lab(outcome.scale)}"
    return formatting.rate(rate) + ("" if rate is None else f" {layer_label(layer)}{lab}")


def aggregate(  # noqa: PLR0913 - options
    session: Session,
    group_by: Annotated[
        str, typer.Option("--group-by", metavar="WHAT", help=f"Property to group by: {GROUPINGS}.")
    ] = "scenario",
    timezone: Annotated[str, typer.Option(metavar="ZONE")] = "UTC",
    scenario: ScenarioFilter = None,
    labels: LabelFilter = None,
    since: From = None,
    before: Before = None,
) -> None:
    """Aggregate the results of many runs.

    Runs are grouped by time, scenario, label, device or verdict. Rates are at real scale.

    Args:
        timezone: Time zone of hours, days, weeks and months.
    """
    from broadside.coordinator.core.metrics import layer_label

    filters = _filters(scenario, labels, since, before)

    async def work(client: "Operations") -> "RunGroups":
        result = await client.aggregate(group_by, timezone, **filters)
        if not result.groups:
            await require_known_filters(client, filters)
        kind, _, name = group_by.partition(":")
        if name and all(group.group is None for group in result.groups):
            headers = await client.runs(SEARCHED_RUNS_COUNT)
            fields = {"label": [h.labels for h in headers], "device": [h.device for h in headers]}
            known = [one for names in fields[kind] for one in names]
            if known:
                require_known(kind, name, known)
        return result

    result = session.call(work)
    table = ListTable(
        columns={
            group_by: lambda group: group.group if group.group is not None else "(none)",
            "runs": "runs_count",
            "bursts": lambda group: formatting.count(group.bursts_count),
            "verdicts": lambda group: ", ".join(
                f"{n} {name}" for name, n in group.verdicts.items()
            ),
            "mean rate": "received.mean_bits_per_second",
            "layer": lambda group: layer_label(group.received.layer) if group.received else "",
            "+-": "received.half_width_bits_per_second",
            "min": "received.min_bits_per_second",
            "max": "received.max_bits_per_second",
            "mean if inconclusive": lambda group: formatting.rate(
                group.received_inconclusive and group.received_inconclusive.mean_bits_per_second
            ),
            "complete": "completeness.mean_ratio",
            "worst residual": lambda group: formatting.signed_ratio(group.worst_residual_ratio),
            "cost": lambda group: _cost(group.cost),
        },
        model="broadside.coordinator.runs.listing:RunGroup",
        empty="no run matches; list the runs with `broadside runs`",
        low_priority=["min", "max", "runs", "complete", "cost", "bursts"],
    )
    session.show(
        result,
        lambda result: print_list(session, result.groups, table),
        rows=(lambda result: result.groups, table.model),
    )
    if result.truncated:
        typer.echo("there are more runs; limit the time with --since and --until", err=True)


def _cost(cost: "CostSum | None") -> str:
    """Return the cost on Azure. For runs without cost on Azure, return the cost at real scale."""
    if cost is None:
        return "unknown"
    if not cost.charged_usd:
        return f"none ({formatting.dollars(cost.uncharged_usd)} at real scale)"
    return formatting.dollars(cost.charged_usd)


def bursts(session: WatchedSession, run_id: RunArgument, limit: LimitOption = 100) -> None:
    """List the bursts of a run."""
    from broadside.coordinator.core.metrics import layer_label, received_at

    async def read(client: "Operations", resolved: str) -> "tuple[RunStatus, list[BurstEntry]]":
        return await client.status(resolved), await client.bursts(resolved, limit)

    status, entries = session.call_run(run_id, read)
    # A run that continues, and one of an older version, has only the payload rate.
    outcome = status.outcome
    layer = (outcome and outcome.target_layer) or "payload"
    main = received_at(layer)
    lab = "" if outcome is None or outcome.scale == 1 else f", {formatting.lab(outcome.scale)}"

    def received(entry: "BurstEntry") -> str:
        return formatting.rate(main.of_burst(entry.summary)) if entry.summary else ""

    def measured(entry: "BurstEntry") -> str:
        burst = entry.summary
        return f"{burst.pairs_measured}/{burst.pairs_planned}" if burst else ""

    print_list(
        session,
        entries,
        ListTable(
            columns={
                "burst": lambda entry: str(entry.status.index + 1),
                "start (UTC)": "status.planned_start_at",
                "phase": "status.phase",
                "measured": measured,
                f"received, {layer_label(layer)}{lab}": received,
                "firewall": "summary.firewall_bits_per_second",
                "bottleneck": "summary.bottleneck",
                "verdict": "summary.verdict",
                "end (UTC)": "status.planned_end_at",
                "complete": "summary.completeness_ratio",
                "spread": "summary.start_spread_s",
            },
            model="broadside.coordinator.views.responses:BurstEntry",
            empty="no burst in this run",
            low_priority=["measured", "bottleneck"],
            wide=["end (UTC)", "complete", "spread"],
        ),
    )


def pairs(
    session: WatchedSession,
    run_id: RunArgument,
    burst: BurstOption = 1,
    limit: LimitOption = 2000,
) -> None:
    """List the pairs of a burst."""

    def server(entry: "PairEntry") -> str:
        return f"{entry.endpoint.agent_id} {entry.endpoint.address}:{entry.endpoint.port}"

    def state(entry: "PairEntry") -> str:
        if entry.summary:
            return entry.summary.state.value
        return entry.outcome or entry.phase or "waiting"

    print_list(
        session,
        session.call_run(run_id, lambda client, resolved: client.pairs(resolved, burst, limit)),
        ListTable(
            columns={
                "pair": "pair",
                "client": lambda entry: entry.client_agent_id or "none",
                "server": server,
                "state": state,
                "received, payload": "summary.received_bits_per_second",
                "complete": "summary.completeness_ratio",
                "reason": lambda entry: (entry.summary or entry).reason or "",
                "sent": "summary.sent_bits_per_second",
                "RTT": "summary.rtt_mean_s",
                "retransmits": lambda entry: formatting.count(
                    entry.summary and entry.summary.retransmits_count
                ),
            },
            model="broadside.coordinator.views.responses:PairEntry",
            empty="no pair in this burst",
            low_priority=["server", "complete"],
            wide=["sent", "RTT", "retransmits"],
        ),
    )


def series(  # noqa: PLR0913 - options
    session: Session,
    run_id: RunArgument,
    burst: BurstOption = 1,
    resolution_s: Annotated[
        int, typer.Option("--resolution", metavar="SECONDS", min=1, max=3600)
    ] = 1,
    of: Annotated[SeriesOf | None, typer.Option(show_default=False)] = None,
    pair: str | None = None,
) -> None:
    """Print the seconds of a burst.

    The burst needs to be over. Unknown values are empty or null, never zero.

    Args:
        resolution_s: Seconds of a row.
        of: Metrics of the fleet, or the rate of each pair.
        pair: Only this pair, such as pair-003 or 3.
    """
    from broadside.coordinator.views.tables import Format

    is_document = session.is_text or session.output == OutputFormat.YAML
    form = Format.JSON if is_document else Format(session.output)
    body = session.call_run(
        run_id,
        lambda client, resolved: client.series(
            resolved,
            burst,
            resolution_s=resolution_s,
            of=of,
            pair=pair,
            accept=form.media_type,
        ),
    )
    if is_document:
        session.show(parse_strict_json(body, len(body)), _print_series)
    else:
        write_bytes(body)


def _print_series(series: Mapping[str, Any]) -> None:
    """Print the seconds as a table. The rates are the last columns to be omitted."""
    titles: list[str] = []
    texts: list[list[str]] = []
    others: list[str] = []
    for column in series["columns"]:
        title = column["name"].removesuffix("_bits_per_second")
        is_rate = column["unit"] == "bit/s"
        if not is_rate and titles:
            others.append(title)
        titles.append(title)
        texts.append([_series_cell(value, is_rate=is_rate) for value in column["values"]])
    rows = list(map(list, zip(*texts, strict=True)))
    print_table("", titles, rows, low_priority=others[::-1])


def _series_cell(value: object, *, is_rate: bool) -> str:
    if isinstance(value, int | float):
        return formatting.rate(value) if is_rate else formatting.number(value)
    return str(value or "")


def reconciliation(session: Session, run_id: RunArgument) -> None:
    """Compare the fleet with the device counter.

    It prints the residual of the run and of each burst.
    """
    result = session.call_run(run_id, lambda client, resolved: client.reconciliation(resolved))
    model = "broadside.coordinator.views.responses:BurstReconciliation"
    session.show(result, _print_reconciliation, rows=(lambda one: one.bursts, model))


def _print_reconciliation(result: "RunReconciliation") -> None:
    from broadside.coordinator.core.metrics import layer_label

    columns: dict[str, TextColumn] = {
        "firewall": "firewall_bits_per_second",
        "residual": "residual_ratio",
        "+-": "residual_uncertainty_ratio",
        "lag": "lag_s",
        "causes": lambda part: "; ".join(cause.sentence for cause in part.causes),
    }
    rows = [["run", *cells(result.reconciliation, columns)]] + [
        [f"burst {part.burst_index + 1}", *cells(part.reconciliation, columns)]
        for part in result.bursts
        if part.reconciliation is not None
    ]
    title = f"{result.reconciliation.source}, {layer_label(result.reconciliation.layer)}"
    print_table(title, ["", *columns], rows)


def agents(session: WatchedSession) -> None:
    """List the agents and their state."""
    print_list(
        session,
        session.call(lambda client: client.presences()),
        ListTable(
            columns={
                "agent": "agent_id",
                "role": "role",
                "state": "state",
                "heartbeat (UTC)": "beat_at",
                "address": "address",
                "engine": lambda presence: presence.engine_version or "none",
                "clock": lambda presence: _clock_source(presence.clock),
                "clock bound": lambda presence: formatting.time(
                    presence.clock and presence.clock.bound_s
                ),
                "problem": lambda presence: presence.problem or "; ".join(presence.warnings),
                "ports": lambda presence: ", ".join(map(str, presence.ports)),
                "NIC": "nic_bits_per_second",
                "CPUs": lambda presence: str(presence.cpu_count or ""),
                "version": "broadside_version",
            },
            model="broadside.exchange.messages:Presence",
            empty="no agent has sent a heartbeat; start one on each host, "
            "see `broadside agent --help`",
            low_priority=["heartbeat (UTC)", "engine", "address", "clock bound"],
            wide=["ports", "NIC", "CPUs", "version"],
        ),
    )


def _clock_source(clock: "ClockReading | None") -> str:
    """Return the clock source and its reference, such as ``chrony 10.0.0.1``."""
    if clock is None:
        return "unknown"
    return " ".join(filter(None, (clock.source.value, clock.reference)))


def raw(
    session: ApiSession,
    run_id: RunArgument,
    pair: Annotated[str, typer.Argument(metavar="PAIR")],
    burst: BurstOption = 1,
    side: Side = Side.CLIENT,
) -> None:
    """Print the raw output of an engine.

    It is the JSON of iperf3, or one JSON document per line.

    Args:
        pair: Pair, such as pair-003 or 3.
        side: End of the pair.
    """
    write_bytes(
        session.call_run(run_id, lambda client, resolved: client.raw(resolved, pair, burst, side))
    )
