"""The event stream of a run: what the live page reads."""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from broadside.coordinator.api.dependencies import kept
from broadside.coordinator.api.problems import PROBLEMS
from broadside.coordinator.views.feeds import Feed, Feeds

router = APIRouter(prefix="/v1", responses=PROBLEMS, tags=["runs"])


async def _feed(
    run_id: str,
    feeds: Annotated[Feeds, kept("feeds")],
    burst_index: Annotated[
        int | None, Query(ge=0, le=9999, description="one burst; left out: the one under way")
    ] = None,
) -> Feed:
    """Found before the stream begins, so that an unknown run is a problem document."""
    return await feeds.open(run_id, burst_index)


@router.get("/runs/{run_id}/events", response_class=EventSourceResponse)
async def read_events(
    feed: Annotated[Feed, Depends(_feed)],
    last_event_id: Annotated[str | None, Header(max_length=64)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events until the run has its verdict.

    `begin` (whoever had something forgets it), `status`, `seconds` (those that are new or have
    changed), `figures` (the headline so far), `ledger`, `finding`, `summary`; a comment every five
    seconds of silence. With `Last-Event-ID` only what has changed since.
    """
    async with contextlib.aclosing(feed.follow(last_event_id)) as events:
        async for event in events:
            if event.name is None:
                yield ServerSentEvent(comment="beat")
            else:
                yield ServerSentEvent(event=event.name, raw_data=event.data, id=event.id)
