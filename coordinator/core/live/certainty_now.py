"""Decision to end a running burst because its rate is certain. Pure."""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.checks.check_types import BurstInput
from broadside.coordinator.core.judge.checks.rate_checks import check_rate, limit_of
from broadside.coordinator.core.live.live_view import EDGE_S, reported_until_s
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.evidence import BurstEvidence
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.core.summary import Verdict
from broadside.exchange.messages import BurstEnd, EndCause

# Time in seconds from the decision to the stop. All agents read the order in this time, so that
# they stop together.
ORDER_S: Final = 4.0
# If less than this is left, the burst is not ended.
REST_MIN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty:
    """Decision on a running burst.

    Attributes:
        verdict: Pass or fail.
        known_s: Seconds of measured traffic that it is based on, complete for all pairs.
        reason: Text for the order and the report.
        payload_bits_per_second: Mean rate so far, as measured.
    """

    verdict: Verdict
    known_s: int
    reason: str
    payload_bits_per_second: float


def is_due(plan: Plan, burst: Burst, now: datetime) -> bool:
    """Return True if it is useful to look at a burst now.

    Args:
        plan: The plan.
        burst: The burst, with its planned duration.
        now: Current time to use.
    """
    if plan.spec.objective.stop is None or burst.end is not None:
        return False
    traffic_at = burst.planned_start_at + timedelta(seconds=burst.omit_s)
    begin_at = traffic_at + timedelta(seconds=plan.spec.sustain_least_s)
    return begin_at <= now < burst.planned_end_at - timedelta(seconds=ORDER_S + REST_MIN_S)


def find_certainty(plan: Plan, evidence: BurstEvidence, now: datetime) -> Certainty | None:
    """Return the decision on a running burst.

    The same code as for the verdict is used, on the seconds that both ends of all pairs have
    reported. A missing second is never counted as zero: if a pair has reported nothing, or is late,
    there is no decision.

    Args:
        plan: The plan.
        evidence: Evidence for the burst so far.
        now: Current time to use.

    Returns:
        The decision with the number of seconds that it uses. None while the rate is not certain.
    """
    burst, spec = evidence.burst, plan.spec
    reached = reported_until_s(evidence)
    if len(reached) < len(plan.pairs):
        return None
    known_s = math.floor(float(reached[0]) + EDGE_S) - burst.omit_s
    known_s = min(known_s, burst.duration_s)
    if known_s < spec.sustain_least_s:
        return None
    at = burst.planned_start_at + timedelta(seconds=known_s + burst.omit_s)
    # The order as it would be, because it selects the confidence sequence.
    order = BurstEnd(
        burst_index=burst.index, at=at, cause=EndCause.CERTAIN, reason="", decided_at=now
    )
    summary = measure_burst(spec, replace(evidence, burst=burst.ended(order)), now).summary
    rate, limit = summary.fleet_received_bits_per_second, limit_of(spec)
    if summary.pairs_measured < len(plan.pairs) or rate is None or limit is None:
        return None
    result = check_rate(
        BurstInput(
            spec=spec,
            burst=summary,
            clocks_promised=plan.clocks_promised,
            clocks_shared=plan.shared_boot_id is not None,
        )
    )
    if result.verdict not in (Verdict.PASS, Verdict.FAIL):
        return None
    side = "above" if result.verdict is Verdict.PASS else "below"
    reason = f"the rate is certainly {side} the limit {formatting.rate(limit)}"
    return Certainty(
        verdict=result.verdict, known_s=known_s, reason=reason, payload_bits_per_second=rate
    )


def stop_at(burst: Burst, now: datetime) -> datetime:
    """Return the time to stop, which is a whole second of the burst.

    Args:
        burst: Burst that is running.
        now: Current time.

    Returns:
        The time, at least ``ORDER_S`` seconds after ``now``.
    """
    elapsed_s = (now - burst.planned_start_at).total_seconds()
    return burst.planned_start_at + timedelta(seconds=math.ceil(elapsed_s + ORDER_S))
