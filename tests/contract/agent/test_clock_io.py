"""Tests for clock that need processes, sockets or real time."""

from broadside.agent.clock import (
    read_clock,
)


async def test_explicit_chronyd_address_disables_the_kernel_clock() -> None:
    assert (await read_clock()).boot_id
    # This address has no chronyd.
    assert (await read_clock("127.0.0.9")).boot_id is None
