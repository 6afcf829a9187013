"""Command groups that take options and their help from the signature and docstring of functions.

A command function declares a parameter with :class:`Output` or
:class:`~broadside.coordinator.cli.session.Session`. :class:`CommandGroup` replaces it with the
options ``--json``, ``--api`` and ``--token-file``. There is no ``--token``, because every user on a
host can read the process arguments.
"""

import copy
import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeVar, get_args, get_origin

import typer

from broadside.coordinator.cli.exit_codes import exit_usage

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
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]

JSON_OPTION: Final[Mapping[str, Any]] = {"as_json": Json}
CONNECTION_OPTIONS: Final[Mapping[str, Any]] = {"api": Api, "token_file": TokenFile}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Output format of one command.

    Attributes:
        as_json: Print JSON instead of text.
        options: Options of a command with a parameter of this class.
    """

    options: ClassVar[Mapping[str, Any]] = JSON_OPTION
    as_json: bool = False

    def show(self, value: T, print_text: Callable[[T], object]) -> None:
        """Print a value as JSON if ``--json`` is set, otherwise with ``print_text``."""
        if self.as_json:
            print_json(value)
        else:
            print_text(value)


def print_json(value: object) -> None:
    """Print one JSON document on standard output."""
    # By name, because pydantic is slow to import.
    dump = getattr(value, "model_dump_json", None)
    typer.echo(json.dumps(value, indent=2) if dump is None else dump(indent=2, by_alias=True))


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
        """Register a function as Typer does, with its options added to its signature."""
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
    options = {} if session is None else _options_of(session.annotation)

    @functools.wraps(function)
    def run(**values: Any) -> Any:
        if session is not None:
            kind = get_args(session.annotation) or (session.annotation,)
            values["session"] = kind[0](**{name: values.pop(name) for name in options})
        return function(**values)

    run.__doc__, _, section = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    for name, text in _HELP.findall(section):
        parameters[name] = _with_help(parameters[name], " ".join(text.split()))
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "as_json" else None,
            annotation=annotation,
        )
        for name, annotation in options.items()
    ]
    # Typer uses the signature from `inspect` to get the options.
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters.values(), *added]
    )
    return run


def _options_of(annotation: Any) -> Mapping[str, Any]:
    """Return the options of a class, or those in an annotation."""
    if get_origin(annotation) is Annotated:
        return dict(get_args(annotation)[1])
    return dict(annotation.options)


def _with_help(parameter: inspect.Parameter, text: str) -> inspect.Parameter:
    kind, *metadata = get_args(parameter.annotation) or (parameter.annotation,)
    if get_origin(parameter.annotation) is not Annotated:
        is_required = parameter.default is inspect.Parameter.empty
        kind, metadata = parameter.annotation, [typer.Argument() if is_required else typer.Option()]
    info = copy.copy(metadata[0])
    info.help = text
    return parameter.replace(annotation=Annotated[kind, info])
