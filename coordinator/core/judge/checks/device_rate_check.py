"""Check that the rate from the device counter is above the limit."""

from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    Check,
    Result,
    Stage,
    inconclusive,
)
from broadside.coordinator.core.judge.rates import carried, limit_of, received


def _evaluate(given: BurstInput) -> Result:
    limit = limit_of(given.spec)
    fleet = received(given.spec, given.burst, given.between_bits_per_second)
    if limit is None or fleet is None or fleet.low <= limit:
        return NOTHING
    device = carried(given.spec, given.burst, fleet)
    if device is None or device.low > limit:
        return NOTHING
    return inconclusive(
        id="device-unproven",
        weight=84,
        sentence=f"by its own count the device carried {device} of the fleet's {fleet}, "
        f"which is not surely above the limit of {words.rate(limit)}",
        next_step="find out what passed the device by, or make its ledger tell more: finer bins, "
        "longer bursts",
    )


DEVICE_RATE: Final = Check(
    id="device-rate",
    stage=Stage.EVIDENCE,
    question="Is the rate derived from the device counter above the limit?",
    formula="R * (1 + residual) - h > limit, with h of R and of the residual",
    reads="the device counter and its residual",
    when_absent="skipped; the check counter-record handles a missing counter",
    findings=("device-unproven",),
    evaluate=_evaluate,
)
