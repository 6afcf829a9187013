"""What JSON that somebody else wrote may be, looked at before it is parsed."""

import re
from typing import Final

DEPTH_MAX_COUNT: Final = 32  # brackets one in another; ours have at most a dozen

_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKETS: Final = re.compile(r"[\[\]{}]")


class TooMuch(ValueError):
    """It is larger, or nested deeper, than anything of ours."""


def bounded_json(body: bytes | str, max_bytes: int) -> str:
    """The text as it is. Raises :class:`TooMuch`, and ``ValueError`` for what is not UTF-8."""
    if len(body) > max_bytes:
        raise TooMuch(f"{len(body)} bytes of JSON; {max_bytes} at most are read")
    text = body.decode() if isinstance(body, bytes) else body
    if (depth := _depth(text)) > DEPTH_MAX_COUNT:
        raise TooMuch(f"JSON nested {depth} deep; {DEPTH_MAX_COUNT} levels at most are read")
    return text


def _depth(text: str) -> int:
    if text.count("[") + text.count("{") <= DEPTH_MAX_COUNT:
        return 0  # it cannot be deeper: most texts need no closer look
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
