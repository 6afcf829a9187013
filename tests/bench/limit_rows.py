"""Row of a benchmark: a measured value, its limit, and the value of a peer."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figure of one benchmark. Lower is better.

    Attributes:
        limit: Largest allowed value. None means that the value has no limit.
        peer: Name of the compared figure of the same run: a peer, or the bare work.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    peer: str = ""
    peer_value: float | None = None

    @property
    def missed(self) -> bool:
        return self.limit is not None and self.value > self.limit

    @property
    def ratio(self) -> float | None:
        """Ratio to the peer's value, which depends least on the speed of the machine."""
        return self.value / self.peer_value if self.peer_value else None


def show(rows: Iterable[Row], *, as_json: bool = False) -> bool:
    """Print rows, or one JSON list at the end, and return True if a limit was missed."""
    reported = []
    for row in rows:
        reported.append(row)
        if not as_json:
            print(_line(row), flush=True)
    if as_json:
        print(listed(reported))
    return any(row.missed for row in reported)


def listed(rows: Iterable[Row]) -> str:
    """Return rows as one JSON list."""
    return json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=2)


def _line(row: Row) -> str:
    stored = "" if row.limit is None else f"at most {row.limit:g}{'  MISSED' if row.missed else ''}"
    beside = ""
    if row.peer_value is not None and row.ratio is not None:
        beside = f"{row.peer}: {row.peer_value:.3g} {row.unit}, {row.ratio:.3g} times"
    return f"{row.name:58} {row.value:9.3f} {row.unit:6} {stored:20} {beside}".rstrip()
