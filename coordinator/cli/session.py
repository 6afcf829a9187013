"""Connection of a command to the coordinator."""

import asyncio
import contextlib
import getpass
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar

import typer

from broadside.coordinator.cli.api_errors import REQUEST_TIMEOUT_S, ApiError
from broadside.coordinator.cli.command_group import (
    CONNECTION_OPTIONS,
    OUTPUT_OPTION,
    RESULT_OPTION,
    TOKEN,
    Output,
    read_secret,
)
from broadside.coordinator.cli.exit_codes import ExitCode, exit_with_error
from broadside.coordinator.cli.known_names import (
    NameLister,
    dead_letter_numbers,
    labels,
    run_ids,
    schedule_names,
    study_ids,
    with_suggestion,
)
from broadside.coordinator.cli.options import complete_field

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations
    from broadside.exchange.ports import Table

LAST: Final = "last"
PREVIOUS: Final = "previous"
# Time to wait for shell completion.
_COMPLETION_S: Final = 2.0
_COMPLETED_COUNT: Final = 20

Watch = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Print the output again when it changes, until Ctrl-C."),
]

T = TypeVar("T")
Work = Callable[["Operations"], Awaitable[T]]
IdWork = Callable[["Operations", str], Awaitable[T]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Output):
    """Connection options and output format of one command.

    Attributes:
        api: Coordinator address. None to use the local store.
        token_file: File with the bearer token. None to use the environment.
    """

    options: ClassVar[Mapping[str, Any]] = {**CONNECTION_OPTIONS, **OUTPUT_OPTION}
    api: str | None = None
    token_file: Path | None = None

    @contextlib.asynccontextmanager
    async def connect(self, *, drive: bool = False) -> AsyncIterator["Operations"]:
        """Open the coordinator operations.

        Args:
            drive: Process unfinished runs while the connection is open. Only for the local store.
        """
        if self.api is None:
            from broadside.coordinator.cli.operations import local_operations

            async with local_operations(user_name(), drive=drive) as local:
                yield local
            return
        from broadside.coordinator.cli.api_client import connect

        token = os.environ.get(TOKEN) or None
        if self.token_file is not None:
            token = read_secret("--token-file", self.token_file)
        async with connect(self.api, token) as client:
            yield client

    def call(
        self,
        work: Work[T],
        *,
        drive: bool = False,
        has_progress: bool = False,
        expected_s: float | None = None,
    ) -> T:
        """Run ``work`` with a connection. An expected error prints one line and exits.

        Args:
            work: Coroutine function that receives the operations.
            drive: Process unfinished runs meanwhile. Only for the local store.
            has_progress: ``work`` shows its progress, as it does with ``drive``.
            expected_s: Usual duration in seconds. None if unknown.

        Returns:
            The result of ``work``.

        Raises:
            typer.Exit: The API reported an error.
        """

        async def connected() -> T:
            async with self.connect(drive=drive) as client:
                try:
                    return await work(client)
                except ApiError as error:
                    raise await with_suggestion(client, error) from error

        from broadside.coordinator.cli.progress_display import show_progress

        limit_s = None if self.api is None else REQUEST_TIMEOUT_S
        shown = show_progress("working", limit_s=limit_s, expected_s=expected_s)
        try:
            with contextlib.nullcontext() if drive or has_progress else shown:
                return asyncio.run(connected())
        except ApiError as error:
            is_usage = error.status in (404, 422)
            exit_with_error(str(error), ExitCode.USAGE if is_usage else ExitCode.CANNOT_RUN)

    def call_run(
        self, run_id: str, work: IdWork[T], *, drive: bool = False, has_progress: bool = False
    ) -> T:
        """Run a function with the id of a run.

        Args:
            run_id: Id of the run. You can also use `last` and `previous`.
            work: Function to call with the client and the id.
            drive: Process unfinished runs meanwhile. Only for the local store.
            has_progress: ``work`` shows its progress, as it does with ``drive``.

        Returns:
            The result of ``work``.
        """

        async def resolved(client: "Operations") -> T:
            return await work(client, await resolve_run(client, run_id))

        return self.call(resolved, drive=drive, has_progress=has_progress)

    def call_study(self, study_id: str, work: IdWork[T]) -> T:
        """Run ``work`` with a study id; `last` is resolved.

        Args:
            study_id: Id of the study. You can also use `last`.
            work: Function to call with the client and the id.

        Returns:
            The result of ``work``.

        Raises:
            typer.Exit: The API reported an error.
        """

        async def resolved(client: "Operations") -> T:
            return await work(client, await resolve_study(client, study_id))

        return self.call(resolved)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSession(Session):
    """Session of a command that also writes Markdown."""

    options: ClassVar[Mapping[str, Any]] = {**CONNECTION_OPTIONS, **RESULT_OPTION}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSession(Session):
    """Session of a command that can repeat its output.

    Attributes:
        watch: Print the output again when it changes, until Ctrl-C.
    """

    options: ClassVar[Mapping[str, Any]] = {**Session.options, "watch": Watch}
    watch: bool = False


def user_name() -> str:
    """Return the user name for the audit log. In a container you can have only a number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def run_on_private(work: Callable[["Table"], Awaitable[T]]) -> T:
    """Run ``work`` on the private table of the local store, for tasks that the API lacks."""
    from broadside.exchange.fabric import FabricSettings, open_fabric

    async def with_table() -> T:
        fabric = open_fabric(FabricSettings())
        try:
            return await work(fabric.private)
        finally:
            await fabric.close()

    return asyncio.run(with_table())


async def resolve_run(client: "Operations", run_id: str) -> str:
    """Return the run id to use.

    Args:
        client: The operations to use.
        run_id: An id, `last` for the newest run, or `previous` for the run before it of the same
            scenario.
    """
    if run_id not in (LAST, PREVIOUS):
        return run_id
    newest = await client.runs(1)
    if not newest:
        exit_with_error("no run yet; start one with `broadside launch loopback`")
    if run_id == LAST:
        return newest[0].run_id
    scenario = newest[0].scenario
    both = await client.runs(2, scenario=scenario)
    if len(both) < 2:
        exit_with_error(f"previous: {newest[0].run_id} is the only run of scenario {scenario}")
    return both[1].run_id


async def resolve_study(client: "Operations", study_id: str) -> str:
    """Return the study id to use; `last` is the newest study.

    Args:
        client: The operations to use.
        study_id: Id of the study, or `last`.

    Raises:
        typer.Exit: There is no study yet.
    """
    if study_id != LAST:
        return study_id
    newest = await client.studies(1)
    if not newest:
        exit_with_error("no study yet; start one with `broadside study`")
    return newest[0].study_id


# Annotation for commands that write files or bytes.
ApiSession = Annotated[Session, CONNECTION_OPTIONS]


def complete(list_names: NameLister, *first: str) -> Callable[[typer.Context, str], Sequence[str]]:
    """Return a function that completes names, for the shell completion of a parameter.

    Args:
        list_names: Function that lists the names. Without a fast response there are none.
        first: Names to suggest before the others.
    """

    def matching(context: typer.Context, incomplete: str) -> Sequence[str]:
        async def listed() -> list[str]:
            async with Session(
                api=context.params.get("api"), token_file=context.params.get("token_file")
            ).connect() as client:
                return await list_names(client)

        names: list[str] = []
        # Shell completion should never print a traceback.
        with contextlib.suppress(Exception):
            names = asyncio.run(asyncio.wait_for(listed(), _COMPLETION_S))
        matches = [name for name in (*first, *names) if name.startswith(incomplete)]
        return matches[: len(first) + _COMPLETED_COUNT]

    return matching


complete_run: Final = complete(run_ids, LAST, PREVIOUS)
complete_study: Final = complete(study_ids, LAST)
complete_schedule: Final = complete(schedule_names)
complete_dead_letter: Final = complete(dead_letter_numbers)
complete_label: Final = complete(labels)


def complete_assignment(context: typer.Context, incomplete: str) -> Sequence[str]:
    """Return fields and values for ``--set``, with the labels of the newest runs.

    Args:
        context: Context of the shell completion.
        incomplete: Text that the user has typed.
    """
    if not incomplete.startswith("labels."):
        return complete_field(incomplete)
    prefix, label = incomplete[:7], incomplete[7:]
    return [prefix + one for one in complete_label(context, label)]


Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Override a field of the scenario; repeatable.",
        autocompletion=complete_assignment,
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Run id, `last` or `previous`.", autocompletion=complete_run
    ),
]
