"""Readiness check for the VMs of a range, with the boot status of those that are not ready.

Each VM publishes its boot status as a row of the results table and on its serial console
(``deploy/azure/modules/boot/files/fetch.py``). An agent is ready when its heartbeat advances
without a problem. The coordinator is ready when its boot status is ``ready``. If this host cannot
read the table, as with private endpoints, the serial consoles are used for both.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import typer

from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.terraform import ask_az_together, try_az

# A VM needs 2 minutes to start, and 1 or 2 minutes to install its package.
READY_WITHIN_S: Final = 1200.0
# An agent sends a heartbeat every 5 s, so each check sees a new one.
LOOK_PAUSE_S: Final = 10.0
COMPUTE_API: Final = "2024-11-01"
SERIAL_LINE: Final = "broadside-boot: "
# Azure stores only the last megabyte.
SERIAL_MAX_BYTES: Final = 4 << 20
SERIAL_TIMEOUT_S: Final = 30.0
ROWS_FILTER: Final = "PartitionKey eq 'boot' or PartitionKey eq 'presence'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One VM of the range.

    Attributes:
        name: Host name, which the agent also uses as its name.
        id: Resource id.
        is_agent: False for the coordinator.
        is_latest: False if the VM should be replaced, because an older scale set model has created
            it.
    """

    name: str
    id: str
    is_agent: bool
    is_latest: bool = True


@dataclass(slots=True, kw_only=True)
class Looked:
    """Data for all machines so far, by host name.

    Attributes:
        boots: Last boot status.
        presences: Last heartbeat.
        beating: Agents whose heartbeat advanced between two checks.
        unreadable: Error from the last table read. None if it succeeded.
    """

    boots: dict[str, Mapping[str, str]] = field(default_factory=dict)
    presences: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    beating: set[str] = field(default_factory=set)
    unreadable: str | None = None


def wait_ready(
    place: Sequence[str], scale_sets: Sequence[str], boot: Mapping[str, Any], within_s: float
) -> None:
    """Wait until all agents and the coordinator are ready. Otherwise exit with 4 and their names.

    Args:
        place: Options to use with az, to select resource group and subscription.
        scale_sets: Scale set names for the agents.
        boot: Terraform output with the same name. It contains the coordinator VM, and the boot
            status table or None if only hosts inside the network can read it.
        within_s: Number of seconds to wait before the command fails.
    """
    machines = _list_machines(place, scale_sets, boot)
    looked, end_s = Looked(), time.monotonic() + within_s
    told = None
    while True:
        if boot["table"] is None:
            waiting = [each for each in machines if not _is_ready(each, looked, by_console=True)]
            _read_consoles(waiting, looked)
        else:
            _read_table(boot["table"], place, looked)
        by_console = boot["table"] is None
        ready = [each for each in machines if _is_ready(each, looked, by_console=by_console)]
        if len(ready) == len(machines):
            typer.echo(_count(ready, machines))
            return
        if told != len(ready):
            typer.echo(f"{_count(ready, machines)}; waiting for the others", err=True)
            told = len(ready)
        if time.monotonic() + LOOK_PAUSE_S > end_s:
            break
        time.sleep(LOOK_PAUSE_S)
    late = [each for each in machines if each not in ready]
    _read_consoles([each for each in late if each.name not in looked.boots], looked)
    for each in late:
        typer.echo(f"not ready: {each.name}: {_reason(each, looked)}")
    if looked.unreadable:
        typer.echo(f"the table of boot statuses could not be read: {looked.unreadable}")
    if any(not each.is_latest for each in late):
        typer.echo(
            "VMs of an earlier package keep waiting for that one; replace them: "
            "broadside scale 0; broadside scale N"
        )
    stop(
        f"{_count(ready, machines)} within {within_s:.0f} s; the others go on trying by "
        "themselves, and broadside up looks again",
        Exit.CANNOT_RUN,
    )


def _list_machines(
    place: Sequence[str], scale_sets: Sequence[str], boot: Mapping[str, Any]
) -> list[Machine]:
    listed = ask_az_together(
        *(["vmss", "list-instances", "--name", name, *place] for name in scale_sets)
    )
    machines = [
        Machine(
            name=str(each["osProfile"]["computerName"]),
            id=str(each["id"]),
            is_agent=True,
            is_latest=each.get("latestModelApplied") is not False,
        )
        for some in listed
        for each in some
    ]
    own = Machine(name="coordinator", id=str(boot["coordinator_id"]), is_agent=False)
    return [*machines, own]


def _count(ready: Iterable[Machine], machines: Iterable[Machine]) -> str:
    ready_count = sum(each.is_agent for each in ready)
    agents_count = sum(each.is_agent for each in machines)
    coordinator = (
        "the coordinator" if any(not each.is_agent for each in ready) else "no coordinator"
    )
    return f"{ready_count} of {agents_count} agents and {coordinator} ready"


def _is_ready(machine: Machine, looked: Looked, *, by_console: bool) -> bool:
    if by_console or not machine.is_agent:
        return looked.boots.get(machine.name, {}).get("stage") == "ready"
    presence = looked.presences.get(machine.name, {})
    return machine.name in looked.beating and not presence.get("problem")


def _reason(machine: Machine, looked: Looked) -> str:
    """Return why a machine is not ready, from its newest published status."""
    boot = looked.boots.get(machine.name)
    problem = looked.presences.get(machine.name, {}).get("problem")
    if boot is None and problem is None:
        return "no boot status, neither in the table nor on its serial console; does it start?"
    if boot is None or (boot.get("stage") == "ready" and problem):
        return f"its agent reports: {problem}"
    if boot.get("stage") == "ready":
        return f"it was ready at {boot.get('at')}, and has no heartbeat now"
    error = boot.get("error") or "under way"
    return f"{boot.get('stage')} at {boot.get('at')}: {error}"


# The table ----------------------------------------------------------------------------------------


def _read_table(table: Mapping[str, str], place: Sequence[str], looked: Looked) -> None:
    """Read boot statuses and heartbeats. A heartbeat counts if it differs from the previous one."""
    answer, looked.unreadable = try_az(
        "storage", "entity", "query", "--auth-mode", "login",
        "--account-name", table["account"], "--table-name", table["name"],
        "--filter", ROWS_FILTER, "--subscription", place[-1],
    )  # fmt: skip
    if answer is None:
        return
    looked.beating = set()
    for row in answer["items"]:
        try:
            told = json.loads(row["json"])
            if row["PartitionKey"] == "boot":
                looked.boots[str(row["RowKey"])] = told
                continue
            name, before = str(told["agent_id"]), looked.presences.get(str(told["agent_id"]), {})
            if before and told["beat_at"] != before["beat_at"] and told["state"] != "stopping":
                looked.beating.add(name)
            looked.presences[name] = told
        except (ValueError, LookupError, TypeError):
            # Another version has written this row, so it is not a heartbeat.
            continue


# The serial console -------------------------------------------------------------------------------


def _read_consoles(machines: Sequence[Machine], looked: Looked) -> None:
    """Read the last boot status from each machine's serial console."""
    with ThreadPoolExecutor(8) as pool:
        for each, status in zip(machines, pool.map(_console_status, machines), strict=True):
            if status is not None:
                looked.boots[each.name] = status


def _console_status(machine: Machine) -> Mapping[str, str] | None:
    url = f"{machine.id}/retrieveBootDiagnosticsData?api-version={COMPUTE_API}"
    answer, _ = try_az("rest", "--method", "post", "--url", url)
    address = (answer or {}).get("serialConsoleLogBlobUri") or ""
    if not address.startswith("https://"):
        return None
    import httpx

    from broadside.exchange.http.bounded import ask_now

    try:
        log = ask_now(address, SERIAL_MAX_BYTES, SERIAL_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return None
    return last_status(log.content.decode(errors="replace")) if log.is_success else None


def last_status(console: str) -> Mapping[str, str] | None:
    """Return the newest boot status of a serial console, or None if there is no readable one."""
    for line in reversed(console.splitlines()):
        _, found, told = line.partition(SERIAL_LINE)
        if found:
            try:
                status = json.JSONDecoder().raw_decode(told)[0]
            except ValueError:
                # Another process has written to the same line.
                continue
            if isinstance(status, dict):
                return status
    return None
