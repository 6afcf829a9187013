"""Where in a request stands what a refusal blames: a JSON pointer, or a parameter's name.

Refusals name fields as a person does (``device.sku``, ``burst``, ``Accept``). A pointer (RFC 6901)
leads to what was sent, or to where what is missing belongs; what a scenario says by itself stands
where the scenario is named.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from broadside.coordinator import scenarios
from broadside.coordinator.core.plan.spec import RunSpec

NO_BODY: Final = object()
_HEADERS: Final = ("Accept", "Idempotency-Key")  # that what is not FastAPI's own refuses


@dataclass(frozen=True, slots=True)
class _Takes:
    """What a route accepts: query parameters (may each repeat?) and members of its JSON body."""

    parameters: Mapping[str, bool]
    members: Sequence[str]


_NOTHING: Final = _Takes({}, ())
# By endpoint, because routes cannot be keys.
_taken: Final[dict[Callable[..., Any], _Takes]] = {}


def parameters_of(route: object) -> Mapping[str, bool]:
    """Return a route's query parameters by name, and whether each may come more than once."""
    return _takes(route).parameters


def members_of(route: object) -> Iterable[str]:
    """Return the names that a route's body may have."""
    return _takes(route).members


def _takes(route: object) -> _Takes:
    """Read a route's OpenAPI description, which FastAPI derives from the endpoint, once.

    Without its answers, whose schemas take twenty times as long.
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
            for each in operation.get("parameters", ()):
                if each["in"] == "query":
                    schema = each["schema"]
                    kinds = [one.get("type") for one in (schema, *schema.get("anyOf", ()))]
                    parameters[each["name"]] = "array" in kinds
            for media in operation.get("requestBody", {}).get("content", {}).values():
                schema = media["schema"]
                if (name := schema.get("$ref", "").rpartition("/")[2]) != "":
                    schema = document["components"]["schemas"][name]
                members += schema.get("properties", ())
    takes = _Takes(dict(sorted(parameters.items())), members)
    _taken[route.endpoint] = takes
    return takes


def place_of(fault: Mapping[str, Any], request: Request, body: object) -> Mapping[str, str] | None:
    """``pointer`` or ``parameter`` of a fault; None: it blames nothing that was sent."""
    field, value = str(fault["field"]), fault.get("value")
    if field in _HEADERS:
        return {"parameter": field}
    route = request.scope.get("route")
    for name in parameters_of(route):
        if field in _called(name):
            return {"parameter": name}
    if value is not None and body is not NO_BODY:
        for named, _, each in walk(body):
            if each == value and any(str(part).startswith(field) for part in named):
                return {"pointer": _pointer(named)}
    if value is not None or body is NO_BODY:
        return _place_in_path(field, value, request)
    path = _blamed(body, field, members_of(route))
    return {"pointer": _pointer(_deeper(body, path, str(fault["message"])))}


def _place_in_path(field: str, value: object, request: Request) -> Mapping[str, str] | None:
    """The part of a path that is what is blamed, or is called so: *chart* of /charts/{name}."""
    route = request.scope.get("route")
    for name, sent in request.path_params.items():
        follows = isinstance(route, APIRoute) and f"/{field}s/{{{name}}}" in route.path
        if value == str(sent) or field in _called(name) or follows:
            return {"parameter": name}
    return None


def pointer_of(found: Mapping[str, Any], body: object) -> str:
    """The pointer of one of pydantic's findings in a body."""
    path = _along(found["loc"][1:], body, missing=found["type"] == "missing")
    return _pointer(_deeper(body, path, found["msg"].removeprefix("Value error, ")))


def _along(location: Sequence[str | int], body: object, *, missing: bool) -> list[str | int]:
    """Where pydantic's finding is; tags of unions are not in what was sent."""
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


def _blamed(body: object, field: str, members: Iterable[str]) -> list[str | int]:
    for path, key, value in walk(body):
        named = value if key == "field" else key
        if isinstance(named, str) and field in _called(named):
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


def _called(name: str) -> tuple[str, ...]:
    """What a refusal may call a member of that name: ``until_at`` is *until*."""
    return name, scenarios.field_of(name), name.rpartition("_")[0]


def _deeper(body: object, path: list[str | int], message: str) -> list[str | int]:
    """Also the member that a message of a place begins with, where it has one."""
    for part in path:
        body = body.get(part) if isinstance(body, Mapping) else body[part]  # type: ignore[index]
    named = message.partition(": ")[0].partition(",")[0]
    return [*path, *_deepest(body, named.split("."))]


def _deepest(value: object, parts: Sequence[str]) -> list[str | int]:
    """As much of a dotted name as there is, and one more where only that is missing."""
    path: list[str | int] = []
    for part in parts:
        if not isinstance(value, Mapping):
            break
        if part not in value:
            return [*path, part] if path and part == parts[-1] else path
        path.append(part)
        value = value[part]
    return path


def walk(body: object) -> Iterator[tuple[tuple[str | int, ...], str | int, object]]:
    """Everything inside a body: its path, its key and itself, from the outside in."""
    waiting: deque[tuple[tuple[str | int, ...], object]] = deque([((), body)])
    while waiting:
        path, value = waiting.popleft()
        members: Iterable[tuple[str | int, object]] = ()
        if isinstance(value, Mapping):
            members = value.items()
        elif isinstance(value, list):
            members = enumerate(value)
        for key, each in members:
            yield (*path, key), key, each
            waiting.append(((*path, key), each))


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
