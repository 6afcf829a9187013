"""Service Bus messages, batches, errors and ``$management`` requests in AMQP."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from broadside.lab.servicebus import amqp
from broadside.lab.servicebus.amqp import (
    AmqpSymbol,
    AmqpValue,
    Code,
    Described,
    Timestamp,
    UByte,
    UInt,
    ULong,
)
from broadside.lab.servicebus.queues import Queue, QueuedMessage, Sent, Settlement

LOCK_LOST: Final = "com.microsoft:message-lock-lost"
SERVER_BUSY: Final = "com.microsoft:server-busy"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
TOO_LARGE: Final = "amqp:link:message-size-exceeded"
QUOTA: Final = "amqp:resource-limit-exceeded"
CONNECTION_FORCED: Final = "amqp:connection:forced"
CONNECTION_REDIRECT: Final = "amqp:connection:redirect"
LINK_REDIRECT: Final = "amqp:link:redirect"

LOCK_LOST_TEXT: Final = (
    "The lock supplied is invalid. Either the lock expired, or the message has already been "
    "removed from the queue."
)
# Text from the service with the time to wait (learn.microsoft.com, "Throttling operations").
BUSY_TEXT: Final = (
    "The request was terminated because the entity is being throttled. Error code : 50009. "
    "Please wait {wait_s:g} seconds and try again."
)

_OURS: Final = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-scheduled-enqueue-time",
    }
)


def error(condition: str, text: str, info: Mapping[str, AmqpValue] | None = None) -> Described:
    """Return an AMQP error.

    The info map is always included, because the SDK reads the third field.

    Args:
        condition: Condition of the error.
        text: Description.
        info: More fields, or ``None`` for a default.
    """
    fields = {AmqpSymbol(name): value for name, value in (info or {"lab": "broadside"}).items()}
    return Described(ULong(Code.ERROR), [AmqpSymbol(condition), text, fields])


def full(queue: Queue) -> str:
    """Return the error text for a send to a full queue (Azure/azure-service-bus, issue 683)."""
    limit = queue.settings.max_size_bytes
    return (
        f"The maximum entity size has been reached or exceeded for Queue: '{queue.path}'. "
        f"Max entity size in bytes:{limit}. QuotaType: EntitySize"
    )


# Messages -----------------------------------------------------------------------------------


def split_batch(raw: bytes, message_format: int) -> list[bytes]:
    """Return the messages in a transfer, which can be a batch.

    Args:
        raw: Payload of the transfer.
        message_format: Format field of the transfer.
    """
    if message_format != amqp.BATCH_FORMAT:
        return [raw]
    return [section.value for section in amqp.sections(raw) if section.code == Code.DATA]


def read_message(raw: bytes) -> Sent:
    """Return a decoded message from a sender. Raises WireError."""
    content, annotations, application = [], {}, {}
    message_id = ttl_s = due_ms = None
    for section in amqp.sections(raw):
        match section.code:
            case Code.HEADER:
                ttl_ms = (section.value + [None] * 3)[2]
                ttl_s = None if ttl_ms is None else max(0, int(ttl_ms)) / 1000
            case Code.ANNOTATIONS:
                due_ms = section.value.get("x-opt-scheduled-enqueue-time")
                annotations = {k: v for k, v in section.value.items() if k not in _OURS}
            case Code.APPLICATION_PROPERTIES:
                application = section.value
            case Code.DELIVERY_ANNOTATIONS:
                # This section is only for the first hop.
                pass
            case _:
                if section.code == Code.PROPERTIES and section.value:
                    message_id = None if section.value[0] is None else str(section.value[0])
                content.append(section.raw)
    return Sent(
        content=b"".join(content),
        message_id=message_id,
        annotations=annotations,
        application=application,
        ttl_s=ttl_s,
        enqueue_at_s=None if due_ms is None else int(due_ms) / 1000,
    )


def write_message(message: QueuedMessage) -> bytes:
    """Return a message as it is sent to a receiver."""
    sent = message.sent
    ttl = None if sent.ttl_s is None else UInt(min(round(sent.ttl_s * 1000), 0xFFFF_FFFF))
    annotations = {
        **sent.annotations,
        AmqpSymbol("x-opt-sequence-number"): message.sequence_number,
        AmqpSymbol("x-opt-enqueued-time"): Timestamp(message.enqueued_at_s * 1000),
        AmqpSymbol("x-opt-message-state"): amqp.Int(message.state),
    }
    if message.lock_token is not None:
        annotations[AmqpSymbol("x-opt-locked-until")] = Timestamp(message.locked_until_s * 1000)
    header = [True, UByte(4), ttl, None, UInt(message.delivery_count)]
    return b"".join(
        (
            amqp.performative(Code.HEADER, header),
            amqp.encode(Described(ULong(Code.ANNOTATIONS), annotations)),
            amqp.encode(Described(ULong(Code.APPLICATION_PROPERTIES), sent.application))
            if sent.application
            else b"",
            sent.content,
        )
    )


# Requests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManagementResponse:
    """Response to a ``$management`` request.

    Attributes:
        status: Status code.
        text: Description of the status.
        body: Body of the response.
        condition: Error condition, or ``None``.
    """

    status: int
    text: str = "OK"
    body: AmqpValue = None
    condition: str | None = None


_LOST: Final = ManagementResponse(410, LOCK_LOST_TEXT, condition=LOCK_LOST)


def manage(
    queue: Queue, operation: str, body: AmqpValue, size_bytes: int, now: float
) -> ManagementResponse:
    """Handle a ``$management`` request.

    The service does not respond to a request that is too large, so that it times out
    (github.com/Azure/azure-service-bus, issue 697). Here it is rejected at once.

    Args:
        queue: Queue to use.
        operation: Name of the operation, such as ``com.microsoft:peek-message``.
        body: Body of the request.
        size_bytes: Size of the request in bytes.
        now: Current time in epoch seconds.

    Returns:
        The answer with its status and body.
    """
    if size_bytes > queue.settings.max_message_bytes:
        limit = f"A request may carry {queue.settings.max_message_bytes} bytes."
        return ManagementResponse(400, limit, condition=TOO_LARGE)
    carry_out = _OPERATIONS.get(operation.removeprefix("com.microsoft:"))
    if carry_out is None:
        text = f"{operation} is not implemented here."
        return ManagementResponse(501, text, condition="amqp:not-implemented")
    return carry_out(queue, body, now)


def _renew(queue: Queue, body: AmqpValue, now: float) -> ManagementResponse:
    ends = [queue.renew(token, now) for token in body["lock-tokens"]]
    stored = [Timestamp(end * 1000) for end in ends if end is not None]
    return (
        ManagementResponse(200, body={"expirations": amqp.Array(stored)})
        if len(stored) == len(ends)
        else _LOST
    )


def _schedule(queue: Queue, body: AmqpValue, now: float) -> ManagementResponse:
    if queue.is_full:
        return ManagementResponse(403, full(queue), condition=QUOTA)
    raws = [item["message"] for item in body["messages"]]
    numbers = [queue.send(sent, now) for sent in map(read_message, raws)]
    return ManagementResponse(200, body={"sequence-numbers": amqp.Array(numbers)})


def _cancel(queue: Queue, body: AmqpValue, now: float) -> ManagementResponse:
    if queue.cancel(body["sequence-numbers"], now):
        return ManagementResponse(200)
    text = "The scheduled message does not exist."
    return ManagementResponse(404, text, condition="com.microsoft:message-not-found")


def _peek(queue: Queue, body: AmqpValue, now: float) -> ManagementResponse:
    queue.advance(now)
    result = queue.peek(body["from-sequence-number"], body["message-count"])
    if not result:
        return ManagementResponse(204, "No messages.", condition="com.microsoft:no-content")
    max_message_bytes = queue.settings.max_message_bytes
    messages = []
    for raw in map(write_message, result):
        messages.append({"message": raw})
        max_message_bytes -= len(raw)
        if max_message_bytes <= 0:
            break
    return ManagementResponse(200, body={"messages": messages})


def _settle(queue: Queue, body: AmqpValue, now: float) -> ManagementResponse:
    how = {
        "completed": Settlement.COMPLETE,
        "abandoned": Settlement.ABANDON,
        "suspended": Settlement.DEAD_LETTER,
    }[body["disposition-status"]]
    why = (body.get("deadletter-reason"), body.get("deadletter-description"))
    tokens: list[UUID] = body["lock-tokens"]
    stored = [queue.settle(token, how, now, *why) for token in tokens]
    return ManagementResponse(200) if all(stored) else _LOST


_OPERATIONS: Final[dict[str, Callable[[Queue, AmqpValue, float], ManagementResponse]]] = {
    "renew-lock": _renew,
    "schedule-message": _schedule,
    "cancel-scheduled-message": _cancel,
    "peek-message": _peek,
    "update-disposition": _settle,
}
