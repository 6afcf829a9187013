"""Who was the limit: rules over a burst's figures, each with its evidence and a confidence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coordinator.core import words
from coordinator.core.judge.documented_limits import DOCUMENTED, Limits
from coordinator.core.judge.reconcile import Reconciliation
from coordinator.core.measure.aggregate import FlowSummary, HostSummary, PairSummary, figure
from coordinator.core.measure.headers import MSS_ASSUMED_BYTES
from exchange.engines import offered_bits_per_second, scaled
from exchange.messages import Direction, Message, Protocol, Traffic

NIC_FULL_RATIO: Final = 0.95  # egress at least this share of the cap: the NIC is full
CPU_FULL_RATIO: Final = 0.95
ROOM_RATIO: Final = 0.9  # below this a NIC has room left
EQUAL_COV_RATIO: Final = 0.03  # pairs' rates that differ less are held by one and the same cap
CLEAN_RATIO: Final = 1e-5  # of segments sent again: fewer is no sign of drops
DROPS_MIN_COUNT: Final = 5  # segments sent again: fewer are no path that drops
# Of rate = constant x MSS / (RTT x sqrt(drops)): Mathis, Semke, Mahdavi, Ott, The macroscopic
# behavior of the TCP congestion avoidance algorithm, CCR 27(3), 1997. CUBIC is never slower.
MATHIS: Final = 1.22
FULL_WINDOW_RATIO: Final = 0.7  # in flight, of the window: the window is full
QUEUED_RATIO: Final = 0.5  # RTT this much over its baseline: a queue stands in the path
FLAT_COV_RATIO: Final = (
    0.05  # RFC 9411 (results validation): a constant rate deviates less than 5 %
)
# Variance of the sum over the pairs' own, summed. Pairs that move each by itself come to 1, and ten
# seconds of them to anything from 0.3 to 1.8; below the first gains and losses cancel in the sum,
# above the second something moves all of them together.
APART_RATIO: Final = 0.2
TOGETHER_RATIO: Final = 2.5
STEADIER_RATIO: Final = 0.33  # a ledger's CoV over the fleet's: below it they saw different things
ALONE_COV_RATIO: Final = 0.05  # of a pair over its seconds: what moves less shows no such thing


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One burst's figures, as the rules look at them."""

    traffic: Traffic
    flows: Sequence[FlowSummary]
    pairs: Sequence[PairSummary]  # those that carried traffic
    client: HostSummary
    server: HostSummary
    reconciliation: Reconciliation | None
    sku: str | None
    snat_utilization_ratio: float | None
    limits: Limits
    scale: float

    @property
    def lead(self) -> FlowSummary:
        return self.flows[0]

    @property
    def senders(self) -> tuple[HostSummary, ...]:
        """The hosts whose NICs carry payload out; the others send acknowledgements."""
        match self.traffic.direction:
            case Direction.FORWARD:
                return (self.client,)
            case Direction.REVERSE:
                return (self.server,)
            case Direction.BIDIRECTIONAL:
                return (self.client, self.server)

    @property
    def sender_nic_ratio(self) -> float | None:
        """The fullest sender's NIC; None where a side's is unknown."""
        known = [host.nic_max_ratio for host in self.senders if host.nic_max_ratio is not None]
        return max(known) if len(known) == len(self.senders) else None

    @property
    def sender_full(self) -> bool:
        return any((host.nic_max_ratio or 0.0) >= NIC_FULL_RATIO for host in self.senders)

    @property
    def drops(self) -> bool:
        """Whether segments or datagrams were lost on the way."""
        count = self.lead.retransmits_count
        some = count is None or count >= DROPS_MIN_COUNT
        lost = some and (self.lead.retransmit_ratio or 0.0) > CLEAN_RATIO
        return lost or (self.traffic.protocol is Protocol.UDP and bool(self.lead.loss_ratio))

    @property
    def drops_hold(self) -> bool:
        """Whether the drops could hold TCP streams to their mean rate; unknown RTT: they could."""
        ratio, rtt_s = self.lead.retransmit_ratio, self.lead.rtt_mean_s
        if not self.drops or ratio is None or not rtt_s:
            return self.drops
        each = sum(_one_way(self, pair) for pair in self.pairs) / len(self.pairs)
        mss_bytes = self.lead.mss_bytes or MSS_ASSUMED_BYTES
        most = MATHIS * mss_bytes * 8 / (rtt_s * math.sqrt(ratio))  # bit/s a stream
        return each / self.traffic.streams_count >= most

    @property
    def queued(self) -> bool:
        delay = self.lead.buffer_delay_ratio
        return delay is not None and delay > QUEUED_RATIO


def find_limiter(
    traffic: Traffic,
    flows: Sequence[FlowSummary],
    pairs: Sequence[PairSummary],
    client: HostSummary,
    server: HostSummary,
    reconciliation: Reconciliation | None,
    *,
    crosses: bool = True,
    sku: str | None = None,
    snat_utilization_ratio: float | None = None,
    limits: Limits = DOCUMENTED,
    scale: float = 1.0,
) -> Limiter:
    """The rule with the highest confidence; unknown when none fires.

    ``sku`` names the firewall in ``limits``; documented rates are divided by ``scale`` before
    they are compared with measured ones. What does not cross the firewall is not limited by it.
    """
    if not crosses:
        reconciliation, sku, snat_utilization_ratio = None, None, None
    scene = Scene(
        traffic=traffic,
        flows=flows,
        pairs=[pair for pair in pairs if pair.received_bits_per_second],
        client=client,
        server=server,
        reconciliation=reconciliation,
        sku=sku.lower() if sku else None,
        snat_utilization_ratio=snat_utilization_ratio,
        limits=limits,
        scale=scale,
    )
    if not scene.pairs or not flows:
        return UNKNOWN
    rules = (
        _offered_load(scene),
        _full(scene, LimiterName.CLIENT_NIC),
        _full(scene, LimiterName.SERVER_NIC),
        _slow_nic(scene),
        _full(scene, LimiterName.CLIENT_CPU),
        _full(scene, LimiterName.SERVER_CPU),
        _window(scene),
        _single_flow(scene),
        _snat(scene),
        _firewall(scene) if crosses else None,
    )
    fired = [rule for rule in rules if rule is not None]
    return max(fired, key=lambda rule: rule.confidence_ratio, default=UNKNOWN)


def _share(scene: Scene, chosen: Sequence[PairSummary]) -> float:
    """The chosen pairs' part of the fleet's traffic."""
    total = sum(pair.received_bits_per_second or 0.0 for pair in scene.pairs)
    return sum(pair.received_bits_per_second or 0.0 for pair in chosen) / total


def _offered_load(scene: Scene) -> Limiter | None:
    offered = offered_bits_per_second(scaled(scene.traffic, scene.scale))
    if offered is None:
        return None
    full = [p for p in scene.pairs if (p.received_bits_per_second or 0.0) >= 0.97 * offered]
    share = len(full) / len(scene.pairs)
    if share < 0.5:
        return None
    return Limiter(
        name=LimiterName.OFFERED_LOAD,
        confidence_ratio=figure(0.97 * share) or 0.0,
        evidence=(
            f"{len(full)} of {len(scene.pairs)} pairs carry the {words.rate(offered)} asked",
        ),
        advice="raise the rate that is asked, or leave it out",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resource:
    """A host's resource that can be full."""

    confidence: float
    full_ratio: float
    what: str
    advice: str


_RESOURCES: Final = {
    LimiterName.CLIENT_NIC: _Resource(
        confidence=0.9,
        full_ratio=NIC_FULL_RATIO,
        what="send at {low:.0%} of their NIC's cap or more",
        advice="use larger client VMs or more pairs",
    ),
    LimiterName.SERVER_NIC: _Resource(
        confidence=0.9,
        full_ratio=NIC_FULL_RATIO,
        what="have a server that sends at {low:.0%} of its NIC's cap or more",
        advice="use larger server VMs or more servers",
    ),
    LimiterName.CLIENT_CPU: _Resource(
        confidence=0.75,
        full_ratio=CPU_FULL_RATIO,
        what="have a client whose cores (or busiest core) are {low:.0%} busy or more",
        advice="use clients with more cores, fewer streams, or an engine with a thread a stream "
        "(iperf3 3.16 or later)",
    ),
    LimiterName.SERVER_CPU: _Resource(
        confidence=0.75,
        full_ratio=CPU_FULL_RATIO,
        what="have a server whose cores (or busiest core) are {low:.0%} busy or more",
        advice="use servers with more cores or more servers",
    ),
}


def _use(pair: PairSummary, name: LimiterName) -> float | None:
    """How full a pair's host is, 0..1; the busiest core counts a little less than all of them."""
    match name:
        case LimiterName.CLIENT_NIC:
            return pair.client_nic_ratio
        case LimiterName.SERVER_NIC:
            return pair.server_nic_ratio
        case LimiterName.CLIENT_CPU:
            cpu, core = pair.client_cpu_ratio, pair.client_core_ratio
        case _:
            cpu, core = pair.server_cpu_ratio, pair.server_core_ratio
    known = [ratio for ratio in (cpu, core) if ratio is not None]
    return max(known, default=None)


def _full(scene: Scene, name: LimiterName) -> Limiter | None:
    """Fires when pairs whose host is full carry at least half of the fleet's traffic."""
    resource = _RESOURCES[name]
    full = []
    low = 1.0
    for pair in scene.pairs:
        ratio = _use(pair, name)
        if ratio is not None and ratio >= resource.full_ratio:
            full.append(pair)
            low = min(low, ratio)
    if not full or _share(scene, full) < 0.5:
        return None
    return Limiter(
        name=name,
        confidence_ratio=figure(resource.confidence * _share(scene, full)) or 0.0,
        evidence=(f"{len(full)} of {len(scene.pairs)} pairs {resource.what.format(low=low)}",),
        advice=resource.advice,
    )


def _each_alone(scene: Scene) -> bool:
    """Whether pairs move, and none gains what another loses: nothing that they share holds them."""
    moves = scene.lead.share_movement_ratio
    covs = sorted(pair.cov_ratio for pair in scene.pairs if pair.cov_ratio is not None)
    if moves is None or not APART_RATIO <= moves <= TOGETHER_RATIO or len(covs) < 3:
        return False
    return covs[len(covs) // 2] >= ALONE_COV_RATIO and not _steadier_ledger(scene)


def _steadier_ledger(scene: Scene) -> bool:
    """Whether the device saw a flat sum, second by second, where the fleet's receivers did not:
    then what moved was when they read, not what was carried.
    """
    held, seen = scene.reconciliation, scene.lead.second_cov_ratio
    if held is None or held.ledger_cov_ratio is None or held.grain_s > 1 or seen is None:
        return False
    return held.ledger_cov_ratio < seen * STEADIER_RATIO


def _slow_nic(scene: Scene) -> Limiter | None:
    """Every pair is held for itself, far below its NIC's cap, and something pushes back."""
    down = scene.traffic.direction is Direction.REVERSE
    nic = scene.sender_nic_ratio
    if (
        nic is None
        or nic >= ROOM_RATIO
        or not (scene.drops or scene.queued)
        or not _each_alone(scene)
    ):
        return None
    alone = (
        f"{len(scene.pairs)} pairs rise and fall each by itself: the sum's variance is "
        f"{scene.lead.share_movement_ratio:.0%} of the pairs' own, summed"
    )
    pushed = f"the path pushes back while the fullest sender's NIC is at {nic:.0%} of its cap"
    return Limiter(
        name=LimiterName.SERVER_NIC if down else LimiterName.CLIENT_NIC,
        confidence_ratio=0.6,
        evidence=(
            alone,
            pushed,
        ),
        advice="look at the senders' NICs (accelerated networking on? one core busy with "
        "interrupts?); they carry less than their size is documented for",
    )


def _full_windows(scene: Scene) -> Sequence[PairSummary]:
    """Pairs that keep a full window in flight, where they carry half of the traffic or more."""
    full = []
    for pair in scene.pairs:
        limit = (
            scene.traffic.window_bytes * scene.traffic.streams_count
            if scene.traffic.window_bytes
            else pair.cwnd_bytes
        )
        if not limit or not pair.rtt_mean_s:
            continue
        in_flight = _one_way(scene, pair) / 8 * pair.rtt_mean_s
        if in_flight >= FULL_WINDOW_RATIO * limit:
            full.append(pair)
    return full if full and _share(scene, full) >= 0.5 else ()


def _window(scene: Scene) -> Limiter | None:
    """Rate = window / RTT, with no queue, and no drops that would shrink the window.

    A sender always keeps about rate x RTT in flight (Little's law), so equality alone says
    nothing: it is the absence of loss and queue that leaves the window as the limit. A window that
    was asked for and is full was not shrunk, unless the drops are so many that they could hold it.
    """
    asked = scene.traffic.window_bytes is not None
    if scene.queued or (scene.drops_hold if asked else scene.drops):
        return None
    held = _full_windows(scene)
    if not held:
        return None
    rtt_s = max(pair.rtt_mean_s or 0.0 for pair in held)
    seen = f"{len(held)} of {len(scene.pairs)} pairs keep a full window in flight"
    ratio = scene.lead.retransmit_ratio
    if ratio is None:
        dropped = "nothing is queued; whether anything is dropped is unknown"
    elif ratio > 0 and scene.lead.retransmits_count != 0:
        said = f"{ratio * 100:.2g}% of segments dropped are too few to hold it"
        dropped = f"nothing is queued; {said}"
    else:
        dropped = "nothing is dropped or queued"
    return Limiter(
        name=LimiterName.WINDOW,
        confidence_ratio=figure(0.85 * _share(scene, held)) or 0.0,
        evidence=(f"{seen} (RTT {words.time(rtt_s)}) and {dropped}",),
        advice=_window_advice(scene, held, rtt_s),
    )


def _one_way(scene: Scene, pair: PairSummary) -> float:
    """A pair's rate in bit/s each way: its windows are of one."""
    return (pair.received_bits_per_second or 0.0) / len(scene.traffic.direction.flows)


def _window_advice(scene: Scene, held: Sequence[PairSummary], rtt_s: float) -> str:
    """The bandwidth-delay product and the smallest window that fills it (RFC 6349)."""
    down = scene.traffic.direction is Direction.REVERSE
    caps = [
        _one_way(scene, pair) / nic
        for pair in held
        if (nic := pair.server_nic_ratio if down else pair.client_nic_ratio)
    ]
    wanted = max(caps) if caps else 2 * max(_one_way(scene, pair) for pair in held)
    product = wanted / 8 * rtt_s
    each = product / scene.traffic.streams_count
    return (
        f"the bandwidth-delay product at {words.rate(wanted)} and {words.time(rtt_s)} is "
        f"{words.size(product)} a pair: set window_bytes to at least {words.size(each)} a "
        "stream (and tcp_rmem/tcp_wmem to allow it), or use more streams"
    )


def _single_flow(scene: Scene) -> Limiter | None:
    """Each stream carries the same, as a cap on one connection makes it."""
    streams = scene.traffic.streams_count
    cov, lead = scene.lead.pair_cov_ratio, scene.lead
    if cov is None or cov > EQUAL_COV_RATIO or lead.pair_median_bits_per_second is None:
        return None
    if scene.sender_full:
        return None
    each = lead.pair_median_bits_per_second / streams
    known = scene.limits.flow.get(scene.sku or "")
    alone = f"{len(scene.pairs)} pairs carry the same {words.rate(each)} a stream"
    if known is not None:
        cap = known.bits_per_second / scene.scale
        documented = (
            f"{scene.sku} carries {words.rate(known.bits_per_second)} in one TCP connection "
            f"({known.source}, {known.as_of})"
        )
        if 0.8 * cap <= each <= 1.1 * cap:
            return Limiter(
                name=LimiterName.SINGLE_FLOW,
                confidence_ratio=0.9,
                evidence=(
                    alone,
                    documented,
                ),
                advice="use more streams a pair",
            )
    if streams > 2 or len(scene.pairs) < 3 or scene.drops or scene.queued:
        return None
    return Limiter(
        name=LimiterName.SINGLE_FLOW,
        confidence_ratio=0.6,
        evidence=(f"{alone} (CoV {cov:.1%}), while neither NIC nor CPU is full",),
        advice="use more streams a pair",
    )


def _snat(scene: Scene) -> Limiter | None:
    used = scene.snat_utilization_ratio
    if used is None or used < 0.95:
        return None
    return Limiter(
        name=LimiterName.SNAT_PORTS,
        confidence_ratio=0.8,
        evidence=(f"the firewall's SNAT ports are {used:.0%} used",),
        advice="give the firewall more public addresses, or keep the traffic private",
    )


def _firewall(scene: Scene) -> Limiter | None:
    """What all pairs share holds the sum, while the pairs themselves have room."""
    lead, nic = scene.lead, scene.sender_nic_ratio
    moves = lead.share_movement_ratio
    traded = moves is not None and moves < APART_RATIO and len(scene.pairs) >= 3
    # Full windows that stay as they were asked for were not shrunk by what is dropped.
    steady = scene.traffic.window_bytes is not None and not traded and bool(_full_windows(scene))
    if not scene.queued and (steady or not scene.drops):
        return None  # nothing on the path pushed back
    if _each_alone(scene):
        return None  # what pairs share would let one gain what another loses
    if scene.sender_full:
        return None
    documented = _documented(scene)
    if len(scene.pairs) == 1 and documented is None:
        return None  # one pair shows nothing that pairs share
    # A NIC that has hardly room holds a sum just as flat, with the same queue in front of it.
    confidence = -0.1 if nic is not None and nic >= ROOM_RATIO else 0.0
    evidence = []
    if nic is not None and nic < ROOM_RATIO:
        confidence += 0.2
        evidence.append(f"the fullest sender's NIC is at {nic:.0%} of its cap")
    if lead.second_cov_ratio is not None and lead.second_cov_ratio < FLAT_COV_RATIO:
        confidence += 0.1
        evidence.append(f"the fleet's sum is flat: CoV {lead.second_cov_ratio:.1%}")
    if traded:
        confidence += 0.3
        evidence.append(
            f"shares move between pairs while the sum stays: its variance is {moves:.0%} of the "
            "pairs' own, summed"
        )
    if scene.queued and lead.rtt_mean_s is not None and lead.rtt_baseline_s is not None:
        confidence += 0.15
        evidence.append(
            f"a queue stands in the path: RTT {words.time(lead.rtt_mean_s)} against "
            f"{words.time(lead.rtt_baseline_s)} at best"
        )
    if scene.drops:
        confidence += 0.15
        lost = lead.retransmit_ratio if lead.retransmit_ratio is not None else lead.loss_ratio
        evidence.append(f"the path drops: {lost or 0.0:.3%} of segments")
    held = scene.reconciliation
    if (
        held is not None
        and held.firewall_bits_per_second is not None
        and held.ledger_cov_ratio is not None
        and held.ledger_cov_ratio < FLAT_COV_RATIO
    ):
        confidence += 0.1
        evidence.append(
            f"its own ledger is flat at {words.rate(held.firewall_bits_per_second)} "
            f"(CoV {held.ledger_cov_ratio:.1%})"
        )
    if documented is not None:
        confidence += 0.1
        evidence.append(documented)
    if confidence < 0.4:
        return None
    return Limiter(
        name=LimiterName.FIREWALL,
        confidence_ratio=figure(min(0.95, confidence)) or 0.0,
        evidence=tuple(evidence),
        advice="scale the firewall out (pre-scale it), or lower the target",
    )


def _documented(scene: Scene) -> str | None:
    """That the firewall carries what its kind is documented for; None where it does not."""
    held, known = scene.reconciliation, scene.limits.firewall.get(scene.sku or "")
    if held is None or held.firewall_bits_per_second is None or known is None:
        return None
    if abs(held.firewall_bits_per_second / (known.bits_per_second / scene.scale) - 1) >= 0.1:
        return None
    return (
        f"{scene.sku} is documented for {words.rate(known.bits_per_second)} "
        f"({known.source}, {known.as_of})"
    )
