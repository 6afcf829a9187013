"""Measure how fast guards stop the traffic after planted breaches, and count false stops.

To run it, use ``python -m tests.bench.bench_guards [--runs 20] [--breach cpu]`` as root. In a lab
of two pairs, it plants a breach of the device CPU, a breach of the RTT, or nothing, in turn. All
runs have a guard on both. The exit code is 1 if a breach did not stop the traffic within 2 s, or if
a quiet run was stopped.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from broadside.coordinator.core.guards import STOP_WITHIN_S
from broadside.lab.child_processes import run_to_end
from broadside.lab.network import set_firewall_rate
from broadside.lab.site import built, free_prefix, staged
from broadside.lab.topology import Lab, LabSpec, firewall_namespace
from tests.live.live_site import HTTP, call, wait_for_summary
from tests.live.test_guarded_runs import (
    QUIET_CPU,
    PlantedDevice,
    WireSampler,
    last_engine_s,
    launched,
)
from tests.live.waiting import wait_for

PAIRS_COUNT: Final = 2
RATE: Final = 100_000_000
# The traffic is above this rate, so the queue of the firewall fills.
LOW_RATE: Final = 2_000_000
QUEUE_S: Final = 0.3
GUARDS: Final = ["cpu_ratio > 80%", "probe_rtt_s > 100ms"]
OVERRIDES: Final = {
    "traffic.probe.before_s": 4,
    "clock_bound_max_s": 0.05,
    "scale": 100,
    "traffic.stream_bits_per_second": 400_000_000,
}
OK: Final = 200
BREACHES: Final = ("cpu", "rtt", "none")


class Trials:
    """Runs in one lab, with the times of their stops.

    Attributes:
        engines_s: Seconds from the breach to the end of the last engine, by breach.
        packets_s: Seconds from the breach to the last full packet behind the firewall.
        false_stops: Reasons of runs that were stopped without a breach.
    """

    def __init__(self, lab: Lab, url: str, device: PlantedDevice) -> None:
        self._lab, self._url, self._device = lab, url, device
        self.engines_s: dict[str, list[float]] = {"cpu": [], "rtt": []}
        self.packets_s: dict[str, list[float]] = {"cpu": [], "rtt": []}
        self.false_stops: list[str] = []
        self.quiet_count = 0

    def run(self, breach: str) -> str:
        """Execute one run, and return a line about it."""
        self._device.plant(cpu_ratio=QUIET_CPU)
        set_firewall_rate(self._lab, RATE)
        run_id = launched(self._url, GUARDS, **OVERRIDES)
        wire = WireSampler(firewall_namespace(self._lab.spec.prefix), "s0")
        wire.start()
        try:
            if not self._is_running(run_id):
                summary = wait_for_summary(self._url, run_id, 180)
                stop = summary["guards"].get("stop") or {"reason": summary["findings"][0]["id"]}
                self.false_stops.append(f"before the traffic: {stop['reason']}")
                return self.false_stops[-1]
            planted_s = self._plant(breach)
            summary = wait_for_summary(self._url, run_id, 180)
        finally:
            wire.end()
        stop = summary["guards"].get("stop")
        if breach == "none":
            return self._quiet(stop)
        if stop is None:
            self.engines_s[breach].append(float("inf"))
            return f"{breach}: not stopped"
        self.engines_s[breach].append(last_engine_s(summary) - planted_s)
        self.packets_s[breach].append(wire.last_byte_s() - planted_s)
        engine_s, packet_s = self.engines_s[breach][-1], self.packets_s[breach][-1]
        return f"{breach}: {engine_s:.2f} s, packet {packet_s:.2f} s, {stop['reason']}"

    def _is_running(self, run_id: str) -> bool:
        """Wait for some seconds of traffic. Return False if the run ended before."""

        def state() -> str | None:
            if HTTP.get(f"{self._url}/v1/runs/{run_id}/summary").status_code == OK:
                return "ended"
            seconds = call(self._url, "GET", f"/v1/runs/{run_id}/progress")["seconds"]
            return "running" if len(seconds) >= 2 else None

        outcome: str = wait_for("traffic", state, 180, pause_s=0.2)
        return outcome == "running"

    def _plant(self, breach: str) -> float:
        if breach == "rtt":
            at_s = time.time()
            set_firewall_rate(self._lab, LOW_RATE)
            return at_s
        if breach == "cpu":
            self._device.plant(cpu_ratio=0.97)
        return self._device.planted_s

    def _quiet(self, stop: dict[str, Any] | None) -> str:
        self.quiet_count += 1
        if stop is None:
            return "none: not stopped"
        self.false_stops.append(stop["reason"])
        return f"none: stopped, {stop['reason']}"

    def lines(self) -> Sequence[str]:
        """Return the table."""
        lines = [
            "| breach | runs | engines | packets | within 2 s |",
            "| --- | --- | --- | --- | --- |",
        ]
        for breach, engines_s in self.engines_s.items():
            if not engines_s:
                continue
            packets_s = self.packets_s[breach] or [float("inf")]
            fast = sum(
                max(pair) < STOP_WITHIN_S for pair in zip(engines_s, packets_s, strict=False)
            )
            lines.append(
                f"| {breach} | {len(engines_s)} | {statistics.median(engines_s):.2f} s "
                f"({max(engines_s):.2f} s) | {statistics.median(packets_s):.2f} s "
                f"({max(packets_s):.2f} s) | {fast} |"
            )
        lines.append(f"{len(self.false_stops)} false stops, {self.quiet_count} quiet runs")
        return [*lines, *self.false_stops]

    @property
    def is_failed(self) -> bool:
        values = [*self.engines_s["cpu"], *self.engines_s["rtt"]]
        values += [*self.packets_s["cpu"], *self.packets_s["rtt"]]
        return bool(self.false_stops) or max(values, default=0.0) >= STOP_WITHIN_S


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_guards", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs of each kind")
    parser.add_argument("--breach", action="append", choices=BREACHES, help="default: all")
    given = parser.parse_args()
    device = PlantedDevice()
    with free_prefix() as prefix, tempfile.TemporaryDirectory() as folder:
        spec = LabSpec(
            pairs_count=PAIRS_COUNT,
            prefix=prefix,
            nic_bits_per_second=20_000_000,
            firewall_bits_per_second=RATE,
            queue_s=QUEUE_S,
        )
        path = Path(folder)
        settings = device.telemetry(path)
        with (
            built(spec) as lab,
            staged(lab, path, device_counter={}, coordinator=settings) as stage,
        ):
            trials = Trials(lab, stage.coordinator.url, device)
            for number in range(given.runs):
                for breach in given.breach or BREACHES:
                    sys.stderr.write(f"{number + 1} {trials.run(breach)}\n")
    device.close()
    sys.stdout.write("\n".join(trials.lines()) + "\n")
    return int(trials.is_failed)


if __name__ == "__main__":
    run_to_end(main)
