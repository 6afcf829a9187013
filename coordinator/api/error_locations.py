"""Location of a validation error in a request, as a JSON pointer or a parameter name.

Errors name fields as in the command line (``device.sku``, ``burst``, ``Accept``). A pointer (RFC
6901) points to the value in the body, or to the place where a value is missing. If a value comes
from the scenario, the pointer points to the scenario name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from broadside.coordinator import scenarios
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.strict_json import walk

NO_BODY: Final = object()
# Headers that are rejected by Broadside itself and not by FastAPI.
_HEADERS: Final = ("Accept", "Idempotency-Key")


@dataclass(frozen=True, slots=True)
class _Takes:
    """Input that a route accepts.

    Attributes:
        parameters: Query parameters by name. The value is True if it can be repeated.
        members: Names of the members of the JSON body.
    """

    parameters: Mapping[str, bool]
    members: Sequence[str]


_NOTHING: Final = _Takes({}, ())
# We use the endpoint as the key, because routes are not hashable.
_taken: Final[dict[Callable[..., Any], _Takes]] = {}


def query_parameters(route: object) -> Mapping[str, bool]:
    """Return whether each query parameter of a route can be repeated, by name."""
    return _takes(route).parameters


def _members(route: object) -> Iterable[str]:
    """Return the names of the members of a route's JSON body."""
    return _takes(route).members


def _takes(route: object) -> _Takes:
    """Read the accepted input from the OpenAPI description for a route, and cache it.

    It is created without response schemas, because they take 20 times as long.
    """
    if not isinstance(route, APIRoute) or not route.include_in_schema:
        return _NOTHING
    if (known := _taken.get(route.endpoint)) is not None:
        return known
    bare = APIRoute(
        route.path,
        route.endpoint,
        methods=route.methods,
        dependencies=route.dependencies,
        response_model=None,
    )
    document = get_openapi(title="one route", version="1", routes=[bare])
    parameters, members = dict[str, bool](), list[str]()
    for methods in document["paths"].values():
        for operation in methods.values():
            for field in operation.get("parameters", ()):
                if field["in"] == "query":
                    schema = field["schema"]
                    kinds = [one.get("type") for one in (schema, *schema.get("anyOf", ()))]
                    parameters[field["name"]] = "array" in kinds
            for media in operation.get("requestBody", {}).get("content", {}).values():
                schema = media["schema"]
                if (name := schema.get("$ref", "").rpartition("/")[2]) != "":
                    schema = document["components"]["schemas"][name]
                members += schema.get("properties", ())
    takes = _Takes(dict(sorted(parameters.items())), members)
    _taken[route.endpoint] = takes
    return takes


def error_location(
    fault: Mapping[str, Any], request: Request, body: object
) -> Mapping[str, str] | None:
    """Locate an error in a request.

    Args:
        fault: The error, with ``field``, ``message`` and optionally ``value``.
        request: The request.
        body: The parsed body, or ``NO_BODY``.

    Returns:
        ``{"pointer": ...}`` or ``{"parameter": ...}``. None if the error is not about sent data.
    """
    field, value = str(fault["field"]), fault.get("value")
    if field in _HEADERS:
        return {"parameter": field}
    route = request.scope.get("route")
    for name in query_parameters(route):
        if field in _aliases(name):
            return {"parameter": name}
    if value is not None and body is not NO_BODY:
        for named, _, member in walk(body):
            if member == value and any(str(part).startswith(field) for part in named):
                return {"pointer": _pointer(named)}
    if value is not None or body is NO_BODY:
        return _place_in_path(field, value, request)
    path = _find_field(body, field, _members(route))
    return {"pointer": _pointer(_deeper(body, path, str(fault["message"])))}


def _place_in_path(field: str, value: object, request: Request) -> Mapping[str, str] | None:
    """Return the path parameter that has this value or name, such as *chart* in /charts/{name}."""
    route = request.scope.get("route")
    for name, sent in request.path_params.items():
        follows = isinstance(route, APIRoute) and f"/{field}s/{{{name}}}" in route.path
        if value == str(sent) or field in _aliases(name) or follows:
            return {"parameter": name}
    return None


def json_pointer(error: Mapping[str, Any], body: object) -> str:
    """Return the JSON pointer of a pydantic error.

    Args:
        error: One error of ``ValidationError.errors()``. Its ``loc`` begins with ``body``.
        body: The parsed body.
    """
    path = _along(error["loc"][1:], body, missing=error["type"] == "missing")
    return _pointer(_deeper(body, path, error["msg"].removeprefix("Value error, ")))


def _along(location: Sequence[str | int], body: object, *, missing: bool) -> list[str | int]:
    """Return the path of a pydantic error without union tags, which are not in the request."""
    path: list[str | int] = []
    for part in location:
        try:
            body = body[part]  # type: ignore[index]
        except (LookupError, TypeError):
            continue
        path.append(part)
    if missing and location and path[-1:] != [location[-1]]:
        path.append(location[-1])
    return path


def _find_field(body: object, field: str, members: Iterable[str]) -> list[str | int]:
    for path, key, value in walk(body):
        named = value if key == "field" else key
        if isinstance(named, str) and field in _aliases(named):
            return list(path)
    parts = field.split(".")
    if here := _deepest(body, parts):
        return here
    if not isinstance(body, Mapping):
        return []
    spec = body.get("spec")
    if parts[0] in members and not (field == "scenario" and spec):
        return [parts[0]]
    if spec:
        return ["spec", *_deepest(spec, parts)]
    place = "scenario" if parts[0] in RunSpec.model_fields else "overrides"
    return [place] if place in body else []


def _aliases(name: str) -> tuple[str, ...]:
    """Return the names that an error can use for a member, such as *until* for ``until_at``."""
    return name, scenarios.field_of(name), name.rpartition("_")[0]


def _deeper(body: object, path: list[str | int], message: str) -> list[str | int]:
    """Append the member that the message begins with to the path, if there is one."""
    for part in path:
        body = body.get(part) if isinstance(body, Mapping) else body[part]  # type: ignore[index]
    named = message.partition(": ")[0].partition(",")[0]
    return [*path, *_deepest(body, named.split("."))]


def _deepest(value: object, parts: Sequence[str]) -> list[str | int]:
    """Return the part of a dotted name that exists, and the last part even if it is missing."""
    path: list[str | int] = []
    for part in parts:
        if not isinstance(value, Mapping):
            break
        if part not in value:
            return [*path, part] if path and part == parts[-1] else path
        path.append(part)
        value = value[part]
    return path


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
