"""JSON format of a ledger that is stored with a run."""

import json
import math
from datetime import datetime

import numpy as np

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.exchange.messages import Flow

_DECLARED = ("mss_bytes", "mtu_bytes", "extreme", "counts_lost")


def dump_ledger(ledger: FirewallLedger) -> bytes:
    """Return a ledger as JSON, with null for unknown bins."""
    partial = {} if ledger.partial is None else {"partial": ledger.partial}
    return json.dumps(
        partial
        | {
            "source": ledger.source,
            "layer": ledger.layer,
            "grain_s": ledger.grain_s,
            "read_at": ledger.read_at.isoformat(),
            "lag_hint_s": ledger.lag_hint_s,
            "vxlan": ledger.vxlan,
            "flows": ledger.flows,
            "snat_utilization_ratio": ledger.snat_utilization_ratio,
            "notes": ledger.notes,
            **{name: value for name in _DECLARED if (value := getattr(ledger, name)) is not None},
            **({} if ledger.drops_count is None else {"drops": _counts(ledger.drops_count)}),
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


def _counts(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def load_ledger(document: bytes) -> FirewallLedger:
    """Return the ledger that :func:`dump_ledger` wrote."""
    kept = json.loads(document)
    flows = kept.pop("flows", tuple(Flow))
    bins = np.array(kept.pop("bins"), dtype=float).reshape(-1, 3)
    drops = kept.pop("drops", None)
    return FirewallLedger(
        **{
            **kept,
            "read_at": datetime.fromisoformat(kept["read_at"]),
            "notes": tuple(kept["notes"]),
            "flows": tuple(Flow(flow) for flow in flows),
        },
        start_s=bins[:, 0],
        end_s=bins[:, 1],
        bytes=bins[:, 2],
        drops_count=None if drops is None else np.array(drops, dtype=float),
    )
