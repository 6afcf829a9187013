"""Tests for the control row watch with slow and unavailable tables, on a simulated clock."""

import asyncio
import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest

from broadside.agent.claimed_job import ClaimedJob
from broadside.agent.control_reads import LAST_LOOK_S, LAST_WORD_S, READS_MAX_COUNT, ControlWatch
from broadside.agent.engine_process import KILL_AFTER_S
from broadside.exchange.messages import Claim, Control, JobPhase
from broadside.exchange.ports import ExchangeUnavailable
from broadside.exchange.records import RunRecords
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryTable, make_tools
from tests.unit.agent.jobs import INSTANT_AT, INSTANT_S, make_job

# Seconds in which the traffic needs to stop.
ABORT_S = 5.0


class SkippingLoop(asyncio.SelectorEventLoop):
    """Event loop to skip idle time on its clock."""

    skipped_s = 0.0

    def time(self) -> float:
        return self.skipped_s

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            self.skipped_s = max(self.skipped_s, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


class SlowControl(RunRecords):
    """Control row with slow reads. Times are in seconds after the instant."""

    def __init__(self, read_s: float, *, lease_s: float = 60.0) -> None:
        super().__init__(MemoryTable())
        self.read_s = read_s
        self.lease_s = lease_s
        self.renewed_until_s = float("inf")
        self.cancelled_s: float | None = None
        self.away_from_s = self.hangs_from_s = float("inf")
        self.reading_count = self.reading_max_count = 0

    async def read_control(self, run_id: str, pair_index: int = 0) -> Control | None:
        now_s = asyncio.get_running_loop().time()
        lease_until_s = min(now_s, self.renewed_until_s) + self.lease_s
        cancelled = self.cancelled_s is not None and now_s >= self.cancelled_s
        self.reading_count += 1
        self.reading_max_count = max(self.reading_max_count, self.reading_count)
        try:
            await asyncio.sleep(self.read_s if now_s <= self.hangs_from_s else 1e6)
        finally:
            self.reading_count -= 1
        if now_s >= self.away_from_s:
            raise ExchangeUnavailable("away")
        return Control(
            run_id=run_id,
            lease_until_at=INSTANT_AT + timedelta(seconds=lease_until_s),
            cancelled_at=INSTANT_AT if cancelled else None,
        )


def guarded(
    monkeypatch: pytest.MonkeyPatch, records: SlowControl, *, from_s: float = -10.0
) -> tuple[str, float]:
    """Return the reason and the time (s after the instant) when the run was ended."""
    job = make_job()
    claim = Claim(job_id=job.job_id, agent_id="c", phase=JobPhase.CLAIMED, claimed_at=INSTANT_AT)
    loop = SkippingLoop()
    loop.skipped_s = from_s
    monkeypatch.setattr(time, "time", lambda: INSTANT_S + loop.time())

    async def watch() -> tuple[str, float]:
        all_records = records_in(MemoryTable())
        all_records.runs = records
        claimed = ClaimedJob(job, claim, make_tools(all_records))
        guard: Coroutine[Any, Any, str] = claimed._watch_run()
        async with asyncio.timeout(3600):
            return await guard, loop.time()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(watch())


@pytest.mark.parametrize("read_s", [0.01, 0.9, 2.0])
@pytest.mark.parametrize("into_read_s", [0.0, 0.3, 0.9])
def test_abort_is_detected_in_time_on_a_slow_table(
    monkeypatch: pytest.MonkeyPatch, read_s: float, into_read_s: float
) -> None:
    records = SlowControl(read_s)
    records.cancelled_s = 100 + into_read_s
    why, at_s = guarded(monkeypatch, records)
    assert why == "cancelled by an unknown user"
    assert at_s - records.cancelled_s + KILL_AFTER_S <= ABORT_S


@pytest.mark.parametrize("read_s", [0.9, 2.9])
def test_slow_table_does_not_expire_the_lease(
    monkeypatch: pytest.MonkeyPatch, read_s: float
) -> None:
    records = SlowControl(read_s, lease_s=15)
    records.cancelled_s = 1740
    why, at_s = guarded(monkeypatch, records)
    assert why == "cancelled by an unknown user"
    assert at_s >= records.cancelled_s


def test_lease_expires_while_reads_are_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = SlowControl(0.9, lease_s=15)
    records.renewed_until_s = 100
    why, at_s = guarded(monkeypatch, records)
    assert "lease lapsed" in why
    assert 115 <= at_s <= 116.0


@pytest.mark.parametrize(("hangs", "message"), [(True, "no answer in time"), (False, "away")])
def test_unavailable_table_stops_the_run_at_lease_end(
    monkeypatch: pytest.MonkeyPatch, hangs: bool, message: str
) -> None:
    """Test a table that never answers and one that rejects every read."""
    records = SlowControl(0.2, lease_s=15)
    if hangs:
        records.hangs_from_s = 100
    else:
        records.away_from_s = 100
    why, at_s = guarded(monkeypatch, records)
    assert f"the control row is unreadable: {message}" in why
    assert 114 <= at_s <= 116
    assert records.reading_max_count == (READS_MAX_COUNT if hangs else 1)
    assert records.reading_count == 0


@pytest.mark.parametrize("read_s", [0.9, 1e6])
def test_unread_control_row_stops_the_run_before_the_instant(
    monkeypatch: pytest.MonkeyPatch, read_s: float
) -> None:
    why, at_s = guarded(monkeypatch, SlowControl(read_s), from_s=-1.3)
    assert (
        why == "the run's control row could not be read before the planned start: no answer in time"
    )
    assert at_s == pytest.approx(-LAST_WORD_S, abs=0.01)


def make_watch() -> ControlWatch:
    return ControlWatch(instant_s=INSTANT_S)


def control(lease_s: float) -> Control:
    return Control(run_id="run-1", lease_until_at=INSTANT_AT + timedelta(seconds=lease_s))


def test_expired_lease_stops_the_run() -> None:
    watch = make_watch()
    assert watch.see(control(30), INSTANT_S + 29) is None
    assert "lease lapsed" in (watch.see(control(30), INSTANT_S + 30) or "")


def test_lease_renewed_before_the_last_check_continues() -> None:
    watch = make_watch()
    assert watch.see(control(-20), INSTANT_S - 15) is None
    assert watch.miss("away", INSTANT_S - 10) is None
    assert watch.see(control(60), INSTANT_S - LAST_LOOK_S) is None


def test_lease_expired_at_the_last_check_stops_the_run() -> None:
    lapsed = control(-20)
    seen, missed = make_watch(), make_watch()
    seen.see(lapsed, INSTANT_S - 15)
    missed.see(lapsed, INSTANT_S - 15)
    assert "lease lapsed" in (seen.see(lapsed, INSTANT_S - LAST_LOOK_S) or "")
    assert missed.miss("away", INSTANT_S - LAST_LOOK_S) is None, "the answer may still arrive"
    assert "unreadable" in (missed.miss("away", INSTANT_S - LAST_WORD_S) or "")


def test_polls_exactly_at_the_last_check_and_the_decision() -> None:
    watch = make_watch()
    assert watch.pause_s(1.0, INSTANT_S - 10) == 1.0
    assert watch.pause_s(1.0, INSTANT_S - LAST_LOOK_S - 0.25) == pytest.approx(0.25)
    assert watch.pause_s(1.0, INSTANT_S - LAST_LOOK_S) == pytest.approx(LAST_LOOK_S - LAST_WORD_S)
    assert watch.pause_s(1.0, INSTANT_S - LAST_WORD_S) == 1.0


def test_cancel_stops_the_run_immediately() -> None:
    row = control(60).model_copy(update={"cancelled_at": INSTANT_AT})
    assert "cancelled" in (make_watch().see(row, INSTANT_S - 15) or "")


def test_outage_is_tolerated_until_the_lease_expires() -> None:
    watch = make_watch()
    assert watch.see(control(60), INSTANT_S) is None
    assert watch.miss("away", INSTANT_S + 59) is None
    assert watch.see(control(120), INSTANT_S + 59.5) is None
    assert watch.miss("away", INSTANT_S + 119) is None


def test_cancel_is_applied_after_an_outage() -> None:
    watch = make_watch()
    watch.see(control(30), INSTANT_S)
    watch.miss("away", INSTANT_S + 1)
    row = control(300).model_copy(update={"cancelled_at": INSTANT_AT})
    assert "cancelled by an unknown user" in (watch.see(row, INSTANT_S + 2) or "")
