"""Follow every need of every VM of a range over the applied resources.

A need is something that the VM is given (custom data, package, environment) and that its code uses.
Each one becomes a :class:`~broadside.coordinator.azure_range.trace.Row`.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from broadside.coordinator.azure_range import rights
from broadside.coordinator.azure_range.inventory import inventory
from broadside.coordinator.azure_range.machines import BUNDLE, Machine, machines
from broadside.coordinator.azure_range.resources import (
    Resource,
    Resources,
    properties,
    short,
)
from broadside.coordinator.azure_range.rights import Grants, authenticate, authorise
from broadside.coordinator.azure_range.service_paths import AMQPS, HTTPS, host_of, reach
from broadside.coordinator.azure_range.trace import HopState, Trace, TraceRow, follow
from broadside.coordinator.azure_range.traffic_paths import traffic

# Tables by role, with the operations of its code. They are probed by
# exchange/fabric/identity_rights.py too.
TABLES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "client": {"CONTROL": (rights.READ_ROWS,), "RESULTS": rights.WRITE_ROWS},
    "server": {"CONTROL": (rights.READ_ROWS,), "RESULTS": rights.WRITE_ROWS},
    "coordinator": {
        "CONTROL": (*rights.WRITE_ROWS, rights.DELETE_ROWS),
        "RESULTS": (*rights.WRITE_ROWS, rights.DELETE_ROWS),
        "PRIVATE": (*rights.WRITE_ROWS, rights.DELETE_ROWS),
    },
}
# Operations on the queue by role. Servers do not use it.
QUEUE: Final = {"client": (rights.RECEIVE,), "coordinator": (rights.SEND, rights.RECEIVE)}
# Settings with which agents and coordinator find each other.
SHARED: Final = (
    "BROADSIDE_FABRIC", "BROADSIDE_TABLES_ENDPOINT", "BROADSIDE_TABLES_CONTROL",
    "BROADSIDE_TABLES_RESULTS", "BROADSIDE_SERVICEBUS_NAMESPACE", "BROADSIDE_SERVICEBUS_QUEUE",
)  # fmt: skip


def walk(resources: Resources) -> list[TraceRow]:
    """Return the rows of all VMs, of the traffic between them, and of the range itself."""
    fleet: list[Machine] = []
    rows = _collect(resources, "custom data", lambda: _fill(fleet, resources))
    for machine in fleet:
        rows += _collect(resources, machine.role, partial(_needs, resources, machine, fleet))
    rows += _collect(resources, "traffic", partial(traffic, resources, fleet))
    return [*rows, *inventory(resources, fleet)]


def _fill(fleet: list[Machine], resources: Resources) -> Iterator[TraceRow]:
    fleet.extend(machines(resources))
    return iter(())


def _collect(
    resources: Resources, need: str, make: Callable[[], Iterable[TraceRow]]
) -> list[TraceRow]:
    """Return the rows of a part. A value that cannot be read is a row too, and no error."""
    rows: list[TraceRow] = []
    failed = follow(resources, "range", need, lambda _: rows.extend(make()))
    return [*rows, failed] if failed.hops else rows


def _needs(resources: Resources, machine: Machine, fleet: list[Machine]) -> Iterator[TraceRow]:
    grants = Grants(machine=machine)
    steps: dict[str, Callable[[Trace], None]] = {
        "given values": partial(_given, machine=machine, fleet=fleet),
        "clock": partial(_clock, machine=machine),
        "package": partial(_package, grants=grants),
    }
    for table, actions in TABLES.get(machine.role, {}).items():
        steps[f"table {table.lower()}"] = partial(
            _table, setting=f"BROADSIDE_TABLES_{table}", actions=actions,
            grants=grants,
        )  # fmt: skip
    if machine.role in QUEUE:
        steps["queue"] = partial(_queue, grants=grants)
    if machine.role == "coordinator":
        if "BROADSIDE_TELEMETRY_FILE" in machine.environment:
            steps["firewall metrics"] = partial(_metrics, grants=grants)
        if "BROADSIDE_SWITCHES_FILE" in machine.environment:
            steps["firewall modes"] = partial(_switches, grants=grants)
        steps["sign-in keys"] = partial(_sign_in, machine=machine)
    rows = [follow(resources, machine.role, need, step) for need, step in steps.items()]
    yield from rows
    # The roles of a need are unknown if its path ends before them.
    unmet = [
        row.need
        for row in rows
        if row.state is not HopState.OK and row.hops[-1].name not in ("role", "identity")
    ]
    yield follow(resources, machine.role, "rights",
                 partial(rights.check_rights, grants=grants, unmet=unmet))  # fmt: skip


# What the VM is given -----------------------------------------------------------------------------


def _given(trace: Trace, machine: Machine, fleet: list[Machine]) -> None:
    """Check the values that have to agree with the VM itself and with the other VMs."""
    environment, bundle = machine.environment, machine.bundle
    service = "coordinator" if machine.role == "coordinator" else "agent"
    if (
        bundle["service"] != service
        or f"/etc/systemd/system/broadside-{service}.service" not in machine.files
    ):
        raise trace.fail("given", f"service {bundle['service']}, not {service}")
    client_id = environment.get("BROADSIDE_MANAGED_IDENTITY_CLIENT_ID")
    if client_id != bundle["client_id"]:
        raise trace.fail(
            "given", f"{BUNDLE} has client id {bundle['client_id']}, the service {client_id}"
        )
    size = (trace.resources.get(machine.id) or {}).get("sku") or {}
    reported = environment.get("BROADSIDE_AGENT_VM_SIZE", size.get("name"))
    if size and reported != size.get("name"):
        raise trace.fail(
            "given", f"BROADSIDE_AGENT_VM_SIZE is {reported}, the size {size.get('name')}"
        )
    for other in fleet:
        agents = "coordinator" not in (machine.role, other.role)
        for name in (*SHARED, *(("BROADSIDE_AGENT_PORTS",) if agents else ())):
            theirs = other.environment.get(name)
            if environment.get(name) != theirs:
                raise trace.fail(
                    "given", f"{name} is {environment.get(name)}, and {theirs} for the {other.role}"
                )
        if other.bundle["sha256"] != bundle["sha256"]:
            raise trace.fail(
                "given", f"package {bundle['sha256'][:12]}; the {other.role} has another one"
            )
    missing = [name for name in SHARED if not environment.get(name)]
    if missing:
        raise trace.fail("given", f"{', '.join(missing)}: missing")
    trace.ok("given", f"{len(environment)} settings agree with the size and with the other VMs")


def _clock(trace: Trace, machine: Machine) -> None:
    """Check the time source: the host's clock needs no network."""
    lines = machine.files["/etc/broadside/chrony.conf"].splitlines()
    if not any(line.startswith("refclock PHC /dev/ptp_hyperv") for line in lines):
        raise trace.fail(
            "given", "chrony.conf has no refclock PHC /dev/ptp_hyperv, and NTP is not allowed"
        )
    trace.ok("given", "clock of the host (PHC), without NTP")


# Services -----------------------------------------------------------------------------------------


def _package(trace: Trace, grants: Grants) -> None:
    machine, bundle = grants.machine, grants.machine.bundle
    url = urlsplit(bundle["url"])
    service = reach(trace, machine, url.hostname or "", "blob", HTTPS)
    account = service.resource or {}
    container, _, blob = url.path.lstrip("/").partition("/")
    container_id = f"{account['id']}/blobServices/default/containers/{container}"
    if trace.resources.get(container_id) is None:
        raise trace.fail("listener", f"the container {container} does not exist")
    known = trace.resources.blobs
    if known is not None and f"{account['name']}/{container}/{blob}" not in known:
        raise trace.fail("listener", f"the blob {blob} does not exist")
    if bundle["sha256"][:12] not in blob:
        raise trace.fail("listener", f"{blob} is not the package {bundle['sha256'][:12]}")
    identity = authenticate(trace, machine, bundle["client_id"])
    authorise(trace, grants, identity, container_id, [rights.READ_BLOB])


def _identity(trace: Trace, machine: Machine) -> Resource:
    return authenticate(trace, machine, machine.environment["BROADSIDE_MANAGED_IDENTITY_CLIENT_ID"])


def _table(trace: Trace, setting: str, actions: Iterable[str], grants: Grants) -> None:
    machine = grants.machine
    endpoint, name = machine.environment["BROADSIDE_TABLES_ENDPOINT"], machine.environment[setting]
    service = reach(trace, machine, host_of(endpoint), "table", HTTPS)
    account = service.resource or {}
    table_id = f"{account['id']}/tableServices/default/tables/{name}"
    if trace.resources.get(table_id) is None:
        raise trace.fail("listener", f"the table {name} does not exist")
    # Each of the three is a table of its own, because access is given by table.
    others = [value for key, value in machine.environment.items()
              if key.startswith("BROADSIDE_TABLES_") and key != setting]  # fmt: skip
    if name in others:
        raise trace.fail("given", f"{setting} is {name}, which another setting uses too")
    identity = _identity(trace, machine)
    authorise(trace, grants, identity, table_id, actions)


def _queue(trace: Trace, grants: Grants) -> None:
    machine = grants.machine
    host = machine.environment["BROADSIDE_SERVICEBUS_NAMESPACE"]
    name = machine.environment["BROADSIDE_SERVICEBUS_QUEUE"]
    service = reach(trace, machine, host, "namespace", AMQPS)
    namespace = service.resource or {}
    queue_id = f"{namespace['id']}/queues/{name}"
    queue = trace.resources.get(queue_id)
    if queue is None:
        raise trace.fail("listener", f"{namespace['name']} has no queue {name}")
    fields = properties(queue)
    for field, value in (("requiresDuplicateDetection", True), ("requiresSession", False),
                         ("enablePartitioning", False)):  # fmt: skip
        if bool(fields.get(field)) != value:
            raise trace.fail(
                "listener", f"queue {name}: {field} is {fields.get(field)}, not {value}"
            )
    identity = _identity(trace, machine)
    authorise(trace, grants, identity, queue_id, QUEUE[machine.role])


def _metrics(trace: Trace, grants: Grants) -> None:
    """Walk the byte counter of the firewall, for each configured source."""
    machine = grants.machine
    text = machine.files[machine.environment["BROADSIDE_TELEMETRY_FILE"]]
    configured = machine.environment.get("BROADSIDE_AZURE_MONITOR_RESOURCE_ID")
    for source in tomllib.loads(text)["source"]:
        if source["resource_id"] != configured:
            names = short(source["resource_id"]), short(configured or "")
            raise trace.fail("given", f"the source reads {names[0]}, the service {names[1]}")
        if "/azurefirewalls/" not in source["resource_id"].lower():
            raise trace.fail("given", f"{short(source['resource_id'])} is not a firewall")
        reach(trace, machine, host_of(source["endpoint"]), "platform", HTTPS)
        if trace.resources.get(source["resource_id"]) is None:
            raise trace.fail(
                "listener",
                f"the firewall {short(source['resource_id'])} does not exist",
                source["resource_id"],
            )
        identity = authenticate(trace, machine, source["client_id"])
        actions = [rights.READ_LOGS if source["type"] == "azure-logs" else rights.READ_METRICS]
        authorise(trace, grants, identity, source["resource_id"], actions)


def _switches(trace: Trace, grants: Grants) -> None:
    machine = grants.machine
    text = machine.files[machine.environment["BROADSIDE_SWITCHES_FILE"]]
    policies = {
        argv[argv.index("--policy") + 1]
        for switch in tomllib.loads(text).values()
        for argv in switch["states"].values()
    }
    host = host_of(machine.environment["BROADSIDE_AZURE_MONITOR_ENDPOINT"])
    for policy_id in sorted(policies):
        reach(trace, machine, host, "platform", HTTPS)
        if trace.resources.get(policy_id) is None:
            raise trace.fail("listener", f"the policy {short(policy_id)} does not exist", policy_id)
        identity = _identity(trace, machine)
        authorise(trace, grants, identity, policy_id, rights.SWITCH_POLICY)


def _sign_in(trace: Trace, machine: Machine) -> None:
    """Walk the keys of Entra ID, which the API needs to verify the tokens of its users."""
    authorities = {
        "management.azure.com": "login.microsoftonline.com",
        "management.usgovcloudapi.net": "login.microsoftonline.us",
        "management.chinacloudapi.cn": "login.chinacloudapi.cn",
    }
    monitor = host_of(machine.environment["BROADSIDE_AZURE_MONITOR_ENDPOINT"])
    reach(trace, machine, authorities.get(monitor, monitor), "platform", HTTPS)
