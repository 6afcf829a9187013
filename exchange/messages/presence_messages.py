"""An agent's heartbeat."""

from enum import StrEnum
from typing import Annotated

from pydantic import (
    Field,
    StringConstraints,
)

from exchange.messages.clock_messages import ClockReading
from exchange.messages.message_base import Identifier, Message, UtcDatetime
from exchange.messages.traffic_messages import DEFAULT_ENGINE, EngineName


class Role(StrEnum):
    CLIENT = "client"
    SERVER = "server"


class AgentState(StrEnum):
    IDLE = "idle"
    BUSY = "busy"  # holds a job: armed or running
    STOPPING = "stopping"


class EngineState(Message):
    """Whether an agent can play its part for one engine."""

    name: EngineName
    version: Annotated[str, StringConstraints(max_length=40)] | None = None  # of its program
    ports: Annotated[tuple[int, ...], Field(max_length=256)] = ()  # server role: free ones
    self_signed: bool | None = None  # server role, TLS: the certificate is of the agent's making
    problem: Annotated[str, StringConstraints(max_length=300)] | None = None  # why it cannot


class Presence(Message):
    """An agent's heartbeat."""

    agent_id: Identifier
    role: Role
    state: AgentState
    beat_at: UtcDatetime
    started_at: UtcDatetime
    address: str  # where the pair's traffic leaves or arrives
    ports: tuple[int, ...] = ()  # server role: ports that are listening and free
    busy_ports: tuple[int, ...] = ()  # server role: ports with a test in progress
    broadside_version: str
    engine_version: str | None = None  # "3.18"; None: no engine found
    gate: bool = False  # the start gate is built and usable
    kernel: str | None = None
    cpu_count: int | None = None
    nic: str | None = None  # interface that carries the traffic
    nic_bits_per_second: int | None = None  # its cap by the VM size, where the agent was told
    nic_mtu_bytes: int | None = None
    vm_size: str | None = None
    clock: ClockReading | None = None
    problem: str | None = None  # why the agent cannot work, in one line
    engines: Annotated[tuple[EngineState, ...], Field(max_length=16)] = ()  # beside iperf3
    echo_port: int | None = None  # server role: UDP, answers probes
    tunnels: bool = False  # it makes VXLAN devices: allowed, and tried

    def engine(self, name: str) -> EngineState | None:
        """What this agent says of an engine; None: nothing, so it cannot."""
        if name == DEFAULT_ENGINE:
            return EngineState(name=name, version=self.engine_version, ports=self.ports)
        return next((state for state in self.engines if state.name == name), None)
