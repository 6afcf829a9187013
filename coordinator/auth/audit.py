"""What was changed over the API: who, what, from where, when, and how it ended."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from broadside.exchange.messages import Message, UtcDatetime
from broadside.exchange.ports import Table
from broadside.exchange.records.keys import audit_shelf, newest_first
from broadside.exchange.records.shelf import Shelf

AUDIT_CURSOR: Final = r"^[0-9]{4}-(0[1-9]|1[0-2])~[A-Za-z0-9._-]{1,200}$"  # a month, a row's key
MONTHS_BACK: Final = 24  # months that a reading goes back


class AuditRow(Message):
    """One write. ``status`` None: it never ended, as when the coordinator died in it."""

    at: UtcDatetime
    by: str
    role: str  # viewer or operator; "unsigned" without sign-in
    from_address: str | None  # None: a command in the coordinator's own process
    method: str
    path: str
    route: str | None = None  # its template; None: no such route
    run_id: str | None = None  # where the path or the answer names one
    status: int | None = None  # HTTP status


class Audit:
    """Audit rows in a fabric's private table, one shelf a month."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def begin(self, row: AuditRow) -> str:
        """Keep a write before it is done; returns the row's key."""
        key = f"{newest_first(row.at)}.{secrets.token_hex(4)}"
        await self._shelf(_month(row.at)).create(key, row)
        return key

    async def end(self, key: str, row: AuditRow) -> None:
        """Say how it ended."""
        await self._shelf(_month(row.at)).put(key, row)

    async def read(
        self, now: datetime, *, limit: int, cursor: str | None = None
    ) -> tuple[Sequence[AuditRow], str | None]:
        """Newest first, and the cursor of what follows, an :data:`AUDIT_CURSOR`."""
        month, key_from = _month(now), None
        if cursor is not None:
            named, _, key_from = cursor.partition("~")
            month = min(month, named)
        rows: list[AuditRow] = []
        oldest = _before(_month(now), MONTHS_BACK)
        while month > oldest:
            scan = self._shelf(month).scan(key_from=key_from, limit=limit + 1 - len(rows))
            async for key, row in scan:
                if len(rows) == limit:
                    return rows, f"{month}~{key}"
                rows.append(row)
            month, key_from = _before(month, 1), None
        return rows, None

    def _shelf(self, month: str) -> Shelf[AuditRow]:
        return Shelf(self._table, audit_shelf(month), AuditRow)


def _month(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m}"


def _before(month: str, count: int) -> str:
    """The month ``count`` months earlier."""
    year, number = map(int, month.split("-"))
    index = year * 12 + number - 1 - count
    return f"{index // 12:04d}-{index % 12 + 1:02d}"
