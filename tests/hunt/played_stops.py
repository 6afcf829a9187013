"""Plays the early stop of simulated bursts, with the decision of the engine.

The engine reads the rows that would have been reported at each check. When it stops the burst,
the generator makes the records of a burst that ended then.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from broadside.coordinator.core.live.certainty_now import find_certainty, is_due, stop_at
from broadside.coordinator.core.measure.records.columns import NO_HOST, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.summary import BurstSummary, RunSummary, Verdict
from tests.hunt.adapter import evidence_of
from tests.worlds import World, stop

# Time until a row has been reported, and time between two checks.
REPORT_S: Final = 4.0
CHECK_S: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Decision of the engine to end a burst.

    Attributes:
        second: Time of the stop after the planned start.
        verdict: Verdict of the rate at the time of the decision.
    """

    second: int
    verdict: Verdict


def find_stop(world: World) -> Stop | None:
    """Return the stop of a burst, or `None` if it has its planned length.

    Args:
        world: World with one planned burst that may end when certain.
    """
    made = evidence_of(world.recording)
    plan, burst = made.plan, made.plan.bursts[0]
    for second in range(0, burst.duration_s, CHECK_S):
        now = burst.planned_start_at + timedelta(seconds=second)
        if not is_due(plan, burst, now):
            continue
        decision = find_certainty(plan, _reported(made.bursts[0], second - REPORT_S), now)
        if decision is not None:
            at_s = (stop_at(burst, now) - burst.planned_start_at).total_seconds()
            return Stop(second=round(at_s), verdict=decision.verdict)
    return None


def play(world: World) -> tuple[World, Stop | None]:
    """Return the world as it is with early stops, and the stop if there was one."""
    if not world.recording.plan.ends_when_certain:
        return world, None
    decision = find_stop(world)
    return (world, None) if decision is None else (stop(world, float(decision.second)), decision)


def _reported(evidence: BurstEvidence, second: float) -> BurstEvidence:
    """Return the evidence of a running burst, with the rows that end before this second."""
    last_s = evidence.burst.planned_start_at.timestamp() + second

    def known(track: IntervalColumns) -> IntervalColumns:
        return track.rows(track.first_data_at_s + track.end_s <= last_s)

    def cut(pair: PairEvidence) -> PairEvidence:
        claim, test = pair.claim, pair.server_test
        if claim is not None and pair.report is not None and pair.report.engine is not None:
            claim = claim.model_copy(update={"mss_bytes": pair.report.engine.mss_bytes})
        if test is not None:
            test = test.model_copy(update={"clock_after": None})
        return replace(
            pair,
            claim=claim,
            report=None,
            server_test=test,
            client_tracks=tuple(map(known, pair.client_tracks)),
            server_tracks=tuple(map(known, pair.server_tracks)),
            client_host=NO_HOST,
            server_host=NO_HOST,
        )

    return replace(evidence, pairs=tuple(map(cut, evidence.pairs)))


def contradictions(world: World, decision: Stop | None, summary: RunSummary) -> Iterator[str]:
    """Yield what the summary of a burst that may end when certain does not state correctly.

    Args:
        world: World after the stop.
        decision: The stop, or `None`.
        summary: The engine's summary.
    """
    if not world.recording.plan.ends_when_certain:
        return
    burst: BurstSummary = summary.bursts[0]
    stated = {finding.id: finding.sentence for finding in burst.findings}
    if decision is None:
        if "not-stopped-early" not in stated or burst.early_end is not None:
            yield "the summary does not state that the burst had its planned length"
        return
    text = f"Stopped at second {decision.second} of at most {round(world.spec.planned_s)}"
    if text not in stated.get("stopped-early", ""):
        yield f"the summary does not state {text!r}"
    if decision.verdict is Verdict.FAIL and summary.verdict is Verdict.PASS:
        yield "a fail at the stop became a pass"
    on_time = [pair for pair in burst.pairs if pair.completeness_ratio < 1]
    if on_time and not world.spec.events:
        yield f"{len(on_time)} pairs are incomplete after the stop"
