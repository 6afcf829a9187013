"""Search for the highest rate that meets the limits, with MLRsearch from FD.io.

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

For connections, the loss is the share of attempts that were not complete. A search over new or held
connections is limited by the generator if the clients did not make all attempts, or if a run found
its bottleneck at the hosts. A busy client makes attempts late and then several at once. A device
can reject these at a mean rate that it could carry. If this can explain the loss, the trial is
repeated. If all repeats are late too, the failure counts, but as not certain.

A trial that does not meet another limit is counted with a loss just above the limit. A trial that
proves nothing (coverage below the minimum, no run, load not offered) is counted as fully lost.
Missing data can therefore never increase the answer.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from broadside.coordinator.core.comparison.sequential import Decision, loss_decision
from broadside.coordinator.core.measure.grid.align import CELL_FULL_RATIO
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BottleneckName
from broadside.coordinator.studies.study import (
    FailingReason,
    Search,
    SearchLoad,
    SearchResult,
    Sequential,
    TrialResult,
)
from broadside.exchange.messages import Protocol

_FOREVER_S: Final = 1e9
# Resolution of a loss ratio when it is passed as two counts.
_COUNTS: Final = 1_000_000_000
_OF_GENERATOR: Final = (
    BottleneckName.CLIENT_CPU,
    BottleneckName.SERVER_CPU,
    BottleneckName.CLIENT_NIC,
    BottleneckName.SERVER_NIC,
    BottleneckName.WINDOW,
    BottleneckName.OFFERED_LOAD,
)
_OF_CONNECTION_HOSTS: Final = (
    BottleneckName.GENERATOR,
    BottleneckName.CLIENT_CPU,
    BottleneckName.SERVER_CPU,
    BottleneckName.SERVER_BACKLOG,
)
# Ratio of segments that need to be sent again. A stream with segments of 1,448 bytes can then carry
# at most 45 Mbit/s over 10 ms (Mathis et al. 1997).
_HOLDS_BACK_RATIO: Final = 1e-3
# Delay from which a device can notice attempts that were made at once.
_LATE_S: Final = 0.05
# Trials at one rate while late attempts can explain the loss.
_LATE_TRIALS_MAX_COUNT: Final = 3


class _NextOffer(Exception):
    """Request for a trial at a load that has no result yet."""

    def __init__(self, load: float) -> None:
        self.load = load


@dataclass(frozen=True, slots=True)
class _OfferedTrial:
    """One trial of a search, with the load at real scale that it offered."""

    question: Search
    spec: RunSpec
    result: TrialResult
    offered: float
    # Mean loss of all trials at this rate, if there are several.
    mean_loss_ratio: float | None = None
    # False if they were not enough for a certain decision.
    is_certain: bool = True

    @property
    def is_udp(self) -> bool:
        return self.spec.traffic.protocol is Protocol.UDP

    @property
    def is_connections(self) -> bool:
        return self.question.load is not SearchLoad.BITS

    @property
    def is_short(self) -> bool:
        """True if the senders were slower than the offered rate."""
        if self.is_connections:
            made = self.result.connections_attempted_ratio
            return made is not None and made < 1 - self.question.precision_ratio
        sent = self.result.sent_bits_per_second
        return sent is not None and sent < self.offered * (1 - self.question.precision_ratio)

    @property
    def is_late(self) -> bool:
        """True if late attempts can explain why the trial failed.

        A stall in each second, as long as the longest one, is the worst case. Attempts to hold are
        not limited by their rate.
        """
        late_s = self.result.attempt_delay_max_s or 0.0
        if self.question.load is not SearchLoad.CONNECTIONS or late_s <= _LATE_S:
            return False
        excess = (self.lost_ratio or 0.0) - self.question.shortfall_max_ratio
        return self.is_measured and 0 < excess <= late_s

    @property
    def is_generator_limited(self) -> bool:
        """True if the senders did not offer the load for a reason on their own side.

        UDP senders do not react to the path, but TCP senders do. For TCP, a low rate is the fault
        of the generator only in one case. The run needs to have found its bottleneck there, and the
        path must not drop enough to slow TCP down.
        """
        if self.is_connections:
            # All attempts of the offered load can be complete on a busy host.
            lost = 1 - (self.result.success_ratio or 0.0)
            at_host = self.result.bottleneck in _OF_CONNECTION_HOSTS
            at_host = at_host or self.is_late
            # What the device drops of fewer attempts, it also drops of more.
            at_device = self.result.bottleneck is BottleneckName.FIREWALL
            is_lossy = lost > self.question.shortfall_max_ratio
            return (is_lossy and at_host) or (self.is_short and not (is_lossy and at_device))
        retransmits = self.result.retransmit_ratio or 0.0
        at_host = self.result.bottleneck in _OF_GENERATOR and retransmits < _HOLDS_BACK_RATIO
        return self.is_short and (self.is_udp or at_host)

    @property
    def lost_ratio(self) -> float | None:
        """Lost ratio as measured, or None if nothing was received."""
        result = self.result
        if self.is_connections:
            return None if result.success_ratio is None else 1 - result.success_ratio
        received, sent = result.received_bits_per_second, result.sent_bits_per_second
        if received is None:
            return None
        counted = result.loss_ratio if self.is_udp else result.retransmit_ratio
        is_path_limited = self.is_short and not self.is_generator_limited
        if not sent or is_path_limited:
            return min(1.0, max(0.0, 1 - received / self.offered, counted or 0.0))
        short = 1 - received / sent
        if counted is None:
            return min(1.0, max(0.0, short))
        # The two ends can start their seconds at different times, and data in flight is not lost.
        edges_s = 2 * (1 - CELL_FULL_RATIO) + (result.rtt_mean_s or 0.0)
        return min(1.0, max(counted, short - edges_s / self.spec.burst_s))

    @property
    def is_measured(self) -> bool:
        floor = self.spec.objective.coverage_floor_ratio
        return self.lost_ratio is not None and self.result.is_complete(floor)

    @property
    def values(self) -> Sequence[tuple[float, float | None]]:
        """Each limit other than loss, with the value."""
        residual = self.result.residual_ratio
        limits = (
            (self.question.rtt_mean_max_s, self.result.rtt_mean_s),
            (self.question.residual_max_ratio, None if residual is None else abs(residual)),
        )
        return [(limit, value) for limit, value in limits if limit is not None]

    @property
    def counted_loss_ratio(self) -> float:
        """Part of the sent data that is counted as lost, 0 to 1."""
        if self.mean_loss_ratio is not None:
            return self.mean_loss_ratio
        lost, most = self.lost_ratio, self.question.shortfall_max_ratio
        if lost is None or not self.is_measured or self.is_generator_limited:
            return 1.0
        # Round up, as the library will see it. One datagram in a billion is a loss.
        lost = math.ceil(lost * _COUNTS) / _COUNTS
        # Zero loss needs a count of datagrams. An unknown value does not meet a limit.
        is_exact = not self.is_udp or most > 0 or self.result.loss_ratio is not None
        if is_exact and all(value is not None and value <= limit for limit, value in self.values):
            return lost
        return max(lost, min(1.0, most * 1.01 + 1e-6))

    @property
    def reason(self) -> FailingReason:
        """Reason why the trial did not meet the limits."""
        most = self.question.shortfall_max_ratio
        if not self.is_measured:
            return FailingReason.UNMEASURED
        if self.is_generator_limited:
            return FailingReason.GENERATOR
        is_broken = any(value is not None and value > limit for limit, value in self.values)
        is_broken = is_broken or (self.lost_ratio or 0.0) > most
        return FailingReason.BROKE if is_broken else FailingReason.UNKNOWN


class _Replay:
    """Measurer that answers from stored results, in order."""

    def __init__(
        self,
        question: Search,
        spec: RunSpec,
        results: Sequence[TrialResult],
        sequential: Sequential | None,
    ) -> None:
        self._sequential = sequential
        self._question = question
        self._spec = spec
        self._left = list(results)
        self.trials: list[_OfferedTrial] = []

    def measure(self, intended_duration: float, intended_load: float) -> Any:
        """Implement ``AbstractMeasurer`` of the library.

        Args:
            intended_duration: Duration in seconds, which is returned unchanged.
            intended_load: Load at real scale.

        Raises:
            _NextOffer: There is no further result.
        """
        from MLRsearch.trial_measurement import MeasurementResult

        if not self._left:
            raise _NextOffer(intended_load)
        trial = self._trial(intended_load)
        self.trials.append(trial)
        return MeasurementResult(
            intended_duration=intended_duration,
            intended_load=intended_load,
            offered_count=_COUNTS,
            loss_count=round(_COUNTS * trial.counted_loss_ratio),
        )

    def _trial(self, offered: float) -> _OfferedTrial:
        """Return the next trial, or the trials at this rate together if the study is sequential.

        Raises:
            _NextOffer: The loss at this rate is not certain yet.
        """
        trials = [_OfferedTrial(self._question, self._spec, self._left.pop(0), offered)]
        if self._sequential is None:
            return self._without_delays(trials[0])
        most = self._question.shortfall_max_ratio
        while True:
            losses = [trial.counted_loss_ratio for trial in trials]
            decision = loss_decision(losses, most)
            if decision is not Decision.OPEN or len(trials) >= self._sequential.rounds_max_count:
                break
            if not self._left:
                raise _NextOffer(offered)
            result = self._left.pop(0)
            trials.append(_OfferedTrial(self._question, self._spec, result, offered))
        mean = sum(losses) / len(losses)
        # The reason of a failure is that of the worst trial.
        shown = trials[losses.index(max(losses))] if mean > most else trials[-1]
        return replace(shown, mean_loss_ratio=mean, is_certain=decision is not Decision.OPEN)

    def _without_delays(self, trial: _OfferedTrial) -> _OfferedTrial:
        """Return the trial, or the first repeat whose failure is not due to late attempts.

        Raises:
            _NextOffer: There is no such repeat yet.
        """
        for _ in range(1, _LATE_TRIALS_MAX_COUNT):
            if not trial.is_late:
                return trial
            if not self._left:
                raise _NextOffer(trial.offered)
            trial = replace(trial, result=self._left.pop(0))
        return replace(trial, is_certain=not trial.is_late)


def loss_ratio(question: Search, spec: RunSpec, result: TrialResult, offered: float) -> float:
    """Return the part of the sent data that is counted as lost, 0 to 1.

    Args:
        question: The search.
        spec: Run specification.
        result: One trial.
        offered: Requested load at real scale.
    """
    return _OfferedTrial(question, spec, result, offered).counted_loss_ratio


def next_offer(
    question: Search,
    spec: RunSpec,
    results: Sequence[TrialResult],
    sequential: Sequential | None = None,
) -> float | None:
    """Return the load for the next trial, or None if the search has finished.

    Args:
        question: The search.
        spec: Run specification.
        results: Results of all trials in order.
        sequential: Repeats each rate until its loss is certain. None uses one trial for each.

    Returns:
        Load at real scale.
    """
    if len(results) >= question.trials_max_count:
        return None
    try:
        _search(question, _Replay(question, spec, results, sequential))
    except _NextOffer as offer:
        return offer.load
    return None


def search_answer(
    question: Search,
    spec: RunSpec,
    results: Sequence[TrialResult],
    sequential: Sequential | None = None,
) -> SearchResult:
    """Return the answer of the search from the trials so far.

    Args:
        question: The search.
        spec: Run specification.
        results: Results of all trials in order.
        sequential: See :func:`next_offer`. None uses a fixed number of trials.
    """
    replay = _Replay(question, spec, results, sequential)
    with contextlib.suppress(_NextOffer):
        _search(question, replay)
    most = question.shortfall_max_ratio
    failed = [trial for trial in replay.trials if trial.counted_loss_ratio > most]
    # If we were able to use a load above one that failed, this is no proof, because the lower
    # failure will still be valid.
    failing = min((trial.offered for trial in failed), default=None)
    good = [
        trial
        for trial in replay.trials
        if trial.counted_loss_ratio <= most and (failing is None or trial.offered < failing)
    ]
    best = max(good, key=lambda trial: (trial.offered, trial.result.index), default=None)
    lowest = [trial for trial in failed if trial.offered == failing]
    reasons = {trial.reason for trial in lowest}
    is_bits = question.load is SearchLoad.BITS
    unit = "bits_per_second" if is_bits else "connections_count"
    loads = {
        f"highest_{unit}": None if best is None else best.offered,
        f"lowest_failing_{unit}": failing,
        f"open_{unit}": tuple(t.offered for t in replay.trials if not t.is_certain),
    }
    return SearchResult(
        **loads,
        highest_sent_bits_per_second=(
            best.result.sent_bits_per_second if best is not None and is_bits else None
        ),
        lowest_failing_why=next((reason for reason in FailingReason if reason in reasons), None),
        lowest_failing_bottleneck=lowest[-1].result.bottleneck if lowest and not is_bits else None,
        width_ratio=None if best is None or failing is None else 1 - best.offered / failing,
        trial_index=None if best is None else best.result.index,
    )


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
    # Both ends are compared with the other one when they are set.
    config.max_load = math.inf
    config.min_load = question.lowest
    config.max_load = question.highest
    config.search_duration_max = _FOREVER_S
    config.warmup_duration = 0.0
    MultipleLossRatioSearch(config).search(measurer, debug=lambda _: None)
