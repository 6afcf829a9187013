import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.measure.engine_metrics import cost_of
from broadside.coordinator.core.summary import CpuCost
from broadside.exchange.messages import EngineReport


def report(cpu_s: float | None, size: int | None, host_s: float | None = None) -> EngineReport:
    return EngineReport(engine="iperf3", cpu_s=cpu_s, cpu_payload_bytes=size, host_cpu_s=host_s)


def cost_of_separate_hosts(*reports: EngineReport | None) -> CpuCost | None:
    """Return the cost if all pairs run on different hosts."""
    return cost_of((f"host-{index}", report) for index, report in enumerate(reports))


def test_cost_uses_pairs_with_cpu_time_and_bytes() -> None:
    cost = cost_of_separate_hosts(
        report(3.0, 2_000_000_000), report(1.0, 2_000_000_000), report(9.0, None)
    )
    assert cost is not None
    assert (cost.cpu_s_per_gigabyte, cost.pairs_count) == (1.0, 2)
    assert cost.host_cpu_s_per_gigabyte is None


def test_host_cost_needs_all_hosts() -> None:
    both = cost_of_separate_hosts(report(1.0, 10**9, 3.0), report(1.0, 10**9, 5.0))
    one = cost_of_separate_hosts(report(1.0, 10**9, 3.0), report(1.0, 10**9))
    assert both is not None and both.host_cpu_s_per_gigabyte == 4.0
    assert one is not None and one.host_cpu_s_per_gigabyte is None


def test_host_of_several_pairs_counts_once() -> None:
    """All reports give the CPU time of the complete host."""
    shared = cost_of([("one", report(1.0, 10**9, 6.0)), ("one", report(1.0, 10**9, 5.9))])
    assert shared is not None and shared.host_cpu_s_per_gigabyte == 3.0
    silent = cost_of([("one", report(1.0, 10**9, 6.0)), ("one", report(None, 10**9))])
    assert silent is not None and silent.host_cpu_s_per_gigabyte is None


def test_missing_values_are_unknown_and_not_zero() -> None:
    assert cost_of_separate_hosts(None, report(None, 10), report(1.0, None), report(1.0, 0)) is None


ENDS = st.tuples(st.floats(0.001, 1e4), st.integers(1, 10**13))


@given(st.lists(ENDS, min_size=1, max_size=20))
def test_fleet_cost_lies_between_the_costs_of_pairs(ends: list[tuple[float, int]]) -> None:
    cost = cost_of_separate_hosts(*(report(*end) for end in ends))
    costs = [cpu_s / size * 1e9 for cpu_s, size in ends]
    assert cost is not None
    assert min(costs) * (1 - 1e-6) <= cost.cpu_s_per_gigabyte <= max(costs) * (1 + 1e-6)
    twice = cost_of_separate_hosts(*(report(*end) for end in ends * 2))
    assert twice is not None
    assert twice.cpu_s_per_gigabyte == pytest.approx(cost.cpu_s_per_gigabyte)
