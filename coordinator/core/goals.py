"""Every goal once: the bound that a run may be given, what it bounds, and what tells that.

One rule holds for every goal (:mod:`broadside.coordinator.core.judge.checks.thresholds_check`): a
value beyond the limit fails; a value that is not known for every pair is inconclusive. A launch is
refused where nothing in the run measures the value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from broadside.coordinator.core.words import Unit, say


class Teller(StrEnum):
    """What tells a goal's figure; the words are those of a finding."""

    FLOW = "was seen for"  # each flow's own figures over the window
    MEASURE = "was told by"  # what the engine tells beside bytes
    PROBE = "was probed whole for"  # probes of all pairs while loaded
    DEVICE = "was told of"  # what witnesses say of each device


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
    """A bound on one figure of every burst."""

    bound: str  # the field of an Objective; ends with its unit
    id: str  # of its findings: ``rtt-limit``, ``rtt-unproven``
    words: str
    needs: str  # what an engine says that it measures, or probes
    teller: Teller
    figure: str  # by its name at the teller
    pairs_count: str = "pairs_count"  # how many pairs told it, by its name at the teller
    is_floor: bool = False  # at least, instead of at most
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
# Fields of an Objective that bound no figure of :data:`GOALS`, and what judges by them.
JUDGED_APART: Final[Mapping[str, str]] = {
    "target_bits_per_second": "the fleet's rate, with every window that missing rows leave open",
    "layer": "the target's",
    "tolerance_ratio": "the target's",
    "residual_max_ratio": "the firewall's ledger against the fleet's",
    "start_spread_max_s": "how far apart pairs may begin",
    "coverage_floor_ratio": "how much must have been seen for any verdict",
}


def goals_set(objective: object) -> Iterator[str]:
    """The goals that an Objective sets, in words."""
    for goal in GOALS:
        bound = getattr(objective, goal.bound)
        if bound is not None:
            yield f"{goal.words} at {'least' if goal.is_floor else 'most'} {goal.say(bound)}"
