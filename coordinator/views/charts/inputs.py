"""Input types of the charts."""

from dataclasses import dataclass

from broadside.coordinator.core import formatting
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BurstSummary, RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstView:
    """Finished burst. If the run is finished too, ``summary`` contains the verdict."""

    spec: RunSpec
    summary: BurstSummary
    series: BurstSeries
    device_counter: CounterRecord | None = None
    telemetry: DeviceTelemetry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Finished run."""

    spec: RunSpec
    summary: RunSummary


def scale_note(scale: float) -> str:
    """Return the note about the lab's scale for a title. Empty at real scale."""
    return "" if scale == 1 else f" ({formatting.lab(scale)}, as measured)"
