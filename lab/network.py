"""Builds, repairs, changes and removes a lab.

``up`` and ``down`` can be killed at any point and run again. They use the prefix to find everything
that belongs to a lab (names of namespaces, marks of processes). Neither needs state from the other.
Only one of them can run at a time. The lock is an abstract Unix socket, which leaves no file
behind. Their commands inherit it, so when ``up`` is killed the lock is released only after its last
command has ended.
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
from broadside.lab.topology import Batch, Lab, LabHost, LabSpec

DEFAULT_PATH: Final = Path("/run/broadside")
LOCK_TIMEOUT_S: Final = 60.0
KILL_TIMEOUT_S: Final = 10.0
PASSES_MAX_COUNT: Final = 5
WORKERS_COUNT: Final = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DownReport:
    """Result of ``down``. All values are zero when there was nothing to remove.

    Attributes:
        processes_count: Number of processes killed.
        namespaces_count: Number of namespaces removed.
        left: A line for each item that could not be removed.
    """

    processes_count: int
    namespaces_count: int
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    """Status of a lab.

    Attributes:
        lab: The lab, or ``None`` if there is no finished lab with this prefix.
        namespaces_count: Number of namespaces found.
        faults: A line for each fault that ``up`` would repair.
    """

    lab: Lab | None
    namespaces_count: int
    faults: tuple[str, ...]


def lab_path(prefix: str, base_path: Path = DEFAULT_PATH) -> Path:
    """Return the folder for a lab's state.

    Args:
        prefix: Prefix of the lab.
        base_path: Data folder to use.
    """
    topology.check_prefix(prefix)
    return base_path / "lab" / prefix


def up(spec: LabSpec, base_path: Path = DEFAULT_PATH) -> Lab:
    """Build the lab, or repair an existing one.

    An intact lab with the same specification is reused. If the network is broken or has another
    specification, it will be built again, which ends all processes inside. A missing clock or
    byte counter process is started again. Rates are reset to the specification.

    Args:
        spec: Specification of the lab.
        base_path: Data folder to use.

    Returns:
        The lab with addresses, folder and clocks.

    Raises:
        ToolMissing: A program is not installed. Nothing was changed.
        NoRights: This process has no permission. Nothing was changed.
        LabBroken: A command failed. Run ``down`` to clean up.
    """
    for tool in ("ip", "tc", "nft"):
        find_tool(tool)
    path = lab_path(spec.prefix, base_path)
    check_rights(path)
    with locked(spec.prefix) as lock:
        standing = read_spec(path)
        if standing == spec and not network_faults(topology.build_lab(standing, path)):
            # We should use the stored specification, because it includes the management network.
            spec = standing
        else:
            clear(spec.prefix, lock)
            with free_slot(spec.prefix) as slot:
                spec = dataclasses.replace(spec, management_slot=slot)
                build(spec, lock)
            write_spec(spec, path)
        lab = topology.build_lab(spec, path)
        shape(spec, lock)
        start_counter(lab)
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
    """Remove all processes, namespaces and state of a lab.

    It is safe to call this without a lab or more than once.

    Args:
        prefix: Prefix of the lab.
        base_path: Data folder to use.

    Returns:
        Numbers of removed processes and namespaces, and what could not be removed.

    Raises:
        NoRights: The lab belongs to another user.
    """
    path = lab_path(prefix, base_path)
    with locked(prefix) as lock:
        try:
            report = clear(prefix, lock)
            if path.exists():
                shutil.rmtree(path)
        except PermissionError as error:
            raise NoRights(f"{error}: it is another user's lab; run this with sudo") from error
        # This will fail if there is another lab in the folder.
        with contextlib.suppress(OSError):
            path.parent.rmdir()
            if base_path == DEFAULT_PATH:
                base_path.rmdir()
    return report


def status(prefix: str, base_path: Path = DEFAULT_PATH) -> LabStatus:
    """Return the status of a lab with its faults.

    Args:
        prefix: Prefix of the lab.
        base_path: Data folder to use.
    """
    path = lab_path(prefix, base_path)
    count = len(list_namespaces(prefix))
    spec = read_spec(path)
    if spec is None:
        half = (f"{count} namespaces, but no finished lab",) if count else ()
        return LabStatus(lab=None, namespaces_count=count, faults=half)
    lab = topology.build_lab(spec, path)
    faults = list(network_faults(lab))
    if not is_counter_running(lab):
        faults.append("the firewall counter's process is not running")
    missing = clocks.missing_clocks(lab)
    if missing:
        faults.append(f"{len(missing)} chronyd not running: {', '.join(missing[:5])}")
    return LabStatus(lab=lab, namespaces_count=count, faults=tuple(faults))


# Rates ------------------------------------------------------------------------------------------


def shape(spec: LabSpec, lock: int | None = None) -> None:
    """Apply all rates in the specification.

    Counters continue, unless a shaper has to change its kind.

    Args:
        spec: Specification of the lab.
        lock: Descriptor to pass on (see :func:`run`). None passes none.
    """
    batches = [
        *topology.nic_batches(spec, spec.nic_bits_per_second),
        topology.firewall_batch(spec, spec.firewall_bits_per_second),
    ]
    _in_parallel(lambda batch: run_batch(batch, lock), batches)


def set_firewall_rate(lab: Lab, bits_per_second: int | None) -> None:
    """Change the firewall's rate while it is running.

    Args:
        lab: The lab.
        bits_per_second: New rate, or ``None`` to remove the limit.
    """
    run_batch(topology.firewall_batch(_rated(lab, bits_per_second), bits_per_second))


def set_nic_rate(lab: Lab, hosts: Sequence[LabHost], bits_per_second: int | None) -> None:
    """Change the rate of host links in both directions, to simulate a slow NIC.

    Args:
        lab: The lab.
        hosts: Hosts to change.
        bits_per_second: New rate, or ``None`` to remove the limit.
    """
    spec = _rated(lab, bits_per_second)
    _in_parallel(run_batch, topology.nic_batches(spec, bits_per_second, hosts))


def _rated(lab: Lab, bits_per_second: int | None) -> LabSpec:
    """Return the specification after checking that it would accept the rate."""
    if lab.firewall_namespace is None:
        raise LabMisconfigured("plain loopback has no shaper; build a lab to use one")
    dataclasses.replace(lab.spec, firewall_bits_per_second=bits_per_second)
    return lab.spec


def check_rights(path: Path) -> None:
    """Create the lab's folder and check that this process can create namespaces.

    Raises:
        NoRights: This process has no permission.
        LabBroken: The folder cannot be created.
    """
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
    """Create namespaces, settings, links, addresses and rules, with as few commands as possible.

    Args:
        spec: Specification of the lab.
        lock: Descriptor to pass on (see :func:`run`).

    Raises:
        LabBroken: A command failed.
    """
    run_batch(topology.namespace_batch(spec), lock)
    _in_parallel(
        lambda name: write_sysctls(name, topology.sysctls(spec, name)), topology.namespaces(spec)
    )
    run_batch(topology.link_batch(spec), lock)
    batches: list[Batch] = [*topology.address_batches(spec), topology.rules_batch(spec)]
    _in_parallel(lambda batch: run_batch(batch, lock), batches)


@contextlib.contextmanager
def free_slot(prefix: str) -> Iterator[int]:
    """Reserve a management network that is not in use on this host, until the lab is built.

    The reservation is an abstract Unix socket. Later, the address on the lab's interface shows that
    the network is in use.

    Raises:
        LabBroken: All networks are in use.
    """
    first = topology.first_slot(prefix)
    for step in range(topology.MANAGEMENT_SLOTS_COUNT):
        slot = (first + step) % topology.MANAGEMENT_SLOTS_COUNT
        with socket.socket(socket.AF_UNIX) as reservation:
            try:
                reservation.bind(f"\0broadside-management-{slot}")
            # This network is already being used by another lab.
            except OSError:
                continue
            network = topology.slot_network(slot)
            # We should get the addresses after the reservation, because a previous owner will have
            # assigned its address by now.
            if not any(address in network for address in _local_addresses()):
                yield slot
                return
    raise LabBroken(
        f"all {topology.MANAGEMENT_SLOTS_COUNT} management networks of "
        f"{topology.MANAGEMENT_NETWORK}/15 are in use; remove labs (`ip -br address`)"
    )


def _local_addresses() -> list[IPv4Address]:
    """Return the IPv4 addresses on the interfaces in this namespace."""
    interfaces = json.loads(run([find_tool("ip"), "-json", "-4", "address", "show"]) or "[]")
    return [
        IPv4Address(entry["local"])
        for interface in interfaces
        for entry in interface.get("addr_info", ())
        if "local" in entry
    ]


def clear(prefix: str, lock: int) -> DownReport:
    """Remove processes, uplink and namespaces, and repeat until nothing is left.

    Args:
        prefix: Prefix of the lab.
        lock: Descriptor to pass on (see :func:`run`).

    Returns:
        Numbers of removed processes and namespaces, and what could not be removed.
    """
    killed: set[int] = set()
    namespaces: set[str] = set()
    uplink = topology.management_name(prefix)
    for _ in range(PASSES_MAX_COUNT):
        killed |= _kill_owned(prefix)
        names = list_namespaces(prefix)
        namespaces |= names.keys()
        if _has_interface(uplink):
            # It might have been removed with its namespace.
            with contextlib.suppress(LabBroken):
                run([find_tool("ip"), "link", "delete", uplink], lock=lock)
        if names:
            lines = tuple(f"netns delete {name}" for name in names)
            # We will try again in the next pass.
            with contextlib.suppress(LabBroken):
                run_batch(Batch(namespace=None, tool="ip", lines=lines), lock)
        elif not list_owned(prefix):
            break
    for pid_file in CHRONY_PATH.glob(pid_path(prefix, "*").name):
        pid_file.unlink(missing_ok=True)
    # The folder does not exist, or it is used by the chronyd of the host.
    with contextlib.suppress(OSError):
        CHRONY_PATH.rmdir()
    left = [f"namespace {name}" for name in list_namespaces(prefix)]
    left += [f"process {process.pid}: {process.command}" for process in list_owned(prefix)]
    if _has_interface(uplink):
        left.append(f"interface {uplink}")
    return DownReport(
        processes_count=len(killed), namespaces_count=len(namespaces), left=tuple(left)
    )


def _kill_owned(prefix: str) -> set[int]:
    """Send SIGKILL to every process of the lab until none is left or the timeout expires."""
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
    return any(name == result for _, result in socket.if_nameindex())


def _in_parallel(action: Callable[[T], None], items: Iterable[T]) -> None:
    """Run an action for every item in a few threads, then raise the first error."""
    with ThreadPoolExecutor(WORKERS_COUNT) as pool:
        list(pool.map(action, items))


# State ------------------------------------------------------------------------------------------


def write_spec(spec: LabSpec, path: Path) -> None:
    """Write the specification atomically as the last step, to mark the network as finished.

    Args:
        spec: Specification to write.
        path: Folder of the lab.
    """
    new = path / "spec.json.new"
    new.write_text(json.dumps(dataclasses.asdict(spec)))
    new.replace(path / "spec.json")


def read_spec(path: Path) -> LabSpec | None:
    """Return the specification of a finished network, or ``None`` (missing or another version)."""
    try:
        values = json.loads((path / "spec.json").read_text())
        low, default, high = values.pop("wmem_bytes")
        return LabSpec(**values, wmem_bytes=(low, default, high))
    except (OSError, ValueError, KeyError, TypeError, LabMisconfigured):
        return None


@contextlib.contextmanager
def locked(prefix: str) -> Iterator[int]:
    """Lock this lab for building or removal, and yield the lock's descriptor.

    Raises:
        LabBroken: Another process did not release the lock within a minute.
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
    """Return a line for each missing part of the network."""
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
    ports = {name: {"br0", *result} for name, result in topology.switch_ports(spec).items()}

    def is_fine(name: str) -> bool:
        with inside(name):
            devices = {device for _, device in socket.if_nameindex()}
            routes = Path("/proc/thread-self/net/route").read_text()
        if name in hosts:
            return {"eth0", "mg0"} <= devices and _has_default_route(routes)
        if name in ports:
            return ports[name] <= devices
        return {"c0", "s0", "mg0"} <= devices and _has_rules(name)

    # We need to use other threads, so that this thread will not change its namespace.
    with ThreadPoolExecutor(WORKERS_COUNT) as pool:
        fine = pool.map(is_fine, names)
    return tuple(
        f"namespace {name} lacks a link, a route or its rules"
        for name, is_complete in zip(names, fine, strict=True)
        if not is_complete
    )


def _has_default_route(routes: str) -> bool:
    return any(line.split()[1:2] == ["00000000"] for line in routes.splitlines())


def _has_rules(firewall: str) -> bool:
    try:
        run([find_tool("nft"), "list", "table", "ip", "broadside"], namespace=firewall)
    except LabBroken:
        return False
    return True


# Process of the byte counter --------------------------------------------------------------------


def start_counter(lab: Lab) -> None:
    """Start the byte counter process when it is not running. Raises :class:`LabBroken`."""
    if lab.counter_path is not None and not is_counter_running(lab):
        argv = [
            *module_argv("broadside.lab.byte_counter", lab.spec.prefix),
            "--csv",
            str(lab.counter_path),
        ]
        run(argv, namespace=lab.firewall_namespace)


def is_counter_running(lab: Lab) -> bool:
    """Return True if the byte counter process of a lab is running."""
    prefix = lab.spec.prefix
    return any(
        is_module(process, "broadside.lab.byte_counter", prefix) for process in list_processes()
    )
