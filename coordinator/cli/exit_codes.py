"""Exit codes of all commands, and how every error is converted to one.

Exit code 1 always means *fail*. An unexpected error exits with 4, prints one line, and writes the
details to a file, or with ``--debug`` to the terminal. A crash is therefore never a verdict. If the
process that reads the output has closed the pipe (``| head -1``), the code is 4 without a line.
"""

import contextlib
import errno
import os
import re
import select
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NoReturn

import typer

from broadside.coordinator.cli.terminal_text import one_line

# Exit code after Ctrl-C or q, as in shells.
INTERRUPTED: Final = 130
# If set, an unexpected error will print its details.
DEBUG: Final = "BROADSIDE_DEBUG"
# A process that ended by signal N has the exit code 128 + N, as in shells.
_BY_SIGNAL: Final = 128
_LINE_MAX_CHARS: Final = 600
_SECRET: Final = re.compile("token|secret|password|key|webhook|connection|join", re.IGNORECASE)


class ExitCode(IntEnum):
    """Exit code values.

    Attributes:
        PASS: Done. For a verdict: pass, or measured if no target was set.
        FAIL: The verdict is fail.
        INCONCLUSIVE: The verdict is inconclusive.
        USAGE: The command, a field or a value is wrong, or a name is unknown. Nothing was done.
        CANNOT_RUN: The command is correct, but something that it needs is missing or refused.
    """

    PASS = 0
    FAIL = 1
    INCONCLUSIVE = 2
    USAGE = 3
    CANNOT_RUN = 4


# Errors whose message has the problem and the fix. The table uses names, so that a command does not
# import the modules of all errors.
EXIT_BY_ERROR: Final[Mapping[str, ExitCode]] = {
    "BadFile": ExitCode.USAGE,
    "BadSchedule": ExitCode.USAGE,
    "NoticesMisconfigured": ExitCode.USAGE,
    "ScenarioError": ExitCode.USAGE,
    "TokenTaken": ExitCode.USAGE,
    "UnknownAgent": ExitCode.USAGE,
    "UnknownToken": ExitCode.USAGE,
    "BadPrices": ExitCode.CANNOT_RUN,
    "BrowserError": ExitCode.CANNOT_RUN,
    "ExchangeError": ExitCode.CANNOT_RUN,
    "GatewayMisconfigured": ExitCode.CANNOT_RUN,
    "LabError": ExitCode.CANNOT_RUN,
    "SignInError": ExitCode.CANNOT_RUN,
    "SwitchError": ExitCode.CANNOT_RUN,
    "TelemetryError": ExitCode.CANNOT_RUN,
}


def exit_with_error(message: str, code: ExitCode = ExitCode.CANNOT_RUN) -> NoReturn:
    """Print one line on standard error and exit.

    Args:
        message: The line to print.
        code: Exit code.

    Returns:
        Never.

    Raises:
        typer.Exit: Always, with ``code``.
    """
    print_error(message)
    raise typer.Exit(code)


def exit_usage(message: str) -> NoReturn:
    """Print one line about a wrong option, field or value, and exit with ``ExitCode.USAGE``."""
    exit_with_error(message, ExitCode.USAGE)


def print_error(message: str) -> None:
    """Print one line on standard error. If that fails, only the exit code is returned."""
    with contextlib.suppress(OSError, ValueError):
        print(f"broadside: {one_line(message)}", file=sys.stderr, flush=True)  # noqa: T201


def run_with_exit_code(command: Callable[[], object]) -> int:
    """Run a command and return its exit code. Nothing is raised."""
    if sys.stdout is None:
        # Standard output was closed before the start.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process ends
    try:
        result = command()
        code = int(result) if isinstance(result, int) else ExitCode.PASS
    except BaseException as error:
        code = _exit_code_of(error)
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        code = _handle_lost_output(error)
    return code


def _exit_code_of(error: BaseException) -> int:
    """Print one line for an error and return its exit code."""
    if isinstance(error, typer.TyperException):
        print_error(_usage_message(error))
        return ExitCode.USAGE
    if isinstance(error, SystemExit) and _is_final(error.code):
        return int(error.code or 0)
    causes = list(_causes(error))
    for cause in causes:
        code = _expected_code(error, cause)
        if code is not None:
            return code
    invalid = next(filter(None, map(invalid_setting, causes)), None)
    if invalid is not None:
        print_error(f"{invalid[1]}; correct it or unset it")
        return ExitCode.USAGE
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            print_error(error.code)
    else:
        text = " ".join(str(causes[-1]).split())[:_LINE_MAX_CHARS]
        name = type(causes[-1]).__name__
        print_error(f"unexpected {name}{f': {text}' if text else ''}; {_save_details(error)}")
    return ExitCode.CANNOT_RUN


def _is_final(code: object) -> bool:
    """Return True if an exit code means success, or that a signal has ended the process."""
    return code is None or (isinstance(code, int) and (code == 0 or code >= _BY_SIGNAL))


def _expected_code(error: BaseException, cause: BaseException) -> int | None:
    """Print the line of an expected cause and return its exit code, or None for other causes."""
    names = (kind.__name__ for kind in type(cause).__mro__)
    code = next((EXIT_BY_ERROR[name] for name in names if name in EXIT_BY_ERROR), None)
    if code is not None:
        print_error(str(cause))
        return code
    if isinstance(cause, (typer.Abort, KeyboardInterrupt)):
        print_error("interrupted")
        return INTERRUPTED
    if isinstance(error, SystemExit) and isinstance(cause, BrokenPipeError):
        # rich has redirected standard output.
        return ExitCode.CANNOT_RUN
    if isinstance(cause, OSError) and cause.errno in (errno.EPIPE, errno.ENOSPC):
        return _handle_lost_output(cause)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, and the members if it is a group."""
    seen: set[int] = set()
    pending = [error]
    while pending:
        cause = pending.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        if isinstance(cause, BaseExceptionGroup):
            pending += cause.exceptions
        else:
            yield cause
        if cause.__cause__ is not None:
            pending.append(cause.__cause__)
        elif isinstance(cause, SystemExit) and cause.__context__ is not None:
            pending.append(cause.__context__)


def invalid_setting(error: BaseException) -> tuple[str, str] | None:
    """Return the invalid environment variable and the problem, or None for other errors."""
    title = str(getattr(error, "title", ""))
    if type(error).__name__ != "ValidationError" or not title.endswith("Settings"):
        return None
    problem = error.errors(include_url=False)[0]  # type: ignore[attr-defined]  # pydantic's, by name
    variable = f"BROADSIDE_{'_'.join(map(str, problem['loc'])).upper()}"
    value = masked_value(variable, problem["input"])
    return variable, f"{variable}={value}: {problem['msg']}"


def masked_value(field: str, value: object) -> str:
    """Return an invalid value as text, or "..." if it can be a secret, because CI stores output.

    Args:
        field: Name of the setting or option, which decides if the value can be a secret.
        value: Invalid value.
    """
    return "..." if _SECRET.search(field) else repr(value)


def _handle_lost_output(error: OSError | ValueError) -> int:
    """Handle output that cannot be written, because the reader has left or the disk is full."""
    reader_left = False
    # Without this, Python flushes the output again at exit and returns 120.
    with contextlib.suppress(OSError, ValueError):
        reader_left = _has_no_reader(sys.stdout.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not reader_left:
        reason = getattr(error, "strerror", None) or str(error)
        print_error(f"output: {reason}; the output is incomplete, run the command again")
    return ExitCode.CANNOT_RUN


def _has_no_reader(output: int) -> bool:
    """Return True if the output is a pipe without a reader."""
    poller = select.poll()
    poller.register(output, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _save_details(error: BaseException) -> str:
    """Print the traceback or write it to a new file, and return where it is."""
    from broadside.exchange.log_sanitizer import redact

    text = redact("".join(traceback.format_exception(error)))
    if os.environ.get(DEBUG):
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return "the details are above"
    try:
        # The file has mode 0600.
        number, path = tempfile.mkstemp(prefix="broadside-", suffix=".log")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return "run the command again with --debug to see the details"
    return f"the details are in {path}"


def _usage_message(error: typer.TyperException) -> str:
    message = " ".join(error.format_message().split())
    # Usage errors have the context of their command.
    context = getattr(error, "ctx", None)
    return f"{message} See `{context.command_path if context else 'broadside'} --help`."
