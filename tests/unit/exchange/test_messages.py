"""Tests to validate messages."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from broadside.exchange.engines import problems
from broadside.exchange.messages import (
    Control,
    Direction,
    Endpoint,
    Flow,
    Job,
    Protocol,
    Traffic,
    pair_name,
)

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ENDPOINT = Endpoint(agent_id="server-1", address="10.2.1.1", port=5201)


def job(**changes: Any) -> Job:
    fields = {
        "run_id": "run-1",
        "burst_index": 3,
        "pair_index": 7,
        "endpoint": ENDPOINT,
        "traffic": Traffic(),
        "planned_start_at": AT,
        "duration_s": 30,
    }
    return Job(**(fields | changes))


def test_job_is_unchanged_after_serialisation() -> None:
    sent = job(traffic=Traffic(direction=Direction.BIDIRECTIONAL, mss_bytes=1400))
    assert Job.model_validate_json(sent.model_dump_json()) == sent


def test_job_ids_are_unique_and_ordered() -> None:
    ids = [job(burst_index=b, pair_index=p).job_id for b in (0, 2, 10) for p in (0, 2, 10)]
    assert ids == sorted(set(ids))
    assert job().job_id == "run-1.00003.00007"
    assert (job().pair, pair_name(0)) == ("pair-008", "pair-001")


def test_times_are_stored_in_utc_and_need_a_zone() -> None:
    amsterdam = timezone(timedelta(hours=1))
    later = Control(run_id="run-1", lease_until_at=AT.astimezone(amsterdam))
    assert later.lease_until_at.utcoffset() == timedelta(0)
    assert later.lease_until_at == AT
    with pytest.raises(ValidationError):
        Control(run_id="run-1", lease_until_at=datetime(2026, 1, 1))  # noqa: DTZ001 - the case


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "Run 1"},
        {"run_id": "../etc"},
        {"duration_s": 0},
        {"duration_s": 86_401},
        {"burst_index": -1},
        {"endpoint": {"agent_id": "a/b", "address": "10.2.1.1", "port": 5201}},
        {"endpoint": {"agent_id": "a", "address": "10.2.1.1", "port": 0}},
        {"colour": "red"},
    ],
)
def test_invalid_job_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        job(**changes)


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"streams_count": 129}, "streams_count"),
        ({"engine": "rm -rf"}, "engine"),
        ({"congestion": "bbr; reboot"}, "congestion"),
    ],
)
def test_invalid_traffic_is_rejected_with_its_field(fields: Any, messages: str) -> None:
    with pytest.raises(ValidationError, match=messages):
        Traffic(**fields)


def test_udp_with_a_rate_is_valid() -> None:
    assert problems(Traffic(protocol=Protocol.UDP, stream_bits_per_second=1_000_000)) == ()


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({}, ["traffic.stream_bits_per_second"]),
        ({"stream_bits_per_second": 1, "mss_bytes": 1400}, ["traffic.mss_bytes"]),
        ({"congestion": "bbr"}, ["traffic.stream_bits_per_second", "traffic.congestion"]),
    ],
)
def test_unsendable_udp_can_be_read_but_not_launched(fields: Any, messages: list[str]) -> None:
    requested = Traffic(protocol=Protocol.UDP, **fields)
    assert Traffic.model_validate_json(requested.model_dump_json()) == requested
    assert [problem.partition(":")[0] for problem in problems(requested)] == messages


def test_direction_has_its_flows() -> None:
    assert Direction.FORWARD.flows == (Flow.UP,)
    assert Direction.REVERSE.flows == (Flow.DOWN,)
    assert Direction.BIDIRECTIONAL.flows == (Flow.UP, Flow.DOWN)


def test_messages_are_frozen() -> None:
    with pytest.raises(ValidationError):
        job().duration_s = 5  # type: ignore[misc]  # frozen: the case
