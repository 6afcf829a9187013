"""Bursts of other runs in the same device counter, as inputs of a verdict. Pure.

From the start of the first burst that has not been measured yet, all bins are set to unknown,
because these bytes could be attributed to the wrong run.
"""

import json
import zlib
from dataclasses import dataclass, replace

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import CounterRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Burst of another run, or of another part of a mixed run, through the same device.

    Attributes:
        run_id: Id of the other run. Empty for a part of the same run.
        burst_index: Burst index in that run.
        start_s: Start of the first second (epoch s).
        received_bytes: Payload in each second, only for flows that the counter counts.
    """

    run_id: str
    burst_index: int
    start_s: int
    received_bytes: Floats

    @property
    def span_s(self) -> tuple[float, float]:
        """Return the start and the end (epoch s)."""
        return float(self.start_s), float(self.start_s + len(self.received_bytes))

    @property
    def has_traffic(self) -> bool:
        """Return True if the counter counted any of its bytes."""
        return bool(self.received_bytes.any())


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlappingBursts:
    """Bursts of other runs that overlap a device counter.

    Attributes:
        bursts: Measured bursts.
        unknown_from_s: Start of the first burst that is not measured yet, as epoch seconds.
    """

    bursts: tuple[Neighbour, ...] = ()
    unknown_from_s: float | None = None

    def trim(self, device_counter: CounterRecord) -> CounterRecord:
        """Return the device counter with unknown bins from the first unmeasured burst on."""
        if self.unknown_from_s is None:
            return device_counter
        label_s = self.unknown_from_s + max(0.0, device_counter.lag_hint_s or 0.0)
        if not (device_counter.end_s > label_s).any():
            return device_counter
        note = (
            "its values are used only until another run started, because that run was not "
            "measured yet"
        )
        return replace(
            device_counter,
            bytes=np.where(device_counter.end_s > label_s, np.nan, device_counter.bytes),
            notes=(*device_counter.notes, note),
        )

    def dump(self) -> bytes:
        """Return a compressed document."""
        bursts = [
            [burst.run_id, burst.burst_index, burst.start_s, burst.received_bytes.tolist()]
            for burst in self.bursts
        ]
        document = {"bursts": bursts, "unknown_from_s": self.unknown_from_s}
        return zlib.compress(json.dumps(document).encode())

    @classmethod
    def load(cls, document: bytes) -> "OverlappingBursts":
        """Read a document from :meth:`dump`."""
        stored = json.loads(zlib.decompress(document))
        bursts = tuple(
            Neighbour(
                run_id=run_id,
                burst_index=index,
                start_s=start_s,
                received_bytes=np.array(received, dtype=float),
            )
            for run_id, index, start_s, received in stored["bursts"]
        )
        return cls(bursts=bursts, unknown_from_s=stored["unknown_from_s"])
