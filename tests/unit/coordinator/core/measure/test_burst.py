"""Tests for sums, names and defaults in a burst summary, using worked examples."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broadside.coordinator.core.measure.burst import (
    _headers,
    _names,
    _proven,
    _start_errors,
    _sum,
    _with_nic_limits,
    measure_burst,
)
from broadside.coordinator.core.measure.completeness import PairGrade
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import Burst, RunSpec
from broadside.coordinator.core.summary import Completeness, SecondState
from broadside.exchange.messages import EngineReport, Outcome, Traffic
from tests.synthetic import Plant, fleet
from tests.unit.coordinator.core.records import job_report

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1.0, 2.0], 3.0),
        # If this were summed, it would look complete.
        ([1.0, None], None),
        ([None], None),
        ([], None),
        ([0.0], 0.0),
    ],
)
def test_sum_with_an_unknown_flow_is_unknown(
    values: list[float | None], total: float | None
) -> None:
    assert _sum(values) == total


def _grade(error_s: float | None, *, late: bool = False, proven: float = 1.0) -> PairGrade:
    state = SecondState.LATE if late else SecondState.MEASURED
    return PairGrade(
        completeness=Completeness.of({state: 10}),
        state=state,
        reason=None,
        start_error_s=error_s,
        proven_ratio=proven,
    )


def test_start_errors_exclude_late_pairs() -> None:
    grades = [_grade(0.3), _grade(-0.1), _grade(9.0, late=True), _grade(None), _grade(0.2)]
    spread, largest, p99 = _start_errors(grades).values()
    assert spread == pytest.approx(0.4)
    assert (largest, p99) == (0.3, 0.3)
    assert _start_errors([_grade(9.0, late=True)]) == {}
    hundred = [_grade(number / 1000) for number in range(100)]
    assert tuple(_start_errors(hundred).values()) == (0.099, 0.099, 0.098)


def test_proven_ratio_excludes_late_pairs() -> None:
    assert _proven([_grade(0.0, proven=0.5), _grade(0.0), _grade(0.0, late=True)]) == 0.5
    assert _proven([]) == 0.0


def test_lists_pairs_by_state() -> None:
    pairs = [SimpleNamespace(pair=state.value, state=state) for state in SecondState]
    figures = cast(Any, SimpleNamespace(pairs=pairs))
    assert _names(figures, SecondState.LATE, SecondState.MISSED) == ("late", "missed")


def test_missing_pairs_are_missed_refused_abandoned_or_lost() -> None:
    made = fleet(Plant(pairs=6, bursts=1, burst_s=10, device_counter=False))
    outcomes = [Outcome.MISSED, Outcome.REFUSED, Outcome.ABANDONED, Outcome.MEASURED]
    pairs = [
        PairEvidence(pair_index=row, report=job_report(row, AT, outcome=outcome))
        for row, outcome in enumerate(outcomes)
    ]
    (evidence,) = made.evidence
    received = tuple(pair for pair in evidence.pairs if pair.pair_index >= len(pairs))
    changed = BurstEvidence(burst=evidence.burst, pairs=(*pairs, *received))
    summary = measure_burst(made.plan.spec, changed, made.now).summary
    assert summary.missing_pairs == ("pair-001", "pair-002", "pair-003")
    assert summary.null_pairs == ("pair-004",)
    assert summary.late_pairs == ()
    assert (summary.pairs_planned, summary.pairs_measured) == (6, 2)


def test_late_pair_is_listed_as_late_only() -> None:
    made = fleet(Plant(pairs=3, bursts=1, burst_s=10, late=1, device_counter=False))
    (evidence,) = made.evidence
    summary = measure_burst(made.plan.spec, evidence, made.now).summary
    (late,) = [pair.pair for pair in summary.pairs if pair.state is SecondState.LATE]
    assert summary.late_pairs == (late,)
    assert (summary.null_pairs, summary.missing_pairs) == ((), ())


def test_vm_size_limits_hosts_without_a_nic_rate() -> None:
    """The 12.5 Gbit/s for Standard_D4s_v5 are 1.25 Gbit/s in a lab with a tenth of the rate."""
    burst = Burst(index=0, planned_start_at=AT, duration_s=10)
    pair = PairEvidence(
        pair_index=0,
        client_vm_size="Standard_D4s_v5",
        server_vm_size="Standard_D4s_v5",
        server_nic_bits_per_second=5e9,
    )
    bare = PairEvidence(pair_index=1, client_vm_size="unknown size")
    capped, unknown = _with_nic_limits(BurstEvidence(burst=burst, pairs=(pair, bare)), 10.0).pairs
    assert capped.client_nic_bits_per_second == 1.25e9
    assert capped.server_nic_bits_per_second == 5e9
    assert (unknown.client_nic_bits_per_second, unknown.server_nic_bits_per_second) == (None, None)


def test_headers_use_the_segment_size_of_clients() -> None:
    spec = cast(RunSpec, SimpleNamespace(traffic=Traffic()))

    def pair(index: int, mss_bytes: int | None, mtu_bytes: int | None = None) -> PairEvidence:
        engine = EngineReport(engine="iperf3", mss_bytes=mss_bytes)
        report = job_report(index, AT, engine=engine)
        return PairEvidence(pair_index=index, report=report, nic_mtu_bytes=mtu_bytes)

    assert _headers(spec, [pair(0, 8948), pair(1, 8948)]).mss_bytes == 8948
    assert _headers(spec, [pair(0, None)]).assumed
    requested = cast(RunSpec, SimpleNamespace(traffic=Traffic(mss_bytes=8000)))
    assert _headers(requested, [pair(0, None, 9000), pair(1, None, 1500)]).mss_bytes == 1448
    assert _headers(requested, [pair(0, None, 9000), pair(1, None)]).mss_bytes == 7988
