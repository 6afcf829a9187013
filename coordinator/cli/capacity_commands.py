"""The ``broadside capacity`` commands, used to change Azure Firewall capacity units."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from broadside.coordinator.cli.connection import run
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.options import Api, Json, print_json
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core import formatting
from broadside.coordinator.core.quantities import parse_rate
from broadside.coordinator.device.capacity import (
    LEAST,
    MOST,
    Capacity,
    FirewallCapacity,
    Record,
    open_capacity,
    raise_capacity,
    restore,
)
from broadside.coordinator.device.resource_manager import ResourceError, ResourceRefused
from broadside.coordinator.studies.study import Staircase

# How many of the newest studies to search.
STUDIES_LOOKED_AT = 200

app = CommandGroup()

Firewall = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="resource id of the firewall; default: BROADSIDE_AZURE_MONITOR_RESOURCE_ID",
    ),
]
Records = Annotated[
    Path | None,
    typer.Option(
        "--records",
        metavar="FOLDER",
        help="where the bounds from before are kept; default: under $XDG_STATE_HOME",
    ),
]


@app.command()
def show(firewall: Firewall = None, records: Records = None, as_json: Json = False) -> None:
    """What is set, what there is, and what a restore would bring back."""
    with _opened(firewall, records) as (opened, record):
        found, before = opened.read(), record.read()
        observed = opened.observed(datetime.now(UTC))
    if as_json:
        print_json(
            {
                "firewall": opened.resource_id,
                "tier": found.tier,
                "provisioning_state": found.provisioning_state,
                "min_count": found.capacity.min_count,
                "max_count": found.capacity.max_count,
                "observed_count": observed and observed.units_count,
                "observed_at": observed and observed.at.isoformat(),
                "to_restore": before
                and {"min_count": before.min_count, "max_count": before.max_count},
            }
        )
        return
    typer.echo(f"{opened.resource_id}\n{found.tier}, {found.provisioning_state}")
    typer.echo(f"set        {found.capacity}")
    typer.echo(
        f"observed   {observed.units_count:g} units at {observed.at:%H:%M} UTC (can lag 30 minutes)"
        if observed
        else "observed   unknown"
    )
    typer.echo(f"to restore {before or 'nothing'}")


@app.command(
    name="set", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def set_capacity(
    context: typer.Context,
    least: Annotated[int, typer.Option("--min", help="least capacity units, 2 to 50")],
    most: Annotated[int, typer.Option("--max", help="most: the same, or 2 or more above it")],
    firewall: Firewall = None,
    records: Records = None,
) -> None:
    """Raise (or lower) the bounds. With `-- COMMAND...`: for as long as that runs, then back.

    What was set before is written down first. When setting fails or is interrupted, and when the
    command ends in whatever way, the old bounds come back.
    """
    try:
        capacity = Capacity(min_count=least, max_count=most).checked()
    except ResourceRefused as error:
        stop(str(error), Exit.USAGE)
    code = 0
    with _opened(firewall, records) as (opened, record), _interruptible():
        typer.echo(f"setting {capacity}; this takes minutes", err=True)
        before = raise_capacity(opened, capacity, record, datetime.now(UTC))
        if not context.args:
            typer.echo(
                f"set: {capacity}; before: {before}\n"
                "put it back with: broadside capacity restore"
                + (f" --firewall {firewall}" if firewall else "")
            )
            return
        try:
            code = subprocess.run(context.args, check=False).returncode
        except FileNotFoundError:
            raise ResourceRefused(f"{context.args[0]}: no such command") from None
        finally:
            _put_back(opened, record)
    if code:
        raise typer.Exit(code if code > 0 else 128 - code)


@app.command(name="restore")
def restore_capacity(firewall: Firewall = None, records: Records = None) -> None:
    """Put back the bounds from before the first `set`."""
    with _opened(firewall, records) as (opened, record), _interruptible():
        before = restore(opened, record)
    typer.echo(f"restored: {before}" if before else "nothing to restore")


@app.command()
def units(
    rate: Annotated[str, typer.Argument(help="payload to carry, like 150G")],
    api: Api = None,
    as_json: Json = False,
) -> None:
    """How many units carry a rate, by the newest scale-out study; nothing is set."""
    try:
        target = parse_rate(rate)
    except ValueError as error:
        stop(f"RATE {rate!r}: {error}", Exit.USAGE)
    studies = run(api, lambda client: client.studies(STUDIES_LOOKED_AT))
    for study in studies:
        question = study.spec.question
        found = None if study.conclusion is None else study.conclusion.scale_out
        if found is None or not isinstance(question, Staircase):
            continue
        count = found.units_for(target, question.units_count)
        if count is not None:
            break
    else:
        stop(
            "no scale-out study has shown what a unit carries; run `broadside study scaleout`",
            Exit.CANNOT_RUN,
        )
    told = {
        "units_count": count,
        "bits_per_second": target,
        "study_id": study.study_id,
        "unit_bits_per_second": found.unit_bits_per_second,
        "unit_half_width_bits_per_second": found.unit_half_width_bits_per_second,
    }
    if as_json:
        print_json(told)
        return
    typer.echo(
        f"{count} units for {formatting.rate(target)} of payload, by the lower end of "
        f"{formatting.rate(found.unit_bits_per_second)} +- "
        f"{formatting.rate(found.unit_half_width_bits_per_second)} a unit\n"
        f"study {study.study_id}: {study.conclusion.sentence if study.conclusion else ''}"
    )
    if count > MOST:
        typer.echo(f"a firewall has {MOST} units at most: take several, or a lower rate")
    else:
        least = max(LEAST, count)
        typer.echo(f"set them with: broadside capacity set --min {least} --max {least}")


def _put_back(opened: FirewallCapacity, record: Record) -> None:
    typer.echo("restoring what was set before", err=True)
    typer.echo(f"restored: {restore(opened, record)}", err=True)


@contextlib.contextmanager
def _opened(
    resource_id: str | None, records: Path | None
) -> Iterator[tuple[FirewallCapacity, Record]]:
    """Yield the firewall and its record. An expected error prints one line and exits."""
    record: Record | None = None
    opened: FirewallCapacity | None = None
    try:
        settings = CoordinatorSettings()
        opened = open_capacity(settings, resource_id, lambda text: typer.echo(text, err=True))
        record = Record.of(opened.resource_id, records)
        yield opened, record
    except ResourceError as error:
        kept = record is not None and record.path.exists()
        later = "; the bounds from before are kept: run broadside capacity restore" if kept else ""
        usage = isinstance(error, ResourceRefused) and opened is None
        stop(f"{error}{later}", Exit.USAGE if usage else Exit.CANNOT_RUN)
    finally:
        if opened is not None:
            opened.close()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that the old bounds are restored."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
