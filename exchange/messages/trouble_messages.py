"""Spells of trouble with the services between coordinator and agents."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import (
    Field,
)

from exchange.messages.message_base import Message, UtcDatetime

TROUBLES_MAX_COUNT: Final = 16  # spells that one report may carry, the newest


class TroubleKind(StrEnum):
    """What may go wrong with the services between coordinator and agents."""

    QUEUE_AWAY = "queue_away"  # attempts at the queue failed
    TABLE_AWAY = "table_away"  # attempts at the table failed
    RAW_AWAY = "raw_away"  # attempts at the store of raw output failed
    SPOOLED = "spooled"  # writes waited on the agent's disk
    LOST = "lost"  # writes found no room there, or could not be written
    DUPLICATE = "duplicate"  # a second delivery of a job that somebody has was dropped
    FORGED = "forged"  # a message was refused that is no job of its run's plan
    UNREADABLE = "unreadable"  # a message or row that nobody can read was set aside
    CLOCK_STEPPED = "clock_stepped"  # the host's wall clock was set
    TICK_FAILED = "tick_failed"  # the coordinator could not look after its runs


class Trouble(Message):
    """One spell of trouble that a process lived through, by its own clock."""

    kind: TroubleKind
    from_at: UtcDatetime
    to_at: UtcDatetime | None = None  # None: it was not over when this was told
    count: Annotated[int, Field(ge=1, lt=2**63)]  # failed attempts, rows that waited, duplicates


Troubles = Annotated[tuple[Trouble, ...], Field(max_length=TROUBLES_MAX_COUNT)]


def _over_by(at: datetime, troubles: tuple[Trouble, ...]) -> tuple[Trouble, ...]:
    return tuple(
        trouble.model_copy(update={"to_at": at}) if trouble.to_at is None else trouble
        for trouble in troubles
    )
