"""Text output of a run summary, and the exit code of its verdict."""

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console

from broadside.coordinator.cli.exit_codes import ExitCode
from broadside.coordinator.cli.terminal_text import one_line, open_console
from broadside.coordinator.cli.text_tables import TextColumn, cells, print_table
from broadside.coordinator.core import formatting
from broadside.coordinator.core.guards import GuardReport
from broadside.coordinator.core.metrics import layer_label, received_at
from broadside.coordinator.core.run_trends import bursts_of
from broadside.coordinator.core.summary import (
    BurstSummary,
    Disruption,
    Finding,
    RunSummary,
    RunTrends,
    Verdict,
    describe_flows,
    describe_leaks,
    describe_units,
    severity_rank,
    unit_notes,
)
from broadside.coordinator.views.guard_tables import GUARD_COLUMNS, guard_row, impact_table
from broadside.coordinator.views.metric_rows import metric_rows
from broadside.coordinator.views.part_rows import PART_COLUMNS, part_rows

EXITS: Final = {
    Verdict.PASS: ExitCode.PASS,
    # Without a target there is nothing to fail.
    Verdict.MEASURED: ExitCode.PASS,
    Verdict.FAIL: ExitCode.FAIL,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}
# Limit of the table, which has the most severe disruptions. ``-o json`` prints all that are stored.
_DISRUPTIONS_MAX: Final = 20
_UNITS_MAX: Final = 64


def exit_of(summary: RunSummary) -> ExitCode:
    """Return the exit code of a verdict."""
    return EXITS[summary.verdict]


def print_summary(summary: RunSummary, *, notes: bool = False) -> None:
    """Print metrics, verdict, reason, next step and findings on standard output.

    Args:
        summary: The summary to print.
        notes: Print the notes in full, not only their number.
    """
    console = open_console()
    scaled = f", {formatting.lab(summary.scale)}" if summary.scale != 1 else ""
    console.print(f"\n[bold]{summary.run_id}[/bold] ({summary.scenario}{scaled})")
    _print_metrics(summary, console)
    _print_bursts(summary, console)
    if rows := part_rows(summary):
        hidden = ["bottleneck", "other metrics"]
        columns = list(PART_COLUMNS)
        print_table("\nparts", columns, rows, low_priority=hidden, console=console)
    _print_units(summary, console)
    _print_canary(summary, console)
    if any(burst.latency is not None for burst in summary.bursts):
        _print_latency(summary, console)
    if any(burst.measures for burst in summary.bursts):
        _print_engine_metrics(summary, console)
    if summary.run_trends is not None:
        print_trends(summary.run_trends, console=console)
    if summary.guards is not None:
        _print_guards(summary.guards, console)
    print_verdict(summary, console, notes=notes)


def print_verdict(summary: RunSummary, console: Console, *, notes: bool) -> None:
    """Print the verdict with its reason and next step, then other findings and the notes.

    Args:
        summary: The summary to print.
        console: Console to print to.
        notes: Print the notes too, and the next step of each finding.
    """
    from broadside.coordinator.core.verdict_reason import explain_verdict

    explained = explain_verdict(summary)
    console.print(f"\nverdict: [bold]{summary.verdict.value}[/bold]")
    label = "reason" if explained.deciding is None else f"reason [{explained.deciding.id}]"
    console.print(f"{label}: {one_line(explained.reason)}", markup=False)
    console.print(f"next: {one_line(explained.next_step)}", markup=False)
    if explained.others:
        console.print("\nother findings")
        _print_findings(explained.others, console, next_steps=notes)
    if not explained.notes:
        return
    if notes:
        console.print("\nnotes")
        _print_findings(explained.notes, console, next_steps=True)
        return
    command = f"`broadside verdict {summary.run_id} --notes`"
    number = len(explained.notes)
    text = f"{number} note{'' if number == 1 else 's'}: {command} prints them, and all next steps"
    console.print(f"\n{text}", markup=False)


def _print_findings(findings: Iterable[Finding], console: Console, *, next_steps: bool) -> None:
    for finding in findings:
        console.print(
            f"- {finding.severity} [{finding.id}]: {one_line(finding.sentence)}", markup=False
        )
        if finding.next_step and next_steps:
            console.print(f"    next: {one_line(finding.next_step)}", markup=False)


def _print_guards(guards: GuardReport, console: Console) -> None:
    """Print the guards and, if one of them stopped the run, the impact second by second."""
    print_table("guards", GUARD_COLUMNS, list(map(guard_row, guards.guards)), console=console)
    if guards.seconds:
        columns, rows = impact_table(guards)
        print_table("impact", columns, rows, console=console)


def _print_metrics(summary: RunSummary, console: Console) -> None:
    """Print the measured metrics and, in a scaled lab, the values at real scale."""
    lab = summary.scale != 1
    columns = ["", "layer", "measured", *(["at real scale"] if lab else [])]
    rows = [list(row.cells(lab=lab)) for row in metric_rows(summary)]
    rows += [
        ["pairs measured", "", f"{summary.pairs_measured} of {summary.pairs_planned}"],
        ["bottleneck", "", summary.bottleneck.value],
    ]
    counter = summary.reconciliation
    if counter is not None:
        uncertainty = formatting.ratio(counter.residual_uncertainty_ratio)
        rows += [
            ["lag", "", formatting.time(counter.lag_s)],
            ["header overhead", "", formatting.number(counter.overhead_ratio)],
            [
                "residual, bypassed" if counter.bypassed else "residual",
                layer_label(counter.layer),
                f"{formatting.ratio(counter.residual_ratio)} +- {uncertainty}",
            ],
        ]
    print_table("", columns, rows, console=console)


def _time_format(times: Iterable[Any]) -> str:
    """Return a format that has the date only if the times are of several days."""
    return "%Y-%m-%d %H:%M:%S" if len({at.date() for at in times}) > 1 else "%H:%M:%S"


def _print_bursts(summary: RunSummary, console: Console) -> None:
    stamp = _time_format(burst.planned_start_at for burst in summary.bursts)
    main, layer = received_at(summary.target_layer), layer_label(summary.target_layer)
    columns: dict[str, TextColumn] = {
        "": lambda burst: str(burst.index + 1),
        "UTC": lambda burst: f"{burst.planned_start_at:{stamp}}",
        "pairs": lambda burst: f"{burst.pairs_measured}/{burst.pairs_planned}",
        "complete": lambda burst: formatting.ratio(burst.completeness_ratio, 1),
        "up": _up,
        f"received, {layer}": lambda burst: formatting.rate(main.of_burst(burst)),
        "firewall": "firewall_bits_per_second",
        "spread": "start_spread_s",
        "verdict": "verdict",
    }
    rows = [cells(burst, columns) for burst in summary.bursts]
    print_table("\nbursts", list(columns), rows, low_priority=["spread", "up"], console=console)


def _up(burst: BurstSummary) -> str:
    return formatting.ratio(burst.availability.up_ratio if burst.availability else None, 1)


def _print_units(summary: RunSummary, console: Console) -> None:
    """Print whether the device translates addresses, and the units of each burst."""
    if not summary.bursts:
        return
    columns: dict[str, TextColumn] = {
        "burst": lambda row: str(row[0] + 1),
        "unit": lambda row: row[1].address,
        "streams": lambda row: describe_flows(row[1]),
        "received (payload)": lambda row: formatting.rate(row[1].received_bits_per_second),
        "+-": lambda row: formatting.rate(row[1].received_half_width_bits_per_second),
        "changes": lambda row: "; ".join(row[2]),
    }
    known = [(burst.index, burst.units) for burst in summary.bursts if burst.units]
    rows = [
        cells((index, unit, unit_notes(units, unit.address)), columns)
        for index, units in known
        for unit in units.units
    ]
    sentences = dict.fromkeys(describe_units(burst.units) for burst in summary.bursts)
    console.print(f"\nunits of the device: {' '.join(sentences)}", markup=False)
    if rows:
        hidden = len(rows) - _UNITS_MAX
        print_table("", list(columns), rows[:_UNITS_MAX], low_priority=["+-"], console=console)
        if hidden > 0:
            console.print(f"and {hidden} more rows")


def _print_canary(summary: RunSummary, console: Console) -> None:
    """Print what the device still blocked before, during and after each burst."""
    columns: dict[str, TextColumn] = {
        "burst": lambda row: str(row[0] + 1),
        "phase": lambda row: row[1],
        "leaked": lambda row: describe_leaks(row[2]),
        "allowed, blocked": lambda row: f"{row[2].allowed_blocked_count}/{row[2].allowed_count}",
        "late": lambda row: formatting.count(row[2].late_count),
        "block p50": lambda row: formatting.time(row[2].decision_p50_s),
    }
    rows = [
        cells((burst.index, name, getattr(burst.canary, name)), columns)
        for burst in summary.bursts
        if burst.canary is not None
        for name in ("before", "during", "after")
    ]
    if rows:
        print_table("\ncanaries", list(columns), rows, low_priority=["late"], console=console)


def _print_latency(summary: RunSummary, console: Console) -> None:
    """Print the probe round-trip times by phase, one row per burst."""

    def joined(values: Iterable[float | None], factor: float) -> str:
        return " / ".join(formatting.number(None if v is None else v * factor) for v in values)

    rows = []
    for burst in summary.bursts:
        if burst.latency is None:
            continue
        fleet = burst.latency.fleet
        phases = (fleet.before, fleet.during, fleet.after)
        percentiles = [
            joined((getattr(phase, name) for phase in phases), 1000)
            for name in ("p50_s", "p90_s", "p99_s")
        ]
        loss = joined((phase.loss_ratio for phase in phases), 100)
        delay = formatting.ratio(fleet.buffer_delay_ratio, 0)
        spikes = str(burst.latency.spikes_count)
        rows.append([str(burst.index + 1), *percentiles, loss, delay, spikes])
    columns = ["", "p50 (ms)", "p90 (ms)", "p99 (ms)", "lost (%)", "buffer delay", "spikes"]
    print_table("\nprobes: before / under load / after", columns, rows, console=console)


def _print_engine_metrics(summary: RunSummary, console: Console) -> None:
    """Print the engine metrics with their units, one row per burst."""
    units = {m.name: m.unit for burst in summary.bursts for m in burst.measures}
    rows = []
    for burst in summary.bursts:
        values = {measure.name: measure.value for measure in burst.measures}
        rows.append(
            [str(burst.index + 1), *(formatting.number(values.get(name)) for name in sorted(units))]
        )
    columns = ["", *(f"{name} ({units[name]})" for name in sorted(units))]
    print_table("\nengine metrics", columns, rows, console=console)


def print_trends(trends: RunTrends, *, console: Console | None = None) -> None:
    """Print availability, trends and disruptions of a run.

    Args:
        trends: The values to print.
        console: The console to use. Defaults to standard output.
    """
    console = console or open_console()
    if trends.availability is not None:
        columns: dict[str, TextColumn] = {
            "up": "up_ratio",
            "up, of known": "known_ratio",
            "planned": lambda known: f"{known.planned_s} pair-seconds",
            "down": lambda known: str(known.down_s),
            "unknown": lambda known: str(known.unknown_s),
        }
        row = cells(trends.availability, columns)
        print_table("\navailability under load", list(columns), [row], console=console)
    if trends.trends:
        columns = {
            "": "name",
            "% per hour": lambda trend: formatting.signed(trend.percent_per_hour),
            "95 % interval": lambda trend: (
                f"{formatting.signed(trend.low_percent_per_hour)} to "
                f"{formatting.signed(trend.high_percent_per_hour)}"
                f"{'' if trend.moved else ' (steady)'}"
            ),
            "bursts": "bursts_count",
        }
        rows = [cells(trend, columns) for trend in trends.trends]
        print_table("\ntrends over the run", list(columns), rows, console=console)
    if trends.disruptions:
        _print_disruptions(trends, console)
    elif trends.bursts_count:
        console.print("\ndisruptions: none")


def _print_disruptions(trends: RunTrends, console: Console) -> None:
    stamp = _time_format(one.start_at for one in trends.disruptions)
    columns: dict[str, TextColumn] = {
        "at (UTC)": lambda one: f"{one.start_at:{stamp}}",
        "burst": bursts_of,
        "kind": "kind",
        "pairs": _pairs_text,
        "duration": "duration_s",
        "missing": "short_bytes",
        "recorded causes": "causes",
    }
    severe = sorted(trends.disruptions, key=severity_rank)[:_DISRUPTIONS_MAX]
    rows = [cells(one, columns) for one in sorted(severe, key=lambda one: one.start_at)]
    title = f"\ndisruptions ({trends.disruptions_count})"
    print_table(title, list(columns), rows, low_priority=["duration", "burst"], console=console)
    if hidden := trends.disruptions_count - len(severe):
        console.print(f"and {hidden} smaller ones")


def _pairs_text(disruption: Disruption) -> str:
    if disruption.scope == "all":
        return f"all {disruption.pairs_count} pairs"
    more = disruption.pairs_count - 3
    return ", ".join(disruption.pairs[:3]) + (f" and {more} more" if more > 0 else "")
