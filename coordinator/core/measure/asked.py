"""Comparison of requested settings to settings that the engine reports."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from broadside.coordinator.core.measure.align import Aligned
from broadside.coordinator.core.summary import Difference
from broadside.exchange.messages import EngineReport, Traffic, pair_name

# Maximum size for TCP options (RFC 9293, section 3.1). For a live connection, the segment size is
# reported without options.
OPTIONS_MAX_BYTES: Final = 40
NAMED_COUNT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A pair's requested setting, with the values that its engine reports.

    Attributes:
        field: A field name from ``Traffic``, or ``duration_s``.
        asked: Requested value, or ``None`` if the engine can choose.
        did: Value per process, if it is reported.
    """

    field: str
    asked: Any
    did: tuple[Any, ...]

    @property
    def otherwise(self) -> tuple[Any, ...]:
        """Reported values that do not match the request.

        If there was no requested value, there is no difference.
        """
        if self.asked is None:
            return ()
        kept = _KEPT.get(self.field, lambda asked, did: bool(asked == did))
        return tuple(did for did in self.did if not kept(self.asked, did))


# Settings that can match the request although they are not equal to it.
_KEPT: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "window_bytes": lambda asked, granted: granted >= asked,
    "mss_bytes": lambda asked, used: asked - OPTIONS_MAX_BYTES <= used <= asked,
}


def settings(traffic: Traffic, duration_s: int, engine: EngineReport | None) -> tuple[Setting, ...]:
    """Return every setting that an engine can report.

    Each process is compared to the request. To compare the number of streams, all processes are
    added.

    Args:
        traffic: Requested settings, as they were sent to the engine.
        duration_s: Requested duration in seconds.
        engine: The engine's report, or ``None`` to get the request only.

    Returns:
        A setting per field.
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
    """Return fields for which any engine reports another value than requested.

    Args:
        traffic: Requested settings as they were sent, after scaling.
        duration_s: Requested duration in seconds.
        aligned: Burst with its pairs' reports.

    Returns:
        A difference per field, with the value that is reported most often.
    """
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
