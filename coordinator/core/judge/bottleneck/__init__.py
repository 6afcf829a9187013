"""Detection of the bottleneck of a burst, with one evidence function for each cause.

A cause is reported only if its own evidence is complete. The first cause in :data:`CAUSES` with
complete evidence is used. If there is none, the bottleneck is unknown. The result then lists the
missing sources and proposes the next run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import (
    CANCEL_MAX_RATIO,
    NO_BASELINE,
    TOGETHER_RATIO,
    BottleneckCause,
    BottleneckInput,
    Evidence,
    has_drops,
    is_queued,
    movement_facts,
    path_facts,
    traded,
)
from broadside.coordinator.core.judge.bottleneck.connection_causes import CONNECTION_CAUSES
from broadside.coordinator.core.judge.bottleneck.device_causes import (
    DEVICE_CPU,
    KNOWN_RATE,
    ONE_UNIT,
    OWN_QUEUE,
    SINGLE_FLOW,
    SNAT_PORTS,
    drops_per_second,
)
from broadside.coordinator.core.judge.bottleneck.host_causes import (
    CLIENT_CPU,
    CLIENT_NIC,
    OFFERED_LOAD,
    SERVER_CPU,
    SERVER_NIC,
    WINDOW,
)
from broadside.coordinator.core.measure.device.device_metrics import certain
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import (
    UNKNOWN,
    Bottleneck,
    BottleneckName,
    BurstSummary,
    Reconciliation,
)
from broadside.exchange.messages import Protocol

# Names that other folders can import, by module.
EXPORTS = {
    "__init__": "bottleneck_input common_bottleneck find_bottleneck",
    "device_causes": "FLAT_COV_RATIO",
}

CONNECTIONS: Final = "connections"
CONNECTIONS_NEXT: Final = (
    "Run the same attempts without the device (device.path=bypass). If all are established, the "
    "device is the limit"
)

# Resources that were measured as full come before conclusions from the movement of pairs.
CAUSES: Final[tuple[BottleneckCause, ...]] = (
    ONE_UNIT,
    OFFERED_LOAD,
    SINGLE_FLOW,
    CLIENT_NIC,
    SERVER_NIC,
    SNAT_PORTS,
    DEVICE_CPU,
    KNOWN_RATE,
    OWN_QUEUE,
    WINDOW,
    CLIENT_CPU,
    SERVER_CPU,
)


def bottleneck_input(
    plan: Plan,
    burst: BurstSummary,
    counter: Reconciliation | None,
    device_counter: CounterRecord | None,
) -> BottleneckInput:
    """Return the input to find the bottleneck of a burst.

    Args:
        plan: Plan for the run.
        burst: Measured burst.
        counter: Comparison of the burst with the device counter. None if the run has no counter.
        device_counter: Device counter. None if no source returned data.
    """
    spec = plan.spec
    denies = spec.device.get("idps", "").lower() in ("deny", "alert-and-deny")
    return BottleneckInput(
        traffic=spec.traffic,
        flows=burst.flows,
        pairs=burst.pairs,
        reconciliation=counter,
        devices=tuple(map(certain, burst.devices)),
        drops_per_second=drops_per_second(
            device_counter,
            burst.window,
            None if counter is None else counter.lag_s,
            [(planned.planned_start_at, planned.planned_end_at) for planned in plan.bursts],
        ),
        window_s=None if burst.window is None else burst.window.window_s,
        crosses=not spec.bypasses_device,
        sku=f"{spec.sku}-idps-deny" if spec.sku and denies else spec.sku,
        snat_utilization_ratio=None
        if device_counter is None
        else device_counter.snat_utilization_ratio,
        scale=spec.scale,
        units=burst.units,
        measures={measure.name: measure.value for measure in burst.measures},
        sessions=burst.sessions,
    )


def find_bottleneck(given: BottleneckInput) -> Bottleneck:
    """Return the first cause with complete evidence.

    If there is none, the result is unknown, with a list of the missing sources. If the traffic does
    not cross the firewall, sources of the firewall are ignored.
    """
    causes: Sequence[BottleneckCause] = CAUSES
    if given.traffic.engine == CONNECTIONS:
        causes = CONNECTION_CAUSES
    else:
        carried = [pair for pair in given.pairs if pair.received_bits_per_second]
        given = replace(given, pairs=carried)
    if not given.pairs or not given.flows:
        return UNKNOWN
    if not given.crosses:
        given = replace(
            given,
            reconciliation=None,
            devices=(),
            drops_per_second=None,
            sku=None,
            snat_utilization_ratio=None,
            sessions=(),
        )
    results = [(cause, cause.evaluate(given)) for cause in causes]
    for cause, evidence in results:
        if evidence.holds:
            return _named(cause, evidence, given)
    if causes is CONNECTION_CAUSES:
        missing = dict.fromkeys(text for _, one in results for text in one.missing)
        return UNKNOWN.model_copy(update={"not_known": tuple(missing), "advice": CONNECTIONS_NEXT})
    return undecided(given, [evidence for _, evidence in results])


def _named(cause: BottleneckCause, evidence: Evidence, given: BottleneckInput) -> Bottleneck:
    return Bottleneck(
        name=cause.name,
        evidence=evidence.facts,
        refuted_by=cause.refuted_by,
        advice=cause.advice if cause.advise is None else cause.advise(given),
    )


def common_bottleneck(bottlenecks: Sequence[Bottleneck]) -> Bottleneck:
    """Return the bottleneck that most bursts have.

    If unknown is as frequent as a known cause, the known cause will be used. If two known causes
    are equally frequent, the result is unknown.
    """
    if not bottlenecks:
        return UNKNOWN
    named = Counter(bottleneck.name for bottleneck in bottlenecks)
    known = {name: count for name, count in named.items() if name is not BottleneckName.UNKNOWN}
    most = [name for name, count in known.items() if count == max(named.values())]
    if len(most) > 1:
        bursts = ", ".join(f"{known[name]} with {name}" for name in sorted(most))
        return UNKNOWN.model_copy(
            update={
                "evidence": (f"the {len(bottlenecks)} bursts have different bottlenecks: {bursts}",)
            }
        )
    best = most[0] if most else BottleneckName.UNKNOWN
    fullest = max(
        (item for item in bottlenecks if item.name is best), key=lambda item: len(item.evidence)
    )
    if named[best] == len(bottlenecks):
        return fullest
    others = ", ".join(f"{n} {name}" for name, n in sorted(named.items()) if name is not best)
    bursts = f"{named[best]} of {len(bottlenecks)} bursts have this bottleneck (others: {others})"
    return fullest.model_copy(update={"evidence": (*fullest.evidence, bursts)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """Proposal for a run to find the bottleneck.

    Attributes:
        situation: Description of the situation, for the reader.
        advice: The run to make, and how to interpret its results.
        applies: Function that returns True in this situation.
    """

    situation: str
    advice: str
    applies: Callable[[BottleneckInput], bool]


def _udp_lost(given: BottleneckInput) -> bool:
    return given.traffic.protocol is Protocol.UDP and bool(has_drops(given))


def _pairs_are_independent(given: BottleneckInput) -> bool:
    moves = given.lead.share_movement_ratio
    alone = moves is not None and CANCEL_MAX_RATIO <= moves <= TOGETHER_RATIO
    return len(given.pairs) > 1 and (given.stream_rate is not None or alone)


# The first row that applies is used.
NEXT_RUNS: Final = (
    NextRun(
        situation="UDP datagrams were lost, and no source shows where.",
        advice="Read the drop counter of the device, and run the same pairs without the firewall "
        "(device.path=bypass). Loss that remains is not caused by the firewall",
        applies=_udp_lost,
    ),
    NextRun(
        situation="Pairs share one limit, and no source shows where it is.",
        advice="Run the same pairs without the firewall (device.path=bypass). If the sum is "
        "higher, the firewall is the limit; if it is the same, a shared link or host is",
        applies=lambda given: given.crosses and traded(given) is not None,
    ),
    NextRun(
        situation="Each pair is limited by itself.",
        advice="Run the same pairs with another VM size. If the rate changes, the hosts are the "
        "limit; if it is the same, the path limits each pair",
        applies=_pairs_are_independent,
    ),
    NextRun(
        situation="Anything else.",
        advice="Run half of the pairs. If each pair has the same rate as before, each has its own "
        "limit; if the sum is the same as before, the pairs share one limit",
        applies=lambda given: True,
    ),
)


def undecided(given: BottleneckInput, results: Sequence[Evidence]) -> Bottleneck:
    """Return an unknown bottleneck.

    Args:
        given: Input for the causes.
        results: Evidence for all causes, none of it complete.
    """
    missing = [item for result in results for item in result.missing]
    if is_queued(given) is None:
        missing.append(NO_BASELINE)
    if has_drops(given) is None:
        missing.append("the packet loss on the path (use an engine that reports it: iperf3)")
    if _udp_lost(given):
        missing.append(
            "the place of the datagram loss (read the drop counter of the device, or run without "
            "it)"
        )
    return Bottleneck(
        name=BottleneckName.UNKNOWN,
        evidence=(*path_facts(given), *movement_facts(given)),
        not_known=tuple(dict.fromkeys(missing)),
        advice=next(row.advice for row in NEXT_RUNS if row.applies(given)),
    )
