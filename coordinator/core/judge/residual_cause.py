"""Named reasons for what two ledgers differ by, likeliest first."""

import math
from dataclasses import dataclass
from typing import Final

from coordinator.core.summary import Cause, CauseId, figure

AGREES_RATIO: Final = 0.005  # a residual this small needs no cause, whatever its uncertainty
FOREIGN_CONFIDENCE_RATIO: Final = 0.8  # of what is seen directly; causes of a residual go first
DOUBT_FACTOR: Final = 1.25  # a residual must exceed its uncertainty by this much to need a cause
DOUBT_FACTOR_OF_MANY: Final = 2.0  # and, of several bursts, one: some burst is always odd


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What of a burst the fleet's records lack, as the reconciliation may need to explain it."""

    pairs_count: int  # pairs with seconds that nobody saw, which may have sent all the same
    share_ratio: float  # their planned seconds x the mean measured pair's bytes / fleet's bytes
    planned_pairs_count: int


def causes(
    residual: float,
    uncertainty: float,
    *,
    missing: Missing,
    foreign_ratio: float | None,
    foreign_bits_per_second: float,
    unknown_ratio: float,
    doubt_factor: float = DOUBT_FACTOR,
) -> tuple[Cause, ...]:
    """Named reasons for a residual, likeliest first; none when it is within its uncertainty.

    Each candidate predicts a residual; the closer to what is there, the higher it stands. Traffic
    that the firewall shows while no plan sends (``foreign_ratio``) is taken off the residual and
    named beside it.
    """
    doubtful = abs(residual) <= max(doubt_factor * uncertainty, AGREES_RATIO)
    foreign = foreign_ratio is not None and foreign_ratio > AGREES_RATIO
    if doubtful and not foreign:
        return ()
    found: list[Cause] = []

    def offer(
        name: CauseId, predicted: float, sentence: str, *, least: float = 0.0, weight: float = 1.0
    ) -> None:
        """``least`` .. ``predicted`` is the range that the cause can explain."""
        low, high = sorted((least, predicted))
        gap = max(0.0, low - residual, residual - high)
        fit = math.exp(-((gap / max(2 * uncertainty, 0.25 * abs(residual))) ** 2))
        if fit * weight > 0.05:
            found.append(
                Cause(
                    id=name,
                    share_ratio=figure(min(max(residual, low), high)) or 0.0,
                    confidence_ratio=figure(round(fit * weight, 3)) or 0.0,
                    sentence=sentence,
                )
            )

    percent = f"{abs(residual) * 100:.1f} %"
    if foreign_ratio is not None and foreign:
        found.append(
            Cause(
                id="foreign-traffic",
                share_ratio=figure(foreign_ratio) or 0.0,
                confidence_ratio=FOREIGN_CONFIDENCE_RATIO,
                sentence=f"the firewall carried {foreign_bits_per_second / 1e9:.3g} Gbit/s while "
                f"no plan sent, {foreign_ratio * 100:.1f} % of what the fleet accounts for; that "
                "level is taken off before the ledgers are compared",
            )
        )
    if doubtful:
        return tuple(found)
    if residual > 0 and missing.share_ratio > 0:
        offer(
            "lost-reports",
            missing.share_ratio * 1.3,
            f"{missing.pairs_count} of {missing.planned_pairs_count} planned results are null, cut "
            "short or gone; had those pairs sent like the others, the firewall would show "
            f"{missing.share_ratio * 100:.1f} % more than the fleet's records",
            weight=0.95,
        )
    if residual > 0.5:
        offer(
            "duplicate-counting",
            1.0,
            f"the firewall shows {1 + residual:.2f} times the fleet's bytes: each byte seems to "
            "be counted on its way in and on its way out",
            least=0.8,
        )
    if residual < 0:
        worth = -residual * missing.planned_pairs_count
        offer(
            "bypass",
            -1.0,
            f"the firewall saw {percent} less than the fleet received, about {worth:.1f} pairs' "
            "worth: some traffic did not cross it, or the ledger leaves something out",
            weight=0.9,
        )
    if unknown_ratio > AGREES_RATIO:
        offer(
            "unknown-bins",
            math.copysign(unknown_ratio, residual),
            f"{unknown_ratio * 100:.1f} % of the fleet's bytes fall into bins that the ledger does "
            "not know yet",
            weight=0.4,
        )
    best = max((cause.confidence_ratio for cause in found), default=0.0)
    if best < 0.5 and abs(residual) > 1.5 * uncertainty:
        found.append(
            Cause(
                id="unknown",
                share_ratio=figure(residual) or 0.0,
                confidence_ratio=0.1,
                sentence=f"{percent} of the fleet's bytes are "
                f"{'surplus' if residual > 0 else 'missing'} in the firewall's ledger and nothing "
                "on record explains it",
            )
        )
    return tuple(sorted(found, key=lambda cause: -cause.confidence_ratio))
