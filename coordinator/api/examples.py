"""Examples in the OpenAPI document: requests that work as they stand, and what comes back.

A test sends every request, and holds every answer to its own model.
"""

from collections.abc import Mapping
from typing import Any, Final

_RUN: Final = "20261120-115930-smoke-7f3a"
_BURST: Final = {
    "index": 0,
    "planned_start_at": "2026-11-20T12:00:00Z",
    "planned_end_at": "2026-11-20T12:00:10Z",
    "phase": "running",
    "pairs_planned": 2,
    "claimed_count": 2,
    "armed_count": 2,
    "reported_count": 0,
    "outcomes": {},
}
_STATUS: Final = {
    "run_id": _RUN,
    "scenario": "smoke",
    "state": "running",
    "created_at": "2026-11-20T11:59:30Z",
    "ends_at": "2026-11-20T12:00:35Z",
    "bursts": [_BURST],
    "cancelled_by": None,
    "cancel_reason": None,
    "warnings": [],
}
_ABORTED: Final = _STATUS | {
    "state": "cancelled",
    "cancelled_by": "gunner",
    "cancel_reason": "seen enough",
}
_HEADER: Final = {
    "run_id": _RUN,
    "scenario": "smoke",
    "created_at": "2026-11-20T11:59:30Z",
    "created_by": "gunner",
    "labels": {"idps": "on"},
    "outcome": {
        "cancelled": False,
        "verdict": "pass",
        "ended_at": "2026-11-20T12:00:14Z",
        "completeness_ratio": 1.0,
        "fleet_received_bits_per_second": 79_800_000.0,
        "firewall_bits_per_second": 82_700_000.0,
        "scale": 1.0,
        "limiter": "offered-load",
    },
}
_SPREAD: Final = (("mean", 79.6), ("median", 79.6), ("min", 79.4), ("max", 79.8))
_AT: Final = ["2026-11-20T12:00:00Z", "2026-11-20T12:00:01Z", "2026-11-20T12:00:02Z"]

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

ANSWERS: Final[Mapping[tuple[str, str], Any]] = {
    ("POST", "/v1/runs"): _STATUS,
    ("GET", "/v1/runs"): [_HEADER],
    ("GET", "/v1/runs/{run_id}"): _STATUS,
    ("POST", "/v1/runs/{run_id}/abort"): _ABORTED,
    ("DELETE", "/v1/runs/{run_id}"): _ABORTED,
    ("GET", "/v1/runs/{run_id}/verdict"): {
        "run_id": _RUN,
        "verdict": "pass",
        "computed_at": "2026-11-20T12:00:14Z",
        "scale": 1.0,
        "target_bits_per_second": 80_000_000.0,
        "target_layer": "ip",
        "fleet_received_bits_per_second": 79_800_000.0,
        "fleet_ip_bits_per_second": 82_660_000.0,
        "firewall_bits_per_second": 82_700_000.0,
        "completeness_ratio": 1.0,
        "limiter": "offered-load",
        "bursts": {"pass": 1, "fail": 0, "inconclusive": 0, "measured": 0},
        "findings": [
            {
                "id": "target-reached",
                "kind": "verdict",
                "severity": "note",
                "weight": 50.0,
                "sentence": "the fleet received 82.66 Mbit/s at the ip layer over 10 s",
                "next_step": None,
            }
        ],
    },
    ("GET", "/v1/runs/{run_id}/bursts"): [{"status": _BURST, "summary": None}],
    ("GET", "/v1/runs/{run_id}/series"): {
        "run_id": _RUN,
        "burst_index": 0,
        "planned_start_at": "2026-11-20T12:00:00Z",
        "resolution_s": 1,
        "of": "pair",
        "window_from_at": "2026-11-20T12:00:00Z",
        "window_before_at": "2026-11-20T12:00:10Z",
        "columns": [
            {"name": "at", "unit": "UTC", "layer": None, "values": _AT},
            {"name": "flow", "unit": "name", "layer": None, "values": ["up"] * 3},
            {"name": "pair", "unit": "name", "layer": None, "values": ["pair-001"] * 3},
            {
                "name": "received_payload_bits_per_second",
                "unit": "bit/s",
                "layer": "payload",
                "values": [39_900_000.0, None, 40_000_000.0],
            },
        ],
    },
    ("GET", "/v1/aggregate"): {
        "group_by": "label:idps",
        "timezone": "UTC",
        "runs_count": 2,
        "truncated": False,
        "groups": [
            {
                "group": "on",
                "runs_count": 2,
                "bursts_count": 4,
                "open_count": 0,
                "cancelled_count": 0,
                "verdicts": {"pass": 2},
                "received": {
                    "runs_count": 2,
                    **{f"{name}_bits_per_second": value * 1e6 for name, value in _SPREAD},
                },
                "completeness": {
                    "runs_count": 2,
                    **{f"{name}_ratio": 1.0 for name, _ in _SPREAD},
                },
                "worst_residual_ratio": -0.004,
                "cost": {"runs_count": 2, "charged_usd": 84.5, "uncharged_usd": 0.0},
                "first_at": "2026-11-20T11:59:30Z",
                "last_at": "2026-11-20T13:59:30Z",
            }
        ],
    },
    ("GET", "/v1/audit"): [
        {
            "at": "2026-11-20T11:59:30Z",
            "by": "gunner",
            "role": "operator",
            "from_address": "10.0.0.7",
            "method": "POST",
            "path": "/v1/runs",
            "route": "/v1/runs",
            "run_id": _RUN,
            "status": 202,
        }
    ],
    ("GET", "/v1/me"): {"name": "gunner", "role": "operator", "signed_in": True},
    ("GET", "/readyz"): {"status": "ready", "ticked_at": "2026-11-20T12:00:00Z"},
    ("GET", "/healthz"): {"status": "ok"},
}
"""Values of a success by method and path."""

PROBLEM: Final = {
    "type": "/problems/unknown-run",
    "title": "Unknown run",
    "status": 404,
    "detail": f"run {_RUN}: no such run; list them at /v1/runs",
}
