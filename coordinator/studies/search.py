"""The search for the highest rate that keeps the goals, by FD.io's MLRsearch.

The library (draft-ietf-bmwg-mlrsearch) asks for one measurement after another and keeps its state
in memory. Here every step runs it anew and answers its questions from the stored results, which
are in the order it asked; the first question without an answer is the next trial. It is
deterministic, so the trials of a study whose coordinator died go on as they would have.

Loss is what was sent and did not arrive, over what was sent (RFC 2544, section 26.3): of UDP, the
datagrams that receivers missed. TCP sends again what the path drops, so that no payload is lost and
a zero-loss rate in the sense of RFC 2544 does not exist: what was sent again counts as lost (as in
the goodput of RFC 2647, section 3.17), and so does the load that TCP did not send because it backed
off.

Senders may pace a little below the rate that a trial asks for. Within the search's own precision
that is the rate of the trial, and the answer states what was sent. Senders that are further below
did not offer the load: the trial says nothing about the device, and is reported as limited by the
generator, unless TCP was held back by the path.

A trial that breaks another goal counts as one whose loss is just over the goal; one that proved
nothing (coverage below the floor, no run, load not offered) counts as lost entirely, so that
missing data never raises the answer.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from broadside.coordinator.core.measure.align import CELL_FULL_RATIO
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import LimiterName
from broadside.coordinator.studies.study import Found, Search, TrialResult, Why
from broadside.exchange.messages import Protocol

_FOREVER_S: Final = 1e9
_COUNTS: Final = 1_000_000_000  # resolution of a loss ratio that is handed over as counts
_OF_GENERATOR: Final = (
    LimiterName.CLIENT_CPU,
    LimiterName.SERVER_CPU,
    LimiterName.CLIENT_NIC,
    LimiterName.SERVER_NIC,
    LimiterName.WINDOW,
    LimiterName.OFFERED_LOAD,
)
# Of segments sent again: a stream of 1,448-byte segments carries at most 45 Mbit/s over 10 ms
# (Mathis et al. 1997).
_HOLDS_BACK_RATIO: Final = 1e-3


class _NextOffer(Exception):
    """The search needs a trial at a load that nothing was measured at."""

    def __init__(self, bits_per_second: float) -> None:
        self.bits_per_second = bits_per_second


class _Replay:
    """Answers from stored results, in order."""

    def __init__(self, question: Search, spec: RunSpec, results: Sequence[TrialResult]) -> None:
        self._question = question
        self._spec = spec
        self._left = list(results)
        self.offers: list[float] = []

    def measure(self, intended_duration: float, intended_load: float) -> Any:
        """What the library's ``AbstractMeasurer`` promises."""
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
    """Return the share of what was sent that counts as lost, 0 to 1.

    Args:
        question: The search.
        spec: The run that its trials vary.
        result: One trial.
        offered_bits_per_second: Payload that the trial asked for, at real scale.
    """
    lost = _lost_ratio(question, spec, result, offered_bits_per_second)
    if (
        lost is None
        or not result.is_whole(spec.objective.coverage_floor_ratio)
        or is_generator_limited(question, spec, result, offered_bits_per_second)
    ):
        return 1.0
    # Rounded up, as the library will see it: one datagram of a billion is a loss.
    lost = math.ceil(lost * _COUNTS) / _COUNTS
    if keeps_goals(question, result) and _is_loss_known(question, spec, result):
        return lost
    return max(lost, min(1.0, question.shortfall_max_ratio * 1.01 + 1e-6))


def is_generator_limited(
    question: Search, spec: RunSpec, result: TrialResult, offered_bits_per_second: float
) -> bool:
    """Return whether the senders did not offer the load, for a reason on their own side.

    UDP senders do not react to the path. TCP senders do, so that a low rate is the generator's only
    where the run found its limit there, and the path did not drop enough to hold TCP back.
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
    """Return the share that was lost; None where nothing was received."""
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
    # Ends read off their seconds a little apart, and what is in flight is not lost.
    edges_s = 2 * (1 - CELL_FULL_RATIO) + (result.rtt_mean_s or 0.0)
    return min(1.0, max(counted, short - edges_s / spec.burst_s))


def _is_loss_known(question: Search, spec: RunSpec, result: TrialResult) -> bool:
    """Return whether loss is known as finely as the goal needs: zero needs a count of datagrams."""
    udp = spec.traffic.protocol is Protocol.UDP
    return not udp or question.shortfall_max_ratio > 0 or result.loss_ratio is not None


def _is_held_back(
    question: Search, spec: RunSpec, result: TrialResult, offered_bits_per_second: float
) -> bool:
    """Return whether TCP sent less than it was asked to, because the path held it back."""
    sent = result.sent_bits_per_second
    return (
        sent is not None
        and sent < offered_bits_per_second * (1 - question.precision_ratio)
        and not is_generator_limited(question, spec, result, offered_bits_per_second)
    )


def keeps_goals(question: Search, result: TrialResult) -> bool:
    """Whether a trial keeps the goals beside the shortfall; an unknown figure does not."""
    return all(value is not None and value <= limit for limit, value in _held(question, result))


def _held(question: Search, result: TrialResult) -> Iterator[tuple[float, float | None]]:
    """Each goal beside the shortfall, with the trial's figure."""
    for limit, value in (
        (question.rtt_mean_max_s, result.rtt_mean_s),
        (question.residual_max_ratio, _size(result.residual_ratio)),
    ):
        if limit is not None:
            yield limit, value


def _size(value: float | None) -> float | None:
    return None if value is None else abs(value)


def next_offer(question: Search, spec: RunSpec, results: Sequence[TrialResult]) -> float | None:
    """The rate of the next trial, bit/s of payload at real scale; None: the search is over."""
    if len(results) >= question.trials_max_count:
        return None
    try:
        _search(question, _Replay(question, spec, results))
    except _NextOffer as offer:
        return offer.bits_per_second
    return None


def found(question: Search, spec: RunSpec, results: Sequence[TrialResult]) -> Found:
    """What the trials say of the highest rate, as far as they went."""
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
    # A load above one that failed proves nothing, even if it held: the lower failure stands.
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
    """Return why a trial did not keep the goals."""
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
    """Run the library to its end, or to the first question that has no answer.

    It is loaded here: it walks the stack and every loaded module as it is, which took a third of
    each coordinator's start.
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
