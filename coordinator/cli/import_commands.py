"""The ``broadside import`` commands, which import results of other tools."""

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path, PurePath
from typing import Annotated, Final

import typer
from pydantic import TypeAdapter, ValidationError

from broadside.coordinator import scenarios
from broadside.coordinator.cli.command_group import CommandGroup
from broadside.coordinator.cli.exit_codes import ExitCode, exit_usage, print_error
from broadside.coordinator.cli.options import complete_field, parse_timezone
from broadside.coordinator.cli.progress_display import show_progress
from broadside.coordinator.cli.session import (
    Session,
    user_name,
)
from broadside.coordinator.cli.text_tables import TextColumn, cells, print_table
from broadside.coordinator.core import formatting
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import Finding
from broadside.coordinator.imports.import_answers import (
    FileResult,
    ImportedRecordings,
    ImportedTable,
    describe,
)
from broadside.coordinator.imports.import_requests import LabelValues, Recordings, RecordingState
from broadside.coordinator.imports.iperf3_files import read_files
from broadside.coordinator.imports.metric_csv import read_metric
from broadside.coordinator.imports.metric_declaration import MetricDeclaration
from broadside.coordinator.imports.result_tables import TableOptions, read_original
from broadside.coordinator.imports.time_text import parse_time
from broadside.exchange.outage_log import utc_now

# Number of findings or flags to print.
_PRINTED_MAX: Final = 20

app = CommandGroup()

# Time to judge and store a run divided by the time to read its table: 15.5 s and 0.65 s of CPU time
# for 30,000 rows in 1,000 bursts. For files of iperf3, both are about equal.
_TABLE_FACTOR: Final = 24.0

ImportLabels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="Label of the run; repeatable."),
]
ImportAssignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field of objective, device or traffic, such as "
        "objective.target_bits_per_second=180e9; repeatable.",
        autocompletion=complete_field,
    ),
]


@app.command()
def original(  # noqa: PLR0913 - options
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE.csv")],
    firewall_metric: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    metric: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE")] = None,
    profile: Annotated[str | None, typer.Option(metavar="NAME|FILE.toml")] = None,
    timezone: str | None = None,
    pairs_planned: Annotated[int | None, typer.Option(min=1, max=2000)] = None,
    period_s: Annotated[float | None, typer.Option(min=1, max=604_800)] = None,
    duration_s: Annotated[float | None, typer.Option(min=1, max=86_400)] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME")] = None,
    before: Annotated[str | None, typer.Option("--until", metavar="TIME")] = None,
    labels: ImportLabels = None,
    assignments: ImportAssignments = None,
) -> None:
    """Import a table of the original test.

    The file is an export of Azure Table Storage, or the CSV file of a spreadsheet.

    Args:
        file: Table of results.
        firewall_metric: Throughput of the firewall, as CSV or JSON of Azure Monitor or Prometheus.
        metric: Property of the metric: unit, prefix, aggregation, per, direction, layer, mss_bytes,
            mtu_bytes, counts_lost or lag_s, such as layer=ip; repeatable.
        profile: Columns of the table; default: original or original-http, which fits.
        timezone: Time zone of the table, or an offset such as UTC-05:00; default: of the profile.
        pairs_planned: Pairs of a burst; default: all clients in the table.
        period_s: Seconds between planned bursts; default: from the table.
        duration_s: Seconds of a burst; default: from the table.
        since: Only rows that start at this time or later.
        before: Only rows that start before this time.
    """
    zone = None if timezone is None else parse_timezone(timezone)
    options = TableOptions(
        now=utc_now(),
        profile=profile,
        zone=zone,
        from_at=_parse_time("--since", since),
        before_at=_parse_time("--until", before),
        duration_s=duration_s,
        pairs_planned=pairs_planned,
        period_s=period_s,
    )
    declared = _parse_declaration(metric)
    started_s = time.monotonic()
    with show_progress("reading"):
        table = read_original(file, options, metric=firewall_metric, declared=declared)
    read_s = time.monotonic() - started_s
    fields = {
        "labels": _parse_labels(labels),
        "overrides": scenarios.parse_overrides(assignments or ()),
        "by": user_name(),
    }
    request = table.model_copy(update=fields)
    imported = session.call(
        lambda client: client.import_table(request), expected_s=max(2.0, _TABLE_FACTOR * read_s)
    )
    session.show(imported, _print_table_import)


@app.command()
def iperf3(  # noqa: PLR0913 - options of the command
    session: Session,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    firewall_metric: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    metric: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE")] = None,
    labels: ImportLabels = None,
    assignments: ImportAssignments = None,
) -> None:
    """Import files of iperf3 as one run.

    Args:
        files: Output of --json or --json-stream, also from logs of pods, as UTF-16 or gzip.
        firewall_metric: Throughput of the firewall, as CSV or JSON of Azure Monitor or Prometheus.
        metric: Property of the metric: unit, prefix, aggregation, per, direction, layer, mss_bytes,
            mtu_bytes, counts_lost or lag_s, such as layer=ip; repeatable.
    """
    started_s = time.monotonic()
    with show_progress("reading", len(files)) as advance:
        recordings, notes = read_files(files, advance)
    read_s = time.monotonic() - started_s
    if all(recording.state is RecordingState.UNREADABLE for recording in recordings):
        results = tuple(describe(recording) for recording in recordings)
        session.show(ImportedRecordings(run_id=None, files=results), lambda _: None)
        for result in results:
            print_error(f"{result.file}: {result.reason}")
        raise typer.Exit(ExitCode.USAGE)
    request = Recordings(
        recordings=recordings,
        notes=notes,
        labels=_parse_labels(labels),
        overrides=scenarios.parse_overrides(assignments or ()),
        by=user_name(),
    )
    if firewall_metric is not None:
        fields = read_metric(firewall_metric, _parse_declaration(metric))
        fields["notes"] = (*notes, *fields["notes"])
        request = request.model_copy(update=fields)
    elif metric:
        exit_usage("--metric: there is no metric; name its file with --firewall-metric")
    imported = session.call(
        lambda client: client.import_recordings(request), expected_s=max(2.0, read_s)
    )
    session.show(imported, _print_recordings_import)


def _parse_time(option: str, text: str | None) -> datetime | None:
    """Parse a time. Without an offset, it is a local time of the table."""
    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError as error:
        exit_usage(f"{option} {text!r}: not a time such as 2022-01-04T11:25:00 ({error})")


def _parse_declaration(assignments: Sequence[str] | None) -> dict[str, str | float | bool]:
    """Parse the fields of a metric declaration."""
    types = {"mss_bytes": int, "mtu_bytes": int, "lag_s": float}
    fields: dict[str, str | float | bool] = {}
    for assignment in assignments or ():
        field, equals, value = map(str.strip, assignment.partition("="))
        if not equals or field not in MetricDeclaration.model_fields:
            known = ", ".join(MetricDeclaration.model_fields)
            exit_usage(f"--metric {assignment!r}: expected FIELD=VALUE; fields are {known}")
        try:
            if field == "counts_lost":
                fields[field] = {"true": True, "false": False}[value]
            else:
                fields[field] = types.get(field, str)(value)
        except KeyError:
            exit_usage(f"--metric {assignment!r}: expected true or false")
        except ValueError:
            exit_usage(f"--metric {assignment!r}: {value!r} is not a number")
    return fields


def _parse_labels(assignments: Sequence[str] | None) -> dict[str, str]:
    labels = {}
    for assignment in assignments or ():
        name, _, value = map(str.strip, assignment.partition("="))
        if not name or not value:
            exit_usage(f"--label {assignment!r}: expected NAME=VALUE, such as idps=off")
        labels[name] = value
    try:
        TypeAdapter(LabelValues).validate_python(labels)
    except ValidationError:
        exit_usage(
            f"--label {', '.join(assignments or ())}: a name begins with a letter and has at most "
            "41 letters, digits, dots or dashes; a value has at most 100 characters"
        )
    return labels


def _print_table_import(imported: ImportedTable) -> None:
    columns: dict[str, TextColumn] = {
        "": lambda burst: str(burst.index + 1),
        "start (UTC)": "planned_start_at",
        "pairs": lambda burst: f"{burst.pairs_measured}/{burst.pairs_planned}",
        "late": lambda burst: str(len(burst.late_pairs)),
        "null": lambda burst: str(len(burst.null_pairs)),
        "missing": lambda burst: str(
            burst.pairs_planned - burst.pairs_measured - len(burst.null_pairs)
        ),
        "repeated": lambda burst: str(len(burst.repeated_rows)),
        "received": lambda burst: formatting.rate(RECEIVED.of_burst(burst)),
        "firewall": "reconciliation.firewall_bits_per_second",
        "residual": "reconciliation.residual_ratio",
    }
    print_table("", list(columns), [cells(burst, columns) for burst in imported.bursts])
    _print_end(imported.run_id, imported.verdict.value, imported.findings)


def _print_recordings_import(imported: ImportedRecordings) -> None:
    columns: dict[str, TextColumn] = {
        "file": _file_name,
        "state": "state",
        "iperf3": lambda result: result.version or "unknown",
        "traffic": _traffic,
        "sent": "sent_bits_per_second",
        "received": "received_bits_per_second",
        "retransmits": lambda result: formatting.count(result.retransmits),
        "RTT": "rtt_mean_s",
    }
    print_table("", list(columns), [cells(result, columns) for result in imported.files])
    for result in imported.files:
        if result.reason is not None:
            typer.echo(f"{_file_name(result)}: {result.state.value}: {result.reason}")
    verdict = imported.verdict.value if imported.verdict else "none"
    _print_end(imported.run_id, verdict, imported.findings)


def _traffic(result: FileResult) -> str:
    if result.direction is None or result.protocol is None:
        return "unknown"
    return f"{result.protocol.value} {result.direction.value} x {result.streams}"


def _file_name(result: FileResult) -> str:
    name = PurePath(result.file).name
    return name if result.test == 1 else f"{name}#{result.test}"


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines[:_PRINTED_MAX]:
        typer.echo(f"- {line}")
    if len(lines) > _PRINTED_MAX:
        typer.echo(f"- and {len(lines) - _PRINTED_MAX} more; `-o json` prints all")


def _print_end(run_id: str | None, verdict: str, findings: Sequence[Finding]) -> None:
    _print_lines(
        [
            f"{finding.severity} [{finding.id}]: {finding.sentence}"
            + (f"\n    next: {finding.next_step}" if finding.next_step else "")
            for finding in findings
        ]
    )
    typer.echo(f"\nrun {run_id}: {verdict}; see `broadside verdict last`")
