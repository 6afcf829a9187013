"""Check: did every lasting part of the window reach the target?"""

from collections.abc import Iterator
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    Check,
    Result,
    Stage,
)
from broadside.coordinator.core.judge.rates import factor_of, limit_of
from broadside.coordinator.core.summary import BurstSummary, Finding, Verdict, Window, note, problem

SLOW_RATIO: Final = 0.015  # of the limit: what a part of a window may fall short as noise does
SLOW_SIGMAS: Final = 3.0  # and of its own noise


def _evaluate(given: BurstInput) -> Result:
    spec, burst = given.spec, given.burst
    limit, window = limit_of(spec), burst.window
    if window is None:
        return NOTHING
    cut: tuple[Finding, ...] = ()
    if window.ramp_s and window.ramp_bits_per_second is not None:
        cut = (
            note(
                id="ramp-cut",
                weight=12,
                sentence=f"the first {window.ramp_s} of {window.common_s} s that all pairs share "
                f"were cut as ramp: {words.rate(window.ramp_bits_per_second)} of payload, before "
                "the rate settles",
            ),
        )
    if limit is None:
        return Result(Verdict.PASS, cut)
    factor = factor_of(spec, burst)
    for from_s, length_s, rate, high in _slow_parts(burst, window):
        if high * factor < limit * (1 - SLOW_RATIO):
            slow = problem(
                "slow-stretch",
                84,
                f"for {length_s} s, from {from_s} s into the window, the fleet received "
                f"{words.rate(rate * factor)} at the {spec.objective.layer} layer, less than "
                f"the {words.rate(limit)} that is needed: whatever the mean is, that does not "
                "last",
                "look at what the device and the hosts did at that time",
            )
            return Result(Verdict.INCONCLUSIVE, (*cut, slow))
    proven = window.slowest_proven_bits_per_second
    noise = SLOW_SIGMAS * (window.slowest_noise_bits_per_second or 0.0)
    if proven is not None and (proven + noise) * factor < limit * (1 - SLOW_RATIO):
        unproven = problem(
            "stretch-unproven",
            79,
            f"rows are missing, and over {window.slowest_s} s those of receivers come to "
            f"{words.rate(proven * factor)} at the {spec.objective.layer} layer, less than "
            f"the {words.rate(limit)} that is needed: nothing shows that the part held it",
            "run again with every pair",
        )
        return Result(Verdict.INCONCLUSIVE, (*cut, unproven))
    return Result(Verdict.PASS, cut)


def _slow_parts(burst: BurstSummary, window: Window) -> Iterator[tuple[int, int, float, float]]:
    """The parts that are held against the limit: from and for how many s of the window, their
    payload bit/s, and what that may be at most. What is left after a fall is as sure as the fall.
    """
    slowest, from_s, length_s = (
        window.slowest_bits_per_second,
        window.slowest_from_s,
        window.slowest_s,
    )
    if slowest is not None and from_s is not None and length_s is not None:
        noise = SLOW_SIGMAS * (window.slowest_noise_bits_per_second or 0.0)
        yield from_s, length_s, slowest, slowest + noise
    if burst.cliff is not None:
        at_s = round((burst.cliff.at - window.start_at).total_seconds())
        after = burst.cliff.after_bits_per_second
        yield at_s, window.window_s - at_s, after, after


SHAPE: Final = Check(
    id="shape",
    stage=Stage.EVIDENCE,
    question="Did every part of the window that lasts reach the target?",
    formula="the lowest mean of a fifth of the window, plus 3 of its own standard errors, "
    ">= limit x (1 - 0.015); the same of the seconds after a collapse",
    reads="receivers' seconds over the common window",
    when_absent="nothing is concluded where there is no window; the rate check reports that",
    findings=("slow-stretch", "stretch-unproven", "ramp-cut"),
    evaluate=_evaluate,
)
