"""OpenAPI document from FastAPI, with sign-in and all errors added.

Properties that all routes share are added here: the security scheme, the role that a route requires
(:mod:`broadside.coordinator.auth.permissions`), and the status codes that the middleware and the
expected errors return.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from broadside.coordinator.api.conditional import ConditionalRoute
from broadside.coordinator.api.examples import PARAMETERS, REQUESTS, answers, problem_of
from broadside.coordinator.api.field_descriptions import as_sentence, describe_fields
from broadside.coordinator.api.tabular_responses import FILE_CONTENT, ROWS
from broadside.coordinator.auth.permissions import required_permission
from broadside.coordinator.auth.principal import Access
from broadside.coordinator.views.tables.formats import FILE, FORMATS, JSON

_ERRORS: Final[Mapping[int, str]] = {
    400: "The body does not match its Content-Type",
    401: "The token is missing or not valid",
    403: "The role of the token does not allow this",
    404: "The resource does not exist",
    406: "None of the types in `Accept` is available",
    409: "Not possible in the current state",
    413: "The body is too large",
    422: "A field is invalid; `errors` names each one",
    429: "Too many writes or concurrent requests; retry after `Retry-After` seconds",
    503: "Queue, table or sign-in do not respond at the moment",
}
_TAGS: Final = {
    "service": "Health, metrics and caller",
    "runs": "Launch, list, follow, stop, aggregate and compare runs",
    "results": "Results of a run: bursts, pairs, seconds, verdict and reconciliation",
    "reports": "A run as a report or as tables",
    "fleet": "Agents and scenarios",
    "schedules": "Launches at future times",
    "studies": "Series of runs that answer one question",
    "imports": "Runs from measurements of other tools",
    "dead letters": "Messages that agents rejected",
    "audit": "Log of changes: user, address and result",
    "charts": "Charts as data or as SVG drawings",
    "prices": "Cost of runs",
}
_DESCRIPTION: Final = """\
All routes except `/healthz` and `/readyz` require `Authorization: Bearer <token>`, unless sign-in
is off and the API listens on loopback. Viewers can read. Operators can also launch, abort and
change. Errors are RFC 9457 problem documents. The address in `type` explains the error. Times are
UTC, and rates are in bit/s (decimal). The name of each metric contains its unit. null means
unknown, never zero. Long lists have pages: pass the `Next-Cursor` of a page as `cursor` to get the
next page. Responses with rows are also available as `text/csv`,
`application/vnd.apache.arrow.stream` or `application/vnd.apache.parquet`, selected by `Accept`.
`x-rows` is the location of the rows, and `.` means that the response is one row. The columns and
types are the same for every response, also without rows.
"""

_HEADERS: Final[Mapping[str, Any]] = {
    "X-Request-Id": {
        "description": "Id of the request, also in the log. A valid id of the client is used.",
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Number of seconds after which to send the request again",
        "schema": {"type": "integer"},
    },
    "Location": {
        "description": "Address of the new resource",
        "schema": {"type": "string"},
    },
}

router = APIRouter(include_in_schema=False, route_class=ConditionalRoute)


@router.get("/openapi.json")
async def read_document(request: Request) -> JSONResponse:
    """Return the OpenAPI document."""
    return JSONResponse(request.app.openapi())


def describe(app: FastAPI) -> None:
    """Make ``app`` return this document, which is built once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    # This is the documented way to replace FastAPI's document.
    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=_DESCRIPTION,
        routes=app.routes,
        license_info=app.license_info,
    )
    parts = document.setdefault("components", {})
    parts["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "token from `broadside token add`, or an Entra ID access token",
        }
    }
    parts["headers"] = _HEADERS
    needs_token = getattr(app.state, "needs_token", True)
    # If sign-in is off, we do not need to read tokens, so this will be an empty list.
    document["security"] = [{"bearer": []}] if needs_token else []
    document["tags"] = [{"name": name, "description": text} for name, text in _TAGS.items()]
    recorded = answers()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _set_title(operation)
            _complete(method.upper(), path, operation)
            _show_examples(method.upper(), path, operation, recorded)
            _add_headers(operation)
    _drop_titles(document["paths"])
    _drop_titles(parts["schemas"])
    describe_fields(parts["schemas"])
    return document


def _set_title(operation: dict[str, Any]) -> None:
    """Use the first sentence of the description as the title of an operation."""
    title, _, rest = operation["description"].partition(".")
    operation["summary"] = title.replace("\n", " ").strip()
    if not rest.strip():
        del operation["description"]


def _show_examples(
    method: str, path: str, operation: dict[str, Any], recorded: Mapping[str, Any]
) -> None:
    """Add the request, parameter and response examples to an operation."""
    if (request := REQUESTS.get((method, path))) is not None:
        operation["requestBody"]["content"]["application/json"]["example"] = request
    for parameter in operation.get("parameters", []):
        name = parameter["name"]
        known = PARAMETERS.get(f"{operation['tags'][0]}.{name}") or PARAMETERS.get(name)
        # There is no example for a cursor, because you will get it from the previous page.
        if known is not None:
            parameter.setdefault("description", known[0])
            parameter["example"] = known[1]
        parameter["description"] = as_sentence(parameter["description"])
    for status, described in operation["responses"].items():
        if status.startswith("2"):
            for media_type, example in recorded.get(f"{method} {path}", {}).items():
                described["content"][media_type]["example"] = example


def _drop_titles(node: Any) -> None:
    """Remove the titles that are made from names, for example "Run Id"."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str) and "properties" not in node:
            del node["title"]
        for name, part in node.items():
            if name not in ("example", "default"):
                _drop_titles(part)
    elif isinstance(node, list):
        for part in node:
            _drop_titles(part)


def _add_headers(operation: dict[str, Any]) -> None:
    """Add the headers that middleware and error handlers send."""
    for status, answer in operation["responses"].items():
        headers = answer.setdefault("headers", {})
        headers["X-Request-Id"] = {"$ref": "#/components/headers/X-Request-Id"}
        if status in ("429", "503"):
            headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}
        if status == "401":
            headers["WWW-Authenticate"] = {"schema": {"type": "string"}}
        if operation["operationId"].startswith(("create_", "import_")) and status in ("201", "202"):
            headers["Location"] = {"$ref": "#/components/headers/Location"}


def _offer_rows(operation: dict[str, Any]) -> None:
    """Add the table formats of a list to its JSON format."""
    content = operation["responses"].get("200", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    if ROWS not in operation and schema.get("type") != "array":
        return
    for media_type in FORMATS:
        content.setdefault(media_type, copy.deepcopy(FILE_CONTENT))


def _default_first(answer: dict[str, Any]) -> None:
    """Put the media type for requests without ``Accept`` first.

    A generated client sends no ``Accept`` and parses every response as the first type. A route with
    several defaults is described as a file first, so that such a client reads the bytes.
    """
    content = answer.get("content", {})
    for media_type in (JSON, "text/html", FILE):
        if media_type in content:
            answer["content"] = content = {media_type: content[media_type], **content}


def _error_response(status: int) -> dict[str, Any]:
    content = {
        "schema": {"$ref": "#/components/schemas/ProblemDocument"},
        "example": problem_of(status),
    }
    return {
        "description": _ERRORS[status],
        "content": {"application/problem+json": content},
    }


def _complete(method: str, path: str, operation: dict[str, Any]) -> None:
    """Add the required role and all possible responses to an operation."""
    permission = required_permission(method, path)
    answers = operation.setdefault("responses", {})
    for answer in answers.values():
        for content in answer.get("content", {}).values():
            # ``itemSchema`` is defined in OpenAPI 3.2 only.
            if content.pop("itemSchema", None) is not None:
                content["schema"] = {"description": "server-sent events"}
    if permission.access is Access.OPEN:
        operation["security"] = []
        answers |= {status: _error_response(int(status)) for status in answers if status >= "4"}
        return
    operation["x-access"] = permission.access.value
    body = "requestBody" in operation
    expected = {401, 403, 404, 409, 422, 429, 503}
    expected |= {400, 413} if body else set()
    _offer_rows(operation)
    for answer in answers.values():
        _default_first(answer)
    expected |= {406} if "content" in next(iter(answers.values())) else set()
    for status in sorted(expected):
        answers[str(status)] = _error_response(status)
    operation["responses"] = dict(sorted(answers.items()))
