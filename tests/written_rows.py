"""Row of every kind that an agent writes, and foreign values for each of its fields.

Clients c1 and c2 have jobs 0 and 1 of run-1. Servers s1 and s2 are their planned ends.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from broadside.exchange.messages import (
    AgentState,
    Claim,
    ClockReading,
    ClockSource,
    Endpoint,
    EngineReport,
    EngineState,
    Flow,
    FlowTotals,
    HostInfo,
    HostSecond,
    Interval,
    Job,
    JobPhase,
    JobReport,
    Message,
    OutageKind,
    Outcome,
    PeerSeconds,
    Presence,
    Role,
    ServerTest,
    ServiceOutage,
    Side,
    StreamSilence,
    Track,
    Traffic,
    Tunnel,
    Vxlan,
    tunnel_of,
)
from broadside.exchange.ports import Entity, Value
from broadside.exchange.records.keys import (
    server_raw_folder,
    server_test_key,
    server_tests_partition,
)
from broadside.exchange.records.row_rules import ROW_RULES, FieldCondition, FieldRule, RowKind
from broadside.exchange.second_rows import HostCounters, chunk_rows

# This date is in the past on every machine.
AT: Final = datetime(2024, 5, 1, 12, tzinfo=UTC)
BURST: Final = "burst.run-1.00000"
CLIENTS: Final = ("c1", "c2")
SERVERS: Final = ("s1", "s2")


def endpoint(index: int) -> Endpoint:
    return Endpoint(agent_id=SERVERS[index], address=f"10.0.0.{index + 1}", port=5201)


def job(index: int) -> Job:
    return Job(
        run_id="run-1",
        burst_index=0,
        pair_index=index,
        endpoint=endpoint(index),
        traffic=Traffic(streams_count=1, encapsulation=Vxlan()),
        planned_start_at=AT,
        duration_s=10,
    )


_CLOCK: Final = ClockReading(source=ClockSource.CHRONY, read_at=AT, synchronised=True, bound_s=0.0)
_TROUBLE: Final = ServiceOutage(kind=OutageKind.SPOOLED, from_at=AT, to_at=AT, count=1)


def _engine(cookie: str | None) -> EngineReport:
    silence = StreamSilence(flow=Flow.UP, from_s=0.0, to_s=1.0)
    part = EngineReport(
        engine="iperf3",
        cookie=cookie,
        silent_streams=(silence,),
        peers=(PeerSeconds(address="10.0.1.1", streams_count=1),),
    )
    totals = (FlowTotals(flow=Flow.UP, sent_bytes=1000, received_bytes=1000),)
    return part.model_copy(update={"totals": totals, "processes": (part,)})


def claim(index: int) -> Claim:
    return Claim(
        job_id=job(index).job_id,
        agent_id=CLIENTS[index],
        phase=JobPhase.REPORTED,
        claimed_at=AT,
        cookie=f"cookie-{index}",
        clock=_CLOCK,
    )


def report(index: int) -> JobReport:
    return JobReport(
        job_id=job(index).job_id,
        run_id="run-1",
        burst_index=0,
        pair_index=index,
        agent_id=CLIENTS[index],
        outcome=Outcome.MEASURED,
        planned_start_at=AT,
        first_data_at=AT,
        ended_at=AT + timedelta(seconds=10),
        engine=_engine(f"cookie-{index}"),
        clock_before=_CLOCK,
        clock_after=_CLOCK,
        reported_at=AT,
        troubles=(_TROUBLE,),
    )


def server_test(index: int) -> ServerTest:
    return ServerTest(
        agent_id=SERVERS[index],
        endpoint=endpoint(index),
        client_address=f"10.1.0.{index + 1}",
        started_at=AT - timedelta(seconds=1),
        first_data_at=AT,
        ended_at=AT + timedelta(seconds=10),
        engine=_engine(f"cookie-{index}"),
        clock_before=_CLOCK,
        clock_after=_CLOCK,
        troubles=(_TROUBLE,),
    )


def presence(role: Role, index: int, **changes: Any) -> Presence:
    """Return a heartbeat as its agent writes it."""
    is_server = role is Role.SERVER
    fields: dict[str, Any] = {
        "agent_id": (SERVERS if is_server else CLIENTS)[index],
        "role": role,
        "state": AgentState.IDLE,
        "beat_at": AT,
        "started_at": AT,
        "address": endpoint(index).address if is_server else f"10.1.0.{index + 1}",
        "ports": (5201,) if is_server else (),
        "engines": (EngineState(name="http", ports=(8080,)),) if is_server else (),
        "echo_port": 7 if is_server else None,
        "canary_ports": (5198,) if is_server else (),
        "broadside_version": "0",
        "clock": _CLOCK,
    }
    return Presence.model_validate(fields | changes)


def tunnel(index: int) -> Tunnel:
    return tunnel_of(job(index), client_address=f"10.1.0.{index + 1}")


def _seconds(key: str, partition: str, side: Side) -> Entity:
    interval = Interval(start_s=0.0, end_s=10.0, transferred_bytes=1000)
    track = Track(side=side, flow=Flow.UP, first_data_at_s=AT.timestamp(), intervals=(interval,))
    host = HostSecond(
        start_at_s=AT.timestamp(),
        end_at_s=AT.timestamp() + 1,
        nic_rx_bytes=1,
        nic_tx_bytes=1,
        nic_rx_packets_count=1,
        nic_tx_packets_count=1,
        nic_drops_count=0,
        tcp_retransmits_count=0,
        cpu_busy_ratio=0.1,
        cpu_busiest_core_ratio=0.1,
    )
    [row] = [
        row
        for row in chunk_rows(
            partition, key, [track], HostCounters(seconds=[host], zero_s=AT.timestamp()), from_s=0.0
        )
        if row.row_key.endswith(".000")
    ]
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One row and its writer: ``c1`` or ``s1`` where ``index`` is 0."""

    kind: RowKind
    writer: str
    row: Entity
    message: Message | None = None

    def changed(self, path: str, value: object) -> "Written":
        """Return the row with another value at a dotted path, or property."""
        if self.message is None:
            return replace(
                self,
                row=replace(self.row, properties={**self.row.properties, path: value}),  # type: ignore[dict-item]
            )
        content = json.loads(str(self.row.properties["json"]))
        _put(content, path.split("."), value)
        return replace(self, row=replace(self.row, properties={"json": json.dumps(content)}))

    def at(self, partition: str, key: str) -> "Written":
        """Return the same content under another key."""
        return replace(self, row=replace(self.row, partition_key=partition, row_key=key))


def _put(content: Any, path: list[str], value: object) -> None:
    for name in path[:-1]:
        content = content[0 if name == "*" else name]
    content[path[-1]] = value


def written(index: int = 0) -> Mapping[RowKind, Written]:
    """Return a row of every kind, of pair ``index``."""
    client, server, test = CLIENTS[index], SERVERS[index], server_test(index)
    partition, key = server_tests_partition(test.started_at, server), server_test_key(test)
    requested, pair = tunnel(index), f"{index:05d}"
    suffix = f"{requested.vni:08d}.{requested.opened_by}"
    lines: list[tuple[RowKind, str, str, str, Message | None, Mapping[str, Value]]] = [
        (RowKind.CLAIM, client, BURST, f"claim.{pair}", claim(index), {}),
        (RowKind.REPORT, client, BURST, f"report.{pair}", report(index), {}),
        (
            RowKind.PROBE,
            client,
            BURST,
            f"probe.{pair}.000",
            None,
            {"first_at_s": AT.timestamp(), "every_s": 0.1, "probes_0": b"x"},
        ),
        (
            RowKind.CANARY,
            client,
            BURST,
            f"canary.{pair}.000",
            None,
            {"first_at_s": AT.timestamp(), "every_s": 1.0, "canary_0": b"x"},
        ),
        (RowKind.TEST, server, partition, key, test, {}),
        (
            RowKind.PRESENCE,
            server,
            "presence",
            f"server.{server}",
            presence(Role.SERVER, index),
            {},
        ),
        (RowKind.PASSPORT, server, "passport", f"server.{server}", HostInfo(), {}),
        (RowKind.ASK, client, f"tunnel.{server}", f"ask.{suffix}", requested, {}),
        (RowKind.ANSWER, server, f"tunnel.{server}", f"answer.{suffix}", None, {"problem": ""}),
    ]
    rows = {
        kind: Written(
            kind=kind,
            writer=writer,
            row=Entity(
                partition_key=place,
                row_key=row_key,
                properties=values if message is None else {"json": message.to_json()},
            ),
            message=message,
        )
        for kind, writer, place, row_key, message, values in lines
    }
    for kind, writer, row in (
        (RowKind.CHUNK, client, _seconds(f"chunk.client.{pair}", BURST, Side.CLIENT)),
        (RowKind.TEST_CHUNK, server, _seconds(f"{key}.chunk", partition, Side.SERVER)),
    ):
        rows[kind] = Written(kind=kind, writer=writer, row=row)
    return rows


# Folder, file and writer of the kinds that are not rows.
OUTPUTS: Final = {
    RowKind.RAW: ("raw.run-1.00000", "client.00000", "c1"),
    RowKind.SERVER_RAW: (
        server_raw_folder(server_test(0).started_at),
        server_test_key(server_test(0)),
        "s1",
    ),
}

_LATE: Final = "2280-01-01T00:00:00Z"
# The key is the last part of the field's name.
_FOREIGN: Final[Mapping[str, tuple[object, ...]]] = {
    "agent_id": ("s2", "c2", "", None, 1),
    "job_id": (job(1).job_id, "run-2.00000.00000"),
    "run_id": ("run-2",),
    "burst_index": (1, -1),
    "pair_index": (1, 1.5, None),
    "role": ("client", None),
    "address": ("10.0.0.2",),
    "port": (5202, 0, None),
    "started_at": (
        "2024-05-01T11:59:59.001Z",
        "2024-05-01T13:00:00Z",
        "2024-05-01T11:59:59",
        0,
        None,
    ),
    "planned_start_at": ("2024-05-01T12:00:01Z", "2023-05-01T12:00:00Z", None),
    "vni": (4097, 0),
    "opened_by": (job(1).job_id,),
    "ports": ((5202,), (5201, 5202), ()),
    "more_ports": ((5202,),),
    "echo_port": (9,),
    "client_address": ("10.1.0.2", "10.0.0.2"),
    "inner_client_address": ("198.19.128.5", "10.1.0.2"),
    "inner_server_address": ("198.19.128.6", "10.0.0.2"),
    "cookie": ("cookie-1",),
    "client_port": (5201,),
    "boot_id": ("boot-of-another-host",),
    "allowed_networks": (("0.0.0.0/0",),),
}


def foreign_values(kind: RowKind, path: str, field: FieldRule) -> tuple[object, ...]:
    """Return values of another agent, endpoint, run, pair, burst, test or time for a field."""
    if field.rule in (FieldCondition.PLACED, FieldCondition.LIVE):
        return (9e9,) if path.endswith("_at_s") else (_LATE,)
    # See held_cases.
    if field.rule is FieldCondition.HELD and kind is RowKind.PRESENCE:
        return ()
    name = path.rpartition(".")[2]
    if kind is RowKind.ASK and name == "port":
        return (5201, 53)
    return _FOREIGN.get(name, ())


# These rules accept foreign values, because no other agent is affected.
STORED: Final = frozenset({FieldCondition.OWN, FieldCondition.PLACED, FieldCondition.LIVE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row in which one field has a foreign value."""

    kind: RowKind
    path: str
    field: FieldRule
    value: object

    def __str__(self) -> str:
        return f"{self.kind.name.lower()}-{self.path}-{self.value}"

    @property
    def written(self) -> Written:
        return written()[self.kind].changed(self.path, self.value)


def cases() -> list[Case]:
    """Return a case for each foreign value of every field in the rules."""
    return list(_cases())


def _cases() -> Iterator[Case]:
    for kind, rule in ROW_RULES.items():
        for path, field in rule.fields.items():
            for value in foreign_values(kind, path, field):
                if "<" not in path:
                    yield Case(kind=kind, path=path, field=field, value=value)
    for kind, local, other in (
        (RowKind.CHUNK, Side.CLIENT, Side.SERVER),
        (RowKind.TEST_CHUNK, Side.SERVER, Side.CLIENT),
    ):
        fields = ROW_RULES[kind].fields
        side, time = fields[f"{local}_<flow>_<n>"], fields[f"{local}_<flow>_first_data_at_s"]
        yield Case(kind=kind, path=f"{other}_up_0", field=side, value=b"packed")
        yield Case(kind=kind, path=f"{other}_down_first_data_at_s", field=side, value=1.0)
        yield Case(kind=kind, path="json", field=side, value=server_test(1).to_json())
        yield Case(kind=kind, path=f"{local}_up_first_data_at_s", field=time, value=9e9)


def held_cases() -> Mapping[str, Presence]:
    """Return heartbeats of s1 that announce one endpoint of s2 each, by field."""
    theirs = presence(Role.SERVER, 1)
    fields: dict[str, dict[str, Any]] = {
        "address": {"ports": theirs.ports},
        "ports": {"ports": (5300, *theirs.ports)},
        "busy_ports": {"busy_ports": theirs.ports},
        "engines.*.ports": {"engines": theirs.engines},
        "echo_port": {"echo_port": theirs.echo_port},
        "canary_ports": {"canary_ports": theirs.canary_ports},
    }
    empty: dict[str, Any] = {
        **dict.fromkeys(("ports", "busy_ports", "engines", "canary_ports"), ()),
        "echo_port": None,
    }
    return {
        name: presence(Role.SERVER, 0, address=theirs.address, **empty | text)
        for name, text in fields.items()
    }
