"""What an agent of either role works with."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from agent.counters import HostLog
from agent.host import Host
from agent.process import Engine
from agent.settings import AgentSettings
from exchange.records import Records


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Made once, when the engine was found; handed down to whatever the agent does."""

    settings: AgentSettings
    host: Host
    engine: Engine
    gate: Path | None  # None: engines are started at the instant
    records: Records  # of the bare table: what is worth something only now
    results: Records  # of the spooled table: what is worth keeping
    host_log: HostLog
    stopping: asyncio.Event  # set when the agent is told to stop
    changed: asyncio.Event  # to be set when the agent's condition is new: the heart beats soon
