"""Findings on bursts that were ended early because their rate was certain."""

from collections.abc import Iterator

from broadside.coordinator.core import formatting
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BurstSummary, EarlyEnd, Finding, note
from broadside.exchange.messages import EndCause


def early_end_findings(spec: RunSpec, burst: BurstSummary) -> Iterator[Finding]:
    """Yield what a verdict rests on if bursts may be ended when their rate is certain.

    Args:
        spec: The specification.
        burst: The burst.
    """
    if spec.objective.stop is None:
        return
    end = burst.early_end
    if end is None:
        yield note(
            "not-stopped-early",
            51,
            f"The burst ran to its planned end of {burst.duration_s} s, because its rate was not "
            "certainly above or below the limit before.",
            "Nothing. If a decision is needed sooner, change the target",
        )
    elif end.cause is EndCause.CERTAIN:
        yield Finding(
            id="stopped-early",
            kind="verdict",
            severity="note",
            weight=52,
            sentence=f"Stopped at second {burst.duration_s} of at most {end.planned_s}, because "
            f"{end.reason}. Such a decision is wrong in at most "
            f"{formatting.ratio(end.error_ratio or 0.0, 0)} of the bursts. Not seen: drift, "
            f"scale-in of the device and leaks after second {burst.duration_s}.{_saving(end)}",
            next_step="To see changes over time, run without `objective.stop`",
        )


def _saving(end: EarlyEnd) -> str:
    """Return a sentence on the cost of the rest of the burst, or an empty text if unknown."""
    if end.saved_usd is None:
        return ""
    return (
        f" The rest of the burst would have cost about {formatting.dollars(end.saved_usd)} at real "
        "scale, at the prices of the day of the run."
    )
