"""Run status, with one small stored row for each closed burst.

Claims and reports of a closed burst do not change. Their totals are stored beside the plan when the
burst is measured. A status then reads only the rows of open bursts, so it costs the same at the
beginning and at the end of a soak. Measuring code is imported only for open bursts, so that a
command that shows a finished run does not load NumPy.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

from broadside.coordinator.core.live.status import (
    VISIBLE_S,
    BurstPhase,
    BurstRows,
    BurstStatus,
    RunStatus,
    derive,
)
from broadside.coordinator.core.plan.server_failover import Failover
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.core.run_trends import burst_trend_values, compute_run_trends
from broadside.coordinator.core.summary import BurstTrendValues, RunTrends
from broadside.exchange.messages import Claim, JobReport, Message, renamed
from broadside.exchange.records import Records

if TYPE_CHECKING:
    from broadside.coordinator.core.live.progress import Progress
    from broadside.coordinator.core.measure.grid.series import BurstMeasurement
    from broadside.coordinator.core.measure.records.evidence import BurstEvidence

# Number of runs with closed bursts in memory, by last use.
RUNS_CACHED: Final = 64
# Number of bursts with rows in memory.
ROWS_CACHED: Final = 4
# Seconds for which the progress of a burst is not read again.
FRESH_S: Final = 1.0
# The progress is also not read again for this multiple of the time that reading it took.
COST_FACTOR: Final = 4.0


class ClosedBurst(Message):
    """Stored state of a closed burst, beside its summary.

    Attributes:
        status: Final status of the burst.
        trend_values: Values of the burst for the trends of the run.
        open_ends_count: Pairs with an incomplete server record.
        payload_bytes: Payload that the burst sent, or None if unknown.
    """

    status: BurstStatus
    trend_values: Annotated[BurstTrendValues, renamed("trend_values", "course")]
    open_ends_count: int = 0
    payload_bytes: int | None = None

    @property
    def is_complete(self) -> bool:
        """True if all rows that could arrive were there."""
        reported = self.status.reported_count >= self.status.claimed_count
        return reported and not self.open_ends_count


@dataclass(slots=True, kw_only=True)
class _CachedProgress:
    """Progress of a burst as last read.

    Attributes:
        burst_index: The index to look up.
        final: True if the burst is closed.
        progress: The progress.
        read_at_s: Monotonic time of the read.
        cost_s: Duration of the read in seconds.
        again: Read in progress, or None.
    """

    burst_index: int
    final: bool
    progress: "Progress"
    read_at_s: float
    cost_s: float
    again: "asyncio.Task[Progress] | None" = None


@dataclass(slots=True)
class _Rows:
    """Claims and reports of a burst as last read."""

    rows: BurstRows = field(default_factory=BurstRows)
    etags: dict[str, str] = field(default_factory=dict)


class RunStates:
    """Status, trends and progress of runs from stored data."""

    def __init__(self, records: Records, now: Callable[[], datetime]) -> None:
        self._records = records
        self._now = now
        self._closed: OrderedDict[str, dict[int, ClosedBurst]] = OrderedDict()
        self._rows: dict[tuple[str, int], _Rows] = {}
        self._progress: OrderedDict[str, _CachedProgress] = OrderedDict()

    async def closed(self, run_id: str) -> Mapping[int, ClosedBurst]:
        """Return the run's closed bursts by index."""
        known = self._closed.setdefault(run_id, {})
        self._closed.move_to_end(run_id)
        while len(self._closed) > RUNS_CACHED:
            self._closed.popitem(last=False)
        first = 0
        while first in known:
            first += 1
        known |= await self._records.private.read_closed(run_id, ClosedBurst, from_index=first)
        return known

    async def read_complete(self, run_id: str, burst_index: int) -> "BurstMeasurement | None":
        """Return a closed burst.

        Args:
            run_id: The id to look up.
            burst_index: The index to look up.

        Returns:
            Its summary and series without pairs. None if it is not closed, or was closed without
            all rows.
        """
        from broadside.coordinator.runs.run_documents import read_measured

        closed = (await self.closed(run_id)).get(burst_index)
        if closed is None or not closed.is_complete:
            return None
        return await read_measured(self._records, run_id, burst_index, with_pairs=False)

    async def close(
        self, plan: Plan, evidence: "BurstEvidence", measured: "BurstMeasurement"
    ) -> ClosedBurst:
        """Store the state of a burst that was just measured.

        Args:
            plan: The plan to use.
            evidence: Evidence from which it was measured. Rows that arrived later are not counted
                as measured.
            measured: Its summary and series.

        Returns:
            The stored state: counts of pairs, payload bytes and status.
        """
        burst = evidence.burst
        rows = BurstRows(
            claims={p.pair_index: p.claim for p in evidence.pairs if p.claim is not None},
            reports={p.pair_index: p.report for p in evidence.pairs if p.report is not None},
        )
        control = await self._records.runs.read_control(plan.run_id)
        burst_status = derive(plan, control, {burst.index: rows}, self._now()).bursts[burst.index]
        closed = ClosedBurst(
            status=burst_status.model_copy(update={"phase": BurstPhase.OVER}),
            trend_values=burst_trend_values(measured.summary),
            open_ends_count=evidence.open_ends_count,
            payload_bytes=measured.payload_bytes,
        )
        await self._records.private.save_closed(plan.run_id, burst.index, closed)
        self._closed.setdefault(plan.run_id, {})[burst.index] = closed
        return closed

    def forget(self, run_id: str) -> None:
        """Drop the state of a run that was removed."""
        self._closed.pop(run_id, None)
        self._progress.pop(run_id, None)

    async def status(self, plan: Plan) -> RunStatus:
        """Return the current status of a run."""
        control, closed, moves = await asyncio.gather(
            self._records.runs.read_control(plan.run_id),
            self.closed(plan.run_id),
            self._records.runs.read_moves(plan.run_id, Failover),
        )
        now = self._now()
        visible_at = now + timedelta(seconds=VISIBLE_S)
        opened = [
            burst.index
            for burst in plan.bursts
            if burst.planned_start_at <= visible_at and burst.index not in closed
        ]
        rows = await asyncio.gather(*(self._open_rows(plan, index) for index in opened))
        status = derive(
            plan,
            control,
            dict(zip(opened, rows, strict=True)),
            now,
            closed={index: burst.status for index, burst in closed.items()},
        )
        if not moves:
            return status
        texts = tuple(str(move) for move in moves)
        return status.model_copy(update={"warnings": (*status.warnings, *texts)})

    async def bursts(self, plan: Plan, indices: range) -> Sequence[BurstStatus]:
        """Return the status for some bursts. Rows for other bursts are not read.

        Args:
            plan: Plan of the run.
            indices: Burst indexes from 0, with step 1. An empty range returns an empty sequence.
        """
        part = plan.model_copy(update={"bursts": plan.bursts[indices.start : indices.stop]})
        return (await self.status(part)).bursts if part.bursts else ()

    async def _open_rows(self, plan: Plan, burst_index: int) -> BurstRows:
        """Return a burst's rows, and read only changed rows until all pairs have reported."""
        key = (plan.run_id, burst_index)
        known = self._rows.setdefault(key, _Rows())
        while len(self._rows) > ROWS_CACHED:
            self._rows.pop(next(iter(self._rows)))
        if len(known.rows.reports) < len(plan.pairs):
            of = (plan.run_id, burst_index, known.etags)
            claims, reports = await asyncio.gather(
                self._records.bursts.read_changed(Claim, *of),
                self._records.bursts.read_changed(JobReport, *of),
            )
            known.rows = BurstRows(
                claims={**known.rows.claims, **claims}, reports={**known.rows.reports, **reports}
            )
        return known.rows

    async def trends(self, plan: Plan) -> RunTrends:
        """Return the trends over the bursts that are closed so far."""
        return compute_run_trends(
            burst.trend_values for burst in (await self.closed(plan.run_id)).values()
        )

    # Progress ----------------------------------------------------------------------------------

    async def progress(self, plan: Plan) -> "Progress":
        """Return the seconds of the newest burst that has begun.

        While a new read is in progress, callers get the last result. Many viewers then cost one
        read, which takes seconds for a large burst.
        """
        begun = [burst for burst in plan.bursts if burst.planned_start_at <= self._now()]
        burst = begun[-1] if begun else plan.bursts[0]
        seen = self._progress.get(plan.run_id)
        if seen is None or seen.burst_index != burst.index:
            return await self._read_progress(plan, burst)
        age_s = time.monotonic() - seen.read_at_s
        stale = age_s > max(FRESH_S, COST_FACTOR * seen.cost_s)
        if stale and not seen.final and (seen.again is None or seen.again.done()):
            seen.again = asyncio.create_task(self._read_progress(plan, burst))
            seen.again.add_done_callback(_retrieve_error)
            # It does not take long to read this, so we should wait for the newest data.
            if seen.cost_s < FRESH_S / 4:
                return await asyncio.shield(seen.again)
        return seen.progress

    async def _read_progress(self, plan: Plan, burst: Burst) -> "Progress":
        from broadside.coordinator.runs.run_documents import read_measured

        began_s = time.monotonic()
        measured = await read_measured(self._records, plan.run_id, burst.index)
        if measured is not None:
            current = _progress_of(plan, burst, measured)
        else:
            current = await read_uploaded(self._records, plan, burst)
        now_s = time.monotonic()
        self._progress[plan.run_id] = _CachedProgress(
            burst_index=burst.index,
            final=measured is not None,
            progress=current,
            read_at_s=now_s,
            cost_s=now_s - began_s,
        )
        while len(self._progress) > RUNS_CACHED:
            self._progress.popitem(last=False)
        return current


async def read_uploaded(records: Records, plan: Plan, burst: Burst) -> "Progress":
    """Return the seconds of a burst that have been uploaded so far.

    Args:
        records: Records to read from.
        plan: Plan of the run.
        burst: Burst of the plan.

    Returns:
        Sums over the pairs by second. For a mixed run, of all its parts.
    """
    from broadside.coordinator.chunk_decoder import stream_columns
    from broadside.coordinator.core.live.progress import mixed_progress, progress
    from broadside.coordinator.runs.evidence_loader import readings_max_count

    limit = readings_max_count(burst, plan.spec.traffic.interval_s)
    packed_ends = records.bursts.stream_seconds(plan.run_id, burst.index)
    ends = {key: end async for key, end in stream_columns(packed_ends, limit) if end is not None}
    if not plan.spec.mix:
        return await asyncio.to_thread(progress, plan.run_id, burst, ends.values())
    parts = [
        await asyncio.to_thread(
            progress,
            plan.run_id,
            burst,
            [ends[pair.index] for pair in part.pairs if pair.index in ends],
        )
        for part in plan.parts
    ]
    return mixed_progress(parts, plan.part_sizes)


def _progress_of(plan: Plan, burst: Burst, measured: "BurstMeasurement") -> "Progress":
    """Return the progress of a measured burst."""
    from broadside.coordinator.core.live.progress import (
        mixed_progress,
        progress_of_part,
        progress_of_series,
    )

    first = progress_of_series(plan.run_id, burst, measured.series)
    if not plan.spec.mix:
        return first
    others = [progress_of_part(plan.run_id, burst, part) for part in measured.summary.parts]
    return mixed_progress([first, *others], plan.part_sizes)


def _retrieve_error(task: "asyncio.Task[Progress]") -> None:
    """Retrieve the exception of a read that no caller awaited. The next read will report it."""
    if not task.cancelled():
        task.exception()
