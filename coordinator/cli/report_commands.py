"""Commands that write reports, exports and charts of a run to files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broadside.coordinator.cli.exit_codes import exit_usage
from broadside.coordinator.cli.options import complete_chart
from broadside.coordinator.cli.output_files import (
    ChartFile,
    OutputFile,
    ReportFileFormat,
    ReportFormatOption,
    format_of,
    save,
    save_chart,
    save_report,
)
from broadside.coordinator.cli.progress_display import show_progress
from broadside.coordinator.cli.session import ApiSession, RunArgument, Session
from broadside.coordinator.cli.text_tables import ListTable, print_list
from broadside.coordinator.views.charts import Theme
from broadside.coordinator.views.tables import TABLES, Format

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations
    from broadside.coordinator.views.charts import Chart


def report(
    session: ApiSession,
    run_id: RunArgument,
    format: ReportFormatOption = None,
    file: OutputFile = None,
) -> None:
    """Write the report of a run to a file."""
    chosen = ReportFileFormat.choose(format, file)

    async def work(client: "Operations", resolved: str) -> tuple[str, bytes]:
        return resolved, await client.report(resolved, chosen.requested)

    save_report(*session.call_run(run_id, work), chosen, file)


def export(
    session: ApiSession,
    run_id: RunArgument,
    format: Annotated[Format | None, typer.Option("--output", "-o")] = None,
    table: Annotated[
        str,
        typer.Option(help=f"Table of a csv, parquet or arrow file: {', '.join(TABLES)}, or all."),
    ] = "all",
    file: Annotated[Path | None, typer.Option("--file", "-f")] = None,
) -> None:
    """Write the results of a run as tables.

    The tables have the seconds, the pairs, the bursts and the summary, and the other parts of a
    mixed run.

    Args:
        format: Output format; default: by the file extension, else csv.
        file: Output file, - for standard output; a folder with --table all.
    """
    chosen = format or format_of(file, Format) or Format.CSV
    if table not in (*TABLES, "all"):
        exit_usage(f"--table {table!r}: not a table; use {', '.join(TABLES)} or all")
    tables = TABLES[:1] if chosen.is_single_file else TABLES if table == "all" else (table,)
    if len(tables) > 1 and file is not None and (str(file) == "-" or file.suffix):
        exit_usage(
            f"--file {file}: a {chosen.value} file can have only one table; select it with "
            "--table, or give a folder"
        )

    async def work(client: "Operations", resolved: str) -> tuple[str, dict[str, bytes]]:
        bodies = {}
        wanted = list(tables)
        if len(tables) > 1:
            summary = await client.summary(resolved)
            is_mixed = summary is not None and summary.part_names
            wanted = [name for name in tables if name != "parts" or is_mixed]
        with show_progress("exporting", len(wanted)) as advance:
            for name in wanted:
                bodies[name] = await client.export(resolved, chosen.value, name)
                advance(1)
        return resolved, bodies

    resolved, files = session.call_run(run_id, work, has_progress=True)
    for name, body in files.items():
        table_name = "" if chosen.is_single_file else f"-{name}"
        file_name = f"{resolved}{table_name}.{chosen.value}"
        if len(files) > 1 and file is not None:
            file.mkdir(parents=True, exist_ok=True)
        in_folder = file is None or len(files) > 1 or file.is_dir()
        save(body, (file or Path()) / file_name if in_folder and str(file) != "-" else file)


def chart(  # noqa: PLR0913 - options
    session: Session,
    run_id: RunArgument,
    name: Annotated[str | None, typer.Argument(autocompletion=complete_chart)] = None,
    file: ChartFile = None,
    burst: Annotated[int, typer.Option(min=1)] = 1,
    theme: Theme = Theme.LIGHT,
    width: Annotated[int, typer.Option(min=200, max=4000)] = 1100,
    height: Annotated[int, typer.Option(min=150, max=4000)] = 520,
) -> None:
    """Write a chart of a run, or list the charts.

    Args:
        name: Name of the chart; without it, list the charts.
        burst: Number of the burst, from 1.
        theme: Colours of .png and .svg.
        width: Width in pixels.
        height: Height in pixels.
    """
    from broadside.coordinator.views.charts import catalogue, kind_of

    known = {entry.name for entry in catalogue()}
    if name is None:
        if run_id in known:
            exit_usage(f"chart {run_id}: the run is missing; write `broadside chart last {run_id}`")
        status = session.call_run(run_id, lambda client, resolved: client.status(resolved))
        _list_charts(session, status.run_id)
        return
    number = burst if name in known and kind_of(name) == "burst" else None

    async def work(client: "Operations", resolved: str) -> tuple[str, "Chart"]:
        return resolved, await client.chart(resolved, name, number)

    resolved, drawing = session.call_run(run_id, work)
    path = file or Path(f"{resolved}-{name}.png")
    session.show(
        drawing, lambda one: save_chart(one, path, theme=theme, width=width, height=height)
    )


def _list_charts(session: Session, run_id: str) -> None:
    from broadside.coordinator.views.charts import catalogue

    charts = list(catalogue())
    print_list(
        session,
        charts,
        ListTable(
            columns={"chart": "name", "of a": "kind", "content": "description"},
            model="broadside.coordinator.views.charts.catalogue:ChartEntry",
            empty="no chart",
        ),
    )
    if session.is_text:
        typer.echo(f"\nto write one: broadside chart {run_id} {charts[0].name}")
