"""Tables of disruptions, availability and trends of a run."""

from rich.console import Console

from broadside.coordinator.cli.display import open_console, print_table
from broadside.coordinator.core import formatting
from broadside.coordinator.core.run_trends import bursts_of
from broadside.coordinator.core.summary import Course, Disruption, severity_rank

# Limit for the table, which shows the most severe disruptions. ``--json`` prints all.
ROWS_MAX: int = 20


def show_course(course: Course, *, console: Console | None = None) -> None:
    """Print availability, trends and disruptions.

    Args:
        course: The values to print.
        console: The console to use. Defaults to standard output.
    """
    console = console or open_console()
    if course.availability is not None:
        print_table("\navailability under load", *_availability(course), console=console)
    if course.trends:
        print_table("\ndrift over the run", *_trends(course), console=console)
    if course.disruptions:
        title = f"\nwhat broke ({course.disruptions_count})"
        print_table(title, *_disruptions(course), spare=["lasted", "burst"], console=console)
        hidden = course.disruptions_count - min(len(course.disruptions), ROWS_MAX)
        if hidden:
            console.print(f"and {hidden} smaller ones")
    elif course.bursts_count:
        console.print("\nwhat broke: nothing")


def _availability(course: Course) -> tuple[list[str], list[list[str]]]:
    said = course.availability
    assert said is not None  # noqa: S101 - checked by the caller
    return ["up", "of what is known", "planned", "down", "unknown"], [
        [
            formatting.ratio(said.up_ratio),
            formatting.ratio(said.known_ratio),
            f"{said.planned_s} pair-seconds",
            str(said.down_s),
            str(said.unknown_s),
        ]
    ]


def _trends(course: Course) -> tuple[list[str], list[list[str]]]:
    return ["", "% an hour", "95 % interval", "bursts"], [
        [
            trend.name,
            formatting.signed(trend.percent_per_hour),
            f"{formatting.signed(trend.low_percent_per_hour)} to "
            f"{formatting.signed(trend.high_percent_per_hour)}"
            + ("" if trend.moved else " (steady)"),
            str(trend.bursts_count),
        ]
        for trend in course.trends
    ]


def _disruptions(course: Course) -> tuple[list[str], list[list[str]]]:
    days_count = len({each.start_at.date() for each in course.disruptions})
    stamp = "%Y-%m-%d %H:%M:%S" if days_count > 1 else "%H:%M:%S"
    columns = ["at (UTC)", "burst", "what", "who", "lasted", "short of", "the records say"]
    gravest = sorted(course.disruptions, key=severity_rank)[:ROWS_MAX]
    return columns, [
        [
            f"{each.start_at:{stamp}}",
            bursts_of(each),
            each.kind.value,
            _who(each),
            formatting.time(each.duration_s),
            formatting.size(each.short_bytes),
            "; ".join(each.causes),
        ]
        for each in sorted(gravest, key=lambda each: each.start_at)
    ]


def _who(disruption: Disruption) -> str:
    if disruption.scope == "all":
        return f"all {disruption.pairs_count} pairs"
    more = disruption.pairs_count - 3
    return ", ".join(disruption.pairs[:3]) + (f" and {more} more" if more > 0 else "")
