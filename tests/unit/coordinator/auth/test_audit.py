"""Tests for the audit log in the private table."""

from datetime import UTC, datetime, timedelta

import pytest

from broadside.coordinator.auth.audit import Audit, AuditRow
from broadside.exchange.fabric import Fabric

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def row(at: datetime, path: str) -> AuditRow:
    return AuditRow(
        at=at, by="ann", role="operator", from_address=None, method="POST", path=path, route=path
    )


@pytest.mark.parametrize("between_us", [1, 999, 1_000, 1_000_000])
async def test_writes_are_read_newest_first_to_the_microsecond(
    fabric: Fabric, between_us: int
) -> None:
    audit = Audit(fabric.private)
    # More writes than a chance order would sort.
    times = [NOON + index * timedelta(microseconds=between_us) for index in range(8)]
    for index, at in enumerate(times):
        await audit.begin(row(at, f"/v1/{index}"))
    rows, _ = await audit.read(times[-1], limit=10)
    assert [each.at for each in rows] == times[::-1]


async def test_pages_of_one_millisecond_have_each_write_once(fabric: Fabric) -> None:
    audit = Audit(fabric.private)
    for index in range(5):
        await audit.begin(row(NOON + timedelta(microseconds=index), f"/v1/{index}"))
    paths: list[str] = []
    cursor = None
    while True:
        rows, cursor = await audit.read(NOON, limit=2, cursor=cursor)
        paths += [each.path for each in rows]
        if cursor is None:
            break
    assert paths == [f"/v1/{index}" for index in (4, 3, 2, 1, 0)]
