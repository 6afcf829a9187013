"""Switches to set a state of the device under test, with a command for each state.

Switches are declared by the operator of the coordinator in a TOML file, and are used by name. A
client of the API can only select one of them, and cannot run any other command. There is one table
for each switch, and one key for each state::

    [idps]                       # the switch
    rest = "off"                 # state to set at the end of a study
    timeout_s = 120
    settle_s = 30                # seconds from the change to the next trial
    [idps.states]
    off  = ["az", "network", "firewall", "policy", "update", ..., "--idps-mode", "Off"]
    deny = ["az", "network", "firewall", "policy", "update", ..., "--idps-mode", "Deny"]

An ARM call can also be used as a command, see :mod:`broadside.coordinator.device.policy_switch`. It
is signed with the managed identity of the coordinator.
"""

import asyncio
import contextlib
import os
import signal
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError, model_validator

from broadside.exchange.log_sanitizer import redact
from broadside.exchange.messages import Message

_SAID_MAX_CHARS: Final = 300
# Time to wait for a killed command to end.
_REAP_S: Final = 5.0

Argv = Annotated[tuple[str, ...], Field(min_length=1)]


class SwitchError(Exception):
    """A state could not be set. The message is one line for a user."""


class Switch(Message):
    """A switch of the device with a command for each state."""

    rest: str
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    states: Mapping[str, Argv] = Field(min_length=1)

    @model_validator(mode="after")
    def _rests_in_a_state(self) -> "Switch":
        if self.rest not in self.states:
            raise ValueError(f"rest: {self.rest!r}: give one of {', '.join(self.states)}")
        return self

    async def set(self, state: str) -> None:
        """Set a device state, and wait until it has settled.

        A command that runs longer than ``timeout_s`` is killed, so that it cannot change the device
        later.

        Raises:
            SwitchError: The state is unknown, or the command failed.
        """
        argv = self.states.get(state)
        if argv is None:
            raise SwitchError(f"state {state!r}: give one of {', '.join(self.states)}")
        code, output = await run_argv(argv, self.timeout_s, f"state {state!r}")
        if code != 0:
            raise SwitchError(f"state {state!r}: exit {code}: {output or 'no output'}")
        await asyncio.sleep(self.settle_s)


async def run_argv(argv: Sequence[str], timeout_s: float, what: str) -> tuple[int, str]:
    """Run a command without a shell, and wait for it to end.

    The command and all its child processes are killed on a timeout, or if this task is cancelled.

    Args:
        argv: The command with its arguments.
        timeout_s: Time limit in seconds.
        what: Text for error messages.

    Returns:
        The exit code, and the last part of the output.

    Raises:
        SwitchError: The command could not be started, or there was a timeout.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise SwitchError(f"{what}: {argv[0]}: {error.strerror}") from error
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that has left the process group can still use the pipe.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _REAP_S)
        if isinstance(error, TimeoutError):
            raise SwitchError(f"{what}: did not end within {timeout_s:g} s") from error
        raise
    text = " ".join(redact(output.decode(errors="replace")).split())[-_SAID_MAX_CHARS:]
    return process.returncode or 0, text


def read_switches(path: Path | None) -> Mapping[str, Switch]:
    """Return the switches in a file by name. If there is no file, there are no switches.

    Raises:
        SwitchError: The file cannot be read, or is invalid.
    """
    if path is None:
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SwitchError(
            f"switches file {path}: {error}; see /docs/studies.html of the coordinator"
        ) from error
    switches = {}
    for name, value in values.items():
        try:
            switches[name] = Switch.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join([name, *map(str, first["loc"])])
            raise SwitchError(f"switches file {path}: {field}: {first['msg']}") from error
    return switches
