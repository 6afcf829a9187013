"""Objects shared by client and server agents."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.counters import HostLog
from broadside.agent.cpu import host_cpu_s, taken_ratio
from broadside.agent.engine_process import Iperf3Program
from broadside.agent.host import Host
from broadside.agent.installed_engines import InstalledEngine, installed_iperf3, unknown_engine
from broadside.agent.interfaces import route_interface
from broadside.exchange.messages import DEFAULT_ENGINE, EngineReport, HostSecond
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.records import AgentRecords, BurstRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Dependencies for an agent, created once the engine is found.

    Attributes:
        settings: Settings to use.
        host: Address, interface and other host data.
        engine: The iperf3 to run.
        gate: Path to the start gate library, or None to start engines at the planned start instead.
        records: Records to write without the spool, for data that is useless when it is late.
        results: Records to write through the spool, for data that should not be lost.
        troubles: Outages and losses that this agent has recorded.
        host_log: Host counters, one entry per second.
        stopping: Set when the agent should stop.
        changed: Set this event when the agent's condition has changed. A heartbeat will follow
            soon.
        tunnels: True if VXLAN devices are allowed and can be created on this host.
        installed_engines: Engines by name, set once the search for their programs is complete.
    """

    settings: AgentSettings
    host: Host
    engine: Iperf3Program
    gate: Path | None
    records: AgentRecords
    results: BurstRecords
    troubles: OutageLog
    host_log: HostLog
    stopping: asyncio.Event
    changed: asyncio.Event
    tunnels: bool = False
    installed_engines: dict[str, InstalledEngine] = field(default_factory=dict)

    def host_seconds(self, from_s: float, to_s: float, peer: str | None) -> tuple[HostSecond, ...]:
        """Return the host's counters per second, for the interface that carries a test.

        Args:
            from_s: Unix timestamp to start from.
            to_s: Unix timestamp to stop at.
            peer: Address to test against, or None if it is unknown or behind a tunnel. With None
                the interface with this host's address is used.

        Returns:
            The seconds that overlap the interval.
        """
        nic = None if peer is None else route_interface(peer, self.host.address)
        return self.host_log.between(from_s, to_s, nic)

    def with_host_counters(
        self, report: EngineReport, from_s: float, to_s: float, peer: str | None
    ) -> EngineReport:
        """Return a copy of an engine report with values from the host counters.

        Args:
            report: Report of the engine.
            from_s: Unix timestamp of the first data in the test.
            to_s: Unix timestamp of the end of the test.
            peer: Address to test against, as in :meth:`host_seconds`. None uses the default
                interface.

        Returns:
            The report with the share of CPU time taken by the hypervisor, and with the share of
            samples in which the egress queue was filled. If only the agent runs on this host, the
            CPU time of the whole host is set as well.
        """
        seconds = self.host_log.between(from_s, to_s)
        if not seconds:
            return report
        nic = None if peer is None else route_interface(peer, self.host.address)
        labels = {
            "host_taken_ratio": taken_ratio(seconds),
            "egress_queued_ratio": self.host_log.egress_queued_ratio(from_s, to_s, nic),
        }
        if self.settings.host_alone and report.cpu_s is not None and self.host.cpu_count:
            labels["host_cpu_s"] = host_cpu_s(seconds, from_s, to_s, self.host.cpu_count)
        return report.model_copy(update=labels)

    def installed(self, name: str) -> InstalledEngine:
        """Return an engine with its programs, or with the problem that makes it unusable here."""
        if name == DEFAULT_ENGINE:
            return installed_iperf3(self.engine)
        return self.installed_engines.get(name) or unknown_engine(name)
