"""Heartbeat of an agent, a row that the coordinator uses to plan a run."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.clock import read_clock
from broadside.agent.engine_process import Iperf3Program
from broadside.agent.host import Host, HostUnknown, find_address
from broadside.agent.host_info import read_passport
from broadside.exchange.messages import AgentState, ClockReading, EngineState, Presence, Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import ExchangeError, StorageGone
from broadside.exchange.records import FleetRecords
from broadside.exchange.version import version_text

# Seconds after which a good clock reading should be replaced.
CLOCK_AGE_MAX_S: Final = 30.0
# Seconds after which the data of an idle host should be updated.
PASSPORT_AGE_MAX_S: Final = 30.0
# Seconds to wait between heartbeats, even if the state changes more often.
BEAT_GAP_MIN_S: Final = 0.5
BEAT_TIMEOUT_S: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHealth:
    """The part of a presence that changes, set by the role of the agent.

    Attributes:
        busy: True if there is a job, or a test is running.
        engine: The iperf3 to use. None if there is no usable one, in this case see ``problem``.
        gate: True if the start gate can be used.
        ports: Ports that are free.
        busy_ports: Ports that are in use.
        problem: Reason why the agent cannot be used, or None if it can.
        engines: State of the other engines.
        echo_port: Port of the echo service, or None if there is none.
        canary_ports: Ports that answer canaries.
        tunnels: True if tunnels can be created.
    """

    busy: bool = False
    engine: Iperf3Program | None = None
    gate: bool = False
    ports: tuple[int, ...] = ()
    busy_ports: tuple[int, ...] = ()
    problem: str | None = None
    engines: tuple[EngineState, ...] = ()
    echo_port: int | None = None
    canary_ports: tuple[int, ...] = ()
    tunnels: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """When the agent was started, the current time, and if it is stopping."""

    started_at: datetime
    now: datetime
    stopping: bool = False


def describe(
    settings: AgentSettings,
    host: Host,
    condition: AgentHealth,
    clock: ClockReading | None,
    life: Lifetime,
) -> Presence:
    """Return the presence to be sent as a heartbeat.

    Args:
        settings: Settings of the agent.
        host: Data of the host.
        condition: State of the role.
        clock: Last reading of the clock. None if it was not read.
        life: Start time and current time.
    """
    state = AgentState.BUSY if condition.busy else AgentState.IDLE
    build = condition.engine.build if condition.engine else None
    return Presence(
        agent_id=settings.agent_id,
        role=settings.role,
        state=AgentState.STOPPING if life.stopping else state,
        beat_at=life.now,
        started_at=life.started_at,
        address=host.address,
        ports=condition.ports,
        busy_ports=condition.busy_ports,
        broadside_version=version_text(),
        engine_version=str(condition.engine.version) if condition.engine else None,
        gate=condition.gate,
        kernel=host.kernel,
        cpu_count=host.cpu_count,
        nic=host.nic,
        nic_bits_per_second=settings.nic_bits_per_second,
        nic_mtu_bytes=host.nic_mtu_bytes,
        vm_size=settings.vm_size,
        clock=clock,
        problem=condition.problem,
        warnings=tuple(text[:300] for text in host.warnings),
        engines=condition.engines,
        echo_port=condition.echo_port,
        canary_ports=condition.canary_ports,
        tunnels=condition.tunnels,
        passport=host.passport.model_copy(update={"engine_build": build}),
        allowed_networks=tuple(map(str, settings.allowed_networks))
        if settings.role is Role.CLIENT
        else (),
    )


@dataclass(slots=True, kw_only=True)
class HeartbeatPublisher:
    """Sends heartbeats at least every ``heartbeat_s`` seconds, and soon after each change.

    Attributes:
        fleet: Records to write without the spool, because an old heartbeat should not be sent.
        settings: Settings of the agent.
        host: Data of the host.
        stopping: Set when the agent should stop.
        changed: Set when the condition has changed.
        condition: Callback to get the state of the role, once there is one.
        spread_s: Maximum random delay for a change in seconds, because all agents of a fleet might
            change at the same time.
        storage_gone: True if the storage no longer exists.
        has_moved: True if the host has a new address, so the agent should start again.
    """

    fleet: FleetRecords
    settings: AgentSettings
    host: Host
    stopping: asyncio.Event
    changed: asyncio.Event
    condition: Callable[[], AgentHealth] = AgentHealth
    spread_s: float = 0.0
    storage_gone: bool = False
    has_moved: bool = False
    _started_at: datetime = field(default_factory=utc_now)
    _clock: ClockReading | None = None
    # Monotonic time of the last update of the host data.
    _looked_s: float = field(default_factory=time.monotonic)
    # Address from the last check, if it was different.
    _new_address: str | None = None

    async def beat_forever(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            self.changed.clear()
            await self.beat()
            await asyncio.sleep(BEAT_GAP_MIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.heartbeat_s - BEAT_GAP_MIN_S):
                    await self.changed.wait()
                    await asyncio.sleep(random.uniform(0, self.spread_s))  # noqa: S311 - no secret

    async def beat(self) -> None:
        """Send a heartbeat.

        If the table is not available, this is logged. The next heartbeat will try again.
        """
        await self._refresh_clock()
        await self._refresh_passport()
        self._refresh_address()
        try:
            async with asyncio.timeout(BEAT_TIMEOUT_S):
                await self.fleet.beat(
                    describe(
                        self.settings,
                        self.host,
                        self.condition(),
                        self._clock,
                        Lifetime(
                            started_at=self._started_at,
                            now=utc_now(),
                            stopping=self.stopping.is_set(),
                        ),
                    )
                )
        except StorageGone as error:
            # Data that is measured after this would be lost.
            log.error("%s", error, extra={"action": "storage_gone"})
            self.storage_gone = True
            self.stopping.set()
        except (ExchangeError, TimeoutError) as error:
            log.warning("no heartbeat: %s", _why(error), extra={"action": "beat_failed"})

    async def announce_shutdown(self) -> None:
        """Delete the row, so that the coordinator will not wait for this agent."""
        try:
            async with asyncio.timeout(BEAT_TIMEOUT_S):
                await self.fleet.leave(self.settings.role, self.settings.agent_id)
        except (ExchangeError, TimeoutError) as error:
            log.warning("no goodbye: %s", _why(error), extra={"action": "leave_failed"})

    async def _refresh_clock(self) -> None:
        """Get a new clock reading if the last one is too old or was not good."""
        if self._clock is not None and self._clock.bound_s is not None:
            age_s = (utc_now() - self._clock.read_at).total_seconds()
            if 0 <= age_s < CLOCK_AGE_MAX_S:
                return
        self._clock = await read_clock(self.settings.chronyc_socket)

    def _refresh_address(self) -> None:
        """Stop an idle agent if two checks in a row have detected a new address.

        Its servers, its echo service and its presence use the old address, which no longer works.
        An address in the settings is not checked. If the host has no address at all, the agent is
        not stopped, because the host might get the same address again.
        """
        if self.settings.address is not None or self.stopping.is_set():
            return
        try:
            address = find_address()
        except HostUnknown:
            return
        before, self._new_address = self._new_address, None
        if address == self.host.address:
            return
        self._new_address = address
        if address == before and not self.condition().busy:
            log.warning(
                "the address changed from %s to %s: starting again with it",
                self.host.address,
                address,
                extra={"action": "moved"},
            )
            self.has_moved = True
            self.stopping.set()

    async def _refresh_passport(self) -> None:
        """Update offloads and sysctls, which can change between runs.

        This is skipped during a test.
        """
        age_s = time.monotonic() - self._looked_s
        if age_s > PASSPORT_AGE_MAX_S and not self.condition().busy:
            passport = await asyncio.to_thread(read_passport, self.host.nic, self.host.address)
            self.host = replace(self.host, passport=passport)
            self._looked_s = time.monotonic()


def _why(error: Exception) -> str:
    return str(error) or f"no answer within {BEAT_TIMEOUT_S:g} s"
