"""Route for the receivers that are notified when a run ends."""

from collections.abc import Sequence
from enum import StrEnum

from fastapi import Request

from broadside.coordinator.api.dependencies import routes
from broadside.coordinator.notices.announcer import PlaceState
from broadside.exchange.messages import Message, UtcDatetime

router = routes("service")


class Delivery(StrEnum):
    """How it goes with a place."""

    # All ended runs have been delivered.
    IDLE = "idle"
    # A notice is being delivered.
    WAITING = "waiting"
    # The last attempt failed. It is repeated.
    FAILING = "failing"


class PlaceReport(Message):
    """How one place is told: its queue, and what stood in the way last."""

    # webhook or otlp
    place: str
    state: Delivery
    # Ended runs that are not delivered yet.
    waiting_count: int
    # Failed attempts since the last successful delivery.
    failures_count: int
    # Error of the last failed attempt. It is cleared by the next successful delivery.
    last_error: str | None
    last_error_at: UtcDatetime | None
    # Last successful delivery by this process.
    told_at: UtcDatetime | None

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
