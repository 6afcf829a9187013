"""What was asked of an engine against what it says it did."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from broadside.coordinator.core.measure.align import Aligned
from broadside.coordinator.core.summary import Difference
from broadside.exchange.messages import EngineReport, Traffic, pair_name

OPTIONS_MAX_BYTES: Final = 40  # of a TCP header (RFC 9293, section 3.1), which a segment size of a
# live connection is told net of
NAMED_COUNT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of one pair as it was asked, and as the engine says that it did it."""

    field: str  # of Traffic; duration_s
    asked: Any  # None: the engine was free to choose
    did: tuple[Any, ...]  # of each process that tells; empty: not told

    @property
    def otherwise(self) -> tuple[Any, ...]:
        """What was done other than asked; what nobody asked or told is no difference."""
        if self.asked is None:
            return ()
        kept = _KEPT.get(self.field, lambda asked, did: bool(asked == did))
        return tuple(did for did in self.did if not kept(self.asked, did))


_KEPT: Final[dict[str, Callable[[Any, Any], bool]]] = {  # where doing as asked is not being equal
    "window_bytes": lambda asked, granted: granted >= asked,
    "mss_bytes": lambda asked, used: asked - OPTIONS_MAX_BYTES <= used <= asked,
}


def settings(traffic: Traffic, duration_s: int, engine: EngineReport | None) -> tuple[Setting, ...]:
    """Every setting that an engine may tell; of None, what was asked alone. ``traffic`` is as sent.

    Of several processes each is held against what was asked, and their streams together.
    """
    parts = () if engine is None else engine.processes or (engine,)
    streams_count = None if engine is None else engine.streams_count
    paced = traffic.stream_bits_per_second is not None

    def told(name: str) -> tuple[Any, ...]:
        return tuple(did for part in parts if (did := getattr(part, name)) is not None)

    congestions = tuple(filter(None, (part.sender_congestion for part in parts)))
    each: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "streams_count": (
            traffic.streams_count,
            () if streams_count is None else (streams_count,),
        ),
        "processes_count": (traffic.processes_count, (len(parts),) if parts else ()),
        "engine": (traffic.engine, told("engine")),
        "protocol": (traffic.protocol.value, told("protocol")),
        "direction": (traffic.direction.value, told("direction")),
        "duration_s": (duration_s, told("duration_s")),
        "omit_s": (traffic.omit_s, told("omit_s")),
        "block_bytes": (traffic.block_bytes, told("block_bytes")),
        "stream_bits_per_second": (
            traffic.stream_bits_per_second,
            told("stream_bits_per_second"),
        ),
        "pacing": (traffic.pacing.value if paced else None, told("pacing")),
        "window_bytes": (traffic.window_bytes, told("window_bytes")),
        "mss_bytes": (traffic.mss_bytes, told("mss_bytes")),
        "congestion": (traffic.congestion, congestions),
        "dscp": (traffic.dscp, tuple(tos // 4 for tos in told("tos"))),
    }
    return tuple(Setting(field=field, asked=asked, did=did) for field, (asked, did) in each.items())


def find_differences(traffic: Traffic, duration_s: int, aligned: Aligned) -> tuple[Difference, ...]:
    """Every field that some pair's engine did otherwise. ``traffic`` is as it was sent: scaled."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for pair in aligned.pairs:
        engine = pair.report.engine if pair.report is not None else None
        if engine is None or engine.error is not None:
            continue
        for each in settings(traffic, duration_s, engine):
            if each.otherwise:
                did = ", ".join(dict.fromkeys(map(str, each.otherwise)))
                said = (pair.pair_index, str(each.asked), did)
                found.setdefault(each.field, []).append(said)
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
