"""The ``broadside compare`` command, used to compare two runs or two groups of bursts."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, tzinfo
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broadside.coordinator.cli import display
from broadside.coordinator.cli.connection import resolve_run, run
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.options import (
    Api,
    Format,
    FormatOption,
    Json,
    Junit,
    print_json,
    zone_of,
)
from broadside.coordinator.cli.suggest import near
from broadside.coordinator.core import formatting
from broadside.coordinator.core.comparison import Comparison, Metric, hold, parse_gate
from broadside.coordinator.core.metrics import metric_by_short_name
from broadside.coordinator.core.summary import worse
from broadside.coordinator.imports.time_text import parse_time, parse_zone, to_utc
from broadside.coordinator.views.requests import CompareRequest, Selection
from broadside.exchange.records import RunHeader

if TYPE_CHECKING:
    from broadside.coordinator.cli.verbs import Verbs

# How many of the newest runs to search for labels.
_LOOKED_AT_COUNT: Final = 1000
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


def compare(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="run ids, or `last`; none with --label: all runs"),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="NAME[=VALUE]",
            help="group runs by a label: its name when it has two values, or twice NAME=VALUE",
        ),
    ] = None,
    split_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="bursts that end by it against those that start after it"
        ),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(help="of a --split-at that names none; default: UTC or the table's own"),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GATE",
            help="exit code 1 when the difference's 95 % interval lies wholly beyond, as in "
            "'received < -3%'; 2 when that cannot be told; repeatable",
        ),
    ] = None,
    junit: Junit = None,
    form: FormatOption = Format.TEXT,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Compare two runs, runs with two labels, or bursts before and after a time."""
    named = run_ids or []
    try:
        gates = [parse_gate(text) for text in fail_if or []]
    except ValueError as error:
        stop(f"--fail-if {error}", Exit.USAGE)
    if junit is not None and not gates:
        stop("--junit: a case is a gate; give --fail-if as well", Exit.USAGE)
    if labels and split_at is not None:
        stop("--label, --split-at: give one of the two", Exit.USAGE)
    if not labels and split_at is None and len(named) != 2:
        stop(
            f"{len(named)} runs given: name two, or use --label or --split-at; "
            "list them with `broadside runs`",
            Exit.USAGE,
        )
    if split_at is not None and not named:
        stop("--split-at: name the run to split", Exit.USAGE)
    zone = None if timezone is None else zone_of(timezone)

    async def work(client: "Verbs") -> Comparison:
        runs = [await resolve_run(client, run_id) for run_id in named]
        if labels:
            request = _by_label(await client.runs(_LOOKED_AT_COUNT), runs, labels)
        elif split_at is not None:
            request = await _by_time(client, runs, split_at, zone)
        else:
            request = CompareRequest(
                a=Selection(run_ids=(runs[0],)), b=Selection(run_ids=(runs[1],))
            )
        return await client.compare(request)

    found = run(api, work)
    try:
        held = [hold(gate, found) for gate in gates]
    except ValueError as error:
        stop(f"--fail-if {error}", Exit.USAGE)
    if as_json:
        print_json(found)
    elif form is Format.MD:
        from broadside.coordinator.views.markdown import comparison_markdown

        typer.echo(comparison_markdown(found, held), nl=False)
    else:
        typer.echo(found.sentence)
        names = f"a: {found.a}\nb: {found.b}"
        cells = [_cells(metric) for metric in found.metrics]
        columns = ["mean over bursts", "a", "b", "b - a", "b / a", "told apart"]
        display.print_table(names, columns, cells, spare=["b / a", "b", "a"])
    for each in held:
        typer.echo(f"{each.verdict.value}: {each.sentence}", err=True)
    if junit is not None:
        from broadside.coordinator.cli.junit_file import of_gates, save_junit

        save_junit(of_gates(found, held), junit)
    if held:
        from broadside.coordinator.cli.verdict import EXITS

        raise typer.Exit(EXITS[worse(each.verdict for each in held)])


def _by_label(
    headers: Sequence[RunHeader], runs: Sequence[str], labels: Sequence[str]
) -> CompareRequest:
    """Build two run groups from the values that one label has."""
    names = {label.partition("=")[0] for label in labels}
    if len(labels) > 2 or len(names) != 1:
        stop("--label: give one NAME, or NAME=VALUE twice", Exit.USAGE)
    name = names.pop()
    known = [
        header
        for header in headers
        if name in header.labels and (not runs or header.run_id in runs)
    ]
    values = sorted({header.labels[name] for header in known})
    wanted = [label.partition("=")[2] for label in labels if "=" in label] or values
    if len(wanted) != 2 or not set(wanted) <= set(values):
        said = ", ".join(values) or "none"
        meant = near(name, {each for header in headers for each in header.labels} - {name})
        if not values and meant:
            stop(f"--label {name}: no run has it; did you mean {meant}?", Exit.USAGE)
        stop(
            f"--label {' --label '.join(labels)}: the runs' values of {name} are: {said}; two are "
            f"needed: --label {name}=ONE --label {name}=OTHER",
            Exit.USAGE,
        )
    one, other = (
        Selection(
            name=f"{name}={value}",
            run_ids=tuple(header.run_id for header in known if header.labels[name] == value),
        )
        for value in wanted
    )
    return CompareRequest(a=one, b=other, label=name)


async def _by_time(
    client: "Verbs", runs: Sequence[str], text: str, zone: tzinfo | None
) -> CompareRequest:
    """Build groups of bursts before and after a time. A burst that contains it is in neither."""
    statuses = [await client.status(run_id) for run_id in runs]
    bursts = [burst for status in statuses for burst in status.bursts]
    first_at = min(burst.planned_start_at for burst in bursts)
    last_at = max(burst.planned_end_at for burst in bursts)
    zones = [zone] if zone is not None else [UTC]
    if zone is None:
        headers = await client.runs(_LOOKED_AT_COUNT)
        names = {
            h.labels["timezone"] for h in headers if h.run_id in runs and "timezone" in h.labels
        }
        zones += [parse_zone(name) for name in sorted(names - {"UTC"})]
    at = _instant(text, zones, first_at, last_at)
    said = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    return CompareRequest(
        a=Selection(name=f"before {said}", run_ids=tuple(runs), before_at=at),
        b=Selection(name=f"after {said}", run_ids=tuple(runs), from_at=at),
    )


def _instant(text: str, zones: Sequence[tzinfo], first_at: datetime, last_at: datetime) -> datetime:
    """Convert a local time to UTC, and select the candidate that is between the bursts."""
    try:
        if _CLOCK.fullmatch(text):
            clock = time.fromisoformat(text.zfill(5) if text.count(":") == 1 else text.zfill(8))
            meant = {
                to_utc(datetime.combine(at.astimezone(zone).date(), clock), zone)
                for zone in zones
                for at in (first_at, last_at)
            }
        else:
            said = parse_time(text)
            meant = {to_utc(said, zone) for zone in zones}
    except ValueError as error:
        stop(
            f"--split-at {text!r}: not a time as 2022-01-13T10:49:00Z ({error})",
            Exit.USAGE,
        )
    among = sorted(at for at in meant if first_at <= at <= last_at)
    if not among:
        span = f"bursts run from {first_at:%Y-%m-%dT%H:%M:%SZ} to {last_at:%Y-%m-%dT%H:%M:%SZ}"
        stop(f"--split-at {text!r}: {span}; give a time between", Exit.USAGE)
    if len(among) > 1:
        both = " or ".join(f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in among)
        stop(f"--split-at {text!r}: may be {both}; say which", Exit.USAGE)
    return among[0]


def _cells(metric: Metric) -> list[str]:
    def sure(value: float | None, half: float | None) -> str:
        if value is None:
            return "unknown"
        said = metric_by_short_name(metric.name).format(value)
        return (
            said if half is None else f"{said} +- {metric_by_short_name(metric.name).format(half)}"
        )

    ratio = "unknown"
    if metric.ratio is not None:
        ratio = formatting.number(metric.ratio)
        if metric.ratio_low is not None and metric.ratio_high is not None:
            low, high = formatting.number(metric.ratio_low), formatting.number(metric.ratio_high)
            ratio += f" ({low} to {high})"
    return [
        metric.name,
        f"{sure(metric.a_mean, metric.a_half_width)} (n {metric.a_count})",
        f"{sure(metric.b_mean, metric.b_half_width)} (n {metric.b_count})",
        sure(metric.difference, metric.difference_half_width),
        ratio,
        "apart" if metric.apart else "not told apart",
    ]
