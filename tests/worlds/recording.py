"""Functions to make the host and engine records for a simulated run."""

from dataclasses import dataclass

import numpy as np

from tests.worlds.devices import device_records, telemetry_records
from tests.worlds.parameters import Spec
from tests.worlds.record_format import (
    ClockReading,
    CounterDeclaration,
    EndRecord,
    Floats,
    ForeignTest,
    HostCounters,
    PairRecord,
    Plan,
    PlannedBurst,
    PlannedPair,
    Recording,
    Rows,
)
from tests.worlds.traffic import Burst, Flow, Physics, directions_of

# 5 January 2026, 00:00 UTC.
EPOCH_UNIX_S = 1767571200.0
# A sender needs to vary by less than this to be paced.
PACED_COV = 0.006
# Maximum TCP window per stream, unless the window is the bottleneck.
WINDOW_BYTES = 16 * 1024 * 1024


def client(pair: int) -> str:
    """Return the name of the client host in a pair."""
    return f"client-{pair:02d}"


def server(pair: int) -> str:
    """Return the name of the server host in a pair."""
    return f"server-{pair:02d}"


def nic_cap(spec: Spec, physics: Physics) -> float | None:
    """Return the egress limit of a host in bit/s of frames, or `None` if it is unknown."""
    busier = max(spec.forward_share, 1.0 - spec.forward_share) if spec.direction == "both" else 1.0
    per_pair = physics.weights.max() * spec.payload_bytes_per_second * 8.0 * busier
    largest = float(per_pair * spec.layer_factor("wire"))
    if spec.bottleneck == "nic":
        return 1.002 * largest
    # Otherwise the limit will be much higher, and can be unknown (for a third of the fleets).
    return None if physics.background_seed % 3 == 0 else 1.6 * largest


def make_plan(spec: Spec, physics: Physics) -> Plan:
    """Return the plan and the declarations before the run."""
    fleet = spec.payload_bytes_per_second * 8.0
    known: float | None = fleet * spec.layer_factor("ip")
    if spec.bottleneck != "device":
        # The device could carry more. Its limit will be known for half of the fleets.
        known = None if known is None or physics.background_seed % 2 else 1.7 * known
    offered = None
    steady = spec.noise.pair_cov <= PACED_COV and spec.weights == "equal"
    if spec.protocol == "udp" or (spec.bottleneck == "none" and steady):
        # iperf3 paces every stream. A paced sender is slightly below its pace and never above.
        sent = fleet / (1.0 - spec.loss_ratio if spec.protocol == "udp" else 1.0)
        below = spec.pace_error_ratio or 3.0 * spec.noise.pair_cov
        offered = sent / spec.pairs_count / len(directions_of(spec)) * (1.0 + below)
    counters = tuple(
        CounterDeclaration(
            device=counter.device,
            layer=counter.layer if counter.declared else None,
            unit=("bits" if counter.labelled_bits else "bytes") if counter.declared else None,
            aggregation=("average" if counter.average else "total") if counter.declared else None,
            directions=counter.directions if counter.declared else None,
            counts=("before-drop" if counter.before_drop else "after-drop")
            if counter.declared
            else None,
            lag_s=counter.lag_s if counter.declared_lag else None,
            preset=counter.preset,
        )
        for counter in spec.counters
    )
    return Plan(
        epoch_unix_s=EPOCH_UNIX_S,
        origin=spec.origin,
        engine=spec.engine,
        protocol=spec.protocol,
        direction=spec.direction,
        streams_count=spec.streams_count,
        offered_bits_per_second=offered,
        mtu_bytes=spec.mtu_bytes if spec.mtu_recorded else None,
        tcp_options_bytes=spec.tcp_options_bytes if spec.mtu_recorded else None,
        datagram_bytes=spec.datagram_bytes if spec.protocol == "udp" else None,
        ip_version=spec.ip_version,
        target_bits_per_second=spec.target_bits_per_second,
        tolerance_ratio=spec.tolerance_ratio,
        target_layer=spec.target_layer,
        completeness_min_ratio=0.95,
        residual_max_ratio=0.05,
        start_spread_max_s=0.1,
        clock_gate_s=0.05,
        device_cpu_max_ratio=spec.device_cpu_max_ratio,
        loss_max_ratio=spec.loss_max_ratio,
        clocks_promised=spec.clocks_promised,
        device_promised=spec.device_promised,
        nic_cap_bits_per_second=nic_cap(spec, physics),
        device_known_rate_bits_per_second=known,
        bursts=tuple(
            PlannedBurst(
                index=index,
                start_s=spec.lead_s + index * spec.period_s,
                duration_s=spec.planned_s or spec.duration_s,
                stopped_s=spec.duration_s if spec.planned_s else None,
            )
            for index in range(spec.bursts_count)
        ),
        pairs=tuple(
            PlannedPair(
                index=pair,
                client_host=client(pair),
                server_host=server(pair),
                client_address=f"10.2.{pair // 200}.{pair % 200 + 10}",
                server_address=f"10.1.{pair // 200}.{pair % 200 + 10}",
                server_port=5201,
                token=f"token-{pair:04d}",
            )
            for pair in range(spec.pairs_count)
        ),
        counters=counters,
        ends_when_certain=spec.ends_when_certain,
    )


@dataclass(frozen=True)
class _Side:
    """Rows from one side of all pairs, as matrices (pairs, rows)."""

    began_s: Floats
    edges_s: Floats
    bytes: Floats
    lost_bytes: Floats | None
    resent: Floats | None
    rtt_s: Floats | None


def _edges(spec: Spec, rng: np.random.Generator, reading_s: float, length_s: Floats) -> Floats:
    """Return the elapsed row edges, shape (pairs, rows + 1). The last edge is the length."""
    count = max(1, int(np.ceil(float(np.median(length_s)) / reading_s - 0.01)))
    edges = np.tile(reading_s * np.arange(count + 1.0), (length_s.size, 1))
    if count > 1:
        # Engine timers can be slightly late, but will not be early.
        edges[:, 1:-1] += np.abs(rng.standard_normal((length_s.size, count - 1))) * 0.001
    edges[:, -1] = length_s
    return edges


def _sides(spec: Spec, rng: np.random.Generator, flow: Flow, rtt_s: Floats) -> tuple[_Side, _Side]:
    """Return the rows of sender and receiver for all pairs."""
    burst = flow.burst
    starts = np.where(np.isfinite(burst.starts_s), burst.starts_s, burst.start_s)
    # An engine will run for the full duration, unless it is killed.
    length = np.full(spec.pairs_count, burst.duration_s)
    began = starts - spec.sender_early_s
    edges = _edges(spec, rng, spec.sender_reading_s, length + spec.sender_early_s)
    # A grid step spreads its bytes evenly, and the first and last rows include their complete step.
    complete_step = np.zeros_like(edges)
    complete_step[:, 0], complete_step[:, -1] = -flow.step_s, flow.step_s
    written = np.floor(flow.written(began[:, None] + edges + complete_step))
    resent = None
    if spec.protocol == "tcp":
        again = flow.resent_by(began[:, None] + edges + complete_step)
        resent = np.diff(np.floor(again / spec.segment_bytes), axis=1)
    loaded = np.array([round_trips_of(spec, float(idle))[1] for idle in rtt_s])
    moves = np.exp(0.08 * rng.standard_normal((spec.pairs_count, edges.shape[1] - 1)))
    bytes_ = np.diff(written, axis=1)
    sender = _Side(began, edges, bytes_, None, resent, loaded[:, None] * moves)
    began = starts + flow.delay_down_s - spec.receiver_early_s
    # The receiver will count until it has read the last byte.
    tail = flow.delay_up_s + 0.01
    edges = _edges(spec, rng, spec.receiver_reading_s, length + tail + spec.receiver_early_s)
    complete_step = np.zeros_like(edges)
    complete_step[:, 0], complete_step[:, -1] = -flow.step_s, flow.step_s
    received = np.floor(flow.received(began[:, None] + edges + complete_step))
    lost = None
    if spec.protocol == "udp":
        arrived = np.floor(flow.arrived(began[:, None] + edges + complete_step))
        lost = np.diff(arrived, axis=1) - np.diff(received, axis=1)
    return sender, _Side(began, edges, np.diff(received, axis=1), lost, None, None)


def _end(
    spec: Spec,
    side: _Side,
    name: str,
    direction: str,
    pair: int,
    host: str,
    began_at_s: float | None,
    dies_at_s: float | None,
) -> EndRecord:
    rows_count = side.bytes.shape[1]
    complete = dies_at_s is None
    if dies_at_s is not None:
        # A row will be written when it ends.
        rows_count = int(np.searchsorted(side.edges_s[pair, 1:], dies_at_s, side="right"))
    bytes_ = side.bytes[pair, :rows_count]
    start, end = side.edges_s[pair, :rows_count], side.edges_s[pair, 1 : rows_count + 1]
    packets = lost = retransmits = rtt = window = None
    if spec.protocol == "udp":
        if side.lost_bytes is not None:
            lost = np.round(side.lost_bytes[pair, :rows_count] / spec.datagram_bytes)
            packets = np.round(bytes_ / spec.datagram_bytes) + lost
        else:
            packets = np.round(bytes_ / spec.datagram_bytes)
    if side.resent is not None:
        retransmits = side.resent[pair, :rows_count]
        rtt = None if side.rtt_s is None else side.rtt_s[pair, :rows_count]
        rate = bytes_ / np.maximum(end - start, 1e-9)
        # A window has the bytes in flight and a small reserve.
        full = 1.0 if spec.bottleneck == "window" else 1.15
        window = full * rate * (0.0 if rtt is None else rtt)
    return EndRecord(
        host=host,
        side=name,
        direction=direction,
        began_at_s=began_at_s,
        reading_s=spec.sender_reading_s if name == "sender" else spec.receiver_reading_s,
        rows=Rows(
            start_s=start,
            end_s=end,
            bytes=bytes_,
            packets=packets,
            lost=lost,
            retransmits=retransmits,
            rtt_s=rtt,
            cwnd_bytes=window,
        ),
        total_bytes=float(bytes_.sum()) if complete else None,
        total_s=float(side.edges_s[pair, -1]) if complete else None,
        total_retransmits=float(retransmits.sum())
        if complete and retransmits is not None
        else None,
        total_packets=float(packets.sum()) if complete and packets is not None else None,
        total_lost=float(lost.sum()) if complete and lost is not None else None,
        complete=complete,
    )


def round_trips_of(spec: Spec, idle: float) -> tuple[float, float]:
    """Return the idle and the loaded round-trip time for a path with this idle time.

    A full shared bottleneck has a queue. A policer, a CPU, a window and a paced sender have
    none. A full NIC has a queue in the sender, which is also visible to TCP.
    """
    queue = {"device": spec.queue_s, "shared-link": spec.queue_s, "nic": 0.4 * spec.queue_s}
    return idle, idle + queue.get(spec.bottleneck, 0.02 * idle)


def _outcome(spec: Spec, pair: int, burst: int) -> tuple[str, set[str], float | None]:
    """Return the outcome, the events and the time of death for a pair in a burst."""
    events = [e for e in spec.events if e.pair == pair and e.burst in (None, burst)]
    names = {event.what for event in events}
    dies = min((event.at_s for event in events if event.what == "dies"), default=None)
    if "failed" in names:
        return "failed", names, dies
    if "missed" in names:
        return "missed", names, dies
    if "unheard" in names:
        return "lost", names, dies
    if dies is not None:
        return "abandoned", names, dies
    late = max((event.at_s for event in events if event.what == "late"), default=0.0)
    return ("late" if late > 1.0 else "measured"), names, dies


def _pair_records(
    spec: Spec, physics: Physics, rng: np.random.Generator, plan: Plan
) -> list[PairRecord]:
    records = []
    for burst in physics.bursts:
        if burst.index < 0:
            continue
        flows = physics.of(burst)
        sides = [_sides(spec, rng, flow, physics.rtt_s) for flow in flows]
        unit = rng.integers(0, spec.hidden_units_count, spec.pairs_count)
        ports = rng.integers(1024, 65000, spec.pairs_count)
        clocks = [
            [
                physics.clock(0 if on_client else 1, side.began_s)
                for side, on_client in zip(
                    pair_of_sides,
                    (True, False) if flow.direction == "forward" else (False, True),
                    strict=True,
                )
            ]
            for flow, pair_of_sides in zip(flows, sides, strict=True)
        ]
        recorded = burst.index not in spec.unrecorded
        for pair in range(spec.pairs_count):
            outcome, events, dies = _outcome(spec, pair, burst.index)
            idle, loaded = round_trips_of(spec, float(physics.rtt_s[pair]))
            ends: list[EndRecord] = []
            ran = np.isfinite(burst.starts_s[pair]) and recorded
            if not recorded:
                outcome = "lost"
            for flow, (sender, receiver), (sender_at, receiver_at) in zip(
                flows, sides, clocks, strict=True
            ):
                if not ran or "unheard" in events:
                    continue
                forward = flow.direction == "forward"
                sending, receiving = client(pair), server(pair)
                if not forward:
                    sending, receiving = receiving, sending
                if spec.sender_recorded and "sender-unheard" not in events:
                    ends.append(
                        _end(
                            spec,
                            sender,
                            "sender",
                            flow.direction,
                            pair,
                            sending,
                            float(sender_at[pair]),
                            dies,
                        )
                    )
                if spec.receiver_recorded and "receiver-unheard" not in events:
                    ends.append(
                        _end(
                            spec,
                            receiver,
                            "receiver",
                            flow.direction,
                            pair,
                            receiving,
                            float(receiver_at[pair]),
                            dies,
                        )
                    )
            planned = plan.pairs[pair]
            local_port = 40000 + 7 * pair + burst.index
            address: str | None = planned.client_address
            port: int | None = local_port
            if spec.translation in ("address", "address-port"):
                address = f"10.9.0.{4 + int(unit[pair])}"
            if spec.translation in ("port", "address-port"):
                port = int(ports[pair])
            server_recorded = any(end.host == server(pair) for end in ends)
            window = float(WINDOW_BYTES)
            if spec.bottleneck == "window":
                rate = physics.weights[pair] * spec.payload_bytes_per_second
                window = float(rate * idle / spec.streams_count)
            path_ping = idle * 0.5
            # Pings to the device wait in its queue, and not in the queue of another link.
            waits = spec.queue_s if spec.bottleneck == "device" else 0.05 * idle
            records.append(
                PairRecord(
                    pair=pair,
                    burst=burst.index,
                    outcome=outcome,
                    reason="unable to receive on stream" if outcome == "failed" else "",
                    ends=tuple(ends),
                    token=planned.token,
                    server_token=planned.token if server_recorded else None,
                    client_address=planned.client_address,
                    client_port=local_port,
                    seen_address=address if server_recorded else None,
                    seen_port=port if server_recorded else None,
                    idle_rtt_s=idle if spec.rtt_baseline else None,
                    loaded_rtt_s=loaded,
                    device_ping_idle_s=path_ping if spec.rtt_baseline else None,
                    device_ping_loaded_s=path_ping + waits,
                    window_bytes=window,
                )
            )
    return records


def _host_counters(
    spec: Spec, physics: Physics, rng: np.random.Generator, burst: Burst
) -> list[HostCounters]:
    hosts, pairs = spec.hosts, spec.pairs_count
    flows = physics.of(burst)
    span = burst.duration_s + 6.0
    count = int(span / hosts.every_s) + 1
    grid = burst.start_s - 3.0 + hosts.every_s * np.arange(count)
    at: Floats = np.tile(grid, (pairs, 1)) + 0.05 * rng.random((pairs, 1))
    wire, ack = spec.layer_factor("wire"), spec.ack_ratio("wire")
    # A host will use its own clock to read its counters.
    of_sides = [at - physics.offsets_s[side][:, None] for side in (0, 1)]
    out: Floats = np.zeros((2, pairs, count))
    into: Floats = np.zeros((2, pairs, count))
    for flow in flows:
        sends = 0 if flow.direction == "forward" else 1
        sending, receiving = of_sides[sends], of_sides[1 - sends]
        out[sends] += (flow.written(sending) + flow.resent_by(sending)) * wire
        into[1 - sends] += flow.received(receiving) * wire
        # Acknowledgements use the opposite direction.
        out[1 - sends] += flow.received(receiving) * ack
        into[sends] += flow.received(sending) * ack
    records: list[HostCounters] = []
    elapsed = at - at[:, :1]
    sends = 1 if spec.direction == "reverse" else 0
    for side, name in ((0, client), (1, server)):
        other = hosts.other_bits_per_second / 8.0 * elapsed
        sent, got = out[side], into[side]
        if hosts.wrong_interface:
            sent, got = np.zeros_like(sent), np.zeros_like(got)
        sent, got = np.floor(sent + other), np.floor(got + other * 1.3)
        stamps = physics.clock(side, of_sides[side])
        load = np.diff(out[side] + into[side], axis=1) / hosts.every_s
        top = np.maximum(load.max(axis=1, keepdims=True), 1.0)
        full = 0.99 if spec.bottleneck == "cpu" and side == sends else hosts.cpu_ratio
        cpu = np.clip(0.02 + full * load / top, 0.0, 1.0)
        cpu = np.concatenate((np.full((pairs, 1), np.nan), cpu), axis=1)
        records.extend(
            HostCounters(
                host=name(pair),
                burst=burst.index,
                interface="eth0",
                routed_interface=None
                if not hosts.routed_known
                else ("lo" if hosts.wrong_interface else "eth0"),
                at_s=stamps[pair],
                rx_bytes=got[pair],
                tx_bytes=sent[pair],
                cpu_ratio=cpu[pair],
            )
            for pair in range(pairs)
        )
    return records


def _clock_readings(spec: Spec, physics: Physics, rng: np.random.Generator) -> list[ClockReading]:
    clocks = spec.clocks
    unread = rng.random((2, spec.pairs_count)) < clocks.unread_ratio
    error = rng.standard_normal((2, spec.pairs_count)) * 0.0001
    readings = []
    for burst in physics.bursts:
        if burst.index < 0 or burst.index in spec.unrecorded:
            continue
        for side, name in ((0, client), (1, server)):
            for pair in range(spec.pairs_count):
                if unread[side, pair]:
                    continue
                grouped = bool(physics.group[side, pair])
                hidden = clocks.group_offset_s if grouped and not clocks.admits else 0.0
                offset = float(physics.offsets_s[side, pair]) - hidden - clocks.common_offset_s
                for when, at in (
                    ("before", burst.start_s - 5.0),
                    ("after", burst.start_s + burst.duration_s + 5.0),
                ):
                    at_clock = at + float(physics.offsets_s[side, pair])
                    readings.append(
                        ClockReading(
                            host=name(pair),
                            burst=burst.index,
                            when=when,
                            at_s=at_clock,
                            offset_s=offset + float(error[side, pair]),
                            bound_s=clocks.bound_s,
                            slewing_s=clocks.slewing_s if grouped else 0.0,
                            synchronised=clocks.synchronised if grouped else True,
                            reference_id=clocks.reference_id if grouped else "0A000001",
                            boot_id=f"boot-{name(pair)}",
                        )
                    )
    return readings


def _foreign(
    spec: Spec, physics: Physics, rng: np.random.Generator, plan: Plan
) -> list[ForeignTest]:
    tests = []
    planned = [burst for burst in physics.bursts if burst.index >= 0]
    for _ in range(spec.foreign_tests_count):
        burst = planned[int(rng.integers(len(planned)))]
        pair = plan.pairs[int(rng.integers(spec.pairs_count))]
        began = burst.start_s + float(rng.uniform(-10.0, burst.duration_s))
        length = float(rng.uniform(0.05, 5.0))
        tests.append(
            ForeignTest(
                burst=burst.index,
                server_host=pair.server_host,
                server_port=pair.server_port,
                source_address=f"10.7.0.{int(rng.integers(4, 250))}",
                token=None,
                began_at_s=began,
                ended_at_s=began + length,
                bytes=float(np.floor(length * 1e5)),
            )
        )
    return tests


def record(spec: Spec, physics: Physics, rng: np.random.Generator) -> Recording:
    """Record a world.

    Args:
        spec: Parameters to use.
        physics: Simulated physics to use.
        rng: Random number generator for timestamps, jitter and counter noise.

    Returns:
        All records, before any manipulation.
    """
    plan = make_plan(spec, physics)
    hosts: list[HostCounters] = []
    if spec.hosts.recorded:
        for burst in physics.bursts:
            if burst.index >= 0 and burst.index not in spec.unrecorded:
                hosts.extend(_host_counters(spec, physics, rng, burst))
    return Recording(
        plan=plan,
        pairs=tuple(_pair_records(spec, physics, rng, plan)),
        foreign=tuple(_foreign(spec, physics, rng, plan)),
        devices=tuple(device_records(spec, physics, rng)),
        telemetry=tuple(telemetry_records(spec, physics, rng)),
        hosts=tuple(hosts),
        clocks=tuple(_clock_readings(spec, physics, rng)),
    )
