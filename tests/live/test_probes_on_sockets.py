"""Test probes and the echo over real sockets on loopback."""

import asyncio
import math
import socket
import time
from datetime import UTC, datetime

import pytest

from broadside.agent.probe import Echo, Prober, probe_token
from tests.unit.agent.jobs import make_job, make_settings

pytestmark = pytest.mark.live

PROBE = {"every_s": 0.02, "before_s": 0.5, "after_s": 0.2}
LOOPBACK = "127.0.0.1"


def job(in_s: float) -> Prober:
    at = datetime.fromtimestamp(time.time() + in_s, UTC)
    return Prober(make_job(planned_start_at=at, duration_s=1, traffic={"probe": PROBE}))


async def test_sends_probes_at_all_steps_and_receives_echoes() -> None:
    echo = await Echo.open(make_settings(role="server", echo_port=0), LOOPBACK)
    assert echo is not None and echo.port is not None
    prober = job(0.6)
    await prober.run(LOOPBACK, echo.port, LOOPBACK)
    echo.close()
    probes = prober.probes
    assert len(probes.rtt_s) == 25 + 60
    answered = [rtt_s for rtt_s in probes.rtt_s if rtt_s >= 0]
    # If the host is busy, it may have skipped some steps, which will not be sent.
    assert len(answered) > 10
    assert not any(math.isnan(rtt_s) for rtt_s in probes.rtt_s)


async def test_unanswered_probes_are_lost_and_late_ones_are_not_sent() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((LOOPBACK, 0))
        # The first 20 steps are already over.
        prober = job(0.1)
        await prober.run(LOOPBACK, silent.getsockname()[1], None)
    rtt_s = list(prober.probes.rtt_s)
    assert all(value < 0 for value in rtt_s[:15])
    assert sum(math.isnan(value) for value in rtt_s) > 10
    assert not any(value >= 0 for value in rtt_s)


async def test_echo_answers_only_valid_probes_of_allowed_networks() -> None:
    refusing = make_settings(role="server", echo_port=0, allowed_networks="10.9.0.0/16")
    for settings, received in (
        (make_settings(role="server", echo_port=0), True),
        (refusing, False),
    ):
        echo = await Echo.open(settings, LOOPBACK)
        assert echo is not None and echo.port is not None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            client.bind((LOOPBACK, 0))
            for data in (b"BSP1" + bytes(13), b"BSP1", b"XXXX" + bytes(12), b"BSP1" + bytes(12)):
                client.sendto(data, (LOOPBACK, echo.port))
            got = []
            if received:
                answer = asyncio.get_running_loop().sock_recv(client, 100)
                got.append(await asyncio.wait_for(answer, 10))
            # Wait for unexpected packets.
            await asyncio.sleep(0.2)
            while True:
                try:
                    got.append(client.recv(100))
                except BlockingIOError:
                    break
        echo.close()
        assert got == ([b"BSP1" + bytes(12)] if received else [])


async def test_port_in_use_disables_the_echo() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind((LOOPBACK, 0))
        settings = make_settings(role="server", echo_port=holder.getsockname()[1])
        assert await Echo.open(settings, LOOPBACK) is None


async def test_echo_answers_once_with_equal_source_port() -> None:
    """Test a source port that is equal to the echo port, because two echoes should not loop."""
    echo = await Echo.open(make_settings(role="server", echo_port=0), LOOPBACK)
    assert echo is not None and echo.port is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        client.bind(("127.0.0.2", echo.port))
        for number in (1, 2, 1, 2, 3):
            client.sendto(b"BSP1" + number.to_bytes(4) + bytes(8), (LOOPBACK, echo.port))
        got: list[int] = []
        while len(got) < 3:
            answer = asyncio.get_running_loop().sock_recv(client, 100)
            got.append((await asyncio.wait_for(answer, 10))[7])
        # Wait for unexpected packets.
        await asyncio.sleep(0.2)
        with pytest.raises(BlockingIOError):
            client.recv(100)
    echo.close()
    assert got == [1, 2, 3]


def test_probe_token_depends_on_the_job() -> None:
    job, other = make_job(), make_job(pair_index=3)
    assert probe_token(job) == probe_token(job.model_copy()) != probe_token(other)
