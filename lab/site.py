"""Starts a complete lab with hosts, a coordinator and a fleet, and removes it on exit.

``built`` creates the hosts, in namespaces or on plain loopback. ``staged`` starts a coordinator and
an agent for each host on the same fabric. This is SQLite or the local Azure services
(:mod:`broadside.lab.azure_services`).
"""

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadside.exchange.outage_log import utc_now
from broadside.lab import clocks, fleet, hosts, loopback, network, privileges
from broadside.lab.errors import LabBroken
from broadside.lab.serving import READY_S, ServeProcess, wait_for_agents
from broadside.lab.telemetry_file import lab_entry, write_telemetry_file
from broadside.lab.topology import Lab, LabSpec

# Prefix of the namespaces and interfaces from `lab up`.
PREFIX: Final = "bs"
# Prefixes for demos that run at the same time.
PREFIXES: Final = (PREFIX, *(f"{PREFIX}{number}" for number in range(1, 10)))
# Standard_D4_v4, the VM size in the original test.
AZURE_NIC_BITS_PER_SECOND: Final = 10e9


@contextlib.contextmanager
def in_use(prefix: str) -> Iterator[bool]:
    """Mark a lab as in use by this process. Yields False if another process uses it.

    The mark is an abstract Unix socket, which the kernel removes when the process ends.
    """
    with socket.socket(socket.AF_UNIX) as mark:
        try:
            mark.bind(f"\0broadside-user-{prefix}")
        except OSError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def free_prefix() -> Iterator[str]:
    """Reserve and yield the first prefix that is not in use by another process.

    Raises:
        LabBroken: All prefixes are in use.
    """
    for prefix in PREFIXES:
        with in_use(prefix) as ours:
            if ours:
                yield prefix
                return
    raise LabBroken(f"{len(PREFIXES)} demos run on this host already; wait for one to end")


@contextlib.contextmanager
def built(
    spec: LabSpec,
    base_path: Path | None = None,
    *,
    on_loopback: bool = False,
    keep: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Lab]:
    """Build a lab, or its replacement on plain loopback with a single clock.

    Args:
        spec: Specification of the lab.
        base_path: Data folder to use. None uses the default one, or a temporary one on loopback.
        on_loopback: Whether to use plain loopback.
        keep: Whether to leave the lab running on exit.
        progress: Function to call with progress messages.

    Yields:
        The lab.

    Raises:
        LabError: The lab cannot be built.
    """
    with contextlib.ExitStack() as stack:
        path = base_path or network.DEFAULT_PATH
        # You need root access to use the default folder.
        if on_loopback and base_path is None:
            path = Path(tempfile.mkdtemp(prefix="broadside-"))
            if not keep:
                stack.callback(shutil.rmtree, path, ignore_errors=True)
        if not keep:
            stack.callback(_take_down, spec.prefix, path, progress)
        if on_loopback:
            yield stack.enter_context(loopback.one_clock(loopback.up(spec, path)))
        else:
            yield network.up(spec, path)


def _take_down(prefix: str, path: Path, progress: Callable[[str], None]) -> None:
    gone = network.down(prefix, path)
    progress(f"lab down: {gone.namespaces_count} namespaces, {gone.processes_count} processes")
    for left in gone.left:
        progress(f"could not remove {left}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLab:
    """Running lab.

    Attributes:
        lab: The lab.
        coordinator: The coordinator process.
        agents: The fleet.
        plans: Plans by agent id.
    """

    lab: Lab
    coordinator: ServeProcess
    agents: fleet.Fleet
    plans: Mapping[str, fleet.AgentPlan]


@contextlib.contextmanager
def staged(  # noqa: PLR0913
    lab: Lab,
    folder: Path,
    *,
    fabric: Mapping[str, str] | None = None,
    device_counter: Mapping[str, str] | None = None,
    coordinator: Mapping[str, str] = {},
    agents: Mapping[str, str] = {},
    other_hosts: bool = False,
    spares_count: int = 0,
    entry: str = fleet.AGENT_ENTRY,
    port: int = 0,
    token: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[RunningLab]:
    """Start coordinator and agents in a running lab, and wait until every agent is ready.

    All settings are environment variables.

    Args:
        lab: The lab.
        folder: Folder for data and logs.
        fabric: Settings for both sides. ``None`` uses SQLite in ``folder``.
        device_counter: Settings for the byte counter. ``None`` uses the lab's byte counter, if any.
        coordinator: Settings for the coordinator.
        agents: Settings for each agent.
        other_hosts: Whether agents need to enroll and use HTTPS to reach the coordinator.
        spares_count: Number of servers without an agent, so that as many clients are spares.
        entry: Function to run as an agent.
        port: Port for the coordinator. If it is 0 or in use, a free port will be used.
        token: Token with the viewer role, if the coordinator requires one. None sends none.
        progress: Function to call with progress messages.

    Yields:
        The running site.

    Raises:
        LabError: The coordinator, the agents or the clocks are not ready in time.
    """
    if fabric is None:
        fabric = sqlite_fabric(folder / "data")
    if device_counter is None:
        device_counter = counter_settings(lab, folder)
    spares = {host.name for host in lab.servers[len(lab.servers) - spares_count :]}
    plans = {
        plan.agent_id: plan
        for plan in fleet.plan_agents(lab, {**fabric, **agents})
        if plan.agent_id not in spares
    }
    in_azure = fabric["BROADSIDE_FABRIC"] == "azure"
    embedded = (
        "broadside.exchange.embedded.embedded_queue",
        "broadside.exchange.embedded.embedded_table",
    )
    azure = ("broadside.exchange.azure.azure_fabric", "broadside.exchange.azure.blob_client")
    warmed = azure if in_azure else embedded
    environment = {**fabric, **device_counter, **coordinator}
    if other_hosts:
        at = environment["BROADSIDE_HOSTS_LISTEN"] = hosts.free_address(lab)
        plans = hosts.enrolled(plans, Path(fabric["BROADSIDE_DATA_DIR"]), at)
        warmed = ("broadside.exchange.http.http_ports", "broadside.exchange.http.joining")
    with ServeProcess(environment, folder, port=port, token=token) as serving:
        # You cannot connect to the network in a world from outside.
        if not privileges.is_inside():
            progress(f"the live page: {serving.url}/")
        since_at = utc_now()
        progress(f"starting {len(plans)} agents")
        with fleet.start(
            list(plans.values()),
            prefix=lab.spec.prefix,
            log_path=folder / "logs",
            entry=entry,
            imports=warmed,
        ) as started:
            if late := clocks.wait_synced(lab, READY_S):
                raise LabBroken(f"no good clock within {READY_S:g} s: {', '.join(late[:5])}")
            wait_for_agents(serving, started, plans, since_at)
            yield RunningLab(lab=lab, coordinator=serving, agents=started, plans=plans)


def sqlite_fabric(data_dir: Path) -> dict[str, str]:
    """Return the settings for a fabric in the files of a folder."""
    return {"BROADSIDE_FABRIC": "embedded", "BROADSIDE_DATA_DIR": str(data_dir.absolute())}


def counter_settings(lab: Lab, folder: Path) -> dict[str, str]:
    """Return the settings to read the lab's firewall, empty if there is none.

    Args:
        lab: Lab with or without a byte counter.
        folder: Folder to write ``telemetry.toml`` to.

    Returns:
        Environment variables of the coordinator by name.
    """
    if lab.counter_path is None:
        return {}
    return write_telemetry_file(folder / "telemetry.toml", lab_entry(lab.counter_path))
