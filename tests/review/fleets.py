"""Runs as recorded by agents and a device, with the fields that `common_functions.judge` reads.

A fleet is created from the payload of its pairs per second, without errors. Tests add noise and
faults.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.review.common_functions import at

Floats = NDArray[np.float64]

START_S: Final = 1_763_640_000.0
# Ratio for IPv4 and TCP with timestamps at an MTU of 1500.
IP_RATIO: Final = 1500 / 1448
FRAME_RATIO: Final = 1514 / 1448


def steady(
    pairs: int, seconds: int, bits_per_second: float, noise: float = 0.0, seed: int = 0
) -> Floats:
    """Return the payload in bit/s by pair and second, with white relative noise."""
    draw = np.random.default_rng(seed)
    return bits_per_second * (1 + noise * draw.standard_normal((pairs, seconds)))


def fleet(
    bursts: Sequence[Floats],
    *,
    target_bits_per_second: float,
    objective: Mapping[str, object] | None = None,
    traffic: Mapping[str, object] | None = None,
    period_s: int = 120,
    unrecorded: Collection[int] = (),
    reading_s: int = 1,
    server_reading_s: int | None = None,
    nic_bits_per_second: float | None = 10e9,
    bin_s: float | None = 1.0,
    down: Sequence[Floats] = (),
    retransmits: int = 0,
    rtt_s: float = 0.001,
    cpu_ratio: float = 0.3,
) -> dict[str, Any]:
    """Return a run.

    Args:
        bursts: Payload of all bursts in bit/s by pair and second, from clients to servers.
        target_bits_per_second: Target rate at the IP layer.
        objective: Additional fields of the objective.
        traffic: Additional fields of the traffic.
        period_s: Time between the starts of two bursts.
        unrecorded: Pairs without a record at either end. The device counted their bytes.
        reading_s: Length of a reading at both ends in seconds.
        server_reading_s: The same for servers only.
        nic_bits_per_second: Documented NIC limit of the hosts.
        bin_s: Bin length of the device counter at the IP layer, or None without a counter.
        down: Payload like `bursts`, from servers to clients. The traffic is then bidirectional.
        retransmits: Retransmitted segments by pair and second.
        rtt_s: Round-trip time by pair and second.
        cpu_ratio: CPU use of the hosts.
    """
    pairs_count, duration_s = bursts[0].shape
    starts_s = [START_S + index * period_s for index in range(len(bursts))]
    end_s = starts_s[-1] + duration_s
    common = {
        "burst_s": duration_s,
        "period_s": period_s,
        "reading_s": {"client": reading_s, "server": server_reading_s or reading_s},
        "retransmits": retransmits,
        "rtt_s": rtt_s,
        "nic_bits_per_second": nic_bits_per_second,
        "cpu_ratio": cpu_ratio,
    }
    run: dict[str, Any] = {
        "plan": {
            "run_id": "reviewed",
            "created_at": at(START_S - 60).isoformat(),
            "spec": {
                "scenario": "review",
                "pairs_count": pairs_count,
                "bursts_count": len(bursts),
                "burst_s": duration_s,
                "period_s": period_s,
                "traffic": {
                    "streams_count": 8,
                    "direction": "bidirectional" if down else "forward",
                    **(traffic or {}),
                },
                "objective": {
                    "target_bits_per_second": target_bits_per_second,
                    **(objective or {}),
                },
            },
            "pairs": [
                {"index": index, "endpoint": _endpoint(index)} for index in range(pairs_count)
            ],
            "bursts": [
                {
                    "index": index,
                    "planned_start_at": at(start_s).isoformat(),
                    "duration_s": duration_s,
                }
                for index, start_s in enumerate(starts_s)
            ],
            "ledger": None if bin_s is None else {"source": "device"},
            "clocks_promised": True,
        },
        "pairs": [
            [
                {"pair_index": pair}
                if pair in unrecorded
                else _pair(
                    index,
                    pair,
                    start_s,
                    {"up": rates[pair]} | ({"down": down[index][pair]} if down else {}),
                    common,
                )
                for pair in range(pairs_count)
            ]
            for index, (start_s, rates) in enumerate(zip(starts_s, bursts, strict=True))
        ],
        "now_s": end_s + 600,
    }
    if bin_s is not None:
        edges_s = np.arange(START_S - 300, end_s + 300 + bin_s, bin_s)
        total = [up + down[index] if down else up for index, up in enumerate(bursts)]
        run["ledger"] = {
            "edges_at_s": edges_s.tolist(),
            "bytes": (counted(starts_s, total, edges_s) * IP_RATIO).tolist(),
            "flows": ["up", "down"] if down else ["up"],
        }
    return run


def counted(starts_s: Sequence[float], bursts: Sequence[Floats], edges_s: Floats) -> Floats:
    """Return the payload bytes that a counter in the path has between edges."""
    seen = np.zeros(len(edges_s) - 1)
    for start_s, rates in zip(starts_s, bursts, strict=True):
        crossed = np.append(0.0, np.cumsum(rates.sum(axis=0) / 8))
        seen += np.diff(np.interp(edges_s, start_s + np.arange(len(crossed)), crossed))
    return seen


def _endpoint(pair: int) -> dict[str, Any]:
    return {"agent_id": f"server-{pair}", "address": f"10.2.0.{pair + 1}", "port": 5201}


def _clock(at_s: float) -> dict[str, Any]:
    return {
        "source": "chrony",
        "read_at": at(at_s).isoformat(),
        "synchronised": True,
        "offset_s": 0.0,
        "bound_s": 0.0002,
    }


def _pair(
    burst: int, pair: int, start_s: float, rates: Mapping[str, Floats], common: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the records of one pair for one burst."""
    duration_s = int(common["burst_s"])
    job, cookie = f"reviewed.{burst:05d}.{pair:05d}", f"cookie-{burst}-{pair}"
    clocks = {"clock_before": _clock(start_s - 5), "clock_after": _clock(start_s + duration_s)}
    engine = {
        "engine": "iperf3",
        "version": "3.18",
        "cookie": cookie,
        "mss_bytes": 1448,
        "totals": [
            {
                "flow": flow,
                "sent_bytes": round(rate.sum() / 8),
                "sent_s": float(duration_s),
                "received_bytes": round(rate.sum() / 8),
                "received_s": float(duration_s),
                "rtt_min_s": common["rtt_s"],
                "retransmits_count": common["retransmits"] * duration_s,
            }
            for flow, rate in rates.items()
        ],
    }
    tracks = {
        side: [
            _track(
                flow, rate, start_s, common, side=side, sends=(side == "client") == (flow == "up")
            )
            for flow, rate in rates.items()
        ]
        for side in ("client", "server")
    }
    up = rates["up"]
    return {
        "pair_index": pair,
        "nic_bits_per_second": common["nic_bits_per_second"],
        "claim": {
            "job_id": job,
            "agent_id": f"client-{pair}",
            "phase": "running",
            "claimed_at": at(start_s - 10).isoformat(),
            "cookie": cookie,
            "clock": _clock(start_s - 10),
        },
        "report": {
            "job_id": job,
            "run_id": "reviewed",
            "burst_index": burst,
            "pair_index": pair,
            "agent_id": f"client-{pair}",
            "outcome": "measured",
            "planned_start_at": at(start_s).isoformat(),
            "first_data_at": at(start_s).isoformat(),
            "start_error_s": 0.0,
            "engine": engine,
            **clocks,
            "idle_rtt": {
                "least_s": 0.001,
                "median_s": 0.001,
                "samples_count": 9,
                "how": "connections",
            },
            "reported_at": at(start_s + duration_s + 1).isoformat(),
        },
        "client_tracks": tracks["client"],
        "client_host": _host(up, start_s, common, receives=False),
        "server_test": {
            "agent_id": f"server-{pair}",
            "endpoint": _endpoint(pair),
            "started_at": at(start_s - 2).isoformat(),
            "first_data_at": at(start_s).isoformat(),
            "ended_at": at(start_s + duration_s).isoformat(),
            "engine": engine,
            **clocks,
        },
        "server_tracks": tracks["server"],
        "server_host": _host(up, start_s, common, receives=True),
    }


def _track(
    flow: str, rate: Floats, start_s: float, common: Mapping[str, Any], *, side: str, sends: bool
) -> dict[str, Any]:
    edges_s = np.arange(0, len(rate) + 1, common["reading_s"][side])
    total = np.append(0.0, np.cumsum(rate / 8))
    count = len(edges_s) - 1
    track = {
        "flow": flow,
        "first_data_at_s": start_s,
        "edges_s": edges_s.tolist(),
        "bytes": np.round(np.diff(total[edges_s])).tolist(),
    }
    if not sends:
        return track
    return track | {
        "retransmits_count": [common["retransmits"] * int(common["reading_s"][side])] * count,
        "rtt_s": [common["rtt_s"]] * count,
        "cwnd_bytes": [float(rate.mean()) / 8 * common["rtt_s"] * 3] * count,
    }


def _host(
    rate: Floats, start_s: float, common: Mapping[str, Any], *, receives: bool
) -> dict[str, Any]:
    counted_bytes = np.round(rate / 8 * FRAME_RATIO).tolist()
    nothing = [0.0] * len(rate)
    return {
        "edges_at_s": (start_s + np.arange(len(rate) + 1.0)).tolist(),
        "nic_rx_bytes": counted_bytes if receives else nothing,
        "nic_tx_bytes": nothing if receives else counted_bytes,
        "drops_count": nothing,
        "cpu_busy_ratio": [common["cpu_ratio"]] * len(rate),
        "cpu_busiest_core_ratio": [common["cpu_ratio"]] * len(rate),
    }
