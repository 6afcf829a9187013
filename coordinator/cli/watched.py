"""Run state for a viewer, built from events. Pure."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.live.live_view import (
    CELL_BITS_PER_SECOND,
    UNKNOWN_CELL,
    LiveFigures,
    LiveFinding,
    LiveLedger,
    LiveSeconds,
    LiveStatus,
)
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.summary import Finding

# How many seconds the chart can show for a burst.
_SECONDS_KEPT: Final = 3600


@dataclass(slots=True, kw_only=True)
class Watched:
    """Burst state from the newest events. It will be reset when an event is about another burst.

    Attributes:
        status: Run and burst status.
        figures: Metrics so far.
        ledger: Firewall counter data.
        findings: Findings by id.
        fleet: Fleet rate in bit/s by second, at ``layer``.
        coverage: Ratio of the pairs that are included, by second.
        rtt: Mean RTT in seconds, by second.
        pairs_bits_per_second: Rate per pair in the newest known second. NaN is unknown.
        newest_second: That second.
        known_s: Seconds before this one are final.
        layer: Layer of the rates, payload or link.
        over: The verdict has been received.
        burst_index: The burst index.
    """

    status: LiveStatus | None = None
    figures: LiveFigures | None = None
    ledger: LiveLedger | None = None
    findings: dict[str, Finding] = field(default_factory=dict)
    fleet: dict[int, float | None] = field(default_factory=dict)
    coverage: dict[int, float | None] = field(default_factory=dict)
    rtt: dict[int, float | None] = field(default_factory=dict)
    pairs_bits_per_second: NDArray[np.float64] | None = None
    newest_second: int | None = None
    known_s: int = 0
    layer: str = "payload"
    over: bool = False
    burst_index: int = 0

    def take(self, name: str, data: str) -> None:
        """Process one event. Unknown names are ignored.

        Args:
            name: Event name.
            data: JSON text.
        """
        match name:
            case "status":
                status = LiveStatus.model_validate_json(data, extra="ignore")
                self._turn_to(status.burst.index)
                self.status = status
            case "figures":
                figures = LiveFigures.model_validate_json(data, extra="ignore")
                self._turn_to(figures.burst_index)
                self.figures = figures
            case "seconds":
                self._take_seconds(LiveSeconds.model_validate_json(data, extra="ignore"))
            case "ledger":
                ledger = LiveLedger.model_validate_json(data, extra="ignore")
                self._turn_to(ledger.burst_index)
                self.ledger = ledger
            case "finding":
                said = LiveFinding.model_validate_json(data, extra="ignore")
                self._turn_to(said.burst_index)
                if said.finding is None:
                    self.findings.pop(said.id, None)
                else:
                    self.findings[said.id] = said.finding
            case "summary":
                self.over = True
                found = json.loads(data)["findings"]
                self.findings = {
                    each["id"]: Finding.model_validate(each, extra="ignore") for each in found
                }

    def _turn_to(self, burst_index: int) -> None:
        """Reset the burst data if the event is about another burst."""
        if burst_index != self.burst_index:
            self.burst_index = burst_index
            self.figures = self.ledger = self.pairs_bits_per_second = self.newest_second = None
            self.known_s = 0
            self.findings, self.fleet, self.coverage, self.rtt = {}, {}, {}, {}

    def _take_seconds(self, seconds: LiveSeconds) -> None:
        self._turn_to(seconds.burst_index)
        self.layer, self.known_s = seconds.layer, seconds.known_s
        self.fleet |= dict(zip(seconds.second, seconds.fleet_bits_per_second, strict=True))
        self.coverage |= dict(zip(seconds.second, seconds.coverage_ratio, strict=True))
        self.rtt |= dict(zip(seconds.second, seconds.rtt_mean_s, strict=True))
        for known in (self.fleet, self.coverage, self.rtt):
            for second in sorted(known)[:-_SECONDS_KEPT]:
                del known[second]
        cells = np.frombuffer(base64.b64decode(seconds.pairs), "<u4").astype(np.float64)
        cells[cells == UNKNOWN_CELL] = np.nan
        rows = cells.reshape(len(seconds.second), seconds.pairs_count) * CELL_BITS_PER_SECOND
        for place in np.argsort(seconds.second)[::-1]:
            second = seconds.second[int(place)]
            heard = self.fleet.get(second) is not None
            if heard and (self.newest_second is None or second >= self.newest_second):
                self.newest_second, self.pairs_bits_per_second = second, rows[int(place)]
                break

    @property
    def factor(self) -> float:
        """Factor to convert payload to the target layer, or 1 if the headers are unknown."""
        at_ip = self.status is not None and self.status.target_layer is Layer.IP
        return self.figures.summary.header_ratio if at_ip and self.figures is not None else 1.0

    @property
    def shown_layer(self) -> str:
        """Layer that ``rates`` uses."""
        if self.layer == "link":
            return "at the senders' NICs"
        return "ip" if self.factor != 1.0 else "payload"

    def rates(self) -> Mapping[int, float | None]:
        """Return the fleet rate by second, at the target layer if headers are known."""
        factor = 1.0 if self.layer == "link" else self.factor
        return {s: None if rate is None else rate * factor for s, rate in self.fleet.items()}

    def firewall_bits_per_second(self) -> float | None:
        """Return the newest known firewall counter rate, or None."""
        bins = () if self.ledger is None else self.ledger.bins
        return next((b.bits_per_second for b in reversed(bins) if b.bits_per_second), None)
