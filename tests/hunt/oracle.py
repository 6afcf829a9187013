"""Whether a verdict is wrong, by the truth alone.

A fair reader may choose a window or a set of pairs, so every rate has a high and a low reading: a
pass is wrong where even the high one misses, a fail where even the low one holds. Between is grey.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.hunt.planting import Case
from tests.hunt.worlds import COVERAGE_FLOOR, BurstTruth, Truth

HAIR: Final = 0.005  # of the limit: what a ledger's own noise may hide of the device's rate
FILLED: Final = 0.99  # of the limit: no ledger's reader is sure of the last per cent
STRETCH: Final = 0.97  # of the limit: a planted stretch under it is under it
COMPLETE_ENOUGH: Final = COVERAGE_FLOOR - 0.02
COVERED_ENOUGH: Final = 0.5  # of bursts' time that a promised ledger tells of
CROSSED_MAX: Final = 0.1  # of a reference's bytes
OVER_GATE: Final = 0.3  # of hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What may be concluded of a case."""

    wrong_to_pass: tuple[str, ...]  # why; empty: a pass is right, or may be
    unseen: bool  # no source in the evidence can tell
    wrong_to_fail: bool
    goodness: float  # under 1 a pass is wrong: smallest of every bound's share
    badness: float  # over 1 a fail is wrong

    @property
    def is_right_to_pass(self) -> bool:
        return not self.wrong_to_pass


def rule(case: Case, truth: Truth) -> Ruling:
    """Hold a truth against every bound that a pass vouches for."""
    limit = truth.limit
    received = min(burst.received_high for burst in truth.bursts) / limit
    through = min(burst.through_high for burst in truth.bursts) / limit
    stretch = min(burst.stretch_low for burst in truth.bursts) / limit / STRETCH
    complete = sum(burst.completeness for burst in truth.bursts) / len(truth.bursts)
    bounds = {
        "rate": received,
        "stretch": stretch,
        "completeness": complete / COMPLETE_ENOUGH,
        "clocks-unread": np.inf if truth.clocks_read else 0.99,
        "clock-gate": np.inf if truth.over_gate < OVER_GATE else 0.99,
        "receivers-unheard": np.inf if truth.receivers_seconds else 0.99,
    }
    if truth.ledger_promised:
        bounds["ledger-absent"] = truth.ledger_cover / COVERED_ENOUGH
    if case.reference:
        bounds["crossed"] = CROSSED_MAX / max(1 - case.bypass, 1e-9)
    elif truth.ledger_promised or truth.ledger_cover > 0.9:
        bounds["through"] = through / (1 - HAIR)
    reasons = tuple(sorted(name for name, share in bounds.items() if share < 1))
    lows = [
        burst.received_low if case.reference else min(burst.received_low, burst.through_low)
        for burst in truth.bursts
    ]
    low = min(lows) / limit
    shaped = min(burst.moment_low for burst in truth.bursts) < limit
    odd = shaped or bool(case.forged) or (case.reference and case.bypass < 1)
    return Ruling(
        wrong_to_pass=reasons,
        unseen=reasons == ("through",)
        and all(
            burst.through_high >= limit * (1 - HAIR) or _is_made_up_for(burst, limit)
            for burst in truth.bursts
        ),
        wrong_to_fail=low >= 1 and not odd,
        goodness=min(bounds.values()),
        badness=0.0 if odd else low,
    )


def _is_made_up_for(burst: BurstTruth, limit: float) -> bool:
    """Whether what else crossed in the burst alone fills what its own bytes lack."""
    filled = burst.apparent_high - burst.through_high
    return burst.apparent_high >= FILLED * limit and filled >= (1 - FILLED) * limit
