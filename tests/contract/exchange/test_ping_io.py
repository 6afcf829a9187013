"""Tests for ping that need processes, sockets or real time."""

import asyncio
import time

import pytest

from broadside.exchange import ping
from broadside.exchange.ping import timed
from tests.unit.exchange.test_ping import WAIT_S


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ping, "WAIT_S", WAIT_S)
    monkeypatch.setattr(ping, "LOOK_S", WAIT_S / 10)


async def answered() -> None:
    """Answer within the timeout."""
    await asyncio.sleep(WAIT_S / 10)


async def test_answer_read_late_on_a_busy_host_is_not_lost() -> None:
    asyncio.get_running_loop().call_soon(time.sleep, 3 * WAIT_S)
    took_s = await timed(answered)
    assert took_s is not None
    assert took_s >= WAIT_S
