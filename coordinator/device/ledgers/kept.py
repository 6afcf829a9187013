"""A ledger as it is kept with a run."""

import json
import math
from datetime import datetime

import numpy as np

from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.exchange.messages import Flow

_DECLARED = ("mss_bytes", "mtu_bytes", "extreme", "counts_lost")


def dump_ledger(ledger: FirewallLedger) -> bytes:
    """A ledger as JSON; unknown bins are null."""
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
    flows = kept.pop("flows", tuple(Flow))
    bins = np.array(kept.pop("bins"), dtype=float).reshape(-1, 3)
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
    )
