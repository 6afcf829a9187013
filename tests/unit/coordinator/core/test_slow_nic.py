"""NICs that hold their pairs: seen by how pairs move, and by what their frames come to."""

import pytest

from coordinator.core.judge.limiter import find_limiter
from coordinator.core.summary import (
    Basis,
    FlowSummary,
    Limiter,
    LimiterName,
    PairSummary,
    Reconciliation,
    State,
)
from exchange.messages import Direction, Flow, Traffic
from tests.judged import judged_burst
from tests.synthetic import Plant, fleet


def found(
    *,
    movement: float | None,
    cov: float = 0.3,
    push_back: bool = True,
    down: bool = False,
    ledger: Reconciliation | None = None,
    cpu: float | None = 0.3,
) -> Limiter:
    """Who limits four pairs that send at a tenth of their NIC's cap."""
    pairs = [
        PairSummary(
            pair=f"pair-{index + 1:03d}",
            pair_index=index,
            state=State.MEASURED,
            completeness_ratio=1.0,
            basis=Basis.RECEIVER,
            received_bits_per_second=1e9,
            cov_ratio=cov,
            client_nic_ratio=0.1,
            server_nic_ratio=0.1,
            client_cpu_ratio=cpu,
            server_cpu_ratio=cpu,
        )
        for index in range(4)
    ]
    flow = FlowSummary(
        flow=Flow.DOWN if down else Flow.UP,
        share_movement_ratio=movement,
        retransmit_ratio=0.01 if push_back else 0.0,
        pair_cov_ratio=0.1,
        second_cov_ratio=0.04,
        rtt_mean_s=0.05,
        rtt_baseline_s=0.001,
        buffer_delay_ratio=49.0 if push_back else 0.0,
    )
    traffic = Traffic(direction=Direction.REVERSE if down else Direction.FORWARD)
    return find_limiter(traffic, [flow], pairs, ledger)


@pytest.mark.parametrize(
    ("down", "name"), [(False, LimiterName.CLIENT_NIC), (True, LimiterName.SERVER_NIC)]
)
def test_the_senders_nic_is_named(down: bool, name: LimiterName) -> None:
    for movement in (0.6, 1.0, 1.79):  # the last two: ten seconds of four pairs in the lab
        limiter = found(movement=movement, down=down)
        assert limiter.name is name
    assert "each by itself" in limiter.evidence[0]


@pytest.mark.parametrize(
    ("movement", "name"),
    [
        (0.1, LimiterName.FIREWALL),
        (0.31, LimiterName.UNKNOWN),  # neither alone nor by trade is that a rare chance
        (3.0, LimiterName.UNKNOWN),
        (None, LimiterName.UNKNOWN),
    ],
)
def test_only_pairs_that_trade_shares_name_the_firewall(
    movement: float | None, name: LimiterName
) -> None:
    assert found(movement=movement).name is name


def test_pairs_that_hardly_move_show_nothing_of_the_kind() -> None:
    assert found(movement=1.0, cov=0.01).name is not LimiterName.CLIENT_NIC


def test_a_sum_that_the_device_saw_stand_names_no_nic() -> None:
    """Readers that stutter look like pairs that move each by itself."""
    flat = Reconciliation(
        source="lab",
        layer="ip",
        grain_s=1.0,
        basis="rate",
        overhead_ratio=1.04,
        overhead_how="recorded",
        firewall_bits_per_second=4e9,
        ledger_cov_ratio=0.0005,  # the fleet's seconds have 0.04
    )
    for still in ({}, {"ledger_cov_ratio": 0.02}):
        ledger = flat.model_copy(update=still)
        assert found(movement=1.0, ledger=ledger).name is LimiterName.UNKNOWN
    for moving in ({"ledger_cov_ratio": 0.038}, {"ledger_cov_ratio": None}, {"grain_s": 60.0}):
        ledger = flat.model_copy(update=moving)
        assert found(movement=0.7, ledger=ledger).name is LimiterName.CLIENT_NIC


def test_where_no_device_counts_seconds_hosts_must_have_had_room_to_read() -> None:
    assert found(movement=1.0, cpu=None).name is LimiterName.UNKNOWN
    assert found(movement=1.0, cpu=0.94).name is LimiterName.CLIENT_NIC
    assert found(movement=1.0, cpu=0.96).name is LimiterName.CLIENT_CPU


def test_without_anything_that_pushes_back_no_nic_is_named() -> None:
    assert found(movement=1.0, push_back=False).name is LimiterName.UNKNOWN


def test_a_nic_is_full_of_headers_that_its_counter_does_not_see() -> None:
    """Above segmentation offload a counter sees payload and little else."""
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
    assert burst.limiter is LimiterName.CLIENT_NIC
    for pair in burst.pairs:
        assert pair.client_nic_ratio == pytest.approx(0.985, abs=0.01)
        assert pair.server_nic_ratio == 0.0
