"""Repeat the reads of a source until the values of a run are stable, up to a time limit."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.run_span import RunSpan
from broadside.coordinator.device.telemetry.source import TelemetryBusy, TelemetryError

log = logging.getLogger(__name__)

# Time limit for a read.
_READ_MAX_S: Final = 60.0
# Minimum time to wait after a failed read.
_AGAIN_S: Final = 5.0


@dataclass(slots=True, kw_only=True)
class _ReadState:
    """State of the reads for one run.

    Attributes:
        next_at: Time of the next read.
        until_at: Time limit, after which the values are used as they are.
        draft: Result of the last successful read.
        task: Read in progress.
    """

    next_at: datetime
    until_at: datetime
    draft: CounterRecord | None = None
    task: "asyncio.Task[CounterRecord] | None" = None


@dataclass(slots=True)
class StableReader:
    """Reader of the device counter for finished runs, which repeats a read until two reads agree.

    Attributes:
        counter: The device counter.
        now: Clock to use. Tests can replace it.
        wait_max_s: Maximum time in seconds to wait for a read. It is short, because the caller also
            has to renew leases.
    """

    counter: DeviceCounter
    now: Callable[[], datetime]
    wait_max_s: float = 0.5
    _states: dict[str, _ReadState] = field(default_factory=dict)

    async def read(self, span: RunSpan) -> CounterRecord | None:
        """Return the values for this run when they are stable, or ``None`` to try again later.

        This method returns within ``wait_max_s``, because a background task reads the source. At
        the time limit, it returns the last values with a note. If the source could not be read at
        all, the result has no bins.
        """
        if span.run_id not in self._states:
            self._states[span.run_id] = self._begin(span)
        state = self._states[span.run_id]
        if state.task is None:
            if self.now() < state.next_at:
                return None
            state.task = asyncio.create_task(self._read(span))
        done, _ = await asyncio.wait([state.task], timeout=self.wait_max_s)
        if not done:
            return None
        task, state.task = state.task, None
        device_counter = self._result(span, state, task)
        if device_counter is not None:
            del self._states[span.run_id]
        return device_counter

    async def close(self) -> None:
        """Cancel reads in progress."""
        tasks = [state.task for state in self._states.values() if state.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._states.clear()

    def _begin(self, span: RunSpan) -> _ReadState:
        """Return the initial state with the full time limit, even long after the end of a run."""
        latency = self.counter.latency
        first_s = (
            latency.settle_s
            if latency.reread_s is None
            else min(latency.reread_s, latency.settle_s)
        )
        next_at = max(span.ended_at + timedelta(seconds=first_s), self.now())
        return _ReadState(
            next_at=next_at, until_at=next_at + timedelta(seconds=latency.timeout_s - first_s)
        )

    async def _read(self, span: RunSpan) -> CounterRecord:
        try:
            async with asyncio.timeout(_READ_MAX_S):
                return await self.counter.read(span.from_at, span.before_at, span.direction)
        except TimeoutError as error:
            raise TelemetryError(
                f"the device counter did not answer within {_READ_MAX_S:g} s"
            ) from error
        except TelemetryError:
            raise
        # An error in a source must not stop the service for all runs.
        except Exception as error:
            log.exception("device counter", extra={"action": "telemetry", "run_id": span.run_id})
            raise TelemetryError(
                f"the answer of the device counter cannot be used: {error!r}"
            ) from error

    def _result(
        self, span: RunSpan, state: _ReadState, task: "asyncio.Task[CounterRecord]"
    ) -> CounterRecord | None:
        latency, now = self.counter.latency, self.now()
        over = now >= state.until_at
        try:
            device_counter = task.result()
        except TelemetryError as error:
            log.warning(
                "device counter: %s", error, extra={"action": "telemetry", "run_id": span.run_id}
            )
            if over:
                return _unread(self.counter.name, state.draft, str(error), now)
            pause_s = max(_AGAIN_S, latency.reread_s or 0.0)
            if isinstance(error, TelemetryBusy):
                pause_s = max(pause_s, error.retry_after_s)
            state.next_at = now + timedelta(seconds=pause_s)
            return None
        if latency.reread_s is None or span.is_empty:
            return device_counter
        until_s = span.ended_at.timestamp() + latency.lag_s
        if state.draft is not None and is_stable(
            state.draft, device_counter, span.begun_at.timestamp(), until_s, latency.settle_s
        ):
            return device_counter
        if over and state.draft is not None:
            note = (
                f"its values still changed {latency.timeout_s:g} s after the end of the run; the "
                "last ones are used"
            )
            return replace(device_counter, notes=(*device_counter.notes, note))
        state.draft = device_counter
        state.next_at = now + timedelta(seconds=latency.reread_s)
        return None


def is_stable(
    earlier: CounterRecord,
    later: CounterRecord,
    from_s: float,
    until_s: float,
    settle_s: float,
) -> bool:
    """Return True if two reads agree on a span and the later one is complete.

    An unknown bin counts as final only if the later read took place ``settle_s`` after the span's
    end.

    Args:
        earlier: Earlier read.
        later: Later read.
        from_s: Start of the compared span, in epoch seconds.
        until_s: End of the compared span, in epoch seconds.
        settle_s: Time in seconds after which values no longer change.
    """
    # If the later read is incomplete, the missing part may still arrive.
    if later.partial is not None:
        return False
    before, after = _within(earlier, from_s, until_s), _within(later, from_s, until_s)
    if before.shape != after.shape or not np.array_equal(before, after, equal_nan=True):
        return False
    if later.read_at.timestamp() >= until_s + settle_s:
        return True
    reaches = len(after) > 0 and after[-1, 1] >= until_s
    return bool(reaches and not np.isnan(after[:, 2]).any())


def _within(device_counter: CounterRecord, from_s: float, until_s: float) -> Floats:
    """Return start, end and bytes of the bins that overlap a span, as columns."""
    bins = np.column_stack([device_counter.start_s, device_counter.end_s, device_counter.bytes])
    return bins[(device_counter.end_s > from_s) & (device_counter.start_s < until_s)]


def _unread(name: str, draft: CounterRecord | None, reason: str, now: datetime) -> CounterRecord:
    """Return the last read with a note, or a counter without bins if there was no read."""
    note = f"it could not be read completely: {reason}"
    if draft is not None:
        return replace(draft, notes=(*draft.notes, note))
    empty = np.empty(0)
    return CounterRecord(
        source=name,
        start_s=empty,
        end_s=empty,
        bytes=empty,
        grain_s=1.0,
        read_at=now,
        notes=(note,),
    )
