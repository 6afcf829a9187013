"""Exclusive use of a switch by one study, and a check for traffic from other runs.

A study takes its switch with a row that can only be created once, and uses it until the end. Other
runs cannot be stopped. Before a trial, the study will wait for their end. After a trial, they will
be listed in the result.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from broadside.coordinator.runs.overlapping_runs import planned_bursts
from broadside.exchange.messages import Message, RunId, UtcDatetime, renamed
from broadside.exchange.ports import EntityExists, Table
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import SWITCHES

if TYPE_CHECKING:
    from broadside.coordinator.runs.coordinator import Coordinator

LockPeriod = tuple[datetime, datetime]


class SwitchLock(Message):
    """Row of a switch with the study that uses it.

    Attributes:
        study_id: The study.
        taken_at: Time when it took the switch.
        switched: True if it has set a state, or tried to.
        state: State that was set, or None if unknown or not set.
    """

    study_id: RunId
    taken_at: UtcDatetime
    switched: Annotated[bool, renamed("switched", "threw")] = False
    state: str | None = None


class SwitchLocks:
    """Assignment of switches to studies. A row stays, but is free when the study has ended."""

    def __init__(self, table: Table, is_open: Callable[[str], Awaitable[bool]]) -> None:
        self._shelf = Collection(table, SWITCHES, SwitchLock)
        self._is_open = is_open

    async def take(self, switch: str, study_id: str, now: datetime) -> str:
        """Take a switch, unless it is used by another open study.

        Args:
            switch: Switch name.
            study_id: The study.
            now: Current time to use.

        Returns:
            Id of the study that has the switch now.
        """
        lock = SwitchLock(study_id=study_id, taken_at=now)
        try:
            await self._shelf.create(switch, lock)
        except EntityExists:
            stored = await self._shelf.read(switch)
            if stored is not None and await self._is_open(stored.study_id):
                return stored.study_id
            taken = await self._shelf.change(
                switch, lambda now_stored: lock if now_stored == stored else now_stored
            )
            return taken.study_id
        return study_id

    async def note(self, switch: str, state: str | None) -> None:
        """Store the state of a switch.

        Args:
            switch: Switch name.
            state: The new state, or None if a command is about to run.
        """
        update = {"switched": True, "state": state}
        await self._shelf.change(switch, lambda lock: lock.model_copy(update=update))

    async def read(self, switch: str, study_id: str) -> SwitchLock | None:
        """Return the row of a switch.

        Args:
            switch: Switch name.
            study_id: The study.

        Returns:
            The row. None if this study does not use the switch.
        """
        lock = await self._shelf.read(switch)
        return lock if lock is not None and lock.study_id == study_id else None


async def other_runs(
    coordinator: "Coordinator", study_id: str, spans: Sequence[LockPeriod]
) -> Mapping[str, datetime]:
    """Find runs outside the study with traffic through the device.

    Args:
        coordinator: The coordinator to use.
        study_id: The study to leave out.
        spans: Time spans to check.

    Returns:
        End of traffic by run id.
    """
    ends: dict[str, datetime] = {}
    records, read_plan = coordinator.fabric.records, coordinator.stored.read_plan
    first_at, last_at = min(start for start, _ in spans), max(end for _, end in spans)
    for plan, burst in await planned_bursts(records, read_plan, first_at, last_at):
        run_id, start_at, end_at = plan.run_id, burst.planned_start_at, burst.planned_end_at
        is_imported = start_at < plan.created_at
        if is_imported or plan.spec.bypasses_device or run_id.startswith(f"{study_id}-"):
            continue
        if (ended_at := await coordinator.ended_at(run_id)) is not None:
            end_at = min(end_at, ended_at)
        sent = start_at < end_at
        if sent and any(start_at < before_at and end_at > from_at for from_at, before_at in spans):
            ends[run_id] = max(end_at, ends.get(run_id, end_at))
    return ends
