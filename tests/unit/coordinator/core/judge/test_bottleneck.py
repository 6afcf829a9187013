from collections.abc import Sequence
from typing import Any

import pytest

from broadside.coordinator.core.judge.bottleneck import common_bottleneck, find_bottleneck
from broadside.coordinator.core.judge.bottleneck.bottleneck_evidence import BottleneckInput
from broadside.coordinator.core.summary import (
    UNKNOWN,
    Bottleneck,
    BottleneckName,
    ByteSource,
    DeviceFigure,
    DeviceSummary,
    FlowSummary,
    PairSummary,
    SecondState,
)
from broadside.exchange.messages import Direction, Flow, Traffic
from tests.judged import judged_burst
from tests.synthetic import Plant, fleet
from tests.unit.coordinator.core.judge.bottleneck.bottleneck_input import counted


def pairs_of(count: int, **figures: Any) -> list[PairSummary]:
    """Build complete pairs with equal values."""
    return [
        PairSummary(
            pair=f"pair-{index + 1:03d}",
            pair_index=index,
            state=SecondState.MEASURED,
            completeness_ratio=1.0,
            basis=ByteSource.RECEIVER,
            **{"cov_ratio": 0.1, **figures},
        )
        for index in range(count)
    ]


def bottleneck_of(
    traffic: Traffic,
    *,
    client_nic: float | None,
    server_nic: float | None,
    pushed: bool = False,
    pair: float = 1e9,
    devices: Sequence[DeviceSummary] = (),
    crosses: bool = True,
) -> Bottleneck:
    """Return the bottleneck for four equal pairs at 10 ms RTT."""
    pairs = pairs_of(
        4,
        received_bits_per_second=pair,
        rtt_mean_s=0.01,
        rtt_idle_s=0.001 if pushed else 0.01,
        client_nic_ratio=client_nic,
        server_nic_ratio=server_nic,
    )
    lead = FlowSummary(
        flow=traffic.direction.flows[0],
        pair_cov_ratio=0.1 if pushed else 0.01,
        pair_median_bits_per_second=pair,
        second_cov_ratio=0.01,
        share_movement_ratio=0.05 if pushed else None,
        rtt_mean_s=0.01,
        retransmit_ratio=0.01 if pushed else 0.0,
    )
    others = [FlowSummary(flow=Flow.DOWN)] if len(traffic.direction.flows) > 1 else []
    return find_bottleneck(
        BottleneckInput(
            traffic=traffic,
            flows=[lead, *others],
            pairs=pairs,
            devices=devices or ([device_with_pings()] if pushed else []),
            crosses=crosses,
        )
    )


def device_with_pings(mean_s: float = 0.008, idle_s: float = 0.001) -> DeviceSummary:
    """Build a device that has a queue for pings."""
    seen = DeviceFigure(
        mean=mean_s, p95=mean_s, min=idle_s, max=mean_s, idle=idle_s, covered_ratio=1.0
    )
    return DeviceSummary(device="fw", ping_icmp_s=seen)


def device(name: str, cpu: float, busiest: float | None = None) -> DeviceSummary:
    reported = DeviceFigure(mean=cpu, p95=cpu, min=cpu, max=cpu, busiest=busiest, covered_ratio=1.0)
    return DeviceSummary(device=name, cpu_ratio=reported)


@pytest.mark.parametrize(
    ("devices", "evidence"),
    [
        ([device("fw-a", 0.99)], ["the CPU of fw-a is 99 % busy"]),
        ([device("fw-a", 0.4, 0.97)], ["the CPU of fw-a is 40 % busy, its busiest core 97 %"]),
        (
            [device("fw-a", 0.96), device("fw-b", 0.3)],
            ["the CPU of fw-a is 96 % busy", "1 of 2 devices"],
        ),
    ],
)
def test_device_with_full_cpu_is_the_bottleneck(
    devices: Sequence[DeviceSummary], evidence: list[str]
) -> None:
    free: dict[str, Any] = {"client_nic": 0.2, "server_nic": 0.2, "devices": devices}
    bottleneck = bottleneck_of(Traffic(), **free)
    assert bottleneck.name is BottleneckName.FIREWALL
    assert list(bottleneck.evidence) == evidence
    # A full NIC has precedence, and the device cannot limit traffic that bypasses it.
    assert (
        bottleneck_of(Traffic(), **{**free, "client_nic": 0.99}).name is BottleneckName.CLIENT_NIC
    )
    assert bottleneck_of(Traffic(), **free, crosses=False).name is not BottleneckName.FIREWALL
    roomy = [device("fw-a", 0.5)]
    assert (
        bottleneck_of(Traffic(), **{**free, "devices": roomy}).name is not BottleneckName.FIREWALL
    )


@pytest.mark.parametrize(
    ("direction", "client_nic", "server_nic", "firewall"),
    [
        (Direction.FORWARD, 0.2, 0.93, True),
        (Direction.FORWARD, 0.93, 0.03, False),
        (Direction.REVERSE, 0.03, 0.2, True),
        (Direction.REVERSE, 0.03, 0.93, False),
        (Direction.BIDIRECTIONAL, 0.2, 0.2, True),
        (Direction.BIDIRECTIONAL, 0.2, 0.93, False),
        (Direction.BIDIRECTIONAL, 0.93, 0.2, False),
        (Direction.BIDIRECTIONAL, None, 0.93, False),
        (Direction.FORWARD, None, 0.93, True),
    ],
)
def test_free_nic_of_receiver_is_no_evidence_for_the_firewall(
    direction: Direction, client_nic: float | None, server_nic: float | None, firewall: bool
) -> None:
    traffic = Traffic(direction=direction)
    bottleneck = bottleneck_of(traffic, client_nic=client_nic, server_nic=server_nic, pushed=True)
    assert (bottleneck.name is BottleneckName.FIREWALL) == firewall


def test_equal_streams_need_documented_limit_for_single_flow() -> None:
    down = Traffic(direction=Direction.REVERSE, streams_count=1)
    alone = bottleneck_of(down, client_nic=0.03, server_nic=0.5)
    assert alone.name is BottleneckName.UNKNOWN
    assert "another VM size" in (alone.advice or "")
    assert bottleneck_of(down, client_nic=0.03, server_nic=0.96).name is BottleneckName.SERVER_NIC


@pytest.mark.parametrize("pair", [0.8e9, 1.6e9])
def test_directions_have_separate_windows(pair: float) -> None:
    """With 1.25 MB at 10 ms, 1 Gbit/s is possible per direction, and 2 Gbit/s in total."""
    traffic = Traffic(
        direction=Direction.BIDIRECTIONAL, streams_count=4, window_bytes=1_250_000 // 4
    )
    bottleneck = bottleneck_of(traffic, client_nic=0.1, server_nic=0.1, pair=pair)
    assert (bottleneck.name is BottleneckName.WINDOW) == (pair > 1e9)


def test_advised_window_uses_nic_of_the_sender() -> None:
    traffic = Traffic(direction=Direction.REVERSE, streams_count=4, window_bytes=312_500)
    bottleneck = bottleneck_of(traffic, client_nic=0.01, server_nic=0.5)
    assert bottleneck.name is BottleneckName.WINDOW
    assert "2 Gbit/s" in (bottleneck.advice or "")


# Three seconds at 118.8 Mbit/s, in segments of 1448 bytes.
SEGMENTS = 30_767


def sessions(
    retransmits_count: int | None,
    *,
    streams: int = 2,
    rate: float = 118.8e6,
    rtt_s: float = 0.0212,
    baseline_s: float | None = 0.0206,
    window_bytes: int | None = 131_072,
    pairs: int = 1,
    retransmit_ratio: float | None = None,
    mss_bytes: int | None = 1448,
    share_movement: float | None = None,
    devices: Sequence[DeviceSummary] = (),
) -> Bottleneck:
    """Return the bottleneck for sessions with full 128 KiB windows at 20 ms and free NICs."""
    traffic = Traffic(streams_count=streams, window_bytes=window_bytes)
    summaries = pairs_of(
        pairs,
        received_bits_per_second=rate,
        rtt_mean_s=rtt_s,
        rtt_idle_s=baseline_s,
        cwnd_bytes=rate / 8 * rtt_s,
        client_nic_ratio=rate / 480e6,
    )
    ratio = retransmit_ratio
    if ratio is None and retransmits_count is not None:
        ratio = retransmits_count / SEGMENTS
    lead = FlowSummary(
        flow=Flow.UP,
        pair_cov_ratio=0.1,
        pair_median_bits_per_second=rate,
        second_cov_ratio=0.012,
        share_movement_ratio=share_movement,
        rtt_mean_s=rtt_s,
        retransmits_count=retransmits_count,
        retransmit_ratio=ratio,
        mss_bytes=mss_bytes,
    )
    reported = counted(rate * 1.036, 0.005)
    return find_bottleneck(
        BottleneckInput(
            traffic=traffic, flows=[lead], pairs=summaries, reconciliation=reported, devices=devices
        )
    )


@pytest.mark.parametrize("pairs", [1, 4])
@pytest.mark.parametrize("retransmits", [0, 1, 2])
def test_few_drops_leave_the_window_as_bottleneck(retransmits: int, pairs: int) -> None:
    bottleneck = sessions(retransmits, pairs=pairs)
    assert bottleneck.name is BottleneckName.WINDOW
    assert ("and no drops" in bottleneck.evidence[0]) == (retransmits == 0)
    assert ("too few" in bottleneck.evidence[0]) == (retransmits > 0)


def test_limiting_drops_leave_the_bottleneck_unknown() -> None:
    """The rate 1.22 MSS / (RTT sqrt(p)) is 59.4 Mbit/s for p = 0.00013."""
    assert sessions(60, pairs=4).name is BottleneckName.UNKNOWN
    assert sessions(60, pairs=4, mss_bytes=8948).name is BottleneckName.WINDOW
    assert sessions(60, pairs=4, mss_bytes=None).name is BottleneckName.UNKNOWN


def test_reports_unknown_packet_loss() -> None:
    bottleneck = sessions(None)
    assert bottleneck.name is BottleneckName.WINDOW
    assert "its packet loss is unknown" in bottleneck.evidence[0]


@pytest.mark.parametrize(
    ("rate", "streams", "rtt_s", "baseline_s", "ratio", "name"),
    # These values were measured in the lab.
    [
        (404.4e6, 8, 0.0256, 0.0207, 2e-5, BottleneckName.WINDOW),
        (407.0e6, 16, 0.0488, 0.0314, 6.8e-4, BottleneckName.UNKNOWN),
        (419.9e6, 16, 0.0449, 0.0310, 1.66e-3, BottleneckName.UNKNOWN),
    ],
)
def test_one_pair_is_no_evidence_for_a_shared_device(
    rate: float, streams: int, rtt_s: float, baseline_s: float, ratio: float, name: BottleneckName
) -> None:
    bottleneck = sessions(
        20,
        rate=rate,
        streams=streams,
        rtt_s=rtt_s,
        baseline_s=baseline_s,
        retransmit_ratio=ratio,
    )
    assert bottleneck.name is name


def test_queue_with_full_windows_needs_evidence_of_its_place() -> None:
    bottleneck = sessions(60, pairs=4, rtt_s=0.05)
    assert bottleneck.name is BottleneckName.UNKNOWN
    assert any("share one limit" in finding for finding in bottleneck.not_known)
    traded = sessions(60, pairs=4, rtt_s=0.05, share_movement=0.05)
    # The shared limit can be on any link.
    assert traded.name is BottleneckName.UNKNOWN
    assert "device.path=bypass" in (traded.advice or "")
    located = sessions(
        60, pairs=4, rtt_s=0.05, share_movement=0.05, devices=[device_with_pings(0.03)]
    )
    assert located.name is BottleneckName.FIREWALL
    assert any("the path has a queue" in finding for finding in located.evidence)
    assert any("pings to fw take" in finding for finding in located.evidence)


def test_shared_device_limit_takes_precedence_over_full_windows() -> None:
    bottleneck = sessions(
        60, pairs=4, rtt_s=0.05, share_movement=0.05, devices=[device_with_pings(0.03)]
    )
    assert bottleneck.name is BottleneckName.FIREWALL


def test_one_retransmission_is_no_packet_loss() -> None:
    """If no window size is requested, only drops can limit the window."""
    assert sessions(1, window_bytes=None, pairs=4).name is BottleneckName.WINDOW
    assert sessions(40, window_bytes=None, pairs=4).name is BottleneckName.UNKNOWN


def burst(
    *,
    movement: float | None = 0.05,
    cov: float = 0.1,
    sku: str | None = None,
    counter_cov: float = 0.004,
    pairs: int = 4,
    servers: int = 4,
    rooms: bool = True,
    drops: tuple[float, float | None] | None = (200.0, 0.0),
) -> Bottleneck:
    """Return the bottleneck for pairs with 30 Gbit/s in total and drops on the path."""
    free = {"server_cpu_ratio": 0.2, "server_core_ratio": 0.3, "server_nic_ratio": 0.0}
    summaries = [
        pair.model_copy(
            update={
                "client_agent_id": f"client-{pair.pair_index}",
                "server_agent_id": f"server-{pair.pair_index % servers}",
            }
        )
        for pair in pairs_of(
            pairs, received_bits_per_second=30e9 / pairs, cov_ratio=cov, **free if rooms else {}
        )
    ]
    lead = FlowSummary(
        flow=Flow.UP,
        pair_cov_ratio=cov,
        pair_median_bits_per_second=30e9 / pairs,
        second_cov_ratio=0.01,
        share_movement_ratio=movement,
        retransmit_ratio=0.001,
        retransmits_count=5000,
    )
    return find_bottleneck(
        BottleneckInput(
            traffic=Traffic(streams_count=64),
            flows=[lead],
            pairs=summaries,
            reconciliation=counted(30e9, counter_cov),
            sku=sku,
            window_s=30,
            drops_per_second=drops,
        )
    )


def test_firewall_needs_shared_limit_or_documented_rate() -> None:
    assert burst().name is BottleneckName.FIREWALL
    for movement, cov in ((1.0, 0.1), (7.0, 0.01), (None, 0.1), (0.05, 0.001)):
        assert burst(movement=movement, cov=cov).name is BottleneckName.UNKNOWN
        reported = burst(movement=movement, cov=cov, sku="standard")
        assert reported.name is BottleneckName.FIREWALL
        assert any("standard is 30 Gbit/s" in finding for finding in reported.evidence)
    assert burst(movement=1.0, sku="standard", counter_cov=0.08).name is BottleneckName.UNKNOWN
    assert burst(movement=1.0, sku="premium").name is BottleneckName.UNKNOWN


def test_one_pair_names_firewall_only_by_documented_rate() -> None:
    assert burst(pairs=1, movement=None).name is BottleneckName.UNKNOWN
    assert burst(pairs=1, movement=None, sku="standard").name is BottleneckName.FIREWALL


def test_shared_host_with_unknown_capacity_is_ambiguous() -> None:
    assert burst(servers=1).name is BottleneckName.FIREWALL
    blind = burst(servers=1, rooms=False)
    assert blind.name is BottleneckName.UNKNOWN
    assert any("server-0, which has several pairs" in finding for finding in blind.not_known)
    assert burst(servers=4, rooms=False).name is BottleneckName.FIREWALL


def test_equal_pair_rates_are_no_evidence_for_the_firewall() -> None:
    """Each client has a policer, so the rates are constant. The NIC limits are not known."""
    bottleneck = burst(movement=7.0, cov=0.01)
    assert any("as if each pair has its own limit" in fact for fact in bottleneck.evidence)
    finding = bottleneck.finding()
    assert "NIC rate of the clients of 4 of 4 pairs" in finding.sentence
    assert "another VM size" in (finding.next_step or "")


def test_finding_states_evidence_and_how_to_rule_it_out() -> None:
    finding = burst().finding()
    assert finding.sentence.startswith(
        "Bottleneck: the firewall. Evidence: 4 pairs share one limit"
    )
    assert "To rule this out: the same total rate without the firewall" in finding.sentence
    assert "confidence" not in finding.model_dump_json()


def test_run_bottleneck_is_that_of_most_bursts() -> None:
    named = burst()
    assert common_bottleneck([]) == UNKNOWN
    assert common_bottleneck([named, named]) == named
    assert common_bottleneck([named, UNKNOWN]).name is BottleneckName.FIREWALL
    assert common_bottleneck([named, UNKNOWN, UNKNOWN]).name is BottleneckName.UNKNOWN
    assert "2 of 3 bursts" in common_bottleneck([named, named, UNKNOWN]).evidence[-1]
    other = Bottleneck(name=BottleneckName.CLIENT_NIC)
    torn = common_bottleneck([named, other])
    assert torn.name is BottleneckName.UNKNOWN
    assert torn.evidence == (
        "the 2 bursts have different bottlenecks: 1 with client-nic, 1 with firewall",
    )


# A full NIC is detected by its limit or by the egress queue of the host.


def slow_nics(
    *, movement: float | None, queued: float | None, down: bool = False, idle_s: float = 0.001
) -> Bottleneck:
    """Return the bottleneck for four pairs that use 10 % of their NIC limit."""
    side = "server" if down else "client"
    pairs = pairs_of(
        4,
        received_bits_per_second=1e9,
        cov_ratio=0.3,
        rtt_mean_s=0.05,
        rtt_idle_s=idle_s,
        client_nic_ratio=0.1,
        server_nic_ratio=0.1,
        client_cpu_ratio=0.3,
        server_cpu_ratio=0.3,
        **{f"{side}_egress_queued_ratio": queued},
    )
    flow = FlowSummary(
        flow=Flow.DOWN if down else Flow.UP,
        share_movement_ratio=movement,
        retransmit_ratio=0.01,
        pair_cov_ratio=0.1,
        rtt_mean_s=0.05,
    )
    traffic = Traffic(direction=Direction.REVERSE if down else Direction.FORWARD)
    return find_bottleneck(BottleneckInput(traffic=traffic, flows=[flow], pairs=pairs))


@pytest.mark.parametrize(
    ("down", "name"), [(False, BottleneckName.CLIENT_NIC), (True, BottleneckName.SERVER_NIC)]
)
def test_full_egress_queue_of_sender_names_its_nic(down: bool, name: BottleneckName) -> None:
    # The last two values were measured in the lab.
    for movement in (0.6, 1.0, 1.79):
        bottleneck = slow_nics(movement=movement, down=down, queued=1.0)
        assert bottleneck.name is name
        assert "egress queue" in bottleneck.evidence[0]


@pytest.mark.parametrize("queued", [None, 0.0, 0.7, 0.94])
@pytest.mark.parametrize("movement", [0.31, 0.7, 1.0, 1.79, 3.0, None])
def test_pair_movement_does_not_name_a_nic(movement: float | None, queued: float | None) -> None:
    bottleneck = slow_nics(movement=movement, queued=queued)
    assert bottleneck.name is BottleneckName.UNKNOWN
    assert any("the path has a queue" in fact for fact in bottleneck.evidence)


def test_egress_queue_of_receiver_is_no_evidence() -> None:
    """The queue only has acknowledgements, not payload."""
    pairs = pairs_of(4, received_bits_per_second=1e9, server_egress_queued_ratio=1.0)
    flow = FlowSummary(flow=Flow.UP, share_movement_ratio=1.0)
    given = BottleneckInput(traffic=Traffic(), flows=[flow], pairs=pairs)
    assert find_bottleneck(given).name is BottleneckName.UNKNOWN


def test_rate_above_declared_nic_limit_disproves_it() -> None:
    bottleneck = bottleneck_of(Traffic(), client_nic=5.0, server_nic=0.1)
    assert bottleneck.name is not BottleneckName.CLIENT_NIC
    assert any("more than the declared rate" in finding for finding in bottleneck.not_known)


def test_full_nic_with_headers_missing_from_its_counter() -> None:
    """A counter above segmentation offload does not see most headers."""
    plant = Plant(
        pairs=4,
        bursts=1,
        burst_s=20,
        capped_nic=True,
        firewall_bits_per_second=None,
        nic_counted_ratio=1.001,
    )
    made = fleet(plant)
    burst = judged_burst(made.plan.spec, made.evidence[0], None, made.now)
    assert burst.bottleneck is BottleneckName.CLIENT_NIC
    for pair in burst.pairs:
        assert pair.client_nic_ratio == pytest.approx(0.985, abs=0.01)
        assert pair.server_nic_ratio == 0.0
