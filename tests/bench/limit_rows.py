"""One row a figure: what was measured, what it must keep, and what stands beside it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure of one bench. Lower is better; beside it a peer or the work alone, in this run."""

    name: str
    value: float
    unit: str
    limit: float | None = None  # at most; None: told, not held
    peer: str = ""  # whose figure stands beside
    peer_value: float | None = None

    @property
    def missed(self) -> bool:
        return self.limit is not None and self.value > self.limit

    @property
    def ratio(self) -> float | None:
        """Times the peer's: what a machine's speed changes least."""
        return self.value / self.peer_value if self.peer_value else None


def show(rows: Iterable[Row], *, as_json: bool = False) -> bool:
    """Print rows as they come, or one JSON list at the end; whether any missed its limit."""
    told = []
    for row in rows:
        told.append(row)
        if not as_json:
            print(_line(row), flush=True)
    if as_json:
        print(listed(told))
    return any(row.missed for row in told)


def listed(rows: Iterable[Row]) -> str:
    """Rows as one JSON list."""
    return json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=2)


def _line(row: Row) -> str:
    held = "" if row.limit is None else f"at most {row.limit:g}{'  MISSED' if row.missed else ''}"
    beside = ""
    if row.peer_value is not None and row.ratio is not None:
        beside = f"{row.peer}: {row.peer_value:.3g} {row.unit}, {row.ratio:.3g} times"
    return f"{row.name:58} {row.value:9.3f} {row.unit:6} {held:20} {beside}".rstrip()
