"""What an agent of either role works with."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.counters import HostLog
from broadside.agent.cpu import host_cpu_s, taken_ratio
from broadside.agent.engine_process import Iperf3
from broadside.agent.host import Host
from broadside.agent.installed_engines import InstalledEngine, installed_iperf3, unknown_engine
from broadside.agent.interfaces import route_interface
from broadside.exchange.messages import DEFAULT_ENGINE, EngineReport, HostSecond
from broadside.exchange.records import AgentRecords, BurstRecords
from broadside.exchange.troubles import TroubleLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Made once, when the engine was found; handed down to whatever the agent does."""

    settings: AgentSettings
    host: Host
    engine: Iperf3
    gate: Path | None  # None: engines are started at the instant
    records: AgentRecords  # of the bare tables: what is worth something only now
    results: BurstRecords  # of the spooled table: what is worth keeping
    troubles: TroubleLog  # what this agent lived through
    host_log: HostLog
    stopping: asyncio.Event  # set when the agent is told to stop
    changed: asyncio.Event  # to be set when the agent's condition is new: the heart beats soon
    tunnels: bool = False  # VXLAN devices may be made, and can be
    installed_engines: dict[str, InstalledEngine] = field(default_factory=dict)  # once looked for

    def host_seconds(self, from_s: float, to_s: float, peer: str | None) -> tuple[HostSecond, ...]:
        """Return the host's seconds, with the counters of the interface that carries a test.

        Args:
            from_s: Epoch s.
            to_s: Epoch s.
            peer: The other end's address; None where it is not known, or behind a tunnel: then the
                interface that has this host's address is taken.
        """
        nic = None if peer is None else route_interface(peer, self.host.address)
        return self.host_log.between(from_s, to_s, nic)

    def with_host_counters(
        self, report: EngineReport, from_s: float, to_s: float, peer: str | None
    ) -> EngineReport:
        """Return a report with what the host's counters say of a test.

        Args:
            report: The engine's.
            from_s: The test's first data, epoch s.
            to_s: Its end, epoch s.
            peer: As in :meth:`host_seconds`.

        Returns:
            The report with the share of CPU time that the hypervisor took, the CPU time of the
            whole host where it is the agent's alone, and how often the egress queue was filled.
        """
        seconds = self.host_log.between(from_s, to_s)
        if not seconds:
            return report
        nic = None if peer is None else route_interface(peer, self.host.address)
        told = {
            "host_taken_ratio": taken_ratio(seconds),
            "egress_queued_ratio": self.host_log.egress_queued_ratio(from_s, to_s, nic),
        }
        if self.settings.host_alone and report.cpu_s is not None and self.host.cpu_count:
            told["host_cpu_s"] = host_cpu_s(seconds, from_s, to_s, self.host.cpu_count)
        return report.model_copy(update=told)

    def installed(self, name: str) -> InstalledEngine:
        """An engine with its programs; one that cannot be used here says why."""
        if name == DEFAULT_ENGINE:
            return installed_iperf3(self.engine)
        return self.installed_engines.get(name) or unknown_engine(name)
