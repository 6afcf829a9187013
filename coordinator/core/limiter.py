"""Who was the limit: rules over a burst's figures, each with its evidence and a confidence."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from coordinator.core.aggregate import FlowSummary, HostSummary, PairSummary, figure
from coordinator.core.reconcile import Reconciliation
from exchange.messages import Message, Protocol, Traffic

NIC_FULL_RATIO: Final = 0.95  # egress at least this share of the cap: the NIC is full
CPU_FULL_RATIO: Final = 0.95
ROOM_RATIO: Final = 0.9  # below this a NIC has room left
FLAT_COV_RATIO: Final = 0.05  # RFC 9411, section 7.1.3.4: a constant rate deviates less than 5 %
MOVEMENT_RATIO: Final = 0.5  # under it, pairs' gains and losses cancel in the sum


class LimiterName(StrEnum):
    FIREWALL = "firewall"
    CLIENT_NIC = "client-nic"
    SERVER_NIC = "server-nic"
    CLIENT_CPU = "client-cpu"
    SERVER_CPU = "server-cpu"
    WINDOW = "window"
    SINGLE_FLOW = "single-flow"
    OFFERED_LOAD = "offered-load"
    SNAT_PORTS = "snat-ports"
    UNKNOWN = "unknown"


class Limiter(Message):
    """The likeliest limit of a burst, and why it is taken for that."""

    name: LimiterName
    confidence_ratio: float
    evidence: tuple[str, ...] = ()
    advice: str | None = None


UNKNOWN: Final = Limiter(name=LimiterName.UNKNOWN, confidence_ratio=0.0)


def find_limiter(
    traffic: Traffic,
    flows: Sequence[FlowSummary],
    pairs: Sequence[PairSummary],
    client: HostSummary,
    server: HostSummary,
    reconciliation: Reconciliation | None,
) -> Limiter:
    """The rule with the highest confidence; unknown when none fires."""
    active = [pair for pair in pairs if pair.received_bits_per_second]
    if not active:
        return UNKNOWN
    rules = (
        _offered_load(traffic, flows, active),
        _share_rule(
            LimiterName.CLIENT_NIC,
            active,
            [pair.client_nic_ratio for pair in active],
            NIC_FULL_RATIO,
            0.9,
            "send at {low:.0%} or more of their NIC cap",
            "use larger client VMs or more pairs",
        ),
        _share_rule(
            LimiterName.SERVER_NIC,
            active,
            [pair.server_nic_ratio for pair in active],
            NIC_FULL_RATIO,
            0.9,
            "have a server that sends at {low:.0%} or more of its NIC cap",
            "use larger server VMs or more servers",
        ),
        _share_rule(
            LimiterName.CLIENT_CPU,
            active,
            [pair.client_cpu_ratio for pair in active],
            CPU_FULL_RATIO,
            0.75,
            "have a client whose cores are {low:.0%} busy or more",
            "use clients with more cores or fewer streams",
        ),
        _share_rule(
            LimiterName.SERVER_CPU,
            active,
            [pair.server_cpu_ratio for pair in active],
            CPU_FULL_RATIO,
            0.75,
            "have a server whose cores are {low:.0%} busy or more",
            "use servers with more cores or fewer streams",
        ),
        _firewall(traffic, flows, active, client, server, reconciliation),
    )
    fired = [rule for rule in rules if rule is not None]
    return max(fired, key=lambda rule: rule.confidence_ratio, default=UNKNOWN)


def _offered_load(
    traffic: Traffic, flows: Sequence[FlowSummary], active: Sequence[PairSummary]
) -> Limiter | None:
    if traffic.stream_bits_per_second is None:
        return None
    offered = traffic.stream_bits_per_second * traffic.streams_count * len(flows)
    full = [p for p in active if (p.received_bits_per_second or 0.0) >= 0.97 * offered]
    share = len(full) / len(active)
    if share < 0.5:
        return None
    return Limiter(
        name=LimiterName.OFFERED_LOAD,
        confidence_ratio=figure(0.95 * share) or 0.0,
        evidence=(
            f"{len(full)} of {len(active)} pairs carry the {offered / 1e6:.4g} Mbit/s asked",
        ),
        advice="raise stream_bits_per_second, or leave it out",
    )


def _share_rule(
    name: LimiterName,
    active: Sequence[PairSummary],
    ratios: Sequence[float | None],
    full_ratio: float,
    confidence: float,
    sentence: str,
    advice: str,
) -> Limiter | None:
    """Fires when pairs over ``full_ratio`` carry at least half of the fleet's traffic."""
    full = [
        (pair, ratio)
        for pair, ratio in zip(active, ratios, strict=True)
        if ratio is not None and ratio >= full_ratio
    ]
    total = sum(pair.received_bits_per_second or 0.0 for pair in active)
    share = sum(pair.received_bits_per_second or 0.0 for pair, _ in full) / total
    if share < 0.5:
        return None
    low = min(ratio for _, ratio in full)
    return Limiter(
        name=name,
        confidence_ratio=figure(confidence * share) or 0.0,
        evidence=(f"{len(full)} of {len(active)} pairs {sentence.format(low=low)}",),
        advice=advice,
    )


def _firewall(
    traffic: Traffic,
    flows: Sequence[FlowSummary],
    active: Sequence[PairSummary],
    client: HostSummary,
    server: HostSummary,
    reconciliation: Reconciliation | None,
) -> Limiter | None:
    """What all pairs share holds the sum, while the pairs themselves have room."""
    evidence = []
    confidence = 0.0
    for side, host in (("client", client), ("server", server)):
        if host.nic_max_ratio is not None:
            if host.nic_max_ratio >= NIC_FULL_RATIO:
                return None
            if host.nic_max_ratio < ROOM_RATIO and side == "client":
                confidence += 0.2
                evidence.append(f"the fullest client NIC is at {host.nic_max_ratio:.0%} of its cap")
    lead = flows[0]
    steady = lead.second_cov_ratio is not None and lead.second_cov_ratio < FLAT_COV_RATIO
    if steady and lead.second_cov_ratio is not None:
        confidence += 0.1
        evidence.append(f"the fleet's sum is flat: CoV {lead.second_cov_ratio:.1%}")
    if (
        lead.share_movement_ratio is not None
        and lead.share_movement_ratio < MOVEMENT_RATIO
        and len(active) >= 3
    ):
        confidence += 0.3
        evidence.append(
            "shares move between pairs while the sum stays: its variance is "
            f"{lead.share_movement_ratio:.0%} of the sum of the pairs' own"
        )
    queued = lead.buffer_delay_ratio is not None and lead.buffer_delay_ratio > 0.5
    if queued and lead.rtt_mean_s is not None and lead.rtt_baseline_s is not None:
        confidence += 0.15
        evidence.append(
            f"a queue stands in the path: RTT {lead.rtt_mean_s * 1e3:.3g} ms against "
            f"{lead.rtt_baseline_s * 1e3:.3g} ms at best"
        )
    if lead.retransmit_ratio is not None and lead.retransmit_ratio > 1e-5:
        confidence += 0.15
        evidence.append(f"segments are dropped: {lead.retransmit_ratio:.2%} sent again")
    elif traffic.protocol is Protocol.UDP and lead.loss_ratio:
        confidence += 0.3
        evidence.append(f"{lead.loss_ratio:.2%} of datagrams are lost on the way")
    elif not queued:
        return None  # neither loss nor a queue: nothing on the path pushed back
    if (
        reconciliation is not None
        and reconciliation.ledger_cov_ratio is not None
        and reconciliation.ledger_cov_ratio < FLAT_COV_RATIO
        and reconciliation.firewall_bits_per_second is not None
    ):
        confidence += 0.1
        evidence.append(
            f"its own ledger is flat at {reconciliation.firewall_bits_per_second / 1e9:.4g} Gbit/s "
            f"(CoV {reconciliation.ledger_cov_ratio:.1%})"
        )
    if confidence < 0.4:
        return None
    return Limiter(
        name=LimiterName.FIREWALL,
        confidence_ratio=figure(min(0.95, confidence)) or 0.0,
        evidence=tuple(evidence),
        advice="scale the firewall out (pre-scale it), or lower the target",
    )
