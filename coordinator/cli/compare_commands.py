"""The ``broadside compare`` command, which compares two runs or two groups of bursts."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, tzinfo
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broadside.coordinator.cli.api_errors import require_known
from broadside.coordinator.cli.command_group import ResultFormat
from broadside.coordinator.cli.exit_codes import exit_usage
from broadside.coordinator.cli.known_names import SEARCHED_RUNS_COUNT
from broadside.coordinator.cli.options import Junit, parse_timezone
from broadside.coordinator.cli.session import (
    ResultSession,
    complete_label,
    complete_run,
    resolve_run,
)
from broadside.coordinator.cli.text_tables import print_table
from broadside.coordinator.core import formatting
from broadside.coordinator.core.comparison.group_comparison import Comparison, Metric
from broadside.coordinator.core.comparison.regression_gate import evaluate_gate, parse_gate
from broadside.coordinator.core.metrics import layer_label, metric_by_short_name
from broadside.coordinator.core.summary import worse
from broadside.coordinator.imports.time_text import parse_time, parse_zone, to_utc
from broadside.coordinator.runs.requests import CompareRequest, Selection
from broadside.exchange.records import RunHeader

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations

_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


def compare(  # noqa: PLR0913 - options
    session: ResultSession,
    run_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", autocompletion=complete_run)
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME[=VALUE]", autocompletion=complete_label),
    ] = None,
    split_at: Annotated[str | None, typer.Option(metavar="TIME")] = None,
    timezone: str | None = None,
    fail_if: Annotated[list[str] | None, typer.Option(metavar="GATE")] = None,
    junit: Junit = None,
) -> None:
    """Compare runs or groups of bursts.

    Compares two runs, runs with two values of a label, or bursts before and after a time.

    Args:
        run_ids: Two run ids, or `last`; with --label the runs to group.
        labels: Compare the runs with two values of a label; give NAME, or twice NAME=VALUE.
        split_at: Compare the bursts before and after this time.
        timezone: Time zone of --split-at; default: that of an imported run, or UTC.
        fail_if: Limit such as 'received < -3%'; exit with 1 if the 95 % interval of the difference
            is beyond it, and with 2 if that is unknown; repeatable.
    """
    named = run_ids or []
    try:
        gates = [parse_gate(text) for text in fail_if or []]
    except ValueError as error:
        exit_usage(f"--fail-if {error}")
    _check_options(named, labels, split_at, no_gate=junit is not None and not gates)
    zone = None if timezone is None else parse_timezone(timezone)

    async def work(client: "Operations") -> Comparison:
        runs = [await resolve_run(client, run_id) for run_id in named]
        if labels:
            request = _by_label(await client.runs(SEARCHED_RUNS_COUNT), runs, labels)
        elif split_at is not None:
            request = await _by_time(client, runs, split_at, zone)
        else:
            one, other = (Selection(run_ids=(run_id,)) for run_id in runs)
            request = CompareRequest(a=one, b=other)
        return await client.compare(request)

    comparison = session.call(work)
    try:
        results = [evaluate_gate(gate, comparison) for gate in gates]
    except ValueError as error:
        exit_usage(f"--fail-if {error}")
    if session.output == ResultFormat.MD:
        from broadside.coordinator.views.markdown import comparison_markdown

        typer.echo(comparison_markdown(comparison, results), nl=False)
    else:
        rows = (
            lambda one: one.metrics,
            "broadside.coordinator.core.comparison.group_comparison:Metric",
        )
        session.show(comparison, _print_comparison, rows=rows)
    for result in results:
        typer.echo(f"{result.verdict.value}: {result.sentence}", err=True)
    if junit is not None:
        from broadside.coordinator.cli.output_files import junit_of_gates, save_junit

        save_junit(junit_of_gates(comparison, results), junit)
    if results:
        from broadside.coordinator.cli.summary_tables import EXITS

        raise typer.Exit(EXITS[worse(result.verdict for result in results)])


def _check_options(
    runs: Sequence[str], labels: Sequence[str] | None, split_at: str | None, *, no_gate: bool
) -> None:
    problem = None
    if no_gate:
        problem = "--junit: there is no gate to report; give --fail-if as well"
    elif labels and split_at is not None:
        problem = "--label, --split-at: use only one of them"
    elif split_at is not None and not runs:
        problem = "--split-at: the run is missing; give a run id"
    elif not labels and split_at is None and len(runs) != 2:
        problem = (
            f"{len(runs)} runs given: name two, or use --label or --split-at; "
            "list the runs with `broadside runs`"
        )
    if problem is not None:
        exit_usage(problem)


def _by_label(
    headers: Sequence[RunHeader], runs: Sequence[str], labels: Sequence[str]
) -> CompareRequest:
    """Build two groups of runs from the values of one label."""
    names = {label.partition("=")[0] for label in labels}
    if len(labels) > 2 or len(names) != 1:
        exit_usage("--label: give one NAME, or NAME=VALUE twice")
    name = names.pop()
    labelled = [
        header
        for header in headers
        if name in header.labels and (not runs or header.run_id in runs)
    ]
    values = sorted({header.labels[name] for header in labelled})
    chosen = [label.partition("=")[2] for label in labels if "=" in label] or values
    if len(chosen) != 2 or not set(chosen) <= set(values):
        require_known("label", name, sorted({one for header in headers for one in header.labels}))
        exit_usage(
            f"--label {' --label '.join(labels)}: the values of {name} are: "
            f"{', '.join(values) or 'none'}; select two: --label {name}=A --label {name}=B"
        )
    one, other = (
        Selection(
            name=f"{name}={value}",
            run_ids=tuple(header.run_id for header in labelled if header.labels[name] == value),
        )
        for value in chosen
    )
    return CompareRequest(a=one, b=other, label=name)


async def _by_time(
    client: "Operations", runs: Sequence[str], text: str, zone: tzinfo | None
) -> CompareRequest:
    """Build groups of bursts before and after a time. A burst that contains it is in neither."""
    statuses = [await client.status(run_id) for run_id in runs]
    bursts = [burst for status in statuses for burst in status.bursts]
    first_at = min(burst.planned_start_at for burst in bursts)
    last_at = max(burst.planned_end_at for burst in bursts)
    zones = [zone] if zone is not None else [UTC]
    if zone is None:
        headers = [h for h in await client.runs(SEARCHED_RUNS_COUNT) if h.run_id in runs]
        names = {header.labels.get("timezone", "UTC") for header in headers}
        zones += [parse_zone(name) for name in sorted(names - {"UTC"})]
    at = _split_time(text, zones, first_at, last_at)
    name = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    return CompareRequest(
        a=Selection(name=f"before {name}", run_ids=tuple(runs), before_at=at),
        b=Selection(name=f"after {name}", run_ids=tuple(runs), from_at=at),
    )


def _split_time(
    text: str, zones: Sequence[tzinfo], first_at: datetime, last_at: datetime
) -> datetime:
    """Convert a local time to UTC, and select the candidate between the bursts."""
    try:
        if _CLOCK.fullmatch(text):
            clock = time.fromisoformat(text.zfill(5) if text.count(":") == 1 else text.zfill(8))
            candidates = {
                to_utc(datetime.combine(at.astimezone(zone).date(), clock), zone)
                for zone in zones
                for at in (first_at, last_at)
            }
        else:
            candidates = {to_utc(parse_time(text), zone) for zone in zones}
    except ValueError as error:
        exit_usage(f"--split-at {text!r}: not a time such as 2022-01-13T10:49:00Z ({error})")
    matching = [
        f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in sorted(candidates) if first_at <= at <= last_at
    ]
    if len(matching) > 1:
        exit_usage(f"--split-at {text!r}: it can be {' or '.join(matching)}; give one of them")
    if not matching:
        exit_usage(
            f"--split-at {text!r}: it is not between the bursts; give a time from "
            f"{first_at:%Y-%m-%dT%H:%M:%SZ} to {last_at:%Y-%m-%dT%H:%M:%SZ}"
        )
    return next(at for at in candidates if first_at <= at <= last_at)


def _print_comparison(comparison: Comparison) -> None:
    typer.echo(comparison.sentence)
    names = f"a: {comparison.a}\nb: {comparison.b}"
    rows = [_metric_cells(metric) for metric in comparison.metrics]
    columns = ["mean over bursts", "a", "b", "b - a", "b / a", "different"]
    print_table(names, columns, rows, low_priority=["b / a", "b", "a"])


def _metric_cells(metric: Metric) -> list[str]:
    item = metric_by_short_name(metric.name)
    metric_text = item.format

    def interval(value: float | None, half_width: float | None) -> str:
        if value is None:
            return "unknown"
        return metric_text(value) + ("" if half_width is None else f" +- {metric_text(half_width)}")

    ratio = "unknown"
    if metric.ratio is not None:
        ratio = formatting.number(metric.ratio)
        if metric.ratio_low is not None and metric.ratio_high is not None:
            low, high = formatting.number(metric.ratio_low), formatting.number(metric.ratio_high)
            ratio += f" ({low} to {high})"
    return [
        f"{metric.name} ({layer_label(item.layer)})" if item.layer else metric.name,
        f"{interval(metric.a_mean, metric.a_half_width)} (n {metric.a_count})",
        f"{interval(metric.b_mean, metric.b_half_width)} (n {metric.b_count})",
        interval(metric.difference, metric.difference_half_width),
        ratio,
        "yes" if metric.significant else "not shown",
    ]
