"""Start of an agent from its settings and the settings of the fabric.

Nothing is opened when this module is imported. A process that has loaded it can fork and run agents
in other network namespaces.
"""

import asyncio
import contextlib
import json
import logging
import signal
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from broadside.agent.agent_context import Tools
from broadside.agent.agent_settings import AgentSettings
from broadside.agent.counters import CountersUnreadable, HostCounterReader, HostLog
from broadside.agent.engine_process import EngineError, Iperf3Program, find_iperf3
from broadside.agent.gate import explain_no_gate, find_gate
from broadside.agent.host import Host, HostUnknown, find_host
from broadside.agent.installed_engines import find_installed_engines
from broadside.agent.presence import AgentHealth, HeartbeatPublisher
from broadside.agent.raw_spool import SpooledRaw
from broadside.agent.server import Supervisor
from broadside.agent.side_tasks import pause
from broadside.agent.spool import Spool, SpooledTable
from broadside.agent.tunnel import can_tunnel, mark_of, sweep_tunnels
from broadside.agent.worker import Worker
from broadside.agent.workspace import sweep
from broadside.exchange.background import restart_on_error
from broadside.exchange.ci_logs import escape_workflow_commands
from broadside.exchange.fabric import Fabric, FabricSettings, environment_settings, open_fabric
from broadside.exchange.heap import HEAPS_MAX_COUNT, set_heap
from broadside.exchange.log_sanitizer import log_text, redact
from broadside.exchange.messages import Role
from broadside.exchange.ports import ExchangeMisconfigured, ExchangeUnavailable, StorageGone
from broadside.exchange.records import BurstRecords

CONTEXT: Final = ("action", "agent_id", "job_id", "port", "outcome")


def start_log(agent_id: str, *, level: str, as_json: bool) -> None:
    """Write the log of this process to the standard error.

    This replaces the log settings of a parent process.

    Args:
        agent_id: Name of the agent, added to each line.
        level: Level such as "INFO".
        as_json: True to write JSON lines.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else TextLines())
    handler.addFilter(_stamp(agent_id))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _stamp(agent_id: str) -> logging.Filter:
    class Stamp(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            record.agent_id = agent_id
            return True

    return Stamp()


def context(record: logging.LogRecord) -> dict[str, str]:
    """Return the fields of a log record that are listed in :data:`CONTEXT`, as text."""
    return {key: str(getattr(record, key)) for key in CONTEXT if hasattr(record, key)}


class JsonLines(logging.Formatter):
    """Formatter that writes a JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            **context(record),
            "message": redact(escape_workflow_commands(record.getMessage())),
        }
        if record.exc_info:
            line["trace"] = redact(escape_workflow_commands(self.formatException(record.exc_info)))
        return json.dumps(line)


class TextLines(logging.Formatter):
    """Formatter for people.

    A line is ``time level agent action [job]: message``.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        columns = [f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}Z", record.levelname]
        columns += context(record).values()
        return f"{' '.join(columns)}: {log_text(record, self)}"


# The agent was asked to stop.
EXIT_STOPPED: Final = 0
# There is an error in the settings.
EXIT_USAGE: Final = 3
# The settings are valid, but something that they need is missing.
EXIT_CANNOT_RUN: Final = 4

# Seconds to wait before searching for a missing engine again.
ENGINE_PAUSE_S: Final = 15.0
# Seconds to wait before trying to join a coordinator again.
JOIN_PAUSE_S: Final = 5.0
# Seconds to wait for the coordinator to check a credential, before engines are started.
REFUSED_LOOK_S: Final = 3.0
REVOKED: Final = (
    "the coordinator refuses this agent's credential: it was revoked (`broadside enroll list` "
    "there); join with a new code"
)
# Seconds to send the spool when the agent stops.
FAREWELL_S: Final = 5.0

log = logging.getLogger(__name__)


def run_agent(settings: AgentSettings, fabric_settings: FabricSettings | None = None) -> int:
    """Run an agent until SIGTERM or SIGINT.

    Args:
        settings: Settings of the agent.
        fabric_settings: Settings of the fabric, or None to use the environment.

    Returns:
        Exit code of the process.
    """
    start_log(settings.agent_id, level=settings.log_level, as_json=settings.log_json)
    try:
        return asyncio.run(main(settings, fabric_settings))
    except ExchangeMisconfigured as error:
        log.error("%s", error, extra={"action": "settings"})
        return EXIT_USAGE
    except Exception as error:
        # Python would use exit code 1, which means *fail* in other commands.
        log.critical("unexpected %s", type(error).__name__, exc_info=True, extra={"action": "end"})
        return EXIT_CANNOT_RUN


def run_from_environment() -> int:
    """Run the agent that is configured in ``BROADSIDE_AGENT_*`` and return the exit code."""
    # Use a single heap. A thread that starts during a burst would otherwise add a heap of 2 to 5
    # MB.
    set_heap({HEAPS_MAX_COUNT: 1})
    settings = _settings()
    return EXIT_USAGE if settings is None else run_agent(settings)


def remove_tunnels() -> int:
    """Delete the tunnel devices that a killed agent with these settings has left.

    Returns:
        The exit code.
    """
    settings = _settings()
    if settings is None:
        return EXIT_USAGE
    sweep_tunnels(mark_of(settings.agent_id, settings.role))
    return EXIT_STOPPED


def _settings() -> AgentSettings | None:
    """Load the settings from the environment, or log the error and return None."""
    try:
        return AgentSettings()
    except ValidationError as error:
        start_log("agent", level="INFO", as_json=False)
        log.error("%s", one_line(error), extra={"action": "settings"})
        return None


def one_line(error: ValidationError) -> str:
    """Return the names of all invalid settings with their errors in a single line."""
    return "; ".join(
        f"BROADSIDE_AGENT_{'_'.join(map(str, problem['loc'][:1])).upper()}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    )


async def main(settings: AgentSettings, fabric_settings: FabricSettings | None = None) -> int:
    """Run an agent on the current event loop until there is a signal to stop.

    Args:
        settings: Settings of the agent.
        fabric_settings: Settings of the fabric, or None to use the environment.

    Returns:
        The exit code.

    Raises:
        ExchangeMisconfigured: The settings of the fabric are invalid.
    """
    # Set by a signal.
    notified = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, notified.set)
    code: int | None = None
    while code is None:
        stopping = asyncio.Event()
        passing_on = asyncio.create_task(_pass_on(notified, stopping))
        try:
            code = await _run_once(settings, fabric_settings or environment_settings(), stopping)
        finally:
            passing_on.cancel()
    return code


async def _pass_on(notified: asyncio.Event, stopping: asyncio.Event) -> None:
    await notified.wait()
    stopping.set()


async def _run_once(
    settings: AgentSettings, fabric_settings: FabricSettings, stopping: asyncio.Event
) -> int | None:
    """Run an agent until ``stopping`` is set.

    Returns the exit code, or None if the host has a new address and the agent should start again.
    """
    try:
        host = find_host(settings)
        for warning in host.warnings:
            log.warning("%s", warning, extra={"action": "host"})
        settings = settings.reaching(host.address)
        spool = Spool(settings.spool_path, settings.spool_max_bytes)
        sweep(settings.agent_id)
        sweep_tunnels(mark_of(settings.agent_id, settings.role))
        fabric = await _open_fabric(settings, fabric_settings, stopping)
        if fabric is None:
            return EXIT_STOPPED
    except HostUnknown as error:
        log.error("%s", error, extra={"action": "host"})
        return EXIT_USAGE
    except OSError as error:
        log.error(
            "spool_dir: %s: %s; set BROADSIDE_AGENT_SPOOL_DIR to a folder of the agent's own",
            settings.spool_path,
            error.strerror,
            extra={"action": "spool"},
        )
        return EXIT_CANNOT_RUN
    try:
        heart = await _be_agent(settings, host, fabric, spool, stopping)
    finally:
        await fabric.close()
    if heart.storage_gone or fabric.revoked.is_set():
        return EXIT_CANNOT_RUN
    return None if heart.has_moved else EXIT_STOPPED


async def _open_fabric(
    settings: AgentSettings, fabric_settings: FabricSettings, stopping: asyncio.Event
) -> Fabric | None:
    """Open the fabric, and enroll this host first if needed. None if the agent was stopped."""
    if fabric_settings.fabric != "http":
        return open_fabric(fabric_settings)
    path = fabric_settings.credential_file or settings.spool_path / "credential.json"
    if settings.join is not None and fabric_settings.coordinator is not None:
        from broadside.exchange.http.credential import coordinator_addresses
        from broadside.exchange.http.joining import join

        addresses = coordinator_addresses(fabric_settings.coordinator)
        code = settings.join.get_secret_value()
        while True:
            try:
                await join(code, addresses, settings.agent_id, settings.role, path)
                break
            except ExchangeUnavailable as error:
                log.warning("%s", error, extra={"action": "join_failed"})
            await pause(stopping, JOIN_PAUSE_S)
            if stopping.is_set():
                return None
    _lock_agent_id(settings, path)
    if settings.join is None:
        await _refuse_revoked(path, fabric_settings)
    return open_fabric(fabric_settings.model_copy(update={"credential_file": path}))


async def _refuse_revoked(path: Path, fabric_settings: FabricSettings) -> None:
    """Check the credential, because no engine should be started with one that has been revoked.

    Raises ``ExchangeMisconfigured`` if it has been revoked.
    """
    from broadside.exchange.http.credential import coordinator_addresses, load_credential
    from broadside.exchange.http.joining import is_refused

    if (credential := load_credential(path)) is None:
        return
    if fabric_settings.coordinator is not None:
        addresses = coordinator_addresses(fabric_settings.coordinator)
        credential = replace(credential, coordinators=addresses)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REFUSED_LOOK_S):
            if await is_refused(credential):
                raise ExchangeMisconfigured(f"{path}: {REVOKED}")


def _lock_agent_id(settings: AgentSettings, path: Path) -> None:
    """Check that the credential belongs to this agent.

    It might belong to a different agent if the host was renamed or created from an image of another
    host. Raises ``ExchangeMisconfigured`` in this case.
    """
    from broadside.exchange.http.credential import load_credential

    credential = load_credential(path)
    identity = (settings.role.value, settings.agent_id)
    if credential is not None and (credential.role, credential.agent_id) != identity:
        raise ExchangeMisconfigured(
            f"{path}: the credential of {credential.role}.{credential.agent_id}, and this is "
            f"{'.'.join(identity)}: set BROADSIDE_AGENT_AGENT_ID={credential.agent_id} and "
            f"BROADSIDE_AGENT_ROLE={credential.role} where this is that host; else remove the "
            "file, and join with a code of its own"
        )


async def _be_agent(
    settings: AgentSettings, host: Host, fabric: Fabric, spool: Spool, stopping: asyncio.Event
) -> HeartbeatPublisher:
    """Run the role of an agent until it is stopped, and return the heart with the reason."""
    spooled = SpooledTable(fabric.results, spool, fabric.troubles)
    spooled_raw = SpooledRaw(fabric.raw_store, spool, fabric.troubles)
    host_log = HostLog(retention_s=settings.duration_max_s + 120, nic=host.nic)
    heart = HeartbeatPublisher(
        fleet=fabric.agent_records.fleet,
        settings=settings,
        host=host,
        stopping=stopping,
        changed=asyncio.Event(),
        spread_s=fabric.beat_spread_s,
    )
    log.info("%s agent at %s", settings.role, host.address, extra={"action": "start"})
    background = [
        asyncio.create_task(restart_on_error(work))
        for work in (
            heart.beat_forever,
            spooled.drain_forever,
            spooled_raw.drain_forever,
            lambda: _count_host(host, host_log),
        )
    ]
    background.append(asyncio.create_task(_stop_once_revoked(fabric, stopping)))
    try:
        if (engine := await _find_engine(settings, heart, stopping)) is not None:
            tools = Tools(
                settings=settings,
                host=host,
                engine=engine,
                gate=_find_gate(settings, engine),
                records=fabric.agent_records,
                results=BurstRecords(spooled, spooled_raw),
                troubles=fabric.troubles,
                host_log=host_log,
                stopping=stopping,
                changed=heart.changed,
                tunnels=settings.allow_tunnels and can_tunnel(),
            )
            client = settings.role is Role.CLIENT
            role = (
                Worker(queue=fabric.queue, tools=tools, receive_wait_s=fabric.receive_wait_s)
                if client
                else Supervisor(tools)
            )
            heart.condition = role.condition
            heart.changed.set()
            if client:
                background.append(
                    asyncio.create_task(restart_on_error(partial(_find_installed_engines, tools)))
                )
            await role.run()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
    await heart.announce_shutdown()
    await _empty(spooled, spooled_raw, spool, settings)
    log.info("stopped", extra={"action": "stop"})
    return heart


async def _stop_once_revoked(fabric: Fabric, stopping: asyncio.Event) -> None:
    """Stop the agent and its engines if its credential is revoked.

    After that, the control row could not be used to stop its traffic.
    """
    await fabric.revoked.wait()
    log.error("%s", REVOKED, extra={"action": "revoked"})
    stopping.set()


async def _find_engine(
    settings: AgentSettings, heart: HeartbeatPublisher, stopping: asyncio.Event
) -> Iperf3Program | None:
    """Search for iperf3 until it is found, or return None when the agent is stopping.

    The heartbeat will show the problem.
    """
    while not stopping.is_set():
        try:
            return find_iperf3(str(settings.iperf3) if settings.iperf3 else None)
        except EngineError as error:
            problem = AgentHealth(problem=str(error))
        if heart.condition() != problem:
            log.error("%s", problem.problem, extra={"action": "problem"})
            heart.condition = partial(replace, problem)
            heart.changed.set()
        await pause(stopping, ENGINE_PAUSE_S)
    return None


async def _find_installed_engines(tools: Tools) -> None:
    """Search for the other engines in a thread, because they are not needed to start."""
    tools.installed_engines.update(await asyncio.to_thread(find_installed_engines, Role.CLIENT))
    tools.changed.set()


def _find_gate(settings: AgentSettings, engine: Iperf3Program) -> Path | None:
    """Return the start gate, or None if it should not or cannot be used."""
    if settings.role is not Role.CLIENT or not settings.use_gate:
        return None
    gate = find_gate() if engine.preloadable else None
    if gate is None:
        log.warning("%s", explain_no_gate(), extra={"action": "no_gate"})
    return gate


async def _count_host(host: Host, host_log: HostLog) -> None:
    """Collect the host counters. An agent without them can still measure."""
    try:
        with HostCounterReader(host.nic) as counters:
            await host_log.watch(counters)
    except CountersUnreadable as error:
        log.warning("no host counters: %s", error, extra={"action": "counters"})


async def _empty(
    spooled: SpooledTable, raw: SpooledRaw, spool: Spool, settings: AgentSettings
) -> None:
    """Try to send all data in the spool before the process ends.

    If it fails, the next process will try again.
    """
    try:
        async with asyncio.timeout(FAREWELL_S):
            await spooled.drain()
            await raw.drain()
    except (ExchangeUnavailable, StorageGone, TimeoutError):
        log.warning(
            "%d rows and %d outputs stay in %s until the next start",
            len(spool),
            spool.raws_count,
            settings.spool_path,
            extra={"action": "spool_kept"},
        )
