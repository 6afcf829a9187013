"""The ``broadside study`` commands. A study is a series of runs that answers one question."""

import asyncio
import functools
import inspect
import operator
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from pydantic import ValidationError

from broadside.coordinator import scenarios
from broadside.coordinator.cli.command_group import CommandGroup
from broadside.coordinator.cli.exit_codes import ExitCode, exit_usage
from broadside.coordinator.cli.options import (
    Detach,
    LimitOption,
    ScenarioArgument,
    complete_field,
)
from broadside.coordinator.cli.output_files import (
    ChartFile,
    OutputFile,
    ReportFileFormat,
    ReportFormatOption,
    save_chart,
    save_report,
)
from broadside.coordinator.cli.progress_display import show_progress
from broadside.coordinator.cli.session import (
    ApiSession,
    Assignments,
    Session,
    WatchedSession,
    complete_assignment,
    complete_study,
    user_name,
)
from broadside.coordinator.cli.text_tables import (
    ListTable,
    print_list,
    print_table,
)
from broadside.coordinator.core import formatting
from broadside.coordinator.core.metrics import Layer, layer_label
from broadside.coordinator.core.quantities import parse_rate, parse_time
from broadside.coordinator.studies import study as questions
from broadside.coordinator.studies.trials import trials_count
from broadside.coordinator.views.charts import Theme
from broadside.coordinator.views.charts.study_charts import chart_of
from broadside.coordinator.views.report.study_tables import study_state, study_tables

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations
    from broadside.coordinator.views.charts.study_charts import StudyChart

_POLL_S: Final = 1.0
# Rows of the trials in a file.
_TRIALS: Final = (
    operator.attrgetter("results"),
    "broadside.coordinator.studies.study:TrialResult",
)

app = CommandGroup()

ModeSettings = Annotated[
    list[str] | None, typer.Option(metavar="FIELD=VALUE", autocompletion=complete_assignment)
]
StudyNameOption = Annotated[
    str | None, typer.Option(help="Name of the study; default: the kind of its question.")
]
Pause = Annotated[float, typer.Option("--pause-s", min=0, help="Seconds between two trials.")]
SwitchOption = Annotated[
    str | None, typer.Option(help="Switch of the coordinator that sets the mode of the device.")
]
UntilCertain = Annotated[
    bool,
    typer.Option(
        "--until-certain",
        help="Take further rounds until the answer is certain (ab, sweep and search).",
    ),
]
Margin = Annotated[
    float, typer.Option(help="Largest relative difference that does not matter.", min=0, max=1)
]
Scatter = Annotated[
    float | None,
    typer.Option(
        help="Expected scatter between bursts, as a ratio; default: that of earlier bursts.",
        min=0,
        max=1,
    ),
]
MaxRounds = Annotated[
    int, typer.Option(help="Maximum number of rounds, or of trials at one rate.", min=3)
]
StudyBudget = Annotated[
    float | None, typer.Option(metavar="USD", min=0, help="Cost limit of all trials.")
]
StudyArgument = Annotated[
    str,
    typer.Argument(metavar="STUDY", help="Study id, or `last`.", autocompletion=complete_study),
]


def _execute(  # noqa: PLR0913 - options
    session: Session,
    question: questions.Question,
    scenario: ScenarioArgument,
    assignments: Assignments = None,
    name: StudyNameOption = None,
    pause_s: Pause = 0.0,
    detach: Detach = False,
    until_certain: UntilCertain = False,
    margin: Margin = 0.02,
    scatter: Scatter = None,
    max_rounds: MaxRounds = 20,
    study_budget: StudyBudget = None,
    *,
    command: Sequence[str] | None = None,
) -> NoReturn:
    """Create a study and, unless detached, wait for its conclusion.

    Args:
        session: Session of the command.
        question: Question of the study.
        scenario: Scenario of its runs.
        assignments: Overrides of the scenario.
        name: Name of the study.
        pause_s: Seconds between two trials.
        detach: Only create the study.
        until_certain: Take further rounds until the answer is certain.
        margin: Largest relative difference that does not matter.
        scatter: Expected scatter between bursts.
        max_rounds: Maximum number of rounds.
        study_budget: Cost limit of all trials.
        command: Drill command. It is executed by this process, and never sent to an API.
    """
    try:
        spec = scenarios.load(scenario, scenarios.parse_overrides(assignments or []))
        request = questions.StudyRequest(
            name=name,
            question=question,
            spec=spec.to_fields(),
            pause_s=pause_s,
            sequential=questions.Sequential(
                margin_ratio=margin,
                scatter_ratio=scatter,
                rounds_max_count=max_rounds,
                budget_usd=study_budget,
            )
            if until_certain
            else None,
            by=user_name(),
        )
    except ValidationError as error:
        exit_usage(scenarios.explain(error))

    async def work(client: "Operations") -> questions.Study:
        client.drill_command = command
        study = await client.create_study(request)
        if study.expected is not None:
            typer.echo(study.expected, err=True)
        typer.echo(f"study {study.study_id}", err=True)
        return study if detach else await _follow(client, study, session)

    study = session.call(work, drive=not detach)
    session.show(study, print_study, rows=_TRIALS)
    raise typer.Exit(ExitCode.CANNOT_RUN if study.problem else ExitCode.PASS)


def _build_question(build: Callable[[], questions.Question]) -> questions.Question:
    """Return the result of ``build``. An invalid option prints one line and exits."""
    try:
        return build()
    except ValidationError as error:
        exit_usage(scenarios.explain(error))
    except ValueError as error:
        exit_usage(str(error))


def _study_command(question: Callable[..., questions.Question]) -> Callable[..., None]:
    """Decorate a function that returns a question, so that the command executes the study.

    The command has the options of the function and the common options.
    """
    specific = inspect.signature(question).parameters
    session, _, scenario, *common = list(inspect.signature(_execute).parameters.values())[:-1]

    @functools.wraps(question)
    def command(**values: Any) -> None:
        options = {option: values.pop(option) for option in specific}
        _execute(question=_build_question(lambda: question(**options)), **values)

    parameters = [session, scenario, *specific.values(), *common]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


@app.command()
@_study_command
def sweep(
    over: Annotated[
        list[str], typer.Option(metavar="FIELD=V1,V2,...", autocompletion=complete_field)
    ],
) -> questions.Sweep:
    """Run a scenario with each value of one or two fields, and find the knee.

    Args:
        over: A field and its values; once or twice.
    """
    return questions.Sweep(axes=tuple(_axis(text) for text in over))


@app.command()
@_study_command
def search(  # noqa: PLR0913 - options
    lowest: Annotated[str, typer.Option("--min")],
    highest: Annotated[str, typer.Option("--max")],
    load: questions.SearchLoad = questions.SearchLoad.BITS,
    loss: Annotated[float | None, typer.Option("--max-loss")] = None,
    rtt: Annotated[str | None, typer.Option("--max-rtt")] = None,
    residual: Annotated[float | None, typer.Option("--max-residual")] = None,
    precision: float = 0.02,
    trials: Annotated[int, typer.Option(min=1)] = 20,
) -> questions.Search:
    """Search the highest load within the limits.

    Args:
        lowest: Lowest load, such as 1G (payload rate) or 1000 (connections).
        highest: Highest load, such as 10G.
        load: Payload rate, new connections per second or held connections.
        loss: Maximum ratio of lost traffic or failed attempts; 0 for zero loss. Default: 0.01, or
            for connections what the scenario's `success_min_ratio` allows.
        rtt: Maximum mean RTT, such as 5ms.
        residual: Maximum difference of fleet and firewall, as a ratio.
        precision: Width of the last interval, as a ratio.
        trials: Maximum number of trials.
    """
    return questions.Search(
        **{f"min_{load}": parse_rate(lowest), f"max_{load}": parse_rate(highest)},
        **({} if loss is None else {"shortfall_max_ratio": loss}),
        rtt_mean_max_s=None if rtt is None else parse_time(rtt),
        residual_max_ratio=residual,
        precision_ratio=precision,
        trials_max_count=trials,
    )


@app.command()
@_study_command
def ab(  # noqa: PLR0913 - options
    a: Annotated[str, typer.Option("--a")],
    b: Annotated[str, typer.Option("--b")],
    a_set: ModeSettings = None,
    b_set: ModeSettings = None,
    switch: SwitchOption = None,
    rounds: Annotated[int, typer.Option(min=1)] = 1,
) -> questions.AB:
    """Compare two states of the device, in the order A B B A.

    Args:
        a: Name of the first state.
        b: Name of the second state.
        a_set: Override in state A only.
        b_set: Override in state B only.
        rounds: Number of rounds A B B A.
    """
    return questions.AB(
        a=questions.Mode(name=a, overrides=scenarios.parse_overrides(a_set or [])),
        b=questions.Mode(name=b, overrides=scenarios.parse_overrides(b_set or [])),
        switch=switch,
        rounds_count=rounds,
    )


@app.command()
@_study_command
def matrix(
    mode: Annotated[list[str], typer.Option(metavar="NAME[:FIELD=VALUE]...")],
    switch: SwitchOption = None,
    rounds: Annotated[int, typer.Option(min=1)] = 1,
) -> questions.Matrix:
    """Run a scenario in each mode of the device.

    Args:
        mode: A mode with its overrides; at least two modes.
        rounds: Number of rounds through all modes.
    """
    return questions.Matrix(
        modes=tuple(_mode(text) for text in mode), switch=switch, rounds_count=rounds
    )


@app.command("inspection-under-load")
@_study_command
def inspection_under_load(
    offer: Annotated[str, typer.Option(metavar="R1,R2,...")],
    rounds: Annotated[int, typer.Option(min=1)] = 1,
) -> questions.Inspection:
    """Find the load above which the device stops inspecting traffic.

    It needs `--set traffic.canary.consent=NAME`.

    Args:
        offer: Payload rates in rising order, such as 20G,60G,100G.
        rounds: Number of rounds through all rates.
    """
    return questions.Inspection(
        kind="inspection-under-load",
        offers_bits_per_second=tuple(parse_rate(rate) for rate in offer.split(",") if rate),
        rounds_count=rounds,
    )


@app.command()
@_study_command
def scaleout(  # noqa: PLR0913 - options
    offer: Annotated[str, typer.Option(metavar="R1,R2,...")] = "",
    hold: Annotated[int, typer.Option("--hold-s", min=20)] = 300,
    settle: Annotated[float, typer.Option("--settle-s", min=0)] = 600.0,
    holds: Annotated[int, typer.Option(min=1)] = 20,
    units: Annotated[float | None, typer.Option(min=1)] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="RATE")] = None,
) -> questions.Staircase:
    """Load the device until it has scaled out.

    It measures the steps: their size, time and cost.

    Args:
        offer: Payload rates in order, such as 20G,60G,100G,20G.
        hold: Seconds of one hold.
        settle: Seconds without a step that end the study.
        holds: Maximum number of holds.
        units: Capacity units at the start, if known.
        target: Rate to plan units for, such as 150G.
    """
    return questions.Staircase(
        offers_bits_per_second=tuple(parse_rate(rate) for rate in offer.split(",") if rate),
        hold_s=hold,
        settle_s=settle,
        holds_max_count=holds,
        units_count=units,
        plan_bits_per_second=None if target is None else parse_rate(target),
    )


@app.command()
def drill(  # noqa: PLR0913 - options
    session: Session,
    scenario: ScenarioArgument,
    at: Annotated[float, typer.Option(min=5)] = 60.0,
    event: Annotated[str | None, typer.Option("--event-command", metavar="COMMAND")] = None,
    switch: str | None = None,
    state: str | None = None,
    probe_every: Annotated[float, typer.Option("--probe-interval-s")] = 0.02,
    assignments: Assignments = None,
    name: StudyNameOption = None,
    detach: Detach = False,
) -> None:
    """Cause an event in a burst, and measure the outage.

    It measures which connections were cut, which came back and when.

    Args:
        at: Time of the event in the burst, in s.
        event: Command of the event on this host; not with --api.
        switch: Switch of the coordinator, instead of --event-command.
        state: State to set with the switch.
        probe_every: Interval of the probes in s.
    """
    command = _split_command(event)
    if command is not None and (session.api is not None or detach):
        exit_usage(
            "--event-command: the command runs in this process until the drill is over; remove "
            "--api and --detach, or use --switch and --state"
        )
    question = _build_question(
        lambda: questions.Drill(switch=switch, state=state, at_s=at, probe_every_s=probe_every)
    )
    _execute(session, question, scenario, assignments, name, detach=detach, command=command)


@app.command("list")
def list_studies(session: WatchedSession, limit: LimitOption = 20) -> None:
    """List studies, newest first."""
    print_list(
        session,
        session.call(lambda client: client.studies(limit)),
        ListTable(
            columns={
                "study": "study_id",
                "question": "spec.question.kind",
                "trials": lambda study: f"{len(study.results)}/{trials_count(study.spec)}",
                "state": study_state,
                "scenario": "spec.spec.scenario",
                "name": "spec.name",
                "created (UTC)": "created_at",
                "by": "created_by",
            },
            model="broadside.coordinator.studies.study:Study",
            empty="no study yet; start one with `broadside study sweep`",
            low_priority=["scenario"],
            wide=["name", "created (UTC)", "by"],
        ),
    )


@app.command()
def show(session: WatchedSession, study_id: StudyArgument) -> None:
    """Show the trials of a study and its conclusion."""
    study = session.call_study(study_id, lambda client, resolved: client.study(resolved))
    session.show(study, print_study, rows=_TRIALS)


@app.command()
def chart(
    session: Session,
    study_id: StudyArgument,
    file: ChartFile = None,
    theme: Theme = Theme.LIGHT,
) -> None:
    """Write the chart of a study to a file.

    Args:
        theme: Colours of .png and .svg.
    """

    async def work(client: "Operations", resolved: str) -> tuple[str, "StudyChart"]:
        name = chart_of(await client.study(resolved))
        return f"{resolved}-{name}", await client.study_chart(resolved, name)

    name, drawing = session.call_study(study_id, work)
    path = file or Path(f"{name}.png")
    session.show(drawing, lambda one: save_chart(one, path, theme=theme, width=1100, height=520))


@app.command()
def report(
    session: ApiSession,
    study_id: StudyArgument,
    format: ReportFormatOption = None,
    file: OutputFile = None,
) -> None:
    """Write the report of a study to a file."""
    chosen = ReportFileFormat.choose(format, file)

    async def work(client: "Operations", resolved: str) -> tuple[str, bytes]:
        return resolved, await client.study_report(resolved, chosen.requested)

    save_report(*session.call_study(study_id, work), chosen, file)


@app.command()
def abort(
    session: Session,
    study_id: StudyArgument,
    reason: str = "no reason given",
) -> None:
    """Abort a study and its running trial.

    The device is set back to its initial state.

    Args:
        reason: Reason to store with the study.
    """
    study = session.call_study(
        study_id,
        lambda client, resolved: client.cancel_study(resolved, by=user_name(), reason=reason),
    )
    session.show(study, lambda study: typer.echo(f"{study.study_id}: {study_state(study)}"))


def print_study(study: questions.Study) -> None:
    """Print the tables and the conclusion of a study."""
    scale = study.spec.spec.scale
    scaled = "" if scale == 1 else f", at real scale ({formatting.lab(scale)})"
    typer.echo(f"{study.study_id}: {study.spec.question.kind}{scaled}")
    for table in study_tables(study):
        print_table(table.title, table.columns, table.rows)
    if study.conclusion is not None:
        typer.echo(study.conclusion.sentence)
        for note in study.conclusion.notes:
            typer.echo(f"note: {note}")
    typer.echo(study_state(study))


async def _follow(
    client: "Operations", study: questions.Study, session: Session
) -> questions.Study:
    """Wait until a study ends. Print the result of each trial, and why the next one waits."""
    printed_count, waits_for = 0, None
    with show_progress(f"study {study.study_id}", trials_count(study.spec)) as advance:
        try:
            while True:
                study = await client.study(study.study_id)
                lines = []
                if study.waits_for not in (None, waits_for):
                    lines.append(f"waiting for {study.waits_for}")
                waits_for = study.waits_for
                layer = study.spec.spec.objective.layer
                lines += [_trial_text(one, layer) for one in study.results[printed_count:]]
                advance(len(study.results) - printed_count)
                printed_count = len(study.results)
                for line in lines if session.is_text else ():
                    typer.echo(line, err=True)
                if study.ended_at is not None:
                    return study
                await asyncio.sleep(_POLL_S)
        except asyncio.CancelledError:
            # Raised by Ctrl-C.
            typer.echo(left_text(study, local=session.api is None), err=True)
            raise


def _trial_text(result: questions.TrialResult, objective_layer: Layer) -> str:
    resets = result.reset_pairs_count
    rate, layer = result.received_at(objective_layer)
    received = f"{formatting.rate(rate)} {layer_label(layer)} at real scale"
    return f"trial {result.index + 1}: {received}{f', {resets} pairs reset' if resets else ''}"


def left_text(study: questions.Study, *, local: bool) -> str:
    """Return one line about a study that the command no longer waits for.

    Args:
        study: The study.
        local: True if the study was executed by this process.
    """
    done, planned = len(study.results), trials_count(study.spec)
    future = "it continues when `broadside serve` runs on this host" if local else "it continues"
    return (
        f"left study {study.study_id} without aborting it, after {done} of {planned} trials; "
        f"{future}; `broadside study show {study.study_id}` shows it, "
        f"`broadside study abort {study.study_id}` aborts it"
    )


def _split_command(event: str | None) -> list[str] | None:
    """Split a command into words. Exit if it is invalid."""
    try:
        argv = None if event is None else shlex.split(event)
    except ValueError as error:
        exit_usage(f"--event-command {event!r}: {error}")
    if argv == []:
        exit_usage("--event-command: the command is empty; give a program")
    return argv


def _axis(text: str) -> questions.Axis:
    field, equals, values = text.partition("=")
    if not equals or not field or not values:
        raise ValueError(
            f"--over {text!r}: expected FIELD=V1,V2,..., such as traffic.streams_count=1,8"
        )
    parsed = [scenarios.parse_overrides([f"{field}={one}"]) for one in values.split(",")]
    return questions.Axis(
        field=scenarios.field_of(field),
        values=tuple(value for override in parsed for value in override.values()),
    )


def _mode(text: str) -> questions.Mode:
    name, *assignments = text.split(":")
    return questions.Mode(name=name, overrides=scenarios.parse_overrides(assignments))
