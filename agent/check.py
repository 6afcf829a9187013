"""Checks for the agent on this host.

``python -m broadside.agent.check`` prints them as a JSON list. The arguments are server addresses,
which are compared with the allowed networks. The checks run in a separate process because the
coordinator never imports the agent.

- ``--check-permissions`` instead of addresses checks the permissions of the agent's identity on
  queue and tables. The exit code is 4 if a permission is missing or excessive.
- ``--ready [ENGINE...]`` instead of addresses is ``broadside agent --check``. It prints plain
  lines. The exit code is 4 if something required by the agent's role is missing.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter, ValidationError

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.clock import clock_problem, read_clock
from broadside.agent.engine_process import EngineError, find_iperf3
from broadside.agent.gate import explain_no_gate, find_gate
from broadside.agent.host import HostUnknown, find_host
from broadside.agent.installed_engines import find_installed_engine, find_program
from broadside.agent.run import EXIT_CANNOT_RUN, EXIT_USAGE, one_line
from broadside.exchange.checks import HostCheck
from broadside.exchange.engines import engines
from broadside.exchange.engines.iperf3 import streams_json
from broadside.exchange.engines.port import Tool
from broadside.exchange.fabric.identity_rights import Identity, rights_checks
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.installation import bring_recent_iperf3
from broadside.exchange.messages import DEFAULT_ENGINE, Role
from broadside.exchange.ports import ExchangeMisconfigured

RIGHTS: Final = "--check-permissions"
READY: Final = "--ready"
# Default for a job's clock gate, in seconds.
GATE_BOUND_S = 0.05


def checks(settings: AgentSettings, servers: Sequence[str] = ()) -> list[HostCheck]:
    """Check everything that an agent on this host needs.

    Args:
        settings: Settings to use.
        servers: Addresses that the agent may have to send to.

    Returns:
        One entry for each check.
    """
    # A separate check reports this.
    with contextlib.suppress(HostUnknown):
        settings = settings.reaching(find_host(settings).address)
    return [
        _engine(settings),
        *_other_engines(),
        _gate(),
        _clock(settings),
        _address(settings),
        _networks(settings, servers),
    ]


def _engine(settings: AgentSettings) -> HostCheck:
    try:
        engine = find_iperf3(None if settings.iperf3 is None else str(settings.iperf3))
    except EngineError as error:
        results, _, fix = str(error).partition("; ")
        return HostCheck(name=DEFAULT_ENGINE, ok=False, detail=results, fix=fix)
    detail = f"{engine.version}, {' '.join(engine.binary)}"
    if streams_json(engine.version):
        return HostCheck(name=DEFAULT_ENGINE, ok=True, detail=detail)
    return HostCheck(
        name=DEFAULT_ENGINE,
        ok=True,
        detail=f"{detail}: no seconds while it runs, those come from host counters",
        fix=bring_recent_iperf3("3.17"),
    )


def _other_engines() -> list[HostCheck]:
    """Check if this host can be used for other engines. These are optional."""
    results = []
    for name, engine in engines().items():
        if name == DEFAULT_ENGINE:
            continue
        tools: dict[str, Tool] = {}
        missing: list[str] = []
        for program in (*engine.client_programs, *engine.server_programs):
            tool = find_program(program)
            if isinstance(tool, str):
                missing.append(tool)
            else:
                tools[program.name] = tool
        detail = ", ".join(f"{program} {tool.version}" for program, tool in tools.items())
        problem, _, fix = (missing[0] if missing else "").partition("; ")
        results.append(
            HostCheck(
                name=f"engine {name}",
                ok=not missing,
                detail=problem or detail,
                fix=fix or None,
                required=False,
            )
        )
    return results


def _gate() -> HostCheck:
    gate = find_gate()
    if gate is None:
        why, _, fix = explain_no_gate().partition("; ")
        return HostCheck(name="start gate", ok=False, detail=why, fix=fix, required=False)
    lowest = os.sched_get_priority_min(os.SCHED_FIFO)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(lowest))
    except OSError:
        return HostCheck(
            name="start gate",
            ok=True,
            detail="built; without real-time priority, so many clients of one host start by turns",
            fix="allow it where several run on a host: LimitRTPRIO=1 in the unit, or ulimit -r 1",
        )
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return HostCheck(name="start gate", ok=True, detail="built, with real-time priority")


def _clock(settings: AgentSettings) -> HostCheck:
    reading = asyncio.run(read_clock(settings.chronyc_socket))
    problem = clock_problem(reading, settings.clock_bound_max_s or GATE_BOUND_S)
    if problem is not None:
        results, _, fix = problem.partition("; ")
        return HostCheck(name="clock", ok=False, detail=results, fix=fix, required=False)
    bound_ms = (reading.bound_s or 0) * 1e3
    return HostCheck(
        name="clock", ok=True, detail=f"{reading.source.value}, bound {bound_ms:.3f} ms"
    )


def _address(settings: AgentSettings) -> HostCheck:
    try:
        host = find_host(settings)
    except HostUnknown as error:
        results, _, fix = str(error).partition("; ")
        return HostCheck(name="address", ok=False, detail=results, fix=fix, required=False)
    mtu = "" if host.nic_mtu_bytes is None else f", MTU {host.nic_mtu_bytes} bytes"
    detail = f"{host.address} on {host.nic or 'an unknown interface'}{mtu}"
    if not host.warnings:
        return HostCheck(name="address", ok=True, detail=detail)
    results, _, fix = host.warnings[0].partition("; ")
    unread = "; ".join([results, *host.warnings[1:]])
    return HostCheck(
        name="address", ok=False, detail=f"{detail}; {unread}", fix=fix or None, required=False
    )


def _networks(settings: AgentSettings, servers: Sequence[str]) -> HostCheck:
    name, networks = "allowed networks", ",".join(map(str, settings.allowed_networks))
    refused = [server for server in servers if not settings.is_allowed(server)]
    if refused:
        return HostCheck(
            name=name,
            ok=False,
            detail=f"a client here would refuse {', '.join(refused)}: outside {networks}",
            fix="add their network to BROADSIDE_AGENT_ALLOWED_NETWORKS on every client agent",
            required=False,
        )
    coverage = "; they contain all servers of the fleet" if servers else ""
    return HostCheck(name=name, ok=True, detail=networks + coverage)


def readiness_checks(settings: AgentSettings, engine_names: Sequence[str] = ()) -> list[HostCheck]:
    """Check the programs that an installed agent needs for its role.

    Args:
        settings: Settings to use. The role decides which programs are needed.
        engine_names: Engines that must be usable. Empty means all engines.

    Returns:
        One check for iperf3, one for a client's start gate, and one for each other engine.
    """
    known = engines()
    wanted = list(dict.fromkeys(engine_names)) or list(known)
    results = _streaming_iperf3(settings) if DEFAULT_ENGINE in wanted else []
    for name in wanted:
        if name == DEFAULT_ENGINE:
            continue
        if name not in known:
            fix = f"use one of {', '.join(known)}"
            results.append(HostCheck(name=name, ok=False, detail="unknown engine", fix=fix))
            continue
        state = find_installed_engine(known[name], settings.role)
        problem, _, fix = (state.problem or "").partition("; ")
        detail = problem or state.state.version or "needs no program here"
        results.append(HostCheck(name=name, ok=not problem, detail=detail, fix=fix or None))
    return results


def _streaming_iperf3(settings: AgentSettings) -> list[HostCheck]:
    """Check that iperf3 reports while it runs and, on a client, that the start gate works in it."""
    results = [_engine(settings)]
    if not results[0].ok:
        return results
    iperf3 = find_iperf3(None if settings.iperf3 is None else str(settings.iperf3))
    if not streams_json(iperf3.version):
        fix = "install iperf3 3.17 or newer, or set BROADSIDE_AGENT_IPERF3 to one"
        results = [results[0].model_copy(update={"ok": False, "fix": fix})]
    if settings.role is Role.CLIENT:
        why, _, fix = ("" if iperf3.preloadable else explain_no_gate()).partition("; ")
        gate = "built, and holds this iperf3"
        results.append(
            HostCheck(name="start gate", ok=not why, detail=why or gate, fix=fix or None)
        )
    return results


def report_readiness(engine_names: Sequence[str]) -> int:
    """Print one line for each problem with its fix, or one line if nothing is missing.

    Returns:
        The exit code. 0 means ready, 3 an invalid setting, 4 that something is missing.
    """
    try:
        settings = AgentSettings()
    except ValidationError as error:
        sys.stderr.write(f"broadside: {one_line(error)}\n")
        return EXIT_USAGE
    results = readiness_checks(settings, engine_names)
    problems = [check for check in results if not check.ok]
    for check in problems:
        fix = f"; {check.fix}" if check.fix else ""
        prefix = "" if check.detail.startswith(f"{check.name}: ") else f"{check.name}: "
        sys.stdout.write(f"{prefix}{check.detail}{fix}\n")
    if not problems:
        usable = "; ".join(f"{check.name} ({check.detail})" for check in results)
        sys.stdout.write(f"ready to be a {settings.role} agent: {usable}\n")
    return EXIT_CANNOT_RUN if problems else 0


def _settings_problem(error: ValidationError) -> HostCheck:
    first = error.errors(include_url=False)[0]
    variable = f"BROADSIDE_AGENT_{'_'.join(map(str, first['loc'])).upper()}"
    return HostCheck(
        name="agent settings",
        ok=False,
        detail=f"{variable}={first['input']!r}: {first['msg']}",
        fix=f"correct or unset {variable}",
    )


def main(arguments: Sequence[str]) -> int:
    """Print the checks for the settings in the environment and return the exit code."""
    if arguments[:1] == [READY]:
        return report_readiness(arguments[1:])
    rights = list(arguments) == [RIGHTS]
    try:
        if rights:
            identity = Identity(AgentSettings().role)
            results = asyncio.run(rights_checks(identity, FabricSettings()))
        else:
            results = checks(AgentSettings(role=Role.CLIENT), arguments)
    except ValidationError as error:
        results = [_settings_problem(error)]
    except ExchangeMisconfigured as error:
        results = [HostCheck(name="fabric", ok=False, detail=str(error))]
    try:
        sys.stdout.write(TypeAdapter(list[HostCheck]).dump_json(results).decode() + "\n")
        sys.stdout.flush()
    except OSError:
        # The reader has gone, or the disk is full.
        # Without this, Python flushes again and exits with code 120.
        os._exit(EXIT_CANNOT_RUN)
    wrong = any(check.required and not check.ok for check in results)
    return EXIT_CANNOT_RUN if rights and wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
