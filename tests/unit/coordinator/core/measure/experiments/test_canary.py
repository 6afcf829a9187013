"""Test the results of canaries with planted leaks."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.measure.device.device_metrics import with_device_cpu
from broadside.coordinator.core.measure.experiments.canary import find_canary
from broadside.coordinator.core.measure.records.evidence import CanaryColumns
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    Quantity,
    TelemetrySeries,
)
from broadside.coordinator.core.run_spec import Burst
from broadside.coordinator.core.summary import CanarySummary
from broadside.exchange.messages import Canary
from broadside.exchange.messages import CanaryOutcome as Outcome

AT = datetime(2026, 11, 27, 12, tzinfo=UTC)
BURST = Burst(index=0, planned_start_at=AT, duration_s=30)
# The last two rounds before the burst could meet its load.
BEFORE, CLOSE, DURING, AFTER = 6, 2, 30, 4
CANARY = Canary.model_validate({"consent": "N. Owner", "signatures": ["port", "url"]})


def column(
    *,
    forbidden: Any = Outcome.SILENT,
    allowed: Any = Outcome.ANSWERED,
    forbidden_received: Any = 0,
    allowed_received: Any = 1,
    took_s: Any = np.nan,
) -> CanaryColumns:
    """Return the canaries of a pair, one per second. A single value applies to all rounds."""
    count = BEFORE + DURING + AFTER

    def spread(value: Any, kind: type) -> Any:
        return np.broadcast_to(np.asarray(value, kind), count).copy()

    return CanaryColumns(
        first_at_s=AT.timestamp() - BEFORE + 0.25,
        every_s=1.0,
        forbidden=spread(forbidden, np.int8),
        allowed=spread(allowed, np.int8),
        forbidden_received=spread(forbidden_received, np.int8),
        allowed_received=spread(allowed_received, np.int8),
        took_s=spread(took_s, float),
    )


def found(*columns: CanaryColumns) -> CanarySummary:
    result = find_canary(CANARY, BURST, dict(enumerate(columns)), None)
    assert result is not None
    return result


def leaking(ratio: float, random: np.random.Generator) -> CanaryColumns:
    leaked = random.random(BEFORE + DURING + AFTER) < ratio
    return column(
        forbidden=np.where(leaked, Outcome.ANSWERED, Outcome.SILENT), forbidden_received=leaked
    )


def is_inside(ratio: float, result: CanarySummary) -> bool:
    during = result.during
    assert during.tested_count == 4 * DURING
    assert during.confidence_ratio == 0.99
    assert during.leak_low_ratio is not None
    assert during.leak_high_ratio is not None
    return during.leak_low_ratio <= ratio <= during.leak_high_ratio


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.1, 0.8])
def test_planted_share_is_inside_the_interval_in_95_of_100_runs(ratio: float) -> None:
    """Simulate 100 runs. ``test_binomial`` computes the probability of this for any 100 runs."""
    random = np.random.default_rng(2026)
    runs = [found(*(leaking(ratio, random) for _ in range(4))) for _ in range(100)]
    assert sum(is_inside(ratio, run) for run in runs) >= 95


@pytest.mark.parametrize("differ", ["pairs", "signatures", "seconds"])
def test_interval_contains_the_mean_of_shares_that_differ(differ: str) -> None:
    """A device that leaks in some places or at some times has a mean share in this burst."""
    random, count = np.random.default_rng(2026), BEFORE + DURING + AFTER
    inside = 0
    for _ in range(100):
        # A part of this group leaks almost always, and the other part almost never.
        high, low = 0.95, 0.05
        group = {
            "pairs": np.repeat([[0], [1], [0], [0]], count, axis=1),
            "signatures": np.tile(np.arange(count) % 2, (4, 1)),
            "seconds": np.tile(random.random(count) < 0.3, (4, 1)),
        }[differ]
        share = np.where(group, high, low)
        leaked = random.random((4, count)) < share
        result = found(*(column(forbidden_received=pair) for pair in leaked))
        inside += is_inside(float(share[:, BEFORE : BEFORE + DURING].mean()), result)
    assert inside >= 99


def test_phases_are_separate() -> None:
    received = [0] * BEFORE + [1] * DURING + [0] * AFTER
    result = found(column(forbidden=Outcome.ANSWERED, forbidden_received=received))
    counts = [
        (phase.tested_count, phase.leaked_count)
        for phase in (result.before, result.during, result.after)
    ]
    assert counts == [(BEFORE - CLOSE, 0), (DURING, DURING), (AFTER, 0)]
    assert result.during.leak_ratio == 1
    assert result.first_leak_at == AT.replace(microsecond=250_000)
    assert result.consent == "N. Owner"


def test_request_counts_only_if_its_twin_arrived() -> None:
    twin = [1] * (BEFORE + 10) + [0] * 15 + [-1] * 5 + [1] * AFTER
    result = found(column(allowed=Outcome.SILENT, allowed_received=twin))
    assert result.during.tested_count == 10
    assert result.during.allowed_count == 25
    assert result.during.allowed_blocked_count == 15
    assert result.during.allowed_blocked_ratio == 0.6
    assert result.pairs_count == 1
    assert found(column(allowed_received=0)).pairs_count == 0
    assert found(column(allowed_received=0)).during.leak_ratio is None


def test_request_with_an_unknown_result_is_neither_leaked_nor_blocked() -> None:
    result = found(column(forbidden_received=-1), column())
    assert result.during.unknown_count == DURING
    assert (result.during.tested_count, result.during.leaked_count) == (DURING, 0)
    assert result.pairs_count == 1


def test_requests_that_were_not_sent_do_not_count() -> None:
    result = found(column(forbidden=Outcome.NOT_SENT, forbidden_received=-1), column())
    assert result.during.unknown_count == 0
    assert result.during.tested_count == DURING


@pytest.mark.parametrize(
    ("outcome", "received", "late", "silent", "is_decided"),
    [
        (Outcome.SILENT, 0, 0, DURING, False),
        (Outcome.RESET, 0, 0, 0, True),
        (Outcome.REFUSED, 0, 0, 0, True),
        (Outcome.REPLACED, 0, 0, 0, True),
        (Outcome.CUT, 1, DURING, 0, True),
        (Outcome.RESET, 1, DURING, 0, True),
        (Outcome.SILENT, 1, DURING, 0, False),
        (Outcome.ANSWERED, 1, 0, 0, False),
    ],
)
def test_delay_of_the_decision(
    outcome: Outcome, received: int, late: int, silent: int, is_decided: bool
) -> None:
    columns = column(forbidden=outcome, forbidden_received=received, took_s=0.3)
    during = found(columns, column(took_s=9.0, forbidden_received=-1)).during
    assert (during.late_count, during.silent_count) == (late, silent)
    assert during.leaked_count == received * DURING
    assert during.decision_p50_s == (0.3 if is_decided else None)
    assert during.decision_max_s == during.decision_p50_s


def test_signatures_take_turns() -> None:
    leaks = [number % 2 for number in range(BEFORE + DURING + AFTER)]
    result = found(column(forbidden=Outcome.ANSWERED, forbidden_received=leaks))
    port, url = result.signatures
    assert (port.name, port.during.leaked_count) == ("port", 0)
    assert (url.name, url.during.leaked_count, url.during.tested_count) == ("url", 15, 15)
    assert "URL" in url.rule


def test_steps_have_counts_and_the_cpu_of_the_device() -> None:
    leaks = [0] * (BEFORE + 10) + [1] * 20 + [0] * AFTER
    result = found(column(forbidden_received=leaks), column())
    assert len(result.steps) == BEFORE + DURING + AFTER
    assert result.every_s == 1
    step = result.step_of(AT.replace(second=10, microsecond=900_000))
    assert step is not None
    assert (step.at.second, step.tested_count, step.leaked_count) == (10, 2, 1)
    assert result.step_of(AT.replace(hour=11)) is None
    at_s = AT.timestamp() - 10 + np.arange(60.0)
    cpu = TelemetrySeries(
        device="fw",
        source="snmp",
        quantity=Quantity.CPU,
        at_s=at_s,
        over_s=np.ones(60),
        bound_s=np.zeros(60),
        values=np.where(at_s > AT.timestamp(), 0.9, 0.1),
    )
    telemetry = DeviceTelemetry(devices=("fw",), series=(cpu,), read_at=AT)
    with_cpu = with_device_cpu(result, telemetry)
    assert with_cpu.steps[0].device_cpu_ratio == pytest.approx(0.1)
    assert with_cpu.steps[20].device_cpu_ratio == pytest.approx(0.9)
    nothing = DeviceTelemetry(devices=("fw",), series=(), read_at=AT)
    assert with_device_cpu(result, nothing) == result


def test_steps_have_no_rounds_that_could_meet_the_burst() -> None:
    leaks = [0] * (BEFORE - CLOSE) + [1] * (CLOSE + DURING) + [0] * AFTER
    steps = found(column(forbidden_received=leaks)).steps
    assert [step.tested_count for step in steps[: BEFORE + 1]] == [1, 1, 1, 1, 0, 0, 1]
    assert next(step.at for step in steps if step.leaked_count) == AT


def test_a_long_burst_has_fewer_steps() -> None:
    burst = Burst(index=0, planned_start_at=AT, duration_s=1000)
    ones = np.ones(1000, np.int8)
    columns = CanaryColumns(
        first_at_s=AT.timestamp(),
        every_s=1.0,
        forbidden=ones,
        allowed=ones,
        forbidden_received=ones,
        allowed_received=ones,
        took_s=np.full(1000, np.nan),
    )
    result = find_canary(CANARY, burst, {0: columns}, None)
    assert result is not None
    assert len(result.steps) <= 120
    assert sum(step.tested_count for step in result.steps) == 1000


def test_without_canaries_there_is_no_result() -> None:
    assert find_canary(None, BURST, {0: column()}, None) is None
    assert find_canary(CANARY, BURST, {}, None) is None
