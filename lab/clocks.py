"""Runs a chronyd in the namespace of each host, synchronized to the firewall.

The kernel has a single clock for all namespaces. Every chronyd is therefore run with ``-x`` to
measure the clock but not to set it. You can use ``chronyc -h 127.0.0.1`` inside each namespace.
There are no command sockets. Directives are passed on the command line, because AppArmor on some
distributions restricts chronyd to ``/etc/chrony`` and ``/run/chrony``.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broadside.agent.clock import parse_tracking
from broadside.exchange.outage_log import utc_now
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

# If we use four readings per second at the start, a host will be synchronized to within 1 ms in
# less than a second.
POLLING: Final = "iburst minpoll -2 maxpoll 3 xleave"
# If the root distance is below this limit, the host will be synchronized.
DISTANCE_MAX_S: Final = 0.005
STOP_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.2
WORKERS_COUNT: Final = 4


def server_directives(spec: LabSpec) -> tuple[str, ...]:
    """Return the directives for the firewall's chronyd, which serves its own clock."""
    return (
        "local stratum 3",
        f"allow {management_network(spec)}",
        "bindcmdaddress /",
        f"pidfile {pid_path(spec.prefix, 'fw')}",
    )


def client_directives(spec: LabSpec, host_name: str, offset_s: float = 0.0) -> tuple[str, ...]:
    """Return the directives for a host's chronyd.

    Args:
        spec: Specification of the lab.
        host_name: Name of the host.
        offset_s: Seconds by which the clock should appear to be slow.

    Returns:
        Lines of ``chrony.conf``.
    """
    source = management_address(spec, "firewall")
    planted = f" offset {offset_s:.9f}" if offset_s else ""
    return (
        f"server {source} {POLLING}{planted}",
        "port 0",
        "bindcmdaddress /",
        f"pidfile {pid_path(spec.prefix, host_name)}",
    )


def _create_folder(prefix: str) -> None:
    """Create chronyd's folder with a file for this lab.

    If the folder is empty, it will be removed when another lab is stopped. It will be empty until
    the first chronyd writes to it.
    """
    while True:
        CHRONY_PATH.mkdir(exist_ok=True)
        # The folder might be removed by another lab at this moment.
        with contextlib.suppress(FileNotFoundError):
            pid_path(prefix, "lab").touch()
            return


def start_clocks(lab: Lab) -> str | None:
    """Start every chronyd that is not running.

    You can use a lab without clocks. The agents will then use the clock state from the kernel.

    Returns:
        The reason why clocks are missing, or ``None`` if all are running.
    """
    prefix = lab.spec.prefix
    try:
        find_tool("chronyc")
        _create_folder(prefix)
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
    """Make a host clock appear to be slow, for tests.

    Args:
        lab: The lab.
        host_name: Name of the host.
        offset_s: Offset in seconds. Use 0 to remove it.

    Raises:
        LabMisconfigured: There is no such host.
        LabBroken: The chronyd does not stop or start.
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
    """Wait until every host's chronyd is synchronized to the firewall.

    Args:
        lab: The lab.
        timeout_s: Time to wait in seconds.

    Returns:
        The names of the hosts that are not synchronized. The tuple is empty on success, and also
            when the lab has no firewall.
    """
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
    """Return the hosts (and ``fw``) without a running chronyd.

    The list is empty if chronyd is not installed.
    """
    try:
        find_tool("chronyd")
    except ToolMissing:
        return []
    running = _running(lab.spec.prefix)
    return [name for name in ("fw", *(host.name for host in lab.hosts)) if name not in running]


def is_synced(command_socket: str, namespace: str | None = None) -> bool:
    """Return True if the root distance of a chronyd is small, ignoring a planted offset.

    Args:
        command_socket: Address for ``chronyc -h``.
        namespace: Namespace to run chronyc in, or ``None`` for the current one.
    """
    try:
        argv = [find_tool("chronyc"), "-c", "-h", command_socket, "tracking"]
        text = run(argv, namespace=namespace)
    except LabBroken:
        return False
    reading = parse_tracking(text, utc_now())
    if not reading.synchronised or reading.bound_s is None or reading.offset_s is None:
        return False
    return reading.bound_s - abs(reading.offset_s) < DISTANCE_MAX_S


def _start(prefix: str, host_name: str, directives: Sequence[str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        # A killed chronyd leaves this file behind, and a new one would refuse to start.
        pid_path(prefix, host_name).unlink()
    run([find_tool("chronyd"), "-x", "-u", "root", *directives], namespace=prefix + host_name)


def _running(prefix: str) -> dict[str, int]:
    """Return process ids by host name, with ``fw`` for the firewall."""
    pattern = re.compile(re.escape(str(pid_path(prefix, "NAME"))).replace("NAME", r"(\w+)"))
    return {
        match[1]: process.pid
        for process in list_processes()
        if is_chronyd(process, prefix) and (match := pattern.search(process.command))
    }
