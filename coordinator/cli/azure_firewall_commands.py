"""The ``broadside capacity`` and ``policy-switch`` commands for Azure Firewall."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from broadside.coordinator.cli.command_group import CommandGroup, Output
from broadside.coordinator.cli.exit_codes import ExitCode, exit_usage, exit_with_error
from broadside.coordinator.cli.progress_display import show_progress
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.capacity import (
    Capacity,
    CapacityFile,
    FirewallCapacity,
    open_capacity,
    raise_capacity,
    restore,
)
from broadside.coordinator.device.policy_switch import switch_policy
from broadside.coordinator.device.resource_manager import PATIENCE_S, ResourceError, ResourceRefused
from broadside.exchange.outage_log import utc_now

capacity = CommandGroup()

FirewallOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Resource id of the firewall; default: BROADSIDE_AZURE_MONITOR_RESOURCE_ID.",
    ),
]
RecordsOption = Annotated[
    Path | None,
    typer.Option(
        "--records",
        metavar="FOLDER",
        help="Folder for the previous limits; default: below $XDG_STATE_HOME.",
    ),
]


@capacity.command()
def show(session: Output, firewall: FirewallOption = None, records: RecordsOption = None) -> None:
    """Show the limits, the observed units, and the limits that a restore would set."""
    with _open_firewall(firewall, records) as (opened, record):
        state, previous = opened.read(), record.read()
        observed = opened.observed(utc_now())
    fields = {
        "firewall": opened.resource_id,
        "tier": state.tier,
        "provisioning_state": state.provisioning_state,
        "min_count": state.capacity.min_count,
        "max_count": state.capacity.max_count,
        "observed_count": observed and observed.units_count,
        "observed_at": observed and observed.at.isoformat(),
        "to_restore": previous
        and {"min_count": previous.min_count, "max_count": previous.max_count},
    }

    def print_text(_: Any) -> None:
        units = "unknown"
        if observed:
            units = f"{observed.units_count:g} units at {observed.at:%H:%M} UTC (up to 30 min old)"
        typer.echo(f"{opened.resource_id}\n{state.tier}, {state.provisioning_state}")
        typer.echo(f"limits     {state.capacity}\nobserved   {units}")
        typer.echo(f"to restore {previous or 'nothing'}")

    session.show(fields, print_text)


@capacity.command(
    name="set", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def set_capacity(
    context: typer.Context,
    least: Annotated[int, typer.Option("--min")],
    most: Annotated[int, typer.Option("--max")],
    firewall: FirewallOption = None,
    records: RecordsOption = None,
) -> None:
    """Set the limits of the capacity units.

    With `-- COMMAND...` they are set while the command runs. The previous limits are stored first,
    and restored when the command ends, fails or is interrupted.

    Args:
        least: Minimum capacity units, 2 to 50.
        most: Maximum capacity units: the minimum, or 2 or more above.
    """
    try:
        limits = Capacity(min_count=least, max_count=most).checked()
    except ResourceRefused as error:
        exit_usage(str(error))
    code = 0
    with _open_firewall(firewall, records) as (opened, record), _interruptible():
        typer.echo(f"setting {limits}; this takes minutes", err=True)
        with show_progress("waiting for Azure", limit_s=PATIENCE_S):
            previous = raise_capacity(opened, limits, record, utc_now())
        if not context.args:
            option = f" --firewall {firewall}" if firewall else ""
            typer.echo(
                f"set: {limits}; before: {previous}\n"
                f"restore the previous limits with: broadside capacity restore{option}"
            )
            return
        try:
            code = subprocess.run(context.args, check=False).returncode
        except FileNotFoundError:
            raise ResourceRefused(f"{context.args[0]}: no such command") from None
        finally:
            typer.echo("restoring the previous limits", err=True)
            typer.echo(f"restored: {restore(opened, record)}", err=True)
    if code:
        raise typer.Exit(code if code > 0 else 128 - code)


@capacity.command(name="restore")
def restore_capacity(firewall: FirewallOption = None, records: RecordsOption = None) -> None:
    """Restore the limits from before the first `set`."""
    with (
        _open_firewall(firewall, records) as (opened, record),
        _interruptible(),
        show_progress("waiting for Azure", limit_s=PATIENCE_S),
    ):
        previous = restore(opened, record)
    typer.echo(f"restored: {previous}" if previous else "nothing to restore")


@contextlib.contextmanager
def _open_firewall(
    resource_id: str | None, records: Path | None
) -> Iterator[tuple[FirewallCapacity, CapacityFile]]:
    """Yield the firewall and its record. An expected error prints one line and exits."""
    record: CapacityFile | None = None
    opened: FirewallCapacity | None = None
    try:
        settings = CoordinatorSettings()
        opened = open_capacity(settings, resource_id, lambda text: typer.echo(text, err=True))
        record = CapacityFile.of(opened.resource_id, records)
        yield opened, record
    except ResourceError as error:
        hint = ""
        if record is not None and record.path.exists():
            hint = "; the previous limits are stored: run broadside capacity restore"
        usage = isinstance(error, ResourceRefused) and opened is None
        exit_with_error(f"{error}{hint}", ExitCode.USAGE if usage else ExitCode.CANNOT_RUN)
    finally:
        if opened is not None:
            opened.close()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that the previous limits are restored."""

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


class PolicyMode(StrEnum):
    """Azure Firewall policy mode, with the same spelling as Azure."""

    OFF = "Off"
    ALERT = "Alert"
    DENY = "Deny"


class SourceTranslation(StrEnum):
    """Translation of source addresses by network rules for private destinations."""

    OFF = "Off"
    ON = "On"


def policy_switch(
    policy: Annotated[str, typer.Option("--policy", metavar="ID")],
    idps: Annotated[PolicyMode | None, typer.Option("--idps")] = None,
    threat_intelligence: Annotated[PolicyMode | None, typer.Option("--threat-intelligence")] = None,
    snat: Annotated[SourceTranslation | None, typer.Option("--snat")] = None,
) -> None:
    """Set a mode of an Azure Firewall policy.

    The mode is that of intrusion detection, threat intelligence or translation. With translation,
    servers receive the addresses of the units, so that units can be counted. It changes the test:
    connections need SNAT ports, and servers must accept these addresses. The command ends when the
    policy is updated, which takes some ten minutes while a firewall uses it. The identity needs
    permission to read and write the policy.

    Args:
        policy: Resource id of the policy.
        idps: Intrusion detection (IDPS), only for a Premium policy.
        threat_intelligence: Threat intelligence.
        snat: Translation of source addresses for private destinations.
    """
    options = {"idps": idps, "threat_intelligence": threat_intelligence, "snat": snat}
    modes = {name: mode.value for name, mode in options.items() if mode is not None}
    if not modes:
        exit_usage("no mode given; use --idps, --threat-intelligence or --snat")
    try:
        with show_progress("waiting for Azure", limit_s=PATIENCE_S):
            switch_policy(policy, modes, CoordinatorSettings())
    except ResourceError as error:
        exit_with_error(str(error))
