"""Detection of streams that carried no data while other streams of the same test did.

The sum over all streams does not show such a stream.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from broadside.exchange.messages import SILENT_STREAMS_MAX_COUNT, Flow, StreamSilence

# The shortest silence to report, in seconds. The first two retransmission timeouts of TCP take
# three seconds. This is a little less, because the ends of intervals jitter.
SILENT_LEAST_S: Final = 2.5
# Number of silences to store. If there are more, only the longest ones will be used.
_KEPT_MAX_COUNT: Final = 2_000
# Report a silence only if the other streams have carried at least this number of blocks in this
# time. If the rate limit is low, there can be seconds without data.
BLOCKS_LEAST: Final = 10


@dataclass(slots=True)
class _Silence:
    """A silence of one stream.

    Attributes:
        from_s: Start, engine time in seconds.
        to_s: End, engine time in seconds.
        usual_bytes: Mean bytes that each of the other streams carried in this time.
    """

    from_s: float
    to_s: float
    usual_bytes: float = 0.0

    @property
    def length_s(self) -> float:
        return self.to_s - self.from_s


class StreamSilences:
    """Collects the bytes of each stream per interval and reports silences."""

    def __init__(self) -> None:
        self._over: list[tuple[Flow, int, _Silence]] = []
        self._now: dict[tuple[Flow, int], _Silence] = {}

    def take(self, flow: Flow, start_s: float, end_s: float, moved: Mapping[int, int]) -> None:
        """Add an interval of a flow.

        Args:
            flow: The flow.
            start_s: Start of the interval, engine time in seconds.
            end_s: End of the interval, engine time in seconds.
            moved: Bytes of each stream by socket number.
        """
        loud = [count for count in moved.values() if count]
        for socket, count in moved.items():
            silence = self._now.get((flow, socket))
            # If all streams are silent, no new silence starts.
            if not count and (loud or silence):
                silence = self._now.setdefault((flow, socket), _Silence(start_s, end_s))
                silence.to_s = end_s
                silence.usual_bytes += sum(loud) / max(1, len(loud))
            elif silence:
                del self._now[flow, socket]
                if silence.length_s >= SILENT_LEAST_S:
                    self._over.append((flow, socket, silence))
        # There will only be so many silences if the rate limit is very low. In this case we should
        # not report them.
        if len(self._over) > _KEPT_MAX_COUNT:
            self._over.sort(key=lambda item: -item[2].length_s)
            del self._over[_KEPT_MAX_COUNT // 2 :]

    def silences_by_port(
        self, ports: Mapping[int, int], block_bytes: int
    ) -> tuple[StreamSilence, ...]:
        """Return the longest silences so far, in time order.

        Args:
            ports: Port at the client of each socket number.
            block_bytes: Block size of the test.

        Returns:
            At most as many as a report can contain. A silence without a known socket has no port.
        """
        going_on = [(*stream, silence) for stream, silence in self._now.items()]
        silences = [
            (flow, socket, silence)
            for flow, socket, silence in (*self._over, *going_on)
            if silence.length_s >= SILENT_LEAST_S
            and silence.usual_bytes >= BLOCKS_LEAST * block_bytes
        ]
        return longest_silences(
            StreamSilence(
                flow=flow, client_port=ports.get(socket), from_s=silence.from_s, to_s=silence.to_s
            )
            for flow, socket, silence in silences
        )


def longest_silences(silences: Iterable[StreamSilence]) -> tuple[StreamSilence, ...]:
    """Return the longest silences in time order, at most as many as a report can contain."""
    longest = sorted(silences, key=lambda item: item.from_s - item.to_s)[:SILENT_STREAMS_MAX_COUNT]
    return tuple(sorted(longest, key=lambda item: (item.from_s, item.client_port or 0)))
