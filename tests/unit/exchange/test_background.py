"""Works in lanes."""

import asyncio

import pytest

from broadside.exchange.background import KeyedTaskRunner


async def test_a_work_that_goes_on_is_not_begun_again_and_holds_up_no_other() -> None:
    lanes, begun, answered = KeyedTaskRunner(), [], asyncio.Event()

    async def slow() -> None:
        begun.append("slow")
        await answered.wait()

    async def quick() -> None:
        begun.append("quick")

    async with asyncio.timeout(10):
        for _ in range(2):
            await lanes.go({"a": slow, "b": quick}, 0.01)
        assert begun == ["slow", "quick", "quick"]
        answered.set()
        await asyncio.sleep(0)
        await lanes.go({"a": slow}, 60)
    assert begun[3:] == ["slow"]


async def test_what_goes_on_is_ended() -> None:
    lanes, ended = KeyedTaskRunner(), asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await lanes.go({"a": endless}, 0.01)
    await lanes.end()
    assert ended.is_set()


async def test_what_a_work_raises_is_raised() -> None:
    async def faulty() -> None:
        raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="a fault of ours"):
        await KeyedTaskRunner().go({"a": faulty}, 60)
