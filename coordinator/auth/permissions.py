"""Access levels of all API routes.

A route that is not listed requires viewer access to read and operator access for other methods. A
test compares this table with the routes of the application.
"""

import re
from dataclasses import dataclass
from typing import Final

from broadside.coordinator.auth.principal import Access

OPEN, VIEWER, OPERATOR = Access.OPEN, Access.VIEWER, Access.OPERATOR

PERMISSIONS: Final[tuple[tuple[str, str, Access], ...]] = (
    ("GET", "/healthz", OPEN),
    ("GET", "/readyz", OPEN),
    # The page itself contains no token. It requests one from the user.
    ("GET", "/", OPEN),
    ("GET", "/report.html", OPEN),
    ("GET", "/problems", OPEN),
    ("GET", "/problems/", OPEN),
    # Explains error types, including the one for a missing token.
    ("GET", "/problems/{name}", OPEN),
    ("GET", "/web/{version}/{name}", OPEN),
    ("GET", "/docs", OPEN),
    ("GET", "/docs/", OPEN),
    ("GET", "/docs/{name}", OPEN),
    ("GET", "/docs/{folder}/{name}", OPEN),
    ("GET", "/v1/me", VIEWER),
    ("GET", "/v1/notices", VIEWER),
    ("GET", "/v1/runs/{run_id}/events", VIEWER),
    ("GET", "/metrics", VIEWER),
    ("GET", "/openapi.json", VIEWER),
    ("GET", "/v1/scenarios", VIEWER),
    ("GET", "/v1/scenarios/{name}", VIEWER),
    ("GET", "/v1/agents", VIEWER),
    ("GET", "/v1/agents/{agent_id}", VIEWER),
    ("GET", "/v1/runs", VIEWER),
    ("POST", "/v1/runs", OPERATOR),
    ("GET", "/v1/runs/{run_id}", VIEWER),
    ("PATCH", "/v1/runs/{run_id}", OPERATOR),
    ("POST", "/v1/runs/{run_id}/abort", OPERATOR),
    ("GET", "/v1/aggregate", VIEWER),
    ("GET", "/v1/runs/{run_id}/bursts", VIEWER),
    ("GET", "/v1/runs/{run_id}/bursts/{burst}", VIEWER),
    ("GET", "/v1/runs/{run_id}/pairs", VIEWER),
    ("GET", "/v1/runs/{run_id}/series", VIEWER),
    ("GET", "/v1/runs/{run_id}/verdict", VIEWER),
    ("GET", "/v1/runs/{run_id}/reconciliation", VIEWER),
    ("GET", "/v1/runs/{run_id}/progress", VIEWER),
    ("GET", "/v1/runs/{run_id}/summary", VIEWER),
    ("GET", "/v1/runs/{run_id}/trends", VIEWER),
    ("GET", "/v1/runs/{run_id}/recomputed", VIEWER),
    ("GET", "/v1/runs/{run_id}/raw/{pair}", VIEWER),
    ("GET", "/v1/runs/{run_id}/report", VIEWER),
    ("GET", "/v1/runs/{run_id}/export", VIEWER),
    ("GET", "/v1/runs/{run_id}/charts", VIEWER),
    ("GET", "/v1/runs/{run_id}/charts/{name}", VIEWER),
    # This will only read data. You need to use POST because the parameters do not fit into a URL.
    ("POST", "/v1/comparisons", VIEWER),
    # Reads only, as above.
    ("POST", "/v1/estimate", VIEWER),
    ("GET", "/v1/runs/{run_id}/price", VIEWER),
    ("POST", "/v1/schedules", OPERATOR),
    ("GET", "/v1/schedules", VIEWER),
    ("GET", "/v1/schedules/{name}", VIEWER),
    ("PUT", "/v1/schedules/{name}", OPERATOR),
    ("DELETE", "/v1/schedules/{name}", OPERATOR),
    ("POST", "/v1/schedules/{name}/pause", OPERATOR),
    ("POST", "/v1/schedules/{name}/resume", OPERATOR),
    ("POST", "/v1/prune", OPERATOR),
    ("POST", "/v1/imports/original", OPERATOR),
    ("POST", "/v1/imports/iperf3", OPERATOR),
    ("GET", "/v1/studies", VIEWER),
    ("POST", "/v1/studies", OPERATOR),
    ("GET", "/v1/studies/{study_id}", VIEWER),
    ("GET", "/v1/studies/{study_id}/report", VIEWER),
    ("GET", "/v1/studies/{study_id}/charts/{name}", VIEWER),
    ("POST", "/v1/studies/{study_id}/abort", OPERATOR),
    ("GET", "/v1/deadletters", VIEWER),
    ("DELETE", "/v1/deadletters", OPERATOR),
    ("GET", "/v1/deadletters/{sequence_number}", VIEWER),
    ("DELETE", "/v1/deadletters/{sequence_number}", OPERATOR),
    ("POST", "/v1/deadletters/{sequence_number}/resend", OPERATOR),
    ("GET", "/v1/audit", OPERATOR),
)

READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Required access for one request.

    Attributes:
        access: Access level that the request requires.
        route: Template of the route, or None if it is not listed.
        parameters: Values of the path parameters by name.
        writes: True if the request counts towards the write limit and is recorded in the audit log.
    """

    access: Access
    route: str | None
    parameters: dict[str, str]
    writes: bool


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    named = (
        f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )
    return re.compile("".join(named))


_PATTERNS: Final = tuple(
    (method, template, _pattern(template), access) for method, template, access in PERMISSIONS
)


def required_permission(method: str, path: str) -> Permission:
    """Return the required access for a request, from the first matching route.

    Args:
        method: HTTP method of the request.
        path: Path of the URL.
    """
    for listed, template, pattern, access in _PATTERNS:
        match = pattern.fullmatch(path) if listed == method else None
        if match:
            return Permission(
                access=access,
                route=template,
                parameters=match.groupdict(),
                writes=method not in READ_METHODS and access is OPERATOR,
            )
    reads = method in READ_METHODS
    access = VIEWER if reads else OPERATOR
    return Permission(access=access, route=None, parameters={}, writes=not reads)


def allowed_methods(path: str) -> tuple[str, ...]:
    """Return the methods of a path for the ``Allow`` header. GET includes HEAD."""
    listed = {method for method, _, pattern, _ in _PATTERNS if pattern.fullmatch(path)}
    return tuple(sorted(listed | ({"HEAD"} if "GET" in listed else set())))
