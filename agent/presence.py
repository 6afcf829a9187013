"""Says that this agent is there: a heartbeat row, read by the coordinator before it plans."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.clock import read_clock
from broadside.agent.engine_process import Iperf3
from broadside.agent.host import Host, HostUnknown, find_address
from broadside.agent.passport import read_passport
from broadside.exchange.messages import AgentState, ClockReading, EngineState, Presence, Role
from broadside.exchange.ports import ExchangeError, StorageGone
from broadside.exchange.records import FleetRecords
from broadside.exchange.version import version_text

CLOCK_AGE_MAX_S: Final = 30.0  # s after which a good clock reading is taken anew
PASSPORT_AGE_MAX_S: Final = 30.0  # s after which an idle host is looked at anew
BEAT_GAP_MIN_S: Final = 0.5  # s between beats, however often the state changes
BEAT_TIMEOUT_S: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The part of a presence that changes: what an agent's role says of itself just now."""

    busy: bool = False  # holds a job, or a test is in progress
    engine: Iperf3 | None = None  # None: no usable engine, and ``problem`` says why
    gate: bool = False
    ports: tuple[int, ...] = ()
    busy_ports: tuple[int, ...] = ()
    problem: str | None = None
    engines: tuple[EngineState, ...] = ()  # beside iperf3
    echo_port: int | None = None
    tunnels: bool = False


def describe(
    settings: AgentSettings,
    host: Host,
    condition: Condition,
    clock: ClockReading | None,
    *,
    stopping: bool,
    started_at: datetime,
    now: datetime,
) -> Presence:
    """One heartbeat."""
    state = AgentState.BUSY if condition.busy else AgentState.IDLE
    build = condition.engine.build if condition.engine else None
    return Presence(
        agent_id=settings.agent_id,
        role=settings.role,
        state=AgentState.STOPPING if stopping else state,
        beat_at=now,
        started_at=started_at,
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
        tunnels=condition.tunnels,
        passport=host.passport.model_copy(update={"engine_build": build}),
        allowed_networks=tuple(map(str, settings.allowed_networks))
        if settings.role is Role.CLIENT
        else (),
    )


@dataclass(slots=True, kw_only=True)
class Heart:
    """Beats at least every ``heartbeat_s`` seconds, and soon after each change."""

    fleet: FleetRecords  # of the bare table: a stale beat is worth nothing, so none is spooled
    settings: AgentSettings
    host: Host
    stopping: asyncio.Event
    changed: asyncio.Event  # set by whoever changes the condition
    condition: Callable[[], Condition] = Condition  # the role's own, once there is one
    spread_s: float = 0.0  # within which a change is told: a fleet's agents change at one instant
    storage_gone: bool = False
    has_moved: bool = False  # this host has another address: the agent is to start again with it
    _started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _clock: ClockReading | None = None
    _looked_s: float = field(default_factory=time.monotonic)  # at the host
    _new_address: str | None = None  # as the last look found it, where it is another

    async def beat_forever(self) -> None:
        while True:
            self.changed.clear()
            await self.beat()
            await asyncio.sleep(BEAT_GAP_MIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.heartbeat_s - BEAT_GAP_MIN_S):
                    await self.changed.wait()
                    await asyncio.sleep(random.uniform(0, self.spread_s))  # noqa: S311 - no secret

    async def beat(self) -> None:
        """One heartbeat; a table that is away is logged and tried again at the next."""
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
                        stopping=self.stopping.is_set(),
                        started_at=self._started_at,
                        now=datetime.now(UTC),
                    )
                )
        except StorageGone as error:  # nothing that is measured from here on would be found
            log.error("%s", error, extra={"action": "storage_gone"})
            self.storage_gone = True
            self.stopping.set()
        except (ExchangeError, TimeoutError) as error:
            log.warning("no heartbeat: %s", _why(error), extra={"action": "beat_failed"})

    async def say_goodbye(self) -> None:
        """Take the row away, so that nobody waits for this agent."""
        try:
            async with asyncio.timeout(BEAT_TIMEOUT_S):
                await self.fleet.leave(self.settings.role, self.settings.agent_id)
        except (ExchangeError, TimeoutError) as error:
            log.warning("no goodbye: %s", _why(error), extra={"action": "leave_failed"})

    async def _refresh_clock(self) -> None:
        """Read the clock anew when the last reading is old, or was no good."""
        if self._clock is not None and self._clock.bound_s is not None:
            age_s = (datetime.now(UTC) - self._clock.read_at).total_seconds()
            if 0 <= age_s < CLOCK_AGE_MAX_S:
                return
        self._clock = await read_clock(self.settings.chronyc_socket)

    def _refresh_address(self) -> None:
        """Stop an idle agent whose detected address is another one, at two looks in a row.

        Its servers, its echo and its presence hold the old one, which leads nowhere now. An address
        that was set is not looked at, and a host without any may get the same one back.
        """
        if self.settings.address is not None or self.stopping.is_set():
            return
        try:
            found = find_address()
        except HostUnknown:
            return
        before, self._new_address = self._new_address, None
        if found == self.host.address:
            return
        self._new_address = found
        if found == before and not self.condition().busy:
            log.warning(
                "the address changed from %s to %s: starting again with it",
                self.host.address,
                found,
                extra={"action": "moved"},
            )
            self.has_moved = True
            self.stopping.set()

    async def _refresh_passport(self) -> None:
        """Offloads and sysctls are changed between runs; while a test runs nobody asks."""
        age_s = time.monotonic() - self._looked_s
        if age_s > PASSPORT_AGE_MAX_S and not self.condition().busy:
            passport = await asyncio.to_thread(read_passport, self.host.nic)
            self.host = replace(self.host, passport=passport)
            self._looked_s = time.monotonic()


def _why(error: Exception) -> str:
    return str(error) or f"no answer within {BEAT_TIMEOUT_S:g} s"
