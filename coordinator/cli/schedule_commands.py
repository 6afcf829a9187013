"""The ``broadside schedule`` commands, which launch runs at given times."""

from datetime import datetime
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from broadside.coordinator import scenarios
from broadside.coordinator.cli import display
from broadside.coordinator.cli.connection import operator_name, run
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.lists import RowsOption, show_list
from broadside.coordinator.cli.options import Api, Assignments, Json, print_json
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.coordinator.core.plan.schedule import MissedPolicy, Overlap, check
from broadside.coordinator.views.answers import ScheduleView
from broadside.coordinator.views.requests import ScheduleRequest
from broadside.exchange.outage_log import utc_now

app = CommandGroup()

Name = Annotated[str, typer.Argument(help="small letters, digits and dashes; at most 36")]


@app.command()
def add(
    name: Name,
    scenario: Annotated[str, typer.Option(help="a scenario's name or a .toml file's path")],
    cron: Annotated[
        str | None, typer.Option(metavar="EXPR", help="minute hour day month weekday: '0 2 * * 6'")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="one instant, such as 2026-11-21T02:00")
    ] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="whose clock all these times are of")
    ] = "UTC",
    until: Annotated[str | None, typer.Option(metavar="TIME", help="fire nothing after it")] = None,
    max_runs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="end after so many runs")
    ] = None,
    overlap: Annotated[
        Overlap, typer.Option(help="when its last run goes on: skip, wait for it, or abort it")
    ] = Overlap.SKIP,
    missed: Annotated[
        MissedPolicy, typer.Option(help="when no coordinator was there: skip, or run late")
    ] = MissedPolicy.SKIP,
    missed_limit: Annotated[
        int, typer.Option(metavar="SECONDS", min=60, help="run no later than this")
    ] = 3600,
    assignments: Assignments = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Add a schedule; without an offset, times are of --timezone."""
    try:
        spec = scenarios.load(scenario, scenarios.parse_overrides(assignments or []))
        request = ScheduleRequest.model_validate(
            {
                "name": name,
                "spec": spec.to_fields(),
                "cron": cron,
                "at": _time("--at", at),
                "timezone": timezone,
                "until_at": _time("--until", until),
                "runs_max_count": max_runs,
                "overlap": overlap,
                "missed": missed,
                "missed_limit_s": missed_limit,
                "by": operator_name(),
            }
        )
        now = utc_now()
        check(request.schedule(by=request.by, now=now), now)
    except ValidationError as error:
        stop(_fault(error), Exit.USAGE)

    _show_one(run(api, lambda client: client.add_schedule(request)), as_json=as_json)


@app.command(name="list")
def list_schedules(form: RowsOption = None, api: Api = None, as_json: Json = False) -> None:
    """List schedules with their next instants."""

    found = run(api, lambda client: client.schedules())
    show_list(
        found,
        {
            "schedule": lambda view: view.schedule.name,
            "state": lambda view: view.state,
            "scenario": lambda view: view.schedule.spec.scenario,
            "when": _when,
            "zone": lambda view: view.schedule.timezone,
            "next (UTC)": _next,
            "runs": _runs,
        },
        of="broadside.coordinator.views.answers:ScheduleView",
        none="no schedules; add one with `broadside schedule add`",
        form=form,
        as_json=as_json,
        spare=["runs", "zone", "scenario"],
    )


def _next(view: ScheduleView) -> str:
    """Return the next launch time as text."""
    if view.state == "paused":
        return "none while paused"
    return f"{view.next_at[0]:%Y-%m-%d %H:%M:%S}" if view.next_at else "none"


@app.command()
def show(name: Name, api: Api = None, as_json: Json = False) -> None:
    """Show a schedule: its next instants, at most five, and what became of the last ones."""

    _show_one(run(api, lambda client: client.schedule(name)), as_json=as_json)


@app.command()
def pause(name: Name, api: Api = None, as_json: Json = False) -> None:
    """Fire nothing until resumed; a run that goes on goes on."""

    _show_one(run(api, lambda client: client.pause_schedule(name)), as_json=as_json)


@app.command()
def resume(name: Name, api: Api = None, as_json: Json = False) -> None:
    """Fire again from now on; what the pause left out is not made up for."""

    _show_one(run(api, lambda client: client.resume_schedule(name)), as_json=as_json)


@app.command()
def remove(name: Name, api: Api = None, as_json: Json = False) -> None:
    """Forget a schedule and its history; its runs stay."""

    view = run(api, lambda client: client.remove_schedule(name))
    if as_json:
        print_json(view)
    else:
        typer.echo(f"{name}: removed; its {view.schedule.runs_count} runs stay")


def _show_one(view: ScheduleView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    schedule = view.schedule
    limit = f" within {schedule.missed_limit_s} s" if schedule.missed == "run-late" else ""
    typer.echo(
        f"{schedule.name}: {view.state}, {schedule.spec.scenario} {_when(view)} "
        f"({schedule.timezone}), {_runs(view)} runs, overlap {schedule.overlap.value}, "
        f"missed {schedule.missed.value}{limit}"
    )
    if schedule.until_at:
        typer.echo(f"until {schedule.until_at:%Y-%m-%d %H:%M:%SZ}")
    display.print_table(
        "next, once it is resumed" if view.state == "paused" else "next",
        ["UTC", schedule.timezone],
        [[f"{at:%Y-%m-%d %H:%M:%S}", _local(at, schedule.timezone)] for at in view.next_at],
    )
    if view.history:
        display.print_table(
            "fired",
            ["instant (UTC)", "state", "run", "reason"],
            [
                [
                    f"{row.instant_at:%Y-%m-%d %H:%M:%S}"
                    + (f" and {row.instants_count - 1} more" if row.instants_count > 1 else ""),
                    row.state.value,
                    row.run_id or "",
                    row.reason or "",
                ]
                for row in view.history
            ],
        )


def _when(view: ScheduleView) -> str:
    if view.schedule.cron is not None:
        return view.schedule.cron
    return f"at {view.schedule.at:%Y-%m-%d %H:%M:%SZ}"


def _runs(view: ScheduleView) -> str:
    most = view.schedule.runs_max_count
    return f"{view.schedule.runs_count}" + (f"/{most}" if most is not None else "")


def _local(at: datetime, timezone: str) -> str:
    from zoneinfo import ZoneInfo

    return f"{at.astimezone(ZoneInfo(timezone)):%a %Y-%m-%d %H:%M:%S %z}"


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        stop(f"{option} {text!r}: not a time; write it like 2026-11-21T02:00", Exit.USAGE)


def _fault(error: ValidationError) -> str:
    fault: Any = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in fault["loc"])
    if field == "name":
        return f"name: {fault['input']!r}: use at most 36 small letters, digits and dashes"
    return f"{field}: {fault['msg']} (got {fault['input']!r})"
