"""What charts are drawn from."""

from dataclasses import dataclass

from broadside.coordinator.core import words
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.series import BurstSeries
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import BurstSummary, RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstView:
    """One burst that is over; ``summary`` is the judged one where the run is over."""

    spec: RunSpec
    summary: BurstSummary
    series: BurstSeries
    ledger: FirewallLedger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run that is over."""

    spec: RunSpec
    summary: RunSummary


def scaled(scale: float) -> str:
    """What a title adds in a lab."""
    return "" if scale == 1 else f" ({words.lab(scale)}, as measured)"
