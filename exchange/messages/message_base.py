"""What every message is made of: instants, names, and a frozen, checked value."""

import re
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
)

_EARLIEST_AT: Final = datetime(1970, 1, 1, tzinfo=UTC)


_BEFORE_AT: Final = datetime(2286, 1, 1, tzinfo=UTC)  # keys hold 13 digits of milliseconds


def _utc(at: datetime) -> datetime:
    try:
        utc_at = at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("an instant from 1970 to 2285 is wanted") from error
    if not _EARLIEST_AT <= utc_at < _BEFORE_AT:
        raise ValueError("an instant from 1970 to 2285 is wanted")
    return utc_at


UtcDatetime = Annotated[AwareDatetime, AfterValidator(_utc)]


Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


RunId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


TEXT_MAX_CHARS: Final = 4_000
LINES_MAX_CHARS: Final = 65_536

# Control characters, those that turn or hide text, line separators, halves of pairs.
_UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)


def plain_text(text: str, most: int = TEXT_MAX_CHARS) -> str:
    """Text that can stand in a terminal, a log line or a cell: one line, nothing hidden, cut."""
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return _UNSEEN.sub(lambda found: " " if found[0] in "\n\r\t\u2028\u2029" else "?", cut)


def plain_lines(text: str) -> str:
    """The same of several lines, which keep their ends and tabs."""
    cut = text[:LINES_MAX_CHARS]
    return _UNSEEN.sub(lambda found: found[0] if found[0] in "\n\t" else "?", cut)


def parse_address(text: str) -> str:
    """A literal IPv4 or IPv6 address as it is usually spelled. Raises ``ValueError``.

    A scope (``fe80::1%eth0``) is refused: Python takes any text for one.
    """
    if "%" in text:
        raise ValueError("an IP address without a scope is wanted")
    try:
        return str(ip_address(text))
    except ValueError as error:
        raise ValueError("a literal IPv4 or IPv6 address is wanted") from error


def peer_address(text: str | None) -> str | None:
    """The address that an engine or a socket names, without its scope; None where it names none."""
    with suppress(ValueError):
        address = ip_address((text or "").partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return str(mapped or address)
    return None


Text = Annotated[str, AfterValidator(plain_text)]  # for people: cleaned, never refused
Lines = Annotated[str, AfterValidator(plain_lines)]
Address = Annotated[str, StringConstraints(max_length=45), AfterValidator(parse_address)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Ports = Annotated[tuple[Port, ...], Field(max_length=4_096)]  # of one host
Index = Annotated[int, Field(ge=0, le=99_999)]  # of a burst or pair: five digits in keys
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # what a column of figures holds
SpanS = Annotated[float, Field(ge=0, le=86_400)]  # s, of a day at most
JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]


class Message(BaseModel):
    """A frozen value that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
