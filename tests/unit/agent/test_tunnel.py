import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.client_tunnel import ClientTunnel
from broadside.agent.tunnel import (
    TunnelFailed,
    can_tunnel,
    clash,
    device_commands,
    device_name,
    mark_of,
    sweep_tunnels,
)
from broadside.agent.tunnels import SILENT_S, TunnelKeeper
from broadside.exchange.messages import Role, Tunnel, tunnel_of
from broadside.exchange.ports import Entity
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryTable, make_tools
from tests.unit.agent.jobs import make_job

VXLAN = {"streams_count": 8, "encapsulation": "vxlan"}


def tunnel(pair_index: int = 2, ports: Sequence[int] | None = None, **changes: Any) -> Tunnel:
    """Of a job; each pair has a port of its own."""
    first, *more = ports or [5201 + pair_index]
    endpoint = {"agent_id": "server-1", "address": "10.2.1.3", "port": first, "more_ports": more}
    job = make_job(**{"pair_index": pair_index, "traffic": VXLAN, "endpoint": endpoint} | changes)
    return tunnel_of(job, client_address="10.1.1.3")


@given(st.integers(0, 1999), st.integers(0, 1999))
def test_two_pairs_of_a_run_share_no_device_and_no_address(a: int, b: int) -> None:
    one, two = tunnel(a), tunnel(b)
    inner = [one.inner_client_address, one.inner_server_address]
    others = [two.inner_client_address, two.inner_server_address]
    assert (device_name(one) == device_name(two)) == (a == b)
    assert bool(set(inner) & set(others)) == (a == b)
    assert len(set(inner)) == 2
    assert len(device_name(one)) <= 15


def test_the_device_is_marked_and_smaller_by_the_outer_headers() -> None:
    commands = device_commands(
        tunnel(),
        local="10.1.1.3",
        remote="10.2.1.3",
        inner="198.19.128.9",
        nic="eth0",
        mtu=1500,
        mark=mark_of("c1", Role.CLIENT),
    )
    assert commands.splitlines() == [
        (
            "link add bsx4098 type vxlan id 4098 local 10.1.1.3 remote 10.2.1.3 dstport 4789 "
            "dev eth0 ttl 64 tos inherit"
        ),
        "link set bsx4098 alias broadside:c1/client",
        "address add 198.19.128.9/30 dev bsx4098",
        "link set bsx4098 mtu 1450 up",
    ]


class Kernel:
    """What ``ip`` does to some devices, by name with their marks."""

    def __init__(self, devices: dict[str, str], *, may_change: bool = True) -> None:
        self.devices, self._may_change = devices, may_change

    def ip(self, arguments: list[str], commands: str | None = None) -> str:
        if arguments[-3:] == ["show", "type", "vxlan"]:
            return json.dumps([{"ifname": n, "ifalias": m} for n, m in self.devices.items()])
        if not self._may_change:
            raise TunnelFailed("ip: Operation not permitted")
        name = arguments[2]
        if arguments[1] == "delete":
            del self.devices[name]
        else:
            self.devices[name] = ""
        return ""


def test_an_agent_removes_what_one_of_its_name_and_role_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client and a server on one host share the host's name."""
    mine, other = mark_of("vm-1", Role.CLIENT), mark_of("vm-1", Role.SERVER)
    kernel = Kernel(
        {"bsx1": mine, "bsx2": other, "bsx3": mark_of("vm-2", Role.CLIENT), "vx0": mine}
    )
    monkeypatch.setattr("broadside.agent.tunnel._ip", kernel.ip)
    sweep_tunnels(mine)
    assert set(kernel.devices) == {"bsx2", "bsx3", "vx0"}
    assert can_tunnel()
    assert set(kernel.devices) == {"bsx2", "bsx3", "vx0"}


def test_an_agent_without_the_right_sweeps_nothing_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = mark_of("vm-1", Role.CLIENT)
    kernel = Kernel({"bsx1": mine}, may_change=False)
    monkeypatch.setattr("broadside.agent.tunnel._ip", kernel.ip)
    sweep_tunnels(mine)
    assert kernel.devices == {"bsx1": mine}
    assert not can_tunnel()


class End:
    """A device that only says whether it stands."""

    def __init__(self) -> None:
        self.closed = False
        self.received_count = 0

    async def close(self) -> None:
        self.closed = True


async def opened(*_: object, **__: object) -> End:
    return End()


class Server:
    """A server agent's keeper over a table in memory, without any device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.table = MemoryTable()
        self.records = records_in(self.table)
        self.ends: list[End] = []
        self.bound: list[str | None] = []
        self.restart()
        # The module's name alone: another thread's event loop reads the process's clock.
        monkeypatch.setattr(
            "broadside.agent.tunnels.time", SimpleNamespace(monotonic=lambda: self.now_s)
        )
        monkeypatch.setattr("broadside.agent.tunnels.TunnelEnd.open", self._open)

    def restart(self) -> None:
        """Another agent of that name."""
        tools = make_tools(self.records, role="server", agent_id="server-1")
        self.keeper = TunnelKeeper(tools=tools, bind=lambda ports, inner: self.bound.append(inner))

    async def _open(self, *_: object, **__: object) -> End:
        assert all(end.closed for end in self.ends), "two devices of one name"
        self.ends.append(End())
        return self.ends[-1]

    @property
    def standing(self) -> list[bool]:
        return [not end.closed for end in self.ends]

    async def poll(self, seconds: float = 1, *, beating: Sequence[Tunnel] = ()) -> None:
        """Look every second, while some clients say that they want their tunnels."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            for row in beating:
                await self.records.fleet.save_tunnel(
                    "server-1", row.model_copy(update={"beat": int(self.now_s)})
                )
            await self.keeper.poll()

    async def answer(self, row: Tunnel) -> str | None:
        return await self.records.fleet.read_tunnel_answer("server-1", row)

    async def drop(self, row: Tunnel) -> None:
        await self.records.fleet.drop_tunnel("server-1", row)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(monkeypatch)
    await server.poll()
    return server


async def test_a_tunnel_stands_while_its_client_speaks_and_while_the_table_is_away(
    server: Server,
) -> None:
    row = tunnel()
    await server.poll(3 * SILENT_S, beating=[row])
    assert server.bound == [row.inner_server_address]
    assert await server.answer(row) == ""
    server.table.away = True
    await server.poll(3 * SILENT_S)
    server.table.away = False
    await server.poll(SILENT_S - 1)
    assert server.standing == [True]
    await server.poll(3)
    assert server.standing == [False]  # and what its client left is not opened again
    assert server.bound[-1] is None
    assert await server.records.fleet.read_tunnels("server-1") == []


async def test_a_tunnel_stands_while_packets_come_out_of_it(server: Server) -> None:
    """Its client's own way to the table may be cut, or slow, in the middle of a burst."""
    row = tunnel()
    await server.poll(2, beating=[row])
    for _ in range(int(3 * SILENT_S)):
        server.ends[0].received_count += 1
        await server.poll()
    assert server.standing == [True]
    await server.poll(SILENT_S)
    assert server.standing == [False]


async def test_the_next_bursts_tunnel_waits_for_the_end_of_this_ones(server: Server) -> None:
    old, new = tunnel(), tunnel(burst_index=1)
    assert old.vni == new.vni
    await server.poll(2, beating=[old])
    await server.poll(20, beating=[old, new])
    assert server.standing == [True]
    assert await server.answer(new) is None
    await server.drop(old)
    await server.poll(1, beating=[new])
    assert server.standing == [False, True]
    assert server.bound == [old.inner_server_address, None, new.inner_server_address]
    assert await server.answer(new) == ""
    await server.drop(old)  # once more, as its client and the keeper both do
    await server.poll(1, beating=[new])
    assert server.standing == [False, True]


async def test_the_next_bursts_tunnel_takes_the_place_of_a_dead_clients(server: Server) -> None:
    old, new = tunnel(), tunnel(burst_index=1)
    await server.poll(2, beating=[old])
    await server.poll(SILENT_S + 1, beating=[new])
    assert server.standing == [False, True]
    assert await server.records.fleet.read_tunnels("server-1") == [
        new.model_copy(update={"beat": int(server.now_s)})
    ]


async def test_what_an_earlier_servers_agent_was_asked_is_believed_when_it_is_asked_again(
    server: Server,
) -> None:
    left, alive = tunnel(), tunnel(burst_index=1)
    await server.records.fleet.save_tunnel("server-1", left)
    await server.records.fleet.save_tunnel("server-1", alive)
    server.restart()
    await server.poll()
    assert server.standing == []
    await server.poll(SILENT_S + 1, beating=[alive])
    assert server.standing == [True]
    assert await server.answer(alive) == ""
    assert await server.answer(left) is None
    assert [row.opened_by for row in await server.records.fleet.read_tunnels("server-1")] == [
        alive.opened_by
    ]


async def test_a_write_that_lands_after_the_end_opens_nothing(server: Server) -> None:
    row = tunnel()
    await server.poll(2, beating=[row])
    await server.drop(row)
    await server.poll()
    await server.records.fleet.save_tunnel("server-1", row)
    await server.poll(SILENT_S + 2)
    assert server.standing == [False]
    assert await server.records.fleet.read_tunnels("server-1") == []


@pytest.mark.parametrize(
    ("other", "met"),
    [
        (tunnel(burst_index=1), True),
        (tunnel(pair_index=3), False),
        (tunnel(pair_index=3, ports=[5201]), True),
        (tunnel(traffic=VXLAN | {"encapsulation": {"vni_from": 9000}}), False),
        (tunnel(traffic=VXLAN | {"encapsulation": {"vni_from": 4096 + 8192}}), True),  # addresses
    ],
)
def test_tunnels_clash_by_id_by_port_and_by_inner_address(other: Tunnel, met: bool) -> None:
    assert clash(tunnel(ports=[5201]), other) is met


async def test_a_client_outside_the_allowed_networks_is_told_so(server: Server) -> None:
    foreign = tunnel().model_copy(update={"client_address": "8.8.8.8"})
    await server.poll(1, beating=[foreign])
    assert await server.answer(foreign) == "8.8.8.8 lies outside this agent's allowed networks"


async def test_a_client_that_waited_in_vain_says_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broadside.agent.client_tunnel.TunnelEnd.open", opened)
    records = records_in(MemoryTable())
    await records.fleet.save_tunnel("server-1", tunnel())
    late = make_job(traffic=VXLAN, burst_index=1)  # its instant is long past
    client_tunnel = ClientTunnel(late, make_tools(records))
    with pytest.raises(TunnelFailed, match=r"in time: run-1.00000.00002 has tunnel 4098 there"):
        await client_tunnel.open()
    await client_tunnel.close()
    assert await records.fleet.read_tunnels("server-1") == [tunnel()]


async def test_a_slow_write_holds_up_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowTable(MemoryTable):
        """Its second write never ends."""

        async def upsert(self, entity: Entity) -> str:
            if len(self.written) == 1:
                self.written.append("slow")
                await asyncio.Event().wait()
            return await super().upsert(entity)

    monkeypatch.setattr("broadside.agent.client_tunnel.TunnelEnd.open", opened)
    monkeypatch.setattr("broadside.agent.client_tunnel.BEAT_S", 0)
    records = records_in(SlowTable())
    soon = datetime.now(UTC) + timedelta(minutes=1)
    job = make_job(traffic=VXLAN, planned_start_at=soon)
    row = tunnel()
    await records.fleet.answer_tunnel("server-1", row, "")
    client_tunnel = ClientTunnel(job, make_tools(records))
    await client_tunnel.open()
    for _ in range(20):
        await asyncio.sleep(0)
    (requested,) = await records.fleet.read_tunnels("server-1")
    await client_tunnel.close()
    assert requested.beat > 3
