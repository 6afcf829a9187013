"""Tests for service outages, with one sentence for all outages of a kind."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.measure.outages import (
    KEPT_MAX_COUNT,
    coordinator_findings,
    outage_findings,
    outages,
)
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import Burst
from broadside.exchange.messages import (
    Endpoint,
    EngineReport,
    OutageKind,
    ServerTest,
    ServiceOutage,
)
from tests.unit.coordinator.core.records import job_report

AT = datetime(2026, 11, 20, 3, 12, tzinfo=UTC)
TABLE, QUEUE, TWICE = OutageKind.TABLE_AWAY, OutageKind.QUEUE_AWAY, OutageKind.DUPLICATE


def make_outage(
    kind: OutageKind, from_s: float, to_s: float | None, count: int = 1
) -> ServiceOutage:
    to_at = None if to_s is None else AT + timedelta(seconds=to_s)
    return ServiceOutage(
        kind=kind, from_at=AT + timedelta(seconds=from_s), to_at=to_at, count=count
    )


def pair(
    index: int, *troubles: ServiceOutage, server: tuple[ServiceOutage, ...] | None = None
) -> PairEvidence:
    report = job_report(index, AT, agent_id=f"c{index}", troubles=troubles)
    endpoint = Endpoint(agent_id=f"s{index}", address="10.2.1.1", port=5201)
    test = ServerTest(
        agent_id=f"s{index}",
        endpoint=endpoint,
        started_at=AT,
        engine=EngineReport(engine="iperf3"),
        troubles=server or (),
    )
    return PairEvidence(
        pair_index=index, report=report, server_test=None if server is None else test
    )


def burst(*pairs: PairEvidence) -> BurstEvidence:
    planned = Burst(index=0, planned_start_at=AT, duration_s=30)
    return BurstEvidence(burst=planned, pairs=pairs)


def sentences(evidence: BurstEvidence, *, late_count: int = 0, complete: bool = True) -> list[str]:
    result = outage_findings(outages(evidence), late_count=late_count, whole=complete)
    return [finding.sentence for finding in result]


def test_no_finding_without_outages() -> None:
    assert sentences(burst(pair(0), pair(1, server=()))) == []
    assert not list(coordinator_findings(()))


def test_outage_of_several_agents_is_one_sentence() -> None:
    evidence = burst(
        *(pair(n, make_outage(TABLE, 5 + n, 25 - n, 4), server=()) for n in range(3)),
        *(pair(n) for n in range(3, 27)),
    )
    assert sentences(evidence, late_count=3) == [
        (
            "The table did not answer 3 of 30 agents between 03:12:05 and 03:12:25 UTC; "
            "3 reports arrived late, no record is missing."
        )
    ]
    assert sentences(evidence, complete=False)[0].endswith("; no report was late.")


def test_outages_with_a_pause_are_separate() -> None:
    evidence = burst(
        pair(0, make_outage(QUEUE, 0, 2), make_outage(QUEUE, 60, None)),
        pair(1, make_outage(QUEUE, 1, 3)),
    )
    assert sentences(evidence) == [
        (
            "The queue did not answer 2 of 2 agents between 03:12:00 and 03:12:03 UTC; "
            "the queue did not answer 1 of 2 agents from 03:13:00 UTC on; "
            "no report was late, no record is missing."
        )
    ]


def test_duplicate_messages_are_counted_as_harmless() -> None:
    evidence = burst(
        pair(0, make_outage(TWICE, 1, 1, 2)), pair(1, make_outage(TWICE, 1, 2)), pair(2)
    )
    assert sentences(evidence) == [
        (
            "2 of 3 agents dropped 3 messages for jobs that were taken already between 03:12:01 "
            "and 03:12:02 UTC; no job ran twice."
        )
    ]


def test_lost_writes_are_a_warning_with_a_fix() -> None:
    [lost] = outage_findings(
        outages(burst(pair(0, make_outage(OutageKind.LOST, 0, 0, 7)))), late_count=0, whole=False
    )
    assert lost.severity == "warning"
    assert (
        "7 records of 1 of 1 agents were lost, because their disk was full at 03:12:00 UTC"
        in lost.sentence
    )
    assert "BROADSIDE_AGENT_SPOOL_MAX_BYTES" in (lost.next_step or "")


def test_outage_reported_by_both_ends_counts_once() -> None:
    both = (make_outage(TABLE, 0, 1),)
    evidence = burst(pair(0, server=both), pair(1, server=both))
    shared = replace(
        evidence.pairs[1],
        server_test=evidence.pairs[1].server_test.model_copy(update={"agent_id": "s0"}),  # type: ignore[union-attr]  # it has one
    )
    [outage] = outages(burst(evidence.pairs[0], shared))
    assert (outage.affected_agents_count, outage.reporting_agents_count, outage.count) == (1, 3, 1)


def test_coordinator_outages_have_separate_findings() -> None:
    result = coordinator_findings(
        [
            make_outage(QUEUE, 3, 6, 2),
            make_outage(OutageKind.TICK_FAILED, 0, None),
            *(make_outage(QUEUE, 60 * n, 60 * n) for n in range(1, 5)),
        ]
    )
    assert {finding.id: finding.sentence for finding in result} == {
        "coordinator-queue-away": "The queue did not answer the coordinator between 03:12:03 and "
        "03:12:06 UTC, at 03:13:00 UTC, at 03:14:00 UTC and 2 more times.",
        "coordinator-ticks-failed": "The coordinator could not supervise its runs from 03:12:00 "
        "UTC on.",
    }


outage_lists = st.lists(
    st.builds(
        make_outage,
        st.sampled_from(list(OutageKind)),
        st.integers(0, 100),
        st.none(),
        st.integers(1, 9),
    ),
    max_size=8,
)


@given(st.lists(outage_lists, min_size=1, max_size=6), st.randoms())
def test_order_of_pairs_is_irrelevant_and_outages_are_limited(
    troubles_by_pair: list[list[ServiceOutage]], chance: object
) -> None:
    pairs = [pair(index, *troubles) for index, troubles in enumerate(troubles_by_pair)]
    expected = outages(burst(*pairs))
    chance.shuffle(pairs)  # type: ignore[attr-defined]  # a random.Random
    assert outages(burst(*pairs)) == expected
    assert len(expected) <= KEPT_MAX_COUNT
    assert all(
        1 <= o.affected_agents_count <= o.reporting_agents_count == len(pairs) for o in expected
    )
