"""What a study says, as tables: of its report, and on a screen. Pure."""

from collections.abc import Iterator
from typing import Final

from coordinator.core import words
from coordinator.core.measure.drill import Drilled
from coordinator.core.measure.scale_out import ScaleOut
from coordinator.studies.study import Study, TrialResult
from coordinator.studies.trials import says
from coordinator.views.report.document import Table

OUTAGES_MAX_COUNT: Final = 20  # rows, the longest


def study_tables(study: Study) -> Iterator[Table]:
    """Its trials, what each device bore in them, and what a close-up found."""
    yield Table(
        title="Trials",
        columns=(
            *("trial", "what", "payload received", "firewall (IP)", "RTT"),
            *("CPU-s/GB, client / server", "pairs reset / stalled", "limiter", "verdict"),
        ),
        rows=tuple(_trial(study, result) for result in study.results),
        numeric_from=2,
    )
    loads = [row for result in study.results for row in _devices(study, result)]
    if loads:
        yield Table(
            title="Devices",
            columns=("trial", "what", "device", "payload", "share", "CPU"),
            rows=tuple(loads),
            numeric_from=3,
        )
    if study.conclusion is not None and study.conclusion.scale_out is not None:
        yield _steps(study.conclusion.scale_out)
    if study.conclusion is not None and study.conclusion.drilled is not None:
        yield _outages(study.conclusion.drilled)


def stands(study: Study) -> str:
    """Where a study is, in words."""
    if study.ended_at is None:
        if study.cancelled_at is not None:
            return "being cancelled"
        return "going on" if study.waits_for is None else f"waits for {study.waits_for}"
    if study.problem:
        return f"ended: {study.problem}"
    if study.cancelled_at is not None:
        return f"cancelled by {study.cancelled_by}: {study.cancel_reason}"
    return "done"


def _trial(study: Study, result: TrialResult) -> tuple[str, ...]:
    mark = "  <- knee" if _is_knee(study, result) else ""
    costs = (result.client_cpu_s_per_gigabyte, result.server_cpu_s_per_gigabyte)
    return (
        str(result.index + 1),
        _what(study, result) + mark,
        words.rate(result.received_bits_per_second),
        words.rate(result.firewall_bits_per_second),
        words.time(result.rtt_mean_s),
        " / ".join(words.number(cost) for cost in costs),
        f"{result.reset_pairs_count} / {result.stalled_pairs_count}",
        result.limiter.value,
        result.problem or (result.verdict.value if result.verdict else words.UNKNOWN),
    )


def _what(study: Study, result: TrialResult) -> str:
    return ", ".join(f"{name} {value}" for name, value in says(study.spec, result).items())


def _is_knee(study: Study, result: TrialResult) -> bool:
    knees = study.conclusion.knees if study.conclusion else ()
    return any(knee.received_bits_per_second == result.received_bits_per_second for knee in knees)


def _devices(study: Study, result: TrialResult) -> Iterator[tuple[str, ...]]:
    known = [load.received_bits_per_second for load in result.devices]
    total = None if None in known else sum(rate for rate in known if rate is not None)
    for load in result.devices:
        rate = load.received_bits_per_second
        yield (
            str(result.index + 1),
            _what(study, result),
            load.device,
            words.rate(rate),
            words.ratio(rate / total if rate is not None and total else None, 1),
            words.ratio(load.cpu_ratio, 1),
        )


def _steps(found: ScaleOut) -> Table:
    return Table(
        title="Steps",
        columns=(
            *("after overload", "from", "to", "step", "firewall (IP)"),
            *("retransmits", "RTT", "pairs reset"),
        ),
        rows=tuple(
            (
                f"{step.after_overload_s:.1f} s",
                words.rate(step.before_bits_per_second),
                words.rate(step.after_bits_per_second),
                " +- ".join(
                    map(words.rate, (step.size_bits_per_second, step.half_width_bits_per_second))
                ),
                words.rate(step.ledger_size_bits_per_second),
                words.count(step.retransmits_count),
                words.time(step.rtt_max_s),
                str(step.broken_pairs_count),
            )
            for step in found.steps
        ),
        numeric_from=0,
    )


def _outages(found: Drilled) -> Table:
    shown = found.outages[:OUTAGES_MAX_COUNT]
    missed = found.outages_count - len(shown)
    return Table(
        title="Outages by probes",
        columns=("pair", "from, UTC", "out", "probes lost"),
        rows=tuple(
            (
                outage.pair,
                f"{outage.from_at:%H:%M:%S}.{outage.from_at.microsecond // 1000:03d}",
                f"{outage.outage_s * 1e3:.0f} ms +- {outage.resolution_s * 1e3:.0f}",
                str(outage.lost_count),
            )
            for outage in shown
        ),
        note=f"{missed} more are not listed." if missed else None,
    )
