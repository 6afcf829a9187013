"""Tests for counters that need processes, sockets or real time."""

import pytest

from broadside.agent.counters import (
    CountersUnreadable,
    HostCounterReader,
)


def test_missing_interface_is_an_error_with_its_name() -> None:
    with pytest.raises(CountersUnreadable, match=r"no interface none0.*BROADSIDE_AGENT_NIC"):
        HostCounterReader("none0")
