from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from broadside.coordinator.core.measure.device.session_counts import session_counts
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    Quantity,
    TelemetrySeries,
)
from broadside.coordinator.core.summary import BurstSummary, MeasureSummary, SessionCount
from tests.judged import judged_first
from tests.synthetic import Plant, fleet

BURST = judged_first(fleet(Plant(pairs=2, bursts=1, burst_s=10, period_s=25)))
AT_S = int(BURST.planned_start_at.timestamp())


def series(quantity: Quantity, values: list[float], over_s: float = 1.0) -> TelemetrySeries:
    """Return readings with one per second, from 5 seconds before the burst."""
    at_s = AT_S - 5 + np.arange(1.0, len(values) + 1)
    return TelemetrySeries(
        device="fw",
        source="csv",
        quantity=quantity,
        at_s=at_s,
        over_s=np.full(len(values), over_s),
        bound_s=np.zeros(len(values)),
        values=np.array(values),
    )


def counted(
    *known: TelemetrySeries, accepted: float = 1000.0, ramps: float = 0.0
) -> list[SessionCount]:
    counts = {"server_established": accepted, "server_closed": 400.0, "server_reset": 600.0}
    if ramps:
        counts |= {"server_ramp_established": ramps, "server_ramp_reset": ramps}
    burst: BurstSummary = BURST.model_copy(
        update={
            "planned_start_at": datetime.fromtimestamp(AT_S, UTC),
            "planned_end_at": datetime.fromtimestamp(AT_S, UTC) + timedelta(seconds=10),
            "measures": tuple(
                MeasureSummary(name=f"{name}_count", value=value, unit="count", pairs_count=2)
                for name, value in counts.items()
            ),
        }
    )
    telemetry = DeviceTelemetry(devices=("fw",), series=known, read_at=burst.planned_end_at)
    return list(session_counts(telemetry, burst, 2.0))


# 5 s before, 10 s of the burst, 10 s after.
STEADY = [9.0] * 5 + [100.0] * 10 + [0.0] * 10
# The control connections of two pairs end after the burst.
ENDED = [*STEADY[:15], 2.0, *STEADY[16:]]


def test_adds_the_seconds_of_the_burst() -> None:
    (count,) = counted(series(Quantity.CONNECTIONS, STEADY), series(Quantity.ENDED, ENDED))
    assert (count.set_up_count, count.fleet_count) == (1000, 1000)
    assert (count.ended_count, count.fleet_ended_count) == (1002, 1002)
    assert count.set_up_residual_ratio == count.ended_residual_ratio == 0


def test_device_counts_the_connections_of_ramps() -> None:
    known = (series(Quantity.CONNECTIONS, STEADY), series(Quantity.ENDED, STEADY))
    (count,) = counted(*known, accepted=900.0, ramps=100.0)
    # Two control connections end, too.
    assert (count.fleet_count, count.fleet_ended_count) == (1000, 1102)


def test_residuals_are_distinguished() -> None:
    late = [0.0] * 7 + STEADY[5:15] + [0.0] * 8
    missing = [*ENDED[:14], 50.0, *ENDED[15:]]
    (count,) = counted(series(Quantity.CONNECTIONS, late), series(Quantity.ENDED, missing))
    assert count.set_up_residual_ratio == 0
    assert count.ended_residual_ratio == pytest.approx(-50 / 1002)
    (alone,) = counted(series(Quantity.CONNECTIONS, STEADY), accepted=0.0)
    assert alone.set_up_residual_ratio is alone.ended_residual_ratio is None


@pytest.mark.parametrize(
    "values",
    [
        [*STEADY[:8], float("nan"), *STEADY[9:]],
        # The telemetry ends before the burst.
        STEADY[:12],
        [],
    ],
)
def test_unknown_second_gives_no_count(values: list[float]) -> None:
    assert counted(series(Quantity.CONNECTIONS, values)) == []


def test_readings_must_be_short() -> None:
    assert counted(series(Quantity.CONNECTIONS, STEADY, over_s=5.0)) == []
