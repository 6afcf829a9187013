"""Search for the highest rate that meets the goals, with MLRsearch from FD.io.

The library (draft-ietf-bmwg-mlrsearch) requests single measurements, one after another, and stores
the state in memory. Here it is started again for each step, and the requests are answered from the
stored results in the same order. The first request that has no result is the next trial. The search
is deterministic, so that a different coordinator can continue a study in the same way.

Loss is the ratio of sent data that did not arrive to all sent data (RFC 2544, section 26.3). For
UDP, it is the datagrams that receivers missed. TCP will send lost data again, so that no payload is
lost and there is no zero-loss rate as in RFC 2544. Data that had to be sent again is therefore
counted as lost (as for the goodput in RFC 2647, section 3.17). The load that TCP did not send
because of congestion control is counted as lost too.

Senders can be slightly slower than the requested rate. Within the precision of the search, this is
used as the rate of the trial, and the answer contains the rate that was sent. If senders are slower
than that, they did not offer the load. The trial then has no information on the device, and is
reported as limited by the generator, unless TCP was limited by the path.

A trial that does not meet another goal is counted with a loss just above the goal. A trial that
proves nothing (coverage below the minimum, no run, load not offered) is counted as fully lost.
Missing data can therefore never increase the answer.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from broadside.coordinator.core.measure.grid.align import CELL_FULL_RATIO
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import LimiterName
from broadside.coordinator.studies.study import Found, Search, TrialResult, Why
from broadside.exchange.messages import Protocol

_FOREVER_S: Final = 1e9
# Resolution of a loss ratio when it is passed as two counts.
_COUNTS: Final = 1_000_000_000
_OF_GENERATOR: Final = (
    LimiterName.CLIENT_CPU,
    LimiterName.SERVER_CPU,
    LimiterName.CLIENT_NIC,
    LimiterName.SERVER_NIC,
    LimiterName.WINDOW,
    LimiterName.OFFERED_LOAD,
)
# Ratio of segments that need to be sent again. A stream with segments of 1,448 bytes can then carry
# at most 45 Mbit/s over 10 ms (Mathis et al. 1997).
_HOLDS_BACK_RATIO: Final = 1e-3


class _NextOffer(Exception):
    """Request for a trial at a load that has no result yet."""

    def __init__(self, bits_per_second: float) -> None:
        self.bits_per_second = bits_per_second


class _Replay:
    """Measurer that answers from stored results, in order."""

    def __init__(self, question: Search, spec: RunSpec, results: Sequence[TrialResult]) -> None:
        self._question = question
        self._spec = spec
        self._left = list(results)
        self.offers: list[float] = []

    def measure(self, intended_duration: float, intended_load: float) -> Any:
        """Implement ``AbstractMeasurer`` of the library.

        Args:
            intended_duration: Duration in seconds, which is returned unchanged.
            intended_load: Load in bit/s of payload at real scale.

        Raises:
            _NextOffer: There is no further result.
        """
        from MLRsearch.trial_measurement import MeasurementResult

        self.offers.append(intended_load)
        if not self._left:
            raise _NextOffer(intended_load)
        loss = loss_ratio(self._question, self._spec, self._left.pop(0), intended_load)
        return MeasurementResult(
            intended_duration=intended_duration,
            intended_load=intended_load,
            offered_count=_COUNTS,
            loss_count=round(_COUNTS * loss),
        )


def loss_ratio(
    question: Search, spec: RunSpec, result: TrialResult, offered_bits_per_second: float
) -> float:
    """Return the part of the sent data that is counted as lost, 0 to 1.

    Args:
        question: The search.
        spec: Run specification.
        result: One trial.
        offered_bits_per_second: Requested payload rate at real scale.
    """
    lost = _lost_ratio(question, spec, result, offered_bits_per_second)
    if (
        lost is None
        or not result.is_whole(spec.objective.coverage_floor_ratio)
        or is_generator_limited(question, spec, result, offered_bits_per_second)
    ):
        return 1.0
    # Round up, as the library will see it. One datagram in a billion is a loss.
    lost = math.ceil(lost * _COUNTS) / _COUNTS
    if keeps_goals(question, result) and _is_loss_known(question, spec, result):
        return lost
    return max(lost, min(1.0, question.shortfall_max_ratio * 1.01 + 1e-6))


def is_generator_limited(
    question: Search, spec: RunSpec, result: TrialResult, offered_bits_per_second: float
) -> bool:
    """Return True if the senders did not offer the load for a reason on their own side.

    UDP senders do not react to the path, but TCP senders do. For TCP, a low rate is the fault of
    the generator only in one case. The run must have found its bottleneck there, and the path must
    not drop enough to slow TCP down.

    Args:
        question: The search.
        spec: Run specification.
        result: One trial.
        offered_bits_per_second: Requested payload rate at real scale.
    """
    sent = result.sent_bits_per_second
    if sent is None or sent >= offered_bits_per_second * (1 - question.precision_ratio):
        return False
    if spec.traffic.protocol is Protocol.UDP:
        return True
    return result.limiter in _OF_GENERATOR and (result.retransmit_ratio or 0.0) < _HOLDS_BACK_RATIO


def _lost_ratio(
    question: Search, spec: RunSpec, result: TrialResult, offered_bits_per_second: float
) -> float | None:
    """Return the lost ratio, or None if nothing was received."""
    sent, received = result.sent_bits_per_second, result.received_bits_per_second
    if received is None:
        return None
    if _is_held_back(question, spec, result, offered_bits_per_second):
        sent = None
    short = 1 - received / sent if sent else 1 - received / offered_bits_per_second
    udp = spec.traffic.protocol is Protocol.UDP
    counted = result.loss_ratio if udp else result.retransmit_ratio
    if counted is None or not sent:
        return min(1.0, max(0.0, short, counted or 0.0))
    # The two ends can start their seconds at different times, and data in flight is not lost.
    edges_s = 2 * (1 - CELL_FULL_RATIO) + (result.rtt_mean_s or 0.0)
    return min(1.0, max(counted, short - edges_s / spec.burst_s))


def _is_loss_known(question: Search, spec: RunSpec, result: TrialResult) -> bool:
    """Return True if the loss is precise enough. Zero loss needs a count of datagrams."""
    udp = spec.traffic.protocol is Protocol.UDP
    return not udp or question.shortfall_max_ratio > 0 or result.loss_ratio is not None


def _is_held_back(
    question: Search, spec: RunSpec, result: TrialResult, offered_bits_per_second: float
) -> bool:
    """Return True if TCP has sent less than requested because of the path."""
    sent = result.sent_bits_per_second
    return (
        sent is not None
        and sent < offered_bits_per_second * (1 - question.precision_ratio)
        and not is_generator_limited(question, spec, result, offered_bits_per_second)
    )


def keeps_goals(question: Search, result: TrialResult) -> bool:
    """Return True if a trial meets all goals other than loss. Unknown values do not meet a goal.

    Args:
        question: The search.
        result: One trial.
    """
    return all(value is not None and value <= limit for limit, value in _held(question, result))


def _held(question: Search, result: TrialResult) -> Iterator[tuple[float, float | None]]:
    """Yield the limit for each goal other than loss, with the value for the trial."""
    for limit, value in (
        (question.rtt_mean_max_s, result.rtt_mean_s),
        (question.residual_max_ratio, _size(result.residual_ratio)),
    ):
        if limit is not None:
            yield limit, value


def _size(value: float | None) -> float | None:
    return None if value is None else abs(value)


def next_offer(question: Search, spec: RunSpec, results: Sequence[TrialResult]) -> float | None:
    """Return the rate for the next trial, or None if the search has finished.

    Args:
        question: The search.
        spec: Run specification.
        results: Results of all trials in order.

    Returns:
        Payload rate in bit/s at real scale.
    """
    if len(results) >= question.trials_max_count:
        return None
    try:
        _search(question, _Replay(question, spec, results))
    except _NextOffer as offer:
        return offer.bits_per_second
    return None


def found(question: Search, spec: RunSpec, results: Sequence[TrialResult]) -> Found:
    """Return the answer of the search from the trials so far.

    Args:
        question: The search.
        spec: Run specification.
        results: Results of all trials in order.
    """
    replay = _Replay(question, spec, results)
    with contextlib.suppress(_NextOffer):
        _search(question, replay)
    held: list[tuple[float, TrialResult]] = []
    failed: list[tuple[float, TrialResult]] = []
    for offer, result in zip(replay.offers, results, strict=False):
        if loss_ratio(question, spec, result, offer) <= question.shortfall_max_ratio:
            held.append((offer, result))
        else:
            failed.append((offer, result))
    # A success at a load above one that failed is no proof, because the lower failure is still
    # valid.
    lowest_failing = min((offer for offer, _ in failed), default=None)
    whys = {_why(question, spec, one, offer) for offer, one in failed if offer == lowest_failing}
    good = [one for one in held if lowest_failing is None or one[0] < lowest_failing]
    highest, best = max(good, key=lambda one: (one[0], one[1].index), default=(None, None))
    return Found(
        highest_bits_per_second=highest,
        highest_sent_bits_per_second=None if best is None else best.sent_bits_per_second,
        lowest_failing_bits_per_second=lowest_failing,
        lowest_failing_why=next((why for why in Why if why in whys), None),
        width_ratio=(
            None
            if highest is None or lowest_failing is None
            else (lowest_failing - highest) / lowest_failing
        ),
        trial_index=None if best is None else best.index,
    )


def _why(
    question: Search, spec: RunSpec, result: TrialResult, offered_bits_per_second: float
) -> Why:
    """Return the reason why a trial did not meet the goals."""
    lost = _lost_ratio(question, spec, result, offered_bits_per_second)
    if lost is None or not result.is_whole(spec.objective.coverage_floor_ratio):
        return Why.UNMEASURED
    if is_generator_limited(question, spec, result, offered_bits_per_second):
        return Why.GENERATOR
    if lost > question.shortfall_max_ratio or any(
        value is not None and value > limit for limit, value in _held(question, result)
    ):
        return Why.BROKE
    return Why.UNKNOWN


def _search(question: Search, measurer: _Replay) -> None:
    """Run the library until it ends, or until a request has no result.

    The import is here because it is slow. It inspects the stack and all loaded modules, and would
    need a third of the start time of each coordinator.
    """
    from MLRsearch import Config, MultipleLossRatioSearch, SearchGoal

    goal = SearchGoal(
        loss_ratio=question.shortfall_max_ratio,
        exceed_ratio=0.0,
        relative_width=question.precision_ratio,
        initial_trial_duration=1.0,
        final_trial_duration=1.0,
        duration_sum=1.0,
        preceding_targets=1,
        fail_fast=False,
    )
    config = Config()
    config.goals = [goal]
    config.max_load = question.max_bits_per_second
    config.min_load = question.min_bits_per_second
    config.search_duration_max = _FOREVER_S
    config.warmup_duration = 0.0
    MultipleLossRatioSearch(config).search(measurer, debug=lambda _: None)
