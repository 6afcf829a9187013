"""Check that the traffic of a reference run did not cross the device."""

from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    Check,
    Result,
    Stage,
    inconclusive,
)
from broadside.coordinator.core.summary import Verdict, note


def _evaluate(given: BurstInput) -> Result:
    spec, held = given.spec, given.burst.reconciliation
    if held is None or not held.bypassed or held.residual_ratio is None or held.rejected_bins_count:
        return NOTHING
    crossed_ratio = held.residual_ratio
    if held.baseline_how != "quiet":
        return inconclusive(
            id="idle-unknown",
            weight=87,
            sentence=f"the ledger {held.source} has no quiet bins beside the bursts, so that "
            "its idle level is not known and nothing says that the run passed the firewall by",
            next_step="keep the ledger from some minutes before the first burst to some after "
            "the last one",
        )
    limit = spec.objective.residual_max_ratio
    said = (
        f"above its idle level the ledger {held.source} shows {words.signed_ratio(crossed_ratio)} "
        f"(+-{words.ratio(held.residual_uncertainty_ratio or 0.0)}) of the fleet's "
        f"{words.size(held.expected_bytes)}"
    )
    uncertainty = held.residual_uncertainty_ratio or 0.0
    if max(0.0, crossed_ratio) + uncertainty + held.unknown_ratio <= limit:
        return Result(
            Verdict.PASS,
            (
                note(
                    id="bypassed",
                    weight=40,
                    sentence=f"bypassed, as planned: {said}",
                ),
            ),
        )
    unknown = (
        f"; {words.ratio(held.unknown_ratio, 1)} of the fleet's bytes are in bins that it does "
        "not know"
        if held.unknown_ratio > limit
        else ""
    )
    return inconclusive(
        id="not-bypassed",
        weight=88,
        sentence=f"the run was to pass the firewall by (device.path=bypass), and {said}, more "
        f"than the {words.ratio(limit, 1)} allowed{unknown}: it is no reference",
        next_step="take the firewall out of the route, or launch without device.path=bypass",
    )


BYPASS: Final = Check(
    id="bypass",
    stage=Stage.EVIDENCE,
    question="Did the traffic of a reference run (device.path=bypass) avoid the device?",
    formula="(counted - idle) / fleet bytes + h + share of unknown bins <= "
    "objective.residual_max_ratio",
    reads="the device counter, with its idle level before and after the bursts",
    when_absent="inconclusive",
    findings=("idle-unknown", "bypassed", "not-bypassed"),
    evaluate=_evaluate,
)
