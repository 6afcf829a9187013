"""What of a summary or a conclusion is held against what was planted. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coordinator.core.summary import RunSummary
from coordinator.studies.values import Study
from lab.scenarios.cases import Case
from lab.scenarios.table import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What of a summary or conclusion is held against the expected."""

    limiter: str | None = None
    words: str = ""
    cost_ratio: float | None = None
    knees: tuple[float, ...] = ()
    found_at_s: float | None = None  # the fleet's collapse, epoch s
    fell_at_s: tuple[float, ...] = ()  # the device did, epoch s

    @classmethod
    def of_run(cls, summary: RunSummary) -> "Facts":
        details = summary.limiter_details
        words = " ".join(finding.model_dump_json() for finding in summary.findings)
        cliff = summary.bursts[0].cliff
        return cls(
            limiter=summary.limiter.value,
            words=f"{words} {details}",
            found_at_s=None if cliff is None else cliff.at.timestamp(),
        )

    @classmethod
    def of_study(cls, study: Study) -> "Facts":
        said = study.conclusion
        if said is None:
            return cls(words=study.problem or "")
        metrics = said.comparison.metrics if said.comparison else ()
        received = [m for m in metrics if m.name == "received_bits_per_second"]
        return cls(
            words=said.sentence,
            cost_ratio=received[0].ratio if received else None,
            knees=tuple(knee.value for knee in said.knees),
        )


def faults(case: Case, row: Row, facts: Facts, earlier: Mapping[str, Row]) -> Iterator[str]:
    """What was expected of a case and did not show, a line each."""
    expected = case.expected
    if expected.limiter is not None and facts.limiter != expected.limiter:
        yield f"limiter {facts.limiter}, planted {expected.limiter}"
    if expected.says is not None and expected.says not in facts.words:
        yield f"nothing says {expected.says!r}"
    if expected.cost_ratio is not None:
        low, high = expected.cost_ratio
        if facts.cost_ratio is None or not low <= facts.cost_ratio <= high:
            yield f"b / a is {facts.cost_ratio}, planted {low:g} to {high:g}"
    if expected.knee is not None:
        low, high = expected.knee
        if not any(low <= knee <= high for knee in facts.knees):
            yield f"knees at {facts.knees or 'none'}, planted {low:g} to {high:g}"
    if expected.product_megabytes is not None:
        said = re.search(r"bandwidth-delay product .* is ([\d.]+) MB a pair", facts.words)
        if said is None or abs(float(said[1]) / expected.product_megabytes - 1) > 0.15:
            yield f"BDP {said and said[1]} MB, planted {expected.product_megabytes:g} MB"
    if expected.fall_within_s is not None:
        apart_s = [abs(at_s - (facts.found_at_s or 0.0)) for at_s in facts.fell_at_s]
        if not apart_s or min(apart_s) > expected.fall_within_s:
            yield f"collapse found at {facts.found_at_s}, planted at {facts.fell_at_s or 'none'}"
    if expected.rate_ratio_of is not None:
        other, low, high = expected.rate_ratio_of
        base = earlier[other].payload_bits_per_second if other in earlier else None
        if base and row.payload_bits_per_second:
            ratio = row.payload_bits_per_second / base
            if not low <= ratio <= high:
                yield f"{ratio:.2f} of {other!r}, planted {low:g} to {high:g}"
