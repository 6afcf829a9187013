"""Event streams of runs, with one table poll for all viewers of a run.

A feed stores only the newest state of one burst. For each part of that state it stores the number
of the last poll that changed it. For each viewer there is only the number of the last poll that was
sent to it. A slow viewer therefore needs no extra memory, and receives the newest state later.

A feed polls at most once a second. After each poll it pauses for at least a quarter of the poll's
duration. It does not poll without followers. It does not compute the live view for followers that
wait only for the verdict, such as studies.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Final

from broadside.coordinator.core.live.live_view import (
    LiveCounter,
    LiveFinding,
    LiveSnapshot,
    LiveStatus,
    PlannedCells,
    changed_seconds,
    counter_message,
    empty_snapshot,
    final_snapshot,
    live_status,
    make_snapshot,
    seconds_message,
    shown_burst,
)
from broadside.coordinator.core.live.status import BurstPhase, RunStatus
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.core.summary import Finding, RunSummary
from broadside.coordinator.core.verdict_reason import explain_verdict
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.coordinator.request_errors import TooManyViewers, UnknownRun
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.live_burst import LiveBurst
from broadside.coordinator.runs.run_documents import read_measured
from broadside.coordinator.views.burst_responses import plan_with_burst
from broadside.coordinator.views.responses import ExplainedSummary
from broadside.exchange.ports import ExchangeError

log = logging.getLogger(__name__)

# Minimum time between two poll starts.
POLL_S: Final = 1.0
# Minimum pause after a poll, relative to the poll duration.
REST_RATIO: Final = 0.25
# A heartbeat is sent if there is no event for this time.
BEAT_S: Final = 5.0
# A feed without followers is removed after this time.
LINGER_S: Final = 60.0
VIEWERS_MAX_COUNT: Final = 200
# Minimum time between two device counter reads.
COUNTER_POLL_S: Final = 2.0
# Maximum number of seconds in one message. With 1,000 pairs the message has 640 kB.
SECONDS_A_MESSAGE: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEvent:
    """One event of a stream.

    Attributes:
        name: Event name. None for a heartbeat.
        data: JSON text.
        id: Position in the stream for ``Last-Event-ID``. Only the last event of a poll has one.
    """

    name: str | None = None
    data: str = ""
    id: str | None = None


@dataclass(slots=True)
class _Shown:
    """Newest burst state. Each part has the number of the poll that changed it."""

    status: tuple[int, LiveStatus] | None = None
    picture: LiveSnapshot | None = None
    figures_at: int = 0
    seconds_at: dict[int, int] = field(default_factory=dict)
    findings: dict[str, tuple[int, Finding | None]] = field(default_factory=dict)
    device_counter: tuple[int, LiveCounter] | None = None
    summary: tuple[int, RunSummary] | None = None


class Feed:
    """Feed of a run, or of a burst in it, for any number of viewers."""

    def __init__(self, coordinator: Coordinator, plan: Plan, burst_index: int | None) -> None:
        self._coordinator = coordinator
        self._plan = plan
        # None to follow the current burst.
        self._burst_index = burst_index
        self._name = secrets.token_hex(3)
        self._poll_number = 0
        self._shown = _Shown()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._device_counter: CounterRecord | None = None
        self._counter_problem: str | None = None
        # Monotonic time for the next device counter read.
        self._counter_due_s = 0.0
        self._encoded: tuple[tuple[int, int], list[tuple[str, str]]] | None = None
        self._live: LiveBurst | None = None
        self._verdict: RunSummary | None = None
        # Includes tasks that wait only for the verdict.
        self.followers_count = 0
        self.viewers_count = 0
        self.left_s = time.monotonic()
        self.over = False

    async def follow(self, last_event_id: str | None) -> AsyncGenerator[FeedEvent]:
        """Yield the changes since ``last_event_id``, and then all changes until the run ends.

        Args:
            last_event_id: Last received event id. None, or an id from another feed (after a
                coordinator restart), starts from the beginning.
        """
        seen = self._number_of(last_event_id)
        async with self._followed(is_viewer=True):
            beat_s = time.monotonic() + BEAT_S
            while True:
                changed, poll = self._changed, self._poll_number
                if poll > seen:
                    events = self._since(seen)
                    for place, (name, data) in enumerate(events):
                        last = place == len(events) - 1
                        yield FeedEvent(
                            name=name, data=data, id=f"{self._name}.{poll}" if last else None
                        )
                        beat_s = time.monotonic() + BEAT_S
                    seen = poll
                elif self.over:
                    return
                else:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(beat_s - time.monotonic()):
                            await changed.wait()
                # We should also send a heartbeat if there is no new data, because we use it to
                # check the token of the viewer.
                if time.monotonic() >= beat_s:
                    yield FeedEvent()
                    beat_s = time.monotonic() + BEAT_S

    async def verdict(self) -> RunSummary | None:
        """Wait for the verdict.

        Returns:
            The summary. None if the run was removed or the coordinator is stopping.
        """
        async with self._followed(is_viewer=False):
            while self._verdict is None and not self.over:
                await self._changed.wait()
        return self._verdict

    @contextlib.asynccontextmanager
    async def _followed(self, *, is_viewer: bool) -> AsyncGenerator[None]:
        """Keep the feed polling while the context is active."""
        self.followers_count += 1
        self.viewers_count += is_viewer
        if self._task is None and not self.over:
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self.followers_count -= 1
            self.viewers_count -= is_viewer
            self.left_s = time.monotonic()
            if self.followers_count == 0:
                await self.stop()

    async def stop(self) -> None:
        """Stop polling."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._close_live()

    def end(self) -> None:
        """End the streams of all followers, because the coordinator is stopping."""
        self.over = True
        self._wake()

    def _number_of(self, event_id: str | None) -> int:
        name, _, number = (event_id or "").partition(".")
        known = name == self._name and number.isdecimal()
        return min(int(number), self._poll_number) if known else 0

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _run(self) -> None:
        while not self.over:
            began_s = time.monotonic()
            try:
                await self._poll()
            except ExchangeError as error:
                self._set_problem(str(error))
            except UnknownRun:
                # The run was removed while it was followed.
                self.over = True
            except Exception:
                log.exception("feed", extra={"action": "feed", "run_id": self._plan.run_id})
                self._set_problem("new data could not be computed; see the log of the coordinator")
            self._poll_number += 1
            self._wake()
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(POLL_S - took_s, REST_RATIO * took_s))

    def _set_problem(self, problem: str) -> None:
        if self._shown.status is not None:
            status_now = self._shown.status[1].model_copy(update={"problem": problem})
            self._shown.status = (self._poll_number + 1, status_now)

    async def _poll(self) -> None:
        """Poll once."""
        coordinator = self._coordinator
        # A burst may have been ended early.
        plan = self._plan = await coordinator.stored.read_plan(self._plan.run_id)
        summary = self._verdict = await coordinator.stored.summary(plan.run_id)
        if not self.viewers_count:
            await self._close_live()
            return
        status = await coordinator.stored.status(plan.run_id)
        index = shown_burst(plan, status) if self._burst_index is None else self._burst_index
        if summary is not None and self._burst_index is None:
            index = self._shown.picture.burst_index if self._shown.picture else index
        burst = plan.bursts[index]
        await self._read_device_counter(begun=status.bursts[index].phase is not BurstPhase.PLANNED)
        shown = await self._picture(status, summary, burst)
        self._store(status, shown, summary)

    async def _picture(
        self, status: RunStatus, summary: RunSummary | None, burst: Burst
    ) -> LiveSnapshot:
        plan, coordinator = self._plan, self._coordinator
        is_up = status.bursts[burst.index]
        if is_up.phase in (BurstPhase.PLANNED, BurstPhase.ARMING) and summary is None:
            return empty_snapshot(plan, burst)
        stored = await read_measured(coordinator.fabric.records, plan.run_id, burst.index)
        if stored is not None:
            if summary is not None:
                return await asyncio.to_thread(final_snapshot, summary, burst.index, stored.series)
            planned_s = burst.duration_s + burst.omit_s
            return await asyncio.to_thread(
                make_snapshot,
                stored.summary,
                stored.series,
                PlannedCells(pairs_count=len(plan.parts[0].pairs), seconds=planned_s),
                known_s=planned_s,
                final=True,
            )
        if is_up.phase is BurstPhase.OVER and summary is not None:
            return empty_snapshot(plan, burst)
        if self._live is None or self._live.burst != burst:
            await self._close_live()
            self._live = LiveBurst(coordinator.fabric.records, plan, burst)
        return await self._live.take_snapshot(self._device_counter, coordinator.now())

    async def _close_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    async def _read_device_counter(self, *, begun: bool) -> None:
        """Read the device counter, at most once per ``COUNTER_POLL_S`` and source interval."""
        if not begun or time.monotonic() < self._counter_due_s:
            return
        try:
            self._device_counter, poll_s = await self._coordinator.counter_so_far(self._plan)
            self._counter_problem = None
        except TelemetryError as error:
            self._counter_problem, poll_s = str(error), 10.0
        self._counter_due_s = time.monotonic() + max(COUNTER_POLL_S, poll_s)

    def _store(self, status: RunStatus, now: LiveSnapshot, summary: RunSummary | None) -> None:
        """Store the changes under the number of this poll."""
        poll, shown = self._poll_number + 1, self._shown
        if shown.picture is None or shown.picture.burst_index != now.burst_index:
            self._shown = shown = _Shown(status=shown.status)
        status_now = live_status(self._plan, status, now.burst_index, self._coordinator.now())
        if shown.status is None or _without_now(shown.status[1]) != _without_now(status_now):
            shown.status = (poll, status_now)
        for second in changed_seconds(shown.picture, now):
            shown.seconds_at[second] = poll
        if now.figures is not None and (
            shown.picture is None or shown.picture.figures != now.figures
        ):
            shown.figures_at = poll
        self._store_findings(
            poll, {f"{one.id} {one.part or ''}".rstrip(): one for one in now.findings}
        )
        burst = self._plan.bursts[now.burst_index]
        # The device counter was read at least once.
        if self._counter_due_s:
            device_counter = counter_message(self._device_counter, burst, self._counter_problem)
            if shown.device_counter is None or shown.device_counter[1] != device_counter:
                shown.device_counter = (poll, device_counter)
        shown.picture = now
        if summary is not None:
            shown.summary = (poll, summary)
            self.over = True

    def _store_findings(self, poll: int, findings: Mapping[str, Finding]) -> None:
        known = self._shown.findings
        for name in sorted(known.keys() | findings.keys()):
            before, now = known.get(name, (0, None))[1], findings.get(name)
            if before != now:
                known[name] = (poll, now)

    def _since(self, seen: int) -> list[tuple[str, str]]:
        """Return the events of all polls after ``seen``.

        Viewers at the same position share the encoded events.
        """
        key = (seen, self._poll_number)
        if self._encoded is None or self._encoded[0] != key:
            self._encoded = (key, list(self._events_since(seen)))
        return [*self._head(seen), *self._encoded[1]]

    def _head(self, seen: int) -> list[tuple[str, str]]:
        """Return the events that cannot be cached, because they contain the current time."""
        status = self._shown.status
        # If a viewer has to start from the beginning, it will discard its old data. This can also
        # happen after a coordinator was restarted.
        events = [("begin", json.dumps({"feed": self._name}))] if seen == 0 else []
        if status is not None and status[0] > seen:
            status_now = status[1].model_copy(update={"now": self._coordinator.now()})
            events.append(("status", status_now.answer_json()))
        return events

    def _events_since(self, seen: int) -> list[tuple[str, str]]:
        shown, events = self._shown, list[tuple[str, str]]()
        if shown.picture is not None:
            known = range(
                shown.picture.first_second, shown.picture.first_second + len(shown.picture)
            )
            new = [second for second in known if shown.seconds_at.get(second, 0) > seen]
            for place in range(0, len(new), SECONDS_A_MESSAGE):
                part = new[place : place + SECONDS_A_MESSAGE]
                events.append(("seconds", seconds_message(shown.picture, part).answer_json()))
            if shown.picture.figures is not None and shown.figures_at > seen:
                events.append(("figures", shown.picture.figures.answer_json()))
        if shown.device_counter is not None and shown.device_counter[0] > seen:
            events.append(("counter", shown.device_counter[1].answer_json()))
        index = 0 if shown.picture is None else shown.picture.burst_index
        for name, (poll, finding) in shown.findings.items():
            if poll > seen and not (finding is None and seen == 0):
                message = LiveFinding(burst_index=index, id=name, finding=finding)
                events.append(("finding", message.answer_json()))
        if shown.summary is not None and shown.summary[0] > seen:
            events.append(("summary", explained_summary(shown.summary[1]).answer_json()))
        return events


class Feeds:
    """All feeds of one coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._feeds: dict[tuple[str, int | None], Feed] = {}

    @property
    def viewers_count(self) -> int:
        return sum(feed.viewers_count for feed in self._feeds.values())

    async def open(self, run_id: str, burst_index: int | None) -> Feed:
        """Return the feed of a run, or of one burst in it.

        Args:
            run_id: The run's id.
            burst_index: Burst index, starting at 0. None to follow the current burst.

        Raises:
            UnknownRun: The run does not exist.
            UnknownBurst: The burst does not exist in this run.
            TooManyViewers: The limit for event streams is reached.
        """
        plan = await plan_with_burst(self._coordinator, run_id, burst_index or 0)
        if self.viewers_count >= VIEWERS_MAX_COUNT:
            raise TooManyViewers(
                f"{VIEWERS_MAX_COUNT} event streams are open, which is the limit; close a page"
            )
        return self._feed(plan, burst_index)

    async def verdict(self, run_id: str) -> RunSummary | None:
        """Wait for the run verdict, as ``Feed.verdict`` does.

        Returns:
            The summary. None if the run was removed or the coordinator is stopping.

        Raises:
            UnknownRun: The run does not exist.
        """
        return await self._feed(await self._coordinator.stored.read_plan(run_id), None).verdict()

    def _feed(self, plan: Plan, burst_index: int | None) -> Feed:
        self._forget()
        key = (plan.run_id, burst_index)
        if key not in self._feeds:
            self._feeds[key] = Feed(self._coordinator, plan, burst_index)
        return self._feeds[key]

    def _forget(self) -> None:
        """Remove feeds without followers that have ended or are older than ``LINGER_S``."""
        now_s = time.monotonic()
        for key, feed in list(self._feeds.items()):
            if not feed.followers_count and (feed.over or now_s - feed.left_s > LINGER_S):
                del self._feeds[key]

    async def close(self) -> None:
        """End the streams of all followers."""
        for feed in self._feeds.values():
            feed.end()
            await feed.stop()


def _without_now(status: LiveStatus) -> LiveStatus:
    return status.model_copy(update={"now": status.created_at})


def explained_summary(summary: RunSummary) -> ExplainedSummary:
    """Return the summary for a viewer, with the reason for the verdict.

    It has no pairs, because 1,000 pairs in 100 bursts are too much for the page.
    """
    explained = explain_verdict(summary)
    bursts = tuple(burst.model_copy(update={"pairs": ()}) for burst in summary.bursts)
    fields = {name: getattr(summary, name) for name in RunSummary.model_fields}
    return ExplainedSummary.model_construct(
        **fields
        | {
            "bursts": bursts,
            "findings": explained.findings,
            "reason": explained.reason,
            "next_step": explained.next_step,
        }
    )
