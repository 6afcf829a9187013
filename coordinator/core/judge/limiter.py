"""Who was the limit: rules over a burst's figures, each with its evidence and what would refute it.

The first rule that fires names the limit: gauges of a resource that is full come before what is
concluded from how the pairs move. No rule adds up hints; what no rule proves is unknown, and then
what is missing is named, with how to tell.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.documented_limits import DOCUMENTED
from broadside.coordinator.core.measure.headers import MSS_ASSUMED_BYTES
from broadside.coordinator.core.summary import (
    UNKNOWN,
    DeviceFigure,
    DeviceSummary,
    FlowSummary,
    Limiter,
    LimiterName,
    PairSummary,
    Reconciliation,
)
from broadside.exchange.engines import offered_bits_per_second, scaled
from broadside.exchange.messages import Direction, Protocol, Traffic

NIC_FULL_RATIO: Final = 0.95  # egress at least this share of the cap: the NIC is full
CPU_FULL_RATIO: Final = 0.95
ROOM_RATIO: Final = 0.9  # below this a NIC has room left
CARRIED_RATIO: Final = 0.97  # of what was asked: all of it, less the edges of a window's seconds
EQUAL_COV_RATIO: Final = 0.03  # pairs' rates that differ less are held by one and the same cap
CLEAN_RATIO: Final = 1e-5  # of segments sent again: fewer is no sign of drops
DROPS_MIN_COUNT: Final = 5  # segments sent again: fewer are no path that drops
# Of rate = constant x MSS / (RTT x sqrt(drops)): Mathis, Semke, Mahdavi, Ott, The macroscopic
# behavior of the TCP congestion avoidance algorithm, CCR 27(3), 1997. CUBIC is never slower.
MATHIS: Final = 1.22
FULL_WINDOW_RATIO: Final = 0.7  # in flight, of the window that was asked for: it is full
FULL_CWND_RATIO: Final = 0.9  # the same of the kernel's own, which a queue lets grow ahead
QUEUED_RATIO: Final = 0.5  # RTT this much over its baseline: a queue stands in the path
FLAT_COV_RATIO: Final = 0.05  # RFC 9411 (results validation): what a constant rate stays under
# Variance of the sum over the pairs' own, summed. Pairs that move each by itself come to 1, and n
# seconds of them scatter as chi-square over its degrees of freedom; so little that gains and losses
# cancel in the sum is under its quantile of 1 % (Wilson and Hilferty 1931), with the degrees that n
# seconds have at a correlation of 1/3 from one to the next, and half at most. Above the last
# something moves all of them together.
INDEPENDENT_RATIO: Final = 0.8  # (1 - 1/9) / (1 + 1/9): degrees of freedom a second
RARE_SIGMAS: Final = 2.33  # 1 % of a normal distribution lies below
CANCEL_MAX_RATIO: Final = 0.5
TOGETHER_RATIO: Final = 2.5
WINDOW_ASSUMED_S: Final = 13  # where nobody says how long was seen
ALONE_COV_RATIO: Final = 0.05  # of a pair over its seconds: what moves less shows no such thing
TRADE_COV_RATIO: Final = 0.005  # of a pair: less is how exactly a second is read, not its traffic
TRADERS_MIN: Final = 3  # pairs: of two, one's gain is the other's loss once in two by chance
NEAR_RATIO: Final = 0.1  # of a documented rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One burst's figures, as the rules look at them."""

    traffic: Traffic
    flows: Sequence[FlowSummary]
    pairs: Sequence[PairSummary]  # to the rules, those that carried traffic
    reconciliation: Reconciliation | None = None
    devices: Sequence[DeviceSummary] = ()
    window_s: int | None = None
    crosses: bool = True
    sku: str | None = None  # the firewall's name among documented limits
    snat_utilization_ratio: float | None = None
    scale: float = 1.0

    @property
    def lead(self) -> FlowSummary:
        return self.flows[0]

    def sender_nics(self, pair: PairSummary) -> tuple[float | None, ...]:
        """How full the NICs are that send the pair's payload; the other only acknowledges."""
        match self.traffic.direction:
            case Direction.FORWARD:
                return (pair.client_nic_ratio,)
            case Direction.REVERSE:
                return (pair.server_nic_ratio,)
            case Direction.BIDIRECTIONAL:
                return pair.client_nic_ratio, pair.server_nic_ratio

    @property
    def nic_ratio(self) -> float | None:
        """The fullest sender's NIC; None where any is unknown."""
        all_nics = [ratio for pair in self.pairs for ratio in self.sender_nics(pair)]
        known = [ratio for ratio in all_nics if ratio is not None]
        return max(known) if len(known) == len(all_nics) else None

    @property
    def senders_have_room(self) -> bool:
        """Whether none of the senders' NICs that are known is near its cap."""
        return all((r or 0.0) < ROOM_RATIO for pair in self.pairs for r in self.sender_nics(pair))

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
        each = sum(self.one_way(pair) for pair in self.pairs) / len(self.pairs)
        mss_bytes = self.lead.mss_bytes or MSS_ASSUMED_BYTES
        most = MATHIS * mss_bytes * 8 / (rtt_s * math.sqrt(ratio))  # bit/s a stream
        return each / self.traffic.streams_count >= most

    @property
    def queued(self) -> bool:
        delay = self.lead.buffer_delay_ratio
        return delay is not None and delay > QUEUED_RATIO

    @property
    def path_is_idle(self) -> bool:
        """Whether drops and queue are both known, and neither is there."""
        lead = self.lead
        known = lead.retransmit_ratio is not None and lead.buffer_delay_ratio is not None
        if self.traffic.protocol is Protocol.UDP:
            known = lead.loss_ratio is not None
        return known and not self.drops and not self.queued

    @property
    def pair_cov_ratio(self) -> float | None:
        """The median pair's CoV over its seconds."""
        covs = sorted(pair.cov_ratio for pair in self.pairs if pair.cov_ratio is not None)
        return covs[len(covs) // 2] if len(covs) >= TRADERS_MIN else None

    @property
    def each_stream(self) -> float | None:
        """What each stream carries in bit/s, where all pairs carry the same."""
        median, cov = self.lead.pair_median_bits_per_second, self.lead.pair_cov_ratio
        if median is None or cov is None or cov > EQUAL_COV_RATIO:
            return None
        return median / self.traffic.streams_count

    def one_way(self, pair: PairSummary) -> float:
        """A pair's rate in bit/s each way: its windows are of one."""
        return (pair.received_bits_per_second or 0.0) / len(self.traffic.direction.flows)

    def share(self, chosen: Sequence[PairSummary]) -> float:
        """The chosen pairs' part of the fleet's traffic."""
        total = sum(pair.received_bits_per_second or 0.0 for pair in self.pairs)
        return sum(pair.received_bits_per_second or 0.0 for pair in chosen) / total

    def of_pairs(self, chosen: Sequence[PairSummary]) -> str:
        return f"{len(chosen)} of {len(self.pairs)} pairs"


def cancel_ratio(window_s: int | None) -> float:
    """Below this the sum's variance over the pairs' own is no chance of independent pairs."""
    spread = 2 / 9 / (INDEPENDENT_RATIO * (window_s or WINDOW_ASSUMED_S))
    return min(CANCEL_MAX_RATIO, max(0.0, 1 - spread - RARE_SIGMAS * math.sqrt(spread)) ** 3)


def find_limiter(scene: Scene) -> Limiter:
    """The first rule that fires; else unknown, with what is not known.

    Documented rates are divided by the scale before they are compared with measured ones. What
    does not cross the firewall is not limited by it.
    """
    scene = replace(scene, pairs=[pair for pair in scene.pairs if pair.received_bits_per_second])
    if not scene.pairs or not scene.flows:
        return UNKNOWN
    if not scene.crosses:
        scene = replace(
            scene, reconciliation=None, devices=(), sku=None, snat_utilization_ratio=None
        )
    return (
        _offered_load(scene)
        or _single_flow(scene, documented=True)
        or _full(scene, LimiterName.CLIENT_NIC)
        or _full(scene, LimiterName.SERVER_NIC)
        or _snat(scene)
        or _device_cpu(scene)
        or _firewall(scene)
        or _window(scene)
        or _full(scene, LimiterName.CLIENT_CPU)
        or _full(scene, LimiterName.SERVER_CPU)
        or _single_flow(scene, documented=False)
        or _slow_nic(scene)
        or _unknown(scene)
    )


def common_limiter(limiters: Sequence[Limiter]) -> Limiter:
    """What most bursts name; of names that as many bursts do, a known one; of two such, none."""
    if not limiters:
        return UNKNOWN
    named = Counter(limiter.name for limiter in limiters)
    known = {name: count for name, count in named.items() if name is not LimiterName.UNKNOWN}
    most = [name for name, count in known.items() if count == max(named.values())]
    if len(most) > 1:
        bursts = ", ".join(f"{known[name]} name {name}" for name in sorted(most))
        return UNKNOWN.model_copy(
            update={"evidence": (f"of {len(limiters)} bursts {bursts}: no one limit is shown",)}
        )
    best = most[0] if most else LimiterName.UNKNOWN
    said = max(
        (each for each in limiters if each.name is best), key=lambda each: len(each.evidence)
    )
    if named[best] == len(limiters):
        return said
    others = ", ".join(f"{n} {name}" for name, n in sorted(named.items()) if name is not best)
    bursts = f"{named[best]} of {len(limiters)} bursts show this (the others: {others})"
    return said.model_copy(update={"evidence": (*said.evidence, bursts)})


def _offered_load(scene: Scene) -> Limiter | None:
    offered = offered_bits_per_second(scaled(scene.traffic, scene.scale))
    if offered is None:
        return None
    low = CARRIED_RATIO * offered
    full = [pair for pair in scene.pairs if (pair.received_bits_per_second or 0.0) >= low]
    if 2 * len(full) < len(scene.pairs):
        return None
    return Limiter(
        name=LimiterName.OFFERED_LOAD,
        evidence=(f"{scene.of_pairs(full)} carry the {words.rate(offered)} asked",),
        refuted_by="the same rate when more is asked",
        advice="raise the rate that is asked, or leave it out",
    )


_NIC = "more from one pair than that cap: then the cap that was told is wrong"
_RESOURCES: Final = {  # full at, what is seen, what would refute it, advice
    LimiterName.CLIENT_NIC: (
        NIC_FULL_RATIO,
        "send at {low} of their NIC's cap or more",
        _NIC,
        "use larger client VMs or more pairs",
    ),
    LimiterName.SERVER_NIC: (
        NIC_FULL_RATIO,
        "have a server that sends at {low} of its NIC's cap or more",
        _NIC,
        "use larger server VMs or more servers",
    ),
    LimiterName.CLIENT_CPU: (
        CPU_FULL_RATIO,
        "have a client whose cores (or busiest core) are {low} busy or more",
        "the same rate with more cores or fewer streams a client",
        "use clients with more cores, fewer streams, or iperf3 3.16 or later (a thread a stream)",
    ),
    LimiterName.SERVER_CPU: (
        CPU_FULL_RATIO,
        "have a server whose cores (or busiest core) are {low} busy or more",
        "the same rate with more cores or fewer pairs a server",
        "use servers with more cores or more servers",
    ),
}


_USES: Final = {  # the figures of a pair that say how full
    LimiterName.CLIENT_NIC: ("client_nic_ratio",),
    LimiterName.SERVER_NIC: ("server_nic_ratio",),
    LimiterName.CLIENT_CPU: ("client_cpu_ratio", "client_core_ratio"),
    LimiterName.SERVER_CPU: ("server_cpu_ratio", "server_core_ratio"),
}


def _use(pair: PairSummary, name: LimiterName) -> float | None:
    """How full a pair's host is, 0..1: its NIC, or the fuller of all cores and the busiest."""
    told: list[float | None] = [getattr(pair, each) for each in _USES[name]]
    return max((ratio for ratio in told if ratio is not None), default=None)


def _full(scene: Scene, name: LimiterName) -> Limiter | None:
    """Fires when pairs whose host is full carry at least half of the fleet's traffic."""
    full_ratio, what, refuted_by, advice = _RESOURCES[name]
    full = [pair for pair in scene.pairs if (_use(pair, name) or 0.0) >= full_ratio]
    if not full or scene.share(full) < 0.5:
        return None
    low = min(1.0, *(_use(pair, name) or 0.0 for pair in full))
    return Limiter(
        name=name,
        evidence=(f"{scene.of_pairs(full)} {what.format(low=words.ratio(low, 0))}",),
        refuted_by=refuted_by,
        advice=advice,
    )


def _each_alone(scene: Scene) -> bool:
    """Whether pairs move, and none gains what another loses: nothing that they share holds them.

    Readers that come late move each pair by itself too, whatever holds the pairs. So the device
    must have seen the sum move as well, second by second, or hosts must have had room to read.
    """
    moves, cov = scene.lead.share_movement_ratio, scene.pair_cov_ratio
    if moves is None or cov is None or cov < ALONE_COV_RATIO:
        return False
    seen = _device_cov_ratio(scene)
    if seen is not None and scene.lead.second_cov_ratio:
        moves = min(moves, moves * (seen / scene.lead.second_cov_ratio) ** 2)
    elif any(_may_read_late(pair) for pair in scene.pairs):
        return False
    return CANCEL_MAX_RATIO <= moves <= TOGETHER_RATIO


def _device_cov_ratio(scene: Scene) -> float | None:
    """CoV of what the device carried, by its own count second by second; None: it has none."""
    held = scene.reconciliation
    return None if held is None or held.grain_s > 1 else held.ledger_cov_ratio


def _may_read_late(pair: PairSummary) -> bool:
    """Whether a host of the pair may have had no core left to read in time."""
    uses = [_use(pair, name) for name in (LimiterName.CLIENT_CPU, LimiterName.SERVER_CPU)]
    return any(use is None or use >= CPU_FULL_RATIO for use in uses)


def _slow_nic(scene: Scene) -> Limiter | None:
    """Every pair is held for itself, far below its NIC's cap, and something pushes back."""
    nic = scene.nic_ratio
    pushed = scene.drops or scene.queued
    if nic is None or nic >= ROOM_RATIO or not pushed or not _each_alone(scene):
        return None
    down = scene.traffic.direction is Direction.REVERSE
    return Limiter(
        name=LimiterName.SERVER_NIC if down else LimiterName.CLIENT_NIC,
        evidence=(
            f"{len(scene.pairs)} pairs rise and fall each by itself: " + _movement(scene),
            f"the path pushes back: the fullest sender's NIC at {words.ratio(nic, 0)} of its cap",
        ),
        refuted_by="the same rate from another NIC or size: then a cap on each lies beyond",
        advice="look at the senders' NICs (accelerated networking on? one core busy with "
        "interrupts?); they carry less than their size is documented for",
    )


def _full_windows(scene: Scene) -> Sequence[PairSummary]:
    """Pairs that keep a full window in flight, where they carry half of the traffic or more."""
    asked = scene.traffic.window_bytes
    least = FULL_WINDOW_RATIO if asked else FULL_CWND_RATIO
    full = []
    for pair in scene.pairs:
        limit = asked * scene.traffic.streams_count if asked else pair.cwnd_bytes
        if not limit or not pair.rtt_mean_s:
            continue
        in_flight = scene.one_way(pair) / 8 * pair.rtt_mean_s
        if in_flight >= least * limit:
            full.append(pair)
    return full if full and scene.share(full) >= 0.5 else ()


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
    seen = f"{scene.of_pairs(held)} keep a full window in flight"
    ratio = scene.lead.retransmit_ratio
    if ratio is None:
        dropped = "nothing is queued; whether anything is dropped is unknown"
    elif ratio > 0 and scene.lead.retransmits_count != 0:
        said = f"{words.number(ratio * 100, 2)}% of segments dropped are too few to hold it"
        dropped = f"nothing is queued; {said}"
    else:
        dropped = "nothing is dropped or queued"
    return Limiter(
        name=LimiterName.WINDOW,
        evidence=(f"{seen} (RTT {words.time(rtt_s)}) and {dropped}",),
        refuted_by="the same rate with a larger window or more streams",
        advice=_window_advice(scene, held, rtt_s),
    )


def _window_advice(scene: Scene, held: Sequence[PairSummary], rtt_s: float) -> str:
    """The bandwidth-delay product and the smallest window that fills it (RFC 6349)."""
    down = scene.traffic.direction is Direction.REVERSE
    caps = [
        scene.one_way(pair) / nic
        for pair in held
        if (nic := pair.server_nic_ratio if down else pair.client_nic_ratio)
    ]
    wanted = max(caps) if caps else 2 * max(scene.one_way(pair) for pair in held)
    product = wanted / 8 * rtt_s
    each = product / scene.traffic.streams_count
    return (
        f"the bandwidth-delay product at {words.rate(wanted)} and {words.time(rtt_s)} is "
        f"{words.size(product)} a pair: set window_bytes to at least {words.size(each)} a "
        "stream (and tcp_rmem/tcp_wmem to allow it), or use more streams"
    )


def _single_flow(scene: Scene, *, documented: bool) -> Limiter | None:
    """Each stream carries the same: what the firewall is documented for in one connection, or,
    of one or two streams a pair, while nothing else can hold them."""
    each, known = scene.each_stream, DOCUMENTED.flow.get(scene.sku or "")
    if each is None or not scene.senders_have_room:
        return None
    if documented:
        if known is None or not 0.8 <= each / known.bits_per_second * scene.scale <= 1.1:
            return None
        why = (
            f"{scene.sku} carries {words.rate(known.bits_per_second)} in one TCP connection "
            f"({known.source}, {known.as_of})"
        )
    else:
        alone = scene.traffic.streams_count <= 2 and len(scene.pairs) >= TRADERS_MIN
        if not alone or scene.nic_ratio is None or not scene.path_is_idle:
            return None
        why = "no NIC is full, and nothing is dropped or queued"
    return Limiter(
        name=LimiterName.SINGLE_FLOW,
        evidence=(f"{len(scene.pairs)} pairs carry the same {words.rate(each)} a stream", why),
        refuted_by="the same sum with twice the streams a pair",
        advice="use more streams a pair",
    )


def _snat(scene: Scene) -> Limiter | None:
    used = scene.snat_utilization_ratio
    if used is None or used < 0.95:
        return None
    return Limiter(
        name=LimiterName.SNAT_PORTS,
        evidence=(f"the firewall's SNAT ports are {words.ratio(used, 0)} used",),
        refuted_by="the same rate with fewer connections",
        advice="give the firewall more public addresses, or keep the traffic private",
    )


def _device_cpu(scene: Scene) -> Limiter | None:
    """A device whose CPU, or the busiest of its cores, is full is the limit of what crosses it."""
    full = [
        (each.device, seen)
        for each in scene.devices
        if (seen := each.cpu_ratio) is not None
        and max(seen.mean, seen.busiest or 0.0) >= CPU_FULL_RATIO
    ]
    if not full:
        return None
    evidence = [_busy(name, seen) for name, seen in full]
    if len(full) < len(scene.devices):
        evidence.append(f"{len(full)} of {len(scene.devices)} devices")
    return Limiter(
        name=LimiterName.FIREWALL,
        evidence=tuple(evidence),
        refuted_by="the same rate with less for the device to do (fewer rules, inspection off), or "
        "on a larger one",
        advice="give the device more cores or units, or less to do for each byte",
    )


def _busy(device: str, seen: DeviceFigure) -> str:
    core = "" if seen.busiest is None else f", its busiest core {words.ratio(seen.busiest, 0)}"
    return f"{device}'s CPU is {words.ratio(seen.mean, 0)} busy{core}"


def _firewall(scene: Scene) -> Limiter | None:
    """Pairs trade shares of one limit, or the ledger is flat at the SKU's documented rate."""
    if not scene.crosses or not scene.senders_have_room or scene.path_is_idle:
        return None
    traded, documented = _traded(scene), _documented(scene)
    if documented is None and (traded is None or _shared_hosts(scene)):
        return None
    lead, evidence = scene.lead, [said for said in (traded, documented) if said is not None]
    nic, held = scene.nic_ratio, scene.reconciliation
    if nic is not None:
        evidence.append(f"the fullest sender's NIC is at {words.ratio(nic, 0)} of its cap")
    if lead.second_cov_ratio is not None and lead.second_cov_ratio < FLAT_COV_RATIO:
        evidence.append(f"the fleet's sum is flat: CoV {words.ratio(lead.second_cov_ratio, 1)}")
    if scene.queued and lead.rtt_mean_s is not None and lead.rtt_baseline_s is not None:
        evidence.append(
            f"a queue stands in the path: RTT {words.time(lead.rtt_mean_s)} against "
            f"{words.time(lead.rtt_baseline_s)} at best"
        )
    if scene.drops:
        lost = lead.retransmit_ratio if lead.retransmit_ratio is not None else lead.loss_ratio
        evidence.append(f"the path drops: {words.ratio(lost or 0.0, 3)} of segments")
    if documented is None and held is not None and _flat_ledger(held):
        evidence.append(
            f"its own ledger is flat at {words.rate(held.firewall_bits_per_second)} "
            f"(CoV {words.ratio(held.ledger_cov_ratio, 1)})"
        )
    evidence += [_busy(each.device, seen) for each in scene.devices if (seen := each.cpu_ratio)]
    return Limiter(
        name=LimiterName.FIREWALL,
        evidence=tuple(evidence),
        refuted_by="the same sum with the pairs past the firewall (device.path=bypass), or half "
        "the pairs that carry only half of it",
        advice="scale the firewall out (pre-scale it), or lower the target",
    )


def _traded(scene: Scene) -> str | None:
    """That the sum stands while pairs move: what one gains another loses."""
    moves, cov = scene.lead.share_movement_ratio, scene.pair_cov_ratio
    if (
        moves is None
        or moves >= cancel_ratio(scene.window_s)
        or cov is None
        or cov < TRADE_COV_RATIO
    ):
        return None
    return (
        f"{len(scene.pairs)} pairs trade shares of one limit: {_movement(scene)}, "
        f"while a pair's CoV is {words.ratio(cov, 1)}"
    )


def _movement(scene: Scene) -> str:
    moves = scene.lead.share_movement_ratio
    return f"the sum's variance is {words.ratio(moves, 0)} of the pairs' own, summed"


def _flat_ledger(held: Reconciliation) -> bool:
    return (
        held.firewall_bits_per_second is not None
        and held.ledger_cov_ratio is not None
        and held.ledger_cov_ratio < FLAT_COV_RATIO
    )


def _documented(scene: Scene) -> str | None:
    """That the firewall's ledger is flat at what its kind is documented for."""
    held, known = scene.reconciliation, DOCUMENTED.firewall.get(scene.sku or "")
    if held is None or known is None or not _flat_ledger(held):
        return None
    seen = held.firewall_bits_per_second or 0.0
    if abs(seen / (known.bits_per_second / scene.scale) - 1) >= NEAR_RATIO:
        return None
    return (
        f"its own ledger is flat at {words.rate(seen)} (CoV "
        f"{words.ratio(held.ledger_cov_ratio, 1)}), and "
        f"{scene.sku} is documented for {words.rate(known.bits_per_second)} "
        f"({known.source}, {known.as_of})"
    )


def _shared_hosts(scene: Scene) -> Sequence[str]:
    """Hosts of several pairs, of which nobody knows that they have room: pairs trade there too."""
    seen: dict[str, list[bool]] = {}
    for pair in scene.pairs:
        client = _has_room(pair.client_cpu_ratio, pair.client_core_ratio, pair.client_nic_ratio)
        server = _has_room(pair.server_cpu_ratio, pair.server_core_ratio, pair.server_nic_ratio)
        for agent, room in ((pair.client_agent_id, client), (pair.server_agent_id, server)):
            if agent is not None:
                seen.setdefault(agent, []).append(room)
    return [agent for agent, rooms in seen.items() if len(rooms) > 1 and not all(rooms)]


def _has_room(cpu: float | None, core: float | None, nic: float | None) -> bool:
    busiest = None if cpu is None or core is None else max(cpu, core)
    return busiest is not None and busiest < CPU_FULL_RATIO and nic is not None and nic < ROOM_RATIO


def _unknown(scene: Scene) -> Limiter:
    evidence = []
    if (each := scene.each_stream) is not None and len(scene.pairs) > 1:
        evidence.append(
            f"{len(scene.pairs)} pairs carry the same {words.rate(each)} a stream, as a cap on "
            "each pair makes it"
        )
    if (traded := _traded(scene)) is not None:
        evidence.append(traded)
    return Limiter(
        name=LimiterName.UNKNOWN,
        evidence=tuple(evidence),
        not_known=tuple(_not_known(scene)),
        advice="run half of the pairs: where each carries what it did, the limit is its own; "
        "where the sum stays, it is one that they share",
    )


def _not_known(scene: Scene) -> Iterator[str]:
    """What would have told, and how to have it told."""
    pairs, lead, held = scene.pairs, scene.lead, scene.reconciliation
    if blind := [pair for pair in pairs if None in scene.sender_nics(pair)]:
        yield (
            f"the senders' NIC caps of {scene.of_pairs(blind)} (tell the agents their VM size or "
            "NIC rate)"
        )
    cpus = (LimiterName.CLIENT_CPU, LimiterName.SERVER_CPU)
    if dark := [pair for pair in pairs if any(_use(pair, name) is None for name in cpus)]:
        yield f"the CPU of {scene.of_pairs(dark)} (let the agents read their hosts' counters)"
    if lead.share_movement_ratio is None or scene.pair_cov_ratio is None:
        yield (
            "whether pairs trade shares (have three pairs or more told second by second, for 30 s "
            "or more)"
        )
    elif shared := _shared_hosts(scene):
        yield (
            f"whether {shared[0]}, which serves several pairs, has room (a host a pair, or its "
            "CPU and NIC cap)"
        )
    if lead.retransmit_ratio is None and lead.loss_ratio is None:
        yield "whether the path drops (an engine that tells: iperf3)"
    if scene.crosses and (held is None or held.firewall_bits_per_second is None):
        yield "what the firewall counted (read its ledger)"
    elif scene.crosses and scene.sku not in DOCUMENTED.firewall:
        yield "what the firewall is documented for (state device.sku)"
