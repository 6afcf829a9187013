from typing import Any

import pytest

from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import ABSENT, BottleneckInput
from broadside.coordinator.core.judge.bottleneck.device_causes import (
    DEVICE_CPU,
    KNOWN_RATE,
    OWN_QUEUE,
    SINGLE_FLOW,
    SNAT_PORTS,
    flat_counter,
)
from tests.unit.coordinator.core.judge.bottleneck.bottleneck_input import (
    counted,
    device,
    figure,
    given,
    pairs,
)

BESIDE: dict[str, Any] = {"crosses": False}


@pytest.mark.parametrize(("used", "holds"), [(0.95, True), (0.949, False), (None, False)])
def test_exhausted_snat_ports_are_the_cause(used: float | None, holds: bool) -> None:
    result = SNAT_PORTS.evaluate(given(pairs({}), snat_utilization_ratio=used))
    assert result.holds is holds
    assert not holds or result.facts == (
        "95 % of the firewall's SNAT ports are in use (limit 95 %)",
    )


@pytest.mark.parametrize(
    ("mean", "busiest", "holds"),
    [(0.95, None, True), (0.949, None, False), (0.5, 0.95, True), (0.5, 0.949, False)],
)
def test_device_cpu_is_full_by_mean_or_busiest_core(
    mean: float, busiest: float | None, holds: bool
) -> None:
    of = given(pairs({}), devices=[device(cpu_ratio=figure(mean, busiest=busiest))])
    assert DEVICE_CPU.evaluate(of).holds is holds


def test_names_and_counts_devices_with_full_cpu() -> None:
    devices = [device("a", cpu_ratio=figure(0.96)), device("b", cpu_ratio=figure(0.1))]
    of = given(pairs({}), devices=[*devices, device("c")])
    assert DEVICE_CPU.evaluate(of).facts == ("the CPU of a is 96 % busy", "1 of 3 devices")
    assert DEVICE_CPU.evaluate(given(pairs({}), devices=devices[:1])).facts == (
        "the CPU of a is 96 % busy",
    )
    assert DEVICE_CPU.evaluate(given(pairs({}), devices=devices, **BESIDE)) == ABSENT


@pytest.mark.parametrize(
    ("rate", "cov", "flat"),
    [(1e9, 0.049, True), (1e9, 0.05, False), (1e9, None, False), (None, 0.01, False)],
)
def test_counter_is_constant_below_five_percent_variation(
    rate: float | None, cov: float | None, flat: bool
) -> None:
    text = "the rate in the device counter is constant at 1 Gbit/s (CoV 4.9 %)"
    assert flat_counter(counted(rate, cov)) == (text if flat else None)
    assert flat_counter(None) is None


def _at_documented(rate: float | None = 30e9, cov: float = 0.01, **fields: Any) -> BottleneckInput:
    """Build an input at 30 Gbit/s, which is documented for the Azure Firewall SKU standard."""
    stored = None if rate is None else counted(rate, cov)
    known: dict[str, Any] = {"sku": "standard", "reconciliation": stored, "retransmit_ratio": 0.01}
    nic = fields.pop("nic", 0.5)
    return given(pairs({"client_nic_ratio": nic}), **(known | fields))


@pytest.mark.parametrize(
    ("rate", "scale", "holds"),
    [
        (30e9, 1.0, True),
        (32.9e9, 1.0, True),
        (27.1e9, 1.0, True),
        (33.1e9, 1.0, False),
        (26.9e9, 1.0, False),
        (3e9, 10.0, True),
        (30e9, 10.0, False),
    ],
)
def test_constant_counter_at_documented_rate_names_the_device(
    rate: float, scale: float, holds: bool
) -> None:
    assert KNOWN_RATE.evaluate(_at_documented(rate, scale=scale)).holds is holds


def test_documented_rate_fact_has_source_and_path_evidence() -> None:
    flat, drops, space = KNOWN_RATE.evaluate(_at_documented()).facts
    assert flat == (
        "the rate in the device counter is constant at 30 Gbit/s (CoV 1.0 %); the "
        "documented rate of standard is 30 Gbit/s "
        "(learn.microsoft.com/azure/firewall/firewall-performance, 2026-03-01)"
    )
    assert drops.startswith("the path drops packets: 1.000 %")
    assert space == "the highest utilization of a sender's NIC is 50 %"


def test_documented_rate_needs_counter_sku_and_free_nic_capacity() -> None:
    assert KNOWN_RATE.evaluate(_at_documented(None)).missing == (
        "the device counter (configure its source)",
    )
    no_rate = _at_documented(reconciliation=counted(None))
    assert KNOWN_RATE.evaluate(no_rate).missing[0].startswith("the device counter")
    assert KNOWN_RATE.evaluate(_at_documented(sku="other")).missing == (
        "the documented rate of the firewall (set device.sku)",
    )
    assert KNOWN_RATE.evaluate(_at_documented(sku=None)).holds is None
    assert KNOWN_RATE.evaluate(_at_documented(nic=0.9)) == ABSENT
    assert KNOWN_RATE.evaluate(_at_documented(cov=0.06)) == ABSENT
    assert KNOWN_RATE.evaluate(_at_documented(**BESIDE)) == ABSENT
    idle = given(
        pairs({"rtt_idle_s": 0.01, "rtt_mean_s": 0.01}), retransmit_ratio=0.0, sku="standard",
        reconciliation=counted(30e9),
    )  # fmt: skip
    assert KNOWN_RATE.evaluate(idle) == ABSENT


ROW = {"cov_ratio": 0.1, "rtt_idle_s": 0.01, "rtt_mean_s": 0.03, "client_nic_ratio": 0.5}
TRADE = {"share_movement_ratio": 0.1, "window_s": 30, "retransmit_ratio": 0.01}


def _queue(*devices: Any, row: dict[str, Any] | None = None, **fields: Any) -> BottleneckInput:
    """Build four pairs that share one limit and wait in a 20 ms queue."""
    rows = [ROW | (row or {})] * 4
    return given(pairs(*rows), devices=devices, **(TRADE | fields))


@pytest.mark.parametrize(
    ("idle_s", "mean_s", "holds"),
    [
        # This is 50 % of the stream delay (20 ms).
        (0.010, 0.020, True),
        (0.010, 0.0199, None),
        # This is less than 50 % above the idle ping.
        (0.030, 0.041, None),
        (0.019, 0.029, True),
        (None, 0.020, None),
        (0.0, 0.020, None),
    ],
)
@pytest.mark.parametrize("how", ["ping_icmp_s", "ping_tcp_s"])
def test_delayed_device_pings_locate_the_queue(
    idle_s: float | None, mean_s: float, holds: bool | None, how: str
) -> None:
    result = OWN_QUEUE.evaluate(_queue(device("fw", **{how: figure(mean_s, idle=idle_s)})))
    assert result.holds is holds
    if holds:
        shared, pinged, queue, drops, space = result.facts
        assert shared.startswith("4 pairs share one limit")
        assert pinged.startswith("pings to fw take ")
        assert pinged.endswith("without load, so the queue is in or before it")
        assert queue.startswith("the path has a queue")
        assert drops.startswith("the path drops")
        assert space == "the highest utilization of a sender's NIC is 50 %"
    else:
        assert result.missing[0].startswith("the place of the shared limit")


def test_second_device_may_have_the_queue() -> None:
    pinged = figure(0.03, idle=0.01)
    result = OWN_QUEUE.evaluate(_queue(device("a"), device("b", ping_tcp_s=pinged)))
    assert result.facts[1].startswith("pings to b take 30 ms under load and 10 ms without load")
    streams_do_not_wait = _queue(device(ping_icmp_s=pinged), row={"rtt_mean_s": 0.01})
    assert OWN_QUEUE.evaluate(streams_do_not_wait).holds is None


@pytest.mark.parametrize(
    ("drops", "holds"),
    [
        # Each drop is 45 segments, and 90 segments were lost.
        ((1.2, 0.2), True),
        ((1.1, 0.2), None),
        ((1.0, None), True),
        ((0.9, None), None),
    ],
)
def test_device_drops_of_half_the_loss_locate_the_limit(
    drops: tuple[float, float | None], holds: bool | None
) -> None:
    """The fleet loses 2,700 segments in 30 seconds, and one drop may be 64 KiB (44.9 segments)."""
    fields: dict[str, Any] = {"retransmits_count": 2690, "mss_bytes": 1460}
    by_counter = OWN_QUEUE.evaluate(_queue(drops_per_second=drops, **fields))
    assert by_counter.holds is holds
    by_telemetry = _queue(device(drops_per_second=figure(drops[0], idle=drops[1])), **fields)
    assert OWN_QUEUE.evaluate(by_telemetry).holds is holds
    if holds:
        assert by_counter.facts[1] == (
            f"the device drops {drops[0]:.3g} packets/s ({drops[1] or 0:.3g} without load); "
            "the fleet lost 89.7 segments/s"
        )
        assert OWN_QUEUE.evaluate(by_telemetry).facts[1].startswith(f"fw drops {drops[0]:.3g}")


def test_device_drops_are_no_evidence_without_fleet_loss() -> None:
    cases: list[dict[str, Any]] = [
        {"retransmits_count": None},
        {"retransmits_count": 0},
        {"retransmits_count": 2690, "retransmit_ratio": 1e-6},
        {"retransmits_count": 2690, "window_s": None},
    ]
    for case in cases:
        assert OWN_QUEUE.evaluate(_queue(drops_per_second=(1e6, 0.0), **case)).holds is None


def test_unknown_segment_size_is_taken_from_1500_byte_mtu() -> None:
    """One drop may be 65,536 / 1448 = 45.26 segments."""
    for lost, holds in ((90.5, True), (90.6, None)):
        fields: dict[str, Any] = {
            "retransmits_count": round(10 * lost),
            "window_s": 10,
            "share_movement_ratio": 0.05,
        }
        assert OWN_QUEUE.evaluate(_queue(drops_per_second=(1.0, 0.0), **fields)).holds is holds


def test_queue_evidence_includes_constant_counter() -> None:
    result = OWN_QUEUE.evaluate(
        _queue(device(ping_icmp_s=figure(0.03, idle=0.01)), reconciliation=counted(1e9))
    )
    assert result.facts[-2].startswith("the rate in the device counter is constant at 1 Gbit/s")


def test_no_device_cause_if_pairs_do_not_share_a_limit() -> None:
    pinged = device(ping_icmp_s=figure(0.03, idle=0.01))
    assert OWN_QUEUE.evaluate(_queue(pinged, share_movement_ratio=0.6)) == ABSENT
    assert OWN_QUEUE.evaluate(_queue(pinged, crosses=False)) == ABSENT
    assert OWN_QUEUE.evaluate(_queue(pinged, row={"client_nic_ratio": 0.9})) == ABSENT
    unread = OWN_QUEUE.evaluate(_queue(pinged, share_movement_ratio=None))
    assert unread.missing[0].startswith("if the pairs share one limit")
    no_seconds = OWN_QUEUE.evaluate(_queue(pinged, row={"cov_ratio": None}))
    assert no_seconds.missing == unread.missing
    idle = _queue(pinged, row={"rtt_mean_s": 0.01}, retransmit_ratio=0.0)
    assert OWN_QUEUE.evaluate(idle) == ABSENT
    crowded = OWN_QUEUE.evaluate(_queue(pinged, row={"client_agent_id": "c"}))
    assert crowded.missing[0].startswith("the free capacity of c, which has several pairs")
    no_cap = OWN_QUEUE.evaluate(_queue(pinged, row={"client_nic_ratio": None}))
    assert not any("NIC" in fact for fact in no_cap.facts)


@pytest.mark.parametrize(
    ("rate", "scale", "cov", "holds"),
    [
        (1.5e9, 1.0, 0.03, True),
        (1.36e9, 1.0, 0.01, True),
        (1.64e9, 1.0, 0.01, True),
        (1.34e9, 1.0, 0.01, False),
        (1.66e9, 1.0, 0.01, False),
        (0.15e9, 10.0, 0.01, True),
        (1.5e9, 10.0, 0.01, False),
        (1.5e9, 1.0, 0.031, False),
    ],
)
def test_streams_at_documented_connection_rate_name_single_flow(
    rate: float, scale: float, cov: float, holds: bool
) -> None:
    """For SKU standard, 1.5 Gbit/s is documented for one TCP connection."""
    fields: dict[str, Any] = {
        "pair_median_bits_per_second": rate,
        "pair_cov_ratio": cov,
        "scale": scale,
    }
    result = SINGLE_FLOW.evaluate(given(pairs({}, {}), sku="standard", **fields))
    assert result.holds is holds
    if rate == 1.5e9 and holds:
        same, documented = result.facts
        assert same == "all 2 pairs have the same rate per stream, 1.5 Gbit/s"
        assert documented == (
            "the documented rate of one TCP connection through standard is 1.5 Gbit/s "
            "(learn.microsoft.com/azure/firewall/firewall-performance, 2026-03-01)"
        )


def test_single_flow_is_no_cause_with_bypass_or_full_nic() -> None:
    fields: dict[str, Any] = {
        "pair_median_bits_per_second": 1.5e9,
        "pair_cov_ratio": 0.01,
        "sku": "standard",
    }
    assert SINGLE_FLOW.evaluate(given(pairs({}), **fields, **BESIDE)) == ABSENT
    assert SINGLE_FLOW.evaluate(given(pairs({"client_nic_ratio": 0.9}), **fields)) == ABSENT
    assert SINGLE_FLOW.evaluate(given(pairs({}), **(fields | {"sku": "other"}))) == ABSENT
    assert SINGLE_FLOW.evaluate(given(pairs({}), **(fields | {"sku": None}))) == ABSENT
