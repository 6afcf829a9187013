"""Client end for a burst's tunnel.

It requests the other end from the server's agent and renews the request while the job runs.
"""

import asyncio
import contextlib
import time
from itertools import count
from typing import Final

from broadside.agent.agent_context import Tools
from broadside.agent.tunnel import DeviceSettings, TunnelEnd, TunnelFailed, clash, mark_of
from broadside.exchange.messages import Job, Tunnel, tunnel_of
from broadside.exchange.ports import ExchangeError

# Seconds to open the tunnel before the engine. The server's agent polls every second.
LEAD_S: Final = 4.0
BEAT_S: Final = 2.0
LOOK_S: Final = 0.3
# Seconds before the planned start by which both ends should be up.
ANSWER_BEFORE_S: Final = 1.5
TABLE_TIMEOUT_S: Final = 5.0


class ClientTunnel:
    """Tunnel to use for one job's traffic. Always close it when done."""

    def __init__(self, job: Job, tools: Tools) -> None:
        self._tools = tools
        self._job = job
        self._server_id = job.endpoint.agent_id
        self._tunnel = tunnel_of(job, client_address=tools.host.address)
        self._end: TunnelEnd | None = None
        self._holder: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open this end and wait until the other end is up.

        Raises:
            TunnelFailed: If either end cannot be opened in time.
        """
        tunnel, host, settings = self._tunnel, self._tools.host, self._tools.settings
        self._end = await TunnelEnd.open(
            tunnel,
            DeviceSettings(
                local=host.address,
                remote=self._job.endpoint.address,
                inner=tunnel.inner_client_address,
                nic=host.nic or "",
                mark=mark_of(settings.agent_id, settings.role),
            ),
        )
        self._holder = asyncio.create_task(self._keep_requested())
        until_s = self._job.planned_start_at.timestamp() - ANSWER_BEFORE_S
        while time.time() < until_s:
            with contextlib.suppress(ExchangeError, TimeoutError):
                async with asyncio.timeout(TABLE_TIMEOUT_S):
                    problem = await self._tools.records.fleet.read_tunnel_answer(
                        self._server_id, tunnel
                    )
                if problem:
                    raise TunnelFailed(f"{self._server_id}: {problem}")
                if problem is not None:
                    return
            await asyncio.sleep(LOOK_S)
        raise TunnelFailed(f"{self._server_id} did not bring its end up in time{await self._why()}")

    async def _why(self) -> str:
        """Return which job has a tunnel that conflicts with this one, or an empty string."""
        with contextlib.suppress(ExchangeError, TimeoutError):
            async with asyncio.timeout(TABLE_TIMEOUT_S):
                rows = await self._tools.records.fleet.read_tunnels(self._server_id)
            for row in rows:
                if row.opened_by != self._job.job_id and clash(row, self._tunnel):
                    return f": {row.opened_by} has tunnel {row.vni} there"
        return ""

    @property
    def job(self) -> Job:
        """The job with the inner address as its target."""
        inner = {"address": self._tunnel.inner_server_address}
        endpoint = self._job.endpoint.model_copy(update=inner)
        return self._job.model_copy(update={"endpoint": endpoint})

    @property
    def bind(self) -> str:
        """The inner address to bind to."""
        return self._tunnel.inner_client_address

    async def close(self) -> None:
        """Delete this end and the request.

        The server's agent then deletes the other end.
        """
        if self._holder is not None:
            self._holder.cancel()
            await asyncio.gather(self._holder, return_exceptions=True)
        if self._end is not None:
            await self._end.close()
        # If this fails, the server's agent detects the silence.
        with contextlib.suppress(ExchangeError, TimeoutError):
            async with asyncio.timeout(TABLE_TIMEOUT_S):
                await self._tools.records.fleet.drop_tunnel(self._server_id, self._tunnel)

    async def _keep_requested(self) -> None:
        """Renew the request in intervals. A slow write does not delay the next one."""
        async with asyncio.TaskGroup() as beats:
            for beat in count():
                beats.create_task(self._send_beat(beat))
                await asyncio.sleep(BEAT_S)

    async def _send_beat(self, beat: int) -> None:
        with contextlib.suppress(ExchangeError, TimeoutError):
            async with asyncio.timeout(TABLE_TIMEOUT_S):
                row: Tunnel = self._tunnel.model_copy(update={"beat": beat})
                await self._tools.records.fleet.save_tunnel(self._server_id, row)
