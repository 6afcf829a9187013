"""Dead-letter queue routes."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from broadside.coordinator.api.dependencies import Service, routes
from broadside.coordinator.api.row_answers import rows_in
from broadside.coordinator.runs.dead_letters import DeadJob
from broadside.exchange.messages import Message

router = routes("dead letters", "/v1/deadletters")


@router.get("")
async def list_dead_letters(
    coordinator: Service, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Sequence[DeadJob]:
    """The oldest messages that were set aside, with what to do about each."""
    return await coordinator.dead_letters.oldest(limit)


class Purged(Message):
    """What a purge removed."""

    # If it is below the limit, only messages that another client has locked remain.
    purged_count: int


@router.delete("")
async def purge_dead_letters(
    coordinator: Service, limit: Annotated[int, Query(ge=1, le=1000)] = 1000
) -> Purged:
    """Remove dead letters for good, the oldest first, at most ``limit``."""
    return Purged(purged_count=await coordinator.dead_letters.purge_oldest(limit))


@router.get("/{sequence_number}", openapi_extra=rows_in("."))
async def read_dead_letter(sequence_number: int, coordinator: Service) -> DeadJob:
    """One of the oldest thousand."""
    return await coordinator.dead_letters.read(sequence_number)


@router.delete("/{sequence_number}")
async def purge_dead_letter(sequence_number: int, coordinator: Service) -> DeadJob:
    """Remove one of the oldest thousand for good; the answer says what it was."""
    return await coordinator.dead_letters.purge(sequence_number)


@router.post("/{sequence_number}/resend")
async def resend_dead_letter(sequence_number: int, coordinator: Service) -> DeadJob:
    """Put its job back on the queue, as long as its instant is to come and nobody has it."""
    return await coordinator.dead_letters.resend(sequence_number)
