"""User files: output of iperf3, tables of means, and a device metric."""

import csv
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.review.common_functions import at
from tests.review.fleets import START_S, Floats, counted

# Columns of the original tables.
TABLE: Final = (
    *("PartitionKey", "RowKey", "sent_throughput", "received_throughput"),
    *("server", "duration"),
)


def iperf3_file(
    path: Path, rate: Floats, *, sends: bool, began_at_s: float = START_S, reading_s: int = 1
) -> str:
    """Write the ``--json`` output of one end of a TCP test and return the file name.

    Args:
        path: Path of the file.
        rate: Payload in bit/s per second.
        sends: True for the client, which sends.
        began_at_s: Start of the test by the clock of this host.
        reading_s: Value of ``--interval``.
    """
    edges = range(0, len(rate) + 1, reading_s)
    total_bytes = round(rate.sum() / 8)

    def row(start_s: int, end_s: int, size_bytes: int) -> dict[str, Any]:
        length_s = end_s - start_s
        by_name = {
            "socket": 5,
            "start": start_s,
            "end": end_s,
            "seconds": length_s,
            "omitted": False,
            "sender": sends,
            "bytes": size_bytes,
            "bits_per_second": size_bytes * 8 / length_s,
        }
        if sends:
            by_name |= {"retransmits": 0, "snd_cwnd": 1_000_000, "rtt": 900, "rttvar": 20}
        return by_name

    intervals = []
    for start_s, end_s in itertools.pairwise(edges):
        one = row(start_s, end_s, round(float(rate[start_s:end_s].sum()) / 8))
        intervals.append({"streams": [one], "sum": one})
    complete = row(0, len(rate), total_bytes)
    ends = [
        {"socket": 5, "local_host": "10.0.0.4", "local_port": 40000},
        {"remote_host": "10.0.0.5", "remote_port": 5201},
    ]
    if not sends:
        ends = [
            {"socket": 5, "local_host": "10.0.0.5", "local_port": 5201},
            {"remote_host": "10.0.0.4", "remote_port": 40000},
        ]
    peer = {"connecting_to": {"host": "10.0.0.5", "port": 5201}}
    if not sends:
        peer = {"accepted_connection": {"host": "10.0.0.4", "port": 40999}}
    document = {
        "start": {
            "connected": [ends[0] | ends[1]],
            "version": "iperf 3.16",
            "system_info": "Linux host 6.1.0 x86_64",
            "timestamp": {"time": "x", "timesecs": began_at_s},
            **peer,
            "cookie": "njsmyiw7kumnuswqdmdlda2rrjwn5m3atuud",
            "tcp_mss_default": 1448,
            "test_start": {
                "protocol": "TCP",
                "num_streams": 1,
                "blksize": 131072,
                "omit": 0,
                "duration": len(rate),
                "bytes": 0,
                "blocks": 0,
                "reverse": 0,
                "tos": 0,
            },
        },
        "intervals": intervals,
        "end": {
            "streams": [{"sender": complete, "receiver": complete}],
            "sum_sent": complete,
            "sum_received": complete,
            "cpu_utilization_percent": {"host_total": 10.0, "remote_total": 11.0},
        },
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def table_of_means(path: Path, bursts: Sequence[Floats], period_s: int) -> str:
    """Write a table of the original test in UTC with one row per client and burst."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(TABLE)
        for index, burst in enumerate(bursts):
            started = f"{at(START_S + index * period_s):%m %d %Y %H %M %S}"
            for pair, rate in enumerate(burst):
                mean = round(float(rate.mean()))
                ends = (f"10.2.0.{pair + 1}", f"10.1.0.{pair + 1}")
                rows.writerow((ends[0], started, mean, mean, ends[1], len(rate)))
    return str(path)


def metric(
    path: Path,
    bursts: Sequence[Floats],
    period_s: int,
    *,
    factor: float,
    bin_s: float = 60.0,
    lag_s: float = 0.0,
) -> str:
    """Write the mean rate of a device per bin, which is `factor` times the payload in bit/s."""
    starts_s = [START_S + index * period_s for index in range(len(bursts))]
    edges_s = np.arange(START_S - 600, starts_s[-1] + period_s + 600, bin_s)
    seen = counted(starts_s, bursts, edges_s - lag_s) * 8 / bin_s * factor
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("timestamp", "throughput_bits_per_second"))
        rows.writerows(
            (f"{at(edge_s):%Y-%m-%dT%H:%M:%SZ}", round(value))
            for edge_s, value in zip(edges_s, seen, strict=False)
        )
    return str(path)


def printed(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON output of a command."""
    assert answer["output"], answer["errors"]
    document: dict[str, Any] = json.loads(answer["output"])
    return document
