""":class:`~broadside.exchange.ports.Table` on Azure Table Storage, using the Azure SDK.

Behaviour of the SDK, and additions in this module:

- The SDK retries within :class:`~broadside.exchange.azure.wire.StorageBounds`. By default it does
  not retry an insert or a batch, so this module enables these retries.
- If a response was lost, a repeated write can find the result of its first attempt. If a *repeated*
  insert or replace is rejected, the row is therefore read. If it has the properties that were sent,
  the write was successful. Upserts, batches (only upserts) and deletes are safe to repeat.
- Numbers keep their type: an ``int`` is always sent as Int64, a ``float`` as Double.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from azure.core import MatchConditions
from azure.data.tables import EdmType, EntityProperty, UpdateMode
from azure.data.tables.aio import TableClient

from broadside.exchange.azure.wire import (
    StorageAddress,
    StorageService,
    client_settings,
    code_of,
    error_text,
    is_final,
)
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.limits import batches, check_entity, check_key
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import (
    BATCH_MAX_COUNT,
    Entity,
    EntityChanged,
    EntityExists,
    EntityNotFound,
    EntityTooLarge,
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    TableError,
    Value,
)

# Maximum rows per response of the service.
_PAGE_MAX_COUNT: Final = 1000
# HTTP methods that can be repeated.
_METHODS: Final = frozenset({"GET", "PUT", "POST", "DELETE"})
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_PRECONDITION_FAILED: Final = 412
_TOO_LARGE: Final = 413
_SIZE_CODES: Final = frozenset({"EntityTooLarge", "PropertyValueTooLarge", "TooManyProperties"})
# Index of the failed operation, at the start of the error message.
_INDEX: Final = re.compile(r"(\d+):")
_TABLE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAddress(StorageAddress):
    """Table name, endpoint and identity."""

    kind: ClassVar[str] = "table"
    table: str

    @property
    def place(self) -> str:
        return self.table


def open_table(
    settings: FabricSettings, what: str, troubles: OutageLog | None = None
) -> "AzureTable":
    """Return a table for these settings, without a connection.

    Args:
        settings: The storage backend settings.
        what: ``control``, ``results`` or ``private``.
        troubles: Log to record outages in. None records none.

    Raises:
        ExchangeMisconfigured: A setting is missing or invalid.
    """
    name = getattr(settings, f"tables_{what}")
    if not _TABLE_NAME.fullmatch(name):
        raise ExchangeMisconfigured(
            f"BROADSIDE_TABLES_{what.upper()}={name}: a table's name is "
            "3 to 63 letters and digits, a letter first"
        )
    address = TableAddress(table=name, **client_settings("tables", settings))
    table = AzureTable(address, troubles=troubles)
    if address.connection_string:
        # This will raise an error now if the connection string is invalid.
        table.open()
    return table


class AzureTable(StorageService[TableClient]):
    """One table in a storage account. The first call opens the connections.

    Requires the role *Storage Table Data Contributor* on the table or the account. An agent needs
    only *Storage Table Data Reader* on the control table.
    """

    _setting = "BROADSIDE_TABLES"
    _named_by = "BROADSIDE_TABLES_CONTROL, _RESULTS or _PRIVATE"
    _role = "Storage Table Data Contributor"
    _trouble = OutageKind.TABLE_AWAY
    _refusal = TableError

    def _make_client(self) -> TableClient:
        pauses = {
            "retry_backoff_factor": self._bounds.backoff_s,
            "retry_backoff_max": self._bounds.backoff_max_s,
        }
        return self._make(TableClient, **self._bounds.tries, **pauses)

    def _rows(self, *rows: Entity) -> Callable[[Exception], ExchangeError | None]:
        """Return a function that maps an error of a call with these rows, in this order."""
        return lambda error: _expected_error(error, str(self), rows)

    # Rows -----------------------------------------------------------------------------------

    async def insert(self, entity: Entity) -> str:
        return await self._write(entity, TableClient.create_entity)

    async def upsert(self, entity: Entity) -> str:
        return await self._write(entity, TableClient.upsert_entity, mode=UpdateMode.REPLACE)

    async def replace(self, entity: Entity, etag: str) -> str:
        return await self._write(
            entity,
            TableClient.update_entity,
            mode=UpdateMode.REPLACE,
            etag=etag,
            match_condition=MatchConditions.IfNotModified,
        )

    async def _write(
        self, entity: Entity, write: Callable[..., Awaitable[Mapping[str, Any]]], **options: Any
    ) -> str:
        """Write one row and return the new ETag."""
        check_entity(entity)
        tries = _Tries()
        try:
            done = await self._call(
                lambda client: write(client, _sent(entity), **options, **tries.options),
                self._rows(entity),
            )
        except (EntityExists, EntityChanged):
            there = await self.get(entity.partition_key, entity.row_key) if tries.repeated else None
            if there is None or there.etag is None or there.properties != entity.properties:
                raise
            # An earlier attempt succeeded but its response was lost.
            return there.etag
        return str(done["etag"])

    async def get(self, partition_key: str, row_key: str) -> Entity | None:
        check_key(partition_key)
        check_key(row_key)
        try:
            entity = await self._call(
                lambda client: client.get_entity(partition_key, row_key), self._rows()
            )
        except EntityNotFound:
            return None
        self._require_keys(entity, partition_key, row_key)
        return _entity(entity)

    def _require_keys(
        self, row: Mapping[str, Any], partition_key: str, row_key: str | None = None
    ) -> None:
        """Raise :class:`ExchangeUnavailable` for a row that was not requested."""
        if row["PartitionKey"] != partition_key or row_key not in (None, row["RowKey"]):
            keys = f"{row['PartitionKey']}|{row['RowKey']}"
            raise ExchangeUnavailable(
                f"{self}: it returned row {keys[:200]}, not of {partition_key}|{row_key or '*'}"
            )

    async def scan(
        self,
        partition_key: str,
        *,
        row_from: str | None = None,
        row_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Entity]:
        check_key(partition_key)
        yielded_count = 0
        async for page in self._pages(partition_key, row_from, row_before, limit):
            for entity in page:
                self._require_keys(entity, partition_key)
                yield _entity(entity)
                yielded_count += 1
                if yielded_count == limit:
                    return

    async def _pages(
        self,
        partition_key: str,
        row_from: str | None = None,
        row_before: str | None = None,
        limit: int | None = None,
        *,
        select: list[str] | None = None,
    ) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """Yield the pages of the service, ordered by row key."""
        if limit is not None and limit <= 0:
            return
        bounds = {"PartitionKey eq": partition_key, "RowKey ge": row_from, "RowKey lt": row_before}
        async for page in self._query(bounds, limit, select):
            yield page

    async def _query(
        self, bounds: Mapping[str, str | None], limit: int | None, select: list[str] | None
    ) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        query = " and ".join(
            f"{what} {_quoted(key)}" for what, key in bounds.items() if key is not None
        )
        pages = (
            self.open()
            .query_entities(
                query,
                select=select,
                results_per_page=min(_PAGE_MAX_COUNT, limit or _PAGE_MAX_COUNT),
            )
            .by_page()
        )

        async def next_page(_: TableClient) -> list[Mapping[str, Any]] | None:
            page = await anext(pages, None)
            return None if page is None else [row async for row in page]

        while (page := await self._call(next_page, self._rows())) is not None:
            yield page

    async def delete(self, partition_key: str, row_key: str) -> bool:
        check_key(partition_key)
        check_key(row_key)
        tries = _Tries()
        await self._call(
            lambda client: client.delete_entity(partition_key, row_key, **tries.options),
            self._rows(),
        )
        # The SDK will ignore a 404, because the row might have been deleted by the first attempt.
        return tries.repeated or tries.status != _NOT_FOUND

    # Many rows ------------------------------------------------------------------------------

    async def batch(self, entities: Sequence[Entity]) -> None:
        for part in batches(entities):
            await self._transact(
                [("upsert", _sent(entity), {"mode": UpdateMode.REPLACE}) for entity in part],
                part,
            )

    async def next_partition(self, key_from: str, key_before: str) -> str | None:
        check_key(key_from)
        check_key(key_before)
        bounds = {"PartitionKey ge": key_from, "PartitionKey lt": key_before}
        async for page in self._query(bounds, 1, ["PartitionKey"]):
            for row in page:
                key = str(row["PartitionKey"])
                if not key_from <= key < key_before:
                    raise ExchangeUnavailable(f"{self}: it returned partition {key[:200]}")
                return key
        return None

    async def delete_partition(self, partition_key: str) -> int:
        check_key(partition_key)
        deleted_count = 0
        async for page in self._pages(partition_key, select=["PartitionKey", "RowKey"]):
            for row in page:
                self._require_keys(row, partition_key)
            for at in range(0, len(page), BATCH_MAX_COUNT):
                part = page[at : at + BATCH_MAX_COUNT]
                try:
                    await self._transact([("delete", row) for row in part])
                except EntityNotFound:
                    # Another process also deletes rows, or the response was lost.
                    for row in part:
                        await self.delete(partition_key, row["RowKey"])
                deleted_count += len(part)
        return deleted_count

    async def _transact(self, operations: list[Any], rows: Iterable[Entity] = ()) -> None:
        done = await self._call(
            lambda client: client.submit_transaction(operations, retry_on_methods=_METHODS),
            self._rows(*rows),
        )
        if len(done) != len(operations):
            raise ExchangeUnavailable(
                f"{self}: {len(done)} results for {len(operations)} operations of a change set"
            )


class _Tries:
    """Records the attempts of one SDK call.

    Attributes:
        status: Status of the newest response.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self._context: Mapping[str, Any] = {}

    @property
    def options(self) -> Mapping[str, Any]:
        """Return the arguments for the SDK call."""
        return {
            "retry_on_methods": _METHODS,
            "raw_request_hook": self._begin,
            "raw_response_hook": self._answered,
        }

    @property
    def repeated(self) -> bool:
        """Return True if the request was sent more than once. Valid after the call has ended."""
        return bool(self._context.get("history"))

    def _begin(self, request: Any) -> None:
        self._context = request.context

    def _answered(self, response: Any) -> None:
        self.status = response.http_response.status_code


# Rows on the wire ---------------------------------------------------------------------------


def _sent(entity: Entity) -> dict[str, Any]:
    """Return a row for the SDK. Without a type the SDK sends an int as 32 bits."""
    properties = {
        name: (value, EdmType.INT64)
        if isinstance(value, int) and not isinstance(value, bool)
        else value
        for name, value in entity.properties.items()
    }
    return {"PartitionKey": entity.partition_key, "RowKey": entity.row_key, **properties}


def _entity(entity: Mapping[str, Any]) -> Entity:
    properties = {name: _value(value) for name, value in entity.items()}
    return Entity(
        partition_key=str(properties.pop("PartitionKey")),
        row_key=str(properties.pop("RowKey")),
        properties=properties,
        etag=entity.metadata["etag"],  # type: ignore[attr-defined]  # a TableEntity of the SDK's
    )


def _value(value: Any) -> Value:
    match value:
        case EntityProperty():
            # Int64.
            return int(value.value)
        # A subclass in the SDK.
        case datetime():
            return datetime.combine(value.date(), value.timetz())
        case _:
            stored: Value = value
            return stored


def _quoted(key: str) -> str:
    """Return a key as a quoted string for a query."""
    return "'" + key.replace("'", "''") + "'"


# Errors -------------------------------------------------------------------------------------


def _expected_error(error: Exception, table: str, rows: Sequence[Entity]) -> ExchangeError | None:
    """Map an error to the affected row. In a batch the service reports the index of this row.

    The index can be missing: an outdated change set names no row.
    """
    status, code = getattr(error, "status_code", None), code_of(error)
    counted = _INDEX.match(getattr(error, "message", ""))
    at = int(counted[1]) if counted else 0 if len(rows) == 1 else len(rows)
    row = f"row {rows[at].partition_key}|{rows[at].row_key}" if at < len(rows) else table
    if status == _CONFLICT and code == "EntityAlreadyExists":
        return EntityExists(f"{row}: it already exists")
    if status == _PRECONDITION_FAILED:
        return EntityChanged(f"{row}: changed since it was read")
    if status == _NOT_FOUND:
        return EntityNotFound(f"{row}: not found")
    # Not one row is too large, but the request with all rows.
    if status == _TOO_LARGE:
        return EntityTooLarge(f"{table}: {error_text(error)}")
    if code in _SIZE_CODES:
        return EntityTooLarge(f"{row}: {error_text(error)}")
    return (
        TableError(f"{row}: the service refuses it: {error_text(error)}")
        if is_final(error)
        else None
    )
