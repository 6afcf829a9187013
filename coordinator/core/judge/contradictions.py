"""What cannot be true, as findings; and that it is no pass."""

from collections.abc import Iterator, Sequence
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.summary import (
    Check,
    Contradiction,
    Finding,
    Rule,
    Stray,
    Verdict,
    problem,
    warning,
)
from broadside.exchange.messages import pair_name

NAMED_COUNT: Final = 3
_NEXT: Final = (
    "look at those pairs' raw output at both ends and at who may write the records; repair or "
    "replace the host that told it, then run again"
)


def contradicted(found: Sequence[Contradiction]) -> Check:
    """No pass on evidence that contradicts itself: a finding for each rule that was broken."""
    by_rule: dict[Rule, list[Contradiction]] = {}
    for each in found:
        by_rule.setdefault(each.rule, []).append(each)
    findings = [
        problem(
            id=f"contradiction-{rule}",
            weight=94,
            sentence=f"{_said(said)}: the records cannot all be true",
            next_step=_NEXT,
        )
        for rule, said in sorted(by_rule.items())
    ]
    return (Verdict.INCONCLUSIVE if found else Verdict.PASS), findings


def stray_findings(strays: Sequence[Stray]) -> Iterator[Finding]:
    """Somebody else's tests on the run's endpoints: never counted, and not to be kept quiet."""
    if not strays:
        return
    named = "; ".join(
        f"{stray.address} port {stray.port} ({pair_name(stray.pair_index)}'s), from "
        f"{stray.client_address or 'an unknown address'}, "
        f"{words.size(stray.received_bytes)}"
        for stray in strays[:NAMED_COUNT]
    )
    more = "; ..." if len(strays) > NAMED_COUNT else ""
    yield warning(
        id="stray-tests",
        weight=69,
        sentence=f"somebody else's test ran on {len(strays)} of the run's endpoints during "
        f"the burst: {named}{more}; it is not counted",
        next_step="find out who tests against these servers; give every run its own endpoints",
    )


def _said(found: Sequence[Contradiction]) -> str:
    worst = max(found, key=lambda each: each.said / max(each.bound, 1e-9))
    pairs = sorted({each.pair for each in found if each.pair is not None})
    more = f" (and {len(pairs) - 1} pairs more)" if len(pairs) > 1 else ""
    return f"{worst.pair or 'the fleet'}{more} {_words(worst)}"


_WORDS: Final = {
    Rule.ROWS: "has {rows} rows of {side} that are negative, no number, reversed or one over "
    "another",
    Rule.RECEIVED_OVER_SENT: "received {said} when {bound} were sent",
    Rule.TOTALS: "tells {said} where the total that {side}'s engine gave is {bound}",
    Rule.SENT_OVER_OFFERED: "counts {said} at {side} when its pace offers {bound}",
    Rule.OVER_NIC: "had {said} cross {side}'s NIC, whose cap lets {bound} through",
    Rule.OVER_WINDOW: "moved {said} when its windows and round trips allow {bound}",
    Rule.HOST_COUNTERS: "received {said} when {side}'s NIC counted {bound}",
    Rule.STAMPS: "began {said} apart by its two ends' clocks, which are within {bound}",
    Rule.COPIED: "tells of {said} to the byte what another pair tells: one is a copy",
}


def _words(each: Contradiction) -> str:
    quantity = words.time if each.rule is Rule.STAMPS else words.size
    return _WORDS[each.rule].format(
        rows=round(each.said),
        said=quantity(each.said),
        bound=quantity(each.bound),
        side="an end" if each.side is None else f"the {each.side}",
    )
