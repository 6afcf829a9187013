"""What agents and coordinator lived through becomes one dated sentence a kind."""

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


def spell(kind: OutageKind, from_s: float, to_s: float | None, count: int = 1) -> ServiceOutage:
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


def sentences(evidence: BurstEvidence, *, late_count: int = 0, whole: bool = True) -> list[str]:
    result = outage_findings(outages(evidence), late_count=late_count, whole=whole)
    return [finding.sentence for finding in result]


def test_without_trouble_there_is_nothing_to_say() -> None:
    assert sentences(burst(pair(0), pair(1, server=()))) == []
    assert not list(coordinator_findings(()))


def test_an_outage_that_several_lived_through_is_one_sentence() -> None:
    evidence = burst(
        *(pair(n, spell(TABLE, 5 + n, 25 - n, 4), server=()) for n in range(3)),
        *(pair(n) for n in range(3, 27)),
    )
    assert sentences(evidence, late_count=3) == [
        (
            "the table did not answer 3 of 30 agents between 03:12:05 and 03:12:25 UTC; "
            "3 reports arrived late, nothing is missing"
        )
    ]
    assert sentences(evidence, whole=False)[0].endswith("; no report was late")


def test_outages_with_a_pause_between_are_told_apart() -> None:
    evidence = burst(
        pair(0, spell(QUEUE, 0, 2), spell(QUEUE, 60, None)), pair(1, spell(QUEUE, 1, 3))
    )
    assert sentences(evidence) == [
        (
            "the queue did not answer 2 of 2 agents between 03:12:00 and 03:12:03 UTC; "
            "the queue did not answer 1 of 2 agents from 03:13:00 UTC on; "
            "no report was late, nothing is missing"
        )
    ]


def test_duplicates_are_counted_and_said_to_be_harmless() -> None:
    evidence = burst(pair(0, spell(TWICE, 1, 1, 2)), pair(1, spell(TWICE, 1, 2)), pair(2))
    assert sentences(evidence) == [
        (
            "2 of 3 agents dropped 3 messages whose job somebody had already between 03:12:01 and "
            "03:12:02 UTC; no job was carried out twice"
        )
    ]


def test_what_was_lost_is_a_warning_with_its_fix() -> None:
    [lost] = outage_findings(
        outages(burst(pair(0, spell(OutageKind.LOST, 0, 0, 7)))), late_count=0, whole=False
    )
    assert lost.severity == "warning"
    assert "7 writes of 1 of 1 agents found no room on disk at 03:12:00 UTC" in lost.sentence
    assert "BROADSIDE_AGENT_SPOOL_MAX_BYTES" in (lost.next_step or "")


def test_a_spell_that_both_ends_of_an_agent_tell_counts_once() -> None:
    both = (spell(TABLE, 0, 1),)
    evidence = burst(pair(0, server=both), pair(1, server=both))
    shared = replace(
        evidence.pairs[1],
        server_test=evidence.pairs[1].server_test.model_copy(update={"agent_id": "s0"}),  # type: ignore[union-attr]  # it has one
    )
    [outage] = outages(burst(evidence.pairs[0], shared))
    assert (outage.agents_count, outage.asked_count, outage.count) == (1, 3, 1)


def test_the_coordinators_own_troubles_are_its_own_findings() -> None:
    result = coordinator_findings(
        [
            spell(QUEUE, 3, 6, 2),
            spell(OutageKind.TICK_FAILED, 0, None),
            *(spell(QUEUE, 60 * n, 60 * n) for n in range(1, 5)),
        ]
    )
    assert {finding.id: finding.sentence for finding in result} == {
        "coordinator-queue-away": "the queue did not answer the coordinator between 03:12:03 and "
        "03:12:06 UTC, at 03:13:00 UTC, at 03:14:00 UTC and 2 times more",
        "coordinator-ticks-failed": "the coordinator could not look after its runs from 03:12:00 "
        "UTC on",
    }


spells = st.lists(
    st.builds(
        spell,
        st.sampled_from(list(OutageKind)),
        st.integers(0, 100),
        st.none(),
        st.integers(1, 9),
    ),
    max_size=8,
)


@given(st.lists(spells, min_size=1, max_size=6), st.randoms())
def test_the_order_of_the_pairs_is_irrelevant_and_the_summary_bounded(
    told: list[list[ServiceOutage]], chance: object
) -> None:
    pairs = [pair(index, *troubles) for index, troubles in enumerate(told)]
    expected = outages(burst(*pairs))
    chance.shuffle(pairs)  # type: ignore[attr-defined]  # a random.Random
    assert outages(burst(*pairs)) == expected
    assert len(expected) <= KEPT_MAX_COUNT
    assert all(1 <= o.agents_count <= o.asked_count == len(pairs) for o in expected)
