"""Tests to combine engine measures by sum, maximum, weighted mean or quantile."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broadside.coordinator.core.measure.engine_metrics import find, measure_pairs, taken_cpu
from broadside.coordinator.core.measure.grid.align import Aligned
from broadside.exchange.messages import (
    BUCKET_RATIO,
    Aggregation,
    Distribution,
    EngineReport,
    Flow,
    FlowTotals,
    Measure,
)


def _aligned(*pairs: tuple[EngineReport | None, ...]) -> Aligned:
    """Return pairs with the given engine reports."""
    reported = [SimpleNamespace(engines=tuple(e for e in ends if e is not None)) for ends in pairs]
    return cast("Aligned", SimpleNamespace(pairs=reported))


def _end(*measures: Measure, **fields: Any) -> EngineReport:
    return EngineReport(engine="http", measures=measures, **fields)


def _measure(value: float, combine: Aggregation, weight: float = 1.0) -> Measure:
    return Measure(name="x", value=value, unit="s", combine=combine, weight=weight)


@pytest.mark.parametrize(
    ("combine", "value"),
    [
        pytest.param(Aggregation.SUM, 5.0, id="2 + 3"),
        pytest.param(Aggregation.MAX, 3.0, id="the larger of 2 and 3"),
        pytest.param(Aggregation.MEAN, 2.75, id="(2 * 1 + 3 * 3) / 4"),
    ],
)
def test_combines_measures_by_their_aggregation(combine: Aggregation, value: float) -> None:
    pairs = [(_end(_measure(2.0, combine, 1.0)),), (_end(_measure(3.0, combine, 3.0)),), ()]
    (result,) = measure_pairs(_aligned(*pairs))
    assert (result.name, result.value, result.unit, result.pairs_count) == ("x", value, "s", 2)


def test_mean_without_weights_is_unweighted() -> None:
    pairs = [(_end(_measure(value, Aggregation.MEAN, 0.0)),) for value in (2.0, 5.0)]
    (result,) = measure_pairs(_aligned(*pairs))
    assert result.value == 3.5


def test_pair_with_two_reporting_ends_counts_once() -> None:
    ends = (_end(_measure(2.0, Aggregation.SUM)), _end(_measure(3.0, Aggregation.SUM)))
    (result,) = measure_pairs(_aligned(ends))
    assert (result.value, result.pairs_count) == (5.0, 1)


def test_jitter_is_the_mean_of_the_first_ends_by_flow() -> None:
    def end(**jitter_s: float) -> EngineReport:
        totals = [FlowTotals(flow=Flow(flow), jitter_s=item) for flow, item in jitter_s.items()]
        return _end(totals=(*totals, FlowTotals(flow=Flow.UP)))

    pairs = [(end(up=0.001), end(up=0.9, down=0.004)), (end(up=0.003),)]
    result = measure_pairs(_aligned(*pairs))
    assert [(item.name, item.value, item.unit, item.pairs_count) for item in result] == [
        ("jitter_down", 0.004, "s", 1),
        ("jitter_up", 0.002, "s", 2),
    ]


def test_quantiles_use_the_nearest_rank_of_summed_buckets() -> None:
    """To get exact results, all ranks are the last in their bucket.

    The buckets have 50, 40, 5, 4 and 1 of 100 values. The maximum must not be taken from a
    bucket.
    """

    def end(counts: dict[int, int], largest: float) -> EngineReport:
        spread = Distribution(name="wait", unit="s", counts=counts, max=largest)
        return _end(distributions=(spread,))

    one, other = end({0: 20, 10: 40, 40: 1}, 10.0), end({0: 30, 20: 5, 30: 4}, 9.0)
    result = measure_pairs(_aligned((one,), (other,)))
    assert {item.pairs_count for item in result} == {2}
    assert {item.unit for item in result} == {"s"}
    assert [item.name for item in result] == [
        f"wait_{label}" for label in ("max", "p50", "p90", "p95", "p99")
    ]
    middle = [BUCKET_RATIO ** (bucket + 0.5) for bucket in (0, 10, 20, 30)]
    assert [item.value for item in result] == pytest.approx([10.0, *middle], rel=1e-5)


def test_no_quantile_is_above_the_largest_value() -> None:
    spread = Distribution(name="wait", unit="s", counts={0: 3}, max=1.0)
    result = measure_pairs(_aligned((_end(distributions=(spread,)),)))
    assert [item.value for item in result] == [1.0] * 5


def test_returns_a_measure_by_name() -> None:
    result = measure_pairs(_aligned((_end(_measure(2.0, Aggregation.SUM)),)))
    assert find(result, "x") == result[0]
    assert find(result, "y") is None


def test_host_counts_once_with_its_largest_value() -> None:
    def agent_end(agent_id: str, ratio: float | None) -> SimpleNamespace:
        return SimpleNamespace(agent_id=agent_id, engine=_end(host_taken_ratio=ratio))

    pairs = [
        SimpleNamespace(report=agent_end("a", 0.1), server_test=agent_end("b", 0.2)),
        SimpleNamespace(report=agent_end("a", 0.3), server_test=agent_end("c", None)),
        SimpleNamespace(report=None, server_test=SimpleNamespace(agent_id="d", engine=None)),
        SimpleNamespace(report=agent_end("a", 0.2), server_test=None),
    ]
    result = taken_cpu(cast("Aligned", SimpleNamespace(pairs=pairs)))
    assert result is not None
    # It is 0.3 for host a, and 0.2 for host b.
    assert (result.hosts_count, result.mean_ratio) == (2, 0.25)
    assert (result.worst_host, result.worst_ratio) == ("a", 0.3)
    assert taken_cpu(cast("Aligned", SimpleNamespace(pairs=pairs[2:3]))) is None
