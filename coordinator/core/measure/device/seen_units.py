"""Number of units by translated addresses, as a quantity of the device beside its telemetry."""

import numpy as np

from broadside.coordinator.core.measure.device.device_metrics import EDGE_S, device_figures
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    Quantity,
    TelemetrySeries,
)
from broadside.coordinator.core.summary import ALL_DEVICES, BurstSummary, DeviceSummary, Units


def seen_units_series(units: Units) -> TelemetrySeries:
    """Return the number of units with traffic in each step. A step without traffic is unknown.

    Args:
        units: Units of a burst.
    """
    values = np.array([[unit.bits_per_second, unit.flows] for unit in units.units])
    counts = values.any(axis=1).sum(axis=0).astype(float)
    at_s = units.start_at.timestamp() + units.every_s * np.arange(1.0, len(counts) + 1)
    return TelemetrySeries(
        device=ALL_DEVICES,
        source="fleet",
        quantity=Quantity.SEEN_UNITS,
        at_s=at_s,
        over_s=np.full(len(counts), units.every_s),
        # Seconds of the servers are placed on whole seconds of the grid.
        bound_s=np.full(len(counts), EDGE_S),
        values=np.where(counts > 0, counts, np.nan),
    )


def with_seen_units(burst: BurstSummary) -> BurstSummary:
    """Return a burst with the number of units in the summary of all devices, if it is known.

    Args:
        burst: Burst with its window and units.
    """
    if burst.units is None or not burst.units.units:
        return burst
    telemetry = DeviceTelemetry(
        devices=(ALL_DEVICES,),
        series=(seen_units_series(burst.units),),
        read_at=burst.planned_end_at,
    )
    counted, _ = device_figures(telemetry, burst)
    device = burst.device or DeviceSummary(device=ALL_DEVICES)
    # Nothing is known without traffic, so there is no idle level.
    seen = counted.seen_units_count
    update = {"seen_units_count": seen and seen.model_copy(update={"idle": None})}
    return burst.model_copy(update={"device": device.model_copy(update=update)})
