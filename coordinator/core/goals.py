"""Registry of all thresholds that can be set for a run.

There is one rule for all thresholds
(:mod:`broadside.coordinator.core.judge.checks.thresholds_check`). A value above the limit fails. If
the value is not known for every pair, the result is inconclusive. A launch is rejected if nothing
in the run can measure the value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from broadside.coordinator.core.words import Unit, say


class Teller(StrEnum):
    """Source of the value for a threshold. The text is used in findings."""

    # Value of each flow over the window.
    FLOW = "was seen for"
    # Additional metric from the engine.
    MEASURE = "was told by"
    # Probes of all pairs under load.
    PROBE = "was probed whole for"
    # Telemetry of each device.
    DEVICE = "was told of"


_QUEUE: Final = (
    "reduce the load, or find the queue: compare the RTT under load with `rtt_idle_s`, and read "
    "the device's drop counters"
)
_ERRORS: Final = "reduce the load, or read the errors by kind"
PROBES: Final = "probes"
WITNESSES: Final = "witnesses"
_DEVICE: Final = "reduce the load, or use a larger device (cores, units, size)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Threshold for one metric of every burst.

    Attributes:
        bound: Field name in an Objective, which ends with the unit.
        id: First part of the finding ids, as in ``rtt-limit`` and ``rtt-unproven``.
        words: Label for people.
        needs: Metric that the engine needs to support, or probes or telemetry.
        teller: Source of the value.
        figure: Metric name at the source.
        pairs_count: Name of the field for the number of pairs that have a value.
        is_floor: True if the limit is a minimum.
        next_step: Advice for the finding.
    """

    bound: str
    id: str
    words: str
    needs: str
    teller: Teller
    figure: str
    pairs_count: str = "pairs_count"
    is_floor: bool = False
    next_step: str = _QUEUE

    @property
    def unit(self) -> Unit:
        return Unit.of(self.bound)

    def broken_by(self, value: float, bound: float) -> bool:
        return value < bound if self.is_floor else value > bound

    def say(self, value: float) -> str:
        return say(self.unit, value, 3)


GOALS: Final = (
    Goal(
        bound="rtt_mean_max_s",
        id="rtt",
        words="mean RTT",
        needs="rtt",
        teller=Teller.FLOW,
        figure="rtt_mean_s",
        pairs_count="rtt_pairs_count",
    ),
    Goal(
        bound="retransmit_max_ratio",
        id="retransmits",
        words="share of retransmitted segments",
        needs="retransmits",
        teller=Teller.FLOW,
        figure="retransmit_ratio",
        pairs_count="sent_pairs_count",
    ),
    Goal(
        bound="loss_max_ratio",
        id="loss",
        words="share of datagrams lost",
        needs="loss",
        teller=Teller.FLOW,
        figure="loss_ratio",
        pairs_count="loss_pairs_count",
    ),
    Goal(
        bound="success_min_ratio",
        id="success-ratio",
        words="share of requests that succeeded",
        needs="success",
        teller=Teller.MEASURE,
        figure="success_ratio",
        is_floor=True,
        next_step=_ERRORS,
    ),
    Goal(
        bound="latency_p99_max_s",
        id="latency-p99",
        words="99th percentile of latency",
        needs="latency",
        teller=Teller.MEASURE,
        figure="latency_p99",
        next_step=_ERRORS,
    ),
    Goal(
        bound="probe_p99_max_s",
        id="probe-p99",
        words="99th percentile of probes' round trips under load",
        needs=PROBES,
        teller=Teller.PROBE,
        figure="p99_s",
    ),
    Goal(
        bound="probe_loss_max_ratio",
        id="probe-loss",
        words="share of probes lost under load",
        needs=PROBES,
        teller=Teller.PROBE,
        figure="loss_ratio",
    ),
    Goal(
        bound="device_cpu_p95_max_ratio",
        id="device-cpu",
        words="95th percentile of the device's CPU",
        needs=WITNESSES,
        teller=Teller.DEVICE,
        figure="cpu_ratio.p95",
        next_step=_DEVICE,
    ),
    Goal(
        bound="device_memory_max_ratio",
        id="device-memory",
        words="device's maximum memory use",
        needs=WITNESSES,
        teller=Teller.DEVICE,
        figure="memory_ratio.max",
        next_step=_DEVICE,
    ),
    Goal(
        bound="device_drops_max_per_second",
        id="device-drops",
        words="device's drops per second",
        needs=WITNESSES,
        teller=Teller.DEVICE,
        figure="drops_per_second.mean",
        next_step=_DEVICE,
    ),
    Goal(
        bound="device_health_min_ratio",
        id="device-health",
        words="device's lowest health value",
        needs=WITNESSES,
        teller=Teller.DEVICE,
        figure="health_ratio.min",
        is_floor=True,
        next_step="read the device's health status and logs",
    ),
    Goal(
        bound="device_snat_ports_max_ratio",
        id="device-snat",
        words="device's maximum use of SNAT ports",
        needs=WITNESSES,
        teller=Teller.DEVICE,
        figure="snat_ports_ratio.max",
        next_step="give it more public addresses, or keep the traffic private",
    ),
)
# Fields of an Objective that are not a threshold in :data:`GOALS`, with the check that uses them.
JUDGED_APART: Final[Mapping[str, str]] = {
    "target_bits_per_second": "the fleet's rate, with every window that missing rows leave open",
    "layer": "the target's",
    "tolerance_ratio": "the target's",
    "residual_max_ratio": "the firewall's ledger against the fleet's",
    "start_spread_max_s": "how far apart pairs may begin",
    "coverage_floor_ratio": "how much must have been seen for any verdict",
}


def goals_set(objective: object) -> Iterator[str]:
    """Yield a text for each threshold that is set in an Objective."""
    for goal in GOALS:
        bound = getattr(objective, goal.bound)
        if bound is not None:
            yield f"{goal.words} at {'least' if goal.is_floor else 'most'} {goal.say(bound)}"
