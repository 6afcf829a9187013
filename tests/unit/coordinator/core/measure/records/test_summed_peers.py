"""Tests for the received addresses of a pair with several processes."""

from datetime import UTC, datetime, timedelta

import numpy as np

from broadside.coordinator.core.measure.records.columns import NO_HOST
from broadside.coordinator.core.measure.records.server_tests import Summed, _summed_peers
from broadside.exchange.engines.peer_seconds import read_steps
from broadside.exchange.messages import Endpoint, EngineReport, PeerSeconds, ServerTest

AT = datetime(2027, 3, 1, 12, tzinfo=UTC)


class _Track:
    """Track with two seconds."""

    start_s = np.array([0.0, 1.0])
    end_s = np.array([1.0, 2.0])
    transferred_bytes = np.array([100.0, 300.0])


def record(address: str, after_s: float) -> Summed:
    test = ServerTest(
        agent_id="s",
        endpoint=Endpoint(agent_id="s", address="10.2.0.1", port=5201),
        started_at=AT,
        first_data_at=AT + timedelta(seconds=after_s),
        engine=EngineReport(
            engine="iperf3", peers=(PeerSeconds(address=address, streams_count=4),)
        ),
    )
    return Summed(test=test, tracks=[_Track()], host=NO_HOST)  # type: ignore[list-item]


def test_processes_with_different_addresses_get_steps_on_a_common_time() -> None:
    first, second = _summed_peers([record("10.9.0.1", 0), record("10.9.0.2", 0.5)], AT)
    assert (first.from_s, second.from_s) == (0.0, 0.5)
    assert [list(column) for column in read_steps(second) or ()] == [[100, 300], [4, 4]]


def test_processes_with_one_address_need_no_steps() -> None:
    peers = _summed_peers([record("10.9.0.1", 0), record("10.9.0.1", 0)], AT)
    assert [(peer.address, peer.packed) for peer in peers] == [("10.9.0.1", "")] * 2
