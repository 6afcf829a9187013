"""Looks at the host's own egress queues: which kinds count, and what share was filled."""

import struct
from collections.abc import Iterator

import pytest

from broadside.agent import egress_queue
from broadside.agent.counters import HostLog
from broadside.agent.egress_queue import filled_queues
from broadside.agent.netlink import attribute

ROOT, CHILD = 0xFFFF_FFFF, 0x1_0000


def qdisc(index: int, parent: int, kind: str, packets: int) -> tuple[int, bytes]:
    """Return one message of a dump: a struct tcmsg with its kind and queue."""
    queue = attribute(3, struct.pack("=5I", packets, packets * 1500, 0, 0, 0))
    content = struct.pack("=BxxxiIII", 0, index, 1, parent, 0)
    return 36, content + attribute(1, kind.encode() + b"\0") + attribute(7, queue)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """A host whose interfaces are lo, eth0 and eth1; its dump is what the list holds."""
    dump: list[tuple[int, bytes]] = []

    def ask(*_: object) -> Iterator[tuple[int, bytes]]:
        yield from dump

    monkeypatch.setattr(egress_queue, "ask", ask)
    names = [(1, "lo"), (2, "eth0"), (3, "eth1")]
    monkeypatch.setattr(egress_queue, "if_nameindex", lambda: names)
    return dump


def test_a_work_conserving_queue_is_filled_or_not(host: list[tuple[int, bytes]]) -> None:
    host += [qdisc(1, ROOT, "noqueue", 0), qdisc(2, ROOT, "tbf", 7), qdisc(3, ROOT, "mq", 0)]
    host.append(qdisc(3, CHILD, "fq_codel", 0))
    assert filled_queues() == {"eth0": True, "eth1": False}


@pytest.mark.parametrize("kind", ["fq", "netem", "etf", "taprio", "plug"])
def test_a_queue_that_holds_packets_by_design_shows_nothing(
    host: list[tuple[int, bytes]], kind: str
) -> None:
    host += [qdisc(2, ROOT, kind, 7), qdisc(3, ROOT, "mq", 7), qdisc(3, CHILD, kind, 7)]
    assert filled_queues() == {}


def test_this_hosts_kernel_answers() -> None:
    assert all(isinstance(filled, bool) for filled in filled_queues().values())


def looked(filled: list[bool], nic: str = "eth0") -> HostLog:
    """A log with a look a second from second 100 on."""
    log = HostLog(retention_s=60, nic="eth0")
    for second, item in enumerate(filled):
        log.sample(100.0 + second, {nic: item})
    return log


def test_the_share_of_looks_leaves_the_edges_out() -> None:
    log = looked([False, *[True] * 8, False])  # before the first byte, and after the last
    assert log.egress_queued_ratio(100.0, 109.0) == 1.0
    assert log.egress_queued_ratio(99.0, 110.0) == 0.8


def test_few_looks_or_another_interface_are_unknown() -> None:
    log = looked([True] * 5)
    assert log.egress_queued_ratio(99.0, 106.0) == 1.0
    assert log.egress_queued_ratio(99.0, 104.4) is None  # four looks
    assert log.egress_queued_ratio(99.0, 106.0, "eth1") is None
    assert looked([]).egress_queued_ratio(99.0, 106.0) is None
