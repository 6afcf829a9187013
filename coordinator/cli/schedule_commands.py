"""The ``broadside schedule`` commands, which start runs at given times."""

from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from pydantic import ValidationError

from broadside.coordinator import scenarios
from broadside.coordinator.cli.command_group import CommandGroup
from broadside.coordinator.cli.exit_codes import exit_usage
from broadside.coordinator.cli.options import complete_scenario, parse_time_option
from broadside.coordinator.cli.session import (
    Assignments,
    Session,
    WatchedSession,
    complete_schedule,
    user_name,
)
from broadside.coordinator.cli.text_tables import ListTable, print_list, print_table
from broadside.coordinator.core.plan.schedule import MissedPolicy, Overlap, check
from broadside.coordinator.runs.requests import ScheduleRequest
from broadside.coordinator.views.responses import ScheduleView
from broadside.exchange.outage_log import utc_now

app = CommandGroup()

ScheduleArgument = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULE",
        help="Name of at most 36 lower-case letters, digits and dashes.",
        autocompletion=complete_schedule,
    ),
]


@app.command()
def add(  # noqa: PLR0913 - options
    session: Session,
    name: ScheduleArgument,
    scenario: Annotated[str, typer.Option(autocompletion=complete_scenario)],
    cron: Annotated[str | None, typer.Option(metavar="EXPR")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME")] = None,
    timezone: Annotated[str, typer.Option(metavar="ZONE")] = "UTC",
    until: Annotated[str | None, typer.Option(metavar="TIME")] = None,
    max_runs: Annotated[int | None, typer.Option(metavar="N", min=1)] = None,
    overlap: Overlap = Overlap.SKIP,
    missed: MissedPolicy = MissedPolicy.SKIP,
    missed_limit: Annotated[int, typer.Option(metavar="SECONDS", min=60)] = 3600,
    assignments: Assignments = None,
) -> None:
    """Add a schedule.

    Args:
        scenario: Name of a scenario or path of a .toml file.
        cron: Minute hour day month weekday: '0 2 * * 6'.
        at: One start, such as 2026-11-21T02:00.
        timezone: Time zone of --cron, and of times without offset.
        until: Start no run after this time.
        max_runs: Maximum number of runs.
        overlap: What to do while the last run continues.
        missed: What to do if no coordinator was running.
        missed_limit: Maximum delay of a late start.
    """
    try:
        spec = scenarios.load(scenario, scenarios.parse_overrides(assignments or []))
        request = ScheduleRequest.model_validate(
            {
                "name": name,
                "spec": spec.to_fields(),
                "cron": cron,
                "at": parse_time_option("--at", at),
                "timezone": timezone,
                "until_at": parse_time_option("--until", until),
                "runs_max_count": max_runs,
                "overlap": overlap,
                "missed": missed,
                "missed_limit_s": missed_limit,
                "by": user_name(),
            }
        )
        now = utc_now()
        check(request.schedule(by=request.by, now=now), now)
    except ValidationError as error:
        exit_usage(_error_text(error))
    session.show(session.call(lambda client: client.add_schedule(request)), _print_schedule)


@app.command(name="list")
def list_schedules(session: WatchedSession) -> None:
    """List the schedules with their next start."""
    print_list(
        session,
        session.call(lambda client: client.schedules()),
        ListTable(
            columns={
                "schedule": "schedule.name",
                "state": "state",
                "scenario": "schedule.spec.scenario",
                "when": _when,
                "zone": "schedule.timezone",
                "next (UTC)": _next,
                "runs": _runs,
                "by": "schedule.created_by",
                "last run": "schedule.last_run_id",
            },
            model="broadside.coordinator.views.responses:ScheduleView",
            empty="no schedules; add one with `broadside schedule add`",
            low_priority=["runs", "zone", "scenario"],
            wide=["by", "last run"],
        ),
    )


@app.command()
def show(session: WatchedSession, name: ScheduleArgument) -> None:
    """Show a schedule, its next starts and its last ones."""
    session.show(session.call(lambda client: client.schedule(name)), _print_schedule)


@app.command()
def pause(session: Session, name: ScheduleArgument) -> None:
    """Pause a schedule.

    A run that is already running is not stopped.
    """
    session.show(session.call(lambda client: client.pause_schedule(name)), _print_schedule)


@app.command()
def resume(session: Session, name: ScheduleArgument) -> None:
    """Resume a schedule.

    Starts that the pause has omitted are not repeated.
    """
    session.show(session.call(lambda client: client.resume_schedule(name)), _print_schedule)


@app.command()
def remove(session: Session, name: ScheduleArgument) -> None:
    """Remove a schedule and its history, but not its runs."""
    view = session.call(lambda client: client.remove_schedule(name))
    text = f"{name}: removed; its {view.schedule.runs_count} runs are still stored"
    session.show(view, lambda _: typer.echo(text))


def _print_schedule(view: ScheduleView) -> None:
    schedule = view.schedule
    limit = f" within {schedule.missed_limit_s} s" if schedule.missed == "run-late" else ""
    typer.echo(
        f"{schedule.name}: {view.state}, {schedule.spec.scenario} {_when(view)} "
        f"({schedule.timezone}), {_runs(view)} runs, overlap {schedule.overlap.value}, "
        f"missed {schedule.missed.value}{limit}"
    )
    if schedule.until_at:
        typer.echo(f"until {schedule.until_at:%Y-%m-%d %H:%M:%SZ}")
    print_table(
        "next starts after a resume" if view.state == "paused" else "next starts",
        ["UTC", schedule.timezone],
        [[f"{at:%Y-%m-%d %H:%M:%S}", _local(at, schedule.timezone)] for at in view.next_at],
    )
    rows = []
    for row in view.history:
        more = f" and {row.instants_count - 1} more" if row.instants_count > 1 else ""
        start = f"{row.instant_at:%Y-%m-%d %H:%M:%S}{more}"
        rows.append([start, row.state.value, row.run_id or "", row.reason or ""])
    if rows:
        print_table("history", ["start (UTC)", "state", "run", "reason"], rows)


def _next(view: ScheduleView) -> str:
    """Return the next start as text."""
    if view.state == "paused":
        return "none while paused"
    return f"{view.next_at[0]:%Y-%m-%d %H:%M:%S}" if view.next_at else "none"


def _when(view: ScheduleView) -> str:
    if view.schedule.cron is not None:
        return view.schedule.cron
    return f"at {view.schedule.at:%Y-%m-%d %H:%M:%SZ}"


def _runs(view: ScheduleView) -> str:
    maximum = view.schedule.runs_max_count
    return f"{view.schedule.runs_count}" + (f"/{maximum}" if maximum is not None else "")


def _local(at: datetime, timezone: str) -> str:
    return f"{at.astimezone(ZoneInfo(timezone)):%a %Y-%m-%d %H:%M:%S %z}"


def _error_text(error: ValidationError) -> str:
    problem: Any = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in problem["loc"])
    if field == "name":
        return f"name {problem['input']!r}: use at most 36 lower-case letters, digits and dashes"
    return f"{field}: {problem['msg']} (got {problem['input']!r})"
