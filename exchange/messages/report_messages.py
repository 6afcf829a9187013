"""Each end's account of one test."""

from datetime import datetime
from enum import StrEnum

from exchange.messages.clock_messages import ClockReading
from exchange.messages.engine_messages import EngineReport
from exchange.messages.job_messages import Endpoint
from exchange.messages.message_base import (
    Address,
    Identifier,
    Index,
    JobId,
    Message,
    RunId,
    Text,
    UtcDatetime,
    Whole,
)
from exchange.messages.trouble_messages import Troubles, _over_by


class Outcome(StrEnum):
    """How a job ended, as the agent that held it saw it."""

    MEASURED = "measured"  # started on time, ran to its end
    LATE = "late"  # ran, but data began more than the tolerance after the instant
    MISSED = "missed"  # never started: received, armed or released too late
    REFUSED = "refused"  # stood down on purpose: clock gate, target, caps, version
    FAILED = "failed"  # the engine said error, or sent nothing
    ABANDONED = "abandoned"  # began, then was cut: cancelled, lease lapsed, agent stopping


class StartMethod(StrEnum):
    GATE = "gate"  # connections opened early, released at the instant
    TIMED_EXEC = "timed_exec"  # the engine was started at the instant


class JobReport(Message):
    """The client end's account of one job."""

    job_id: JobId
    run_id: RunId
    burst_index: Index
    pair_index: Index
    agent_id: Identifier
    outcome: Outcome
    reason: Text | None = None  # required unless measured
    planned_start_at: UtcDatetime
    start_method: StartMethod | None = None
    process_start_at: UtcDatetime | None = None
    retries_count: Whole = 0  # engines that were refused before this one's connections stood
    first_data_at: UtcDatetime | None = None  # estimated: FACTS, "data start"
    start_error_s: float | None = None  # s, first_data_at - planned_start_at
    ended_at: UtcDatetime | None = None
    engine: EngineReport | None = None
    clock_before: ClockReading | None = None
    clock_after: ClockReading | None = None
    reported_at: UtcDatetime
    delivered_at: UtcDatetime | None = None  # when it left the spool; None: it never waited there
    troubles: Troubles = ()  # since the job before, or a minute before the claim

    def delivered(self, at: datetime) -> "JobReport":
        """The report as it leaves the spool: what was not over when it was written is now."""
        changes = {"delivered_at": at, "troubles": _over_by(at, self.troubles)}
        return self.model_copy(update=changes)


class ServerTest(Message):
    """The server end's account of one test on one of its ports; joined to a job by cookie."""

    agent_id: Identifier
    endpoint: Endpoint
    client_address: Address | None = None
    started_at: UtcDatetime  # the engine's first word of the test: part of the record's key
    first_data_at: UtcDatetime | None = None
    ended_at: UtcDatetime | None = None  # None: still running, or cut off
    engine: EngineReport
    clock_before: ClockReading | None = None
    clock_after: ClockReading | None = None
    troubles: Troubles = ()  # while it ran

    def delivered(self, at: datetime) -> "ServerTest":
        """The record as it leaves the spool: what was not over when it was written is now."""
        return self.model_copy(update={"troubles": _over_by(at, self.troubles)})

    @property
    def cookie(self) -> str | None:
        return self.engine.cookie
