"""``python -m agent.check``: what an agent on this host would find, as a JSON list of checks.

It runs as a process of its own, because the coordinator never imports the agent.
"""

import asyncio
import sys

from pydantic import TypeAdapter

from agent.clock import clock_problem, read_clock
from agent.gate import explain_no_gate, find_gate
from agent.host import HostUnknown, find_host
from agent.process import EngineError, find_iperf3
from agent.settings import AgentSettings
from exchange.checks import Check
from exchange.iperf3 import streams_json
from exchange.messages import Role

GATE_BOUND_S = 0.05  # s, a job's usual clock gate


def checks(settings: AgentSettings) -> list[Check]:
    """Try everything an agent needs."""
    return [_engine(settings), _gate(), _clock(settings), _address(settings)]


def _engine(settings: AgentSettings) -> Check:
    try:
        engine = find_iperf3(None if settings.iperf3 is None else str(settings.iperf3))
    except EngineError as error:
        found, _, fix = str(error).partition("; ")
        return Check(name="iperf3", ok=False, detail=found, fix=fix)
    detail = f"{engine.version}, {' '.join(engine.binary)}"
    if streams_json(engine.version):
        return Check(name="iperf3", ok=True, detail=detail)
    return Check(
        name="iperf3",
        ok=True,
        detail=f"{detail}: no seconds while it runs, those come from host counters",
        fix="make setup brings 3.17 or newer where the machine's Debian mirror has one",
    )


def _gate() -> Check:
    gate = find_gate()
    if gate is None:
        why, _, fix = explain_no_gate().partition("; ")
        return Check(name="start gate", ok=False, detail=why, fix=fix, required=False)
    return Check(name="start gate", ok=True, detail="built")


def _clock(settings: AgentSettings) -> Check:
    reading = asyncio.run(read_clock(settings.chronyc_socket))
    problem = clock_problem(reading, settings.clock_bound_max_s or GATE_BOUND_S)
    if problem is not None:
        found, _, fix = problem.partition("; ")
        return Check(name="clock", ok=False, detail=found, fix=fix, required=False)
    bound_ms = (reading.bound_s or 0) * 1e3
    return Check(name="clock", ok=True, detail=f"{reading.source.value}, bound {bound_ms:.3f} ms")


def _address(settings: AgentSettings) -> Check:
    try:
        host = find_host(settings)
    except HostUnknown as error:
        found, _, fix = str(error).partition("; ")
        return Check(name="address", ok=False, detail=found, fix=fix, required=False)
    networks = ", ".join(str(network) for network in settings.allowed_networks)
    return Check(
        name="address", ok=True, detail=f"{host.address} on {host.nic}; targets allowed: {networks}"
    )


def main() -> int:
    """Print the checks of an agent with this environment's settings."""
    settings = AgentSettings(role=Role.CLIENT)
    sys.stdout.write(TypeAdapter(list[Check]).dump_json(checks(settings)).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
