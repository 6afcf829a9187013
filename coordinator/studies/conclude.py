"""Conclusion of a study from its trials, such as the knee of a sweep. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core import formatting
from broadside.coordinator.core.comparison.group_comparison import Comparison
from broadside.coordinator.core.comparison.sequential import Decision, SequentialResult
from broadside.coordinator.core.formatting import MetricUnit
from broadside.coordinator.core.measure.experiments.drill import DrillResult, ExecutedEvent
from broadside.coordinator.core.measure.experiments.scale_out import ScaleOut
from broadside.coordinator.core.metrics import ALL_METRICS, RECEIVED, MetricDefinition
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BottleneckName, DisruptionKind, RunSummary
from broadside.coordinator.runs.requests import CompareRequest, Selection
from broadside.coordinator.studies.drill_text import drilled
from broadside.coordinator.studies.leak_curve import blocked_text, inspected
from broadside.coordinator.studies.scale_out_text import scaled_out
from broadside.coordinator.studies.search import search_answer
from broadside.coordinator.studies.sequential_rounds import comparisons
from broadside.coordinator.studies.sequential_rounds import notes as sequential_notes
from broadside.coordinator.studies.study import (
    AB,
    ENGINE,
    Axis,
    CloseUp,
    Conclusion,
    DeviceLoad,
    Drill,
    FailingReason,
    Inspection,
    Knee,
    Matrix,
    Question,
    Search,
    SearchLoad,
    SearchResult,
    Staircase,
    StudySpec,
    Sweep,
    TrialResult,
    differences,
)
from broadside.coordinator.studies.trials import planned_trials
from broadside.exchange.messages import SILENT_STREAMS_MAX_COUNT, Protocol

# A knee cannot be found with fewer points.
POINTS_MIN_COUNT: Final = 4
# Rise from the first point, as a part of the maximum. A smaller rise can be noise.
RISE_MIN_RATIO: Final = 0.1
# Height above the straight line between the ends, as a part of the height of the curve.
BEND_MIN_RATIO: Final = 0.15
# Values with a larger range are used on a logarithmic scale.
LOG_FROM_RATIO: Final = 8.0
# Largest ratio of the maximum to the rate at a knee near the end.
MORE_RATIO: Final = 1.25


def is_enough(values: Sequence[float]) -> bool:
    """Return True if there are enough different values to find a knee."""
    return len(values) >= POINTS_MIN_COUNT and len(set(values)) == len(values)


def knee_index(
    values: Sequence[float], rates: Sequence[float], half_widths: Sequence[float | None] = ()
) -> int | None:
    """Return the index of the knee in a curve.

    The knee is the point with the largest distance above the chord of the normalised curve
    (Satopaa, Albrecht, Irwin, Raghavan: Finding a "Kneedle" in a Haystack, ICDCS Workshops 2011,
    section II). Values over three octaves or more are used on a logarithmic scale. This scale can
    hide a knee near the end. The linear scale is then used, if the rate does not rise much more
    after that point.

    A curve that does not rise has no knee. The rise from the first point to the maximum needs to be
    at least a tenth of the maximum, and larger than the sum of both half widths.

    Args:
        values: Values in ascending order.
        rates: One rate for each value.
        half_widths: Half widths of the 95 % intervals. None is used as 0.

    Returns:
        Index into ``values``. None if the curve has no knee.
    """
    x, y = np.asarray(values, float), np.asarray(rates, float)
    if not is_enough(values) or not np.all(np.diff(x) > 0) or not _rises(rates, half_widths):
        return None
    if x[0] <= 0 or x[-1] / x[0] < LOG_FROM_RATIO:
        return _bend(x, y)
    index = _bend(np.log2(x), y)
    if index is None and (index := _bend(x, y)) is not None and y.max() > MORE_RATIO * y[index]:
        return None
    return index


def _rises(rates: Sequence[float], half_widths: Sequence[float | None]) -> bool:
    peak = max(range(len(rates)), key=rates.__getitem__)
    rise = rates[peak] - rates[0]
    widths = (half_widths[0] or 0.0) + (half_widths[peak] or 0.0) if half_widths else 0.0
    return rise >= RISE_MIN_RATIO * rates[peak] and rise > widths


def _bend(x: NDArray[np.float64], y: NDArray[np.float64]) -> int | None:
    # We only use the curve up to the peak. If it falls after the peak, this is a cliff and not a
    # knee.
    end = int(y.argmax())
    if end == 0 or y[end] <= y[0]:
        return None
    x, y = (x - x[0]) / (x[-1] - x[0]), (y - y[0]) / (y[end] - y[0])
    above = (y - x)[: end + 1]
    index = int(above.argmax())
    return index if above[index] >= BEND_MIN_RATIO else None


_NONE_COMPLETE: Final = "no trial is complete; see the notes and the verdict of each trial"
_TOO_FEW: Final = f"at least {POINTS_MIN_COUNT} different values are needed"


def result_of(index: int, summary: RunSummary) -> TrialResult:
    """Return the result of a trial from its run summary, with rates at real scale.

    Args:
        index: Index of the trial.
        summary: Run summary.
    """
    metrics = {m.name: m for m in ALL_METRICS} | {m.short_name: m for m in ALL_METRICS}
    return TrialResult(
        index=index,
        run_id=summary.run_id,
        verdict=summary.verdict,
        bottleneck=summary.bottleneck,
        bursts_count=len(summary.bursts),
        devices=tuple(_loads(summary)),
        reset_pairs_count=_broken(summary, DisruptionKind.RESET),
        stalled_pairs_count=_broken(summary, DisruptionKind.STALL),
        silences_capped=any(
            len(burst.silent_streams) >= SILENT_STREAMS_MAX_COUNT for burst in summary.bursts
        ),
        **{
            name: _real(metrics[name], summary)
            for name in TrialResult.model_fields.keys() & metrics
        },
    )


def _broken(summary: RunSummary, kind: DisruptionKind) -> int:
    """Return the number of pairs that had a disruption of this kind in any burst."""
    return sum(
        disruption.pairs_count
        for burst in summary.bursts
        for disruption in burst.disruptions
        if disruption.kind is kind
    )


def _loads(summary: RunSummary) -> Iterator[DeviceLoad]:
    """Yield CPU and payload of each device, as the mean over bursts with these values."""
    names = dict.fromkeys(device.device for burst in summary.bursts for device in burst.devices)
    for name in names:
        cpu, carried = [], []
        for burst in summary.bursts:
            load = next((device for device in burst.devices if device.device == name), None)
            if load is not None and load.cpu_ratio is not None:
                cpu.append(load.cpu_ratio.mean)
            rate, alone = RECEIVED.of_burst(burst), len(burst.devices) == 1
            share = 1.0 if alone else load.share_ratio if load is not None else None
            if rate is not None and share is not None:
                carried.append(rate * share * summary.scale)
        yield DeviceLoad(
            device=name,
            cpu_ratio=sum(cpu) / len(cpu) if cpu else None,
            received_bits_per_second=sum(carried) / len(carried) if carried else None,
        )


# Counts that a lab divides by its scale.
_SCALED: Final = ("connections_per_second", "connections_held_count")


def _real(metric: MetricDefinition, summary: RunSummary) -> float | None:
    value = metric.of_run(summary)
    scales = metric.unit is MetricUnit.RATE or metric.name in _SCALED
    return value * summary.scale if value is not None and scales else value


def comparison_wanted(study: StudySpec, results: Sequence[TrialResult]) -> CompareRequest | None:
    """Return the comparison that is needed for an A/B study.

    Args:
        study: Study specification.
        results: Results of the trials.

    Returns:
        Two groups of complete runs. None for other kinds of questions, or if a group is empty.
    """
    question, floor = study.question, study.spec.objective.coverage_floor_ratio
    if not isinstance(question, AB):
        return None
    runs: dict[str, list[str]] = {question.a.name: [], question.b.name: []}
    for trial, result in zip(planned_trials(question), results, strict=False):
        if result.run_id is not None and result.is_complete(floor) and trial.mode is not None:
            runs[trial.mode].append(result.run_id)
    if not all(runs.values()):
        return None
    a, b = (Selection(name=name, run_ids=tuple(ids)) for name, ids in runs.items())
    return CompareRequest(a=a, b=b, label="mode")


def conclude(
    study: StudySpec,
    results: Sequence[TrialResult],
    comparison: Comparison | None = None,
    close_up: CloseUp | None = None,
    event: ExecutedEvent | None = None,
) -> Conclusion:
    """Return the conclusion of a study.

    Its rates are at real scale. In ``comparison``, the rates are as measured.

    Args:
        study: Study specification.
        results: Results of the trials.
        comparison: Comparison for an A/B study, or None.
        close_up: Detailed results for a scale-out study or a drill, or None.
        event: Event of a drill, or None.
    """
    question, floor = study.question, study.spec.objective.coverage_floor_ratio
    complete = [result for result in results if result.is_complete(floor)]
    match question:
        case Sweep():
            conclusion = _swept(question, complete)
        case Search():
            conclusion = _searched(study, question, results, complete_count=len(complete))
        case AB():
            conclusion = _alternated(question, complete, comparison, scale=study.spec.scale)
        case Matrix():
            conclusion = _in_modes(question, complete)
        case Staircase():
            conclusion = scaled_out(question, close_up if isinstance(close_up, ScaleOut) else None)
        case Inspection():
            conclusion = inspected(complete)
        case Drill():
            conclusion = drilled(event, close_up if isinstance(close_up, DrillResult) else None)
        case _:
            assert_never(question)
    if isinstance(question, AB | Sweep) and study.sequential is not None:
        conclusion = _sequential(study, conclusion, results)
    sentence = conclusion.sentence
    if study.spec.scale != 1 and "bit/s" in sentence:
        sentence += f" (at real scale; the lab is at 1:{study.spec.scale:g})"
    notes = (
        *conclusion.notes,
        *_notes(results, floor, question),
        *_translation_note(question, results),
        *_engine_notes(study),
        *sequential_notes(study, results),
    )
    return conclusion.model_copy(update={"sentence": sentence, "notes": notes})


def _sequential(
    study: StudySpec, conclusion: Conclusion, results: Sequence[TrialResult]
) -> Conclusion:
    """Return the conclusion with the intervals that hold at all times."""
    assert isinstance(study.question, AB | Sweep)  # noqa: S101 - checked by the caller
    compared = comparisons(study, results, planned_trials(study.question))
    texts = [_compared_text(one) for one in compared]
    sentence = conclusion.sentence
    if texts and isinstance(study.question, AB):
        sentence = texts[0]
    elif texts:
        sentence = f"{sentence}; {'; '.join(texts)}"
    return conclusion.model_copy(update={"sentence": sentence, "sequential": compared})


def _compared_text(one: SequentialResult) -> str:
    change = one.ratio - 1
    verb = "costs" if change < 0 else "adds"
    size = formatting.ratio(abs(change), 1)
    if one.ratio_low is None or one.ratio_high is None:
        span = "without an interval"
    else:
        low, high = sorted((1 - one.ratio_low, 1 - one.ratio_high), key=abs)
        if change >= 0:
            low, high = -low, -high
        span = f"{formatting.ratio(low, 1)} to {formatting.ratio(high, 1)}"
    certain = {
        Decision.DIFFERENT: "certain",
        Decision.EQUIVALENT: "certain to be within the margin",
        Decision.OPEN: "not certain",
    }[one.decision]
    return (
        f"{one.b} {verb} {size} ({span}) of throughput against {one.a}: {certain} after "
        f"{one.rounds_count} rounds, at an error rate of {formatting.ratio(one.error_ratio, 1)}"
    )


def _notes(results: Sequence[TrialResult], floor: float, question: Question) -> Iterator[str]:
    for result in results:
        trial = f"trial {result.index + 1}"
        if result.problem:
            yield f"{trial}: {result.problem}"
        elif not result.is_complete(floor):
            covered = result.completeness_ratio or 0.0
            effect = "not used"
            if isinstance(question, Search):
                effect = "counted as lost"
            elif isinstance(question, Staircase | Drill):
                effect = "used"
            yield (
                f"{trial}: {formatting.ratio(covered, 1)} of it was measured, below the minimum of "
                f"{formatting.ratio(floor, 0)}; {effect}"
            )
        if isinstance(question, Staircase | Drill) and result.silences_capped:
            yield (
                f"{trial}: only the {SILENT_STREAMS_MAX_COUNT} longest silences of streams are "
                "stored, so more streams may have been cut"
            )
        if result.concurrent_run_ids:
            others = ", ".join(result.concurrent_run_ids)
            yield f"{trial}: other runs sent traffic during it: {others}"
    if isinstance(question, Search) and len(results) >= question.trials_max_count:
        yield f"ended after trials_max_count = {question.trials_max_count} trials"


def _translation_note(question: Question, results: Sequence[TrialResult]) -> Iterator[str]:
    """Yield a warning if the device translates source addresses in some of its states only."""
    if not isinstance(question, AB | Matrix):
        return
    counts: dict[str | None, float | None] = {}
    for trial, result in zip(planned_trials(question), results, strict=False):
        if result.verdict is not None:
            counts[trial.mode] = counts.get(trial.mode) or result.seen_units_count
    translated = {mode: count for mode, count in counts.items() if count is not None}
    if 0 < len(translated) < len(counts):
        shown = ", ".join(f"{mode} ({count:g} units)" for mode, count in translated.items())
        yield (
            f"the device translates source addresses in {shown} only: this changes the test, so "
            "sign only runs in the state of production"
        )


def _engine_notes(study: StudySpec) -> Iterator[str]:
    """Yield a note for each engine with settings that are different from those in the study."""
    if isinstance(study.question, Search | Staircase | Drill | Inspection):
        return
    engine = study.spec.traffic.engine
    names = [trial.overrides.get(ENGINE, engine) for trial in planned_trials(study.question)]
    for name in dict.fromkeys(names):
        if differs := list(differences(study.spec, name)):
            yield f"{name}: runs with {', '.join(differs)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """A complete trial of a sweep.

    Attributes:
        value: Value of the first field.
        bits_per_second: Payload rate at real scale.
        half_width_bits_per_second: Half width for the 95 % interval, or None.
    """

    value: Any
    bits_per_second: float
    half_width_bits_per_second: float | None


def _swept(question: Sweep, results: Sequence[TrialResult]) -> Conclusion:
    lines: dict[str, list[_Point]] = defaultdict(list)
    axis, *others = question.axes
    trials = planned_trials(question)
    for result in results:
        trial = trials[result.index]
        rate = result.received_bits_per_second
        if rate is not None:
            other = ", ".join(f"{o.field} = {trial.overrides[o.field]}" for o in others)
            point = _Point(
                value=trial.overrides[axis.field],
                bits_per_second=rate,
                half_width_bits_per_second=result.received_half_width_bits_per_second,
            )
            lines[f"with {other}" if other else ""].append(point)
    if not lines:
        return Conclusion(sentence=f"the sweep has no result: {_NONE_COMPLETE}")
    knees, sentences = [], []
    for label, repeated in lines.items():
        points = _averaged(repeated)
        field = f"{axis.field} {label}".rstrip()
        if not axis.is_numeric:
            sentences.append(f"{field}: {_ranked(axis, points)}")
            continue
        knee, sentence = _bent(field, sorted(points, key=lambda point: point.value))
        knees += [knee] if knee is not None else []
        sentences.append(f"{field}: {sentence}")
    return Conclusion(sentence="; ".join(sentences), knees=tuple(knees))


def _averaged(points: Sequence[_Point]) -> list[_Point]:
    """Return one point for each value, with the mean rate of its trials."""
    by_value: dict[Any, list[_Point]] = {}
    for point in points:
        by_value.setdefault(point.value, []).append(point)
    return [
        replace(
            group[0],
            bits_per_second=sum(point.bits_per_second for point in group) / len(group),
            half_width_bits_per_second=max(
                (p.half_width_bits_per_second or 0.0 for p in group), default=None
            ),
        )
        if len(group) > 1
        else group[0]
        for group in by_value.values()
    ]


def _bent(field: str, points: Sequence[_Point]) -> tuple[Knee | None, str]:
    """Return the knee of a curve over numbers, with a text."""
    values, rates = [point.value for point in points], [point.bits_per_second for point in points]
    index = knee_index(values, rates, [point.half_width_bits_per_second for point in points])
    if index is None:
        most = max(points, key=lambda point: point.bits_per_second)
        reason = "no knee" if is_enough(values) else f"knee unknown: {_TOO_FEW}"
        rate = formatting.rate(most.bits_per_second)
        return None, f"{reason}; highest rate at {most.value:g}: {rate} of payload"
    knee = Knee(
        field=field,
        value=values[index],
        received_bits_per_second=rates[index],
        share_ratio=rates[index] / max(rates),
    )
    return knee, (
        f"the knee is at {knee.value:g}, with {formatting.rate(knee.received_bits_per_second)} of "
        f"payload, {formatting.ratio(knee.share_ratio, 0)} of the highest rate"
    )


def _ranked(axis: Axis, points: Sequence[_Point]) -> str:
    """Return a text for values that are not numbers, sorted by rate."""
    ranked = sorted(points, key=lambda point: point.bits_per_second, reverse=True)
    parts = [f"{point.value} {formatting.rate(point.bits_per_second)}" for point in ranked]
    there = [point.value for point in points]
    parts += [f"{value} unknown" for value in axis.values if value not in there]
    return f"highest payload rate with {parts[0]}; then {', '.join(parts[1:]) or 'no other'}"


def _searched(
    study: StudySpec,
    question: Search,
    results: Sequence[TrialResult],
    *,
    complete_count: int,
) -> Conclusion:
    spec = study.spec
    answer = search_answer(question, spec, results, study.sequential)
    limits = [_loss_limit(question, spec)]
    if question.rtt_mean_max_s is not None:
        limits.append(f"a mean RTT of at most {formatting.time(question.rtt_mean_max_s)}")
    if question.residual_max_ratio is not None:
        limits.append(f"a residual of at most {formatting.ratio(question.residual_max_ratio)}")
    limits_text = " and ".join(limits)
    highest, failing, load = answer.highest, answer.lowest_failing, question.load
    what = " of payload" if load is SearchLoad.BITS else ""
    if not complete_count:
        sentence = f"the search has no result: {_NONE_COMPLETE}"
    elif highest is None and answer.lowest_failing_why is not FailingReason.BROKE:
        sentence = f"no load is known to meet {limits_text}; {_failing(load, answer)}"
    elif highest is None:
        lowest_text = load.describe(question.lowest)
        sentence = f"no load from {lowest_text}{what} met {limits_text}"
    elif failing is None:
        sentence = f"{load.describe(highest)}{what}, the highest requested load, met {limits_text}"
    else:
        sentence = (
            f"{load.describe(highest)}{what} is the highest load that met {limits_text}; "
            f"{_failing(load, answer)}"
        )
    sent = answer.highest_sent_bits_per_second
    if (
        highest is not None
        and sent is not None
        and formatting.rate(sent) != formatting.rate(highest)
    ):
        sentence += f"; at the highest rate senders sent {formatting.rate(sent)}"
    if is_open := answer.open_bits_per_second or answer.open_connections_count:
        rates = ", ".join(map(load.describe, is_open))
        sentence += f"; the decision is not certain at {rates}"
    return Conclusion(sentence=sentence, search_result=answer)


def _loss_limit(question: Search, spec: RunSpec) -> str:
    """Return a text for the loss limit, for connections, datagrams or TCP."""
    if question.load is not SearchLoad.BITS:
        share = formatting.ratio(question.shortfall_max_ratio)
        return f"a share of failed attempts of at most {share}"
    if spec.traffic.protocol is not Protocol.UDP:
        return f"a shortfall of at most {formatting.ratio(question.shortfall_max_ratio)}"
    if question.shortfall_max_ratio == 0:
        return "zero loss of datagrams (RFC 2544)"
    return f"a loss of at most {formatting.ratio(question.shortfall_max_ratio)} of the datagrams"


def _failing(load: SearchLoad, answer: SearchResult) -> str:
    """Return a text for the lowest load that does not meet the limits, with its bottleneck."""
    rate = load.describe(answer.lowest_failing or 0.0)
    limit = answer.lowest_failing_bottleneck
    known = limit is not None and limit is not BottleneckName.UNKNOWN
    because = f": the limit was {limit.label}" if limit is not None and known else ""
    match answer.lowest_failing_why:
        case FailingReason.UNMEASURED:
            return f"{rate} was not measured"
        case FailingReason.GENERATOR if answer.lowest_failing in answer.open_connections_count:
            return f"{rate} did not meet them, and the limit may be that of late clients"
        case FailingReason.GENERATOR:
            return f"{rate} was not offered: the generator was the limit, not the device"
        case FailingReason.UNKNOWN:
            return f"{rate} is not known to meet them"
        case FailingReason.BROKE | None:
            return f"{rate} did not meet them{because}"
        case _:
            assert_never(answer.lowest_failing_why)


def _alternated(
    question: AB,
    results: Sequence[TrialResult],
    comparison: Comparison | None,
    *,
    scale: float,
) -> Conclusion:
    a, b = question.a.name, question.b.name
    if comparison is None:
        trials = planned_trials(question)
        seen = {trials[result.index].mode for result in results}
        absent = " and of ".join(name for name in (a, b) if name not in seen)
        sentence = f"{a} and {b} cannot be compared: no trial of {absent} is complete"
        return Conclusion(sentence=sentence)
    metric = next((m for m in comparison.metrics if m.name == RECEIVED.short_name), None)
    if metric is None or metric.ratio is None:
        sentence = f"{a} and {b} cannot be compared: nothing was received in {a}"
        return Conclusion(sentence=sentence, comparison=comparison)
    cost = 1.0 - metric.ratio
    known = metric.ratio_low is not None and metric.ratio_high is not None
    half = (metric.ratio_high - metric.ratio_low) / 2 if known else None  # type: ignore[operator]
    verb = "costs" if cost >= 0 else "adds"
    size = formatting.ratio(abs(cost), 1) + (
        f" +- {formatting.ratio(half, 1)}" if half is not None else ""
    )
    unclear = "" if metric.significant else "; not significant at 95 %, so this may be chance"
    if not metric.significant and metric.equivalent_within_ratio is not None:
        unclear += (
            f": the two are equivalent within {formatting.ratio(metric.equivalent_within_ratio)}"
        )
    thin = (
        f"; there are only {metric.a_count} and {metric.b_count} bursts, and three of each are "
        "needed"
        if comparison.few_bursts
        else ""
    )
    sentence = (
        f"{b} {verb} {size} of throughput against {a}: {formatting.rate(metric.b_mean * scale)} "
        f"against {formatting.rate(metric.a_mean * scale)} of payload{unclear}{thin}"
    )
    return Conclusion(sentence=sentence, comparison=comparison)


def _in_modes(question: Matrix, results: Sequence[TrialResult]) -> Conclusion:
    rates: dict[str, list[float]] = {mode.name: [] for mode in question.modes}
    trials = planned_trials(question)
    for result in results:
        trial = trials[result.index]
        if result.received_bits_per_second is not None and trial.mode is not None:
            rates[trial.mode].append(result.received_bits_per_second)
    means = {name: sum(values) / len(values) for name, values in rates.items() if values}
    unknown = [name for name, values in rates.items() if not values]
    if len(means) < 2:
        only = f"only {', '.join(means)} has a complete trial" if means else _NONE_COMPLETE
        return Conclusion(sentence=f"the modes cannot be compared: {only}")
    ranked = sorted(means.items(), key=lambda item: item[1], reverse=True)
    parts = [f"{name} {formatting.rate(rate)}" for name, rate in ranked]
    parts += [f"{name} unknown" for name in unknown]
    sentence = "payload by mode: " + ", ".join(parts)
    blocked = {
        trials[result.index].mode: blocked_text(result)
        for result in sorted(results, key=lambda result: result.leak_ratio or 0.0)
        if result.leak_ratio is not None
    }
    if blocked:
        sentence += "; still blocked: " + ", ".join(f"{name} {t}" for name, t in blocked.items())
    return Conclusion(sentence=sentence)
