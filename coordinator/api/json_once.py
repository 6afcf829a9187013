"""A body's JSON in which every name stands once: of two, who knows which was meant?

RFC 8259 leaves it to the reader, and Python's takes the last. *NaN* and *Infinity*, which it takes
as well, are no JSON.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from fastapi import Request

from broadside.coordinator.api.blame import walk

TWICE: Final = "broadside.names_twice"  # of a request's scope: paths of what stands twice


def read_once(request: Request) -> None:
    """Let a request's body be read so; what stands twice is left in its scope, to be refused."""

    async def read() -> Any:
        text = await request.body()
        doubled: list[tuple[Mapping[str, Any], str]] = []

        def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                names = [name for name, _ in pairs]
                doubled.extend((found, name) for name in found if names.count(name) > 1)
            return found

        def no_json(word: str) -> NoReturn:
            whole = text.decode("utf-8", "replace")
            raise json.JSONDecodeError(f"{word} is no value", whole, max(0, whole.find(word)))

        value = json.loads(text, object_pairs_hook=members, parse_constant=no_json)
        if doubled:
            places = {id(each): path for path, _, each in walk(value)} | {id(value): ()}
            request.scope[TWICE] = [(*places[id(each)], name) for each, name in doubled]
        return value

    request.json = read  # type: ignore[method-assign]  # whoever made the request reads it so
