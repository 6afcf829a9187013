"""Reads a source until its figures for a run stop changing, and not for ever."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.device.ledgers.source import LedgerBusy, LedgerError, LedgerSource
from broadside.exchange.messages import Direction

log = logging.getLogger(__name__)

_READ_MAX_S: Final = 60.0  # s of one read
_AGAIN_S: Final = 5.0  # s from a failed read to the next, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What is to be known of which run."""

    run_id: str
    from_at: datetime  # of the bins that are read
    before_at: datetime
    begun_at: datetime  # of the traffic, which must be known
    ended_at: datetime
    direction: Direction

    @property
    def empty(self) -> bool:
        """Whether the run ended before it began: nothing is worth waiting for."""
        return self.ended_at <= self.begun_at

    def since(self, from_s: float | None) -> "Span":
        """Without what lies before an instant, epoch s, that is told."""
        if from_s is None:
            return self
        return replace(self, from_at=max(self.from_at, datetime.fromtimestamp(from_s, UTC)))


@dataclass(slots=True, kw_only=True)
class _Reading:
    """One run's ledger on its way to rest."""

    next_at: datetime
    until_at: datetime  # when patience is over
    draft: FirewallLedger | None = None
    task: "asyncio.Task[FirewallLedger] | None" = None


@dataclass(slots=True)
class Settling:
    """The ledgers of runs that are over, each read until two reads agree."""

    source: LedgerSource
    now: Callable[[], datetime]
    glance_s: float = 0.5  # that a caller may wait for a read: it has leases to renew
    _readings: dict[str, _Reading] = field(default_factory=dict)

    async def read(self, span: Span) -> FirewallLedger | None:
        """The run's figures once they are at rest; None while it is worth coming back.

        Quick: the source is read in the background. When its patience is over the figures are
        returned as they are, with a note that says so, or without a bin where none can be read.
        """
        if span.run_id not in self._readings:
            self._readings[span.run_id] = self._begin(span)
        reading = self._readings[span.run_id]
        if reading.task is None:
            if self.now() < reading.next_at:
                return None
            reading.task = asyncio.create_task(self._ask(span))
        done, _ = await asyncio.wait([reading.task], timeout=self.glance_s)
        if not done:
            return None
        task, reading.task = reading.task, None
        ledger = self._judge(span, reading, task)
        if ledger is not None:
            del self._readings[span.run_id]
        return ledger

    async def close(self) -> None:
        """End what is still being read."""
        tasks = [reading.task for reading in self._readings.values() if reading.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._readings.clear()

    def _begin(self, span: Span) -> _Reading:
        """Who takes up a run long after its end has all its patience still."""
        wait = self.source.freshness
        first_s = wait.settle_s if wait.poll_s is None else min(wait.poll_s, wait.settle_s)
        next_at = max(span.ended_at + timedelta(seconds=first_s), self.now())
        return _Reading(
            next_at=next_at, until_at=next_at + timedelta(seconds=wait.patience_s - first_s)
        )

    async def _ask(self, span: Span) -> FirewallLedger:
        try:
            async with asyncio.timeout(_READ_MAX_S):
                return await self.source.read(span.from_at, span.before_at, span.direction)
        except TimeoutError as error:
            raise LedgerError(f"the ledger did not answer within {_READ_MAX_S:g} s") from error
        except LedgerError:
            raise
        except Exception as error:  # a fault of one source's must not end the care for all runs
            log.exception("ledger", extra={"action": "ledger", "run_id": span.run_id})
            raise LedgerError(f"the ledger's answer makes no sense: {error!r}") from error

    def _judge(
        self, span: Span, reading: _Reading, task: "asyncio.Task[FirewallLedger]"
    ) -> FirewallLedger | None:
        wait, now = self.source.freshness, self.now()
        over = now >= reading.until_at
        try:
            ledger = task.result()
        except LedgerError as error:
            log.warning("ledger: %s", error, extra={"action": "ledger", "run_id": span.run_id})
            if over:
                return _nothing(reading.draft, str(error), now)
            pause_s = max(_AGAIN_S, wait.poll_s or 0.0)
            if isinstance(error, LedgerBusy):
                pause_s = max(pause_s, error.retry_after_s)
            reading.next_at = now + timedelta(seconds=pause_s)
            return None
        if wait.poll_s is None or span.empty:
            return ledger
        until_s = span.ended_at.timestamp() + wait.lag_s
        if reading.draft is not None and at_rest(
            reading.draft, ledger, span.begun_at.timestamp(), until_s, wait.settle_s
        ):
            return ledger
        if over and reading.draft is not None:
            note = (
                f"the firewall's figures had not come to rest {wait.patience_s:g} s after the "
                "run's end and were taken as they were"
            )
            return replace(ledger, notes=(*ledger.notes, note))
        reading.draft = ledger
        reading.next_at = now + timedelta(seconds=wait.poll_s)
        return None


def at_rest(
    earlier: FirewallLedger,
    later: FirewallLedger,
    from_s: float,
    until_s: float,
    settle_s: float,
) -> bool:
    """Whether two reads say the same of the span, and the later one says all that is to come.

    Bins that are unknown are only believed to stay so when the later read came ``settle_s`` after
    the span's end.
    """
    if later.partial is not None:  # what is missing may come
        return False
    before, after = _within(earlier, from_s, until_s), _within(later, from_s, until_s)
    if before.shape != after.shape or not np.array_equal(before, after, equal_nan=True):
        return False
    if later.read_at.timestamp() >= until_s + settle_s:
        return True
    reaches = len(after) > 0 and after[-1, 1] >= until_s
    return bool(reaches and not np.isnan(after[:, 2]).any())


def _within(ledger: FirewallLedger, from_s: float, until_s: float) -> Floats:
    """The bins that overlap a span: start, end, bytes."""
    bins = np.column_stack([ledger.start_s, ledger.end_s, ledger.bytes])
    return bins[(ledger.end_s > from_s) & (ledger.start_s < until_s)]


def _nothing(draft: FirewallLedger | None, why: str, now: datetime) -> FirewallLedger:
    """What stands when the source can no longer be read: its last answer, or no bin."""
    note = f"the firewall's figures could not be read to their end: {why}"
    if draft is not None:
        return replace(draft, notes=(*draft.notes, note))
    empty = np.empty(0)
    return FirewallLedger(
        source="unread",
        start_s=empty,
        end_s=empty,
        bytes=empty,
        grain_s=1.0,
        read_at=now,
        notes=(note,),
    )
