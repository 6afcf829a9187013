"""The ``broadside report``, ``export`` and ``chart`` commands, used to write files for a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broadside.coordinator.cli.connection import RunArgument, run_of
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.options import Api, Json, print_json
from broadside.coordinator.cli.saved_files import (
    AsFormat,
    ChartOutput,
    Output,
    ReportFormat,
    by_ending,
    save,
    save_chart,
    save_report,
)
from broadside.coordinator.cli.suggest import complete_chart
from broadside.coordinator.views.charts import Theme
from broadside.coordinator.views.exports import TABLES, Format

if TYPE_CHECKING:
    from broadside.coordinator.cli.verbs import Verbs


def report(
    run_id: RunArgument,
    format: AsFormat = None,
    output: Output = None,
    api: Api = None,
) -> None:
    """Write a run's report: everything an engineer signs, in one file."""

    chosen = ReportFormat.chosen(format, output)

    async def work(client: "Verbs", found: str) -> tuple[str, bytes]:
        return found, await client.report(found, chosen.asked)

    save_report(*run_of(api, run_id, work), chosen, output)


def export(
    run_id: RunArgument,
    format: Annotated[
        Format | None, typer.Option("--format", help="default: by the output's ending, else csv")
    ] = None,
    table: Annotated[
        str,
        typer.Option(help=f"csv, parquet and arrow hold one: {', '.join(TABLES)}, or all"),
    ] = "all",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="file; with `--table all` a directory; `-`: stdout"),
    ] = None,
    api: Api = None,
) -> None:
    """Write a run's seconds, pairs, bursts and summary as tables."""
    chosen = format or by_ending(output, Format) or Format.CSV
    if table not in (*TABLES, "all"):
        stop(f"--table {table!r}: there are {', '.join(TABLES)} and all", Exit.USAGE)
    wanted = TABLES[:1] if chosen.whole else TABLES if table == "all" else (table,)
    if len(wanted) > 1 and output is not None and (str(output) == "-" or output.suffix):
        stop(
            f"--output {output}: {chosen.value} files hold one table; name it with --table, or "
            "give a directory",
            Exit.USAGE,
        )

    async def work(client: "Verbs", found: str) -> tuple[str, dict[str, bytes]]:
        return found, {name: await client.export(found, chosen.value, name) for name in wanted}

    found, files = run_of(api, run_id, work)
    for name, body in files.items():
        called = f"{found}.{chosen.value}" if chosen.whole else f"{found}-{name}.{chosen.value}"
        if len(files) > 1 and output is not None:
            output.mkdir(parents=True, exist_ok=True)
        many = output is None or len(files) > 1 or output.is_dir()
        save(body, (output or Path()) / called if many and str(output) != "-" else output)


def chart(
    run_id: RunArgument,
    name: Annotated[
        str | None,
        typer.Argument(help="which chart; none: list them", autocompletion=complete_chart),
    ] = None,
    output: ChartOutput = None,
    burst: Annotated[int, typer.Option(min=1, help="for charts of one burst, from 1")] = 1,
    theme: Annotated[Theme, typer.Option(help="of .png and .json")] = Theme.LIGHT,
    width: Annotated[int, typer.Option(min=200, max=4000, help="px")] = 1100,
    height: Annotated[int, typer.Option(min=150, max=4000, help="px")] = 520,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Draw one of a run's charts into a file, or list them."""
    from broadside.coordinator.views.charts import catalogue, kind_of

    if name is None:
        if run_id in {entry.name for entry in catalogue()}:
            stop(f"chart {run_id}: of which run? broadside chart last {run_id}", Exit.USAGE)

        async def known_run(client: "Verbs", found: str) -> str:
            return (await client.status(found)).run_id

        _list(run_of(api, run_id, known_run), as_json=as_json)
        return
    drawn = Theme.LIGHT if output is not None and output.suffix == ".svg" else theme

    async def work(client: "Verbs", found: str) -> tuple[str, dict[str, Any]]:
        known = name in {entry.name for entry in catalogue()}
        index = burst - 1 if known and kind_of(name) == "burst" else None
        return found, await client.chart(found, name, index, drawn.value)

    found, made = run_of(api, run_id, work)
    if as_json:
        print_json(made)
        return
    save_chart(made, output or Path(f"{found}-{name}.png"), width=width, height=height)


def _list(run_id: str, *, as_json: bool) -> None:
    from broadside.coordinator.cli.display import print_table
    from broadside.coordinator.views.charts import catalogue

    if as_json:
        print_json([entry.model_dump() for entry in catalogue()])
        return
    rows = [[entry.name, entry.kind, entry.says] for entry in catalogue()]
    print_table("", ["chart", "of a", "what it shows"], rows)
    typer.echo(f"\ndraw one: broadside chart {run_id} {rows[0][0]}")
