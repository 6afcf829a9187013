"""Build bottleneck inputs for unit tests. Fields that a test does not need have defaults."""

from typing import Any

from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import BottleneckInput
from broadside.coordinator.core.summary import (
    ByteSource,
    DeviceFigure,
    DeviceSummary,
    FlowSummary,
    PairSummary,
    Reconciliation,
    SecondState,
)
from broadside.exchange.messages import Flow, Traffic


def pair(index: int = 0, rate: float | None = 1e9, **fields: Any) -> PairSummary:
    return PairSummary(
        pair=f"pair-{index + 1:03d}",
        pair_index=index,
        state=SecondState.MEASURED,
        completeness_ratio=1.0,
        basis=ByteSource.RECEIVER,
        received_bits_per_second=rate,
        **fields,
    )


def pairs(*rows: dict[str, Any], rate: float = 1e9) -> list[PairSummary]:
    """Build one pair for each row. All pairs have the same rate."""
    return [pair(index, rate, **row) for index, row in enumerate(rows)]


def given(of: list[PairSummary], traffic: Traffic | None = None, **fields: Any) -> BottleneckInput:
    """Build an input. Fields can be set for the first flow or for the input itself."""
    flow = {name: fields.pop(name) for name in FlowSummary.model_fields.keys() & fields.keys()}
    flows = [FlowSummary(**({"flow": Flow.UP} | flow))]
    return BottleneckInput(
        traffic=traffic or Traffic(streams_count=1), pairs=of, flows=flows, **fields
    )


def counted(rate: float | None, cov_ratio: float | None = 0.01) -> Reconciliation:
    """Reconcile a device counter that has one-second bins."""
    return Reconciliation(
        source="lab",
        layer="ip",
        grain_s=1.0,
        basis="rate",
        overhead_ratio=1.036,
        overhead_how="recorded",
        firewall_bits_per_second=rate,
        counter_cov_ratio=cov_ratio,
    )


def figure(mean: float, **fields: float | None) -> DeviceFigure:
    known = {"mean": mean, "p95": mean, "min": mean, "max": mean, "covered_ratio": 1.0}
    return DeviceFigure.model_validate(known | fields)


def device(name: str = "fw", **figures: DeviceFigure | None) -> DeviceSummary:
    return DeviceSummary.model_validate({"device": name} | figures)
