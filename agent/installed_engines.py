"""Engines that can be used on this host, with the paths and versions of their programs."""

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadside.agent.engine_process import Iperf3Program
from broadside.exchange.engines import engines
from broadside.exchange.engines.port import Engine, Program, Tool, Toolset
from broadside.exchange.messages import DEFAULT_ENGINE, EngineState, Role
from broadside.exchange.programs import module_command, program_environment, program_path

_TOOLS: Final = Path(__file__).resolve().parents[1] / ".tools"
_VERSION_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    """An engine with its programs on this host.

    Attributes:
        engine: The engine.
        tools: Programs that were found, by name.
        problem: Reason why the engine cannot be used here, with the fix. None if it can be used.
    """

    engine: Engine
    tools: Toolset
    problem: str | None = None

    @property
    def state(self) -> EngineState:
        """State of the engine, to be used in the presence."""
        versions = [f"{name} {tool.version}" for name, tool in self.tools.items()]
        return EngineState(
            name=self.engine.name,
            version=", ".join(versions)[:40] or None,
            problem=self.problem[:300] if self.problem else None,
            new_options=tuple(sorted(self.engine.new_options)),
        )


def find_installed_engine(engine: Engine, role: Role) -> InstalledEngine:
    """Search for the programs of an engine and run each to get its version.

    This takes some milliseconds and will block.

    Args:
        engine: Engine to search for.
        role: Role of the agent, which sets the programs that are needed.

    Returns:
        The engine with versions, or with the problem that prevents its use.
    """
    tools: dict[str, Tool] = {}
    programs = engine.client_programs if role is Role.CLIENT else engine.server_programs
    for program in programs:
        tool = find_program(program)
        if isinstance(tool, str):
            return InstalledEngine(engine=engine, tools=tools, problem=tool)
        tools[program.name] = tool
    return InstalledEngine(engine=engine, tools=tools)


def find_installed_engines(
    role: Role, names: Iterable[str] | None = None
) -> dict[str, InstalledEngine]:
    """Search for all engines except iperf3, which is found before the agent starts.

    Args:
        role: Role of the agent, which sets the programs that are needed.
        names: Names of the engines to search for, or None for all.

    Returns:
        The engines by name.
    """
    return {
        name: find_installed_engine(engine, role)
        for name, engine in engines().items()
        if name != DEFAULT_ENGINE and (names is None or name in names)
    }


def installed_iperf3(iperf3: Iperf3Program) -> InstalledEngine:
    """Return the iperf3 that is used by the agent."""
    tool = Tool(argv=tuple(map(str, iperf3.binary)), version=str(iperf3.version))
    return InstalledEngine(engine=engines()[DEFAULT_ENGINE], tools={DEFAULT_ENGINE: tool})


def unknown_engine(name: str) -> InstalledEngine:
    """Return an entry for an engine that is not known or has not been found yet."""
    return InstalledEngine(
        engine=engines().get(name) or engines()[DEFAULT_ENGINE],
        tools={},
        problem=f"{name}: this agent does not have this engine; update the agent, or launch again",
    )


def find_program(program: Program) -> Tool | str:
    """Return a program, or the reason in a single line if it cannot be used."""
    argv = _program_argv(program)
    if argv is None:
        return f"{program.name}: none here; {program.fix}"
    output = _ask_version([*argv, *program.version_argv])
    version = re.search(program.version_pattern, output)
    if version is None:
        version_line = output.strip().split("\n")[0][:100]
        return (
            f"{program.name}: {argv[-1]} does not print its version: {version_line!r}; "
            f"{program.fix}"
        )
    return Tool(argv=tuple(argv), version=version[1])


def _program_argv(program: Program) -> list[str] | None:
    if program.module is not None:
        return module_command(program.module)
    bundled = _TOOLS / program.name / "bin" / program.name
    path = program_path(str(bundled)) or program_path(program.name)
    return None if path is None else [path]


def _ask_version(argv: list[str]) -> str:
    """Return the version text of a program from any of its streams. vsftpd writes to its input."""
    reading, writing = os.pipe()
    try:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                argv,
                stdin=writing,
                stdout=writing,
                stderr=writing,
                env=program_environment(),
                timeout=_VERSION_TIMEOUT_S,
                check=False,
            )
        os.close(writing)
        writing = -1
        return os.read(reading, 65_536).decode(errors="replace")
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
