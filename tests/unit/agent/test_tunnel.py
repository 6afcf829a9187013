import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.client_tunnel import ClientTunnel
from broadside.agent.tunnel import (
    DeviceSettings,
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
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Entity
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryTable, make_tools
from tests.unit.agent.jobs import make_job

VXLAN = {"streams_count": 8, "encapsulation": "vxlan"}


def tunnel(pair_index: int = 2, ports: Sequence[int] | None = None, **changes: Any) -> Tunnel:
    """Return the tunnel for a job. Each pair uses a different port."""
    first, *more = ports or [5201 + pair_index]
    endpoint = {"agent_id": "server-1", "address": "10.2.1.3", "port": first, "more_ports": more}
    job = make_job(**{"pair_index": pair_index, "traffic": VXLAN, "endpoint": endpoint} | changes)
    return tunnel_of(job, client_address="10.1.1.3")


@given(st.integers(0, 1999), st.integers(0, 1999))
def test_pairs_of_a_run_have_distinct_devices_and_addresses(a: int, b: int) -> None:
    one, two = tunnel(a), tunnel(b)
    inner = [one.inner_client_address, one.inner_server_address]
    others = [two.inner_client_address, two.inner_server_address]
    assert (device_name(one) == device_name(two)) == (a == b)
    assert bool(set(inner) & set(others)) == (a == b)
    assert len(set(inner)) == 2
    assert len(device_name(one)) <= 15


def test_device_has_a_mark_and_a_reduced_mtu() -> None:
    commands = device_commands(
        tunnel(),
        DeviceSettings(
            local="10.1.1.3",
            remote="10.2.1.3",
            inner="198.19.128.9",
            nic="eth0",
            mark=mark_of("c1", Role.CLIENT),
        ),
        1500,
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
    """Simulate ``ip`` for devices with their marks."""

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


def test_agent_removes_only_devices_of_its_name_and_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that client and server on one host, which share the name, do not remove devices of the
    other."""
    mine, other = mark_of("vm-1", Role.CLIENT), mark_of("vm-1", Role.SERVER)
    kernel = Kernel(
        {"bsx1": mine, "bsx2": other, "bsx3": mark_of("vm-2", Role.CLIENT), "vx0": mine}
    )
    monkeypatch.setattr("broadside.agent.tunnel._ip", kernel.ip)
    sweep_tunnels(mine)
    assert set(kernel.devices) == {"bsx2", "bsx3", "vx0"}
    assert can_tunnel()
    assert set(kernel.devices) == {"bsx2", "bsx3", "vx0"}


def test_agent_without_permission_skips_the_cleanup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = mark_of("vm-1", Role.CLIENT)
    kernel = Kernel({"bsx1": mine}, may_change=False)
    monkeypatch.setattr("broadside.agent.tunnel._ip", kernel.ip)
    sweep_tunnels(mine)
    assert kernel.devices == {"bsx1": mine}
    assert not can_tunnel()


class End:
    """Tunnel device that only records if it is open."""

    def __init__(self) -> None:
        self.closed = False
        self.received_count = 0

    async def close(self) -> None:
        self.closed = True


async def opened(*_: object, **__: object) -> End:
    return End()


class Server:
    """Tunnel keeper for a server agent, using an in-memory table and no devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.table = MemoryTable()
        self.records = records_in(self.table)
        self.ends: list[End] = []
        self.bound: list[str | None] = []
        self.restart()
        # Only the name in this module is patched, because the event loop of another thread uses the
        # clock.
        monkeypatch.setattr(
            "broadside.agent.tunnels.time", SimpleNamespace(monotonic=lambda: self.now_s)
        )
        monkeypatch.setattr("broadside.agent.tunnels.TunnelEnd.open", self._open)

    def restart(self) -> None:
        """Simulate an agent restart."""
        tools = make_tools(self.records, role="server", agent_id="server-1")
        self.keeper = TunnelKeeper(tools=tools, bind=lambda ports, inner: self.bound.append(inner))

    async def _open(self, *_: object, **__: object) -> End:
        assert all(end.closed for end in self.ends), "two devices of one name"
        self.ends.append(End())
        return self.ends[-1]

    @property
    def open_states(self) -> list[bool]:
        return [not end.closed for end in self.ends]

    async def poll(self, seconds: float = 1, *, requesting: Sequence[Tunnel] = ()) -> None:
        """Poll every second while some clients request their tunnels."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            for row in requesting:
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


async def test_tunnel_stays_open_with_heartbeats_or_during_an_outage(
    server: Server,
) -> None:
    row = tunnel()
    await server.poll(3 * SILENT_S, requesting=[row])
    assert server.bound == [row.inner_server_address]
    assert await server.answer(row) == ""
    server.table.away = True
    await server.poll(3 * SILENT_S)
    server.table.away = False
    await server.poll(SILENT_S - 1)
    assert server.open_states == [True]
    await server.poll(3)
    # The tunnel should not be opened again.
    assert server.open_states == [False]
    assert server.bound[-1] is None
    assert await server.records.fleet.read_tunnels("server-1") == []


async def test_tunnel_stays_open_while_it_receives_packets(server: Server) -> None:
    """Check this, because the client's connection to the table may fail during a burst."""
    row = tunnel()
    await server.poll(2, requesting=[row])
    for _ in range(int(3 * SILENT_S)):
        server.ends[0].received_count += 1
        await server.poll()
    assert server.open_states == [True]
    await server.poll(SILENT_S)
    assert server.open_states == [False]


async def test_next_burst_waits_for_the_current_tunnel(server: Server) -> None:
    old, new = tunnel(), tunnel(burst_index=1)
    assert old.vni == new.vni
    await server.poll(2, requesting=[old])
    await server.poll(20, requesting=[old, new])
    assert server.open_states == [True]
    assert await server.answer(new) is None
    await server.drop(old)
    await server.poll(1, requesting=[new])
    assert server.open_states == [False, True]
    assert server.bound == [old.inner_server_address, None, new.inner_server_address]
    assert await server.answer(new) == ""
    # Client and keeper both drop the tunnel.
    await server.drop(old)
    await server.poll(1, requesting=[new])
    assert server.open_states == [False, True]


async def test_next_burst_replaces_the_tunnel_of_a_dead_client(server: Server) -> None:
    old, new = tunnel(), tunnel(burst_index=1)
    await server.poll(2, requesting=[old])
    await server.poll(SILENT_S + 1, requesting=[new])
    assert server.open_states == [False, True]
    assert await server.records.fleet.read_tunnels("server-1") == [
        new.model_copy(update={"beat": int(server.now_s)})
    ]


async def test_restarted_server_opens_only_tunnels_requested_again(
    server: Server,
) -> None:
    left, alive = tunnel(), tunnel(burst_index=1)
    await server.records.fleet.save_tunnel("server-1", left)
    await server.records.fleet.save_tunnel("server-1", alive)
    server.restart()
    await server.poll()
    assert server.open_states == []
    await server.poll(SILENT_S + 1, requesting=[alive])
    assert server.open_states == [True]
    assert await server.answer(alive) == ""
    assert await server.answer(left) is None
    assert [row.opened_by for row in await server.records.fleet.read_tunnels("server-1")] == [
        alive.opened_by
    ]


async def test_late_request_does_not_open_a_tunnel(server: Server) -> None:
    row = tunnel()
    await server.poll(2, requesting=[row])
    await server.drop(row)
    await server.poll()
    await server.records.fleet.save_tunnel("server-1", row)
    await server.poll(SILENT_S + 2)
    assert server.open_states == [False]
    assert await server.records.fleet.read_tunnels("server-1") == []


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (tunnel(burst_index=1), True),
        (tunnel(pair_index=3), False),
        (tunnel(pair_index=3, ports=[5201]), True),
        (tunnel(traffic=VXLAN | {"encapsulation": {"vni_from": 9000}}), False),
        # The addresses clash.
        (tunnel(traffic=VXLAN | {"encapsulation": {"vni_from": 4096 + 8192}}), True),
    ],
)
def test_tunnels_clash_by_id_by_port_and_by_inner_address(other: Tunnel, expected: bool) -> None:
    assert clash(tunnel(ports=[5201]), other) is expected


async def test_client_outside_allowed_networks_is_rejected(server: Server) -> None:
    foreign = tunnel().model_copy(update={"client_address": "8.8.8.8"})
    await server.poll(1, requesting=[foreign])
    assert await server.answer(foreign) == "8.8.8.8 is outside this agent's allowed networks"


async def test_client_timeout_names_the_blocking_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broadside.agent.client_tunnel.TunnelEnd.open", opened)
    records = records_in(MemoryTable())
    await records.fleet.save_tunnel("server-1", tunnel())
    # The instant is in the past.
    late = make_job(traffic=VXLAN, burst_index=1)
    client_tunnel = ClientTunnel(late, make_tools(records))
    with pytest.raises(TunnelFailed, match=r"in time: run-1.00000.00002 has tunnel 4098 there"):
        await client_tunnel.open()
    await client_tunnel.close()
    assert await records.fleet.read_tunnels("server-1") == [tunnel()]


async def test_slow_write_does_not_block_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowTable(MemoryTable):
        """Table with a second write that never ends."""

        async def upsert(self, entity: Entity) -> str:
            if len(self.written) == 1:
                self.written.append("slow")
                await asyncio.Event().wait()
            return await super().upsert(entity)

    monkeypatch.setattr("broadside.agent.client_tunnel.TunnelEnd.open", opened)
    monkeypatch.setattr("broadside.agent.client_tunnel.BEAT_S", 0)
    records = records_in(SlowTable())
    soon = utc_now() + timedelta(minutes=1)
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
