"""Commands that launch, watch, show and abort runs, and list scenarios."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from broadside.coordinator.cli.api_errors import require_known
from broadside.coordinator.cli.command_group import Output, ResultFormat
from broadside.coordinator.cli.exit_codes import exit_usage, exit_with_error
from broadside.coordinator.cli.options import (
    Detach,
    Junit,
    Plain,
    ScenarioArgument,
    complete_scenario,
    parse_duration_s,
    parse_end_time,
)
from broadside.coordinator.cli.session import (
    Assignments,
    ResultSession,
    RunArgument,
    Session,
    WatchedSession,
    user_name,
)
from broadside.coordinator.cli.text_tables import (
    ListTable,
    TextColumn,
    cells,
    print_list,
    print_table,
)
from broadside.exchange.outage_log import utc_now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broadside.coordinator.cli.operations import Operations
    from broadside.coordinator.core.live.status import RunStatus
    from broadside.coordinator.core.summary import RunSummary, RunTrends


def launch(  # noqa: PLR0913 - options
    session: ResultSession,
    scenario: ScenarioArgument,
    assignments: Assignments = None,
    budget: Annotated[float | None, typer.Option(metavar="USD", min=0)] = None,
    unattended: Annotated[str | None, typer.Option("--end-at", metavar="TIME")] = None,
    guard: Annotated[list[str] | None, typer.Option(metavar="LIMIT")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    detach: Detach = False,
    plain: Plain = False,
    junit: Junit = None,
) -> None:
    """Start a run and wait for its verdict.

    With --detach it only starts the run.

    Args:
        budget: Cost limit; a burst that would exceed it is not started.
        unattended: Continue without a coordinator until this end, such as 26h or 2026-11-23T06:00Z.
        guard: Limit that stops all traffic, such as "cpu_ratio > 80% for 1s"; can be repeated.
        dry_run: Arm all guards and agents, and stop before the first byte.
    """
    from broadside.coordinator import scenarios
    from broadside.coordinator.cli.watch import follow
    from broadside.coordinator.runs.requests import LaunchRequest

    if detach and junit is not None:
        exit_usage(
            "--junit: a detached run has no verdict yet; use `broadside verdict --junit` later"
        )
    try:
        overrides = scenarios.parse_overrides(assignments or [])
        if budget is not None:
            overrides["budget_usd"] = budget
        if unattended is not None:
            overrides |= _unattended_fields(unattended)
        overrides |= _guard_fields(guard or [], overrides)
        if dry_run:
            overrides["dry_run"] = True
        # Report an error before any request is sent.
        spec = scenarios.load(scenario, overrides)
    except ValueError as error:
        exit_usage(str(error))
    request = LaunchRequest(spec=spec.to_fields(), by=user_name())

    async def work(client: "Operations") -> "RunStatus | RunSummary":
        status = await client.launch(request)
        for warning in status.warnings:
            typer.echo(f"warning: {warning}", err=True)
        typer.echo(f"launched {status.run_id}", err=True)
        if detach:
            return status
        return await follow(
            client, status.run_id, local=session.api is None, quiet=not session.is_text, plain=plain
        )

    _print_result(session, session.call(work, drive=not detach), junit)


def _unattended_fields(text: str) -> dict[str, Any]:
    """Return the fields of ``--end-at``. A duration counts from the launch."""
    duration_s = parse_duration_s(text)
    end_at = None
    if duration_s is None:
        end_at = parse_end_time("--end-at", text, utc_now(), zone=None)
    return {"unattended_s": duration_s, "unattended_until_at": end_at}


def _guard_fields(guards: list[str], overrides: "Mapping[str, Any]") -> dict[str, Any]:
    """Return the fields of ``--guard``. A guard on probes also turns the probes on."""
    from broadside.coordinator.core.guards import PROBE_QUANTITIES
    from broadside.coordinator.core.run_spec import GUARD_PROBE_BEFORE_S

    fields: dict[str, Any] = {"guards": guards} if guards else {}
    is_probed = any(guard.strip().startswith(PROBE_QUANTITIES) for guard in guards)
    if is_probed and not any(field.startswith("traffic.probe") for field in overrides):
        fields["traffic.probe.before_s"] = GUARD_PROBE_BEFORE_S
    return fields


def watch(session: ResultSession, run_id: RunArgument, plain: Plain = False) -> None:
    """Show a run until its verdict.

    Leaving with q or Ctrl-C does not abort the run.
    """
    from broadside.coordinator.cli.watch import follow

    async def work(client: "Operations", resolved: str) -> "RunSummary":
        return await follow(
            client, resolved, local=session.api is None, quiet=not session.is_text, plain=plain
        )

    _print_result(session, session.call_run(run_id, work, drive=True))


def show(session: WatchedSession, run_id: RunArgument) -> None:
    """Show the state of a run and of its bursts."""

    async def work(client: "Operations", resolved: str) -> "tuple[RunStatus, RunTrends]":
        return await client.status(resolved), await client.trends(resolved)

    status, trend = session.call_run(run_id, work)
    rows = (lambda status: status.bursts, "broadside.coordinator.core.live.status:BurstStatus")
    session.show(status, lambda status: _print_status(status, trend), rows=rows)


def _print_status(status: "RunStatus", trends: "RunTrends") -> None:
    from broadside.coordinator.cli.summary_tables import print_trends

    imported = f", imported ({status.imported})" if status.imported else ""
    typer.echo(f"{status.run_id}: {status.state.value}{imported}")
    for warning in status.warnings:
        typer.echo(f"warning: {warning}")
    if status.cancel_reason:
        typer.echo(f"cancelled by {status.cancelled_by}: {status.cancel_reason}")
    if status.verdict is not None:
        typer.echo(f"verdict: {status.verdict.value}")
    if status.reason is not None:
        typer.echo(f"reason: {status.reason}\nnext: {status.next_step}")
    columns: dict[str, TextColumn] = {
        "burst": lambda burst: str(burst.index + 1),
        "start (UTC)": "planned_start_at",
        "phase": "phase",
        "claimed": lambda burst: f"{burst.claimed_count}/{burst.pairs_planned}",
        "armed": lambda burst: f"{burst.armed_count}/{burst.pairs_planned}",
        "reported": lambda burst: f"{burst.reported_count}/{burst.pairs_planned}",
        "outcomes": lambda burst: ", ".join(f"{n} {name}" for name, n in burst.outcomes.items()),
    }
    print_table("", list(columns), [cells(burst, columns) for burst in status.bursts])
    if trends.bursts_count:
        print_trends(trends)


def verdict(
    session: ResultSession,
    run_id: RunArgument,
    recompute: Annotated[bool, typer.Option("--recompute")] = False,
    notes: Annotated[bool, typer.Option("--notes")] = False,
    junit: Junit = None,
) -> None:
    """Print the verdict of a run and its metrics.

    The exit code is that of the verdict.

    Args:
        recompute: Compute the verdict again from the stored data; exit with 4 if it differs.
        notes: Print the notes too, which are additional information.
    """
    if recompute:
        _recompute(session, run_id)
    summary = session.call_run(run_id, lambda client, resolved: client.summary(resolved))
    if summary is None:
        exit_with_error(f"run {run_id}: it has no verdict yet; wait for it with `broadside watch`")
    _print_result(session, summary, junit, notes=notes)


def _recompute(session: ResultSession, run_id: str) -> NoReturn:
    """Print the recomputed verdict, and if the stored summary is identical."""
    from broadside.coordinator.cli.summary_tables import exit_of, print_summary

    again = session.call_run(run_id, lambda client, resolved: client.recomputed(resolved))
    session.show(again.summary, print_summary)
    if again.equal:
        typer.echo("recomputed: the stored summary is identical, byte for byte", err=True)
        raise typer.Exit(exit_of(again.summary))
    exit_with_error(
        f"run {again.summary.run_id}: the stored summary does not follow from the stored data; "
        f"{again.differences_count} fields differ: {'; '.join(again.differences)}"
    )


def abort(
    session: Session,
    run_id: RunArgument,
    reason: str = "no reason given",
) -> None:
    """Abort a run and keep what was measured.

    Agents stop their traffic within seconds.

    Args:
        reason: Reason to store with the run.
    """
    status = session.call_run(
        run_id,
        lambda client, resolved: client.cancel(resolved, by=user_name(), reason=reason),
    )
    text = f"{status.run_id}: cancelled by {status.cancelled_by}: {status.cancel_reason}"
    session.show(status, lambda _: typer.echo(text))


def label(
    session: Session,
    run_id: RunArgument,
    labels: Annotated[list[str], typer.Argument(metavar="NAME=VALUE")],
) -> None:
    """Set and remove labels of a run.

    The run can be finished. For example, `baseline=accepted` accepts it as the baseline of its
    scenario.

    Args:
        labels: Labels to set; NAME- removes a label.
    """
    from pydantic import ValidationError

    from broadside.coordinator.runs.requests import RunChange

    new: dict[str, str | None] = {}
    for text in labels:
        name, equals, value = text.partition("=")
        if equals:
            new[name] = value
        elif text.endswith("-"):
            new[text[:-1]] = None
        else:
            exit_usage(f"label {text!r}: write NAME=VALUE, or NAME- to remove it")
    try:
        change = RunChange(labels=new)
    except ValidationError as error:
        problem = error.errors()[0]
        exit_usage(f"label {problem['input']!r}: {problem['msg']}")

    async def work(client: "Operations", resolved: str) -> "RunStatus":
        if removed := [name for name, value in new.items() if value is None]:
            known = (await client.status(resolved)).labels
            for name in removed:
                require_known("label", name, known)
        return await client.change_run(resolved, change)

    status = session.call_run(run_id, work)
    shown = ", ".join(f"{name}={value}" for name, value in sorted(status.labels.items()))
    session.show(status, lambda _: typer.echo(f"{status.run_id}: {shown or 'no labels'}"))


def scenarios(
    session: Output,
    name: Annotated[str | None, typer.Argument(autocompletion=complete_scenario)] = None,
) -> None:
    """List the scenarios, or show one of them.

    A launch can override every field that is shown.

    Args:
        name: Scenario to show with all fields.
    """
    from broadside.coordinator import scenarios as stored
    from broadside.coordinator.core import formatting
    from broadside.coordinator.core.plain_fields import plain_fields

    specs = {one: stored.load(one) for one in ([name] if name else stored.names())}
    table = ListTable(
        columns={
            "scenario": "scenario",
            "pairs": "pairs_count",
            "streams": "traffic.streams_count",
            "bursts": lambda spec: (
                f"{spec.bursts_count} x {spec.burst_s} s every {spec.period_s} s"
            ),
            "target": lambda spec: (
                formatting.rate(spec.objective.target_bits_per_second)
                if spec.objective.target_bits_per_second
                else "none"
            ),
            "description": "description",
            "engine": "traffic.engine",
            "protocol": "traffic.protocol",
            "direction": "traffic.direction",
            "layer": "objective.layer",
        },
        model="broadside.coordinator.core.run_spec:RunSpec",
        empty="no scenario",
        low_priority=["streams", "pairs", "bursts"],
        wide=["engine", "protocol", "direction", "layer"],
    )

    def print_text(_: object) -> None:
        if name is None:
            print_list(session, list(specs.values()), table)
        else:
            print_table(
                name, ["field", "value"], list(map(list, plain_fields(specs[name]).items()))
            )

    dumped = {one: spec.model_dump(mode="json") for one, spec in specs.items()}
    session.show(dumped, print_text, rows=(lambda _: list(specs.values()), table.model))


def _print_result(
    session: ResultSession,
    result: "RunStatus | RunSummary",
    junit: Path | None = None,
    *,
    notes: bool = False,
) -> None:
    """Print a status or a summary. A summary ends the command with the code of its verdict."""
    from broadside.coordinator.cli.summary_tables import exit_of, print_summary
    from broadside.coordinator.core.summary import RunSummary

    if not isinstance(result, RunSummary):
        session.show(result, lambda status: typer.echo(status.run_id))
        return
    if session.output == ResultFormat.MD:
        from broadside.coordinator.views.markdown import verdict_markdown

        typer.echo(verdict_markdown(result), nl=False)
    else:
        session.show(result, lambda summary: print_summary(summary, notes=notes))
    if junit is not None:
        from broadside.coordinator.cli.output_files import junit_of_run, save_junit

        save_junit(junit_of_run(result), junit)
    raise typer.Exit(exit_of(result))
