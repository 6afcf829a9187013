"""A ping is lost where no answer came in time, not where its host looked too late."""

import asyncio
import time

import pytest

from broadside.exchange import ping
from broadside.exchange.ping import timed

WAIT_S = 0.05


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ping, "WAIT_S", WAIT_S)
    monkeypatch.setattr(ping, "LOOK_S", WAIT_S / 10)


async def answered() -> None:
    """In a tenth of the time."""
    await asyncio.sleep(WAIT_S / 10)


async def refused() -> None:
    raise OSError("no route")


async def test_an_answer_that_a_busy_host_sees_late_is_none_lost() -> None:
    asyncio.get_running_loop().call_soon(time.sleep, 3 * WAIT_S)
    took_s = await timed(answered)
    assert took_s is not None
    assert took_s >= WAIT_S


async def test_no_answer_and_an_error_are_losses_and_leave_nothing_behind() -> None:
    assert await timed(asyncio.Event().wait) is None
    assert await timed(refused) is None
    assert len(asyncio.all_tasks()) == 1


async def test_who_asks_may_be_cancelled() -> None:
    asking = asyncio.create_task(timed(asyncio.Event().wait))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(asyncio.all_tasks()) == 1
