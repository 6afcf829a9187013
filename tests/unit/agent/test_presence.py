import asyncio
import json
import logging
from datetime import timedelta

import pytest

from broadside.agent import presence as presence_module
from broadside.agent.engine_process import Iperf3Program
from broadside.agent.host import HostUnknown
from broadside.agent.presence import AgentHealth, HeartbeatPublisher, Lifetime, describe
from broadside.agent.run import JsonLines, TextLines
from broadside.exchange.engines.iperf3_account import Version
from broadside.exchange.messages import AgentState, ClockReading, ClockSource, HostInfo, Role
from broadside.exchange.records import FleetRecords, run_records
from tests.one_table import records_in
from tests.unit.agent.doubles import HOST, MemoryTable
from tests.unit.agent.jobs import INSTANT_AT, make_settings


def test_presence_describes_the_agent() -> None:
    presence = describe(
        make_settings(role=Role.SERVER, vm_size="D4", nic_bits_per_second=10**10),
        HOST,
        AgentHealth(
            busy=True,
            engine=Iperf3Program(
                binary=("iperf3",), version=Version(3, 18), preloadable=True, build="iperf 3.18"
            ),
            ports=(5201,),
            busy_ports=(5202,),
        ),
        None,
        Lifetime(stopping=False, started_at=INSTANT_AT, now=INSTANT_AT + timedelta(seconds=5)),
    )
    assert (presence.role, presence.address, presence.nic) == (Role.SERVER, "10.1.1.1", "eth0")
    assert (presence.ports, presence.busy_ports) == ((5201,), (5202,))
    assert presence.state is AgentState.BUSY
    assert presence.engine_version == "3.18"
    assert presence.passport == HostInfo(engine_build="iperf 3.18")
    assert (presence.vm_size, presence.nic_bits_per_second) == ("D4", 10**10)
    assert presence.problem is None


def make_publisher(fleet: FleetRecords, monkeypatch: pytest.MonkeyPatch) -> HeartbeatPublisher:
    async def read_clock(socket: str | None) -> ClockReading:
        return ClockReading(source=ClockSource.UNKNOWN, read_at=INSTANT_AT, synchronised=False)

    monkeypatch.setattr(presence_module, "read_clock", read_clock)
    monkeypatch.setattr(presence_module, "find_address", lambda: HOST.address)
    return HeartbeatPublisher(
        fleet=fleet,
        settings=make_settings(),
        host=HOST,
        condition=lambda: AgentHealth(problem="no engine"),
        stopping=asyncio.Event(),
        changed=asyncio.Event(),
    )


@pytest.mark.parametrize(
    "meanwhile",
    ["nothing", "a failed beat", "a long time", "another offload"],
)
async def test_host_info_is_sent_again_when_it_may_be_unknown(
    meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check also a missing row, which can be seen when older rows were restored."""
    table = MemoryTable()
    fleet = FleetRecords(table)
    publisher = make_publisher(fleet, monkeypatch)
    await publisher.beat()
    assert await table.delete("passport", "client.client-1")
    if meanwhile == "a failed beat":
        table.away = True
        await publisher.beat()
        table.away = False
    elif meanwhile == "a long time":
        monkeypatch.setattr(run_records, "PASSPORT_AGAIN_S", -1.0)
    elif meanwhile == "another offload":
        monkeypatch.setattr(presence_module, "PASSPORT_AGE_MAX_S", -1.0)
        monkeypatch.setattr(presence_module, "read_passport", lambda *_: HostInfo(numa_node=1))
    await publisher.beat()
    (row,) = await FleetRecords(table).read_presences()
    assert row.passport == {
        "nothing": None,
        "another offload": HostInfo(numa_node=1),
    }.get(meanwhile, HostInfo())


async def test_heartbeat_survives_an_outage_without_spooling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = MemoryTable()
    publisher = make_publisher(FleetRecords(table), monkeypatch)
    table.away = True
    await publisher.beat()
    await publisher.announce_shutdown()
    table.away = False
    await publisher.beat()
    (row,) = await records_in(table).fleet.read_presences()
    assert (row.agent_id, row.problem) == ("client-1", "no engine")
    assert row.clock is not None
    assert row.clock.source is ClockSource.UNKNOWN
    await publisher.announce_shutdown()
    assert await records_in(table).fleet.read_presences() == []


async def test_heartbeat_timeout_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Check the message for an exception without text."""

    async def times_out(_: object) -> None:
        raise TimeoutError

    publisher = make_publisher(FleetRecords(MemoryTable()), monkeypatch)
    monkeypatch.setattr(FleetRecords, "beat", lambda _, presence: times_out(presence))
    await publisher.beat()
    assert caplog.messages == ["no heartbeat: no answer within 10 s"]


def test_log_lines_include_action_and_job() -> None:
    record = logging.LogRecord("agent", logging.WARNING, "", 0, "%s ms", ("7",), None)
    record.action, record.job_id = "arm", "run-1.00000.00002"
    line = json.loads(JsonLines().format(record))
    assert (line["action"], line["job_id"], line["message"]) == ("arm", "run-1.00000.00002", "7 ms")
    assert line["level"] == "WARNING"
    assert "arm run-1.00000.00002: 7 ms" in TextLines().format(record)


@pytest.mark.parametrize(
    ("addresses", "busy_until", "moves_at"),
    [
        (["10.1.1.1"] * 3, 0, None),
        (["10.1.1.1", "10.1.1.9", "10.1.1.9", "10.1.1.9"], 0, 3),
        # The address changes back and forth.
        (["10.1.1.9", "10.1.1.1", "10.1.1.9", "10.1.1.1"], 0, None),
        (["10.1.1.9", "10.1.1.8", "10.1.1.8"], 0, 3),
        # An interface that is down will get the same address again.
        ([None, None, None], 0, None),
        (["10.1.1.9", None, "10.1.1.9"], 0, 3),
        # A running test should be completed.
        (["10.1.1.9"] * 5, 4, 4),
    ],
)
async def test_idle_agent_restarts_after_an_address_change(
    monkeypatch: pytest.MonkeyPatch,
    addresses: list[str | None],
    busy_until: int,
    moves_at: int | None,
) -> None:
    publisher = make_publisher(FleetRecords(MemoryTable()), monkeypatch)
    beats = 0

    def find_address() -> str:
        result = addresses[beats - 1]
        if result is None:
            raise HostUnknown("no default route")
        return result

    monkeypatch.setattr(presence_module, "find_address", find_address)
    publisher.condition = lambda: AgentHealth(busy=beats < busy_until)
    for _ in addresses:
        beats += 1
        await publisher.beat()
        moved = moves_at is not None and beats >= moves_at
        assert (publisher.has_moved, publisher.stopping.is_set()) == (moved, moved), beats


async def test_configured_address_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = make_publisher(FleetRecords(MemoryTable()), monkeypatch)
    publisher.settings = make_settings(address="10.1.1.1")
    monkeypatch.setattr(presence_module, "find_address", lambda: "10.1.1.9")
    for _ in range(3):
        await publisher.beat()
    assert not publisher.has_moved
