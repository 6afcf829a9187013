"""A burst's seconds, as charts and the reconciliation need them, and their packed form."""

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.summary import BurstSummary
from broadside.exchange.messages import Flow

_MAGIC: Final = b"BSB1"  # raised with every change of the layout
_HEAD: Final = struct.Struct("<4sI")
UNKNOWN_LEVEL: Final = 65_535  # in the packed pair matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSeries:
    """One flow of the fleet, second by second; shape (seconds,). NaN is unknown. Payload."""

    flow: Flow
    received_bytes: Floats  # summed over pairs, late and later abandoned ones included
    sent_bytes: Floats
    proven_bytes: Floats  # the part that rests on receivers' own seconds
    pair_p5_bits_per_second: Floats  # over the pairs seen in that second
    pair_p50_bits_per_second: Floats
    pair_p95_bits_per_second: Floats
    retransmits_count: Floats
    rtt_mean_s: Floats
    pairs_bits_per_second: NDArray[np.float32]  # (pairs, seconds), for the heat map


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstSeries:
    """One burst on the UTC grid: second ``i`` is ``[start_s + i, start_s + i + 1)``."""

    burst_index: int
    start_s: int  # epoch s
    planned_start_s: float  # epoch s
    duration_s: int
    omit_s: int
    window: tuple[int, int] | None  # seconds [from, before) that the headline is over
    coverage_ratio: Floats  # share of the planned pairs seen in each second
    client_cpu_ratio: Floats  # mean over hosts of all cores' busy share
    server_cpu_ratio: Floats
    flows: tuple[FlowSeries, ...]

    @property
    def planned_end_s(self) -> float:
        """Planned end of the traffic, its omitted first seconds included (epoch s)."""
        return self.planned_start_s + self.omit_s + self.duration_s

    @property
    def received_bytes(self) -> Floats:
        """Fleet payload a second, all flows."""
        return np.asarray(np.sum([flow.received_bytes for flow in self.flows], axis=0))

    def pair_rates(self, pairs_count: int) -> list[NDArray[np.float32]]:
        """Return each flow's ``pairs_bits_per_second``, all of shape (``pairs_count``, seconds).

        A flow of which only means are known has no rows of its own: here they are NaN.
        """
        alike = []
        for flow in self.flows:
            rates = flow.pairs_bits_per_second
            if len(rates) < pairs_count:
                missing = pairs_count - len(rates)
                rates = np.pad(rates, ((0, missing), (0, 0)), constant_values=np.nan)
            alike.append(rates)
        return alike

    @property
    def payload_bytes(self) -> int:
        """What the burst sent, or what arrived where that is more: a sender may have died."""
        return round(
            sum(
                max(float(np.nansum(flow.sent_bytes)), float(np.nansum(flow.received_bytes)))
                for flow in self.flows
            )
        )

    def pack(self) -> bytes:
        """A compressed form: float32 a fleet figure, two bytes a pair-second.

        Fleet bytes are kept as float64, so that what is computed from a stored series is what was
        computed from the fresh one.
        """
        arrays: list[NDArray[Any]] = [getattr(self, name).astype("<f4") for name in _OF_BURST]
        tops = []
        for flow in self.flows:
            arrays += [getattr(flow, name).astype(kind) for name, kind in _OF_FLOW.items()]
            levels, top = _levels(flow.pairs_bits_per_second)
            arrays.append(levels)
            tops.append(top)
        head = json.dumps(
            {
                **{name: getattr(self, name) for name in _HEADED},
                "flows": [flow.flow for flow in self.flows],
                "tops": tops,
                "shapes": [(array.dtype.str, array.shape) for array in arrays],
            },
            separators=(",", ":"),
        ).encode()
        body = b"".join(np.ascontiguousarray(array).data for array in arrays)
        return _HEAD.pack(_MAGIC, len(head)) + head + zlib.compress(body, 6)

    @classmethod
    def unpack(cls, packed: bytes, *, with_pairs: bool = True) -> "BurstSeries":
        """Read what :meth:`pack` wrote. Raises ``ValueError`` for anything else.

        Without pairs their matrix, nearly all of the memory, has no rows.
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
            of_flow: dict[str, Any] = {each: take().astype(np.float64) for each in _OF_FLOW}
            levels = take() if with_pairs else take()[:0]
            pairs = levels.astype(np.float32) * (top / (UNKNOWN_LEVEL - 1))
            pairs[levels == UNKNOWN_LEVEL] = np.nan
            rates = pairs.astype(np.float32)
            flows.append(FlowSeries(flow=Flow(name), pairs_bits_per_second=rates, **of_flow))
        headed = {name: head[name] for name in _HEADED}
        if headed["window"] is not None:
            headed["window"] = tuple(headed["window"])
        return cls(**headed, **of_burst, flows=tuple(flows))


# What is packed, in this order
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
    """Rates as 65,534 even levels up to the largest; unknown is the last level."""
    known = ~np.isnan(pairs_bits_per_second)
    top = float(pairs_bits_per_second[known].max()) if known.any() else 0.0
    scale = (UNKNOWN_LEVEL - 1) / top if top > 0 else 0.0
    levels = np.full(pairs_bits_per_second.shape, UNKNOWN_LEVEL, "<u2")
    levels[known] = np.rint(pairs_bits_per_second[known] * scale)
    return levels, top


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBurst:
    """What the agents' records alone say of a burst; no ledger, limiter or verdict yet."""

    summary: BurstSummary
    series: BurstSeries
