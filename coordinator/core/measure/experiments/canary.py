"""Enforcement under load, measured by canaries before, during and after a burst.

A forbidden request counts only if its allowed twin arrived, which was sent at the same time in the
same form. It has leaked if the server received it. If it did not arrive, the device blocked it. The
interval of the leaked share is exact if all requests of the burst have the same probability to
leak. If this differs between pairs, signatures and seconds, the interval contains their mean with
a higher confidence (Hoeffding 1956).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.binomial import CONFIDENCE, share_interval
from broadside.coordinator.core.measure.grid.series import BurstSeries
from broadside.coordinator.core.measure.records.evidence import CanaryColumns
from broadside.coordinator.core.run_spec import Burst
from broadside.coordinator.core.summary import (
    CanaryPhase,
    CanaryStep,
    CanarySummary,
    SignatureSummary,
    figure,
    instant,
)
from broadside.exchange.messages import Canary, CanaryOutcome

# A request is sent again for this time in seconds, so it could meet the load of the burst.
UNTIL_SILENT_S: Final = 2.5
# Longest series of steps for a burst.
STEPS_MAX_COUNT: Final = 120
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounds:
    """Rounds of all pairs, sorted by time. All arrays have the same length.

    Attributes:
        at_s: Due time in epoch seconds.
        signature: Index of the signature.
        tested: The twin arrived, and it is known whether the forbidden request did.
        leaked: A tested one whose forbidden request arrived.
        late: A leaked one whose connection ended early.
        allowed: It is known whether the twin arrived.
        blocked: The twin did not arrive.
        unknown: It is not known whether the forbidden request arrived.
        decision_s: Time until the block was visible. NaN if it was not.
        silent: The forbidden request did not arrive, and nothing was seen.
    """

    at_s: Floats
    signature: NDArray[np.int64]
    tested: Mask
    leaked: Mask
    late: Mask
    allowed: Mask
    blocked: Mask
    unknown: Mask
    decision_s: Floats
    silent: Mask

    def where(self, selected: Mask | NDArray[np.int64]) -> "_Rounds":
        return _Rounds(**{name: getattr(self, name)[selected] for name in self.__slots__})


def find_canary(
    canary: Canary | None,
    burst: Burst,
    columns: Mapping[int, CanaryColumns],
    series: BurstSeries | None,
) -> CanarySummary | None:
    """Return the results of the canaries in a burst.

    Args:
        canary: Settings of the run. None if it has no canaries.
        burst: The burst.
        columns: Canaries by pair index.
        series: Received payload per second, for the rate at each step. None leaves the rates
            unknown.

    Returns:
        The results, or None if there are no canaries.
    """
    if canary is None or not columns:
        return None
    rounds = _joined(list(columns.values()), len(canary.signatures))
    start_s, end_s = burst.planned_start_at.timestamp(), burst.planned_end_at.timestamp()
    idle = rounds.at_s < start_s - UNTIL_SILENT_S
    during = (rounds.at_s >= start_s) & (rounds.at_s < end_s)
    leaks = rounds.where(during & rounds.leaked)
    # Rounds shortly before the burst are in no phase, because they could meet its load.
    every_s, steps = _steps(rounds.where(idle | (rounds.at_s >= start_s)), series)
    return CanarySummary(
        consent=canary.consent,
        pairs_count=sum(_is_tested(pair, start_s, end_s) for pair in columns.values()),
        before=_phase(rounds.where(idle)),
        during=_phase(rounds.where(during)),
        after=_phase(rounds.where(rounds.at_s >= end_s)),
        signatures=tuple(
            SignatureSummary(
                name=signature.name,
                rule=signature.rule,
                during=_phase(rounds.where(during & (rounds.signature == index))),
            )
            for index, signature in enumerate(canary.signatures)
        ),
        first_leak_at=instant(float(leaks.at_s[0])) if len(leaks.at_s) else None,
        every_s=every_s,
        steps=steps,
    )


def _is_tested(pair: CanaryColumns, start_s: float, end_s: float) -> bool:
    rounds = _joined([pair], 1)
    return bool((rounds.tested & (rounds.at_s >= start_s) & (rounds.at_s < end_s)).any())


def _joined(pairs: Sequence[CanaryColumns], signatures_count: int) -> _Rounds:
    """Return the rounds of all pairs that were sent, sorted by time."""
    at_s = np.concatenate(
        [pair.first_at_s + pair.every_s * np.arange(len(pair.forbidden)) for pair in pairs]
    )
    signature = np.concatenate(
        [np.arange(len(pair.forbidden)) % signatures_count for pair in pairs]
    )
    forbidden, allowed, forbidden_received, allowed_received, took_s = (
        np.concatenate([getattr(pair, name) for pair in pairs])
        for name in ("forbidden", "allowed", "forbidden_received", "allowed_received", "took_s")
    )
    sent = (forbidden != CanaryOutcome.NOT_SENT) & (allowed != CanaryOutcome.NOT_SENT)
    tested = (allowed_received == 1) & (forbidden_received >= 0)
    leaked = tested & (forbidden_received == 1)
    # The client sees nothing of other blocks.
    visible = [CanaryOutcome[name] for name in ("CUT", "RESET", "REFUSED", "REPLACED")]
    decided = np.isin(forbidden, visible) & tested
    rounds = _Rounds(
        at_s=at_s,
        signature=signature,
        tested=tested,
        leaked=leaked,
        late=leaked & (forbidden != CanaryOutcome.ANSWERED),
        allowed=allowed_received >= 0,
        blocked=allowed_received == 0,
        unknown=forbidden_received < 0,
        decision_s=np.where(decided, took_s, np.nan),
        silent=tested & ~leaked & (forbidden == CanaryOutcome.SILENT),
    )
    order = np.argsort(at_s, kind="stable").astype(np.int64)
    return rounds.where(order).where(sent[order])


def _phase(rounds: _Rounds) -> CanaryPhase:
    tested, leaked = int(rounds.tested.sum()), int(rounds.leaked.sum())
    allowed, blocked = int(rounds.allowed.sum()), int(rounds.blocked.sum())
    low, high = share_interval(leaked, tested) if tested else (None, None)
    decisions_s = rounds.decision_s[~np.isnan(rounds.decision_s)]
    return CanaryPhase(
        tested_count=tested,
        leaked_count=leaked,
        leak_ratio=figure(leaked / tested) if tested else None,
        leak_low_ratio=figure(low),
        leak_high_ratio=figure(high),
        confidence_ratio=CONFIDENCE,
        late_count=int(rounds.late.sum()),
        silent_count=int(rounds.silent.sum()),
        unknown_count=int(rounds.unknown.sum()),
        allowed_count=allowed,
        allowed_blocked_count=blocked,
        allowed_blocked_ratio=figure(blocked / allowed) if allowed else None,
        decision_p50_s=figure(float(np.median(decisions_s))) if len(decisions_s) else None,
        decision_max_s=figure(float(decisions_s.max())) if len(decisions_s) else None,
    )


def _steps(rounds: _Rounds, series: BurstSeries | None) -> tuple[float, tuple[CanaryStep, ...]]:
    """Return the length of a step in seconds, and the results step by step."""
    if not len(rounds.at_s):
        return 1.0, ()
    start_s, end_s = math.floor(rounds.at_s[0]), math.floor(rounds.at_s[-1]) + 1
    every_s = math.ceil((end_s - start_s) / STEPS_MAX_COUNT)
    place = ((rounds.at_s - start_s) // every_s).astype(int)
    count = int(place[-1]) + 1
    tested, leaked, blocked = (
        np.bincount(place[mask], minlength=count)
        for mask in (rounds.tested, rounds.leaked, rounds.blocked)
    )
    return float(every_s), tuple(
        CanaryStep(
            at=instant(start_s + number * every_s),
            tested_count=int(tested[number]),
            leaked_count=int(leaked[number]),
            allowed_blocked_count=int(blocked[number]),
            received_bits_per_second=_rate(series, start_s + number * every_s, every_s),
        )
        for number in range(count)
    )


def _rate(series: BurstSeries | None, from_s: int, every_s: int) -> float | None:
    """Return the mean received payload rate in bit/s, or None if a second is unknown."""
    if series is None:
        return None
    seconds = series.received_bytes[max(0, from_s - series.start_s) :][:every_s]
    if from_s < series.start_s or len(seconds) < every_s:
        return None
    return figure(float(seconds.mean()) * 8)
