import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tunnel import device_commands, device_name
from agent.tunnels import SILENT_S, TunnelKeeper
from exchange.messages import Tunnel, tunnel_of
from exchange.records import Records
from tests.unit.agent.doubles import MemoryTable, make_tools
from tests.unit.agent.jobs import make_job

VXLAN = {"streams_count": 8, "encapsulation": "vxlan"}


def tunnel(pair_index: int = 2) -> Tunnel:
    return tunnel_of(make_job(pair_index=pair_index, traffic=VXLAN), client_address="10.1.1.3")


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
        agent_id="c1",
    )
    assert commands.splitlines() == [
        (
            "link add bsx4098 type vxlan id 4098 local 10.1.1.3 remote 10.2.1.3 dstport 4789 "
            "dev eth0 ttl 64 tos inherit"
        ),
        "link set bsx4098 alias broadside:c1",
        "address add 198.19.128.9/30 dev bsx4098",
        "link set bsx4098 mtu 1450 up",
    ]


class End:
    """A device that only says whether it stands."""

    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("agent.tunnels.time.monotonic", lambda: now[0])
    return now


async def test_a_tunnel_stands_while_its_client_speaks_and_while_the_table_is_away(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    ends: list[End] = []

    async def opened(*_: object, **__: object) -> End:
        ends.append(End())
        return ends[-1]

    monkeypatch.setattr("agent.tunnels.TunnelEnd.open", opened)
    table, bound = MemoryTable(), []
    records = Records(table)
    tools = make_tools(records, role="server", agent_id="server-1")
    keeper = TunnelKeeper(tools=tools, bind=lambda ports, address: bound.append(address))
    row = tunnel()

    async def look_for(seconds: float, *, beating: bool) -> None:
        nonlocal row
        for _ in range(int(seconds)):
            clock[0] += 1.0
            if beating:
                row = row.model_copy(update={"beat": row.beat + 1})
                await records.save_tunnel("server-1", row)
            await keeper.look()

    await look_for(3 * SILENT_S, beating=True)
    assert bound == [row.inner_server_address]
    assert await records.read_tunnel_answer("server-1", row) == ""
    table.away = True
    await look_for(3 * SILENT_S, beating=False)
    table.away = False
    assert [end.closed for end in ends] == [False]
    await look_for(SILENT_S - 1, beating=False)
    assert [end.closed for end in ends] == [False]
    await look_for(3, beating=False)
    assert [end.closed for end in ends] == [True]  # and what its client left is not opened again
    assert bound[-1] is None
    assert await records.read_tunnels("server-1") == []


async def test_a_client_outside_the_allowed_networks_is_told_so(clock: list[float]) -> None:
    records = Records(MemoryTable())
    tools = make_tools(records, role="server", agent_id="server-1")
    keeper = TunnelKeeper(tools=tools, bind=lambda ports, address: None)
    foreign = tunnel().model_copy(update={"client_address": "8.8.8.8"})
    await records.save_tunnel("server-1", foreign)
    await keeper.look()
    answer = await records.read_tunnel_answer("server-1", foreign)
    assert answer == "8.8.8.8 lies outside this agent's allowed networks"
