"""Tests to explain a dead letter, and whether it can be sent again."""

from datetime import timedelta
from ipaddress import ip_network

import pytest

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.decide import InvalidJob, JobOutcome, check, read_job
from broadside.coordinator.runs.dead_letters import DeadJob, explain, read_dead_job
from broadside.exchange.messages import Claim, Endpoint, Job, JobPhase, Outcome, Role, Traffic
from broadside.exchange.ports import DeadLetter
from tests.unit.coordinator.presences import NOW

JOB = Job(
    run_id="20261120-120000-smoke-7f3a",
    burst_index=1,
    pair_index=2,
    endpoint=Endpoint(agent_id="server-003", address="10.2.1.3", port=5201),
    traffic=Traffic(),
    planned_start_at=NOW + timedelta(seconds=15),
    duration_s=30,
)
CLAIM = Claim(job_id=JOB.job_id, agent_id="client-001", phase=JobPhase.REPORTED, claimed_at=NOW)


def explained(
    body: bytes, reason: str = "NotAJob", description: str = "", claim: Claim | None = None
) -> DeadJob:
    letter = DeadLetter(
        sequence_number=7, body=body, message_id="m", reason=reason, description=description
    )
    return explain(letter, read_dead_job(letter), claim, NOW)


def refusal(job: Job, **settings: object) -> str:
    """Return the description that an agent would give if it has these settings."""
    values = {"role": Role.CLIENT, "agent_id": "client-001"} | settings
    ending = check(job, AgentSettings.model_validate(values), NOW)
    assert isinstance(ending, JobOutcome)
    assert ending.outcome is Outcome.REFUSED
    return f"client-001: {ending.reason}"


@pytest.mark.parametrize(
    ("settings", "changes", "expected"),
    [
        (
            {"allowed_networks": (ip_network("192.168.0.0/16"),)},
            {},
            "BROADSIDE_AGENT_ALLOWED_NETWORKS",
        ),
        ({"duration_max_s": 10}, {}, "BROADSIDE_AGENT_DURATION_MAX_S"),
        ({"bits_per_second_max": 10}, {}, "BROADSIDE_AGENT_BITS_PER_SECOND_MAX"),
        ({}, {"version": 99}, "install the coordinator's version"),
    ],
)
def test_advice_on_a_refusal_contains_the_setting(
    settings: dict[str, object], changes: dict[str, object], expected: str
) -> None:
    job = JOB.model_copy(update=changes)
    dead = explained(job.body, "Refused", refusal(job, **settings), CLAIM)
    assert expected in dead.advice
    assert (dead.run_id, dead.pair, dead.target) == (JOB.run_id, "pair-003", "10.2.1.3:5201")


@pytest.mark.parametrize("body", [b"not json \xff", b"[]", b'{"version": 1}', b'{"version": 2}'])
def test_advice_on_an_invalid_job_follows_its_reason(body: bytes) -> None:
    invalid = read_job(body)
    assert isinstance(invalid, InvalidJob)
    dead = explained(body, invalid.reason, invalid.description)
    assert ("one version" if invalid.reason == "UnsupportedVersion" else "sender") in dead.advice
    assert dead.run_id is None
    assert dead.resend_problem is not None
    assert "not a job" in dead.resend_problem


def test_unclaimed_job_can_be_resent_only_before_its_start() -> None:
    for start_s, allowed in ((1, True), (0, False), (-1, False)):
        job = JOB.model_copy(update={"planned_start_at": NOW + timedelta(seconds=start_s)})
        dead = explained(job.body, "MaxDeliveryCountExceeded")
        assert (dead.resend_problem is None) is allowed, start_s
    assert "missed measurement" in (dead.resend_problem or "")
    assert "broadside doctor" in dead.advice


def test_recorded_job_cannot_be_resent() -> None:
    """If it is sent again, the job would be dropped because the claim is taken."""
    dead = explained(JOB.model_dump_json().encode(), "Refused", "client-001: version: x", CLAIM)
    assert dead.claimed_by == "client-001"
    assert "agent client-001 already claimed it" in (dead.resend_problem or "")


def test_advice_reports_an_unknown_reason() -> None:
    assert "does not set messages aside" in explained(b"{}", "Whim").advice
