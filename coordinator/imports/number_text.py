"""Figures as tables spell them."""

import re
from typing import Final

_GROUPED: Final = re.compile(r"\d{1,3}([,' \u00a0\u202f])\d{3}(?:\1\d{3})*(?:\.\d+)?")
_PLAIN: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


def parse_number(text: str) -> float | None:
    """A figure, with or without thousands separators; None for ``null`` and for nothing.

    Raises ``ValueError``.
    """
    if not text or text.lower() in ("null", "none"):
        return None
    if _GROUPED.fullmatch(text):
        text = re.sub(r"[,' \u00a0\u202f]", "", text)
    if not _PLAIN.fullmatch(text):  # float() would also take 1_0, nan and inf
        raise ValueError(f"not a number: {text[:40]!r}")
    return float(text)
