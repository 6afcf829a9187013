"""Tests for the rules used to check rows written by an agent."""

import inspect
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from broadside.exchange.messages import Flow, Message, Role, Side, Track, _models_in
from broadside.exchange.ports import Entity, RecordUnreadable
from broadside.exchange.records import BurstRecords, FleetRecords
from broadside.exchange.records.row_rules import (
    ROW_RULES,
    RowKind,
    Violation,
    keeps_rules,
    place_of,
    raw_place,
    wrong_field,
)
from broadside.exchange.rows import parse_row
from broadside.exchange.second_rows import Probes
from tests.unit.exchange.test_canary_rows import canary_rounds
from tests.written_rows import (
    AT,
    OUTPUTS,
    Case,
    cases,
    claim,
    held_cases,
    job,
    presence,
    report,
    server_test,
    tunnel,
    written,
)

# Names of fields that do not identify a host or a job. A new field that is neither in this list nor
# in the rules fails the test below. Add it to one of them.
PLAIN = {
    *"""
    accelerated_networking argv at beat block_bytes bound_s broadside_version combine count counts
    cpu_count cpu_flags cpu_local_percent cpu_model cpu_payload_bytes cpu_remote_percent cpu_s
    direction duration_s egress_queued_ratio engine engine_build engine_version error exit_code
    files files_max_count flow from_s gate host_cpu_s host_taken_ratio how hypervisor jitter_s
    kernel kernel_build kind least_s loss_ratio lost_count max median_s mss_bytes name new_options
    nic nic_addresses_count nic_bits_per_second nic_driver nic_driver_version nic_firmware
    nic_megabits_per_second nic_mtu_bytes numa_node offloads offset_s omit_s outcome pacing packed
    packets_count phase problem protocol reason received_bytes received_s receiver_congestion
    reference resolution retransmits_count retries_count rtt_max_s rtt_mean_s rtt_min_s rtt_s
    rx_queues_count rx_ring_count samples_count self_signed sender_congestion sent_bytes sent_s
    server_lead_s source start_error_s start_method state step_s stopped_at stratum
    stream_bits_per_second streams_count synchronised sysctls tls to_s tos truncated tunnels
    tx_queues_count tx_ring_count unit value version vm_size warnings weight window_bytes
    """.split()  # noqa: SIM905 - a list of words
}


def leaves(model: type[Message], path: str = "", within: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield the dotted names for all plain fields in a message. ``*`` is used for an item in a
    sequence."""
    for name, field in model.model_fields.items():
        parts = [part for part in _models_in(field.annotation) if part not in within]
        if not list(_models_in(field.annotation)):
            yield path + name
        for part in parts:
            item = ".*." if "tuple" in str(field.annotation) else "."
            yield from leaves(part, path + name + item, (*within, model))


@pytest.mark.parametrize("kind", [k for k, rule in ROW_RULES.items() if rule.model is not None])
def test_every_field_has_a_rule_or_is_plain(kind: RowKind) -> None:
    rule = ROW_RULES[kind]
    assert rule.model is not None
    result = set(leaves(rule.model))
    assert {
        leaf for leaf in result - rule.fields.keys() if leaf.rpartition(".")[2] not in PLAIN
    } == (set())
    assert rule.fields.keys() - result == set(), "rules for fields that do not exist"
    assert [path for path in rule.fields if path.rpartition(".")[2] in PLAIN] == []


def test_new_field_is_detected() -> None:
    class Newer(Message):
        job_id: str
        peer_address: str | None = None

    assert set(leaves(Newer)) - {"job_id"} - PLAIN == {"peer_address"}


class _RecordingTable:
    """Table to record all writes."""

    def __init__(self) -> None:
        self.rows: list[Entity] = []

    async def insert(self, row: Entity) -> str:
        self.rows.append(row)
        return ""

    upsert = insert

    async def batch(self, rows: Sequence[Entity]) -> None:
        self.rows += rows

    async def delete(self, partition: str, key: str) -> bool:
        self.rows.append(Entity(partition_key=partition, row_key=key, properties={}))
        return True

    async def scan(self, *_: Any, **__: Any) -> AsyncIterator[Entity]:
        for row in self.rows[:0]:
            yield row


async def _write(name: str, bursts: BurstRecords, fleet: FleetRecords) -> None:
    """Call one method used by an agent to write."""
    tracks = {
        side: [Track(side=side, flow=Flow.UP, first_data_at_s=1.0, intervals=())] for side in Side
    }
    probes = Probes(first_at_s=1.0, every_s=0.1, rtt_s=array("f", [0.1]))
    match name:
        case "claim" | "save_claim":
            await getattr(bursts, name)(job(0), claim(0))
        case "save_report":
            await bursts.save_report(report(0))
        case "save_seconds":
            await bursts.save_seconds(job(0), tracks[Side.CLIENT], [])
        case "save_probes":
            await bursts.save_probes(job(0), probes)
        case "save_canary":
            await bursts.save_canary(job(0), canary_rounds(1))
        case "save_test":
            await bursts.save_test(server_test(0), tracks[Side.SERVER], [])
        case "beat":
            await fleet.beat(presence(Role.SERVER, 0))
        case "leave":
            await fleet.leave(Role.SERVER, "s1")
        case "save_tunnel" | "drop_tunnel":
            await getattr(fleet, name)("s1", tunnel(0))
        case "answer_tunnel":
            await fleet.answer_tunnel("s1", tunnel(0), "")
        case _:
            raise AssertionError(f"{name}: a method of the agent without a case here")


_READS = ("read_", "stream_", "tests_hours")
# An agent is not allowed to use them.
_COORDINATORS = {"delete", "delete_tests"}
_OUTPUTS = {"save_raw", "save_server_raw"}
METHODS = [
    name
    for kind in (BurstRecords, FleetRecords)
    for name, _ in inspect.getmembers(kind, inspect.isfunction)
    if name[0] != "_" and not name.startswith(_READS) and name not in _COORDINATORS | _OUTPUTS
]


@pytest.mark.parametrize("name", METHODS)
async def test_every_row_that_a_method_writes_has_a_rule(name: str) -> None:
    recorder: Any = _RecordingTable()
    await _write(name, BurstRecords(recorder), FleetRecords(recorder))
    assert recorder.rows
    for row in recorder.rows:
        location = place_of(row.partition_key, row.row_key)
        assert location is not None, row
        rule = ROW_RULES[location.kind]
        message = None if rule.model is None or not row.properties else parse_row(rule.model, row)
        assert keeps_rules(row, message)


def test_every_kind_has_an_example() -> None:
    assert {*written(), *OUTPUTS} == {*RowKind} == {*ROW_RULES}
    for kind, (folder, file, _) in OUTPUTS.items():
        location = raw_place(folder, file)
        assert location is not None
        assert location.kind is kind


def test_every_rule_has_a_case_with_a_foreign_value() -> None:
    covered = {(case.kind, case.path) for case in cases()}
    for kind, rule in ROW_RULES.items():
        for path in rule.fields:
            is_stored = kind is RowKind.PRESENCE and path in held_cases()
            assert is_stored or "<" in path or (kind, path) in covered, (kind, path)


@pytest.mark.parametrize("kind", written(), ids=lambda kind: kind.name)
def test_valid_row_follows_its_rules(kind: RowKind) -> None:
    example = written()[kind]
    violations: list[Violation] = []
    assert keeps_rules(example.row, example.message, violations)
    assert violations == []


@pytest.mark.parametrize("case", [case for case in cases() if case.field.fact], ids=str)
def test_reader_drops_rows_that_contradict_their_key(case: Case) -> None:
    row, model = case.written.row, ROW_RULES[case.kind].model
    assert model is not None
    location = place_of(row.partition_key, row.row_key)
    assert location is not None
    try:
        message = parse_row(model, row)
    except RecordUnreadable:
        return
    violations: list[Violation] = []
    if case.field.fact in location.facts or case.field.fact == "unset":
        assert not keeps_rules(row, message, violations)
        assert [item.field for item in violations] == [case.path]
    # See the credential, the job and the plan for the other facts.
    else:
        facts = {
            **location.facts,
            "agent": written()[case.kind].writer,
            "planned_start_at": AT,
            "tunnel_port": 4789,
            "ports": (5201,),
            "announced_address": "10.1.0.1",
        }
        assert wrong_field(case.kind, message, facts) == case.path


def test_row_with_a_wrong_key_is_rejected() -> None:
    row = written()[RowKind.TEST].row
    for partition, key in (
        ("tests.2024-05-01T10", row.row_key),
        ("tests.2024-05-01T11.5", row.row_key),
        (row.partition_key, row.row_key.replace("5201", "05201")),
        (row.partition_key, f"{row.row_key}.chunk.0000"),
        ("tests.2024-05-01T11", "9999999999999.s1.5201"),
        ("burst.run-1.00000", "claim.00000.000"),
        ("burst.run-1.00000", "chunk.client.00000"),
        ("presence", "coordinator.s1"),
        ("tunnel.s1", "ask.00004096.run-1"),
    ):
        assert place_of(partition, key) is None, (partition, key)
    moved = replace(row, partition_key="tests.2024-05-01T10")
    violations: list[Violation] = []
    assert not keeps_rules(moved, server_test(0), violations)
    assert [item.field for item in violations] == ["key"]
