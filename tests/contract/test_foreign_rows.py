"""Test that rows with the identity of another agent are never used as evidence, in all tables.

On Azure there is no service to check the content of a row. The coordinator will therefore apply
the rules from :mod:`broadside.exchange.records.row_rules` and report violations in a finding.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broadside.coordinator.core.judge.observations import _foreign_findings
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.evidence import BurstEvidence
from broadside.coordinator.core.run_spec import Burst, Pair, Plan, RunSpec
from broadside.coordinator.core.summary import BurstSummary
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.exchange.messages import Control
from broadside.exchange.ports import Entity, Table
from broadside.exchange.records import Records
from broadside.exchange.records.keys import server_tests_partition
from broadside.exchange.records.row_rules import FieldCondition, RowKind
from tests.contract.adapters import Place
from tests.written_rows import (
    AT,
    BURST,
    STORED,
    Written,
    cases,
    endpoint,
    job,
    server_test,
    written,
)

PLAN = Plan(
    run_id="run-1",
    created_at=AT,
    spec=RunSpec(scenario="smoke", pairs_count=2, burst_s=10, traffic=job(0).traffic),
    pairs=tuple(Pair(index=index, endpoint=endpoint(index)) for index in (0, 1)),
    bursts=(Burst(index=0, planned_start_at=AT, duration_s=10),),
).sealed()


@pytest.fixture
async def fleet(table_place: Place) -> AsyncIterator[tuple[Table, Records]]:
    """Yield the results table and the records, with the rows for both pairs."""
    tables = [table_place.open_table() for _ in range(3)]
    records = Records(control=tables[0], results=tables[1], private=tables[2])
    control = Control(run_id="run-1", lease_until_at=AT + timedelta(hours=1))
    await records.runs.create("run-1", PLAN.document, control)
    for index in (0, 1):
        for row in written(index).values():
            await tables[1].upsert(row.row)
    yield tables[1], records
    for opened in tables:
        await opened.close()


async def read(records: Records) -> BurstEvidence:
    return await read_evidence(records, PLAN, PLAN.bursts[0])


def told(evidence: BurstEvidence, index: int) -> Any:
    """Return the evidence for a pair with its seconds unpacked."""
    [pair] = [item for item in evidence.pairs if item.pair_index == index]
    tracks = [
        (track.side, track.transferred_bytes.tolist())
        for block in replace(evidence, pairs=(pair,)).blocks()
        for item in block
        for track in (*item.client_tracks, *item.server_tracks)
    ]
    return pair.claim, pair.report, pair.server_test, pair.joined_by, tracks


async def test_valid_rows_are_evidence_without_a_finding(fleet: tuple[Table, Records]) -> None:
    evidence = await read(fleet[1])
    assert evidence.foreign_rows == ()
    for index in (0, 1):
        claim, report, test, _, tracks = told(evidence, index)
        assert None not in (claim, report, test)
        assert len(tracks) == 2


def hostile_rows() -> dict[str, Entity]:
    """Return rows by s2 or c2 that imitate evidence for pair 0 or would replace it."""
    test, chunk = written()[RowKind.TEST], written()[RowKind.TEST_CHUNK]
    foreign = written(1)
    row = foreign[RowKind.TEST].row
    at = server_test(0).started_at
    content = str(test.row.properties["json"])
    forged = json.loads(content) | {"agent_id": "s2"}
    forged["endpoint"] = forged["endpoint"] | {"agent_id": "s2"}
    later = row.row_key.replace(row.row_key[:13], str(int(row.row_key[:13]) + 1))
    moved = server_tests_partition(at, "s2")
    return {
        "s1's test under s2's key": replace(row, row_key=later, properties=test.row.properties),
        "s2's test at s1's endpoint": replace(row, properties={"json": json.dumps(forged)}),
        "s1's test in the place of seconds": replace(
            row, row_key=f"{row.row_key}.chunk.001", properties=test.row.properties
        ),
        "s1's test in another share": replace(test.row, partition_key=moved),
        "s1's seconds in another share": replace(chunk.row, partition_key=moved),
        "s1's test in another hour": replace(test.row, partition_key="tests.2024-05-01T12"),
        "seconds of the server by its client": replace(
            chunk.row, partition_key=BURST, row_key="chunk.client.00000.001"
        ),
    }


@pytest.mark.parametrize("name", hostile_rows())
async def test_forged_row_does_not_change_another_pair(
    fleet: tuple[Table, Records], name: str
) -> None:
    table, records = fleet
    before = told(await read(records), 0)
    row = hostile_rows()[name]
    await table.upsert(row)
    evidence = await read(records)
    assert told(evidence, 0) == before
    assert [foreign_row.row for foreign_row in evidence.foreign_rows] == [
        f"{row.partition_key}|{row.row_key}"
    ]
    burst = SimpleNamespace(
        foreign_tests=(), foreign_rows=evidence.foreign_rows, foreign_rows_count=1, measures=()
    )
    [finding] = _foreign_findings(cast(BurstSummary, burst))
    assert (finding.id, row.row_key in finding.sentence) == ("foreign-rows", True)


async def test_many_foreign_tests_do_not_hide_the_real_test(
    fleet: tuple[Table, Records],
) -> None:
    """Test that foreign tests are not counted in the limit, which is set to a hundred tests per
    endpoint."""
    table, records = fleet
    before = told(await read(records), 0)
    forged = server_test(0).model_copy(
        update={"agent_id": "a0", "endpoint": endpoint(0).model_copy(update={"agent_id": "a0"})}
    )
    rows = []
    for number in range(150):
        test = forged.model_copy(
            update={"started_at": forged.started_at - timedelta(milliseconds=1 + number)}
        )
        partition = server_tests_partition(test.started_at, "a0")
        key = f"{int(test.started_at.timestamp() * 1000):013d}.a0.5201"
        rows.append(
            Entity(partition_key=partition, row_key=key, properties={"json": test.to_json()})
        )
    await table.batch(rows)
    evidence = await read(records)
    assert told(evidence, 0) == before
    assert len(evidence.foreign_rows) == len(rows)
    assert "planned at s1" in evidence.foreign_rows[0].problem
    measured = measure_burst(PLAN.spec, await read(records), AT + timedelta(hours=1))
    assert measured.summary.foreign_rows_count == len(rows)
    assert len(measured.summary.foreign_rows) < len(rows)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("report", "agent_id", "c2"),
        ("report", "planned_start_at", "2024-05-01T13:00:00Z"),
        ("claim", "job_id", job(1).job_id),
    ],
)
async def test_row_with_another_identity_is_not_evidence(
    fleet: tuple[Table, Records], name: str, field: str, value: str
) -> None:
    table, records = fleet
    before = told(await read(records), 1)
    await table.upsert(written()[RowKind[name.upper()]].changed(field, value).row)
    evidence = await read(records)
    assert [foreign_row.field for foreign_row in evidence.foreign_rows] == [field]
    assert getattr(evidence.in_order[0], name) is None
    assert told(evidence, 1) == before


_KEYED = [
    case
    for case in cases()
    if case.field.rule in (FieldCondition.KEY, FieldCondition.SIDE, FieldCondition.UNSET)
]


async def test_foreign_values_are_never_evidence(fleet: tuple[Table, Records]) -> None:
    """Test all foreign values in rows for pair 0. They should be rejected, and pair 1 should not
    change."""
    table, records = fleet
    other = told(await read(records), 1)
    read_kinds = {RowKind.CLAIM, RowKind.REPORT, RowKind.CHUNK, RowKind.TEST, RowKind.TEST_CHUNK}
    for case in _KEYED:
        if case.kind not in read_kinds:
            continue
        await table.upsert(case.written.row)
        evidence = await read(records)
        assert told(evidence, 1) == other, case
        assert _evidence_from(evidence, case.written) is None, case
        await table.upsert(written()[case.kind].row)
    assert (await read(records)).foreign_rows == ()


async def test_foreign_optional_values_do_not_change_other_pairs(
    fleet: tuple[Table, Records],
) -> None:
    """Test foreign times, cookies and addresses. They will not be used for other pairs."""
    table, records = fleet
    other = told(await read(records), 1)
    for case in [case for case in cases() if case.field.rule in STORED]:
        await table.upsert(case.written.row)
        assert told(await read(records), 1) == other, case
        measured = measure_burst(PLAN.spec, await read(records), AT + timedelta(hours=1))
        assert measured.summary.pairs_planned == 2, case
        await table.upsert(written()[case.kind].row)


def _evidence_from(evidence: BurstEvidence, row: Written) -> object:
    """Return the evidence for pair 0 from this kind of row, or None."""
    claim, report, test, _, tracks = told(evidence, 0)
    sides = {str(side): data for side, data in tracks}
    by_name = {
        RowKind.CLAIM: claim,
        RowKind.REPORT: report,
        RowKind.TEST: test,
        RowKind.CHUNK: sides.get("client"),
        RowKind.TEST_CHUNK: sides.get("server"),
    }
    return by_name[row.kind]
