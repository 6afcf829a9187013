"""The ``broadside study`` commands. A study is a series of runs that answers one question."""

import asyncio
import functools
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from broadside.coordinator import scenarios
from broadside.coordinator.cli import display
from broadside.coordinator.cli.connection import operator_name, run, study_of
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.lists import RowsOption, print_rows, show_list
from broadside.coordinator.cli.options import Api, Assignments, Detach, Json, Scenario, print_json
from broadside.coordinator.cli.saved_files import (
    AsFormat,
    ChartOutput,
    Output,
    ReportFormat,
    save_chart,
    save_report,
)
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.coordinator.core import formatting
from broadside.coordinator.core.quantities import parse_rate, parse_time
from broadside.coordinator.studies.study import (
    AB,
    Axis,
    Drill,
    Matrix,
    Mode,
    Question,
    Search,
    Staircase,
    Study,
    StudyRequest,
    Sweep,
)
from broadside.coordinator.studies.trials import trials_count
from broadside.coordinator.views.charts import Theme
from broadside.coordinator.views.charts.study_charts import chart_of
from broadside.coordinator.views.report.study_tables import stands, study_tables

if TYPE_CHECKING:
    from broadside.coordinator.cli.verbs import Verbs

POLL_S = 1.0

app = CommandGroup()


Name = Annotated[str | None, typer.Option(help="the study's name; the question's kind otherwise")]
Pause = Annotated[float, typer.Option("--pause-s", min=0, help="seconds between two trials")]
StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="study id, or `last`")]


def _carry_out(
    question: Question,
    scenario: Scenario,
    assignments: Assignments = None,
    name: Name = None,
    pause_s: Pause = 0.0,
    detach: Detach = False,
    api: Api = None,
    as_json: Json = False,
    *,
    command: Sequence[str] | None = None,
) -> NoReturn:
    """Create a study and, unless detached, wait for its conclusion.

    When a drill has a ``command``, it is used only by the coordinator in this process, and never
    sent to an API.
    """
    try:
        spec = scenarios.load(scenario, scenarios.parse_overrides(assignments or []))
        request = StudyRequest(
            name=name,
            question=question,
            spec=spec.to_fields(),
            pause_s=pause_s,
            by=operator_name(),
        )
    except ValidationError as error:
        stop(scenarios.explain(error), Exit.USAGE)

    async def work(client: "Verbs") -> Study:
        if command is not None:
            client.event = command
        created = await client.create_study(request)
        typer.echo(f"study {created.study_id}", err=True)
        if detach:
            return created
        return await _follow(client, created, quiet=as_json, local=api is None)

    done = run(api, work, drive=not detach)
    print_study(done, as_json=as_json)
    raise typer.Exit(Exit.CANNOT_RUN if done.problem else Exit.PASS)


def _question(build: Callable[[], Question]) -> Question:
    """Return the result of ``build``. An invalid option prints one line and exits."""
    try:
        return build()
    except ValidationError as error:
        stop(scenarios.explain(error), Exit.USAGE)
    except ValueError as error:
        stop(str(error), Exit.USAGE)


def _asked(question: Callable[..., Question]) -> Callable[..., None]:
    """Decorate a function that returns a question, so that the command carries out the study.

    The command will have the function's options and the common options.
    """
    own = inspect.signature(question).parameters
    _, scenario, *how = list(inspect.signature(_carry_out).parameters.values())[:-1]

    @functools.wraps(question)
    def command(**given: Any) -> None:
        options = {option: given.pop(option) for option in own}
        _carry_out(_question(lambda: question(**options)), **given)

    parameters = [scenario, *own.values(), *how]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


@app.command()
@_asked
def sweep(
    over: Annotated[
        list[str],
        typer.Option(metavar="FIELD=V1,V2,...", help="a field and its values; once or twice"),
    ],
) -> Sweep:
    """Run a scenario for every value of one or two fields; the knee is marked."""
    return Sweep(axes=tuple(_axis(text) for text in over))


@app.command()
@_asked
def search(
    lowest: Annotated[str, typer.Option("--min", help="lowest offered payload rate, like 1G")],
    highest: Annotated[str, typer.Option("--max", help="highest offered payload rate, like 200G")],
    shortfall: Annotated[
        float, typer.Option(help="ratio of what is sent that may be lost; 0: zero loss")
    ] = 0.01,
    rtt: Annotated[str | None, typer.Option(help="mean RTT to stay under, like 5ms")] = None,
    residual: Annotated[
        float | None, typer.Option(help="ratio by which fleet and firewall may differ")
    ] = None,
    precision: Annotated[float, typer.Option(help="ratio of the last interval's width")] = 0.02,
    trials: Annotated[int, typer.Option(min=1, help="at most so many trials")] = 20,
) -> Search:
    """Search the highest paced rate that keeps the goals."""
    return Search(
        min_bits_per_second=parse_rate(lowest),
        max_bits_per_second=parse_rate(highest),
        shortfall_max_ratio=shortfall,
        rtt_mean_max_s=None if rtt is None else parse_time(rtt),
        residual_max_ratio=residual,
        precision_ratio=precision,
        trials_max_count=trials,
    )


@app.command()
@_asked
def ab(
    a: Annotated[str, typer.Option("--a", help="the first state's name")],
    b: Annotated[str, typer.Option("--b", help="the second state's name")],
    a_set: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=VALUE", help="only in state A")
    ] = None,
    b_set: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=VALUE", help="only in state B")
    ] = None,
    switch: Annotated[
        str | None, typer.Option(help="the coordinator's switch that sets the state")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of A B B A")] = 1,
) -> AB:
    """Compare two states of the device, alternating A B B A."""
    return AB(
        a=Mode(name=a, overrides=scenarios.parse_overrides(a_set or [])),
        b=Mode(name=b, overrides=scenarios.parse_overrides(b_set or [])),
        switch=switch,
        rounds_count=rounds,
    )


@app.command()
@_asked
def matrix(
    mode: Annotated[
        list[str],
        typer.Option(metavar="NAME[:FIELD=VALUE]...", help="a mode; repeatable, two at least"),
    ],
    switch: Annotated[
        str | None, typer.Option(help="the coordinator's switch that sets the mode")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="rounds through all modes")] = 1,
) -> Matrix:
    """Run a scenario in each of a device's modes."""
    return Matrix(modes=tuple(_mode(text) for text in mode), switch=switch, rounds_count=rounds)


@app.command()
@_asked
def scaleout(
    offer: Annotated[
        str,
        typer.Option(
            metavar="R1,R2,...", help="payload rates held in order, like 20G,60G,100G,20G"
        ),
    ] = "",
    hold: Annotated[int, typer.Option("--hold-s", min=20, help="seconds of one hold")] = 300,
    settle: Annotated[
        float, typer.Option("--settle-s", min=0, help="seconds without a step that are the end")
    ] = 600.0,
    holds: Annotated[int, typer.Option(min=1, help="at most so many holds")] = 20,
    units: Annotated[
        float | None, typer.Option(min=1, help="capacity units before it, where you know")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--for", metavar="RATE", help="rate to pre-scale for, like 150G")
    ] = None,
) -> Staircase:
    """Hold a load until the device has grown: its steps, their size, time and cost."""
    return Staircase(
        offers_bits_per_second=tuple(parse_rate(each) for each in offer.split(",") if each),
        hold_s=hold,
        settle_s=settle,
        holds_max_count=holds,
        units_count=units,
        plan_bits_per_second=None if target is None else parse_rate(target),
    )


@app.command()
def drill(
    scenario: Scenario,
    at: Annotated[float, typer.Option(min=5, help="seconds into the burst")] = 60.0,
    event: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="run here, without a shell; not with --api"),
    ] = None,
    switch: Annotated[str | None, typer.Option(help="a declared switch, in place of it")] = None,
    state: Annotated[str | None, typer.Option(help="the state that the switch is put to")] = None,
    probe_every: Annotated[
        float, typer.Option("--probe-every-s", help="spacing of the probes: the resolution")
    ] = 0.02,
    assignments: Assignments = None,
    name: Name = None,
    detach: Detach = False,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Let an event happen inside a burst: the outage, what it cut, what came back and when."""
    command = _argv(event)
    if command is not None and (api is not None or detach):
        stop(
            "--event: a command runs in this process only, until the drill is over; drop --api and "
            "--detach, on the coordinator's host, or name a declared --switch and --state",
            Exit.USAGE,
        )
    asked = _question(lambda: Drill(switch=switch, state=state, at_s=at, probe_every_s=probe_every))
    _carry_out(asked, scenario, assignments, name, 0.0, detach, api, as_json, command=command)


@app.command("list")
def list_studies(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="at most so many")] = 20,
    form: RowsOption = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """List studies, newest first."""
    found = run(api, lambda client: client.studies(limit))
    show_list(
        found,
        {
            "study": lambda study: study.study_id,
            "asks": lambda study: study.spec.question.kind,
            "trials": lambda study: f"{len(study.results)}/{trials_count(study.spec)}",
            "stands": stands,
        },
        of="broadside.coordinator.studies.study:Study",
        none="no study yet; start one with `broadside study sweep`",
        form=form,
        as_json=as_json,
    )


@app.command()
def show(
    study_id: StudyArgument,
    form: RowsOption = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Show a study's trials and its conclusion."""

    study = study_of(api, study_id, lambda client, chosen: client.study(chosen))
    if form is None:
        print_study(study, as_json=as_json)
    else:
        rows = [result.model_dump(mode="json") for result in study.results]
        print_rows(rows, form, of="broadside.coordinator.studies.study:TrialResult")


@app.command()
def chart(
    study_id: StudyArgument,
    output: ChartOutput = None,
    theme: Annotated[Theme, typer.Option(help="of .png and .json")] = Theme.LIGHT,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Draw a study: its curve with the knee, its modes, or its search."""

    async def work(client: "Verbs", found: str) -> tuple[str, dict[str, Any]]:
        name = chart_of(await client.study(found))
        drawn = Theme.LIGHT if output is not None and output.suffix == ".svg" else theme
        return f"{found}-{name}", await client.study_chart(found, name, drawn.value)

    called, made = study_of(api, study_id, work)
    if as_json:
        print_json(made)
        return
    save_chart(made, output or Path(f"{called}.png"), width=1100, height=520)


@app.command()
def report(
    study_id: StudyArgument,
    format: AsFormat = None,
    output: Output = None,
    api: Api = None,
) -> None:
    """Write a study's report: its answer, chart and trials, in one file."""

    chosen = ReportFormat.chosen(format, output)

    async def work(client: "Verbs", found: str) -> tuple[str, bytes]:
        return found, await client.study_report(found, chosen.asked)

    save_report(*study_of(api, study_id, work), chosen, output)


@app.command()
def abort(
    study_id: StudyArgument,
    reason: Annotated[str, typer.Option(help="kept with the study")] = "asked to",
    api: Api = None,
    as_json: Json = False,
) -> None:
    """Stop a study and its running trial; the device goes back to rest."""

    study = study_of(
        api,
        study_id,
        lambda client, chosen: client.cancel_study(chosen, by=operator_name(), reason=reason),
    )
    if as_json:
        print_json(study)
    else:
        typer.echo(f"{study.study_id}: {stands(study)}")


def print_study(study: Study, *, as_json: bool) -> None:
    """Print the tables and the conclusion of a study.

    Args:
        study: The study to show.
        as_json: Set to True to print only JSON.
    """
    if as_json:
        print_json(study)
        return
    scale = study.spec.spec.scale
    where = "" if scale == 1 else f", at real scale ({formatting.lab(scale)})"
    typer.echo(f"{study.study_id}: {study.spec.question.kind}{where}")
    for each in study_tables(study):
        display.print_table(each.title, each.columns, each.rows)
    if study.conclusion is not None:
        typer.echo(study.conclusion.sentence)
        for note in study.conclusion.notes:
            typer.echo(f"note: {note}")
    typer.echo(stands(study))


async def _follow(client: "Verbs", study: Study, *, quiet: bool, local: bool) -> Study:
    """Print the result for each trial, and why the next one needs to wait.

    Ctrl-C prints the study state. Set ``local`` when the study may be running in this process.
    """
    followed = [study]
    try:
        return await _follow_to_the_end(client, followed, quiet=quiet)
    except asyncio.CancelledError:
        # Raised by Ctrl-C.
        typer.echo(say_left(followed[-1], local=local), err=True)
        raise


def say_left(study: Study, *, local: bool) -> str:
    """Return one line about a study that is no longer followed.

    Args:
        study: The study to show.
        local: Set to True when the study runs in this process.
    """
    done, planned = len(study.results), trials_count(study.spec)
    goes_on = "it continues once a `broadside serve` runs here" if local else "it continues"
    return (
        f"left {study.study_id} without aborting it after {done} of {planned} trials; {goes_on}; "
        f"`broadside study show {study.study_id}` shows it, "
        f"`broadside study abort {study.study_id}` stops it"
    )


async def _follow_to_the_end(client: "Verbs", followed: list[Study], *, quiet: bool) -> Study:
    """Wait until a study ends. The last element in ``followed`` is the newest state."""
    study = followed[-1]
    said, waits_for = 0, None
    while True:
        study = await client.study(study.study_id)
        followed[:] = [study]
        if study.waits_for not in (None, waits_for) and not quiet:
            typer.echo(f"waits for {study.waits_for}", err=True)
        waits_for = study.waits_for
        for result in study.results[said:]:
            if not quiet:
                cut = result.reset_pairs_count
                broke = f", {cut} pairs reset" if cut else ""
                received = formatting.rate(result.received_bits_per_second)
                typer.echo(f"trial {result.index + 1}: {received}{broke}", err=True)
        said = len(study.results)
        if study.ended_at is not None:
            return study
        await asyncio.sleep(POLL_S)


def _argv(event: str | None) -> list[str] | None:
    """Split a command into words. An invalid command exits."""
    try:
        words = None if event is None else shlex.split(event)
    except ValueError as error:
        stop(f"--event {event!r}: {error}", Exit.USAGE)
    if words == []:
        stop("--event: an empty command; name a program", Exit.USAGE)
    return words


def _axis(text: str) -> Axis:
    field, equals, values = text.partition("=")
    if not equals or not field or not values:
        raise ValueError(
            f"--over {text!r}: expected FIELD=V1,V2,..., like traffic.streams_count=1,8"
        )
    return Axis(field=scenarios.field_of(field), values=tuple(_values(field, values)))


def _values(field: str, text: str) -> Sequence[Any]:
    return [
        value
        for one in text.split(",")
        for value in scenarios.parse_overrides([f"{field}={one}"]).values()
    ]


def _mode(text: str) -> Mode:
    name, *assignments = text.split(":")
    overrides: Mapping[str, Any] = scenarios.parse_overrides(assignments)
    return Mode(name=name, overrides=overrides)
