"""Rules for every cell, both those of any run and those that only the lab can check.

The rules of any run (:mod:`tests.invariants`) require that every planned pair-second is in
exactly one state and nothing is stored twice. The rules of this module require that bytes agree at
both ends, that traffic stays within its windows and the lease, that no run passes below the floor,
that the verdict can be recomputed, and that no process or spooled row is left.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

from broadside.agent.claimed_job import ENGINE_GRACE_S
from broadside.coordinator.core import formatting
from broadside.coordinator.core.metrics import RECEIVED, SENT
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import BurstSummary, RunSummary, Verdict
from broadside.exchange.engines import offered_bits_per_second
from broadside.exchange.messages import EngineReport
from broadside.exchange.messages import JobPhase as Told
from broadside.exchange.second_rows import TestSeconds
from broadside.lab.byte_counter import ByteCounterReading, parse_counter
from tests.faults.fault_range import Range
from tests.faults.fired_tests import Connection
from tests.faults.matrix import FULL_DISK, NOTHING, SILENT_S, STOP_S, Fault, Scene
from tests.invariants import Stored, broken, read_stored

# The bytes per second at the firewall that exceed keepalives and closing packets.
LOUD_BYTES: Final = 20_000
# The ratio to the offered rate. iperf3 paces over a second and not within one.
OVERSHOOT_RATIO: Final = 1.25
# The first version of iperf3 with one thread per stream.
BLOCK_BEYOND_FROM: Final = (3, 16)
# The limit for a coordinator with such a small fleet.
MEMORY_MAX_BYTES: Final = 400_000_000
# Connections are opened this long before a burst.
EARLY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Records and observations of a run.

    Attributes:
        struck_at_s: Injection of the fault, epoch s.
        addresses: Addresses of the affected clients.
        engines_left: Number of iperf3 clients that run after the verdict.
        clients: Affected clients.
        connections: Connections to the engines' servers at the firewall.
        unseen_count: Number of packets that were not counted.
        peak_bytes: Maximum memory of the coordinator.
        watched: Whether connections were recorded.
    """

    stored: Stored
    struck_at_s: float
    addresses: frozenset[str]
    tests: tuple[TestSeconds, ...]
    device_counter: tuple[ByteCounterReading, ...]
    recomputed: Mapping[str, Any]
    engines_left: int
    clients: frozenset[str] = frozenset()
    connections: tuple[Connection, ...] = ()
    unseen_count: int = 0
    peak_bytes: int = 0
    watched: bool = False


def read_evidence(
    site: Range, plan: Plan, summary: RunSummary, scene: Scene, struck_at_s: float
) -> Evidence:
    """Collect the evidence. This call blocks."""
    records = site.fabric.records
    from_at = plan.created_at
    stored = site.loop.run(read_stored(records, plan, summary))
    tests = site.loop.run(records.bursts.read_tests(from_at, datetime.now(UTC)))
    recomputed = site.coordinator.get(f"/v1/runs/{plan.run_id}/recomputed") or {}
    counter_path = site.lab.counter_path
    assert counter_path is not None
    return Evidence(
        stored=stored,
        struck_at_s=struck_at_s,
        addresses=frozenset(site.host(name).address for name in scene.clients),
        tests=tuple(tests),
        device_counter=tuple(
            r for r in parse_counter(counter_path.read_text()) if r.at_s >= from_at.timestamp()
        ),
        recomputed=recomputed,
        engines_left=sum(site.signal_engines(host.name, 0) for host in site.lab.clients),
        clients=frozenset(scene.clients),
        connections=site.wire.connections(from_at.timestamp()),
        unseen_count=site.wire.dropped_count,
        peak_bytes=site.coordinator.peak_bytes,
        watched=True,
    )


def violations(evidence: Evidence, fault: Fault) -> list[str]:
    """Return one line for each rule that does not hold."""
    results = [*broken(evidence.stored)]
    results += _bytes(evidence, fault)
    results += _windows(evidence, fault)
    results += _lease(evidence, fault)
    results += _floor(evidence.stored)
    results += _rows_first(evidence, fault)
    results += _fires_once(evidence)
    verdict = evidence.stored.summary.verdict
    if fault.name == NOTHING and verdict is not Verdict.PASS:
        results.append(f"without a fault the verdict is {verdict}")
    if not evidence.recomputed.get("equal"):
        results.append(f"does not recompute: {evidence.recomputed.get('differences')}")
    if evidence.engines_left:
        results.append(f"{evidence.engines_left} iperf3 clients still run after the verdict")
    if evidence.peak_bytes > MEMORY_MAX_BYTES:
        results.append(f"the coordinator took {evidence.peak_bytes / 1e6:.0f} MB of memory")
    return results


def _fires_once(evidence: Evidence) -> Iterator[str]:
    """Check that each pair fires once per burst, independent of restarts.

    There is one connection with data to each server and from each client. The data are the packets
    at the firewall and the records of the servers' engines, but not claims and reports.
    """
    if evidence.unseen_count:
        yield f"{evidence.unseen_count} packets were not looked at, so more may have been sent"
    plan = evidence.stored.plan
    starts_s = [burst.planned_start_at.timestamp() - EARLY_S for burst in plan.bursts]
    loud = [c for c in evidence.connections if c.payload_bytes > LOUD_BYTES]
    fired = [(c.first_at_s, c.client, c.server) for c in loud]
    served = [
        (track.first_data_at_s, test.test.client_address or "", test.test.endpoint.address)
        for test in evidence.tests
        for track in test.tracks
        if sum(i.transferred_bytes for i in track.intervals) > LOUD_BYTES
    ]
    for source, tests in (("the firewall", fired), ("the servers", served)):
        counts: Counter[tuple[int, str]] = Counter()
        for at_s, client, server in tests:
            index = bisect_right(starts_s, at_s) - 1
            counts.update({(index, f"from {client}"), (index, f"to {server}")})
        for (index, which), count in sorted(counts.items()):
            if index < 0:
                yield f"{source} saw {count} tests {which} before the first burst"
            elif count > 1:
                yield f"burst {index + 1}: {source} saw {count} tests {which}, not one"
    measured = any(b.completeness.measured_s for b in evidence.stored.summary.bursts)
    if evidence.watched and measured and not fired:
        yield "the run was measured, and the firewall saw no test: the rule had nothing to look at"


def _bytes(evidence: Evidence, fault: Fault) -> Iterator[str]:
    """Compare the bytes in the client's report with those in the server's record.

    They must be equal except for blocks that iperf3 counts after its last interval
    (:func:`_uncounted_bytes`). Without a fault every pair of every burst has both values. With a
    fault only the existing ones are compared.
    """
    compared_count = 0
    by_cookie = {t.test.cookie: t for t in evidence.tests if t.test.cookie is not None}
    for burst_index, reports in evidence.stored.reports.items():
        for pair_index, report in reports.items():
            if report.engine is None or report.engine.error or report.engine.truncated:
                continue
            test = by_cookie.get(report.engine.cookie or "")
            [total] = report.engine.totals or (None,)
            if test is None or total is None or total.received_bytes is None or not test.tracks:
                continue
            recorded = sum(i.transferred_bytes for i in test.tracks[0].intervals)
            if test.test.ended_at is None:
                continue
            compared_count += 1
            if total.received_bytes - recorded not in _uncounted_bytes(report.engine):
                yield (
                    f"burst {burst_index + 1}, pair {pair_index + 1}: the client says "
                    f"{total.received_bytes} bytes arrived, the server recorded {recorded}"
                )
    plan = evidence.stored.plan
    if fault.name == NOTHING and compared_count < len(plan.pairs) * len(plan.bursts):
        yield f"only {compared_count} tests have an account of their bytes from both ends"
    offered = offered_bits_per_second(plan.spec.traffic)
    for burst in evidence.stored.summary.bursts:
        sent, got = SENT.of_burst(burst), RECEIVED.of_burst(burst)
        parts = [p.sent_bits_per_second for p in burst.pairs if p.sent_bits_per_second is not None]
        if sent is not None and not math.isclose(math.fsum(parts), sent, rel_tol=1e-6):
            complete = math.fsum(parts)
            yield f"burst {burst.index + 1}: pairs sent {complete:.9g}, the fleet {sent:.9g}"
        if got and offered and got > burst.pairs_planned * offered * OVERSHOOT_RATIO:
            yield f"burst {burst.index + 1}: {got:.9g} bit/s received, more than was offered"


def _uncounted_bytes(engine: EngineReport) -> range:
    """Return the possible bytes in the end total that are in no interval.

    From version 3.16 on each stream has its own thread. It also counts the block that it was
    receiving when the last interval ended. The limit is one block per stream, because the matrix
    paces its streams. Eight unpaced streams with 24 Gbit/s in total have counted 31 blocks.
    """
    version = re.match(r"(\d+)\.(\d+)", engine.version or "")
    if version is None or tuple(map(int, version.groups())) < BLOCK_BEYOND_FROM:
        return range(1)
    block_bytes = engine.block_bytes or 1
    return range(0, (engine.streams_count or 0) * block_bytes + 1, block_bytes)


def _windows(evidence: Evidence, fault: Fault) -> Iterator[str]:
    """Check that the firewall forwards nothing outside the bursts and some time after them."""
    windows = [
        (
            burst.planned_start_at.timestamp() - EARLY_S,
            max(
                burst.planned_end_at.timestamp() + _stop_s(burst, fault),
                _let_go_s(burst, evidence, fault),
            ),
        )
        for burst in evidence.stored.summary.bursts
    ]
    for earlier, later in pairwise(evidence.device_counter):
        moved_bytes = later.up_bytes - earlier.up_bytes
        if moved_bytes > LOUD_BYTES and not any(a <= earlier.at_s <= b for a, b in windows):
            at = datetime.fromtimestamp(later.at_s, UTC)
            yield f"{moved_bytes} bytes crossed the firewall outside any burst, at {at:%H:%M:%S}"


def _stop_s(burst: BurstSummary, fault: Fault) -> float:
    """Return the time after a burst until all senders are silent (s).

    It is short after a complete burst, so that traffic before the next burst is detected. A pair
    that began late and is excluded may continue until its agent ends the test.
    """
    completeness = burst.completeness
    if completeness.late_s:
        return STOP_S + ENGINE_GRACE_S
    return SILENT_S if completeness.measured_s == completeness.planned_s else fault.stop_s


def _let_go_s(burst: BurstSummary, evidence: Evidence, fault: Fault) -> float:
    """Return the time at which traffic delayed by the fault is over (epoch s).

    The result is 0 if the fault delayed no traffic of this burst.
    """
    struck_s = evidence.struck_at_s
    ends_s = burst.planned_end_at.timestamp()
    if fault.stop_s <= SILENT_S or not burst.planned_start_at.timestamp() <= struck_s <= ends_s:
        return 0.0
    return struck_s + fault.lasts_s + SILENT_S


def _lease(evidence: Evidence, fault: Fault) -> Iterator[str]:
    """Check that a disconnected agent is silent after the lease.

    It must not send from :data:`STOP_S` after the end of the lease until it is connected again.
    Later traffic belongs to another lease.
    """
    if not fault.cuts_lease:
        return
    limit_s = evidence.struck_at_s + fault.lease_s + STOP_S
    healed_s = evidence.struck_at_s + fault.lasts_s
    for test in evidence.tests:
        if fault.cuts_lease == "client" and test.test.client_address not in evidence.addresses:
            continue
        for track in test.tracks:
            ends_s = (
                track.first_data_at_s + i.end_s for i in track.intervals if i.transferred_bytes
            )
            loud_s = [end_s for end_s in ends_s if limit_s < end_s < healed_s]
            if loud_s:
                yield f"sent {max(loud_s) - evidence.struck_at_s:.1f} s after it was cut off"


_SOUND: Final = (Verdict.PASS, Verdict.MEASURED)


def _floor(stored: Stored) -> Iterator[str]:
    summary, floor = stored.summary, stored.plan.spec.objective.coverage_floor_ratio
    for burst in summary.bursts:
        if burst.verdict in _SOUND and burst.completeness_ratio < floor:
            share = formatting.ratio(burst.completeness_ratio, 1)
            yield f"burst {burst.index + 1} passes at {share} coverage"
    if summary.verdict in _SOUND and summary.completeness_ratio < floor:
        yield f"the run passes at {formatting.ratio(summary.completeness_ratio, 1)} coverage"


def _rows_first(evidence: Evidence, fault: Fault) -> Iterator[str]:
    """Check that all rows are stored if the disk has space for rows only, before raw output."""
    if fault.name != FULL_DISK:
        return
    for burst_index, claims in evidence.stored.claims.items():
        for pair_index, claim in claims.items():
            reported = pair_index in evidence.stored.reports[burst_index]
            if claim.agent_id in evidence.clients and not (
                reported and claim.phase is Told.REPORTED
            ):
                lost = "claim's last word" if reported else "report"
                text = f"burst {burst_index + 1}, pair {pair_index + 1}"
                yield f"{text}: its {lost} was lost on a full disk"
