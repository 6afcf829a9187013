"""Pings from a client to the device itself, first without load and then during the burst."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from broadside.exchange.engines.buckets import Buckets
from broadside.exchange.messages import Aggregation, EngineReport, Job, Measure
from broadside.exchange.ping import PingMethod, echo, handshake, may_echo, timed

# Seconds from the start of a round to the start of the next one.
EVERY_S: Final = 0.2
IDLE, LOADED = "idle", "loaded"


class DevicePings:
    """Pings for a job, from before the planned start to the end of the burst.

    Each round has an ICMP echo and a TCP handshake, if they are possible.
    """

    def __init__(self, job: Job, address: str, tcp_port: int | None) -> None:
        requested = job.traffic.probe
        self._instant_s = job.planned_start_at.timestamp()
        self._from_s = self._instant_s - (requested.before_s if requested else 0.0)
        self._until_s = self._instant_s + job.traffic.omit_s + job.duration_s
        self._methods: dict[str, PingMethod] = {}
        if may_echo(address):
            self._methods["icmp"] = lambda: echo(address)
        if tcp_port is not None:
            self._methods["tcp"] = lambda: handshake(address, tcp_port)
        self._times = {
            (method, phase): Buckets(f"device_ping_{method}_{phase}", "s")
            for method in self._methods
            for phase in (IDLE, LOADED)
        }
        # Number of pings and number of losses.
        self._sent: Mapping[str, list[int]] = {method: [0, 0] for method in self._methods}

    async def run(self) -> None:
        """Run all rounds on time. A round that was missed is skipped."""
        number = 0
        while (at_s := self._from_s + number * EVERY_S) < self._until_s and self._methods:
            await asyncio.sleep(max(0.0, at_s - time.time()))
            if time.time() - at_s < EVERY_S:
                await asyncio.gather(*map(self._ping, self._methods))
            number = max(number + 1, int((time.time() - self._from_s) / EVERY_S))

    async def _ping(self, method: str) -> None:
        phase = IDLE if time.time() < self._instant_s else LOADED
        took_s = await timed(self._methods[method])
        if took_s is not None:
            self._times[method, phase].add(took_s)
        if phase == LOADED:
            self._sent[method][0] += 1
            self._sent[method][1] += took_s is None

    def with_pings(self, report: EngineReport) -> EngineReport:
        """Return a copy of the engine's report with the results of the pings."""
        times = tuple(
            one for ping_times in self._times.values() for one in ping_times.distribution()
        )
        losses = tuple(
            Measure(
                name=f"device_ping_{method}_loss",
                value=lost / sent,
                unit="ratio",
                combine=Aggregation.MEAN,
                weight=sent,
            )
            for method, (sent, lost) in self._sent.items()
            if sent
        )
        return report.model_copy(
            update={
                "distributions": (*report.distributions, *times),
                "measures": (*report.measures, *losses),
            }
        )
