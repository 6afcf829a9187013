"""Results of each part of a mixed run as table rows. Pure."""

from collections.abc import Iterator
from typing import Final

from broadside.coordinator.core.formatting import count, number, rate, ratio, time
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import BurstSummary, RunSummary

PART_COLUMNS: Final = (
    *("burst", "traffic", "verdict", "bottleneck", "other metrics"),
    *("pairs", "completeness", "received payload"),
)
# Number of columns before those with numbers.
PART_NUMBERS_FROM: Final = 5
# Engine metrics to show, with their labels.
PART_MEASURES: Final = {
    "established_per_second": "established",
    "held_count": "held",
    "dropped_count": "dropped",
    "success_ratio": "successful",
    "handshake_p99": "handshake p99",
    "latency_p99": "latency p99",
}


def parts_of(summary: RunSummary) -> Iterator[tuple[str, BurstSummary]]:
    """Yield the name and the result of each part of each burst of a mixed run."""
    first = summary.part_names[0] if summary.part_names else ""
    for burst in summary.bursts:
        if burst.parts:
            yield first, burst
            yield from ((part.name, part.summary) for part in burst.parts)


def part_rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """Return a row with the cells of ``PART_COLUMNS`` for each part of each burst."""
    return [
        (
            str(burst.index + 1),
            name,
            (burst.first_part_verdict or burst.verdict).value,
            burst.bottleneck.label,
            _other_metrics(burst),
            f"{burst.pairs_measured} of {burst.pairs_planned}",
            ratio(burst.completeness_ratio, 1),
            rate(RECEIVED.of_burst(burst)),
        )
        for name, burst in parts_of(summary)
    ]


def _other_metrics(burst: BurstSummary) -> str:
    """Return the main engine metrics of a burst, and the round-trip times of its probes."""
    measures = {measure.name: measure for measure in burst.measures}
    if "held_count" in measures:
        measures.pop("established_per_second", None)
    shown = {"s": time, "ratio": lambda value: ratio(value, 1), "count": count}
    texts = [
        f"{label} {shown.get(one.unit, lambda value: f'{number(value)} /s')(one.value)}"
        for name, label in PART_MEASURES.items()
        if (one := measures.get(name)) is not None
    ]
    if burst.latency is not None:
        probes = burst.latency.fleet.during
        texts.append(f"probes p99 {time(probes.p99_s)}, lost {ratio(probes.loss_ratio)}")
    return "; ".join(texts)
