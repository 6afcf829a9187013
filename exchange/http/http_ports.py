"""Queue, table and raw store that use a coordinator over HTTPS.

All requests go through a :class:`~broadside.exchange.http.coordinator_client.CoordinatorClient`.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from broadside.exchange.documents import inflate, packed
from broadside.exchange.http.coordinator_client import CoordinatorClient
from broadside.exchange.limits import (
    batches,
    check_entity,
    check_key,
    check_message,
    message_bytes,
    split,
)
from broadside.exchange.messages import OutageKind
from broadside.exchange.ports import DeadLetter, Delivery, Entity, Outgoing, QueueCounts, RawName
from broadside.exchange.records.keys import CONTROL
from broadside.exchange.row_text import entity_fields, entity_of

# Maximum bytes of messages in one operation.
_SEND_BYTES: Final = 2 * 2**20


class HttpQueue:
    """:class:`~broadside.exchange.ports.JobQueue` at the coordinator. Jobs arrive on the stream."""

    def __init__(self, link: CoordinatorClient) -> None:
        self._link = link

    async def _call(self, do: str, **said: Any) -> Any:
        return await self._link.call(do, kind=OutageKind.QUEUE_AWAY, **said)

    async def send(self, messages: Sequence[Outgoing]) -> Sequence[int]:
        for message in messages:
            check_message(message)
        numbers: list[int] = []
        for part in split(messages, message_bytes, _SEND_BYTES):
            numbers += await self._call("send", messages=[_outgoing_fields(item) for item in part])
        return numbers

    async def cancel(self, sequence_numbers: Sequence[int]) -> int:
        return int(await self._call("cancel", numbers=list(sequence_numbers)))

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
        return [_dead_letter(fields) for fields in await self._call("dead_letters", limit=limit)]

    async def resend(self, sequence_number: int, expires_at: datetime) -> bool:
        return bool(
            await self._call("resend", number=sequence_number, expires_at=expires_at.isoformat())
        )

    async def purge(self, sequence_number: int | None = None, *, limit: int = 1000) -> int:
        return int(await self._call("purge", number=sequence_number, limit=limit))

    async def ping(self) -> None:
        await self._call("ping")

    async def counts(self) -> QueueCounts:
        return QueueCounts(**await self._call("counts"))

    async def close(self) -> None:
        await self._link.close()


def _token(delivery: Delivery) -> str:
    if not isinstance(delivery.token, str):
        raise TypeError(f"message {delivery.message_id}: not a delivery of this queue")
    return delivery.token


def _outgoing_fields(message: Outgoing) -> dict[str, Any]:
    return {
        "body": base64.b64encode(message.body).decode(),
        "message_id": message.message_id,
        "expires_at": message.expires_at.isoformat(),
        "enqueue_at": message.enqueue_at and message.enqueue_at.isoformat(),
    }


def _delivery(fields: Mapping[str, Any]) -> Delivery:
    return Delivery(
        body=base64.b64decode(fields["body"]),
        message_id=fields["message_id"],
        delivery_count=fields["delivery_count"],
        locked_until_at=datetime.fromisoformat(fields["locked_until_at"]),
        token=fields["token"],
    )


def _dead_letter(fields: Mapping[str, Any]) -> DeadLetter:
    dead_at = fields["dead_at"]
    return DeadLetter(
        sequence_number=fields["sequence_number"],
        body=base64.b64decode(fields["body"]),
        message_id=fields["message_id"],
        reason=fields["reason"],
        description=fields["description"],
        dead_at=None if dead_at is None else datetime.fromisoformat(dead_at),
    )


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
        check_entity(entity)
        return str(await self._call("replace", row=entity_fields(entity), etag=etag))

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
        check_key(key_from)
        check_key(key_before)
        key = await self._call("next_partition", key_from=key_from, key_before=key_before)
        return None if key is None else str(key)

    async def delete_partition(self, partition_key: str) -> int:
        check_key(partition_key)
        return int(await self._call("delete_partition", partition=partition_key))

    async def close(self) -> None:
        await self._link.close()


class WatchedTable(HttpTable):
    """Control table for an agent. The coordinator pushes the control row of a run.

    The row is at most 0.3 s old. If nothing has arrived from the coordinator for 6 s, the row is
    read again.
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
        response = await self._link.request("GET", _path(name))
        if response.status_code == 404:
            return None
        return await asyncio.to_thread(inflate, response.content, f"output {name}")

    async def delete_folder(self, folder: str) -> int:
        check_key(folder)
        answer = await self._link.call("delete_folder", kind=OutageKind.RAW_AWAY, folder=folder)
        return int(answer)

    async def close(self) -> None:
        await self._link.close()


def _path(name: RawName) -> str:
    return f"raw/{quote(name.folder, safe='')}/{quote(name.file, safe='')}"
