"""What a study says, as tables on a screen."""

import typer

from coordinator.cli import display
from coordinator.cli.options import print_json
from coordinator.core import words
from coordinator.core.measure.drill import Drilled
from coordinator.core.measure.scale_out import ScaleOut
from coordinator.studies.study import Study, TrialResult
from coordinator.studies.trials import says

SHOWN_COUNT = 20  # pairs' outages, the longest


def print_study(study: Study, *, as_json: bool) -> None:
    """A study's trials, one a line, and its conclusion."""
    if as_json:
        print_json(study)
        return
    rows = [_row(study, result) for result in study.results]
    scale = study.spec.spec.scale
    where = "" if scale == 1 else f", at real scale (lab at 1:{scale:g})"
    headings = [
        "trial",
        "what",
        "payload received",
        "firewall (IP)",
        "RTT",
        "CPU-s/GB, client / server",
        "limiter",
        "verdict",
    ]
    display.print_table(f"{study.study_id}: {study.spec.question.kind}{where}", headings, rows)
    if study.conclusion is not None:
        if study.conclusion.scale_out is not None:
            _print_steps(study.conclusion.scale_out)
        if study.conclusion.drilled is not None:
            _print_outages(study.conclusion.drilled)
        typer.echo(study.conclusion.sentence)
        for note in study.conclusion.notes:
            typer.echo(f"note: {note}")
    typer.echo(stands(study))


def _print_steps(found: ScaleOut) -> None:
    rows = [
        [
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
        ]
        for step in found.steps
    ]
    headings = [
        "after overload",
        "from",
        "to",
        "step",
        "firewall (IP)",
        "retransmits",
        "RTT",
        "pairs reset",
    ]
    display.print_table("steps", headings, rows)


def _print_outages(found: Drilled) -> None:
    rows = [
        [
            outage.pair,
            f"{outage.from_at:%H:%M:%S}.{outage.from_at.microsecond // 1000:03d}",
            f"{outage.outage_s * 1e3:.0f} ms +- {outage.resolution_s * 1e3:.0f}",
            str(outage.lost_count),
        ]
        for outage in found.outages[:SHOWN_COUNT]
    ]
    display.print_table("outages by probes", ["pair", "from, UTC", "out", "probes lost"], rows)


def _row(study: Study, result: TrialResult) -> list[str]:
    what = ", ".join(f"{name} {value}" for name, value in says(study.spec, result).items())
    mark = "  <- knee" if study.conclusion and _is_knee(study, result) else ""
    firewall, rtt_s = result.firewall_bits_per_second, result.rtt_mean_s
    costs = (result.client_cpu_s_per_gigabyte, result.server_cpu_s_per_gigabyte)
    return [
        str(result.index + 1),
        what + mark,
        rate(result),
        words.rate(firewall),
        words.time(rtt_s),
        " / ".join(words.number(cost) for cost in costs),
        result.limiter.value,
        result.problem or (result.verdict.value if result.verdict else "unknown"),
    ]


def _is_knee(study: Study, result: TrialResult) -> bool:
    knees = study.conclusion.knees if study.conclusion else ()
    return any(knee.received_bits_per_second == result.received_bits_per_second for knee in knees)


def rate(result: TrialResult) -> str:
    return words.rate(result.received_bits_per_second)


def stands(study: Study) -> str:
    if study.ended_at is None:
        if study.cancelled_at is not None:
            return "being cancelled"
        return "going on" if study.waits_for is None else f"waits for {study.waits_for}"
    if study.problem:
        return f"ended: {study.problem}"
    if study.cancelled_at is not None:
        return f"cancelled by {study.cancelled_by}: {study.cancel_reason}"
    return "done"
