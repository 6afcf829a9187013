"""OpenAPI document from FastAPI, with sign-in and all errors added.

Properties that all routes share are added here: the security scheme, the role that a route requires
(:mod:`broadside.coordinator.auth.rights`), and the status codes that the middleware and the
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
from broadside.coordinator.api.row_answers import FILE_CONTENT, ROWS
from broadside.coordinator.auth.principal import Access
from broadside.coordinator.auth.rights import right_of
from broadside.coordinator.views.series_formats import FILE, FORMATS, JSON

_REFUSALS: Final[Mapping[int, str]] = {
    400: "The body is not what its Content-Type says",
    401: "No token, or one that is not accepted",
    403: "Signed in, but not allowed",
    404: "There is none",
    406: "Nothing that `Accept` names can be made",
    409: "Not in this state",
    413: "The body is too large",
    422: "A field is wrong; `errors` names each",
    429: "Too many writes, or requests at once; `Retry-After` says how long to wait",
    503: "Queue, table or sign-in do not answer just now",
}
_TAGS: Final = {
    "service": "Whether the coordinator is well, and its figures for Prometheus",
    "runs": "Launch, list, follow, stop, sum and compare runs",
    "results": "What a run showed: bursts, pairs, seconds, verdict, the two ledgers",
    "reports": "A run as a document, a table or a chart",
    "fleet": "Agents and scenarios",
    "schedules": "Launches at instants to come",
    "studies": "Series of runs that answer one question",
    "imports": "Runs of what other tools measured",
    "dead letters": "Messages that agents set aside",
    "audit": "What was changed: who, from where, how it ended",
    "charts": "Charts as figures that plotly draws",
    "prices": "What runs cost",
}
_DESCRIPTION: Final = """\
Every route but `/healthz` and `/readyz` needs `Authorization: Bearer <token>`, unless sign-in is
off and the API listens on loopback. Viewers read; operators also launch, abort and change.
Errors are RFC 9457 problem documents whose `type` is an address that explains them. Instants are
UTC, rates are decimal bits a second, and every figure's name carries its unit; null is unknown,
never zero. Long lists are paged: give the `Next-Cursor` of one page as `cursor` of the next.
What has rows (`x-rows` says where, `.` is one row) also comes as `text/csv`,
`application/vnd.apache.arrow.stream` or `application/vnd.apache.parquet`, whichever `Accept` asks
for: the same columns of the same types whatever there is, also nothing.
"""


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
    )
    parts = document.setdefault("components", {})
    parts["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "a token of `broadside token add`, or an Entra ID access token",
        }
    }
    needs_token = getattr(app.state, "needs_token", True)
    # An empty list if sign-in is off, because tokens are not read then.
    document["security"] = [{"bearer": []}] if needs_token else []
    document["tags"] = [{"name": name, "description": what} for name, what in _TAGS.items()]
    shown = answers()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(method.upper(), path, operation)
            _show_examples(method.upper(), path, operation, shown)
    return document


def _show_examples(
    method: str, path: str, operation: dict[str, Any], shown: Mapping[str, Any]
) -> None:
    """Add the request, parameter and response examples to an operation."""
    if (request := REQUESTS.get((method, path))) is not None:
        operation["requestBody"]["content"]["application/json"]["example"] = request
    for parameter in operation.get("parameters", []):
        name = parameter["name"]
        known = PARAMETERS.get(f"{operation['tags'][0]}.{name}") or PARAMETERS.get(name)
        # A cursor has no example, because it comes from the previous page.
        if known is not None:
            parameter.setdefault("description", known[0])
            parameter["example"] = known[1]
    for status, described in operation["responses"].items():
        if status.startswith("2"):
            for media_type, example in shown.get(f"{method} {path}", {}).items():
                described["content"][media_type]["example"] = example


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


def _refusal(status: int) -> dict[str, Any]:
    content = {
        "schema": {"$ref": "#/components/schemas/ProblemDocument"},
        "example": problem_of(status),
    }
    return {
        "description": _REFUSALS[status],
        "content": {"application/problem+json": content},
    }


def _complete(method: str, path: str, operation: dict[str, Any]) -> None:
    """Add the required role and all possible responses to an operation."""
    right = right_of(method, path)
    answers = operation.setdefault("responses", {})
    for answer in answers.values():
        for content in answer.get("content", {}).values():
            # ``itemSchema`` is defined in OpenAPI 3.2 only.
            if content.pop("itemSchema", None) is not None:
                content["schema"] = {"description": "server-sent events"}
    if right.access is Access.OPEN:
        operation["security"] = []
        answers |= {status: _refusal(int(status)) for status in answers if status >= "4"}
        return
    operation["x-access"] = right.access.value
    body = "requestBody" in operation
    expected = {401, 403, 404, 409, 422, 429, 503}
    expected |= {400, 413} if body else set()
    _offer_rows(operation)
    for answer in answers.values():
        _default_first(answer)
    expected |= {406} if "content" in next(iter(answers.values())) else set()
    for status in sorted(expected):
        answers[str(status)] = _refusal(status)
    answers["401"]["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    answers["429"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    operation["responses"] = dict(sorted(answers.items()))
