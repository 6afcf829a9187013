"""Queue, table and raw store of an agent, which uses a coordinator over HTTPS.

Methods that only coordinators need raise ``ExchangeRefused``.

All requests go through a :class:`~broadside.exchange.http.coordinator_client.CoordinatorClient`.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from broadside.exchange.documents import packed
from broadside.exchange.http.coordinator_client import CoordinatorClient
from broadside.exchange.limits import batches, check_entity, check_key
from broadside.exchange.messages import OutageKind
from broadside.exchange.ports import (
    DeadLetter,
    Delivery,
    Entity,
    ExchangeRefused,
    Outgoing,
    QueueCounts,
    RawName,
)
from broadside.exchange.records.keys import CONTROL
from broadside.exchange.row_text import entity_fields, entity_of


class HttpQueue:
    """:class:`~broadside.exchange.ports.JobQueue` at the coordinator. Jobs arrive on the stream."""

    def __init__(self, link: CoordinatorClient) -> None:
        self._link = link

    async def _call(self, do: str, **said: Any) -> Any:
        return await self._link.call(do, kind=OutageKind.QUEUE_AWAY, **said)

    async def send(self, messages: Sequence[Outgoing]) -> Sequence[int]:
        raise _coordinator_only("send")

    async def cancel(self, sequence_numbers: Sequence[int]) -> int:
        raise _coordinator_only("cancel")

    async def receive(self, wait_s: float) -> Delivery | None:
        fields = await self._link.receive(wait_s)
        return None if fields is None else _delivery(fields)

    async def complete(self, delivery: Delivery) -> None:
        await self._call("complete", token=_token(delivery))

    async def abandon(self, delivery: Delivery) -> None:
        await self._call("abandon", token=_token(delivery))

    async def renew(self, delivery: Delivery) -> Delivery:
        until_at = datetime.fromisoformat(await self._call("renew", token=_token(delivery)))
        return replace(delivery, locked_until_at=until_at)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self._call(
            "dead_letter", token=_token(delivery), reason=reason, description=description
        )

    async def dead_letters(self, limit: int = 100) -> Sequence[DeadLetter]:
        raise _coordinator_only("dead_letters")

    async def resend(self, sequence_number: int, expires_at: datetime) -> bool:
        raise _coordinator_only("resend")

    async def purge(self, sequence_number: int | None = None, *, limit: int = 1000) -> int:
        raise _coordinator_only("purge")

    async def ping(self) -> None:
        await self._call("ping")

    async def counts(self) -> QueueCounts:
        raise _coordinator_only("counts")

    async def close(self) -> None:
        await self._link.close()


def _token(delivery: Delivery) -> str:
    if not isinstance(delivery.token, str):
        raise TypeError(f"message {delivery.message_id}: not a delivery of this queue")
    return delivery.token


def _delivery(fields: Mapping[str, Any]) -> Delivery:
    return Delivery(
        body=base64.b64decode(fields["body"]),
        message_id=fields["message_id"],
        delivery_count=fields["delivery_count"],
        locked_until_at=datetime.fromisoformat(fields["locked_until_at"]),
        token=fields["token"],
    )


def _coordinator_only(operation: str) -> ExchangeRefused:
    return ExchangeRefused(f"{operation}: only a coordinator may do this; agents may not")


class HttpTable:
    """:class:`~broadside.exchange.ports.Table` at the coordinator."""

    def __init__(self, link: CoordinatorClient, name: str) -> None:
        self._link = link
        self._name = name

    async def _call(self, do: str, **said: Any) -> Any:
        return await self._link.call(do, table=self._name, **said)

    async def insert(self, entity: Entity) -> str:
        check_entity(entity)
        return str(await self._call("insert", row=entity_fields(entity)))

    async def upsert(self, entity: Entity) -> str:
        check_entity(entity)
        return str(await self._call("upsert", row=entity_fields(entity)))

    async def replace(self, entity: Entity, etag: str) -> str:
        raise _coordinator_only("replace")

    async def get(self, partition_key: str, row_key: str) -> Entity | None:
        check_key(partition_key)
        check_key(row_key)
        answer = await self._call("get", partition=partition_key, key=row_key)
        return None if answer is None else entity_of(answer["row"], answer["etag"])

    async def scan(
        self,
        partition_key: str,
        *,
        row_from: str | None = None,
        row_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Entity]:
        check_key(partition_key)
        left_count = limit
        while left_count is None or left_count > 0:
            page = await self._call(
                "scan",
                partition=partition_key,
                row_from=row_from,
                row_before=row_before,
                limit=left_count,
            )
            for answer in page["rows"]:
                yield entity_of(answer["row"], answer["etag"])
            if (row_from := page["next"]) is None:
                return
            left_count = None if left_count is None else left_count - len(page["rows"])

    async def delete(self, partition_key: str, row_key: str) -> bool:
        check_key(partition_key)
        check_key(row_key)
        return bool(await self._call("delete", partition=partition_key, key=row_key))

    async def batch(self, entities: Sequence[Entity]) -> None:
        for part in batches(entities):
            await self._call("batch", rows=[entity_fields(entity) for entity in part])

    async def next_partition(self, key_from: str, key_before: str) -> str | None:
        raise _coordinator_only("next_partition")

    async def delete_partition(self, partition_key: str) -> int:
        raise _coordinator_only("delete_partition")

    async def close(self) -> None:
        await self._link.close()


class WatchedTable(HttpTable):
    """Control table for an agent. The coordinator pushes the control row of a run.

    The row is at most 0.3 s old. If nothing has arrived from the coordinator for 6 s, the row will
    be read again.
    """

    async def get(self, partition_key: str, row_key: str) -> Entity | None:
        if row_key == CONTROL:
            return await self._link.watched(partition_key)
        return await super().get(partition_key, row_key)


class HttpRaw:
    """:class:`~broadside.exchange.ports.RawStore` at the coordinator. Texts are sent compressed."""

    def __init__(self, link: CoordinatorClient) -> None:
        self._link = link

    async def save(self, name: RawName, text: bytes) -> None:
        deflated = await asyncio.to_thread(packed, text)
        await self._link.request("PUT", _path(name), deflated)

    async def read(self, name: RawName) -> bytes | None:
        raise _coordinator_only("read of raw output")

    async def delete_folder(self, folder: str) -> int:
        raise _coordinator_only("delete_folder")

    async def close(self) -> None:
        await self._link.close()


def _path(name: RawName) -> str:
    return f"raw/{quote(name.folder, safe='')}/{quote(name.file, safe='')}"
