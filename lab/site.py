"""One staging of a lab: hosts and clocks, a coordinator, a fleet; all gone at the end, whatever
happens.

``built`` gives the hosts, with namespaces or on plain loopback; ``staged`` sets a coordinator and
an agent for every host to work on one fabric: SQLite, or what stands in for Azure beside the lab
(:mod:`broadside.lab.azure_services`).
"""

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from broadside.lab import clocks, fleet, hosts, loopback, network, privileges
from broadside.lab.errors import LabBroken
from broadside.lab.serving import READY_S, Serving, wait_for_agents
from broadside.lab.topology import Lab, LabSpec

PREFIX: Final = "bs"  # of every namespace and interface of `lab up`'s lab
PREFIXES: Final = (PREFIX, *(f"{PREFIX}{number}" for number in range(1, 10)))  # demos side by side
AZURE_NIC_BITS_PER_SECOND: Final = 10e9  # Standard_D4_v4, the size of the original test


@contextlib.contextmanager
def in_use(prefix: str) -> Iterator[bool]:
    """Mark a lab as in use by this process; yields False when another process has it.

    The mark is an abstract Unix socket: it goes with the process, however that ends.
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
    """The first lab that no other process uses, ours while the context lasts.

    Raises :class:`LabBroken`.
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
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Lab]:
    """A lab, or its stand-in on plain loopback with one clock; ``keep`` leaves it standing.

    Raises :class:`~broadside.lab.errors.LabError`.
    """
    with contextlib.ExitStack() as stack:
        path = base_path or network.DEFAULT_PATH
        if on_loopback and base_path is None:  # the lab's own place is for those with rights
            path = Path(tempfile.mkdtemp(prefix="broadside-"))
            if not keep:
                stack.callback(shutil.rmtree, path, ignore_errors=True)
        if not keep:
            stack.callback(_take_down, spec.prefix, path, say)
        if on_loopback:
            yield stack.enter_context(loopback.one_clock(loopback.up(spec, path)))
        else:
            yield network.up(spec, path)


def _take_down(prefix: str, path: Path, say: Callable[[str], None]) -> None:
    gone = network.down(prefix, path)
    say(f"lab down: {gone.namespaces_count} namespaces, {gone.processes_count} processes")
    for left in gone.left:
        say(f"could not remove {left}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A lab at work."""

    lab: Lab
    coordinator: Serving
    agents: fleet.Fleet
    plans: Mapping[str, fleet.AgentPlan]  # by agent id


@contextlib.contextmanager
def staged(
    lab: Lab,
    folder: Path,
    *,
    fabric: Mapping[str, str] | None = None,
    ledger: Mapping[str, str] | None = None,
    coordinator: Mapping[str, str] = {},
    agents: Mapping[str, str] = {},
    other_hosts: bool = False,
    spares_count: int = 0,
    entry: str = fleet.AGENT_ENTRY,
    port: int = 0,
    token: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Site]:
    """Coordinator and agents at work in a lab that stands, once every agent is ready.

    All settings are environment variables: ``fabric`` for both sides (SQLite in ``folder`` without
    it), ``ledger`` (the lab's own, where it has one) and ``coordinator`` for the coordinator,
    ``agents`` for each agent. With ``other_hosts`` SQLite is the coordinator's alone, and agents
    are enrolled and reach it over HTTPS.
    The last ``spares_count`` servers get no agent, so that as many clients are spares; ``port`` is
    the page's, 0 or one that is taken: any free one; ``token`` is a viewer's, where the coordinator
    wants one.
    Raises :class:`~broadside.lab.errors.LabError`.
    """
    if fabric is None:
        fabric = sqlite_fabric(folder / "data")
    if ledger is None:
        ledger = ledger_of(lab)
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
    environment = {**fabric, **ledger, **coordinator}
    if other_hosts:
        at = environment["BROADSIDE_HOSTS_LISTEN"] = hosts.free_address(lab)
        plans = hosts.enrolled(plans, Path(fabric["BROADSIDE_DATA_DIR"]), at)
        warmed = ("broadside.exchange.http.http_ports", "broadside.exchange.http.joining")
    with Serving(environment, folder, port=port, token=token) as serving:
        if not privileges.is_inside():  # whose network nobody outside can reach
            say(f"the live page: {serving.url}/")
        since_at = datetime.now(UTC)
        say(f"starting {len(plans)} agents")
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
            yield Site(lab=lab, coordinator=serving, agents=started, plans=plans)


def sqlite_fabric(data_dir: Path) -> dict[str, str]:
    """The settings of a fabric in files of a folder."""
    return {"BROADSIDE_FABRIC": "embedded", "BROADSIDE_DATA_DIR": str(data_dir.absolute())}


def ledger_of(lab: Lab) -> dict[str, str]:
    """The settings of a coordinator that reads the lab's firewall, where there is one."""
    if lab.ledger_path is None:
        return {}
    return {"BROADSIDE_LEDGER": "lab", "BROADSIDE_LEDGER_PATH": str(lab.ledger_path)}
