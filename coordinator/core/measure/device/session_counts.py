"""Sessions that devices set up and ended in a burst, to compare with the fleet's connections.

The seconds of the device from the start of the burst to some seconds after its end are added. The
clients' control connections and idle probes open before the start, so the first second can contain
a few of them. The control connection of each pair ends after the burst, so it is one of the fleet's
ended connections. A device with an unknown second has no count.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    Quantity,
    TelemetrySeries,
)
from broadside.coordinator.core.summary import BurstSummary, SessionCount, figure

# Seconds after the end of a burst in which its last sessions are set up or ended.
AFTER_S: Final = 1.0
# Longest reading whose edges are a small part of a burst, in seconds.
OVER_MAX_S: Final = 2.0


def session_counts(
    telemetry: DeviceTelemetry, burst: BurstSummary, grace_s: float
) -> Iterator[SessionCount]:
    """Yield the sessions of each device that counts new ones.

    Args:
        telemetry: Telemetry of the run.
        burst: Burst with the counts of the fleet.
        grace_s: Seconds after the end in which the engine waits for its last connections.
    """
    fleet = {measure.name: measure.value for measure in burst.measures}
    if "server_established_count" not in fleet:
        return
    controls = {measure.name: measure.pairs_count for measure in burst.measures}
    ended = _larger(fleet, "closed", "reset") + controls["server_established_count"]
    from_s = math.floor(burst.planned_start_at.timestamp())
    to_s = math.ceil(burst.planned_end_at.timestamp() + grace_s + AFTER_S)
    for device in telemetry.devices:
        opened, closed = (
            _total(telemetry, device, quantity, (from_s, to_s))
            for quantity in (Quantity.CONNECTIONS, Quantity.ENDED)
        )
        if opened is None:
            continue
        yield SessionCount(
            device=device,
            set_up_count=opened,
            fleet_count=_larger(fleet, "established"),
            ended_count=closed,
            fleet_ended_count=None if closed is None else ended,
        )


def _larger(fleet: Mapping[str, float], *names: str) -> float:
    """Return the larger sum of these counts at the clients and at the servers.

    An end can miss a connection that crossed the device, for example if it was reset early. The
    device also counts the connections of ramps.
    """
    return max(
        sum(fleet.get(f"{end}{part}{name}_count", 0.0) for name in names for part in ("", "ramp_"))
        for end in ("", "server_")
    )


def _total(
    telemetry: DeviceTelemetry, device: str, quantity: Quantity, span: tuple[float, float]
) -> float | None:
    """Return the count of a quantity in a span, or None if a part of it is unknown."""
    for series in telemetry.of(quantity):
        if series.device == device and not np.isnan(series.bound_s).any():
            return _sum(series, *span)
    return None


def _sum(series: TelemetrySeries, from_s: float, to_s: float) -> float | None:
    over_s = series.over_s
    inside = (series.at_s > from_s) & (series.at_s - over_s < to_s)
    if not inside.any() or over_s[inside].max() > OVER_MAX_S:
        return None
    covered_s = float(over_s[inside].sum())
    total = float((series.values[inside] * over_s[inside]).sum())
    is_covered = covered_s >= to_s - from_s - OVER_MAX_S and series.at_s[inside].max() >= to_s
    return figure(total) if is_covered and math.isfinite(total) else None
