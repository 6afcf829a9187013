"""Output of a summary as tables and as an exit code."""

from collections.abc import Iterable
from typing import Final

from broadside.coordinator.cli.course_tables import show_course
from broadside.coordinator.cli.display import open_console, print_table
from broadside.coordinator.cli.exits import Exit
from broadside.coordinator.cli.screen_text import one_line
from broadside.coordinator.core import formatting
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.coordinator.views.figure_rows import figure_rows

EXITS: Final = {
    Verdict.PASS: Exit.PASS,
    # Without a target there is nothing to fail.
    Verdict.MEASURED: Exit.PASS,
    Verdict.FAIL: Exit.FAIL,
    Verdict.INCONCLUSIVE: Exit.INCONCLUSIVE,
}


def exit_of(summary: RunSummary) -> Exit:
    """Return the exit code of a verdict."""
    return EXITS[summary.verdict]


def show_summary(summary: RunSummary) -> None:
    """Print metrics, verdict and findings on standard output."""
    console = open_console()
    scaled = f", {formatting.lab(summary.scale)}" if summary.scale != 1 else ""
    console.print(f"\n[bold]{summary.run_id}[/bold] ({summary.scenario}{scaled})")
    print_table("", *_figures(summary), console=console)
    print_table("\nbursts", *_bursts(summary), spare=["spread", "up"], console=console)
    if any(burst.latency is not None for burst in summary.bursts):
        print_table("\nprobes: before / under load / after", *_latency(summary), console=console)
    if any(burst.measures for burst in summary.bursts):
        print_table("\nwhat the engine measured", *_measures(summary), console=console)
    if summary.course is not None:
        show_course(summary.course, console=console)
    console.print(f"\nverdict: [bold]{summary.verdict.value}[/bold]")
    for finding in summary.findings:
        console.print(f"- {finding.severity}: {one_line(finding.sentence)}", markup=False)
        if finding.next_step:
            console.print(f"    next: {one_line(finding.next_step)}", markup=False)


def _figures(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    """Return the measured metrics and, in a scaled lab, the values at real scale."""
    lab = summary.scale != 1
    columns = ["", "layer", "measured", *(["stands for"] if lab else [])]
    rows = [list(row.cells(lab=lab)) for row in figure_rows(summary)]
    rows += [
        ["pairs measured", "", f"{summary.pairs_measured} of {summary.pairs_planned}"],
        ["limiter", "", summary.limiter.value],
    ]
    held = summary.reconciliation
    if held is not None:
        uncertainty = formatting.ratio(held.residual_uncertainty_ratio)
        rows += [
            ["lag", "", formatting.time(held.lag_s)],
            ["header overhead", "", formatting.number(held.overhead_ratio)],
            [
                "residual, bypassed" if held.bypassed else "residual",
                held.layer,
                f"{formatting.ratio(held.residual_ratio)} +- {uncertainty}",
            ],
        ]
    return columns, rows


def _bursts(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    columns = ["", "UTC", "pairs", "complete", "up", "received", "firewall", "spread", "verdict"]
    days_count = len({burst.planned_start_at.date() for burst in summary.bursts})
    stamp = "%Y-%m-%d %H:%M:%S" if days_count > 1 else "%H:%M:%S"
    return columns, [
        [
            str(burst.index + 1),
            f"{burst.planned_start_at:{stamp}}",
            f"{burst.pairs_measured}/{burst.pairs_planned}",
            formatting.ratio(burst.completeness_ratio, 1),
            formatting.ratio(burst.availability.up_ratio if burst.availability else None, 1),
            formatting.rate(RECEIVED.of_burst(burst)),
            formatting.rate(burst.firewall_bits_per_second),
            formatting.time(burst.start_spread_s),
            burst.verdict.value,
        ]
        for burst in summary.bursts
    ]


def _latency(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    """Return the probe round-trip times by phase, one row per burst."""

    def told(values: Iterable[float | None], times: float) -> str:
        return " / ".join(formatting.number(None if v is None else v * times) for v in values)

    lines = []
    for burst in summary.bursts:
        if burst.latency is None:
            continue
        fleet = burst.latency.fleet
        phases = (fleet.before, fleet.during, fleet.after)
        lines.append(
            [
                str(burst.index + 1),
                *(
                    told((getattr(phase, name) for phase in phases), 1000)
                    for name in ("p50_s", "p90_s", "p99_s")
                ),
                told((phase.loss_ratio for phase in phases), 100),
                formatting.ratio(fleet.buffer_delay_ratio, 0),
                str(burst.latency.spikes_count),
            ]
        )
    return ["", "p50 (ms)", "p90 (ms)", "p99 (ms)", "lost (%)", "buffer delay", "spikes"], lines


def _measures(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    """Return the engine metrics with their units, one row per burst."""
    told = {m.name: m.unit for burst in summary.bursts for m in burst.measures}
    names = sorted(told)
    lines = []
    for burst in summary.bursts:
        values = {measure.name: measure.value for measure in burst.measures}
        said = [formatting.number(values.get(name)) for name in names]
        lines.append([str(burst.index + 1), *said])
    return ["", *(f"{name} ({told[name]})" for name in names)], lines
