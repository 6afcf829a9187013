"""Tests for the limits on agent requests, and for parsing outside the event loop."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from broadside.coordinator.loop_lag import LoopLag
from broadside.exchange.strict_json import DEPTH_MAX_COUNT, TooMuch, read_json, read_json_as
from tests.attack import Attack
from tests.attack.arrivals import ATTACKS
from tests.attack.on_hosts import PORT

LARGE_COUNT = 300_000
# A unit is about 10 ms of CPU time.
LAG_MAX_UNITS = 20.0
TEXTS: dict[str, Callable[[], str]] = {
    "operations": lambda: json.dumps([{"do": "ping", "id": f"a.{n}"} for n in range(LARGE_COUNT)]),
    "a matrix": lambda: json.dumps([[1.7e9 + n / 7, "1234.5"] for n in range(LARGE_COUNT)]),
    "numbers": lambda: json.dumps([[n] for n in range(2 * LARGE_COUNT)]),
    "texts of brackets": lambda: json.dumps([["[[{{"] for _ in range(LARGE_COUNT)]),
}


@pytest.mark.parametrize(
    "attack",
    [attack for attack in ATTACKS if attack.boundary == PORT],
    ids=lambda attack: attack.name,
)
def test_agent_port_survives_attack(attack: Attack) -> None:
    assert attack.run()


@pytest.mark.parametrize("name", TEXTS)
async def test_parsing_of_large_text_does_not_block_loop(name: str) -> None:
    text = TEXTS[name]().encode()
    lag = LoopLag(time.process_time)
    watching = asyncio.create_task(lag.watch())
    await asyncio.sleep(0.1)
    parsed = await read_json(text, len(text))
    await asyncio.sleep(0.1)
    watching.cancel()
    began_s = time.process_time()
    sum(range(1_000_000))
    unit_s = time.process_time() - began_s
    assert parsed == json.loads(text)
    assert lag.longest_s is not None
    assert lag.longest_s < LAG_MAX_UNITS * unit_s


@pytest.mark.parametrize("size", [1, 70_000])
async def test_parses_or_rejects_text_of_any_size(size: int) -> None:
    pad = [0] * size
    values: list[Any] = [{"a": [1, 2.5, "x", None, True]}, [[]], "text", 7]
    for value in values:
        assert await read_json(json.dumps([pad, value]).encode(), 10**6) == [pad, value]
    deep = b"[" * (DEPTH_MAX_COUNT + 1) + b"]" * (DEPTH_MAX_COUNT + 1)
    for wrong in (b"[1,", b"\xff", b"[" + b"9" * 5_000 + b"]", deep):
        with pytest.raises(ValueError):
            await read_json(b"[" + json.dumps(pad).encode() + b"," + wrong + b"]", 10**6)
    with pytest.raises(TooMuch):
        await read_json(b"[" + b" " * size + b"]", size)


async def test_conversion_of_parsed_text_runs_outside_the_loop() -> None:
    text = json.dumps([list(range(50)) for _ in range(5_000)]).encode()
    assert await read_json_as(text, len(text), len) == 5_000
    with pytest.raises(TypeError):
        await read_json_as(text, len(text), lambda parsed: parsed[0]["no"])
