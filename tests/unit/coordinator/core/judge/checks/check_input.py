"""Build check inputs for unit tests. Fields that a test does not need have defaults."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from broadside.coordinator.core.judge.checks.check_types import BurstInput, CheckResult, RunInput
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.summary import (
    BottleneckName,
    ByteSource,
    Reconciliation,
    SecondState,
)
from broadside.exchange.messages import Flow

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def weights(result: CheckResult) -> list[tuple[str, float]]:
    """Return id and weight for every finding, in report order."""
    return [(finding.id, finding.weight) for finding in result.findings]


def spec(**fields: Any) -> SimpleNamespace:
    """Build a specification with a 1 Gbit/s target (payload layer) and no tolerance."""
    objective = {
        "coverage_floor_ratio": 0.95,
        "start_spread_max_s": 1.0,
        "residual_max_ratio": 0.02,
        "tolerance_ratio": 0.0,
        "layer": Layer.PAYLOAD,
    }
    known: dict[str, Any] = {
        "scaled_target_bits_per_second": 1e9,
        "clock_bound_max_s": 0.05,
        "bypasses_device": False,
    }
    objective |= {name: fields.pop(name) for name in objective.keys() & fields.keys()}
    return SimpleNamespace(objective=SimpleNamespace(**objective), **(known | fields))


def seen(measured_s: int = 1000, planned_s: int = 1000) -> SimpleNamespace:
    return SimpleNamespace(
        completeness_ratio=measured_s / planned_s, measured_s=measured_s, planned_s=planned_s
    )


def window(**fields: Any) -> SimpleNamespace:
    known = {"window_s": 30, "common_s": 30, "outside_s": 0, "outside_pair": "pair-001",
             "start_at": START, "ramp_s": 0, "ramp_bits_per_second": None, "reading_s": None,
             "slowest_bits_per_second": None, "slowest_from_s": None, "slowest_s": 6,
             "slowest_proven_bits_per_second": None}  # fmt: skip
    return SimpleNamespace(**(known | fields))


def pair(name: str = "pair-001", **fields: Any) -> SimpleNamespace:
    """Build a completely measured pair."""
    known = {
        "pair": name,
        "state": SecondState.MEASURED,
        "reason": None,
        "completeness_ratio": 1.0,
        "basis": ByteSource.RECEIVER,
    }
    return SimpleNamespace(**(known | fields))


def burst(rate: float | None = 1.2e9, half: float | None = 1e7, **fields: Any) -> SimpleNamespace:
    """Build a complete 30 s burst with a received rate and its half width."""
    flow = SimpleNamespace(
        flow=Flow.UP,
        received_bits_per_second=rate,
        sent_bits_per_second=rate,
        sent_pairs_count=1,
    )
    known = {
        "index": 0,
        "completeness": seen(),
        "proven_ratio": 1.0,
        "bottleneck": BottleneckName.UNKNOWN,
        "duration_s": 30,
        "window": window(),
        "fleet_received_bits_per_second": rate,
        "fleet_received_half_width_bits_per_second": half,
        "fleet_sent_bits_per_second": rate,
        "header_ratio": 1.04,
        "headers_assumed": False,
        "flows": (flow,),
        "pairs": (pair(received_bits_per_second=rate),),
        "late_pairs": (),
        "reconciliation": None,
        "unsteady_clocks": None,
        "clocks_unread_s": 0,
        "start_spread_s": 0.1,
        "contradictions": (),
        "worst_bits_per_second": rate,
        "peak_pair_bits_per_second": rate,
        "cliff": None,
        "bottleneck_details": SimpleNamespace(advice=None),
    }
    return SimpleNamespace(**(known | fields))


def of_burst(
    of: SimpleNamespace, under: SimpleNamespace | None = None, **fields: Any
) -> BurstInput:
    return BurstInput(spec=cast(Any, under or spec()), burst=cast(Any, of), **fields)


def plan(**fields: Any) -> SimpleNamespace:
    """Build a plan with one 30 s burst."""
    planned = SimpleNamespace(planned_start_at=START, planned_end_at=at(30))
    known = {"spec": spec(), "bursts": (planned,), "ledger": None, "is_intact": True}
    return SimpleNamespace(**(known | fields))


def of_run(
    of: SimpleNamespace,
    *bursts: SimpleNamespace,
    device_counter: CounterRecord | None = None,
    completeness_ratio: float = 1.0,
) -> RunInput:
    return RunInput(
        plan=cast(Any, of),
        device_counter=device_counter,
        bursts=cast(Any, bursts),
        completeness_ratio=completeness_ratio,
    )


def counter(from_s: float, to_s: float, grain_s: float = 1.0, **fields: Any) -> CounterRecord:
    """Build a device counter. Both times are relative to the first burst."""
    edges = START.timestamp() + np.arange(from_s, to_s + grain_s / 2, grain_s)
    known: dict[str, Any] = {
        "source": "counter",
        "start_s": edges[:-1],
        "end_s": edges[1:],
        "bytes": np.full(len(edges) - 1, 1e6),
        "grain_s": grain_s,
        "read_at": at(to_s),
    }
    return CounterRecord(**(known | fields))


def make_reconciliation(residual_ratio: float | None = 0.0, /, **fields: Any) -> Reconciliation:
    """Build the reconciliation for a counter with 0.5 % uncertainty."""
    known = {
        "source": "counter",
        "layer": "ip",
        "grain_s": 1.0,
        "basis": "bytes",
        "lag_s": 0.0,
        "overhead_ratio": 1.0,
        "overhead_how": "recorded",
        "residual_ratio": residual_ratio,
        "residual_uncertainty_ratio": 0.005,
        "crossed_bits_per_second": 1e9,
        "expected_bytes": 1e9,
        "baseline_how": "quiet",
    }
    return Reconciliation.model_validate(known | fields)
