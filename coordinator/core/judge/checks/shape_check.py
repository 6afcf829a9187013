"""Check that every long part of the window reached the limit, not only the mean."""

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
from broadside.coordinator.core.measure.resolution import READINGS_A_PART
from broadside.coordinator.core.measure.steady import stretch_s
from broadside.coordinator.core.summary import BurstSummary, Finding, Verdict, Window, note, problem

# Because of noise, a part of the window may be below the limit by this ratio.
SLOW_RATIO: Final = 0.015
# This number of standard errors is added to the rate from device bins. Receivers and senders count
# their bytes exactly, so nothing is added for them.
SLOW_SIGMAS: Final = 3.0


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
    for from_s, length_s, rate in _slow_parts(burst, window):
        if rate * factor < limit * (1 - SLOW_RATIO):
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
    for other in (_slow_by_device(given, limit), _slow_by_senders(given, limit)):
        if other is not None:
            return Result(Verdict.INCONCLUSIVE, (*cut, other))
    if (open_shape := _not_assessed(given, window)) is not None:
        verdict = Verdict.INCONCLUSIVE if given.clocks_promised else Verdict.PASS
        return Result(verdict, (*cut, open_shape))
    proven = window.slowest_proven_bits_per_second
    if proven is not None and proven * factor < limit * (1 - SLOW_RATIO):
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


def _slow_by_device(given: BurstInput, limit: float) -> Finding | None:
    """Return a finding if the device counted less than the limit in a part of the window."""
    held, spec = given.burst.reconciliation, given.spec
    if held is None or held.slowest_bits_per_second is None:
        return None
    factor = factor_of(spec, given.burst)
    noise = SLOW_SIGMAS * (held.slowest_noise_bits_per_second or 0.0)
    most = held.slowest_bits_per_second * factor
    if most + noise * factor >= limit * (1 - SLOW_RATIO):
        return None
    return problem(
        "slow-stretch-device",
        84,
        f"for {held.slowest_s} s the device {held.source} counted at most {words.rate(most)} at "
        f"the {spec.objective.layer} layer, less than the {words.rate(limit)} that is needed; the "
        "receivers' records do not show it",
        "look at what the device and the hosts did at that time",
    )


def _slow_by_senders(given: BurstInput, limit: float) -> Finding | None:
    """Return a finding if the fleet sent less than the limit in a part of the window."""
    slowest = given.slowest_sent
    if slowest is None:
        return None
    factor = factor_of(given.spec, given.burst)
    if slowest.mean * factor >= limit * (1 - SLOW_RATIO):
        return None
    return problem(
        "slow-stretch-senders",
        84,
        f"for {slowest.length_s} s, from {slowest.at} s into the window, the fleet sent "
        f"{words.rate(slowest.mean * factor)} at the {given.spec.objective.layer} layer, less than "
        f"the {words.rate(limit)} that is needed; the receivers' records do not show it",
        "look at what the device and the hosts did at that time",
    )


def _not_assessed(given: BurstInput, window: Window) -> Finding | None:
    """Return a finding if no source shows how the rate changed within the window."""
    held = given.burst.reconciliation
    by_device = held is not None and held.slowest_bits_per_second is not None
    if window.reading_s is None or window.slowest_bits_per_second is not None or by_device:
        return None
    sentence = (
        f"the rate was not assessed below {window.reading_s:g} s: receivers recorded means of "
        "that length, and neither senders nor the device recorded shorter ones, so a part of the "
        "window below the limit would not show"
    )
    if not given.clocks_promised:
        return note(id="shape-not-assessed", weight=30, sentence=sentence)
    bin_s = stretch_s(window.window_s) // READINGS_A_PART
    return problem(
        "shape-not-assessed",
        83,
        sentence,
        f"set traffic.interval_s to 1, or read the device counter in bins of {bin_s} s or less",
    )


def _slow_parts(burst: BurstSummary, window: Window) -> Iterator[tuple[int, int, float]]:
    """Yield the parts of the window to compare with the limit.

    Each part has its start in the window (s), its length (s) and its rate (bit/s of payload).
    """
    slowest, from_s, length_s = (
        window.slowest_bits_per_second,
        window.slowest_from_s,
        window.slowest_s,
    )
    if slowest is not None and from_s is not None and length_s is not None:
        yield from_s, length_s, slowest
    if burst.cliff is not None:
        at_s = round((burst.cliff.at - window.start_at).total_seconds())
        after = burst.cliff.after_bits_per_second
        yield at_s, window.window_s - at_s, after


SHAPE: Final = Check(
    id="shape",
    stage=Stage.EVIDENCE,
    question="Did every fifth of the window (at least 5 s) reach the limit?",
    formula="lowest mean of a fifth of the window >= limit * (1 - 0.015); for device bins, 3 "
    "standard errors are added to the mean first. The seconds after a collapse are checked in the "
    "same way",
    reads="receivers' seconds (if one row covers more than a second, those of the TCP senders, "
    "else of their hosts' interfaces), senders' seconds, and the device counter's bins",
    when_absent="inconclusive if all readings are longer than half of that part (a note in an "
    "import of means); the check is skipped without a window",
    findings=(
        "slow-stretch",
        "slow-stretch-device",
        "slow-stretch-senders",
        "shape-not-assessed",
        "stretch-unproven",
        "ramp-cut",
    ),
    evaluate=_evaluate,
)
