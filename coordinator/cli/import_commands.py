"""The ``broadside import`` commands, used to import results from other tools."""

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path, PurePath
from typing import Annotated, Final

import typer
from pydantic import TypeAdapter, ValidationError

from broadside.coordinator import scenarios
from broadside.coordinator.cli import display
from broadside.coordinator.cli.connection import operator_name, run
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.options import Api, Json, print_json, zone_of
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.coordinator.core import formatting
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import Finding
from broadside.coordinator.imports.import_answers import (
    FileResult,
    ImportedRecordings,
    OriginalBurst,
    describe,
)
from broadside.coordinator.imports.import_requests import LabelValues, Recordings, RecordingState
from broadside.coordinator.imports.iperf3_files import read_recordings
from broadside.coordinator.imports.metric_declaration import MetricDeclaration
from broadside.coordinator.imports.original_tables import Reading, read_original
from broadside.coordinator.imports.time_text import parse_time, to_utc

FINDINGS_SHOWN_COUNT = 20

app = CommandGroup()

Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="kept with the run; repeatable"),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="a field of objective, device or traffic, such as "
        "objective.target_bits_per_second=180e9; repeatable",
    ),
]


@app.command(name="original")
def original(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="a table of results")],
    firewall_metric: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="the firewall's throughput: timestamp, bit/s"),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="what the metric's figures mean: unit, prefix, aggregation, per, direction, "
            "layer, mss_bytes, mtu_bytes, counts_lost or lag_s, such as layer=ip; repeatable",
        ),
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="where the table's times are local; or an offset: UTC-05:00")
    ] = "America/New_York",
    pairs_planned: Annotated[
        int | None, typer.Option(min=1, max=2000, help="pairs a burst; default: all clients seen")
    ] = None,
    period_s: Annotated[
        float | None,
        typer.Option(min=1, max=604_800, help="s between planned bursts; default: found"),
    ] = None,
    duration_s: Annotated[
        float | None,
        typer.Option(min=1, max=86_400, help="s of a burst, in place of what the table says"),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="only rows that start at it or on")
    ] = None,
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="only rows that start before it")
    ] = None,
    labels: Labels = None,
    assignments: Assignments = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Import a table of the original test: Azure Table Storage's export or a spreadsheet's CSV."""
    zone = zone_of(timezone)
    table = read_original(
        file,
        Reading(
            zone=zone,
            now=datetime.now(UTC),
            from_at=_time("--from", since, zone),
            before_at=_time("--before", before, zone),
            duration_s=duration_s,
            pairs_planned=pairs_planned,
            period_s=period_s,
        ),
        metric=firewall_metric,
        declared=_declared(metric),
    )
    said = {
        "labels": _labels(labels),
        "overrides": scenarios.parse_overrides(assignments or ()),
        "by": operator_name(),
    }

    imported = run(api, lambda client: client.import_table(table.model_copy(update=said)))
    if as_json:
        print_json(imported)
        return
    display.print_table(
        "",
        ["", "start (UTC)", "pairs", "late", "null", "missing", "received", "firewall", "residual"],
        [_burst_cells(burst) for burst in imported.bursts],
    )
    flags = [(burst, flag) for burst in imported.bursts for flag in burst.flags]
    for burst, flag in flags[:FINDINGS_SHOWN_COUNT]:
        typer.echo(f"- burst {burst.index + 1}: {flag}")
    if len(flags) > FINDINGS_SHOWN_COUNT:
        typer.echo(f"- and {len(flags) - FINDINGS_SHOWN_COUNT} more rows; --json has them all")
    _say_findings(imported.findings)
    typer.echo(f"\nrun {imported.run_id}: {imported.verdict.value}; see `broadside verdict last`")


@app.command(name="iperf3")
def iperf3(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="output of --json or --json-stream")
    ],
    labels: Labels = None,
    assignments: Assignments = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Import files that iperf3 (3.9 or later) wrote, as one run."""
    recordings = read_recordings(files)
    results = tuple(describe(recording) for recording in recordings)
    if all(recording.state is RecordingState.UNREADABLE for recording in recordings):
        if as_json:
            print_json(ImportedRecordings(run_id=None, files=results))
        for result in results:
            typer.echo(f"broadside: {result.file}: {result.reason}", err=True)
        raise typer.Exit(Exit.USAGE)
    request = Recordings(
        recordings=recordings,
        labels=_labels(labels),
        overrides=scenarios.parse_overrides(assignments or ()),
        by=operator_name(),
    )

    imported = run(api, lambda client: client.import_recordings(request))
    if as_json:
        print_json(imported)
        return
    display.print_table(
        "",
        ["file", "state", "iperf3", "traffic", "sent", "received", "again", "RTT"],
        [_file_cells(result) for result in imported.files],
    )
    for result in imported.files:
        if result.reason is not None:
            typer.echo(f"{_file_name(result)}: {result.state.value}: {result.reason}")
    _say_findings(imported.findings)
    said = imported.verdict.value if imported.verdict else "none"
    typer.echo(f"\nrun {imported.run_id}: {said}; see `broadside verdict last`")


def _time(option: str, text: str | None, zone: tzinfo) -> datetime | None:
    if text is None:
        return None
    try:
        return to_utc(parse_time(text), zone)
    except ValueError as error:
        stop(f"{option} {text!r}: not a time as 2022-01-04T11:25:00 ({error})", Exit.USAGE)


FLAGS: Final = {"true": True, "false": False}


def _declared(assignments: Sequence[str] | None) -> dict[str, str | float | bool]:
    """Parse the fields of a metric declaration."""
    fields: dict[str, str | float | bool] = {}
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        if not equals or name.strip() not in MetricDeclaration.model_fields:
            known = ", ".join(MetricDeclaration.model_fields)
            stop(f"--metric {assignment!r}: expected FIELD=VALUE; fields are {known}", Exit.USAGE)
        field, text = name.strip(), value.strip()
        if field == "counts_lost":
            if text not in FLAGS:
                stop(f"--metric {assignment!r}: expected true or false", Exit.USAGE)
            fields[field] = FLAGS[text]
            continue
        try:
            read = {"mss_bytes": int, "mtu_bytes": int, "lag_s": float}.get(field, str)
            fields[field] = read(text)
        except ValueError:
            stop(f"--metric {assignment!r}: {text!r} is not a number", Exit.USAGE)
    return fields


def _labels(assignments: Sequence[str] | None) -> dict[str, str]:
    labels = {}
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip() or not value.strip():
            stop(f"--label {assignment!r}: expected NAME=VALUE, such as idps=off", Exit.USAGE)
        labels[name.strip()] = value.strip()
    try:
        TypeAdapter(LabelValues).validate_python(labels)
    except ValidationError:
        stop(
            f"--label {', '.join(assignments or ())}: a name begins with a letter and has at most "
            "41 letters, digits, dots or dashes; a value at most 100 characters",
            Exit.USAGE,
        )
    return labels


def _burst_cells(burst: OriginalBurst) -> list[str]:
    held = burst.reconciliation
    return [
        str(burst.index + 1),
        f"{burst.planned_start_at:%Y-%m-%d %H:%M:%S}",
        f"{burst.pairs_measured}/{burst.pairs_planned}",
        str(len(burst.late_pairs)),
        str(len(burst.null_pairs)),
        str(burst.pairs_planned - burst.pairs_measured - len(burst.null_pairs)),
        formatting.rate(RECEIVED.of_burst(burst)),
        formatting.rate(held.firewall_bits_per_second if held else None),
        formatting.ratio(held.residual_ratio if held else None),
    ]


def _file_cells(result: FileResult) -> list[str]:
    traffic = "unknown"
    if result.direction is not None and result.protocol is not None:
        traffic = f"{result.protocol.value} {result.direction.value} x {result.streams}"
    return [
        _file_name(result),
        result.state.value,
        result.version or "unknown",
        traffic,
        formatting.rate(result.sent_bits_per_second),
        formatting.rate(result.received_bits_per_second),
        "unknown" if result.retransmits is None else str(result.retransmits),
        formatting.time(result.rtt_mean_s),
    ]


def _file_name(result: FileResult) -> str:
    name = PurePath(result.file).name
    return name if result.test == 1 else f"{name}#{result.test}"


def _say_findings(findings: Sequence[Finding]) -> None:
    for finding in findings[:FINDINGS_SHOWN_COUNT]:
        typer.echo(f"- {finding.severity}: {finding.sentence}")
        if finding.next_step:
            typer.echo(f"    next: {finding.next_step}")
    more = len(findings) - FINDINGS_SHOWN_COUNT
    if more > 0:
        typer.echo(f"- and {more} more; --json has them all")
