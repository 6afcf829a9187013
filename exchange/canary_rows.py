"""Rows with the canaries of a pair, written by its client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broadside.exchange.chunks import count_rows, pack, unpack
from broadside.exchange.messages import CanaryOutcome
from broadside.exchange.ports import Entity, RecordUnreadable
from broadside.exchange.rows import cut_properties, joined_properties, make_row, row_name

# Rounds in one row.
ROW_COUNT: Final = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRequests:
    """All forbidden or all allowed requests of a pair, one per round.

    Attributes:
        outcomes: What the client saw.
        took_us: Time from the start of the request to this outcome, in microseconds. None if
            nothing was seen.
        received: True if the server received the request. None if the server could not be asked.
    """

    outcomes: tuple[CanaryOutcome, ...]
    took_us: tuple[int | None, ...]
    received: tuple[bool | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRounds:
    """Canaries of one pair. Round number i was due at ``first_at_s + i * every_s``.

    Attributes:
        first_at_s: Due time of the first round by the client's clock, in epoch seconds.
        every_s: Time between rounds, in seconds.
        forbidden: The forbidden requests.
        allowed: Their allowed twins.
    """

    first_at_s: float
    every_s: float
    forbidden: CanaryRequests
    allowed: CanaryRequests


_KINDS: Final = ("forbidden", "allowed")


def canary_rows(partition: str, prefix: str, rounds: CanaryRounds) -> list[Entity]:
    """Return the rows with all canaries of one pair.

    Args:
        partition: The partition key for all rows.
        prefix: The text that each row key starts with.
        rounds: Canaries of the pair.
    """
    columns: dict[str, list[int | None]] = {}
    for kind, requests in zip(_KINDS, (rounds.forbidden, rounds.allowed), strict=True):
        columns[f"{kind}_outcome"] = [int(outcome) for outcome in requests.outcomes]
        columns[f"{kind}_us"] = list(requests.took_us)
        columns[f"{kind}_received"] = [None if r is None else int(r) for r in requests.received]
    return [
        make_row(
            partition,
            f"{prefix}.{number:03d}",
            {
                "first_at_s": float(rounds.first_at_s),
                "every_s": float(rounds.every_s),
                **cut_properties(
                    "canary",
                    pack({name: values[at : at + ROW_COUNT] for name, values in columns.items()}),
                ),
            },
        )
        for number, at in enumerate(range(0, len(rounds.allowed.outcomes), ROW_COUNT))
    ]


def parse_canary(rows: Sequence[Entity]) -> CanaryRounds:
    """Read canaries from the rows of :func:`canary_rows`, in key order.

    Raises:
        RecordUnreadable: A row is not valid.
    """
    columns: dict[str, list[int | None]] = {}
    for row in rows:
        try:
            packed = joined_properties(row, "canary")
            if (count := count_rows(packed)) > ROW_COUNT:
                raise RecordUnreadable(f"{count} in one row")
            for name, values in unpack(packed).items():
                columns.setdefault(name, []).extend(values)
        except RecordUnreadable as error:
            raise RecordUnreadable(f"row {row_name(row)}: canary: {error}") from error
    first_at_s, every_s = (rows[0].properties.get(name) for name in ("first_at_s", "every_s"))
    if not isinstance(first_at_s, float) or not isinstance(every_s, float) or every_s <= 0:
        raise RecordUnreadable(f"row {row_name(rows[0])}: canary without first_at_s and every_s")
    try:
        forbidden, allowed = (_requests(columns, kind) for kind in _KINDS)
    except (KeyError, ValueError) as error:
        raise RecordUnreadable(f"row {row_name(rows[0])}: canary: {error!r}") from error
    if len(forbidden.outcomes) != len(allowed.outcomes):
        raise RecordUnreadable(f"row {row_name(rows[0])}: canary: requests without a twin")
    return CanaryRounds(
        first_at_s=first_at_s, every_s=every_s, forbidden=forbidden, allowed=allowed
    )


def _requests(columns: dict[str, list[int | None]], kind: str) -> CanaryRequests:
    return CanaryRequests(
        outcomes=tuple(CanaryOutcome(code or 0) for code in columns[f"{kind}_outcome"]),
        took_us=tuple(columns[f"{kind}_us"]),
        received=tuple(None if r is None else r == 1 for r in columns[f"{kind}_received"]),
    )
