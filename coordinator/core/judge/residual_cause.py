"""Possible causes of a residual, sorted by the part that they explain."""

from dataclasses import dataclass
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.summary import Cause, CauseId, figure

UNSEEN_BY_BYTES: Final = (
    "bytes alone cannot show others' traffic that exists only while bursts run, nor traffic of the "
    "fleet's own beside the firewall that it makes up for; a reference run (device.path=bypass) "
    "under the same load or the firewall's count of sessions would"
)


# A smaller residual needs no cause, however small its uncertainty is.
AGREES_RATIO: Final = 0.005
# A cause may leave this share of the residual unexplained.
NEAR_RATIO: Final = 0.25
# A residual needs a cause if it is larger than its uncertainty by this factor.
DOUBT_FACTOR: Final = 1.25
# Same factor for one of several bursts. It is larger, because one of many bursts is always an
# outlier.
DOUBT_FACTOR_OF_MANY: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Missing records of a burst.

    Attributes:
        pairs_count: Number of pairs that may have sent without a record.
        share_ratio: Bytes that these pairs may have sent at the mean rate of a measured pair,
            divided by the fleet bytes.
        planned_pairs_count: Number of planned pairs.
        largest_ratio: Largest rate of a measured pair, divided by the mean rate.
    """

    pairs_count: int
    share_ratio: float
    planned_pairs_count: int
    largest_ratio: float = 1.0


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
    """Return the possible causes of a residual, sorted by the part that they explain.

    A cause has no probability. It only states which part of the residual it can explain. A cause is
    skipped if the unexplained part exceeds both two uncertainties and :data:`NEAR_RATIO` of the
    residual.

    Args:
        residual: Counted bytes divided by predicted bytes, minus 1.
        uncertainty: Half width of the residual's interval.
        missing: Missing records.
        foreign_ratio: Traffic in the counter while no plan sends, relative to the predicted bytes.
            It is already subtracted from the residual and reported in addition. None if unknown.
        foreign_bits_per_second: Rate of this traffic.
        unknown_ratio: Share of the fleet bytes in unknown bins.
        doubt_factor: The residual needs a cause if it is larger than this number of uncertainties.

    Returns:
        The causes. If the residual is within its uncertainty, the only possible cause is other
        traffic.
    """
    # Each cause with the part of the residual that it leaves unexplained.
    found: list[tuple[float, Cause]] = []

    def offer(name: CauseId, low: float, high: float, sentence: str) -> None:
        """Add a cause that can explain a residual from ``low`` to ``high``."""
        open_ratio = max(0.0, low - residual, residual - high)
        if open_ratio <= max(2 * uncertainty, NEAR_RATIO * abs(residual)):
            share = figure(min(max(residual, low), high)) or 0.0
            found.append((open_ratio, Cause(id=name, share_ratio=share, sentence=sentence)))

    percent = f"{words.ratio(abs(residual), 1)}"
    named = abs(residual) > max(doubt_factor * uncertainty, AGREES_RATIO)
    if named and residual > 0 and missing.share_ratio > 0:
        offer(
            "lost-reports",
            0.0,
            missing.share_ratio * missing.largest_ratio,
            f"{missing.pairs_count} of {missing.planned_pairs_count} planned results are null, cut "
            "short or gone; had those pairs sent like the others, the firewall would show "
            f"{words.ratio(missing.share_ratio, 1)} more than the fleet's records",
        )
    if named and residual > 0.5:
        offer(
            "duplicate-counting",
            0.8,
            1.0,
            f"the firewall shows {1 + residual:.2f} times the fleet's bytes: each byte seems to "
            "be counted on its way in and on its way out",
        )
    if named and residual < 0:
        worth = -residual * missing.planned_pairs_count
        offer(
            "bypass",
            -1.0,
            0.0,
            f"the firewall saw {percent} less than the fleet received, about {worth:.1f} pairs' "
            "worth: some traffic did not cross it, or the ledger leaves something out",
        )
    if named and unknown_ratio > AGREES_RATIO:
        offer(
            "unknown-bins",
            -unknown_ratio,
            unknown_ratio,
            f"{words.ratio(unknown_ratio, 1)} of the fleet's bytes fall into bins that the "
            "ledger does not know yet",
        )
    told = [cause for _, cause in sorted(found, key=lambda each: each[0])]
    if foreign_ratio is not None and foreign_ratio > AGREES_RATIO:
        told.append(
            Cause(
                id="foreign-traffic",
                share_ratio=figure(foreign_ratio) or 0.0,
                sentence=f"the firewall carried {words.number(foreign_bits_per_second / 1e9, 3)} "
                f"Gbit/s while no plan sent, {words.ratio(foreign_ratio, 1)} of what the fleet "
                "accounts for; that level is taken off before the ledgers are compared",
            )
        )
    if named and all(open_ratio > uncertainty for open_ratio, _ in found):
        told.append(
            Cause(
                id="unknown",
                share_ratio=figure(residual) or 0.0,
                sentence=f"{percent} of the fleet's bytes are "
                f"{'surplus' if residual > 0 else 'missing'} in the firewall's ledger and nothing "
                "on record explains all of it",
            )
        )
    return tuple(told)
