"""Checks of a range on Azure: quota before it is created, and readiness of its VMs.

Each VM publishes its boot status as a row of the results table and on its serial console
(``deploy/azure/modules/boot/files/fetch.py``). An agent is ready when its heartbeat advances
without a problem. The coordinator is ready when its boot status is ``ready``. If this host cannot
read the table, as with private endpoints, the serial consoles will be used for both.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import typer

from broadside.coordinator import prices
from broadside.coordinator.cli.exit_codes import exit_with_error
from broadside.coordinator.cli.terraform import call_az_together, try_az
from broadside.coordinator.core.formatting import dollars
from broadside.coordinator.core.plan.price import Bill
from broadside.coordinator.core.plan.standing_cost import RangeState, standing_bill
from broadside.exchange.ports import PROPERTY_MAX_BYTES
from broadside.exchange.strict_json import parse_strict_json

JsonRecord = Mapping[str, Any]

# A VM needs 2 minutes to start, and 1 or 2 minutes to install its package.
READY_WITHIN_S: Final = 1200.0
# An agent will send a heartbeat every 5 s, so we will get a new one for each check.
POLL_INTERVAL_S: Final = 10.0
COMPUTE_API: Final = "2024-11-01"
SERIAL_LINE: Final = "broadside-boot: "
# Azure stores only the last megabyte.
SERIAL_MAX_BYTES: Final = 4 << 20
SERIAL_TIMEOUT_S: Final = 30.0
ROWS_FILTER: Final = "PartitionKey eq 'boot' or PartitionKey eq 'presence'"


# Quota --------------------------------------------------------------------------------------------


def shortages(
    needs: JsonRecord,
    *,
    compute: Sequence[JsonRecord],
    network: Sequence[JsonRecord],
    sizes: Sequence[JsonRecord],
    locations: Sequence[JsonRecord],
) -> Iterator[str]:
    """Yield a line for each quota or size that the subscription lacks.

    Args:
        needs: Requirements that Terraform computes from the variables.
        compute: Compute usages, as az lists them, like the following ones.
        network: Network usages.
        sizes: VM sizes.
        locations: Regions that the subscription can use.
    """
    region = needs["location"]
    if region not in {location["name"] for location in locations}:
        hint = "see: az account list-locations"
        yield f"location {region!r}: not a region of this subscription; {hint}"
        return
    yield from _closed_zones(needs, locations)
    counts = {str(needs["vm_size"]): 2 * int(needs["instances"])}
    coordinator = str(needs["coordinator_size"])
    counts[coordinator] = counts.get(coordinator, 0) + 1
    if needs["nva_count"]:
        nva_size = str(needs["nva_size"])
        counts[nva_size] = counts.get(nva_size, 0) + int(needs["nva_count"])
    offers = {size: _offer_of(sizes, size) for size in counts}
    fleet_zones = set(needs.get("fleet_zones") or ())
    for size, offer in offers.items():
        used = fleet_zones if size == needs["vm_size"] else set()
        yield from _size_problems(size, offer, region, used)
    zones = set(_zones(offers[needs["vm_size"]]))
    for zone in sorted(fleet_zones - zones):
        yield f"{needs['vm_size']} is not offered in zone {zone} of {region}; change fleet_zones"
    vcpus: Counter[str] = Counter()
    for size, offer in offers.items():
        if offer is not None:
            values = {one["name"]: one["value"] for one in offer["capabilities"]}
            vcpus[offer["family"]] += int(values["vCPUs"]) * counts[size]
    for family, count in sorted(vcpus.items()):
        yield from _quota(compute, family, count, f"vCPUs of the family {family}", region)
    yield from _quota(compute, "cores", vcpus.total(), "regional vCPUs", region)
    for name in ("StandardSkuPublicIpAddresses", "PublicIPAddresses"):
        count = int(needs["public_addresses_count"])
        yield from _quota(network, name, count, "public addresses", region)


def _closed_zones(needs: JsonRecord, locations: Sequence[JsonRecord]) -> Iterator[str]:
    """Yield the zones of the firewall in which Azure creates none.

    Azure names physical zones, and each subscription has its own numbers for them.
    """
    region, closed = needs["location"], set(needs.get("firewall_zones_closed") or ())
    location = next(place for place in locations if place["name"] == region)
    physical = {
        zone["logicalZone"]: zone["physicalZone"].rpartition("-az")[2]
        for zone in location.get("availabilityZoneMappings") or ()
    }
    zones = sorted(needs.get("firewall_zones") or ())
    if wrong := [zone for zone in zones if physical.get(zone, zone) in closed]:
        usable = [zone for zone in sorted(physical) if physical[zone] not in closed]
        yield (
            f"Azure creates no firewall in physical zone {', '.join(sorted(closed))} of {region}, "
            f"which is zone {', '.join(wrong)} of this subscription; set "
            f"firewall_zones={json.dumps(usable)}"
        )


def _offer_of(sizes: Sequence[JsonRecord], size: str) -> JsonRecord | None:
    return next((offer for offer in sizes if offer["name"].lower() == size.lower()), None)


def _size_problems(
    size: str, offer: JsonRecord | None, region: str, zones: Set[str]
) -> Iterator[str]:
    """Yield the restrictions that concern the range: of its region, or of its zones.

    Args:
        size: VM size.
        offer: Offer of the size, or None.
        region: Region of the range.
        zones: Zones in which the range has VMs of this size; empty for a regional deployment.
    """
    if offer is None:
        yield f"{size} is not offered in {region}; use another vm_size or location"
        return
    for limit in offer.get("restrictions") or ():
        location = region
        if limit.get("type") == "Zone":
            closed = zones & set((limit.get("restrictionInfo") or {}).get("zones") or ())
            if not closed:
                continue
            location = f"zone {', '.join(sorted(closed))} of {region}"
        yield (
            f"{size} in {location} is not available to this subscription "
            f"({limit.get('reasonCode', 'unknown')}); request it: portal, Help + support, service "
            "and subscription limits"
        )


def _zones(offer: JsonRecord | None) -> list[str]:
    return [zone for info in (offer or {}).get("locationInfo") or () for zone in info["zones"]]


def _quota(
    usages: Sequence[JsonRecord], name: str, count: int, unit: str, region: str
) -> Iterator[str]:
    for usage in usages:
        if usage["name"]["value"].lower() != name.lower():
            continue
        used, limit = int(usage["currentValue"]), int(usage["limit"])
        if limit - used < count:
            label = re.sub(r"\s+", " ", usage["name"]["localizedValue"])
            yield (
                f"{unit} in {region}: {count} needed, {limit - used} free (limit {limit}, in use "
                f"{used}); request a limit of {used + count}: portal, Quotas, {label!r}"
            )


# Cost ---------------------------------------------------------------------------------------------


def describe_standing_cost(needs: JsonRecord) -> str:
    """Return the cost per hour of a range with its agents, without them and parked.

    Args:
        needs: Requirements that Terraform computes from the variables.
    """
    agents_count = 2 * int(needs["instances"])
    with_agents, without_agents = (
        _hourly(needs, RangeState(agents_count=count)) for count in (agents_count, 0)
    )
    return (
        f"the range will cost {with_agents} an hour with {agents_count} agents, {without_agents} "
        f"without agents, and parked {describe_parked_cost(needs)}; traffic is not included"
    )


def describe_parked_cost(needs: JsonRecord) -> str:
    """Return the cost of a parked range for one day."""
    bill = standing_bill(needs, RangeState(parked=True), prices.load())
    return f"{_least(bill)}{dollars(24 * (bill.total_usd or 0.0))} a day"


def _hourly(needs: JsonRecord, state: RangeState) -> str:
    bill = standing_bill(needs, state, prices.load())
    return f"{_least(bill)}{dollars(bill.total_usd)}"


def _least(bill: Bill) -> str:
    """Return the words before a total that does not include all items."""
    return f"(without {', '.join(bill.unknown)}) at least " if bill.unknown else ""


# Readiness ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeMachine:
    """One VM of the range.

    Attributes:
        name: Host name, which is also the name of the agent.
        id: Resource id.
        is_agent: False for the coordinator.
        is_latest: False if an older model of the scale set has created the VM.
    """

    name: str
    id: str
    is_agent: bool
    is_latest: bool = True


@dataclass(slots=True, kw_only=True)
class RangeStatus:
    """Status of all machines, by host name.

    Attributes:
        by_console: The serial consoles are used instead of the table.
        boots: Last boot status.
        presences: Last heartbeat.
        beating: Agents whose heartbeat advanced between two checks.
        table_error: Error of the last table read. None if it succeeded.
    """

    by_console: bool
    boots: dict[str, Mapping[str, str]] = field(default_factory=dict)
    presences: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    beating: set[str] = field(default_factory=set)
    table_error: str | None = None

    def is_ready(self, machine: RangeMachine) -> bool:
        """Return True if a machine is ready."""
        if self.by_console or not machine.is_agent:
            return self.boots.get(machine.name, {}).get("stage") == "ready"
        presence = self.presences.get(machine.name, {})
        return machine.name in self.beating and not presence.get("problem")

    def reason(self, machine: RangeMachine) -> str:
        """Return why a machine is not ready, from its newest published status."""
        boot = self.boots.get(machine.name)
        problem = self.presences.get(machine.name, {}).get("problem")
        if boot is None and problem is None:
            return "no boot status in the table or on its serial console; check that the VM starts"
        if boot is None or (boot.get("stage") == "ready" and problem):
            return f"its agent reports: {problem}"
        if boot.get("stage") == "ready":
            return f"it was ready at {boot.get('at')}, and has no heartbeat now"
        return f"{boot.get('stage')} at {boot.get('at')}: {boot.get('error') or 'in progress'}"


def wait_ready(
    az_options: Sequence[str], scale_sets: Sequence[str], boot: Mapping[str, Any], within_s: float
) -> None:
    """Wait until all agents and the coordinator are ready. Otherwise exit with 4 and their names.

    Args:
        az_options: Options of az that select resource group and subscription.
        scale_sets: Names of the scale sets of the agents.
        boot: Terraform output with the same name. It has the VM of the coordinator, and the table
            of boot statuses, or None if only hosts inside the network can read it.
        within_s: Seconds to wait before the command fails.
    """
    machines = _list_machines(az_options, scale_sets, boot)
    status = RangeStatus(by_console=boot["table"] is None)
    end_s, printed_count = time.monotonic() + within_s, None
    while True:
        if status.by_console:
            _read_consoles([one for one in machines if not status.is_ready(one)], status)
        else:
            _read_table(boot["table"], az_options, status)
        late = [machine for machine in machines if not status.is_ready(machine)]
        text = _count_text(machines, late)
        if not late:
            typer.echo(text)
            return
        if printed_count != len(late):
            typer.echo(f"{text}; waiting for the others", err=True)
            printed_count = len(late)
        if time.monotonic() + POLL_INTERVAL_S > end_s:
            break
        time.sleep(POLL_INTERVAL_S)
    _read_consoles([machine for machine in late if machine.name not in status.boots], status)
    for machine in late:
        typer.echo(f"not ready: {machine.name}: {status.reason(machine)}")
    if status.table_error:
        typer.echo(f"the table of boot statuses cannot be read: {status.table_error}")
    if any(not machine.is_latest for machine in late):
        typer.echo(
            "some VMs wait for an earlier package; replace them: broadside scale 0; "
            "broadside scale N"
        )
    exit_with_error(
        f"{text} within {within_s:.0f} s; the others continue to start; run broadside up to check "
        "again"
    )


def boot_report(
    az_options: Sequence[str], scale_sets: Sequence[str], boot: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the readiness of each VM, for a support bundle.

    Args:
        az_options: Options of az that select resource group and subscription.
        scale_sets: Names of the scale sets of the agents.
        boot: Terraform output with the same name. It has the VM of the coordinator, and the table
            of boot statuses, or None if only hosts inside the network can read it.

    Returns:
        For each VM its name, id, readiness and reason, and the error of the table of boot statuses.
    """
    machines = _list_machines(az_options, scale_sets, boot)
    status = RangeStatus(by_console=boot["table"] is None)
    if not status.by_console:
        for _ in range(2):
            _read_table(boot["table"], az_options, status)
            time.sleep(0 if status.beating else POLL_INTERVAL_S)
    unready = [machine for machine in machines if not status.is_ready(machine)]
    _read_consoles([one for one in unready if one.name not in status.boots], status)
    return [
        {
            "name": machine.name, "id": machine.id, "latest": machine.is_latest,
            "ready": status.is_ready(machine), "reason": status.reason(machine),
            "table_error": status.table_error,
        }
        for machine in machines
    ]  # fmt: skip


def _list_machines(
    az_options: Sequence[str], scale_sets: Sequence[str], boot: Mapping[str, Any]
) -> list[RangeMachine]:
    listed = call_az_together(
        *(["vmss", "list-instances", "--name", name, *az_options] for name in scale_sets)
    )
    agents = [
        RangeMachine(
            name=str(instance["osProfile"]["computerName"]),
            id=str(instance["id"]),
            is_agent=True,
            is_latest=instance.get("latestModelApplied") is not False,
        )
        for instances in listed
        for instance in instances
    ]
    coordinator = RangeMachine(name="coordinator", id=str(boot["coordinator_id"]), is_agent=False)
    return [*agents, coordinator]


def _count_text(machines: Sequence[RangeMachine], late: Sequence[RangeMachine]) -> str:
    total, missing = (sum(one.is_agent for one in group) for group in (machines, late))
    coordinator = "no coordinator" if any(not one.is_agent for one in late) else "the coordinator"
    return f"{total - missing} of {total} agents and {coordinator} ready"


def _read_table(table: Mapping[str, str], az_options: Sequence[str], status: RangeStatus) -> None:
    """Read boot statuses and heartbeats. A heartbeat counts if it differs from the previous one."""
    response, status.table_error = try_az(
        "storage", "entity", "query", "--auth-mode", "login",
        "--account-name", table["account"], "--table-name", table["name"],
        "--filter", ROWS_FILTER, "--subscription", az_options[-1],
    )  # fmt: skip
    if response is None:
        return
    status.beating = set()
    for row in response["items"]:
        try:
            values = parse_strict_json(str(row["json"]), PROPERTY_MAX_BYTES)
            if row["PartitionKey"] == "boot":
                status.boots[str(row["RowKey"])] = values
                continue
            name = str(values["agent_id"])
            before = status.presences.get(name)
            if before and values["beat_at"] != before["beat_at"] and values["state"] != "stopping":
                status.beating.add(name)
            status.presences[name] = values
        except (ValueError, LookupError, TypeError):
            # This row was written by another version, so we cannot use it as a heartbeat.
            continue


def _read_consoles(machines: Sequence[RangeMachine], status: RangeStatus) -> None:
    """Read the last boot status from the serial console of each machine."""
    with ThreadPoolExecutor(8) as pool:
        for machine, boot in zip(machines, pool.map(_console_status, machines), strict=True):
            if boot is not None:
                status.boots[machine.name] = boot


def _console_status(machine: RangeMachine) -> Mapping[str, str] | None:
    url = f"{machine.id}/retrieveBootDiagnosticsData?api-version={COMPUTE_API}"
    response, _ = try_az("rest", "--method", "post", "--url", url)
    address = (response or {}).get("serialConsoleLogBlobUri") or ""
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
        _, separator, text = line.partition(SERIAL_LINE)
        if separator:
            try:
                status = json.JSONDecoder().raw_decode(text)[0]
            except (ValueError, RecursionError):
                # Another process has written to the same line.
                continue
            if isinstance(status, dict):
                return status
    return None
