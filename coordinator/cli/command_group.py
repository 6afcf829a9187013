"""Command groups that take options and their help from the signature and docstring of functions.

A command function declares a parameter with :class:`Output` or
:class:`~broadside.coordinator.cli.session.Session`. :class:`CommandGroup` replaces it with the
options ``--output``, ``--api`` and ``--token-file``. There is no ``--token``, because every user on
a host can read the process arguments.
"""

import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeVar, get_args, get_origin

import typer

from broadside.coordinator.cli.document_output import OutputFormat, print_document, print_rows
from broadside.coordinator.cli.exit_codes import exit_usage
from broadside.coordinator.cli.terminal_text import is_unwrapped

TOKEN: Final = "BROADSIDE_TOKEN"  # noqa: S105 - name of a variable
_SECRET_MAX_CHARS: Final = 16_384

T = TypeVar("T")

Api = Annotated[
    str | None,
    typer.Option(
        "--api",
        metavar="URL",
        envvar="BROADSIDE_API",
        help="Address of a coordinator; default: use the local store directly.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="BROADSIDE_TOKEN_FILE",
        help="File with the bearer token for --api in its first line, - for standard input; "
        f"default: the variable {TOKEN}.",
    ),
]


class ResultFormat(StrEnum):
    """Output format of a command that also writes Markdown."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    MD = "md"


_OUTPUT_OPTION: Final = typer.Option("--output", "-o", help="Output format.")
OUTPUT_OPTION: Final[Mapping[str, Any]] = {"output": Annotated[OutputFormat, _OUTPUT_OPTION]}
RESULT_OPTION: Final[Mapping[str, Any]] = {"output": Annotated[ResultFormat, _OUTPUT_OPTION]}
CONNECTION_OPTIONS: Final[Mapping[str, Any]] = {"api": Api, "token_file": TokenFile}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Output format of one command.

    Attributes:
        output: The format.
        options: Options of a command with a parameter of this class.
    """

    options: ClassVar[Mapping[str, Any]] = OUTPUT_OPTION
    output: OutputFormat | ResultFormat = OutputFormat.TABLE

    @property
    def is_text(self) -> bool:
        """Return True if the output is text for a person."""
        return self.output in (OutputFormat.TABLE, OutputFormat.WIDE)

    def show(
        self,
        value: T,
        print_text: Callable[[T], object],
        *,
        rows: "tuple[Callable[[T], Sequence[Any]], str] | None" = None,
    ) -> None:
        """Print a value in the format of ``--output``.

        Args:
            value: A model, or a JSON value.
            print_text: Function that prints the text.
            rows: Function that returns the rows of a file, and their type (``module:name``).
                Defaults to one row with the value.
        """
        if self.is_text:
            print_text(value)
        elif self.output in (OutputFormat.JSON, OutputFormat.YAML):
            print_document(value, self.output)
        else:
            if rows is None:
                print_rows(value if isinstance(value, list) else [value], self.output)
            else:
                print_rows(rows[0](value), self.output, model=rows[1])


def read_secret(option: str, path: Path) -> str:
    """Return the first line of a file. Exit if it cannot be read or is empty.

    Args:
        option: Option name to use in error messages.
        path: File to read, or `-` for standard input.
    """
    try:
        if str(path) == "-":
            line = sys.stdin.readline(_SECRET_MAX_CHARS)
        else:
            with path.open(encoding="utf-8") as text:
                line = text.readline(_SECRET_MAX_CHARS)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        exit_usage(f"{option} {path}: {reason}")
    secret = line.strip()
    if not secret:
        exit_usage(f"{option} {path}: its first line is empty")
    return secret


# One entry of an ``Args`` section.
_HELP: Final = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_Command = TypeVar("_Command", bound=Callable[..., Any])


class CommandGroup(typer.Typer):
    """Command group that completes the signature of its functions.

    A parameter ``session`` is replaced with its options. The ``Args`` section of the
    docstring is the help of the options that have no other help.
    """

    def command(self, *args: Any, **kwargs: Any) -> Callable[[_Command], _Command]:
        """Register a function as Typer does, with its options added to its signature.

        Args:
            *args: Arguments of :meth:`typer.Typer.command`.
            **kwargs: Keyword arguments of :meth:`typer.Typer.command`.

        Returns:
            Decorator that registers a function and returns it unchanged.
        """
        register = super().command(*args, **kwargs)

        def add(function: _Command) -> _Command:
            register(_with_options(function))
            return function

        return add


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the signature and the docstring that Typer needs."""
    signature = inspect.signature(function, eval_str=True)
    parameters = dict(signature.parameters)
    session = parameters.pop("session", None)
    kind, options = (None, {}) if session is None else _session_type(session.annotation)
    defaults = {} if kind is None else {field.name: field.default for field in fields(kind)}

    @functools.wraps(function)
    def run(**values: Any) -> Any:
        if kind is None:
            return function(**values)
        values["session"] = output = kind(**{name: values.pop(name) for name in options})
        before = is_unwrapped.set(getattr(output, "output", None) == OutputFormat.WIDE)
        try:
            if getattr(output, "watch", False):
                from broadside.coordinator.cli.repeated_output import repeat

                return repeat(lambda: function(**values), output.output)
            return function(**values)
        finally:
            is_unwrapped.reset(before)

    run.__doc__, _, section = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    for name, text in _HELP.findall(section):
        parameters[name] = _with_help(parameters[name], " ".join(text.split()))
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults[name],
            annotation=annotation,
        )
        for name, annotation in options.items()
    ]
    # Typer uses the signature from `inspect` to get the options.
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters.values(), *added]
    )
    return run


def _session_type(annotation: Any) -> tuple[type[Any], Mapping[str, Any]]:
    """Return the class of a session parameter, and its options or those in the annotation."""
    if get_origin(annotation) is Annotated:
        kind, options = get_args(annotation)
        return kind, options
    return annotation, annotation.options


def _with_help(parameter: inspect.Parameter, text: str) -> inspect.Parameter:
    kind, *metadata = get_args(parameter.annotation) or (parameter.annotation,)
    if get_origin(parameter.annotation) is not Annotated:
        is_required = parameter.default is inspect.Parameter.empty
        kind, metadata = parameter.annotation, [typer.Argument() if is_required else typer.Option()]
    info = copy.copy(metadata[0])
    info.help = text
    return parameter.replace(annotation=Annotated[kind, info])
