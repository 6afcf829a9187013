"""CPU of the devices while canaries were sent."""

import numpy as np

from broadside.coordinator.core.measure.device.device_metrics import seconds_of
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry, Quantity
from broadside.coordinator.core.summary import CanarySummary, figure


def with_device_cpu(canary: CanarySummary, telemetry: DeviceTelemetry) -> CanarySummary:
    """Return a copy with the mean CPU of all devices at each step, where it is known.

    Args:
        canary: Results of the canaries.
        telemetry: Telemetry of the devices.
    """
    reported = telemetry.of(Quantity.CPU)
    if not reported or not canary.steps:
        return canary
    every_s = round(canary.every_s)
    start_s, count = canary.steps[0].at.timestamp(), every_s * len(canary.steps)
    grid = np.array([seconds_of(series, start_s, count) for series in reported]).mean(axis=0)
    means = grid.reshape(-1, every_s).mean(axis=1)
    steps = (
        step.model_copy(update={"device_cpu_ratio": figure(float(mean))})
        for step, mean in zip(canary.steps, means, strict=True)
    )
    return canary.model_copy(update={"steps": tuple(steps)})
