"""Route of the places that are told when a run ends."""

from collections.abc import Sequence
from enum import StrEnum

from fastapi import Request

from broadside.coordinator.api.dependencies import routes
from broadside.coordinator.notices.announcer import PlaceState
from broadside.exchange.messages import Message, UtcDatetime

router = routes("service")


class Delivery(StrEnum):
    """How it goes with a place."""

    IDLE = "idle"  # it was told of all that ended
    WAITING = "waiting"  # it is told of something just now
    FAILING = "failing"  # it did not take the last notice; it is tried again


class PlaceReport(Message):
    """How one place is told: its queue, and what stood in the way last."""

    place: str  # webhook or otlp
    state: Delivery
    waiting_count: int  # ended runs that it was not told of yet
    failures_count: int  # tries in vain since the last notice that it took
    last_error: str | None  # of the last try in vain; kept until the next notice that it takes
    last_error_at: UtcDatetime | None
    told_at: UtcDatetime | None  # the last notice that it took, of this coordinator

    @classmethod
    def of(cls, told: PlaceState) -> "PlaceReport":
        state = Delivery.WAITING if told.waiting_count else Delivery.IDLE
        return cls(
            place=told.name,
            state=Delivery.FAILING if told.failures_count else state,
            waiting_count=told.waiting_count,
            failures_count=told.failures_count,
            last_error=told.last_error,
            last_error_at=told.last_error_at,
            told_at=told.told_at,
        )


@router.get("/notices")
async def list_notices(request: Request) -> Sequence[PlaceReport]:
    """The places that are told when a run ends, each with its queue and its last error."""
    return [PlaceReport.of(state) for state in request.app.state.announcer.states]
