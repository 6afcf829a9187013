"""Exit codes for all commands, and how every error is converted to an exit code.

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

from broadside.coordinator.cli.screen_text import one_line

# Exit code after Ctrl-C or q, as in shells.
INTERRUPTED: Final = 130
# If set, an unexpected error prints its details.
DEBUG: Final = "BROADSIDE_DEBUG"
# A process that ended by signal N has the exit code 128 + N, as in shells.
_BY_SIGNAL: Final = 128
_LINE_MAX_CHARS: Final = 600
_SECRET: Final = re.compile("token|secret|password|key|webhook|connection|join", re.IGNORECASE)


class Exit(IntEnum):
    """Exit code values.

    Attributes:
        PASS: Done. For a verdict: pass, or measured if no target was set.
        FAIL: The verdict is fail.
        INCONCLUSIVE: The verdict is inconclusive.
        USAGE: The command, a field or a value is wrong. Nothing was done.
        CANNOT_RUN: The command is correct, but something that it needs is missing or refused.
    """

    PASS = 0
    FAIL = 1
    INCONCLUSIVE = 2
    USAGE = 3
    CANNOT_RUN = 4


# Errors that contain the problem and the fix. The table uses names, so that a command does not need
# to import the modules for all errors.
TOLD_BY_NAME: Final[Mapping[str, Exit]] = {
    "BadFile": Exit.USAGE,
    "BadSchedule": Exit.USAGE,
    "NoticesMisconfigured": Exit.USAGE,
    "ScenarioError": Exit.USAGE,
    "TokenTaken": Exit.USAGE,
    "UnknownAgent": Exit.USAGE,
    "UnknownToken": Exit.USAGE,
    "BadPrices": Exit.CANNOT_RUN,
    "BrowserError": Exit.CANNOT_RUN,
    "ExchangeError": Exit.CANNOT_RUN,
    "GatewayMisconfigured": Exit.CANNOT_RUN,
    "LabError": Exit.CANNOT_RUN,
    "TelemetryError": Exit.CANNOT_RUN,
    "SignInError": Exit.CANNOT_RUN,
    "SwitchError": Exit.CANNOT_RUN,
}


def stop(message: str, code: Exit) -> NoReturn:
    """Print one line on standard error and exit.

    Args:
        message: The line to print.
        code: The exit code to use.
    """
    say(message)
    raise typer.Exit(code)


def say(message: str) -> None:
    """Print one line on standard error. If that fails, only the exit code is returned."""
    with contextlib.suppress(OSError, ValueError):
        print(f"broadside: {one_line(message)}", file=sys.stderr, flush=True)  # noqa: T201


def code_of(command: Callable[[], object]) -> int:
    """Run a command and return its exit code. Nothing is raised."""
    if sys.stdout is None:
        # Standard output was closed before the start.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process ends
    try:
        code = _ended(command)
    except BaseException as error:
        code = _failed(error)
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        code = _output_lost(error)
    return code


def _ended(command: Callable[[], object]) -> int:
    try:
        code = command()
    except typer.TyperException as error:
        say(_usage(error))
        return Exit.USAGE
    except (typer.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    return int(code) if isinstance(code, int) else Exit.PASS


def _failed(error: BaseException) -> int:
    """Print one line for an unexpected error and return the exit code."""
    causes = list(_causes(error))
    if isinstance(error, SystemExit) and (error.code is None or _is_told(error.code)):
        return int(error.code or 0)
    for cause in causes:
        expected = _expected(cause)
        if expected is not None:
            say(str(cause))
            return expected
        if isinstance(cause, KeyboardInterrupt):
            say("interrupted")
            return INTERRUPTED
        if isinstance(error, SystemExit) and isinstance(cause, BrokenPipeError):
            # rich has redirected standard output.
            return Exit.CANNOT_RUN
        if isinstance(cause, OSError) and cause.errno in (errno.EPIPE, errno.ENOSPC):
            return _output_lost(cause)
    wrong = next(filter(None, map(wrong_setting, causes)), None)
    if wrong is not None:
        say(f"{wrong[1]}; mend or unset it")
        return Exit.USAGE
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            say(error.code)
    else:
        told = " ".join(str(causes[-1]).split())[:_LINE_MAX_CHARS]
        name = type(causes[-1]).__name__
        say(f"unexpected {name}{f': {told}' if told else ''}; {_details(error)}")
    return Exit.CANNOT_RUN


def _is_told(code: object) -> bool:
    """Return True if an exit code means success, or that a signal has ended the process."""
    return isinstance(code, int) and (code == 0 or code >= _BY_SIGNAL)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, and the members if it is a group."""
    seen: set[int] = set()
    left = [error]
    while left:
        cause = left.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        if isinstance(cause, BaseExceptionGroup):
            left += cause.exceptions
        else:
            yield cause
        if cause.__cause__ is not None:
            left.append(cause.__cause__)
        elif isinstance(cause, SystemExit) and cause.__context__ is not None:
            left.append(cause.__context__)


def _expected(error: BaseException) -> Exit | None:
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((TOLD_BY_NAME[name] for name in names if name in TOLD_BY_NAME), None)


def wrong_setting(error: BaseException) -> tuple[str, str] | None:
    """Return the environment variable that is wrong and the problem, or None for other errors."""
    title = str(getattr(error, "title", ""))
    if type(error).__name__ != "ValidationError" or not title.endswith("Settings"):
        return None
    fault = error.errors(include_url=False)[0]  # type: ignore[attr-defined]  # pydantic's, by name
    variable = f"BROADSIDE_{'_'.join(map(str, fault['loc'])).upper()}"
    value = shown_value(variable, fault["input"])
    return variable, f"{variable}={value}: {fault['msg']}"


def shown_value(field: str, value: object) -> str:
    """Return a wrong value as text, or "..." if it can be a secret, because CI stores output."""
    return "..." if _SECRET.search(field) else repr(value)


def _output_lost(error: OSError | ValueError) -> int:
    """Handle output that cannot be written, because the reader has left or the disk is full."""
    unread = False
    # Without this, Python flushes the output again at exit and returns 120.
    with contextlib.suppress(OSError, ValueError):
        unread = _is_unread(sys.stdout.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if unread:
        return Exit.CANNOT_RUN
    reason = getattr(error, "strerror", None) or str(error)
    say(f"output: {reason}; what was printed or saved is not whole, ask again")
    return Exit.CANNOT_RUN


def _is_unread(output: int) -> bool:
    """Return True if the output is a pipe without a reader."""
    poller = select.poll()
    poller.register(output, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _details(error: BaseException) -> str:
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
        return "run it again with --debug for the details"
    return f"the details are in {path}"


def _usage(error: typer.TyperException) -> str:
    message = " ".join(error.format_message().split())
    # Usage errors have the context of their command.
    context = getattr(error, "ctx", None)
    return f"{message} See `{context.command_path if context else 'broadside'} --help`."
