"""Where the firewall's own byte counts come from.

Errors::

    LedgerError   the source cannot be read; says which, why, and what to do
"""

import csv
import io
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import numpy as np

from coordinator.core.evidence import FirewallLedger
from coordinator.settings import CoordinatorSettings
from exchange.messages import Direction, Flow

COLUMN_OF_FLOW = {Flow.UP: "up_bytes", Flow.DOWN: "down_bytes"}


class LedgerError(Exception):
    """A ledger cannot be read."""


class LedgerSource(Protocol):
    """A device's byte counts over time.

    ``settle_s`` is how long after an instant its bins up to that instant can still change.
    """

    settle_s: float

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        """The bins that overlap the span. Raises :class:`LedgerError`."""


class LabLedger:
    """The lab firewall's CSV: cumulative IP-layer bytes delivered each way, a reading a second.

    Acknowledgements travel against the payload, so a forward run reads only the flow that carries
    its payload. A counter that went back (a restarted reader) leaves a gap, not a negative bin.
    """

    settle_s = 3.0

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise LedgerError(
                f"ledger_path {self._path}: {error.strerror}; is the lab up?"
            ) from error
        at_s, total_bytes = _readings(text, direction)
        inside = (at_s >= from_at.timestamp() - 1.5) & (at_s <= before_at.timestamp() + 1.5)
        at_s, total_bytes = at_s[inside], total_bytes[inside]
        bins = np.diff(total_bytes)
        return FirewallLedger(
            source="lab",
            layer="ip",
            start_s=at_s[:-1],
            end_s=at_s[1:],
            bytes=np.where(bins >= 0, bins, np.nan),
            grain_s=1.0,
            read_at=datetime.now(UTC),
        )


def _readings(text: str, direction: Direction) -> tuple[np.ndarray, np.ndarray]:
    """Epoch seconds and cumulative bytes of the flows asked for, half-written lines left out."""
    columns = [COLUMN_OF_FLOW[flow] for flow in direction.flows]
    lines = text.splitlines(keepends=True)
    whole = "".join(line for line in lines if line.endswith("\n") and not line.startswith("#"))
    rows = []
    for row in csv.DictReader(io.StringIO(whole)):
        try:
            rows.append((float(row["at_s"]), sum(float(row[column]) for column in columns)))
        except (KeyError, TypeError, ValueError):
            continue
    readings = np.array(rows, dtype=float).reshape(-1, 2)
    return readings[:, 0], readings[:, 1]


def dump_ledger(ledger: FirewallLedger) -> bytes:
    """A ledger as it is kept with a run; unknown bins are null."""
    return json.dumps(
        {
            "source": ledger.source,
            "layer": ledger.layer,
            "grain_s": ledger.grain_s,
            "read_at": ledger.read_at.isoformat(),
            "lag_hint_s": ledger.lag_hint_s,
            "vxlan": ledger.vxlan,
            "snat_utilization_ratio": ledger.snat_utilization_ratio,
            "notes": ledger.notes,
            "bins": [
                [start_s, end_s, None if math.isnan(count) else count]
                for start_s, end_s, count in zip(
                    ledger.start_s.tolist(),
                    ledger.end_s.tolist(),
                    ledger.bytes.tolist(),
                    strict=True,
                )
            ],
        }
    ).encode()


def load_ledger(document: bytes) -> FirewallLedger:
    """What :func:`dump_ledger` wrote."""
    kept = json.loads(document)
    bins = np.array(kept.pop("bins"), dtype=float).reshape(-1, 3)
    return FirewallLedger(
        **{
            **kept,
            "read_at": datetime.fromisoformat(kept["read_at"]),
            "notes": tuple(kept["notes"]),
        },
        start_s=bins[:, 0],
        end_s=bins[:, 1],
        bytes=bins[:, 2],
    )


def open_ledger(settings: CoordinatorSettings) -> LedgerSource | None:
    """The source the settings ask for. Raises :class:`LedgerError` when they are half filled."""
    if settings.ledger == "none":
        return None
    if settings.ledger_path is None:
        raise LedgerError(
            "ledger_path: not set, but ledger is 'lab'; set BROADSIDE_LEDGER_PATH to its ledger.csv"
        )
    return LabLedger(settings.ledger_path)
