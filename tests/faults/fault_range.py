"""Range of the fault matrix with a lab, a fleet, a coordinator and the services between them.

It has two pairs and a spare client. With the Azure fabric, table and blobs are behind relays that
can inject errors, and the broker is a process that can be killed. With the HTTP fabric, agents have
only a network link to the coordinator. With the embedded fabric, all share an embedded store with
files that can be locked. Every agent has a disk that can be full and a clock that can be wrong.
"""

import asyncio
import contextlib
import os
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.ports import Outgoing
from broadside.lab import azure_services, fleet
from broadside.lab.broker_process import BrokerProcess
from broadside.lab.errors import LabBroken
from broadside.lab.lab_programs import find_tool
from broadside.lab.namespaces import list_namespaces, list_processes, run
from broadside.lab.relay import Relay
from broadside.lab.serving import READY_S, ServeProcess, is_ready, why_not
from broadside.lab.site import built, sqlite_fabric, staged
from broadside.lab.topology import Lab, LabHost, LabSpec, management_name, switch_namespace
from tests.faults.fired_tests import Wire, watched

PAIRS_COUNT: Final = 2
SPARES_COUNT: Final = 1
ENTRY: Final = "tests.faults.small_disk_agents:run"
BEAT_AGE_MAX_S: Final = 6.0
# A concurrent write to the store ends within this time.
LOCK_S: Final = 20.0
RangeFabric = Literal["embedded", "http", "azure"]
# The tables of the embedded store.
STORES: Final = ("control", "results", "private")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Azure services beside the lab."""

    broker: BrokerProcess
    tables: Relay
    blobs: Relay


class StoreLocks:
    """Lock holder that blocks all writes to files of the embedded store."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._locks: dict[str, sqlite3.Connection] = {}

    def lock(self, *names: str) -> None:
        """Lock databases of the store. Repeated calls have no effect."""
        for name in names:
            if name not in self._locks:
                path = self._data_dir / f"{name}.sqlite3"
                holder = sqlite3.connect(path, timeout=LOCK_S, isolation_level=None)
                self._locks[name] = holder
                holder.execute("BEGIN IMMEDIATE")

    def free(self, *names: str) -> None:
        """Release the locks. Repeated calls have no effect."""
        for name in names:
            if (holder := self._locks.pop(name, None)) is not None:
                holder.close()


@dataclass(slots=True, kw_only=True)
class Range:
    """Target of the faults. Each method returns when its action is complete.

    Attributes:
        beside: Azure services, or None with another fabric.
        store_locks: Lock holder, or None if agents do not share the store's files.
        data_dir: Store of the coordinator, or None if it is in Azure.
        fabric: Connection that bypasses the relays, to read the records of a run.
    """

    name: RangeFabric
    lab: Lab
    agents: fleet.Fleet
    coordinator: ServeProcess
    beside: Services | None
    store_locks: StoreLocks | None
    data_dir: Path | None
    wire: Wire
    fabric: Fabric
    loop: asyncio.Runner
    plans: Mapping[str, fleet.AgentPlan]

    # Agents ---------------------------------------------------------------------------------

    def kill(self, agent_id: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to an agent and all its child processes, as if to its host."""
        self.agents.kill(agent_id, number)

    def revive(self) -> None:
        """Restart the coordinator and every agent that has ended."""
        self.coordinator.revive()
        states = self.agents.states()
        gone = [
            plan
            for name, plan in self.plans.items()
            if name not in states or states[name].exit_code is not None
        ]
        if gone:
            self.agents.add(gone)

    def agent_pid(self, agent_id: str) -> int:
        return self.agents.states()[agent_id].pid

    def spool_path(self, agent_id: str) -> Path:
        return Path(self.plans[agent_id].environment["BROADSIDE_AGENT_SPOOL_DIR"])

    def signal_engines(self, agent_id: str, number: int) -> int:
        """Send a signal to the iperf3 processes on an agent's host, and return their number."""
        inode = list_namespaces(self.lab.spec.prefix)[self.lab.spec.prefix + agent_id]
        pids = [
            process.pid
            for process in list_processes()
            if process.namespace_inode == inode
            # This includes an iperf3 that was started by a loader.
            and any(Path(argument).name == "iperf3" for argument in process.arguments)
        ]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(pids)

    def set_cables(self, agent_id: str, *, data: bool, management: bool, up: bool) -> None:
        """Connect or disconnect an agent's host at the switches."""
        prefix, host = self.lab.spec.prefix, self.host(agent_id)
        ports = []
        if data:
            ports.append((switch_namespace(prefix, host.role), f"p{int(agent_id[1:])}"))
        if management:
            ports.append((management_name(prefix), agent_id))
        for namespace, port in ports:
            state = "up" if up else "down"
            run([find_tool("ip"), "link", "set", "dev", port, state], namespace=namespace)

    def host(self, agent_id: str) -> LabHost:
        return next(host for host in self.lab.hosts if host.name == agent_id)

    # Shared services ------------------------------------------------------------------------

    @property
    def services(self) -> Services:
        """Azure services.

        Raises:
            LabBroken: The fabric has no Azure services.
        """
        if self.beside is None:
            raise LabBroken("this fault is one of Azure's services")
        return self.beside

    def break_queue(self) -> None:
        """Stop the delivery of all jobs."""
        if self.store_locks is not None:
            self.store_locks.lock("queue")
        elif self.beside is None:
            self._set_links(up=False)
        else:
            self.beside.broker.kill()

    def mend_queue(self) -> None:
        """Restore the queue. Repeated calls have no effect."""
        if self.store_locks is not None:
            self.store_locks.free("queue")
        elif self.beside is None:
            self._set_links(up=True)
        else:
            self.beside.broker.revive()

    def break_storage(self) -> None:
        """Block all writes of rows and outputs."""
        if self.store_locks is not None:
            self.store_locks.lock(*STORES)
        elif self.beside is None:
            self._set_links(up=False)
        else:
            self.beside.blobs.refuse(503)
            self.beside.tables.refuse(503)

    def mend_storage(self) -> None:
        if self.store_locks is not None:
            self.store_locks.free(*STORES)
        elif self.beside is None:
            self._set_links(up=True)
        else:
            self.beside.blobs.heal()
            self.beside.tables.heal()

    def _set_links(self, *, up: bool) -> None:
        """Connect or disconnect every agent from the coordinator."""
        for agent_id in self.plans:
            self.set_cables(agent_id, data=False, management=True, up=up)

    def forget_connections(self) -> None:
        """Drop connections to disconnected agents.

        The broker itself would need minutes to detect them.
        """
        if self.beside is not None:
            self.beside.broker.ask("drop")

    def send_raw(self, body: bytes, message_id: str) -> None:
        """Send a message with any content."""
        outgoing = Outgoing(
            body=body,
            message_id=message_id,
            expires_at=datetime.fromtimestamp(time.time() + 60, UTC),
        )
        self.loop.run(self.fabric.queue.send([outgoing]))

    # Between cells --------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until every agent is idle and sends heartbeats without a problem.

        Raises:
            LabBroken: An agent is not ready in time.
        """
        end_s = time.monotonic() + READY_S
        wrong: list[str] = []
        there: dict[str, Any] = {}
        while time.monotonic() < end_s:
            there = {p["agent_id"]: p for p in self.coordinator.get("/v1/agents") or []}
            wrong = [name for name in self.plans if not _is_well(there.get(name))]
            if not wrong:
                return
            time.sleep(0.2)
        whys = (f"{name} {why_not(there.get(name), self.agents, name)}" for name in wrong)
        raise LabBroken(f"not ready within {READY_S:g} s: {'; '.join(whys)}")


def _is_well(presence: Mapping[str, object] | None) -> bool:
    if presence is None or not is_ready(presence) or presence["state"] != "idle":
        return False
    age_s = time.time() - datetime.fromisoformat(str(presence["beat_at"])).timestamp()
    return age_s < BEAT_AGE_MAX_S


@contextlib.contextmanager
def standing(prefix: str, fabric: RangeFabric = "azure") -> Iterator[Range]:
    """Run a range, and remove it afterwards.

    Raises:
        broadside.lab.errors.LabError: The range cannot be created.
    """
    spec = LabSpec(pairs_count=PAIRS_COUNT + SPARES_COUNT, prefix=prefix)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broadside-faults-")))
        lab = stack.enter_context(built(spec))
        if lab.limits:
            raise LabBroken(f"faults need a clock per host: {lab.limits[0]}")
        host = lab.management_address
        assert host is not None
        assert lab.firewall_namespace is not None
        beside: Services | None = None
        data_dir: Path | None = folder / "data"
        settings = sqlite_fabric(folder / "data")
        past = settings
        if fabric == "azure":
            azure = stack.enter_context(azure_services.standing(folder, host))
            beside = Services(
                broker=azure.broker,
                tables=stack.enter_context(Relay(azure.azurite.port, host)),
                blobs=stack.enter_context(Relay(azure.azurite.blob_port, host)),
            )
            past, data_dir = azure.fabric(), None
            settings |= azure.fabric(beside.tables, beside.blobs)
        # The fleet does not import from the current folder, which contains the entry of the agents.
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        site = stack.enter_context(
            staged(
                lab,
                folder,
                fabric=settings,
                agents={"BROADSIDE_AGENT_HEARTBEAT_S": "1", "BROADSIDE_AGENT_UPLOAD_S": "1"},
                spares_count=SPARES_COUNT,
                entry=ENTRY,
                other_hosts=fabric == "http",
            )
        )
        loop = stack.enter_context(asyncio.Runner())
        fields = {name.removeprefix("BROADSIDE_").lower(): value for name, value in past.items()}
        opened = open_fabric(FabricSettings.model_validate(fields))
        stack.callback(lambda: loop.run(opened.close()))
        made = Range(
            name=fabric,
            lab=lab,
            agents=site.agents,
            coordinator=site.coordinator,
            beside=beside,
            store_locks=StoreLocks(folder / "data") if fabric == "embedded" else None,
            data_dir=data_dir,
            wire=stack.enter_context(watched(lab.firewall_namespace)),
            fabric=opened,
            loop=loop,
            plans=site.plans,
        )
        made.wait_ready()
        yield made
