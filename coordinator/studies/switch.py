"""Puts the device under test into a state, by a command.

Switches are declared by whoever runs the coordinator, in a TOML file, and called by name: a caller
of the API chooses among them and can run nothing else. One table a switch, one key a state::

    [idps]                       # the switch
    rest = "off"                 # the state that a study leaves the device in
    timeout_s = 120
    settle_s = 30                # s from the change to the next trial
    [idps.states]
    off  = ["az", "network", "firewall", "policy", "update", ..., "--idps-mode", "Off"]
    deny = ["az", "network", "firewall", "policy", "update", ..., "--idps-mode", "Deny"]

An ARM call is such a command too, as :mod:`broadside.coordinator.device.policy_switch` is, which
signs it with the coordinator's managed identity.
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

from broadside.exchange.log_lines import redact
from broadside.exchange.messages import Message

_SAID_MAX_CHARS: Final = 300
_REAP_S: Final = 5.0  # s for a killed command to be gone

Argv = Annotated[tuple[str, ...], Field(min_length=1)]


class SwitchError(Exception):
    """A state could not be set; the message is one line for a person."""


class Switch(Message):
    """One switch of the device and the command for each of its states."""

    rest: str
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    states: Mapping[str, Argv] = Field(min_length=1)

    @model_validator(mode="after")
    def _rests_in_a_state(self) -> "Switch":
        if self.rest not in self.states:
            raise ValueError(f"rest: {self.rest!r} is none of {', '.join(self.states)}")
        return self

    async def set(self, state: str) -> None:
        """Put the device into ``state`` and wait until it settled. Raises :class:`SwitchError`.

        A command that takes longer than ``timeout_s`` is killed: nobody changes the device later.
        """
        argv = self.states.get(state)
        if argv is None:
            raise SwitchError(f"state {state!r}: the switch has {', '.join(self.states)}")
        code, said = await run_argv(argv, self.timeout_s, f"state {state!r}")
        if code != 0:
            raise SwitchError(f"state {state!r}: exit {code}: {said or 'no word'}")
        await asyncio.sleep(self.settle_s)


async def run_argv(argv: Sequence[str], timeout_s: float, what: str) -> tuple[int, str]:
    """Run a command, without any shell, to its end: its exit code and the end of what it said.

    It and all that it started are killed when it takes longer than ``timeout_s``, or when this is
    cancelled. Raises :class:`SwitchError`.
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
            said, _ = await process.communicate()
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # who left the group may hold the pipe
            await asyncio.wait_for(process.wait(), _REAP_S)
        if isinstance(error, TimeoutError):
            raise SwitchError(f"{what}: no end within {timeout_s:g} s") from error
        raise
    words = " ".join(redact(said.decode(errors="replace")).split())[-_SAID_MAX_CHARS:]
    return process.returncode or 0, words


def read_switches(path: Path | None) -> Mapping[str, Switch]:
    """The switches of a file, by name; none without a file. Raises :class:`SwitchError`."""
    if path is None:
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SwitchError(f"switches file {path}: {error}; see docs/studies.md") from error
    switches = {}
    for name, value in values.items():
        try:
            switches[name] = Switch.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join([name, *map(str, first["loc"])])
            raise SwitchError(f"switches file {path}: {where}: {first['msg']}") from error
    return switches
