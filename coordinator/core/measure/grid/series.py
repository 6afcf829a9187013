"""Burst series to be used for charts and for the device counter, and their packed form."""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.phases import Sustain
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import BurstPart, BurstSummary
from broadside.exchange.messages import Flow

# This needs to be changed when there is a new layout.
_MAGIC: Final = b"BSB1"
_HEAD: Final = struct.Struct("<4sI")
# Value to use for unknown cells in the packed pair matrix.
UNKNOWN_LEVEL: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSeries:
    """A flow's payload for the fleet, with shape (seconds,), where NaN is unknown.

    Attributes:
        flow: The flow.
        received_bytes: Sum for all pairs, including pairs that are late or stop too early.
        sent_bytes: Sum for all pairs.
        proven_bytes: The part that receivers themselves recorded.
        pair_p5_bits_per_second: 5th percentile for pairs that have data in this second.
        pair_p50_bits_per_second: Median for the same pairs.
        pair_p95_bits_per_second: 95th percentile for the same pairs.
        retransmits_count: Retransmitted segments.
        rtt_mean_s: Mean round-trip time.
        pairs_bits_per_second: Rates with shape (pairs, seconds), to be used for the heat map.
    """

    flow: Flow
    received_bytes: Floats
    sent_bytes: Floats
    proven_bytes: Floats
    pair_p5_bits_per_second: Floats
    pair_p50_bits_per_second: Floats
    pair_p95_bits_per_second: Floats
    retransmits_count: Floats
    rtt_mean_s: Floats
    pairs_bits_per_second: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstSeries:
    """A burst on the UTC grid, where second ``i`` is ``[start_s + i, start_s + i + 1)``.

    Attributes:
        burst_index: Burst index.
        start_s: Start of the grid in epoch seconds.
        planned_start_s: Planned start in epoch seconds.
        duration_s: Planned duration in seconds.
        omit_s: Warm-up to omit, in seconds.
        window: Seconds [from, before) that are used for the reported rate.
        coverage_ratio: Share of planned pairs that have data in a second.
        client_cpu_ratio: CPU use for all cores, as a mean for client hosts.
        server_cpu_ratio: The same for server hosts.
        flows: Series per flow.
        events: Counts and times of the fleet's engines by name, if they count other things than
            bytes.
        sustain: Start and end of the sustain phase in seconds after the planned start, if the load
            has ramps.
    """

    burst_index: int
    start_s: int
    planned_start_s: float
    duration_s: int
    omit_s: int
    window: tuple[int, int] | None
    coverage_ratio: Floats
    client_cpu_ratio: Floats
    server_cpu_ratio: Floats
    flows: tuple[FlowSeries, ...]
    events: Mapping[str, Floats] = field(default_factory=dict)
    sustain: tuple[int, int] | None = None

    def phase_at(self, after_s: float) -> str:
        """Return the name of the phase of a second, or ``""`` if the load has no ramps.

        Args:
            after_s: Start of the second after the planned start, in seconds.
        """
        if self.sustain is None:
            return ""
        sustain = Sustain(from_s=self.sustain[0], to_s=self.sustain[1])
        return sustain.phase_at(after_s, self.omit_s + self.duration_s).value

    @property
    def planned_end_s(self) -> float:
        """Planned end of traffic in epoch seconds, including the warm-up."""
        return self.planned_start_s + self.omit_s + self.duration_s

    @property
    def received_bytes(self) -> Floats:
        """The fleet's received payload per second, for all flows."""
        return np.asarray(np.sum([flow.received_bytes for flow in self.flows], axis=0))

    def pair_rates(self, pairs_count: int) -> list[NDArray[np.float32]]:
        """Return ``pairs_bits_per_second`` per flow, with shape (``pairs_count``, seconds).

        If a flow only has means, it has no rows. They will be added here as NaN.

        Args:
            pairs_count: Number of rows to return.
        """
        similar = []
        for flow in self.flows:
            rates = flow.pairs_bits_per_second
            if len(rates) < pairs_count:
                missing = pairs_count - len(rates)
                rates = np.pad(rates, ((0, missing), (0, 0)), constant_values=np.nan)
            similar.append(rates)
        return similar

    @property
    def payload_bytes(self) -> int:
        """Bytes sent in the burst, or received bytes if there are more.

        If there are more received bytes, a sender may have died.
        """
        return round(
            sum(
                max(float(np.nansum(flow.sent_bytes)), float(np.nansum(flow.received_bytes)))
                for flow in self.flows
            )
        )

    def pack(self) -> bytes:
        """Return a compressed form, using float32 for fleet values and two bytes per pair-second.

        Fleet bytes are stored as float64. So you will get the same values from a stored series as
        from a new one.
        """
        arrays: list[NDArray[Any]] = [getattr(self, name).astype("<f4") for name in _OF_BURST]
        tops = []
        for flow in self.flows:
            arrays += [getattr(flow, name).astype(kind) for name, kind in _OF_FLOW.items()]
            levels, top = _levels(flow.pairs_bits_per_second)
            arrays.append(levels)
            tops.append(top)
        arrays += [values.astype("<f8") for values in self.events.values()]
        head = json.dumps(
            {
                **{name: getattr(self, name) for name in _HEADED},
                "flows": [flow.flow for flow in self.flows],
                "tops": tops,
                "events": list(self.events),
                **({} if self.sustain is None else {"sustain": self.sustain}),
                "shapes": [(array.dtype.str, array.shape) for array in arrays],
            },
            separators=(",", ":"),
        ).encode()
        body = b"".join(np.ascontiguousarray(array).data for array in arrays)
        return _HEAD.pack(_MAGIC, len(head)) + head + zlib.compress(body, 6)

    @classmethod
    def unpack(cls, packed: bytes, *, with_pairs: bool = True) -> "BurstSeries":
        """Read a series as written by ``pack``.

        Args:
            packed: Packed series.
            with_pairs: Set to false to get a pair matrix that has no rows. This matrix uses nearly
                all of the memory.

        Returns:
            The series. Its matrix has shape (pairs, seconds), or (0, seconds) without pairs.

        Raises:
            ValueError: If this is not a packed series, or if it was written by another version.
        """
        if len(packed) < _HEAD.size or packed[:4] != _MAGIC:
            raise ValueError("burst series: not a packed series of this version; recompute it")
        length = _HEAD.unpack_from(packed)[1]
        head = json.loads(packed[_HEAD.size : _HEAD.size + length])
        body = zlib.decompress(packed[_HEAD.size + length :])
        place = 0

        def take() -> NDArray[Any]:
            nonlocal place
            kind, shape = shapes.pop(0)
            array = np.frombuffer(
                body, np.dtype(kind), count=int(np.prod(shape)), offset=place
            ).reshape(shape)
            place += array.nbytes
            return array

        shapes = list(head["shapes"])
        of_burst: dict[str, Any] = {name: take().astype(np.float64) for name in _OF_BURST}
        flows = []
        for name, top in zip(head["flows"], head["tops"], strict=True):
            of_flow: dict[str, Any] = {item: take().astype(np.float64) for item in _OF_FLOW}
            levels = take() if with_pairs else take()[:0]
            pairs = levels.astype(np.float32) * (top / (UNKNOWN_LEVEL - 1))
            pairs[levels == UNKNOWN_LEVEL] = np.nan
            rates = pairs.astype(np.float32)
            flows.append(FlowSeries(flow=Flow(name), pairs_bits_per_second=rates, **of_flow))
        # Version 0.9 and 1.0.0 have none.
        events = {name: take().astype(np.float64) for name in head.get("events", ())}
        headed = {name: head[name] for name in _HEADED}
        if headed["window"] is not None:
            headed["window"] = tuple(headed["window"])
        sustain = head.get("sustain")
        headed["sustain"] = None if sustain is None else tuple(sustain)
        return cls(**headed, **of_burst, flows=tuple(flows), events=events)


# Values to pack, in this order.
_HEADED: Final = ("burst_index", "start_s", "planned_start_s", "duration_s", "omit_s", "window")
_OF_BURST: Final = ("coverage_ratio", "client_cpu_ratio", "server_cpu_ratio")
_OF_FLOW: Final = {
    "received_bytes": "<f8",
    "sent_bytes": "<f8",
    "proven_bytes": "<f8",
    "pair_p5_bits_per_second": "<f4",
    "pair_p50_bits_per_second": "<f4",
    "pair_p95_bits_per_second": "<f4",
    "retransmits_count": "<f4",
    "rtt_mean_s": "<f4",
}


def _levels(pairs_bits_per_second: NDArray[np.float32]) -> tuple[NDArray[np.uint16], float]:
    """Return rates as 65,534 even levels up to the maximum, using the last for unknown."""
    known = ~np.isnan(pairs_bits_per_second)
    top = float(pairs_bits_per_second[known].max()) if known.any() else 0.0
    scale = (UNKNOWN_LEVEL - 1) / top if top > 0 else 0.0
    levels = np.full(pairs_bits_per_second.shape, UNKNOWN_LEVEL, "<u2")
    levels[known] = np.rint(pairs_bits_per_second[known] * scale)
    return levels, top


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstMeasurement:
    """Result from the agents' records alone, without device counter, bottleneck or verdict."""

    summary: BurstSummary
    series: BurstSeries

    @property
    def payload_bytes(self) -> int:
        """Bytes sent in the burst, with those that other parts of a mixed run received."""
        return self.series.payload_bytes + sum(map(part_bytes, self.summary.parts))


def part_bytes(part: BurstPart) -> int:
    """Return the received bytes of a part. A long burst has no seconds, so its mean is used."""
    rates = part.received_bits_per_second
    if not rates:
        mean = RECEIVED.of_burst(part.summary) or 0.0
        return round(mean * part.summary.duration_s / 8)
    return round(sum(rate for rate in rates if rate is not None) / 8)
