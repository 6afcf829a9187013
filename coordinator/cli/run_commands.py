"""Commands that launch, watch, show and abort runs, and list scenarios."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from broadside.coordinator.cli.connection import RunArgument, operator_name, run, run_of
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.lists import RowsOption, show_list
from broadside.coordinator.cli.options import (
    Api,
    Assignments,
    Detach,
    Format,
    FormatOption,
    Json,
    Junit,
    Plain,
    Scenario,
    print_json,
)
from broadside.coordinator.cli.suggest import complete_scenario

if TYPE_CHECKING:
    from broadside.coordinator.cli.verbs import Verbs
    from broadside.coordinator.core.live.status import RunStatus
    from broadside.coordinator.core.summary import Course, RunSummary


def launch(
    scenario: Scenario,
    assignments: Assignments = None,
    budget: Annotated[
        float | None,
        typer.Option(metavar="USD", min=0, help="refuse, and stop before the burst, above it"),
    ] = None,
    unattended: Annotated[
        str | None,
        typer.Option(
            metavar="END",
            help="go on without a coordinator until this hard end: 26h, 2026-11-23T06:00Z",
        ),
    ] = None,
    detach: Detach = False,
    plain: Plain = False,
    junit: Junit = None,
    form: FormatOption = Format.TEXT,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Launch a run and, unless detached, follow it to its verdict."""
    from broadside.coordinator import scenarios
    from broadside.coordinator.cli import watch as watching
    from broadside.coordinator.cli.hard_end import read_end
    from broadside.coordinator.views.requests import LaunchRequest

    if detach and junit is not None:
        stop(
            "--junit: a detached run has no verdict yet; ask `broadside verdict` for it later",
            Exit.USAGE,
        )
    try:
        overrides = scenarios.parse_overrides(assignments or [])
        if budget is not None:
            overrides["budget_usd"] = budget
        if unattended is not None:
            overrides |= read_end(unattended, datetime.now(UTC))
        # Report an error before any request is sent.
        spec = scenarios.load(scenario, overrides)
    except ValueError as error:
        stop(str(error), Exit.USAGE)
    request = LaunchRequest(spec=spec.to_fields(), by=operator_name())

    async def work(client: "Verbs") -> "RunStatus | RunSummary":
        status = await client.launch(request)
        for warning in status.warnings:
            typer.echo(f"warning: {warning}", err=True)
        typer.echo(f"launched {status.run_id}", err=True)
        if detach:
            return status
        return await watching.follow(
            client, status.run_id, plain=plain, quiet=as_json, local=api is None
        )

    _finish(run(api, work, drive=not detach), as_json=as_json, form=form, junit=junit)


def watch(
    run_id: RunArgument, plain: Plain = False, api: Api = None, as_json: Json = False
) -> None:
    """Follow a run to its verdict; leaving (q, Ctrl-C) does not abort it."""
    from broadside.coordinator.cli import watch as watching

    async def work(client: "Verbs", found: str) -> "RunSummary":
        return await watching.follow(client, found, plain=plain, quiet=as_json, local=api is None)

    _finish(run_of(api, run_id, work, drive=True), as_json=as_json)


def show(run_id: RunArgument, api: Api = None, as_json: Json = False) -> None:
    """Show where a run stands, burst by burst."""
    from broadside.coordinator.cli import display
    from broadside.coordinator.cli.course_tables import show_course

    async def work(client: "Verbs", chosen: str) -> "tuple[RunStatus, Course]":
        return await client.status(chosen), await client.course(chosen)

    status, course = run_of(api, run_id, work)
    if as_json:
        print_json(status)
        return
    imported = f", imported ({status.imported})" if status.imported else ""
    typer.echo(f"{status.run_id}: {status.state.value}{imported}")
    for warning in status.warnings:
        typer.echo(f"warning: {warning}")
    if status.cancel_reason:
        typer.echo(f"cancelled by {status.cancelled_by}: {status.cancel_reason}")
    display.print_table(
        "",
        ["burst", "start (UTC)", "phase", "claimed", "armed", "reported", "outcomes"],
        [
            [
                str(burst.index + 1),
                f"{burst.planned_start_at:%Y-%m-%d %H:%M:%S}",
                burst.phase.value,
                f"{burst.claimed_count}/{burst.pairs_planned}",
                f"{burst.armed_count}/{burst.pairs_planned}",
                f"{burst.reported_count}/{burst.pairs_planned}",
                ", ".join(f"{count} {outcome}" for outcome, count in burst.outcomes.items()),
            ]
            for burst in status.bursts
        ],
    )
    if course.bursts_count:
        show_course(course)


def verdict(
    run_id: RunArgument,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute", help="compute it again from the stored rows; 4 when it differs"
        ),
    ] = False,
    junit: Junit = None,
    form: FormatOption = Format.TEXT,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Print a run's verdict with its figures; the exit code says it too."""

    if recompute:
        _recompute(run_id, api=api, as_json=as_json)

    summary = run_of(api, run_id, lambda client, chosen: client.summary(chosen))
    if summary is None:
        stop(f"run {run_id}: not over yet; follow it with `broadside watch`", Exit.CANNOT_RUN)
    _finish(summary, as_json=as_json, form=form, junit=junit)


def _recompute(run_id: str, *, api: str | None, as_json: bool) -> NoReturn:
    """Print the recomputed verdict, and if the stored summary is identical."""
    from broadside.coordinator.cli.verdict import exit_of, show_summary

    again = run_of(api, run_id, lambda client, chosen: client.recomputed(chosen))
    if as_json:
        print_json(again.summary)
    else:
        show_summary(again.summary)
    if again.equal:
        typer.echo("recomputed: the stored summary is the same, byte for byte", err=True)
        raise typer.Exit(exit_of(again.summary))
    typer.echo(
        f"broadside: run {again.summary.run_id}: the stored summary does not follow from the "
        f"stored rows, {again.differences_count} fields differ: " + "; ".join(again.differences),
        err=True,
    )
    raise typer.Exit(Exit.CANNOT_RUN)


def abort(
    run_id: RunArgument,
    reason: Annotated[str, typer.Option(help="kept with the run")] = "asked to",
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Stop a run: agents stop traffic within seconds, what was measured is kept."""

    status = run_of(
        api,
        run_id,
        lambda client, chosen: client.cancel(chosen, by=operator_name(), reason=reason),
    )
    if as_json:
        print_json(status)
    else:
        typer.echo(f"{status.run_id}: cancelled by {status.cancelled_by}: {status.cancel_reason}")


def list_scenarios(
    name: Annotated[
        str | None,
        typer.Argument(help="show one with every field", autocompletion=complete_scenario),
    ] = None,
    form: RowsOption = None,
    as_json: Json = False,
) -> None:
    """List the scenarios, or show one with every field that a launch can override."""
    from broadside.coordinator import scenarios
    from broadside.coordinator.cli import display
    from broadside.coordinator.core import formatting
    from broadside.coordinator.core.plain_fields import plain_fields

    specs = {n: scenarios.load(n) for n in ([name] if name else scenarios.names())}
    if as_json:
        print_json({n: spec.model_dump(mode="json") for n, spec in specs.items()})
        return
    if name is not None and form is None:
        rows = [[field, text] for field, text in plain_fields(specs[name]).items()]
        display.print_table(name, ["field", "value"], rows)
        return
    show_list(
        list(specs.values()),
        {
            "scenario": lambda spec: spec.scenario,
            "pairs": lambda spec: str(spec.pairs_count),
            "streams": lambda spec: str(spec.traffic.streams_count),
            "bursts": lambda spec: (
                f"{spec.bursts_count} x {spec.burst_s} s every {spec.period_s} s"
            ),
            "target": lambda spec: (
                formatting.rate(spec.objective.target_bits_per_second)
                if spec.objective.target_bits_per_second
                else "none"
            ),
            "what it asks": lambda spec: spec.description,
        },
        of="broadside.coordinator.core.run_spec:RunSpec",
        none="no scenario",
        form=form,
        as_json=False,
        spare=["streams", "pairs"],
    )


def _finish(
    result: "RunStatus | RunSummary",
    *,
    as_json: bool,
    form: Format = Format.TEXT,
    junit: Path | None = None,
) -> None:
    from broadside.coordinator.cli.verdict import exit_of, show_summary
    from broadside.coordinator.core.summary import RunSummary

    if as_json:
        print_json(result)
    elif isinstance(result, RunSummary):
        if form is Format.MD:
            from broadside.coordinator.views.markdown import verdict_markdown

            typer.echo(verdict_markdown(result), nl=False)
        else:
            show_summary(result)
    else:
        typer.echo(result.run_id)
    if isinstance(result, RunSummary):
        if junit is not None:
            from broadside.coordinator.cli.junit_file import of_run, save_junit

            save_junit(of_run(result), junit)
        raise typer.Exit(exit_of(result))
