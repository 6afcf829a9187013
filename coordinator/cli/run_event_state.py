"""State of a run for a viewer, built from its events. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broadside.coordinator.core.live.live_view import (
    LiveCounter,
    LiveFinding,
    LiveMetrics,
    LiveSeconds,
    LiveStatus,
)
from broadside.coordinator.core.metrics import Layer, layer_label
from broadside.coordinator.core.summary import Finding
from broadside.exchange.strict_json import parse_strict_json

# Number of seconds of a burst to store.
_SECONDS_MAX: Final = 3600
_EVENTS: Final = frozenset({"status", "figures", "seconds", "counter", "finding", "summary"})


@dataclass(slots=True, kw_only=True)
class RunEventState:
    """State of a burst from the newest events. An event of another burst resets it.

    Attributes:
        status: Run and burst status.
        figures: Metrics so far.
        device_counter: Device counter data.
        findings: Findings by id.
        fleet: Fleet rate in bit/s by second, at ``layer``.
        coverage: Ratio of the pairs that are included, by second.
        rtt: Mean RTT in seconds, by second.
        known_s: Seconds before this one are final.
        layer: Layer of the rates, payload or link.
        over: True after the verdict.
        burst_index: Index of the burst.
    """

    status: LiveStatus | None = None
    figures: LiveMetrics | None = None
    device_counter: LiveCounter | None = None
    findings: dict[str, Finding] = field(default_factory=dict)
    fleet: dict[int, float | None] = field(default_factory=dict)
    coverage: dict[int, float | None] = field(default_factory=dict)
    rtt: dict[int, float | None] = field(default_factory=dict)
    known_s: int = 0
    layer: str = "payload"
    over: bool = False
    burst_index: int = 0

    def process(self, name: str, data: str) -> None:
        """Process one event. Unknown names are ignored.

        Args:
            name: Event name.
            data: JSON text.
        """
        if name not in _EVENTS:
            return
        values = parse_strict_json(data, len(data))
        match name:
            case "status":
                status = LiveStatus.parse_answer(values)
                self._select_burst(status.burst.index)
                self.status = status
            case "figures":
                figures = LiveMetrics.parse_answer(values)
                self._select_burst(figures.burst_index)
                self.figures = figures
            case "seconds":
                self._add_seconds(LiveSeconds.parse_answer(values))
            case "counter":
                device_counter = LiveCounter.parse_answer(values)
                self._select_burst(device_counter.burst_index)
                self.device_counter = device_counter
            case "finding":
                update = LiveFinding.parse_answer(values)
                self._select_burst(update.burst_index)
                if update.finding is None:
                    self.findings.pop(update.id, None)
                else:
                    self.findings[update.id] = update.finding
            case "summary":
                self.over = True
                self.findings = {
                    finding["id"]: Finding.parse_answer(finding) for finding in values["findings"]
                }

    def _select_burst(self, burst_index: int) -> None:
        """Reset the burst data if the event is about another burst."""
        if burst_index != self.burst_index:
            self.burst_index = burst_index
            self.figures = self.device_counter = None
            self.known_s = 0
            self.findings, self.fleet, self.coverage, self.rtt = {}, {}, {}, {}

    def _add_seconds(self, seconds: LiveSeconds) -> None:
        self._select_burst(seconds.burst_index)
        self.layer, self.known_s = seconds.layer, seconds.known_s
        self.fleet |= dict(zip(seconds.second, seconds.fleet_bits_per_second, strict=True))
        self.coverage |= dict(zip(seconds.second, seconds.coverage_ratio, strict=True))
        self.rtt |= dict(zip(seconds.second, seconds.rtt_mean_s, strict=True))
        for values in (self.fleet, self.coverage, self.rtt):
            for second in sorted(values)[:-_SECONDS_MAX]:
                del values[second]

    @property
    def newest_second(self) -> int | None:
        """Newest second with a rate, or None."""
        return max(
            (second for second, rate in self.fleet.items() if rate is not None), default=None
        )

    @property
    def factor(self) -> float:
        """Factor from payload to the target layer, or 1 if the headers are unknown."""
        at_ip = self.status is not None and self.status.target_layer is Layer.IP
        return self.figures.summary.header_ratio if at_ip and self.figures is not None else 1.0

    @property
    def shown_layer(self) -> str:
        """Layer of ``rates``."""
        if self.layer == "link":
            return "at the senders' NICs"
        return layer_label("ip" if self.factor != 1.0 else "payload")

    def rates(self) -> Mapping[int, float | None]:
        """Return the fleet rate by second, at the target layer if the headers are known.

        Returns:
            Rate in bit/s by second of the burst. None for a second without a value.
        """
        factor = 1.0 if self.layer == "link" else self.factor
        return {s: None if rate is None else rate * factor for s, rate in self.fleet.items()}

    def firewall_bits_per_second(self) -> float | None:
        """Return the newest known rate of the device counter, or None."""
        bins = () if self.device_counter is None else self.device_counter.bins
        return next((b.bits_per_second for b in reversed(bins) if b.bits_per_second), None)
