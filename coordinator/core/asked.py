"""What was asked of an engine against what it says it did."""

from collections.abc import Iterator
from typing import Final

from coordinator.core.align import Aligned
from exchange.messages import EngineReport, Message, Protocol, Traffic, pair_name

OPTIONS_MAX_BYTES: Final = 40  # of a TCP header (RFC 9293, section 3.1), which a segment size of a
# live connection is told net of
NAMED_COUNT: Final = 3


class Difference(Message):
    """One field that engines did otherwise than asked."""

    field: str
    asked: str
    did: str  # as most pairs say
    pairs_count: int
    pairs: tuple[str, ...]  # the first few

    def __str__(self) -> str:
        more = ", ..." if self.pairs_count > len(self.pairs) else ""
        return (
            f"{self.field}: {self.asked} asked, {self.did} done by {self.pairs_count} pairs "
            f"({', '.join(self.pairs)}{more})"
        )


def find_differences(traffic: Traffic, duration_s: int, aligned: Aligned) -> tuple[Difference, ...]:
    """Every field that some pair's engine did otherwise. ``traffic`` is as it was sent: scaled."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for pair in aligned.pairs:
        engine = pair.report.engine if pair.report is not None else None
        if engine is None or engine.error is not None:
            continue
        for field, asked, did in _differences(traffic, duration_s, engine):
            found.setdefault(field, []).append((pair.pair_index, asked, did))
    return tuple(
        Difference(
            field=field,
            asked=said[0][1],
            did=max(sorted({did for *_, did in said}), key=[did for *_, did in said].count),
            pairs_count=len(said),
            pairs=tuple(pair_name(index) for index, *_ in said[:NAMED_COUNT]),
        )
        for field, said in sorted(found.items())
    )


def _differences(
    traffic: Traffic, duration_s: int, engine: EngineReport
) -> Iterator[tuple[str, str, str]]:
    """``(field, asked, did)`` of one end; what it does not say is no difference."""
    tcp = traffic.protocol is Protocol.TCP
    asked: dict[str, object] = {
        "protocol": traffic.protocol.value,
        "direction": traffic.direction.value,
        "streams_count": traffic.streams_count,
        "duration_s": duration_s,
        "omit_s": traffic.omit_s,
        "block_bytes": traffic.block_bytes,
        "stream_bits_per_second": traffic.stream_bits_per_second,
        "congestion": traffic.congestion,
        "dscp": traffic.dscp,
    }
    did: dict[str, object] = {
        "protocol": engine.protocol and engine.protocol.value,
        "direction": engine.direction and engine.direction.value,
        "streams_count": engine.streams_count,
        "duration_s": engine.duration_s,
        "omit_s": engine.omit_s,
        "block_bytes": engine.block_bytes,
        "stream_bits_per_second": engine.stream_bits_per_second,
        "congestion": engine.sender_congestion,
        "dscp": None if engine.tos is None else engine.tos // 4,
    }
    for field, wanted in asked.items():
        if wanted is not None and did[field] is not None and did[field] != wanted:
            yield field, str(wanted), str(did[field])
    window, granted = traffic.window_bytes, engine.window_bytes
    if window is not None and granted is not None and granted < window:
        yield "window_bytes", str(window), str(granted)
    mss, used = traffic.mss_bytes, engine.mss_bytes
    if tcp and mss is not None and used is not None and not mss - OPTIONS_MAX_BYTES <= used <= mss:
        yield "mss_bytes", str(mss), str(used)
