"""Tests for ping. It should not be lost when the host is too busy to see the answer."""

import asyncio

import pytest

from broadside.exchange import ping
from broadside.exchange.ping import timed

WAIT_S = 0.05


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ping, "WAIT_S", WAIT_S)
    monkeypatch.setattr(ping, "LOOK_S", WAIT_S / 10)


async def refused() -> None:
    raise OSError("no route")


async def test_missing_answer_and_error_are_losses() -> None:
    assert await timed(asyncio.Event().wait) is None
    assert await timed(refused) is None
    assert len(asyncio.all_tasks()) == 1


async def test_ping_can_be_cancelled() -> None:
    pending = asyncio.create_task(timed(asyncio.Event().wait))
    await asyncio.sleep(0)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert len(asyncio.all_tasks()) == 1
