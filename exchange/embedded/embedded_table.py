"""Durable table in an SQLite file, for many processes on one host, without a server.

:mod:`broadside.exchange.embedded.sqlite` describes durability and the use after a fork.
"""

import json
import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

from pydantic_core import from_json

from broadside.exchange.embedded.sqlite import Database, transaction
from broadside.exchange.limits import batches, check_entity, check_key
from broadside.exchange.outage_log import WriteRefusals
from broadside.exchange.ports import Entity, EntityChanged, EntityExists, EntityNotFound, Value

_SCAN_PAGE_COUNT: Final = 256
_PAGE: Final = (
    "SELECT row_key, etag, properties, binary FROM entity "
    "WHERE partition_key = :partition AND row_key >= :from AND typeof(row_key) = 'text' "
    "ORDER BY row_key LIMIT :limit"
)
_PAGE_BEFORE: Final = _PAGE.replace(" ORDER", " AND row_key < :before ORDER")

_ETAGS: Final = (
    "SELECT row_key, etag FROM entity "
    "WHERE partition_key = ? AND row_key >= ? AND row_key < ? ORDER BY row_key"
)
_NAMED: Final = (
    "SELECT row_key, etag, properties, binary FROM entity "
    "WHERE partition_key = ? AND row_key IN (SELECT value FROM json_each(?)) ORDER BY row_key"
)

# SQLite application id, "BsTB".
TABLE_APPLICATION: Final = 0x42735442
TABLE_LAYOUT: Final = """
CREATE TABLE entity (
    partition_key TEXT NOT NULL,
    row_key TEXT NOT NULL,
    etag TEXT NOT NULL,
    properties TEXT NOT NULL,        -- JSON, see _encode
    binary BLOB NOT NULL,            -- its binary values, end to end
    PRIMARY KEY (partition_key, row_key)
);
"""


class EmbeddedTable:
    """:class:`~broadside.exchange.ports.Table` in ``<data_dir>/<name>.sqlite3``.

    Args:
        data_dir: The folder for the database file.
        name: The table name.
        busy_s: The maximum time to wait for a database lock, in seconds.
        refusals: Log of writes that fail because there is no space or no permission.
    """

    def __init__(
        self,
        data_dir: Path,
        name: str,
        *,
        busy_s: float = 10.0,
        refusals: WriteRefusals | None = None,
    ) -> None:
        self._database = Database(
            data_dir / f"{name}.sqlite3", TABLE_APPLICATION, TABLE_LAYOUT, busy_s, refusals
        )

    async def insert(self, entity: Entity) -> str:
        check_entity(entity)
        return await self._database.run(_insert, entity)

    async def upsert(self, entity: Entity) -> str:
        check_entity(entity)
        return await self._database.run(_upsert, entity)

    async def replace(self, entity: Entity, etag: str) -> str:
        check_entity(entity)
        return await self._database.run(_replace, entity, etag)

    async def get(self, partition_key: str, row_key: str) -> Entity | None:
        check_key(partition_key)
        check_key(row_key)
        rows = await self._database.read(_page, partition_key, row_key, row_key + "\0", 1)
        return rows[0] if rows else None

    async def scan(
        self,
        partition_key: str,
        *,
        row_from: str | None = None,
        row_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Entity]:
        check_key(partition_key)
        start, left_count = row_from or "", limit
        while left_count is None or left_count > 0:
            page_count = min(_SCAN_PAGE_COUNT, left_count or _SCAN_PAGE_COUNT)
            rows = await self._database.read(_page, partition_key, start, row_before, page_count)
            for row in rows:
                yield row
            if len(rows) < page_count:
                return
            # This is the next possible key, because keys contain no control characters.
            start = rows[-1].row_key + "\0"
            left_count = None if left_count is None else left_count - len(rows)

    async def scan_changed(
        self, partition_key: str, known: Mapping[str, str], *, row_from: str, row_before: str
    ) -> AsyncIterator[Entity]:
        check_key(partition_key)
        etags = await self._database.read(_etags, partition_key, row_from, row_before)
        changed = [row_key for row_key, etag in etags if known.get(row_key) != etag]
        for at in range(0, len(changed), _SCAN_PAGE_COUNT):
            keys = changed[at : at + _SCAN_PAGE_COUNT]
            for row in await self._database.read(_named, partition_key, keys):
                yield row

    async def delete(self, partition_key: str, row_key: str) -> bool:
        check_key(partition_key)
        check_key(row_key)
        return await self._database.run(_delete, partition_key, row_key)

    async def batch(self, entities: Sequence[Entity]) -> None:
        for part in batches(entities):
            await self._database.run(_upsert_all, part)

    async def next_partition(self, key_from: str, key_before: str) -> str | None:
        check_key(key_from)
        check_key(key_before)
        return await self._database.read(_next_partition, key_from, key_before)

    async def delete_partition(self, partition_key: str) -> int:
        check_key(partition_key)
        return await self._database.run(_delete_partition, partition_key)

    async def close(self) -> None:
        await self._database.close()


def _insert(connection: sqlite3.Connection, entity: Entity) -> str:
    row = _row(entity)
    try:
        connection.execute("INSERT INTO entity VALUES (?, ?, ?, ?, ?)", row)
    except sqlite3.IntegrityError as error:
        raise EntityExists(f"row {_name(entity)}: it already exists") from error
    return row[2]


def _upsert(connection: sqlite3.Connection, entity: Entity) -> str:
    row = _row(entity)
    connection.execute("REPLACE INTO entity VALUES (?, ?, ?, ?, ?)", row)
    return row[2]


def _upsert_all(connection: sqlite3.Connection, entities: Sequence[Entity]) -> None:
    with transaction(connection):
        for entity in entities:
            _upsert(connection, entity)


def _replace(connection: sqlite3.Connection, entity: Entity, etag: str) -> str:
    row = _row(entity)
    keys = (entity.partition_key, entity.row_key)
    with transaction(connection):
        changed = connection.execute(
            "UPDATE entity SET etag = ?, properties = ?, binary = ? "
            "WHERE partition_key = ? AND row_key = ? AND etag = ?",
            (*row[2:], *keys, etag),
        )
        if changed.rowcount == 0:
            if _page(connection, *keys, entity.row_key + "\0", 1):
                raise EntityChanged(f"row {_name(entity)}: changed since it was read")
            raise EntityNotFound(f"row {_name(entity)}: not found")
    return row[2]


def _page(
    connection: sqlite3.Connection,
    partition_key: str,
    row_from: str,
    row_before: str | None,
    limit: int,
) -> list[Entity]:
    bounds = {"partition": partition_key, "from": row_from, "before": row_before, "limit": limit}
    rows = connection.execute(_PAGE if row_before is None else _PAGE_BEFORE, bounds)
    return _entities(partition_key, rows)


def _etags(
    connection: sqlite3.Connection, partition_key: str, row_from: str, row_before: str
) -> list[tuple[str, str]]:
    return connection.execute(_ETAGS, (partition_key, row_from, row_before)).fetchall()


def _named(
    connection: sqlite3.Connection, partition_key: str, row_keys: Sequence[str]
) -> list[Entity]:
    rows = connection.execute(_NAMED, (partition_key, json.dumps(row_keys)))
    return _entities(partition_key, rows)


def _entities(partition_key: str, rows: Iterable[tuple[str, str, str, bytes]]) -> list[Entity]:
    return [
        Entity(
            partition_key=partition_key,
            row_key=row_key,
            properties=_decode(properties, binary),
            etag=etag,
        )
        for row_key, etag, properties, binary in rows
    ]


def _delete(connection: sqlite3.Connection, partition_key: str, row_key: str) -> bool:
    deleted = connection.execute(
        "DELETE FROM entity WHERE partition_key = ? AND row_key = ?", (partition_key, row_key)
    )
    return deleted.rowcount > 0


def _next_partition(connection: sqlite3.Connection, key_from: str, key_before: str) -> str | None:
    row = connection.execute(
        "SELECT min(partition_key) FROM entity WHERE partition_key >= ? AND partition_key < ?",
        (key_from, key_before),
    ).fetchone()
    return None if row[0] is None else str(row[0])


def _delete_partition(connection: sqlite3.Connection, partition_key: str) -> int:
    return connection.execute(
        "DELETE FROM entity WHERE partition_key = ?", (partition_key,)
    ).rowcount


def _name(entity: Entity) -> str:
    return f"{entity.partition_key}|{entity.row_key}"


def _row(entity: Entity) -> tuple[str, str, str, str, bytes]:
    """Return an entity as a database row with a new ETag."""
    properties, binary = _encode(entity.properties)
    return entity.partition_key, entity.row_key, uuid4().hex, properties, binary


def _encode(properties: Mapping[str, Value]) -> tuple[str, bytes]:
    """Encode properties as JSON, and their binary values as one blob.

    The JSON is ``{name: value, or [type, text or length]}``.
    """
    fields: dict[str, object] = {}
    binary: list[bytes] = []
    for name, value in properties.items():
        match value:
            case bytes():
                fields[name] = ["bytes", len(value)]
                binary.append(value)
            case datetime():
                fields[name] = ["instant", value.astimezone(UTC).isoformat()]
            case _:
                fields[name] = value
    return json.dumps(fields), b"".join(binary)


def _decode(properties: str, binary: bytes) -> dict[str, Value]:
    """Decode the properties. For a damaged row, return no properties.

    The caller can then report the row and read the other rows.
    """
    try:
        return _decoded(properties, binary)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _decoded(properties: str, binary: bytes) -> dict[str, Value]:
    values: dict[str, Value] = {}
    at = 0
    for name, field in from_json(properties).items():
        match field:
            case ["bytes", length]:
                values[name] = binary[at : at + length]
                at += length
            case ["instant", text]:
                values[name] = datetime.fromisoformat(text)
            case _:
                values[name] = field
    return values
