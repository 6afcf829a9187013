"""What a pair is asked to do, and who does it."""

from enum import StrEnum
from ipaddress import ip_network
from typing import Annotated, Final

from pydantic import (
    Field,
    model_validator,
)

from exchange.messages.clock_messages import ClockReading
from exchange.messages.message_base import (
    Address,
    Identifier,
    Index,
    JobId,
    Message,
    Port,
    RunId,
    SpanS,
    Text,
    UtcDatetime,
    Whole,
)
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
    address: Address
    port: Port
    more_ports: Annotated[tuple[Port, ...], Field(max_length=15)] = ()  # one a further process
    echo_port: Port | None = None  # UDP: answers probes

    @property
    def ports(self) -> tuple[int, ...]:
        """Every port of the pair, the first one first."""
        return (self.port, *self.more_ports)


class Job(Message):
    """One pair's part in one burst: the message on the queue."""

    version: Whole = PROTOCOL_VERSION
    run_id: RunId
    burst_index: Index
    pair_index: Index
    endpoint: Endpoint
    traffic: Traffic
    planned_start_at: UtcDatetime  # the instant at which every pair of the burst starts
    duration_s: Annotated[int, Field(ge=1, le=86_400)]  # s, without omit_s
    late_after_s: SpanS = 1.0  # s after the instant at which data counts as late
    clock_bound_max_s: SpanS = 0.05  # s, the clock gate

    @property
    def job_id(self) -> str:
        """``<run>.<burst>.<pair>``: also the queue's duplicate-detection id."""
        return f"{self.run_id}.{self.burst_index:05d}.{self.pair_index:05d}"

    @property
    def pair(self) -> str:
        return pair_name(self.pair_index)

    @property
    def body(self) -> bytes:
        """The message on the queue, whose digest agents look for."""
        return self.model_dump_json().encode()


INNER_NETWORK: Final = ip_network("198.19.128.0/17")  # for benchmarks (RFC 2544); 8,192 times /30


class Tunnel(Message):
    """What a client's agent asks of its server's: the other end of a tunnel."""

    vni: Annotated[int, Field(ge=1, le=16_777_215)]
    port: Port
    client_address: Address  # underlay
    inner_client_address: Address
    inner_server_address: Address
    ports: Annotated[tuple[Port, ...], Field(max_length=16)]  # whose servers are to listen at the
    # inner address
    opened_by: JobId
    beat: Index = 0  # raised every two seconds while it is wanted

    @model_validator(mode="after")
    def _inner_addresses_fit(self) -> "Tunnel":
        """What a tunnel's ends are called inside follows from its id, and from nothing else."""
        inner = (self.inner_client_address, self.inner_server_address)
        if inner != inner_addresses(self.vni):
            raise ValueError(f"the inner addresses are not those of tunnel {self.vni}")
        return self


def inner_addresses(vni: int) -> tuple[str, str]:
    """Of a tunnel's client and of its server."""
    place = 4 * (vni % (INNER_NETWORK.num_addresses // 4))
    return str(INNER_NETWORK[place + 1]), str(INNER_NETWORK[place + 2])


def tunnel_of(job: "Job", *, client_address: str) -> Tunnel:
    """The tunnel of one pair; it must have been asked for."""
    asked = job.traffic.encapsulation
    if asked is None:
        raise ValueError("the job asks for no tunnel")
    vni = asked.vni_from + job.pair_index
    client, server = inner_addresses(vni)
    return Tunnel(
        vni=vni,
        port=asked.port,
        client_address=client_address,
        inner_client_address=client,
        inner_server_address=server,
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
    cancelled_by: Text | None = None
    cancel_reason: Text | None = None


class Claim(Message):
    """Who took a job, and how far it has come. Created once; a second delivery loses."""

    job_id: JobId
    agent_id: Identifier
    phase: Phase
    claimed_at: UtcDatetime
    armed_at: UtcDatetime | None = None
    running_at: UtcDatetime | None = None
    cookie: Text | None = None  # the engine's own id of the test, once known
    clock: ClockReading | None = None  # at arming
    address: Address | None = None  # whence its traffic comes, as it knows; None: not told
