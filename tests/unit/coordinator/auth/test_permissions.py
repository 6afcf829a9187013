"""Tests for the permissions required to call the API."""

import pytest

from broadside.coordinator.auth.permissions import PERMISSIONS, required_permission
from broadside.coordinator.auth.principal import ANYBODY, Access, Principal


@pytest.mark.parametrize(
    ("method", "path", "access", "route", "writes"),
    [
        ("GET", "/healthz", Access.OPEN, "/healthz", False),
        ("GET", "/v1/runs/abc", Access.VIEWER, "/v1/runs/{run_id}", False),
        ("POST", "/v1/runs/abc/abort", Access.OPERATOR, "/v1/runs/{run_id}/abort", True),
        ("POST", "/v1/comparisons", Access.VIEWER, "/v1/comparisons", False),
        ("GET", "/v1/audit", Access.OPERATOR, "/v1/audit", False),
        ("GET", "/v1/nowhere", Access.VIEWER, None, False),
        ("PUT", "/v1/runs", Access.OPERATOR, None, True),
        ("GET", "/healthz/x", Access.VIEWER, None, False),
        ("POST", "/healthz", Access.OPERATOR, None, True),
        ("GET", "/v1/runs/a\nb", Access.VIEWER, "/v1/runs/{run_id}", False),
    ],
)
def test_permission_of_a_request(
    method: str, path: str, access: Access, route: str | None, writes: bool
) -> None:
    permission = required_permission(method, path)
    assert (permission.access, permission.route, permission.writes) == (access, route, writes)


def test_path_parameters_are_parsed() -> None:
    assert required_permission("GET", "/v1/runs/abc/raw/pair-001").parameters == {
        "run_id": "abc",
        "pair": "pair-001",
    }


def test_open_operations_only_read_and_rows_are_unique() -> None:
    assert {method for method, _, access in PERMISSIONS if access is Access.OPEN} == {"GET"}
    assert len({(method, path) for method, path, _ in PERMISSIONS}) == len(PERMISSIONS)


def test_roles_are_ordered() -> None:
    viewer = Principal(name="v", access=Access.VIEWER, key="v")
    assert viewer.may(Access.OPEN)
    assert viewer.may(Access.VIEWER)
    assert not viewer.may(Access.OPERATOR)
    assert viewer.named("somebody else") == "v"
    assert ANYBODY.named("somebody else") == "somebody else"
