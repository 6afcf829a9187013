"""What a pair is asked to do, and who does it."""

from enum import StrEnum
from ipaddress import ip_network
from typing import Annotated, Final

from pydantic import (
    Field,
)

from exchange.messages.clock_messages import ClockReading
from exchange.messages.message_base import Identifier, Message, RunId, UtcDatetime
from exchange.messages.traffic_messages import Traffic

PROTOCOL_VERSION: Final = 2  # raised whenever an older agent could misread a job


class Phase(StrEnum):
    """How far the agent that claimed a job has come."""

    CLAIMED = "claimed"
    ARMED = "armed"
    RUNNING = "running"
    REPORTED = "reported"


class Endpoint(Message):
    """A server agent's address and one port of its own."""

    agent_id: Identifier
    address: str  # literal IPv4 or IPv6 address
    port: Annotated[int, Field(ge=1, le=65535)]
    more_ports: Annotated[tuple[int, ...], Field(max_length=15)] = ()  # one a further process
    echo_port: Annotated[int, Field(ge=1, le=65535)] | None = None  # UDP: answers probes

    @property
    def ports(self) -> tuple[int, ...]:
        """Every port of the pair, the first one first."""
        return (self.port, *self.more_ports)


class Job(Message):
    """One pair's part in one burst: the message on the queue."""

    version: int = PROTOCOL_VERSION
    run_id: RunId
    burst_index: Annotated[int, Field(ge=0)]
    pair_index: Annotated[int, Field(ge=0)]
    endpoint: Endpoint
    traffic: Traffic
    planned_start_at: UtcDatetime  # the instant at which every pair of the burst starts
    duration_s: Annotated[int, Field(ge=1, le=86_400)]  # s, without omit_s
    late_after_s: float = 1.0  # s after the instant at which data counts as late
    clock_bound_max_s: float = 0.05  # s, the clock gate

    @property
    def job_id(self) -> str:
        """``<run>.<burst>.<pair>``: also the queue's duplicate-detection id."""
        return f"{self.run_id}.{self.burst_index:05d}.{self.pair_index:05d}"

    @property
    def pair(self) -> str:
        return pair_name(self.pair_index)


INNER_NETWORK: Final = ip_network("198.19.128.0/17")  # for benchmarks (RFC 2544); 8,192 times /30


class Tunnel(Message):
    """What a client's agent asks of its server's: the other end of a tunnel."""

    vni: Annotated[int, Field(ge=1, le=16_777_215)]
    port: Annotated[int, Field(ge=1, le=65535)]
    client_address: str  # underlay
    inner_client_address: str
    inner_server_address: str
    ports: tuple[int, ...]  # whose servers are to listen at the inner address
    opened_by: str  # the job's id
    beat: int = 0  # raised every two seconds while it is wanted


def tunnel_of(job: "Job", *, client_address: str) -> Tunnel:
    """The tunnel of one pair; it must have been asked for."""
    asked = job.traffic.encapsulation
    if asked is None:
        raise ValueError("the job asks for no tunnel")
    vni = asked.vni_from + job.pair_index
    place = 4 * (vni % (INNER_NETWORK.num_addresses // 4))
    return Tunnel(
        vni=vni,
        port=asked.port,
        client_address=client_address,
        inner_client_address=str(INNER_NETWORK[place + 1]),
        inner_server_address=str(INNER_NETWORK[place + 2]),
        ports=job.endpoint.ports,
        opened_by=job.job_id,
    )


def pair_name(pair_index: int) -> str:
    """The name a person reads for a pair: ``pair-001`` for index 0."""
    return f"pair-{pair_index + 1:03d}"


class Control(Message):
    """A run's control row: agents read it before they start and every second or two after."""

    run_id: RunId
    lease_until_at: UtcDatetime  # agents stop when this instant has passed (dead-man switch)
    cancelled_at: UtcDatetime | None = None
    cancelled_by: str | None = None
    cancel_reason: str | None = None


class Claim(Message):
    """Who took a job, and how far it has come. Created once; a second delivery loses."""

    job_id: str
    agent_id: Identifier
    phase: Phase
    claimed_at: UtcDatetime
    armed_at: UtcDatetime | None = None
    running_at: UtcDatetime | None = None
    cookie: str | None = None  # the engine's own id of the test, once known
    clock: ClockReading | None = None  # at arming
    address: str | None = None  # whence its traffic comes, as it knows; None: not told
