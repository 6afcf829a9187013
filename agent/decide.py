"""Decisions of an agent on jobs, as pure functions of values and ``now``.

If a job cannot be measured as planned, it gets an outcome and a reason that the user can act on. An
agent never sends data that was not requested.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.engine_process import ProcessExit
from broadside.agent.gate import Opening, Release, read_opening
from broadside.exchange.engines import find, offered_bits_per_second
from broadside.exchange.engines import problems as engine_problems
from broadside.exchange.engines.port import EngineResult
from broadside.exchange.messages import (
    JOB_MAX_BYTES,
    PROTOCOL_VERSION,
    Control,
    Job,
    Outcome,
    Protocol,
    plain_text,
)
from broadside.exchange.strict_json import TooMuch, parse_strict_json

_SAID_MAX_CHARS: Final = 200
# Messages of the engine when the server is not ready *yet*. A server is restarted after each test.
NOT_READY: Final = (
    *("server is busy", "unable to connect", "closed unexpectedly", "reset by peer"),
    # A UDP stream has lost its first datagrams.
    "read from stream socket",
)


# Reason to use for an engine that was stopped because its time was over.
DEADLINE: Final = "deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidJob:
    """Message that cannot be used by any agent, to be sent to the dead-letter queue.

    Attributes:
        reason: A single word, to be used in lists.
        description: A sentence with the details.
    """

    reason: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfamiliar:
    """Job with fields or values that this version does not know. It will be refused with a report.

    Attributes:
        job: The job without the unknown parts. It is used in the report and should not be run.
        problem: The unknown field and its value.
    """

    job: Job
    problem: str

    @property
    def reason(self) -> str:
        """The problem and its fix, to be used in the report."""
        return f"{self.problem}; install the coordinator's Broadside on the agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Outcome of a job and its reason, which is None only for a measured job."""

    outcome: Outcome
    reason: str | None


# Errors for a field or a value that was added in a later version.
_LATER: Final = frozenset({"extra_forbidden", "enum", "literal_error"})


def read_job(body: bytes) -> Job | Unfamiliar | InvalidJob:
    """Return the job in a message, or the reason why there is none.

    A job of a later version can have fields and values that this agent does not know. We cannot
    guess what they do, so the job will be refused with a report. This does not apply if all of them
    are listed in its ``may_ignore``. See docs/compatibility.md.
    """
    try:
        return _read_job(body)
    except TooMuch as error:
        return InvalidJob(reason="TooMuch", description=f"the message body is too much: {error}")
    except Exception as error:
        # Any error in the body should only affect this message.
        text = plain_text(f"{type(error).__name__}: {error}", _SAID_MAX_CHARS)
        return InvalidJob(reason="NotJson", description=f"the message body is not JSON: {text}")


def _read_job(body: bytes) -> Job | Unfamiliar | InvalidJob:
    fields: Any = parse_strict_json(body, JOB_MAX_BYTES)
    if not isinstance(fields, dict):
        return InvalidJob(reason="NotAJob", description="the message body is not a JSON object")
    version = fields.get("version", PROTOCOL_VERSION)
    try:
        return Job.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        message_error = error
    problems = message_error.errors(include_url=False, include_context=False)
    later = [fault for fault in problems if fault["type"] in _LATER]
    for fault in later:
        _leave_out(fields, fault["loc"])
    try:
        job = Job.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return InvalidJob(
            reason="NotAJob" if version == PROTOCOL_VERSION else "UnsupportedVersion",
            description=plain_text(
                f"not a job of version {PROTOCOL_VERSION} ({message_error.error_count()} "
                f"problems): {_dotted(first['loc'])}: {first['msg']}",
                _SAID_MAX_CHARS,
            ),
        )
    unknown = [
        fault
        for fault in later
        if fault["type"] != "extra_forbidden" or _dotted(fault["loc"]) not in job.may_ignore
    ]
    # Another version will be refused by ``check``.
    if not unknown or version != PROTOCOL_VERSION:
        return job
    first, more = unknown[0], len(unknown) - 1
    value = plain_text(repr(first["input"]), _SAID_MAX_CHARS)
    text = f"{_dotted(first['loc'])}: this agent does not know {value}"
    return Unfamiliar(job=job, problem=text + (f" ({more} more)" if more else ""))


def _dotted(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place)) or "job"


def _leave_out(fields: dict[str, Any], place: tuple[int | str, ...]) -> None:
    holder: Any = fields
    # In this case the field is not removed and there will be no job.
    with suppress(LookupError, TypeError):
        for part in place[:-1]:
            holder = holder[part]
        del holder[place[-1]]


def check(job: Job, settings: AgentSettings, now: datetime) -> JobOutcome | None:
    """Return the outcome for a job that this agent should not run.

    Args:
        job: Job to check.
        settings: Limits and allowed networks of this agent.
        now: Current time.

    Returns:
        Refused or missed, with the reason. None if the agent can run the job.
    """
    refusal = _refusal(job, settings)
    if refusal is not None:
        return JobOutcome(outcome=Outcome.REFUSED, reason=refusal)
    overdue_s = (now - job.planned_start_at).total_seconds()
    if overdue_s >= 0:
        return JobOutcome(
            outcome=Outcome.MISSED, reason=f"received {overdue_s:.3f} s after the planned start"
        )
    return None


def _refusal(job: Job, settings: AgentSettings) -> str | None:
    if job.version != PROTOCOL_VERSION:
        return (
            f"version: the job speaks {job.version}, this agent {PROTOCOL_VERSION}; "
            "install the coordinator's Broadside on the agent"
        )
    target = job.endpoint.address
    if not settings.is_allowed(target):
        return (
            f"endpoint.address: {target} is outside this agent's allowed networks "
            f"({', '.join(map(str, settings.allowed_networks))}); "
            "set BROADSIDE_AGENT_ALLOWED_NETWORKS on the agent"
        )
    if (lowest := min(job.endpoint.ports)) < settings.target_port_min:
        return (
            f"endpoint.port: {lowest} is below this agent's {settings.target_port_min}; serve "
            "from higher ports, or set BROADSIDE_AGENT_TARGET_PORT_MIN on the client agents"
        )
    canary = job.traffic.canary
    if canary is not None and min(canary.port, canary.forbidden_port) < settings.target_port_min:
        return (
            f"traffic.canary: a port is below this agent's {settings.target_port_min}; use higher "
            "ports, or set BROADSIDE_AGENT_TARGET_PORT_MIN on the client agents"
        )
    requested_s = job.duration_s + job.traffic.omit_s
    if requested_s > settings.duration_max_s:
        return (
            f"duration_s: {requested_s} s with warm-up is over this agent's "
            f"{settings.duration_max_s:g} s; launch a shorter burst or set "
            "BROADSIDE_AGENT_DURATION_MAX_S"
        )
    if problems := engine_problems(job.traffic):
        is_known = find(job.traffic.engine) is not None
        return problems[0] + ("" if is_known else ", or install the coordinator's Broadside on it")
    return _rate_refusal(job, settings.bits_per_second_max)


def _rate_refusal(job: Job, bits_per_second_max: int | None) -> str | None:
    if bits_per_second_max is None:
        return None
    fix = "pace the streams or set BROADSIDE_AGENT_BITS_PER_SECOND_MAX"
    requested_rate = offered_bits_per_second(job.traffic)
    if requested_rate is None:
        return (
            f"traffic.stream_bits_per_second: none, but this agent is capped at "
            f"{bits_per_second_max} bit/s; {fix}"
        )
    if requested_rate > bits_per_second_max:
        return (
            f"traffic.stream_bits_per_second: {requested_rate} bit/s over all streams is over "
            f"this agent's {bits_per_second_max} bit/s; {fix}"
        )
    return None


def control_problem(control: Control | None, now: datetime) -> str | None:
    """Return why a run should not continue.

    Args:
        control: Control row of the run, or None if there is none.
        now: Current time.

    Returns:
        The reason for the report. None if the run can continue.
    """
    if control is None:
        return "the run has no control row"
    if control.cancelled_at is not None:
        by, why = control.cancelled_by or "an unknown user", control.cancel_reason
        return f"cancelled by {by}" + (f": {why}" if why else "")
    if now >= control.lease_until_at:
        return f"the run's lease lapsed at {control.lease_until_at:%H:%M:%S} UTC: no coordinator"
    return None


def may_retry(error: str | None) -> bool:
    """Return True if it can help to arm again, because the server is between two tests."""
    return error is not None and any(pattern in error.casefold() for pattern in NOT_READY)


def start_error_s(job: Job, reading: EngineResult) -> float | None:
    """Return the time from the planned start to the first data, or None if it is unknown.

    Args:
        job: Job with the planned start.
        reading: Data of the engine.

    Returns:
        Seconds, which are positive if the data was late.
    """
    if reading.first_data_at_s is None:
        return None
    return reading.first_data_at_s - job.planned_start_at.timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """What happened to an engine at the start.

    Attributes:
        release: Report of the start gate, or None if there is none.
        refusal: Reason if we stopped the engine (cancelled, lease, agent stopping).
        ended_early: True if the coordinator ended the burst early. The engine then has no totals of
            the other end.
    """

    release: Release | None = None
    refusal: str | None = None
    ended_early: bool = False


def judge_outcome(
    job: Job,
    reading: EngineResult,
    exit_: ProcessExit,
    gate: GateReport = GateReport(),
    *,
    late_after_s: float,
) -> JobOutcome:
    """Return the outcome of a job for which the engine was started.

    The exit code is not used because it is not reliable.

    Args:
        job: Job that was run.
        reading: Data of the engine.
        exit_: How the process ended.
        gate: How the start gate released the engine, or why we stopped it.
        late_after_s: Seconds after the planned start at which data is late.
    """
    if gate.refusal is not None:
        return JobOutcome(outcome=Outcome.ABANDONED, reason=gate.refusal)
    failure = None
    if not (gate.ended_early and any(reading.intervals.values())):
        failure = _unopened(job, reading, exit_) or _failure(reading, exit_)
    if failure is not None:
        return JobOutcome(outcome=Outcome.FAILED, reason=failure)
    error_s = start_error_s(job, reading)
    if error_s is None:
        return JobOutcome(
            outcome=Outcome.FAILED, reason="the engine did not report when data began"
        )
    if error_s < -late_after_s:
        return JobOutcome(
            outcome=Outcome.FAILED,
            reason=f"data began {-error_s:.3f} s before the planned start (limit "
            f"{late_after_s:g} s): the start gate did not work",
        )
    if error_s > late_after_s:
        return JobOutcome(
            outcome=Outcome.LATE,
            reason=f"data began {error_s:.3f} s after the planned start "
            f"(limit {late_after_s:g} s)" + _why_late(job, gate.release),
        )
    return JobOutcome(outcome=Outcome.MEASURED, reason=None)


def _why_late(job: Job, release: Release | None) -> str:
    if release is None:
        return ""
    ready_s = release.gate_reached_at_s - job.planned_start_at.timestamp()
    return f": the connections were open {ready_s:.3f} s after it" if ready_s > 0 else ""


def _unopened(job: Job, reading: EngineResult, exit_: ProcessExit) -> str | None:
    """Return an error if UDP streams did not open and the test could not run because of that."""
    opening = read_opening(exit_.stderr)
    error = reading.report.error or ""
    if job.traffic.protocol is not Protocol.UDP or any(reading.intervals.values()):
        return None
    if "read from stream socket" not in error and exit_.stopped != DEADLINE:
        return None
    count = job.traffic.streams_count * len(job.traffic.direction.flows)
    which = f"the {count} streams" if opening is None else _streams_text(opening)
    return (
        f"UDP: {which} did not open: the server's answer to a stream's first datagram is missing. "
        "Datagrams are lost or dropped between client and server. Check the loss of the path, and "
        f"that it allows UDP port {job.endpoint.port} in both directions. Then run again"
    )


def _streams_text(opening: Opening) -> str:
    return f"{opening.unanswered_count} of the first {opening.streams_count} streams"


def _failure(reading: EngineResult, exit_: ProcessExit) -> str | None:
    if exit_.stopped is not None:
        return "the engine did not end and was stopped at its deadline; check the path"
    if reading.report.error is not None:
        return reading.report.error
    if reading.report.truncated:
        last_line = exit_.stderr.strip().splitlines()[-1:]
        return "; ".join(["the engine's output stops before its end", *last_line])
    if not reading.usable:
        return "the engine ended without an error and without data"
    return None
