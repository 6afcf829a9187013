"""Import of measurements from other tools as runs.

``uploaded_files`` and ``time_text`` parse files and times with size limits. ``table_reader`` reads
a CSV table with a column profile. ``result_tables`` and ``metric_csv`` use it for results and for a
firewall's metric. ``iperf3_files`` reads iperf3's JSON. ``table_runs`` and ``iperf3_runs`` convert
these values to a plan and a summary, using the same core as other runs. A file is parsed and
checked completely before anything is sent. A run becomes visible only when it is stored completely.

``BadFile`` is raised for files that cannot be imported. Its message is one line with the location,
the value and the fix.
"""

from typing import Literal

# Fields of a table row, to which a profile assigns columns.
RowField = Literal[
    "client",
    "started_at",
    "stored_at",
    "server",
    "protocol",
    "duration_s",
    "sent_bits_per_second",
    "received_bits_per_second",
    "rtt_mean_s",
    "rtt_min_s",
    "rtt_max_s",
    "requests_per_second",
    "success_ratio",
    "latency_total_s",
    "latency_mean_s",
    "metric",
]


class BadFile(Exception):
    """A file cannot be imported; the message is one line for a person."""
