"""Build the lab, repair it, change its rates, take it down.

``up`` and ``down`` may be killed at any point and run again: everything that belongs to a lab is
found by its prefix (names of namespaces, marks of processes), so neither needs the other's state.
One of them runs at a time; the lock is an abstract Unix socket, which leaves nothing behind, and
which the commands they run inherit, so that it outlives a killed ``up`` until its last command
has ended.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final, TypeVar

from broadside.lab import clocks, topology
from broadside.lab.errors import LabBroken, LabMisconfigured, NoRights
from broadside.lab.lab_programs import find_tool
from broadside.lab.namespaces import (
    CHRONY_PATH,
    inside,
    is_module,
    list_namespaces,
    list_owned,
    list_processes,
    module_argv,
    pid_path,
    run,
    run_batch,
    write_sysctls,
)
from broadside.lab.privileges import Rights, find_rights
from broadside.lab.topology import Batch, Host, Lab, LabSpec

DEFAULT_PATH: Final = Path("/run/broadside")
LOCK_TIMEOUT_S: Final = 60.0
KILL_TIMEOUT_S: Final = 10.0
PASSES_MAX_COUNT: Final = 5
WORKERS_COUNT: Final = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DownReport:
    """What ``down`` took away. All zero: there was nothing."""

    processes_count: int
    namespaces_count: int
    left: tuple[str, ...]  # what could not be removed, a line each; empty when all is well


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    """What stands of a lab."""

    lab: Lab | None  # None: no finished lab of that prefix
    namespaces_count: int
    faults: tuple[str, ...]  # what `up` would repair, a line each


def lab_path(prefix: str, base_path: Path = DEFAULT_PATH) -> Path:
    """The folder of a lab's state, below a data folder or ``/run/broadside``."""
    topology.check_prefix(prefix)
    return base_path / "lab" / prefix


def up(spec: LabSpec, base_path: Path = DEFAULT_PATH) -> Lab:
    """Build the lab, or mend what stands of it; a whole one with this specification is kept.

    A network that is broken or of another shape is built anew, which ends what runs in it; dead
    clocks and a dead ledger are started again; rates return to the specification's. Raises
    :class:`broadside.lab.errors.ToolMissing` and :class:`NoRights` before anything is changed,
    :class:`LabBroken` when a command refuses (run ``down`` then).
    """
    for tool in ("ip", "tc", "nft"):
        find_tool(tool)
    path = lab_path(spec.prefix, base_path)
    check_rights(path)
    with locked(spec.prefix) as lock:
        standing = read_spec(path)
        if standing == spec and not network_faults(topology.build_lab(standing, path)):
            spec = standing  # with its own management network
        else:
            clear(spec.prefix, lock)
            with free_slot(spec.prefix) as slot:
                spec = dataclasses.replace(spec, management_slot=slot)
                build(spec, lock)
            write_spec(spec, path)
        lab = topology.build_lab(spec, path)
        shape(spec, lock)
        start_ledger(lab)
        problem = clocks.start_clocks(lab)
    if problem is None:
        return lab
    return dataclasses.replace(
        lab,
        clients=tuple(dataclasses.replace(host, chrony=None) for host in lab.clients),
        servers=tuple(dataclasses.replace(host, chrony=None) for host in lab.servers),
        limits=(problem,),
    )


def down(prefix: str, base_path: Path = DEFAULT_PATH) -> DownReport:
    """Take away everything of a lab: processes, namespaces, state. Safe without a lab, or twice.

    Raises :class:`NoRights` when it is another user's.
    """
    path = lab_path(prefix, base_path)
    with locked(prefix) as lock:
        try:
            report = clear(prefix, lock)
            if path.exists():
                shutil.rmtree(path)
        except PermissionError as error:
            raise NoRights(f"{error}: it is another user's lab; run this with sudo") from error
        with contextlib.suppress(OSError):  # another lab's folder is beside it
            path.parent.rmdir()
            if base_path == DEFAULT_PATH:
                base_path.rmdir()
    return report


def status(prefix: str, base_path: Path = DEFAULT_PATH) -> LabStatus:
    """What stands, and what is wrong with it."""
    path = lab_path(prefix, base_path)
    count = len(list_namespaces(prefix))
    spec = read_spec(path)
    if spec is None:
        half = (f"{count} namespaces, but no finished lab",) if count else ()
        return LabStatus(lab=None, namespaces_count=count, faults=half)
    lab = topology.build_lab(spec, path)
    faults = list(network_faults(lab))
    if not is_ledger_running(lab):
        faults.append("the ledger's process is not running")
    missing = clocks.missing_clocks(lab)
    if missing:
        faults.append(f"{len(missing)} chronyd not running: {', '.join(missing[:5])}")
    return LabStatus(lab=lab, namespaces_count=count, faults=tuple(faults))


# Rates ------------------------------------------------------------------------------------------


def shape(spec: LabSpec, lock: int | None = None) -> None:
    """Apply every rate of the specification; counters go on, unless a shaper changes its kind."""
    batches = [
        *topology.nic_batches(spec, spec.nic_bits_per_second),
        topology.firewall_batch(spec, spec.firewall_bits_per_second),
    ]
    _in_parallel(lambda batch: run_batch(batch, lock), batches)


def set_firewall_rate(lab: Lab, bits_per_second: int | None) -> None:
    """Change the firewall's rate while it runs; ``None`` takes the limit away."""
    run_batch(topology.firewall_batch(_rated(lab, bits_per_second), bits_per_second))


def set_nic_rate(lab: Lab, hosts: Sequence[Host], bits_per_second: int | None) -> None:
    """Change some hosts' links while they run, both ways: a slow NIC."""
    spec = _rated(lab, bits_per_second)
    _in_parallel(run_batch, topology.nic_batches(spec, bits_per_second, hosts))


def _rated(lab: Lab, bits_per_second: int | None) -> LabSpec:
    """The specification, after the check that the rate is one it would accept."""
    if lab.firewall_namespace is None:
        raise LabMisconfigured("this is plain loopback: there is no shaper; build a lab for one")
    dataclasses.replace(lab.spec, firewall_bits_per_second=bits_per_second)
    return lab.spec


def check_rights(path: Path) -> None:
    """Make the lab's folder, and see that namespaces may be made. Raises :class:`NoRights`."""
    finding = find_rights().require()
    if finding.rights is Rights.USER_NAMESPACE:
        raise NoRights(
            "not root: build the lab in a user namespace (broadside.lab.privileges), or with sudo"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabBroken(f"folder {path}: {error.strerror}; choose another data folder") from error


# Building ---------------------------------------------------------------------------------------


def build(spec: LabSpec, lock: int) -> None:
    """Namespaces, settings, cables, addresses, rules: in this order, each in as few runs as
    can be. Raises :class:`LabBroken`."""
    run_batch(topology.namespace_batch(spec), lock)
    _in_parallel(
        lambda name: write_sysctls(name, topology.sysctls(spec, name)), topology.namespaces(spec)
    )
    run_batch(topology.link_batch(spec), lock)
    batches: list[Batch] = [*topology.address_batches(spec), topology.rules_batch(spec)]
    _in_parallel(lambda batch: run_batch(batch, lock), batches)


@contextlib.contextmanager
def free_slot(prefix: str) -> Iterator[int]:
    """Reserve a management network that nothing on this machine uses, while a lab is built on it.

    The reservation is an abstract Unix socket. Once the context ends, the address on the lab's own
    interface shows that the network is in use. Raises :class:`LabBroken` when all are in use.
    """
    first = topology.first_slot(prefix)
    for step in range(topology.MANAGEMENT_SLOTS_COUNT):
        slot = (first + step) % topology.MANAGEMENT_SLOTS_COUNT
        with socket.socket(socket.AF_UNIX) as reservation:
            try:
                reservation.bind(f"\0broadside-management-{slot}")
            except OSError:  # another lab is being built on it
                continue
            network = topology.slot_network(slot)
            # Read after the reservation: whoever had it before has its address by now.
            if not any(address in network for address in _own_addresses()):
                yield slot
                return
    raise LabBroken(
        f"all {topology.MANAGEMENT_SLOTS_COUNT} management networks of "
        f"{topology.MANAGEMENT_NETWORK}/15 are in use; take labs down (`ip -br address`)"
    )


def _own_addresses() -> list[IPv4Address]:
    """The IPv4 addresses of this namespace's interfaces."""
    interfaces = json.loads(run([find_tool("ip"), "-json", "-4", "address", "show"]) or "[]")
    return [
        IPv4Address(entry["local"])
        for interface in interfaces
        for entry in interface.get("addr_info", ())
        if "local" in entry
    ]


def clear(prefix: str, lock: int) -> DownReport:
    """Remove processes, the uplink and the namespaces, and look again until nothing is left."""
    killed: set[int] = set()
    namespaces: set[str] = set()
    uplink = topology.management_name(prefix)
    for _ in range(PASSES_MAX_COUNT):
        killed |= _kill_owned(prefix)
        names = list_namespaces(prefix)
        namespaces |= names.keys()
        if _has_interface(uplink):
            with contextlib.suppress(LabBroken):  # gone meanwhile with its namespace
                run([find_tool("ip"), "link", "delete", uplink], lock=lock)
        if names:
            lines = tuple(f"netns delete {name}" for name in names)
            with contextlib.suppress(LabBroken):  # looked at again in the next pass
                run_batch(Batch(namespace=None, tool="ip", lines=lines), lock)
        elif not list_owned(prefix):
            break
    for pid_file in CHRONY_PATH.glob(pid_path(prefix, "*").name):
        pid_file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not there, or the machine's own chronyd uses it
        CHRONY_PATH.rmdir()
    left = [f"namespace {name}" for name in list_namespaces(prefix)]
    left += [f"process {process.pid}: {process.command}" for process in list_owned(prefix)]
    if _has_interface(uplink):
        left.append(f"interface {uplink}")
    return DownReport(
        processes_count=len(killed), namespaces_count=len(namespaces), left=tuple(left)
    )


def _kill_owned(prefix: str) -> set[int]:
    """SIGKILL every process of the lab, until none is left or the time is up."""
    killed: set[int] = set()
    end_s = time.monotonic() + KILL_TIMEOUT_S
    while owned := list_owned(prefix):
        for process in owned:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        killed |= {process.pid for process in owned}
        if time.monotonic() > end_s:
            break
        time.sleep(0.02)
    return killed


def _has_interface(name: str) -> bool:
    return any(name == found for _, found in socket.if_nameindex())


def _in_parallel(action: Callable[[T], None], items: Iterable[T]) -> None:
    """Run an action on every item in a few threads; the first error is raised when all ended."""
    with ThreadPoolExecutor(WORKERS_COUNT) as pool:
        list(pool.map(action, items))


# State ------------------------------------------------------------------------------------------


def write_spec(spec: LabSpec, path: Path) -> None:
    """Say that the network is finished: written last, and whole."""
    new = path / "spec.json.new"
    new.write_text(json.dumps(dataclasses.asdict(spec)))
    new.replace(path / "spec.json")


def read_spec(path: Path) -> LabSpec | None:
    """The specification of the finished network, or None: none was, or it was another version."""
    try:
        values = json.loads((path / "spec.json").read_text())
        low, default, high = values.pop("wmem_bytes")
        return LabSpec(**values, wmem_bytes=(low, default, high))
    except (OSError, ValueError, KeyError, TypeError, LabMisconfigured):
        return None


@contextlib.contextmanager
def locked(prefix: str) -> Iterator[int]:
    """Be the only one to build or remove this lab; yields the lock's descriptor.

    Raises :class:`LabBroken` when another one does not finish within a minute.
    """
    end_s = time.monotonic() + LOCK_TIMEOUT_S
    with socket.socket(socket.AF_UNIX) as lock:
        while True:
            try:
                lock.bind(f"\0broadside-lab-{prefix}")
            except OSError as error:
                if time.monotonic() > end_s:
                    raise LabBroken(
                        f"lab {prefix}: another lab up or down has been at work for "
                        f"{LOCK_TIMEOUT_S:.0f} s; wait for it, or end it"
                    ) from error
                time.sleep(0.05)
            else:
                break
        yield lock.fileno()


# Health -----------------------------------------------------------------------------------------


def network_faults(lab: Lab) -> tuple[str, ...]:
    """What is missing of the network, a line each."""
    spec = lab.spec
    inodes = list_namespaces(spec.prefix)
    names = topology.namespaces(spec)
    faults = [f"namespace {name} is missing" for name in names if inodes.get(name) is None]
    faults += [f"namespace {name} is one too many" for name in inodes if name not in names]
    if not _has_interface(topology.management_name(spec.prefix)):
        faults.append(f"interface {topology.management_name(spec.prefix)} is missing")
    if faults:
        return tuple(faults)
    hosts = {host.namespace: host for host in lab.hosts}
    ports = {name: {"br0", *found} for name, found in topology.switch_ports(spec).items()}

    def is_fine(name: str) -> bool:
        with inside(name):
            devices = {device for _, device in socket.if_nameindex()}
            routes = Path("/proc/thread-self/net/route").read_text()
        if name in hosts:
            return {"eth0", "mg0"} <= devices and _has_default_route(routes)
        if name in ports:
            return ports[name] <= devices
        return {"c0", "s0", "mg0"} <= devices and _has_rules(name)

    with ThreadPoolExecutor(WORKERS_COUNT) as pool:  # in threads: this one stays at home
        fine = pool.map(is_fine, names)
    return tuple(
        f"namespace {name} lacks a link, a route or its rules"
        for name, is_whole in zip(names, fine, strict=True)
        if not is_whole
    )


def _has_default_route(routes: str) -> bool:
    return any(line.split()[1:2] == ["00000000"] for line in routes.splitlines())


def _has_rules(firewall: str) -> bool:
    try:
        run([find_tool("nft"), "list", "table", "ip", "broadside"], namespace=firewall)
    except LabBroken:
        return False
    return True


# The ledger's process ---------------------------------------------------------------------------


def start_ledger(lab: Lab) -> None:
    """Start the process that writes the ledger, unless it runs. Raises :class:`LabBroken`."""
    if lab.ledger_path is not None and not is_ledger_running(lab):
        argv = [
            *module_argv("broadside.lab.ledger", lab.spec.prefix),
            "--csv",
            str(lab.ledger_path),
        ]
        run(argv, namespace=lab.firewall_namespace)


def is_ledger_running(lab: Lab) -> bool:
    prefix = lab.spec.prefix
    return any(is_module(process, "broadside.lab.ledger", prefix) for process in list_processes())
