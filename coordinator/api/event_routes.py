"""Run event stream for the live page."""

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from broadside.coordinator.api.dependencies import app_state
from broadside.coordinator.api.problems import PROBLEMS
from broadside.coordinator.auth.principal import Access, KeysUnavailable, NoRole, NotSignedIn
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.views.feeds import Feed, Feeds
from broadside.exchange.ports import ExchangeError

# Minimum time between two token checks for a stream.
CHECK_S: Final = 2.0

router = APIRouter(prefix="/v1", responses=PROBLEMS, tags=["runs"])


async def _feed(
    run_id: str,
    feeds: Annotated[Feeds, app_state("feeds")],
    burst: Annotated[
        int | None,
        Query(ge=1, le=10_000, description="number from 1; default: the current burst"),
    ] = None,
) -> Feed:
    """Open the feed before the stream begins, so that an unknown run is a problem document."""
    return await feeds.open(run_id, None if burst is None else burst - 1)


async def _is_still_signed_in(request: Request) -> bool:
    """Return False if the token is no longer valid.

    If keys or tokens cannot be read, the stream will continue.
    """
    sign_in: SignIn | None = request.app.state.sign_in
    if sign_in is None:
        return True
    try:
        principal = await sign_in.identify(request.headers.get("authorization"))
    except (NotSignedIn, NoRole):
        return False
    except (KeysUnavailable, ExchangeError):
        return True
    return principal.may(Access.VIEWER)


@router.get("/runs/{run_id}/events", response_class=EventSourceResponse)
async def read_run_events(
    request: Request,
    feed: Annotated[Feed, Depends(_feed)],
    last_event_id: Annotated[str | None, Header(max_length=64)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Stream server-sent events until the run has a verdict.

    Events: `begin` (drop all earlier data), `status`, `seconds` (new or changed ones), `figures`
    (headline so far), `counter`, `finding` and `summary`. A comment is sent after five seconds
    without an event. With `Last-Event-ID`, only later changes are sent. The stream ends within 15
    seconds after its token expires or is revoked.
    """
    checked_s = time.monotonic()
    async with contextlib.aclosing(feed.follow(last_event_id)) as events:
        # The feed yields at least one event for each heartbeat interval.
        async for event in events:
            if time.monotonic() - checked_s >= CHECK_S:
                if not await _is_still_signed_in(request):
                    return
                checked_s = time.monotonic()
            if event.name is None:
                yield ServerSentEvent(comment="beat")
            else:
                yield ServerSentEvent(event=event.name, raw_data=event.data, id=event.id)
