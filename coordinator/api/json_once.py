"""JSON parser for request bodies that rejects duplicate names, NaN and Infinity.

RFC 8259 does not define what duplicate names mean, and Python uses the last one. Python also
accepts *NaN* and *Infinity*, which are not JSON.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from fastapi import Request
from starlette.exceptions import HTTPException

from broadside.coordinator.api.blame import walk

# Maximum number of values in a body. Each value can be an object with its own error.
VALUES_MAX_COUNT: Final = 20_000
# Enough for 100,000 rows with 25 fields, or 100,000 points with three fields.
IMPORT_VALUES_MAX_COUNT: Final = 3_000_000
# Limit for one object. More labels do not fit into a run row.
NAMES_MAX_COUNT: Final = 5_000
# Maximum number of lists, counted by opening brackets, also those in strings. It allows three
# lists (of addresses) in each of 100,000 rows. The parser creates lists without a pause for other
# threads, and takes 0.1 s for this number.
LISTS_MAX_COUNT: Final = 300_000
# Values for each object of an import. A row has ten.
_OBJECT_VALUES_COUNT: Final = 50
IMPORTS: Final = "/v1/imports/"
# A body of this size is parsed in about one millisecond.
_IN_THE_LOOP_MAX_BYTES: Final = 65_536
# Key in the request scope under which the paths of duplicate names are stored.
TWICE: Final = "broadside.names_twice"


def most_values(path: str, text: bytes) -> int:
    """Return the maximum number of values in a body, which are counted by commas before parsing.

    An import can have more values, but in many small objects. The parser creates one large object
    without a pause for other threads.

    Args:
        path: Path of the request.
        text: Body of the request.
    """
    if not path.startswith(IMPORTS):
        return VALUES_MAX_COUNT
    spread_count = VALUES_MAX_COUNT + _OBJECT_VALUES_COUNT * text.count(b"{")
    return min(IMPORT_VALUES_MAX_COUNT, spread_count)


def read_once(request: Request) -> None:
    """Make a request parse its body strictly.

    Duplicate names are stored in the request scope, and are rejected later.
    """

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

    # FastAPI reads the body with ``request.json``.
    request.json = read  # type: ignore[method-assign]
