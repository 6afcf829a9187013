"""Detection of the bottleneck of a burst, with one evidence function for each cause.

A cause is reported only if its own evidence is complete. The first cause in :data:`CAUSES` with
complete evidence is used. If there is none, the bottleneck is unknown. The result then lists the
missing sources and proposes the next run.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from broadside.coordinator.core.judge.bottleneck.cause_types import (
    BottleneckInput,
    Cause,
    Evidence,
)
from broadside.coordinator.core.judge.bottleneck.device_causes import (
    DEVICE_CPU,
    KNOWN_RATE,
    OWN_QUEUE,
    SINGLE_FLOW,
    SNAT_PORTS,
)
from broadside.coordinator.core.judge.bottleneck.sender_causes import (
    CLIENT_CPU,
    CLIENT_NIC,
    OFFERED_LOAD,
    SERVER_CPU,
    SERVER_NIC,
    WINDOW,
)
from broadside.coordinator.core.judge.bottleneck.undecided import NEXT_RUNS, NextRun, undecided
from broadside.coordinator.core.summary import UNKNOWN, Limiter, LimiterName

# Resources that were measured as full come before conclusions from the movement of pairs.
CAUSES: Final[tuple[Cause, ...]] = (
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


def find_bottleneck(given: BottleneckInput) -> Limiter:
    """Return the first cause with complete evidence.

    If there is none, the result is unknown, with a list of the missing sources. If the traffic does
    not cross the firewall, sources of the firewall are ignored.
    """
    given = replace(given, pairs=[pair for pair in given.pairs if pair.received_bits_per_second])
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
        )
    results = [(cause, cause.evaluate(given)) for cause in CAUSES]
    for cause, evidence in results:
        if evidence.holds:
            return _named(cause, evidence, given)
    return undecided(given, [evidence for _, evidence in results])


def _named(cause: Cause, evidence: Evidence, given: BottleneckInput) -> Limiter:
    return Limiter(
        name=cause.name,
        evidence=evidence.facts,
        refuted_by=cause.refuted_by,
        advice=cause.advice if cause.advise is None else cause.advise(given),
    )


def common_bottleneck(limiters: Sequence[Limiter]) -> Limiter:
    """Return the bottleneck that most bursts have.

    If unknown is as frequent as a known cause, the known cause is used. If two known causes are
    equally frequent, the result is unknown.
    """
    if not limiters:
        return UNKNOWN
    named = Counter(limiter.name for limiter in limiters)
    known = {name: count for name, count in named.items() if name is not LimiterName.UNKNOWN}
    most = [name for name, count in known.items() if count == max(named.values())]
    if len(most) > 1:
        bursts = ", ".join(f"{known[name]} name {name}" for name in sorted(most))
        return UNKNOWN.model_copy(
            update={"evidence": (f"of {len(limiters)} bursts {bursts}: no one limit is shown",)}
        )
    best = most[0] if most else LimiterName.UNKNOWN
    fullest = max(
        (each for each in limiters if each.name is best), key=lambda each: len(each.evidence)
    )
    if named[best] == len(limiters):
        return fullest
    others = ", ".join(f"{n} {name}" for name, n in sorted(named.items()) if name is not best)
    bursts = f"{named[best]} of {len(limiters)} bursts show this (the others: {others})"
    return fullest.model_copy(update={"evidence": (*fullest.evidence, bursts)})


__all__ = [
    "CAUSES",
    "NEXT_RUNS",
    "BottleneckInput",
    "Cause",
    "Evidence",
    "NextRun",
    "common_bottleneck",
    "find_bottleneck",
]
