"""Tests that an address and port can be used by only one server agent."""

from datetime import timedelta
from typing import Any, cast

import pytest

from broadside.coordinator.agent_gateway.endpoint_owners import (
    REMOVE_S,
    SILENT_S,
    SWEEP_S,
    EndpointOwners,
)
from broadside.exchange.messages import ClockReading, ClockSource, Presence, Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.records import FleetRecords
from tests.written_rows import AT, presence


class _Fleet:
    """Fleet with the given heartbeats."""

    def __init__(self, *stored: Presence) -> None:
        self._stored = stored

    async def read_presences(self) -> tuple[Presence, ...]:
        return self._stored


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_owners(clock: _Clock, *stored: Presence) -> EndpointOwners:
    return EndpointOwners(cast(FleetRecords, _Fleet(*stored)), clock)


def server(agent_id: str, *, boot: str | None = None, **changes: Any) -> Presence:
    clock = ClockReading(source=ClockSource.CHRONY, read_at=AT, synchronised=True, boot_id=boot)
    defaults: dict[str, Any] = {
        "address": "10.0.0.9",
        "engines": (),
        "echo_port": None,
        "canary_ports": (),
    }
    fields = {**defaults, "clock": clock, "agent_id": agent_id, **changes}
    return presence(Role.SERVER, 0, **fields)


@pytest.mark.parametrize("earlier_s", [-1e6, 0, 1])
async def test_first_agent_owns_endpoint_despite_earlier_start_of_second(earlier_s: float) -> None:
    clock = _Clock()
    endpoints = make_owners(clock)
    assert await endpoints.claim(server("s1")) is None
    second = server("s2", started_at=AT + timedelta(seconds=earlier_s))
    problem = str(await endpoints.claim(second))
    assert "server.s1 announced first" in problem
    assert "10.0.0.9 port 5201" in problem
    assert await endpoints.owner("10.0.0.9", 5201) == "server.s1"


async def test_second_agent_takes_over_after_first_ends() -> None:
    clock = _Clock()
    endpoints = make_owners(clock)
    await endpoints.claim(server("s1"))
    clock.now_s = SILENT_S
    assert await endpoints.claim(server("s2")) is not None
    clock.now_s = SILENT_S + 1
    assert await endpoints.owner("10.0.0.9", 5201) is None
    assert await endpoints.claim(server("s2")) is None
    assert "server.s2" in str(await endpoints.claim(server("s1")))
    # This is called when an agent is stopped.
    endpoints.release("server.s2")
    assert await endpoints.claim(server("s1")) is None


async def test_port_between_two_tests_keeps_its_owner() -> None:
    """The port will not be in the heartbeat when the engine is restarted."""
    clock = _Clock()
    endpoints = make_owners(clock)
    await endpoints.claim(server("s1", ports=(5201, 5202)))
    await endpoints.claim(server("s1", ports=(5201,), busy_ports=()))
    assert await endpoints.claim(server("s2", ports=(5202,))) is not None
    # The agent was restarted.
    again = server("s1", ports=(5201,), started_at=AT + timedelta(seconds=9))
    await endpoints.claim(again)
    assert await endpoints.claim(server("s2", ports=(5202,))) is None


async def test_agents_of_one_host_share_an_address() -> None:
    clock = _Clock()
    endpoints = make_owners(clock)
    assert await endpoints.claim(server("s1", boot="a", ports=(5201,))) is None
    assert await endpoints.claim(server("s2", boot="a", ports=(5202,))) is None
    assert await endpoints.claim(server("s3", boot=None, ports=(5203,))) is None
    problem = str(await endpoints.claim(server("s4", boot="b", ports=(5204,))))
    assert "the address 10.0.0.9, which server.s1 on another host announced first" in problem


async def test_agent_that_connects_from_an_address_owns_it() -> None:
    """This protects hosts if their address was already announced by another host."""
    clock = _Clock()
    endpoints = make_owners(clock)
    rogue = server("rogue", boot="r", ports=(5201, 5202))
    assert await endpoints.claim(rogue, "10.0.0.66") is None
    assert await endpoints.claim(server("s1", boot="a"), "10.0.0.9") is None
    assert await endpoints.owner("10.0.0.9", 5201) == "server.s1"
    assert await endpoints.claim(rogue, "10.0.0.66") is not None
    assert await endpoints.claim(server("s1", boot="a"), "10.0.0.9") is None


async def test_restarted_coordinator_restores_owners() -> None:
    """Stored heartbeats are ignored if the agent has been stopped."""
    clock = _Clock()
    now = utc_now()
    ended = server("old", beat_at=now - timedelta(minutes=10), started_at=AT - timedelta(days=1))
    running = server("s1", beat_at=now - timedelta(seconds=40))
    refused = server("rogue", beat_at=now, problem="announces ...")
    endpoints = make_owners(clock, ended, refused, running)
    assert await endpoints.claim(server("rogue")) is not None
    assert await endpoints.claim(server("s1")) is None
    assert await endpoints.owner("10.0.0.9", 5201) == "server.s1"


async def test_client_address_comes_from_its_heartbeat() -> None:
    clock = _Clock()
    endpoints = make_owners(clock)
    assert await endpoints.address_of(Role.CLIENT, "c1") is None
    client = presence(Role.CLIENT, 0, clock=server("x", boot="c").clock)
    await endpoints.claim(client)
    assert await endpoints.address_of(Role.CLIENT, "c1") == client.address
    await endpoints.claim(server("s1", boot="a", address=client.address))
    assert await endpoints.address_of(Role.CLIENT, "c1") is None, "a server on another host owns it"
    # The agent connects from this address.
    await endpoints.claim(client, client.address)
    assert await endpoints.address_of(Role.CLIENT, "c1") == client.address


async def test_number_of_stored_owners_is_limited() -> None:
    clock = _Clock()
    endpoints = make_owners(clock)
    for number in range(50):
        started_at = AT + timedelta(seconds=number)
        heartbeat = server("s1", address=f"10.0.1.{number}", started_at=started_at)
        await endpoints.claim(heartbeat)
    assert len(endpoints._owners) == 1
    assert len(endpoints._servers) == 1
    for number in range(50):
        await endpoints.claim(server(f"a{number}", address=f"10.0.2.{number}"))
    clock.now_s = SWEEP_S + REMOVE_S
    await endpoints.claim(server("s1"))
    assert set(endpoints._beats) == {"server.s1"}
