"""Small datagrams beside a burst: what the path does to them while it is loaded.

The client sends one every step of a grid that is tied to the instant and writes down when the echo
came; the server's agent (:class:`Echo`) sends back what it got and nothing else. A probe carries
the token of its job: an answer is recognised by it, whatever addresses and ports a device on the
path has rewritten. A round trip holds both agents' own wake-ups: some 0.1 ms on a quiet host, more
on one whose cores are full.
"""

import asyncio
import hashlib
import logging
import math
import struct
import time
from array import array
from collections import OrderedDict
from contextlib import suppress
from typing import Final, Self

from broadside.agent.agent_settings import AgentSettings
from broadside.exchange.messages import Job
from broadside.exchange.second_rows import UNSENT, Probes

WAIT_S: Final = 1.0  # s after which a probe without an answer is lost
LATE_S: Final = 0.05  # s behind its time, at most half a step, by which a probe is still sent
ECHO_MAX_PER_S: Final = 20_000  # answers a second: 1,000 pairs' probes, and no more
# Probes that came from the port of an echo and were answered. More than are under way between two
# echoes at the bounded rate: 0.2 s.
REMEMBERED_COUNT: Final = ECHO_MAX_PER_S // 5
_PROBE: Final = struct.Struct("!4sIQ")  # magic, number, the job's own token
_MAGIC: Final = b"BSP1"

log = logging.getLogger(__name__)


def probe_token(job: Job) -> int:
    """Return the 64 bits by which the probes of a job are recognised."""
    return int.from_bytes(hashlib.sha256(job.job_id.encode()).digest()[:8])


class Prober(asyncio.DatagramProtocol):
    """One job's probes. Opened before the first is due; :meth:`run` sends them all."""

    def __init__(self, job: Job) -> None:
        asked = job.traffic.probe
        assert asked is not None  # noqa: S101 - the caller asked
        self._step_s = asked.every_s
        before = math.ceil(asked.before_s / self._step_s)
        span_s = job.duration_s + job.traffic.omit_s + asked.after_s
        count = before + math.ceil(span_s / self._step_s)
        self._first_at_s = job.planned_start_at.timestamp() - before * self._step_s
        self._rtt_s = array("f", [UNSENT]) * count
        self._sent_ns = array("q", [0]) * count
        self._token = probe_token(job)
        self._transport: asyncio.DatagramTransport | None = None

    async def run(self, address: str, port: int, bind: str | None) -> None:
        """Send every probe on time and wait for the last answer. Raises ``OSError``."""
        await asyncio.sleep(max(0.0, self._first_at_s - time.time() - LATE_S))
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self,
            local_addr=None if bind is None else (bind, 0),
            remote_addr=(address, port),
        )
        try:
            for number in range(len(self._rtt_s)):
                wait_s = self._first_at_s + number * self._step_s - time.time()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                if -wait_s <= min(LATE_S, self._step_s / 2):
                    self._send(number)
                elif number % 64 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(WAIT_S)
        finally:
            self._transport.close()

    def _send(self, number: int) -> None:
        assert self._transport is not None  # noqa: S101 - run opened it
        self._sent_ns[number] = time.monotonic_ns()
        self._rtt_s[number] = math.nan
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
        """Nobody there, or no route: the probe is lost, which its silence says already."""

    @property
    def probes(self) -> Probes:
        """What is known so far; a probe still under way is neither answered nor lost."""
        since_ns = time.monotonic_ns() - WAIT_S * 1e9
        rtt_s = array(
            "f",
            (
                UNSENT if math.isnan(value) and sent_ns > since_ns else value
                for value, sent_ns in zip(self._rtt_s, self._sent_ns, strict=True)
            ),
        )
        return Probes(first_at_s=self._first_at_s, every_s=self._step_s, rtt_s=rtt_s)


class Echo(asyncio.DatagramProtocol):
    """Answers probes of allowed networks: what came goes back, once, at a bounded rate."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._transport: asyncio.DatagramTransport | None = None
        self._left = float(ECHO_MAX_PER_S)
        self._filled_s = time.monotonic()
        self._has_refused = False
        self._answered: OrderedDict[bytes, None] = OrderedDict()

    @classmethod
    async def open(cls, settings: AgentSettings, address: str) -> Self | None:
        """Listen at the agent's address; None, and a word in the log, where that cannot be."""
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
        """Where it listens."""
        if self._transport is None:
            return None
        name = self._transport.get_extra_info("sockname")
        return int(name[1])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of datagrams, as asked

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        # Never more than came.
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
        """Return whether a probe from an echo's own port was answered before.

        A device that rewrites ports may give a client that port. Another echo would send the same
        bytes back without end, so each is answered once.
        """
        if data in self._answered:
            return True
        self._answered[data] = None
        if len(self._answered) > REMEMBERED_COUNT:
            self._answered.popitem(last=False)
        return False
