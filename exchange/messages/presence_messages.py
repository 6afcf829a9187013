"""An agent's heartbeat."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from exchange.messages.clock_messages import ClockReading
from exchange.messages.message_base import (
    Address,
    Identifier,
    Message,
    Port,
    Ports,
    Text,
    UtcDatetime,
    Whole,
)
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
    version: Text | None = None  # of its program
    ports: Ports = ()  # server role: free ones
    self_signed: bool | None = None  # server role, TLS: the certificate is of the agent's making
    problem: Text | None = None  # why it cannot


class Presence(Message):
    """An agent's heartbeat."""

    agent_id: Identifier
    role: Role
    state: AgentState
    beat_at: UtcDatetime
    started_at: UtcDatetime
    address: Address  # where the pair's traffic leaves or arrives
    ports: Annotated[
        tuple[Port, ...], Field(max_length=4096)
    ] = ()  # server role: ports that are listening and free
    busy_ports: Annotated[
        tuple[Port, ...], Field(max_length=4096)
    ] = ()  # server role: ports with a test in progress
    broadside_version: Text
    engine_version: Text | None = None  # "3.18"; None: no engine found
    gate: bool = False  # the start gate is built and usable
    kernel: Text | None = None
    cpu_count: Whole | None = None
    nic: Text | None = None  # interface that carries the traffic
    nic_bits_per_second: Whole | None = None  # its cap by the VM size, where the agent was told
    nic_mtu_bytes: Whole | None = None
    vm_size: Text | None = None
    clock: ClockReading | None = None
    problem: Text | None = None  # why the agent cannot work, in one line
    engines: Annotated[tuple[EngineState, ...], Field(max_length=16)] = ()  # beside iperf3
    echo_port: Port | None = None  # server role: UDP, answers probes
    tunnels: bool = False  # it makes VXLAN devices: allowed, and tried

    def engine(self, name: str) -> EngineState | None:
        """What this agent says of an engine; None: nothing, so it cannot."""
        if name == DEFAULT_ENGINE:
            return EngineState(name=name, version=self.engine_version, ports=self.ports)
        return next((state for state in self.engines if state.name == name), None)
