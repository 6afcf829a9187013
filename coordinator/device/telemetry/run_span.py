"""Time span of a run, for which a device counter and telemetry are read."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.run_spec import Plan
from broadside.exchange.messages import Control, Direction

# Seconds that are read before and after a run, for counter lag and foreign traffic.
MARGIN_S: Final = 360.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpan:
    """Run and time span to read.

    Attributes:
        run_id: The run's id.
        from_at: Start of the bins to read.
        before_at: End of the bins to read.
        begun_at: Start of the traffic. Values from this time on are required.
        ended_at: End of the traffic.
        direction: Direction of the traffic to read.
    """

    run_id: str
    from_at: datetime
    before_at: datetime
    begun_at: datetime
    ended_at: datetime
    direction: Direction

    @property
    def is_empty(self) -> bool:
        """Return True if the run ended before it began, so that no data is expected."""
        return self.ended_at <= self.begun_at


def run_span(plan: Plan, control: Control | None) -> RunSpan:
    """Return the span that a run needs, with a margin before and after its traffic.

    Args:
        plan: Plan of the run.
        control: Control row of the run, or None.
    """
    cancelled_at = control.cancelled_at if control else None
    begun_at, ends_at = plan.bursts[0].planned_start_at, plan.bursts[-1].planned_end_at
    margin = timedelta(seconds=MARGIN_S)
    return RunSpan(
        run_id=plan.run_id,
        from_at=begun_at - margin,
        before_at=ends_at + margin,
        begun_at=begun_at,
        ended_at=min(filter(None, (ends_at, cancelled_at))),
        direction=plan.spec.traffic.direction,
    )
