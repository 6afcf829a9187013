"""Objective of a run, and registry of all thresholds that it can set.

There is one rule for all thresholds
(:mod:`broadside.coordinator.core.judge.checks.thresholds_check`). A value beyond the limit fails.
If the value is not known for every pair, the result is inconclusive. A launch is rejected if
nothing in the run can measure the value. To add a threshold for a metric that bursts already have,
add a field to :class:`Objective` and an entry to :data:`ALL_THRESHOLDS`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from broadside.coordinator.core.formatting import MetricUnit, quantity_text
from broadside.coordinator.core.metrics import Layer
from broadside.exchange.messages import Message


class Objective(Message):
    """Target and thresholds of a run, and the coverage that a verdict needs.

    Attributes:
        target_bits_per_second: Target rate at real scale in bit/s, at the layer in `layer`. None
            for no target.
        layer: Layer of the target.
        tolerance_ratio: Part of the target by which the rate can be lower and still pass.
        coverage_floor_ratio: Required part of the planned pair-seconds (0 to 1).
        rtt_mean_max_s: Largest mean round-trip time in seconds.
        retransmit_max_ratio: Largest part of retransmitted segments (0 to 1).
        loss_max_ratio: Largest part of lost UDP datagrams (0 to 1).
        success_min_ratio: Smallest part of successful requests (0 to 1).
        latency_p99_max_s: Largest 99th percentile of the time of the requests, in seconds.
        connections_min_per_second: Smallest number of established connections per second, over all
            pairs.
        handshake_p99_max_s: Largest 99th percentile of the time from when a connection was due
            until it was established, in seconds.
        first_byte_p99_max_s: Largest 99th percentile of the time to the first byte, in seconds.
        held_min_count: Smallest number of connections that were open at the same time, as the sum
            of the pairs' maxima.
        dropped_max_count: Largest number of held connections that ended early.
        probe_p99_max_s: Largest 99th percentile of the round-trip time of the probes, in seconds.
        probe_loss_max_ratio: Largest part of lost probes (0 to 1).
        device_cpu_p95_max_ratio: Largest 95th percentile of the CPU use of each device (0 to 1).
        device_memory_max_ratio: Largest memory use of each device (0 to 1).
        device_drops_max_per_second: Largest mean number of packets that a device drops per second.
        device_health_min_ratio: Smallest health of each device (0 to 1).
        device_snat_ports_max_ratio: Largest use of the ports for address translation (0 to 1).
        residual_max_ratio: Largest difference between the fleet and the device counter (0 to 1).
        start_spread_max_s: Largest time between the first bytes of the pairs, in seconds.
        stop: ``when-certain`` ends each burst as soon as its rate is certainly above or below the
            limit.
        sustain_min_s: Shortest burst in seconds with ``stop``. None means 60 s, or 300 s where RFC
            9411 is claimed.
        tls_handshake_p99_max_s: Largest 99th percentile of the TLS handshake times, in seconds.
        leak_max_ratio: Largest share of leaked canaries whose allowed twin arrived (0 to 1). None
            allows no leak.
    """

    target_bits_per_second: Annotated[float, Field(gt=0)] | None = None
    layer: Layer = Layer.IP
    tolerance_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.05
    coverage_floor_ratio: Annotated[float, Field(gt=0, le=1)] = 0.95
    rtt_mean_max_s: Annotated[float, Field(gt=0)] | None = None
    retransmit_max_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    loss_max_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    success_min_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    latency_p99_max_s: Annotated[float, Field(gt=0)] | None = None
    connections_min_per_second: Annotated[float, Field(gt=0)] | None = None
    handshake_p99_max_s: Annotated[float, Field(gt=0)] | None = None
    tls_handshake_p99_max_s: Annotated[float, Field(gt=0)] | None = None
    first_byte_p99_max_s: Annotated[float, Field(gt=0)] | None = None
    held_min_count: Annotated[float, Field(gt=0)] | None = None
    dropped_max_count: Annotated[float, Field(ge=0)] | None = None
    probe_p99_max_s: Annotated[float, Field(gt=0)] | None = None
    probe_loss_max_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    leak_max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    device_cpu_p95_max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    device_memory_max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    device_drops_max_per_second: Annotated[float, Field(ge=0)] | None = None
    device_health_min_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    device_snat_ports_max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    residual_max_ratio: Annotated[float, Field(gt=0, le=1)] = 0.05
    start_spread_max_s: Annotated[float, Field(gt=0, le=60)] = 0.1
    stop: Literal["when-certain"] | None = None
    sustain_min_s: Annotated[int, Field(ge=10, le=86_400)] | None = None


class MetricSource(StrEnum):
    """Source of the value for a threshold."""

    # Value of each flow over the window.
    FLOW = "flow"
    # Additional metric from the engine.
    ENGINE = "engine"
    # Probes of all pairs under load.
    PROBE = "probe"
    # Canaries of all pairs during the burst.
    CANARY = "canary"
    # Telemetry of each device.
    DEVICE = "device"


PROBES: Final = "probes"
CANARIES: Final = "canaries"
DEVICE_TELEMETRY: Final = "telemetry"
_QUEUE: Final = (
    "Compare `rtt_mean_s` (under load) with `rtt_idle_s` (before the burst) in `broadside pairs`. "
    "If both are high, the path is long: change the path or the threshold. If only the first is "
    "high, packets wait or are lost in a queue: reduce the load, or give the device or link with "
    "the bottleneck more capacity"
)
_ERRORS: Final = "Reduce the load, or read the errors by kind in the engine metrics of the report"
_CONNECTIONS: Final = (
    "Reduce the rate, or read the outcomes of the attempts: a device at its limit drops them "
    "(timed out) or rejects them (refused, reset)"
)
_MORE_CONNECTIONS: Final = (
    "Compare the attempts with the offered rate. If there are fewer, use more clients. Otherwise "
    "read the outcomes of the attempts: a device at its limit drops them (timed out) or rejects "
    "them (refused, reset)"
)
LEAK_STEP: Final = (
    "Read when canaries leaked (`canary` of the burst, or the report) and compare with rate and "
    "CPU; disable a bypass under overload (fail-open) on the device, or reduce the load"
)
_DEVICE: Final = "Reduce the load, or use a larger device (cores, units, size)"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Threshold for one metric of every burst.

    Attributes:
        bound: Field name in an Objective, which ends with the unit.
        id: First part of the finding ids, as in ``rtt-limit`` and ``rtt-unproven``.
        label: Label for people.
        source: Source of the value.
        metric: Metric name at the source.
        requires: Metric that the engine needs to support, or probes or telemetry.
        pairs_count: Name of the field for the number of pairs that have a value.
        next_step: Advice for the finding.
        is_floor: True if the limit is a minimum.
    """

    bound: str
    id: str
    label: str
    source: MetricSource
    metric: str
    requires: str
    pairs_count: str = "pairs_count"
    next_step: str = _QUEUE
    is_floor: bool = False

    @property
    def unit(self) -> MetricUnit:
        return MetricUnit.of(self.bound)

    def broken_by(self, value: float, bound: float) -> bool:
        return value < bound if self.is_floor else value > bound

    def format(self, value: float) -> str:
        return quantity_text(self.unit, value, 3)


ALL_THRESHOLDS: Final = (
    Threshold(
        "rtt_mean_max_s",
        "rtt",
        "mean RTT",
        MetricSource.FLOW,
        "rtt_mean_s",
        "rtt",
        pairs_count="rtt_pairs_count",
    ),
    Threshold(
        "retransmit_max_ratio",
        "retransmits",
        "share of retransmitted segments",
        MetricSource.FLOW,
        "retransmit_ratio",
        "retransmits",
        pairs_count="sent_pairs_count",
    ),
    Threshold(
        "loss_max_ratio",
        "loss",
        "share of datagrams lost",
        MetricSource.FLOW,
        "loss_ratio",
        "loss",
        pairs_count="loss_pairs_count",
    ),
    Threshold(
        "success_min_ratio",
        "success-ratio",
        "share of requests that succeeded",
        MetricSource.ENGINE,
        "success_ratio",
        "success",
        next_step=_ERRORS,
        is_floor=True,
    ),
    Threshold(
        "latency_p99_max_s",
        "latency-p99",
        "99th percentile of latency",
        MetricSource.ENGINE,
        "latency_p99",
        "latency",
        next_step=_ERRORS,
    ),
    Threshold(
        "connections_min_per_second",
        "connections-rate",
        "rate of established connections",
        MetricSource.ENGINE,
        "established_per_second",
        "connections",
        next_step=_MORE_CONNECTIONS,
        is_floor=True,
    ),
    Threshold(
        "handshake_p99_max_s",
        "handshake-p99",
        "99th percentile of the handshake time",
        MetricSource.ENGINE,
        "handshake_p99",
        "handshake",
        next_step=_CONNECTIONS,
    ),
    Threshold(
        "tls_handshake_p99_max_s",
        "tls-handshake-p99",
        "99th percentile of the time to the end of the TLS handshake",
        MetricSource.ENGINE,
        "tls_handshake_p99",
        "tls_handshake",
        next_step=_CONNECTIONS,
    ),
    Threshold(
        "first_byte_p99_max_s",
        "first-byte-p99",
        "99th percentile of the time to the first byte",
        MetricSource.ENGINE,
        "first_byte_p99",
        "first_byte",
        next_step=_CONNECTIONS,
    ),
    Threshold(
        "held_min_count",
        "held",
        "number of connections held at the same time",
        MetricSource.ENGINE,
        "held_count",
        "held",
        next_step=_MORE_CONNECTIONS,
        is_floor=True,
    ),
    Threshold(
        "dropped_max_count",
        "dropped",
        "number of held connections that ended early",
        MetricSource.ENGINE,
        "dropped_count",
        "held",
        next_step=_CONNECTIONS,
    ),
    Threshold(
        "probe_p99_max_s",
        "probe-p99",
        "99th percentile of probes' round trips under load",
        MetricSource.PROBE,
        "p99_s",
        PROBES,
    ),
    Threshold(
        "probe_loss_max_ratio",
        "probe-loss",
        "share of probes lost under load",
        MetricSource.PROBE,
        "loss_ratio",
        PROBES,
    ),
    Threshold(
        "leak_max_ratio",
        "leak",
        "share of forbidden canaries that leaked",
        MetricSource.CANARY,
        "leak_ratio",
        CANARIES,
        next_step=LEAK_STEP,
    ),
    Threshold(
        "device_cpu_p95_max_ratio",
        "device-cpu",
        "95th percentile of the device's CPU",
        MetricSource.DEVICE,
        "cpu_ratio.p95",
        DEVICE_TELEMETRY,
        next_step=_DEVICE,
    ),
    Threshold(
        "device_memory_max_ratio",
        "device-memory",
        "device's maximum memory use",
        MetricSource.DEVICE,
        "memory_ratio.max",
        DEVICE_TELEMETRY,
        next_step=_DEVICE,
    ),
    Threshold(
        "device_drops_max_per_second",
        "device-drops",
        "device's drops per second",
        MetricSource.DEVICE,
        "drops_per_second.mean",
        DEVICE_TELEMETRY,
        next_step=_DEVICE,
    ),
    Threshold(
        "device_health_min_ratio",
        "device-health",
        "device's lowest health value",
        MetricSource.DEVICE,
        "health_ratio.min",
        DEVICE_TELEMETRY,
        next_step="Read the health status and the logs of the device",
        is_floor=True,
    ),
    Threshold(
        "device_snat_ports_max_ratio",
        "device-snat",
        "device's maximum use of SNAT ports",
        MetricSource.DEVICE,
        "snat_ports_ratio.max",
        DEVICE_TELEMETRY,
        next_step="Give the device more public addresses, or use private addresses for the traffic",
    ),
)


def describe_thresholds(objective: Objective) -> Iterator[str]:
    """Yield a text for each threshold that is set in an Objective."""
    for threshold in ALL_THRESHOLDS:
        limit = getattr(objective, threshold.bound)
        if limit is not None:
            least = "least" if threshold.is_floor else "most"
            yield f"{threshold.label} at {least} {threshold.format(limit)}"
