"""Tests with a known bottleneck. The result must be right or unknown.

The rates, the path and the device are drawn here for each case.
The pair records are written by :mod:`tests.synthetic`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import pytest

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.judge.verdict_inputs import RunContext
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry, Quantity, TelemetrySeries
from broadside.coordinator.core.summary import Bottleneck, BottleneckName
from broadside.exchange.messages import Flow, IdleRtt, Protocol, Traffic
from tests import synthetic
from tests.synthetic import Fleet, Plant, fleet

SEEDS: Final = 40
SECONDS: Final = 40
MSS_BYTES: Final = 1448


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Pair rates, path, hosts and device for one case.

    Attributes:
        rates: Payload bit/s, shape (pairs, seconds).
        idle_s: Idle RTT, or None if it is not measured.
        queue_s: Additional RTT under load.
        window_ratio: Kernel send window relative to bytes in flight.
        resent_ratio: Retransmitted segments relative to sent segments.
        lost_ratio: Share of lost UDP datagrams, or None for TCP.
        nic_ratio: Rate of the fastest client relative to its NIC limit, or None if not set.
        busy_cpu: Side with full CPU cores.
        device_queue_s: Additional ping time under load, or None if the device is not pinged.
        window_bytes: Requested window per stream.
        sku: Device name in the documented limits.
        streams: Streams per pair.
    """

    rates: Floats
    idle_s: float | None = 0.001
    queue_s: float = 0.0
    window_ratio: float = 2.0
    resent_ratio: float = 0.0
    lost_ratio: float | None = None
    nic_ratio: float | None = 0.5
    busy_cpu: str = ""
    device_queue_s: float | None = None
    window_bytes: int | None = None
    sku: str | None = None
    streams: int = 8


def wander(rng: np.random.Generator, pairs: int, cov: float, rho: float) -> Floats:
    """Return factors with mean 1 that are correlated over time."""
    fresh = rng.standard_normal((pairs, SECONDS))
    for at in range(1, SECONDS):
        fresh[:, at] = rho * fresh[:, at - 1] + np.sqrt(1 - rho**2) * fresh[:, at]
    return np.exp(cov * fresh - cov**2 / 2)


def shared(rng: np.random.Generator, pairs: int, capacity: float) -> Floats:
    """Return rates for pairs that share one capacity."""
    demand = wander(rng, pairs, rng.uniform(0.06, 0.25), rng.uniform(0, 0.5))
    demand *= rng.uniform(0.8, 1.2, (pairs, 1))
    return np.asarray(capacity * demand / demand.sum(axis=0))


# Cases without evidence for a cause --------------------------------------------------------------


def per_client_policers(rng: np.random.Generator) -> Planted:
    """Each client has a policer, with drops but no queue."""
    rates = 2e9 * wander(rng, int(rng.integers(3, 13)), 0.12, rng.uniform(0, 0.6))
    return Planted(rates=rates, resent_ratio=10 ** rng.uniform(-3, -1.5), window_ratio=1.2)


def stray_drops(rng: np.random.Generator) -> Planted:
    """There is no limit, but some segments are dropped."""
    rates = 3e9 * wander(rng, int(rng.integers(3, 13)), rng.uniform(0.05, 0.2), rng.uniform(0, 0.6))
    return Planted(rates=rates, resent_ratio=10 ** rng.uniform(-4.5, -3))


def stalled_fleet(rng: np.random.Generator) -> Planted:
    """The firewall does not forward anything for 8 to 12 seconds."""
    rates = 2e9 * wander(rng, int(rng.integers(2, 13)), rng.uniform(0.02, 0.1), 0.3)
    length_s = int(rng.integers(8, 13))
    from_s = int(rng.integers(5, SECONDS - length_s - 5))
    rates[:, from_s : from_s + length_s] = 0.0
    return Planted(rates=rates, resent_ratio=10 ** rng.uniform(-4, -2))


def full_shapers(rng: np.random.Generator) -> Planted:
    """Each client has a full shaper. The RTT is 0.1 ms idle and 14 ms under load."""
    rates = 1e9 * wander(rng, int(rng.integers(1, 9)), 0.004, 0.0)
    known = bool(rng.random() < 0.7)
    requested = int(14e-3 * 1e9 / 8 / 8) if rng.random() < 0.5 else None
    return Planted(
        rates=rates,
        idle_s=0.0001 if known else None,
        queue_s=0.0139,
        window_ratio=1.0,
        window_bytes=requested,
    )


def shared_link(rng: np.random.Generator) -> Planted:
    """All pairs share a full link. The device has no queue."""
    pairs = int(rng.integers(3, 13))
    return Planted(
        rates=shared(rng, pairs, 1.5e9 * pairs),
        queue_s=rng.uniform(0.002, 0.02),
        resent_ratio=10 ** rng.uniform(-4, -2),
        device_queue_s=0.0 if rng.random() < 0.5 else None,
        sku="premium" if rng.random() < 0.5 else None,
    )


def lost_datagrams(rng: np.random.Generator) -> Planted:
    """Paced UDP has 5 % loss at an unknown place."""
    rates = 1e9 * wander(rng, int(rng.integers(2, 9)), 0.002, 0.0)
    return Planted(rates=rates, lost_ratio=0.05)


def one_pairs_queue(rng: np.random.Generator) -> Planted:
    """One pair has a queue at an unknown place."""
    return Planted(
        rates=2e9 * wander(rng, 1, 0.03, 0.3),
        queue_s=0.01,
        resent_ratio=1e-3,
        device_queue_s=0.01 if rng.random() < 0.5 else None,
    )


UNDECIDED: Final[dict[str, Callable[[np.random.Generator], Planted]]] = {
    "per-client policers": per_client_policers,
    "stray drops": stray_drops,
    "stalled fleet": stalled_fleet,
    "full shapers": full_shapers,
    "shared link": shared_link,
    "lost datagrams": lost_datagrams,
    "one pair's queue": one_pairs_queue,
}

# Cases with evidence for a cause -----------------------------------------------------------------


def full_nics(rng: np.random.Generator) -> Planted:
    """All client NICs are full and have a queue."""
    rates = 3e9 * wander(rng, int(rng.integers(2, 13)), 0.003, 0.0)
    return Planted(rates=rates, nic_ratio=rng.uniform(0.985, 1.0), queue_s=rng.uniform(0, 0.02))


def full_cpus(rng: np.random.Generator) -> Planted:
    """Each client has a full CPU core."""
    rates = 3e9 * wander(rng, int(rng.integers(2, 13)), 0.03, 0.3)
    return Planted(rates=rates, busy_cpu="client")


def device_queue(rng: np.random.Generator) -> Planted:
    """Pairs share the device capacity, and pings to the device wait in its queue."""
    pairs = int(rng.integers(4, 13))
    queue_s = rng.uniform(0.002, 0.02)
    return Planted(
        rates=shared(rng, pairs, 1.5e9 * pairs),
        queue_s=queue_s,
        resent_ratio=10 ** rng.uniform(-4, -2),
        device_queue_s=queue_s * rng.uniform(0.7, 1.1),
    )


def documented_rate(rng: np.random.Generator) -> Planted:
    """The device runs at its documented 30 Gbit/s and has a queue."""
    pairs = int(rng.integers(1, 13))
    rates = shared(rng, pairs, 30e9 / 1.036 * rng.uniform(0.95, 1.03))
    return Planted(rates=rates, queue_s=0.008, resent_ratio=1e-3, sku="standard")


def full_windows(rng: np.random.Generator) -> Planted:
    """The path is long and idle, and all windows are full."""
    idle_s = rng.uniform(0.01, 0.06)
    rates = 8 * 131_072 * 8 / idle_s * wander(rng, int(rng.integers(1, 9)), 0.01, 0.0)
    requested = 131_072 if rng.random() < 0.5 else None
    return Planted(rates=rates, idle_s=idle_s, window_ratio=1.0, window_bytes=requested)


NAMED: Final[dict[str, tuple[BottleneckName, Callable[[np.random.Generator], Planted]]]] = {
    "NICs": (BottleneckName.CLIENT_NIC, full_nics),
    "CPUs": (BottleneckName.CLIENT_CPU, full_cpus),
    "device queue": (BottleneckName.FIREWALL, device_queue),
    "documented rate": (BottleneckName.FIREWALL, documented_rate),
    "windows": (BottleneckName.WINDOW, full_windows),
}

# Records -----------------------------------------------------------------------------------------


def recorded(case: Planted, seed: int, patch: pytest.MonkeyPatch) -> Fleet:
    """Simulate the records for one burst."""
    pairs = len(case.rates)
    fastest = float(case.rates.mean(axis=1).max())
    patch.setattr(synthetic, "_demand", lambda *_: case.rates.copy())
    rtt_s = (case.idle_s or 0.0001) + case.queue_s
    made = fleet(
        Plant(
            seed=seed,
            pairs=pairs,
            bursts=1,
            burst_s=SECONDS,
            firewall_bits_per_second=None,
            nic_bits_per_second=fastest * 1.0456 / case.nic_ratio if case.nic_ratio else None,
            rtt_base_s=rtt_s,
            streams=case.streams,
            busy_cpu=case.busy_cpu,
            sku=case.sku,
        )
    )
    rng = np.random.default_rng(seed)

    def on_its_path(pair: PairEvidence) -> PairEvidence:
        up, down, report = pair.client_tracks[0], pair.server_tracks[0], pair.report
        assert report is not None
        segments = up.transferred_bytes / MSS_BYTES
        resent = rng.poisson(segments * case.resent_ratio).astype(np.float32)
        flight = up.transferred_bytes * up.rtt_s
        up = replace(
            up,
            retransmits_count=resent,
            cwnd_bytes=(flight * case.window_ratio).astype(np.float32),
        )
        if case.lost_ratio is not None:
            unknown = np.full(len(up.rtt_s), np.nan, np.float32)
            packets = (down.transferred_bytes / 1400 / (1 - case.lost_ratio)).astype(np.float32)
            up = replace(up, rtt_s=unknown, cwnd_bytes=unknown, retransmits_count=unknown)
            down = replace(
                down, packets_count=packets, lost_count=packets * np.float32(case.lost_ratio)
            )
        idle = None
        if case.idle_s is not None:
            idle = IdleRtt(
                least_s=case.idle_s, median_s=case.idle_s, samples_count=9, how="connections"
            )
        return replace(
            pair,
            client_tracks=(up,),
            server_tracks=(down,),
            report=report.model_copy(update={"idle_rtt": idle}),
        )

    return made.asked(traffic=_traffic(case)).told(on_its_path)


def _traffic(case: Planted) -> Traffic:
    if case.lost_ratio is None:
        return Traffic(streams_count=case.streams, window_bytes=case.window_bytes)
    sent = float(case.rates.mean()) / (1 - case.lost_ratio) / case.streams
    return Traffic(
        protocol=Protocol.UDP,
        streams_count=case.streams,
        stream_bits_per_second=round(sent),
        block_bytes=1400,
    )


def pings(case: Planted, made: Fleet) -> DeviceTelemetry | None:
    """Return pings to the device before and during the burst."""
    if case.device_queue_s is None:
        return None
    start_s = made.plan.bursts[0].planned_start_at.timestamp()
    at_s = start_s + np.arange(-9.0, SECONDS)
    values = np.where(at_s < start_s, 0.0005, 0.0005 + case.device_queue_s)
    zeros = np.zeros(len(at_s))
    series = TelemetrySeries(
        device="fw",
        source="ping",
        quantity=Quantity.PING_ICMP,
        at_s=at_s,
        over_s=zeros,
        bound_s=zeros,
        values=values,
    )
    return DeviceTelemetry(devices=("fw",), series=(series,), read_at=made.now)


@cache
def bottlenecks(draw: Callable[[np.random.Generator], Planted]) -> list[Bottleneck]:
    """Return the bottleneck for each seed."""
    results = []
    for seed in range(SEEDS):
        case = draw(np.random.default_rng([seed, 9]))
        with pytest.MonkeyPatch.context() as patch:
            made = recorded(case, seed, patch)
        measured = [measure_burst(made.plan.spec, item, made.now) for item in made.evidence]
        summary = summarise_run(
            made.plan,
            measured,
            made.device_counter,
            made.now,
            RunContext(telemetry=pings(case, made)),
        )
        assert summary.bursts[0].flows[0].flow is Flow.UP
        results.append(summary.bottleneck_details)
    return results


@pytest.mark.parametrize("kind", UNDECIDED)
def test_names_no_cause_without_evidence(kind: str) -> None:
    result = bottlenecks(UNDECIDED[kind])
    names = Counter(item.name for item in result)
    assert names == {BottleneckName.UNKNOWN: SEEDS}
    assert all(item.not_known and "run" in (item.advice or "").lower() for item in result)


@pytest.mark.parametrize("kind", NAMED)
def test_names_cause_with_evidence(kind: str) -> None:
    name, draw = NAMED[kind]
    names = Counter(bottleneck.name for bottleneck in bottlenecks(draw))
    assert set(names) <= {name, BottleneckName.UNKNOWN}
    assert names[name] >= 0.95 * SEEDS


def test_reports_datagram_loss_with_unknown_place() -> None:
    for bottleneck in bottlenecks(lost_datagrams):
        sentence = bottleneck.finding().sentence
        assert "5.00 % of datagrams were lost" in sentence
        assert "the place of the datagram loss" in sentence


def test_shared_limit_of_unknown_place_advises_bypass_run() -> None:
    for bottleneck in bottlenecks(shared_link):
        assert any("share one limit" in fact for fact in bottleneck.evidence)
        assert "device.path=bypass" in (bottleneck.advice or "")
