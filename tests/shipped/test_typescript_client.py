"""Test that a strict TypeScript client can call all operations, and that its types are true."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.shipped.conftest import AddRow
from tests.shipped.served_operations import ServedClient, in_order, places_of
from tests.shipped.typescript_client import JSON, PACKAGES, TypescriptClient

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


def test_strict_client_calls_every_operation(
    served: ServedClient, tmp_path: Path, shipped_row: AddRow
) -> None:
    assert PACKAGES.is_dir(), "run `sh deploy/npm.sh typescript-client`"
    headers = {"Authorization": f"Bearer {served.token}"}
    document = httpx.get(f"{served.url}/openapi.json", headers=headers, timeout=60).text
    (tmp_path / "openapi.json").write_text(document)
    failures: dict[str, Any] = {}
    literals: dict[str, tuple[str, Any]] = {}
    with TypescriptClient(tmp_path, served.operations) as client:
        assert client.generate(served.url, served.token) == ""
        for operation in in_order(served.operations):
            key = json.dumps(operation.name)
            places = places_of(served, operation)
            body = served.content(operation)
            answer = client.call(operation.name, places, body)
            if answer.get("problem", True) is not None or answer["status"] not in (200, 201, 202):
                failures[operation.name] = answer
                continue
            if operation.media_types[0] == JSON:
                literals[f"answer_{operation.name}"] = (f"Answer<{key}>", answer["data"])
            else:
                assert answer["data"], operation.name
            if body is not None:
                literals[f"body_{operation.name}"] = (f"Body<{key}>", body)
        assert failures == {}
        assert client.check_literals(literals) == ""
        # The types detect a wrong answer.
        wrong = {"answer": ('Answer<"read_me">', {"name": 1, "unknown": True})}
        assert "TS2" in client.check_literals(wrong)
    assert len(literals) > len(served.operations) / 2
    shipped_row("TypeScript client", "this machine", f"{len(served.operations)} operations")
