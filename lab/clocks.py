"""Clocks: one chronyd in each host's namespace, against one in the firewall's.

The kernel has one clock for all namespaces, so every chronyd runs with ``-x``: it measures, and
never sets. Each answers ``chronyc -h 127.0.0.1`` inside its own namespace; there are no command
sockets, and its directives come on the command line, because distributions confine chronyd to
``/etc/chrony`` and ``/run/chrony`` by AppArmor.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

from broadside.agent.clock import parse_tracking
from broadside.lab.errors import LabBroken, LabError, LabMisconfigured, ToolMissing
from broadside.lab.lab_programs import find_tool
from broadside.lab.namespaces import CHRONY_PATH, is_chronyd, list_processes, pid_path, run
from broadside.lab.topology import (
    NTP_OVER_LOOPBACK,
    Lab,
    LabSpec,
    management_address,
    management_network,
)

# Four readings a second at first: synchronised in under a second, with a bound below 1 ms.
POLLING: Final = "iburst minpoll -2 maxpoll 3 xleave"
DISTANCE_MAX_S: Final = 0.005  # s of root distance under which a host counts as synchronised
STOP_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.2
WORKERS_COUNT: Final = 4


def server_directives(spec: LabSpec) -> tuple[str, ...]:
    """The firewall's chronyd: its own clock is the truth."""
    return (
        "local stratum 3",
        f"allow {management_network(spec)}",
        "bindcmdaddress /",
        f"pidfile {pid_path(spec.prefix, 'fw')}",
    )


def client_directives(spec: LabSpec, host_name: str, offset_s: float = 0.0) -> tuple[str, ...]:
    """A host's chronyd; ``offset_s`` makes its clock look that many seconds slow."""
    source = management_address(spec, "firewall")
    planted = f" offset {offset_s:.9f}" if offset_s else ""
    return (
        f"server {source} {POLLING}{planted}",
        "port 0",
        "bindcmdaddress /",
        f"pidfile {pid_path(spec.prefix, host_name)}",
    )


def _keep_folder(prefix: str) -> None:
    """Make chronyd's folder, with a file of this lab in it: another lab that ends removes the
    folder where it is empty, as it is until a first chronyd writes."""
    while True:
        CHRONY_PATH.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # removed this very moment
            pid_path(prefix, "lab").touch()
            return


def start_clocks(lab: Lab) -> str | None:
    """Start every chronyd that is not running; return why there are no clocks, or None.

    A lab without clocks still works: its agents ask the kernel instead.
    """
    prefix = lab.spec.prefix
    try:
        find_tool("chronyc")
        _keep_folder(prefix)
        running = _running(prefix)
        if "fw" not in running:
            _start(prefix, "fw", server_directives(lab.spec))
        missing = [host.name for host in lab.hosts if host.name not in running]
        with ThreadPoolExecutor(WORKERS_COUNT) as pool:
            list(
                pool.map(
                    lambda name: _start(prefix, name, client_directives(lab.spec, name)), missing
                )
            )
    except (LabError, OSError) as error:
        return f"no clock per host ({error}): agents read the kernel's clock state instead"
    return None


def plant_offset(lab: Lab, host_name: str, offset_s: float) -> None:
    """Make one host's clock look ``offset_s`` seconds slow, for tests; 0 makes it right again.

    Raises :class:`LabMisconfigured`, :class:`LabBroken`.
    """
    if host_name not in {host.name for host in lab.hosts}:
        raise LabMisconfigured(f"host {host_name!r}: this lab has c001 to {lab.servers[-1].name}")
    prefix = lab.spec.prefix
    pid = _running(prefix).get(host_name)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        end_s = time.monotonic() + STOP_TIMEOUT_S
        while host_name in _running(prefix):
            if time.monotonic() > end_s:
                raise LabBroken(f"chronyd of {host_name} (pid {pid}) does not stop")
            time.sleep(POLL_S / 10)
    _start(prefix, host_name, client_directives(lab.spec, host_name, offset_s))


def wait_synced(lab: Lab, timeout_s: float) -> tuple[str, ...]:
    """Wait until every host's chronyd follows the firewall's; return the names of those that
    still do not, which is none when all is well, and where there is no firewall."""
    end_s = time.monotonic() + timeout_s
    waiting = [host for host in lab.hosts if host.chrony is not None and host.namespace is not None]
    with ThreadPoolExecutor(WORKERS_COUNT) as pool:
        while True:
            synced = pool.map(lambda host: is_synced(NTP_OVER_LOOPBACK, host.namespace), waiting)
            waiting = [host for host, done in zip(waiting, synced, strict=True) if not done]
            if not waiting or time.monotonic() > end_s:
                return tuple(host.name for host in waiting)
            time.sleep(POLL_S)


def missing_clocks(lab: Lab) -> Sequence[str]:
    """The hosts (and ``fw``) whose chronyd does not run; none where it is not installed."""
    try:
        find_tool("chronyd")
    except ToolMissing:
        return []
    running = _running(lab.spec.prefix)
    return [name for name in ("fw", *(host.name for host in lab.hosts)) if name not in running]


def is_synced(command_socket: str, namespace: str | None = None) -> bool:
    """Whether a chronyd's root distance is small; a planted offset does not count."""
    try:
        argv = [find_tool("chronyc"), "-c", "-h", command_socket, "tracking"]
        text = run(argv, namespace=namespace)
    except LabBroken:
        return False
    reading = parse_tracking(text, datetime.now(UTC))
    if not reading.synchronised or reading.bound_s is None or reading.offset_s is None:
        return False
    return reading.bound_s - abs(reading.offset_s) < DISTANCE_MAX_S


def _start(prefix: str, host_name: str, directives: Sequence[str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        pid_path(prefix, host_name).unlink()  # left by a killed one; chronyd would refuse
    run([find_tool("chronyd"), "-x", "-u", "root", *directives], namespace=prefix + host_name)


def _running(prefix: str) -> dict[str, int]:
    """Process ids by host name (``fw`` is the firewall)."""
    pattern = re.compile(re.escape(str(pid_path(prefix, "NAME"))).replace("NAME", r"(\w+)"))
    return {
        match[1]: process.pid
        for process in list_processes()
        if is_chronyd(process, prefix) and (match := pattern.search(process.command))
    }
