"""What every message is made of: instants, names, and a frozen, checked value."""

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
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


class Message(BaseModel):
    """A frozen value that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
