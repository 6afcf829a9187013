"""Tests for egress queue that need processes, sockets or real time."""

from broadside.agent.egress_queue import filled_queues


def test_reads_queues_of_this_host() -> None:
    assert all(isinstance(filled, bool) for filled in filled_queues().values())
