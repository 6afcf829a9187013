"""The one way by which a value gets into a script, a configuration or an argv that others read.

``ip -batch``, lftp, vegeta, vsftpd and nginx each have a language with commands, quotes and line
ends. No value of ours needs any of it: addresses, numbers, names and paths are words of plain
characters, and what is none is refused here, whatever let it come so far.
"""

import re
from typing import Final

from exchange.engines.port import Unsupported

_WORD: Final = re.compile(r"[A-Za-z0-9_./:\[*][A-Za-z0-9_./:\[\]@+,=*-]{0,1023}")


class Unwritable(Unsupported):
    """A value is no plain word, so that no script may hold it."""


def word(value: object, field: str) -> str:
    """The value as one word. Raises :class:`Unwritable`, which names ``field``."""
    text = str(value)
    if _WORD.fullmatch(text) is None:
        raise Unwritable(
            f"{field}: {text[:60]!r} is no plain word, as scripts and command lines take it; "
            "use letters, digits and _ . / : only"
        )
    return text


def host_word(address: str, field: str) -> str:
    """An address as it stands in a URL: IPv6 in brackets."""
    plain = word(address, field)
    return f"[{plain}]" if ":" in plain else plain
