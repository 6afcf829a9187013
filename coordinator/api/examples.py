"""Examples for the OpenAPI document, as valid requests and recorded responses.

``python -m tests.api_examples`` sends every request to a real application and stores the responses.
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
    ("PATCH", "/v1/runs/{run_id}"): {"labels": {"baseline": "accepted", "idps": None}},
    ("POST", "/v1/runs/{run_id}/abort"): {"reason": "seen enough"},
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
"""Request bodies by method and path."""

PARAMETERS: Final[Mapping[str, tuple[str, Any]]] = {
    "run_id": ("id of a run, from /v1/runs", _RUN),
    "study_id": ("id of a study, from /v1/studies", "20261120-120000-s-00aa"),
    "charts.name": ("name of a chart, from /charts of the run", "throughput"),
    "studies.name": ("name of a chart of the study", "sweep"),
    "schedules.name": ("name of a schedule, from /v1/schedules", "nightly"),
    "name": ("name of a scenario, from /v1/scenarios", "smoke"),
    "agent_id": ("id of an agent, from /v1/agents", "client-001"),
    "role": ("role of the agents", "client"),
    "kind": ("kind of the question", "sweep"),
    "schedules.state": ("state of the schedules", "active"),
    "sequence_number": ("number of a dead letter, from /v1/deadletters", 1),
    "burst": ("number of a burst, from 1", 1),
    "pair": ("name or number of a pair, such as pair-003 or 3", "1"),
    "side": ("end of the pair", "client"),
    "scenario": ("name of a scenario", "smoke"),
    "label": ("`name=value`", ["idps=on"]),
    "state": ("state of a run", "finished"),
    "verdict": ("verdict of a run", "inconclusive"),
    "by": ("name of the person who launched the run", "gunner"),
    "from_at": ("start of the time range", "2026-11-01T00:00:00Z"),
    "before_at": ("end of the time range, exclusive", "2026-12-01T00:00:00Z"),
    "group_by": ("name of the grouping", "week"),
    "timezone": ("IANA time zone", "Europe/Amsterdam"),
    "resolution_s": ("seconds per row", 10),
    "of": ("source of the seconds", "fleet"),
    "format": ("file format", "json"),
    "table": ("name of the table", "bursts"),
    "theme": ("colour theme of a drawing", "dark"),
    "width": ("width of a drawing in pixels", 920),
    "height": ("height of a drawing in pixels; default: depends on the chart", 320),
    "limit": ("maximum number of items", 100),
    "last-event-id": ("id of the last event that was received", "1"),
    "idempotency-key": ("unique name of this launch", "nightly-2026-11-20"),
}
"""Description and example of parameters that their routes do not describe.

The key is the parameter name, or its tag and name.
"""

FILE: Final = Path(__file__).with_name("answers.json")


def answers() -> Mapping[str, Mapping[str, Any]]:
    """Return the recorded response of every operation by media type."""
    recorded: Mapping[str, Mapping[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return recorded


# Title, detail and parameter name by status.
_PROBLEMS: Final[Mapping[int, tuple[str, str, str | None]]] = {
    400: ("Request rejected", "There was an error parsing the body", None),
    401: ("Not signed in", "Authorization: no token; send `Bearer <token>`", "Authorization"),
    403: ("Not allowed", "POST /v1/runs requires the role operator; you have viewer", None),
    404: ("Unknown run", f"run {_RUN}: no such run; list them at /v1/runs", "run_id"),
    406: ("Not acceptable", "Accept: 'image/png'; there is application/json, text/csv", "Accept"),
    409: ("Run not finished", f"run {_RUN} is not finished yet; read /v1/runs/{_RUN}", None),
    413: ("Too large", "the body is larger than 1000000 bytes", None),
    422: ("Invalid request", "query.limt: no such parameter; did you mean limit?", "limt"),
    429: ("Too many writes", "the limit is 60 writes a minute; retry in 12 s", None),
    503: ("Exchange unavailable", "the table does not respond", None),
}


def problem_of(status: int) -> Mapping[str, Any]:
    """Return an example of a problem document for a status."""
    title, detail, parameter = _PROBLEMS[status]
    kind = "/problems/" + title.lower().replace(" ", "-")
    document = {"type": kind, "title": title, "status": status, "detail": detail}
    field, _, message = detail.partition(": ")
    fault = {"field": field, "message": message, "parameter": parameter}
    return document if parameter is None else {**document, "errors": [fault]}
