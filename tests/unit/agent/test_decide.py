import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.decide import (
    GateReport,
    InvalidJob,
    Unfamiliar,
    check,
    control_problem,
    judge_outcome,
    may_retry,
    read_job,
    start_error_s,
)
from broadside.agent.gate import Release
from broadside.exchange.messages import Control, Flow, FlowTotals, Job, Outcome
from tests.unit.agent.jobs import (
    INSTANT_AT,
    INSTANT_S,
    make_exit,
    make_job,
    make_reading,
    make_settings,
)

BEFORE_AT = INSTANT_AT - timedelta(seconds=10)


# Reading a message.


def test_job_is_read_back_unchanged() -> None:
    job = make_job()
    assert read_job(job.model_dump_json().encode()) == job


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        (b"\xff\x00", "NotJson", "not JSON"),
        (b"10.2.1.3 5201", "NotJson", "not JSON"),
        (b"[1]", "NotAJob", "not a JSON object"),
        (b"{}", "NotAJob", "run_id: Field required"),
        (b'{"version": 99}', "UnsupportedVersion", "version 2"),
    ],
)
def test_invalid_job_names_the_problem(body: bytes, reason: str, message: str) -> None:
    poison = read_job(body)
    assert isinstance(poison, InvalidJob)
    assert poison.reason == reason
    assert message in poison.description


def body_with(path: str, value: object, **changes: object) -> bytes:
    """Return the job body with a field added to a dotted path."""
    fields: dict[str, Any] = json.loads(make_job().model_dump_json()) | changes
    holder = fields
    *folders, name = path.split(".")
    for folder in folders:
        holder[folder] = holder[folder] or {}
        holder = holder[folder]
    holder[name] = value
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("colour", "red", "colour: this agent does not know 'red'"),
        ("traffic.colour", {"deep": 1}, "traffic.colour: this agent does not know {'deep': 1}"),
        ("traffic.probe.colour", 3, "traffic.probe.colour: this agent does not know 3"),
        ("endpoint.colour", True, "endpoint.colour: this agent does not know True"),
        ("traffic.protocol", "dccp", "traffic.protocol: this agent does not know 'dccp'"),
        ("raw", "sometimes", "raw: this agent does not know 'sometimes'"),
    ],
)
def test_unknown_field_or_value_is_refused_by_name(path: str, value: object, message: str) -> None:
    job = read_job(body_with(path, value))
    assert isinstance(job, Unfamiliar)
    assert job.job.job_id == make_job().job_id
    assert job.reason == f"{message}; install the coordinator's Broadside on the agent"


def test_field_marked_ignorable_is_ignored() -> None:
    body = body_with("traffic.colour", "red", may_ignore=["traffic.colour"])
    assert read_job(body) == make_job(may_ignore=["traffic.colour"])
    both = body_with("traffic.shade", 1, may_ignore=["traffic.colour"])
    assert isinstance(read_job(both), Unfamiliar)
    # A value cannot be ignored, because the agent would use it to send other traffic.
    known_value = body_with("traffic.protocol", "dccp", may_ignore=["traffic.protocol"])
    assert isinstance(read_job(known_value), Unfamiliar)


def test_wrong_value_and_missing_field_are_invalid() -> None:
    assert isinstance(read_job(body_with("duration_s", 0)), InvalidJob)
    assert isinstance(read_job(body_with("endpoint", {"colour": 1})), InvalidJob)


def test_other_protocol_version_is_refused() -> None:
    fields: dict[str, Any] = json.loads(make_job().model_dump_json()) | {"colour": "red"}
    newer = read_job(json.dumps(fields | {"version": 99}).encode())
    assert isinstance(newer, Job)
    ending = check(newer, make_settings(), BEFORE_AT)
    assert ending is not None
    assert ending.outcome is Outcome.REFUSED
    assert "the job speaks 99" in (ending.reason or "")


@given(st.binary(max_size=60))
def test_reader_accepts_any_bytes_without_an_exception(body: bytes) -> None:
    assert isinstance(read_job(body), InvalidJob)


# Checking a job.


def test_valid_job_passes() -> None:
    assert check(make_job(), make_settings(), BEFORE_AT) is None


@pytest.mark.parametrize(
    ("job", "settings", "message"),
    [
        (
            {"endpoint": {"agent_id": "s", "address": "8.8.8.8", "port": 53}},
            {},
            "8.8.8.8 is outside",
        ),
        ({"endpoint": {"agent_id": "s", "address": "10.2.1.3", "port": 53}}, {}, "53 is below"),
        ({"duration_s": 3601}, {}, "3601 s"),
        ({"duration_s": 3600, "traffic": {"omit_s": 1}}, {}, "3601 s"),
        ({}, {"bits_per_second_max": 10**9}, "none, but this agent is capped"),
        (
            {"traffic": {"streams_count": 4, "stream_bits_per_second": 300_000_000}},
            {"bits_per_second_max": 10**9},
            "1200000000 bit/s",
        ),
        (
            {
                "traffic": {
                    "streams_count": 2,
                    "stream_bits_per_second": 300_000_000,
                    "direction": "bidirectional",
                }
            },
            {"bits_per_second_max": 10**9},
            "1200000000 bit/s",
        ),
    ],
)
def test_refusal_names_the_value(
    job: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    ending = check(make_job(**job), make_settings(**settings), BEFORE_AT)
    assert ending is not None
    assert ending.outcome is Outcome.REFUSED
    assert message in (ending.reason or "")


def test_a_paced_job_within_the_cap_passes() -> None:
    job = make_job(traffic={"streams_count": 10, "stream_bits_per_second": 100_000_000})
    assert check(job, make_settings(bits_per_second_max=10**9), BEFORE_AT) is None


@pytest.mark.parametrize("late_s", [0.0, 0.5, 3600.0])
def test_a_job_received_at_or_after_the_instant_is_missed(late_s: float) -> None:
    ending = check(make_job(), make_settings(), INSTANT_AT + timedelta(seconds=late_s))
    assert ending is not None
    assert ending.outcome is Outcome.MISSED
    assert f"{late_s:.3f} s" in (ending.reason or "")


# Control row.


def test_run_continues_until_cancelled_or_lease_expires() -> None:
    control = Control(run_id="run-1", lease_until_at=INSTANT_AT)
    assert control_problem(control, BEFORE_AT) is None
    assert "lease lapsed" in (control_problem(control, INSTANT_AT) or "")
    cancelled = control.model_copy(
        update={"cancelled_at": BEFORE_AT, "cancelled_by": "ann", "cancel_reason": "too dear"}
    )
    assert control_problem(cancelled, BEFORE_AT) == "cancelled by ann: too dear"
    assert control_problem(None, BEFORE_AT) == "the run has no control row"


# Outcome.


def judge(
    reading: Mapping[str, Any] = MappingProxyType({}),
    report: Mapping[str, Any] = MappingProxyType({}),
    exit_: Mapping[str, Any] = MappingProxyType({}),
    release: Release | None = None,
    gate_refusal: str | None = None,
) -> tuple[Outcome, str | None]:
    """Return the outcome for a successful test with these changes."""
    read = make_reading(**reading)
    ending = judge_outcome(
        make_job(),
        replace(read, report=read.report.model_copy(update=report)),
        make_exit(**exit_),
        GateReport(release=release, refusal=gate_refusal),
        late_after_s=1.0,
    )
    return ending.outcome, ending.reason


@pytest.mark.parametrize("exit_code", [0, 1])
def test_good_test_is_measured_with_any_exit_code(exit_code: int) -> None:
    assert judge(exit_={"exit_code": exit_code}) == (Outcome.MEASURED, None)


def test_late_data_is_late_with_a_reason() -> None:
    late = {"first_data_at_s": INSTANT_S + 1.5}
    release = Release(
        gate_reached_at_s=INSTANT_S + 1.2, released_at_s=INSTANT_S + 1.2, server_ahead_s=0.0
    )
    assert judge(reading=late)[0] is Outcome.LATE
    outcome, reason = judge(reading=late, release=release)
    assert outcome is Outcome.LATE
    assert "1.500 s" in (reason or "")
    assert "open 1.200 s" in (reason or "")


NO_DATA = (FlowTotals(flow=Flow.UP, sent_bytes=2000, received_bytes=None),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        # The process exits with code 0.
        ({"report": {"error": "the server is busy"}}, "the server is busy"),
        ({"reading": {"first_data_at_s": INSTANT_S - 4.0}}, "gate did not work"),
        ({"reading": {"first_data_at_s": None}}, "did not report when"),
        ({"exit_": {"stopped": "deadline"}}, "at its deadline"),
        ({"report": {"totals": NO_DATA}}, "without data"),
        (
            {"report": {"truncated": True}, "exit_": {"stderr": "warn\nkilled by ghost\n"}},
            "killed by ghost",
        ),
    ],
)
def test_failures_have_a_reason(given: dict[str, Any], message: str) -> None:
    outcome, reason = judge(**given)
    assert outcome is Outcome.FAILED
    assert message in (reason or "")


UDP_TRAFFIC = {"protocol": "udp", "streams_count": 16, "stream_bits_per_second": 1_000_000}


@pytest.mark.parametrize(
    ("error", "exit_", "message"),
    [
        (
            "unable to read from stream socket: Connection timed out",
            {"stderr": "broadside-gate: unanswered 3 of 3\n"},
            "UDP: 3 of the first 3 streams did not open",
        ),
        # Without a gate.
        (None, {"stopped": "deadline"}, "UDP: the 16 streams did not open"),
    ],
)
def test_unopened_udp_streams_fail_with_next_step(
    error: str | None, exit_: dict[str, Any], message: str
) -> None:
    reading = make_reading(intervals={}, first_data_at_s=None)
    reading = replace(reading, report=reading.report.model_copy(update={"error": error}))
    job = make_job(traffic=UDP_TRAFFIC)
    ending = judge_outcome(job, reading, make_exit(**exit_), late_after_s=1.0)
    assert ending.outcome is Outcome.FAILED
    assert ending.reason is not None and message in ending.reason
    assert "check the path" not in ending.reason
    assert "UDP port 5201" in ending.reason and "run again" in ending.reason


def test_hanging_udp_test_is_not_reported_as_unopened() -> None:
    job = make_job(traffic=UDP_TRAFFIC)
    ending = judge_outcome(job, make_reading(), make_exit(stopped="deadline"), late_after_s=1.0)
    assert "did not open" not in (ending.reason or "")


def test_cancellation_reason_takes_precedence() -> None:
    assert judge(gate_refusal="cancelled by ann", exit_={"stopped": "cancelled by ann"}) == (
        Outcome.ABANDONED,
        "cancelled by ann",
    )


def test_start_error_is_signed() -> None:
    job = make_job()
    assert start_error_s(job, make_reading()) == pytest.approx(0.01)
    early = make_reading(first_data_at_s=INSTANT_S - 0.25)
    assert start_error_s(job, early) == pytest.approx(-0.25)
    assert start_error_s(job, make_reading(first_data_at_s=None)) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("unable to connect to server: Connection refused", True),
        ("the server is busy running a test. try again later", True),
        ("control socket has closed unexpectedly", True),
        ("unable to read from stream socket: Connection timed out", True),
        ("parameter error - number of parallel streams too large", False),
        (None, False),
    ],
)
def test_only_transient_errors_are_retried(error: str | None, expected: bool) -> None:
    assert may_retry(error) is expected
