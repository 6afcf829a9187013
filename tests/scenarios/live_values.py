"""Comparison of live values that are shown as known with the final values of the same run.

``python -m tests.scenarios --live`` runs all cases, and ``tests/live/test_live_values.py`` runs a
few of them. A known value must not differ from the final one by more than the interval of the final
one. A value without an interval must not change.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx

from broadside.coordinator.core.live.live_view import FIGURE_NAMES, LiveMetrics, LiveSeconds
from broadside.coordinator.core.summary import BurstSummary
from broadside.lab.serving import ServeProcess
from tests.scenarios.cases import LabTestbed

TESTBED: Final = LabTestbed(
    pairs_count=2,
    nic_bits_per_second=40_000_000,
    firewall_bits_per_second=60_000_000,
    services="http=8080 https=8443 ftp=2121",
)
BURST_S: Final = 12
# Standard error of a half width from about ten values: 1 / sqrt(2 * 9).
HALF_WIDTH_ERROR_RATIO: Final = 0.24
# Seconds are shown with four digits: half a unit of the last one of 1.000.
ROUNDING_RATIO: Final = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCase:
    """One short run."""

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Live and final value of one figure.

    Attributes:
        figure: Name of the figure, with the burst.
        live: The value that differs most of those shown as known. None if there is none.
        final: Value of the verdict.
        allowed: Largest difference that the interval allows.
        shown_count: Number of live values that were shown as known.
        provisional: Last value that was shown as provisional. It may differ.
    """

    figure: str
    live: float | str | None
    final: float | str | None
    allowed: float
    shown_count: int
    provisional: float | str | None = None

    @property
    def difference(self) -> float:
        """Absolute difference, infinite if only one of the values exists or the texts differ."""
        if self.live == self.final or not self.shown_count:
            return 0.0
        if isinstance(self.live, float) and isinstance(self.final, float):
            return abs(self.live - self.final)
        return math.inf

    @property
    def is_within(self) -> bool:
        return self.difference <= self.allowed


def _case(name: str, **traffic: Any) -> LiveCase:
    return LiveCase(
        name=name, overrides={f"traffic.{key}": value for key, value in traffic.items()}
    )


# At real scale.
_PACED: Final = {"stream_bits_per_second": 500_000_000}
_UDP: Final = {"protocol": "udp", "block_bytes": 1400, "streams_count": 2, **_PACED}
_RATE: Final = {"options.requests_per_second": 2000, "options.body_bytes": 100_000}
CASES: Final = (
    _case("iperf3 TCP up", streams_count=1),
    _case("iperf3 TCP down", direction="reverse", streams_count=1),
    _case("iperf3 TCP both", direction="bidirectional", streams_count=1),
    _case("iperf3 TCP up, 8 streams", streams_count=8),
    _case("iperf3 TCP down, 8 streams", direction="reverse", streams_count=8),
    _case("iperf3 TCP both, 8 streams", direction="bidirectional", streams_count=8),
    _case("iperf3 TCP up, paced", streams_count=2, **_PACED),
    _case("iperf3 TCP both, paced", direction="bidirectional", streams_count=2, **_PACED),
    _case("iperf3 UDP up", **_UDP),
    _case("iperf3 UDP down", direction="reverse", **_UDP),
    _case("iperf3 UDP both", direction="bidirectional", **_UDP),
    _case("iperf3 UDP up, with loss", **_UDP | {"stream_bits_per_second": 1_800_000_000}),
    _case("iperf3 TCP up, 2 s warm-up", streams_count=2, omit_s=2),
    _case("iperf3 TCP up, reports of 3 s", streams_count=2, interval_s=3),
    _case("iperf3 TCP up, reports of 0.5 s", streams_count=2, interval_s=0.5),
    _case("http", engine="http", streams_count=4),
    _case("http, rate of requests", engine="http", streams_count=4, **_RATE),
    _case("https", engine="https", streams_count=4),
    _case("ftp", engine="ftp", streams_count=1),
    LiveCase(
        name="two bursts, both",
        overrides={
            "bursts_count": 2,
            "traffic.direction": "bidirectional",
            "traffic.streams_count": 2,
        },
    ),
)


@dataclass(slots=True, kw_only=True)
class Shown:
    """Values of a run as a viewer receives them.

    Attributes:
        figures: Figures by burst, in the order of the events.
        seconds: All values of a second that were shown as final, by burst and second.
    """

    figures: dict[int, list[LiveMetrics]] = field(default_factory=dict)
    seconds: dict[tuple[int, int], list[float | None]] = field(default_factory=dict)
    _complete: dict[tuple[int, int], float | None] = field(default_factory=dict)

    def process(self, name: str, data: str) -> None:
        """Add one event. Events without figures are ignored."""
        if name == "figures":
            figures = LiveMetrics.parse_answer(data)
            self.figures.setdefault(figures.burst_index, []).append(figures)
            self._show(figures.burst_index)
        if name == "seconds":
            seconds = LiveSeconds.parse_answer(data)
            for second, rate in zip(seconds.second, seconds.fleet_bits_per_second, strict=True):
                if second < seconds.known_s and seconds.layer == "payload":
                    self._complete[seconds.burst_index, second] = rate
            self._show(seconds.burst_index)

    def _show(self, burst_index: int) -> None:
        """Record the complete seconds if their state is known."""
        *_, newest = self.figures.get(burst_index, [None])
        if newest is None or newest.states["seconds"].state != "known":
            return
        for place, rate in self._complete.items():
            shown = self.seconds.setdefault(place, [])
            if place[0] == burst_index and rate not in shown:
                shown.append(rate)


def read_events(url: str) -> Iterator[tuple[str, str]]:
    """Yield name and data of each event until the coordinator ends the stream."""
    with httpx.stream("GET", url, timeout=60) as response:
        response.raise_for_status()
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, line.removeprefix("data: ")


def compare_case(coordinator: ServeProcess, case: LiveCase) -> tuple[str, Sequence[Comparison]]:
    """Run a case, follow its events, and compare the values.

    Args:
        coordinator: Coordinator of a lab with a ready fleet.
        case: The case.

    Returns:
        The verdict, and one item for each figure of each burst.
    """
    overrides = {
        "scale": TESTBED.scale,
        "bursts_count": 1,
        "burst_s": BURST_S,
        "period_s": BURST_S + 15,
        "lead_s": 7,
        "align_to_period": False,
        # The lab's agents share a few cores with other programs.
        "late_after_s": 5,
        **case.overrides,
    }
    run_id = coordinator.launch({"scenario": "smoke", "overrides": overrides})["run_id"]
    url = f"{coordinator.url}/v1/runs/{run_id}/events"
    shown, verdict = Shown(), "none"
    for name, data in read_events(url):
        shown.process(name, data)
        if name == "summary":
            verdict = str(json.loads(data)["verdict"])
    comparisons: list[Comparison] = []
    for burst_index in range(overrides["bursts_count"]):
        final = Shown()
        for event in read_events(f"{url}?burst={burst_index + 1}"):
            final.process(*event)
        comparisons += compare(shown, final, burst_index)
    return verdict, comparisons


# The seconds are compared one by one.
_VALUED: Final = frozenset(FIGURE_NAMES) - {"seconds"}


def compare(shown: Shown, final: Shown, burst_index: int) -> Iterator[Comparison]:
    """Yield a comparison for each figure and for the seconds of a burst.

    Args:
        shown: Values that were shown during the run.
        final: Values of the verdict.
        burst_index: Index of the burst.
    """
    (*_, last) = final.figures[burst_index]
    assert last.final, "no final figures"
    of_burst = [figures for figures in shown.figures.get(burst_index, ()) if not figures.final]
    for name in filter(_VALUED.__contains__, last.states):
        values: dict[str, list[float | str | None]] = {"known": [], "provisional": [None]}
        for figures in of_burst:
            # A figure without a state would be shown as known.
            state = figures.states[name].state if name in figures.states else "known"
            values.setdefault(state, []).append(value_of(name, figures.summary))
        value, allowed = value_of(name, last.summary), allowed_of(name, last.summary)
        item = _farthest(f"burst {burst_index + 1}: {name}", values["known"], value, allowed)
        yield replace(item, provisional=values["provisional"][-1])
    for (burst, second), rates in sorted(shown.seconds.items()):
        if burst == burst_index and rates:
            (*_, rate) = final.seconds.get((burst, second), [None])
            # The bounds of a second are as uncertain as the clocks.
            bounds_s = 2 * (last.summary.clock_bound_max_s or 0.0)
            allowed = (rate or 0.0) * (ROUNDING_RATIO + bounds_s)
            matches = _farthest(f"burst {burst + 1}: second {second + 1}", rates, rate, allowed)
            if not matches.is_within:
                yield matches


def _farthest(
    figure: str,
    known: Sequence[float | str | None],
    final: float | str | None,
    allowed: float,
) -> Comparison:
    items = [
        Comparison(figure=figure, live=value, final=final, allowed=allowed, shown_count=len(known))
        for value in known or [None]
    ]
    return max(items, key=lambda item: item.difference)


def value_of(name: str, summary: BurstSummary) -> float | str | None:
    """Return the value of a figure by its name in the states."""
    counter = summary.reconciliation
    match name:
        case "received":
            return summary.fleet_received_bits_per_second
        case "interval":
            return summary.fleet_received_half_width_bits_per_second
        case "completeness":
            return summary.completeness_ratio
        case "device_counter":
            return None if counter is None else counter.firewall_bits_per_second
        case "lag":
            return None if counter is None else counter.lag_s
        case "residual":
            return None if counter is None else counter.residual_ratio
        case "bottleneck":
            return summary.bottleneck.value
    raise ValueError(f"{name}: no such figure")


def allowed_of(name: str, summary: BurstSummary) -> float:
    """Return the largest difference that the interval of a final figure allows."""
    counter = summary.reconciliation
    half = summary.fleet_received_half_width_bits_per_second or 0.0
    residual = (counter and counter.residual_uncertainty_ratio) or 0.0
    match name:
        case "received":
            return half
        case "interval":
            return half * HALF_WIDTH_ERROR_RATIO
        case "device_counter":
            return residual * ((counter and counter.firewall_bits_per_second) or 0.0)
        case "lag":
            return (counter and counter.lag_uncertainty_s) or 0.0
        case "residual":
            return residual
    return 0.0


HEADINGS: Final = (
    *("run", "verdict", "figure", "last provisional", "live, as known"),
    *("final", "difference", "allowed"),
)


def rows(
    case: LiveCase, verdict: str, comparisons: Sequence[Comparison]
) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the Markdown table for one case."""
    for item in comparisons:
        live = "not shown" if not item.shown_count else _text(item.live)
        difference = "-" if not item.shown_count else _text(item.difference)
        if not item.is_within:
            difference = f"**{difference}**"
        name = (case.name, verdict, item.figure, _text(item.provisional))
        yield (*name, live, _text(item.final), difference, _text(item.allowed))


def _text(value: float | str | None) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
