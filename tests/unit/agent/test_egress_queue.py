"""Tests for samples from the host egress queues."""

import struct
from collections.abc import Iterator

import pytest

from broadside.agent import egress_queue
from broadside.agent.counters import HostLog
from broadside.agent.egress_queue import filled_queues
from broadside.agent.netlink import attribute

ROOT, CHILD = 0xFFFF_FFFF, 0x1_0000


def qdisc(index: int, parent: int, kind: str, packets: int) -> tuple[int, bytes]:
    """Return one dump message, a struct tcmsg with kind and queue length."""
    queue = attribute(3, struct.pack("=5I", packets, packets * 1500, 0, 0, 0))
    content = struct.pack("=BxxxiIII", 0, index, 1, parent, 0)
    return 36, content + attribute(1, kind.encode() + b"\0") + attribute(7, queue)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """Return the queue dump for a host with lo, eth0 and eth1."""
    dump: list[tuple[int, bytes]] = []

    def ask(*_: object) -> Iterator[tuple[int, bytes]]:
        yield from dump

    monkeypatch.setattr(egress_queue, "ask", ask)
    names = [(1, "lo"), (2, "eth0"), (3, "eth1")]
    monkeypatch.setattr(egress_queue, "if_nameindex", lambda: names)
    return dump


def test_reports_if_a_work_conserving_queue_is_filled(host: list[tuple[int, bytes]]) -> None:
    host += [qdisc(1, ROOT, "noqueue", 0), qdisc(2, ROOT, "tbf", 7), qdisc(3, ROOT, "mq", 0)]
    host.append(qdisc(3, CHILD, "fq_codel", 0))
    assert filled_queues() == {"eth0": True, "eth1": False}


@pytest.mark.parametrize("kind", ["fq", "netem", "etf", "taprio", "plug"])
def test_queues_that_delay_by_design_are_excluded(host: list[tuple[int, bytes]], kind: str) -> None:
    host += [qdisc(2, ROOT, kind, 7), qdisc(3, ROOT, "mq", 7), qdisc(3, CHILD, kind, 7)]
    assert filled_queues() == {}


def sampled_log(filled: list[bool], nic: str = "eth0") -> HostLog:
    """Return a log with one sample per second, from second 100."""
    log = HostLog(retention_s=60, nic="eth0")
    for second, item in enumerate(filled):
        log.sample(100.0 + second, {nic: item})
    return log


def test_queued_ratio_excludes_samples_at_the_edges() -> None:
    # These samples are before the first byte and after the last.
    log = sampled_log([False, *[True] * 8, False])
    assert log.egress_queued_ratio(100.0, 109.0) == 1.0
    assert log.egress_queued_ratio(99.0, 110.0) == 0.8


def test_queued_ratio_is_unknown_with_few_samples() -> None:
    log = sampled_log([True] * 5)
    assert log.egress_queued_ratio(99.0, 106.0) == 1.0
    # Only four samples are in the span.
    assert log.egress_queued_ratio(99.0, 104.4) is None
    assert log.egress_queued_ratio(99.0, 106.0, "eth1") is None
    assert sampled_log([]).egress_queued_ratio(99.0, 106.0) is None
