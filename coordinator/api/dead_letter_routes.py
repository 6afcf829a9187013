"""Dead-letter queue routes."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from broadside.coordinator.api.dependencies import CurrentCoordinator, make_router
from broadside.coordinator.api.pagination import PAGED, Links, PageLimit, SequenceCursor
from broadside.coordinator.api.tabular_responses import rows_at
from broadside.coordinator.runs.dead_letters import DeadJob
from broadside.exchange.messages import Message

router = make_router("dead letters", "/v1/deadletters")


@router.get("", responses=PAGED)
async def list_dead_letters(
    links: Links,
    coordinator: CurrentCoordinator,
    run_id: Annotated[str | None, Query(max_length=63, description="id of a run")] = None,
    limit: PageLimit = 100,
    cursor: SequenceCursor = None,
) -> Sequence[DeadJob]:
    """List the oldest 1,000 dead letters, each with its cause and advice."""
    jobs = await coordinator.dead_letters.oldest(limit + 1, from_number=cursor or 0, run_id=run_id)
    following = jobs[limit].sequence_number if len(jobs) > limit else None
    links.name_next(following)
    return jobs[:limit]


class Purged(Message):
    """Result of a purge.

    Attributes:
        purged_count: If it is below the limit, only messages that another client has locked remain.
    """

    purged_count: int


@router.delete("")
async def delete_dead_letters(coordinator: CurrentCoordinator, limit: PageLimit = 1000) -> Purged:
    """Delete at most `limit` dead letters permanently, the oldest first."""
    return Purged(purged_count=await coordinator.dead_letters.purge_oldest(limit))


@router.get("/{sequence_number}", openapi_extra=rows_at("."))
async def read_dead_letter(sequence_number: int, coordinator: CurrentCoordinator) -> DeadJob:
    """Return one of the oldest 1,000 dead letters."""
    return await coordinator.dead_letters.read(sequence_number)


@router.delete("/{sequence_number}")
async def delete_dead_letter(sequence_number: int, coordinator: CurrentCoordinator) -> DeadJob:
    """Delete one of the oldest 1,000 dead letters permanently, and return it."""
    return await coordinator.dead_letters.purge(sequence_number)


@router.post("/{sequence_number}/resend")
async def resend_dead_letter(sequence_number: int, coordinator: CurrentCoordinator) -> DeadJob:
    """Put the job back on the queue. This fails if its start time has passed or it was claimed."""
    return await coordinator.dead_letters.resend(sequence_number)
