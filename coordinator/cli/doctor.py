"""``broadside doctor``: what this host needs, and the fix for what is wrong."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime

import typer
from pydantic import TypeAdapter, ValidationError

from coordinator.cli.connection import Json
from coordinator.cli.exits import Exit
from coordinator.cli.lab import lab_checks
from coordinator.ledgers import LedgerError, open_ledger
from coordinator.settings import CoordinatorSettings
from exchange.checks import Check
from exchange.fabric import FabricSettings, open_fabric
from exchange.messages import Direction
from exchange.ports import Entity, ExchangeError

AGENT_CHECK_TIMEOUT_S = 30.0


def doctor(as_json: Json = False) -> None:
    """Check what this host needs, and print the fix for what is wrong."""
    found = [*agent_checks(), *lab_checks(), *asyncio.run(fabric_checks()), ledger_check()]
    if as_json:
        typer.echo(TypeAdapter(list[Check]).dump_json(found, indent=2).decode())
    else:
        for check in found:
            mark = "ok  " if check.ok else "FAIL" if check.required else "note"
            typer.echo(f"{mark} {check.name}: {check.detail}")
            if check.fix:
                typer.echo(f"     fix: {check.fix}")
    if any(check.required and not check.ok for check in found):
        raise typer.Exit(Exit.CANNOT_RUN)


def agent_checks() -> list[Check]:
    """What an agent on this host finds; asked of a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "agent.check"],
            capture_output=True,
            text=True,
            timeout=AGENT_CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return [Check(name="agent", ok=False, detail=str(error))]
    if done.returncode:
        return [Check(name="agent", ok=False, detail=done.stderr.strip().splitlines()[-1])]
    return TypeAdapter(list[Check]).validate_json(done.stdout)


async def fabric_checks() -> list[Check]:
    """Whether queue and table answer: a row is written, read and removed."""
    now = datetime.now(UTC)
    probe = Entity(partition_key="doctor", row_key=f"{now:%Y%m%d%H%M%S%f}", properties={"at": now})
    try:
        fabric = open_fabric(FabricSettings())
    except (ExchangeError, ValidationError) as error:
        return [Check(name="fabric", ok=False, detail=" ".join(str(error).split()))]
    found = []
    try:
        try:
            await fabric.table.insert(probe)
            await fabric.table.get(probe.partition_key, probe.row_key)
            await fabric.table.delete(probe.partition_key, probe.row_key)
            found.append(Check(name="table", ok=True, detail="a row was written, read and removed"))
        except ExchangeError as error:
            found.append(Check(name="table", ok=False, detail=str(error)))
        try:
            counts = await fabric.queue.counts()
            found.append(
                Check(
                    name="queue",
                    ok=True,
                    detail=f"{counts.active_count} active, {counts.scheduled_count} scheduled, "
                    f"{counts.dead_count} dead",
                )
            )
        except ExchangeError as error:
            found.append(Check(name="queue", ok=False, detail=str(error)))
    finally:
        await fabric.close()
    return found


def ledger_check() -> Check:
    """Whether the firewall's own figures can be read."""
    try:
        source = open_ledger(CoordinatorSettings())
        if source is None:
            return Check(
                name="ledger",
                ok=False,
                detail="none: nothing will be held against the fleet's bytes",
                fix="set BROADSIDE_LEDGER",
                required=False,
            )
        now = datetime.now(UTC)
        ledger = asyncio.run(source.read(now, now, Direction.FORWARD))
    except (LedgerError, ValidationError) as error:
        return Check(name="ledger", ok=False, detail=" ".join(str(error).split()))
    return Check(name="ledger", ok=True, detail=f"{ledger.source} answers")
