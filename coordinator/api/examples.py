"""Examples in the OpenAPI document: requests that work as they stand, and what comes back.

``python -m tests.answers`` sends every request, and keeps what a real application answered.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_RUN: Final = "20261120-115930-smoke-7f3a"
REQUESTS: Final[Mapping[tuple[str, str], Any]] = {
    ("POST", "/v1/runs"): {
        "scenario": "smoke",
        "overrides": {"pairs_count": 2, "labels": {"idps": "on"}},
    },
    ("POST", "/v1/runs/{run_id}/abort"): {"reason": "seen enough"},
    ("DELETE", "/v1/runs/{run_id}"): {"reason": "seen enough"},
    ("POST", "/v1/estimate"): {"scenario": "burst-30s"},
    ("POST", "/v1/schedules"): {
        "name": "nightly",
        "scenario": "smoke",
        "cron": "0 2 * * *",
        "timezone": "Europe/Amsterdam",
    },
    ("PUT", "/v1/schedules/{name}"): {
        "name": "nightly",
        "scenario": "smoke",
        "cron": "0 3 * * *",
        "timezone": "Europe/Amsterdam",
    },
    ("POST", "/v1/studies"): {
        "scenario": "smoke",
        "question": {
            "kind": "sweep",
            "axes": [{"field": "traffic.streams_count", "values": [1, 8, 64]}],
        },
    },
    ("POST", "/v1/studies/{study_id}/abort"): {"reason": "seen enough"},
    ("DELETE", "/v1/studies/{study_id}"): {"reason": "seen enough"},
    ("POST", "/v1/comparisons"): {"a": {"run_ids": [_RUN]}, "b": {"run_ids": [_RUN]}},
    ("POST", "/v1/prune"): {"older_than_days": 90},
    ("POST", "/v1/imports/original"): {
        "source": "stats.csv",
        "rows": [
            {
                "row_number": 2,
                "client": "client-1",
                "started_at": "2022-01-13T10:49:00Z",
                "duration_s": 30.0,
                "sent_bits_per_second": 6_000_000_000.0,
                "received_bits_per_second": 5_990_000_000.0,
            }
        ],
    },
    ("POST", "/v1/imports/iperf3"): {
        "recordings": [
            {
                "file": "results/one.json",
                "state": "refused",
                "reason": "unable to connect to server: Connection refused",
                "started_at": "2026-11-20T12:00:00Z",
            }
        ]
    },
}
"""Bodies by method and path."""

FILE: Final = Path(__file__).with_name("answers.json")


def answers() -> Mapping[str, Mapping[str, Any]]:
    """An answer to every operation by media type, as a real application gave it."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


PROBLEM: Final = {
    "type": "/problems/unknown-run",
    "title": "Unknown run",
    "status": 404,
    "detail": f"run {_RUN}: no such run; list them at /v1/runs",
}
