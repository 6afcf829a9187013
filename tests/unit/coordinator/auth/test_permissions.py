"""The table of rights: first row that fits, and the safe side where none does."""

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
def test_what_a_request_needs(
    method: str, path: str, access: Access, route: str | None, writes: bool
) -> None:
    right = required_permission(method, path)
    assert (right.access, right.route, right.writes) == (access, route, writes)


def test_a_path_s_parameters_are_read() -> None:
    assert required_permission("GET", "/v1/runs/abc/raw/pair-001").parameters == {
        "run_id": "abc",
        "pair": "pair-001",
    }


def test_no_write_is_open_and_no_row_is_there_twice() -> None:
    assert {method for method, _, access in PERMISSIONS if access is Access.OPEN} == {"GET"}
    assert len({(method, path) for method, path, _ in PERMISSIONS}) == len(PERMISSIONS)


def test_roles_stand_above_one_another() -> None:
    viewer = Principal(name="v", access=Access.VIEWER, key="v")
    assert viewer.may(Access.OPEN)
    assert viewer.may(Access.VIEWER)
    assert not viewer.may(Access.OPERATOR)
    assert viewer.named("somebody else") == "v"
    assert ANYBODY.named("somebody else") == "somebody else"
