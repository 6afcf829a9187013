"""Small datagrams to measure how a path handles them under load.

The client sends one on every step of a grid, which is based on the planned start, and stores the
time of the response. The server's agent (:class:`Echo`) sends all data back without changes. A
probe has the token of its job. We use the token to find the job of a response, because a device in
the path can change addresses and ports. The round trip includes the time for both agents to wake
up. This is about 0.1 ms on a quiet host and more if all cores are busy.
"""

import asyncio
import hashlib
import logging
import math
import statistics
import struct
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Self

from broadside.agent.agent_settings import AgentSettings
from broadside.exchange.messages import Job, LiveProbes
from broadside.exchange.second_rows import UNSENT, Probes

# Seconds after which a probe without a response is lost.
WAIT_S: Final = 1.0
# Maximum delay in seconds for a probe to be sent, limited to half a step.
LATE_S: Final = 0.05
# Span of the newest responses for a live round trip, in seconds.
LIVE_RTT_S: Final = 0.5
# Span of the probes for a live loss, in seconds. Probes younger than LIVE_LOST_S are left out.
LIVE_LOSS_S: Final = 1.0
# Seconds after which a probe without a response is lost for a live value.
LIVE_LOST_S: Final = 0.5
# Maximum number of responses per second. This is enough for the probes of 1,000 pairs.
ECHO_MAX_PER_S: Final = 20_000
# Number of probes to remember if they were sent from the port of an echo service. Using the rate
# limit, this is 0.2 s, which is longer than a round trip between two echo services.
REMEMBERED_COUNT: Final = ECHO_MAX_PER_S // 5
# Magic, number, and the token of the job.
_PROBE: Final = struct.Struct("!4sIQ")
_MAGIC: Final = b"BSP1"

log = logging.getLogger(__name__)


def probe_token(job: Job) -> int:
    """Return a 64-bit token to be used in all probes of a job."""
    return int.from_bytes(hashlib.sha256(job.job_id.encode()).digest()[:8])


class Prober(asyncio.DatagramProtocol):
    """Probes of a single job.

    Create it before the first probe is due, and call :meth:`run` to send all of them.

    Attributes:
        first_at_s: Unix timestamp of the first probe.
    """

    def __init__(self, job: Job) -> None:
        requested = job.traffic.probe
        assert requested is not None  # noqa: S101 - checked by the caller
        self._step_s = requested.every_s
        before = math.ceil(requested.before_s / self._step_s)
        span_s = job.duration_s + job.traffic.omit_s + requested.after_s
        count = before + math.ceil(span_s / self._step_s)
        self.first_at_s = job.planned_start_at.timestamp() - before * self._step_s
        self._rtt_s = array("f", [UNSENT]) * count
        self._sent_ns = array("q", [0]) * count
        self._token = probe_token(job)
        self._transport: asyncio.DatagramTransport | None = None
        # Number of the last probe that was sent or skipped, plus one.
        self._sent_count = 0

    async def run(self, address: str, port: int, bind: str | None) -> None:
        """Send all probes on time and wait for the last response.

        Args:
            address: Address of the echo service.
            port: UDP port of the echo service.
            bind: Source address, or None to use the default.

        Raises:
            OSError: The socket cannot be opened.
        """
        await asyncio.sleep(max(0.0, self.first_at_s - time.time() - LATE_S))
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self,
            local_addr=None if bind is None else (bind, 0),
            remote_addr=(address, port),
        )
        try:
            for number in range(len(self._rtt_s)):
                wait_s = self.first_at_s + number * self._step_s - time.time()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                self._sent_count = number
                if -wait_s <= min(LATE_S, self._step_s / 2):
                    self._send(number)
                elif number % 64 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(WAIT_S)
        finally:
            self._transport.close()

    def _send(self, number: int) -> None:
        assert self._transport is not None  # noqa: S101 - opened in run
        self._sent_ns[number] = time.monotonic_ns()
        self._rtt_s[number] = math.nan
        self._sent_count = number + 1
        self._transport.sendto(_PROBE.pack(_MAGIC, number, self._token))

    def datagram_received(self, data: bytes, addr: object) -> None:
        now_ns = time.monotonic_ns()
        if len(data) != _PROBE.size:
            return
        magic, number, token = _PROBE.unpack(data)
        if magic != _MAGIC or token != self._token or number >= len(self._rtt_s):
            return
        rtt_s = (now_ns - self._sent_ns[number]) / 1e9
        if math.isnan(self._rtt_s[number]) and rtt_s <= WAIT_S:
            self._rtt_s[number] = rtt_s

    def error_received(self, exc: Exception) -> None:
        """Ignore the error, because the probe will be lost without a service or a route."""

    def live(self) -> LiveProbes:
        """Return the values of the newest probes.

        A probe without a response counts with the time since it was sent, if this is more than the
        median of the responses. So a blocked path is visible before the probe is lost.
        """
        now_ns = time.monotonic_ns()
        answered_s: list[float] = []
        waiting_s: list[float] = []
        losses: list[bool] = []
        for number in range(self._sent_count - 1, -1, -1):
            rtt_s, age_s = self._rtt_s[number], (now_ns - self._sent_ns[number]) / 1e9
            if rtt_s == UNSENT:
                continue
            if age_s > LIVE_LOST_S + LIVE_LOSS_S:
                break
            if age_s > LIVE_LOST_S:
                losses.append(not rtt_s <= LIVE_LOST_S)
            if not math.isnan(rtt_s):
                answered_s += [rtt_s] if age_s - rtt_s <= LIVE_RTT_S else []
            elif age_s <= WAIT_S:
                waiting_s.append(age_s)
        return LiveProbes(
            at=datetime.fromtimestamp(time.time(), UTC),
            rtt_s=_live_rtt_s(answered_s, waiting_s),
            loss_ratio=sum(losses) / len(losses) if losses else None,
        )

    @property
    def probes(self) -> Probes:
        """Results so far. A probe that is still on its way is marked as not sent."""
        since_ns = time.monotonic_ns() - WAIT_S * 1e9
        rtt_s = array(
            "f",
            (
                UNSENT if math.isnan(value) and sent_ns > since_ns else value
                for value, sent_ns in zip(self._rtt_s, self._sent_ns, strict=True)
            ),
        )
        return Probes(first_at_s=self.first_at_s, every_s=self._step_s, rtt_s=rtt_s)


def _live_rtt_s(answered_s: Sequence[float], waiting_s: Sequence[float]) -> float | None:
    """Return the median round trip, or None without a probe."""
    if not answered_s:
        return max(waiting_s, default=None)
    usual_s = statistics.median(answered_s)
    return statistics.median([*answered_s, *(age_s for age_s in waiting_s if age_s > usual_s)])


class Echo(asyncio.DatagramProtocol):
    """Echo service for probes from allowed networks.

    It sends each probe back once, with a rate limit.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._transport: asyncio.DatagramTransport | None = None
        self._left = float(ECHO_MAX_PER_S)
        self._filled_s = time.monotonic()
        self._has_refused = False
        self._answered: OrderedDict[bytes, None] = OrderedDict()

    @classmethod
    async def open(cls, settings: AgentSettings, address: str) -> Self | None:
        """Open the service on the address of the agent.

        Args:
            settings: Settings with the port and the allowed networks.
            address: Address of the agent.

        Returns:
            The service, or None if it is disabled or the port cannot be opened. The latter is
            logged.
        """
        if settings.echo_port is None:
            return None
        echo = cls(settings)
        try:
            await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: echo, local_addr=(address, settings.echo_port)
            )
        except OSError as error:
            log.warning(
                "no echo for probes: port %d: %s; set BROADSIDE_AGENT_ECHO_PORT",
                settings.echo_port,
                error.strerror,
                extra={"action": "no_echo"},
            )
            return None
        return echo

    @property
    def port(self) -> int | None:
        """Port of the service, or None if it is not open."""
        if self._transport is None:
            return None
        name = self._transport.get_extra_info("sockname")
        return int(name[1])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # always for datagrams

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        # Never send more data than was received.
        if len(data) != _PROBE.size or not data.startswith(_MAGIC):
            return
        if addr[1] == self.port and self._is_repeated(data):
            return
        now_s = time.monotonic()
        self._left = min(
            float(ECHO_MAX_PER_S), self._left + (now_s - self._filled_s) * ECHO_MAX_PER_S
        )
        self._filled_s = now_s
        if self._left < 1 or self._transport is None:
            return
        self._left -= 1
        with suppress(ValueError):
            if self._settings.is_allowed(addr[0].partition("%")[0]):
                self._transport.sendto(data, addr)
            elif not self._has_refused:
                self._has_refused = True
                log.warning(
                    "no echo for probes from %s, which is not in the allowed networks; where a "
                    "device translates addresses, add its own to BROADSIDE_AGENT_ALLOWED_NETWORKS",
                    addr[0],
                    extra={"action": "no_echo"},
                )

    def _is_repeated(self, data: bytes) -> bool:
        """Return True if a probe from the port of an echo service has already been sent back.

        A device that changes ports might use this port for a client, so we cannot drop such a
        probe. If it was sent by another echo service, both would send it back and forth forever.
        For this reason each one is sent back once.
        """
        if data in self._answered:
            return True
        self._answered[data] = None
        if len(self._answered) > REMEMBERED_COUNT:
            self._answered.popitem(last=False)
        return False
