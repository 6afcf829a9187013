"""A body's JSON in which every name stands once: of two, who knows which was meant?

RFC 8259 leaves it to the reader, and Python's takes the last. *NaN* and *Infinity*, which it takes
as well, are no JSON.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from fastapi import Request
from starlette.exceptions import HTTPException

from broadside.coordinator.api.blame import walk

VALUES_MAX_COUNT: Final = 20_000  # of a body: each may be an object, and an error of its own
# 100,000 rows of at most 25 fields, 100,000 points of three.
IMPORT_VALUES_MAX_COUNT: Final = 3_000_000
NAMES_MAX_COUNT: Final = 5_000  # of one object: more labels do not fit into a run's row
# By their brackets, in texts too: three (addresses) in each of 100,000 rows. Lists are made without
# a pause in which others could go on; this many take 0.1 s.
LISTS_MAX_COUNT: Final = 300_000
_OBJECT_VALUES_COUNT: Final = 50  # of one object of an import; a row has ten
IMPORTS: Final = "/v1/imports/"
_IN_THE_LOOP_MAX_BYTES: Final = 65_536  # parsed in about a millisecond
TWICE: Final = "broadside.names_twice"  # of a request's scope: paths of what stands twice


def most_values(path: str, text: bytes) -> int:
    """Values that a body may hold, as counted by its commas before anything is built from it.

    Those of an import are in many small objects. One large object is made without a pause.
    """
    if not path.startswith(IMPORTS):
        return VALUES_MAX_COUNT
    spread_count = VALUES_MAX_COUNT + _OBJECT_VALUES_COUNT * text.count(b"{")
    return min(IMPORT_VALUES_MAX_COUNT, spread_count)


def read_once(request: Request) -> None:
    """Let a request's body be read so; what stands twice is left in its scope, to be refused."""

    async def read() -> Any:
        text = await request.body()
        doubled: list[tuple[Mapping[str, Any], str]] = []

        def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            if len(pairs) > NAMES_MAX_COUNT:
                said = f"an object of {len(pairs)} names; {NAMES_MAX_COUNT} at most are read"
                raise HTTPException(413, said)
            found = dict(pairs)
            if len(found) < len(pairs):
                names = [name for name, _ in pairs]
                doubled.extend((found, name) for name in found if names.count(name) > 1)
            return found

        def no_json(word: str) -> NoReturn:
            whole = text.decode("utf-8", "replace")
            raise json.JSONDecodeError(f"{word} is no value", whole, max(0, whole.find(word)))

        def parsed() -> Any:
            return json.loads(text, object_pairs_hook=members, parse_constant=no_json)

        most = most_values(request.url.path, text)
        if (brackets_count := text.count(b"[")) > LISTS_MAX_COUNT:
            said = f"{brackets_count} lists in the body; {LISTS_MAX_COUNT} at most are read"
            raise HTTPException(413, said)
        if (count := text.count(b",")) > most:
            raise HTTPException(413, f"{count} values in the body; {most} at most are read")
        is_small = len(text) <= _IN_THE_LOOP_MAX_BYTES
        value = parsed() if is_small else await asyncio.to_thread(parsed)
        if doubled:
            places = {id(each): path for path, _, each in walk(value)} | {id(value): ()}
            request.scope[TWICE] = [(*places[id(each)], name) for each, name in doubled]
        return value

    request.json = read  # type: ignore[method-assign]  # whoever made the request reads it so
