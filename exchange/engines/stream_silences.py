"""Streams of one test that carried nothing while others did: what a sum over streams hides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from broadside.exchange.messages import SILENT_STREAMS_MAX_COUNT, Flow, StreamSilence

SILENT_LEAST_S: Final = 2.5  # three seconds, whose ends wander: TCP's first two timeouts take three
_KEPT_MAX_COUNT: Final = 2_000  # silences that are remembered: the longest, of which few are told
BLOCKS_LEAST: Final = 10  # that a stream carried meanwhile: a slow pace leaves seconds empty


@dataclass(slots=True)
class _Silence:
    from_s: float  # engine time
    to_s: float
    usual_bytes: float = 0.0  # what each of the others carried meanwhile

    @property
    def length_s(self) -> float:
        return self.to_s - self.from_s


class StreamSilences:
    """Takes every interval's bytes by stream, and tells the silences."""

    def __init__(self) -> None:
        self._over: list[tuple[Flow, int, _Silence]] = []
        self._now: dict[tuple[Flow, int], _Silence] = {}

    def take(self, flow: Flow, start_s: float, end_s: float, moved: Mapping[int, int]) -> None:
        """One interval; ``moved`` has the bytes of each stream of a flow, by its socket."""
        loud = [count for count in moved.values() if count]
        for socket, count in moved.items():
            silence = self._now.get((flow, socket))
            if not count and (loud or silence):  # else the whole test is silent
                silence = self._now.setdefault((flow, socket), _Silence(start_s, end_s))
                silence.to_s = end_s
                silence.usual_bytes += sum(loud) / max(1, len(loud))
            elif silence:
                del self._now[flow, socket]
                if silence.length_s >= SILENT_LEAST_S:
                    self._over.append((flow, socket, silence))
        if len(self._over) > _KEPT_MAX_COUNT:  # a pace so slow that none of them tells anything
            self._over.sort(key=lambda each: -each[2].length_s)
            del self._over[_KEPT_MAX_COUNT // 2 :]

    def told(self, ports: Mapping[int, int], block_bytes: int) -> tuple[StreamSilence, ...]:
        """The longest so far in time order; ``ports`` has each socket's port at the client."""
        going_on = [(*stream, silence) for stream, silence in self._now.items()]
        found = [
            (flow, socket, silence)
            for flow, socket, silence in (*self._over, *going_on)
            if silence.length_s >= SILENT_LEAST_S
            and silence.usual_bytes >= BLOCKS_LEAST * block_bytes
        ]
        return longest_silences(
            StreamSilence(
                flow=flow, client_port=ports.get(socket), from_s=silence.from_s, to_s=silence.to_s
            )
            for flow, socket, silence in found
        )


def longest_silences(silences: Iterable[StreamSilence]) -> tuple[StreamSilence, ...]:
    """As many as a report takes, in time order."""
    kept = sorted(silences, key=lambda each: each.from_s - each.to_s)[:SILENT_STREAMS_MAX_COUNT]
    return tuple(sorted(kept, key=lambda each: (each.from_s, each.client_port or 0)))
