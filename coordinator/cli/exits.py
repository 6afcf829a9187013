"""The exit codes of every command, and how each end, also an unexpected one, becomes one of them.

1 only ever says *fail*. Whatever nobody expected ends with 4, one line, and a file (or with
``--debug`` the terminal) that has the details: a crash is no verdict. A reader of the output that
left (``| head -1``) wants nothing said: 4, and no line.
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

INTERRUPTED: Final = 130  # left by Ctrl-C or q, as shells say it
DEBUG: Final = "BROADSIDE_DEBUG"  # set: an unexpected end prints its details
_BY_SIGNAL: Final = 128  # and above: as shells say it
_LINE_MAX_CHARS: Final = 600
_SECRET: Final = re.compile("token|secret|password|key|webhook|connection|join", re.IGNORECASE)


class Exit(IntEnum):
    """What a command's exit code says."""

    PASS = 0  # done; for a verdict: pass, or measured where no target was set
    FAIL = 1  # the verdict is fail
    INCONCLUSIVE = 2  # the verdict is inconclusive: the data cannot say
    USAGE = 3  # the command, a field or a value is wrong; nothing was done
    CANNOT_RUN = 4  # the command is right, but something it needs is missing or refused


# Errors whose own text says what is wrong, and the fix. By name: a command that needs none of them
# loads none of them.
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
    "HostsMisconfigured": Exit.CANNOT_RUN,
    "LabError": Exit.CANNOT_RUN,
    "LedgerError": Exit.CANNOT_RUN,
    "SignInError": Exit.CANNOT_RUN,
    "SwitchError": Exit.CANNOT_RUN,
}


def stop(message: str, code: Exit) -> NoReturn:
    """End the command with one line on standard error."""
    say(message)
    raise typer.Exit(code)


def say(message: str) -> None:
    """One line on standard error; where that is closed or full, the exit code says it alone."""
    with contextlib.suppress(OSError, ValueError):
        print(f"broadside: {one_line(message)}", file=sys.stderr, flush=True)  # noqa: T201


def code_of(command: Callable[[], object]) -> int:
    """The exit code of a command, however it ends; nothing is raised."""
    if sys.stdout is None:  # closed before we began: who did that wants no output
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for good
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
    """One line, and where the details are, for an end that no command expected."""
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
            return Exit.CANNOT_RUN  # rich has pointed standard output elsewhere
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
    """Whether an exit code says what it should: done, or ended by a signal."""
    return isinstance(code, int) and (code == 0 or code >= _BY_SIGNAL)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that led to it, groups taken apart."""
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
    """A variable of the environment and what is wrong with it, where that is the error."""
    title = str(getattr(error, "title", ""))
    if type(error).__name__ != "ValidationError" or not title.endswith("Settings"):
        return None
    fault = error.errors(include_url=False)[0]  # type: ignore[attr-defined]  # pydantic's, by name
    variable = f"BROADSIDE_{'_'.join(map(str, fault['loc'])).upper()}"
    value = shown_value(variable, fault["input"])
    return variable, f"{variable}={value}: {fault['msg']}"


def shown_value(field: str, value: object) -> str:
    """A setting's wrong value, unless it may be a secret: pipelines keep what commands say."""
    return "..." if _SECRET.search(field) else repr(value)


def _output_lost(error: OSError | ValueError) -> int:
    """What the command says cannot be written: its reader left, or the disk is full."""
    unread = False
    with contextlib.suppress(OSError, ValueError):  # else Python flushes it again: exit code 120
        unread = _is_unread(sys.stdout.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if unread:
        return Exit.CANNOT_RUN
    reason = getattr(error, "strerror", None) or str(error)
    say(f"output: {reason}; what was printed or saved is not whole, ask again")
    return Exit.CANNOT_RUN


def _is_unread(output: int) -> bool:
    """Whether it is a pipe that nobody reads any more."""
    poller = select.poll()
    poller.register(output, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _details(error: BaseException) -> str:
    """Print the traceback, or keep it in a file of its own; says which."""
    from broadside.exchange.log_lines import redact

    text = redact("".join(traceback.format_exception(error)))
    if os.environ.get(DEBUG):
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return "the details are above"
    try:
        number, path = tempfile.mkstemp(prefix="broadside-", suffix=".log")  # 0600
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return "run it again with --debug for the details"
    return f"the details are in {path}"


def _usage(error: typer.TyperException) -> str:
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)  # of usage errors: which command it was
    return f"{message} See `{context.command_path if context else 'broadside'} --help`."
