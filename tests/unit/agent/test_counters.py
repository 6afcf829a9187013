from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.counters import (
    NICS_MAX_COUNT,
    CoreTicks,
    CountersUnreadable,
    HostLog,
    HostTotals,
    NicCounts,
    difference,
    parse_net_dev,
    parse_retransmits,
    parse_stat,
)

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo co
    lo:    5125      41    0    0    0     0          0         0     5125      41    0    0    0
  eth0: 191854087    8764    0    3    0     0          0         0   472913    5219    0    4    0
eth0.7:7 1 0 0 0 0 0 0 9 2 0 0 0 0 0 0
"""
SNMP = """\
Ip: Forwarding DefaultTTL InReceives
Ip: 2 64 8794
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens InSegs OutSegs RetransSegs InErrs OutRsts
Tcp: 1 200 120000 -1 71 8641 4991 17 0 164
Udp: InDatagrams NoPorts
Udp: 146 3
"""
STAT = """\
cpu  1668 0 1783 210022 942 0 54 10 0 0
cpu0 328 0 550 106346 24 0 14 1 0 0
cpu1 1340 0 1232 103675 917 0 39 8 0 0
intr 1 2 3
ctxt 123
"""


def test_net_dev_columns() -> None:
    assert parse_net_dev(NET_DEV)["eth0"] == NicCounts(
        rx_bytes=191854087,
        rx_packets_count=8764,
        tx_bytes=472913,
        tx_packets_count=5219,
        drops_count=7,
    )
    assert parse_net_dev(NET_DEV)["eth0.7"].rx_bytes == 7


def test_idle_interfaces_are_included_only_on_request() -> None:
    text = f"{NET_DEV}idle0: {' '.join(['0'] * 16)}\nidle1: {' '.join(['0'] * 16)}\n"
    assert set(parse_net_dev(text)) == {"lo", "eth0", "eth0.7"}
    assert set(parse_net_dev(text, "idle1")) == {"lo", "eth0", "eth0.7", "idle1"}


def test_many_interfaces_are_limited_but_include_the_configured() -> None:
    busy = "".join(f"veth{number}: {' '.join(['1'] * 16)}\n" for number in range(300))
    net_dev = parse_net_dev(f"{NET_DEV}{busy}", "veth299")
    assert len(net_dev) <= NICS_MAX_COUNT + 1
    assert "veth299" in net_dev


def test_retransmits_by_column_name() -> None:
    assert parse_retransmits(SNMP) == 17
    with pytest.raises(CountersUnreadable):
        parse_retransmits("Ip: Forwarding\nIp: 2\n")


def test_stat_counts_all_but_idle_and_waiting_as_busy() -> None:
    cores = parse_stat(STAT)
    assert cores[0] == CoreTicks(
        busy=328 + 550 + 14 + 1, total=328 + 550 + 106346 + 24 + 14 + 1, taken=1
    )
    assert len(cores) == 2
    (taken,) = parse_stat("cpu0 100 0 50 800 10 5 5 30 0 0\n")
    assert taken == CoreTicks(busy=190, total=1000, taken=30)
    with pytest.raises(CountersUnreadable):
        parse_stat("intr 1\n")


def totals(read_at_s: float = 100.0, **nic: int) -> HostTotals:
    counts = NicCounts(
        rx_bytes=1000, rx_packets_count=10, tx_bytes=2000, tx_packets_count=20, drops_count=1
    )
    return HostTotals(
        read_at_s=read_at_s,
        nics={"eth0": replace(counts, **nic), "lo": counts},
        tcp_retransmits_count=5,
        cores=(CoreTicks(busy=100, total=1000), CoreTicks(busy=200, total=1000)),
    )


def test_difference_returns_increments() -> None:
    later = replace(
        totals(101.0, rx_bytes=1500, drops_count=4),
        tcp_retransmits_count=7,
        cores=(CoreTicks(busy=150, total=1100), CoreTicks(busy=300, total=1100)),
    )
    second = difference(totals(), later)["eth0"]
    assert (second.start_at_s, second.end_at_s) == (100.0, 101.0)
    assert (second.nic_rx_bytes, second.nic_tx_bytes, second.nic_drops_count) == (500, 0, 3)
    assert second.tcp_retransmits_count == 2
    assert (second.cpu_busy_ratio, second.cpu_busiest_core_ratio) == (0.75, 1.0)


def test_recreated_interface_counts_from_zero() -> None:
    cores = (CoreTicks(busy=150, total=1100),)
    second = difference(totals(), replace(totals(101.0, rx_bytes=300), cores=cores))["eth0"]
    assert second.nic_rx_bytes == 300


def test_readings_without_a_cpu_tick_are_skipped() -> None:
    assert difference(totals(), totals(100.001)) == {}


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=8))
def test_cpu_ratios_stay_between_zero_and_one(steps: list[tuple[int, int]]) -> None:
    """Check this also when the idle time has stepped back."""
    earlier = replace(totals(), cores=tuple(CoreTicks(busy=100, total=1000) for _ in steps))
    later = replace(
        totals(101.0),
        cores=tuple(CoreTicks(busy=100 + b, total=1000 + t) for b, t in steps),
    )
    for second in difference(earlier, later).values():
        assert 0 <= second.cpu_busy_ratio <= second.cpu_busiest_core_ratio <= 1


def test_log_drops_old_seconds_and_selects_by_time() -> None:
    host_log = HostLog(retention_s=3)
    cores = (CoreTicks(busy=100, total=1100),)
    for at_s in range(5):
        host_log.add(difference(totals(at_s), replace(totals(at_s + 1.0), cores=cores)))
    assert [second.start_at_s for second in host_log.between(0, 10)] == [2, 3, 4]
    assert [second.start_at_s for second in host_log.between(3.0, 3.5)] == [3]


def test_log_returns_counters_of_the_requested_interface() -> None:
    host_log = HostLog(retention_s=3, nic="eth0")
    later = totals(101.0, rx_bytes=1_500)
    cores = (CoreTicks(busy=100, total=1100),)
    new = replace(later.nics["lo"], rx_bytes=77)
    later = replace(later, cores=cores, nics={**later.nics, "bond0": new})
    host_log.add(difference(totals(100.0), later))
    received = {
        nic: [second.nic_rx_bytes for second in host_log.between(0, 200, nic)]
        for nic in (None, "eth0", "lo", "bond0", "gone0")
    }
    assert received == {None: [500], "eth0": [500], "lo": [0], "bond0": [77], "gone0": []}


def test_steal_ratio_is_over_all_cores_and_at_most_the_busy_time() -> None:
    cores = (CoreTicks(busy=150, total=1100, taken=40), CoreTicks(busy=200, total=1100, taken=7))
    second = difference(totals(), replace(totals(101.0), cores=cores))["eth0"]
    assert second.cpu_taken_ratio == pytest.approx(40 / 200)
