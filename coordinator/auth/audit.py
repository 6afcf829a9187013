"""Audit log of changes over the API, with user, request, source address, time and result."""

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from broadside.exchange.messages import Message, UtcDatetime
from broadside.exchange.ports import Table
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import audit_shelf, newest_first

# Pattern of a cursor, which is the month and the row key.
AUDIT_CURSOR: Final = r"^[0-9]{4}-(0[1-9]|1[0-2])~[A-Za-z0-9._-]{1,200}$"
# Number of months that can be read.
MONTHS_BACK: Final = 24


class AuditRow(Message):
    """One write. ``status`` None: it never ended, as when the coordinator died in it.

    Attributes:
        at: Time of the write.
        by: Name of the caller.
        role: Role of the caller: viewer or operator, or "unsigned" without sign-in.
        from_address: Address of the caller. None for a command in the coordinator process.
        method: HTTP method.
        path: Path of the request.
        route: Template of the route. None if there is no such route.
        run_id: Id of the run. None if neither the path nor the response has one.
        status: HTTP status. None if the write has not ended.
    """

    at: UtcDatetime
    by: str
    role: str
    from_address: str | None
    method: str
    path: str
    route: str | None = None
    run_id: str | None = None
    status: int | None = None


class Audit:
    """Audit rows in the private table, one collection per month."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def begin(self, row: AuditRow) -> str:
        """Store an audit row before the write is executed, and return the key of the row.

        Keys have the order of the times to the microsecond, newest first.
        """
        microseconds = row.at.microsecond % 1000
        key = f"{newest_first(row.at)}.{999 - microseconds:03d}{secrets.token_hex(4)}"
        await self._shelf(_month(row.at)).create(key, row)
        return key

    async def end(self, key: str, row: AuditRow) -> None:
        """Store the result of the write.

        Args:
            key: Key that :meth:`begin` returned.
            row: Audit row with the status.
        """
        await self._shelf(_month(row.at)).put(key, row)

    async def read(
        self,
        now: datetime,
        *,
        limit: int,
        cursor: str | None = None,
        fits: Callable[[AuditRow], bool] = lambda _: True,
    ) -> tuple[Sequence[AuditRow], str | None]:
        """Return audit rows, newest first.

        Args:
            now: Current time to use.
            limit: The maximum number of rows to return.
            cursor: Cursor from an earlier call. None starts with the newest row.
            fits: Filter for the rows.

        Returns:
            The rows, and the next page's cursor (:data:`AUDIT_CURSOR`). On the last page the
            cursor is None.
        """
        month, key_from = _month(now), None
        if cursor is not None:
            named, _, key_from = cursor.partition("~")
            month = min(month, named)
        rows: list[AuditRow] = []
        oldest = _before(_month(now), MONTHS_BACK)
        while month > oldest:
            async for key, row in self._shelf(month).scan(key_from=key_from):
                if not fits(row):
                    continue
                if len(rows) == limit:
                    return rows, f"{month}~{key}"
                rows.append(row)
            month, key_from = _before(month, 1), None
        return rows, None

    def _shelf(self, month: str) -> Collection[AuditRow]:
        return Collection(self._table, audit_shelf(month), AuditRow)


def _month(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m}"


def _before(month: str, count: int) -> str:
    """Return the month that is ``count`` months earlier."""
    year, number = map(int, month.split("-"))
    index = year * 12 + number - 1 - count
    return f"{index // 12:04d}-{index % 12 + 1:02d}"
