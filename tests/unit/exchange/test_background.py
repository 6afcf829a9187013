"""Tests for the runner of keyed background tasks."""

import asyncio

import pytest

from broadside.exchange.background import KeyedTaskRunner


async def test_running_task_is_not_restarted_and_blocks_no_other() -> None:
    runner, started, answered = KeyedTaskRunner(), [], asyncio.Event()

    async def slow() -> None:
        started.append("slow")
        await answered.wait()

    async def quick() -> None:
        started.append("quick")

    async with asyncio.timeout(10):
        for _ in range(2):
            await runner.go({"a": slow, "b": quick}, 0.01)
        assert started == ["slow", "quick", "quick"]
        answered.set()
        await asyncio.sleep(0)
        await runner.go({"a": slow}, 60)
    assert started[3:] == ["slow"]


async def test_end_cancels_running_tasks() -> None:
    runner, ended = KeyedTaskRunner(), asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await runner.go({"a": endless}, 0.01)
    await runner.end()
    assert ended.is_set()


async def test_task_error_is_raised() -> None:
    async def faulty() -> None:
        raise ValueError("internal error")

    with pytest.raises(ValueError, match="internal error"):
        await KeyedTaskRunner().go({"a": faulty}, 60)
