"""Who has the device: one study a switch, and nobody else's traffic under a study's trial.

A study takes its switch by a row that only one can create, and has it until it ends. Runs that are
not the study's cannot be held off, so they are looked for: before a trial they are waited for, and
after it they are named.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.neighbours import bursts_within
from broadside.exchange.messages import Message, RunId, UtcDatetime
from broadside.exchange.ports import EntityExists, Table
from broadside.exchange.records.keys import SWITCHES
from broadside.exchange.records.shelf import Shelf

Span = tuple[datetime, datetime]


class Turn(Message):
    """Whose a switch is, for as long as that study is open."""

    study_id: RunId
    taken_at: UtcDatetime
    threw: bool = False  # it put the device into a state, or tried to
    state: str | None = None  # that the device was put into; None: unknown, or never


class Turns:
    """Gives switches to studies. A row stays: that of a study that is over holds nobody up."""

    def __init__(self, table: Table, is_open: Callable[[str], Awaitable[bool]]) -> None:
        self._shelf = Shelf(table, SWITCHES, Turn)
        self._is_open = is_open

    async def take(self, switch: str, study_id: str, now: datetime) -> str:
        """Take the switch unless another open study has it; say whose it is now."""
        own = Turn(study_id=study_id, taken_at=now)
        try:
            await self._shelf.create(switch, own)
        except EntityExists:
            there = await self._shelf.read(switch)
            if there is not None and await self._is_open(there.study_id):
                return there.study_id
            turn = await self._shelf.change(switch, lambda turn: own if turn == there else turn)
            return turn.study_id
        return study_id

    async def note(self, switch: str, state: str | None) -> None:
        """The study that has the switch put it into a state; None: it is about to throw it."""
        noted = {"threw": True, "state": state}
        await self._shelf.change(switch, lambda turn: turn.model_copy(update=noted))

    async def read(self, switch: str, study_id: str) -> Turn | None:
        """The study's turn; None when the switch is not the study's."""
        turn = await self._shelf.read(switch)
        return turn if turn is not None and turn.study_id == study_id else None


async def other_runs(
    coordinator: Coordinator, study_id: str, spans: Sequence[Span]
) -> Mapping[str, datetime]:
    """Runs outside the study that cross the device within one of the spans, and until when."""
    found: dict[str, datetime] = {}
    records, read_plan = coordinator.fabric.records, coordinator.stored.read_plan
    first_at, last_at = min(start for start, _ in spans), max(end for _, end in spans)
    for plan, burst in await bursts_within(records, read_plan, first_at, last_at):
        run_id, start_at, end_at = plan.run_id, burst.planned_start_at, burst.planned_end_at
        is_imported = start_at < plan.created_at
        if is_imported or plan.spec.bypasses_device or run_id.startswith(f"{study_id}-"):
            continue
        if (ended_at := await coordinator.ended_at(run_id)) is not None:
            end_at = min(end_at, ended_at)
        sent = start_at < end_at
        if sent and any(start_at < before_at and end_at > from_at for from_at, before_at in spans):
            found[run_id] = max(end_at, found.get(run_id, end_at))
    return found
