"""Test that all operations can be used with a client generated from the OpenAPI document.

The client is generated using openapi-python-client. A call must return a documented status and a
parsed value.
"""

import json
import re
from datetime import datetime
from typing import Any

import pytest

from tests.shipped.conftest import AddRow
from tests.shipped.served_operations import (
    FILE,
    STORED,
    Operation,
    ServedClient,
    in_order,
    places_of,
)
from tests.unit.coordinator.studies.samples import SWEPT

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def problem_of(served: ServedClient, operation: Operation, answer: Any) -> str | None:
    """Return why a response is not a documented success, or None if it is."""
    status = str(int(answer.status_code))
    described = operation.described["responses"].get(status)
    if described is None or not status.startswith("2"):
        return f"{status}, documented are {list(operation.described['responses'])}"
    if answer.parsed is None or isinstance(answer.parsed, served.models.ProblemDocument):
        return f"{status} was parsed as {answer.parsed!r}"
    media_type = answer.headers["Content-Type"].partition(";")[0]
    if media_type not in operation.media_types:
        return f"{media_type} is not in {operation.media_types}"
    if operation.media_types[0] == FILE:
        if answer.parsed.payload.read() != answer.content:
            return "the file is not the answer's bytes"
    elif media_type != operation.media_types[0]:
        return f"{media_type} came without Accept, {operation.media_types[0]} stands first"
    elif media_type == "application/json":
        sent, parsed = json.loads(answer.content), as_json(answer.parsed)
        if _instants(sent) != _instants(parsed):
            return f"{str(sent)[:500]} was parsed as {str(parsed)[:500]}"
    elif answer.parsed != answer.content.decode():
        return "the text is not the answer's"
    return None


def as_json(parsed: Any) -> Any:
    """Return a model or a list of models as the client would send it."""
    return [item.to_dict() for item in parsed] if isinstance(parsed, list) else parsed.to_dict()


def _instants(value: Any) -> Any:
    """Return the value with parsed times, because the models will use a numeric offset."""
    if isinstance(value, dict):
        return {name: _instants(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_instants(item) for item in value]
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT", value):
        return datetime.fromisoformat(value)
    return value


def test_client_calls_and_parses_every_operation(served: ServedClient, shipped_row: AddRow) -> None:
    failures: dict[str, str] = {}
    called = set()
    for operation in in_order(served.operations):
        places = places_of(served, operation)
        called.add(operation.name)
        try:
            answer = served.call(operation.name, **places, **served.body(operation))
        except Exception as error:
            failures[operation.name] = f"{type(error).__name__}: {error}"
            continue
        if (wrong := problem_of(served, operation, answer)) is not None:
            failures[operation.name] = wrong
    assert failures == {}
    assert called == {operation.name for operation in served.operations}
    shipped_row("generated client", "this machine", f"{len(called)} operations called and parsed")


def test_every_response_format_is_as_documented(served: ServedClient) -> None:
    http = served.client.get_httpx_client()
    wrong = {}
    for operation in served.operations:
        if operation.method != "GET" or "deadletters" in operation.path:
            # Nothing is left to read there.
            continue
        place = served.place(operation)
        if operation.name == "read_run_reconciliation":
            place = {"run_id": STORED}
        for media_type in operation.media_types:
            path = operation.path.format(**place)
            if (operation.name, media_type) == ("read_run_raw_output", "application/json"):
                path = operation.path.format(run_id=STORED, pair="1")
            answer = http.get(path, headers={"Accept": media_type})
            sent = answer.headers["Content-Type"].partition(";")[0]
            if (answer.status_code, sent) != (200, media_type):
                wrong[operation.name, media_type] = (answer.status_code, sent, answer.text[:300])
    assert wrong == {}


def test_client_parses_every_response_format(served: ServedClient) -> None:
    """Test that the client parses each ``format`` and each engine's output."""
    run_id = served.names["run_id"]
    for form in served.models.Format:
        answer = served.call("read_run_export", run_id=run_id, format_=form)
        assert answer.parsed.payload.read() == answer.content != b"", form
    for form in served.models.ReportFormat:
        for name, place in (
            ("read_run_report", {"run_id": run_id}),
            ("read_study_report", {"study_id": SWEPT.study_id}),
        ):
            answer = served.call(name, **place, format_=form)
            assert answer.parsed == answer.content.decode() != "", (name, form)
    for raw_of, media_type in ((STORED, "application/json"), (run_id, "application/x-ndjson")):
        raw = served.call("read_run_raw_output", run_id=raw_of, pair="1")
        assert raw.headers["Content-Type"] == media_type
        assert raw.parsed.payload.read() == raw.content != b""


def test_client_parses_every_error_as_problem(served: ServedClient) -> None:
    unknown: dict[str, Any] = {"run_id": "none", "study_id": "none", "name": "none", "pair": "1"}
    unknown |= {"burst": 1, "sequence_number": 999999, "agent_id": "none"}
    for operation in served.operations:
        place = {name: unknown[name] for name in re.findall("{([a-z_]+)}", operation.path)}
        body = served.body(operation)
        if operation.described.get("security") != []:
            refused = served.call(operation.name, served.stranger, **place, **body)
            assert isinstance(refused.parsed, served.models.ProblemDocument), operation.name
            assert refused.status_code == refused.parsed.status == 401, operation.name
        if place:
            missing = served.call(operation.name, **place, **body)
            assert isinstance(missing.parsed, served.models.ProblemDocument), operation.name
            assert missing.status_code == missing.parsed.status, operation.name
            assert str(int(missing.status_code)) in operation.described["responses"]
